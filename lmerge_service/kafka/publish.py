"""Publishes an element file to a topic at a steady rate: a replica's sending end, for trying.

Every record carries the incarnation in its headers when there is one. Elements of one event go to
one partition (murmur2 of the payload, Kafka's default for keyed records); a stable goes to every
partition, since a replica is only as far as its slowest one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from aiokafka import AIOKafkaProducer

from lmerge_service.elements import START, Element, Stable
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.client import Connection, bounded, close_bounded, kafka_errors
from lmerge_service.kafka.topics import Topics

__all__ = ("publish",)

_ACKNOWLEDGE_EVERY = 10_000


async def publish(
    connection: Connection,
    topic: str,
    elements: Iterable[Element],
    *,
    rate: float | None = None,
    partitions: int = 1,
    incarnation: int = 0,
    joining_at: int = START,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Sends the elements in order, `rate` a second (None: as fast as it goes); returns how many.

    The topic is made when it is missing, with `partitions`.

    Raises:
        TransportError: Kafka cannot be reached, or refuses.
    """
    async with Topics(connection) as topics:
        width = await topics.ensure(topic, partitions=partitions)
    headers = incarnation_headers(incarnation, joining_at)
    producer = AIOKafkaProducer(
        **connection.arguments, enable_idempotence=True, linger_ms=2, max_batch_size=1 << 18
    )
    await bounded(producer.start(), f"connecting to {connection.bootstrap}")
    try:
        return await _send_all(producer, topic, elements, rate, width, headers, progress)
    finally:
        await close_bounded(producer.stop())


async def _send_all(
    producer: AIOKafkaProducer,
    topic: str,
    elements: Iterable[Element],
    rate: float | None,
    width: int,
    headers: list[tuple[str, bytes]],
    progress: Callable[[int], None],
) -> int:
    clock = asyncio.get_running_loop().time
    started, sent = clock(), 0
    pending: list[Awaitable[object]] = []
    with kafka_errors(f"publishing to {topic}"):
        for element in elements:
            if rate is not None and (early := started + sent / rate - clock()) > 0:
                await asyncio.sleep(early)
            value = encode(element)
            if type(element) is Stable:
                for number in range(width):
                    pending.append(  # noqa: PERF401 - sends one after the other
                        await producer.send(topic, value, partition=number, headers=headers)
                    )
            else:
                key: bytes = element.payload  # type: ignore[union-attr]
                pending.append(await producer.send(topic, value, key=key, headers=headers))
            sent += 1
            if len(pending) >= _ACKNOWLEDGE_EVERY:
                await asyncio.gather(*pending)
                pending.clear()
                progress(sent)
        await asyncio.gather(*pending)
    progress(sent)
    return sent
