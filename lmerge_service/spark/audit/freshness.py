"""How fresh an output is: the time from the first replica's record of an event to the output's.

Theory
    An event, for this, is (payload, vs); what counts is the first insert of it on each side, by
    the records' own times. Delays below a second are exact, longer ones are cut to three digits,
    so that there are few of them, and quantiles and pictures need no second look:

        431 ms   431          73,912 ms   73,900

    Negative delays are shown as they are: clocks of two producers.

Cost
    What the screen has in its hands anyway (`screening`). Events are identified by a hash of 64
    bits there: of some billion events a few may share one, and no more than their delay is wrong.
"""

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import INFINITY
from lmerge_service.spark.audit.findings import Freshness

__all__ = ("freshness_of", "measured")


def measured(
    ms: np.ndarray, timed: np.ndarray, output: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, int]:
    """Delays of events, shortened, and how many the output has not emitted.

    Rows with their times; which of them are inserts that have one, and which the output's; rows
    of an event lie together, and `starts` are the first ones.
    """
    emitted = np.minimum.reduceat(np.where(timed & output, ms, INFINITY), starts)
    first = np.minimum.reduceat(np.where(timed & ~output, ms, INFINITY), starts)
    known = first != INFINITY
    both = known & (emitted != INFINITY)
    return _short(emitted[both] - first[both]), int(known.sum() - both.sum())


def _short(delay: np.ndarray) -> np.ndarray:
    """Delays to three digits; a thousand milliseconds and less are exact."""
    digits = np.floor(np.log10(np.abs(delay) + 0.5)).astype(np.int64)
    unit = 10 ** np.maximum(digits - 2, 0)
    return np.where(np.abs(delay) < 1000, delay, delay - np.fmod(delay, unit))


def freshness_of(delays: DataFrame) -> Freshness | None:
    """Of stream 0 beside the others, by the screen's `delays_of`; None if records have no times."""
    counted = delays.groupBy("delay").agg(F.sum("events").alias("events")).collect()
    known = sorted((row.delay, row.events) for row in counted if row.delay is not None)
    if not known:
        return None
    return Freshness(known, sum(row.events for row in counted if row.delay is None))
