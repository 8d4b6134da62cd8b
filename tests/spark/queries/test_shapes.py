"""Shapes and folds, step by step: literal rows in, literal elements out."""

from typing import Any

import pytest

from lmerge_service.elements import INFINITY, START, Adjust, Insert, Stable
from lmerge_service.errors import ConfigurationError, ElementError
from lmerge_service.spark.queries.airborne import Airborne
from lmerge_service.spark.queries.folds import Aggregates, Enriched, Top
from lmerge_service.spark.queries.plans import Operator, QueryPlan
from lmerge_service.spark.queries.windows import Windows

EARLY = QueryPlan(summary="", early=True, batch=1)
FINAL = QueryPlan(summary="", early=False, batch=1, grid=60)
COUNTS = Windows(size=60, slide=20, group=("g",), fold=Aggregates({"n": ("count", None)}))
FLIGHTS = Airborne(fields=("f",), limit=1_000)


def one(n: int) -> bytes:
    return b'{"g":"a","n":%d}' % n


def take(operator: Operator, *times: int, point: int = START) -> None:
    for time in times:
        operator.take(time, {"g": "a"}, point)


def test_windows_that_are_emitted_early_are_revised() -> None:
    operator = COUNTS.begin(EARLY)
    take(operator, 45)
    assert operator.advance(START, START) == [
        Insert(one(1), 0, 60),
        Insert(one(1), 20, 80),
        Insert(one(1), 40, 100),
    ]
    take(operator, 65)
    assert operator.advance(60, START) == [
        Adjust(one(1), 20, 80, 20),
        Insert(one(2), 20, 80),
        Adjust(one(1), 40, 100, 40),
        Insert(one(2), 40, 100),
        Insert(one(1), 60, 120),
        Stable(20),
    ]
    assert operator.advance(79, START) == [], "the window from 20 on is not over"
    assert operator.advance(80, START) == [Stable(40)]
    assert operator.advance(INFINITY, START) == [Stable(INFINITY)]
    assert len(operator) == 0


def test_windows_that_are_emitted_when_they_are_final_are_emitted_once() -> None:
    operator = COUNTS.begin(FINAL)
    take(operator, 45, 65)
    assert operator.advance(100, START) == [
        Insert(one(1), 0, 60),
        Insert(one(2), 20, 80),
        Insert(one(2), 40, 100),
        Stable(60),
    ]
    assert operator.advance(119, START) == [], "the grid is 60 wide"
    assert operator.advance(INFINITY, START) == [Insert(one(1), 60, 120), Stable(INFINITY)]
    assert len(operator) == 0


@pytest.mark.parametrize("plan", [EARLY, FINAL])
def test_windows_below_the_point_are_left_out_and_one_that_ends_at_it_is_not(
    plan: QueryPlan,
) -> None:
    operator = COUNTS.begin(plan)
    take(operator, 45, point=80)
    emitted = operator.advance(INFINITY, 80)
    assert emitted == [Insert(one(1), 20, 80), Insert(one(1), 40, 100), Stable(INFINITY)]
    assert operator.skipped > 0


def test_a_window_that_was_begun_is_emitted_to_the_end() -> None:
    operator = COUNTS.begin(EARLY)
    take(operator, 45)
    operator.advance(START, START)
    take(operator, 46, point=1_000)
    assert operator.advance(START, 1_000)[:2] == [Adjust(one(1), 0, 60, 0), Insert(one(2), 0, 60)]


def fact(kind: str, departs: int, arrives: int = 0) -> dict[str, Any]:
    return {"fact": kind, "f": 7, "departs": departs, "arrives": arrives}


def test_a_flight_is_announced_expected_overdue_and_there() -> None:
    operator, flight = FLIGHTS.begin(EARLY), b'{"f":7}'
    operator.take(60, fact("scheduled", 80, 100), START)
    assert operator.advance(60, START) == [Insert(flight, 80, 100), Stable(60)]
    operator.take(82, fact("departed", 82, 102), START)
    assert operator.advance(81, START) == [
        Adjust(flight, 80, 100, 80),
        Insert(flight, 82, 102),
        Stable(81),
    ]
    assert operator.advance(103, START) == [Adjust(flight, 82, 102, 1_082), Stable(103)]
    operator.take(104, fact("arrived", 82, 104), START)
    assert operator.advance(104, START) == [Adjust(flight, 82, 1_082, 104), Stable(104)]
    assert len(operator) == 1, "it might still have arrived at 104"
    assert operator.advance(105, START) == [Stable(105)]
    assert len(operator) == 0


def test_a_flight_that_departs_on_time_keeps_its_event() -> None:
    operator, flight = FLIGHTS.begin(EARLY), b'{"f":7}'
    operator.take(60, fact("scheduled", 80, 100), START)
    operator.advance(60, START)
    operator.take(80, fact("departed", 80, 95), START)
    assert operator.advance(70, START) == [Adjust(flight, 80, 100, 95), Stable(70)]


@pytest.mark.parametrize("after", ["cancelled", "nothing"])
def test_an_announcement_is_withdrawn(after: str) -> None:
    operator, flight = FLIGHTS.begin(EARLY), b'{"f":7}'
    operator.take(60, fact("scheduled", 80, 100), START)
    operator.advance(60, START)
    if after == "cancelled":
        operator.take(70, fact("cancelled", 80), START)
    mark = 70 if after == "cancelled" else 81
    assert operator.advance(mark, START) == [Adjust(flight, 80, 100, 80), Stable(mark)]


def test_a_stable_waits_for_flights_in_the_air() -> None:
    operator, flight = FLIGHTS.begin(QueryPlan(summary="", early=False, batch=1)), b'{"f":7}'
    operator.take(82, fact("departed", 82, 102), START)
    assert operator.advance(200, START) == [Stable(82)]
    operator.take(200, fact("arrived", 82, 200), START)
    assert operator.advance(200, START) == []
    assert operator.advance(201, START) == [Insert(flight, 82, 200), Stable(201)]


def test_one_that_never_arrives_ends_at_the_limit() -> None:
    operator, flight = FLIGHTS.begin(QueryPlan(summary="", early=False, batch=1)), b'{"f":7}'
    operator.take(82, fact("departed", 82, 102), START)
    operator.take(83, fact("arrived", 90, 83), START)
    assert operator.advance(1_083, START) == [Insert(flight, 82, 1_082), Stable(1_083)]
    assert len(operator) == 0, "nor is an arrival kept whose departure cannot come any more"


def folded(fold: Any, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    held = fold.empty()
    for row in rows:
        held = fold.add(held, row)
    joined = fold.join(fold.join(fold.empty(), held), fold.empty())
    assert fold.results(held) == fold.results(joined)
    found: list[dict[str, Any]] = fold.results(held)
    return found


def test_aggregates_take_nulls_as_sql_does() -> None:
    fold = Aggregates(
        {
            "rows": ("count", None), "known": ("count", "x"), "sum": ("sum", "x"),
            "least": ("min", "x"), "most": ("max", "x"),
        }
    )  # fmt: skip
    none = {"rows": 1, "known": 0, "sum": None, "least": None, "most": None}
    assert folded(fold, {}) == [none]
    assert folded(fold, {}, {"x": 3}, {"x": -5}) == [
        {"rows": 3, "known": 2, "sum": -2, "least": -5, "most": 3}
    ]
    with pytest.raises(ElementError, match=r"a sum is of whole numbers, but x is 0\.5"):
        folded(fold, {"x": 0.5})


def test_of_equal_sums_the_lesser_name_is_first_and_none_is_listed_without_delay() -> None:
    rows = [{"c": c, "d": d} for c, d in [("b", 5), ("a", 2), ("a", 3), ("z", 0), ("y", 9)]]
    assert folded(Top(2, of="c", by="d"), *rows) == [
        {"c": "y", "d": 9, "rank": 1},
        {"c": "a", "d": 5, "rank": 2},
    ]
    assert folded(Top(2, of="c", by="d"), {"c": "z", "d": -1}) == []


def test_a_join_gives_nulls_until_the_other_side_is_there() -> None:
    fold = Enriched(identity=("id",), left=("delay",), right=("temp",))
    assert folded(fold, {"id": 1, "delay": 5}) == [{"id": 1, "delay": 5, "temp": None}]
    assert folded(fold, {"temp": 3.5}) == []
    rows: list[dict[str, Any]] = [
        {"temp": 3.5},
        {"id": 2, "delay": 0},
        {"id": 1, "delay": 5},
        {"id": 1, "delay": 5},
    ]
    assert folded(fold, *rows) == [
        {"id": 1, "delay": 5, "temp": 3.5},
        {"id": 2, "delay": 0, "temp": 3.5},
    ]


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (("avg", "seconds"), "x: there is no aggregate 'avg', but count, sum, min, max"),
        (("min", None), "x: min needs a column"),
    ],
)
def test_an_aggregate_that_is_none_is_a_mistake_where_it_is_made(of: Any, why: str) -> None:
    """Any other word would be taken for max."""
    with pytest.raises(ConfigurationError, match=why):
        Aggregates({"x": of})
