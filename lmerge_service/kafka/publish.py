"""Publishes an element file to a topic at a steady rate: a replica's sending end, for trying.

Every record carries the incarnation in its headers when there is one. Elements of one event go to
one partition (murmur2 of the payload, Kafka's default for keyed records); a stable goes to every
partition, since a replica is only as far as its slowest one. In a dialect (`formats.dialects`)
the same goes for the records of one key, and for those that move the stable.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from aiokafka import AIOKafkaProducer

from lmerge_service.elements import START, Element, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.dialects import Written
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import encode
from lmerge_service.kafka import clients
from lmerge_service.kafka.closing import stop
from lmerge_service.kafka.connection import CONTROLLER_SECONDS, Connection, kafka_errors
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.starting import started
from lmerge_service.kafka.topics import Topics
from lmerge_service.kafka.unfinished import take_over

__all__ = ("on_the_wire", "publish", "seed")

T = TypeVar("T")

_ACKNOWLEDGE_EVERY = 10_000
_EVENT_TIMES = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
"""For timestamps that are event times: the broker would take them for its own past or future."""


def on_the_wire(element: Element) -> Sequence[Written]:
    """The record of an element."""
    if type(element) is Stable:
        return [Written(None, encode(element), everywhere=True)]
    return [Written(element.payload, encode(element))]  # type: ignore[union-attr]


async def publish(
    connection: Connection,
    topic: str,
    elements: Iterable[T],
    *,
    rate: float | None = None,
    due: Iterable[float] | None = None,
    partitions: int = 1,
    incarnation: int = 0,
    joining_at: int = START,
    written: Callable[[T], Sequence[Written]] = on_the_wire,  # type: ignore[assignment]
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Sends the elements in order, `rate` a second (None: as fast as it goes); returns how many.

    `due` gives instead when each is to be sent, in seconds from the start. The topic is made when
    it is missing, with `partitions`. `written` gives an element's records; with it, anything else
    that comes in an order may be sent.

    Raises:
        IllegalStreamError: a dialect cannot express the elements.
        TransportError: Kafka cannot be reached, or refuses.
    """
    async with Topics(connection) as topics:
        config = {} if written is on_the_wire else _EVENT_TIMES
        width = await topics.ensure(topic, partitions=partitions, config=config)
    headers = incarnation_headers(incarnation, joining_at)
    producer = clients.producer(
        connection, enable_idempotence=True, linger_ms=2, max_batch_size=1 << 18
    )
    stopping = partial(stop, producer)
    await started(producer.start(), stopping, connection, seconds=CONTROLLER_SECONDS)
    try:
        if due is None and rate is not None:
            due = (number / rate for number in itertools.count())
        return await _send_all(producer, topic, elements, written, due, width, headers, progress)
    finally:
        await stop(producer)


async def seed(
    connection: Connection, topic: str, elements: Iterable[Element], *, partitions: int = 1
) -> int:
    """Makes elements the beginning of a topic that has no records, in one transaction: they are
    there whole, or not at all; returns how many.

    Somebody else who does the same at the same time is fenced. A transaction that was left open is
    ended by the next call, or by the broker after ten minutes.

    Raises:
        ConfigurationError: the topic has records.
        TransportError: Kafka cannot be reached, or refuses.
    """
    async with Topics(connection) as topics:
        width = await topics.ensure(topic, partitions=partitions)
    producer = clients.producer(
        connection,
        transactional_id=f"lmerge.jumpstart.{topic}",
        linger_ms=2,
        max_batch_size=1 << 18,
        transaction_timeout_ms=600_000,
    )
    parts = [TopicPartition(topic, number) for number in range(width)]
    await take_over(producer, connection, parts, "connecting to")
    try:
        await _require_empty(connection, parts)
        with kafka_errors(f"publishing to {topic}", "Write"):
            async with producer.transaction():
                return await _send_all(
                    producer, topic, elements, on_the_wire, None, width, [], lambda _: None
                )
    finally:
        await stop(producer)


async def _require_empty(connection: Connection, parts: Sequence[TopicPartition]) -> None:
    async with Source(connection) as source:
        begins, ends = await source.beginnings(parts), await source.settled(parts)
        async for tp, records in source.backlog(begins, ends):
            raise ConfigurationError(
                f"{tp.topic} has records, the first at offset {records[0].offset} of partition "
                f"{tp.partition}: a replica that is to begin with a checkpoint needs an empty topic"
            )


async def _send_all(
    producer: AIOKafkaProducer,
    topic: str,
    elements: Iterable[T],
    written: Callable[[T], Sequence[Written]],
    due: Iterable[float] | None,
    width: int,
    headers: list[tuple[str, bytes]],
    progress: Callable[[int], None],
) -> int:
    clock = asyncio.get_running_loop().time
    started, sent = clock(), 0
    pending: list[Awaitable[object]] = []
    times = None if due is None else iter(due)
    with kafka_errors(f"publishing to {topic}", "Write"):
        for element in elements:
            if times is not None and (early := started + next(times) - clock()) > 0:
                await asyncio.sleep(early)
            for record in written(element):
                pending += await _send(producer, topic, record, width, headers)
            sent += 1
            if len(pending) >= _ACKNOWLEDGE_EVERY:
                await asyncio.gather(*pending)
                pending.clear()
                progress(sent)
        await asyncio.gather(*pending)
    progress(sent)
    return sent


async def _send(
    producer: AIOKafkaProducer,
    topic: str,
    record: Written,
    width: int,
    headers: list[tuple[str, bytes]],
) -> list[Awaitable[object]]:
    """Sends a record where it belongs; what to wait for until it is there."""
    sent = []
    for partition in range(width) if record.everywhere else (None,):
        sent.append(  # noqa: PERF401 - sends one after the other
            await producer.send(
                topic,
                record.value,
                key=record.key,
                partition=partition,
                timestamp_ms=record.timestamp,
                headers=headers,
            )
        )
    return sent
