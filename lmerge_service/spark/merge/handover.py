"""From a checkpoint back to the service: its state as a snapshot that the service goes on from.

Theory
    A bucket's state is the service's, so what is stored of it makes a `TaskState` here as it does
    in a worker. A bucket lacks the positions in records that are not for it: these are in the
    checkpoint. The state goes to the merge's state topic as a snapshot with a commit record
    behind it, in transactions of the task: a worker that is started then recovers from there.

        checkpoint: head, pages, log ─▶ TaskState ─▶ OUTPUT.state ─▶ `lmerge run`
                                                   chunks, commit record

Who owns what
    The job must have ended: its last batch complete, and its checkpoint not in use.

What happens on a crash
    A task whose commit record is written is handed over, the others are not: to be run again.
    Before all are, the job may still go on instead; afterwards its checkpoint is refused.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from lmerge_service.config.topology import Topology
from lmerge_service.errors import StateError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.sink import Outbox, Sink
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.commit_record import COMMIT_KEY, SnapshotPlace, chunk_key
from lmerge_service.merge.inspection import recoveries
from lmerge_service.merge.internal_topics import largest_record
from lmerge_service.merge.state_file import rechunked
from lmerge_service.merge.task_state import TaskState
from lmerge_service.spark.merge.bucket import Bucket
from lmerge_service.spark.merge.checkpoint import committed, planned
from lmerge_service.spark.merge.keys import bucket_keys
from lmerge_service.spark.merge.plan import MergePlan, Work, work_of
from lmerge_service.spark.merge.planning import Planned
from lmerge_service.spark.merge.processor import fresh
from lmerge_service.spark.merge.stored import StoredVariables
from lmerge_service.spark.state import Stored

__all__ = ("hand_over", "last_batch", "states_of")

_AT_ONCE: Final = 32
"""Chunks in a transaction."""


def last_batch(topology: Topology, checkpoint: str) -> tuple[MergePlan, Planned]:
    """By which plan, and how far, a job that has ended has merged; needs no Spark.

    Raises:
        ConfigurationError: the checkpoint is another merge's, or was handed over.
        StateError: there is none, its last batch is not complete, or it is damaged.
    """
    plan = MergePlan.load(checkpoint, topology)
    done = committed(checkpoint)
    if plan is None or not done.next:
        raise StateError(f"{checkpoint} has no state of this merge")
    plan.require_ours(checkpoint)
    if planned(checkpoint).next != done.next:
        raise StateError(
            f"{checkpoint} has a batch that is not complete: run the job with --available-now first"
        )
    return plan, done


def states_of(spark: SparkSession, topology: Topology, checkpoint: str) -> Iterator[TaskState]:
    """The state of each bucket, as of the last batch.

    Raises:
        ConfigurationError, StateError: as `last_batch`.
    """
    plan, done = last_batch(topology, checkpoint)
    _ = spark.streams  # starts what reads state, in a session that has run no query yet
    work = work_of(topology, plan, bucket_keys(topology.output.partitions, plan.tasks))
    for number, key in enumerate(work.keys):
        yield _state(work, number, StoredVariables(spark, checkpoint, key), done.topics)


def _state(
    work: Work, number: int, variables: StoredVariables, read: Mapping[str, Mapping[int, int]]
) -> TaskState:
    stored: Stored[Bucket] = Stored(variables)
    bucket = stored.opened(None, lambda: fresh(work, number)).bucket
    state = bucket.state
    for replica in state.replicas.merged.values():
        upto = read.get(replica.replica.topic, {})
        replica.next = {n: max(at, upto.get(n, at)) for n, at in replica.next.items()}
    state.counted = state.output_records
    return state


async def hand_over(
    topology: Topology, cluster: Cluster, states: Iterator[TaskState], checkpoint: str
) -> None:
    """Writes a checkpoint's states to the state topic, from where a worker goes on, and records in
    the checkpoint that it was handed over.

    Raises:
        FencedError: a worker leads a task.
        TransportError: Kafka cannot be reached, or refuses.
    """
    by_number = {state.partition: state for state in states}
    async for partition, recovery in recoveries(topology, cluster):
        state, output = by_number[partition], TopicPartition(topology.output.topic, partition)
        async with cluster.sink(
            transactional_id=f"lmerge.{output.topic}.{partition}",
            output=output,
            dead_letters=topology.output.dead_letter_topic,
            state=TopicPartition(topology.output.state_topic, partition),
            events=topology.output.events_topic,
            max_record_bytes=largest_record(topology),
        ) as sink:
            last = await recovery.last_commit(fenced=True)
            limits = topology.limits
            async with cluster.source(max_record_bytes=limits.max_record_bytes) as source:
                state.output = (await source.high_watermarks([output]))[output]
            if last is not None:
                state.transaction = max(state.transaction, last.transaction) + 1
            used = () if last is None else last.snapshots
            slot = min(set(range(len(used) + 1)) - {each.slot for each in used})
            state.snapshots = ()
            state.snapshots = (await _snapshot(sink, state, slot),)
            await sink.commit(Outbox(state=[(COMMIT_KEY, state.commit_record().encoded())]))
    plan, _ = last_batch(topology, checkpoint)
    msgspec.structs.replace(plan, handed_over=True).save(checkpoint)


async def _snapshot(sink: Sink, state: TaskState, slot: int) -> SnapshotPlace:
    digest, size, count = hashlib.sha256(), 0, 0
    first = last = -1
    waiting: list[tuple[bytes | None, bytes]] = []

    async def commit() -> None:
        nonlocal first, last, waiting
        behind = (await sink.commit(Outbox(state=waiting))).state
        if behind is None:
            raise StateError("the broker did not report the offset of the snapshot")
        first = behind - len(waiting) if first < 0 else first
        last, waiting = behind - 1, []

    for chunk in rechunked(state.stream(state.commit_record())):
        digest.update(chunk)
        size += len(chunk)
        waiting.append((chunk_key(slot, count), chunk))
        count += 1
        if len(waiting) >= _AT_ONCE:
            await commit()
    if waiting:
        await commit()
    return SnapshotPlace(
        slot=slot,
        transaction=state.transaction,
        first=first,
        last=last,
        chunks=count,
        size=size,
        digest=digest.hexdigest(),
        taken=int(time.time() * 1000),
        output=state.output,
        records=state.counted,
    )
