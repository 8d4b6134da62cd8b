"""Which plans are chosen follows from what they are estimated to cost, and from how they differ."""

from collections.abc import Sequence

import pytest

from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries import logical
from lmerge_service.queries.checking import Step
from lmerge_service.queries.choosing import (
    Budget,
    ChosenPlan,
    PlanCost,
    choose,
    excluded,
    priced,
)
from lmerge_service.queries.costs.characteristics import Characteristics
from lmerge_service.queries.costs.formulas import Stream
from lmerge_service.queries.costs.measuring import measured, measured_parts
from lmerge_service.queries.costs.units import KINDS, UNITS, UnitCosts
from lmerge_service.queries.expressions import col, udf
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.plan import Query, count, facts, tumbling
from lmerge_service.queries.plan_numbering import numbered_plans
from tests.queries import costly

readings = facts("readings", time="time", fields={"left": int, "right": int})
both = readings.where(udf("tests.queries.costly:accepts_left", col.left, returns=bool)).where(
    udf("tests.queries.costly:accepts_right", col.right, returns=bool)
)
hourly = readings.windows(tumbling(60)).by("left").aggregate(n=count())
PLANS = numbered_plans(hourly, 6)
EVEN = UnitCosts(dict.fromkeys(UNITS, 1.0), dict.fromkeys(KINDS, 100.0))
"""A unit of work takes a nanosecond, whichever it is."""


def steps(rows: Sequence[tuple[int, int]]) -> list[Step]:
    each = [Step(f"{t}", "readings", [Insert(row, t, t + 1)]) for t, row in enumerate(rows)]
    return [*each, Step("end", "readings", [Stable(INFINITY)])]


def costs(query: Query, rows: Sequence[tuple[int, int]]) -> list[PlanCost]:
    plans = numbered_plans(query)
    shapes, given = [plan.plan for plan in plans], steps(rows)
    known = measured(shapes, given, costly.now)
    return priced(plans, known, EVEN, measured_parts(shapes, given, costly.now))


def first_condition(plan: PhysicalPlan) -> str:
    """Which condition is asked first: the lower one, or the left one of a conjunction."""
    shown = str(Query(plan.plan))
    lines = [line for line in shown.splitlines() if "where" in line]
    left, right = (lines[-1].find(f"accepts_{side}") for side in ("left", "right"))
    return "left" if right == -1 or -1 < left < right else "right"


def cheapest(rows: Sequence[tuple[int, int]]) -> str:
    found = costs(both, rows)
    return first_condition(found[choose(found, 1)[0].number - 1].plan)


def test_selectivities_turned_around_choose_the_other_order() -> None:
    rejected_left = [(1, 2)] * 90 + [(2, 2)] * 10
    assert cheapest(rejected_left) == "left"
    assert cheapest([(right, left) for left, right in rejected_left]) == "right"


def test_selectivities_turned_around_choose_the_other_join_order() -> None:
    """Without functions: of three streams, the two that have the fewest pairs are joined first."""
    one, two, three = (
        facts(name, time="t", fields={"k": int, name: int}).window(50)
        for name in ("one", "two", "three")
    )
    plans = numbered_plans(one.join(two, "k").join(three, "k"))

    def inner(keys: tuple[int, int, int]) -> str:
        """What is joined first, if the streams have so many keys."""
        names = ("one", "two", "three")
        given = [
            Step("", name, [Insert((at % n, at), at, at + 1)])
            for at in range(60)
            for name, n in zip(names, keys, strict=True)
        ]
        known = measured([plan.plan for plan in plans], given, lambda: 0)
        found = priced(plans, known, EVEN)
        plan = found[choose(found, 1)[0].number - 1].plan.plan
        joins = [node for node in logical.nodes(plan) if isinstance(node, logical.Join)]
        return " ".join(sorted(logical.sources(joins[0])))

    assert inner((60, 2, 2)) == "one two"
    assert inner((2, 2, 60)) == "three two"


def test_of_plans_that_are_dear_by_turns_both_are_chosen() -> None:
    rows = [(1, 2), (2, 1)]
    found = costs(both, [rows[at // 10 % 2] for at in range(200)])
    chosen = choose(found, 2)
    assert {first_condition(found[each.number - 1].plan) for each in chosen} == {"left", "right"}
    assert chosen[1].why == (
        f"differs most from plan {chosen[0].number}; dear where plan {chosen[0].number} is cheap, "
        "and the reverse"
    )


def test_how_long_functions_take_only_a_sample_shows() -> None:
    known = Characteristics({"readings": Stream(10, 1)})
    with pytest.raises(ConfigurationError, match=r"only a sample shows .*: where udf"):
        priced(numbered_plans(both), known, EVEN)


def cost(nanoseconds: float, lag: float = 0, held: float = 0, taken: float = 0) -> PlanCost:
    return PlanCost(PLANS[0], nanoseconds, lag, held, taken)


def test_what_is_too_dear_or_too_far_behind_is_left_out_with_the_reason() -> None:
    found = [cost(100), cost(301), cost(10, lag=61), cost(300)]
    assert [*excluded(found, most_lag=60)] == [
        (3, "61 behind"),
        (2, "3.0 times as dear as the cheapest"),
    ]
    chosen = choose(found, 5, most_lag=60)
    assert chosen == [ChosenPlan(1, "the cheapest"), ChosenPlan(4, "differs most from plan 1")]


def test_a_fifth_of_memory_and_processor_is_kept_in_reserve() -> None:
    """At 2,000 events a second, each of 400 ns and of 401."""
    found = [cost(400, 0, 800, 2), cost(401, 0, 800, 2), cost(400, 0, 801)]
    budget = Budget(bytes=1_000, cores=0.001, per_second=1_000)
    assert [*excluded(found, budget=budget)] == [
        (2, "needs 80% of the processor; at most 80%"),
        (3, "needs 80% of the memory; at most 80%"),
    ]
    assert [*excluded(found)] == []


def test_more_slack_lets_dearer_plans_in() -> None:
    found = [PlanCost(plan, each) for plan, each in zip(PLANS, (100, 500, 900), strict=False)]
    assert len(choose(found, 3)) == 1
    assert len(choose(found, 3, slack=5)) == 2
    assert len(choose(found, 3, slack=9)) == 3


def test_none_is_chosen_where_none_is_quick_enough() -> None:
    assert choose([cost(1, lag=5), cost(1, lag=6)], 2, most_lag=4) == []


@pytest.mark.parametrize("count", [1, 2, 4])
def test_no_plan_is_chosen_twice(count: int) -> None:
    chosen = choose([PlanCost(plan, 100) for plan in PLANS], count)
    assert len({each.number for each in chosen}) == len(chosen) == count
    assert chosen[0].number == 1


# Engines


def evenly() -> list[PlanCost]:
    return [PlanCost(plan, 100 + at) for at, plan in enumerate(PLANS)]


def test_replicas_run_in_python_unless_more_is_allowed() -> None:
    assert {each.engine for each in choose(evenly(), 6)} == {"python"}


def test_engines_that_are_allowed_are_all_taken_before_one_comes_again() -> None:
    """What shares no operator with the first plan, and then what shares no process with either."""
    chosen = choose(evenly(), 3, engines=("native", "spark", "python"))
    assert [each.engine for each in chosen] == ["python", "native", "spark"]
    assert chosen[0] == ChosenPlan(1, "the cheapest")
    assert chosen[2].number != 1
    assert chosen[2].why == "differs most from plans 1, native"


def test_a_plan_on_another_engine_is_another_one() -> None:
    found = [PlanCost(PLANS[0], 100)]
    chosen = choose(found, 3, engines=("python", "spark"))
    assert [(each.number, each.engine) for each in chosen] == [(1, "python"), (1, "spark")]
    assert chosen[1].why == "differs most from plan 1"


def test_what_is_too_dear_is_so_on_each_engine() -> None:
    found = [cost(100), cost(301), cost(10, lag=61)]
    chosen = choose(found, 9, most_lag=60, engines=("python", "spark"))
    assert {each.number for each in chosen} == {1}


def test_spark_itself_computes_what_it_can_and_is_never_the_cheapest() -> None:
    by_function = [PlanCost(plan, 100) for plan in numbered_plans(both)]
    assert {each.engine for each in choose(by_function, 99, engines=("python", "native"))} == {
        "python"
    }
    chosen = choose(evenly(), 99, engines=("python", "native"))
    (native,) = [each for each in chosen if each.engine == "native"]
    assert PLANS[native.number - 1].plan == hourly.plan  # as it is written
    assert choose(evenly(), 2, engines=("spark", "native"))[0].engine == "spark"
    assert [each.engine for each in choose(evenly(), 2, engines=("native",))] == ["native"]
