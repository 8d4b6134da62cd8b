"""The HTTP side of a merge in Spark: deciding, health, and metrics, from the driver.

Theory
    The routes below /v1 are the worker's (`http.api`), over the same control log, so that
    `lmerge attach`, `lmerge decisions` and all clients of a worker work with a job. The replica
    states of a worker's status are in Spark's executors here, so there is no /status.

Who owns what
    `served` owns a thread with an event loop of its own, since the driver's thread waits for
    Spark; on it the control log is followed, and HTTP served. What it reports of the job it reads
    from the job, which changes on the driver's thread, one field at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import product
from typing import Final

from anyio.from_thread import start_blocking_portal
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lmerge_service.config.topology import Topology
from lmerge_service.core import BreachKind
from lmerge_service.http.access import Access
from lmerge_service.http.guarded import guarded
from lmerge_service.http.server import serve
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import connection_of
from lmerge_service.merge.decisions.control_log import LoggedControl
from lmerge_service.spark.merge.job import BatchProgress, MergeJob

__all__ = ("Metrics", "served")

_BUCKETS: Final = (0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class Metrics:
    """What batches took; the job calls `report`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._records = Counter(
            "lmerge_spark_records", "Records read, by batches that are through.",
            registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "lmerge_spark_batch_seconds", "From a batch's start to its commit.",
            buckets=_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._behind = Gauge(
            "lmerge_spark_behind_records", "Records that were there and not in the last batch.",
            ["topic"], registry=self.registry,
        )  # fmt: skip
        self._ended = Gauge(
            "lmerge_spark_last_batch_timestamp_seconds", "When the last batch was through.",
            registry=self.registry,
        )  # fmt: skip
        self._breaches = Counter(
            "lmerge_replica_breaches", "What the replica did wrong.",
            ["replica", "partition", "kind"], registry=self.registry,
        )  # fmt: skip

    def register(self, topology: Topology, job: MergeJob) -> None:
        """Adds the metrics of a job's replicas, from its start on."""
        names = [each.name for each in topology.replicas]
        for labels in product(names, range(topology.output.partitions), BreachKind):
            self._breaches.labels(*labels)
        self.registry.register(_Excluded(names, job))

    def report(self, progress: BatchProgress) -> None:
        """A batch is through."""
        self._records.inc(progress.records)
        self._seconds.observe(progress.seconds)
        self._ended.set_to_current_time()
        self._behind.clear()
        for topic, records in progress.behind.items():
            self._behind.labels(topic).set(records)
        for labels, count in progress.breaches.items():
            self._breaches.labels(*labels).inc(count)


class _Excluded(Collector):
    """Which replicas are excluded now."""

    def __init__(self, names: Sequence[str], job: MergeJob) -> None:
        self._names, self._job = names, job

    def collect(self) -> Iterator[Metric]:
        text = "1 when the replica's topic has lost records that were not merged."
        found = GaugeMetricFamily("lmerge_spark_replica_excluded", text, labels=["replica"])
        excluded = self._job.excluded
        for name in sorted({*self._names, *excluded}):
            found.add_metric([name], name in excluded)
        yield found


@contextmanager
def served(topology: Topology, job: MergeJob, metrics: Metrics) -> Iterator[str]:
    """Serves at the topology's `http` until left; yields the address.

    Raises:
        ConfigurationError, TransportError: as `LoggedControl` does.
        EnvironmentMissingError: the port is taken, or a certificate cannot be read.
    """
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_served(topology, job, metrics)) as address,
    ):
        yield address


@asynccontextmanager
async def _served(topology: Topology, job: MergeJob, metrics: Metrics) -> AsyncIterator[str]:
    metrics.register(topology, job)
    log = Cluster(connection_of(topology.kafka)).log(topology.output.control_topic)
    async with LoggedControl(topology, log) as control:
        app = guarded(
            Access(topology.http),
            metrics.registry,
            lambda: control,
            reasons=lambda: [
                *(each for each in (job.trouble, control.unreachable) if each),
                *(f"replica {name} is excluded: {why}" for name, why in job.excluded.items()),
            ],
            state=lambda: "running" if job.merging else "starting",
        )
        following = asyncio.create_task(control.run(), name="decisions")
        try:
            async with serve(app, topology.http) as address:
                yield address
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
