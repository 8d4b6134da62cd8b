"""The transactions of a replica: gathered while the last commit is under way, then committed.

Theory
    One transaction carries the elements of all partitions of the output, dead letters, chunks of a
    snapshot, and the commit record, last. While one commits, the next is gathered: small ones
    commit at once, and under load they grow by themselves.

What happens on a crash at each await
    Nothing counts as published before its commit; the next process finds out whether it took
    place, by taking the output over.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.kafka.partitions_sink import PartitionsOutbox, PartitionsSink
from lmerge_service.kafka.transactional import retrieve
from lmerge_service.merge.commit_record import COMMIT_KEY, SnapshotPlace
from lmerge_service.merge.durations import Durations
from lmerge_service.merge.snapshots.writer import Snapshots
from lmerge_service.replicas.commit_record import (
    InputCheckpoint,
    InputPartition,
    OutputPartition,
    ReplicaCommit,
)
from lmerge_service.replicas.recovery import Recovered
from lmerge_service.replicas.snapshots import snapshot

__all__ = ("CommitCounts", "ReplicaTransaction")

log = structlog.get_logger()

_OFFSETS_ONLY_SECONDS: Final = 1.0
"""Offsets without output are committed this often at the most."""
_OUTBOX_RECORDS: Final = 20_000
_OUTBOX_BYTES: Final = 32 << 20
_FINISH_SECONDS: Final = 10.0
_SAVE_SECONDS: Final = 5.0
_SAVED: Final = 10_000
"""Fewer records are processed once more in less time than a snapshot takes."""


@dataclass(slots=True)
class CommitCounts:
    """What has been committed by this process."""

    elements: Counter[str] = field(default_factory=Counter)
    """inserts, adjusts (removals among them, and counted apart) and stables."""
    transactions: int = 0
    seconds: Durations = field(default_factory=Durations)
    """From a batch's read to its commit."""
    snapshots: Counter[str] = field(default_factory=Counter)
    """taken and failed."""


class ReplicaTransaction:
    """Of one replica, from its recovery to its end."""

    def __init__(
        self,
        recovered: Recovered,
        sink: PartitionsSink,
        snapshots: Snapshots,
        counts: CommitCounts,
        clock: Callable[[], float],
    ):
        self._state = recovered
        self._sink = sink
        self._snapshots = snapshots
        self._counts = counts
        self._clock = clock
        self.record = recovered.commit
        """The last one that was committed, or that the process began with."""
        self._next = recovered.commit
        """As of the last commit that was started."""
        self._places: tuple[SnapshotPlace, ...] = recovered.commit.snapshots
        self._offsets = [(each.offset, each.counted) for each in recovered.commit.output]
        self._headers = incarnation_headers(
            recovered.commit.incarnation, recovered.commit.joining_at
        )
        self._outbox, self._emitted = PartitionsOutbox(), Counter[str]()
        self._committing: asyncio.Task[None] | None = None
        self._positions: dict[str, list[int]] = {
            name: [each.next for each in found.partitions]
            for name, found in recovered.commit.inputs.items()
        }
        self._point = recovered.commit.point
        self._moved, self._due, self._fetched = False, 0.0, 0.0
        self._uncovered = True
        """Something was processed that no snapshot covers."""

    @property
    def places(self) -> tuple[SnapshotPlace, ...]:
        """Of the snapshots that are whole, the latest first."""
        return self._places

    # --- gathering ------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Records that are in no commit yet."""
        return sum(map(len, self._outbox.records.values())) + len(self._outbox.dead)

    @property
    def is_idle(self) -> bool:
        """All that was emitted is committed."""
        return self._committing is None and not self.waiting

    def begin_batch(self) -> None:
        """Records were fetched, and are processed now."""
        if not self.waiting:
            self._fetched = self._clock()

    def processed(self, name: str, partition: int, behind: int, records: int) -> None:
        """An input's partition is processed up to an offset, by so many records."""
        self._positions[name][partition] = behind
        self._snapshots.merged(records)
        self._moved = self._uncovered = True

    def heed(self, point: int) -> None:
        """What ends before that is left out from now on."""
        self._point, self._moved = point, True

    def hasten(self) -> None:
        """The next commit record is due at once."""
        self._moved, self._due = True, 0.0

    def append(self, partition: int, elements: Sequence[Element]) -> None:
        """Puts elements of a partition into the outbox."""
        outbox, emitted = self._outbox, self._emitted
        records = self._state.partitions.encoder.records(elements)
        outbox.records.setdefault(partition, []).extend(records)
        outbox.size += sum(2 * len(value) for _, value in records)
        for element in elements:
            kind = type(element)
            if kind is Insert:
                emitted["inserts"] += 1
            elif kind is Stable:
                emitted["stables"] += 1
            else:
                assert isinstance(element, Adjust)
                emitted["adjusts"] += 1
                emitted["removals"] += element.ve == element.vs

    def append_dead_letters(self, dead: Sequence[DeadLetter]) -> None:
        """Puts dead letters into the outbox."""
        self._outbox.dead += dead
        self._outbox.size += sum(len(letter.value or b"") for letter in dead)

    # --- committing -----------------------------------------------------------------------------

    async def publish(self) -> None:
        """Starts the next commit once the last one is through; waits for that when it must.

        Raises:
            FencedError: another process has taken the output over.
            TransportError: Kafka went away, or refuses.
        """
        full = self.waiting >= _OUTBOX_RECORDS or self._outbox.size >= _OUTBOX_BYTES
        if self._committing is not None and (self._committing.done() or full):
            await asyncio.shield(self._committing)
            self._committing = None
        if self._committing is None and self._is_due:
            self._start()

    @property
    def _is_due(self) -> bool:
        moved = self._moved and self._clock() >= self._due
        # a snapshot is of the state at a commit record, so that one is due with it
        wanted = self._snapshots.is_due and self._uncovered
        return bool(self.waiting or moved or wanted or self._snapshots.needs_transaction())

    def _start(self) -> None:
        chunks = self._snapshots.chunks()
        outbox, emitted = self._outbox, self._emitted
        self._next = record = self._record()
        if self._snapshots.is_due:
            stream = snapshot(record, self._state.inputs, self._state.partitions)
            self._snapshots.start(record.transaction, stream, self._places, 0, 0)
            self._uncovered = False
        outbox.state = [*chunks, (COMMIT_KEY, record.encoded())]
        outbox.headers = self._headers
        self._outbox, self._emitted = PartitionsOutbox(), Counter()
        self._moved, self._due = False, self._clock() + _OFFSETS_ONLY_SECONDS
        commit = self._commit(outbox, emitted, record, len(chunks), self._fetched)
        self._committing = asyncio.create_task(commit, name="commit")
        self._committing.add_done_callback(retrieve)

    def _record(self) -> ReplicaCommit:
        before, state = self._next, self._state
        output = tuple(
            OutputPartition(
                *self._offsets[number],
                was.records + len(self._outbox.records.get(number, ())),
                stable,
            )
            for number, (was, stable) in enumerate(
                zip(before.output, state.partitions.stables, strict=True)
            )
        )
        return msgspec.structs.replace(
            before,
            transaction=before.transaction + 1,
            inputs={name: self._checkpoint(name, each) for name, each in before.inputs.items()},
            output=output,
            point=self._point,
            snapshots=self._places,
        )

    def _checkpoint(self, name: str, before: InputCheckpoint) -> InputCheckpoint:
        found = zip(
            before.partitions,
            self._positions[name],
            self._state.inputs[name].reached,
            strict=True,
        )
        partitions = tuple(InputPartition(was.begins, at, reached) for was, at, reached in found)
        return msgspec.structs.replace(before, partitions=partitions)

    async def _commit(
        self,
        outbox: PartitionsOutbox,
        emitted: Counter[str],
        record: ReplicaCommit,
        chunks: int,
        fetched: float,
    ) -> None:
        committed = await self._sink.commit(outbox)
        for number, behind in committed.output.items():
            self._offsets[number] = behind, record.output[number].records
        place = self._snapshots.committed(chunks, committed.state)
        if place is not None:
            self._places = (place, *self._places[:1])
            self.hasten()
        self.record = record
        counts = self._counts
        counts.transactions += 1
        counts.elements.update(emitted)
        if outbox.records:
            counts.seconds.observe(self._clock() - fetched)

    async def finish(self, *, save: bool) -> None:
        """Commits what is gathered, when the replica stops; bounded in time. `save`: also a
        snapshot, if the next process would have much to process once more.

        Raises:
            FencedError, TransportError: the last commit did not take place, as far as is known.
        """
        async with asyncio.timeout(_FINISH_SECONDS):
            await self._drain()
            if save:
                try:
                    async with asyncio.timeout(_SAVE_SECONDS):
                        await self._save()
                except TimeoutError:
                    log.warning("no snapshot at the end", why=f"it takes over {_SAVE_SECONDS:g} s")
                await self._drain()

    async def _drain(self) -> None:
        while self._committing is not None or self.waiting or self._moved:
            await self._step()

    async def _step(self) -> None:
        """The commit under way is through, or else the next one is started."""
        if self._committing is None:
            self._start()
        else:
            await asyncio.shield(self._committing)
            self._committing = None

    async def _save(self) -> None:
        """A snapshot that is under way comes first: it is of an earlier state."""
        await self._until_saved()
        if self._snapshots.behind >= _SAVED:
            self._snapshots.demand()
            await self._until_saved()

    async def _until_saved(self) -> None:
        """No snapshot is under way or due, and a commit record names the last one."""
        while (
            self._snapshots.is_taking
            or (self._snapshots.is_due and self._uncovered)
            or self.record.snapshots != self._places
        ):
            if self._committing is not None or self._is_due:
                await self._step()
            elif self._snapshots.is_taking:  # not one that has just been found to have failed
                await self._snapshots.ready()

    async def settle(self) -> None:
        """Waits for the commit under way, which was whole before an error; its own is secondary."""
        if self._committing is not None:
            await asyncio.wait({self._committing}, timeout=_FINISH_SECONDS)
