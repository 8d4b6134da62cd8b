"""How fresh an output is: the time from the first replica's record of an event to the output's.

Theory
    An event, for this, is (payload, vs); what counts is the first insert of it on each side, by
    the records' own times. Delays below a second are exact, longer ones are cut to three digits,
    so that there are few of them, and quantiles and pictures need no second look:

        431 ms   431          73,912 ms   73,900

    Negative delays are shown as they are: clocks of two producers.

Cost
    A shuffle of 30 bytes for each insert: events are told apart by a hash of 64 bits, since of
    some ten million events a pair may share one, and no more than its delay is wrong then.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.spark.audit.findings import Freshness

__all__ = ("freshness_of",)


def freshness_of(rows: DataFrame) -> Freshness | None:
    """Of stream 0 beside the others; None if records have no times."""
    at = F.unix_millis("timestamp")
    inserts = rows.where((F.col("op") == "insert") & F.col("timestamp").isNotNull())
    output = F.col("stream") == 0
    events = inserts.groupBy(F.xxhash64("payload", "vs")).agg(
        F.min(F.when(output, at)).alias("told"), F.min(F.when(~output, at)).alias("first")
    )
    delay = F.col("told") - F.col("first")
    known = events.where(F.col("first").isNotNull()).groupBy(_short(delay).alias("delay"))
    counted = known.agg(F.count("*").alias("events")).collect()
    delays = sorted((row.delay, row.events) for row in counted if row.delay is not None)
    if not delays:
        return None
    return Freshness(delays, sum(row.events for row in counted if row.delay is None))


def _short(delay: Column) -> Column:
    """A delay to three digits; a thousand milliseconds and less are exact."""
    digits = F.floor(F.log10(F.greatest(F.abs(delay), F.lit(1)).cast("double") + 0.5))
    unit = F.pow(F.lit(10.0), F.greatest(digits - 2, F.lit(0))).cast("long")
    return F.when(F.abs(delay) < 1000, delay).otherwise(delay - delay % unit)
