"""Finding where a replica's topic has an event, on a real broker."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.find import FoundRecord, find_event, windows
from lmerge_service.kafka.topics import Topics

A, B = b'{"id":"A"}', b'{"id":"B"}'


async def publish(bootstrap: str, topic: str, partitions: Sequence[Sequence[bytes]]) -> None:
    async with Topics(Connection(bootstrap)) as topics:
        await topics.ensure(topic, partitions=len(partitions))
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number, values in enumerate(partitions):
            sent = [await producer.send(topic, value, partition=number) for value in values]
            await asyncio.gather(*sent)


def test_the_last_word_before_an_offset_is_found(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name("replica")
    filler: list[Element] = [Insert(B, vs, vs + 1) for vs in range(2_500)]
    elements: list[Element] = [
        Insert(A, 5, 20), Stable(1), Adjust(A, 5, 20, 30), *filler, Insert(A, 6, 20),
        Adjust(A, 5, 30, 40),
    ]  # fmt: skip
    values = [*(encode(each) for each in elements), b"no element"]
    decoder = WireDecoder()

    async def find(before: int, vs: int = 5, limit: int = 100_000) -> FoundRecord | None:
        offsets = {TopicPartition(topic, 0): 1, TopicPartition(topic, 1): before}
        return await find_event(Connection(bootstrap), offsets, A, vs, decoder, limit=limit)

    async def check() -> None:
        await publish(bootstrap, topic, [[encode(Stable(1))], values])
        end = len(values)
        last = await find(end)
        assert last is not None
        assert (last.topic, last.partition, last.offset) == (topic, 1, end - 2)
        assert (last.element, last.value) == (Adjust(A, 5, 30, 40), values[end - 2])
        earlier = await find(end - 2)  # 2,500 records before: in the second window
        assert earlier is not None
        assert (earlier.offset, earlier.element) == (2, Adjust(A, 5, 20, 30))
        first = await find(2)
        assert first is not None
        assert first.element == Insert(A, 5, 20)
        assert await find(end - 2, limit=2_000) is None
        assert await find(end, vs=7) is None

    asyncio.run(check())


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 999), (7, 100_000), (5, 5), (9, 5)])
def test_windows_cover_a_range_once(start: int, end: int) -> None:
    covered = sorted(offset for low, high in windows(start, end) for offset in range(low, high))
    assert covered == list(range(start, end))
