"""A source asks for what it does not know at once, by a real broker."""

import asyncio
from collections.abc import Callable

from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics

_FOR_EVER = 1_000.0


def test_topics_that_were_never_seen_are_found_without_a_back_off(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    """A standby that takes over asked for one topic after the other, and slept before each: half
    a second without output."""
    names = [topic_name() for _ in range(3)]
    partitions = [TopicPartition(name, 0) for name in names]

    async def ask() -> None:
        async with Topics(Connection(bootstrap)) as topics:
            for name in names:
                await topics.ensure(name)
        async with Source(Connection(bootstrap)) as source, asyncio.timeout(30):
            source._consumer._fetcher._retry_backoff = _FOR_EVER
            assert await source.beginnings(partitions) == dict.fromkeys(partitions, 0)
        async with Source(Connection(bootstrap)) as source, asyncio.timeout(30):
            source._consumer._fetcher._retry_backoff = _FOR_EVER
            assert await source.ends(partitions) == dict.fromkeys(partitions, 0)

    asyncio.run(ask())
