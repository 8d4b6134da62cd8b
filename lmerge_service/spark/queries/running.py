"""A replica as a process: what it is, where it begins, and how it goes on after it was killed.

Theory
    The checkpoint folder holds what Spark keeps and `replica.json`, which identifies the replica.
    With it, a process that was killed goes on: Spark does the last batch again if it had not
    committed it, on the same state and the same offsets, so it emits the same again, in the
    same order (`bucket`). These repeats are the only ones: case R3 takes them, and it is the same
    incarnation still.

    Without it the replica has lost its state. It starts over, as the next incarnation if its topic
    holds an earlier one: either from the beginning of the facts, or from a time S on, as far as
    Kafka finds offsets by the records' times; then it is correct from S + memory on (`Shape`), and
    its headers have that. Which facts are late it finds as if it had read all: the first record
    that is not before S is, with all behind it, after the highest time before it. Or it resumes:
    its topic is its state (`resuming`), and the incarnation is the same.

Who owns what
    The checkpoint belongs to one process at a time. The output topic is made when it is missing.

What happens on a crash
    Before `replica.json` is there, nothing has been written. Afterwards, as above.
"""

from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from lmerge_service.errors import ConfigurationError, LMergeError
from lmerge_service.formats.feedback import feedback_topic
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.elements import kafka_sink
from lmerge_service.spark.io.places import ReadTopics, WrittenTopic, located
from lmerge_service.spark.queries.identity import (
    Identity,
    QueryReplica,
    buckets_of,
    identify,
    settings_of,
)
from lmerge_service.spark.queries.pipeline import QueryJob, records
from lmerge_service.spark.queries.plans import Batch

__all__ = ("follow", "start")

_STATE_STORE: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_HEADERS: Final = "array<struct<key:string,value:binary>>"


def start(spark: SparkSession, replica: QueryReplica) -> tuple[Identity, StreamingQuery | None]:
    """Starts the replica, or lets it go on; no query: it has ended already.

    Raises:
        ConfigurationError: there are no such facts, or the checkpoint is another replica's.
        TransportError: Kafka cannot be reached, or refuses.
        StateError: the checkpoint cannot be read.
    """
    if replica.plan not in replica.query.plans:
        plans = ", ".join(replica.query.plans)
        raise ConfigurationError(f"{replica.query.name} has no plan {replica.plan!r}: {plans}")
    identity, ended = identify(replica)
    if ended:
        return identity, None
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.providerClass", _STATE_STORE)
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    tasks = replica.query.plans[replica.plan].tasks
    session.conf.set("spark.sql.shuffle.partitions", str(min(tasks, identity.partitions)))
    output = records(session, _job(replica, identity))
    sink = kafka_sink(WrittenTopic(replica.kafka, replica.to))
    with spark_errors(f"writing {replica.to}"):
        writer = _counted(output, identity).writeStream.format("kafka").options(**sink)
        folder = located(str(replica.checkpoint / "spark"))
        return identity, writer.option("checkpointLocation", folder).start()


def _job(replica: QueryReplica, identity: Identity) -> QueryJob:
    plan = replica.query.plans[replica.plan]
    options = {
        "includeHeaders": "false",
        "maxOffsetsPerTrigger": str(replica.batch or plan.batch),
        "kafka.fetch.max.wait.ms": "50",
    }
    if identity.since is not None:
        options["startingTimestamp"] = str(identity.since)
        options["startingOffsetsByTimestampStrategy"] = "latest"
    feedback = None
    if identity.feedback is not None:
        kept = {"includeHeaders": "false", "failOnDataLoss": "false"}  # it is compacted
        feedback = ReadTopics(replica.kafka, feedback_topic(identity.feedback), options=kept)
    return QueryJob(
        query=replica.query,
        facts=ReadTopics(replica.kafka, identity.facts, options=options),
        settings=settings_of(replica, identity),
        partitions=identity.partitions,
        feedback=feedback,
        saved=buckets_of(replica, identity),
    )


def _counted(output: DataFrame, identity: Identity) -> DataFrame:
    """The records; what each batch came to is observed."""
    counts = [F.sum(name).alias(name) for name in ("late", "skipped", "kept")]
    of_batches = [
        F.min(F.when(F.col("value").isNull(), F.col(name))).alias(name)
        for name in ("mark", "point")
    ]
    observed = output.observe("output", F.count("value").alias("records"), *counts, *of_batches)
    headers = F.lit(None).cast(_HEADERS)
    if found := incarnation_headers(identity.incarnation, identity.joining_at):
        headers = F.array(
            *(
                F.struct(
                    F.lit(name).alias("key"), F.lit(value.decode()).cast("binary").alias("value")
                )
                for name, value in found
            )
        )
    written = observed.where(F.col("value").isNotNull())
    return written.select("key", "value", "partition", headers.alias("headers"))


# While it runs


def follow(
    query: StreamingQuery | None,
    each: Callable[[Batch], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Waits until the facts have ended, or `stopped` is true, and stops the query; reports every
    batch. True: it has ended, all output is written, as it has where there is no query (`start`).

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
                last = query.lastProgress
                if last is None or last.batchId <= done:
                    continue
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


def _batch(progress: Any) -> Batch | None:
    output, facts = progress.observedMetrics.get("output"), progress.observedMetrics.get("facts")
    if output is None or output["mark"] is None:
        return None  # nothing had come
    return Batch(
        number=progress.batchId,
        facts=(facts and facts["rows"]) or 0,
        refused=(facts and facts["refused"]) or 0,
        late=output["late"],
        skipped=output["skipped"],
        records=output["records"],
        watermark=output["mark"],
        point=output["point"],
        kept=output["kept"],
        seconds=progress.batchDuration / 1000,
    )
