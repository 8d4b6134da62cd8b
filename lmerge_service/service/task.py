"""The merge task: consume, merge, publish, for one output partition, exactly once.

Theory
    A transaction carries merged elements, dead letters and the input offsets they rest on. While
    one commits, the next batch is merged; nothing of a batch counts as said before its commit.

        poll → decode → merge → outbox ──commit──▶ output, dead letters, offsets
                  ▲               │ (merging goes on meanwhile)
                  └─── operator ──┘

Recovery
    The operator's state is a function of the input prefixes and the output prefix (promise 8).
    `open` fences the owner before, reads the output from its beginning to its end, then every
    replica from its beginning to the committed offset, and goes on from there. After a failed
    commit the whole task is closed and opened anew: the same path as after `kill -9`.

What happens on a crash at each await
    in open: nothing has been written. In a poll: uncommitted merging is forgotten. In a commit:
    the next open finds out whether it took place (`kafka.sink`).
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import structlog

from lmerge_service.core import Breach, Operator, lmerge
from lmerge_service.elements import START, Element, Stable
from lmerge_service.errors import StateError, TransportError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.sink import Outbox, Sink
from lmerge_service.kafka.source import Batches, Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.service.ingest import Ingest
from lmerge_service.topology import Replica, Topology

__all__ = ("MergeTask", "Progress", "ReplicaState")

log = structlog.get_logger()

_IDLE_POLL_SECONDS = 1.0
_OFFSETS_ONLY_SECONDS = 1.0
"""Offsets without output (a laggard's elements) are committed this often at the most."""


@dataclass(slots=True)
class ReplicaState:
    """What the task knows about one replica; None where it does not know."""

    replica: Replica
    ingest: Ingest | None = None
    held_out: str | None = None
    """Why the replica is not merged, in words."""
    records: int = 0
    last_record: float | None = None
    """Wall-clock seconds at which its last record was read."""
    lag: int | None = None
    """Records and markers in its topic that have not been read."""


@dataclass(slots=True)
class Progress:
    """What the task has done since it was opened."""

    elements_in: int = 0
    transactions: int = 0
    dead_letters: dict[str, int] = field(default_factory=dict)
    breaches: dict[tuple[str, str], int] = field(default_factory=dict)
    committed_stable: int = START
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=2_000))
    """Seconds from a batch's read to its commit, latest last."""
    recovery_seconds: float = 0.0
    rebuilds: int = 0


class MergeTask:
    """One output partition's merge; `open`, then `run` until cancelled, then `close`."""

    def __init__(self, topology: Topology):
        self.topology = topology
        self.replicas = {each.name: ReplicaState(each) for each in topology.replicas}
        self.progress = Progress()
        self.merge: Operator = lmerge(topology.case)
        limits = topology.limits
        self._decoder = WireDecoder(
            nfc=topology.nfc,
            max_record_bytes=limits.max_record_bytes,
            max_depth=limits.max_nesting,
        )
        self._widths: dict[str, int] = {}
        self._by_topic = {state.replica.topic: state for state in self.replicas.values()}
        self._positions: dict[TopicPartition, int] = {}
        self._found_widths: dict[str, int] | None = None
        self._outbox = Outbox()
        self._committing: asyncio.Task[None] | None = None
        self._fetched = self._offsets_due = 0.0

    @property
    def group(self) -> str:
        return f"lmerge.{self.topology.name}"

    # --- opening ------------------------------------------------------------------------------

    async def open(self, stack: AsyncExitStack) -> None:
        """Takes the output over, rebuilds the operator and stands ready to go on.

        Raises:
            TransportError: Kafka cannot be reached, or refuses.
            StateError: the output or a replica's history is not what the merge needs.
        """
        started = time.monotonic()
        topology, limits = self.topology, self.topology.limits
        bootstrap = topology.kafka.bootstrap
        largest = 2 * limits.max_record_bytes + 4096  # the payload is both in key and in value
        self._topics = await stack.enter_async_context(Topics(bootstrap))
        await self._prepare_topics(largest)
        self._sink = await stack.enter_async_context(
            Sink(
                bootstrap,
                transactional_id=f"{self.group}.0",
                group=self.group,
                topic=topology.output.topic,
                dead_letter_topic=topology.output.dead_letter_topic,
                max_record_bytes=largest,
            )
        )
        self._source = await stack.enter_async_context(
            Source(bootstrap, max_record_bytes=limits.max_record_bytes)
        )
        await self._rebuild()
        self.progress.recovery_seconds = time.monotonic() - started

    async def _prepare_topics(self, largest: int) -> None:
        config = {"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": str(largest)}
        for topic in (self.topology.output.topic, self.topology.output.dead_letter_topic):
            await self._topics.ensure(topic, config=config)
            await self._topics.require_message_bytes(topic, largest)

    async def _rebuild(self) -> None:
        self.merge = lmerge(self.topology.case)
        await self._load_output()
        self._widths = await self._topics.partitions(self._by_topic)
        partitions = [TopicPartition(t, p) for t, n in self._widths.items() for p in range(n)]
        known = await self._topics.committed(self.group)
        committed = {tp: offset for tp, offset in known.items() if tp in set(partitions)}
        beginnings = await self._source.beginnings(partitions) if partitions else {}
        for topic, state in self._by_topic.items():
            self._attach(state, topic, beginnings, committed)
        missed = await self._replay(beginnings, committed)
        self._positions = {
            tp: committed.get(tp, beginnings[tp]) for tp in partitions if self._merged(tp)
        }
        self._source.assign(self._positions)
        self.merge.breaches()  # they were reported when they happened
        self._outbox = Outbox(records=[self._record(element) for element in missed])
        self.progress.committed_stable = self.merge.max_stable
        log.info(
            "rebuilt",
            output_stable=self.merge.max_stable,
            live_events=len(self.merge),
            replayed=sum(committed.values()),
            missed=len(missed),
        )

    async def _load_output(self) -> None:
        output = TopicPartition(self.topology.output.topic, 0)
        starts = await self._source.beginnings([output])
        if starts[output] > 0:
            raise StateError(
                f"{output.topic} begins at offset {starts[output]}: its beginning, which the "
                "merge is rebuilt from, was deleted; set retention.ms=-1 or use a new topic"
            )
        # A transaction that some dead writer left open hides what we committed behind it. So the
        # end is the high watermark, and the backlog waits until nothing before it is open.
        ends = await self._source.high_watermarks([output])
        async for _, records in self._source.backlog(starts, ends):
            for record in records:
                self.merge.load_output([self._decode_output(record.offset, record.value)])

    def _decode_output(self, offset: int, value: bytes | None) -> Element:
        try:
            return self._decoder.decode(value)
        except Exception as error:
            raise StateError(
                f"{self.topology.output.topic}-0 at offset {offset} is not an element ({error}): "
                "something else writes to this output"
            ) from error

    def _attach(
        self,
        state: ReplicaState,
        topic: str,
        beginnings: dict[TopicPartition, int],
        committed: dict[TopicPartition, int],
    ) -> None:
        """Attaches a replica whose whole history, or a stated joining point, can be had."""
        state.ingest, state.held_out = None, None
        width = self._widths.get(topic)
        if width is None:
            state.held_out = f"topic {topic} does not exist yet"
            return
        own = [TopicPartition(topic, number) for number in range(width)]
        cut = [tp for tp in own if beginnings[tp]]
        known = state.replica.joining_at is not None and not any(tp in committed for tp in cut)
        if cut and not known:
            state.held_out = (
                f"{topic}-{cut[0].partition} begins at offset {beginnings[cut[0]]}: what was "
                "before is gone; give the replica a joining_at, or a new topic"
            )
            log.warning("replica held out", replica=state.replica.name, why=state.held_out)
            return
        joining_at = START if state.replica.joining_at is None else state.replica.joining_at
        state.ingest = Ingest(
            self.merge, state.replica.name, self._decoder, partitions=width, joining_at=joining_at
        )

    def _merged(self, tp: TopicPartition) -> bool:
        return self._by_topic[tp.topic].ingest is not None

    async def _replay(
        self, beginnings: dict[TopicPartition, int], committed: dict[TopicPartition, int]
    ) -> list[Element]:
        """Feeds every replica's committed prefix; what comes out was missing from the output."""
        ends = {tp: offset for tp, offset in committed.items() if self._merged(tp)}
        gone = (
            {
                tp: end
                for tp, offset in (await self._source.ends(list(ends))).items()
                if offset < (end := ends[tp])
            }
            if ends
            else {}
        )
        for tp in gone:
            self._hold_out(tp, "holds fewer records than were merged from it: it was made anew")
        ends = {tp: offset for tp, offset in ends.items() if self._merged(tp)}
        missed: list[Element] = []
        async for tp, records in self._source.backlog({tp: beginnings[tp] for tp in ends}, ends):
            ingest = self._by_topic[tp.topic].ingest
            assert ingest is not None
            ingest.take(records, missed, [])
        return missed

    def _hold_out(self, tp: TopicPartition, why: str) -> None:
        state = self._by_topic[tp.topic]
        if state.ingest is None:
            return
        state.ingest = None
        state.held_out = f"{tp.topic}-{tp.partition} {why}"
        self.merge.detach(state.replica.name)
        log.warning("replica held out", replica=state.replica.name, why=state.held_out)

    # --- running ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Merges until cancelled; a commit in flight is finished first (bounded).

        Raises:
            FencedError: another instance has taken over.
            TransportError: a commit failed or Kafka went away; close and open anew.
        """
        poll: asyncio.Task[Batches] | None = None
        try:
            while True:
                poll = poll or asyncio.create_task(self._poll(), name="poll")
                waiting: set[asyncio.Task[Any]] = {poll}
                if self._committing is not None:
                    waiting.add(self._committing)
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if poll.done():
                    batches, poll = poll.result(), None
                    self._merge_batches(batches)
                    await self._follow_topics()
                await self._publish()
        finally:
            if poll is not None:
                poll.cancel()
                await asyncio.gather(poll, return_exceptions=True)
            await self._finish()

    async def _poll(self) -> Batches:
        room = self.topology.limits.batch_records - len(self._outbox.records)
        return await self._source.poll(_IDLE_POLL_SECONDS, max(room, 1))

    async def _publish(self) -> None:
        """Starts the next commit once the last one is through; waits for that when it must."""
        full = len(self._outbox.records) >= self.topology.limits.batch_records
        if self._committing is not None and (self._committing.done() or full):
            await self._committing
            self._committing = None
        now = time.monotonic()
        if self._committing is None and self._worth_committing(now >= self._offsets_due):
            outbox, self._outbox = self._outbox, Outbox()
            commit = self._commit(outbox, self._fetched, self.merge.max_stable)
            self._committing = asyncio.create_task(commit, name="commit")
            self._offsets_due = now + _OFFSETS_ONLY_SECONDS

    @property
    def settled(self) -> bool:
        """All that was merged and has something to say is committed."""
        return self._committing is None and not self._outbox.records

    def reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Every one of these offsets has been read."""
        return all((self._source.position(tp) or 0) >= end for tp, end in ends.items())

    def _worth_committing(self, offsets_due: bool) -> bool:
        outbox = self._outbox
        return bool(outbox.records or outbox.dead or (outbox.offsets and offsets_due))

    async def _commit(self, outbox: Outbox, fetched: float, stable: int) -> None:
        await self._sink.commit(outbox)
        self.progress.transactions += 1
        self.progress.committed_stable = stable
        if outbox.records:
            self.progress.latencies.append(time.monotonic() - fetched)

    async def _finish(self) -> None:
        """Waits for the last commit when the task stops; its failure is the next owner's to see."""
        commit, self._committing = self._committing, None
        if commit is None:
            return
        try:
            async with asyncio.timeout(5):
                await commit
        except (TimeoutError, TransportError) as error:
            log.warning("stopped while committing; the next start finds out", error=str(error))

    def _merge_batches(self, batches: Batches) -> None:
        out: list[Element] = []
        dead: list[DeadLetter] = []
        now = time.time()
        if not self._outbox:
            self._fetched = time.monotonic()
        for tp, records in batches.items():
            state = self._by_topic[tp.topic]
            if state.ingest is None:
                continue
            state.ingest.take(records, out, dead)
            self._outbox.offsets[tp] = records[-1].offset + 1
            state.records += len(records)
            state.last_record = now
            self.progress.elements_in += len(records)
        self._outbox.records.extend(map(self._record, out))
        self._outbox.dead += dead
        self._report(dead, self.merge.breaches())

    def _record(self, element: Element) -> tuple[bytes | None, bytes]:
        """(key, value): the key is the canonical payload; a stable has none."""
        key = None if type(element) is Stable else element.payload  # type: ignore[union-attr]
        return key, encode(element)

    def _report(self, dead: Iterable[DeadLetter], breaches: Iterable[Breach]) -> None:
        for letter in dead:
            counts = self.progress.dead_letters
            counts[letter.replica] = counts.get(letter.replica, 0) + 1
            if counts[letter.replica].bit_count() == 1:  # the 1st, 2nd, 4th, 8th, …
                log.warning(
                    "not an element", replica=letter.replica, topic=letter.topic,
                    partition=letter.partition, offset=letter.offset, reason=letter.reason,
                    count=counts[letter.replica],
                )  # fmt: skip
        for breach in breaches:
            key = (breach.input, breach.kind.value)
            found = self.progress.breaches[key] = self.progress.breaches.get(key, 0) + 1
            if found.bit_count() == 1:
                log.warning(
                    "breach", replica=breach.input, incarnation=breach.incarnation,
                    kind=breach.kind.value, element=repr(breach.element), kept=breach.kept,
                    count=found,
                )  # fmt: skip

    # --- topics that change ---------------------------------------------------------------------

    async def _follow_topics(self) -> None:
        """Holds out replicas whose position is gone, takes in topics that appeared or widened."""
        if self._source.lost:
            for tp in self._source.lost:
                self._hold_out(tp, "no longer has the offset to go on from: truncated or made anew")
            self._source.lost.clear()
            self._reassign({})
        if self._found_widths is not None:
            widths, self._found_widths = self._found_widths, None
            grown = {t: n for t, n in widths.items() if n > self._widths.get(t, 0)}
            if grown:
                await self._take_in(grown)

    async def _take_in(self, grown: dict[str, int]) -> None:
        fresh = [
            TopicPartition(topic, p)
            for topic, width in grown.items()
            for p in range(self._widths.get(topic, 0), width)
        ]
        beginnings = await self._source.beginnings(fresh)
        for topic, width in grown.items():
            state = self._by_topic[topic]
            before, self._widths[topic] = self._widths.get(topic, 0), width
            if before == 0:
                self._attach(state, topic, beginnings, {})
            elif state.ingest is not None:
                state.ingest.widen(width)
            log.info("replica topic found", topic=topic, partitions=width)
        self._reassign({tp: offset for tp, offset in beginnings.items() if self._merged(tp)})

    def _reassign(self, fresh: dict[TopicPartition, int]) -> None:
        """Keeps every position and adds new partitions."""
        kept = {
            tp: position
            for tp in self._positions
            if self._merged(tp) and (position := self._source.position(tp)) is not None
        }
        self._positions = kept | fresh
        self._source.assign(self._positions)

    async def watch(self, seconds: float = 2.0) -> None:
        """Measures lag from the topics' ends and looks for new topics, until cancelled."""
        while True:
            try:
                self._found_widths = await self._topics.partitions(self._by_topic)
                there = [tp for tp in self._positions if tp.topic in self._found_widths]
                self._measure_lag(await self._source.ends(there) if there else {})
            except TransportError as error:
                for state in self.replicas.values():
                    state.lag = None
                log.warning("cannot see the topics", error=str(error))
            await asyncio.sleep(seconds)

    def _measure_lag(self, ends: dict[TopicPartition, int]) -> None:
        lags: dict[str, int] = {}
        for tp, end in ends.items():
            position = self._source.position(tp)
            if position is not None:
                lags[tp.topic] = lags.get(tp.topic, 0) + max(0, end - position)
        for topic, state in self._by_topic.items():
            state.lag = lags.get(topic)
