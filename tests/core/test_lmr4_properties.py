"""LMR4's promises over drawn presentations of multisets, honest and lying (docs/semantics.md)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.core import Case, LMerge, Policy, lag, lmerge, quorum, restore
from lmerge_service.core.in3t import In3t, Node
from lmerge_service.core.inputs import Input
from lmerge_service.core.lmr4 import LMR4, changes
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB, Event, multiset_compatibility
from tests.core.oracle4 import Oracle
from tests.strategies import (
    any_elements,
    interleavings,
    logical_streams,
    lying_presentations,
    presentations,
    seeded_presentations,
)

Steps = list[tuple[int, Element]]

INSERTS = ("first", "leader", "half_frozen", quorum(2), quorum(0.5))
ADJUSTS = ("lazy", "eager", "leader")
STABLES = ("max", lag(3), quorum(2), quorum(3))
POLICIES = [Policy(*choices) for choices in product(INSERTS, ADJUSTS, STABLES)]

policies = st.sampled_from(POLICIES)
few_keys = st.builds(
    lambda payload, vs, length: Event(payload, vs, min(vs + length, INFINITY)),
    st.sampled_from("AB"),
    st.integers(0, 3),
    st.sampled_from((1, 2, 3, 5, 8, INFINITY)),
)


def multisets() -> st.SearchStrategy[list[Event]]:
    """Logical streams without a key: half of them with many events to each of few keys."""
    crowded = st.lists(few_keys, max_size=8).map(lambda drawn: sorted(drawn, key=lambda e: e.vs))
    return crowded | logical_streams(unique_keys=False)


@st.composite
def honest_runs(draw: st.DrawFn, least: int = 1) -> tuple[list[Event], int, Steps]:
    """(logical stream, number of inputs, interleaved steps)."""
    logical = draw(multisets())
    n = draw(st.integers(least, 4))
    made = draw(presentations(logical, n, "R4") | seeded_presentations(logical, n, "R4"))
    return logical, n, draw(interleavings(made))


def crowded_elements() -> st.SearchStrategy[Element]:
    """Elements of hardly any key, so that most of them meet."""
    inserts = few_keys.map(lambda event: Insert(*event))
    ends = st.integers(0, 12)
    adjusts = st.builds(lambda e, ve: Adjust(e.payload, e.vs, e.ve, max(ve, e.vs)), few_keys, ends)
    return inserts | inserts | adjusts | st.builds(Stable, ends)


@st.composite
def lying_runs(draw: st.DrawFn) -> tuple[int, Steps]:
    n = draw(st.integers(1, 4))
    anything = any_elements() | crowded_elements()
    made = draw(
        lying_presentations(draw(multisets()), n, "R4")
        | st.lists(st.lists(anything, max_size=20), min_size=n, max_size=n)
    )
    return n, draw(interleavings(made))


def operator(policy: Policy, n: int, joining: Sequence[int] = ()) -> LMerge:
    merge = lmerge(Case.R4, policy)
    for number in range(n):
        merge.attach(str(number), joining[number] if joining else START)
    return merge


def is_compatible(output: TDB, leading: TDB) -> bool:
    return not multiset_compatibility(leading, output)


def before_each_stable(emitted: Iterable[Element]) -> Iterable[tuple[list[Any], Stable]]:
    adjusts: list[Element] = []
    for element in emitted:
        if type(element) is Stable:
            yield adjusts, element
            adjusts = []
        else:
            adjusts.append(element)


def was_forced(skipped: Element, before: TDB, emitted: list[Element], leading: TDB) -> bool:
    without = TDB(before, before.stable)
    for element in emitted:
        if element is not skipped:
            without.apply(element)
    return not is_compatible(without, leading)


@given(honest_runs())
def test_honest_inputs_are_merged_by_the_fewest_words(run: tuple[list[Event], int, Steps]) -> None:
    logical, n, steps = run
    merge, output = operator(Policy(), n), TDB()
    inputs = [TDB() for _ in range(n)]
    received: Counter[type] = Counter()
    counts: Counter[type] = Counter()
    for number, element in steps:
        received[type(element)] += 1
        inputs[number].apply(element)
        leading = max(inputs, key=lambda tdb: tdb.stable)
        emitted = merge.process(str(number), element)
        counts.update(map(type, emitted))
        for revisions, stable in before_each_stable(emitted):
            for adjust in (e for e in revisions if type(e) is Adjust):
                assert was_forced(adjust, output, [*revisions, stable], leading), adjust
            for each in (*revisions, stable):
                output.apply(each)
        if type(element) is not Stable:
            for each in emitted:
                assert type(each) is Insert, "an adjust goes out before a stable only"
                output.apply(each)
        merge.check()
        assert output.stable == leading.stable
        assert is_compatible(output, leading)
        assert counts[Insert] <= received[Insert]
        assert counts[Adjust] <= received[Insert] + received[Adjust]
        assert counts[Stable] <= received[Stable]
    assert merge.breaches() == []
    assert output == TDB(logical)
    assert output.stable == INFINITY
    assert len(merge) == 0, "no state after the end"


@given(honest_runs(3), policies)
def test_honest_inputs_are_merged_under_every_policy(
    run: tuple[list[Event], int, Steps], policy: Policy
) -> None:
    logical, n, steps = run
    merge, output = operator(policy, n), TDB()
    for number, element in steps:
        for emitted in merge.process(str(number), element):
            output.apply(emitted)
        merge.check()
    assert merge.breaches() == []
    assert output == TDB(logical)
    assert output.stable == INFINITY
    assert len(merge) == 0


@given(lying_runs(), policies, st.data())
def test_whatever_the_inputs_do_the_output_is_a_legal_stream(
    run: tuple[int, Steps], policy: Policy, data: st.DataObject
) -> None:
    n, steps = run
    joining = [data.draw(st.sampled_from((START, START, 4, 11))) for _ in range(n)]
    merge, output = operator(policy, n, joining), TDB()
    for number, element in steps:
        for emitted in merge.process(str(number), element):
            output.apply(emitted)
        merge.check()
        assert merge.max_stable == output.stable


@given(honest_runs(), st.data())
def test_a_lying_input_beside_honest_ones_is_blamed_and_breaks_nothing(
    run: tuple[list[Event], int, Steps], data: st.DataObject
) -> None:
    """Lies without stables cannot lead, so the output is still what the honest inputs mean."""
    logical, n, steps = run
    anything = st.lists(any_elements() | crowded_elements(), max_size=8)
    lies = [e for e in data.draw(anything) if type(e) is not Stable]
    merged = data.draw(interleavings([steps, [(n, lie) for lie in lies]]))
    merge, output = operator(Policy(), n + 1), TDB()
    for _, (number, element) in merged:
        for emitted in merge.process(str(number), element):
            output.apply(emitted)
        merge.check()
    assert output == TDB(logical)
    assert all(breach.input == str(n) for breach in merge.breaches())


@given(st.data(), st.sampled_from(ADJUSTS))
def test_where_keys_are_unique_the_output_means_what_that_of_lmr3_means(
    data: st.DataObject, adjust: str
) -> None:
    logical = data.draw(logical_streams())
    n = data.draw(st.integers(1, 4))
    steps = data.draw(interleavings(data.draw(presentations(logical, n))))
    outputs = {}
    for case in ("R3", "R4"):
        merge, outputs[case] = lmerge(case, Policy(adjust=adjust)), TDB()
        for number in range(n):
            merge.attach(str(number))
        for number, element in steps:
            for emitted in merge.process(str(number), element):
                outputs[case].apply(emitted)
    assert outputs["R3"] == outputs["R4"] == TDB(logical)


def in_order(emitted: Iterable[Element]) -> list[list[str]]:
    """The order of what is emitted before a stable is free."""
    found: list[list[str]] = [[]]
    for element in emitted:
        found[-1].append(repr(element))
        if type(element) is Stable:
            found.append([])
    return [sorted(each) for each in found]


@given(lying_runs(), st.data())
def test_it_emits_what_the_simplest_form_emits(run: tuple[int, Steps], data: st.DataObject) -> None:
    """Lies and joining included."""
    n, steps = run
    joining = [data.draw(st.sampled_from((START, START, 4, 11))) for _ in range(n)]
    merge = operator(Policy(), n, joining)
    oracle = Oracle({str(number): joining[number] for number in range(n)})
    for number, element in steps:
        emitted = merge.process(str(number), element)
        assert in_order(emitted) == in_order(oracle.process(str(number), element))


class Walked(In3t):
    """The index as the paper has it: every half-frozen node is looked at for every stable."""

    def due(self, sources: Iterable[Input], t: int) -> list[Node]:
        nodes = [node for node in self if node.half_frozen]
        super().due(sources, t)
        for node in nodes:
            if node.half_frozen:  # it was not due: what is live of it is the same as before
                self._take_out(node)
        return nodes


@given(lying_runs(), policies)
def test_the_index_leaves_out_no_node_that_a_stable_concerns(
    run: tuple[int, Steps], policy: Policy
) -> None:
    n, steps = run
    merge, walking = operator(policy, n), operator(policy, n)
    assert isinstance(walking, LMR4)
    walking._index = Walked()
    for source in walking.inputs.values():
        walking._index.attach(source)
    for number, element in steps:
        emitted = merge.process(str(number), element)
        assert emitted == walking.process(str(number), element)
        assert merge.breaches() == walking.breaches()
        walking.check()


@given(lying_runs(), policies, st.data())
def test_a_restored_operator_goes_on_the_same(
    run: tuple[int, Steps], policy: Policy, data: st.DataObject
) -> None:
    n, steps = run
    joining = [data.draw(st.sampled_from((START, START, 10))) for _ in range(n)]
    cut = data.draw(st.integers(0, len(steps)))
    merge = operator(policy, n, joining)
    for number, element in steps[:cut]:
        merge.process(str(number), element)
    merge.breaches()
    twin = restore(merge.snapshot())
    assert len(twin) == len(merge)
    assert (twin.case, twin.policy, twin.snapshot()) == (Case.R4, policy, merge.snapshot())
    for number, element in steps[cut:]:
        assert twin.process(str(number), element) == merge.process(str(number), element)
        assert twin.breaches() == merge.breaches()
    assert twin.snapshot() == merge.snapshot()


@given(lying_runs(), policies, st.data())
def test_an_operator_rebuilt_from_prefixes_goes_on_the_same(
    run: tuple[int, Steps], policy: Policy, data: st.DataObject
) -> None:
    """Lies included, and whatever the interleaving of the rebuild."""
    n, steps = run
    joining = [data.draw(st.sampled_from((START, START, 5, 12))) for _ in range(n)]
    cut = data.draw(st.integers(0, len(steps)))
    merge = operator(policy, n, joining)
    emitted = [o for number, element in steps[:cut] for o in merge.process(str(number), element)]

    rebuilt = lmerge(Case.R4, policy)
    half = len(emitted) // 2
    rebuilt.replay_output(emitted[:half])
    rebuilt.replay_output(emitted[half:])
    for number in range(n):
        rebuilt.attach(str(number), joining[number])
    prefixes = [[e for k, e in steps[:cut] if k == number] for number in range(n)]
    for number, element in data.draw(interleavings(prefixes)):
        assert rebuilt.replay_input(str(number), [element]) == [], "the output has all of it"
        rebuilt.check()

    assert rebuilt.max_stable == merge.max_stable
    assert len(rebuilt) == len(merge)
    for number, element in steps[cut:]:
        assert in_order(rebuilt.process(str(number), element)) == in_order(
            merge.process(str(number), element)
        )


@pytest.mark.full
@given(honest_runs(3), policies, st.data())
def test_late_joiners_and_early_leavers_lose_nothing(
    run: tuple[list[Event], int, Steps], policy: Policy, data: st.DataObject
) -> None:
    """Inputs that join at t send only what ends at t or later; the others leave once they are
    joined. Three of either kind, so that every quorum is there at any time."""
    logical, n, steps = run
    t = data.draw(st.integers(0, 35))
    late = [event for event in logical if event.ve >= t]
    names = ["x", "y", "z"]
    joiners = data.draw(presentations(late, len(names), "R4"))
    merge, output = operator(policy, n), TDB()
    for name in names:
        merge.attach(name, joining_at=t)
    joining = [[(name, e) for e in stream] for name, stream in zip(names, joiners, strict=True)]
    old = [(str(number), e) for number, e in steps]
    for _, (name, element) in data.draw(interleavings([old, *joining])):
        if name in merge.inputs:
            for emitted in merge.process(name, element):
                output.apply(emitted)
        joined = all(merge.inputs[each].joined for each in names)
        if joined and "0" in merge.inputs and data.draw(st.booleans()):
            for other in range(n):
                merge.detach(str(other))
        merge.check()
    assert output == TDB(logical)
    assert output.stable == INFINITY
    assert merge.breaches() == []


@given(lying_runs(), policies)
def test_batches_and_the_same_calls_emit_the_same(run: tuple[int, Steps], policy: Policy) -> None:
    n, steps = run
    one, two, many = (operator(policy, n) for _ in range(3))
    singly = [emitted for number, element in steps for emitted in one.process(str(number), element)]
    again = [emitted for number, element in steps for emitted in two.process(str(number), element)]
    together: list[Element] = []
    batch: list[Element] = []
    for k, (number, element) in enumerate(steps):
        batch.append(element)
        if k + 1 == len(steps) or steps[k + 1][0] != number:
            together += many.process_batch(str(number), batch)
            batch = []
    assert singly == again == together
    assert one.snapshot() == two.snapshot() == many.snapshot()
    assert one.breaches() == many.breaches()


# --- the fewest changes -------------------------------------------------------------------------

Ends = tuple[int, ...]


def is_in_line(held: Ends, wanted: Ends, t: int) -> bool:
    below = [[end for end in ends if end < t] for ends in (held, wanted)]
    return below[0] == below[1] and len(held) == len(wanted)


def fewest(held: Ends, wanted: Ends, t: int) -> int:
    """The length of the shortest way, found by trying them all."""
    reached, steps = {held}, 0
    while not any(is_in_line(each, wanted, t) for each in reached):
        steps += 1
        reached |= {
            tuple(sorted([*each[:k], *new, *each[k + 1 :]]))
            for each in reached
            for k in range(len(each))
            for new in ([], *([end] for end in range(1, 5)))
        } | {tuple(sorted([*each, end])) for each in reached for end in range(1, 5)}
    return steps


SMALL = [
    ends
    for length in range(4)
    for ends in product(range(1, 5), repeat=length)
    if list(ends) == sorted(ends)
]


@pytest.mark.parametrize("t", [2, 3, 4])
def test_no_way_to_agree_is_shorter(t: int) -> None:
    """Every pair of multisets of up to three of four ends."""
    known: dict[tuple[Ends, Ends, int], int] = {}
    for held, wanted in product(SMALL, SMALL):
        now = Counter(held)
        made = list(changes(held, wanted, t))
        for vold, ve in made:
            if vold is not None:
                assert now[vold] > 0
                now[vold] -= 1
            if ve is not None:
                now[ve] += 1
        ended = tuple(sorted(now.elements()))
        assert is_in_line(ended, wanted, t)
        shape = (held, tuple(min(end, t) for end in wanted), t)
        if shape not in known:
            known[shape] = fewest(*shape)
        assert len(made) == known[shape], (held, wanted)
