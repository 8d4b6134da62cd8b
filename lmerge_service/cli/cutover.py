"""`lmerge cutover`: have one replica take another's place, and watch it being done.

The workers perform a cutover; the command requests it and reports its progress. If the command, or
the worker that it asks, ends early, the cutover still goes on until it is done or aborted.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer

from lmerge_service.cli.control import JoiningAt, More, named, other_fields
from lmerge_service.cli.options import TopologyBootstrap, TopologyOptions, check_topic, flag, option
from lmerge_service.cli.words import print_json, printable
from lmerge_service.cli.workers import DecisionOptions, WorkerClient
from lmerge_service.errors import DecisionRefusedError, TransportError

__all__ = ("cutover",)

_EVERY_SECONDS: Final = 0.5
_PATIENCE_SECONDS: Final = 60.0


def cutover(
    leaving: str | None = option("REPLICA", "Who leaves.", "--from", callback=named, default=None),
    coming: str | None = option(
        "REPLICA", "Who takes its place.", "--to", callback=named, default=None
    ),
    topic: str | None = option(
        "TOPIC", "Where the coming one publishes, to attach it first.", default=None
    ),
    joining_at: JoiningAt = None,
    more: More = None,
    watch: int | None = option(
        "SPAN", "Stream time to watch both for; default: a minute.", min=0, default=None
    ),
    max_behind: int = option(
        "SECONDS",
        "The coming one must be where the output was so long ago.",
        min=0,
        max=86_400,
        default=5,
    ),
    max_divergences: int = option(
        "N", "More contradictions than these abort it.", min=0, default=0
    ),
    dry_run: Path | None = option(
        "TOPOLOGY.yaml",
        "Decide nothing: compare every event of the coming one with the output.",
        default=None,
    ),
    bootstrap: TopologyBootstrap = None,
    abort: bool = flag("End the cutover that runs; both stay attached.", "--abort"),
    reason: str | None = option("TEXT", "Why it is aborted, for people to read.", default=None),
    wait: bool = flag("Watch until it is done or aborted.", "--wait/--no-wait", default=True),
    *,
    decision: DecisionOptions,
    worker: WorkerClient,
) -> None:
    """Have one replica take another's place: when it alone suffices, the other is detached.

    Without --from and --to: watch the one that runs.

    With --abort: end it, with or without a --reason; nobody is detached.

    With --dry-run no worker is asked: what the output and the coming one hold is compared, and
    --watch limits how much of what comes. It ends with 1 where they differ.

    Example: `lmerge cutover --from a --to d --topic flights.d`
    """
    if reason is not None and not abort:
        raise typer.BadParameter("--reason is why the one that runs is aborted: with --abort")
    if dry_run is not None:
        if coming is None or abort:
            raise typer.BadParameter("--dry-run compares the one of --to, and aborts nothing")
        from lmerge_service.cli.dry_run import dry_run as compare

        compared = TopologyOptions(dry_run, bootstrap)
        stream = _stream(topic, joining_at, more)
        compare(compared, coming, stream, watch, as_json=decision.as_json)
        return
    if bootstrap is not None:
        raise typer.BadParameter("--bootstrap is for --dry-run: a worker knows where Kafka is")
    if abort:
        if leaving or coming:
            raise typer.BadParameter("--abort ends the one that runs: without --from and --to")
        decision.decide(worker, "/v1/cutover/abort", reason=reason or "")
        return
    if (leaving is None) != (coming is None):
        raise typer.BadParameter("--from and --to go together")
    began = None
    if leaving is not None:
        made = decision.request(
            worker,
            "/v1/cutover/begin",
            leaving=leaving,
            coming=coming,
            attach=_stream(topic, joining_at, more),
            watch=watch,
            max_behind=max_behind,
            max_divergences=max_divergences,
        )
        began = int(made["version"])
        if not (wait and decision.as_json):  # then the outcome is the document
            decision.report(made)
    if wait:
        _see_through(worker, began, as_json=decision.as_json)


def _stream(topic: str | None, joining_at: int | None, more: str | None) -> dict[str, Any] | None:
    fields = {"joining_at": joining_at, **other_fields(more)}
    given = {name: value for name, value in fields.items() if value is not None}
    if topic is None:
        if given:
            raise typer.BadParameter("--joining-at and --more are for attaching: name the --topic")
        return None
    check_topic(topic)
    return {"topic": topic, **given}


def _see_through(worker: WorkerClient, began: int | None, *, as_json: bool) -> None:
    """Prints each change until the cutover has ended.

    Raises:
        DecisionRefusedError: it was aborted, or there is none.
        TransportError: no worker has answered for long.
    """
    from lmerge_service.service.status.shown import cutover_of

    shown: list[str] = []
    for status in _statuses(worker):
        found = status.get("cutover")
        if found is None and began is None:
            raise DecisionRefusedError("there was no cutover yet: --from and --to begin one")
        if found is None or (began is not None and found["began"] < began):
            continue  # the worker was restarted, and has not read the log to its end
        lines = [each.plain for each in cutover_of(status)]
        if not as_json and lines != shown:
            typer.echo("\n".join(lines))
            sys.stdout.flush()
        shown = lines
        if _has_ended(found, began, as_json=as_json):
            return


def _statuses(worker: WorkerClient) -> Iterator[dict[str, Any]]:
    """Again and again, over some time in which the worker is away."""
    answered = time.monotonic()
    while True:
        try:
            status = worker.get("/status")
        except TransportError as error:
            if time.monotonic() - answered > _PATIENCE_SECONDS:
                raise TransportError(f"{error}; the cutover goes on without this") from None
        else:
            answered = time.monotonic()
            yield status
        time.sleep(_EVERY_SECONDS)


def _has_ended(found: Mapping[str, Any], began: int | None, *, as_json: bool) -> bool:
    """Whether there is nothing more to see; raises if it was aborted."""
    mine = began is None or found["began"] == began
    if mine and found["state"] in {"joining", "watching"}:
        return False
    if as_json:
        print_json(found)
    both = f"{found['leaving']} → {found['coming']}"
    if not mine:
        raise DecisionRefusedError(printable(f"another cutover has begun since: {both}"))
    if found["state"] == "aborted":
        raise DecisionRefusedError(printable(f"the cutover {both} was aborted: {found['why']}"))
    return True
