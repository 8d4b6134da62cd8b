"""A replica's metrics: its status as numbers for Prometheus, made when it is scraped.

What is not known is absent, never 0. Labels: `input` is a source of the query, `partition` one of
its topic's, or of the output. docs/operations/query-metrics.md has all of them.
"""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from lmerge_service.core import BreachKind
from lmerge_service.elements import INFINITY
from lmerge_service.http.families import Families, registry_of
from lmerge_service.queries.rows import RefusalReason
from lmerge_service.replicas.running import QueryPhase, QueryReplica
from lmerge_service.replicas.status import InputStatus, QueryStatus, Time, status_of

__all__ = ("metrics_of",)

_KINDS = ("inserts", "adjusts", "removals", "stables")
_REASONS = ("late", "duplicate", *RefusalReason)

_families = Families("lmerge_query")
_gauge, _counter = _families.gauge, _families.counter


def metrics_of(replica: QueryReplica) -> CollectorRegistry:
    """A registry that reads the replica, and the process, when it is scraped."""
    return registry_of(_Collector(replica))


def _number(time: Time) -> float | None:
    return float(INFINITY) if time == "inf" else None if time is None else float(time)


class _Collector(Collector):
    def __init__(self, replica: QueryReplica):
        self._replica = replica

    def collect(self) -> Iterator[Metric]:
        status = status_of(self._replica)
        info = {
            "version": status.version,
            "query": status.query,
            "plan": status.plan,
            "to": status.to,
        }
        yield InfoMetricFamily("lmerge_query", "What the replica is.", value=info)
        ready = status.state in (QueryPhase.RUNNING, QueryPhase.ENDED)
        yield _gauge("ready", "1 when /readyz answers 200.", (), [((), ready)])
        degraded = [((), bool(status.reasons))]
        yield _gauge("degraded", "1 when /status gives a reason to look.", (), degraded)
        yield from _input_metrics(status.inputs)
        yield from _output_metrics(status)
        yield from _state_metrics(status)
        seconds = self._replica.counts.seconds
        yield HistogramMetricFamily(
            "lmerge_query_commit_latency_seconds",
            "From a batch's read to its commit.",
            buckets=seconds.buckets(),
            sum_value=seconds.total,
        )


def _input_metrics(inputs: Sequence[InputStatus]) -> Iterator[Metric]:
    label, both = ("input",), ("input", "partition")
    each = [((one.name,), one) for one in inputs]
    parts = [((one.name, str(p.partition)), p) for one in inputs for p in one.partitions]
    records = [(labels, one.records) for labels, one in each]
    yield _counter("records", "Records read.", label, records)
    dropped = [
        ((one.name, reason), one.dropped.get(reason, 0))
        for one in inputs
        for reason in dict.fromkeys([*_REASONS, *one.dropped])
    ]
    text = "Records that are no part of the input: late, duplicate, or dead letters."
    yield _counter("dropped", text, ("input", "reason"), dropped)
    stable = [(labels, _number(one.stable)) for labels, one in each]
    yield _gauge("input_stable_point", "The watermark of facts, or a stable point.", label, stable)
    lag = [(labels, p.lag) for labels, p in parts]
    yield _gauge("lag_records", "Records that can be read and were not.", both, lag)
    reached = [(labels, _number(p.reached)) for labels, p in parts]
    yield _gauge("reached", "The highest time, or the stable point.", both, reached)
    silent = [(labels, p.holds_back) for labels, p in parts]
    text = "1 for a partition that holds its input back and has nothing to be read."
    yield _gauge("partition_holds_back", text, both, silent)
    paused = [(labels, p.paused) for labels, p in parts]
    yield _gauge("partition_paused", "1 for one that is too far ahead.", both, paused)


def _output_metrics(status: QueryStatus) -> Iterator[Metric]:
    parts = [((str(each.partition),), each) for each in status.output]
    stable = [(labels, _number(each.stable)) for labels, each in parts]
    yield _gauge("output_stable_point", "Committed.", ("partition",), stable)
    ended = [(labels, each.stable == "inf") for labels, each in parts]
    yield _gauge("output_ended", "1 when nothing more is published.", ("partition",), ended)
    kinds = [((kind,), status.published.get(kind, 0)) for kind in _KINDS]
    text = "Elements committed by this process; removals are adjusts, too."
    yield _counter("elements", text, ("kind",), kinds)
    text = "Transactions committed by this process."
    yield _counter("transactions", text, (), [((), status.transactions)])
    refused = [((kind,), status.refused.get(kind, 0)) for kind in BreachKind]
    text = "Elements of inputs that may not stand where they stand."
    yield _counter("refused_elements", text, ("kind",), refused)
    point = [((), _number(status.feedback_point))]
    yield _gauge("feedback_point", "What ends before it is left out.", (), point)


def _state_metrics(status: QueryStatus) -> Iterator[Metric]:
    held = status.held
    yield _gauge("state_entries", "Entries of state held.", (), [((), held.entries)])
    text = "Bytes of a snapshot of it, by estimate."
    yield _gauge("state_bytes", text, (), [((), held.bytes)])
    text = "With more bytes it stops."
    yield _gauge("state_max_bytes", text, (), [((), held.max_bytes)])
    taken = [((what,), held.snapshots.get(what, 0)) for what in ("taken", "failed")]
    yield _counter("snapshots", "Snapshots taken, and failed.", ("outcome",), taken)
    label = ("operator",)
    names = [(f"{at} {each.operator}",) for at, each in enumerate(status.operators)]
    operators = list(zip(names, status.operators, strict=True))
    for name, text in (
        ("taken", "Elements into an operator."),
        ("emitted", "Elements out of an operator."),
        ("adjusts", "Adjusts out of an operator."),
    ):
        samples = [(labels, getattr(each, name)) for labels, each in operators]
        yield _counter(f"operator_{name}", text, label, samples)
    entries = [(labels, each.held) for labels, each in operators]
    yield _gauge("operator_entries", "Entries that an operator holds.", label, entries)
    spent = [(labels, each.nanoseconds / 1e9) for labels, each in operators]
    yield _counter("operator_seconds", "Time spent in an operator.", label, spent)
