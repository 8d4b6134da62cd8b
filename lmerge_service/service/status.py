"""What a worker shows of itself: the status document, its health, and its metrics.

Unknown is not zero: what the worker does not know is null in the document and absent from the
metrics. Health is *degraded* when redundancy is lost though output flows.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Literal

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from pydantic import BaseModel

from lmerge_service.elements import INFINITY, START
from lmerge_service.service.replicas import ReplicaState
from lmerge_service.service.task import MergeTask

__all__ = (
    "OutputStatus",
    "ReplicaStatus",
    "StateSource",
    "Status",
    "metrics_of",
    "status_of",
)

Health = Literal["ok", "degraded"]
WorkerState = Literal["starting", "running", "recovering", "stopping"]


class ReplicaStatus(BaseModel):
    """One replica, as the merge sees it; counts are of this process."""

    name: str
    topic: str
    state: Literal["joining", "joined", "held out"]
    why: str | None
    """Why it is held out."""
    partitions: int | None
    silent_partitions: list[int]
    """Partitions that never sent a stable: each of them holds the replica back."""
    incarnation: int | None
    stable_point: int | None
    ended: bool
    """The replica has sent stable(infinity): it is complete."""
    behind_output: int | None
    """How far its stable point is behind the output's, in the topology's unit of time."""
    lag_records: int | None
    idle_seconds: float | None
    inserts: int
    adjusts: int
    stables: int
    delivered_first: int
    share_first: float | None
    """Of the output's inserts, the share that this replica delivered before any other."""
    late: int
    """Elements about what the output had made final: normal for a laggard."""
    stale: int
    """Records of an incarnation that a later one has replaced."""
    dead_letters: int
    breaches: dict[str, int]
    in_trouble: bool
    """It broke a rule, or sent what is no element, within the last ten minutes."""


class OutputStatus(BaseModel):
    """The merged stream."""

    topic: str
    case: str
    """R0 to R4, as merged; `auto` is resolved."""
    policy: dict[str, str]
    stable_point: int | None
    """As committed: what readers can rely on."""
    ended: bool
    live_events: int
    inserts: int
    adjusts: int
    removals: int
    stables: int
    leader: str | None
    leader_switches: int
    transactions: int
    commit_ms_p50: float | None
    commit_ms_p99: float | None
    gap: str | None


class Status(BaseModel):
    """The whole document of `/status`."""

    name: str
    state: WorkerState
    health: Health
    reasons: list[str]
    """Why the health is degraded."""
    elements_in: int
    rebuilds: int
    recovery_seconds: float
    output: OutputStatus
    replicas: list[ReplicaStatus]


def status_of(task: MergeTask, state: WorkerState) -> Status:
    """A consistent view, taken between two batches."""
    replicas = [_replica(task, each) for each in task.replicas.states.values()]
    reasons = _reasons(task, state, replicas)
    return Status(
        name=task.topology.name,
        state=state,
        health="degraded" if reasons else "ok",
        reasons=reasons,
        elements_in=task.progress.elements_in,
        rebuilds=task.progress.rebuilds,
        recovery_seconds=round(task.progress.recovery_seconds, 3),
        output=_output(task),
        replicas=replicas,
    )


def _output(task: MergeTask) -> OutputStatus:
    progress, gap = task.progress, task.merge.gap
    stable = progress.committed_stable
    ordered = sorted(progress.latencies)
    return OutputStatus(
        topic=task.topology.output.topic,
        case=task.merge.case,
        policy=asdict(task.merge.policy),
        stable_point=_point(stable),
        ended=stable == INFINITY,
        live_events=len(task.merge),
        inserts=progress.published["inserts"],
        adjusts=progress.published["adjusts"],
        removals=progress.published["removals"],
        stables=progress.published["stables"],
        leader=task.merge.stats().leader,
        leader_switches=progress.switches,
        transactions=progress.transactions,
        commit_ms_p50=_quantile_ms(ordered, 0.50),
        commit_ms_p99=_quantile_ms(ordered, 0.99),
        gap=None if gap is None else f"[{gap.start}, {gap.end}) until {gap.input} joins",
    )


def _replica(task: MergeTask, state: ReplicaState) -> ReplicaStatus:
    source = task.merge.inputs.get(state.replica.name)
    ingest, counts = state.ingest, state.counts
    first = sum(each.counts["first"] for each in task.replicas.states.values())
    return ReplicaStatus(
        name=state.replica.name,
        topic=state.replica.topic,
        state="held out" if source is None else "joined" if source.joined else "joining",
        why=state.held_out,
        partitions=None if ingest is None else ingest.partitions,
        silent_partitions=[]
        if source is None
        else [number for number, stable in enumerate(source.stables) if stable == START],
        incarnation=None if ingest is None else ingest.incarnation,
        stable_point=None if source is None else _point(source.stable),
        ended=source is not None and source.stable == INFINITY,
        behind_output=None if source is None else _behind(source.stable, task.merge.max_stable),
        lag_records=state.lag,
        idle_seconds=None
        if state.last_record is None
        else round(time.monotonic() - state.last_record, 3),
        inserts=counts["inserts"],
        adjusts=counts["adjusts"],
        stables=counts["stables"],
        delivered_first=counts["first"],
        share_first=counts["first"] / first if first else None,
        late=counts["late"],
        stale=counts["stale"],
        dead_letters=counts["dead"],
        breaches=dict(state.breaches),
        in_trouble=state.troubled is not None
        and time.monotonic() - state.troubled < _TROUBLE_SECONDS,
    )


def _reasons(task: MergeTask, state: WorkerState, replicas: Sequence[ReplicaStatus]) -> list[str]:
    reasons = [] if state == "running" else [f"the worker is {state}"]
    if task.progress.unreachable is not None:
        reasons.append(f"Kafka does not answer: {task.progress.unreachable}")
    for each in replicas:
        reasons += [f"replica {each.name}: {reason}" for reason in _reasons_of(each)]
    moving = [each for each in replicas if each.ended or _is_moving(each)]
    if len(replicas) > 1 and len(moving) < 2:
        reasons.append(f"redundancy is lost: {len(moving)} of {len(replicas)} replicas are moving")
    voters = task.merge.policy.voters
    joined = sum(each.state == "joined" for each in replicas)
    if task.merge.gap is not None:
        reasons.append("a gap: of the replicas that are joined too few are left")
    elif state == "running" and joined < voters:
        reasons.append(f"nothing moves: {joined} replicas are joined, and {voters} must be")
    return reasons


def _reasons_of(replica: ReplicaStatus) -> Iterator[str]:
    """What is wrong with one replica now, or was within the last minutes."""
    if replica.why:
        yield replica.why
    spoken = replica.partitions is not None and len(replica.silent_partitions) < replica.partitions
    if spoken and replica.silent_partitions:
        yield f"partitions {replica.silent_partitions} never sent a stable, and hold it back"
    if replica.in_trouble and replica.dead_letters:
        yield f"{replica.dead_letters} records are not elements"
    if replica.in_trouble and replica.breaches:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(replica.breaches.items()))
        yield f"breaches: {kinds}"
    heard = replica.inserts + replica.adjusts + replica.stables
    if replica.stale and not heard:
        yield f"all it sends ({replica.stale} records) is of an older incarnation"


_IDLE_AFTER_SECONDS = 60.0
_TROUBLE_SECONDS = 600.0


def _is_moving(replica: ReplicaStatus) -> bool:
    idle = replica.idle_seconds
    return replica.state != "held out" and idle is not None and idle < _IDLE_AFTER_SECONDS


def _point(stable: int) -> int | None:
    return None if stable in {START, INFINITY} else stable


def _behind(stable: int, output: int) -> int | None:
    if START in {stable, output} or INFINITY in {stable, output}:
        return 0 if stable == output == INFINITY else None
    return output - stable


def _quantile_ms(ordered: Sequence[float], q: float) -> float | None:
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1000, 2)


class _Collector:
    """Makes Prometheus families of the status at each scrape."""

    def __init__(self, task: MergeTask, state: "StateSource"):
        self._task = task
        self._state = state

    def collect(self) -> Iterator[Metric]:
        status = status_of(self._task, self._state())
        yield from _output_metrics(status)
        yield from _replica_metrics(status)


class StateSource:
    """Tells the state of the worker, which changes."""

    def __init__(self) -> None:
        self.state: WorkerState = "starting"

    def __call__(self) -> WorkerState:
        return self.state


def metrics_of(task: MergeTask, state: StateSource) -> CollectorRegistry:
    """A registry that reads the task when it is scraped."""
    registry = CollectorRegistry()
    registry.register(_Collector(task, state))
    return registry


def _output_metrics(status: Status) -> Iterator[Metric]:
    output = status.output
    up = GaugeMetricFamily("lmerge_running", "1 when the worker merges, 0 while it recovers.")
    up.add_metric([], float(status.state == "running"))
    degraded = GaugeMetricFamily("lmerge_degraded", "1 when /status gives a reason to look.")
    degraded.add_metric([], float(status.health == "degraded"))
    elements = CounterMetricFamily("lmerge_output_elements", "Elements published.", labels=["kind"])
    for kind in ("inserts", "adjusts", "stables"):
        elements.add_metric([kind], getattr(output, kind))
    live = GaugeMetricFamily("lmerge_live_events", "Events that are not fully frozen.")
    live.add_metric([], output.live_events)
    transactions = CounterMetricFamily("lmerge_transactions", "Transactions committed.")
    transactions.add_metric([], output.transactions)
    rebuilds = CounterMetricFamily("lmerge_rebuilds", "Recoveries after a failed commit.")
    rebuilds.add_metric([], status.rebuilds)
    switches = CounterMetricFamily("lmerge_leader_switches", "Changes of the leading replica.")
    switches.add_metric([], output.leader_switches)
    yield from (up, degraded, elements, live, transactions, rebuilds, switches)
    if output.stable_point is not None:
        stable = GaugeMetricFamily(
            "lmerge_output_stable_point", "The output's committed stable point, in time units."
        )
        stable.add_metric([], output.stable_point)
        yield stable


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


def _replica_metrics(status: Status) -> Iterator[Metric]:
    for name, text in _REPLICA_COUNTERS.items():
        counter = CounterMetricFamily(f"lmerge_replica_{name}", text, labels=["replica"])
        for each in status.replicas:
            counter.add_metric([each.name], getattr(each, name))
        yield counter
    for name, text in _REPLICA_GAUGES.items():
        gauge = GaugeMetricFamily(f"lmerge_replica_{name}", text, labels=["replica"])
        for each in status.replicas:
            if (value := getattr(each, name)) is not None:
                gauge.add_metric([each.name], value)
        yield gauge
    joined = GaugeMetricFamily("lmerge_replica_joined", "1 when joined.", labels=["replica"])
    breaches = CounterMetricFamily(
        "lmerge_replica_breaches", "What the replica did wrong.", labels=["replica", "kind"]
    )
    for each in status.replicas:
        joined.add_metric([each.name], float(each.state == "joined"))
        for kind, count in each.breaches.items():
            breaches.add_metric([each.name, kind], count)
    yield from (joined, breaches)
