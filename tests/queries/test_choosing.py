"""Which plans are chosen follows from what they cost over the sample, and from how they differ."""

from collections.abc import Sequence

import pytest

from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.queries.checking import Step
from lmerge_service.queries.choosing import choose, excluded
from lmerge_service.queries.expressions import col, udf
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.plan import Query, count, facts, tumbling
from lmerge_service.queries.plan_numbering import numbered_plans
from lmerge_service.queries.sampling import PlanSample, sampled
from tests.queries import costly

readings = facts("readings", time="time", fields={"left": int, "right": int})
both = readings.where(udf("tests.queries.costly:accepts_left", col.left, returns=bool)).where(
    udf("tests.queries.costly:accepts_right", col.right, returns=bool)
)
hourly = readings.windows(tumbling(60)).by("left").aggregate(n=count())
PLANS = numbered_plans(hourly, 6)


def steps(rows: Sequence[tuple[int, int]]) -> list[Step]:
    each = [Step(f"{t}", "readings", [Insert(row, t, t + 1)]) for t, row in enumerate(rows)]
    return [*each, Step("end", "readings", [Stable(INFINITY)])]


def first_condition(plan: PhysicalPlan) -> str:
    """Which condition is asked first: the lower one, or the left one of a conjunction."""
    shown = str(Query(plan.plan))
    lines = [line for line in shown.splitlines() if "where" in line]
    left, right = (lines[-1].find(f"accepts_{side}") for side in ("left", "right"))
    return "left" if right == -1 or -1 < left < right else "right"


def cheapest(rows: Sequence[tuple[int, int]]) -> str:
    plans = numbered_plans(both)
    found = [sampled(plan, steps(rows), costly.now, batch=10) for plan in plans]
    return first_condition(plans[choose(plans, found, 1)[0].number - 1])


def test_selectivities_turned_around_choose_the_other_order() -> None:
    rejected_left = [(1, 2)] * 90 + [(2, 2)] * 10
    assert cheapest(rejected_left) == "left"
    assert cheapest([(right, left) for left, right in rejected_left]) == "right"


def test_of_plans_that_are_dear_by_turns_both_are_chosen() -> None:
    plans = numbered_plans(both)
    rows = [(1, 2), (2, 1)]
    turns = [rows[at // 10 % 2] for at in range(200)]
    found = [sampled(plan, steps(turns), costly.now, batch=10) for plan in plans]
    chosen = choose(plans, found, 2)
    assert {first_condition(plans[number - 1]) for number, _ in chosen} == {"left", "right"}


def sample(nanoseconds: int, lag: int | None = 0) -> PlanSample:
    return PlanSample(nanoseconds=nanoseconds, lag=lag)


def test_what_is_too_dear_or_too_far_behind_is_left_out_with_the_reason() -> None:
    samples = [sample(100), sample(301), sample(10, lag=None), sample(10, lag=61), sample(300)]
    assert [*excluded(samples, most_lag=60)] == [
        (2, "3.0 times as dear as the cheapest"),
        (3, "no stable before the end"),
        (4, "61 behind"),
    ]
    chosen = choose(PLANS[:5], samples, 5, most_lag=60)
    assert [each.number for each in chosen] == [1, 5]
    assert [each.why for each in chosen] == ["the cheapest", "differs most from plan 1"]


def test_more_slack_lets_dearer_plans_in() -> None:
    samples = [sample(100), sample(500), sample(900)]
    assert len(choose(PLANS[:3], samples, 3)) == 1
    assert len(choose(PLANS[:3], samples, 3, slack=5)) == 2
    assert len(choose(PLANS[:3], samples, 3, slack=9)) == 3


def test_none_is_chosen_where_none_is_quick_enough() -> None:
    assert choose(PLANS[:2], [sample(1, lag=5), sample(1, lag=None)], 2, most_lag=4) == []


@pytest.mark.parametrize("count", [1, 2, 4])
def test_no_plan_is_chosen_twice(count: int) -> None:
    chosen = choose(PLANS, [sample(100)] * len(PLANS), count)
    assert len({each.number for each in chosen}) == len(chosen) == count
    assert chosen[0].number == 1
