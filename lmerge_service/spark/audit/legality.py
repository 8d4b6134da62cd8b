"""Each stream compared with its own stables: which elements touch what an earlier one made final.

Theory
    An element has a *deadline*, the greatest c after whose stable(c) it may still be emitted: vs of
    an insert, the lower end of an adjust, its own vc of a stable. It is illegal iff an earlier
    stable of its partition was higher. Within a piece of a slice that was seen by `scanning`; what
    was stable before the piece begins is known from the pieces before:

        deadlines all >= that, nothing late within it     legal
        else, or if pieces lie across each other          doubted

    Where a slice is doubted, its elements are looked at once more. Of these again only some are
    *near*: their deadline is below what is stable when the slice ends. They, and the stables of
    their slices, are sorted and compared one by one. In any stream the answer is the same.

Invariants
    G1  What is found first in a partition is the first illegal element of it, if its elements
        before are legal in all other ways too.

Cost
    A sort of the pieces. Where a slice is doubted, a pass without payloads and a sort of what is
    near; slices are joined in memory: some 50 bytes for each, of which there are at most
    `MOST_SLICES`; more are taken together.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import START
from lmerge_service.spark.audit.counting import deadline

__all__ = ("MOST_SLICES", "beyond_stables", "doubted", "first_of_partition")

MOST_SLICES: Final = 400_000

_ELEMENT: Final = ("place", "payload", "vs", "vold", "ve", "vc")


def doubted(pieces: DataFrame, by: Sequence[str], *, wider: int = 0) -> DataFrame:
    """Slices in which an element may be illegal, `wide` by that many bits; with what is stable
    when they `begin` and when they `end`. Most often there is none."""
    place = [*by, "stream", "partition", "wide"]
    of_partition = Window.partitionBy(*place[:-1]).orderBy("wide")
    bounds = (
        _in_doubt(pieces, by)
        .withColumn("wide", F.shiftright("slice", wider))
        .groupBy(*place)
        .agg(
            F.max("stable").alias("highest"),
            F.min("deadline").alias("deadline"),
            F.bool_or("doubtful").alias("doubtful"),
        )
        .select(
            *place,
            "deadline",
            "doubtful",
            _highest(of_partition, Window.currentRow - 1, "highest").alias("begin"),
            _highest(of_partition, Window.currentRow, "highest").alias("end"),
        )
    )
    return bounds.where(F.col("doubtful") & (F.col("deadline") < F.col("end"))).drop(
        "deadline", "doubtful"
    )


def _in_doubt(pieces: DataFrame, by: Sequence[str]) -> DataFrame:
    """Pieces that were doubtful in themselves, and those that lie across each other or have an
    element whose deadline is below the stables of pieces before."""
    in_order = Window.partitionBy(*by, "stream", "partition").orderBy("from", "until")
    before = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
    across = (F.col("from") <= F.max("until").over(before)) | (
        F.col("until") >= F.lead("from").over(in_order)
    )
    late = F.col("deadline") < _highest(in_order, Window.currentRow - 1, "stable")
    return pieces.withColumn(
        "doubtful", F.col("doubtful") | late | F.coalesce(across, F.lit(False))
    )


def beyond_stables(
    rows: DataFrame, bounds: DataFrame, by: Sequence[str], *, wider: int = 0
) -> DataFrame:
    """The first illegal element of each partition, and `stable`, by which it is illegal.

    `bounds` are what is `doubted` of the rows, `wider` by as much.
    """
    place = [*by, "stream", "partition", "wide"]
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


def _highest(of_partition: WindowSpec, end: int, name: str) -> Column:
    before = of_partition.rowsBetween(Window.unboundedPreceding, end)
    return F.coalesce(F.max(name).over(before), F.lit(START))


def first_of_partition(wrong: DataFrame, by: Sequence[str]) -> DataFrame:
    """Of each partition the element with the lowest place."""
    element = F.struct(*_ELEMENT, "stable")
    first = wrong.groupBy(*by, "stream", "partition").agg(F.min_by(element, "place").alias("first"))
    return first.select(*by, "stream", "partition", "first.*")
