"""A replica on Spark as a process: how a plan is started, goes on after it was killed, and ends.

Theory
    The checkpoint folder holds what Spark keeps and `plan.json` (`identity`). With these a
    process that was killed goes on: Spark does the last batch again if it had not committed it, on
    the same state and the same offsets, so the same records are written again, with the same
    numbers (`lmerge-seq`): whoever reads the topic has each once, bags among them (case R4).

Who owns what
    The checkpoint belongs to one process at a time. The topics of the output and of the dead
    letters are made when they are missing.

What happens on a crash
    Before `plan.json` is there, nothing has been written. Afterwards, as above.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from lmerge_service.elements import INFINITY
from lmerge_service.errors import ConfigurationError, LMergeError
from lmerge_service.formats.feedback import feedback_topic
from lmerge_service.formats.headers import SEQ_HEADER, incarnation_headers
from lmerge_service.queries import logical
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.properties import check_native
from lmerge_service.replicas.running import dead_letter_topic
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.elements import (
    headers_of_text,
    kafka_records,
    kafka_sink,
    topic_width,
)
from lmerge_service.spark.io.places import ReadTopics, WrittenTopic, located
from lmerge_service.spark.queries.compiling import FeedbackReader, StagesQuery, records
from lmerge_service.spark.queries.held_output import held_frame, write_held
from lmerge_service.spark.queries.identity import PlanIdentity, PlanReplica, identify_plan
from lmerge_service.spark.queries.native import native_records
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
    """Records that are no facts or elements."""
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
    if replica.native and replica.feedback is not None:
        raise ConfigurationError("--native computes all windows: leave out --feedback")
    if replica.native:  # which of the query's plans makes no difference
        replica = replace(replica, plan=PhysicalPlan(check_native(replica.query)))
    plan = replica.plan
    stages(plan, replica.columns_of)  # raises before a topic is made
    session = spark.newSession()
    identity, ended = identify_plan(
        replica,
        spark.sparkContext.defaultParallelism,
        lambda folder, *of: write_held(session, replica, folder, *of),
    )
    if ended:
        return identity, None
    letters = dead_letter_topic(replica.to)
    topic_width(WrittenTopic(replica.kafka, letters))
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
        identity=f"{replica.checkpoint.absolute()} {identity.run}",
        topics=identity.topics,
        skip=identity.joining_at,
    )
    facts = {name: _facts(session, replica, identity, name) for name in identity.topics}
    with spark_errors(f"query {replica.name}"):
        if replica.native:
            output = native_records(query, facts)
        else:
            output = records(query, facts, _aside(session, replica, identity, query.keys))
    sink = kafka_sink(WrittenTopic(replica.kafka, replica.to))
    del sink["topic"]  # each record has its own
    with spark_errors(f"writing {replica.to}"):
        writer = _written(output, identity, letters).writeStream.format("kafka").options(**sink)
        folder = located(str(replica.folder(identity.run)))
        return identity, writer.option("checkpointLocation", folder).start()


def _facts(
    session: SparkSession, replica: PlanReplica, identity: PlanIdentity, name: str
) -> DataFrame:
    has_headers = isinstance(replica.sources[name], logical.Elements)
    options = {
        "includeHeaders": str(has_headers).lower(),
        "maxOffsetsPerTrigger": str(replica.batch),
        "kafka.fetch.max.wait.ms": "50",
    }
    if (since := identity.begins.get(name)) is not None:
        options["startingTimestamp"] = str(max(since, 0))  # Kafka's below are questions of its own
        options["startingOffsetsByTimestampStrategy"] = "latest"
    topic = ReadTopics(replica.kafka, identity.topics[name], options=options)
    raw = kafka_records(session, topic, streaming=True)
    return raw if has_headers else raw.withColumn("headers", F.lit(None).cast(_HEADERS))


_HEADERS: Final = "array<struct<key:string,value:binary>>"


def _aside(
    session: SparkSession, replica: PlanReplica, identity: PlanIdentity, keys: tuple[int, ...]
) -> list[DataFrame]:
    """What the buckets of the last stage get that is no input of the plan."""
    found = []
    if identity.resumed:
        found.append(held_frame(session, replica.held(identity.run), identity.incarnation, keys))
    if identity.feedback is not None:
        assert identity.replica is not None
        topic = ReadTopics(replica.kafka, feedback_topic(identity.feedback))
        reader = FeedbackReader(identity.replica, identity.feedback_id, keys)
        values = kafka_records(session, topic, streaming=True).select("value")
        found.append(values.mapInArrow(reader.chunks, "bucket int, chunk binary"))
    return found


def _written(output: DataFrame, identity: PlanIdentity, letters: str) -> DataFrame:
    """Records for Spark's Kafka sink, of the output and of dead letters."""
    fixed = incarnation_headers(identity.incarnation, identity.joining_at)
    headers = [_header(name, F.lit(value.decode())) for name, value in fixed]
    headers.append(_header(SEQ_HEADER, F.col("seq").cast("string")))
    letter, is_record = F.col("letter"), F.col("letter").isNull()
    topic = F.when(is_record, identity.to).otherwise(letters)
    whole = F.when(is_record, F.array(*headers)).otherwise(headers_of_text(letter))
    return output.select(topic.alias("topic"), "key", "value", "partition", whole.alias("headers"))


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
    rows = {name: row.asDict() for name, row in metrics.items()}
    for name, row in rows.items():
        if name.startswith("facts "):  # a source that several stages read is read by each
            facts[name.split(" ", 2)[2]] = row
    stages_ = [row for name, row in rows.items() if name.startswith("stage ")]
    stages_.append(rows["output"])

    def total(of: Iterable[Mapping[str, Any]], name: str) -> int:
        return sum(row.get(name) or 0 for row in of)

    return PlanBatch(
        number=progress.batchId,
        facts=total(facts.values(), "rows"),
        refused=total(facts.values(), "refused"),
        late=total([*facts.values(), *stages_], "late"),
        records=last["records"],
        stable=last["stable"],
        watermark=min(row["watermark"] for row in stages_ if row.get("watermark") is not None),
        kept=total([*facts.values(), *stages_], "kept"),
        seconds=progress.batchDuration / 1000,
    )
