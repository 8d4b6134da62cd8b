"""`lmerge state inspect`, `verify` and `export`: what Kafka has of the state of a merge."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmerge_service.cli.options import App, Json, TopologyOptions, cluster_of, option
from lmerge_service.cli.words import fields_of, point, report
from lmerge_service.errors import StateError
from lmerge_service.text import moment

if TYPE_CHECKING:
    from lmerge_service.merge.inspection import Inspected

__all__ = ("app",)

app = App(
    no_args_is_help=True,
    help="Look at the state that a merge keeps in Kafka: commit records and snapshots.",
)


@app.command("inspect")
def inspect(topology: TopologyOptions, as_json: Json = False) -> None:
    """Show where each task stands: its last commit record, its replicas, its snapshots.

    Example: `lmerge state inspect topologies/flights.yaml`
    """
    found = _inspected(topology, verify=False)
    report([*map(_document, found)], *map(_text, found), as_json=as_json)


@app.command("verify")
def verify(topology: TopologyOptions, as_json: Json = False) -> None:
    """Read every snapshot and make an operator of it; ends with 4 if one is damaged.

    A damaged one harms nothing: the one before it, or the topics, are used in its place.

    Example: `lmerge state verify topologies/flights.yaml`
    """
    found = _inspected(topology, verify=True)
    report([*map(_document, found)], *map(_text, found), as_json=as_json)
    damaged = [each for task in found for each in task.snapshots if each.damage is not None]
    if damaged:
        raise StateError(f"{len(damaged)} snapshots are damaged")


@app.command("export")
def export(
    to: Path = option("FILE", "Where to write it.", show_default=False),
    as_json: Json = False,
    *,
    topology: TopologyOptions,
) -> None:
    """Write the state of all tasks to one file, for the --from of `spark-merge` and `jumpstart`.

    It is the state of the last commit. To move the merge, stop all its workers first.

    Example: `lmerge state export topologies/flights.yaml --to flights.state`
    """
    import asyncio

    from lmerge_service.merge.state_file import export_to

    loaded = topology.load()
    found = asyncio.run(export_to(to, loaded, cluster_of(loaded)))
    document = [
        {
            "partition": each.partition,
            "output_records": each.commit.output_records,
            "bytes": each.size,
        }
        for each in found
    ]
    lines = [
        f"partition {each.partition}: {each.commit.output_records:,} records published, "
        f"stable {point(each.commit.stable)}, {each.size:,} bytes"
        for each in found
    ]
    report(document, *lines, as_json=as_json, err=True)


def _inspected(topology: TopologyOptions, *, verify: bool) -> "list[Inspected]":
    import asyncio

    from lmerge_service.merge.inspection import inspect

    loaded = topology.load()

    async def run() -> "list[Inspected]":
        return [each async for each in inspect(loaded, cluster_of(loaded), verify=verify)]

    return asyncio.run(run())


def _document(task: "Inspected") -> dict[str, Any]:
    import msgspec

    return {
        "partition": task.partition,
        "commit": msgspec.to_builtins(task.commit),
        "snapshots": [
            {
                **msgspec.to_builtins(each.place),
                **fields_of(each, "damage", "live_events", "stable"),
            }
            for each in task.snapshots
        ],
    }


def _text(task: "Inspected") -> str:
    commit = task.commit
    if commit is None:
        return f"partition {task.partition}: nothing was committed yet"
    counts = f"transaction {commit.transaction:,}, {commit.output_records:,} records published"
    position = f"stable {point(commit.stable)}, decisions {commit.decided}"
    lines = [f"partition {task.partition}: {counts}, {position}"]
    for name, replica in commit.replicas.items():
        at = ", ".join(f"[{n}] {each.next:,}" for n, each in replica.partitions.items())
        lines.append(f"  {name}: {replica.topic} up to {at}, incarnation {replica.incarnation}")
    lines += [f"  {name}: in quarantine: {why}" for name, why in commit.quarantined.items()]
    lines += [f"  {_snapshot(each)}" for each in task.snapshots] or ["  no snapshot yet"]
    return "\n".join(lines)


def _snapshot(each: Any) -> str:
    place = each.place
    taken = moment(place.taken, "ms")
    what = (
        f"snapshot at transaction {place.transaction:,}, {taken} UTC: "
        f"{place.size:,} bytes in {place.chunks} chunks"
    )
    if each.damage is not None:
        return f"{what}: DAMAGED: {each.damage}"
    if each.live_events is None:
        return what
    return f"{what}: whole, {each.live_events:,} live events at stable {point(each.stable)}"
