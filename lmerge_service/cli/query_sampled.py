"""What plans cost over a sample, for people and for programs."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lmerge_service.cli.query_estimated import size

if TYPE_CHECKING:
    from lmerge_service.offline.recorded_facts import Recorded
    from lmerge_service.queries.choosing import ChosenPlan, PlanCost
    from lmerge_service.queries.physical import PhysicalPlan
    from lmerge_service.queries.sampling import OperatorSample, PlanSample

__all__ = ("chosen_document", "chosen_lines", "sampled_document", "sampled_lines")


def sampled_lines(recorded: "Recorded", plans: Sequence["PlanSample"]) -> Iterator[str]:
    """The sample, and of each plan what it takes and what each of its operators does."""
    left_out = recorded.late + recorded.rejected + recorded.repeated
    yield ""
    yield f"sample: {recorded.taken:,} events" + (f", {left_out:,} left out" if left_out else "")
    for number, plan in enumerate(plans, 1):
        yield f"plan {number}: {', '.join(_words(plan))}"
        width = max(len(each.operator) for each in plan.operators)
        for each in plan.operators:
            yield f"  {each.operator:<{width}} {_counts(each, plan.taken)}"


def _words(plan: "PlanSample") -> Iterator[str]:
    many = "" if plan.per_event is None else f" ({plan.per_event:.2f} an event)"
    yield f"{plan.events:,} events by {plan.emitted:,} elements{many}"
    yield f"up to {plan.held:,} entries of state"
    if plan.lag is None:
        yield "no stable before the end"
    else:
        yield f"stable up to {plan.lag:,} behind"
    if plan.taken:
        yield f"{_micros(plan.nanoseconds, plan.taken)} an event"


def _counts(each: "OperatorSample", taken: int) -> str:
    time = f"{_micros(each.nanoseconds, taken):>10}" if taken else ""
    return (
        f"{each.taken:>10,} in {each.emitted:>10,} out {each.adjusts:>10,} adjusts "
        f"{each.held:>9,} held {time}"
    )


def _micros(nanoseconds: int, taken: int) -> str:
    return f"{nanoseconds / taken / 1_000:.2f} µs"


def sampled_document(recorded: "Recorded", plans: Sequence["PlanSample"]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "taken": recorded.taken,
        "late": recorded.late,
        "rejected": recorded.rejected,
        "repeated": recorded.repeated,
        "left_out": recorded.left_out,
        "plans": [_plan_document(plan) for plan in plans],
    }


def _plan_document(plan: "PlanSample") -> dict[str, Any]:
    document = asdict(plan) | {"per_event": plan.per_event}
    del document["batches"]
    return document


def chosen_lines(
    chosen: Sequence["ChosenPlan"], out: Sequence[tuple[int, str]], costs: Sequence["PlanCost"]
) -> Iterator[str]:
    """The plans that were chosen, why, and what they cost; then those that were not considered."""
    from lmerge_service.queries.plan_numbering import summary
    from lmerge_service.queries.properties import case

    for number, why, engine in chosen:
        cost = costs[number - 1]
        if engine == "native":
            yield f"Spark's own aggregation (--native): {why}"
            yield f"  not estimated; stable {cost.lag:,.0f} behind"
            continue
        on_spark = engine == "spark"
        yield f"plan {number}{' on Spark' * on_spark} ({summary(cost.plan)}): {why}"
        yield (
            f"  {cost.nanoseconds / 1_000:.2f} µs an event{' and what Spark takes' * on_spark}, "
            f"{size(cost.bytes)} of state, stable {cost.lag:,.0f} behind"
        )
    yield f"merged: {case([_as_run(each, costs) for each in chosen])}"
    for number, why in out:
        yield f"not plan {number}: {why}"


def _as_run(chosen: "ChosenPlan", costs: Sequence["PlanCost"]) -> "PhysicalPlan":
    """The plan, as far as its output is concerned: Spark's aggregation emits on close."""
    from lmerge_service.queries.physical import PhysicalPlan

    plan = costs[chosen.number - 1].plan
    return PhysicalPlan(plan.plan, "on_close") if chosen.engine == "native" else plan


def chosen_document(
    chosen: Sequence["ChosenPlan"], out: Sequence[tuple[int, str]], costs: Sequence["PlanCost"]
) -> dict[str, Any]:
    """The same for programs."""
    return {
        "plans": [_chosen(each, costs[each.number - 1]) for each in chosen],
        "not_considered": [{"number": number, "why": why} for number, why in out],
    }


def _chosen(chosen: "ChosenPlan", cost: "PlanCost") -> dict[str, Any]:
    native = chosen.engine == "native"
    return {
        "number": None if native else chosen.number,
        "engine": chosen.engine,
        "why": chosen.why,
        "nanoseconds": None if native else cost.nanoseconds,
        "bytes": None if native else cost.bytes,
        "lag": cost.lag,
    }
