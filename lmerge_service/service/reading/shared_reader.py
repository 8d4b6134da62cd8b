"""One reader for all tasks that a worker leads: each partition of a replica is fetched once.

Theory
    A task *joins* the reader with a replica where it stands at the very records that the reader
    has come to; the first one to come founds its `SharedInput`. A task that has to stop leaves, and
    reads the replica alone (`task_source`) until it stands there again. What was read last is kept,
    bounded in bytes, so that a task that is nearly there takes the rest of the way at once.

    The reader waits for its tasks between two batches, since none may be behind; for one that is
    not back in time (a commit hangs), it does not: that one leaves.

        fetch ─▶ wait for the tasks, `_WAIT_SECONDS` at most ─▶ decode, merge into each ─▶ wake them
          ▲                                                                                  │
          └──────────────────────────────────────────────────────────────────────────────────┘

    When a worker starts, its tasks are ready one after the other. So the first batch waits for all
    of them, `_GATHER_SECONDS` at most.

Who owns what
    The reader owns its consumer. When Kafka goes away, every task leaves, and finds out for itself.

What happens on a crash
    Nothing: positions are the tasks', and what counts is what their transactions have committed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from typing import Final, TypeAlias

import structlog

from lmerge_service.config.topology import Topology
from lmerge_service.errors import TransportError
from lmerge_service.formats.routing import Router
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.records import Record, value_bytes
from lmerge_service.kafka.source import Batches, Source, TopicPartition
from lmerge_service.merge.replicas import ReplicaState
from lmerge_service.merge.task_state import wire_decoder
from lmerge_service.service.reading.shared_input import SharedInput, SharingTask

__all__ = ("AT_ONCE", "POLL_SECONDS", "LeadingInput", "SharedReader")

log = structlog.get_logger()

POLL_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 1.0
_WAIT_SECONDS: Final = 0.5
_GATHER_SECONDS: Final = 2.0
_APART_SECONDS: Final = 5.0
"""For so long a partition that the reader cannot read is left to each task."""
_KEPT_BYTES: Final = 16 << 20
_RECORD_BYTES: Final = 400
"""What a record takes beside its value, unless it exists in the engine alone."""
AT_ONCE: Final = 4_000
"""Records of a poll for each task: more would leave the processor's caches between one step and the
next, and let replicas drift apart, so that their events are no longer found among the recent ones.
"""
_AT_ONCE_IN_BATCHES: Final = 16_000
"""The same by the engine, which has no such steps, and to which a poll costs more than its records
if they are few."""
_MOST_AT_ONCE: Final = 64_000
_FEW: Final = 1_000
"""So many records are soon read, at any rate."""
_RATE_SECONDS, _BEHIND_SECONDS = 2.0, 0.5
_MEASURED_SECONDS: Final = 0.005
"""For so long it is not looked again how much is to be read, which each of the tasks asks."""
_COMMIT_SECONDS, _LONGEST_COMMIT_SECONDS = 0.04, 3.0
"""Between two commits of a task, for each task of a worker that is behind: a commit takes some
4 ms, so that all of them take a tenth of its time."""
_COMMIT_BYTES: Final = 32 << 20
"""Of all tasks together: with more than its share of it a task commits sooner."""
_FETCH_BYTES: Final = 4 << 20
"""Of a partition at once, where tasks are several: each of them takes its part of what was fetched,
which costs by the number of parts …"""
_FETCH_BYTES_A_TASK: Final = 1 << 20
"""… so that few tasks need less."""


LeadingInput: TypeAlias = SharedInput[SharingTask]
"""Of tasks that lead."""


class SharedReader:
    """Of one worker; `run` reads."""

    def __init__(self, cluster: Cluster, topology: Topology, clock: Callable[[], float]):
        self.tasks: dict[SharingTask, None] = {}
        """In the order in which they came, those that lead, whether they have joined or not."""
        self._cluster, self._topology, self._clock = cluster, topology, clock
        self._router = Router(topology.output.partitions, topology.key)
        self._decoder = wire_decoder(topology)
        self._inputs: dict[TopicPartition, LeadingInput] = {}
        self._source: Source | None = None
        """None while Kafka is away."""
        self._expected: set[int] = set()
        self._apart: dict[TopicPartition, float] = {}
        """Partitions that are left to each task, and until when."""
        self._arrived, self._changed, self._settled = (asyncio.Event() for _ in range(3))
        self._polling: asyncio.Task[bool] | None = None
        self._pending: Batches = {}
        """What was fetched and is not merged yet."""
        self._kept: deque[tuple[LeadingInput, int, int]] = deque()
        """What the inputs keep, oldest first: partition and bytes."""
        self._kept_bytes = 0
        self._merged: deque[tuple[float, int]] = deque()
        """When something was merged lately, and how many records."""
        self._measured, self._is_behind = -_MEASURED_SECONDS, False

    # --- the tasks ------------------------------------------------------------------------------

    def expect(self, partition: int) -> None:
        """A task of the output's partition is about to lead."""
        self._expected.add(partition)

    def arrived(self, partition: int) -> None:
        """It is ready, or has failed."""
        self._expected.discard(partition)
        self._arrived.set()

    def settled(self) -> None:
        """A task is not busy any more."""
        self._settled.set()

    def of(self, state: ReplicaState) -> LeadingInput | None:
        """The input by which a task may read a replica some time, if there is one."""
        assert state.step is not None
        if self._source is None or state.step.decoder.ignores_stables(state.next):
            return None
        first, *others = map(self._inputs.get, state.positions)
        shared = first if all(each is first for each in others) else None
        if shared is None or shared.attachment != state.attachment:
            return None
        return shared

    def join(self, task: SharingTask, state: ReplicaState) -> LeadingInput | None:
        """Reads a replica for a task from now on, if that is possible."""
        assert state.step is not None
        shared = self.of(state) or self._founded(state)
        if shared is None or shared.next != state.next:
            return None
        if not shared.take_in(task, state):
            return None
        log.debug("read together", replica=state.name, tasks=len(shared.members))
        return shared

    def _founded(self, state: ReplicaState) -> LeadingInput | None:
        assert state.step is not None
        partitions = list(state.positions)
        now = self._clock()
        if self._source is None or state.step.decoder.ignores_stables(state.next):
            return None
        if any(tp in self._inputs or self._apart.get(tp, now) > now for tp in partitions):
            return None
        decoder = state.step.decoder
        decoder.use(self._decoder)
        router = self._router if self._router.partitions > 1 else None
        if state.replica.co_partitioned:
            router = None
        shared = LeadingInput(state.attachment, decoder, state.next, router)
        self._inputs |= dict.fromkeys(partitions, shared)
        self._change()
        return shared

    def abandon(self, shared: LeadingInput) -> None:
        """Ends an input that no task reads any more."""
        assert not shared.members
        for tp in shared.partitions:
            if self._inputs.get(tp) is shared:
                del self._inputs[tp]
        shared.kept.clear()
        self._change()

    @property
    def is_behind(self) -> bool:
        """More waits to be read than is merged in half a second, as in the last two: the tasks that
        lead take all the time that the worker has."""
        if self._source is None or not self._inputs:
            return False
        now = self._clock()
        if now >= self._measured + _MEASURED_SECONDS:
            self._measured, self._is_behind = now, self._measure(self._source, now)
        return self._is_behind

    def _measure(self, source: Source, now: float) -> bool:
        merged = sum(count for at, count in self._merged if at > now - _RATE_SECONDS)
        return source.readable > max(_FEW, merged / _RATE_SECONDS * _BEHIND_SECONDS)

    @property
    def commit_seconds(self) -> float:
        """For so long a task that has committed gathers more, unless its transaction is full:
        elements wait to be read for longer anyway."""
        if not self.is_behind:
            return 0.0
        return min(_COMMIT_SECONDS * len(self.tasks), _LONGEST_COMMIT_SECONDS)

    @property
    def commit_bytes(self) -> int:
        """So much is enough for a commit, however soon after the last."""
        return _COMMIT_BYTES // max(1, len(self.tasks))

    def position(self, tp: TopicPartition, shared: LeadingInput) -> int:
        """Up to where a partition was read and merged, control records included."""
        at = None
        if self._source is not None and tp not in self._pending and not self._changed.is_set():
            at = self._source.position(tp)
        return shared.next[tp.partition] if at is None else at

    # --- reading --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Reads until cancelled."""
        most = self._topology.limits.max_record_bytes
        if (tasks := self._router.partitions) > 1:
            most = max(most, min(tasks * _FETCH_BYTES_A_TASK, _FETCH_BYTES))
        while True:
            try:
                async with self._cluster.source(max_record_bytes=most) as source:
                    self._source = source
                    self._wake()
                    await self._read(source)
            except TransportError as error:
                log.warning("tasks read alone for now", error=str(error))
            finally:
                self._source, self._pending = None, {}
                self._dissolve(self._inputs.values())
            await asyncio.sleep(_RETRY_SECONDS)

    async def _read(self, source: Source) -> None:
        self._changed.set()
        gathered = False
        while True:
            if not self._inputs:
                gathered = False
                self._changed.clear()
                await self._changed.wait()
                continue
            if not gathered:
                await self._gather()
                gathered = True
            if self._changed.is_set():
                self._changed.clear()
                source.assign({tp: each.next[tp.partition] for tp, each in self._inputs.items()})
            reading = dict(self._inputs)
            if await self._poll(source):
                await self._wait_for_tasks()
                self._deliver(reading)
            self._leave_apart(source)

    async def _gather(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_GATHER_SECONDS):
                while self._expected:
                    self._arrived.clear()
                    await self._arrived.wait()

    async def _poll(self, source: Source) -> bool:
        """Whether there is something; not, also when others are to be read now."""
        tasks = self._reading()
        capacity = min((each.capacity for each in tasks), default=1)
        each = _AT_ONCE_IN_BATCHES if self._cluster.is_native else AT_ONCE
        most = min(each * max(1, len(tasks)), _MOST_AT_ONCE)
        most = min(capacity * self._router.partitions, most)
        self._polling = asyncio.create_task(self._fetch(source, most), name="shared poll")
        try:
            await asyncio.wait({self._polling})
            return not self._polling.cancelled() and self._polling.result()
        finally:
            self._polling.cancel()
            self._polling = None

    async def _fetch(self, source: Source, most: int) -> bool:
        self._pending = await source.poll(POLL_SECONDS, most)
        return bool(self._pending)

    def _change(self) -> None:
        """Others are to be read; a poll that is cancelled has taken nothing."""
        self._changed.set()
        if self._polling is not None:
            self._polling.cancel()

    async def _wait_for_tasks(self) -> None:
        tasks = self._reading()
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_SECONDS):
                while any(each.is_busy for each in tasks if each in self.tasks):
                    self._settled.clear()
                    await self._settled.wait()
        for shared in dict.fromkeys(self._inputs.values()):
            for member in list(shared.members):
                if member.is_busy:
                    shared.part(member)

    def _reading(self) -> dict[SharingTask, None]:
        """In an order that does not depend on chance."""
        inputs = dict.fromkeys(self._inputs.values())
        return dict.fromkeys(member for each in inputs for member in each.members)

    def _deliver(self, reading: Mapping[TopicPartition, LeadingInput]) -> None:
        tasks = self._reading()
        for task in tasks:
            task.begin()
        now = self._clock()
        while self._merged and self._merged[0][0] < now - _RATE_SECONDS:
            self._merged.popleft()
        self._merged.append((now, sum(map(len, self._pending.values()))))
        for tp, records in list(self._pending.items()):
            shared = reading[tp]
            if self._inputs.get(tp) is shared:
                began = shared.next[tp.partition]
                shared.deliver(tp.partition, records)
                self._keep(shared, tp.partition, began, records)
            del self._pending[tp]
        self._measured = (
            -_MEASURED_SECONDS
        )  # what is behind the last records must not wait for more
        self._wake({task for task in tasks if task.end()})

    def _wake(self, resting: Container[SharingTask] = ()) -> None:
        for task in self.tasks:
            if task not in resting:
                task.wake()

    def _keep(
        self, shared: LeadingInput, partition: int, began: int, records: list[Record]
    ) -> None:
        """Remembers what was read last, of all inputs together, as long as a task is elsewhere."""
        if len(shared.members) >= len(self.tasks) or not shared.members:
            self._let_go(shared)
            return
        size = value_bytes(records)
        if type(records) is list:
            size += _RECORD_BYTES * len(records)
        shared.kept[partition].append((began, records))
        self._kept.append((shared, partition, size))
        self._kept_bytes += size
        while self._kept_bytes > _KEPT_BYTES:
            oldest, number, size = self._kept.popleft()
            self._kept_bytes -= size
            if oldest.kept:
                oldest.kept[number].popleft()

    def _let_go(self, shared: LeadingInput) -> None:
        """Nobody is behind it who might take from memory what was read."""
        if not any(shared.kept.values()):
            return
        for records in shared.kept.values():
            records.clear()
        self._kept_bytes -= sum(size for of, _, size in self._kept if of is shared)
        self._kept = deque(each for each in self._kept if each[0] is not shared)

    def _leave_apart(self, source: Source) -> None:
        """Partitions that cannot be read: their tasks find out why."""
        lost, source.lost = source.lost, {}
        until = self._clock() + _APART_SECONDS
        for tp in lost:
            self._apart[tp] = until
        self._dissolve([each for tp, each in self._inputs.items() if tp in lost])

    def _dissolve(self, inputs: Iterable[LeadingInput]) -> None:
        for shared in dict.fromkeys(inputs):
            for member in list(shared.members):
                shared.part(member)
        self._wake()
