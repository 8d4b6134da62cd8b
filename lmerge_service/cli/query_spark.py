"""`lmerge query spark`: a query by one of its plans, as a Spark job."""

from pathlib import Path
from typing import TYPE_CHECKING

from lmerge_service.cli.jobs import Master, Memory, spark_for
from lmerge_service.cli.options import (
    Json,
    KafkaOptions,
    check_topic,
    flag,
    option,
)
from lmerge_service.cli.planned_query import PlannedQuery
from lmerge_service.cli.query_run import (
    RESTART,
    Feedback,
    Rejoin,
    ReplicaName,
    Since,
    check_restart,
)
from lmerge_service.cli.replicas import conclude, stop_on_sigterm
from lmerge_service.cli.words import finite, point, report
from lmerge_service.elements import START

if TYPE_CHECKING:
    from lmerge_service.spark.queries.identity import PlanIdentity
    from lmerge_service.spark.queries.running import PlanBatch

__all__ = ("spark",)


def spark(
    planned: PlannedQuery,
    native: bool = flag(
        "Let Spark's own aggregation compute it: counts, sums, min and max in windows of a grid.",
        "--native",
    ),
    feedback: Feedback = None,
    name: ReplicaName = None,
    checkpoint: Path | None = option(
        "FOLDER",
        "What a restart goes on from; without it the replica starts over. By default "
        "replicas/TOPIC in $LMERGE_HOME, else in ~/.local/state/lmerge.",
        default=None,
        panel=RESTART,
    ),
    since: Since = None,
    rejoin: Rejoin = False,
    resume: bool = flag(
        "When the checkpoint is lost, or of another plan, go on from what --to holds: its own "
        "output, or a jumpstart's beginning.",
        "--resume",
        panel=RESTART,
    ),
    batch: int = option("N", "Facts per micro-batch, at the most.", min=1, default=100_000),
    tasks: int | None = option(
        "N",
        "Into how many tasks the output's partitions are divided.",
        min=1,
        default=None,
        show_default="one per core",
    ),
    master: Master = None,
    driver_memory: Memory = "1g",
    as_json: Json = False,
    *,
    kafka: KafkaOptions,
) -> None:
    """Run a query by one of its plans on Spark: from topics of facts to a topic of elements.

    Ends with its inputs, or on SIGTERM. Restart it whenever you like, kill -9 included: it goes on
    from its checkpoint, and what it writes twice has the same `lmerge-seq`, so that readers have it
    once.

    Example: `lmerge query spark flights.py:delays --plan 2 --to delays.c`
    """
    from lmerge_service.local.broker import default_directory
    from lmerge_service.queries.properties import partition_columns
    from lmerge_service.spark.queries.identity import PlanReplica
    from lmerge_service.spark.queries.running import follow_plan, start_plan

    check_restart(since=since, rejoin=rejoin, resume=resume)
    query, to = planned.target.query(), planned.to
    topics = planned.topics(query)
    for each in (to, *topics.values(), *([feedback] if feedback else [])):
        check_topic(each)
    replica = PlanReplica(
        name=planned.target.target,
        query=query.plan,
        plan=planned.physical(query),
        columns_of=partition_columns,
        kafka=kafka.place(),
        to=to,
        checkpoint=checkpoint or default_directory("replicas") / to,
        topics=topics,
        partitions=planned.partitions,
        tasks=tasks,
        since=since,
        rejoin=rejoin,
        resume=resume,
        feedback=feedback,
        replica=name,
        batch=batch,
        native=native,
    )
    session = {"master": master, "driver_memory": driver_memory}
    with spark_for(f"query {to}", **session) as started, stop_on_sigterm() as stopped:
        if (file := Path(planned.target.place)).suffix == ".py":
            started.sparkContext.addPyFile(str(file))  # workers call the functions that it defines
        identity, running = start_plan(started, replica)
        _introduce(planned, identity, as_json=as_json)
        ended = follow_plan(running, lambda each: _report(each, as_json=as_json), stopped)
        conclude(to, ended, as_json=as_json)


def _introduce(planned: PlannedQuery, identity: "PlanIdentity", *, as_json: bool) -> None:
    import msgspec

    document = msgspec.to_builtins(identity) | {"joining_at": finite(identity.joining_at)}
    read = ", ".join(identity.topics.values())
    text = f"{planned.target.target}, plan {planned.plan} ({identity.engine}), "
    text += f"from {read} to {identity.to}, incarnation {identity.incarnation}"
    if identity.resumed:
        text += ", by what that held"
    if identity.joining_at != START:
        text += f", correct from {identity.joining_at} on"
    report({"replica": document}, text, as_json=as_json, err=True)


def _report(batch: "PlanBatch", *, as_json: bool) -> None:
    from dataclasses import asdict

    document = asdict(batch) | {
        "stable": finite(batch.stable),
        "watermark": finite(batch.watermark),
        "ended": batch.ended,
    }
    refused = f", {batch.refused:,} are no facts" if batch.refused else ""
    line = (
        f"batch {batch.number}: {batch.facts:,} facts ({batch.late:,} late{refused}), "
        f"{batch.records:,} records; stable {point(batch.stable)}; {batch.seconds:.1f} s"
    )
    report({"batch": document}, line, as_json=as_json, err=True)
