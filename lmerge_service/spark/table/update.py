"""A table brought up to date with its stream, in steps, each of which happens once.

Theory
    A step takes the records from where the manifest stands up to some offset, and the live
    versions; makes versions of both; writes them; and commits a manifest with the new files and
    the new offsets (`manifests`). It is the table's own checkpoint: there is no other that could
    say something else. Killed at any moment, the step before is what counts, and the next run
    makes the same step again.

    Steps are cut so that each has `step` records at the most, taken of all partitions in
    proportion to what is left there.

Who owns what
    A table has one updater at a time: of two, the second to commit fails and has changed nothing.
    A compaction may run beside it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.bulk import Rule
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.places import Source
from lmerge_service.spark.table.feeds import Extent, Feed, feed_of
from lmerge_service.spark.table.manifests import (
    Begun,
    Manifest,
    OvertakenError,
    Reached,
    Table,
    described,
)
from lmerge_service.spark.table.read import read_versions
from lmerge_service.spark.table.sequence import INTERVALS, TAKEN, Watermark, sequencing
from lmerge_service.spark.table.versions import (
    COLUMNS,
    HISTORY,
    LIVE,
    MARKS,
    opened_again,
    state_of,
    versions,
)

__all__ = ("STEP", "Updated", "update_table")

STEP: Final = 2_000_000
_TASK_ROWS: Final = 250_000
_ANYTHING: Final = Rule()


@dataclass(frozen=True, slots=True)
class Updated:
    """What an update did."""

    steps: int
    records: int
    manifest: Manifest


def update_table(
    spark: SparkSession,
    source: Source,
    path: str,
    *,
    step: int = STEP,
    rule: Rule = _ANYTHING,
    told: Callable[[Manifest], None] = lambda _: None,
) -> Updated:
    """Takes into the table at `path`, which is made if it is missing, what its stream has now.

    `told` is called after each step.

    Raises:
        ConfigurationError: the table is of another stream, there is no such stream, or the folder
            holds something else than a table.
        StateError: the stream is not legal, was recreated, or has lost what was not read yet.
        TransportError: Kafka cannot be reached, or refuses.
    """
    table, feed = Table(path), feed_of(spark, source, rule)
    table.check_place()
    extent = feed.extent()
    base = table.newest() or _empty(feed, extent, rule)
    _check(base, feed, extent, rule, path)
    steps = records = 0
    while (part := _next(base, extent, step * feed.per_record)) is not None:
        base, taken = _step(spark, table, feed, base, *part)
        steps, records = steps + 1, records + taken
        told(base)
    if not base.number:  # nothing was said yet: an empty table all the same
        reached = {number: Reached(begin) for number, begin in extent.begins.items()}
        base = msgspec.structs.replace(base, number=1, reached=reached)
        table.commit(base)
    return Updated(steps, records, base)


def _empty(feed: Feed, extent: Extent, rule: Rule) -> Manifest:
    return Manifest(0, feed.name, extent.id, rule.version, {})


def _check(base: Manifest, feed: Feed, extent: Extent, rule: Rule, path: str) -> None:
    """Refuses a stream that is not the table's, or no longer the one it was."""
    if base.source != feed.name:
        raise ConfigurationError(f"{path} is a table of {base.source}, not of {feed.name}")
    if base.rule != rule.version:
        raise ConfigurationError(
            f"{path} has payloads by rule {base.rule}, not {rule.version} (nfc, drop_nulls)"
        )
    again = "make the table anew, in another folder"
    if None not in (base.source_id, extent.id) and base.source_id != extent.id:
        raise StateError(f"{feed.name} was deleted and recreated since it was read: {again}")
    for number, reached in base.reached.items():
        begins, ends = extent.begins.get(number, 0), extent.ends.get(number, 0)
        if ends < reached.next:
            raise StateError(
                f"{feed.name}-{number} ends at offset {ends}, and was read up to {reached.next}: "
                f"{again}"
            )
        if feed.per_record == 1 and extent.id is not None and begins > reached.next:
            raise StateError(
                f"{feed.name}-{number} begins at offset {begins}, and was read up to "
                f"{reached.next}: what lay between is gone; {again}"
            )
    for number in extent.begins.keys() - base.reached.keys() if extent.id is not None else ():
        if extent.begins[number] > 0:
            raise StateError(
                f"{feed.name}-{number} begins at offset {extent.begins[number]}: what was before "
                "is gone, and a table needs its stream from the beginning"
            )


def _next(
    base: Manifest, extent: Extent, step: int
) -> tuple[dict[int, int], dict[int, int]] | None:
    """From where to where the next step goes; None when there is nothing left."""
    starts = {
        number: base.reached[number].next if number in base.reached else begins
        for number, begins in extent.begins.items()
    }
    left = {number: extent.ends[number] - starts[number] for number in extent.ends}
    total = sum(left.values())
    if total <= 0:
        return None
    return starts, {
        number: starts[number] + min(count, -(-count * step // total))
        for number, count in left.items()
    }


def _step(
    spark: SparkSession,
    table: Table,
    feed: Feed,
    base: Manifest,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
) -> tuple[Manifest, int]:
    """The manifest after a step, and how many records it took."""
    folder = table.new_folder()
    with spark_errors(f"updating {table.path}"):
        intervals = _intervals(feed, base, starts, ends)
        if base.live:
            intervals = intervals.unionByName(opened_again(read_versions(spark, table, base.live)))
        size = sum(ends.values()) - sum(starts.values())
        size = size // feed.per_record + sum(each.rows for each in base.live)
        made = versions(intervals, feed.name, size // _TASK_ROWS + 1)
        rows = made.select(*COLUMNS, state_of(base.reached).alias("state"))
        rows = rows.sortWithinPartitions("state", "vs")
        rows.write.partitionBy("state").parquet(str(folder))
    marks = _marks(folder)
    manifest = msgspec.structs.replace(
        base,
        number=base.number + 1,
        reached=_reached(base, marks, ends),
        begun=(*base.begun, *_begun(marks)),
        history=(*base.history, *described(table, _files(folder, HISTORY))),
        live=described(table, _files(folder, LIVE)),
    )
    return _committed(table, base, manifest), sum(each.records for each in marks)


def _intervals(
    feed: Feed, base: Manifest, starts: Mapping[int, int], ends: Mapping[int, int]
) -> DataFrame:
    records = feed.records(starts, ends).withColumn("time", F.unix_millis("timestamp"))
    ordered = records.select(*TAKEN).repartition(len(ends), "partition")
    ordered = ordered.sortWithinPartitions("partition", "offset")
    return ordered.mapInArrow(sequencing(feed.name, base.reached), INTERVALS)


def _files(folder: Path, state: str) -> list[Path]:
    return sorted(folder.glob(f"state={state}/*.parquet"))


def _marks(folder: Path) -> list[Watermark]:
    return [
        msgspec.json.decode(payload, type=Watermark)
        for path in _files(folder, MARKS)
        for payload in pq.read_table(path, columns=["payload"]).column(0).to_pylist()
    ]


def _reached(base: Manifest, marks: list[Watermark], ends: Mapping[int, int]) -> dict[int, Reached]:
    reached = {
        number: msgspec.structs.replace(base.reached.get(number, Reached(0)), next=end)
        for number, end in ends.items()
    }
    for mark in sorted(marks, key=lambda each: each.incarnation):  # the last one counts
        at = mark.partition
        reached[at] = Reached(ends[at], mark.time, mark.incarnation, mark.stable)
    return {**base.reached, **reached}


def _begun(marks: list[Watermark]) -> list[Begun]:
    return [
        Begun(mark.incarnation, mark.partition, mark.begun_offset, mark.begun_time)
        for mark in marks
        if mark.begun_offset >= 0
    ]


def _committed(table: Table, base: Manifest, manifest: Manifest) -> Manifest:
    """Commits; on top of compactions that were faster, but of no other update."""
    while True:
        try:
            table.commit(manifest)
        except OvertakenError:
            newest = table.existing()
            if (newest.reached, newest.live) != (base.reached, base.live):
                raise
            added = manifest.history[len(base.history) :]
            manifest = msgspec.structs.replace(
                manifest, number=newest.number + 1, history=(*newest.history, *added)
            )
            base = newest
        else:
            return manifest
