"""A replica on Spark as a process: how a plan is started, goes on after it was killed, and ends.

Theory
    The checkpoint folder holds what Spark keeps and `plan.json` (`identity`). With it a
    process that was killed goes on: Spark does the last batch again if it had not committed it, on
    the same state and the same offsets, so the same records are written again, with the same
    numbers (`lmerge-seq`): whoever reads the topic has each once, bags among them (case R4).

Who owns what
    The checkpoint belongs to one process at a time. The output topic is made when it is missing.

What happens on a crash
    Before `plan.json` is there, nothing has been written. Afterwards, as above.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from lmerge_service.elements import INFINITY
from lmerge_service.errors import LMergeError
from lmerge_service.formats.headers import SEQ_HEADER, incarnation_headers
from lmerge_service.queries import logical
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.elements import kafka_records, kafka_sink
from lmerge_service.spark.io.places import ReadTopics, WrittenTopic, located
from lmerge_service.spark.queries.compiling import StagesQuery, records
from lmerge_service.spark.queries.identity import PlanIdentity, PlanReplica, identify_plan
from lmerge_service.spark.queries.native import check_native, native_records
from lmerge_service.spark.queries.stages import stages

__all__ = ("PlanBatch", "follow_plan", "start_plan")

_STATE: Final = "spark.sql.streaming.stateStore"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True, slots=True)
class PlanBatch:
    """What a micro-batch came to, all partitions together."""

    number: int
    facts: int
    refused: int
    """Records that are no facts, or have no time."""
    late: int
    records: int
    """Written."""
    stable: int
    """Of the output's partition that is the least far."""
    watermark: int
    """Up to when all that counts is known; INFINITY: the facts have ended."""
    kept: int
    """Entries of state."""
    seconds: float

    @property
    def ended(self) -> bool:
        return self.stable == INFINITY


def start_plan(
    spark: SparkSession, replica: PlanReplica
) -> tuple[PlanIdentity, StreamingQuery | None]:
    """Starts a replica, or lets it go on; no query: it has ended already.

    Raises:
        ConfigurationError: Spark can't run the plan, a topic is missing, or the checkpoint is
            another replica's.
        TransportError: Kafka cannot be reached, or refuses.
        StateError: the checkpoint cannot be read.
    """
    if replica.native:  # which of the query's plans makes no difference
        replica = replace(replica, plan=PhysicalPlan(check_native(replica.query)))
    plan = replica.plan
    stages(plan, replica.columns_of)  # raises before a topic is made
    identity, ended = identify_plan(replica, spark.sparkContext.defaultParallelism)
    if ended:
        return identity, None
    session = spark.newSession()
    for name, value in {
        f"{_STATE}.providerClass": _ROCKSDB,
        f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.noDataMicroBatches.enabled": str(replica.native).lower(),
        "spark.sql.shuffle.partitions": str(identity.tasks),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    }.items():
        session.conf.set(name, value)
    query = StagesQuery(
        stages=stages(plan, replica.columns_of, divided=identity.partitions > 1),
        widths=identity.widths,
        buckets=identity.partitions,
        tasks=identity.tasks,
        headroom=logical.headroom(plan.plan),
        identity=str(replica.checkpoint.absolute()),
    )
    facts = {name: _facts(session, replica, identity, name) for name in identity.topics}
    with spark_errors(f"query {replica.name}"):
        compiled = native_records if replica.native else records
        output = compiled(query, facts)
    sink = kafka_sink(WrittenTopic(replica.kafka, replica.to))
    with spark_errors(f"writing {replica.to}"):
        writer = _written(output, identity).writeStream.format("kafka").options(**sink)
        folder = located(str(replica.checkpoint / "spark"))
        return identity, writer.option("checkpointLocation", folder).start()


def _facts(
    session: SparkSession, replica: PlanReplica, identity: PlanIdentity, name: str
) -> DataFrame:
    options = {
        "includeHeaders": "false",
        "maxOffsetsPerTrigger": str(replica.batch),
        "kafka.fetch.max.wait.ms": "50",
    }
    if identity.since is not None:
        options["startingTimestamp"] = str(identity.since)
        options["startingOffsetsByTimestampStrategy"] = "latest"
    topic = ReadTopics(replica.kafka, identity.topics[name], options=options)
    return kafka_records(session, topic, streaming=True)


def _written(output: DataFrame, identity: PlanIdentity) -> DataFrame:
    """Records for Spark's Kafka sink."""
    fixed = incarnation_headers(identity.incarnation, identity.joining_at)
    headers = [_header(name, F.lit(value.decode())) for name, value in fixed]
    headers.append(_header(SEQ_HEADER, F.col("seq").cast("string")))
    return output.select("key", "value", "partition", F.array(*headers).alias("headers"))


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


# While it runs


def follow_plan(
    query: StreamingQuery | None,
    each: Callable[[PlanBatch], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Waits until the facts have ended, or `stopped` is true, and stops the query; reports every
    batch. True: it has ended, all output is written, as it has where there is no query.

    Raises:
        TransportError: Kafka cannot be reached, or refuses.
        StateError: Spark cannot go on.
    """
    if query is None:
        return True
    done, ended = -1, False
    try:
        with spark_errors("the query"):
            while not ended and not stopped():
                if query.awaitTermination(0.1):  # type: ignore[arg-type]
                    break
                for progress in query.recentProgress:
                    if progress.batchId > done and (batch := _batch(progress)) is not None:
                        done, ended = batch.number, batch.ended
                        each(batch)
    except LMergeError:
        if not stopped():  # else Spark's Python workers got the signal to end, too
            raise
    with spark_errors("the query"):
        query.stop()
    return ended


def _batch(progress: Any) -> PlanBatch | None:
    metrics = progress.observedMetrics
    last = metrics.get("output")
    if last is None or last["stable"] is None:
        return None  # nothing had come
    facts: dict[str, Any] = {}
    for name, row in metrics.items():
        if name.startswith("facts "):  # a source that several stages read is read by each
            facts[name.split(" ", 2)[2]] = row
    stages_ = [row for name, row in metrics.items() if name.startswith("stage ")]
    return PlanBatch(
        number=progress.batchId,
        facts=sum(row["rows"] or 0 for row in facts.values()),
        refused=sum(row["refused"] or 0 for row in facts.values()),
        late=sum(row["late"] or 0 for row in [*stages_, last]),
        records=last["records"],
        stable=last["stable"],
        watermark=min(row["watermark"] for row in [*stages_, last] if "watermark" in row),
        kept=sum(row["kept"] or 0 for row in [*stages_, last] if "kept" in row),
        seconds=progress.batchDuration / 1000,
    )
