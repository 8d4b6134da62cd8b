"""Intervals that open and close, brought together: the versions of a table.

Theory
    A version is an interval ⟨payload, vs, ve⟩ with when it became known and when it ceased to be
    held. Of equal intervals the k-th to be opened is the k-th to be closed: which of them an
    adjust means cannot be known and need not be, since a TDB is a multiset. So a stream of R4 needs
    no more than one of R3, whose intervals may open, close and open again too. A stream is legal
    exactly if each one that closes was opened before.

        insert(A, 6, 20) at 0      A [6, 20)  known from 0 to 2
        adjust(A, 6, 20, 30) at 2  A [6, 30)  known from 2 to 5
        adjust(A, 6, 30, 20) at 5  A [6, 20)  known from 5 on

    A version is *final* once it lies below its partition's stable, closed once it has ceased:
    nothing will change either, and they are history. All others are live, and are brought
    up to date by the next records.

Invariants
    V1  At each offset the versions that are known there are the TDB of the prefix up to it.
    V2  A version of the history is never read again to be written, but by OPTIMIZE.
    V3  Of a row of progress all but partition, incarnation and payload are null, so that no
        condition on times has it.

Cost
    One shuffle of the intervals, and of the live versions of before.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import INFINITY, START
from lmerge_service.spark.table.progress import Progress
from lmerge_service.spark.table.sequence import CLOSED, MARK, OPENED

__all__ = (
    "COLUMNS",
    "HISTORY",
    "LIVE",
    "PROGRESS",
    "SCHEMA",
    "opened_again",
    "versions",
)

SCHEMA: Final = (
    "partition int, incarnation long, payload string, vs long, ve long, known_from long, "
    "known_to long, from_time long, to_time long"
)
"""Offsets, and the same in milliseconds; INFINITY: held still."""
COLUMNS: Final = tuple(each.split()[0] for each in SCHEMA.split(", "))
HISTORY: Final = "history"
LIVE: Final = "live"
PROGRESS: Final = "progress"

_INTERVAL: Final = ("partition", "incarnation", "payload", "vs", "ve")


def opened_again(live: DataFrame) -> DataFrame:
    """The live versions as intervals that were opened."""
    return live.select(
        F.lit(OPENED).alias("side"),
        *_INTERVAL,
        F.col("known_from").alias("at"),
        F.col("from_time").alias("time"),
    )


def versions(
    intervals: DataFrame, source: str, reached: Mapping[int, Progress], tasks: int
) -> DataFrame:
    """The rows of a table, with their `state`: versions of `sequence.INTERVALS`, and progress of
    their marks. `reached` is where the step has begun."""
    spread = intervals.repartition(tasks, "partition", "payload", "vs", "ve")
    turn = Window.partitionBy(*_INTERVAL, "side").orderBy("at")
    numbered = spread.withColumn("turn", F.row_number().over(turn))
    closed = F.col("side") == CLOSED
    both = numbered.groupBy(*_INTERVAL, "turn").agg(
        F.max(F.when(~closed, F.col("at"))).alias("known_from"),
        F.max(F.when(closed, F.col("at"))).alias("known_to"),
        F.max(F.when(~closed, F.col("time"))).alias("from_time"),
        F.max(F.when(closed, F.col("time"))).alias("to_time"),
        F.max(F.col("side") == MARK).alias("is_mark"),
    )
    legal = F.col("known_from").isNotNull() & (F.col("known_from") < F.col("known_to"))
    wrong = F.concat(
        *(F.lit(f"{source}-"), F.col("partition"), F.lit(" at offset "), F.col("known_to")),
        F.lit(": not a legal stream: adjust of an event that the stream does not hold, vs="),
        *(F.col("vs"), F.lit(", vold="), F.col("ve")),
    )
    held = F.when(F.col("known_to").isNull(), F.lit(INFINITY))
    ended = both.withColumn(
        "known_to", held.when(legal, F.col("known_to")).otherwise(F.raise_error(wrong))
    ).withColumn("to_time", F.coalesce("to_time", F.lit(INFINITY)))
    times = (F.when(~F.col("is_mark"), F.col(name)).alias(name) for name in COLUMNS[3:])
    return ended.select(_state(reached).alias("state"), *COLUMNS[:3], *times)


def _state(reached: Mapping[int, Progress]) -> Column:
    """Final is what was final when the step began: what it declares is only known when it has been
    read, and then the next step moves what has become final.
    """
    incarnation = _of_partition({at: each.incarnation for at, each in reached.items()}, -1)
    stable = _of_partition({at: each.stable for at, each in reached.items()}, START)
    passed = (F.col("ve") < stable) | (stable == INFINITY)
    older = F.col("incarnation") < incarnation
    final = older | ((F.col("incarnation") == incarnation) & passed)
    kept = F.when((F.col("known_to") < INFINITY) | final, HISTORY).otherwise(LIVE)
    return F.when(F.col("is_mark"), PROGRESS).otherwise(kept)


def _of_partition(values: Mapping[int, int], absent: int) -> Column:
    if not values:
        return F.lit(absent)
    pairs = (
        F.lit(each).cast(kind)
        for item in values.items()
        for each, kind in zip(item, _KINDS, strict=True)
    )
    return F.coalesce(F.create_map(*pairs)[F.col("partition")], F.lit(absent))


_KINDS: Final = ("int", "long")
