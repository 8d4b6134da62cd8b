"""How far inputs are confirmed (docs/semantics.md, "Confirmed"): honest ones always, others never
beyond what they have in common with the output."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.core import Breach, BreachKind, Case, Operator, Policy, lmerge, quorum, restore
from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.tdb import TDB, Event
from tests.core.test_cases import deep, every_case, honest, logical_of, operator, policies
from tests.strategies import interleavings, presentations

Steps = list[tuple[int, Element]]


def final(tdb: TDB, start: int, end: int) -> Counter[Event]:
    """Of the events that start from `start` on: what is final before `end`, ends cut there."""
    return Counter(event for event in tdb.before(end) if event.vs >= start)


@every_case
@given(st.data(), policies)
@deep(1.5)
def test_honest_inputs_are_confirmed_to_the_end(
    case: Case, data: st.DataObject, policy: Policy
) -> None:
    logical, n, steps = data.draw(honest(case))
    merge = operator(case, policy, n)
    for number, element in steps:
        merge.process(str(number), element)
        merge.check()
    assert merge.breaches() == []
    for source in merge.inputs.values():
        agreement = source.agreement
        assert not agreement.contradicted
        assert agreement.left_out == 0
        assert agreement.confirmed_from == START
        assert agreement.confirmed == (INFINITY if logical else START)


@st.composite
def differing(draw: st.DrawFn, case: Case) -> tuple[int, Steps]:
    """Inputs that are honest each, about streams that may differ."""
    logical = draw(logical_of(case))
    other = draw(st.lists(st.sampled_from(logical), unique=True) if logical else st.just([]))
    other += draw(logical_of(case))
    if case is not Case.R4:
        key = 1 if case is Case.R0 else slice(0, 2)
        other = list({event[key]: event for event in other}.values())
    other.sort(key=lambda event: event.vs)
    n, liars = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    made = draw(presentations(logical, n, case, closed=draw(st.booleans())))
    made += draw(presentations(other, liars, case, closed=draw(st.booleans())))
    return n + liars, draw(interleavings(made))


@every_case
@given(st.data(), policies)
@deep(3)
def test_what_is_confirmed_is_what_both_have(
    case: Case, data: st.DataObject, policy: Policy
) -> None:
    n, steps = data.draw(differing(case))
    merge, output = operator(case, policy, n), TDB()
    inputs = [TDB() for _ in range(n)]
    for number, element in steps:
        inputs[number].apply(element)
        for said in merge.process(str(number), element):
            output.apply(said)
        for source, tdb in zip(merge.inputs.values(), inputs, strict=True):
            start, end = source.agreement.confirmed_from, source.agreement.confirmed
            assert end <= min(tdb.stable, output.stable)
            assert final(tdb, start, end) == final(output, start, end)


def short(payload: str, k: int) -> Insert[str]:
    """Event k of those that are final before the next one starts."""
    return Insert(f"{payload}{k}", 10 * k, 10 * k + 5)


def led(events: int, *others: str, case: Case = Case.R3) -> Operator:
    """A merge whose output has so many short events, all of them a's, and as many stables."""
    merge = lmerge(case)
    for name in ("a", *others):
        merge.attach(name)
    for k in range(events):
        merge.process_batch("a", [short("x", k), Stable(10 * k + 9)])
    return merge


def disagreements(merge: Operator) -> list[Breach]:
    return [each for each in merge.breaches() if each.kind is BreachKind.DISAGREEMENT]


@every_case
def test_n6_other_payloads_always_late_are_a_breach_with_evidence(case: Case) -> None:
    merge = led(0, "b", case=case)
    for k in range(200):
        merge.process_batch("a", [short("x", k), Stable(10 * k + 9)])
        merge.process_batch("b", [short("y", k), Stable(10 * k + 9)])
    found = disagreements(merge)
    assert len(found) == 200
    assert {each.input for each in found} == {"b"}
    first = found[0]
    assert first.kept == Event("x0", 0, 5)
    assert first.element == Stable(9)
    assert first.compared is not None
    assert (first.compared.emitted, first.compared.received) == (1, 1)
    assert first.compared.event == Event("y0", 0, 5)
    a, b = (source.agreement for source in merge.inputs.values())
    assert (a.confirmed, a.contradicted) == (1_999, False)
    assert (b.confirmed, b.contradicted) == (START, True)


@every_case
def test_n6_stables_alone_confirm_nothing(case: Case) -> None:
    merge = led(30, "b", case=case)
    merge.process_batch("b", [Stable(10 * k + 9) for k in range(30)])
    b = merge.inputs["b"].agreement
    assert (b.confirmed, b.left_out, b.contradicted) == (START, 30, False)
    assert b.is_doubtful
    assert merge.breaches() == []


@every_case
def test_n6_an_honest_laggard_is_confirmed_to_its_stable_point(case: Case) -> None:
    merge = led(60, "b", case=case)
    for k in range(60):
        merge.process_batch("b", [short("x", k), Stable(10 * k + 9)])
        assert merge.inputs["b"].agreement.confirmed == 10 * k + 9
    assert merge.breaches() == []


def test_what_was_left_out_is_confirmed_by_nothing_later() -> None:
    merge = led(5, "b")
    merge.process_batch("b", [short("x", 0), Stable(9), Stable(19), short("x", 2), Stable(49)])
    b = merge.inputs["b"].agreement
    assert (b.confirmed_from, b.confirmed, b.left_out) == (49, 9, 3)
    assert not b.is_doubtful, "a few are no reason to worry"
    merge.process_batch("a", [short("x", 5), Stable(59)])
    merge.process_batch("b", [short("x", 5), Stable(59)])
    assert (b.confirmed_from, b.confirmed) == (49, 59)


def test_a_half_frozen_event_that_is_passed_is_left_out() -> None:
    merge = lmerge()
    merge.attach("a")
    merge.attach("b")
    merge.process_batch("a", [Insert("A", 2, INFINITY), Insert("B", 3, INFINITY), Stable(10)])
    merge.process_batch("b", [Insert("B", 3, INFINITY), Stable(2)])
    b = merge.inputs["b"].agreement
    assert (b.confirmed, b.left_out) == (2, 0)
    merge.process("b", Stable(8))
    assert (b.confirmed_from, b.left_out) == (3, 1)


@pytest.mark.parametrize("again", [1, 3])
def test_a_repeated_insert_is_one_event_also_when_both_come_late(again: int) -> None:
    merge = led(1, "b")
    merge.process_batch("b", [short("x", 0)] * (again + 1))
    merge.process("b", Stable(9))
    assert merge.breaches() == []
    assert merge.inputs["b"].agreement.confirmed == 9


@pytest.mark.parametrize("case", [Case.R1, Case.R3, Case.R4])
def test_an_event_that_is_repeated_late_is_not_confirmed_and_no_breach(case: Case) -> None:
    """It was there in time, and the output has let go of it, so that nobody knows what it is."""
    merge = led(0, "b", case=case)
    for name in "ba":
        merge.process(name, short("x", 0))
    merge.process_batch("a", [short("x", 1), Stable(19)])
    merge.process_batch("b", [short("x", 0), short("x", 0), Stable(19)])  # and leaves out x1
    merge.breaches()  # R1: a step back
    merge.process_batch("a", [short("x", 2), Stable(29)])
    merge.process_batch("b", [short("x", 2), Stable(29)])
    b = merge.inputs["b"].agreement
    assert merge.breaches() == []
    assert not b.contradicted
    assert (b.confirmed_from, b.confirmed) == (19, 29)


@pytest.mark.parametrize("case", [Case.R1, Case.R4])
def test_without_a_key_one_that_repeats_and_leaves_out_is_not_blamed(case: Case) -> None:
    merge = led(0, "b", case=case)
    merge.process_batch("a", [*(short("x", k) for k in range(3)), Stable(39)])
    merge.process_batch("b", [short("x", 0), short("x", 0), short("x", 2), Stable(39)])
    assert merge.breaches() == []


@pytest.mark.parametrize("case", Case)
def test_one_of_many_that_is_another_is_a_breach(case: Case) -> None:
    merge = led(0, "b", case=case)
    for k in range(30):
        merge.process_batch("a", [short("x", k), Stable(10 * k + 9)])
        merge.process_batch("b", [short("y" if k == 20 else "x", k), Stable(10 * k + 9)])
    assert [each.compared and each.compared.event for each in disagreements(merge)] == [
        Event("y20", 200, 205)
    ]


def test_an_input_attached_later_is_compared_from_then_on() -> None:
    merge = led(3)
    merge.attach("b")
    merge.process_batch("b", [short("y", 0), Stable(29)])
    b = merge.inputs["b"].agreement
    assert (b.confirmed_from, b.confirmed, b.left_out) == (29, 29, 0)
    merge.process_batch("a", [short("x", 3), Stable(39)])
    merge.process_batch("b", [short("x", 3), Stable(39)])
    assert b.confirmed == 39
    assert merge.breaches() == []


@pytest.mark.parametrize("lie", [None, 700])
def test_what_is_kept_for_a_laggard_is_bounded(lie: int | None) -> None:
    merge = led(2_000, "b")
    assert len(merge._intervals.bounds) <= 129
    assert len(merge.inputs["b"].agreement.differences) <= 129
    for k in range(2_000):
        merge.process_batch("b", [short("y" if k == lie else "x", k), Stable(10 * k + 9)])
    b = merge.inputs["b"].agreement
    assert len(disagreements(merge)) == (lie is not None)
    assert b.confirmed <= (19_999 if lie is None else 10 * lie)
    assert b.confirmed > (19_900 if lie is None else 10 * lie - 500)
    merge.process("a", Stable(INFINITY))
    merge.process("b", Stable(INFINITY))
    assert not b.differences


@every_case
def test_what_is_owed_is_the_same_after_a_restart(case: Case) -> None:
    merge = led(3, "b", case=case)
    merge.process_batch("b", [short("x", 0), Stable(9)])
    twin = restore(merge.snapshot())
    twin.process_batch("b", [short("x", 1), short("x", 2), Stable(29)])
    twin.process_batch("a", [short("x", 3), Stable(39)])
    twin.process_batch("b", [short("x", 3), Stable(39)])
    assert twin.breaches() == []
    b = twin.inputs["b"].agreement
    assert (b.confirmed_from, b.confirmed) == (START, 39)


@every_case
def test_who_has_more_than_the_output_after_an_accepted_gap_is_not_blamed(case: Case) -> None:
    merge = lmerge(case)
    merge.attach("a", 100)
    merge.process_batch("a", [short("x", 11), Stable(125)])
    merge.accept_gap()
    merge.attach("b")
    merge.process_batch("b", [short("x", k) for k in range(9)])
    merge.process_batch("b", [short("x", 11), Stable(125)])
    merge.process_batch("a", [short("x", 13), Stable(139)])
    merge.process_batch("b", [short("x", 13), Stable(139)])
    assert merge.breaches() == []
    assert merge.inputs["b"].agreement.confirmed == 139


@every_case
def test_whoever_was_there_before_a_gap_was_accepted_is_not_blamed(case: Case) -> None:
    merge = lmerge(case, Policy(stable=quorum(2)))
    for name, joining_at in (("b", START), ("a", 100)):
        merge.attach(name, joining_at)
    merge.process_batch("a", [short("x", 11), Stable(125)])
    merge.process_batch("b", [short("x", 0), Stable(9)])
    merge.accept_gap()
    merge.attach("c")
    merge.process_batch("c", [short("x", 11), Stable(125)])
    merge.process_batch("b", [short("x", k) for k in (3, 5, 11)])
    merge.process("b", Stable(125))
    assert [each.kind for each in disagreements(merge)] == []


def test_new_partitions_may_hold_what_is_late_without_blame() -> None:
    merge = led(3, "b")
    merge.inputs["b"].add_partitions(2)
    merge.process_batch("b", [Insert("late", 5, 8), Stable(29)], 1)
    merge.process("b", Stable(29), 0)
    assert merge.breaches() == []
