"""A batch is a sequence of elements like any other, and what it gives at once is what they have."""

from random import Random

import lmerge_engine
import pytest
from lmerge_engine import Batch

from lmerge_service.core.engine import ENGINE_VERSION
from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.formats.routing import Ownership, Router
from lmerge_service.merge.findings.losses import Remembered
from tests.engine.streams import Script
from tests.seeds import seeds

ELEMENTS: list[Element] = [
    Insert(b'"a"', 1, 5),
    Stable(1),
    Adjust(b'"a"', 1, 5, 1),
    Insert(b'"b"', 3, 5),
    Insert(b'"a"', 2, 9),
]


def test_its_version_is_the_one_that_is_needed() -> None:
    assert lmerge_engine.VERSION == ENGINE_VERSION


def test_it_is_a_sequence() -> None:
    batch = Batch(ELEMENTS)
    assert len(batch) == 5
    assert list(batch) == ELEMENTS
    assert batch[0] == ELEMENTS[0]
    assert batch[-1] == ELEMENTS[-1]
    assert list(batch[1:3]) == ELEMENTS[1:3]
    assert list(batch[3:]) == ELEMENTS[3:]
    with pytest.raises(IndexError):
        batch[5]
    batch += batch
    assert list(batch) == ELEMENTS + ELEMENTS
    batch += (Stable(2),)
    assert batch[-1] == Stable(2)
    collected: list[Element] = []
    collected += batch[:2]
    assert collected == ELEMENTS[:2]


def test_it_takes_elements_with_bytes_for_payloads_alone() -> None:
    with pytest.raises(TypeError, match="payloads that are bytes"):
        Batch([Insert("a", 1, 5)])
    with pytest.raises(TypeError, match="not an element"):
        Batch([Script])  # type: ignore[list-item]


def test_a_sample_is_of_payloads() -> None:
    """All elements of a payload are in it, or none, and the bins of all others."""
    elements = [Insert(b"%d" % n, n, n + 9) for n in range(300)]
    sample, bins = Batch([*elements, Stable(7)]).sampled(7, 2)
    chosen = [e for e in elements if not lmerge_engine.payload_hash(e.payload) & 7]
    assert sample == [*chosen, Stable(7)]
    assert 10 < len(chosen) < 90
    others = [e for e in elements if e not in chosen]
    assert bins == {e.vs >> 2 for e in others} | {e.ve >> 2 for e in others}


@seeds(200)
def test_what_was_emitted_is_remembered_as_in_python(seeds: range) -> None:
    for seed in seeds:
        script = Script(Random(seed))
        python, native = Remembered(5), lmerge_engine.Remembered(5)
        for _ in range(script.rng.randrange(12)):
            emitted, late = script.elements(), script.elements()
            assert native.emitted(Batch(emitted)) == python.emitted(emitted)
            assert len(native) == len(python)
            begin = script.rng.randrange(10)
            wanted = python.unknown(late, begin, begin + 10)
            assert native.unknown(Batch(late), begin, begin + 10) == wanted
            assert native.unknown(late, begin, begin + 10) == wanted


@pytest.mark.parametrize("fields", [(), ("k",)])
def test_it_is_divided_as_elements_are(fields: tuple[str, ...]) -> None:
    rng = Random(1)
    elements: list[Element] = [
        Insert(b'{"k":%d,"n":%d}' % (rng.randrange(9), n), rng.randrange(50), 90)
        for n in range(100)
    ]
    elements[10:10] = [Stable(0)]
    router = Router(4, fields)
    batch = Batch(elements)
    routes = router.routes_of(batch)
    assert routes == [router.partition_of(e.payload) for e in elements if isinstance(e, Insert)]
    parted = router.divided(batch)
    assert [*map(list, parted)] == [*map(list, batch.divided(routes, 4))]
    for partition, part in enumerate(parted):
        one, other = Ownership(router, partition), Ownership(router, partition)
        assert list(one.select(batch)) == other.select(elements) == list(part)
        assert one.elsewhere == other.elsewhere == batch.latest_elsewhere(routes, partition)
