"""Every case under every policy keeps the promises (docs/semantics.md), honest inputs or not."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmerge_service.core import Case, Input, LMerge, Policy, lag, lmerge, quorum, restore
from lmerge_service.core.in2t import In2t, Node
from lmerge_service.core.lmr3 import LMR3
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB, Event, compatibility, reconstitute
from tests.strategies import (
    any_elements,
    interleavings,
    logical_streams,
    lying_presentations,
    presentations,
)

Steps = list[tuple[int, Element]]

INSERTS = ("first", "leader", "half_frozen", quorum(2), quorum(0.5))
ADJUSTS = ("lazy", "eager", "leader")
STABLES = ("max", lag(3), quorum(2))
POLICIES = [Policy(*choices) for choices in product(INSERTS, ADJUSTS, STABLES)]


def deep(share: float) -> settings:
    """So many of the profile's examples: there are five cases of each test."""
    return settings(max_examples=int(share * settings().max_examples))


every_case = pytest.mark.parametrize("case", Case)
policies = st.sampled_from(POLICIES)


def operator(case: Case, policy: Policy, n: int, joining: Sequence[int] = ()) -> LMerge:
    merge = lmerge(case, policy)
    assert (merge.case, merge.policy) == (case, policy)
    for number in range(n):
        merge.attach(str(number), joining[number] if joining else START)
    return merge


def logical_of(case: Case) -> st.SearchStrategy[list[Event]]:
    keyed = case not in (Case.R1, Case.R4)
    return logical_streams(unique_keys=keyed, unique_vs=case is Case.R0)


@st.composite
def honest(draw: st.DrawFn, case: Case) -> tuple[list[Event], int, Steps]:
    """(logical stream, number of inputs, interleaved steps); two at least, for quorums."""
    logical = draw(logical_of(case))
    n = draw(st.integers(2, 4))
    return logical, n, draw(interleavings(draw(presentations(logical, n, case))))


@st.composite
def lying(draw: st.DrawFn, case: Case) -> tuple[int, Steps]:
    n = draw(st.integers(1, 4))
    made = draw(
        lying_presentations(draw(logical_of(case)), n)
        | st.lists(st.lists(any_elements(), max_size=15), min_size=n, max_size=n)
    )
    return n, draw(interleavings(made))


@pytest.mark.full
@every_case
@given(st.data(), policies)
@deep(1.5)
def test_honest_inputs_are_merged_into_an_equivalent_output(
    case: Case, data: st.DataObject, policy: Policy
) -> None:
    logical, n, steps = data.draw(honest(case))
    merge, output = operator(case, policy, n), TDB()
    inputs = [TDB() for _ in range(n)]
    for number, element in steps:
        inputs[number].apply(element)
        for emitted in merge.process(str(number), element):
            output.apply(emitted)
        merge.check()
        if case not in (Case.R1, Case.R4):
            assert not compatibility(inputs, output)
    assert merge.breaches() == []
    assert output == TDB(logical)
    assert output.stable == INFINITY
    assert len(merge) == 0, "no state after the end"


@pytest.mark.parametrize("case", [Case.R0, Case.R1, Case.R2, Case.R3])
@given(st.data())
@deep(0.8)
def test_every_case_agrees_with_the_weakest(case: Case, data: st.DataObject) -> None:
    """At every stable point that both have, as far as it is final."""
    _, n, steps = data.draw(honest(case))
    merges = operator(case, Policy(), n), operator(Case.R4, Policy(), n)
    outputs = TDB(), TDB()
    for number, element in steps:
        for merge, output in zip(merges, outputs, strict=True):
            for emitted in merge.process(str(number), element):
                output.apply(emitted)
        one, other = (
            sorted(e for e in output if e.ve < output.stable or output.stable == INFINITY)
            for output in outputs
        )
        assert one == other
        assert outputs[0].stable == outputs[1].stable
    assert outputs[0] == outputs[1]


@pytest.mark.full
@every_case
@given(st.data(), policies)
@deep(1.5)
def test_whatever_the_inputs_do_the_output_is_a_legal_stream(
    case: Case, data: st.DataObject, policy: Policy
) -> None:
    n, steps = data.draw(lying(case))
    merge, output = operator(case, policy, n), TDB()
    for number, element in steps:
        for emitted in merge.process(str(number), element):
            output.apply(emitted)
        merge.check()
        assert merge.max_stable == output.stable


@every_case
@given(st.data())
@deep(0.5)
def test_half_frozen_never_takes_anything_back(case: Case, data: st.DataObject) -> None:
    n, steps = data.draw(lying(case))
    policy = Policy("half_frozen", data.draw(st.sampled_from(ADJUSTS)))
    merge = operator(case, policy, n)
    for number, element in steps:
        for emitted in merge.process(str(number), element):
            assert type(emitted) is not Adjust or emitted.ve > emitted.vs


@pytest.mark.parametrize("case", [Case.R0, Case.R1, Case.R2])
@given(st.data(), st.sampled_from(("max", lag(3))))
def test_an_ordered_case_gives_an_ordered_output(
    case: Case, data: st.DataObject, stable: str
) -> None:
    n, steps = data.draw(lying(case))
    merge = operator(case, Policy(stable=stable), n)
    emitted = [o for number, element in steps for o in merge.process(str(number), element)]
    assert all(type(element) is not Adjust for element in emitted)
    order = [element.vs for element in emitted if type(element) is Insert]
    assert order == sorted(set(order) if case is Case.R0 else order)


@pytest.mark.full
@every_case
@given(st.data(), policies)
@deep(0.8)
def test_a_restored_operator_goes_on_the_same(
    case: Case, data: st.DataObject, policy: Policy
) -> None:
    n, steps = data.draw(lying(case))
    joining = [data.draw(st.sampled_from((START, START, 10))) for _ in range(n)]
    cut = data.draw(st.integers(0, len(steps)))
    merge = operator(case, policy, n, joining)
    for number, element in steps[:cut]:
        merge.process(str(number), element)
    merge.breaches()
    twin = restore(merge.snapshot())
    assert (twin.case, twin.policy, twin.snapshot()) == (case, policy, merge.snapshot())
    for number, element in steps[cut:]:
        assert twin.process(str(number), element) == merge.process(str(number), element)
        assert twin.breaches() == merge.breaches()
    assert twin.snapshot() == merge.snapshot()


@pytest.mark.full
@every_case
@given(st.data(), policies)
@deep(1.5)
def test_an_operator_rebuilt_from_prefixes_goes_on_the_same(
    case: Case, data: st.DataObject, policy: Policy
) -> None:
    """Promise 7: lies included, and whatever the interleaving of the rebuild."""
    n, steps = data.draw(lying(case))
    joining = [data.draw(st.sampled_from((START, START, 5, 12))) for _ in range(n)]
    cut = data.draw(st.integers(0, len(steps)))
    merge = operator(case, policy, n, joining)
    emitted = [o for number, element in steps[:cut] for o in merge.process(str(number), element)]

    rebuilt = lmerge(case, policy)
    rebuilt.replay_output(emitted)
    for number in range(n):
        rebuilt.attach(str(number), joining[number])
    prefixes = [[e for k, e in steps[:cut] if k == number] for number in range(n)]
    for number, element in data.draw(interleavings(prefixes)):
        assert rebuilt.replay_input(str(number), [element]) == [], "the output has all of it"
        rebuilt.check()

    assert rebuilt.max_stable == merge.max_stable
    for number, element in steps[cut:]:
        assert _in_order(rebuilt.process(str(number), element)) == _in_order(
            merge.process(str(number), element)
        )


def _in_order(emitted: Sequence[Element]) -> list[str]:
    """Elements before one stable come in order of arrival, which a rebuild cannot know."""
    return sorted(map(repr, emitted))


@every_case
@given(st.data())
@deep(0.8)
def test_what_feedback_allows_to_be_left_out_is_not_missed(case: Case, data: st.DataObject) -> None:
    """Inputs look at the feedback before each element, and leave out whatever is about an event
    whose final end lies before it."""
    logical, n, steps = data.draw(honest(case))
    policy = Policy(stable=data.draw(st.sampled_from(("max", lag(3)))))
    merge, output = operator(case, policy, n), TDB()
    heeding = data.draw(st.sets(st.integers(0, n - 1)))
    final = {(p, vs): ve for p, vs, ve in logical}
    several = len(final) < len(logical)
    for number, element in steps:
        point = merge.feedback().get(str(number), START)
        # Of a multiset an input cannot know which of two events is which.
        if number in heeding and not several and _ends_before(element, point, final):
            continue
        for emitted in merge.process(str(number), element):
            output.apply(emitted)
        merge.check()
    assert output == TDB(logical)
    assert output.stable == INFINITY
    assert merge.breaches() == []


def _ends_before(element: Element, t: int, final: dict[tuple[object, int], int]) -> bool:
    if isinstance(element, Stable):
        return False
    return final.get((element.payload, element.vs), element.vs) < t


@pytest.mark.full
@every_case
@given(st.data(), policies)
@deep(0.8)
def test_a_late_joiner_and_early_leavers_lose_nothing(
    case: Case, data: st.DataObject, policy: Policy
) -> None:
    """Inputs that join at t send only what ends at t or later; the others leave once they are
    joined. Two of either kind, so that a quorum of two is there at any time."""
    logical, n, steps = data.draw(honest(case))
    t = data.draw(st.integers(0, 35))
    late = [event for event in logical if event.ve >= t]
    joiners = data.draw(presentations(late, 2, case))
    merge, output = operator(case, policy, n), TDB()
    names = ["x", "y"]
    for name in names:
        merge.attach(name, joining_at=t)
    gone = False
    joining = [[(name, e) for e in stream] for name, stream in zip(names, joiners, strict=True)]
    old = [(str(number), e) for number, e in steps]
    for _, (name, element) in data.draw(interleavings([old, *joining])):
        if name in merge.inputs:
            for emitted in merge.process(name, element):
                output.apply(emitted)
        if (
            all(merge.inputs[each].joined for each in names)
            and not gone
            and data.draw(st.booleans())
        ):
            gone = True
            for other in range(n):
                merge.detach(str(other))
        merge.check()
    assert output == TDB(logical)
    assert merge.breaches() == []


@every_case
@given(st.data(), policies)
@deep(0.5)
def test_batches_emit_what_single_elements_emit(
    case: Case, data: st.DataObject, policy: Policy
) -> None:
    n, steps = data.draw(lying(case))
    one, many = operator(case, policy, n), operator(case, policy, n)
    singly = [emitted for number, element in steps for emitted in one.process(str(number), element)]
    together: list[Element] = []
    batch: list[Element] = []
    for k, (number, element) in enumerate(steps):
        batch.append(element)
        if k + 1 == len(steps) or steps[k + 1][0] != number:
            together += many.process_batch(str(number), batch)
            batch = []
    assert together == singly
    assert many.snapshot() == one.snapshot()
    assert many.breaches() == one.breaches()


class Walked(In2t):
    """The index as the paper has it: every half-frozen node is looked at for every stable."""

    def due(self, sources: Iterable[Input], t: int) -> list[Node]:
        nodes = list(self.frozen.values())
        super().due(sources, t)
        for node in nodes:
            if node.half_frozen:  # it was not due
                self._take_out(node)
        return nodes


@given(lying(Case.R3), policies, st.data())
def test_the_index_leaves_out_no_node_that_a_stable_concerns(
    run: tuple[int, Steps], policy: Policy, data: st.DataObject
) -> None:
    """Joining and leaving included, and who is blamed for what."""
    n, steps = run
    joining = [data.draw(st.sampled_from((START, START, 4, 11))) for _ in range(n)]
    leaving = {data.draw(st.integers(0, 30)): str(data.draw(st.integers(0, n - 1)))}
    merge, walking = operator(Case.R3, policy, 0), operator(Case.R3, policy, 0)
    assert isinstance(walking, LMR3)
    walking._index = Walked()
    for number in range(n):
        merge.attach(str(number), joining[number])
        walking.attach(str(number), joining[number])
    for place, (number, element) in enumerate(steps):
        if leaving.get(place) in merge.inputs:
            assert merge.detach(leaving[place]) == walking.detach(leaving[place])
        emitted = merge.process(str(number), element)
        assert emitted == walking.process(str(number), element)
        assert merge.breaches() == walking.breaches()
        merge.check()


def ended_by(steps: Sequence[tuple[str, Element]], policy: Policy) -> tuple[Any, list[Any]]:
    merge, output = lmerge("R3", policy), []
    for name in "abc":
        merge.attach(name)
    for name, element in steps:
        output += merge.process(name, element)
    return reconstitute(output), [(b.input, b.kind.value) for b in merge.breaches()]


def test_under_a_quorum_what_any_of_the_voters_has_is_kept() -> None:
    """An input that silently skips data costs nothing, and is found out."""
    steps: list[tuple[str, Element]] = [
        ("a", Insert("A", 2, 9)), ("c", Insert("C", 3, 5)),
        ("b", Stable(20)), ("a", Stable(20)), ("c", Stable(20)),
    ]  # fmt: skip
    tdb, blamed = ended_by(steps, Policy(stable=quorum(2)))
    assert list(tdb) == [("A", 2, 9)], "C is known to nobody who voted"
    assert blamed == [("b", "half_frozen_missing")]
    assert list(ended_by(steps, Policy())[0]) == []


def test_under_a_quorum_the_majority_decides_about_an_end() -> None:
    ends = {"a": 9, "b": 7, "c": 7}
    steps: list[tuple[str, Element]] = [(name, Insert("A", 2, ve)) for name, ve in ends.items()]
    steps += [(name, Stable(20)) for name in "abc"]
    tdb, blamed = ended_by(steps, Policy(stable=quorum(3)))
    assert list(tdb) == [("A", 2, 7)]
    assert blamed == [("a", "frozen_end_disagrees")]
    tdb, blamed = ended_by(steps, Policy(stable=quorum(2)))
    assert list(tdb) == [("A", 2, 9)], "a tie: the input attached first"
    assert blamed == [("b", "frozen_end_disagrees")]


def test_with_fewer_inputs_than_the_quorum_the_output_waits() -> None:
    merge = lmerge("R3", Policy(stable=quorum(2)))
    merge.attach("a")
    assert merge.process("a", Stable(5)) == []
    merge.attach("b", joining_at=START)
    assert merge.process("b", Stable(3)) == [Stable(3)]


def test_a_lag_stays_behind_until_the_end() -> None:
    merge = lmerge("R3", Policy(stable=lag(10)))
    merge.attach("a")
    assert merge.process("a", Insert("A", 2, 9)) == [Insert("A", 2, 9)]
    assert merge.process("a", Stable(15)) == [Stable(5)]
    assert merge.process("a", Stable(INFINITY)) == [Stable(INFINITY)]
