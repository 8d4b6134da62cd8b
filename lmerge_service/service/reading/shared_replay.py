"""One replay for all tasks that a worker follows: each record is read and decoded once.

Theory
    A standby replays what its task has merged, from commit record to commit record. Each task that
    a worker follows has commit records of its own, and most of the records are the same. So tasks
    whose states stand at the same records share a `SharedInput`, as tasks do that lead, and are
    advanced together, as far as every one of them has committed:

        task 0  ├────────── replayed ──────────┤ its last commit record
        task 1  ├────────── replayed ──────────┤╌╌╌╌╌ its last commit record
                                               ▲ where both stand

    What a task has committed beyond that comes with the next round; if it is led from here before
    that, it replays the rest by itself (`Recovery.follow`). For input may be behind the output that
    was loaded, as behind a snapshot.

    A state that stands elsewhere (it was just restored) replays alone up to where the others stand,
    and waits for them where it is ahead.

Who owns what
    The replay owns its consumer. States are borrowed: `leave` gives one back, with decoders of its
    own.

What happens on a crash
    Nothing: a standby publishes nothing.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

import structlog

from lmerge_service.config.topology import Topology
from lmerge_service.elements import START, Element
from lmerge_service.errors import StateError, TransportError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.routing import Router
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.merge.decoding import DecodedPiece
from lmerge_service.merge.guards.verdicts import Ruling
from lmerge_service.merge.replicas import ReplicaState
from lmerge_service.merge.step import MergeStep
from lmerge_service.merge.task_state import TaskState, wire_decoder
from lmerge_service.service.reading.shared_input import SharedInput

__all__ = ("SharedReplay",)

log = structlog.get_logger()

_RETRY_SECONDS: Final = 1.0
_GATHER_SECONDS: Final = 0.05
"""So long a round waits for other tasks that come at about the same time."""
_AWAY_SECONDS: Final = 3.0
"""A task that has not come for so long holds the others back no more."""
_APART_RECORDS: Final = 20_000
"""Who has committed so much less than another holds it back no more either."""
_ALONE_SECONDS: Final = 5.0
"""For so long a replica that could not be read is left to each task."""


class _ReplayingTask:
    """A state that is advanced together with others, as a `SharingTask`."""

    is_busy, capacity = False, 1

    def __init__(self, state: TaskState):
        self._state = state
        self.targets: dict[TopicPartition, int] = {}
        """Up to where its task has committed, of all that it merges."""
        self.came = 0.0
        """When it came last, in the clock's seconds."""
        self.error: Exception | None = None
        self.joined: dict[str, SharedInput[_ReplayingTask]] = {}
        """By replica."""
        self.heading: dict[str, dict[TopicPartition, int]] = {}
        """By replica that is not joined yet, where it will stand: the others wait there."""
        self.unfit: dict[str, tuple[MergeStep, int, int]] = {}
        """By replica, a step that stands where the others do and still differs, with its
        incarnation and theirs."""

    @property
    def partition(self) -> int:
        """Of the output."""
        return self._state.partition

    @property
    def stable(self) -> int:
        """The output's stable point."""
        return self._state.merge.max_stable

    @property
    def merged(self) -> dict[str, ReplicaState]:
        """Its replicas by name."""
        return self._state.replicas.merged

    def arrive(self, tp: TopicPartition, offset: int) -> None:
        """Everything before the offset is replayed."""
        self._state.replicas.arrive(tp, offset)

    def begin(self) -> None: ...

    def end(self) -> bool:
        return False

    def wake(self) -> None: ...

    def open(self, tp: TopicPartition, _: Sequence[Record]) -> int:
        """See `MergeStep`, as for the next two."""
        self._tp, missed = tp, self._state.missed
        return self._step(tp).open(tp.partition, missed, replay_input=True, routed=True)

    def offer(
        self, piece: DecodedPiece, elements: Sequence[Element], last: Sequence[Element]
    ) -> Ruling:
        return self._step(self._tp).offer(piece, elements, last)

    def close(self, _: Sequence[DeadLetter], __: Callable[[], int]) -> None:
        self.arrive(self._tp, self._step(self._tp).close())

    def goes_on(self, _: TopicPartition) -> bool:
        return True

    def leave(self, shared: "SharedInput[_ReplayingTask]", _: DecodedPiece | None = None) -> None:
        """Goes on with a decoder of its own."""
        self.joined.pop(shared.attachment.replica.name, None)
        shared.let_go(self._state.replicas)

    def fail(self, error: Exception) -> None:
        """The state is undefined from here on."""
        self.error = error
        for shared in list(self.joined.values()):
            shared.part(self)

    def _step(self, tp: TopicPartition) -> MergeStep:
        state = self._state.replicas.merging(tp)
        assert state is not None
        assert state.step is not None
        return state.step


_Input: TypeAlias = SharedInput[_ReplayingTask]


class SharedReplay:
    """Of one worker; `run` replays."""

    def __init__(self, cluster: Cluster, topology: Topology, clock: Callable[[], float]):
        self._cluster, self._topology, self._clock = cluster, topology, clock
        self._router = Router(topology.output.partitions, topology.key)
        self._decoder = wire_decoder(topology)
        self._tasks: dict[TaskState, _ReplayingTask] = {}
        self._inputs: dict[str, _Input] = {}
        """By topic."""
        self._left_alone: dict[str, float] = {}
        """Topics that could not be read, and until when each task reads them alone."""
        self._wanted = asyncio.Event()
        self._waiting: list[tuple[_ReplayingTask, asyncio.Future[None]]] = []
        """Tasks that have come, and what is done when a round is over."""

    # --- the tasks (`merge.recovery.JointReplay`) -------------------------------------------------

    def alone(
        self, state: TaskState, upto: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """What of a state is to be replayed alone, and up to where; the rest `advance` replays."""
        task = self._tasks.setdefault(state, _ReplayingTask(state))
        task.targets, task.came, task.heading = dict(upto), self._clock(), {}
        for name, shared in list(task.joined.items()):
            self._look_at(task, name, shared)
        limits: dict[TopicPartition, int] = {}
        for name, replica in task.merged.items():
            if name not in task.joined:
                limits |= self._limits(task, replica, upto)
        return limits

    async def advance(self, state: TaskState) -> None:
        """Replays what is shared, as far as all have committed.

        Raises:
            LMergeError: the state is undefined.
        """
        task = self._tasks[state]
        task.came = self._clock()
        if task.joined or task.heading:
            done = asyncio.get_running_loop().create_future()
            self._waiting.append((task, done))
            self._wanted.set()
            await done
        if task.error is not None:
            raise task.error

    def part(self, state: TaskState, name: str) -> None:
        """A replica of a state is about to change otherwise than by replay."""
        if (task := self._tasks.get(state)) is not None and name in task.joined:
            self._part(task.joined[name], task)

    def leave(self, state: TaskState) -> bool:
        """The state is its task's alone again; returns whether it is whole."""
        if (task := self._tasks.pop(state, None)) is None:
            return True
        for shared in list(task.joined.values()):
            self._part(shared, task)
        return task.error is None

    def _part(self, shared: _Input, task: _ReplayingTask) -> None:
        shared.part(task)
        if not shared.members and self._inputs.get(shared.topic) is shared:
            del self._inputs[shared.topic]

    def _look_at(self, task: _ReplayingTask, name: str, shared: _Input) -> None:
        """Whether a replica is still shared."""
        replica = task.merged.get(name)
        step = None if replica is None else replica.step
        is_same = step is not None and step.decoder is shared.decoder
        if replica is None or not is_same or not replica.is_attached_as(shared.attachment):
            self._part(shared, task)

    def _is_sharable(self, task: _ReplayingTask, replica: ReplicaState) -> bool:
        assert replica.step is not None
        if self._router.partitions == 1 or replica.replica.co_partitioned:
            return False
        if self._left_alone.get(replica.replica.topic, 0.0) > self._clock():
            return False
        shared = self._inputs.get(replica.replica.topic)
        if shared is not None:
            if replica.attachment != shared.attachment:
                return False
            differs = replica.step, replica.step.decoder.incarnation, shared.decoder.incarnation
            if task.unfit.get(replica.name) == differs:
                return False
        return not replica.step.decoder.ignores_stables(replica.next)

    def _limits(
        self, task: _ReplayingTask, replica: ReplicaState, upto: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Up to where a replica that is not shared yet is replayed alone: to where the others
        stand, if they are not beyond what its task has committed."""
        limits = {tp: upto[tp] for tp in replica.positions}
        if not self._is_sharable(task, replica):
            return limits
        if (shared := self._inputs.get(replica.replica.topic)) is not None:
            others = {tp: shared.next[tp.partition] for tp in limits}
            if any(at > limits[tp] for tp, at in others.items()):
                return limits
            limits = {tp: max(at, others[tp]) for tp, at in replica.positions.items()}
        task.heading[replica.name] = limits
        return limits

    def _holds_back(self, shared: _Input, task: _ReplayingTask) -> bool:
        """Another task has committed far more, as where the workers that lead them differ."""
        return any(
            other.targets[tp] - task.targets[tp] > _APART_RECORDS
            for other in shared.members
            for tp in shared.partitions
        )

    def _join(self, task: _ReplayingTask, name: str) -> None:
        replica, at = task.merged.get(name), task.heading.pop(name)
        if replica is None or replica.positions != at or not self._is_sharable(task, replica):
            return
        assert replica.step is not None
        topic, decoder = replica.replica.topic, replica.step.decoder
        shared = self._inputs.get(topic)
        if shared is None:
            decoder.use(self._decoder)
            shared = _Input(
                replica.attachment, decoder, replica.next, self._router, replays_input=True
            )
            self._inputs[topic] = shared
        elif shared.next != replica.next:
            task.heading[name] = at
            return
        if not shared.take_in(task, replica):
            task.unfit[name] = replica.step, decoder.incarnation, shared.decoder.incarnation
            return
        task.joined[name] = shared

    # --- replaying --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Replays until cancelled."""
        limits = self._topology.limits
        while True:
            await self._wanted.wait()
            try:
                async with self._cluster.source(max_record_bytes=limits.max_record_bytes) as source:
                    while True:
                        await self._wanted.wait()
                        await asyncio.sleep(_GATHER_SECONDS)
                        self._wanted.clear()
                        await self._round(source)
            except TransportError as error:
                log.warning("standbys replay alone for now", error=str(error))
            finally:
                self._leave_alone(set(self._inputs))
                self._release(self._waiting)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _round(self, source: Source) -> None:
        came, self._waiting = self._waiting, []
        try:
            self._gather(task for task, done in came if not done.done())
            starts, ends = self._range()
            if starts:
                await self._replay(source, starts, ends)
        finally:
            self._release(came)

    def _release(self, came: list[tuple[_ReplayingTask, asyncio.Future[None]]]) -> None:
        for _, done in came:
            if not done.done():
                done.set_result(None)
        came.clear()

    def _gather(self, came: Iterable[_ReplayingTask]) -> None:
        """Tasks join between two rounds only: in one, all have committed what is replayed."""
        before = self._clock() - _AWAY_SECONDS
        for shared in list(self._inputs.values()):
            for task in list(shared.members):
                if task.came < before or self._holds_back(shared, task):
                    self._part(shared, task)
            if not shared.members:
                self._inputs.pop(shared.topic, None)
        for task in came:
            for name in list(task.heading):
                self._join(task, name)

    def _range(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """From where to where all that share an input can be replayed, where that is anything."""
        starts, ends = dict[TopicPartition, int](), dict[TopicPartition, int]()
        for shared in self._inputs.values():
            for tp in shared.partitions:
                if (end := self._end(shared, tp)) > shared.next[tp.partition]:
                    starts[tp], ends[tp] = shared.next[tp.partition], end
        return starts, ends

    def _end(self, shared: _Input, tp: TopicPartition) -> int:
        """Up to where all of an input have committed, and where another one that comes stands."""
        name, before = shared.attachment.replica.name, self._clock() - _AWAY_SECONDS
        ends = [task.targets[tp] for task in shared.members]
        heading = [t.heading.get(name, {}) for t in self._tasks.values() if t.came >= before]
        at = shared.next[tp.partition]
        coming = [each[tp] for each in heading if each.get(tp, START) >= at]
        return min([*ends, *coming], default=0)

    async def _replay(
        self, source: Source, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> None:
        """What cannot be read, each task finds out for itself."""
        begins, have = await source.beginnings(list(starts)), await source.ends(list(starts))
        gone = {tp.topic for tp, at in starts.items() if begins[tp] > at or have[tp] < ends[tp]}
        self._leave_alone(gone)
        starts = {tp: at for tp, at in starts.items() if tp.topic not in gone}
        source.lost = {}
        try:
            async with aclosing(source.backlog(starts, ends)) as backlog:
                async for tp, records in backlog:
                    if (shared := self._inputs.get(tp.topic)) is not None:
                        shared.deliver(tp.partition, records)
        except StateError:
            self._leave_alone({tp.topic for tp in source.lost})
            return
        for tp in starts:
            if (shared := self._inputs.get(tp.topic)) is not None:
                self._arrive(shared, tp, ends[tp])

    @staticmethod
    def _arrive(shared: _Input, tp: TopicPartition, end: int) -> None:
        """Everything before the offset is replayed, markers included."""
        shared.next[tp.partition] = end
        for task in shared.members:
            task.arrive(tp, end)

    def _leave_alone(self, topics: set[str]) -> None:
        until = self._clock() + _ALONE_SECONDS
        self._left_alone |= dict.fromkeys(topics, until)
        for topic in topics & self._inputs.keys():
            for task in list(self._inputs[topic].members):
                self._part(self._inputs[topic], task)
