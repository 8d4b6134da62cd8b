"""How queries, plans and checks are shown to people, and documents to programs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lmerge_service.cli.words import finite, point
from lmerge_service.elements import INFINITY, START
from lmerge_service.offline.recorded_facts import Recorded
from lmerge_service.queries import explaining, logical
from lmerge_service.queries.checking import Check, Deviation, PlanCheck
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.plan import Query
from lmerge_service.queries.plan_numbering import query_variants, summary
from lmerge_service.queries.properties import (
    case,
    has_exact_starts,
    joining_at,
    keys,
    partition_columns,
    required_history,
    stream_properties,
    why,
)
from lmerge_service.tdb import Event

__all__ = (
    "checked_document",
    "checked_lines",
    "explained_document",
    "explained_lines",
    "listed_document",
    "listed_lines",
)

# Lists


def listed_lines(found: Mapping[str, Query]) -> Iterator[str]:
    """Queries by name, with their columns."""
    width = max(map(len, found))
    return (f"{name:<{width}}  {query.schema}" for name, query in found.items())


def listed_document(found: Mapping[str, Query]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "name": name,
            "columns": {each.name: each.kind.value for each in query.schema},
            "sources": sorted(logical.sources(query.plan)),
            "fingerprint": query.fingerprint,
        }
        for name, query in found.items()
    ]


# Explanations


def explained_lines(query: Query, plans: Sequence[PhysicalPlan]) -> Iterator[str]:
    """A query as a tree, its plans, and what is known of them."""
    yield from explaining.tree(query.plan)
    yield ""
    rules, shown = query_variants(query), {query.plan: 1}
    for number, plan in enumerate(plans, 1):
        yield f"plan {number}: {summary(plan)}; alone {case([plan])}"
        if plan.plan not in shown:
            yield f"  rewritten: {', '.join(rules[plan.plan])}"
            yield from (f"  {line}" for line in explaining.tree(plan.plan))
        elif plan.plan != query.plan:
            yield f"  rewritten as plan {shown[plan.plan]}"
        shown.setdefault(plan.plan, number)
    yield f"merged: {case(plans)} ({why(plans)})"
    yield f"key: {keys(query.plan)}"
    for name, depth in _depths(query).items():
        if depth is None:
            yield f"{name}: all of it is needed: a replica resumes from its state only"
        else:
            yield f"{name}: for what ends at T or later, what ends at T{-depth:+,} or later"
    exact, depths = has_exact_starts(query.plan), _depths(query).values()
    if not exact and None not in depths:
        yield "  but for the starts of what is there at T"
    joining = joining_at(query.plan, dict.fromkeys(logical.sources(query.plan), 0))
    if joining != INFINITY:
        yield f"joining: with input from S on, right from S{joining:+,} on"
    elif not exact and None not in depths:
        yield "joining: from its state or output only: what is there may have begun at any time"
    columns = partition_columns(query.plan)
    if columns is None:
        yield "partitions: one"
    else:
        by = "; ".join(f"{name} by {', '.join(each)}" for name, each in columns.items())
        yield f"partitions: {by}"


def _depths(query: Query) -> dict[str, int | None]:
    """How far back each source is needed; None where all of it is."""
    need = required_history(query.plan, 0)
    return {name: None if at == START else -at for name, at in need.items()}


def explained_document(query: Query, plans: Sequence[PhysicalPlan]) -> dict[str, Any]:
    """The same for programs."""
    rules = query_variants(query)
    joining = joining_at(query.plan, dict.fromkeys(logical.sources(query.plan), 0))
    return {
        "fingerprint": query.fingerprint,
        "tree": explaining.document(query.plan),
        "plans": [
            {
                "number": number,
                "summary": summary(plan),
                "fingerprint": plan.fingerprint,
                "case": str(case([plan])),
                "revises": stream_properties(plan).revises,
                "ordered": stream_properties(plan).ordered,
                "rewritten": rules[plan.plan],
                "tree": explaining.document(plan.plan),
            }
            for number, plan in enumerate(plans, 1)
        ],
        "case": str(case(plans)),
        "why": why(plans),
        "keys": {
            name: None if columns is None else sorted(columns)
            for name, columns in keys(query.plan)._asdict().items()
        },
        "history": _depths(query),
        "joining": finite(joining),
        "exact_starts": has_exact_starts(query.plan),
        "partition_columns": partition_columns(query.plan),
    }


# Checks


def checked_lines(recorded: Recorded, found: Check) -> Iterator[str]:
    """What was read, and of each plan and the merge whether it is as the query means."""
    left = [
        f"{n:,} {what}"
        for n, what in (
            (recorded.late, "late"),
            (recorded.rejected, "rejected"),
            (recorded.repeated, "repeated"),
        )
        if n
    ]
    yield f"input: {recorded.taken:,} events" + (f"; left out: {', '.join(left)}" if left else "")
    yield from (f"  {line}" for line in recorded.left_out)
    if (more := recorded.late + recorded.rejected + recorded.repeated) > len(recorded.left_out):
        yield f"  and {more - len(recorded.left_out):,} more"
    for number, plan in enumerate(found.plans, 1):
        yield f"plan {number} ({summary(plan.plan)}): {_verdict(plan)}"
        if plan.deviation is not None:
            yield from _deviation_lines(plan.deviation)
    if found.merge is not None:
        yield f"merged ({found.case}): wrong"
        yield from _deviation_lines(found.merge)
    elif found.agrees:
        yield (
            f"merged ({found.case}): as the query means, {found.merged:,} elements, judged after "
            f"each; {found.events:,} events in the end"
        )
    else:
        yield f"merged ({found.case}): not judged any more once plan {found.first} was wrong"


def _verdict(plan: PlanCheck) -> str:
    if plan.deviation is not None:
        return "wrong"
    return f"as the query means, {plan.emitted:,} elements, compared {plan.compared:,} times"


def _deviation_lines(deviation: Deviation) -> Iterator[str]:
    yield f"  {deviation.place}, element {deviation.element:,}: {deviation.what}"
    if deviation.expected or deviation.found:
        yield f"  expected {_events(deviation.expected)}"
        yield f"  found {_events(deviation.found)}"


def _events(events: Sequence[Event]) -> str:
    texts = [f"{each.payload} [{point(each.vs)}, {point(each.ve)})" for each in events]
    return ", ".join(texts) or "nothing"


def checked_document(recorded: Recorded, found: Check) -> dict[str, Any]:
    """The same for programs."""
    return {
        "agrees": found.agrees,
        "first": found.first,
        "case": str(found.case),
        "taken": recorded.taken,
        "late": recorded.late,
        "rejected": recorded.rejected,
        "repeated": recorded.repeated,
        "left_out": recorded.left_out,
        "plans": [
            {
                "number": number,
                "summary": summary(each.plan),
                "emitted": each.emitted,
                "compared": each.compared,
                "deviation": _deviation(each.deviation),
            }
            for number, each in enumerate(found.plans, 1)
        ],
        "merge": {
            "emitted": found.merged,
            "events": found.events,
            "deviation": _deviation(found.merge),
        },
    }


def _deviation(found: Deviation | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "place": found.place,
        "element": found.element,
        "what": found.what,
        "expected": [_event(each) for each in found.expected],
        "found": [_event(each) for each in found.found],
    }


def _event(event: Event) -> dict[str, Any]:
    return {"payload": event.payload, "vs": finite(event.vs), "ve": finite(event.ve)}
