"""The status document: what a worker shows of itself.

Unknown is not zero: what the worker does not know is null. Health is *degraded* when redundancy
is lost though output flows. `build` fills the document in.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from pydantic import BaseModel

from lmerge_service.http.cutover_view import CutoverView
from lmerge_service.merge.replica_states import ReplicaPhase
from lmerge_service.service.task_phases import Phase, Role

__all__ = (
    "AttentionReason",
    "ControlLogStatus",
    "EngineStatus",
    "HeldStatus",
    "LogStatus",
    "OpenTransactionStatus",
    "OutdatedStatus",
    "OutputStatus",
    "ReasonKind",
    "ReplicaActivity",
    "ReplicaStatus",
    "SnapshotStatus",
    "Status",
    "TableStatus",
    "TaskStatus",
    "WorkerState",
)

Health: TypeAlias = Literal["ok", "degraded"]
WorkerState: TypeAlias = Literal["starting", "running", "recovering", "standby", "stopping"]


class HeldStatus(BaseModel):
    """A stable that a guard holds: what is behind it in its partition waits."""

    guard: str
    partition: int
    """Of the replica's topic."""
    offset: int
    stable_point: int | None
    """Its time; None: it ends the replica."""
    seconds: float
    """For how long."""
    reason: str
    remedy: str
    waits_for: list[str]
    """The replicas that may still publish something before it, each with why."""


class OpenTransactionStatus(BaseModel):
    """A transaction of a replica's writer: what is in it, and behind it in its partition, is not
    merged before it has ended."""

    partition: int
    """Of the replica's topic."""
    offset: int
    """Of its first record."""
    records: int
    """Records and markers that cannot be read."""
    seconds: float
    """For how long it is open, since it was first seen."""


class ReplicaActivity(StrEnum):
    """Whether a replica brings anything new; the values never change."""

    PROGRESSING = "progressing"
    """A stable of it has risen, or it has published what it had not before, within a minute."""
    NOT_PROGRESSING = "not progressing"
    """Records of it were read within a minute, and none for a minute was news: repeats,
    duplicates, elements about what is final, records of a replaced incarnation or no elements."""
    SILENT = "silent"
    """No record of it was read for a minute."""


class ReasonKind(StrEnum):
    """Kinds of reasons for degraded health; the values are labels of metrics and never change."""

    NOT_RUNNING = "not_running"
    """The worker starts, recovers or stops."""
    KAFKA_UNREACHABLE = "kafka_unreachable"
    EXCLUDED = "excluded"
    """A replica cannot be merged."""
    QUARANTINED = "quarantined"
    HELD_STABLE = "held_stable"
    """A guard has held a replica's stable for some seconds."""
    STUCK = "stuck"
    """Too many events are live, and no replica that is read can change that."""
    SILENT_PARTITIONS = "silent_partitions"
    """Some partitions of a replica have sent a stable, and others never did."""
    OPEN_TRANSACTION = "open_transaction"
    """A replica's transaction is open for long, and what is behind it cannot be read."""
    NOT_PROGRESSING = "not_progressing"
    """A replica is read, and has brought nothing new for a minute."""
    DEAD_LETTERS = "dead_letters"
    """A replica has sent what is no element, within the last ten minutes."""
    DISAGREES = "disagrees"
    """A replica contradicts the output: it is no redundancy."""
    UNCONFIRMED = "unconfirmed"
    """A replica passes what the output has without repeating it: it is no redundancy."""
    BREACHES = "breaches"
    """A replica has broken a rule, within the last ten minutes."""
    STALE = "stale"
    """All that a replica sends, or what it has sent last in a partition, is of an incarnation that
    was replaced."""
    NUMBERING = "numbering"
    """Records of a replica contradict what was read under their numbers, within the last ten
    minutes."""
    REDUNDANCY_LOST = "redundancy_lost"
    """Fewer than two replicas have made progress within the last minute."""
    GAP = "gap"
    """No joined replica covers a range of time, and the output waits."""
    NOTHING_MOVES = "nothing_moves"
    """Too few replicas are joined for the quorum."""
    LOST_EVENTS = "lost_events"
    """A replica's stable came before events that another one has, within the last ten minutes."""
    UNWRITABLE_TOPIC = "unwritable_topic"
    """A topic of the merge cannot be written."""
    COMMIT_STALLED = "commit_stalled"
    """A commit has been under way for some seconds."""
    RETENTION = "retention"
    """The output is, or soon may be, kept for too short for a recovery, or cannot be trimmed; or
    the decisions cannot be folded or trimmed."""
    NOT_WRITTEN = "not_written"
    """Dead letters or evidence were left out, within the last ten minutes."""


@dataclass(frozen=True, slots=True)
class AttentionReason:
    """Why somebody should look."""

    kind: ReasonKind
    text: str


class OutdatedStatus(BaseModel):
    """Records of an incarnation that was replaced, behind the newer one's: they are left out."""

    partition: int
    offset: int
    """Of the first."""
    records: int
    incarnation: int


class ReplicaStatus(BaseModel):
    """One replica, as the merge sees it; counts are of this process."""

    name: str
    topic: str
    state: ReplicaPhase
    why: str | None
    """Why it is excluded, or in quarantine."""
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
    read_alone: bool | None
    """The task reads it by itself, and not together with the worker's other tasks; null where it is
    not led."""
    lag_records: int | None
    """Records and markers of its topic that are not merged, those of open transactions included."""
    open_transactions: list[OpenTransactionStatus]
    liveness: ReplicaActivity | None
    """Null where nothing was read of it yet, and once it has ended."""
    idle_seconds: float | None
    """Since it made progress last (before it has made any: since its first record was read)."""
    silent_seconds: float | None
    """Since its last record was read, whatever it was."""
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
    repeated: int
    """Records that their writer had written before, by their `lmerge-seq`."""
    repeated_at: str | None = None
    """Where the last of them is: topic, partition and offset."""
    unusual: int
    """Records that the native engine has left to Python: they are merged all the same."""
    contradicted: int
    """Records that are other ones than were read under their `lmerge-seq`: they were merged."""
    contradicted_at: str | None
    """Where the last of them is: topic, partition and offset."""
    outdated: list[OutdatedStatus]
    """Partitions whose latest records are of an older incarnation, behind the one that counts."""
    dead_letters: int
    lost_events: int
    """Events that others have and the output lacks, since this replica's stable came first."""
    breaches: dict[str, int]
    confirmed: int | None
    """Up to where it has been found to agree with the output; null: nowhere yet, or to the end."""
    confirmed_from: int | None
    """Since when; null: from its beginning."""
    confirmed_to_the_end: bool
    disagrees: bool
    """It contradicts the output; nothing more is confirmed until it starts over."""
    left_out: int
    """Events of the output that its stables have passed without it having them."""
    unconfirmed: bool
    """It has left out events, and has not repeated enough since."""
    in_trouble: bool
    """It broke a rule, contradicted its own numbers, or sent what is no element, within the last
    ten minutes."""


class OutputStatus(BaseModel):
    """The merged stream."""

    topic: str
    case: str
    """R0 to R4, as merged; `auto` is resolved."""
    policy: dict[str, str]
    stable_point: int | None
    """As committed: what readers can rely on."""
    incarnation: int
    """How often the output has started over."""
    correct_from: int | None
    """It has every event that ends at this time or later; null: every event."""
    ended: bool
    live_events: int
    inserts: int
    adjusts: int
    removals: int
    stables: int
    leader: str | None
    leader_since: float | None
    """Unix time in seconds of the last change of leader that this process has seen."""
    leader_before: str | None
    """The leader until then; null: none, as far as this process knows."""
    leader_why: str | None
    """The stable that made it lead, and why the one before does not."""
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


class LogStatus(BaseModel):
    """What there is of a task's output partition, and what it is needed for; looked up now and
    then."""

    begins: int
    """The first offset that there is."""
    needed: int
    """A recovery by the older of two snapshots reads from here on; 0: it needs everything."""
    deleted: int
    """How many offsets this process has deleted (`output.keep`)."""
    held_by: str | None
    """What keeps records that are older than `output.keep` from being deleted."""
    margin_seconds: float | None
    """For how long all workers may be down until Kafka has deleted what the older snapshot needs;
    null: for ever."""


class ControlLogStatus(BaseModel):
    """The control log, as this worker has read it."""

    read: int
    """The offset behind the last record that was read."""
    folded: int | None
    """The offset of the latest fold that holds: a start reads from there on; null: there is none
    yet."""
    begins: int | None
    """The first offset that there is; null where task 0 is not led, and until it was looked up."""
    deleted: int
    """How many offsets this process has deleted (`output.keep`)."""


class TableStatus(BaseModel):
    """What a task has written to its partition of the output's table."""

    whole: bool
    """It has all events that are live; false while it is filled, or cannot be written."""
    rows: int
    """How many this process has written."""
    removals: int
    """How many tombstones."""


class TaskStatus(BaseModel):
    """One output partition, as this worker leads or follows it."""

    partition: int
    role: Role
    phase: Phase
    takeovers: int
    """How often this process has begun to lead it."""
    rebuilds: int
    fences: int
    """How often another producer had taken the output over while this process led."""
    recovery_seconds: float | None
    """How long it took the last time until it was led from here; null: it never was."""
    behind_seconds: float | None
    """Of a task that is followed: whatever was committed so long ago is in its state."""
    restored_from: int | None
    """The transaction whose snapshot the state was rebuilt from; null: from the beginning."""
    snapshot: SnapshotStatus | None
    log: LogStatus | None
    """Null where the task is not led, and until it was looked up."""
    table: TableStatus | None
    """Null where the task is not led, or its output has no table."""
    stuck: str | None
    """Why nothing moves: too many events are live, and no replica that is read can change that."""
    cutover: str | None
    """Why the task is not ready for the cutover that runs; null while it is, while none runs, and
    where it is followed."""
    divergences: int
    """Contradictions to the output that it has seen since the latest cutover began."""
    findings: dict[str, dict[str, int]]
    """By kind (docs/operations.md, "Guards") and replica ("" where it is about none): how often
    something was found or reported, in this process."""
    snapshots_taken: int
    snapshots_failed: int
    commit_seconds: float | None
    """How long the commit has taken that is under way; null: none is."""
    unwritten: dict[str, int]
    """`dead_letters` and `events` that were left out of commits, since their topic could not be
    written."""
    detached: dict[str, int]
    """Of each replica that is detached, how many records its topic has got since: nobody merges
    them."""
    output: OutputStatus
    replicas: list[ReplicaStatus]
    """As this task sees them; empty where `rows_left_out` counts them."""


class EngineStatus(BaseModel):
    """What merges."""

    name: Literal["python", "native"]
    why: str
    native_share: float | None = None
    """Of the records that this process has merged, the share that the engine decoded and did not
    leave to Python; null while there are none, and where Python merges."""


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
    control_log: ControlLogStatus | None
    """Null until Kafka has been reached."""
    time_unit: Literal["ns", "us", "ms", "s", "none"]
    """What stable points and other times of the streams count since 1970, by the topology."""
    engine: EngineStatus
    elements_in: int
    rebuilds: int
    recovery_seconds: float | None
    """The longest of the tasks'."""
    cutover: CutoverView | None
    """The latest one, whether it runs or has ended."""
    unwritable: dict[str, str]
    """Topics of the merge that cannot be written, and why."""
    recreated: dict[str, int]
    """Side topics that this worker has created again after they were deleted, and how often."""
    detached: dict[str, int]
    """Of each replica that is detached, how many records its topic has got since, as far as this
    process has seen."""
    rows_left_out: int = 0
    """So many replicas of tasks are not shown, since they are too many for one document: ask for
    `/status?partition=0` or `/status?replica=a`."""
    tasks: list[TaskStatus]
    output: OutputStatus
    """Of all tasks that this worker leads, or else follows."""
    replicas: list[ReplicaStatus]
    """Aggregated over these tasks."""
