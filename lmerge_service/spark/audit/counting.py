"""What is counted of each stream, slice by slice, and what follows for the stream.

Theory
    A slice is a short range of a partition's places. `scanning` counts by slices, in pieces of
    them. Everything else about whole streams comes from there: counts, the last incarnation, the
    stable point (the lowest of the partitions', one without stables holds it back), progress;
    and `legality` finds there what has been stable before a slice begins.

Cost
    A row of 100 bytes per slice.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import START
from lmerge_service.spark.audit.findings import StreamProgress

__all__ = ("current", "deadline", "heads_of", "progress_of")

_COUNTS: Final = ("inserts", "adjusts", "removals", "stables")
_PICTURED: Final = 200
"""So many points on a line are enough for a picture."""


def deadline() -> Column:
    """The greatest c after whose stable(c) the row's element is legal; of a stable its own vc."""
    adjust = F.when(F.col("vold").isNotNull(), F.least("vold", "ve"))
    return F.coalesce(F.col("vc"), adjust, F.col("vs"))


def heads_of(slices: DataFrame, by: Sequence[str], widths: Mapping[int, int]) -> DataFrame:
    """A row for each stream that has records: its last incarnation, and the counts of that.

    `widths` are numbers of partitions by stream, where they are known.
    """
    of_stream = Window.partitionBy(*by, "stream")
    counted = slices.groupBy(*by, "stream", "partition", "incarnation").agg(
        *(F.sum(name).alias(name) for name in (*_COUNTS, "refused", "unplaced")),
        F.max("stable").alias("stable"),
        F.count("*").alias("slices"),
        F.max("to").alias("to"),
    )
    counted = counted.withColumn("last", F.max("incarnation").over(of_stream))
    now = F.col("incarnation") == F.col("last")
    elements = F.col("inserts") + F.col("adjusts") + F.col("stables")
    heads = counted.groupBy(*by, "stream", "last").agg(
        *(F.sum(F.when(now, F.col(name)).otherwise(0)).alias(name) for name in _COUNTS),
        F.sum("refused").alias("refused"),
        F.sum("unplaced").alias("unplaced"),
        F.sum(F.when(~now, elements).otherwise(0)).alias("left_out"),
        F.min(F.when(now, F.coalesce("stable", F.lit(START)))).alias("lowest"),
        F.count_if(now).alias("publishing"),
        F.count_distinct("partition").alias("seen"),
        F.sum("slices").alias("slices"),
        F.max("to").alias("to"),
    )
    width: Column = F.col("seen")
    for stream, known in widths.items():
        width = F.when(F.col("stream") == stream, F.lit(known)).otherwise(width)
    silent = F.col("publishing") < width
    return heads.withColumn("stable", F.when(silent, F.lit(START)).otherwise(F.col("lowest")))


def current(rows: DataFrame, heads: DataFrame, by: Sequence[str]) -> DataFrame:
    """The rows of the last incarnations."""
    last = F.broadcast(heads.select(*by, "stream", F.col("last").alias("incarnation")))
    return rows.join(last, [*by, "stream", "incarnation"], "left_semi")


def progress_of(slices: DataFrame, streams: int, *, wider: int = 0) -> list[StreamProgress]:
    """How each stream came along, by time if all records have one, else by share of the stream.

    `wider` bits are taken off the slices' numbers, so that they are few enough to be collected.
    """
    elements = F.col("inserts") + F.col("adjusts") + F.col("stables")
    place = ("stream", "partition", "wide")
    taken = slices.withColumn("wide", F.shiftright("slice", wider)).groupBy(*place)
    counted = taken.agg(
        F.sum(elements).alias("elements"), F.max("stable").alias("stable"), F.max("to").alias("to")
    )
    rows = counted.orderBy(*place).collect()
    timed = bool(rows) and all(row.to is not None for row in rows)
    return [_progress([row for row in rows if row.stream == n], timed) for n in range(streams)]


def _progress(rows: Sequence[Any], timed: bool) -> StreamProgress:
    """Of the slices of a stream, by partition and place."""
    points: list[tuple[float, Any]] = []
    lengths: dict[int, int] = {}
    for row in rows:
        lengths[row.partition] = lengths.get(row.partition, 0) + row.elements
    so_far = dict.fromkeys(lengths, 0)
    for row in rows:
        so_far[row.partition] += row.elements
        share = so_far[row.partition] / max(lengths[row.partition], 1)
        points.append((float(row.to) if timed else share, row))
    points.sort(key=lambda point: point[0])
    return _drawn(points, lengths, timed)


def _drawn(
    points: Sequence[tuple[float, Any]], lengths: Mapping[int, int], timed: bool
) -> StreamProgress:
    stables = dict.fromkeys(lengths, START)
    elements, every = 0, max(1, len(points) // _PICTURED)
    at, counts, stable = [], [], []
    for number, (x, row) in enumerate(points, 1):
        elements += row.elements
        if row.stable is not None:
            stables[row.partition] = max(stables[row.partition], row.stable)
        if number % every == 0 or number == len(points):
            at.append(x)
            counts.append(elements)
            stable.append(min(stables.values()))
    return StreamProgress(timed, at, counts, stable)
