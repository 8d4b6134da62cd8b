"""Whoever begins in the middle of an output has what the first reader has: in each case that keeps
events, under every policy, wherever the snapshot is taken and whatever the inputs do."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lmerge_service.core import Case, LMerge, Policy, lmerge, restore
from lmerge_service.core.engine import EngineSetting
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.merge.snapshots.beginnings import PartitionStart
from lmerge_service.tdb import Event, reconstitute
from tests.core.test_cases import Steps, honest, lying, policies
from tests.engines import by_both_engines
from tests.reader.test_inlets import Reading

every_case = pytest.mark.parametrize("case", [Case.R3, Case.R4])


def output_of(merge: LMerge, steps: Steps) -> list[Element]:
    return [each for number, step in steps for each in merge.process(str(number), on_wire(step))]


def on_wire(element: Element) -> Element:
    """With a payload that is canonical JSON, as that of a record is."""
    if type(element) is Stable:
        return element
    return replace(element, payload=b'"%s"' % element.payload.encode())  # type: ignore[union-attr]


def read_from(start: PartitionStart, case: Case, output: Sequence[Element]) -> list[Element]:
    """What a reader hands out that begins there, all that it is correct from known."""
    reading = Reading(case)
    begun = reading.begin("a", start)
    while reading.merge.gap is not None:
        begun += reading.merge.accept_gap()[1]
    return begun + reading.take("a", *output[start.offset :])


def assert_the_same(case: Case, merge: LMerge, steps: Steps, cut: int) -> None:
    """Of whoever begins at a snapshot that is taken after so many steps, once all is final: until
    then a reader may owe revisions that the output has emitted already."""
    output = output_of(merge, steps[:cut])
    saved = restore(merge.snapshot())
    live = saved.live_output()
    assert live is not None
    start = PartitionStart(sorted(live, key=lambda each: each.vs), saved.max_stable, len(output))
    output += output_of(merge, steps[cut:])
    if merge.max_stable < INFINITY:
        output.append(Stable(INFINITY))
    found = read_from(start, case, output)
    first, late = (
        Counter(each for each in reconstitute(of) if each.ve >= start.stable)
        for of in (output, found)
    )
    assert late == first
    assert reconstitute(found).stable == reconstitute(output).stable


def drawn_cut(data: st.DataObject, steps: Steps, merge: LMerge) -> int:
    """Anywhere before the output has ended: then nothing is live."""
    for count, (number, element) in enumerate(steps):
        merge.process(str(number), element)
        if merge.max_stable == INFINITY:
            return data.draw(st.integers(0, count))
    return data.draw(st.integers(0, len(steps)))


def operator(case: Case, policy: Policy, n: int, engine: EngineSetting = "python") -> LMerge:
    merge = lmerge(case, policy, engine=engine)
    for number in range(n):
        merge.attach(str(number))
    return merge


@pytest.mark.full
@every_case
@given(st.data(), policies)
def test_of_honest_inputs(case: Case, data: st.DataObject, policy: Policy) -> None:
    _, n, steps = data.draw(honest(case))
    cut = drawn_cut(data, steps, operator(case, policy, n))
    assert_the_same(case, operator(case, policy, n), steps, cut)


@pytest.mark.full
@every_case
@given(st.data(), policies)
def test_of_inputs_that_lie(case: Case, data: st.DataObject, policy: Policy) -> None:
    n, steps = data.draw(lying(case))
    cut = drawn_cut(data, steps, operator(case, policy, n))
    assert_the_same(case, operator(case, policy, n), steps, cut)


@pytest.mark.full
@by_both_engines
@given(st.data())
def test_by_either_engine(engine: EngineSetting, data: st.DataObject) -> None:
    _, n, steps = data.draw(honest(Case.R3))
    cut = drawn_cut(data, steps, operator(Case.R3, Policy(), n))
    assert_the_same(Case.R3, operator(Case.R3, Policy(), n, engine), steps, cut)


def test_equal_events_of_a_multiset_are_begun_as_often_as_they_are_there() -> None:
    elements: list[Element] = [*[Insert("A", 1, 9)] * 3, Insert("A", 1, 12), Stable(5)]
    steps: Steps = [(0, each) for each in elements]
    more: Steps = [(0, Insert("B", 6, 7)), (0, Stable(INFINITY))]
    assert_the_same(Case.R4, operator(Case.R4, Policy(), 1), steps + more, len(steps))
    merge = operator(Case.R4, Policy(), 1)
    output_of(merge, steps)
    assert Counter(merge.live_output() or ()) == {
        Event(b'"A"', 1, 9): 3,
        Event(b'"A"', 1, 12): 1,
    }


def test_a_revision_at_once_is_had_when_it_is_final() -> None:
    steps: Steps = [(0, Insert("A", 0, 2)), (0, Adjust("A", 0, 2, 1))]
    for cut in range(3):
        assert_the_same(Case.R3, operator(Case.R3, Policy(adjust="eager"), 1), steps, cut)


@every_case
def test_of_an_output_that_has_ended_a_snapshot_has_nothing_but_the_end(case: Case) -> None:
    """Events that never end are final then, too: who wants them reads from the first record."""
    merge = operator(case, Policy(), 1)
    output = output_of(merge, [(0, Insert("A", 1, INFINITY)), (0, Stable(INFINITY))])
    assert [*(merge.live_output() or ())] == []
    assert read_from(PartitionStart([], merge.max_stable, len(output)), case, output) == [
        Stable(INFINITY)
    ]
    assert read_from(PartitionStart([], START, 0), case, output) == output
