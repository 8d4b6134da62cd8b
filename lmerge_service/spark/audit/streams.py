"""Streams side by side: rows of several sources in one frame, each with its place in its stream.

Theory
    The columns of `schema.RECORDS` are extended by the stream, counted from 0 as they were given,
    and one number that puts the rows of a partition in order, the *place*: the offset. In a folder,
    where files follow each other by name, the file's number stands above it:

        place = number of the file · 2^44 + offset

    Places that are near each other share a *slice* (`counting`), place >> bits.

    A topic's records are decoded where they are scanned (`scanning`), and read again, as far as
    they went then, only for what has to be looked at with its payload. JSON lines are decoded once
    and kept on Spark's disks, as are topics of which a caller reads a part: an audit must find
    the same rows each time. Parquet is read as it is.

Who owns what
    What is kept goes when `side_by_side` ends.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.bulk import Rule
from lmerge_service.spark.audit.beginnings import TopicBeginning, beginning_of
from lmerge_service.spark.audit.scanning import scanned, scanned_records
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.elements import (
    existing_offsets,
    kafka_records,
    raw_records,
    read_elements,
)
from lmerge_service.spark.io.places import JsonFiles, ParquetFiles, ReadTopics, Source, located

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
_MUCH: Final = {
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": f"{8 << 20}",
    "kafka.receive.buffer.bytes": f"{1 << 20}",
}
"""How a topic is read that is read from one end to the other: a third faster."""


_WHOLE: Final = TopicBeginning()


@dataclass(frozen=True, slots=True)
class Given:
    """A stream to be audited."""

    name: str
    rows: DataFrame
    """`COLUMNS` but for the first."""
    raw: DataFrame | None = None
    """Of a topic its records (`elements.raw_records`), to be decoded where they are scanned."""
    count: int | None = None
    """At most so many rows, if that is known without reading."""
    width: int | None = None
    """How many partitions it has, if it is known; else as many as have records."""
    sources: tuple[str, ...] = ()
    """The topic, or its files in order."""
    beginning: TopicBeginning = _WHOLE
    """What takes the place of records that are gone; from when on it is known."""

    def scanned(self, stream: int, rule: Rule) -> DataFrame:
        """The pieces and bundles of it (`scanning`); `stream` is its number."""
        if self.raw is None:
            return scanned(self.numbered(stream), ())
        return scanned_records(self.raw, rule, stream, bits=_OFFSET_BITS)

    def numbered(self, stream: int) -> DataFrame:
        """`COLUMNS`."""
        return self.rows.withColumn("stream", F.lit(stream))

    def where(self, partition: int, place: int) -> str:
        """A place as people find it again."""
        if place < self.beginning.starts.get(partition, 0):
            return f"the snapshot of {self.sources[0]}-{partition}"
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
    if isinstance(source, ReadTopics):
        offsets = existing_offsets(source.kafka, source.subscribed, settled=True)
        if offsets is None:
            raise ConfigurationError(f"{name}: there is no such topic")
        if (source.start, source.end) == ("earliest", "latest"):
            beginning = beginning_of(source.kafka, source.subscribed, offsets)
            return _topic(spark, name, source, offsets, rule, beginning, kept)
        width = len(offsets)
    rows = read_elements(spark, source, rule=rule, keys="none").drop("key", "value", "joining_at")
    if not isinstance(source, ParquetFiles):
        rows = rows.persist(StorageLevel.DISK_ONLY)
        kept.append(rows)
    if isinstance(source, ReadTopics):
        rows = placed(rows, bits=_OFFSET_BITS)
        return Given(name, rows, width=width, sources=(source.subscribed,))
    if isinstance(source, JsonFiles) and Path(source.path).is_file():
        return Given(name, placed(rows, bits=_BYTE_BITS), sources=(located(source.path),))
    with spark_errors(f"reading {name}"):
        found = [row.source for row in rows.select("source").distinct().head(_MOST_FILES + 1)]
    sources = tuple(sorted(each for each in found if each is not None))
    _check_sources(name, sources, unnamed=len(found) - len(sources))
    bits = _BYTE_BITS if any(map(_is_file, sources)) else _OFFSET_BITS
    if len(sources) < 2:
        return Given(name, placed(rows, bits=bits), sources=sources)
    numbers = spark.createDataFrame(list(enumerate(sources)), "file long, source string")
    numbered = rows.join(F.broadcast(numbers), "source", "left")
    place = F.shiftleft("file", _FILE_BITS) + F.col("offset")
    return Given(name, placed(numbered.withColumn("offset", place), bits=bits), sources=sources)


def _topic(
    spark: SparkSession,
    name: str,
    source: ReadTopics,
    offsets: Mapping[int, tuple[int, int]],
    rule: Rule,
    beginning: TopicBeginning,
    kept: list[DataFrame],
) -> Given:
    """All of a topic that there is now, or from a snapshot on."""
    begin = {f"{n}": beginning.starts.get(n, first) for n, (first, _) in offsets.items()}
    end = {f"{number}": last for number, (_, last) in offsets.items()}
    pinned = replace(
        source,
        start=json.dumps({source.subscribed: begin}),
        end=json.dumps({source.subscribed: end}),
        options={**_MUCH, **source.options},
    )
    rows = read_elements(spark, pinned, rule=rule, keys="none").drop("key", "value", "joining_at")
    if beginning.held:
        rows = rows.unionByName(beginning.rows(spark, rule), allowMissingColumns=True)
        rows = placed(rows.persist(StorageLevel.DISK_ONLY), bits=_OFFSET_BITS)
        kept.append(rows)
        topic = (source.subscribed,)
        return Given(name, rows, width=len(offsets), sources=topic, beginning=beginning)
    records = kafka_records(spark, pinned).drop("source")  # handing it over costs 0.1 µs
    return Given(
        name,
        placed(rows, bits=_OFFSET_BITS),
        raw=raw_records(records, keys="none"),
        count=sum(last - first for first, last in offsets.values()),
        width=len(offsets),
        sources=(source.subscribed,),
        beginning=beginning,
    )


def _check_sources(name: str, sources: Sequence[str], *, unnamed: int) -> None:
    if len(sources) > _MOST_FILES:
        raise ConfigurationError(f"{name}: has more than {_MOST_FILES:,} files")
    topics = [each for each in sources if not _is_file(each)]
    if len(topics) > 1 or (sources and len(sources) > len(topics) > 0) or (sources and unnamed):
        names = ", ".join([*sources[:3], *["rows of no source"] * (unnamed > 0)])
        raise ConfigurationError(f"{name}: holds several streams ({names}): audit them one by one")


def placed(rows: DataFrame, *, bits: int) -> DataFrame:
    """Rows of a stream with their place and slice; `stream` is still to be added."""
    place = F.col("offset").alias("place")
    made = {
        "partition": F.coalesce("partition", F.lit(0)).alias("partition"),
        "place": place,
        "slice": F.shiftright("offset", bits).alias("slice"),
        "incarnation": F.coalesce("incarnation", F.lit(0)).cast("long").alias("incarnation"),
    }
    return rows.select(*(made.get(name, F.col(name)) for name in COLUMNS[1:]))
