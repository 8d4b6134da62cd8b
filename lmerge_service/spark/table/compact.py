"""Many small files of a table made into few, and what they replaced removed.

Theory
    Delta Lake's OPTIMIZE does the first, laid out by where events begin and end, so that an answer
    is in few row groups: an event without end does not make its whole file a candidate for every
    time. Only the history is rewritten, row for row; what is live is recreated by each update
    anyway. VACUUM does the second.

Invariants
    C1  The versions of the table are the same ones before and after; so are all answers.
    C2  Readers of earlier versions keep their files for `retain` hours.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.session import require_delta
from lmerge_service.spark.table.delta import Snapshot, delta_errors, existing, writing
from lmerge_service.spark.table.versions import HISTORY

__all__ = ("RETAIN_HOURS", "Compacted", "compact")

RETAIN_HOURS: Final = 7 * 24


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did, in files."""

    rewritten: int
    made: int
    removed: int


def compact(spark: SparkSession, path: str, *, retain: int = RETAIN_HOURS) -> Compacted:
    """Rewrites the history of a table, and removes what was replaced `retain` hours ago.

    Raises:
        ConfigurationError: there is no table.
        StateError: it is damaged, or another process is writing to it.
    """
    require_delta(spark)
    table = existing(path)
    with writing(path):
        rewritten, made = _optimized(spark, table) if table.size(HISTORY).files > 1 else (0, 0)
        with delta_errors(f"vacuuming {table.path}"):
            removed = existing(path).delta.vacuum(
                retain, dry_run=False, enforce_retention_duration=False, full=True
            )
    return Compacted(rewritten, made, sum(each.endswith(".parquet") for each in removed))


def _optimized(spark: SparkSession, table: Snapshot) -> tuple[int, int]:
    """How many files there were, and are."""
    quoted = table.path.replace("`", "``")
    with spark_errors(f"compacting {table.path}"):
        [done] = spark.sql(
            f"OPTIMIZE delta.`{quoted}` WHERE state = '{HISTORY}' ZORDER BY (vs, ve)"
        ).collect()
    return done.metrics.numFilesRemoved, done.metrics.numFilesAdded
