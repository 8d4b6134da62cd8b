"""The strategies give what the operators' tests rest on, and shrink to something small."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable, defect
from lmerge_service.errors import IllegalStreamError
from lmerge_service.tdb import TDB, Event, reconstitute
from tests.strategies import (
    any_elements,
    interleavings,
    logical_streams,
    lying_presentations,
    presentations,
    seeded_presentations,
)

A = Event("A", 0, 1)
QUIET = settings(database=None, derandomize=True, suppress_health_check=list(HealthCheck))
SMALL = [A, Event("B", 0, 9), Event("A", 4, INFINITY)]


def reached(strategy: st.SearchStrategy[Any], condition: Callable[[Any], bool]) -> bool:
    search = settings(QUIET, phases=[Phase.generate], max_examples=5000)
    find(strategy, condition, settings=search)  # raises NoSuchExample
    return True


def smallest(strategy: st.SearchStrategy[Any], condition: Callable[[Any], bool]) -> Any:
    return find(strategy, condition, settings=QUIET)


def legal(elements: list[Element]) -> bool:
    try:
        reconstitute(elements)
    except IllegalStreamError:
        return False
    return True


# What they promise


@given(logical_streams())
def test_payload_and_vs_are_a_key_and_events_come_in_order(logical: list[Event]) -> None:
    assert len({event[:2] for event in logical}) == len(logical)
    assert [e.vs for e in logical] == sorted(e.vs for e in logical)
    assert all(0 <= e.vs < e.ve and e.vs < 30 for e in logical)


@given(st.data(), st.sampled_from(("R0", "R1", "R2", "R3", "R4")))
def test_presentations_are_legal_and_equivalent_in_every_case(
    data: st.DataObject, case: str
) -> None:
    logical = data.draw(logical_streams(unique_keys=case != "R4", unique_vs=case == "R0"))
    for elements in data.draw(presentations(logical, 3, case)):
        assert elements[-1] == Stable(INFINITY)
        assert not any(map(defect, elements))
        assert reconstitute(elements) == TDB(logical)


@given(st.data(), st.sampled_from(("R0", "R1", "R2")))
def test_ordered_cases_have_inserts_in_order_only(data: st.DataObject, case: str) -> None:
    logical = data.draw(logical_streams(unique_vs=case == "R0"))
    one, other = data.draw(presentations(logical, 2, case))
    inserts = [[e for e in each if isinstance(e, Insert)] for each in (one, other)]
    assert not any(isinstance(e, Adjust) for e in [*one, *other])
    assert all([e.vs for e in each] == sorted(e.vs for e in each) for each in inserts)
    if case != "R2":
        assert inserts[0] == inserts[1]


@given(st.data(), st.sampled_from(("R3", "R4")))
def test_seeded_presentations_are_legal_and_equivalent(data: st.DataObject, case: str) -> None:
    logical = data.draw(logical_streams(unique_keys=case == "R3"))
    for elements in data.draw(seeded_presentations(logical, 2, case)):
        assert reconstitute(elements) == TDB(logical)


@given(st.data())
def test_a_key_is_never_held_twice_in_case_r3(data: st.DataObject) -> None:
    [elements] = data.draw(presentations(data.draw(logical_streams()), 1))
    assert not held_twice(elements)


@given(st.lists(st.lists(st.integers(), max_size=4), max_size=4).flatmap(
    lambda streams: st.tuples(st.just(streams), interleavings(streams))
))  # fmt: skip
def test_interleavings_keep_the_order_of_each_input(
    drawn: tuple[list[list[int]], list[tuple[int, int]]],
) -> None:
    streams, merged = drawn
    for number, stream in enumerate(streams):
        assert [item for n, item in merged if n == number] == stream


@given(st.data())
def test_liars_publish_elements(data: st.DataObject) -> None:
    for elements in data.draw(lying_presentations(data.draw(logical_streams()), 2)):
        assert not any(map(defect, elements))
    assert defect(data.draw(any_elements())) is None


# What they reach: each of these once hid a mutant of the stable step, or could


def inserted(elements: list[Element], payload: str, vs: int) -> int:
    return sum(isinstance(e, Insert) and (e.payload, e.vs) == (payload, vs) for e in elements)


def held_twice(elements: list[Element]) -> bool:
    prefix = TDB()
    for element in elements:
        prefix.apply(element)
        if len({event[:2] for event in prefix}) < len(prefix):
            return True
    return False


def after_a_stable(elements: list[Element], kind: type[Any]) -> bool:
    return any(
        isinstance(a, Stable) and isinstance(b, kind) for a, b in itertools.pairwise(elements)
    )


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("end too high", lambda s: any(isinstance(e, Insert) and 9 < e.ve < INFINITY for e in s)),
        ("end too low", lambda s: Insert("B", 0, 3) in s),
        ("endless at first", lambda s: Insert("B", 0, INFINITY) in s),
        ("phantom", lambda s: any(isinstance(e, Insert) and e.payload == "C" for e in s)),
        ("inserted again", lambda s: inserted(s, "A", 0) == 2),
        ("out of order", lambda s: [e.vs for e in s if isinstance(e, Insert)] > [0, 1]),
        ("adjust of the half frozen", lambda s: after_a_stable(s, Adjust)),
        ("no stable before the last", lambda s: len(s) > 5 and s.index(Stable(INFINITY)) > 5),
        ("stables that change nothing", lambda s: s.count(Stable(0)) > 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_presentations_reach(name: str, condition: Callable[[list[Element]], bool]) -> None:
    assert reached(presentations(SMALL, 1).map(lambda streams: streams[0]), condition)


def test_logical_streams_collide_in_vs_and_in_payload() -> None:
    assert reached(logical_streams(), lambda s: len({e.vs for e in s}) < len(s))
    assert reached(logical_streams(), lambda s: len({e.payload for e in s}) < len(s))
    assert reached(logical_streams(), lambda s: any(e.ve == INFINITY for e in s))
    assert reached(logical_streams(unique_keys=False), lambda s: len(set(s)) < len(s))


def test_multisets_are_doubled_for_a_while() -> None:
    assert reached(presentations([A], 1, "R4"), lambda s: held_twice(s[0]))


def test_liars_break_every_rule() -> None:
    streams = lying_presentations(SMALL, 1).map(lambda streams: streams[0])
    assert reached(streams, lambda s: not legal(s))
    assert reached(streams, lambda s: legal(s) and reconstitute(s) != TDB(SMALL))


# How they shrink


def test_a_presentation_shrinks_to_events_in_order_at_once_without_stables() -> None:
    found = smallest(presentations(SMALL, 1), lambda streams: len(streams[0]) >= 4)
    assert found == [[*(Insert(*event) for event in SMALL), Stable(INFINITY)]]


def test_a_revision_shrinks_to_a_single_one() -> None:
    found = smallest(presentations([A], 1), lambda s: any(isinstance(e, Adjust) for e in s[0]))
    assert len(found[0]) <= 4


def test_an_interleaving_shrinks_to_one_input_after_the_other() -> None:
    found = smallest(interleavings([["a", "b"], ["c"]]), lambda merged: True)
    assert found == [(0, "a"), (0, "b"), (1, "c")]


@pytest.mark.full
def test_lies_shrink_to_a_few_elements() -> None:
    found = smallest(lying_presentations([A], 1), lambda streams: not legal(streams[0]))
    assert len(found[0]) <= 4
