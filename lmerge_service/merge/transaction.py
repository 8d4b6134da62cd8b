"""The transaction of a task: gathered while the last commit is under way, then committed.

Theory
    One transaction carries output, dead letters, evidence, rows of the output's table, chunks of a
    snapshot, and the commit record: up to which offsets the inputs are merged with it. While one
    commits, the next is gathered; so small ones commit at once, and under load they grow by
    themselves. A worker that is behind leaves some time between them (`apart`). Dead letters,
    evidence and rows whose topic cannot be written are left out, and counted (`outlets`); a table
    of which some were left out begins once more.

What happens on a crash at each await
    Nothing counts as emitted before its commit; the next owner finds out whether it took place.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import structlog

from lmerge_service.core.batches import as_batch, as_encoded, encoded_of, removals_among
from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.errors import FencedError, TransportError, UnwritableError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.sink import Origin, Outbox, Sink
from lmerge_service.kafka.transactional import BATCH_BYTES, retrieve
from lmerge_service.merge.commit_record import COMMIT_KEY, CommitRecord
from lmerge_service.merge.commit_turns import CommitTurns, Turn
from lmerge_service.merge.counting import Accounts
from lmerge_service.merge.findings.reporting import Reporting
from lmerge_service.merge.outlets import Outlets
from lmerge_service.merge.progress import TaskProgress
from lmerge_service.merge.snapshots.writer import Snapshots
from lmerge_service.merge.table.writer import TableWriter
from lmerge_service.merge.task_state import TaskState
from lmerge_service.merge.topic_monitor import TopicMonitor

if TYPE_CHECKING:
    from lmerge_engine import Batch

__all__ = ("OUTBOX_BYTES", "CommittedView", "FeedbackSink", "Transaction")

log = structlog.get_logger()

_OFFSETS_ONLY_SECONDS = 1.0
"""Offsets without output (a laggard's elements) are committed this often at the most."""
OUTBOX_BYTES = 32 << 20
"""With so many bytes, more or less, a transaction is full."""
_FINISH_SECONDS = 5.0
_PARTS = 8
"""A transaction is full once no more than one part in so many is free: of what is merged only some
is emitted, so that the rest would be filled by ever smaller pieces."""

FeedbackSink: TypeAlias = Callable[[int, Mapping[str, int], int], None]
"""Takes, after a commit: the partition, its inputs' points, and its stable point."""


@dataclass(frozen=True, slots=True)
class CommittedView:
    """What was known of the replicas at a commit record."""

    record: CommitRecord
    joined: Mapping[str, int]
    """Those that were joined, and their stable points."""

    @classmethod
    def of(cls, state: TaskState, record: CommitRecord) -> "CommittedView":
        """Of a state at its commit record."""
        inputs = state.merge.inputs.items()
        return cls(record, {name: each.stable for name, each in inputs if each.joined})


class Transaction:
    """Of one task, from taking over to giving up."""

    def __init__(
        self,
        state: TaskState,
        sink: Sink,
        topic_monitor: TopicMonitor,
        snapshots: Snapshots,
        reporting: Reporting,
        progress: TaskProgress,
        accounts: Accounts,
        outlets: Outlets,
        *,
        table: TableWriter | None,
        turns: CommitTurns,
        feedback: FeedbackSink,
        clock: Callable[[], float],
        apart: Callable[[], float] = lambda: 0.0,
        enough: Callable[[], int] = lambda: OUTBOX_BYTES,
    ):
        """`table` is the output's, if it has one; `turns` are shared by the tasks of a worker;
        `apart` is how many seconds commits are apart, unless one has `enough` bytes."""
        self._turn = Turn(turns)
        self.committing: asyncio.Task[None] | None = None
        """The commit under way."""
        self.view: CommittedView | None = None
        """As of the last commit; None before the first."""
        self._state = state
        self._sink = sink
        self._topic_monitor = topic_monitor
        self._snapshots = snapshots
        self._reporting = reporting
        self._progress = progress
        self._accounts = accounts
        self._outlets = outlets
        self._table = table
        self._topics = state.topology.output
        self._feedback = feedback
        self._clock = clock
        self._limit = state.topology.limits.batch_records
        self._headers = incarnation_headers(state.begun.incarnation, state.begun.correct_from)
        self._outbox, self._emitted = Outbox(), Counter[str]()
        self._committed: Outbox | None = None
        """The outbox of the commit under way."""
        self._moved = self._marked = 0
        """How often the commit record has changed, and how often it had at the last commit."""
        self._fetched = self._mark_due = self._started = 0.0
        self._apart, self._enough = apart, enough

    # --- gathering ------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Records that are not in a commit yet."""
        return len(self._outbox.records) + len(self._outbox.dead)

    @property
    def capacity(self) -> int:
        """How many records may be merged before it has more than it may; one at least."""
        return max(1, self._limit - self.waiting)

    @property
    def flushed(self) -> bool:
        """All emitted elements are committed."""
        return self.committing is None and not self._outbox.records

    def begin_batch(self) -> None:
        """Records were fetched, and are merged now."""
        if not self.waiting:
            self._fetched = self._clock()

    def move(self) -> None:
        """The next commit record differs from the last one."""
        self._moved += 1

    def merged(self, records: int) -> None:
        """It does by so many records."""
        self._moved += records
        self._snapshots.merged(records)

    def hasten(self) -> None:
        """The next commit record is due at once."""
        self._moved += 1
        self._mark_due = self._started = 0.0

    def append(self, elements: Sequence[Element], origins: Iterable[Origin] = ()) -> None:
        """Puts elements into the outbox: the key is the logical one; a stable has none. `origins`
        are of these elements."""
        begins = len(self._outbox.records)
        self._outbox.origins += [replace(each, index=begins + each.index) for each in origins]
        if (batch := as_batch(elements)) is not None:
            self._append_batch(batch)
            return
        self._append_each(elements)
        if self._table is not None:
            self._table.take(elements, self._outbox.records[begins:])

    def _append_each(self, elements: Sequence[Element]) -> None:
        outbox, emitted, key_of = self._outbox, self._emitted, self._state.router.key_of
        for element in elements:
            value = encode(element)
            kind = type(element)
            if kind is Stable:
                emitted["stables"] += 1
                outbox.records.append((None, value))
            else:
                emitted["inserts" if kind is Insert else "adjusts"] += 1
                emitted["removals"] += kind is Adjust and element.ve == element.vs  # type: ignore[union-attr]
                outbox.records.append((key_of(element.payload), value))  # type: ignore[union-attr]
            outbox.size += 2 * len(value)

    def _append_batch(self, batch: "Batch") -> None:
        outbox, router, keys = self._outbox, self._state.router, None
        if (encoded := as_encoded(outbox.records)) is None:
            encoded = encoded_of(outbox.records, self._headers, BATCH_BYTES)
            outbox.records = encoded
        if not router.keyed_by_payload:
            keys = [*map(router.key_of, batch.payloads())]
        begins = len(encoded)
        size, inserts, adjusts, removals, stables = encoded.extend(batch, keys)
        outbox.size += 2 * size
        emitted = self._emitted
        emitted["inserts"] += inserts
        emitted["adjusts"] += adjusts
        emitted["removals"] += removals
        emitted["stables"] += stables
        if self._table is not None:
            self._table.take_batch(batch, encoded, begins)

    def append_dead_letters(self, dead: Sequence[DeadLetter]) -> None:
        """Puts dead letters into the outbox."""
        self._outbox.dead += dead
        self._outbox.size += sum(len(letter.value or b"") for letter in dead)

    # --- committing -----------------------------------------------------------------------------

    async def publish(self) -> None:
        """Starts the next commit once the last one is through; waits for that when it must."""
        full = self._is_full
        if self.committing is not None and (self.committing.done() or full):
            await asyncio.shield(self.committing)
            self.committing = None
            self._turn.end()
        if self.committing is not None:
            return
        if not (full or self._is_due):
            self._turn.end()
            return
        while not self._turn.is_mine:
            if not full or (coming := self._turn.coming) is None:
                return
            await coming
        chunks = self._snapshots.chunks()
        self._outbox.state += chunks
        self._start(len(chunks))

    @property
    def is_at_ease(self) -> bool:
        """`publish` would neither begin nor end a commit now."""
        if self._is_full:
            return False
        return not self._is_due if self.committing is None else not self.committing.done()

    @property
    def _is_full(self) -> bool:
        room = self._limit - self.waiting
        return room <= self._limit // _PARTS or self._outbox.size >= OUTBOX_BYTES

    @property
    def _is_due(self) -> bool:
        """There is something to commit."""
        moved = self._marked != self._moved and self._clock() >= self._mark_due
        needed = self._snapshots.needs_transaction() or self._lacks_snapshots
        needed = needed or (self._table is not None and self._table.is_due)
        if not (needed or self.waiting or moved or self._reporting.pending):
            return False
        if self._outbox.size >= self._enough():
            return True
        return self._clock() >= self._started + self._apart()

    @property
    def _lacks_snapshots(self) -> bool:
        """One is due, and the older of two does not cover all that was published: however long
        nothing is published then, and whatever the output forgets, two recover from it."""
        if not self._snapshots.is_due or not self._state.output_records:
            return False
        places = self._state.snapshots
        return len(places) < 2 or places[1].records < self._state.counted

    @property
    def awaited(self) -> asyncio.Future[None] | None:
        """What the next commit waits for; None: for something to commit."""
        return self._turn.coming if self.committing is None else self.committing

    def _start(self, chunks: int) -> None:
        state = self._state
        state.transaction += 1
        state.output_records += len(self._outbox.records)
        self._gather_table()
        record, feedback = state.commit_record(), state.merge.feedback()
        view = CommittedView.of(state, record)
        if self._snapshots.is_due:
            stream = state.stream(record)
            self._snapshots.start(
                state.transaction, stream, state.snapshots, state.output, state.counted,
                is_small=state.is_small,
            )  # fmt: skip
        self._outbox.state.append((COMMIT_KEY, record.encoded()))
        self._outbox.headers = self._headers
        self._outbox.events += self._reporting.begin()
        self._accounts.begin(record)
        left_out = self._leave_out(self._outbox)
        commit = self._commit(
            self._outbox, self._emitted, self._fetched, view, feedback, chunks, left_out
        )
        self._progress.committing = self._clock()
        self._committed, self._outbox, self._emitted = self._outbox, Outbox(), Counter()
        self.committing = asyncio.create_task(commit, name="commit")
        self.committing.add_done_callback(retrieve)
        self._started = self._clock()
        self._marked, self._mark_due = self._moved, self._started + _OFFSETS_ONLY_SECONDS

    def _gather_table(self) -> None:
        """Puts the rows of the table into the outbox, and notes whether it is whole with them."""
        table, outbox = self._table, self._outbox
        self._state.table = None
        if table is None:
            return
        outbox.rows = table.gather()
        outbox.has_offsets = table.is_whole
        outbox.lapsed = table.lapse()
        outbox.begins, self._state.table = self._state.output, table.checkpoint

    async def _commit(
        self,
        outbox: Outbox,
        emitted: Counter[str],
        fetched: float,
        view: CommittedView,
        feedback: Mapping[str, int],
        chunks: int,
        left_out: Counter[str],
    ) -> None:
        record = view.record
        unchanged = partial(self._topic_monitor.unchanged, record.replicas)
        try:
            committed = await self._sink.commit(outbox, unchanged)
        except UnwritableError as error:
            why = error.why
            if error.needs_bytes is not None and error.topic == self._topics.topic:
                why += f"; {self._largest(outbox)}"
            self._outlets.refuse(error.topic, why, error.needs_bytes)
            raise
        self._progress.committing = None
        state, progress = self._state, self._progress
        if committed.output is not None:
            state.output, state.counted = committed.output, record.output_records
        place = self._snapshots.committed(chunks, committed.state)
        if place is not None:
            state.snapshots = (place, *state.snapshots[:1])
            progress.snapshot_seconds = self._snapshots.seconds
            self._moved += 1
        self._reporting.committed()
        self._accounts.commit()
        self._count_left_out(left_out)
        removals = removals_among(outbox.rows)
        progress.table.update({"rows": len(outbox.rows) - removals, "removals": removals})
        progress.table_whole = record.table is not None
        progress.transactions += 1
        progress.published.update(emitted)
        progress.committed_stable, self.view = record.stable, view
        self._feedback(state.partition, feedback, record.stable)
        if outbox.records:
            progress.latencies.append(self._clock() - fetched)
            progress.commits.observe(progress.latencies[-1])

    def _largest(self, outbox: Outbox) -> str:
        """The largest record for the output, and where it comes from, in words."""
        sizes = [len(key or b"") + len(value) for key, value in outbox.records]
        at = max(range(len(sizes)), key=sizes.__getitem__)
        text = f"the largest record of it has {sizes[at]} bytes"
        if not (before := [each for each in outbox.origins if each.index <= at]):
            return text
        origin = before[-1]
        state = self._state.replicas.merging(origin.tp)
        of = "" if state is None else f" of replica {state.name}"
        where = f"{origin.tp.topic}-{origin.tp.partition}, offsets {origin.first} to {origin.last}"
        return f"{text}, and came{of} with {where}"

    def _leave_out(self, outbox: Outbox) -> Counter[str]:
        """Removes from an outbox the records whose topic cannot be written; returns how many."""
        left_out = Counter[str]()
        if outbox.dead and self._outlets.leaves_out(self._topics.dead_letter_topic):
            left_out["dead_letters"], outbox.dead = len(outbox.dead), []
        if outbox.events and self._outlets.leaves_out(self._topics.events_topic):
            left_out["events"], outbox.events = len(outbox.events), []
        return left_out

    def _count_left_out(self, left_out: Counter[str]) -> None:
        unwritten = self._progress.unwritten
        topics = {
            "dead_letters": self._topics.dead_letter_topic,
            "events": self._topics.events_topic,
        }
        for what, count in left_out.items():
            before = unwritten[what]
            unwritten[what] += count
            self._progress.left_out = self._clock()
            if before.bit_length() < unwritten[what].bit_length():  # the 1st, 2nd, 4th, 8th, …
                fault = self._outlets.leaves_out(topics[what])
                why = "it can be written again" if fault is None else fault.why
                log.warning(
                    "not written", what=what, topic=topics[what], why=why, count=unwritten[what]
                )

    def give_up(self) -> None:
        """Cancels a commit that waits for a topic which the output does not need.

        Raises:
            UnwritableError: it did.
        """
        commit, outbox = self.committing, self._committed
        if commit is None or commit.done() or outbox is None:
            return
        topics = self._topics
        optional = {
            topics.dead_letter_topic: outbox.dead,
            topics.events_topic: outbox.events,
            topics.table_topic: outbox.rows,
        }
        for topic, records in optional.items():
            if records and (fault := self._outlets.leaves_out(topic)) is not None:
                commit.cancel()
                self._outlets.refuse(topic, fault.why, fault.needs_bytes)
                message = f"committing: topic {topic} {fault.why}"
                raise UnwritableError(message, topic=topic, why=fault.why)

    async def finish(self) -> None:
        """Waits for the last commit when the task stops; the next owner sees whether it failed."""
        commit, self.committing = self.committing, None
        self._progress.committing = None
        if commit is None:
            self._turn.end()
            return
        try:
            async with asyncio.timeout(_FINISH_SECONDS):
                await commit
        except asyncio.CancelledError:
            if not commit.cancelled():  # it is us who are
                raise
        except (TimeoutError, TransportError, FencedError) as error:
            # Raised from here, it would take the place of the cancellation that stops the task.
            log.warning("stopped while committing; the next start finds out", error=str(error))
        finally:
            self._turn.end()
