"""Why a worker's health is degraded: each reason in words for people, and of a kind for alerts."""

import asyncio
from collections.abc import Iterator, Sequence

from lmerge_service.merge.replica_states import ReplicaPhase
from lmerge_service.service.status.document import (
    AttentionReason,
    OpenTransactionStatus,
    ReasonKind,
    ReplicaActivity,
    ReplicaStatus,
    TaskStatus,
    WorkerState,
)
from lmerge_service.service.worker import Worker

__all__ = ("reasons", "stalled", "unreachable")

_STALLED_SECONDS = 5.0
_LATELY_SECONDS = 600.0
_HELD_SECONDS = 5.0
"""An honest early end is held for less than this where the others end as well."""


def reasons(
    worker: Worker,
    state: WorkerState,
    tasks: Sequence[TaskStatus],
    replicas: Sequence[ReplicaStatus],
) -> Iterator[AttentionReason]:
    """Why somebody should look, as these tasks and replicas of a worker are now."""
    if state not in ("running", "standby"):
        yield AttentionReason(ReasonKind.NOT_RUNNING, f"the worker is {state}")
    yield from unreachable(worker)
    for topic, fault in worker.outlets.faults.items():
        yield AttentionReason(
            ReasonKind.UNWRITABLE_TOPIC, f"topic {topic} of the merge {fault.why}"
        )
    yield from stalled(worker)
    yield from _left_out(worker)
    for text in worker.retention.too_short():
        yield AttentionReason(ReasonKind.RETENTION, text)
    yield from _unfolded(worker)
    yield from _lost(worker)
    for stuck in dict.fromkeys(each.stuck for each in tasks if each.stuck is not None):
        yield AttentionReason(ReasonKind.STUCK, stuck)
    for each in replicas:
        yield from _reasons_of(each, worker.topology.guards.open_transaction_seconds)
    if state != "running":
        return
    moving = [each for each in replicas if each.ended or _is_moving(each)]
    if len(replicas) > 1 and len(moving) < 2:
        text = f"redundancy is lost: {len(moving)} of {len(replicas)} replicas are moving"
        text += _still(replicas)
        yield AttentionReason(ReasonKind.REDUNDANCY_LOST, text)
    voters = worker.held[tasks[0].partition].task.state.policy.voters
    joined = sum(each.state is ReplicaPhase.JOINED for each in replicas)
    if any(each.output.gap is not None for each in tasks):
        yield AttentionReason(
            ReasonKind.GAP, "a gap: of the replicas that are joined too few are left"
        )
    elif joined < voters:
        text = f"nothing moves: {joined} replicas are joined, and {voters} must be"
        yield AttentionReason(ReasonKind.NOTHING_MOVES, text)


def stalled(worker: Worker) -> Iterator[AttentionReason]:
    """Commits that take long."""
    now = asyncio.get_running_loop().time()
    for partition, held in sorted(worker.held.items()):
        since = held.task.progress.committing
        if since is not None and now - since > _STALLED_SECONDS:
            text = f"a commit of task {partition} has been under way for {now - since:.0f} s"
            yield AttentionReason(ReasonKind.COMMIT_STALLED, text)


def _unfolded(worker: Worker) -> Iterator[AttentionReason]:
    """Why the control log grows on."""
    differs = None if worker.control is None else worker.control.ledger.disagrees
    for why in dict.fromkeys((worker.folding.fault, differs)):
        if why is not None:
            text = f"the decisions cannot be folded: {why}"
            yield AttentionReason(ReasonKind.RETENTION, text)


def _lost(worker: Worker) -> Iterator[AttentionReason]:
    """What the output lacks though a replica has it, by what was found within the last minutes."""
    now = asyncio.get_running_loop().time()
    for held in worker.held.values():
        progress = held.task.progress
        if progress.lost_at is not None and now - progress.lost_at < _LATELY_SECONDS:
            yield AttentionReason(ReasonKind.LOST_EVENTS, f"events are lost: {progress.loss}")


def _left_out(worker: Worker) -> Iterator[AttentionReason]:
    """What the output went on without, within the last minutes."""
    now = asyncio.get_running_loop().time()
    output = worker.topology.output
    topics = {"dead_letters": output.dead_letter_topic, "events": output.events_topic}
    lately = [
        held.task.progress
        for held in worker.held.values()
        if held.task.progress.left_out is not None
        and now - held.task.progress.left_out < _LATELY_SECONDS
    ]
    for what, topic in topics.items():
        if count := sum(each.unwritten[what] for each in lately):
            named = what.replace("_", " ")
            text = f"not written to {topic}: {count} {named}; the output went on without them"
            yield AttentionReason(ReasonKind.NOT_WRITTEN, text)


def _still(replicas: Sequence[ReplicaStatus]) -> str:
    """Which are not, and whether they are silent."""
    still = (ReplicaActivity.NOT_PROGRESSING, ReplicaActivity.SILENT)
    words = [
        f"{each.name} is {each.liveness} for {each.idle_seconds:.0f} s"
        for each in replicas
        if each.liveness in still and not each.ended
    ]
    return f" ({', '.join(words)})" if words else ""


def unreachable(worker: Worker) -> Iterator[AttentionReason]:
    """What of Kafka does not answer."""
    whys = [held.task.progress.unreachable for held in worker.held.values()]
    if worker.control is not None:
        whys.append(worker.control.unreachable)
    if worker.members is not None:
        whys.append(worker.members.unreachable)
    for why in dict.fromkeys(why for why in whys if why is not None):
        yield AttentionReason(ReasonKind.KAFKA_UNREACHABLE, f"Kafka does not answer: {why}")


def _reasons_of(replica: ReplicaStatus, open_after: float) -> Iterator[AttentionReason]:
    """What is wrong with one replica now, or was within the last minutes."""
    for kind, text in _wrong_with(replica, open_after):
        yield AttentionReason(kind, f"replica {replica.name}: {text}")


def _of_open(transaction: OpenTransactionStatus) -> str:
    return (
        f"a transaction is open at partition {transaction.partition}, offset {transaction.offset} "
        f"for {transaction.seconds:.0f} s, and {transaction.records:,} records cannot be read: "
        "wait for its writer, or abort it (`kafka-transactions.sh abort`)"
    )


def _wrong_with(replica: ReplicaStatus, open_after: float) -> Iterator[tuple[ReasonKind, str]]:
    if replica.state is ReplicaPhase.QUARANTINED:
        yield ReasonKind.QUARANTINED, f"in quarantine: {replica.why or 'no reason was given'}"
    elif replica.why:
        yield ReasonKind.EXCLUDED, replica.why
    for held in replica.held:
        if held.seconds > _HELD_SECONDS:
            where = f"partition {held.partition}, offset {held.offset}"
            waits = f"; it waits for {', '.join(held.waits_for)}" if held.waits_for else ""
            text = f"{held.guard} holds it at {where}: {held.reason}{waits}; {held.remedy}"
            yield ReasonKind.HELD_STABLE, text
    for open_ in replica.open_transactions:
        if 0 < open_after <= open_.seconds:
            yield ReasonKind.OPEN_TRANSACTION, _of_open(open_)
    if replica.liveness is ReplicaActivity.NOT_PROGRESSING:
        text = (
            f"it is not progressing: nothing new for {replica.idle_seconds:.0f} s, though the last "
            f"record was read {replica.silent_seconds:.0f} s ago"
        )
        yield ReasonKind.NOT_PROGRESSING, text
    some = replica.partitions is not None and len(replica.silent_partitions) < replica.partitions
    if some and replica.silent_partitions:
        text = f"partitions {replica.silent_partitions} never sent a stable, and hold it back"
        yield ReasonKind.SILENT_PARTITIONS, text
    if replica.in_trouble and replica.dead_letters:
        yield ReasonKind.DEAD_LETTERS, f"{replica.dead_letters} records are not elements"
    if replica.in_trouble and replica.breaches:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(replica.breaches.items()))
        yield ReasonKind.BREACHES, f"breaches: {kinds}"
    if replica.disagrees:
        yield ReasonKind.DISAGREES, f"it contradicts the output; {_confirmed(replica)}"
    elif replica.unconfirmed:
        text = f"its stables have passed {replica.left_out} events of the output that it lacks"
        yield ReasonKind.UNCONFIRMED, f"{text}; {_confirmed(replica)}"
    received = replica.inserts + replica.adjusts + replica.stables
    if replica.stale and not received:
        text = f"all it sends ({replica.stale} records) is of an older incarnation"
        yield ReasonKind.STALE, text
    for run in replica.outdated:
        text = (
            f"the latest {run.records} records of partition {run.partition}, from offset "
            f"{run.offset} on, are of incarnation {run.incarnation}, which {replica.incarnation} "
            "has replaced: they are left out"
        )
        yield ReasonKind.STALE, text
    if replica.in_trouble and replica.contradicted:
        text = (
            f"{replica.contradicted} records are other ones than were read under their numbers, "
            f"the last in {replica.contradicted_at}: a second writer, or one that counts again"
        )
        yield ReasonKind.NUMBERING, text


def _confirmed(replica: ReplicaStatus) -> str:
    if replica.confirmed is None:
        return "confirmed nowhere, it is no redundancy"
    return f"confirmed up to {replica.confirmed} only, it is no redundancy beyond"


def _is_moving(replica: ReplicaStatus) -> bool:
    merged = replica.state not in (ReplicaPhase.EXCLUDED, ReplicaPhase.QUARANTINED)
    return merged and replica.liveness is ReplicaActivity.PROGRESSING
