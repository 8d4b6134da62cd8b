"""Raw records without those that their writer had written before (`formats.repeats`).

Theory
    Of a writer that numbers its records, what is written again is the same, and the first time
    that each number is met is in order. So a reader that goes through a topic leaves out what it
    has read under that number (`formats.repeats`); a query that sees all records at once keeps of
    each number and content the record that stands first. Both are the same records, also where
    two writers use the same numbers for different contents, as long as they have no content
    in common under one of them. Those without a number are all kept.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.formats.headers import INCARNATION_HEADER, SEQ_HEADER

__all__ = ("once",)


def once(records: DataFrame) -> DataFrame:
    """Of frames as `kafka_records` gives them, in batches: one shuffle.

    A number that is none is taken for none, as an incarnation that is none for 0.
    """
    seq, incarnation = _number(SEQ_HEADER), F.coalesce(_number(INCARNATION_HEADER), F.lit(0))
    # Each of those without has a key of its own, so that they are not all in one task.
    key = F.coalesce(seq, -1 - F.col("offset"))
    same = Window.partitionBy("source", "partition", incarnation, key, "value").orderBy("offset")
    first = records.withColumn("place", F.row_number().over(same)).where(F.col("place") == 1)
    return first.drop("place")


def _number(name: str) -> Column:
    headers = F.filter("headers", lambda each: each["key"] == name)
    return F.try_element_at(headers, F.lit(1))["value"].cast("string").try_cast("long")
