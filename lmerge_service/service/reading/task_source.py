"""What one task reads: each replica together with the worker's other tasks, or alone.

Theory
    A task reads a replica *together* with others where it stands at the same records, through the
    worker's `SharedReader`. Otherwise it reads the replica *alone*, with a consumer of its own:

        together ── a guard holds a stable, flow control pauses the replica, ──▶ alone
                    the task is not back in time, Kafka goes away
        alone ───── it stands where the others do ───────────────────────────▶ together

    Alone it reads no further than the others have come; what they read last, it takes from memory,
    and is there. Only a task that begins may be ahead of them. It waits for a moment then, since
    they are about to come.

    `settle` decides, between two batches, and is the only one to assign partitions to the task's
    own consumer, when no poll of that is under way.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

import structlog

from lmerge_service.elements import INFINITY, Element
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.kafka.connection import CONNECT_SECONDS
from lmerge_service.kafka.lookups import Lookups
from lmerge_service.kafka.records import Record, between
from lmerge_service.kafka.source import Batches, Source, TopicPartition
from lmerge_service.merge.decoding import DecodedPiece
from lmerge_service.merge.guards.verdicts import Ruling
from lmerge_service.merge.replicas import ReplicaState
from lmerge_service.merge.step import MergeStep
from lmerge_service.merge.task_state import TaskState
from lmerge_service.service.merge_loop import MergedBatch, MergeLoop
from lmerge_service.service.reading.shared_reader import (
    AT_ONCE,
    POLL_SECONDS,
    LeadingInput,
    SharedReader,
)

__all__ = ("LeadingTask", "TaskSource")

log = structlog.get_logger()

_AHEAD_SECONDS: Final = 1.0


class LeadingTask(Protocol):
    """The task that reads."""

    @property
    def merge_loop(self) -> MergeLoop | None: ...

    @property
    def capacity(self) -> int:
        """How many records may be merged now."""

    @property
    def is_at_ease(self) -> bool:
        """What was merged leaves nothing to be done now but to merge more."""

    def begin_batch(self) -> None:
        """Records were fetched, and are merged now."""

    def take_in(self, batch: MergedBatch) -> None:
        """This has come of them."""


class TaskSource:
    """Of one task, while it leads."""

    def __init__(
        self,
        task: LeadingTask,
        state: TaskState,
        source: Source,
        shared: SharedReader | None,
        lookups: Lookups | None = None,
    ):
        """`source` is the task's own; without `shared` it reads everything alone, without `lookups`
        it asks alone where topics end."""
        self._asks = source if lookups is None else lookups
        self.is_busy = True
        self.paused: frozenset[TopicPartition] = frozenset()
        """Partitions that are not read on for now."""
        self._woken: asyncio.Future[None] | None = None
        """While the task waits: others have merged for it, or have come further."""
        self._was_woken = False
        self._task, self._state, self._own, self._shared = task, state, source, shared
        self._joined: dict[str, LeadingInput] = {}
        self._apart: dict[str, tuple[MergeStep, int, int]] = {}
        """By replica, a step that does not fit to the others', though it stands there, with its
        incarnation and theirs."""
        self._ahead: dict[str, float] = {}
        """Until when a replica waits for the others to come."""
        self._assigned: set[TopicPartition] | None = None
        """What its own consumer reads; None: it is to be assigned anew."""
        self._polling: asyncio.Task[Batches] | None = None
        self._error: Exception | None = None
        if shared is not None:
            shared.tasks[self] = None

    async def aclose(self) -> None:
        """Lets go of everything; the state may be discarded."""
        if self._shared is not None:
            self._shared.tasks.pop(self, None)
        for name in list(self._joined):
            self._drop(name)
        await self._cancel_poll()

    # --- where things are (`merge.topic_monitor`) -------------------------------------------------

    @property
    def lost(self) -> dict[TopicPartition, str]:
        """Partitions that cannot be read on, and why."""
        return self._own.lost

    @lost.setter
    def lost(self, lost: dict[TopicPartition, str]) -> None:
        self._own.lost = lost

    async def beginnings(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See `Source`, as for the next two."""
        return await self._asks.beginnings(partitions)

    async def ends(
        self, partitions: Sequence[TopicPartition], *, seconds: float = CONNECT_SECONDS
    ) -> dict[TopicPartition, int]:
        return await self._asks.ends(partitions, seconds=seconds)

    async def high_watermarks(
        self, partitions: Sequence[TopicPartition], *, seconds: float = CONNECT_SECONDS
    ) -> dict[TopicPartition, int]:
        return await self._asks.high_watermarks(partitions, seconds=seconds)

    def position(self, tp: TopicPartition) -> int | None:
        """Up to where a partition was read, control records included."""
        state = self._state.replicas.merging(tp)
        if state is None:
            return None
        if (shared := self._joined.get(state.name)) is not None and self._shared is not None:
            return self._shared.position(tp, shared)
        is_own = self._assigned is not None and tp in self._assigned
        return self._own.position(tp) if is_own else state.next[tp.partition]

    # --- what is read -----------------------------------------------------------------------------

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """From the next `settle` on these are read no further, until `resume`."""
        self.paused |= frozenset(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """From the next `settle` on these are read on, from where they stand."""
        self.paused -= frozenset(partitions)

    def rewind(self, tp: TopicPartition, offset: int) -> None:
        """A record that was read is to be read again; what is read together is never rewound."""
        self._own.rewind(tp, offset)

    async def settle(self) -> None:
        """Decides anew what is read together and what alone."""
        if self._error is not None:
            raise self._error
        await self._assign(self.join())

    def join(self) -> dict[TopicPartition, int]:
        """Reads together what can be; returns what is to be read alone."""
        merged, alone = self._state.replicas.merged, dict[TopicPartition, int]()
        for name, shared in list(self._joined.items()):
            self._look_at(name, shared)
        for name, state in merged.items():
            if name not in self._joined and not self._is_read_together(state):
                alone |= state.positions
        self._ahead = {name: until for name, until in self._ahead.items() if name in merged}
        return alone

    async def wait(self, other: asyncio.Future[None]) -> None:
        """Until something was read, or others have come further, or `other` is done; a second at
        the most. The task is busy afterwards, until `settled`."""
        waiting: set[asyncio.Future[Any]] = {other}
        if (polling := self._poll()) is not None:
            waiting.add(polling)
        if not self._was_woken:
            self._woken = asyncio.get_running_loop().create_future()
            waiting.add(self._woken)
            await asyncio.wait(waiting, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        self._woken, self._was_woken, self.is_busy = None, False, True

    def is_together(self, name: str) -> bool:
        """A replica is read together with others."""
        return name in self._joined

    def _look_at(self, name: str, shared: LeadingInput) -> None:
        """Whether a replica can still be read together."""
        state = self._state.replicas.states.get(name)
        if state is None or state.step is None or state.step.decoder is not shared.decoder:
            self._drop(name)
        elif not state.is_attached_as(shared.attachment) or self._is_paused(state):
            shared.part(self)

    def _is_paused(self, state: ReplicaState) -> bool:
        return bool(self.paused) and not self.paused.isdisjoint(state.positions)

    def _is_apart(self, state: ReplicaState) -> bool:
        if (known := self._apart.get(state.name)) is None or self._shared is None:
            return False
        return known == self._difference(state, self._shared.of(state))

    @staticmethod
    def _difference(state: ReplicaState, others: LeadingInput | None) -> tuple[MergeStep, int, int]:
        assert state.step is not None
        theirs = -1 if others is None else others.decoder.incarnation
        return state.step, state.step.decoder.incarnation, theirs

    def _is_stopped(self, state: ReplicaState) -> bool:
        """By flow control, or by a guard."""
        held = self._loop.evaluator.waiting
        return self._is_paused(state) or (
            bool(held) and not held.keys().isdisjoint(state.positions)
        )

    def _is_read_together(self, state: ReplicaState) -> bool:
        """From now on, or soon."""
        if self._shared is None or self._is_stopped(state) or self._is_apart(state):
            return False
        if (shared := self._shared.join(self, state)) is not None:
            self._joined[state.name] = shared
            self._ahead.pop(state.name, None)
            return True
        if (others := self._shared.of(state)) is None:
            return False
        assert state.step is not None
        if others.next == state.next:
            self._apart[state.name] = self._difference(state, others)
            return False
        if any(at > others.next[number] for number, at in state.next.items()):
            now = asyncio.get_running_loop().time()
            return now < self._ahead.setdefault(state.name, now + _AHEAD_SECONDS)
        return False

    def _drop(self, name: str) -> None:
        """Without a step that would go on."""
        shared = self._joined[name]
        shared.members.remove(self)
        self._left(name, shared)

    def _left(self, name: str, shared: LeadingInput) -> None:
        log.debug("read alone", replica=name)
        del self._joined[name]
        if not shared.members and self._shared is not None:
            self._shared.abandon(shared)

    async def _assign(self, alone: Mapping[TopicPartition, int]) -> None:
        paused, reads = self.paused & alone.keys(), set(alone)
        if reads == self._assigned and paused == self._own.paused:
            return
        await self._cancel_poll()
        if reads != self._assigned:
            self._own.assign(alone)
            self._assigned = reads
        self._own.pause(paused - self._own.paused)
        self._own.resume(self._own.paused - paused)

    def reassign(self) -> None:
        """Positions have changed otherwise than by reading."""
        self._assigned = None

    # --- reading alone ----------------------------------------------------------------------------

    def _poll(self) -> asyncio.Task[Batches] | None:
        """The poll of what is read alone; None if there is nothing."""
        if self._polling is None and self._assigned and not self._assigned <= self._own.paused:
            most = min(self.capacity, AT_ONCE)
            poll = self._own.poll(POLL_SECONDS, most)
            self._polling = asyncio.create_task(poll, name="poll")
        return self._polling

    def polled(self) -> Batches:
        """What was read alone and is to be merged."""
        poll = self._polling
        if poll is None or not poll.done():
            return {}
        self._polling = None
        return self._up_to_the_others(poll.result())

    async def _cancel_poll(self) -> None:
        """What the poll has brought, if anything, is read again."""
        poll, self._polling = self._polling, None
        if poll is None:
            return
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
        self._assigned = None

    def _up_to_the_others(self, batches: Batches) -> Batches:
        """Without what was merged from memory meanwhile, and what the others have not read: they
        will read that for this task as well."""
        found: Batches = {}
        for tp, records in batches.items():
            limit, state = self._limit(tp), self._state.replicas.merging(tp)
            begins = 0 if state is None else state.next[tp.partition]
            inside = between(records, begins, INFINITY if limit is None else limit)
            if limit is not None and limit <= records[-1].offset:
                self._own.rewind(tp, limit)
            if inside:
                found[tp] = inside
        return found

    def _limit(self, tp: TopicPartition) -> int | None:
        state = self._state.replicas.merging(tp)
        if state is None or self._shared is None or self._is_apart(state):
            return None
        others = self._shared.of(state)
        if others is None or state.next[tp.partition] > others.next[tp.partition]:
            return None
        return others.next[tp.partition]

    def nearly_there(self) -> Batches:
        """Of a replica that is read alone, all that is left until it can be read together, if the
        others have read it a moment ago."""
        found: Batches = {}
        if self._shared is None:
            return found
        for name, state in self._state.replicas.merged.items():
            if name in self._joined or self._is_stopped(state) or self._is_apart(state):
                continue
            if (others := self._shared.of(state)) is not None:
                found |= others.since(state.next) or {}
        return found

    # --- reading together (`shared_input`) --------------------------------------------------------

    @property
    def partition(self) -> int:
        """Of the output."""
        return self._state.partition

    @property
    def stable(self) -> int:
        """The output's stable point."""
        return self._state.merge.max_stable

    @property
    def capacity(self) -> int:
        """How many records may be merged now."""
        return self._task.capacity

    @property
    def _loop(self) -> MergeLoop:
        assert self._task.merge_loop is not None
        return self._task.merge_loop

    def begin(self) -> None:
        """Records that were read together are about to be merged."""
        self.is_busy = True
        self._task.begin_batch()
        self._loop.begin()

    def open(self, tp: TopicPartition, records: Sequence[Record]) -> int:
        """See `MergeLoop`, as for the next three."""
        return self._loop.open(tp, records)

    def offer(
        self, piece: DecodedPiece, elements: Sequence[Element], last: Sequence[Element]
    ) -> Ruling:
        return self._loop.offer(piece, elements, last)

    def close(self, letters: Sequence[DeadLetter], elsewhere: Callable[[], int]) -> None:
        self._loop.close(letters, elsewhere)

    def goes_on(self, tp: TopicPartition) -> bool:
        return self._loop.goes_on(tp)

    def end(self) -> bool:
        """Records that were read together have been merged; whether the task may be left as it is
        until more are."""
        if self._error is not None:
            return False
        self._task.take_in(self._loop.end())
        if self._joined.keys() != self._state.replicas.merged.keys() or not self._task.is_at_ease:
            return False
        self.is_busy = False
        return True

    def leave(self, shared: LeadingInput, taken_back: DecodedPiece | None = None) -> None:
        """Goes on alone, with a decoder of its own, if the replica is still merged; the stable of
        `taken_back` was not taken."""
        step = shared.let_go(self._state.replicas)
        if step is not None and taken_back is not None:
            step.take_back(taken_back)
        self._left(shared.attachment.replica.name, shared)

    def fail(self, error: Exception) -> None:
        """The task cannot go on: `settle` raises the error."""
        self._error = error
        for name in list(self._joined):
            self._drop(name)
        self.wake()

    def wake(self) -> None:
        """Others have merged for this task, or have come further."""
        self._was_woken = True
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def settled(self) -> None:
        """All that was merged is in the transaction, which has room for more."""
        self.is_busy = False
        if self._shared is not None:
            self._shared.arrived(self.partition)
            self._shared.settled()
