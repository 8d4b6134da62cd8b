"""Odd events, compared by payload: are their chains whole, and do all streams leave one end?

Theory
    What the screen lets through (`screening`) is plain. Of the others, all rows are looked at
    again, payloads included, each in its place:

    * R4, a multiset: each element takes an event away (vold), brings one (ve), or both. Per
      (payload, vs, end) their running sum must never fall below 0, and what is left at the end is
      the TDB.
    * R3, a key: an insert of what is there gives it another end; an adjust must take up the end
      before it.

    Compared *clipped* at a point, keys with vs at or beyond it do not count, and ends beyond it
    are cut there.

Invariants
    V2  The first element that is found illegal in a partition is so, if those before it are legal.

Cost
    A pass over the payloads, and sorts of what is odd.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import START
from lmerge_service.spark.audit.legality import first_of_partition
from lmerge_service.spark.audit.scanning import event_hash

__all__ = ("broken_chains", "disagreements", "doubled", "elements_about")

_EVENT: Final = ("payload", "vs")
_PLACE: Final = ("stream", "partition", "place")


def elements_about(rows: DataFrame, hashes: DataFrame, by: Sequence[str]) -> DataFrame:
    """The inserts and adjusts about events with these hashes (column `hash`)."""
    elements = rows.where(F.col("op") != "stable").withColumn("hash", event_hash(by))
    about = elements.join(hashes, "hash", "left_semi")
    return about.select(*by, *_PLACE, *_EVENT, "vold", "ve")


def _linked(elements: DataFrame, key: Sequence[str]) -> DataFrame:
    """Each element with the `end` it leaves, the one `held` before, and whether it is the `last`
    of its key and partition."""
    chain = Window.partitionBy(*key, "stream", "partition").orderBy("place")
    return elements.withColumn("end", F.when(F.col("ve") > F.col("vs"), F.col("ve"))).withColumns(
        {
            "held": F.lag("end").over(chain),
            "last": F.lead("place").over(chain).isNull(),
        }
    )


def _is(stream: int) -> Column:
    return F.col("stream") == stream


def _doubles() -> Column:
    return F.col("vold").isNull() & F.col("held").isNotNull()


def _unlinked() -> Column:
    return F.col("vold").isNotNull() & ~F.col("vold").eqNullSafe(F.col("held"))


def _counts() -> Column:
    """Whether a key is before the point."""
    return F.col("vs") < F.col("point")


def _clipped(end: Column) -> Column:
    return F.when(end.isNotNull(), F.least(end, F.col("point")))


def broken_chains(elements: DataFrame, by: Sequence[str], *, keyed: bool) -> DataFrame:
    """Of each partition the first adjust of an event that its stream does not hold."""
    if keyed:
        wrong = _linked(elements, [*by, *_EVENT]).where(_unlinked())
    else:
        here = Window.partitionBy(*by, *_EVENT, "stream", "partition", "end")
        order = here.orderBy("place", "step").rowsBetween(Window.unboundedPreceding, 0)
        held = _steps(elements).withColumn("sum", F.sum("step").over(order))
        wrong = held.where((F.col("step") < 0) & (F.col("sum") < 0))
    absent = {"vc": F.lit(None).cast("long"), "stable": F.lit(START)}
    return first_of_partition(wrong.withColumns(absent), by)


def doubled(elements: DataFrame, by: Sequence[str], *, keyed: bool) -> DataFrame:
    """By stream, how many inserts are of a (payload, vs) that it held already."""
    if keyed:
        again = _linked(elements, [*by, *_EVENT]).where(_doubles())
    else:
        here = Window.partitionBy(*by, *_EVENT, "stream", "partition").orderBy("place", "step")
        before = here.rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
        held = _steps(elements).withColumn("sum", F.sum("step").over(before))
        again = held.where(F.col("vold").isNull() & (F.col("sum") > 0))
    return again.groupBy(*by, "stream").agg(F.count("*").alias("doubled"))


def _steps(elements: DataFrame) -> DataFrame:
    """What each element takes away (step -1) and brings (step 1), with its `end`."""

    def step(end: str, by: int) -> Column:
        return F.struct(F.col(end).alias("end"), F.lit(by).alias("step"))

    takes = F.when(F.col("vold").isNotNull(), step("vold", -1))
    brings = F.when(F.col("ve") > F.col("vs"), step("ve", 1))
    each = F.explode(F.filter(F.array(takes, brings), lambda one: one.isNotNull()))
    return elements.withColumn("each", each).select("*", "each.*").drop("each")


def disagreements(
    elements: DataFrame,
    by: Sequence[str],
    streams: int,
    *,
    keyed: bool,
    clipped: bool,
    since: int = START,
) -> DataFrame:
    """(payload, vs, end) that not all streams hold as often, of ends from `since` on; `count0` and
    so on are how often."""
    if keyed:
        left = _linked(elements, [*by, *_EVENT]).where(F.col("last") & F.col("end").isNotNull())
        left = left.withColumn("step", F.lit(1))
    else:
        left = _steps(elements)
    if since > START:
        left = left.where(F.col("end") >= since)
    if clipped:
        left = left.where(_counts()).withColumn("end", _clipped(F.col("end")))
    counts = [
        F.sum(F.when(_is(n), F.col("step")).otherwise(0)).alias(f"count{n}") for n in range(streams)
    ]
    held = left.groupBy(*by, *_EVENT, "end").agg(*counts)
    unlike = F.lit(False)
    for n in range(1, streams):
        unlike |= F.col(f"count{n}") != F.col("count0")
    return held.where(unlike)
