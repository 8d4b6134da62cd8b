"""What the output of a replica holds, for a job that goes on with it: read by Spark.

Theory
    Each partition is read by one task, which folds it: of the last incarnation, each record once,
    the events that may still change (`replicas.own_output`). What that comes to is written to a
    folder, which the job reads as a source in its first batch: so the batch is the same when it is
    run again, though the topic has more by then. No event passes through the driver.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import START
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.queries import logical
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.replicas.output_reader import OutputReader
from lmerge_service.replicas.own_output import OutputContent
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.decoding import headers_of
from lmerge_service.spark.io.elements import headers_text, kafka_records
from lmerge_service.spark.io.places import ReadTopics, located
from lmerge_service.spark.queries.identity import PlanReplica
from lmerge_service.spark.queries.moves import Held, packed

__all__ = ("HeldReader", "held_frame", "held_rows", "write_held")

_SCHEMA: Final = "partition int, incarnation long, stable long, chunk binary"
_ROWS: Final = 20_000


def write_held(
    spark: SparkSession, replica: PlanReplica, folder: Path, incarnation: int, partitions: int
) -> int:
    """Writes what the output's topic holds of an incarnation; the least stable point of its
    partitions.

    Raises:
        TransportError: Kafka cannot be reached, or refuses.
        StateError: a record is no element of this query's, or may not stand where it stands.
    """
    with spark_errors(f"reading {replica.to}"):
        topic = ReadTopics(replica.kafka, replica.to)
        raw = kafka_records(spark, topic).select(
            "partition", "offset", "value", headers_text(F.col("headers")).alias("headers")
        )
        reader = HeldReader(replica.plan, replica.to)
        raw.mapInArrow(reader.held, _SCHEMA).write.parquet(located(str(folder)))
        written = spark.read.schema(_SCHEMA).parquet(located(str(folder)))
        [row] = (
            written.where(F.col("incarnation") == incarnation)
            .agg(F.countDistinct("partition").alias("partitions"), F.min("stable").alias("stable"))
            .collect()
        )
    return int(row["stable"]) if row["partitions"] == partitions else START


def held_frame(
    spark: SparkSession, folder: Path, incarnation: int, keys: Sequence[int]
) -> DataFrame:
    """(bucket, chunk) of what `write_held` has written, as a stream."""
    written = spark.readStream.schema(_SCHEMA).parquet(located(str(folder)))
    bucket = F.element_at(F.array(*map(F.lit, keys)), F.col("partition") + 1)
    of_run = written.where(F.col("incarnation") == incarnation)
    return of_run.select(bucket.cast("int").alias("bucket"), "chunk")


class _Record(NamedTuple):
    offset: int
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    key: None = None
    timestamp: int = -1


class HeldReader(msgspec.Struct, frozen=True):
    """Folds the output of a plan."""

    plan: PhysicalPlan
    topic: str

    def held(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of (partition, offset, value, headers), whole partitions in order, to what each of
        them holds."""
        reader, found = OutputReader(logical.schema_of(self.plan.plan)), dict[int, OutputContent]()
        for batch in batches:
            partitions = batch.column("partition").to_numpy()
            for partition in np.unique(partitions).tolist():
                if partition not in found:
                    place = TopicPartition(self.topic, partition)
                    found[partition] = OutputContent(place, reader)
                some = batch.filter(pa.array(partitions == partition))
                columns = (some.column(name).to_pylist() for name in ("offset", "value", "headers"))
                found[partition].take(
                    [
                        _Record(offset, value, headers_of(headers) if headers else ())
                        for offset, value, headers in zip(*columns, strict=True)
                    ]
                )
        for partition, content in sorted(found.items()):
            yield held_rows(partition, content)


def held_rows(partition: int, content: OutputContent) -> pa.RecordBatch:
    """Of a partition what it holds, in rows of the file."""
    events, stable = [*content.live], content.live.stable
    chunks = []
    for start in range(0, max(1, len(events)), _ROWS):
        some = events[start : start + _ROWS]
        rows, times = [each.payload for each in some], [(each.vs, each.ve) for each in some]
        chunks.append(packed(Held(rows, times, stable, content.number)))
    count = len(chunks)
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([partition] * count, pa.int32()),
            "incarnation": pa.array([content.incarnation] * count, pa.int64()),
            "stable": pa.array([stable] * count, pa.int64()),
            "chunk": pa.array(chunks, pa.binary()),
        }
    )
