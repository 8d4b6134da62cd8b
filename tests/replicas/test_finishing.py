"""The end of a replica that is stopped: what it commits last, with a sink in place of Kafka."""

import asyncio
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from lmerge_service.elements import START, Insert
from lmerge_service.kafka.partitions_sink import PartitionsCommitted, PartitionsOutbox
from lmerge_service.merge.snapshots.writer import Snapshots
from lmerge_service.queries import logical
from lmerge_service.queries.physical import physical
from lmerge_service.queries.plan import facts
from lmerge_service.queries.properties import partition_columns
from lmerge_service.replicas.commit_record import (
    InputCheckpoint,
    InputPartition,
    OutputPartition,
    ReplicaCommit,
)
from lmerge_service.replicas.inputs import input_of
from lmerge_service.replicas.partitions import Partitions
from lmerge_service.replicas.recovery import Recovered
from lmerge_service.replicas.transaction import CommitCounts, ReplicaTransaction

QUERY = facts("calls", time="t", fields={"n": int}).window(10_000)
NOTHING = InputPartition(0, 0, 0)


class Sink:
    """Takes what is committed, and remembers the values of the state topic."""

    def __init__(self) -> None:
        self.state: list[bytes] = []
        self._lock = asyncio.Lock()

    async def commit(self, outbox: PartitionsOutbox) -> PartitionsCommitted:
        assert not self._lock.locked(), "one at a time"
        async with self._lock:
            await asyncio.sleep(0.001)
            self.state += [value for _, value in outbox.state]
            return PartitionsCommitted({}, len(self.state) + 1)

    @property
    def last(self) -> ReplicaCommit:
        """The last commit record."""
        return ReplicaCommit.of(self.state[-1])


class Running:
    """A replica behind its recovery, that processes records when a test has it do so."""

    def __init__(self, every: float) -> None:
        plan = physical(QUERY)
        partitions = Partitions(plan, 1, partition_columns(QUERY.plan))
        inputs = {"calls": input_of(logical.sources(QUERY.plan)["calls"], "calls", 1, 1)}
        commit = ReplicaCommit(
            query="", plan=plan.fingerprint, transaction=0, incarnation=0, joining_at=START,
            since=None, inputs={"calls": InputCheckpoint("calls", None, (NOTHING,))},
            output=(OutputPartition(0, 0, 0, START),), point=START,
        )  # fmt: skip
        self.state = Recovered(inputs, partitions, commit, [[]])
        self.sink, self.counts = Sink(), CommitCounts()
        self.snapshots = Snapshots(
            every=every, clock=asyncio.get_running_loop().time, counts=self.counts.snapshots
        )
        sink: Any = self.sink
        clock: Callable[[], float] = asyncio.get_running_loop().time
        self.transaction = ReplicaTransaction(self.state, sink, self.snapshots, self.counts, clock)
        self._numbers = count()

    def process(self, records: int) -> None:
        """Takes so many records, and puts what they come to into the outbox."""
        self.transaction.begin_batch()
        events = [Insert((n,), n, n + 1) for n in (next(self._numbers) for _ in range(records))]
        (emitted,) = self.state.partitions.process({"calls": events}, {})
        self.transaction.append(0, emitted)
        self.transaction.processed("calls", 0, events[-1].vs + 1, records)


def saved(running: Running) -> list[int]:
    """The transactions of the snapshots that the last commit record names."""
    return [each.transaction for each in running.sink.last.snapshots]


def position(running: Running) -> int:
    return running.sink.last.inputs["calls"].partitions[0].next


@pytest.mark.parametrize(("records", "snapshots"), [(9_999, 0), (10_000, 1)])
def test_a_snapshot_is_taken_at_the_end_if_much_is_behind_the_last_one(
    records: int, snapshots: int
) -> None:
    async def run() -> None:
        running = Running(every=3_600)
        running.process(records)
        await running.transaction.finish(save=True)
        assert position(running) == records
        assert len(saved(running)) == snapshots
        assert running.counts.snapshots["taken"] == snapshots

    asyncio.run(run())


def taking(running: Running) -> bool:
    """Whether a snapshot is under way."""
    return running.snapshots.is_taking


def test_one_that_has_ended_takes_none() -> None:
    async def run() -> None:
        running = Running(every=3_600)
        running.process(20_000)
        await running.transaction.finish(save=False)
        assert position(running) == 20_000
        assert saved(running) == []

    asyncio.run(run())


def test_a_snapshot_under_way_comes_first_and_is_no_reason_for_another() -> None:
    async def run() -> None:
        running = Running(every=0)
        running.process(20_000)
        await running.transaction.publish()
        assert taking(running)
        running.process(500)
        await running.transaction.finish(save=True)
        assert position(running) == 20_500
        assert running.counts.snapshots["failed"] == 0
        assert not taking(running)
        assert saved(running)[0] >= 1

    asyncio.run(run())


def test_behind_one_under_way_there_may_be_enough_for_another() -> None:
    async def run() -> None:
        running = Running(every=3_600)
        running.process(20_000)
        running.snapshots.demand()
        await running.transaction.publish()
        running.process(15_000)
        await running.transaction.finish(save=True)
        assert running.counts.snapshots["taken"] == 2
        last, first = saved(running)
        assert last > first
        assert position(running) == 35_000

    asyncio.run(run())


def test_one_that_fails_or_takes_too_long_is_given_up_and_all_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run(why: str) -> None:
        running, began = Running(every=3_600), time.monotonic()
        running.process(20_000)
        if why == "fails":
            monkeypatch.setattr(running.state.partitions.queries[0], "snapshot", _fail)
        else:
            monkeypatch.setattr("lmerge_service.replicas.transaction._SAVE_SECONDS", 0.0)
        await running.transaction.finish(save=True)
        assert position(running) == 20_000
        assert saved(running) == []
        assert time.monotonic() - began < 4, "what has failed is not waited for"
        running.snapshots.close()

    for why in ("fails", "takes too long"):
        asyncio.run(run(why))


def _fail() -> bytes:
    raise ValueError("no bytes")
