"""The streaming query: topics in, one bucket for each output partition, records out.

Theory
        Kafka ─▶ packing ─▶ (shuffle by bucket) ─▶ MergeProcessor ─▶ Kafka
                 chunks                             records with partition and lmerge-seq

    How many buckets there are is fixed by the checkpoint, and by the output topic; each is alone in
    the shuffle partition of its number (`keys`).

    Spark's sink writes at least once. What a batch writes again has the same numbers, so that
    readers recognise it (`formats.headers`).

    What buckets find about replicas goes to the events topic, and with the counts to the job, as an
    observed metric of the batch (`found_in`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from lmerge_service.config.topology import Topology
from lmerge_service.formats.headers import SEQ_HEADER
from lmerge_service.merge.findings.evidence import Evidence
from lmerge_service.merge.internal_topics import largest_record
from lmerge_service.spark.io.connection import kafka_options
from lmerge_service.spark.io.elements import headers_of_text, headers_text, kafka_records
from lmerge_service.spark.io.places import ReadTopics, located
from lmerge_service.spark.merge.packing import CHUNKS, packing
from lmerge_service.spark.merge.plan import MergePlan, work_of
from lmerge_service.spark.merge.processor import (
    EVIDENCE,
    JOB,
    LETTER,
    RECORDS,
    Counts,
    MergeProcessor,
)

__all__ = ("Observed", "observed", "start")

_FOUND: Final = "found"

_STATE: Final = "spark.sql.streaming.stateStore"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def start(
    spark: SparkSession,
    topology: Topology,
    plan: MergePlan,
    checkpoint: str,
    *,
    keys: tuple[int, ...],
    starts: str,
    batch_records: int,
    trigger: Mapping[str, Any],
) -> StreamingQuery:
    """Starts it, on a plan that is written down; `starts` counts for a new checkpoint only."""
    output = topology.output
    work = work_of(topology, plan, keys)
    source = ReadTopics(
        topology.kafka,
        [*plan.steps[-1].topics, output.control_topic],
        start=starts,
        options={
            # Also where a replica's records are gone before they are read: the job finds out whose,
            # and goes on without it.
            "failOnDataLoss": "true",
            "maxOffsetsPerTrigger": str(batch_records),
            "kafka.fetch.max.wait.ms": "20",
        },
    )
    records = _raw(kafka_records(spark, source, streaming=True))
    chunks = records.mapInArrow(packing(work), CHUNKS)
    merged = chunks.groupBy("bucket").transformWithStateInPandas(
        MergeProcessor(work), RECORDS, "append", "none"
    )
    request = str(2 * max(largest_record(topology), 1 << 20))
    options = {
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "kafka.max.request.size": request,
        "checkpointLocation": located(checkpoint),
        **kafka_options(topology.kafka),
    }
    writer = _written(merged, topology).writeStream.format("kafka").options(**options)
    with _settings(spark, plan.tasks):
        return writer.outputMode("append").trigger(**trigger).queryName(topology.name).start()


def _raw(records: DataFrame) -> DataFrame:
    """The columns that `packing` takes."""
    return records.select(
        "source",
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp"),
        "key",
        headers_text(F.col("headers")).alias("headers"),
        "value",
    )


def _written(merged: DataFrame, topology: Topology) -> DataFrame:
    """Records for Spark's Kafka sink."""
    output, target = topology.output, F.col("target")
    found = F.struct("target", F.col("value").cast("string").alias("value"))
    found = F.when(target.isin(EVIDENCE, JOB), found)
    noted = merged.observe(_FOUND, F.collect_list(found).alias("rows"))
    seq = F.col("seq").cast("string").cast("binary")
    numbered = F.array(_header(F.lit(SEQ_HEADER), seq))
    letter = headers_of_text(F.col("letter"))
    topic = F.when(target.isNull(), output.topic).when(target == LETTER, output.dead_letter_topic)
    return noted.where(target.isNull() | (target != JOB)).select(
        topic.otherwise(output.events_topic).alias("topic"),
        "key",
        "value",
        "partition",
        F.when(target.isNull(), numbered).otherwise(letter).alias("headers"),
    )


@dataclass(slots=True)
class Observed:
    """What a batch has found in all buckets."""

    breaches: dict[tuple[str, int, str], int] = field(default_factory=dict)
    """By replica, output partition and kind."""
    evidence: list[Evidence] = field(default_factory=list)


def observed(metrics: Mapping[str, Any]) -> Observed:
    """Of the metrics that Spark has observed with a batch."""
    found = Observed()
    for row in metrics[_FOUND]["rows"] if metrics.get(_FOUND) else ():
        if row["target"] == EVIDENCE:
            found.evidence.append(Evidence.of_record(row["value"].encode()))
            continue
        counts = msgspec.json.decode(row["value"], type=Counts)
        for replica, kind, count in counts.breaches:
            found.breaches[replica, counts.task, kind] = count
    return found


def _header(name: Column, value: Column) -> Column:
    return F.struct(name.alias("key"), value.alias("value"))


@contextmanager
def _settings(spark: SparkSession, tasks: int) -> Iterator[None]:
    """What the query needs, which takes a copy of the session's settings when it starts."""
    desired = {
        "spark.sql.shuffle.partitions": str(tasks),
        f"{_STATE}.providerClass": _ROCKSDB,
        f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    }
    before = {name: spark.conf.get(name, None) for name in desired}
    for name, value in desired.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)
