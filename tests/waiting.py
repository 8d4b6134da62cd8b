"""Waiting for a state that nobody announces, with a time-out."""

import asyncio
from collections.abc import Callable

from lmerge_service.kafka.topics import Topics

__all__ = ("come_true", "vanish")


async def come_true(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Returns as soon as it holds."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - nothing reports when
            await asyncio.sleep(0.01)


async def vanish(topics: Topics, topic: str, seconds: float = 30.0) -> None:
    """Deletes a topic, and returns when it is gone."""
    await topics.delete(topic)
    async with asyncio.timeout(seconds):
        while await topics.partitions([topic]):  # noqa: ASYNC110 - nothing reports when
            await asyncio.sleep(0.05)
