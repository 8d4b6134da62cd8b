"""`lmerge spark-merge`: the merge of a topology as a Spark job."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lmerge_service.cli.jobs import Master, Memory, spark_for
from lmerge_service.cli.options import (
    HttpPort,
    Json,
    TopologyOptions,
    at_port,
    cluster_of,
    flag,
    option,
    warnings_only,
)
from lmerge_service.cli.words import fields_of, report
from lmerge_service.errors import ConfigurationError
from lmerge_service.signals import orderly_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmerge_service.config.topology import Topology
    from lmerge_service.spark.merge.job import BatchProgress, JobSettings

__all__ = ("spark_merge",)


def spark_merge(
    topology: TopologyOptions,
    checkpoint: str = option(
        "DIR", "Where Spark keeps its place and the state; shared by all executors."
    ),
    available_now: bool = flag("Merge what is there now, and end.", "--available-now"),
    origin: Path | None = option(
        "FILE", "Begin from a state that `lmerge state export` wrote.", "--from", default=None
    ),
    hand_over: bool = flag(
        "Merge nothing: hand the state to the service, for `lmerge run`.", "--hand-over"
    ),
    batch_records: int = option(
        "N", "Records read with one batch at the most.", min=1, default=500_000
    ),
    tasks: int | None = option(
        "N",
        "Tasks of Spark that share the output's partitions; fixed for a checkpoint. By default two "
        "for each core.",
        min=1,
        default=None,
    ),
    master: Master = None,
    driver_memory: Memory = "2g",
    http_port: HttpPort = None,
    json: Json = False,
) -> None:
    """Merge a topology's replica topics in Spark, by the same rules as `lmerge run`.

    For more than one machine can do; latency is seconds. Restart it whenever you like with the
    same --checkpoint. Each output record has a number, by which lmerge's readers leave out what
    Spark writes twice. Without --http-port there is no HTTP API.

    Example: `lmerge spark-merge topologies/flights.yaml --checkpoint flights.checkpoint`
    """
    loaded = at_port(topology.load(), http_port)
    if hand_over and (origin is not None or available_now):
        raise ConfigurationError("--hand-over goes with neither --from nor --available-now")
    warnings_only()
    session = {"master": master, "driver_memory": driver_memory}
    if hand_over:
        from lmerge_service.spark.merge.handover import last_batch

        last_batch(loaded, checkpoint)  # before a JVM is started for it
        with spark_for(f"lmerge {loaded.name}", **session) as spark:
            _hand_over(spark, loaded, checkpoint)
        return
    from lmerge_service.spark.merge.job import JobSettings

    settings = JobSettings(checkpoint, available_now, batch_records, origin, tasks)
    _merge(loaded, settings, session, serving=http_port is not None, as_json=json)


def _merge(
    topology: "Topology",
    settings: "JobSettings",
    session: dict[str, Any],
    *,
    serving: bool,
    as_json: bool,
) -> None:
    from contextlib import ExitStack
    from functools import partial

    from lmerge_service.spark.merge.job import MergeJob

    listeners: list[Callable[[BatchProgress], object]] = [partial(_report, as_json=as_json)]
    job = MergeJob(topology, settings, report=lambda batch: [each(batch) for each in listeners])
    job.open()
    with ExitStack() as stack:
        if serving:
            from lmerge_service.spark.merge.serving import Metrics, served

            metrics = Metrics()
            listeners.append(metrics.report)
            address = stack.enter_context(served(topology, job, metrics))
            typer.echo(f"HTTP at {address}", err=True)
        spark = stack.enter_context(spark_for(f"lmerge {topology.name}", **session))
        stack.enter_context(orderly_end(lambda _: job.stop.set()))
        until = "all that is there now" if settings.available_now else "until stopped"
        typer.echo(f"merging into {topology.output.topic}, {until}", err=True)
        job.run(spark)
    typer.echo(
        f"{topology.output.topic}: merged to here; continue with the same --checkpoint", err=True
    )


def _report(progress: "BatchProgress", *, as_json: bool) -> None:
    breaches: dict[str, Counter[str]] = {}
    for (replica, _, kind), count in progress.breaches.items():
        breaches.setdefault(replica, Counter())[kind] += count
    text = f"{progress.records:,} records in {progress.seconds:.2f} s"
    for replica, kinds in breaches.items():
        text += f"; breaches of {replica}: "
        text += ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    counts = fields_of(progress, "batch", "records", "seconds")
    line = f"batch {progress.batch}: {text}"
    report({**counts, "breaches": breaches}, line, as_json=as_json, err=True)


def _hand_over(spark: Any, topology: "Topology", checkpoint: str) -> None:
    import asyncio

    from lmerge_service.spark.merge.handover import hand_over, states_of

    states = states_of(spark, topology, checkpoint)
    asyncio.run(hand_over(topology, cluster_of(topology), states, checkpoint))
    typer.echo("handed over: `lmerge run` continues from here", err=True)
