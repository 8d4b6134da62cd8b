"""Events brought together: are their chains whole, and do all streams leave them with one end?

Theory
    All that is said of one (payload, vs), by whatever stream, comes to one task, in order. That is
    looked at twice.

    *The screen* sees everything, and asks of each key only whether it is plain: each stream begins
    with an insert, each adjust takes up the end before it, no insert comes while there is an
    event, and all streams end alike.

        place   op                 held before   end
        3       insert [6, 20)     –             20
        7       adjust 20 → 25     20 = vold     25
        9       adjust 25 → 6      25 = vold     –       removed

    A key that is plain is legal and means the same everywhere, as a key (R3) and as a multiset
    (R4). Only the *odd* ones are judged by the rule, exactly:

    * R4, a multiset: each element takes an event away (vold), brings one (ve), or both. Per
      (payload, vs, end) their running sum must never fall below 0, and what is left at the end is
      the TDB.
    * R3, a key: an insert of what is there gives it another end; an adjust must take up the end
      before it.

    Compared *clipped* at a point, keys with vs at or beyond it do not count, and ends beyond it
    are cut there.

    Keys are spread and sorted by a hash first, so that long payloads are compared only where it
    is the same.

Invariants
    V1  The screen passes no key that is illegal by either rule, or on which streams disagree.
    V2  What is judged illegal first in a partition is so, if its elements before are legal.

Cost
    A shuffle and a sort of inserts and adjusts, payloads included, in pieces that fit a task; the
    same again for the odd ones only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import START
from lmerge_service.spark.audit.legality import first_of_partition

__all__ = ("Odd", "broken_chains", "disagreements", "doubled", "screened")

_EVENT: Final = ("payload", "vs")
_SAID: Final = ("stream", "partition", "place")


@dataclass(frozen=True, slots=True)
class Odd:
    """The keys that a screen has kept, and what is said of them."""

    keys: DataFrame
    """`by`, payload, vs; `twice`, how many rows have the place of another."""
    said: DataFrame
    """The inserts and adjusts about them."""


def screened(
    rows: DataFrame, by: Sequence[str], streams: int, *, pieces: int, clipped: bool
) -> Odd:
    """What is not plain; `clipped` at the rows' column `point`. Sorted in so many pieces."""
    key = [*by, "hash", *_EVENT]
    kept = [*by, *_SAID, *_EVENT, "vold", "ve", *["point"] * clipped]
    said = rows.where(F.col("op") != "stable").select(*kept, F.xxhash64(*_EVENT).alias("hash"))
    linked = _linked(said.repartition(pieces, *by, "hash"), key)
    linked = linked.withColumn("odd", F.coalesce(_unlinked() | _doubles(), F.lit(False)))
    linked = linked.where(F.col("last") | F.col("odd") | F.col("twice"))  # the others say no more
    left = F.col("last") & F.col("end").isNotNull()
    counts = [F.count_if(_is(n) & left).alias(f"count{n}") for n in range(streams)]
    ends = [F.max(F.when(_is(n) & left, F.col("end"))).alias(f"end{n}") for n in range(streams)]
    keys = linked.groupBy(*key).agg(
        F.count_if("odd").alias("odd"),
        F.count_if("twice").alias("twice"),
        *counts,
        *ends,
        *[F.first("point").alias("point")] * clipped,
    )
    several = F.greatest(F.lit(0), *(F.col(f"count{n}") for n in range(streams))) > 1
    odd = (F.col("odd") > 0) | (F.col("twice") > 0) | several | _unlike(streams, clipped)
    return Odd(keys.where(odd).select(*by, *_EVENT, "twice"), said)


def _linked(said: DataFrame, key: Sequence[str]) -> DataFrame:
    """Each element with the `end` it leaves, the one `held` before, whether it is the `last` of
    its key and partition, and whether its place was taken already."""
    chain = Window.partitionBy(*key, "stream", "partition").orderBy("place")
    return said.withColumn("end", F.when(F.col("ve") > F.col("vs"), F.col("ve"))).withColumns(
        {
            "held": F.lag("end").over(chain),
            "last": F.lead("place").over(chain).isNull(),
            "twice": F.coalesce(F.lag("place").over(chain) == F.col("place"), F.lit(False)),
        }
    )


def _is(stream: int) -> Column:
    return F.col("stream") == stream


def _doubles() -> Column:
    return F.col("vold").isNull() & F.col("held").isNotNull()


def _unlinked() -> Column:
    return F.col("vold").isNotNull() & ~F.col("vold").eqNullSafe(F.col("held"))


def _unlike(streams: int, clipped: bool) -> Column:
    """Whether streams leave a key with different ends."""
    ends = [F.col(f"end{n}") for n in range(streams)]
    if clipped:
        ends = [_clipped(each) for each in ends]
    unlike = F.lit(False)
    for each in ends[1:]:
        unlike |= ~each.eqNullSafe(ends[0])
    return unlike & _counts() if clipped else unlike


def _counts() -> Column:
    """Whether a key is before the point."""
    return F.col("vs") < F.col("point")


def _clipped(end: Column) -> Column:
    return F.when(end.isNotNull(), F.least(end, F.col("point")))


def broken_chains(odd: Odd, by: Sequence[str], *, keyed: bool) -> DataFrame:
    """Of each partition the first adjust of an event that its stream does not hold."""
    if keyed:
        wrong = _linked(_said_of(odd, by), [*by, *_EVENT]).where(_unlinked())
    else:
        here = Window.partitionBy(*by, *_EVENT, "stream", "partition", "end")
        order = here.orderBy("place", "step").rowsBetween(Window.unboundedPreceding, 0)
        held = _steps(_said_of(odd, by)).withColumn("sum", F.sum("step").over(order))
        wrong = held.where((F.col("step") < 0) & (F.col("sum") < 0))
    absent = {"vc": F.lit(None).cast("long"), "stable": F.lit(START)}
    return first_of_partition(wrong.withColumns(absent), by)


def doubled(odd: Odd, by: Sequence[str], *, keyed: bool) -> DataFrame:
    """By stream, how many inserts are of a (payload, vs) that it held already."""
    if keyed:
        again = _linked(_said_of(odd, by), [*by, *_EVENT]).where(_doubles())
    else:
        here = Window.partitionBy(*by, *_EVENT, "stream", "partition").orderBy("place", "step")
        before = here.rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
        held = _steps(_said_of(odd, by)).withColumn("sum", F.sum("step").over(before))
        again = held.where(F.col("vold").isNull() & (F.col("sum") > 0))
    return again.groupBy(*by, "stream").agg(F.count("*").alias("doubled"))


def _said_of(odd: Odd, by: Sequence[str]) -> DataFrame:
    return odd.said.join(odd.keys.select(*by, *_EVENT), [*by, *_EVENT], "left_semi")


def _steps(said: DataFrame) -> DataFrame:
    """What each element takes away (step -1) and brings (step 1), with its `end`."""

    def step(end: str, by: int) -> Column:
        return F.struct(F.col(end).alias("end"), F.lit(by).alias("step"))

    takes = F.when(F.col("vold").isNotNull(), step("vold", -1))
    brings = F.when(F.col("ve") > F.col("vs"), step("ve", 1))
    each = F.explode(F.filter(F.array(takes, brings), lambda one: one.isNotNull()))
    return said.withColumn("each", each).select("*", "each.*").drop("each")


def disagreements(
    odd: Odd, by: Sequence[str], streams: int, *, keyed: bool, clipped: bool
) -> DataFrame:
    """(payload, vs, end) that not all streams hold as often; `count0` and so on tell how often."""
    said = _said_of(odd, by)
    if keyed:
        left = _linked(said, [*by, *_EVENT]).where(F.col("last") & F.col("end").isNotNull())
        left = left.withColumn("step", F.lit(1))
    else:
        left = _steps(said)
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
