"""Writes merged output, dead letters and a task's state in one Kafka transaction.

Who owns what
    A `Sink` owns one transactional producer. Its transactional.id names the merge task: entering
    fences every earlier owner and ends what it left open, or what Kafka did (`unfinished`), so
    that afterwards the committed state and the committed output belong together.

What happens on a crash at each await
    before commit returns: Kafka aborts, or has committed; the next owner finds out which by
    entering, and goes on from what is committed. After: nothing is lost.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)
from aiokafka.producer import sender
from aiokafka.producer.message_accumulator import BatchBuilder

from lmerge_service.core.batches import as_encoded
from lmerge_service.errors import TransportError, UnwritableError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.table import offset_headers
from lmerge_service.kafka import clients
from lmerge_service.kafka.closing import stop
from lmerge_service.kafka.connection import Connection, bounded, lacking
from lmerge_service.kafka.records import SealedBatch, sealed
from lmerge_service.kafka.unfinished import take_over

__all__ = ("BATCH_BYTES", "Committed", "Condition", "Origin", "Outbox", "Sink", "retrieve")

BATCH_BYTES = 256 * 1024
"""A batch has no more, unless it is a single record: brokers hold `max.message.bytes` against
batches."""
_COMMIT_SECONDS = 60.0

# The client sleeps this long while the coordinator still writes the last transaction's markers;
# its own 20 ms are most of the latency of small transactions. Pinned and tested with aiokafka.
sender.BACKOFF_OVERRIDE = 0.002

Condition: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
_Records = Sequence[tuple[bytes | None, bytes | None]]
_Headers = list[tuple[str, bytes]]
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


@dataclass(frozen=True, slots=True)
class Origin:
    """Records of an input, and the first of an outbox's records that came of them."""

    index: int
    tp: TopicPartition
    first: int
    last: int
    """Offsets."""


@dataclass(slots=True)
class Outbox:
    """What one transaction carries; keys and values of records, in order."""

    records: list[tuple[bytes | None, bytes]] = field(default_factory=list)
    """For the output partition; the engine's `Encoded`, where that has made them, whose headers are
    those below."""
    dead: list[DeadLetter] = field(default_factory=list)
    state: list[tuple[bytes | None, bytes]] = field(default_factory=list)
    """For the task's partition of the state topic."""
    events: list[tuple[bytes | None, bytes]] = field(default_factory=list)
    """For the events topic."""
    rows: list[tuple[bytes | None, bytes | None]] = field(default_factory=list)
    """For the output's table: what the records change, or with what it is filled or swept."""
    has_offsets: bool = False
    """The rows have the output's offsets in their headers."""
    begins: int = 0
    """The offset behind the output's last record before these."""
    lapsed: Callable[[], bool] | None = None
    """Whether the topic that the rows are for has been deleted since they were gathered."""
    origins: list["Origin"] = field(default_factory=list)
    """Which of the inputs' records had `records` published, in order."""
    size: int = 0
    """Bytes of records and dead letters, more or less."""
    headers: Sequence[tuple[str, bytes]] = ()
    """Of each of `records`."""

    def require_table(self) -> None:
        """What was written to the table went to the topic that it was for.

        Raises:
            TransportError: it may be in one that has been made since.
        """
        if self.rows and self.lapsed is not None and self.lapsed():
            raise TransportError("committing: the table's topic was deleted meanwhile")


@dataclass(frozen=True, slots=True)
class Committed:
    """Where a transaction's records went: the offset behind the last record, and None where
    there was none or where the broker did not return it."""

    output: int | None
    state: int | None


class Sink:
    """A transactional producer for one task; use as `async with`."""

    def __init__(
        self,
        connection: Connection,
        *,
        transactional_id: str,
        output: TopicPartition,
        dead_letters: str,
        state: TopicPartition,
        events: str,
        max_record_bytes: int,
        table: str | None = None,
    ):
        """`table` is the output's table topic, if it has one."""
        self._connection = connection
        self._output = output
        self._dead_letters = TopicPartition(dead_letters, 0)
        self._state = state
        self._events = TopicPartition(events, 0)
        self._table = None if table is None else TopicPartition(table, output.partition)
        self._producer = clients.producer(
            connection,
            transactional_id=transactional_id,
            acks="all",
            max_batch_size=BATCH_BYTES,
            max_request_size=max(max_record_bytes, 1 << 20) * 2,
            retry_backoff_ms=5,
            request_timeout_ms=clients.REQUEST_MS,
            transaction_timeout_ms=60_000,
        )

    async def __aenter__(self) -> "Sink":
        tp = self._output
        table = () if self._table is None else (self._table,)
        ours = (tp, self._state, self._dead_letters, self._events, *table)
        at = f"taking over {tp.topic}-{tp.partition} at"
        await take_over(self._producer, self._connection, ours, at)
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop(self._producer)

    async def commit(self, outbox: Outbox, provided: Condition | None = None) -> Committed:
        """Publishes all of it, or nothing; nothing if `provided` raises, which runs meanwhile.

        Raises:
            FencedError: another instance has taken over.
            UnwritableError: a topic refuses its part: nothing is published.
            TransportError: the outcome may be unknown: close this sink and rebuild.
        """
        return await bounded(self._commit(outbox, provided), "committing", _COMMIT_SECONDS, "Write")

    async def _commit(self, outbox: Outbox, provided: Condition | None) -> Committed:
        producer = self._producer
        condition = None if provided is None else asyncio.ensure_future(provided())
        try:
            return await self._transaction(producer, outbox, condition)
        finally:
            if condition is not None:
                condition.cancel()

    async def _transaction(
        self,
        producer: AIOKafkaProducer,
        outbox: Outbox,
        condition: asyncio.Future[None] | None,
    ) -> Committed:
        await producer.begin_transaction()
        batches = self._batches(outbox.records, outbox.headers)
        output = [await self._send(self._output, each) for each in batches]
        dead = [await self._send(self._dead_letters, each) for each in self._letters(outbox)]
        events = [await self._send(self._events, each) for each in self._batches(outbox.events)]
        state = [await self._send(self._state, each) for each in self._batches(outbox.state)]
        # What was refused must not pass for committed.
        await self._acknowledged([*output, *dead, *events, *state])
        await self._acknowledged(await self._send_rows(outbox, output))
        outbox.require_table()
        if condition is not None:
            await condition
        await producer.commit_transaction()
        return Committed(await _end_of(output), await _end_of(state))

    async def _send_rows(self, outbox: Outbox, output: "Sequence[_Sent]") -> "list[_Sent]":
        """Sends rows of the table; the output's records are written, so that offsets are known."""
        if self._table is None:
            return []
        span = await _span_of(output, outbox.begins)
        headers = offset_headers(*span) if outbox.has_offsets else []
        batches = self._batches(outbox.rows, [*outbox.headers, *headers])
        return [await self._send(self._table, each) for each in batches]

    async def _send(self, to: TopicPartition, batch: BatchBuilder | SealedBatch) -> "_Sent":
        count = batch.record_count()
        size = batch.size()
        sent = await self._producer.send_batch(batch, to.topic, partition=to.partition)
        sent.add_done_callback(retrieve)
        return _Sent(sent, to, count, size)

    async def _acknowledged(self, sent: "Sequence[_Sent]") -> None:
        """Waits until all batches are written.

        Raises:
            UnwritableError: a topic does not take one of them.
            KafkaError: what else went wrong, a right to output or state that we lack among it.
        """
        failed: list[tuple[_Sent, KafkaError]] = []
        for each in sent:
            try:
                await each
            except KafkaError as error:
                failed.append((each, error))
        if not failed:
            return
        # Where one topic is not ours to write, the client fails the batches of all.
        refused = self._refused_topics()
        for each, cause in failed:
            topic, ours = each.to.topic, each.to in (self._output, self._state)
            if ours and (topic in refused or isinstance(cause, TopicAuthorizationFailedError)):
                raise TopicAuthorizationFailedError(topic)
            if (why := _why_refused(each, cause, refused)) is not None:
                needs = each.size if isinstance(cause, _TOO_LARGE) else None
                message = f"committing: topic {topic} {why}"
                raise UnwritableError(message, topic=topic, why=why, needs_bytes=needs) from cause
        raise failed[0][1]

    def _refused_topics(self) -> set[str]:
        """The topics for whose sake the coordinator refused the transaction."""
        ended = self._producer._txn_manager.wait_for_transaction_end()
        error = ended.exception() if ended.done() and not ended.cancelled() else None
        if not isinstance(error, TopicAuthorizationFailedError) or not error.args:
            return set()
        named = error.args[0]
        return set(named) if isinstance(named, set | frozenset) else {str(named)}

    def _batches(
        self, records: _Records, headers: Sequence[tuple[str, bytes]] = ()
    ) -> Iterator[BatchBuilder | SealedBatch]:
        """Builders of up to 256 KiB: appending to them directly is the producer's fast path, where
        the engine has not built the batches."""
        if not records:
            return
        if (encoded := as_encoded(records)) is not None:
            yield from sealed(encoded, time.time_ns() // 1_000_000)
            return
        builder, each_has = self._producer.create_batch(), [*headers]
        for key, value in records:
            if builder.append(key=key, value=value, timestamp=None, headers=each_has) is None:
                yield builder
                builder = self._producer.create_batch()
                builder.append(key=key, value=value, timestamp=None, headers=each_has)
        yield builder

    def _letters(self, outbox: Outbox) -> Iterator[BatchBuilder]:
        """A batch for each dead letter; unlike `send`, it takes one without key and value."""
        for letter in outbox.dead:
            key, value, headers = letter.to_record()
            builder = self._producer.create_batch()
            builder.append(key=key, value=value, timestamp=None, headers=headers)
            yield builder


class _Sent:
    """A batch under way: where to, how many records it has, and how many bytes."""

    def __init__(self, acknowledged: Awaitable[Any], to: TopicPartition, records: int, size: int):
        self._acknowledged = acknowledged
        self.to = to
        self.records = records
        self.size = size

    def __await__(self) -> Any:
        return self._acknowledged.__await__()


def _why_refused(sent: _Sent, error: KafkaError, refused: set[str]) -> str | None:
    """Why the topic does not take the batch, in words; None: it is not the topic's doing."""
    topic = sent.to.topic
    if topic in refused or isinstance(error, TopicAuthorizationFailedError):
        return f"cannot be written: {lacking('Write', f'topic {topic}')}"
    if isinstance(error, _TOO_LARGE):
        return (
            f"refuses a batch of {sent.size} bytes: raise its max.message.bytes to "
            f"{sent.size} at least"
        )
    return None


async def _end_of(sent: Sequence[_Sent]) -> int | None:
    """The offset behind the last record of batches that were acknowledged."""
    if not sent:
        return None
    first = (await sent[-1]).offset
    return None if first < 0 else int(first) + sent[-1].records


async def _span_of(output: Sequence[_Sent], begins: int) -> tuple[int, int]:
    """From where to where the output has records of batches that were acknowledged; with none, from
    and to where it ended before.

    Raises:
        TransportError: the broker returned no offset, as for a batch that it had before.
    """
    if not output:
        return begins, begins
    first, end = int((await output[0]).offset), await _end_of(output)
    if first < 0 or end is None:
        raise TransportError("committing: the broker returned no offset of the output's records")
    return first, end


def retrieve(done: "asyncio.Future[Any]") -> None:
    """Takes note of the error of what nobody waits for any more, as of several batches that fail:
    one is reported, and asyncio would log the others as forgotten."""
    if not done.cancelled():
        done.exception()
