"""The worker's metrics: the status as numbers for Prometheus, made when it is scraped.

What is not known is absent, never 0; what can occur and has not is there as 0. Kinds of one
family are disjoint, so that they may be added up. Seconds are seconds; times of the streams are
there in the topology's unit, and as Unix time in seconds where that unit defines one.

Labels: `partition` is the task's, the output partition; `replica` the replica's name in the
topology. Both together label what is known of replicas, unless that would be over `MOST_ROWS`: then
`partition` is empty there, and each replica is as all tasks of the worker see it.
docs/operations/metrics.md has all of them, and tests hold it to what a scrape gives.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import TypeAlias, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from lmerge_service.core import BreachKind
from lmerge_service.http.families import Families, Samples, registry_of
from lmerge_service.merge.decisions.cutover import CutoverState
from lmerge_service.merge.decisions.ledger import RefusalKind
from lmerge_service.merge.feedback import FeedbackOut
from lmerge_service.merge.findings.evidence import NotificationKind
from lmerge_service.merge.guards.verdicts import Guard
from lmerge_service.merge.replica_states import ReplicaPhase
from lmerge_service.service.status.bounds import MOST_ROWS, as_one_task
from lmerge_service.service.status.build import readiness_of, status_of
from lmerge_service.service.status.document import (
    ControlLogStatus,
    OutputStatus,
    ReasonKind,
    ReplicaStatus,
    Status,
    TaskStatus,
    WorkerState,
)
from lmerge_service.service.task_phases import Phase
from lmerge_service.service.worker import Worker

__all__ = ("metrics_of",)

_Replicas: TypeAlias = Sequence[tuple[tuple[str, str], ReplicaStatus]]
"""What each task sees of each replica, with the labels of that."""
_Tasks: TypeAlias = Sequence[tuple[tuple[str], TaskStatus]]

_families = Families("lmerge")
_gauge, _counter = _families.gauge, _families.counter

_TASK = ("partition",)
_REPLICA = ("replica", "partition")


def metrics_of(worker: Worker, feedback: FeedbackOut) -> CollectorRegistry:
    """A registry that reads the worker, its feedback to replicas, and the process when it is
    scraped."""
    return registry_of(_Collector(worker, feedback))


class _Collector(Collector):
    """Makes Prometheus families of the status at each scrape."""

    def __init__(self, worker: Worker, feedback: FeedbackOut):
        self._worker = worker
        self._feedback = feedback
        self._version = version("lmerge-service")

    def collect(self) -> Iterator[Metric]:
        worker, status = self._worker, status_of(self._worker)
        unit = worker.topology.unit_nanoseconds
        tasks = [((str(each.partition),), each) for each in status.tasks]
        seen = _seen(worker, status, tasks)
        statuses = [((each.name, *label), each) for label, task in seen for each in task.replicas]
        yield _build(status, self._version)
        yield from _worker_metrics(worker, status)
        yield from _reached(worker, self._feedback)
        yield from _decision_metrics(worker)
        yield from _control_log_metrics(worker, status.control_log)
        yield from _task_metrics(tasks)
        yield _commits(worker)
        yield from _output_metrics(tasks, unit)
        yield from _snapshot_metrics(tasks)
        yield from _log_metrics(tasks)
        yield from _table_metrics(tasks)
        yield from _replica_metrics(statuses, seen, unit)
        yield from _merge_loop_metrics(tasks, seen, statuses)


def _seen(worker: Worker, status: Status, tasks: _Tasks) -> _Tasks:
    """Whose replicas are shown, with the value of `partition`: the tasks, or all as one."""
    if worker.topology.output.partitions * len(status.replicas) <= MOST_ROWS:
        return tasks
    one = as_one_task(status)
    return [] if one is None else [(("",), one)]


def _one_of(label: tuple[str, ...], all_values: Iterable[str], value: str) -> Samples:
    """1 for the value that there is, and 0 for the others."""
    return (((*label, each), each == value) for each in all_values)


# --- the worker -----------------------------------------------------------------------------------


def _build(status: Status, version: str) -> Metric:
    policy = ", ".join(f"{part}={value}" for part, value in status.output.policy.items())
    info = {"version": version, "case": status.output.case, "policy": policy}
    info["engine"] = status.engine.name
    return InfoMetricFamily("lmerge_build", "Of the program, and how it merges.", value=info)


def _worker_metrics(worker: Worker, status: Status) -> Iterator[Metric]:
    ready = readiness_of(worker) in ("running", "standby")
    yield _gauge("ready", "1 when /readyz answers 200.", (), [((), ready)])
    share = [((), status.engine.native_share)]
    yield _gauge("native_share", "Of merged records, what the engine decoded.", (), share)
    states = _one_of((), get_args(WorkerState), status.state)
    yield _gauge("worker_state", "1 for the state that the worker is in.", ("state",), states)
    degraded = [((), status.health == "degraded")]
    yield _gauge("degraded", "1 when /status gives a reason to look.", (), degraded)
    reasons = (((kind,), status.reason_kinds.count(kind)) for kind in ReasonKind)
    yield _gauge("health_reasons", "Reasons to look, by kind.", ("kind",), reasons)
    topics = (((name,), name in status.unwritable) for name in worker.topology.output.own_topics)
    text = "1 while a topic of the merge cannot be written."
    yield _gauge("topic_unwritable", text, ("topic",), topics)
    recreated = (((name,), worker.topic_watch.recreated[name]) for name in worker.outlets.side)
    text = "Topics for dead letters and evidence that were created again."
    yield _counter("topics_recreated", text, ("topic",), recreated)
    group = None if worker.members is None else worker.members.assignment.generation
    known = [((), group if group is not None and group >= 0 else None)]
    yield _gauge("group_generation", "Rises whenever the workers share tasks again.", (), known)


def _reached(worker: Worker, feedback: FeedbackOut) -> Iterator[Metric]:
    clients: list[tuple[str, list[str | None]]] = [
        ("topics", [held.task.progress.unreachable for held in worker.held.values()]),
        ("decisions", [] if worker.control is None else [worker.control.unreachable]),
        ("group", [] if worker.members is None else [worker.members.unreachable]),
        ("feedback", [feedback.unreachable]),
    ]
    text = "1 while Kafka answers those that read and write topics, decisions, …"
    samples = (((what,), not any(whys)) for what, whys in clients if whys)
    yield _gauge("kafka_reachable", text, ("what",), samples)
    sent = [((), feedback.published)]
    yield _counter("feedback_records", "Feedback that was sent to replicas.", (), sent)


def _decision_metrics(worker: Worker) -> Iterator[Metric]:
    ledgers = [] if worker.control is None else [worker.control.ledger]
    version = (((), each.version) for each in ledgers)
    yield _gauge("decisions_version", "Version of what is decided.", (), version)
    text = "Decisions of the control log that were refused, by why."
    refused = (((kind,), each.refused[kind]) for each in ledgers for kind in get_args(RefusalKind))
    yield _counter("decisions_refused", text, ("kind",), refused)
    cutovers = [each.cutover for each in ledgers]
    now = ["" if each is None else each.state.value for each in cutovers]
    states = [x for state in now for x in _one_of((), CutoverState, state)]
    text = "1 for the state that the latest cutover is in."
    yield _gauge("cutover_state", text, ("state",), states)
    text = "Records of the control log that are no decisions."
    yield _counter("decisions_unreadable", text, (), (((), each.unreadable) for each in ledgers))


def _control_log_metrics(worker: Worker, shown: ControlLogStatus | None) -> Iterator[Metric]:
    logs = [] if shown is None else [shown]
    begins = (((), each.begins) for each in logs)
    yield _gauge("control_log_start_offset", "The first that there is.", (), begins)
    folded = (((), each.folded or 0) for each in logs)
    text = "Of the latest fold that holds, from which on a start reads; 0: there is none."
    yield _gauge("control_fold_offset", text, (), folded)
    read = (((), each.read) for each in logs)
    yield _gauge("control_log_end_offset", "Behind the last record that was read.", (), read)
    folds = [((), worker.folding.folds)]
    yield _counter("control_folds", "Folds that this worker has written.", (), folds)
    text = "Offsets of the control log that this worker has deleted (output.keep)."
    yield _counter("control_deleted_offsets", text, (), [((), worker.folding.deleted)])


# --- tasks ----------------------------------------------------------------------------------------


def _task_metrics(tasks: _Tasks) -> Iterator[Metric]:
    leads = ((label, each.role == "leads") for label, each in tasks)
    yield _gauge("task_leads", "1 if led here, 0 if followed.", _TASK, leads)
    phases = (
        sample for label, each in tasks for sample in _one_of(label, tuple(Phase), each.phase)
    )
    yield _gauge("task_phase", "1 for the phase that the task is in.", (*_TASK, "phase"), phases)
    takeovers = ((label, each.takeovers) for label, each in tasks)
    yield _counter("takeovers", "Times that this worker began to lead.", _TASK, takeovers)
    rebuilds = ((label, each.rebuilds) for label, each in tasks)
    yield _counter("rebuilds", "Recoveries after Kafka had failed us.", _TASK, rebuilds)
    fences = ((label, each.fences) for label, each in tasks)
    yield _counter("fences", "Commits refused: another producer had taken over.", _TASK, fences)
    seconds = ((label, each.recovery_seconds) for label, each in tasks)
    text = "How long it took the last time until the task was led."
    yield _gauge("recovery_duration_seconds", text, _TASK, seconds)
    behind = ((label, each.behind_seconds) for label, each in tasks)
    diverged = ((label, each.divergences) for label, each in tasks)
    text = "Contradictions to the output since the latest cutover began."
    yield _gauge("cutover_divergences", text, _TASK, diverged)
    text = "Whatever was committed so long ago is known to who follows."
    yield _gauge("standby_behind_seconds", text, _TASK, behind)
    stalled = ((label, each.commit_seconds or 0.0) for label, each in tasks)
    text = "How long the commit has taken that is under way; 0: none is."
    yield _gauge("commit_under_way_seconds", text, _TASK, stalled)
    unwritten = (
        ((*label, what), count) for label, each in tasks for what, count in each.unwritten.items()
    )
    text = "Dead letters and evidence left out, since their topic could not be written."
    yield _counter("unwritten_records", text, (*_TASK, "what"), unwritten)
    live = ((label, each.output.live_events) for label, each in tasks)
    yield _gauge("live_events", "Events that are not fully frozen.", _TASK, live)


def _commits(worker: Worker) -> Metric:
    text = "From reading a batch to its commit."
    family = HistogramMetricFamily("lmerge_commit_latency_seconds", text, labels=_TASK)
    for partition, held in sorted(worker.held.items()):
        commits = held.task.progress.commits
        family.add_metric([str(partition)], commits.buckets(), commits.total)
    return family


def _output_metrics(tasks: _Tasks, unit: int | None) -> Iterator[Metric]:
    outputs = [(label, each.output) for label, each in tasks]
    kinds = ((*_TASK, "kind"), [x for label, each in outputs for x in _emitted(label, each)])
    yield _counter("output_elements", "Elements published and committed.", *kinds)
    transactions = ((label, each.transactions) for label, each in outputs)
    yield _counter("transactions", "Transactions committed.", _TASK, transactions)
    switches = ((label, each.leader_switches) for label, each in outputs)
    yield _counter("leader_switches", "Changes of the leading replica.", _TASK, switches)
    since = ((label, each.leader_since) for label, each in outputs)
    text = "When the leading replica changed last, as Unix time."
    yield _gauge("leader_since_timestamp_seconds", text, _TASK, since)
    points = [(label, each.stable_point) for label, each in outputs]
    yield _gauge("output_stable_point", "As committed, in the topology's unit.", _TASK, points)
    text = "The same as Unix time."
    yield _gauge("output_stable_timestamp_seconds", text, _TASK, _in_seconds(points, unit))
    incarnation = ((label, each.incarnation) for label, each in outputs)
    text = "How often the output has started over."
    yield _gauge("output_incarnation", text, _TASK, incarnation)
    ended = ((label, each.ended) for label, each in outputs)
    yield _gauge("output_ended", "1 when the output is complete.", _TASK, ended)
    gap = ((label, each.gap is not None) for label, each in outputs)
    yield _gauge("output_gap", "1 while the output waits at a gap.", _TASK, gap)


def _emitted(label: tuple[str, ...], output: OutputStatus) -> Samples:
    yield (*label, "insert"), output.inserts
    yield (*label, "adjust"), output.adjusts - output.removals
    yield (*label, "removal"), output.removals
    yield (*label, "stable"), output.stables


def _in_seconds(samples: Samples, unit: int | None) -> Samples:
    """Times of the streams in seconds, if their unit is one of time."""
    for label, number in samples if unit else ():
        yield label, None if number is None else number * (unit or 0) / 1e9


def _log_metrics(tasks: _Tasks) -> Iterator[Metric]:
    logs = [(label, each.log) for label, each in tasks if each.log is not None]
    begins = ((label, each.begins) for label, each in logs)
    yield _gauge("output_log_start_offset", "The first that there is.", _TASK, begins)
    needed = ((label, each.needed) for label, each in logs)
    text = "From where on a recovery by the older of two snapshots reads the output."
    yield _gauge("output_needed_offset", text, _TASK, needed)
    deleted = ((label, each.deleted) for label, each in logs)
    text = "Offsets of the output that this worker has deleted."
    yield _counter("output_deleted_offsets", text, _TASK, deleted)
    held = ((label, each.held_by is not None) for label, each in logs)
    text = "1 while older records than output.keep are kept for a snapshot or a reader."
    yield _gauge("output_held_back", text, _TASK, held)
    margin = (
        (label, math.inf if each.margin_seconds is None else each.margin_seconds)
        for label, each in logs
    )
    text = "For how long workers may be down until the output lacks what a snapshot needs."
    yield _gauge("output_recovery_margin_seconds", text, _TASK, margin)


def _table_metrics(tasks: _Tasks) -> Iterator[Metric]:
    tables = [(label, each.table) for label, each in tasks if each.table is not None]
    whole = ((label, each.whole) for label, each in tables)
    text = "1 while the output's table has all events that are live."
    yield _gauge("table_whole", text, _TASK, whole)
    written = (
        sample
        for label, each in tables
        for sample in (((*label, "row"), each.rows), ((*label, "removal"), each.removals))
    )
    yield _counter("table_records", "Committed to the table.", (*_TASK, "kind"), written)


def _snapshot_metrics(tasks: _Tasks) -> Iterator[Metric]:
    outcomes = (
        sample
        for label, each in tasks
        for sample in (
            ((*label, "taken"), each.snapshots_taken),
            ((*label, "failed"), each.snapshots_failed),
        )
    )
    text = "Snapshots that this worker has taken, or failed to take."
    yield _counter("snapshots", text, (*_TASK, "outcome"), outcomes)
    latest = [(label, each.snapshot) for label, each in tasks if each.snapshot is not None]
    taken = ((label, each.taken_at) for label, each in latest)
    yield _gauge("snapshot_timestamp_seconds", "When the latest was taken.", _TASK, taken)
    size = ((label, each.size) for label, each in latest)
    yield _gauge("snapshot_size_bytes", "Of the latest.", _TASK, size)
    seconds = ((label, each.seconds) for label, each in latest)
    text = "How long the last one took that this worker has taken."
    yield _gauge("snapshot_duration_seconds", text, _TASK, seconds)


# --- replicas -------------------------------------------------------------------------------------

_COUNTERS: Sequence[tuple[str, str, Callable[[ReplicaStatus], float]]] = (
    (
        "delivered_first",
        "Events that this replica delivered before any other.",
        lambda each: each.delivered_first,
    ),
    ("late_elements", "Elements about what was final already.", lambda each: each.late),
    ("stale_records", "Records of a replaced incarnation.", lambda each: each.stale),
    ("repeated_records", "Records that were written before.", lambda each: each.repeated),
    (
        "unusual_records",
        "Records that the native engine has left to Python.",
        lambda each: each.unusual,
    ),
    (
        "contradicted_records",
        "Records that are other ones than were read under their numbers.",
        lambda each: each.contradicted,
    ),
    ("dead_letters", "Records that are not elements.", lambda each: each.dead_letters),
    (
        "lost_events",
        "Events that others have and the output lacks, since its stable came first.",
        lambda each: each.lost_events,
    ),
    (
        "left_out_events",
        "Events of the output that its stables passed without it having them.",
        lambda each: each.left_out,
    ),
)
_GAUGES: Sequence[tuple[str, str, Callable[[ReplicaStatus], float | None]]] = (
    ("ended", "1 when the replica is complete.", lambda each: each.ended),
    (
        "disagrees",
        "1 once it has contradicted the output, until it starts over.",
        lambda each: each.disagrees,
    ),
    (
        "unconfirmed",
        "1 while it passes events of the output without repeating them.",
        lambda each: each.unconfirmed,
    ),
    (
        "read_alone",
        "1 while the task reads it apart from the worker's other tasks.",
        lambda each: each.read_alone,
    ),
    ("lag_records", "Records of its topic that are not read yet.", lambda each: each.lag_records),
    (
        "open_transaction_seconds",
        "How long its oldest open transaction is known to be open; 0: none is.",
        lambda each: (
            None
            if each.lag_records is None
            else max((open_.seconds for open_ in each.open_transactions), default=0.0)
        ),
    ),
    ("idle_seconds", "Since it made progress last.", lambda each: each.idle_seconds),
    ("silent_seconds", "Since its last record was read.", lambda each: each.silent_seconds),
    ("incarnation", "Its life that counts.", lambda each: each.incarnation),
    ("partitions", "Of its topic.", lambda each: each.partitions),
    (
        "outdated_records",
        "The latest records of its partitions, of an older incarnation behind a newer one.",
        lambda each: sum(run.records for run in each.outdated),
    ),
    (
        "silent_partitions",
        "Partitions that never sent a stable.",
        lambda each: None if each.partitions is None else len(each.silent_partitions),
    ),
)


def _replica_metrics(statuses: _Replicas, tasks: _Tasks, unit: int | None) -> Iterator[Metric]:
    for name, text, number in _COUNTERS:
        yield _counter(f"replica_{name}", text, _REPLICA, _each(statuses, number))
    for name, text, known in _GAUGES:
        yield _gauge(f"replica_{name}", text, _REPLICA, _each(statuses, known))
    yield from _replica_points(statuses, unit)
    unheeded = (
        ((name, *label), each.detached.get(name, 0))
        for label, each in tasks
        for name in dict.fromkeys([*(known.name for known in each.replicas), *each.detached])
    )
    text = "Records that a replica's topic has got since it was detached."
    yield _counter("detached_records", text, _REPLICA, unheeded)
    kinds = (*_REPLICA, "kind")
    received = [x for label, each in statuses for x in _received(label, each)]
    yield _counter("replica_elements", "Elements received.", kinds, received)
    breaches = (
        ((*label, kind), each.breaches.get(kind, 0))
        for label, each in statuses
        for kind in BreachKind
    )
    yield _counter("replica_breaches", "What the replica did wrong.", kinds, breaches)
    states = (x for label, each in statuses for x in _one_of(label, ReplicaPhase, each.state))
    text = "1 for the state that the replica is in."
    yield _gauge("replica_state", text, (*_REPLICA, "state"), states)
    leaders = {label: each.output.leader for label, each in tasks}
    leads = ((label, each.name == leaders[label[1:]]) for label, each in statuses)
    text = "1 for the replica whose stable moved the output last."
    yield _gauge("replica_leads", text, _REPLICA, leads)


def _replica_points(statuses: _Replicas, unit: int | None) -> Iterator[Metric]:
    points = list(_each(statuses, lambda each: each.stable_point))
    behind = list(_each(statuses, lambda each: each.behind_output))
    text = "Of its slowest partition, in the topology's unit."
    yield _gauge("replica_stable_point", text, _REPLICA, points)
    text = "The same as Unix time."
    yield _gauge("replica_stable_timestamp_seconds", text, _REPLICA, _in_seconds(points, unit))
    confirmed = list(_each(statuses, lambda each: each.confirmed))
    text = "Up to where it agrees with the output, in the topology's unit."
    yield _gauge("replica_confirmed_point", text, _REPLICA, confirmed)
    text = "The same as Unix time."
    seconds = _in_seconds(confirmed, unit)
    yield _gauge("replica_confirmed_timestamp_seconds", text, _REPLICA, seconds)
    text = "How far it is behind the output, in the topology's unit; below 0: ahead."
    yield _gauge("replica_behind_output", text, _REPLICA, behind)
    text = "The same in seconds."
    yield _gauge("replica_behind_output_seconds", text, _REPLICA, _in_seconds(behind, unit))


def _each(statuses: _Replicas, number: Callable[[ReplicaStatus], float | None]) -> Samples:
    return ((label, number(each)) for label, each in statuses)


def _received(label: tuple[str, ...], replica: ReplicaStatus) -> Samples:
    yield (*label, "insert"), replica.inserts
    yield (*label, "adjust"), replica.adjusts
    yield (*label, "stable"), replica.stables


# --- guards and flow control ----------------------------------------------------------------------


_ABOUT_NONE = (NotificationKind.STUCK, NotificationKind.REBUILD)


def _merge_loop_metrics(tasks: _Tasks, seen: _Tasks, statuses: _Replicas) -> Iterator[Metric]:
    held = _each(statuses, lambda each: len(each.held))
    yield _gauge("replica_held", "Partitions whose stable a guard holds.", _REPLICA, held)
    paused = _each(statuses, lambda each: each.state is ReplicaPhase.PAUSED)
    yield _gauge("flow_paused", "1 while flow control does not read it on.", _REPLICA, paused)
    stuck = ((label, each.stuck is not None) for label, each in tasks)
    yield _gauge("flow_stuck", "1 while too much is live for anything to move.", _TASK, stuck)
    findings = {label: each.findings for label, each in (*tasks, *seen)}
    found = [
        ((guard, *label), findings[label[1:]].get(guard, {}).get(each.name, 0))
        for label, each in statuses
        for guard in Guard
    ]
    yield _counter("guard_findings", "What guards have found.", ("guard", *_REPLICA), found)
    about = [*(label for label, _ in statuses), *(("", *label) for label, _ in tasks)]
    notified = [
        ((kind, *label), findings[label[1:]].get(kind, {}).get(label[0], 0))
        for label in about
        for kind in NotificationKind
        if (kind in _ABOUT_NONE) == (label[0] == "")
    ]
    text = "Other notifications in the events topic; replica is empty where it is about none."
    yield _counter("notifications", text, ("kind", *_REPLICA), notified)
