"""An output as its reader gets it: when each record came, and when each event was there first.

Who owns what
    `Follower.run` owns a consumer until it returns or is cancelled.
"""

import asyncio
import time
from bisect import bisect_left
from typing import Final

from lmerge_service.elements import INFINITY, START, Insert, Stable
from lmerge_service.errors import ElementError, TransportError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import Source, TopicPartition

__all__ = ("Follower",)

_PAUSE_SECONDS: Final = 0.25
_RATE_SECONDS: Final = 2.0


class Follower:
    """A read_committed consumer of an output, from its beginning."""

    def __init__(self, connection: Connection, topic: str, partitions: int = 1):
        self._connection = connection
        self._positions = {TopicPartition(topic, number): 0 for number in range(partitions)}
        self._decoder = WireDecoder()
        self.times: list[list[float]] = [[] for _ in self._positions]
        """Per partition, when each record came, in seconds of the wall clock."""
        self.first: dict[tuple[bytes, int], float] = {}
        """When an event (payload, vs) came first."""
        self._stables = [START] * partitions

    @property
    def stable(self) -> int:
        """What all partitions have reached."""
        return min(self._stables)

    @property
    def ended(self) -> bool:
        return self.stable == INFINITY

    @property
    def elements(self) -> int:
        """How many have come."""
        return sum(map(len, self.times))

    def rate(self) -> float:
        """Elements a second over the last two seconds or so."""
        since = time.time() - _RATE_SECONDS
        recent = sum(len(times) - bisect_left(times, since) for times in self.times)
        return recent / _RATE_SECONDS

    async def run(self) -> None:
        """Until the output has ended, or until cancelled; after an outage of Kafka it continues at
        its position."""
        while not self.ended:
            try:
                async with Source(self._connection) as source:
                    source.assign(self._positions)
                    await self._follow(source)
            except TransportError:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _follow(self, source: Source) -> None:
        while not self.ended:
            for tp, records in (await source.poll(0.2)).items():
                for record in records:
                    self._take(tp.partition, record.value)
                self._positions[tp] = records[-1].offset + 1

    def _take(self, partition: int, value: bytes | None) -> None:
        now = time.time()
        self.times[partition].append(now)
        try:
            element = self._decoder.decode(value)
        except ElementError:
            return  # whoever judges the output finds it
        match element:
            case Insert(payload, vs):
                self.first.setdefault((payload, vs), now)
            case Stable(vc):
                self._stables[partition] = max(vc, self._stables[partition])
