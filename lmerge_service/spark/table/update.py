"""A table brought up to date with its stream, in steps, each of which happens once.

Theory
    A step takes the records from where the table stands up to some offset, and the live versions;
    makes versions of both; and writes them with its progress, in one commit (`delta`). The table
    is its own checkpoint: there is no other one that could differ from it. Killed at any moment,
    the step before is what counts, and the next run makes the same step again.

    Steps are cut so that each has `step` records at the most, taken of all partitions in
    proportion to what is left there.

Who owns what
    A table has one writer at a time: a second one ends with an error and has changed nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.bulk import Rule
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.places import Source
from lmerge_service.spark.session import require_delta
from lmerge_service.spark.table.delta import Snapshot, created, existing, newest, writing
from lmerge_service.spark.table.feeds import Extent, Feed, feed_of
from lmerge_service.spark.table.progress import Progress
from lmerge_service.spark.table.read import read_versions
from lmerge_service.spark.table.sequence import INTERVALS, TAKEN, marked, sequencing
from lmerge_service.spark.table.versions import HISTORY, LIVE, opened_again, versions

__all__ = ("STEP", "Updated", "update_table")

STEP: Final = 2_000_000
_TASK_ROWS: Final = 250_000
_ANYTHING: Final = Rule()


@dataclass(frozen=True, slots=True)
class Updated:
    """What an update did."""

    steps: int
    records: int
    table: Snapshot


def update_table(
    spark: SparkSession,
    source: Source,
    path: str,
    *,
    step: int = STEP,
    rule: Rule = _ANYTHING,
    notify: Callable[[Snapshot], None] = lambda _: None,
) -> Updated:
    """Takes into the table at `path`, which is made if it is missing, what its stream has now.

    `notify` is called after each step.

    Raises:
        ConfigurationError: the table is of another stream, there is no such stream, or the folder
            holds something else than a table.
        StateError: the stream is not legal, was recreated, or has lost what was not read yet.
        TransportError: Kafka cannot be reached, or refuses.
    """
    require_delta(spark)
    newest(path)  # mistakes come before the folder is made for the lock
    feed = feed_of(spark, source, rule)
    extent = feed.extent()
    with writing(path):
        table = newest(path) or created(path, feed.name, extent.id, rule.version)
        _check(table, feed, extent, rule)
        steps, before = 0, table.records
        while (part := _next(table, extent, step * feed.per_record)) is not None:
            table = _step(spark, feed, table, *part)
            steps += 1
            notify(table)
    return Updated(steps, table.records - before, table)


def _check(base: Snapshot, feed: Feed, extent: Extent, rule: Rule) -> None:
    """Refuses a stream that is not the table's, or no longer the one it was."""
    if base.source != feed.name:
        raise ConfigurationError(f"{base.path} is a table of {base.source}, not of {feed.name}")
    if base.rule != rule.version:
        raise ConfigurationError(
            f"{base.path} has payloads by rule {base.rule}, not {rule.version} (nfc, drop_nulls)"
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
    base: Snapshot, extent: Extent, step: int
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
    feed: Feed,
    base: Snapshot,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
) -> Snapshot:
    """The table after a step."""
    size = sum(ends.values()) - sum(starts.values())
    size = size // feed.per_record + base.size(LIVE).versions
    with spark_errors(f"updating {base.path}"):
        live = read_versions(spark, base).where(F.col("state") == LIVE)
        intervals = _intervals(feed, base, starts, ends)
        intervals = intervals.unionByName(opened_again(live))
        intervals = intervals.unionByName(_passed(spark, base, ends))
        rows = versions(intervals, feed.name, base.reached, size // _TASK_ROWS + 1)
        ordered = rows.sortWithinPartitions("state", "vs")
        # The check would refuse what is added to the history: it replaces nothing.
        with _set(spark, "spark.databricks.delta.replaceWhere.constraintCheck.enabled", "false"):
            writer = ordered.write.format("delta").mode("overwrite")
            writer.option("replaceWhere", f"state != '{HISTORY}'").save(base.path)
    return existing(base.path)


def _intervals(
    feed: Feed, base: Snapshot, starts: Mapping[int, int], ends: Mapping[int, int]
) -> DataFrame:
    records = feed.records(starts, ends).withColumn("time", F.unix_millis("timestamp"))
    ordered = records.select(*TAKEN).repartition(len(ends), "partition")
    ordered = ordered.sortWithinPartitions("partition", "offset")
    return ordered.mapInArrow(sequencing(feed.name, base.reached), INTERVALS)


def _passed(spark: SparkSession, base: Snapshot, ends: Mapping[int, int]) -> DataFrame:
    """The progress of before, and that partitions were read up to their ends, as marks."""
    passed = (
        msgspec.structs.replace(base.reached.get(number, Progress(number)), next=end, records=0)
        for number, end in ends.items()
    )
    marks = pa.Table.from_batches([marked([*base.progress, *passed])])
    return spark.createDataFrame(marks, INTERVALS)


@contextmanager
def _set(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)
