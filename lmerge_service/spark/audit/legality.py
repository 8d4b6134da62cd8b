"""Each stream held to its own stables: which elements touch what an earlier one made final.

Theory
    An element has a *deadline*, the greatest c after whose stable(c) it may still be said: vs of
    an insert, the lower end of an adjust, its own vc of a stable. It is illegal iff an earlier
    stable of its partition was higher. To know that of each would take a sort of all rows; but a
    slice knows what was stable before it began and when it ended, and of the elements in between

        deadline >= what is stable when the slice ends     legal, whatever the order within
        else                                               *near*, to be looked at in order

    only those near, and the stables of their slices, are sorted and compared one by one; slices
    whose earliest deadline is late enough are not looked at. Slices are short beside what separates
    most elements from their deadlines, so that few are near; in any stream the answer is the same.

Invariants
    G1  What is found first in a partition is the first illegal element of it, if its elements
        before are legal in all other ways too.

Cost
    One pass without payloads, and a sort of what is near. Slices are joined in memory: some 50
    bytes for each, of which there are at most `MOST_SLICES`; more are taken together.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import START
from lmerge_service.spark.audit.counting import deadline

__all__ = ("MOST_SLICES", "beyond_stables", "first_of_partition")

MOST_SLICES: Final = 400_000

_TOLD: Final = ("place", "payload", "vs", "vold", "ve", "vc")


def beyond_stables(
    rows: DataFrame, slices: DataFrame, by: Sequence[str], *, wider: int = 0
) -> DataFrame:
    """The first such element of each partition, and `stable`, by which it is illegal.

    `slices` are those of the rows; `wider` bits are taken off their numbers.
    """
    place = [*by, "stream", "partition", "wide"]
    of_partition = Window.partitionBy(*place[:-1]).orderBy("wide")
    bounds = (
        slices.withColumn("wide", F.shiftright("slice", wider))
        .groupBy(*place)
        .agg(F.max("stable").alias("highest"), F.min("deadline").alias("deadline"))
        .select(
            *place,
            "deadline",
            _highest(of_partition, Window.currentRow - 1).alias("begin"),
            _highest(of_partition, Window.currentRow).alias("end"),
        )
        .where(F.col("deadline") < F.col("end"))
        .drop("deadline")
    )
    near = (
        rows.drop("payload")  # of which hardly any is needed
        .withColumn("wide", F.shiftright("slice", wider))
        .join(F.broadcast(bounds), place)
        .where(
            (deadline() < F.col("end"))
            | (F.col("vc").isNotNull() & (F.col("begin") < F.col("end")))
        )
    )
    in_slice = Window.partitionBy(*place).orderBy("place")
    before = in_slice.rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
    stable = F.greatest("begin", F.max("vc").over(before))
    wrong = near.withColumn("stable", stable).where(deadline() < F.col("stable"))
    return first_of_partition(wrong.withColumn("payload", F.lit(None).cast("string")), by)


def _highest(of_partition: WindowSpec, end: int) -> Column:
    before = of_partition.rowsBetween(Window.unboundedPreceding, end)
    return F.coalesce(F.max("highest").over(before), F.lit(START))


def first_of_partition(wrong: DataFrame, by: Sequence[str]) -> DataFrame:
    """Of each partition the element with the lowest place."""
    told = F.struct(*_TOLD, "stable")
    first = wrong.groupBy(*by, "stream", "partition").agg(F.min_by(told, "place").alias("first"))
    return first.select(*by, "stream", "partition", "first.*")
