"""The merge task: consume, merge, publish, for one output partition, exactly once.

Theory
    A transaction carries merged elements, dead letters and the input offsets they rest on. While
    one commits, the next batch is merged; nothing of a batch counts as said before its commit.

        poll → decode → merge → outbox ──commit──▶ output, dead letters, offsets
                  ▲               │ (merging goes on meanwhile)
                  └─── operator ──┘

Recovery
    The operator's state is a function of the input prefixes and the output prefix. `open` fences
    the owner before, reads the output from its beginning to its end, then every replica from
    where it was merged first to the committed offset, and goes on from there. After a failed
    commit the whole task is opened anew: the same path as after `kill -9`.

What happens on a crash at each await
    in open: nothing has been written. In a poll: uncommitted merging is forgotten. In a commit:
    the next open finds out whether it took place (`kafka.sink`).
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import structlog

from lmerge_service.core import Breach, Operator, lmerge
from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError, StateError, TransportError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.payload import DEEPEST
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.sink import OffsetAndMetadata, Outbox, Sink
from lmerge_service.kafka.source import Batches, Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.service.connection import connection_of
from lmerge_service.service.replicas import Replicas
from lmerge_service.topology import Topology

__all__ = ("MergeTask", "Progress")

log = structlog.get_logger()

_IDLE_POLL_SECONDS = 1.0
_OFFSETS_ONLY_SECONDS = 1.0
"""Offsets without output (a laggard's elements) are committed this often at the most."""
_OUTBOX_BYTES = 32 << 20
_WATCH_SECONDS = 2.0
_OVERHEAD_BYTES = 4096


@dataclass(slots=True)
class Progress:
    """What this process has done; its counts never fall, whatever is rebuilt."""

    elements_in: int = 0
    published: Counter[str] = field(default_factory=Counter)
    """Committed inserts, adjusts (removals among them, and counted apart) and stables."""
    transactions: int = 0
    switches: int = 0
    """How often the leading replica changed."""
    committed_stable: int = START
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=2_000))
    """Seconds from a batch's read to its commit, latest last."""
    recovery_seconds: float = 0.0
    rebuilds: int = 0
    unreachable: str | None = None
    """Why Kafka does not answer at the moment."""


class MergeTask:
    """One output partition's merge; `open`, then `run` until cancelled."""

    def __init__(self, topology: Topology):
        self.topology = topology
        self.progress = Progress()
        self.merge: Operator = lmerge(topology.resolved_case, topology.policy.policy())
        limits = topology.limits
        decoder = WireDecoder(
            nfc=topology.nfc,
            max_record_bytes=limits.max_record_bytes,
            max_depth=limits.max_nesting,
        )
        self.replicas = Replicas(topology.replicas, decoder)
        self._clear()

    def _clear(self) -> None:
        """Forgets whatever was merged and not committed."""
        self._positions: dict[TopicPartition, int] = {}
        self._found_widths: dict[str, int] | None = None
        self._vanished: set[str] = set()
        self._outbox, self._said = Outbox(), Counter[str]()
        self._committing: asyncio.Task[None] | None = None
        self._fetched = self._offsets_due = time.monotonic()

    @property
    def group(self) -> str:
        return f"lmerge.{self.topology.name}"

    # --- opening ------------------------------------------------------------------------------

    async def open(self, stack: AsyncExitStack) -> None:
        """Takes the output over, rebuilds the operator and stands ready to go on.

        Raises:
            TransportError: Kafka cannot be reached, or refuses.
            ConfigurationError: an own topic is set up in a way that loses what it holds.
            StateError: the output is not what this merge has written.
        """
        started = time.monotonic()
        topology, limits = self.topology, self.topology.limits
        connection, output = connection_of(topology.kafka), topology.output
        largest = 2 * limits.max_record_bytes + _OVERHEAD_BYTES  # payload in key and in value
        self._topics = await stack.enter_async_context(Topics(connection))
        await self._prepare_topics(largest)
        self._sink = await stack.enter_async_context(
            Sink(
                connection,
                transactional_id=f"lmerge.{output.topic}.0",
                group=self.group,
                topic=output.topic,
                dead_letter_topic=output.dead_letter_topic,
                max_record_bytes=largest,
            )
        )
        self._source = await stack.enter_async_context(
            Source(connection, max_record_bytes=limits.max_record_bytes)
        )
        await self._rebuild()
        self.progress.unreachable = None
        self.progress.recovery_seconds = time.monotonic() - started

    async def _prepare_topics(self, largest: int) -> None:
        config = {"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": str(largest)}
        output, letters = self.topology.output.topic, self.topology.output.dead_letter_topic
        for topic in (output, letters):
            await self._topics.ensure(topic, config=config)
        why = "the merge is rebuilt from every record of it"
        for key, must in (
            ("retention.ms", "-1"),
            ("retention.bytes", "-1"),
            ("cleanup.policy", "delete"),
        ):
            await self._topics.require(output, key, must.__eq__, f"must be {must}: {why}")
        room = f"must be {largest} at least, or limits.max_record_bytes lower"
        for topic in (output, letters):
            await self._topics.require(
                topic, "max.message.bytes", lambda value: int(value) >= largest, room
            )

    async def _rebuild(self) -> None:
        self._clear()
        self.merge = lmerge(self.topology.resolved_case, self.topology.policy.policy())
        await self._load_output()
        replicas = self.replicas
        replicas.start(self.merge)
        widths = await self._topics.partitions(replicas.by_topic)
        partitions = [TopicPartition(t, p) for t, n in widths.items() for p in range(n)]
        known = await self._topics.committed(self.group)
        committed = {tp: known[tp] for tp in partitions if tp in known}
        beginnings = await self._source.beginnings(partitions) if partitions else {}
        for topic in replicas.by_topic:
            replicas.attach(topic, widths.get(topic), beginnings, committed)
        missed = await self._replay(committed)
        self._positions = {
            tp: committed[tp].offset if tp in committed else beginnings[tp]
            for tp in partitions
            if replicas.is_merged(tp)
        }
        self._source.assign(self._positions)
        self.merge.breaches()  # they were reported when they happened
        self._say(missed)
        self.progress.committed_stable = self.merge.max_stable
        log.info(
            "rebuilt",
            output_stable=self.merge.max_stable,
            live_events=len(self.merge),
            replayed=sum(at.offset for at in committed.values()),
            missed=len(missed),
        )

    async def _load_output(self) -> None:
        output = TopicPartition(self.topology.output.topic, 0)
        starts = await self._source.beginnings([output])
        if starts[output] > 0:
            raise StateError(
                f"{output.topic} begins at offset {starts[output]}: its beginning, which the "
                "merge is rebuilt from, was deleted; use a new output topic"
            )
        # What we wrote is read as it is, whatever limits the topology has now.
        decoder = WireDecoder(max_record_bytes=1 << 30, max_depth=DEEPEST)
        # A transaction that some dead writer left open hides what we committed behind it. So the
        # end is the high watermark, and the backlog waits until nothing before it is open.
        ends = await self._source.high_watermarks([output])
        async for _, records in self._source.backlog(starts, ends):
            for record in records:
                try:
                    self.merge.load_output([decoder.decode(record.value)])
                except (ElementError, StateError) as error:
                    raise StateError(
                        f"{output.topic}-0 at offset {record.offset}: {error} (something else "
                        "writes to this output)"
                    ) from error

    async def _replay(self, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> list[Element]:
        """Feeds every replica's committed prefix; what comes out was missing from the output."""
        replicas = self.replicas
        upto = {tp: at.offset for tp, at in committed.items() if replicas.is_merged(tp)}
        ends = await self._source.ends(list(upto)) if upto else {}
        for tp, end in ends.items():
            if end < upto[tp] and replicas.is_merged(tp):
                why = "holds fewer records than were merged from it: it was made anew"
                replicas.hold_out(tp.topic, why)
        upto = {tp: offset for tp, offset in upto.items() if replicas.is_merged(tp)}
        starts = {tp: replicas.by_topic[tp.topic].begins[tp] for tp in upto}
        missed: list[Element] = []
        async for tp, records in self._source.backlog(starts, upto):
            missed += replicas.replay(tp, records)
        return missed

    # --- running ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Merges until cancelled; a commit in flight is finished first (bounded).

        Raises:
            FencedError: another instance has taken over.
            TransportError: a commit failed or Kafka went away; open anew.
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
        room = self.topology.limits.batch_records - self._waiting()
        return await self._source.poll(_IDLE_POLL_SECONDS, max(room, 1))

    def _waiting(self) -> int:
        return len(self._outbox.records) + len(self._outbox.dead)

    async def _publish(self) -> None:
        """Starts the next commit once the last one is through; waits for that when it must."""
        limits = self.topology.limits
        full = self._waiting() >= limits.batch_records or self._outbox.size >= _OUTBOX_BYTES
        if self._committing is not None and (self._committing.done() or full):
            await asyncio.shield(self._committing)
            self._committing = None
        now = time.monotonic()
        if self._committing is None and self._worth_committing(now >= self._offsets_due):
            commit = self._commit(self._outbox, self._said, self._fetched, self.merge.max_stable)
            self._outbox, self._said = Outbox(), Counter()
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
        return bool(self._waiting() or (self._outbox.offsets and offsets_due))

    async def _commit(
        self, outbox: Outbox, said: Counter[str], fetched: float, stable: int
    ) -> None:
        await self._sink.commit(outbox)
        self.progress.transactions += 1
        self.progress.published.update(said)
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
        switches = self.merge.stats().switches
        if not self._waiting():
            self._fetched = time.monotonic()
        for tp, records in batches.items():
            if self.replicas.is_merged(tp):
                self.replicas.take(tp, records, out, dead)
                offset = self.replicas.offset_after(tp, records[-1].offset)
                self._outbox.offsets[tp] = offset
                self.progress.elements_in += len(records)
        self.progress.switches += self.merge.stats().switches - switches
        self._say(out)
        self._outbox.dead += dead
        self._outbox.size += sum(len(letter.value or b"") for letter in dead)
        self._report(dead, self.merge.breaches())

    def _say(self, elements: Iterable[Element]) -> None:
        """Puts elements into the outbox: the key is the canonical payload; a stable has none."""
        outbox, said = self._outbox, self._said
        for element in elements:
            value = encode(element)
            kind = type(element)
            if kind is Stable:
                said["stables"] += 1
                outbox.records.append((None, value))
            else:
                said["inserts" if kind is Insert else "adjusts"] += 1
                said["removals"] += kind is Adjust and element.ve == element.vs  # type: ignore[union-attr]
                outbox.records.append((element.payload, value))  # type: ignore[union-attr]
            outbox.size += 2 * len(value)

    def _report(self, dead: Sequence[DeadLetter], breaches: Iterable[Breach]) -> None:
        left = Counter(letter.replica for letter in dead)
        for letter in dead:
            left[letter.replica] -= 1
            count = self.replicas.states[letter.replica].counts["dead"] - left[letter.replica]
            if count.bit_count() == 1:  # the 1st, 2nd, 4th, 8th, …
                log.warning(
                    "not an element", replica=letter.replica, topic=letter.topic,
                    partition=letter.partition, offset=letter.offset, reason=letter.reason,
                    count=count,
                )  # fmt: skip
        for breach in breaches:
            state = self.replicas.states[breach.input]
            state.troubled = time.monotonic()
            state.breaches[breach.kind.value] += 1
            if (count := state.breaches[breach.kind.value]).bit_count() == 1:
                log.warning(
                    "breach", replica=breach.input, incarnation=breach.incarnation,
                    kind=breach.kind.value, element=repr(breach.element), kept=breach.kept,
                    count=count,
                )  # fmt: skip

    # --- topics that change ---------------------------------------------------------------------

    async def _follow_topics(self) -> None:
        """Holds out replicas that cannot be read on, takes in topics that appeared or widened."""
        lost, self._source.lost = self._source.lost, {}
        gone = {tp.topic: f"partition {tp.partition} {why}" for tp, why in lost.items()}
        gone |= dict.fromkeys(self._vanished, "was deleted")
        self._vanished = set()
        for topic, why in gone.items():
            self.replicas.hold_out(topic, why)
        if gone:
            offsets = self._outbox.offsets
            self._outbox.offsets = {tp: at for tp, at in offsets.items() if tp.topic not in gone}
            self._reassign({})
        widths, self._found_widths = self._found_widths or {}, None
        grown = {t: n for t, n in widths.items() if n > self.replicas.widths.get(t, 0)}
        if grown:
            await self._take_in(grown)

    async def _take_in(self, grown: Mapping[str, int]) -> None:
        replicas = self.replicas
        fresh = [
            TopicPartition(topic, p)
            for topic, width in grown.items()
            for p in range(replicas.widths.get(topic, 0), width)
        ]
        beginnings = await self._source.beginnings(fresh)
        for topic, width in grown.items():
            if topic in replicas.widths:
                replicas.widen(topic, width, beginnings)
            else:
                replicas.attach(topic, width, beginnings, {})
            log.info("replica topic found", topic=topic, partitions=width)
        self._reassign({tp: at for tp, at in beginnings.items() if replicas.is_merged(tp)})

    def _reassign(self, fresh: dict[TopicPartition, int]) -> None:
        """Keeps every position and adds new partitions."""
        kept = {
            tp: position
            for tp in self._positions
            if self.replicas.is_merged(tp) and (position := self._source.position(tp)) is not None
        }
        self._positions = kept | fresh
        self._source.assign(self._positions)

    async def watch(self) -> None:
        """Measures lag from the topics' ends and looks for topics that come and go."""
        missing: Counter[str] = Counter()
        while True:
            try:
                await self._look(missing)
                self.progress.unreachable = None
            except TransportError as error:
                self.progress.unreachable = str(error)
                for state in self.replicas.states.values():
                    state.lag = None
                log.warning("cannot see the topics", error=str(error))
            await asyncio.sleep(_WATCH_SECONDS)

    async def _look(self, missing: Counter[str]) -> None:
        found = await self._topics.partitions(self.replicas.by_topic, seconds=_WATCH_SECONDS)
        for topic in self.replicas.widths.keys() - found.keys():
            missing[topic] += 1
            if missing[topic] == 2:  # once may be a broker that has just started
                self._vanished.add(topic)
        for topic in found:
            missing.pop(topic, None)
        self._found_widths = found
        there = [tp for tp in self._positions if tp.topic in found]
        ends = await self._source.ends(there, seconds=_WATCH_SECONDS) if there else {}
        lags: Counter[str] = Counter()
        for tp, end in ends.items():
            if (position := self._source.position(tp)) is not None:
                lags[tp.topic] += max(0, end - position)
        for topic, state in self.replicas.by_topic.items():
            known = any(tp.topic == topic for tp in ends)
            state.lag = lags[topic] if known else None
