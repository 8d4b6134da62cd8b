"""What a sample shows of plans: counted by hand, and against what the plans emit."""

from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.queries.checking import Step
from lmerge_service.queries.expressions import col
from lmerge_service.queries.physical import physical
from lmerge_service.queries.plan import count, facts, tumbling
from lmerge_service.queries.plan_numbering import numbered_plans
from lmerge_service.queries.sampling import OperatorSample, sampled

flights = facts("flights", time="time", fields={"origin": str, "delay": int})
weather = facts("weather", time="time", fields={"origin": str, "wind": int})
hourly = flights.where(col.delay > 15).windows(tumbling(60)).by("origin").aggregate(flights=count())


def steps(*times: int, source: str = "flights") -> list[Step]:
    each = [Step(f"{t}", source, [Insert(("JFK", 20), t, t + 1), Stable(t)]) for t in times]
    return [*each, Step("end", source, [Stable(INFINITY)])]


def test_a_plan_that_revises_emits_more_and_is_no_further_behind() -> None:
    given = steps(1, 2, 3, 70)
    early, late = (
        sampled(physical(hourly, emit=emit), given, lambda: 0, batch=1)
        for emit in ("on_update", "on_close")
    )
    # Of window [0, 60): an insert, and a removal and an insert for each of two further facts.
    assert (early.taken, early.events, early.emitted, early.per_event) == (4, 2, 6, 3.0)
    assert (late.taken, late.events, late.emitted, late.per_event) == (4, 2, 2, 1.0)
    # Its stable is 0 until that of the input passes 60, and then 60.
    assert early.lag == late.lag == 10
    assert early.operators[0] == OperatorSample("Select", 9, 9, 0, 0, 0)
    assert early.held == early.operators[1].held == 1


def test_a_clock_counts_the_time_of_each_operator() -> None:
    ticks = iter(range(1_000_000))
    found = sampled(physical(hourly), steps(1, 2), lambda: next(ticks), batch=1)
    assert [each.nanoseconds for each in found.operators] == [3, 3]
    assert found.nanoseconds == 6


def test_what_shows_no_stable_before_its_end_has_no_lag() -> None:
    found = sampled(physical(hourly), steps(1, 2), lambda: 0, batch=100)
    assert (found.taken, found.lag) == (2, None)
    empty = sampled(physical(hourly), steps(), lambda: 0)
    assert (empty.taken, empty.events, empty.per_event) == (0, 0, None)


def test_the_lag_of_two_sources_is_that_of_the_later_one() -> None:
    joined = flights.extend(5).join(weather.extend(5), on="origin")
    given = [
        Step("1", "flights", [Insert(("JFK", 20), 1, 2), Stable(1)]),
        Step("2", "weather", [Insert(("JFK", 3), 3, 4), Stable(3)]),
        Step("3", "flights", [Stable(50)]),
        Step("4", "weather", [Stable(INFINITY)]),
        Step("5", "flights", [Stable(INFINITY)]),
    ]
    found = sampled(physical(joined), given, lambda: 0, batch=1)
    assert (found.taken, found.events, found.lag) == (2, 1, 0)


def test_all_plans_have_the_same_result_and_batches_change_only_what_it_costs() -> None:
    given = steps(*range(0, 300, 7))
    plans = numbered_plans(hourly, most=6)
    found = [sampled(plan, given, lambda: 0) for plan in plans]
    whole = [sampled(plan, given, lambda: 0, batch=1_000) for plan in plans]
    assert {(each.taken, each.events) for each in (*found, *whole)} == {(43, 5)}
    assert all(one.emitted >= other.emitted for one, other in zip(found, whole, strict=True))
    assert found[0].emitted > whole[0].emitted
