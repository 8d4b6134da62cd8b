"""Many small files of a table made into few, laid out so that an answer is in few of them.

Theory
    Each step leaves files that hold versions of all lengths. An event that lasts for ever makes
    its file a candidate for every time, so versions are laid out by length first (of each class
    sixteen times longer than of the one before), then by vs: of the class in which events last up
    to d, only those files can hold what was true at t whose vs lie in (t - d, t].

    Only the history is rewritten, row for row. What is live is recreated by each update anyway.

Invariants
    C1  The versions of the table are the same ones before and after; so are all answers.
    C2  Readers of earlier manifests keep their files for `retain` seconds.

Cost
    One shuffle of the files that are small, or not laid out yet; a row is rewritten about once.
"""

from dataclasses import dataclass
from typing import Final

import msgspec
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import INFINITY
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.table.manifests import (
    File,
    Manifest,
    OvertakenError,
    Table,
    described,
)
from lmerge_service.spark.table.read import read_versions
from lmerge_service.spark.table.versions import COLUMNS

__all__ = ("RETAIN_SECONDS", "Compacted", "compact")

RETAIN_SECONDS: Final = 3600.0
_FILE_ROWS: Final = 1_000_000
_LONGEST: Final = 16


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did, in files."""

    rewritten: int
    made: int
    removed: int


def compact(
    spark: SparkSession,
    path: str,
    *,
    retain: float = RETAIN_SECONDS,
    file_rows: int = _FILE_ROWS,
) -> Compacted:
    """Rewrites the small files of the history, and removes what was replaced `retain` seconds ago.

    Raises:
        ConfigurationError: there is no table.
    """
    table = Table(path)
    manifest = table.existing()
    small = [each for each in manifest.history if each.rows < file_rows // 2]
    made: tuple[File, ...] = ()
    if len(small) > 1:
        made = _laid_out(spark, table, small, file_rows)
        _replace(table, manifest, small, made)
    removed = table.remove_unused(retain=retain)
    return Compacted(len(small) if made else 0, len(made), len(removed))


def _laid_out(
    spark: SparkSession, table: Table, files: list[File], file_rows: int
) -> tuple[File, ...]:
    folder = table.new_folder()
    count = -(-sum(each.rows for each in files) // file_rows)
    with spark_errors(f"compacting {table.path}"):
        rows = read_versions(spark, table, files).withColumn("length", _length())
        spread = rows.repartitionByRange(count, "length", "vs")
        ordered = spread.sortWithinPartitions("length", "vs")
        ordered.select(*COLUMNS, "length").write.partitionBy("length").parquet(str(folder))
    return described(table, folder.glob("length=*/*.parquet"))


def _length() -> Column:
    """The class of a version: how many hexadecimal digits its length has, less one."""
    length = F.col("ve").cast("double") - F.col("vs").cast("double")
    digits = F.floor(F.log2(length) / 4).cast("int")
    return F.when(F.col("ve") == INFINITY, F.lit(_LONGEST)).otherwise(digits)


def _replace(
    table: Table, manifest: Manifest, files: list[File], made: tuple[File, ...]
) -> Manifest:
    """Commits; on top of updates that were faster, but of no other compaction."""
    gone = set(files)
    while True:
        kept = tuple(each for each in manifest.history if each not in gone)
        after = msgspec.structs.replace(
            manifest, number=manifest.number + 1, history=(*kept, *made)
        )
        try:
            table.commit(after)
        except OvertakenError:
            manifest = table.existing()
            if not gone <= set(manifest.history):
                raise
        else:
            return after
