"""A transactional producer that writes batches of records to given partitions.

Who owns what
    A `TransactionalWriter` owns one producer. Its transactional.id names whose output it writes:
    entering fences every earlier owner and ends what it left open, or what Kafka did
    (`unfinished`), so that afterwards what is committed belongs together.

What happens on a crash at each await
    As for each that is made of it (`sink`): before a commit returns, the next owner finds out by
    entering whether it took place.
"""

import asyncio
import time
from collections.abc import Awaitable, Collection, Iterable, Iterator, Sequence
from typing import Any, Self, TypeAlias

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)
from aiokafka.producer import sender
from aiokafka.producer.message_accumulator import BatchBuilder

from lmerge_service.core.batches import as_sealable
from lmerge_service.errors import UnwritableError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.kafka import clients
from lmerge_service.kafka.closing import stop
from lmerge_service.kafka.connection import Connection, lacking
from lmerge_service.kafka.records import SealedBatch, sealed
from lmerge_service.kafka.unfinished import take_over

__all__ = ("BATCH_BYTES", "COMMIT_SECONDS", "Sent", "TransactionalWriter", "end_of", "retrieve")

BATCH_BYTES = 256 * 1024
"""A batch has no more, unless it is a single record: brokers hold `max.message.bytes` against
batches."""
COMMIT_SECONDS = 60.0

# The client sleeps this long while the coordinator still writes the last transaction's markers;
# its own 20 ms are most of the latency of small transactions. Pinned and tested with aiokafka.
sender.BACKOFF_OVERRIDE = 0.002

Records: TypeAlias = Sequence[tuple[bytes | None, bytes | None]]
Headers: TypeAlias = Sequence[tuple[str, bytes]]
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


class Sent:
    """A batch under way: where to, how many records it has, and how many bytes."""

    def __init__(self, acknowledged: Awaitable[Any], to: TopicPartition, records: int, size: int):
        self._acknowledged = acknowledged
        self.to = to
        self.records = records
        self.size = size

    def __await__(self) -> Any:
        return self._acknowledged.__await__()


class TransactionalWriter:
    """Use as `async with`."""

    def __init__(
        self,
        connection: Connection,
        *,
        transactional_id: str,
        partitions: Collection[TopicPartition],
        vital: Collection[TopicPartition],
        doing: str,
        max_record_bytes: int,
    ):
        """It writes to the `partitions`; without those that are `vital` there is nothing to be
        written. `doing` begins the errors of taking over."""
        self._connection = connection
        self._partitions = partitions
        self._vital = vital
        self._doing = doing
        self._producer: AIOKafkaProducer = clients.producer(
            connection,
            transactional_id=transactional_id,
            acks="all",
            max_batch_size=BATCH_BYTES,
            max_request_size=max(max_record_bytes, 1 << 20) * 2,
            retry_backoff_ms=5,
            request_timeout_ms=clients.REQUEST_MS,
            transaction_timeout_ms=60_000,
        )

    async def __aenter__(self) -> Self:
        await take_over(self._producer, self._connection, self._partitions, self._doing)
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop(self._producer)

    async def _send_all(
        self, to: TopicPartition, records: Records, headers: Headers = ()
    ) -> "list[Sent]":
        return [await self._send(to, each) for each in self._batches(records, headers)]

    async def _send_letters(self, to: TopicPartition, dead: Iterable[DeadLetter]) -> "list[Sent]":
        return [await self._send(to, each) for each in self._letters(dead)]

    async def _send(self, to: TopicPartition, batch: BatchBuilder | SealedBatch) -> Sent:
        count = batch.record_count()
        size = batch.size()
        sent = await self._producer.send_batch(batch, to.topic, partition=to.partition)
        sent.add_done_callback(retrieve)
        return Sent(sent, to, count, size)

    async def _acknowledged(self, sent: Sequence[Sent]) -> None:
        """Waits until all batches are written.

        Raises:
            UnwritableError: a topic does not take one of them.
            KafkaError: what else went wrong, a right to output or state that we lack among it.
        """
        failed: list[tuple[Sent, KafkaError]] = []
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
            topic, ours = each.to.topic, each.to in self._vital
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
        self, records: Records, headers: Headers = ()
    ) -> Iterator[BatchBuilder | SealedBatch]:
        """Builders of up to 256 KiB: appending to them directly is the producer's fast path, where
        the engine has not built the batches."""
        if not records:
            return
        if (sealable := as_sealable(records)) is not None:
            yield from sealed(sealable, time.time_ns() // 1_000_000)
            return
        builder, each_has = self._producer.create_batch(), [*headers]
        for key, value in records:
            if builder.append(key=key, value=value, timestamp=None, headers=each_has) is None:
                yield builder
                builder = self._producer.create_batch()
                builder.append(key=key, value=value, timestamp=None, headers=each_has)
        yield builder

    def _letters(self, dead: Iterable[DeadLetter]) -> Iterator[BatchBuilder]:
        """A batch for each dead letter; unlike `send`, it takes one without key and value."""
        for letter in dead:
            key, value, headers = letter.to_record()
            builder = self._producer.create_batch()
            builder.append(key=key, value=value, timestamp=None, headers=headers)
            yield builder


def _why_refused(sent: Sent, error: KafkaError, refused: set[str]) -> str | None:
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


async def end_of(sent: Sequence[Sent]) -> int | None:
    """The offset behind the last record of batches that were acknowledged."""
    if not sent:
        return None
    first = (await sent[-1]).offset
    return None if first < 0 else int(first) + sent[-1].records


def retrieve(done: "asyncio.Future[Any]") -> None:
    """Takes note of the error of what nobody waits for any more, as of several batches that fail:
    one is reported, and asyncio would log the others as forgotten."""
    if not done.cancelled():
        done.exception()
