"""Cost, by counting work: a stable costs what it changes (docs/design.md)."""

from collections.abc import Iterator

import pytest

from lmerge_service.core import lmerge
from lmerge_service.core.lmr3 import LMR3
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable


def operator(*names: str) -> LMR3:
    merge = lmerge()
    assert isinstance(merge, LMR3)
    for name in names:
        merge.attach(name)
    return merge


def touched_by(merge: LMR3, name: str, element: Element) -> int:
    before = merge._index.touched
    merge.process(name, element)
    return merge._index.touched - before


def with_half_frozen(h: int) -> LMR3:
    """Two inputs that agree on h events which have begun and are not over."""
    merge = operator("a", "b")
    for name in ("a", "b"):
        merge.process_batch(name, [Insert(k, k % 100, 10_000 + k) for k in range(h)])
        merge.process(name, Stable(200))
    return merge


def test_a_stable_touches_no_half_frozen_event_that_it_does_not_concern() -> None:
    for h in (100, 10_000):
        merge = with_half_frozen(h)
        for t in range(201, 300):
            assert touched_by(merge, "a" if t % 2 else "b", Stable(t)) == 0
        merge.process("a", Insert("new", 400, 500))
        merge.process("b", Insert("new", 400, 500))
        assert touched_by(merge, "b", Stable(401)) == 1
        assert touched_by(merge, "a", Stable(501)) == 1


def test_a_revision_of_a_half_frozen_event_costs_one_look() -> None:
    merge = with_half_frozen(5_000)
    merge.process("a", Adjust(7, 7, 10_007, 300))
    assert touched_by(merge, "b", Stable(290)) == 0
    assert touched_by(merge, "a", Stable(301)) == 1


def run(n: int) -> int:
    """A stream of n events with 3 n adjusts and n / 10 stables over two inputs; nodes touched."""
    merge = operator("a", "b")

    def stream(late: int) -> Iterator[Element]:
        for k in range(n):
            yield Insert(k, k, k + 1_000 + late)
            if k > 50:
                yield Adjust(k - 50, k - 50, k + 950 + late, k + 900)
            if k % 10 == 9 and k > 100:
                yield Stable(k - 60)

    for one, two in zip(stream(3), stream(7), strict=True):
        merge.process("a", one)
        merge.process("b", two)
    touched = merge._index.touched
    merge.process("b", Stable(INFINITY))
    assert len(merge) == 0
    return touched


def test_work_grows_with_the_stream_and_not_with_what_is_alive() -> None:
    """The first thousand events only fill the index, so it is what each further one costs."""
    start, once, four_times = run(1_000), run(5_000), run(17_000)
    assert once > start
    assert four_times - start <= 4.4 * (once - start)


@pytest.mark.full
def test_a_storm_of_adjusts_leaves_the_heaps_compact() -> None:
    """A million adjusts of a thousand events, by two inputs and with stables in between."""
    merge = operator("a", "b")
    events = range(1_000)
    for name in ("a", "b"):
        merge.process_batch(name, [Insert(k, 0, 10_000) for k in events])
    merge.process("a", Stable(1))
    end = 10_000
    for storm in range(500):
        new = 10_000 + (storm % 2 or -1) * (storm % 50 + 1)
        for name in ("a", "b"):
            merge.process_batch(name, [Adjust(k, 0, end, new) for k in events])
        merge.process("b" if storm % 2 else "a", Stable(2 + storm))
        end = new
    merge.check()  # X5 bounds every heap
    assert merge.breaches() == []
    merge.process("a", Stable(20_000))
    assert len(merge) == 0
    merge.check()


def test_claims_that_come_and_go_leave_nothing_behind() -> None:
    merge = operator("a")
    for _ in range(10_000):
        merge.process("a", Adjust("k", 5, 9, 12))
        merge.process("a", Adjust("k", 5, 12, 5))
    assert len(merge) == 0
    merge.check()
    assert len(merge._index._coming) == 1


def test_a_lagging_input_costs_no_memory_for_what_is_final() -> None:
    merge = operator("leader", "laggard")
    events: list[Element] = [Insert(k, k, k + 5) for k in range(5_000)]
    merge.process_batch("leader", [*events, Stable(6_000)])
    assert len(merge) == 0
    merge.process_batch("laggard", events)
    assert len(merge) == 0
    assert merge.inputs["laggard"].late == 5_000
