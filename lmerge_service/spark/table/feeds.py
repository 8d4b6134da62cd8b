"""What a table is made of: a topic, or one stream in files, in pieces by offset.

Theory
    A feed has where its partitions begin and end, and the records between offsets. A topic
    is asked for both; of files, offsets are looked at. Files hold one stream: Parquet that was
    written with offsets (a copy of a topic, a generated stream), or one file of JSON lines.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Final, Protocol

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.bulk import Rule
from lmerge_service.kafka.connection import connection_of
from lmerge_service.kafka.source import Source as KafkaSource
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.connection import kafka_section
from lmerge_service.spark.io.elements import read_elements
from lmerge_service.spark.io.places import JsonFiles, ParquetFiles, ReadTopics, Source, located

__all__ = ("Extent", "Feed", "feed_of")

_TO_A_RECORD: Final = 200  # of a line's bytes, about


@dataclass(frozen=True, slots=True)
class Extent:
    """What there is to read now."""

    id: str | None
    begins: Mapping[int, int]
    ends: Mapping[int, int]
    """By partition, the offset behind the last record."""


class Feed(Protocol):
    """A stream of records by offset."""

    @property
    def name(self) -> str: ...
    @property
    def per_record(self) -> int:
        """By how much offsets rise from record to record, about."""

    def extent(self) -> Extent: ...
    def records(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> DataFrame:
        """Rows of `schema.RECORDS`, in no order, of each partition those with [start, end)."""


def feed_of(spark: SparkSession, source: Source, rule: Rule) -> Feed:
    """The feed of a source.

    Raises:
        ConfigurationError: it is more than one stream.
    """
    if isinstance(source, ReadTopics):
        if "," in source.subscribed:
            raise ConfigurationError(f"{source.subscribed}: a table is made of one topic")
        return _TopicFeed(spark, source, rule)
    return _FileFeed(spark, source, rule)


@dataclass(frozen=True, slots=True)
class _TopicFeed:
    spark: SparkSession
    source: ReadTopics
    rule: Rule
    per_record: int = 1

    @property
    def name(self) -> str:
        return self.source.subscribed

    def extent(self) -> Extent:
        with ThreadPoolExecutor(1) as apart:  # the caller may be in an event loop
            return apart.submit(asyncio.run, self._asked()).result()

    async def _asked(self) -> Extent:
        connection = connection_of(kafka_section(self.source.kafka))
        async with Topics(connection) as topics:
            found = (await topics.describe([self.name])).get(self.name)
        if found is None:
            raise ConfigurationError(
                f"kafka:{self.name}: there is no such topic at {connection.bootstrap}"
            )
        partitions = [TopicPartition(self.name, number) for number in range(found.partitions)]
        async with KafkaSource(connection) as source:
            begins = await source.beginnings(partitions)
            ends = await source.ends(partitions)
        return Extent(
            found.id,
            {tp.partition: offset for tp, offset in begins.items()},
            {tp.partition: offset for tp, offset in ends.items()},
        )

    def records(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> DataFrame:
        def encoded(offsets: Mapping[int, int]) -> str:
            by_partition = {self.name: {f"{at}": offset for at, offset in offsets.items()}}
            return msgspec.json.encode(by_partition).decode()

        part = replace(self.source, start=encoded(starts), end=encoded(ends))
        return read_elements(self.spark, part, rule=self.rule, keys="none")


@dataclass(frozen=True, slots=True)
class _FileFeed:
    spark: SparkSession
    source: JsonFiles | ParquetFiles
    rule: Rule

    @property
    def name(self) -> str:
        return located(self.source.path)

    @property
    def per_record(self) -> int:
        return _TO_A_RECORD if isinstance(self.source, JsonFiles) else 1

    def extent(self) -> Extent:
        with spark_errors(f"reading {self.name}"):
            rows = self._all().groupBy("source", "partition")
            found = rows.agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
            partitions = found.collect()
        if len({each.source for each in partitions}) > 1:
            raise ConfigurationError(f"{self.name}: a table is made of one stream, not of several")
        if any(each.partition is None or each.last is None for each in partitions):
            raise ConfigurationError(f"{self.name}: its rows have no partition and offset")
        return Extent(
            None,
            {each.partition: each.first for each in partitions},
            {each.partition: each.last + 1 for each in partitions},
        )

    def records(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> DataFrame:
        offset = F.col("offset")
        wanted = (
            (F.col("partition") == number) & (offset >= starts[number]) & (offset < ends[number])
            for number in ends
        )
        return self._all().where(reduce(or_, wanted))

    def _all(self) -> DataFrame:
        return read_elements(self.spark, self.source, rule=self.rule, keys="none")
