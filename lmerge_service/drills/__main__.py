"""`python -m lmerge_service.drills check`: judges topics on a broker."""

import asyncio
import json
import logging
import sys
import time
from dataclasses import asdict
from typing import Annotated

import typer

from lmerge_service.drills.dump import Unreadable, dump
from lmerge_service.drills.history import History, ProgressDemand, ReplicaHistory, check
from lmerge_service.drills.verdicts import HistoryReport, Outcome

__all__ = ("app",)

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


@app.callback()
def _chaos() -> None:
    """Fault injection (drills), and the judge that checks the output of each run."""


@app.command(name="check")
def _check(
    output: Annotated[str, typer.Option(metavar="TOPIC", help="The merged topic.")],
    replica: Annotated[list[str], typer.Option(metavar="TOPIC", help="A replica's; repeat it.")],
    bootstrap: Annotated[
        str, typer.Option(envvar="LMERGE_BOOTSTRAP", metavar="HOST:PORT", help="Where Kafka is.")
    ] = "127.0.0.1:9092",
    liar: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="A replica that is not trusted; repeat it."),
    ] = None,
    multiset: Annotated[
        bool, typer.Option("--multiset", help="Case R1 or R4: (payload, vs) is no key.")
    ] = False,
    within: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="How soon the output's stable must follow."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Check an output against its replicas: exit 0 valid, 1 invalid, 2 unknown.

    The reference is what the honest replicas agree on.

    Example: `python -m lmerge_service.drills check --output OUT --replica A --replica B`
    """
    liars = set(liar or ())
    if strangers := liars - set(replica):
        raise typer.BadParameter(f"{', '.join(sorted(strangers))} is no --replica")
    try:
        topics = asyncio.run(dump(bootstrap, [output, *replica]))
    except Unreadable as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(3) from None
    report = check(
        History(
            output=topics[output],
            replicas={
                name: ReplicaHistory(topics[name], honest=name not in liars) for name in replica
            },
            keyed=not multiset,
            progress=None
            if within is None
            else ProgressDemand(int(within * 1_000), read_at=_now()),
        )
    )
    typer.echo(json.dumps(asdict(report) | {"outcome": report.outcome}) if as_json else report)
    raise typer.Exit(_exit_code(report))


def _now() -> int:
    return int(time.time() * 1_000)


def _exit_code(report: HistoryReport) -> int:
    return {Outcome.VALID: 0, Outcome.INVALID: 1, Outcome.UNKNOWN: 2}[report.outcome]


if __name__ == "__main__":
    logging.getLogger().addHandler(logging.NullHandler())  # the client's warnings are no verdict
    sys.exit(app())
