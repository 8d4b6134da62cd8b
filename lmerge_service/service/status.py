"""What a worker shows of itself: the status document and its health.

Unknown is not zero: what the worker does not know is null. Health is *degraded* when redundancy
is lost though output flows.

A worker may have several tasks, each with its own view of the replicas. The document has each of
them, and all of them together: sums of counts, and of stable points the lowest.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from pydantic import BaseModel

from lmerge_service.elements import INFINITY, START
from lmerge_service.service.life import State, Wish, seen
from lmerge_service.service.replicas import ReplicaState
from lmerge_service.service.task import MergeTask, Phase
from lmerge_service.service.worker import Role, Worker
from lmerge_service.topology import Topology

__all__ = (
    "HeldStatus",
    "OutputStatus",
    "Reason",
    "ReasonKind",
    "ReplicaStatus",
    "SnapshotStatus",
    "Status",
    "TaskStatus",
    "WorkerState",
    "readiness_of",
    "state_of",
    "status_of",
)

Health: TypeAlias = Literal["ok", "degraded"]
WorkerState: TypeAlias = Literal["starting", "running", "recovering", "standby", "stopping"]

_IDLE_AFTER_SECONDS = 60.0
_TROUBLE_SECONDS = 600.0
_HELD_SECONDS = 5.0
"""An honest early end is held for less than this where the others end as well."""


class HeldStatus(BaseModel):
    """A stable that a guard holds: what is behind it in its partition waits."""

    guard: str
    partition: int
    """Of the replica's topic."""
    offset: int
    stable_point: int | None
    """What it says; None: that the replica has ended."""
    seconds: float
    """For how long."""
    reason: str
    remedy: str


class ReasonKind(StrEnum):
    """Kinds of reasons for degraded health; the words are labels of metrics and never change."""

    NOT_RUNNING = "not_running"
    """The worker starts, recovers or stops."""
    KAFKA_UNREACHABLE = "kafka_unreachable"
    HELD_OUT = "held_out"
    """A replica cannot be merged."""
    QUARANTINED = "quarantined"
    HELD_STABLE = "held_stable"
    """A guard has held a replica's stable for some seconds."""
    STUCK = "stuck"
    """Too much is live, and nobody who is read can change that."""
    SILENT_PARTITIONS = "silent_partitions"
    """Some partitions of a replica have sent a stable, and others never did."""
    DEAD_LETTERS = "dead_letters"
    """A replica has sent what is no element, within the last ten minutes."""
    BREACHES = "breaches"
    """A replica has broken a rule, within the last ten minutes."""
    STALE = "stale"
    """All that a replica sends is of an incarnation that was replaced."""
    REDUNDANCY_LOST = "redundancy_lost"
    """Fewer than two replicas have spoken within the last minute."""
    GAP = "gap"
    """Nobody vouches for a range of time, and the output waits."""
    NOTHING_MOVES = "nothing_moves"
    """Too few replicas are joined for the quorum."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why somebody should look."""

    kind: ReasonKind
    text: str


class ReplicaStatus(BaseModel):
    """One replica, as the merge sees it; counts are of this process."""

    name: str
    topic: str
    state: State
    why: str | None
    """Why it is held out, or in quarantine."""
    held: list[HeldStatus]
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


class SnapshotStatus(BaseModel):
    """The latest snapshot of a task."""

    transaction: int
    size: int
    """Bytes."""
    taken_at: float
    """Unix time in seconds."""
    age_seconds: float
    seconds: float | None
    """How long the last snapshot took that this process has taken; null: it has taken none."""


class TaskStatus(BaseModel):
    """One output partition, as this worker leads or follows it."""

    partition: int
    role: Role
    phase: Phase
    takeovers: int
    """How often this process has begun to lead it."""
    rebuilds: int
    recovery_seconds: float | None
    """How long it took the last time until it was led from here; null: it never was."""
    behind_seconds: float | None
    """Of a task that is followed: whatever was committed so long ago is in its state."""
    restored_from: int | None
    """The transaction whose snapshot the state was rebuilt from; null: from the beginning."""
    snapshot: SnapshotStatus | None
    stuck: str | None
    """Why nothing moves: too much is live, and nobody who is read can change that."""
    findings: dict[str, dict[str, int]]
    """By kind (docs/operations.md, "Guards") and replica ("" where it is about none): how often
    something was found or happened, in this process."""
    snapshots_taken: int
    snapshots_failed: int
    output: OutputStatus
    replicas: list[ReplicaStatus]


class Status(BaseModel):
    """The whole document of `/status`."""

    name: str
    state: WorkerState
    health: Health
    reasons: list[str]
    """Why the health is degraded."""
    reason_kinds: list[ReasonKind]
    """Of each of the reasons, in their order."""
    version: int
    """Of the decisions about the merge."""
    elements_in: int
    rebuilds: int
    recovery_seconds: float | None
    """The longest of the tasks'."""
    tasks: list[TaskStatus]
    output: OutputStatus
    """Of all tasks that this worker leads, or else follows."""
    replicas: list[ReplicaStatus]
    """As seen by these tasks together."""


def status_of(worker: Worker) -> Status:
    """A consistent view, taken between two batches."""
    held = sorted(worker.held.items())
    tasks = [_task(each.task, each.role) for _, each in held]
    shown = [each for each in tasks if each.role == "leads"] or tasks
    state = state_of(worker)
    replicas = [_together(views) for views in _by_replica(shown)]
    reasons = list(_reasons(worker, state, shown, replicas))
    recoveries = [each.recovery_seconds for each in tasks if each.recovery_seconds is not None]
    return Status(
        name=worker.topology.name,
        state=state,
        health="degraded" if reasons else "ok",
        reasons=[each.text for each in reasons],
        reason_kinds=[each.kind for each in reasons],
        version=0 if worker.control is None else worker.control.ledger.version,
        elements_in=sum(each.task.progress.elements_in for _, each in held),
        rebuilds=sum(each.rebuilds for each in tasks),
        recovery_seconds=max(recoveries, default=None),
        tasks=tasks,
        output=_all_output(worker, shown, [each.task for _, each in held]),
        replicas=replicas,
    )


def state_of(worker: Worker) -> WorkerState:
    """What the worker is at, in one word."""
    leads = [held.task.phase for held in worker.held.values() if held.role == "leads"]
    follows = [held.task.phase for held in worker.held.values() if held.role == "follows"]
    if worker.stopping:
        return "stopping"
    if worker.members is None or (not leads and worker.members.assignment.generation < 0):
        return "starting"
    if not leads:
        return "starting" if "starting" in follows else "standby"
    if all(phase == "running" for phase in leads):
        return "running"
    return "starting" if "starting" in leads else "recovering"


def readiness_of(worker: Worker) -> str:
    """The state, or "unreachable" if Kafka is."""
    state = state_of(worker)
    away = state in ("running", "standby") and any(True for _ in _unreachable(worker))
    return "unreachable" if away else state


def _task(task: MergeTask, role: Role) -> TaskStatus:
    progress = task.progress
    follows = role == "follows" and progress.caught_up is not None
    return TaskStatus(
        partition=task.partition,
        role=role,
        phase=task.phase,
        takeovers=progress.takeovers,
        rebuilds=progress.rebuilds,
        recovery_seconds=progress.recovery_seconds,
        behind_seconds=_since(progress.caught_up) if follows else None,
        restored_from=task.state.restored_from,
        snapshot=_snapshot(task),
        stuck=None if task.oversight is None else task.oversight.pacing.stuck,
        findings=_findings(task),
        snapshots_taken=progress.snapshots["taken"],
        snapshots_failed=progress.snapshots["failed"],
        output=_output(task),
        replicas=[_replica(task, each) for each in task.replicas],
    )


def _findings(task: MergeTask) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (kind, replica), count in task.reporting.tally.counts.items():
        found.setdefault(kind, {})[replica or ""] = count
    return found


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


def _since(clock: float | None) -> float | None:
    """How long ago that was, in seconds."""
    return None if clock is None else round(asyncio.get_running_loop().time() - clock, 3)


def _output(task: MergeTask) -> OutputStatus:
    progress, merge = task.progress, task.state.merge
    stable, gap = progress.committed_stable, merge.gap
    ordered = sorted(progress.latencies)
    return OutputStatus(
        topic=task.topology.output.topic,
        case=merge.case,
        policy=asdict(merge.policy),
        stable_point=_point(stable),
        ended=stable == INFINITY,
        live_events=len(merge),
        inserts=progress.published["inserts"],
        adjusts=progress.published["adjusts"],
        removals=progress.published["removals"],
        stables=progress.published["stables"],
        leader=merge.stats().leader,
        leader_switches=progress.switches,
        transactions=progress.transactions,
        commit_ms_p50=_quantile_ms(ordered, 0.50),
        commit_ms_p99=_quantile_ms(ordered, 0.99),
        gap=None if gap is None else f"[{gap.start}, {gap.end}) until {gap.input} joins",
    )


def _all_output(
    worker: Worker, shown: Sequence[TaskStatus], tasks: Sequence[MergeTask]
) -> OutputStatus:
    """The output of several tasks: sums, the lowest stable, the first gap."""
    if not shown:
        return _nothing(worker.topology)
    outputs = [each.output for each in shown]
    numbers = {each.partition for each in shown}
    waits = sorted(
        w for each in tasks if each.partition in numbers for w in each.progress.latencies
    )
    sums = (
        "live_events",
        "inserts",
        "adjusts",
        "removals",
        "stables",
        "leader_switches",
        "transactions",
    )
    points = [each.stable_point for each in outputs if not each.ended]
    leaders = {each.leader for each in outputs}
    return outputs[0].model_copy(
        update={
            **{name: sum(getattr(each, name) for each in outputs) for name in sums},
            "ended": not points,
            "stable_point": _lowest(points) if points else None,
            "leader": leaders.pop() if len(leaders) == 1 else None,
            "commit_ms_p50": _quantile_ms(waits, 0.50),
            "commit_ms_p99": _quantile_ms(waits, 0.99),
            "gap": next((each.gap for each in outputs if each.gap is not None), None),
        }
    )


def _nothing(topology: Topology) -> OutputStatus:
    """Of a worker without tasks."""
    return OutputStatus(
        topic=topology.output.topic,
        case=topology.resolved_case,
        policy=asdict(topology.policy.policy()),
        stable_point=None,
        ended=False,
        live_events=0,
        inserts=0,
        adjusts=0,
        removals=0,
        stables=0,
        leader=None,
        leader_switches=0,
        transactions=0,
        commit_ms_p50=None,
        commit_ms_p99=None,
        gap=None,
    )


def _lowest(values: Iterable[int | None]) -> int | None:
    """The lowest, or unknown when one is."""
    known = list(values)
    return None if None in known or not known else min(v for v in known if v is not None)


def _replica(task: MergeTask, state: ReplicaState) -> ReplicaStatus:
    merge = task.state.merge
    source = merge.inputs.get(state.name)
    ingest, tally, counts = state.ingest, state.tally, state.tally.counts
    first = sum(each.tally.counts["first"] for each in task.replicas)
    now = asyncio.get_running_loop().time()
    return ReplicaStatus(
        name=state.name,
        topic=state.replica.topic,
        state=_state(task, state, joined=source is not None and source.joined),
        why=state.quarantined or state.held_out,
        held=_held(task, state.name, now),
        partitions=None if ingest is None else ingest.partitions,
        silent_partitions=[]
        if source is None
        else [number for number, stable in enumerate(source.stables) if stable == START],
        incarnation=None if ingest is None else ingest.incarnation,
        stable_point=None if source is None else _point(source.stable),
        ended=source is not None and source.stable == INFINITY,
        behind_output=None if source is None else _behind(source.stable, merge.max_stable),
        lag_records=state.lag,
        idle_seconds=_since(tally.last_record),
        inserts=counts["inserts"],
        adjusts=counts["adjusts"],
        stables=counts["stables"],
        delivered_first=counts["first"],
        share_first=counts["first"] / first if first else None,
        late=counts["late"],
        stale=counts["stale"],
        dead_letters=counts["dead"],
        breaches=dict(tally.breaches),
        in_trouble=tally.troubled is not None and now - tally.troubled < _TROUBLE_SECONDS,
    )


def _state(task: MergeTask, state: ReplicaState, *, joined: bool) -> State:
    return seen(
        Wish.ATTACHED if state.quarantined is None else Wish.QUARANTINED,
        held_out=state.ingest is None,
        paused=task.oversight is not None and state.name in task.oversight.pacing.paused,
        joined=joined,
        left=False,
    )


def _held(task: MergeTask, name: str, now: float) -> list[HeldStatus]:
    findings = [] if task.oversight is None else task.oversight.held(name)
    return [
        HeldStatus(
            guard=each.verdict.guard,
            partition=each.place.partition,
            offset=each.place.offset,
            stable_point=None if each.verdict.vc == INFINITY else each.verdict.vc,
            seconds=round(now - each.at, 3),
            reason=each.verdict.reason,
            remedy=each.verdict.remedy,
        )
        for each in findings
    ]


def _by_replica(tasks: Sequence[TaskStatus]) -> Iterator[list[ReplicaStatus]]:
    """The views of each replica."""
    for name in dict.fromkeys(each.name for task in tasks for each in task.replicas):
        yield [each for task in tasks for each in task.replicas if each.name == name]


_WORST = (State.QUARANTINED, State.HELD_OUT, State.PAUSED, State.JOINING, State.JOINED)
_SUMS = (
    "inserts", "adjusts", "stables", "delivered_first", "late", "stale", "dead_letters",
)  # fmt: skip


def _together(views: Sequence[ReplicaStatus]) -> ReplicaStatus:
    """One replica as several tasks see it. All of them read the same records, so that its lag is
    the largest, and not the sum."""
    if len(views) == 1:
        return views[0]
    worst = min(views, key=lambda each: _WORST.index(each.state))
    first = [each.share_first for each in views if each.share_first is not None]
    breaches = sum((Counter(each.breaches) for each in views), Counter())
    lags = [each.lag_records for each in views]
    idle = [each.idle_seconds for each in views if each.idle_seconds is not None]
    return worst.model_copy(
        update={
            **{name: sum(getattr(each, name) for each in views) for name in _SUMS},
            "silent_partitions": sorted({p for each in views for p in each.silent_partitions}),
            "stable_point": _lowest(each.stable_point for each in views if not each.ended),
            "ended": all(each.ended for each in views),
            "lag_records": None if None in lags else max(lag for lag in lags if lag is not None),
            "idle_seconds": min(idle, default=None),
            "share_first": sum(first) / len(first) if first else None,
            "held": [held for each in views for held in each.held],
            "breaches": dict(breaches),
            "in_trouble": any(each.in_trouble for each in views),
        }
    )


def _reasons(
    worker: Worker,
    state: WorkerState,
    tasks: Sequence[TaskStatus],
    replicas: Sequence[ReplicaStatus],
) -> Iterator[Reason]:
    if state not in ("running", "standby"):
        yield Reason(ReasonKind.NOT_RUNNING, f"the worker is {state}")
    yield from _unreachable(worker)
    for stuck in dict.fromkeys(each.stuck for each in tasks if each.stuck is not None):
        yield Reason(ReasonKind.STUCK, stuck)
    for each in replicas:
        yield from _reasons_of(each)
    if state != "running":
        return
    moving = [each for each in replicas if each.ended or _is_moving(each)]
    if len(replicas) > 1 and len(moving) < 2:
        text = f"redundancy is lost: {len(moving)} of {len(replicas)} replicas are moving"
        yield Reason(ReasonKind.REDUNDANCY_LOST, text)
    voters = worker.held[tasks[0].partition].task.state.policy.voters
    joined = sum(each.state is State.JOINED for each in replicas)
    if any(each.output.gap is not None for each in tasks):
        yield Reason(ReasonKind.GAP, "a gap: of the replicas that are joined too few are left")
    elif joined < voters:
        text = f"nothing moves: {joined} replicas are joined, and {voters} must be"
        yield Reason(ReasonKind.NOTHING_MOVES, text)


def _unreachable(worker: Worker) -> Iterator[Reason]:
    whys = [held.task.progress.unreachable for held in worker.held.values()]
    if worker.control is not None:
        whys.append(worker.control.unreachable)
    if worker.members is not None:
        whys.append(worker.members.unreachable)
    for why in dict.fromkeys(why for why in whys if why is not None):
        yield Reason(ReasonKind.KAFKA_UNREACHABLE, f"Kafka does not answer: {why}")


def _reasons_of(replica: ReplicaStatus) -> Iterator[Reason]:
    """What is wrong with one replica now, or was within the last minutes."""
    for kind, text in _wrong_with(replica):
        yield Reason(kind, f"replica {replica.name}: {text}")


def _wrong_with(replica: ReplicaStatus) -> Iterator[tuple[ReasonKind, str]]:
    if replica.state is State.QUARANTINED:
        yield ReasonKind.QUARANTINED, f"in quarantine: {replica.why or 'no reason was given'}"
    elif replica.why:
        yield ReasonKind.HELD_OUT, replica.why
    for held in replica.held:
        if held.seconds > _HELD_SECONDS:
            where = f"partition {held.partition}, offset {held.offset}"
            text = f"{held.guard} holds it at {where}: {held.reason}; {held.remedy}"
            yield ReasonKind.HELD_STABLE, text
    spoken = replica.partitions is not None and len(replica.silent_partitions) < replica.partitions
    if spoken and replica.silent_partitions:
        text = f"partitions {replica.silent_partitions} never sent a stable, and hold it back"
        yield ReasonKind.SILENT_PARTITIONS, text
    if replica.in_trouble and replica.dead_letters:
        yield ReasonKind.DEAD_LETTERS, f"{replica.dead_letters} records are not elements"
    if replica.in_trouble and replica.breaches:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(replica.breaches.items()))
        yield ReasonKind.BREACHES, f"breaches: {kinds}"
    heard = replica.inserts + replica.adjusts + replica.stables
    if replica.stale and not heard:
        text = f"all it sends ({replica.stale} records) is of an older incarnation"
        yield ReasonKind.STALE, text


def _is_moving(replica: ReplicaStatus) -> bool:
    idle = replica.idle_seconds
    return (
        replica.state not in (State.HELD_OUT, State.QUARANTINED)
        and idle is not None
        and idle < _IDLE_AFTER_SECONDS
    )


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
