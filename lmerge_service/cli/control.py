"""`lmerge status`, `decisions`, and the commands that decide: what is merged, and when.

They ask a worker over HTTP. A decision that is refused ends with 6; where the outcome is unknown
the command ends with 3 and names the id to look up.
"""

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from lmerge_service.cli.asking import Decide, asking, deciding, report_decision
from lmerge_service.cli.options import Json, check_topic
from lmerge_service.cli.words import print_json, printable
from lmerge_service.errors import LMergeError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lmerge_service.cli.workers import Worker

__all__ = (
    "JoiningAt",
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


Name: TypeAlias = Annotated[
    str, typer.Argument(metavar="REPLICA", callback=named, help="The replica's name.")
]
JoiningAt: TypeAlias = Annotated[
    int | None, typer.Option(metavar="TIME", help="From when on the replica is correct.")
]


@asking
def status(worker: "Worker", as_json: Json = False) -> None:
    """Show what a worker merges: every replica, the output, and what is wrong.

    Example: `lmerge status --at http://127.0.0.1:8321`
    """
    seen, decided = worker.get("/status"), _decided(worker)
    if as_json:
        print_json({"status": seen, "decided": decided})
        return
    from lmerge_service.cli.shown import cutover_of, headline, reasons, replicas_table

    version = "unknown" if decided is None else str(decided.get("version"))
    _show(
        headline(seen),
        *reasons(seen),
        *cutover_of(seen),
        "",
        replicas_table(seen, decided),
        f"version {version}",
    )


@asking
def decisions(
    worker: "Worker",
    one: Annotated[
        str | None, typer.Argument(metavar="ID", help="Only the decision with this id.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, metavar="N", help="At the most.")] = 20,
    as_json: Json = False,
) -> None:
    """List what was decided, the latest first, and what was refused and why."""
    if one is None:
        found = worker.get(f"/v1/decisions?limit={limit}")
    else:
        if not _ID.fullmatch(one):
            raise typer.BadParameter(f"{one!r} is no id of a decision")
        found = {"decisions": [worker.get(f"/v1/decisions/{one}")]}
    if as_json:
        print_json(found if one is None else found["decisions"][0])
        return
    from lmerge_service.cli.shown import decisions_table

    _show(decisions_table(found["decisions"]))


@deciding
def attach(
    decide: Decide,
    name: Name,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where it publishes.")],
    joining_at: JoiningAt = None,
    normalise: Annotated[
        bool, typer.Option("--normalise", help="Bring it to its canonical form first.")
    ] = False,
    more: Annotated[
        str | None, typer.Option(metavar="JSON", help="Other fields of a topology's replica.")
    ] = None,
) -> None:
    """Merge a replica from now on, from its topic's beginning.

    Example: `lmerge attach c flights.c --joining-at 1357020000000`
    """
    check_topic(topic)
    fields = {"topic": topic, "joining_at": joining_at, "normalise": normalise or None}
    decide(_path(name, "attach"), **other_fields(more), **fields)


@deciding
def detach(decide: Decide, name: Name) -> None:
    """Merge a replica no more; what only it had and is not half frozen goes."""
    decide(_path(name, "detach"))


@deciding
def quarantine(
    decide: Decide,
    name: Name,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why it is not to be trusted, for people to read.")
    ] = "",
) -> None:
    """Keep a replica out until it is released.

    Example: `lmerge quarantine b --reason "its clock is a day ahead"`
    """
    decide(_path(name, "quarantine"), reason=reason)


@deciding
def release(decide: Decide, name: Name, joining_at: JoiningAt = None) -> None:
    """End a replica's quarantine; it is attached again.

    Without --joining-at it is taken to be correct from where it was before.
    """
    decide(_path(name, "release"), joining_at=joining_at)


@deciding
def accept_gap(
    decide: Decide,
    name: Annotated[
        str,
        typer.Argument(
            metavar="REPLICA", callback=named, help="The replica that the output waits for."
        ),
    ],
    until: Annotated[int, typer.Option(metavar="TIME", help="From when on that one is correct.")],
) -> None:
    """Let the output go on without a range of time that no replica covers: it is lost.

    `lmerge status` names the gap. Example: `lmerge accept-gap d --until 1357020000000`
    """
    decide("/v1/accept-gap", input=name, until=until)


@asking
def policy(
    worker: "Worker",
    insert: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="first, leader, half_frozen, quorum(n): which events."),
    ] = None,
    adjust: Annotated[
        str | None, typer.Option(metavar="WHEN", help="lazy, eager, leader: which revisions.")
    ] = None,
    stable: Annotated[
        str | None, typer.Option(metavar="WHEN", help="max, lag(d), quorum(k): how far.")
    ] = None,
    expects: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="VERSION", help="Refuse if the version is another one by then."
        ),
    ] = None,
    decision_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="Ask once more for a decision whose outcome is unknown."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change when the output emits; what is not named stays. Without options: show it.

    Example: `lmerge policy --stable "quorum(2)"`
    """
    desired = {"insert": insert, "adjust": adjust, "stable": stable}
    changes = {part: value for part, value in desired.items() if value is not None}
    decided = worker.get("/v1/replicas")
    if not changes:
        _report_policy(decided, as_json=as_json)
        return
    # The other parts stay as they were read, so the version must be the same.
    seen = decided["version"] if expects is None else expects
    body = {**decided["policy"], **changes, "expects": seen}
    report_decision(worker.decide("/v1/policy", body, decision_id), as_json=as_json)


def _decided(worker: "Worker") -> dict[str, Any] | None:
    """What was decided; None when the worker does not know yet, as while it starts."""
    try:
        return worker.get("/v1/replicas")
    except LMergeError:
        return None


def _path(name: str, what: str) -> str:
    return f"/v1/replicas/{name}/{what}"


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


def _report_policy(decided: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json({"version": decided["version"], "policy": decided["policy"]})
        return
    for part, value in decided["policy"].items():
        typer.echo(printable(f"{part:<7} {value}"))


def _show(*parts: "RenderableType") -> None:
    from rich.console import Console

    Console(highlight=False).print(*parts, sep="\n")
