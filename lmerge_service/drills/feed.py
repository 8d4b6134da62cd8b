"""The facts of a query's replicas, as a process: in two partitions, at the pace of the clock, some
of them late by less than the query allows.

What happens on a crash: it is not started again; the drill ends.

    python -m lmerge_service.drills.feed '{"bootstrap": …}'
"""

import asyncio
import heapq
import random
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaProducer

from lmerge_service.drills.equal_events import FACTS, LATENESS, facts_of
from lmerge_service.drills.replica import DrillStream

__all__ = ("PARTITIONS", "FeedSettings", "disordered")

PARTITIONS: Final = 2
_TICK_SECONDS: Final = 0.01
_LATE: Final = LATENESS * 3 // 4
"""Milliseconds that a fact is late at the most."""


class FeedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the process."""

    bootstrap: str
    stream: DrillStream


def disordered(stream: DrillStream, until: int | None = None) -> Iterator[tuple[int, Any]]:
    """When each fact is due, in milliseconds, and the fact; in the order in which they are due."""
    rng, waiting = random.Random(stream.seed), list[tuple[int, int, Any]]()
    for number, fact in enumerate(facts_of(stream.lives(until))):
        while waiting and waiting[0][0] <= fact["time"]:
            due, _, earlier = heapq.heappop(waiting)
            yield due, earlier
        heapq.heappush(waiting, (fact["time"] + rng.randrange(_LATE), number, fact))
    while waiting:
        due, _, earlier = heapq.heappop(waiting)
        yield due, earlier


async def _run(settings: FeedSettings) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap, enable_idempotence=True, linger_ms=2
    ) as producer:

        async def send(fact: Any, partition: int, at: int | None) -> None:
            value = msgspec.json.encode(fact)
            await producer.send(FACTS, value, partition=partition, timestamp_ms=at)

        for due, fact in disordered(settings.stream):
            if (early := due / 1_000 - time.time()) > 0:
                await asyncio.sleep(max(early, _TICK_SECONDS))
            await send(fact, fact["event"] % PARTITIONS, fact["time"])
        for partition in range(PARTITIONS):
            await send({"fact": "end"}, partition, None)
        await producer.flush()


if __name__ == "__main__":
    asyncio.run(_run(msgspec.json.decode(sys.argv[1], type=FeedSettings)))
