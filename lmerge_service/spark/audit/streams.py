"""Streams side by side: rows of several sources in one frame, each with its place in its stream.

Theory
    To what `schema.RECORDS` says of a row come its stream, counted from 0 as they were given, and
    one number that puts the rows of a partition in order, its *place*: the offset. In a folder,
    where files follow each other by name, the file's number stands above it:

        place = number of the file · 2^44 + offset

    Places that are near each other share a *slice* (`counting`), place >> bits.

    Topics and JSON lines are decoded once and kept on Spark's disks: an audit reads its rows three
    times, and must find the same ones. Parquet is read as it is.

Who owns what
    What is kept goes when `side_by_side` ends.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.bulk import Rule
from lmerge_service.spark.elements import existing_width, read_elements
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.places import JsonFiles, ParquetFiles, Source, Topics, located

__all__ = ("COLUMNS", "Given", "placed", "side_by_side")

COLUMNS: Final = (
    *("stream", "partition", "place", "slice", "incarnation", "timestamp"),
    *("op", "payload", "vs", "vold", "ve", "vc", "reason", "message"),
)
_FILE_BITS: Final = 44
_MOST_FILES: Final = 1 << (63 - _FILE_BITS)
_OFFSET_BITS: Final = 6
"""Of a slice of a topic: 64 records."""
_BYTE_BITS: Final = 13
"""Of a slice of a file: about as many."""


@dataclass(frozen=True, slots=True)
class Given:
    """A stream to be audited."""

    name: str
    rows: DataFrame
    """`COLUMNS` but for the first."""
    width: int | None = None
    """How many partitions it has, if it is known; else as many as have spoken."""
    sources: tuple[str, ...] = ()
    """The topic, or its files in order."""

    def where(self, partition: int, place: int) -> str:
        """A place as people find it again."""
        number, offset = place >> _FILE_BITS, place % (1 << _FILE_BITS)
        source = self.sources[number] if len(self.sources) > 1 else (*self.sources, self.name)[0]
        if _is_file(source):
            return f"{source} at byte {offset}"
        return f"{source}-{partition} at offset {offset}"


def _is_file(source: str) -> bool:
    """No topic has a slash in its name; files are named from the root on."""
    return "/" in source


@contextmanager
def side_by_side(
    spark: SparkSession, sources: Sequence[tuple[str, Source]], rule: Rule
) -> Iterator[list[Given]]:
    """(name, source) of each stream, opened.

    Raises:
        ConfigurationError: there is no such topic or file, or what it holds is not one stream.
        TransportError: Kafka cannot be reached, or refuses.
    """
    kept: list[DataFrame] = []
    try:
        yield [_opened(spark, name, source, rule, kept) for name, source in sources]
    finally:
        for rows in kept:
            rows.unpersist()


def _opened(
    spark: SparkSession, name: str, source: Source, rule: Rule, kept: list[DataFrame]
) -> Given:
    width = None
    if isinstance(source, Topics):
        width = existing_width(source.kafka, source.subscribed)
        if width is None:
            raise ConfigurationError(f"{name}: there is no such topic")
    rows = read_elements(spark, source, rule=rule, keys="none").drop("key", "value", "joining_at")
    if not isinstance(source, ParquetFiles):
        rows = rows.persist(StorageLevel.DISK_ONLY)
        kept.append(rows)
    if isinstance(source, Topics):
        return Given(name, placed(rows, bits=_OFFSET_BITS), width, (source.subscribed,))
    if isinstance(source, JsonFiles) and Path(source.path).is_file():
        return Given(name, placed(rows, bits=_BYTE_BITS), None, (located(source.path),))
    with spark_errors(f"reading {name}"):
        found = [row.source for row in rows.select("source").distinct().head(_MOST_FILES + 1)]
    sources = tuple(sorted(each for each in found if each is not None))
    _check_sources(name, sources, unnamed=len(found) - len(sources))
    bits = _BYTE_BITS if any(map(_is_file, sources)) else _OFFSET_BITS
    if len(sources) < 2:
        return Given(name, placed(rows, bits=bits), None, sources)
    numbers = spark.createDataFrame(list(enumerate(sources)), "file long, source string")
    numbered = rows.join(F.broadcast(numbers), "source", "left")
    place = F.shiftleft("file", _FILE_BITS) + F.col("offset")
    return Given(name, placed(numbered.withColumn("offset", place), bits=bits), None, sources)


def _check_sources(name: str, sources: Sequence[str], *, unnamed: int) -> None:
    if len(sources) > _MOST_FILES:
        raise ConfigurationError(f"{name}: has more than {_MOST_FILES:,} files")
    topics = [each for each in sources if not _is_file(each)]
    if len(topics) > 1 or (sources and len(sources) > len(topics) > 0) or (sources and unnamed):
        told = ", ".join([*sources[:3], *["rows of no source"] * (unnamed > 0)])
        raise ConfigurationError(f"{name}: holds several streams ({told}): audit them one by one")


def placed(rows: DataFrame, *, bits: int) -> DataFrame:
    """Rows of a stream with their place and slice; `stream` is still to be said."""
    place = F.col("offset").alias("place")
    made = {
        "partition": F.coalesce("partition", F.lit(0)).alias("partition"),
        "place": place,
        "slice": F.shiftright("offset", bits).alias("slice"),
        "incarnation": F.coalesce("incarnation", F.lit(0)).cast("long").alias("incarnation"),
    }
    return rows.select(*(made.get(name, F.col(name)) for name in COLUMNS[1:]))
