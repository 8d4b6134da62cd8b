"""Builds the status document of a worker: its tasks, its replicas, its output.

The worker's state changes only at awaits, and nothing here awaits: the document is consistent.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lmerge_service.core import Input
from lmerge_service.elements import INFINITY, START
from lmerge_service.http.cutover_view import CutoverView
from lmerge_service.merge.decoding import ReplicaDecoder
from lmerge_service.merge.replica_states import DesiredState, ReplicaPhase, seen
from lmerge_service.merge.replicas import ReplicaState
from lmerge_service.service.status.aggregate import (
    liveness_of,
    output_of_all,
    quantile_ms,
    replicas_of_all,
)
from lmerge_service.service.status.document import (
    ControlLogStatus,
    EngineStatus,
    HeldStatus,
    LogStatus,
    OpenTransactionStatus,
    OutdatedStatus,
    OutputStatus,
    ReplicaStatus,
    SnapshotStatus,
    Status,
    TableStatus,
    TaskStatus,
    WorkerState,
)
from lmerge_service.service.status.health import reasons, stalled, unreachable
from lmerge_service.service.task import MergeTask
from lmerge_service.service.task_phases import Phase, Role
from lmerge_service.service.worker import Worker

__all__ = ("readiness_of", "state_of", "status_of")

_TROUBLE_SECONDS = 600.0


def status_of(worker: Worker) -> Status:
    """A consistent status, taken between two batches."""
    held = sorted(worker.held.items())
    tasks = [
        _task(each.task, each.role, _log(worker, partition) if each.role == "leads" else None)
        for partition, each in held
    ]
    shown = [each for each in tasks if each.role == "leads"] or tasks
    state = state_of(worker)
    replicas = replicas_of_all(shown)
    whys = list(reasons(worker, state, shown, replicas))
    recoveries = [each.recovery_seconds for each in tasks if each.recovery_seconds is not None]
    return Status(
        name=worker.topology.name,
        state=state,
        health="degraded" if whys else "ok",
        reasons=[each.text for each in whys],
        reason_kinds=[each.kind for each in whys],
        version=0 if worker.control is None else worker.control.ledger.version,
        control_log=_control_log(worker),
        time_unit=worker.topology.time_unit,
        engine=_engine(worker),
        elements_in=sum(each.task.elements_in for _, each in held),
        rebuilds=sum(each.rebuilds for each in tasks),
        recovery_seconds=max(recoveries, default=None),
        cutover=_cutover(worker),
        unwritable={topic: fault.why for topic, fault in worker.outlets.faults.items()},
        recreated=dict(worker.topic_watch.recreated),
        detached=_detached(shown),
        tasks=tasks,
        output=output_of_all(worker.topology, shown, _waits(worker, shown)),
        replicas=replicas,
    )


def _engine(worker: Worker) -> EngineStatus:
    choice, tasks = worker.topology.engine_choice, [each.task for each in worker.held.values()]
    records, share = sum(each.elements_in for each in tasks), None
    if choice.is_native and records:
        share = 1 - sum(each.unusual for each in tasks) / records
    return EngineStatus(name=choice.engine.value, why=choice.why, native_share=share)


def _cutover(worker: Worker) -> CutoverView | None:
    cutover = None if worker.control is None else worker.control.ledger.cutover
    return None if cutover is None else CutoverView.of(cutover)


def _control_log(worker: Worker) -> ControlLogStatus | None:
    if worker.control is None:
        return None
    ledger, folding = worker.control.ledger, worker.folding
    return ControlLogStatus(
        read=ledger.offset, folded=ledger.folded, begins=folding.begins, deleted=folding.deleted
    )


def _detached(tasks: Sequence[TaskStatus]) -> dict[str, int]:
    """All tasks see the same records."""
    names = dict.fromkeys(name for each in tasks for name in each.detached)
    return {name: max(each.detached.get(name, 0) for each in tasks) for name in names}


def _waits(worker: Worker, tasks: Sequence[TaskStatus]) -> list[float]:
    """The latencies of these tasks' commits, ascending."""
    shown = [worker.held[each.partition].task.progress.latencies for each in tasks]
    return sorted(wait for latencies in shown for wait in latencies)


def state_of(worker: Worker) -> WorkerState:
    """The state of the worker, in one word."""
    leads = [held.task.lifecycle for held in worker.held.values() if held.role == "leads"]
    follows = [held.task.lifecycle for held in worker.held.values() if held.role == "follows"]
    if worker.stopping:
        return "stopping"
    if worker.members is None or (not leads and worker.members.assignment.generation < 0):
        return "starting"
    if not leads:
        return "standby" if all(each.has_begun for each in follows) else "starting"
    if all(each.phase is Phase.LEADING for each in leads):
        return "running"
    return "recovering" if all(each.has_begun for each in leads) else "starting"


def readiness_of(worker: Worker) -> str:
    """The state; or "unreachable" if Kafka is, "unwritable" while output or state cannot be
    written, or "stalled" while a commit takes long."""
    state = state_of(worker)
    if state not in ("running", "standby"):
        return state
    if any(True for _ in unreachable(worker)):
        return "unreachable"
    if worker.outlets.stops_output:
        return "unwritable"
    return "stalled" if any(True for _ in stalled(worker)) else state


def _task(task: MergeTask, role: Role, log: LogStatus | None) -> TaskStatus:
    progress, states = task.progress, task.replicas
    first = sum(each.tally.counts.committed["first"] for each in states)
    follows = role == "follows" and progress.caught_up is not None
    return TaskStatus(
        partition=task.partition,
        role=role,
        phase=task.phase,
        takeovers=progress.takeovers,
        rebuilds=progress.rebuilds,
        fences=progress.fences,
        recovery_seconds=progress.recovery_seconds,
        behind_seconds=_since(progress.caught_up) if follows else None,
        restored_from=task.state.restored_from,
        snapshot=_snapshot(task),
        log=log,
        table=_table(task),
        stuck=None if task.merge_loop is None else task.merge_loop.pacing.stuck,
        cutover=None if task.cutover_readiness is None else task.cutover_readiness.lacks,
        divergences=0 if task.cutover_readiness is None else task.cutover_readiness.divergences,
        findings=_findings(task),
        snapshots_taken=progress.snapshots["taken"],
        snapshots_failed=progress.snapshots["failed"],
        commit_seconds=_since(progress.committing),
        detached=dict(progress.unheeded),
        unwritten={what: progress.unwritten[what] for what in ("dead_letters", "events")},
        output=_output(task),
        replicas=[_replica(task, each, first) for each in states],
    )


def _findings(task: MergeTask) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (kind, replica), count in task.reporting.tally.shown.items():
        found.setdefault(kind, {})[replica or ""] = count
    return found


def _log(worker: Worker, partition: int) -> LogStatus | None:
    if (kept := worker.retention.kept.get(partition)) is None:
        return None
    return LogStatus(
        begins=kept.begins,
        needed=kept.needed,
        deleted=worker.retention.deleted[partition],
        held_by=kept.held_by,
        margin_seconds=kept.margin,
    )


def _table(task: MergeTask) -> TableStatus | None:
    if task.table is None:
        return None
    progress = task.progress
    return TableStatus(
        whole=progress.table_whole and task.table.is_whole,
        rows=progress.table["rows"],
        removals=progress.table["removals"],
    )


def _snapshot(task: MergeTask) -> SnapshotStatus | None:
    if not task.state.snapshots:
        return None
    latest = task.state.snapshots[0]
    return SnapshotStatus(
        transaction=latest.transaction,
        size=latest.size,
        taken_at=latest.taken / 1000,
        age_seconds=round(max(0.0, time.time() - latest.taken / 1000), 3),
        seconds=task.progress.snapshot_seconds,
    )


def _output(task: MergeTask) -> OutputStatus:
    progress, merge, change = task.progress, task.state.merge, task.leading.change
    stable, gap = progress.committed_stable, merge.gap
    ordered = sorted(progress.latencies)
    return OutputStatus(
        topic=task.topology.output.topic,
        case=merge.case,
        policy=asdict(merge.policy),
        stable_point=_point(stable),
        incarnation=task.state.begun.incarnation,
        correct_from=_point(task.state.begun.correct_from),
        ended=stable == INFINITY,
        live_events=len(merge),
        inserts=progress.published["inserts"],
        adjusts=progress.published["adjusts"],
        removals=progress.published["removals"],
        stables=progress.published["stables"],
        leader=merge.stats().leader,
        leader_since=None if change is None else change.at_ms / 1000,
        leader_before=None if change is None else change.before,
        leader_why=None if change is None else change.why,
        leader_switches=task.switches,
        transactions=progress.transactions,
        commit_ms_p50=quantile_ms(ordered, 0.50),
        commit_ms_p99=quantile_ms(ordered, 0.99),
        gap=None if gap is None else f"[{gap.start}, {gap.end}) until {gap.input} joins",
    )


def _replica(task: MergeTask, state: ReplicaState, first: int) -> ReplicaStatus:
    """`first` is of how many events some replica was the first to publish them."""
    merge = task.state.merge
    source = merge.inputs.get(state.name)
    tally, counts = state.tally, state.tally.counts.committed
    decoder = None if state.step is None else state.step.decoder
    now = asyncio.get_running_loop().time()
    return ReplicaStatus(
        name=state.name,
        topic=state.replica.topic,
        state=_state(task, state, joined=source is not None and source.joined),
        why=state.quarantined or state.excluded,
        held=_held(task, state.name, now),
        partitions=None if decoder is None else decoder.partitions,
        silent_partitions=[]
        if source is None
        else [number for number, stable in enumerate(source.stables) if stable == START],
        incarnation=None if decoder is None else decoder.incarnation,
        stable_point=None if source is None else _point(source.stable),
        ended=_has_ended(source),
        behind_output=None if source is None else _behind(source.stable, merge.max_stable),
        read_alone=task.reads_alone(state.name),
        lag_records=state.lag,
        open_transactions=_open(state, now),
        liveness=liveness_of(
            _since(tally.last_progress), _since(tally.last_record), ended=_has_ended(source)
        ),
        idle_seconds=_since(tally.last_progress),
        silent_seconds=_since(tally.last_record),
        inserts=counts["inserts"],
        adjusts=counts["adjusts"],
        stables=counts["stables"],
        delivered_first=counts["first"],
        share_first=counts["first"] / first if first else None,
        late=counts["late"],
        stale=counts["stale"],
        repeated=counts["repeated"],
        unusual=counts["unusual"],
        contradicted=counts["contradicted"],
        repeated_at=_place(tally.repeated_at),
        contradicted_at=_place(tally.contradicted_at),
        outdated=[] if decoder is None else _outdated(decoder),
        dead_letters=counts["dead"],
        lost_events=counts["lost"],
        breaches=dict(tally.breaches.committed),
        **_confirmed(task, state.name),
        in_trouble=tally.troubled is not None and now - tally.troubled < _TROUBLE_SECONDS,
    )


def _place(found: tuple[str, int] | None) -> str | None:
    return None if found is None else f"{found[0]} at offset {found[1]}"


def _outdated(decoder: ReplicaDecoder) -> list[OutdatedStatus]:
    return [
        OutdatedStatus(
            partition=partition,
            offset=run.first,
            records=run.records,
            incarnation=run.incarnation,
        )
        for partition, run in sorted(decoder.outdated.items())
        if run is not None
    ]


def _has_ended(source: Input | None) -> bool:
    return source is not None and source.stable == INFINITY


def _open(state: ReplicaState, now: float) -> list[OpenTransactionStatus]:
    return [
        OpenTransactionStatus(
            partition=each.partition,
            offset=each.offset,
            records=each.records,
            seconds=round(each.age(now), 3),
        )
        for each in (() if state.unread is None else state.unread.open)
    ]


def _confirmed(task: MergeTask, name: str) -> dict[str, Any]:
    """How far a replica has been confirmed to agree with the output."""
    known = None if task.merge_loop is None else task.merge_loop.confirmation.of(name)
    if known is None:
        return dict.fromkeys(("confirmed", "confirmed_from")) | {
            "confirmed_to_the_end": False, "disagrees": False, "left_out": 0, "unconfirmed": False,
        }  # fmt: skip
    nowhere = known.point <= known.since
    return {
        "confirmed": None if nowhere else _point(known.point),
        "confirmed_from": _point(known.since),
        "confirmed_to_the_end": not nowhere and known.point == INFINITY,
        "disagrees": known.disagrees,
        "left_out": known.left_out,
        "unconfirmed": known.is_doubtful,
    }


def _state(task: MergeTask, state: ReplicaState, *, joined: bool) -> ReplicaPhase:
    return seen(
        DesiredState.ATTACHED if state.quarantined is None else DesiredState.QUARANTINED,
        excluded=state.step is None,
        paused=task.merge_loop is not None and state.name in task.merge_loop.pacing.paused,
        joined=joined,
        left=False,
    )


def _held(task: MergeTask, name: str, now: float) -> list[HeldStatus]:
    merge_loop = task.merge_loop
    if merge_loop is None:
        return []
    return [
        HeldStatus(
            guard=each.verdict.guard,
            partition=each.place.partition,
            offset=each.place.offset,
            stable_point=None if each.verdict.vc == INFINITY else each.verdict.vc,
            seconds=round(now - each.at, 3),
            reason=each.verdict.reason,
            remedy=each.verdict.remedy,
            waits_for=merge_loop.waits_for(each),
        )
        for each in merge_loop.held(name)
    ]


def _since(clock: float | None) -> float | None:
    """How long ago that was, in seconds."""
    return None if clock is None else round(asyncio.get_running_loop().time() - clock, 3)


def _point(stable: int) -> int | None:
    return None if stable in {START, INFINITY} else stable


def _behind(stable: int, output: int) -> int | None:
    if START in {stable, output} or INFINITY in {stable, output}:
        return 0 if stable == output == INFINITY else None
    return output - stable
