"""Reads topics by offset: backlogs up to a known end, and then whatever comes.

Who owns what
    A `Source` owns one consumer, outside of any group: partitions are assigned by hand and every
    position is set explicitly, so that neither a rebalance nor an expired offset can move it.

What happens on a crash
    Nothing: positions live in memory, and what counts is what a transaction has committed.

Records have raw bytes (`records`); decoding belongs to `formats`, since a deserializer that raises
inside the consumer blocks its partition for ever.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)

from lmerge_service.errors import RefusedError, StateError, TransportError
from lmerge_service.kafka import clients
from lmerge_service.kafka.closing import stop_consumer
from lmerge_service.kafka.connection import (
    CONNECT_SECONDS,
    Connection,
    bounded,
    lacking,
    patient,
)
from lmerge_service.kafka.ends import high_watermarks
from lmerge_service.kafka.records import Record, as_it_is, between, in_batches
from lmerge_service.kafka.starting import started

__all__ = ("Batches", "Source", "TopicPartition")

log = structlog.get_logger()

Batches: TypeAlias = dict[TopicPartition, list[Record]]

_STALL_SECONDS = 120.0
_BACKLOG_POLL_SECONDS = 0.02
"""Short, since an end that stands on a control record is reached without a record to wake us."""
_ANSWER_SECONDS = 0.1
"""A broker refuses a fetch at once."""
_SHORT_SECONDS, _SETTLED_POLL_SECONDS = 5.0, 0.05
"""After how long an open transaction is logged; how often its end is asked for."""


class Source:
    """A consumer of explicitly assigned partitions; use as `async with`.

    A broker holds one fetch at a time, and a partition whose records were just taken is not in
    it: what arrives there meanwhile waits until the fetch for the others is over, `fetch_wait_ms`
    at the most, and longer only when all has been quiet (`clients.Fetches`). Whoever reads a single
    partition may let the broker hold it for long.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        max_record_bytes: int = 1 << 20,
        fetch_wait_ms: int = 10,
        native: bool = False,
    ):
        """`native`: records stay in the engine's batches, sequences that cost nothing until
        somebody looks at a record; see `records`."""
        self._connection = connection
        deserializer = in_batches if native else as_it_is
        self._consumer = clients.consumer(
            connection,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            key_deserializer=deserializer,
            value_deserializer=deserializer,
            isolation_level="read_committed",
            max_partition_fetch_bytes=max(1 << 20, max_record_bytes),
            fetch_max_wait_ms=fetch_wait_ms,
            retry_backoff_ms=50,
            request_timeout_ms=clients.REQUEST_MS,
        )
        self.lost: dict[TopicPartition, str] = {}
        """Partitions that cannot be read on, and why."""
        self.paused: frozenset[TopicPartition] = frozenset()
        """Partitions that are not read on for now; those that are not assigned may be among
        them."""
        self._refused: set[TopicPartition] = set()
        self._next: dict[TopicPartition, int] = {}  # what was handed out ends before these

    async def __aenter__(self) -> "Source":
        await started(self._consumer.start(), self._close, self._connection)
        self._fetches = clients.Fetches.of(self._consumer)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        await stop_consumer(self._consumer)

    # --- where things are ----------------------------------------------------------------------

    async def beginnings(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that each partition still has."""
        asking = partial(_beginnings, self._consumer, partitions)
        return await patient(asking, "asking where topics begin")

    async def ends(
        self, partitions: Sequence[TopicPartition], *, seconds: float = CONNECT_SECONDS
    ) -> dict[TopicPartition, int]:
        """The offset up to where can be read: behind the last committed record or marker, before
        any open transaction (the last stable offset). See `high_watermarks`."""
        asking = partial(_ends, self._consumer, partitions)
        return await patient(asking, "asking where topics end", seconds)

    async def since(
        self, partitions: Sequence[TopicPartition], time: int
    ) -> dict[TopicPartition, int]:
        """The first offset whose record is not before a time (ms); the end where there is none."""
        ends = await self.ends(partitions)
        asking = self._consumer.offsets_for_times(dict.fromkeys(partitions, max(time, 0)))
        found = await bounded(asking, "asking where a time begins")
        return {tp: ends[tp] if at is None else at.offset for tp, at in found.items()}

    async def high_watermarks(
        self, partitions: Sequence[TopicPartition], *, seconds: float = CONNECT_SECONDS
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record of all, those of open transactions included: whoever
        has not read up to there does not know all that was written."""
        asking = partial(_high_watermarks, self._consumer, partitions)
        return await patient(asking, "asking where topics end", seconds)

    async def settled(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks as they are now, once nothing before them is open any more: for who
        reads to the end and must know that it is the end.

        Raises:
            TransportError: a transaction is left open for two minutes.
        """
        ends = await self.high_watermarks(partitions)
        loop = asyncio.get_running_loop()
        deadline, warned = loop.time() + _STALL_SECONDS, False
        while stuck := {
            tp: at for tp, at in (await self.ends(partitions)).items() if at < ends[tp]
        }:
            where = ", ".join(f"{tp.topic}-{tp.partition}@{at}" for tp, at in stuck.items())
            if loop.time() > deadline:
                raise TransportError(
                    f"a transaction is left open at {where}: what is behind it cannot be read; "
                    "wait for its writer, or abort it (`kafka-transactions.sh abort`)"
                )
            if not warned and loop.time() > deadline - _STALL_SECONDS + _SHORT_SECONDS:
                log.warning("waiting for an open transaction", places=where)
                warned = True
            await asyncio.sleep(_SETTLED_POLL_SECONDS)
        return ends

    def position(self, tp: TopicPartition) -> int | None:
        """The next offset to be read; control records and aborted ones count as read."""
        state = self._consumer._subscription.subscription.assignment.state_value(tp)
        return None if state is None or not state.has_valid_position else int(state.position)

    @property
    def readable(self) -> int:
        """How many records and markers could be read on and were not handed out, of all that is
        assigned and not paused, as of the latest fetch of each partition."""
        found, subscription = 0, self._consumer._subscription.subscription
        for tp in self._next.keys() - self.paused:
            state = subscription.assignment.state_value(tp)
            if state is not None and state.has_valid_position and state.lso is not None:
                found += max(0, state.lso - state.position)
        return found

    async def require_readable(self, tp: TopicPartition, end: int) -> None:
        """Finds out whether a partition may be read, even if there is nothing to read yet.

        Raises:
            RefusedError: our user may not read it.
        """
        self.assign({tp: end})
        await self.poll(_ANSWER_SECONDS)
        if tp in self.lost:
            raise RefusedError(f"topic {tp.topic} {self.lost[tp]}")

    def is_missing(self, topic: str) -> bool:
        """Whether a topic that is read was not there when the client asked for it last."""
        return self._consumer._client.cluster.partitions_for_topic(topic) is None

    async def require_topics(self, partitions: Sequence[TopicPartition]) -> None:
        """Asks for topics again.

        Raises:
            TransportError: one does not exist.
        """
        asking = partial(_refresh, self._consumer, partitions)
        await patient(asking, "looking for topics")
        if missing := sorted({tp.topic for tp in partitions if self.is_missing(tp.topic)}):
            raise TransportError(f"topic {', '.join(missing)} does not exist: was it deleted?")

    # --- reading -------------------------------------------------------------------------------

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Reads exactly these partitions from now on, from these offsets."""
        self._next = dict(positions)
        self._fetches.stir()
        self._consumer.assign(list(positions))
        for tp, offset in positions.items():  # no await since assign: no position is guessed
            self._consumer.seek(tp, offset)
        self.pause(self.paused)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Reads these no further until `resume`, however often others are assigned meanwhile.

        Not while a poll is under way: what that has taken of them would be lost.
        """
        self.paused |= frozenset(partitions)
        self._consumer.pause(*(tp for tp in partitions if tp in self._next))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Reads these on, from where they stand."""
        self.paused -= frozenset(partitions)
        if partitions:
            self._fetches.stir()
        self._consumer.resume(*(tp for tp in partitions if tp in self._next))

    def rewind(self, tp: TopicPartition, offset: int) -> None:
        """Goes on from this offset of a partition that is read."""
        if tp in self._next:
            self._next[tp] = offset
            self._fetches.stir()
            self._consumer.seek(tp, offset)

    async def poll(self, seconds: float, max_records: int | None = None) -> Batches:
        """What has arrived, at the latest after `seconds`; empty when nothing has.

        A partition that cannot be read (its position is gone, a batch is corrupt or compressed in
        an unknown way, access is refused) goes to `lost`, with the reason, and is paused; the
        others lose nothing by it. A poll that is cancelled has taken nothing.
        """
        try:
            batches = await self._consumer.getmany(
                timeout_ms=int(seconds * 1000), max_records=max_records
            )
        except OffsetOutOfRangeError as error:
            # Nothing was taken from the others: this error is raised before or after, not between.
            for tp in error.args[0]:
                self._lose(tp, "the broker no longer has the offset to go on from")
            return {}
        except KafkaConnectionError as error:
            raise TransportError(f"reading: {error!r}") from error
        except (KafkaError, ValueError) as error:  # ValueError: a header that is no UTF-8
            await self._find_unreadable(error)
            return {}
        if batches:
            self._fetches.stir()
        for tp in batches:
            position = self.position(tp)
            assert position is not None
            self._next[tp] = position
        return dict(batches)

    def _lose(self, tp: TopicPartition, why: str) -> None:
        if tp in self._next:
            self.lost[tp] = why
            del self._next[tp]
            self._consumer.pause(tp)

    async def _find_unreadable(self, error: Exception) -> None:
        """Reads each partition alone to find those that cannot be read, and rewinds the others:
        what the client had taken from them is gone with the error."""
        self._rewind()
        found = False
        try:
            for tp in self._next.keys() - self.paused:
                try:
                    await self._consumer.getmany(tp, timeout_ms=200, max_records=None)
                except (KafkaError, ValueError) as cause:
                    found = True
                    self._lose(tp, self._why(tp, cause))
        finally:  # also when the search is cancelled: what it took was handed to nobody
            self._rewind()
        if not found and not isinstance(error, ValueError):
            raise TransportError(f"reading: {error!r}") from error

    def _why(self, tp: TopicPartition, cause: Exception) -> str:
        if isinstance(cause, TopicAuthorizationFailedError):
            self._refused.add(tp)
            return f"cannot be read: {lacking('Read', f'topic {tp.topic}')}"
        return f"cannot be read at offset {self._next[tp]} or behind: {cause!r}"

    def _rewind(self) -> None:
        for tp, offset in self._next.items():
            self._consumer.seek(tp, offset)

    async def backlog(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> AsyncGenerator[tuple[TopicPartition, list[Record]], None]:
        """Reads each partition from its start up to its end (exclusive), then stops.

        Ends that stand on a control record are reached all the same. Afterwards the positions
        are undefined: call `assign`.

        Raises:
            TransportError: no progress for two minutes, for instance because the transaction of
                a dead writer is still open before the end.
            RefusedError: our user may not read a partition.
            StateError: a partition cannot be read.
        """
        await bounded(_locate(self._consumer, starts), "looking for topics")
        for tp in starts:  # what could not be read from another offset may be read from this one
            self.lost.pop(tp, None)
            self._refused.discard(tp)
        self.assign({tp: offset for tp, offset in starts.items() if offset < ends[tp]})
        remaining = set(self._consumer.assignment())
        loop = asyncio.get_running_loop()
        progress = loop.time()
        while remaining:
            for tp, records in (await self.poll(_BACKLOG_POLL_SECONDS)).items():
                inside = between(records, starts[tp], ends[tp])
                if tp in remaining and inside:
                    yield tp, inside
                progress = loop.time()  # the reader may take its time
            for tp in list(remaining):
                position = self.position(tp)
                if position is not None and position >= ends[tp]:
                    remaining.discard(tp)
                    self._consumer.pause(tp)
            for tp in remaining & self.lost.keys():
                what = RefusedError if tp in self._refused else StateError
                raise what(f"{tp.topic}-{tp.partition} {self.lost[tp]}")
            if loop.time() - progress > _STALL_SECONDS:
                stuck = ", ".join(
                    f"{tp.topic}-{tp.partition} at {self.position(tp)} of {ends[tp]}"
                    for tp in sorted(remaining)
                )
                raise TransportError(f"reading stalled ({stuck}): is a transaction left open?")


async def _beginnings(
    consumer: AIOKafkaConsumer, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    async with _leaders(consumer, partitions):
        return dict(await consumer.beginning_offsets(partitions))


async def _ends(
    consumer: AIOKafkaConsumer, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    async with _leaders(consumer, partitions):
        return dict(await consumer.end_offsets(partitions))


async def _high_watermarks(
    consumer: AIOKafkaConsumer, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    async with _leaders(consumer, partitions):
        return await high_watermarks(consumer._client, partitions)


@asynccontextmanager
async def _leaders(
    consumer: AIOKafkaConsumer, partitions: Iterable[TopicPartition]
) -> AsyncIterator[None]:
    """For one try at asking those who lead partitions: where one stands still, another may lead by
    the next."""
    await _locate(consumer, partitions)
    try:
        async with asyncio.timeout(clients.NODE_SECONDS):
            yield
    except TimeoutError:
        consumer._client.force_metadata_update()
        raise


async def _refresh(consumer: AIOKafkaConsumer, partitions: Iterable[TopicPartition]) -> None:
    await _locate(consumer, partitions)
    if not await consumer._client.force_metadata_update():
        raise NodeNotReadyError("no broker answers")


async def _locate(consumer: AIOKafkaConsumer, partitions: Iterable[TopicPartition]) -> None:
    """Has a consumer find out who leads these, all at once. Of its own it would ask for one topic
    after the other, and sleep for its back-off before each."""
    client = consumer._client
    leader_of = client.cluster.leader_for_partition
    unknown = {tp.topic for tp in partitions if leader_of(tp) is None}
    if unknown:
        await asyncio.gather(*(client.add_topic(topic) for topic in unknown))
