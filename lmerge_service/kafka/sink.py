"""Writes merged output, dead letters and input offsets in one Kafka transaction.

Who owns what
    A `Sink` owns one transactional producer. Its transactional.id names the merge task: entering
    fences every earlier owner and ends what it left open, so that afterwards the committed
    offsets and the committed output belong together.

What happens on a crash at each await
    before commit returns: Kafka aborts, or has committed; the next owner finds out which by
    entering, and rebuilds from what is committed. After: nothing is lost.
"""

from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.producer import sender
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import OffsetAndMetadata

from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.kafka.client import Connection, bounded, close_bounded

__all__ = ("OffsetAndMetadata", "Outbox", "Sink")

_BATCH_BYTES = 256 * 1024
_COMMIT_SECONDS = 60.0
_OFFSETS_SECONDS = 5.0
_TAKE_OVER_SECONDS = 90.0

# The client sleeps this long while the coordinator still writes the last transaction's markers;
# its own 20 ms are most of the latency of small transactions. Pinned and tested with aiokafka.
sender.BACKOFF_OVERRIDE = 0.002


@dataclass(slots=True)
class Outbox:
    """What one transaction carries."""

    records: list[tuple[bytes | None, bytes]] = field(default_factory=list)
    """(key, value) for the output partition, in order."""
    dead: list[DeadLetter] = field(default_factory=list)
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    """The input offsets to go on from: everything before them is in, or needs nothing."""
    size: int = 0
    """Bytes of records and dead letters, more or less."""


class Sink:
    """A transactional producer for one output partition; use as `async with`."""

    def __init__(
        self,
        connection: Connection,
        *,
        transactional_id: str,
        group: str,
        topic: str,
        dead_letter_topic: str,
        max_record_bytes: int,
    ):
        self._connection = connection
        self._group = group
        self._output = TopicPartition(topic, 0)
        self._dead_letters = TopicPartition(dead_letter_topic, 0)
        self._producer = AIOKafkaProducer(
            **connection.arguments,
            transactional_id=transactional_id,
            acks="all",
            max_batch_size=_BATCH_BYTES,
            max_request_size=max(max_record_bytes, 1 << 20) * 2,
            retry_backoff_ms=5,
            transaction_timeout_ms=60_000,
        )

    async def __aenter__(self) -> "Sink":
        try:
            # Starting waits until the coordinator has fenced and finished the owner before us.
            doing = f"taking over the output at {self._connection.bootstrap}"
            await bounded(self._producer.start(), doing, _TAKE_OVER_SECONDS)
            await bounded(self._producer.begin_transaction(), doing, _TAKE_OVER_SECONDS)
            await bounded(self._producer.abort_transaction(), doing)
        except BaseException:
            await close_bounded(self._producer.stop())
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await close_bounded(self._producer.stop())

    async def commit(self, outbox: Outbox) -> None:
        """Publishes all of it, or nothing.

        Raises:
            FencedError: another instance has taken over.
            TransportError: the outcome may be unknown: close this sink and rebuild.
        """
        await bounded(self._commit(outbox), "committing", _COMMIT_SECONDS)

    async def _commit(self, outbox: Outbox) -> None:
        producer = self._producer
        await producer.begin_transaction()
        sent = [await self._send(self._output, batch) for batch in self._batches(outbox.records)]
        sent += [await self._send(self._dead_letters, batch) for batch in self._letters(outbox)]
        if outbox.offsets:
            offsets = producer.send_offsets_to_transaction(outbox.offsets, self._group)
            # Refused for a topic that is gone, the client would ask for ever.
            await bounded(offsets, "committing offsets", _OFFSETS_SECONDS)
        for acknowledged in sent:  # what was refused must not pass for committed
            await acknowledged
        await producer.commit_transaction()

    async def _send(self, to: TopicPartition, batch: BatchBuilder) -> Awaitable[object]:
        acknowledged: Awaitable[object] = await self._producer.send_batch(
            batch, to.topic, partition=to.partition
        )
        return acknowledged

    def _batches(self, records: Sequence[tuple[bytes | None, bytes]]) -> Iterator[BatchBuilder]:
        """Builders of up to 256 KiB: appending to them directly is the producer's fast path."""
        if not records:
            return
        builder = self._producer.create_batch()
        for key, value in records:
            if builder.append(key=key, value=value, timestamp=None) is None:
                yield builder
                builder = self._producer.create_batch()
                builder.append(key=key, value=value, timestamp=None)
        yield builder

    def _letters(self, outbox: Outbox) -> Iterator[BatchBuilder]:
        """A batch for each dead letter; unlike `send`, it takes one without key and value."""
        for letter in outbox.dead:
            key, value, headers = letter.to_record()
            builder = self._producer.create_batch()
            builder.append(key=key, value=value, timestamp=None, headers=headers)
            yield builder
