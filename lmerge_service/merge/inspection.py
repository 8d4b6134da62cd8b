"""What the state topic has of a merge: each task's last commit record, and whether snapshots are
whole. Nothing is changed, and leading tasks go on meanwhile.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from lmerge_service.config.topology import Topology
from lmerge_service.errors import StateError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.commit_record import CommitRecord, SnapshotPlace
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.decisions.reading import catch_up
from lmerge_service.merge.recovery import Recovery
from lmerge_service.merge.task_state import TaskState

__all__ = ("Checked", "Inspected", "decided", "inspect", "recoveries")


@dataclass(frozen=True, slots=True)
class Checked:
    """A snapshot that a commit record names; where it was not verified, all is None."""

    place: SnapshotPlace
    damage: str | None = None
    """Why it cannot be used."""
    live_events: int | None = None
    stable: int | None = None


@dataclass(frozen=True, slots=True)
class Inspected:
    """A task's state as it is in Kafka."""

    partition: int
    commit: CommitRecord | None
    """None: nothing was ever committed."""
    snapshots: tuple[Checked, ...]
    """The latest first."""


async def inspect(
    topology: Topology, cluster: Cluster, *, verify: bool
) -> AsyncIterator[Inspected]:
    """Each task in turn; `verify` reads all snapshots, and makes operators of them.

    Raises:
        StateError: there is no state, or it is of another version.
        TransportError: Kafka cannot be reached, or refuses.
    """
    async with aclosing(recoveries(topology, cluster, everybody=True)) as found:
        async for partition, recovery in found:
            commit = await recovery.last_commit(fenced=False)
            places = () if commit is None else commit.snapshots
            checked = [
                await _checked(recovery, place) if verify else Checked(place) for place in places
            ]
            yield Inspected(partition, commit, tuple(checked))


async def recoveries(
    topology: Topology, cluster: Cluster, *, everybody: bool = False
) -> AsyncGenerator[tuple[int, Recovery], None]:
    """What recovers the state of each task, in turn, with its number; by what was decided so far.

    The replicas of a state are those that are attached, or everybody who ever was.

    Raises:
        StateError: there is no state.
        TransportError: Kafka cannot be reached, or refuses.
    """
    output = topology.output
    async with (
        cluster.topics() as topics,
        cluster.source(max_record_bytes=topology.limits.max_record_bytes) as source,
    ):
        found = await topics.describe([output.state_topic, output.control_topic])
        if output.state_topic not in found:
            raise StateError(f"there is no topic {output.state_topic}: the merge has never run")
        ledger = Ledger(topology)
        if output.control_topic in found:
            ledger = await decided(topology, cluster)
        known = ledger.replicas.values() if everybody else ledger.attached()
        replicas = {each.replica.name: each.replica for each in known}
        for partition in range(found[output.state_topic].partitions):
            recovery = Recovery(
                source,
                topics,
                output=TopicPartition(output.topic, partition),
                state=TopicPartition(output.state_topic, partition),
                fresh=lambda number=partition: _fresh(ledger.topology, number),  # type: ignore[misc]
                replicas=lambda: replicas,
            )
            yield partition, recovery


async def decided(topology: Topology, cluster: Cluster) -> Ledger:
    """What the control log, which is made if there is none, has of a merge; a snapshot is of the
    case and policy that were decided.

    Raises:
        ConfigurationError, StateError, TransportError: as `kafka.log.Log`.
    """
    ledger = Ledger(topology)
    async with cluster.log(topology.output.control_topic) as log:
        await catch_up(log, ledger)
    return ledger


def _fresh(topology: Topology, partition: int) -> TaskState:
    clock = asyncio.get_running_loop().time
    return TaskState(topology, partition, tallies={}, clock=clock)


async def _checked(recovery: Recovery, place: SnapshotPlace) -> Checked:
    try:
        state = await recovery.restored(place)
        state.merge.check()
    except (AssertionError, StateError) as error:
        return Checked(place, damage=str(error))
    return Checked(place, live_events=len(state.merge), stable=state.merge.max_stable)
