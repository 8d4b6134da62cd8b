"""A replica as a process: publishes its presentation of a workload at the pace of the clock.

Application time is wall time, in microseconds since `began`: an element is sent when its time has
come, and one whose time has passed is sent at once. So a replica that is killed and started over
catches up by itself; the second time it is another incarnation, which knows what ends at
`joining_at` or later.

    python -m benchmarks.replica '{"bootstrap": …}'
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from benchmarks.traffic import Sender
from lmerge_service.elements import START, Element
from lmerge_service.kafka.connection import Connection
from lmerge_service.workloads.generator import workload
from lmerge_service.workloads.lifetime import Life
from lmerge_service.workloads.presentation import Variation, timed

__all__ = ("SECOND", "Part", "lives")

SECOND: Final = 1_000_000
"""Of application time."""
_TICK_SECONDS: Final = 0.01
_AT_ONCE: Final = 2_000
_VARIATIONS: Final = (
    Variation(provisional=0.2, spread=SECOND, pace="late", stable_every=100),
    Variation(
        provisional=0.4, revisions=2, spread=SECOND, reinserted=0.05, pace="eager", stable_every=50
    ),
    Variation(
        provisional=0.2, spread=SECOND, disorder=0.2, displacement=SECOND // 2, lag=SECOND // 4,
        stable_every=200,
    ),
)  # fmt: skip


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica publishes, where, and since when."""

    bootstrap: str
    topic: str
    number: int
    """Which of the presentations, from 0."""
    events: int
    rate: float
    """Events a second."""
    live: int
    """Events live at a time."""
    began: float
    """Seconds of the wall clock."""
    incarnation: int = 0
    joining_at: int = START

    def stream(self) -> Iterator[tuple[int, Element]]:
        """Times of application and elements, in order."""
        known = (life for life in lives(self) if life.ve >= self.joining_at)
        return timed(known, _VARIATIONS[self.number], f"{self.number}/{self.incarnation}")


def lives(part: Part) -> Iterator[Life]:
    """The logical stream, the same for all replicas."""
    gap = int(2 * SECOND / part.rate)
    return workload(events=part.events, payload_bytes=95, active=part.live, max_gap=gap)


async def _publish(part: Part) -> None:
    async with Sender(
        Connection(part.bootstrap),
        part.topic,
        incarnation=part.incarnation,
        joining_at=part.joining_at,
    ) as sender:
        due: list[Element] = []
        for at, element in part.stream():
            early = part.began + at / SECOND - time.time()
            if due and (early > 0 or len(due) >= _AT_ONCE):
                await sender.put(due)
                due = []
            if early > 0:
                await asyncio.sleep(max(early, _TICK_SECONDS))
            due.append(element)
        await sender.put(due)
        await sender.flush()


if __name__ == "__main__":
    asyncio.run(_publish(msgspec.json.decode(sys.argv[1], type=Part)))
