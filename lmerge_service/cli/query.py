"""`lmerge query`: queries in Python files, what is known of them, and whether plans agree."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import typer

from lmerge_service.cli.options import App, Json, argument, flag, option
from lmerge_service.cli.streams import check_files
from lmerge_service.cli.words import finite, point, report
from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ConfigurationError
from lmerge_service.offline.recorded_facts import Recorded
from lmerge_service.queries import explaining, logical
from lmerge_service.queries.checking import Check, Deviation, PlanCheck, check
from lmerge_service.queries.loading import load, queries_in
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.plan import Query
from lmerge_service.queries.plan_numbering import numbered_plans, query_variants, summary
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

__all__ = ("app",)

app = App(
    no_args_is_help=True,
    help="Queries: list and explain them, check their plans, run them as replicas.",
)

_PLANS: Final = 4
_COMPARED: Final = 100
"""With the meaning, so many times for each plan, unless it is given how often."""
_Target = argument("FILE:NAME", "A query in a Python file, or as package.module:NAME.")


@app.command("list")
def list_queries(
    place: str = argument("FILE", "A Python file, or the name of a module."), json: Json = False
) -> None:
    """List the queries of a file or module.

    Example: `lmerge query list queries.py`
    """
    found = queries_in(place)
    if not found:
        raise ConfigurationError(f"{place} has no queries: name one, as late = facts(…).where(…)")
    document = [
        {
            "name": name,
            "columns": {each.name: each.kind.value for each in query.schema},
            "sources": sorted(logical.sources(query.plan)),
            "fingerprint": query.fingerprint,
        }
        for name, query in found.items()
    ]
    width = max(map(len, found))
    lines = [f"{name:<{width}}  {query.schema}" for name, query in found.items()]
    report(document, *lines, as_json=json)


# Explain


@app.command()
def explain(
    target: str = _Target,
    plans: int = option("N", "So many physical plans.", "--plans", default=_PLANS, min=1, max=16),
    json: Json = False,
    mermaid: bool = flag("A Mermaid flowchart of the query instead.", "--mermaid"),
) -> None:
    """Explain a query: its tree, its physical plans, and what is known before they run.

    A plan's number is the same in every process: `lmerge query run --plan N` runs it. LMerge's case
    is that of the plans shown.

    Example: `lmerge query explain queries.py:delays`
    """
    query = load(target)
    if mermaid:
        for line in explaining.mermaid(query.plan):
            typer.echo(line)
        return
    every = numbered_plans(query, plans)
    report(_explained(query, every), *_lines(query, every), as_json=json)


def _lines(query: Query, plans: Sequence[PhysicalPlan]) -> Iterator[str]:
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
    joining = joining_at(query.plan, dict.fromkeys(logical.sources(query.plan), 0))
    if joining != INFINITY:
        yield f"joining: with input from S on, right from S{joining:+,} on"
    if not has_exact_starts(query.plan):
        yield "  but for the starts of what is there then"
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


def _explained(query: Query, plans: Sequence[PhysicalPlan]) -> dict[str, Any]:
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


# Check


@app.command("check")
def check_plans(
    target: str = _Target,
    inputs: list[str] = argument(
        "FACTS",
        "Recorded facts or elements, a line each; - is stdin; NAME=FILE of several sources.",
    ),
    plans: int = option("N", "So many physical plans.", "--plans", default=_PLANS, min=1, max=16),
    every: int | None = option(
        "N",
        "Compare with the meaning behind each N-th line; by default 100 times in all.",
        "--every",
        default=None,
        min=1,
    ),
    json: Json = False,
) -> None:
    """Run several plans of a query over recorded input, and compare them.

    Each plan is compared with what the query means, and the merge of all is judged after every
    element (conditions C1 to C3). Exit code 1 if a plan, or the merge, is wrong anywhere: the first
    place is printed.

    Example: `lmerge query check queries.py:delays facts.jsonl --plans 6`

    Example: `lmerge query check queries.py:weather flights=a.jsonl sky=b.jsonl`
    """
    query = load(target)
    recorded = Recorded(query.plan, _files(query, inputs))
    steps = list(recorded.steps())
    chosen = every or max(1, len(steps) // _COMPARED)
    found = check(numbered_plans(query, plans), steps, chosen)
    report(_checked(recorded, found), *_check_lines(recorded, found), as_json=json)
    if not found.agrees:
        raise typer.Exit(1)


def _files(query: Query, inputs: Sequence[str]) -> dict[str, str]:
    """The file of each source: NAME=FILE, or the one file of the one source."""
    names = list(logical.sources(query.plan))
    pairs = [each.partition("=") for each in inputs]
    if len(inputs) == len(names) == 1 and pairs[0][0] != names[0]:
        found = {names[0]: inputs[0]}
    elif bad := next((each for each, pair in zip(inputs, pairs, strict=True) if not pair[1]), None):
        raise ConfigurationError(
            f"say of which source {bad} is, as NAME={bad}; there is {', '.join(sorted(names))}"
        )
    else:
        found = {name: file for name, _, file in pairs}
    if len(found) < len(inputs):
        raise ConfigurationError("two files are given for one source")
    check_files(list(found.values()))
    return found


def _check_lines(recorded: Recorded, found: Check) -> Iterator[str]:
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


def _checked(recorded: Recorded, found: Check) -> dict[str, Any]:
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
