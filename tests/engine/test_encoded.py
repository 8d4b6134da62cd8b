"""Records that the engine encodes are those of Python, in the batches of the client's builder."""

from random import Random

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from lmerge_engine import Batch, Encoded

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.records import sealed
from tests.engine.streams import Script
from tests.seeds import seeds

Row = tuple[bytes | None, bytes]
PRODUCER = 7, 3, 11


def _row(element: Element, key: bytes | None = None) -> Row:
    return key or getattr(element, "payload", None), encode(element)


def _by_the_client(
    rows: list[Row], headers: list[tuple[str, bytes]], most: int, timestamp: int
) -> list[tuple[int, bytes]]:
    """As `Sink` has the client's builder make them: how many records, and the bytes."""
    found, builder, count = [], None, 0
    for key, value in rows:
        if builder is not None:
            count += 1
            if builder.append(count - 1, timestamp, key, value, headers) is not None:
                continue
            found.append((count - 1, bytes(builder.build())))
        builder = DefaultRecordBatchBuilder(2, 0, 1, *PRODUCER, most)
        builder.append(0, timestamp, key, value, headers)
        count = 1
    if builder is not None:
        found.append((count, bytes(builder.build())))
    return found


@seeds(300)
def test_the_batches_are_the_client_s(seeds: range) -> None:
    for seed in seeds:
        script = Script(Random(seed))
        rng = script.rng
        headers = rng.choice(([], [("lmerge-incarnation", b"12")], [("é", b""), ("h", b"x" * 99)]))
        most, timestamp = rng.choice((1, 300, 1_000, 9_000, 1 << 18)), rng.randrange(1 << 42)
        encoded, rows = Encoded(headers, most), list[Row]()
        for _ in range(rng.randrange(8)):
            elements = script.elements()
            if rng.random() < 0.3:
                elements.append(Insert(b'"%b"' % (b"x" * rng.randrange(300)), 1, INFINITY))
            if rng.random() < 0.2:
                single = [(rng.choice((None, b"", b"k")), b"v" * rng.randrange(200))]
                encoded += single
                rows += single
            keys = None
            if rng.random() < 0.2:
                keys = [b"key %d" % n for n, e in enumerate(elements) if type(e) is not Stable]
            encoded.extend(Batch(elements), keys)
            left = iter(keys or ())
            rows += [_row(e, None if type(e) is Stable else next(left, None)) for e in elements]
        assert len(encoded) == len(rows)
        assert [*encoded] == rows
        at = rng.randrange(len(rows) + 1)
        assert encoded[at:] == rows[at:]
        batches = sealed(encoded, timestamp)
        for batch in batches:
            batch._set_producer_state(*PRODUCER)
        made = [(batch.record_count(), batch._build()) for batch in batches]
        assert made == _by_the_client(rows, headers, most, timestamp), f"seed {seed}"
        assert [batch.size() for batch in batches] == [len(each) for _, each in made]


@pytest.mark.parametrize(
    "element",
    [
        Insert(b'{"a":1}', -6, INFINITY),
        Insert(b'"p"', 6, 9),
        Adjust(b"[1,2.5]", 6, INFINITY, 9),
        Adjust(b"null", 6, 9, 6),
        Adjust(b"0", -(2**63), 9, INFINITY),
        Stable(INFINITY),
        Stable(-3),
    ],
)
def test_it_encodes_as_the_reference_does(element: Element) -> None:
    encoded = Encoded([], 1 << 18)
    size, *counts = encoded.extend(Batch([element]))
    assert [*encoded] == [_row(element)]
    assert size == len(encode(element))
    removes = isinstance(element, Adjust) and element.ve == element.vs
    kinds = [type(element) is Insert, type(element) is Adjust, removes, type(element) is Stable]
    assert counts == kinds


def test_a_batch_is_sent_as_it_was_however_often() -> None:
    """With another number of the producer's it is another one, as for the client's builder."""
    encoded = Encoded([], 1 << 18)
    encoded.append((None, b"x"))
    (batch,) = sealed(encoded, 5)
    batch._set_producer_state(1, 2, 3)
    assert batch._build() is batch._build()
    assert batch.closed()
    batch.append(timestamp=None, key=None, value=b"y", headers=[])
    assert batch.record_count() == 1
    with pytest.raises(IndexError):
        encoded[1]
