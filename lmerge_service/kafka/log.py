"""A log: one topic of one partition, to which many append and which everybody reads in one order.

Who owns what
    A `Log` owns a producer, made when the first record is appended; each reading owns a `Source`
    of its own, closed when the reading ends. The topic is made when it is missing and refused
    when Kafka may delete of it by itself: what goes of its beginning is its owner's to know
    (`Topics.trim`).

What happens on a crash at each await
    in `append`: the record is in the log, or is not; reading the log shows which. When its time is
    over the producer is discarded, so that nothing is written later than that (what was on its way
    to the broker may still arrive).
    in a reading: nothing, offsets are the caller's.

What happens when the broker is away, or the topic is deleted
    `append` fails after its time. `follow` waits, and goes on when the broker is back; where the
    client gives up, when there is no such topic any more, and when the log begins later by now, it
    raises a `TransportError`, and may be called again from an offset that is there. Nothing here
    makes the topic but `async with`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import ClusterAuthorizationFailedError

from lmerge_service.errors import (
    ConfigurationError,
    FencedError,
    RefusedError,
    StateError,
    TransportError,
    TrimmedError,
)
from lmerge_service.kafka import clients
from lmerge_service.kafka.closing import abandon, stop
from lmerge_service.kafka.connection import Connection, bounded, kafka_errors, lacking
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.sightings import Sightings
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.starting import started
from lmerge_service.kafka.topics import Topics

__all__ = ("Log",)

_LARGEST_RECORD: Final = (8 << 20) + 4096
"""As it is before the client compresses it; of what comes of that the broker has the limit."""
_APPEND_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 1.0
_FETCH_WAIT_MS: Final = 500
_FOREVER: Final = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
_MADE: Final = _FOREVER | {"segment.bytes": str(64 << 20)}
"""Kafka frees whole segments of what is trimmed, and never the one that is written."""


class Log:
    """One topic as a log; use as `async with`, which makes or checks the topic.

    Raises:
        ConfigurationError: on entering, when the topic has several partitions, or may forget.
        TransportError: Kafka cannot be reached, or refuses.
    """

    def __init__(self, connection: Connection, topic: str):
        self.topic = topic
        self._connection = connection
        self._tp = TopicPartition(topic, 0)
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> "Log":
        async with Topics(self._connection) as topics:
            width = await topics.ensure(self.topic, config=_MADE)
            if width != 1:
                raise ConfigurationError(
                    f"topic {self.topic} has {width} partitions; a log has one: remove the topic"
                )
            for key, must in _FOREVER.items():
                why = f"must be {must}: a log forgets nothing by itself"
                await topics.require(self.topic, key, must.__eq__, why)
        return self

    async def __aexit__(self, *_: object) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await stop(producer)

    # --- writing -------------------------------------------------------------------------------

    async def append(self, value: bytes, *, seconds: float = _APPEND_SECONDS) -> int:
        """Writes a record to all replicas of the partition; returns its offset, or -1 if the
        broker acknowledges the record without one.

        Raises:
            TransportError: if retriable, whether the record was written is unknown; if not, it
                was refused.
        """
        doing = f"writing to {self.topic}"
        producer = await self._ready()
        try:
            sent = await bounded(producer.send(self.topic, value, partition=0), doing, seconds)
        except BaseException:
            await self._abandon(producer)
            raise
        try:
            # The client breaks on a result that was cancelled, so that this only looks at it.
            await asyncio.wait({sent}, timeout=seconds)
        finally:
            if not sent.done() or sent.exception() is not None:
                await self._abandon(producer)
        if not sent.done():
            raise TransportError(f"{doing}: no answer from Kafka in time")
        try:
            with kafka_errors(doing):
                return int(sent.result().offset)
        except FencedError as error:  # only we have this producer: its session has expired
            raise TransportError(str(error)) from error

    async def _ready(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is None:
                producer = clients.producer(
                    self._connection,
                    enable_idempotence=True,
                    acks="all",
                    compression_type="gzip",
                    max_request_size=_LARGEST_RECORD,
                    retry_backoff_ms=50,
                )
                await self._start(producer)
                self._producer = producer
            return self._producer

    async def _start(self, producer: AIOKafkaProducer) -> None:
        try:
            await started(producer.start(), partial(stop, producer), self._connection)
        except RefusedError as error:
            if isinstance(error.__cause__, ClusterAuthorizationFailedError):
                # Who may write any topic may be idempotent: this user may write none.
                needed = lacking("Write", f"topic {self.topic}")
                raise RefusedError(f"writing to {self.topic}: {needed}") from error
            raise

    async def _abandon(self, producer: AIOKafkaProducer) -> None:
        """Closes a producer without what its `stop` does first: an idempotent one would try to
        deliver what it holds for ever."""
        if self._producer is producer:
            self._producer = None
        await abandon(producer)

    # --- reading -------------------------------------------------------------------------------

    def _source(self) -> Source:
        return Source(self._connection, fetch_wait_ms=_FETCH_WAIT_MS)

    async def bounds(self) -> tuple[int, int]:
        """The first offset that there is, and the one behind the last record."""
        async with self._source() as source:
            begins = await source.beginnings([self._tp])
            return begins[self._tp], (await source.ends([self._tp]))[self._tp]

    async def read(self, start: int = 0, end: int | None = None) -> AsyncGenerator[Record, None]:
        """The records from an offset up to an end, by default the one that the log has when this
        is called.

        Raises:
            TrimmedError: the log begins later.
            TransportError: no progress for two minutes.
            StateError: the log ends before `start`: it was recreated, or has lost records.
        """
        async with self._source() as source:
            if end is None:
                end = (await source.ends([self._tp]))[self._tp]
            self._refuse_loss(start, end)
            at = start
            try:
                async for _, records in source.backlog({self._tp: start}, {self._tp: end}):
                    for record in records:
                        yield record
                        at = record.offset + 1
            except StateError:
                await self._refuse_trimmed(source, at)
                raise

    async def follow(
        self, start: int = 0, *, begun: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[Record, None]:
        """The records from an offset on, and then each as it comes, for ever; `begun` is called
        once Kafka has answered.

        Raises:
            TrimmedError: the log begins later.
            TransportError: Kafka cannot be reached, or the topic was deleted; to be called again.
            StateError: the log ends before `start`, or cannot be read on.
        """
        async with self._source() as source:
            await source.require_topics([self._tp])
            self._refuse_loss(start, (await source.ends([self._tp]))[self._tp])
            source.assign({self._tp: start})
            begun()
            at, sightings = start, Sightings()
            while True:
                for record in (await source.poll(_POLL_SECONDS)).get(self._tp, ()):
                    yield record
                    at = record.offset + 1
                if why := source.lost.get(self._tp):
                    await self._refuse_trimmed(source, at)
                    raise StateError(f"{self.topic} {why}")
                sightings.note([self.topic], () if source.is_missing(self.topic) else [self.topic])
                if sightings.is_deleted(self.topic):
                    await source.require_topics([self._tp])

    async def _refuse_trimmed(self, source: Source, at: int) -> None:
        begins = (await source.beginnings([self._tp]))[self._tp]
        if begins > at:
            raise TrimmedError(
                f"{self.topic} begins at offset {begins} by now, and was read up to {at}"
            )

    def _refuse_loss(self, start: int, end: int) -> None:
        if end < start:
            raise StateError(
                f"{self.topic} ends at offset {end}, but has been read up to {start}: it was "
                "recreated, or has lost records"
            )
