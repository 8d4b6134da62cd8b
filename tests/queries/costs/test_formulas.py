"""The formulas of the thesis: its values, and what they come to where nothing is left to chance."""

from math import inf

import pytest

from lmerge_service.queries.costs import formulas
from lmerge_service.queries.costs.formulas import Stream


def test_an_aggregate_without_groups() -> None:
    stream = Stream(10, 100, 1)
    assert formulas.aggregated(stream) == pytest.approx((5.49, 5.49, 1), abs=0.005)
    assert formulas.cells(stream) == pytest.approx(9.56, abs=0.005)


def test_an_aggregate_by_groups() -> None:
    assert formulas.aggregated(Stream(5, 100, 1), 4) == pytest.approx((2.61, 10.46, 1), abs=0.005)
    assert formulas.cells(Stream(5, 100, 1), 4) == 4 * formulas.cells(Stream(20, 100, 1))
    assert formulas.cells(Stream(20, 100, 1)) == pytest.approx(4.90, abs=0.005)


def test_an_aggregate_of_events_that_hardly_meet() -> None:
    assert formulas.aggregated(Stream(100, 60)) == (100, 60, 1)
    assert formulas.cells(Stream(100, 60)) == 1
    assert formulas.aggregated(Stream(20, 60), 4) == (20, 60, 1)
    assert formulas.cells(Stream(20, 60), 4) == 4


def test_a_join_of_two_windows_of_five_seconds_at_a_hundred_a_second() -> None:
    """Of ten milliseconds between events, in milliseconds; all pairs that overlap."""
    side = Stream(10, 5_000)
    assert formulas.joined_state(side, side) == (500.5, 500.5)
    assert formulas.joined(side, side, 1.0) == (0.01, 2_500, 1)
    assert formulas.joined(side, side, 0.1).gap == pytest.approx(0.1)


def test_a_union_of_two_streams() -> None:
    gap, length, _ = formulas.united([Stream(2, 10), Stream(3, 20)])
    assert (gap, length) == pytest.approx((1.2, 14))


def test_distinct_values_that_come_again_in_time_and_that_do_not() -> None:
    assert formulas.distinct(Stream(10, 100), 4) == (10, 40, 1)
    assert formulas.distinct(Stream(10, 100), 20) == (10, 100, 1)


def test_what_is_distinct_without_a_break() -> None:
    """Of values that never meet, the events; of one that always does, hardly any that are long."""
    alone = formulas.unbroken(Stream(10, 5), 1_000_000)
    assert alone[:2] == pytest.approx((10, 5), rel=1e-4)
    busy = formulas.unbroken(Stream(1, 5), 1)
    assert busy.alive == pytest.approx(formulas.covered(Stream(1, 5), 1))
    assert busy.gap > 100


def test_a_selection_and_pieces_and_granules() -> None:
    assert formulas.selected(Stream(10, 7), 0.25) == (40, 7, 1)
    assert formulas.selected(Stream(10, 7), 0).rate == 0
    assert formulas.windowed(Stream(10, 1), 50) == (10, 50, 1)
    assert formulas.split(Stream(10, 100), 20) == (2, 20, 1)
    assert formulas.split(Stream(10, 100), 200) == (10, 100, 1)
    assert formulas.coarsened(Stream(10, 100), 20) == (10, 100, 20)
    assert formulas.coarsened(Stream(10, 5), 20) == (40, 20, 20)


def test_windows_of_a_grid_and_their_panes() -> None:
    assert formulas.in_grid(60, 20, 4) == (5, 60, 20)
    assert formulas.windows_state(60, 20, 4) == 12
    assert formulas.windows_state(60, 25, 4) == 12
    assert formulas.panes_state(60, 25, 4) == 48
    assert formulas.groups_among(1, 0.5) == 0.5
    assert formulas.groups_among(4, 1) == pytest.approx(1)
    assert formulas.groups_among(4, 1_000) == pytest.approx(4)


def test_last_rows() -> None:
    assert formulas.in_last_rows(Stream(5, 1), 3) == (5, 15, 1)
    assert formulas.in_last_rows(Stream(5, 1), 3, 4) == (5, 60, 1)
    assert formulas.last_rows_state(3, 4) == 12


def test_clips() -> None:
    assert formulas.clipped(Stream(5, 10), Stream(inf, 1), 2) == (5, 10, 1)
    short = formulas.clipped(Stream(5, 10), Stream(0.001, 1), 2).length
    assert short == pytest.approx(0.002)
