"""`lmerge status`, `decisions`, and the commands that decide: what is merged, and when.

They ask a worker over HTTP. A decision that is refused ends with 6; where the outcome is unknown
the command ends with 3 and names the id to look up.
"""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from lmerge_service.cli.options import Json, argument, check_topic, flag, option
from lmerge_service.cli.words import print_json, printable, report, shortened
from lmerge_service.cli.workers import DecisionOptions, WorkerClient
from lmerge_service.errors import LMergeError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = (
    "JoiningAt",
    "More",
    "Name",
    "accept_gap",
    "attach",
    "decisions",
    "detach",
    "named",
    "other_fields",
    "policy",
    "quarantine",
    "release",
    "status",
)

_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,100}")


def named(text: str | None) -> str | None:
    """Checks the name of a replica."""
    if text is not None and not _NAME.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is no name of a replica")
    return text


Name: TypeAlias = Annotated[str, argument("REPLICA", "The replica's name.", callback=named)]
JoiningAt: TypeAlias = Annotated[int | None, option("TIME", "From when on the replica is correct.")]
More: TypeAlias = Annotated[str | None, option("JSON", "Other fields of a topology's replica.")]


def status(as_json: Json = False, *, worker: WorkerClient) -> None:
    """Show what a worker merges: every replica, the output, and what is wrong.

    Example: `lmerge status --at http://127.0.0.1:8321`
    """
    seen, decided = worker.get("/status"), _decided(worker)
    if as_json:
        print_json({"status": seen, "decided": decided})
        return
    from lmerge_service.service.status import shown

    version = "unknown" if decided is None else str(decided.get("version"))
    _show(
        shown.headline(seen),
        *shown.reasons(seen),
        *shown.cutover_of(seen),
        "",
        shown.replicas_table(seen, decided),
        *shown.notes(seen, decided),
        f"version {version}",
    )


def decisions(
    one: str | None = argument("ID", "Only the decision with this id.", default=None),
    limit: int = option("N", "At the most.", min=1, max=1_000, default=20),
    as_json: Json = False,
    *,
    worker: WorkerClient,
) -> None:
    """List what was decided, the latest first, and what was refused and why."""
    if one is not None and not _ID.fullmatch(one):
        raise typer.BadParameter(f"{one!r} is no id of a decision")
    found = worker.get(f"/v1/decisions{f'?limit={limit}' if one is None else f'/{one}'}")
    if as_json:
        print_json(found)
    else:
        _show(_table(found["decisions"] if one is None else [found]))


def attach(
    name: Name,
    topic: str = argument("TOPIC", "Where it publishes."),
    joining_at: JoiningAt = None,
    normalise: bool = flag("Bring it to its canonical form first.", "--normalise"),
    more: More = None,
    *,
    decision: DecisionOptions,
    worker: WorkerClient,
) -> None:
    """Merge a replica from now on, from its topic's beginning.

    Example: `lmerge attach c flights.c --joining-at 1357020000000`
    """
    check_topic(topic)
    fields = {"topic": topic, "joining_at": joining_at, "normalise": normalise or None}
    decision.decide(worker, _path(name, "attach"), **other_fields(more), **fields)


def detach(name: Name, decision: DecisionOptions, worker: WorkerClient) -> None:
    """Merge a replica no more; what only it had and is not half frozen goes."""
    decision.decide(worker, _path(name, "detach"))


def quarantine(
    name: Name,
    reason: str = option("TEXT", "Why it is not to be trusted, for people to read.", default=""),
    *,
    decision: DecisionOptions,
    worker: WorkerClient,
) -> None:
    """Keep a replica out until it is released.

    Example: `lmerge quarantine b --reason "its clock is a day ahead"`
    """
    decision.decide(worker, _path(name, "quarantine"), reason=reason)


def release(
    name: Name, joining_at: JoiningAt = None, *, decision: DecisionOptions, worker: WorkerClient
) -> None:
    """End a replica's quarantine; it is attached again.

    Without --joining-at it is taken to be correct from where it was before.
    """
    decision.decide(worker, _path(name, "release"), joining_at=joining_at)


def accept_gap(
    name: str = argument("REPLICA", "The replica that the output waits for.", callback=named),
    until: int = option("TIME", "From when on that one is correct."),
    *,
    decision: DecisionOptions,
    worker: WorkerClient,
) -> None:
    """Let the output go on without a range of time that no replica covers: it is lost.

    `lmerge status` names the gap. Example: `lmerge accept-gap d --until 1357020000000`
    """
    decision.decide(worker, "/v1/accept-gap", input=name, until=until)


def policy(
    insert: str | None = option(
        "WHEN", "first, leader, half_frozen, quorum(n): which events.", default=None
    ),
    adjust: str | None = option("WHEN", "lazy, eager, leader: which revisions.", default=None),
    stable: str | None = option("WHEN", "max, lag(d), quorum(k): how far.", default=None),
    *,
    decision: DecisionOptions,
    worker: WorkerClient,
) -> None:
    """Change when the output emits; what is not named stays. Without options: show it.

    Example: `lmerge policy --stable "quorum(2)"`
    """
    desired = {"insert": insert, "adjust": adjust, "stable": stable}
    changes = {part: value for part, value in desired.items() if value is not None}
    decided = worker.get("/v1/replicas")
    known = decided["policy"]
    if changes:
        # The other parts stay as they were read, so the version must be the same.
        seen = decided["version"] if decision.expects is None else decision.expects
        decision.decide(worker, "/v1/policy", **{**known, **changes, "expects": seen})
        return
    lines = [printable(f"{part:<7} {value}") for part, value in known.items()]
    report({"version": decided["version"], "policy": known}, *lines, as_json=decision.as_json)


def other_fields(more: str | None) -> dict[str, Any]:
    """The fields of --more."""
    if more is None:
        return {}
    try:
        fields = json.loads(more)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise typer.BadParameter(f"--more needs a JSON object, got {more!r}")
    if own := fields.keys() & {"topic", "joining_at", "normalise", "expects", "id", "who", "path"}:
        raise typer.BadParameter(f"--more is for other fields than {', '.join(sorted(own))}")
    return fields


def _decided(worker: WorkerClient) -> dict[str, Any] | None:
    """What was decided; None when the worker does not know yet, as while it starts."""
    try:
        return worker.get("/v1/replicas")
    except LMergeError:
        return None


def _path(name: str, what: str) -> str:
    return f"/v1/replicas/{name}/{what}"


def _table(found: Sequence[dict[str, Any]]) -> "Table":
    """A row for each decision, in the order given."""
    from rich.text import Text

    from lmerge_service.service.status.shown import borderless, date_of, word

    table = borderless("version", "made", "who", "decision", "verdict", right=("version",))
    for each in found:
        accepted = each.get("accepted")
        verdict = "accepted" if accepted else f"refused: {word(each.get('why'))}"
        table.add_row(
            Text(word(each.get("version")) if accepted else ""),
            Text(date_of(each.get("made"))),
            Text(word(each.get("who"))),
            Text(shortened(word(each.get("what")))),
            Text(shortened(verdict), style="" if accepted else "red"),
        )
    return table


def _show(*parts: "RenderableType") -> None:
    from rich.console import Console

    Console(highlight=False).print(*parts, sep="\n")
