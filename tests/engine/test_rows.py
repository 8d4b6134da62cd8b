"""A table's rows by the engine are those of Python, in the batches of the client's builder."""

from random import Random

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from lmerge_engine import Batch, Encoded, Rows

from lmerge_service.core.batches import Row, encoded_rows, removals_among, rows_by_the_engine
from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.formats.routing import Router
from lmerge_service.formats.table import RowKeys
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.records import sealed
from lmerge_service.merge.table.rows import KeyedRows
from tests.engine.streams import Script
from tests.seeds import seeds

PRODUCER = 7, 3, 11
HEADERS = [("lmerge-begin", b"7"), ("lmerge-end", b"12")]


def rows_for(key: tuple[str, ...]) -> KeyedRows:
    return KeyedRows(RowKeys(multiset=False, keyed=bool(key)), Router(1, key).key_of)


@seeds(100)
def test_rows_are_those_of_python(seeds: range) -> None:
    for seed in seeds:
        script = Script(Random(seed))
        rng = script.rng
        key = rng.choice(((), ("id",)))
        of_python, of_engine, key_of = rows_for(key), rows_for(key), Router(1, key).key_of
        output = Encoded([], rng.choice((1 << 18, 300)))
        for _ in range(rng.randrange(5)):
            elements = script.elements()
            logical = [key_of(e.payload) for e in elements if type(e) is not Stable]  # type: ignore[union-attr]
            keys = iter(logical)
            records = [(None if type(e) is Stable else next(keys), encode(e)) for e in elements]
            of_python.take(elements, records)
            begins = len(output)
            output.extend(Batch(elements), logical if key or rng.random() < 0.5 else None)
            of_engine.take_batch(Batch(elements), output, begins)
            if rng.random() < 0.3:
                of_python.rows += [(b"swept", None)]
                of_engine.rows += [(b"swept", None)]
        rows = list(of_python.rows)
        assert [*of_engine.rows] == rows, f"seed {seed}"
        assert removals_among(of_engine.rows) == sum(value is None for _, value in rows)
        if rows:
            assert of_engine.rows[-1] == rows[-1]
        _check_batches(of_engine.rows, rows, rng)


def _check_batches(rows: list[Row], expected: list[Row], rng: Random) -> None:
    most = rng.choice((1 << 18, 400, 1))
    batches = sealed(encoded_rows(rows_by_the_engine(rows), HEADERS, most), 9)  # type: ignore[arg-type]
    made = []
    for batch in batches:
        batch._set_producer_state(*PRODUCER)
        made.append(batch._build())
    found, builder, number = [], None, 0
    for key, value in expected:
        if builder is not None and builder.append(number, 9, key, value, HEADERS) is None:
            found.append(bytes(builder.build()))
            builder = None
        if builder is None:
            builder, number = DefaultRecordBatchBuilder(2, 0, 1, *PRODUCER, most), 0
            builder.append(0, 9, key, value, HEADERS)
        number += 1
    if builder is not None:
        found.append(bytes(builder.build()))
    assert made == found


def test_rows_that_are_missing_are_written_by_python_first() -> None:
    rows, script = rows_for(()), Script(Random(1))
    elements: list[Element] = []
    while not elements:
        elements = script.elements()
    rows._missing = {(b'"another"', 3): 9}
    output = Encoded([], 1 << 18)
    output.extend(Batch(elements))
    rows.take_batch(Batch(elements), output, 0)
    assert type(rows.rows) is list
    rows.step(10, 1_000)
    assert not rows.filling
    rows.take_batch(Batch(elements), output, 0)
    assert type(rows.rows) is Rows


def test_rows_that_were_taken_are_gone() -> None:
    rows = rows_by_the_engine([(b"a", b"1"), (b"b", None)])
    assert (len(rows), rows.removals, bool(rows)) == (2, 1, True)
    rows.clear()
    assert (len(rows), rows.removals, bool(rows)) == (0, 0, False)
    assert encoded_rows([(b"a", None)], [], 1 << 18) == [(b"a", None)]


def test_rows_are_of_the_records_of_one_transaction() -> None:
    elements, rows = Batch([Insert(b"1", 6, 12), Adjust(b"1", 6, 12, 15)]), rows_by_the_engine([])
    one, other = Encoded([], 1 << 18), Encoded([], 1 << 18)
    one.extend(elements)
    rows.extend(elements, one, 0, False)
    with pytest.raises(ValueError, match="another"):
        rows.extend(elements, other, 0, False)
    with pytest.raises(IndexError):
        rows.extend(elements, one, 1, False)
    assert [value for _, value in rows] == [encode(Insert(b"1", 6, ve)) for ve in (12, 15)]
    rows.clear()
    with pytest.raises(IndexError):
        rows.extend(elements, other, 0, False)
