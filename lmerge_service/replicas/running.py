"""A replica as a process: from its start to the end of its facts, or to SIGTERM.

Theory
    read ─▶ decode, late? ─▶ route ─▶ one network per output partition ─▶ gather ─▶ commit
                                                                            │ meanwhile: read

    One task does all of it; batches are small enough that HTTP is served between them. What is not
    committed is nowhere: after `kill -9` the next process goes on from the last commit
    (`recovery`).

Who owns what
    `QueryReplica.run` owns the clients, the HTTP server, and the one transactional producer, whose
    transactional.id is the output topic: a second process fences the first.

What happens on a crash at each await
    Before a commit returns: the next process finds out whether it took place. An error ends the
    process before the batch in which it was found is committed; what was committed stays.
"""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from enum import StrEnum
from typing import Final

import structlog

from lmerge_service.elements import INFINITY, START, Element
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.feedback import feedback_topic
from lmerge_service.kafka.feedback import Feedback
from lmerge_service.kafka.partitions_sink import PartitionsSink
from lmerge_service.kafka.source import Source
from lmerge_service.kafka.topics import Topics
from lmerge_service.kafka.transactional import BATCH_BYTES
from lmerge_service.merge.snapshots.writer import Snapshots
from lmerge_service.merge.tuning import quieten_garbage_collector, without_garbage_collector
from lmerge_service.replicas.commit_record import state_topic
from lmerge_service.replicas.partitions import Partitions
from lmerge_service.replicas.reading import InputReading, Portion
from lmerge_service.replicas.recovery import QueryRecovery, Recovered
from lmerge_service.replicas.request import ReplicaRequest
from lmerge_service.replicas.starting import Anew, Resume, Start, decide, preview
from lmerge_service.replicas.transaction import CommitCounts, ReplicaTransaction

__all__ = ("QueryPhase", "QueryReplica", "dead_letter_topic")

log = structlog.get_logger()

_POLL_SECONDS: Final = 0.2
_BUSY_POLL_SECONDS: Final = 0.005
"""While something waits to be committed."""
_STATE_SECONDS: Final = 1.0
"""How often the state is measured."""
_WARN_AT: Final = 0.8
_ENTRY_BYTES: Final = 150
"""Of an entry of state, until a snapshot has shown how many it takes."""


class QueryPhase(StrEnum):
    STARTING = "starting"
    RECOVERING = "recovering"
    RUNNING = "running"
    ENDED = "ended"


def dead_letter_topic(output: str) -> str:
    """Where records go that are no facts."""
    return f"{output}.dead-letters"


class QueryReplica:
    """One replica of a query, by one plan."""

    def __init__(self, request: ReplicaRequest, clock: Callable[[], float] = time.monotonic):
        self.request = request
        self.clock = clock
        self.phase = QueryPhase.STARTING
        self.start: Start | None = None
        """What it began with."""
        self.state: Recovered | None = None
        self.transaction: ReplicaTransaction | None = None
        self.reading: InputReading | None = None
        self.feedback: Feedback | None = None
        self.counts = CommitCounts()
        self.point = START
        """What ends before it is left out."""
        self.state_bytes: float = 0
        """Of a snapshot of what is held now, by estimate."""
        self.recovery_seconds: float | None = None
        self.refused: Counter[str] = Counter()
        """Elements of inputs that may not stand where they stand, by kind."""
        self._bytes_per_entry: float = _ENTRY_BYTES
        self._measured = 0.0
        self._sized: int | None = None
        self._warned = False

    async def run(self, stopped: Callable[[], bool]) -> bool:
        """Runs until the facts end, or `stopped` is true. True: they have ended, all is published.

        Raises:
            ConfigurationError: a topic is missing, or another query's.
            StateError: there is no state to go on from, records are gone, or state is too large.
            ModuleError: the query's own code raised.
            FencedError: another process has taken the output over.
            TransportError: Kafka cannot be reached, or refuses.
        """
        # mistakes are found before anything is made, and before anybody is fenced
        self._check_partitions(self.request.partitions)
        widths, ids, width = await self.prepare()
        self._check_partitions(width)
        found = await preview(self.request, widths)
        if found is not None and found.commit.has_ended:
            self.phase, self.start = QueryPhase.ENDED, found
            return True
        async with AsyncExitStack() as stack:
            sink = await stack.enter_async_context(self._sink(width))
            self.start = start = await decide(self.request, widths, width)
            self.phase = QueryPhase.RECOVERING
            source = await stack.enter_async_context(self._source())
            started = self.clock()
            quieten_garbage_collector()  # before there is a state, to go through in vain
            recovery = QueryRecovery(
                self.request, widths, ids, width, source, clock=time.perf_counter_ns
            )
            with without_garbage_collector():
                state = self.state = await recovery.run(start)
            self.point = state.commit.point
            self.recovery_seconds = round(self.clock() - started, 3)
            self._report(state)
            if self.request.feedback is not None:
                self.feedback = await stack.enter_async_context(
                    Feedback(
                        self.request.connection,
                        output=self.request.feedback,
                        replica=self.request.replica or self.request.to,
                    )
                )
            snapshots = Snapshots(
                every=self.request.snapshot_seconds,
                clock=self.clock,
                counts=self.counts.snapshots,
            )
            stack.callback(snapshots.close)
            self.transaction = ReplicaTransaction(state, sink, snapshots, self.counts, self.clock)
            return await self._loop(source, self.transaction, state, stopped)

    # --- before it runs -------------------------------------------------------------------------

    def _check_partitions(self, width: int) -> None:
        """Raises ConfigurationError: the plan has a mistake, or cannot be divided."""
        Partitions(self.request.plan, width, self.request.columns)

    async def prepare(self) -> tuple[dict[str, int], dict[str, str | None], int]:
        """The widths and ids of the inputs' topics, and the width of the output's, which are made.

        Raises:
            ConfigurationError: an input's topic is missing, or the state topic is not compact.
            TransportError: Kafka cannot be reached, or refuses.
        """
        request = self.request
        names = {name: request.topic_of(name) for name in request.sources}
        wanted = [*names.values()]
        if request.feedback is not None:
            wanted.append(feedback_topic(request.feedback))
        async with Topics(request.connection) as topics:
            found = await topics.describe(wanted)
            for topic in wanted:
                if topic not in found:
                    await topics.width(topic)  # which knows whether we may see it
                    hint = "a merge makes it, start that first"
                    if topic in names.values():
                        hint = "start what publishes it, or name another one (--topic SOURCE=TOPIC)"
                    raise ConfigurationError(f"there is no topic {topic}: {hint}")
            width = await topics.ensure(request.to, partitions=request.partitions)
            largest = max(2 * request.max_record_bytes, BATCH_BYTES)
            compacted = {
                "cleanup.policy": "compact",
                "max.message.bytes": str(2 * largest),
                "min.cleanable.dirty.ratio": "0.1",
                "segment.ms": "600000",
                "segment.bytes": str(64 << 20),
            }
            await topics.ensure(state_topic(request.to), config=compacted)
            await topics.ensure(dead_letter_topic(request.to))
            why = "must be compact: each commit record takes the place of the last"
            state = state_topic(request.to)
            await topics.require(state, "cleanup.policy", "compact".__eq__, why)
        widths = {name: found[topic].partitions for name, topic in names.items()}
        return widths, {name: found[topic].id for name, topic in names.items()}, width

    def _source(self) -> Source:
        request = self.request
        return Source(request.connection, max_record_bytes=request.max_record_bytes)

    def _sink(self, width: int) -> PartitionsSink:
        request = self.request
        return PartitionsSink(
            request.connection,
            output=request.to,
            partitions=width,
            dead_letters=dead_letter_topic(request.to),
            state=state_topic(request.to),
            max_record_bytes=request.max_record_bytes,
        )

    def _report(self, state: Recovered) -> None:
        commit = state.commit
        match start := self.start:
            case Anew():
                since = start.since
                how = "begins with " + ("all facts" if since is None else f"the facts from {since}")
            case Resume():
                how = "resumes by what the topic holds"
            case _:
                how = "goes on"
        log.info(
            how,
            incarnation=commit.incarnation,
            joining_at=None if commit.joining_at == START else commit.joining_at,
            replayed=state.replayed,
            seconds=self.recovery_seconds,
        )

    # --- running --------------------------------------------------------------------------------

    async def _loop(
        self,
        source: Source,
        transaction: ReplicaTransaction,
        state: Recovered,
        stopped: Callable[[], bool],
    ) -> bool:
        positions = {
            name: [each.next for each in found.partitions]
            for name, found in state.commit.inputs.items()
        }
        reading = self.reading = InputReading(
            source, state.inputs, positions, skew=self.request.skew, clock=self.clock
        )
        for number, elements in enumerate(state.first):
            if elements:
                transaction.append(number, elements)
        transaction.hasten()
        self.phase = QueryPhase.RUNNING
        try:
            while not stopped():
                await transaction.publish()
                if self._has_ended(state) and transaction.is_idle:
                    break
                seconds = _POLL_SECONDS if transaction.is_idle else _BUSY_POLL_SECONDS
                portions = await reading.read(seconds, self.request.batch)
                self._heed(transaction, state)
                if portions:
                    self._process(portions, transaction, state)
                    reading.balance()
                self._measure(state)
        finally:
            await transaction.settle()
        await transaction.finish(save=not self._has_ended(state))
        if not self._has_ended(state):
            return False
        self.phase = QueryPhase.ENDED
        return True

    @staticmethod
    def _has_ended(state: Recovered) -> bool:
        return all(stable == INFINITY for stable in state.partitions.stables)

    def _heed(self, transaction: ReplicaTransaction, state: Recovered) -> None:
        """A point counts from between two batches on, and for good."""
        if self.feedback is not None and self.feedback.point > self.point:
            self.point = self.feedback.point
            state.partitions.skip_before(self.point)
            transaction.heed(self.point)

    def _process(
        self, portions: list[Portion], transaction: ReplicaTransaction, state: Recovered
    ) -> None:
        """Processes what was read; an exception leaves nothing of it in the next commit."""
        transaction.begin_batch()
        given: dict[str, list[Element]] = {}
        for source, partition, records in portions:
            found = source.take(partition, records)
            if source.name in given:
                given[source.name] += found
            else:
                given[source.name] = found
        emitted = state.partitions.process(
            given, {name: each.stable for name, each in state.inputs.items()}
        )
        for portion in portions:
            transaction.processed(
                portion.input.name, portion.partition, portion.behind, len(portion.records)
            )
        for number, elements in enumerate(emitted):
            if elements:
                transaction.append(number, elements)
        for each in state.inputs.values():
            if each.dead:
                transaction.append_dead_letters(each.dead)
                each.dead = []

    # --- how much is held -----------------------------------------------------------------------

    def _measure(self, state: Recovered) -> None:
        """
        Raises:
            StateError: more than it may be.
        """
        if self.clock() - self._measured < _STATE_SECONDS:
            return
        self._measured = self.clock()
        self._note_refused(state)
        entries = len(state.partitions) + sum(map(len, state.inputs.values()))
        assert self.transaction is not None
        places = self.transaction.places
        if places and places[0].transaction != self._sized:
            self._sized = places[0].transaction
            if entries > 1_000:
                self._bytes_per_entry = max(20.0, places[0].size / entries)
        self.state_bytes, most = entries * self._bytes_per_entry, self.request.max_state_bytes
        if self.state_bytes > most:
            raise StateError(
                f"{self.request.to}: the state has about {self.state_bytes:,.0f} bytes in "
                f"{entries:,} entries, and may have {most:,} (--max-state-bytes): is a partition "
                "of the facts silent (/status names it), or the query's window too wide?"
            )
        if self.state_bytes > _WARN_AT * most and not self._warned:
            log.warning("much state", bytes=int(self.state_bytes), may_be=most, entries=entries)
        self._warned = self.state_bytes > _WARN_AT * most

    def _note_refused(self, state: Recovered) -> None:
        for query in state.partitions.queries:
            for operator in query.network.operators:
                for _, kind, _ in operator.refused:
                    self.refused[kind] += 1
                operator.refused.clear()
