"""One replica, read and decoded once for all tasks of a worker that stand at the same records.

Theory
    What a replica's records decode to is the same for every task: a function of the partitions'
    prefixes (promise 7 of docs/semantics.md). So tasks that have merged the same prefixes share one
    decoder. A chunk is decoded piece by piece. Each piece is divided among the output's partitions,
    a stable goes to all, and every task takes its part before the next piece is decoded:

                       ┌── elements of partition 0, stables ──▶ task 0
        records ─▶ piece ─ elements of partition 1, stables ──▶ task 1
                       └── …

    A task that has to stop at a piece, since a guard holds its stable back, leaves at once with a
    copy of the decoder as it is there, and nobody else stops. So while anybody else runs, decoder
    and tasks agree about where they are.

Invariants
    H1  Between two chunks, every task here stands at `next` in all partitions of the replica, and
        its step uses this decoder.
    H2  `kept[p]` has all records from the offset of its first entry up to `next[p]`.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, Protocol, TypeVar

from lmerge_service.core.batches import as_batch
from lmerge_service.elements import INFINITY, START, Element, Stable
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.dialects import decoders_of
from lmerge_service.formats.routing import Router
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.decoding import DecodedPiece, ReplicaDecoder
from lmerge_service.merge.guards.guards import chunk_of
from lmerge_service.merge.guards.verdicts import Ruling
from lmerge_service.merge.replicas import ReplicaAttachment, Replicas, ReplicaState
from lmerge_service.merge.step import MergeStep

__all__ = ("SharedInput", "SharingTask")

_LONGEST: Final = 64
"""A chunk is so many times as long as that of a task alone, at the most."""


class SharingTask(Protocol):
    """A task, as far as it reads together with others."""

    @property
    def partition(self) -> int:
        """Of the output."""

    @property
    def stable(self) -> int:
        """The output's stable point."""

    @property
    def is_busy(self) -> bool:
        """It has not settled what it merged last."""

    @property
    def capacity(self) -> int:
        """How many records it may merge now."""

    def begin(self) -> None:
        """Records are about to be merged."""

    def end(self) -> bool:
        """They were; whether the task need not be woken, since all it would do is wait for more."""

    def wake(self) -> None:
        """The reader has come further: the task may join it now."""

    def open(self, tp: TopicPartition, records: Sequence[Record]) -> int:
        """See `MergeLoop.open`, as for the next two."""

    def offer(
        self, piece: DecodedPiece, elements: Sequence[Element], last: Sequence[Element]
    ) -> Ruling: ...

    def close(self, letters: Sequence[DeadLetter], elsewhere: Callable[[], int]) -> None: ...

    def goes_on(self, tp: TopicPartition) -> bool:
        """See `MergeLoop.goes_on`."""

    def leave(self, shared: "SharedInput[Any]", taken_back: DecodedPiece | None = None) -> None:
        """The task reads the replica alone from here on, or not at all; it did not take the stable
        of `taken_back`, a piece of the partition that is being read."""

    def fail(self, error: Exception) -> None:
        """The task cannot go on."""


T = TypeVar("T", bound=SharingTask)


class SharedInput(Generic[T]):
    """One replica as several tasks read it."""

    def __init__(
        self,
        attachment: ReplicaAttachment,
        decoder: ReplicaDecoder,
        positions: Mapping[int, int],
        router: Router | None,
        *,
        replays_input: bool = False,
    ):
        """`positions` are by partition; `router` divides the elements, None if they are all for
        the one task that reads them. `replays_input` is for records that were merged before, which
        no guard looks at."""
        self.replays_input = replays_input
        self.attachment = attachment
        self.decoder = decoder
        self.next = dict(positions)
        """By partition, the offset to go on from."""
        self.members: list[T] = []
        self.kept: dict[int, deque[tuple[int, list[Record]]]] = {p: deque() for p in positions}
        """By partition, what was read last: from which offset on, and the records."""
        self.topic = attachment.replica.topic
        self.router = router

    @property
    def partitions(self) -> list[TopicPartition]:
        """All that it reads."""
        return [TopicPartition(self.topic, number) for number in self.next]

    def since(self, positions: Mapping[int, int]) -> dict[TopicPartition, list[Record]] | None:
        """What was read behind some positions, if all of it is kept."""
        found: dict[TopicPartition, list[Record]] = {}
        for number, at in positions.items():
            if at == self.next[number]:
                continue
            kept = self.kept[number]
            if at > self.next[number] or not kept or at < kept[0][0]:
                return None
            behind = [r for _, records in kept for r in records if r.offset >= at]
            if behind:
                found[TopicPartition(self.topic, number)] = behind
        return found

    def deliver(self, partition: int, records: Sequence[Record]) -> None:
        """Merges records into all tasks that are here."""
        at = 0
        while at < len(records) and self.members:
            size = chunk_of(records) * min(len(self.members), _LONGEST)
            chunk = _Chunk(self, TopicPartition(self.topic, partition), records[at : at + size])
            chunk.merge()
            at += size

    def take_in(self, member: T, state: ReplicaState) -> bool:
        """Whether a task, whose replica stands here, reads it together with the others from now on;
        not if it is in another incarnation."""
        assert state.step is not None
        assert state.next == self.next
        own, theirs = state.step.decoder, self.decoder
        if (own.incarnation, own.joining_at) != (theirs.incarnation, theirs.joining_at):
            return False
        state.step.decoder = theirs
        self.members.append(member)
        return True

    def part(self, member: T, taken_back: DecodedPiece | None = None) -> None:
        """A task reads the replica alone from here on; see `SharingTask.leave`."""
        self.members.remove(member)
        member.leave(self, taken_back)

    def let_go(self, replicas: Replicas) -> MergeStep | None:
        """Gives the replica of a task that has left a decoder of its own; returns its step, None if
        the replica is not merged from here any more."""
        state = replicas.states.get(self.attachment.replica.name)
        if state is None or state.step is None or state.step.decoder is not self.decoder:
            return None
        own = replicas.decoder
        if self.members:
            dialect = decoders_of(state.replica.format, own)
            state.step.decoder = self.decoder.forked(own, dialect)
        else:  # the decoder is nobody else's
            self.decoder.use(own)
        return state.step

    def check(self) -> None:
        """Asserts H2, and of H1 what it knows."""
        for partition, kept in self.kept.items():
            begins = [*(began for began, _ in kept), self.next[partition]]
            for (began, records), end in zip(kept, begins[1:], strict=True):
                offsets = [each.offset for each in records]
                assert offsets == sorted(offsets), "records are not in order"
                assert began <= offsets[0], "records are before their batch"
                assert offsets[-1] + 1 == end, "records are missing between two batches"

    def divided(self, elements: Sequence[Element]) -> Mapping[int, Sequence[Element]]:
        """By partition of the output, what of the elements is for it, in order; stables are for
        all, also for those that are not here."""
        assert self.router is not None
        if (batch := as_batch(elements)) is not None:
            return dict(enumerate(self.router.divided(batch)))
        parts = defaultdict[int, list[Element]](list)
        if any(type(e) is Stable for e in elements):
            parts.update((number, []) for number in range(self.router.partitions))
        payloads = [e.payload for e in elements if type(e) is not Stable]  # type: ignore[union-attr]
        routes = iter(self.router.partitions_of(payloads))
        for e in elements:
            if type(e) is Stable:
                for part in parts.values():
                    part.append(e)
            else:
                parts[next(routes)].append(e)
        return parts


class _Chunk(Generic[T]):
    """Records of one partition on their way to all tasks."""

    def __init__(self, shared: SharedInput[T], tp: TopicPartition, records: Sequence[Record]):
        self._shared, self._tp, self._records = shared, tp, records
        self._letters: list[DeadLetter] = []
        self._elements: list[Sequence[Element]] = []
        self._opened: dict[T, int] = {}
        """The tasks that are offered pieces, and how many dead letters there were before."""
        self._calm = INFINITY
        """Up to here no task holds a stable, or stops at it."""

    def merge(self) -> None:
        shared, partition = self._shared, self._tp.partition
        for member in list(shared.members):
            self._open(member, self._records)
        final = min((member.stable for member in self._opened), default=START)
        replays = shared.replays_input
        for piece in shared.decoder.pieces(
            partition, self._records, self._letters, by_stable=not replays, calm=self._calm,
            final=final, replay_input=replays,
        ):  # fmt: skip
            self._elements += (piece.elements, piece.last)
            self._offer(piece)
            if not shared.members:
                return  # what is behind is for each alone
            shared.next[partition] = piece.following
        for member in list(self._opened):
            self._close(member)

    def _offer(self, piece: DecodedPiece) -> None:
        shared = self._shared
        routed = shared.router is not None
        parts = shared.divided(piece.elements) if routed else {}
        # A piece in wire format ends with a stable alone, which is for all.
        lasts = shared.divided(piece.last) if routed and len(piece.last) > 1 else None
        for member in list(self._opened):
            mine = parts.get(member.partition, ()) if routed else piece.elements
            last = piece.last if lasts is None else lasts[member.partition]
            try:
                ruling = member.offer(piece, mine, last)
            except Exception as error:
                self._fail(member, error)
            else:
                if ruling is not Ruling.MERGE:
                    self._stop(member, piece, ruling)

    def _stop(self, member: T, piece: DecodedPiece, ruling: Ruling) -> None:
        """A guard looks at what was merged before the task goes on, if it does."""
        assert piece.record is not None
        if ruling is Ruling.WAIT:
            self._shared.part(member, piece)
        self._close(member)
        rest = bisect_right(self._records, piece.record.offset, key=attrgetter("offset"))
        if member in self._shared.members and rest < len(self._records):
            self._open(member, self._records[rest:])

    def _open(self, member: T, records: Sequence[Record]) -> None:
        try:
            self._calm = min(self._calm, member.open(self._tp, records))
        except Exception as error:
            self._fail(member, error)
        else:
            self._opened[member] = len(self._letters)

    def _close(self, member: T) -> None:
        letters = self._letters[self._opened.pop(member) :]
        try:
            member.close(letters, lambda: self._latest_for_others(member))
        except Exception as error:
            self._fail(member, error)
            return
        if member in self._shared.members and not member.goes_on(self._tp):
            self._shared.part(member)

    def _fail(self, member: T, error: Exception) -> None:
        self._opened.pop(member, None)
        member.fail(error)

    def _latest_for_others(self, member: T) -> int:
        """The latest start of its elements that were for other tasks."""
        router, mine = self._shared.router, member.partition
        if router is None:
            return START
        latest = START
        for elements in self._elements:
            if (batch := as_batch(elements)) is not None:
                latest = max(latest, batch.latest_elsewhere(router.routes_of(batch), mine))
                continue
            for e in elements:
                if type(e) is Stable or e.vs <= latest:  # type: ignore[union-attr]
                    continue
                if router.partition_of(e.payload) != mine:  # type: ignore[union-attr]
                    latest = e.vs  # type: ignore[union-attr]
        return latest
