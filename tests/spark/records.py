"""Records in and out of topics by another client than Spark's."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics

__all__ = ("Sent", "make_topic", "received", "send")


class Sent(NamedTuple):
    """A record to send."""

    value: bytes | None
    key: bytes | None = b"k"
    partition: int = 0
    headers: Sequence[tuple[str, bytes]] = ()


def make_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    async def make() -> None:
        async with Topics(Connection(bootstrap)) as topics:
            await topics.ensure(topic, partitions=partitions)

    asyncio.run(make())


def send(bootstrap: str, topic: str, records: Iterable[Sent], **options: Any) -> None:
    """Sends them in order."""

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **options)
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic, each.value, each.key, each.partition, headers=list(each.headers)
                )
                for each in records
            ]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    asyncio.run(run())


def received(bootstrap: str, topic: str) -> list[Any]:
    """All records of a topic, partition by partition."""

    async def run() -> list[Any]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            async with Topics(Connection(bootstrap)) as topics:
                width = (await topics.describe([topic]))[topic].partitions
            places = [TopicPartition(topic, number) for number in range(width)]
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            found = []
            for place in places:
                while await consumer.position(place) < ends[place]:
                    got = await consumer.getmany(timeout_ms=500)
                    found += [record for records in got.values() for record in records]
            return sorted(found, key=lambda record: (record.partition, record.offset))
        finally:
            await consumer.stop()

    return asyncio.run(run())
