"""The baselines: counting fails where the paper shows that it does, LMR3− emits what LMR3 emits."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.core import lmerge
from lmerge_service.core.baselines import CountingMerge, LMR3Minus
from lmerge_service.core.breaches import BreachKind
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB, Event, reconstitute
from tests import vectors
from tests.strategies import (
    any_elements,
    interleavings,
    logical_streams,
    lying_presentations,
    presentations,
    seeded_presentations,
)

Steps = list[tuple[int, Element]]


def counting_case(name: str) -> Any:
    (case,) = [case for case in vectors.cases("counting_merge") if case["id"] == name]
    return case


def play(merge: Any, given: Any) -> list[list[Element]]:
    for number in range(given["inputs"]):
        merge.attach(str(number))
    return [merge.process(str(number), vectors.element(row)) for number, row in given["steps"]]


def test_counting_is_right_for_identical_sequences() -> None:
    case = counting_case("lm-count-1")
    outputs = play(CountingMerge(), case["given"])
    assert outputs == [vectors.elements(rows) for rows in case["expect"]["outputs"]]


def test_counting_loses_and_doubles_once_an_input_missed_an_element_and_lmr0_does_not() -> None:
    case = counting_case("lm-count-2")
    counted = play(CountingMerge(), case["given"])
    assert counted == [vectors.elements(rows) for rows in case["expect"]["counting"]]
    payloads = [event.payload for emitted in counted for event in reconstitute(emitted)]
    assert payloads == ["a", "b", "d", "d"]
    merged = play(lmerge("R0"), case["given"])
    assert merged == [vectors.elements(rows) for rows in case["expect"]["r0"]]


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Event], int, Steps]:
    logical = draw(logical_streams())
    n = draw(st.integers(1, 4))
    made = draw(presentations(logical, n) | seeded_presentations(logical, n))
    return logical, n, draw(interleavings(made))


def _in_order(emitted: list[Element]) -> list[str]:
    """The order of adjusts before a stable is free."""
    return sorted(map(repr, emitted))


@given(runs(), st.data())
def test_lmr3_minus_emits_what_lmr3_emits(
    run: tuple[list[Event], int, Steps], data: st.DataObject
) -> None:
    logical, n, steps = run
    leaves = data.draw(st.integers(0, len(steps))) if n > 1 else len(steps)
    simple, merge, output = LMR3Minus(), lmerge("R3"), TDB()
    for number in range(n):
        simple.attach(str(number))
        merge.attach(str(number))
    for position, (number, element) in enumerate(steps):
        if position == leaves:
            simple.detach("0")
            merge.detach("0")
        if position >= leaves and number == 0:
            continue
        emitted = simple.process(str(number), element)
        assert _in_order(emitted) == _in_order(merge.process(str(number), element))
        for each in emitted:
            output.apply(each)
        simple.check()
        assert len(simple) == len(merge)
    assert output == TDB(logical)
    assert output.stable == INFINITY
    assert not simple.ignored
    assert len(simple) == 0


@given(st.data())
def test_whatever_the_inputs_do_lmr3_minus_emits_a_legal_stream(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 3))
    logical = data.draw(logical_streams())
    streams = data.draw(
        lying_presentations(logical, n)
        | st.lists(st.lists(any_elements(), max_size=15), min_size=n, max_size=n)
    )
    merge, output = LMR3Minus(), TDB()
    for number in range(n):
        merge.attach(str(number))
    for number, element in data.draw(interleavings(streams)):
        for emitted in merge.process(str(number), element):
            output.apply(emitted)
        merge.check()
        assert output.stable == merge.max_stable


def test_what_lmr3_minus_ignores_is_counted_by_kind() -> None:
    merge = LMR3Minus()
    merge.attach("a")
    merge.process_batch("a", [Insert("A", 5, 20), Stable(10)])
    wrong: list[tuple[Element, BreachKind]] = [
        (Insert("B", 9, 30), BreachKind.BROKE_OWN_STABLE),
        (Adjust("A", 5, 20, 9), BreachKind.BROKE_OWN_STABLE),
        (Adjust("B", 12, 20, 30), BreachKind.UNKNOWN_EVENT),
        (Stable(9), BreachKind.STABLE_REGRESSION),
    ]
    for element, kind in wrong:
        before = merge.ignored[kind]
        assert merge.process("a", element) == []
        assert merge.ignored[kind] == before + 1, element
    assert merge.process("a", Stable(21)) == [Stable(21)]
    assert len(merge) == 0


def test_a_payload_is_held_once_by_every_input_that_sent_its_own() -> None:
    """The point of the baseline: what LMR3 holds once, it holds n times."""
    payloads = [bytes(bytearray(b"the same")) for _ in range(3)]
    merge = LMR3Minus()
    for number, payload in enumerate(payloads):
        merge.attach(str(number))
        merge.process(str(number), Insert(payload, 1, 5))
    held = {id(p) for index in merge._inputs.values() for _, p, _ in index.before(INFINITY)}
    assert held == set(map(id, payloads))


def test_of_an_input_that_left_lmr3_minus_holds_nothing() -> None:
    merge = LMR3Minus()
    merge.attach("a")
    merge.detach("a")
    with pytest.raises(KeyError):
        merge.process("a", Stable(5))


def test_lmr3_minus_does_not_count_a_stable_that_is_repeated() -> None:
    merge = LMR3Minus()
    merge.attach("a")
    assert merge.process_batch("a", [Stable(5), Stable(5)]) == [Stable(5)]
    assert not merge.ignored
