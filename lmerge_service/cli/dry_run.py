"""`lmerge cutover --dry-run`: what would differ if a replica took over, of every event.

A process of its own, that reads the output and the replica's topic; no worker is asked and nothing
is decided or written. SIGINT and SIGTERM end it with the report of what was compared until then.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from pydantic import ValidationError

from lmerge_service.cli.options import TopologyOptions, cluster_of
from lmerge_service.cli.words import (
    fields_of,
    finite,
    payload_json,
    payload_text,
    point,
    report,
    shortened,
)
from lmerge_service.config.topology import Replica
from lmerge_service.elements import INFINITY
from lmerge_service.errors import ConfigurationError, fault_message
from lmerge_service.merge.dry_run import Compared, DifferenceKind, DifferingEvent, DryRun
from lmerge_service.signals import cancelled_by_signal

if TYPE_CHECKING:
    from lmerge_service.kafka.find import FoundRecord

__all__ = ("dry_run",)

_DIFFERENCES: Final = {
    DifferenceKind.MISSING: "missing in the replica",
    DifferenceKind.ADDED: "only in the replica",
    DifferenceKind.OTHER_END: "with another end",
}


def dry_run(
    compared: TopologyOptions,
    name: str,
    stream: dict[str, Any] | None,
    span: int | None,
    *,
    as_json: bool,
) -> None:
    """Compares the replica with the output, and reports; ends with 1 where they differ.

    `stream` is the replica's as it would be attached; None: as the topology has it.

    Raises:
        ConfigurationError: the topology does not name it, or it cannot be compared.
    """
    topology = compared.load()
    replica = _replica(name, stream, {each.name: each for each in topology.replicas}, compared.path)
    found = asyncio.run(_compared(DryRun(topology, replica, cluster_of(topology)), span))
    topics = (topology.output.topic, replica.topic)
    report(_document(found, topics), *_lines(found, topics, name), as_json=as_json)
    if found.counts:
        raise typer.Exit(1)


def _replica(
    name: str, stream: dict[str, Any] | None, known: dict[str, Replica], path: Path
) -> Replica:
    if stream is None:
        if name not in known:
            raise ConfigurationError(f"{path} names no replica {name}: give its --topic")
        return known[name]
    try:
        return Replica.model_validate({"name": name, **stream})
    except ValidationError as error:
        fault = error.errors()[0]
        text, place = fault_message(fault), ".".join(map(str, fault["loc"]))
        raise ConfigurationError(f"{place}: {text}" if place else text) from None


async def _compared(shadow: DryRun, span: int | None) -> Compared:
    async with shadow:
        comparing = asyncio.create_task(shadow.run(span, _report_progress))
        with cancelled_by_signal(comparing):
            await asyncio.wait({comparing})
        if not comparing.cancelled() and (failure := comparing.exception()) is not None:
            raise failure
        return shadow.found


def _report_progress(found: Compared) -> None:
    if sys.stderr.isatty():
        differ = sum(found.counts.values())
        line = f"compared up to {point(found.stable)}: {found.events:,} events, {differ:,} differ"
        typer.echo(f"{line}, {sum(found.lag):,} records are left", err=True)


# --- the report -----------------------------------------------------------------------------------


def _lines(found: Compared, topics: tuple[str, str], name: str) -> Iterator[str]:
    output, replica = topics
    yield f"{output} is at {point(found.output_stable)}, {found.lag[0]:,} records not read"
    yield (
        f"{replica} is at {point(found.replica_stable)}{_distance(found)}, {found.lag[1]:,} "
        "records not read"
    )
    yield (
        f"compared up to {point(found.stable)}: {found.events:,} events that are final, and "
        f"{found.live:,} that are not"
    )
    for kind, count in sorted(found.breaches.items()):
        yield f"{name} broke a rule: {kind} {count:,}"
    if found.dead:
        yield f"{found.dead:,} records of {replica} are no elements"
    if not found.counts:
        yield "nothing would differ"
        return
    counts = sorted(found.counts.items())
    yield "events differ: " + ", ".join(f"{n:,} {_DIFFERENCES[kind]}" for kind, n in counts)
    yield from (f"  {_line(each)}" for each in found.first)
    if (left := sum(found.counts.values()) - len(found.first)) > 0:
        yield f"  and {left:,} more"


def _distance(found: Compared) -> str:
    behind = _behind(found)
    if not behind:
        return ""
    return f" ({behind} behind)" if behind > 0 else f" ({-behind} ahead)"


def _behind(found: Compared) -> int | None:
    """How far the replica is behind the output, in the topology's unit; None: not known."""
    both = finite(found.output_stable), finite(found.replica_stable)
    return None if None in both else found.output_stable - found.replica_stable


def _line(each: DifferingEvent) -> str:
    ends = [", ".join(map(point, stated)) or "none" for stated in (each.output, each.replica)]
    places = " and ".join(
        f"{at.topic} {at.partition}@{at.offset}" for at in each.at if at is not None
    )
    where = f" ({places})" if places else ""
    what = f"{shortened(payload_text(each.payload))} from {each.vs} to {ends[0]}"
    return f"{each.kind}: {what} in the output, {ends[1]} in the replica{where}"


def _document(found: Compared, topics: tuple[str, str]) -> dict[str, Any]:
    points = (found.output_stable, found.replica_stable)
    sides = [
        {"topic": topic, "stable_point": finite(stable), "ended": stable == INFINITY, "lag": lag}
        for topic, stable, lag in zip(topics, points, found.lag, strict=True)
    ]
    return {
        "output": sides[0],
        "replica": sides[1],
        "behind": _behind(found),
        "compared_to": finite(found.stable),
        "events": found.events,
        "live_events": found.live,
        "most_live_events": found.most_live,
        "differences": {kind: found.counts[kind] for kind in DifferenceKind},
        "first": [_difference(each) for each in found.first],
        "breaches": dict(found.breaches),
        "dead_letters": found.dead,
    }


def _difference(each: DifferingEvent) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "payload": payload_json(each.payload),
        "vs": each.vs,
        "output": {"ends": [finite(ve) for ve in each.output], **_place(each.at[0])},
        "replica": {"ends": [finite(ve) for ve in each.replica], **_place(each.at[1])},
    }


def _place(at: "FoundRecord | None") -> dict[str, Any]:
    if at is None:
        return {}
    return fields_of(at, "topic", "partition", "offset")
