"""The worker's metrics: the status as numbers for Prometheus, made when it is scraped.

What is not known is absent. Labels: `partition` is the task's, the output partition; `replica`
the replica's name in the topology.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lmerge_service.service.status import Status, TaskStatus, status_of
from lmerge_service.service.verdicts import Guard
from lmerge_service.service.worker import Worker

__all__ = ("metrics_of",)


class _Collector:
    """Makes Prometheus families of the status at each scrape."""

    def __init__(self, worker: Worker):
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        status = status_of(self._worker)
        yield from _worker_metrics(status)
        yield from _task_metrics(status.tasks)
        yield from _replica_metrics(status.tasks)
        yield from _finding_metrics(status.tasks)


def metrics_of(worker: Worker) -> CollectorRegistry:
    """A registry that reads the worker when it is scraped."""
    registry = CollectorRegistry()
    registry.register(_Collector(worker))
    return registry


def _worker_metrics(status: Status) -> Iterator[Metric]:
    up = GaugeMetricFamily("lmerge_running", "1 when the worker merges, 0 while it recovers.")
    up.add_metric([], float(status.state == "running"))
    degraded = GaugeMetricFamily("lmerge_degraded", "1 when /status gives a reason to look.")
    degraded.add_metric([], float(status.health == "degraded"))
    version = GaugeMetricFamily("lmerge_decisions_version", "Version of what is decided.")
    version.add_metric([], status.version)
    yield from (up, degraded, version)


_TASK_COUNTERS = {
    "lmerge_transactions": ("transactions", "Transactions committed."),
    "lmerge_leader_switches": ("leader_switches", "Changes of the leading replica."),
}


def _task_metrics(tasks: list[TaskStatus]) -> Iterator[Metric]:
    labels = ["partition"]
    leads = GaugeMetricFamily("lmerge_task_leads", "1 if led here, 0 if followed.", labels=labels)
    live = GaugeMetricFamily("lmerge_live_events", "Events not fully frozen.", labels=labels)
    elements = CounterMetricFamily(
        "lmerge_output_elements", "Elements published.", labels=["partition", "kind"]
    )
    stable = GaugeMetricFamily(
        "lmerge_output_stable_point", "The committed stable point, in time units.", labels=labels
    )
    rebuilds = CounterMetricFamily(
        "lmerge_rebuilds", "Recoveries after a failed commit.", labels=labels
    )
    age = GaugeMetricFamily(
        "lmerge_snapshot_age_seconds", "Since the latest snapshot was taken.", labels=labels
    )
    size = GaugeMetricFamily("lmerge_snapshot_bytes", "Of the latest snapshot.", labels=labels)
    for task in tasks:
        label = [str(task.partition)]
        leads.add_metric(label, float(task.role == "leads"))
        live.add_metric(label, task.output.live_events)
        for kind in ("inserts", "adjusts", "stables"):
            elements.add_metric([*label, kind], getattr(task.output, kind))
        if task.output.stable_point is not None:
            stable.add_metric(label, task.output.stable_point)
        rebuilds.add_metric(label, task.rebuilds)
        if task.snapshot is not None:
            age.add_metric(label, task.snapshot.age_seconds)
            size.add_metric(label, task.snapshot.size)
    yield from (leads, live, elements, stable, rebuilds, age, size)
    for name, (field, text) in _TASK_COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=labels)
        for task in tasks:
            counter.add_metric([str(task.partition)], getattr(task.output, field))
        yield counter


_REPLICA_COUNTERS = {
    "inserts": "Inserts received.",
    "adjusts": "Adjusts received.",
    "stables": "Stables received.",
    "delivered_first": "Events that this replica delivered before any other.",
    "late": "Elements about what was final already.",
    "stale": "Records of a replaced incarnation.",
    "dead_letters": "Records that are not elements.",
}
_REPLICA_GAUGES = {
    "stable_point": "The replica's stable point, in time units.",
    "lag_records": "Records in the replica's topic that are not read yet.",
    "behind_output": "How far the replica's stable point is behind the output's.",
}


def _replica_metrics(tasks: list[TaskStatus]) -> Iterator[Metric]:
    labels = ["replica", "partition"]
    views = [(each, [each.name, str(task.partition)]) for task in tasks for each in task.replicas]
    for name, text in _REPLICA_COUNTERS.items():
        counter = CounterMetricFamily(f"lmerge_replica_{name}", text, labels=labels)
        for each, label in views:
            counter.add_metric(label, getattr(each, name))
        yield counter
    for name, text in _REPLICA_GAUGES.items():
        gauge = GaugeMetricFamily(f"lmerge_replica_{name}", text, labels=labels)
        for each, label in views:
            if (value := getattr(each, name)) is not None:
                gauge.add_metric(label, value)
        yield gauge
    joined = GaugeMetricFamily("lmerge_replica_joined", "1 when joined.", labels=labels)
    paused = GaugeMetricFamily("lmerge_flow_paused", "1 while not read on.", labels=labels)
    held = GaugeMetricFamily(
        "lmerge_replica_held", "Partitions whose stable a guard holds.", labels=labels
    )
    breaches = CounterMetricFamily(
        "lmerge_replica_breaches", "What the replica did wrong.", labels=[*labels, "kind"]
    )
    for each, label in views:
        joined.add_metric(label, float(each.state == "joined"))
        paused.add_metric(label, float(each.state == "paused"))
        held.add_metric(label, len(each.held))
        for kind, count in each.breaches.items():
            breaches.add_metric([*label, kind], count)
    yield from (joined, paused, held, breaches)


def _finding_metrics(tasks: list[TaskStatus]) -> Iterator[Metric]:
    guards = CounterMetricFamily(
        "lmerge_guard_findings",
        "What guards have found.",
        labels=["guard", "replica", "partition"],
    )
    others = CounterMetricFamily(
        "lmerge_happenings", "What else has happened.", labels=["kind", "replica", "partition"]
    )
    stuck = GaugeMetricFamily(
        "lmerge_flow_stuck", "1 while too much is live for anything to move.", labels=["partition"]
    )
    for task in tasks:
        stuck.add_metric([str(task.partition)], float(task.stuck is not None))
        for kind, counts in task.findings.items():
            family = guards if kind in set(Guard) else others
            for replica, count in counts.items():
                family.add_metric([kind, replica, str(task.partition)], count)
    yield from (guards, others, stuck)
