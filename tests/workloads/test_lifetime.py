"""Lives: what is sent for one event, and how late it may be sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, START, Adjust, Insert
from lmerge_service.tdb import TDB, Event, reconstitute
from lmerge_service.workloads.lifetime import Life, deadline, elements_of, final_tdb, lives_of
from tests.strategies import times


def test_an_end_equal_to_vs_removes_and_the_next_one_inserts_again() -> None:
    assert Life("A", 2, (2, 5, 5, 2, 7)).elements() == [
        Insert("A", 2, 5),
        Adjust("A", 2, 5, 2),
        Insert("A", 2, 7),
    ]


@pytest.mark.parametrize("ends", [(), (1,), (5, 1)])
def test_a_life_has_ends_and_none_below_vs(ends: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="needs ends"):
        Life("A", 2, ends)


def test_the_final_tdb_holds_no_phantom_and_counts_equal_events() -> None:
    lives = [Life("A", 2, (9, 5)), Life("A", 2, (5,)), Life("B", 2, (5, 2))]
    assert final_tdb(lives) == TDB([("A", 2, 5), ("A", 2, 5)])


def test_lives_of_events_come_in_order_of_vs_with_ties_as_given() -> None:
    events = [Event("B", 3, 4), Event("Z", 1, INFINITY), Event("A", 1, 2)]
    assert [life.payload for life in lives_of(events)] == ["Z", "A", "B"]


@given(st.lists(times(3, endless=True), min_size=1, max_size=6))
def test_the_elements_of_a_life_are_legal_and_leave_the_final_end(ends: list[int]) -> None:
    life = Life("A", 3, (*ends,))
    assert reconstitute(elements_of("A", 3, ends)) == final_tdb([life])


@given(st.lists(times(3, endless=True), min_size=1, max_size=6))
def test_the_deadline_is_the_last_stable_point_at_which_an_element_is_legal(
    ends: list[int],
) -> None:
    before = TDB()
    for element in elements_of("A", 3, ends):
        for stable, legal in ((deadline(element), True), (deadline(element) + 1, False)):
            before.stable = stable
            assert (before.violation(element) is None) == legal
        before.stable = START
        before.apply(element)
