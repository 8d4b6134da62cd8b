"""Runs the service on the Kafka in memory: the one place that knows how it is made."""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from random import Random
from typing import Any, cast
from unittest.mock import patch

import structlog

from lmerge_service.config.topology import Topology
from lmerge_service.errors import LMergeError, TransportError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.log import Log
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge import recovery, task_state
from lmerge_service.merge.commit_record import COMMIT_KEY, CommitRecord
from lmerge_service.merge.decisions import folding, reading
from lmerge_service.merge.decisions.control_log import LoggedControl
from lmerge_service.merge.decisions.folds import Fold
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.replicas import ReplicaChunk, Replicas, ReplicaState
from lmerge_service.merge.snapshots import writer as snapshots
from lmerge_service.service import task
from lmerge_service.service import worker as workers
from lmerge_service.service.reading import shared_reader
from lmerge_service.service.reading.shared_input import SharedInput, SharingTask
from lmerge_service.service.reading.shared_reader import LeadingInput, SharedReader
from lmerge_service.service.reading.shared_replay import SharedReplay
from tests.simulation.clients import MemoryCluster, MemoryLog
from tests.simulation.loop import BEGAN
from tests.simulation.memory import Broker
from tests.simulation.network import Network

__all__ = ("build", "carried_out", "control_of", "machine", "work")

_CHUNK_BYTES = 300
"""Small, so that small states are several chunks."""


class InlineWriter:
    """As `merge.snapshots.forked_writer.ForkedWriter`, without a process: it has the state as it
    was, writes it in its own time, and sometimes fails."""

    def __init__(self, stream: Iterator[bytes], chance: Random):
        self._written = b"".join(stream)
        self._chance = chance
        self._fails = chance.random() < 0.1

    async def chunks(self, size: int) -> AsyncGenerator[bytes, None]:
        whole = len(self._written)
        for start in range(0, self._chance.randrange(whole) if self._fails else whole, size):
            await asyncio.sleep(self._chance.choice([0, 0.001, 0.3]))
            yield self._written[start : start + size]

    async def is_whole(self) -> bool:
        await asyncio.sleep(self._chance.choice([0, 0.001, 0.3]))
        return not self._fails

    def close(self) -> None: ...


def join_where_it_fits(
    reader: SharedReader, task: SharingTask, state: ReplicaState
) -> LeadingInput | None:
    """As `SharedReader.join`, and checks that a replica's decoder is what the others' is."""
    assert state.step is not None
    own = state.step.decoder
    if (shared := _join(reader, task, state)) is not None:
        assert shared.next == state.next
        assert sorted(own.parts()) == sorted(shared.decoder.parts()), "decoders differ"
    return shared


def deliver_to_all(shared: SharedInput[Any], partition: int, records: Sequence[Record]) -> None:
    """As `SharedInput.deliver`, and checks that everybody stands where the others do."""
    name = shared.attachment.replica.name
    _deliver(shared, partition, records)
    for member in shared.members:
        state = member._state.replicas.states[name]
        assert state.next == shared.next, "a task stands elsewhere"
        assert state.step.decoder is shared.decoder, "a task has a decoder of its own"


def arrive_in_time(shared: SharedInput[Any], tp: TopicPartition, end: int) -> None:
    """As `SharedReplay._arrive`, and checks that no state is beyond its last commit record."""
    for member in shared.members:
        assert end <= member.targets[tp], "a standby is ahead"
    _arrive(shared, tp, end)


def keep_all(
    reader: SharedReader,
    shared: LeadingInput,
    partition: int,
    began: int,
    records: list[Record],
) -> None:
    """As `SharedReader._keep`, and checks that nothing is missing."""
    _keep(reader, shared, partition, began, records)
    shared.check()


def open_in_order(
    replicas: Replicas, tp: TopicPartition, records: Sequence[Record], *rest: Any
) -> ReplicaChunk:
    """As `Replicas.open`, and checks that no record is left out or read twice."""
    state = replicas.merging(tp)
    assert state is not None
    for broker in _brokers:
        behind, _ = broker.fetch(tp, state.next[tp.partition], len(records))
        expected = [each.offset for each in behind]
        assert [each.offset for each in records] == expected, "records are left out, or read twice"
    return _open(replicas, tp, records, *rest)


def take_fold(ledger: Ledger, fold: Fold, offset: int, *, lacks: bool) -> None:
    """As `Ledger._take_fold`, and checks that whoever has read all that it carries agrees."""
    _take_fold(ledger, fold, offset, lacks=lacks)
    assert ledger.disagrees is None, ledger.disagrees
    ledger.check()


_take_fold = Ledger._take_fold
_join, _keep, _deliver = SharedReader.join, SharedReader._keep, SharedInput.deliver
_open, _arrive = Replicas.open, SharedReplay._arrive
_brokers: list[Broker] = []
"""Of the machine that is entered."""


@contextlib.contextmanager
def machine(chance: Random, folded: Random | None = None) -> Iterator[Counter[str]]:
    """While entered, what the service would have of the machine that it runs on is chance's, or
    not there: child processes, ids, the garbage collector, which is the tests' own. Decisions are
    folded far more often than else. Counts the lines that it logs, by event."""
    logged: Counter[str] = Counter()
    folded = folded or Random(0)

    def count(_: Any, __: str, line: Mapping[str, Any]) -> str:
        logged[line["event"]] += 1
        logged["restored"] += line.get("from_snapshot_of") is not None
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[count], wrapper_class=structlog.BoundLogger)
    try:
        with (
            patch.object(task, "gc"),
            patch.object(snapshots, "ForkedWriter", lambda stream: InlineWriter(stream, chance)),
            patch.object(snapshots, "_CHUNK_BYTES", _CHUNK_BYTES),
            patch.object(SharedReader, "join", join_where_it_fits),
            patch.object(SharedReader, "_keep", keep_all),
            patch.object(SharedInput, "deliver", deliver_to_all),
            patch.object(Replicas, "open", open_in_order),
            patch.object(SharedReplay, "_arrive", staticmethod(arrive_in_time)),
            patch.object(shared_reader, "_KEPT_BYTES", chance.choice([0, 3_000, 1 << 20])),
            patch.object(shared_reader, "_FEW", chance.choice([0, 5, 1_000])),
            patch.object(snapshots, "_RECORDS", chance.choice([20, 200_000])),
            patch.object(recovery, "_FEW_RECORDS", chance.choice([-1_000, 3, 20_000])),
            patch.object(Ledger, "_take_fold", take_fold),
            patch.object(folding, "_RECORDS", folded.choice([1, 3, 6])),
            patch.object(folding, "_LOOK_SECONDS", folded.choice([(0.1, 1.0), (0.5, 5.0)])),
            patch.object(reading, "_FAR", folded.choice([0, 3, 2_000])),
            patch.object(reading, "_PIECE", folded.choice([1, 3, 1_000])),
            patch.object(task_state, "_FEW_EVENTS", folded.choice([-1, 5, 1_000])),
            patch.object(uuid, "uuid4", lambda: uuid.UUID(int=chance.getrandbits(128), version=4)),
        ):
            yield logged
    finally:
        _brokers.clear()
        structlog.configure(**before)


def build(topology: Topology, network: Network) -> workers.Worker:
    """A worker that has done nothing yet."""
    _brokers[:] = [network.broker]
    cluster = cast(Cluster, MemoryCluster(network))
    clock = asyncio.get_running_loop().time
    worker = workers.Worker(topology, cluster, unix_ns=lambda: int((BEGAN + clock()) * 10**9))
    worker.name = network.name  # the same in any process
    return worker


async def work(worker: workers.Worker) -> str:
    """From its start to its end, which never comes by itself, unless Kafka does not answer before
    the worker has any task: then it is to be started again.

    Raises:
        LMergeError: anything else that ends a worker.
    """
    try:
        await worker.run()
    except TransportError:
        if worker.members is None:
            return "away"
        raise
    raise LMergeError("a worker ended without a reason")


def control_of(topology: Topology, network: Network) -> LoggedControl:
    """A control of its own over what `topology` merges."""
    log = cast(Log, MemoryLog(network, topology.output.control_topic))
    return LoggedControl(topology, log)


def carried_out(broker: Broker, topology: Topology) -> int:
    """The version of the decisions that every task has carried out and committed."""
    topic, versions = topology.output.state_topic, []
    if broker.describe(topic) is None:
        return 0
    for partition in range(topology.output.partitions):
        mark = broker.last(TopicPartition(topic, partition), COMMIT_KEY)
        versions.append(0 if mark is None else CommitRecord.of(mark.value).decided)
    return min(versions)
