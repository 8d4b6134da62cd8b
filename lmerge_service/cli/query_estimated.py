"""Estimates of plans, for people and for programs."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from lmerge_service.queries.choosing import Budget, PlanCost
from lmerge_service.queries.costs.estimating import NodeEstimate, PlanEstimate
from lmerge_service.queries.explaining import described

__all__ = ("estimated_document", "estimated_lines", "estimated_words", "size")

_WIDTH: Final = 48


def estimated_lines(
    plans: Sequence[PlanEstimate], budget: Budget, calibration: str | None
) -> Iterator[str]:
    """Of each plan what it costs, node by node: elements out for 1,000 events in, elements for each
    event of the node, entries of state, how far its stable point is behind, and the processor's
    time. `calibration` is how to come by the latter, where it is not known."""
    yield ""
    yield "estimated; elements out are for 1,000 events in"
    for number, plan in enumerate(plans, 1):
        yield f"plan {number}: {', '.join(estimated_words(plan))}"
        if why := budget.exceeded(_cost(plan)):
            yield f"  too much: it {why}"
        for each in plan.nodes:
            yield f"  {_line(each, plan.taken)}"
    if calibration is not None:
        yield calibration


def estimated_words(plan: PlanEstimate) -> Iterator[str]:
    """A plan in few words."""
    yield f"{plan.revisions:.2f} elements an event"
    memory = "" if plan.bytes is None else f" ({size(plan.bytes)})"
    yield f"{plan.held:,.0f} entries of state{memory}"
    yield f"stable {plan.lag:,.0f} behind"
    if plan.nanoseconds is not None:
        yield f"{plan.nanoseconds / 1_000:.2f} µs an event"


def _line(node: NodeEstimate, taken: float) -> str:
    flow = node.flow
    out = 1_000 * flow.elements / taken if taken else 0.0
    time = ""
    if node.nanoseconds is not None and taken:
        time = f" {node.nanoseconds / taken / 1_000:9.2f} µs"
    name = described(node.node)
    if len(name) > _WIDTH:
        name = f"{name[: _WIDTH - 3]}..."
    return (
        f"{name:<{_WIDTH}} {out:>9,.0f} out {flow.revisions:>7.2f} ρ {node.held:>9,.0f} held "
        f"{flow.lag:>9,.0f} behind{time}"
    )


def size(number: float) -> str:
    """So many bytes."""
    for unit in ("B", "kB", "MB"):
        if number < 1_000:
            return f"{number:.0f} {unit}"
        number /= 1_000
    return f"{number:,.1f} GB"


def _cost(plan: PlanEstimate) -> PlanCost:
    return PlanCost(plan.plan, plan.nanoseconds or 0.0, plan.lag, plan.bytes or 0.0, plan.taken)


def estimated_document(plans: Sequence[PlanEstimate], budget: Budget) -> list[dict[str, Any]]:
    """The same for programs; rates are of a unit of the application's time."""
    return [
        {
            "events_in": plan.taken,
            "elements": plan.elements,
            "per_event": plan.revisions,
            "held": plan.held,
            "bytes": plan.bytes,
            "lag": plan.lag,
            "nanoseconds": plan.nanoseconds,
            "exceeds": budget.exceeded(_cost(plan)),
            "nodes": [_node(each) for each in plan.nodes],
        }
        for plan in plans
    ]


def _node(node: NodeEstimate) -> dict[str, Any]:
    flow = node.flow
    return {
        "node": described(node.node),
        "gap": None if flow.stream.gap == float("inf") else flow.stream.gap,
        "length": flow.stream.length,
        "elements": flow.elements,
        "per_event": flow.revisions,
        "held": node.held,
        "bytes": node.bytes,
        "lag": flow.lag,
        "nanoseconds": node.nanoseconds,
    }
