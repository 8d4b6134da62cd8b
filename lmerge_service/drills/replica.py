"""A replica as a process, with the faults that replicas have: late, restored, corrupt, lying, fast.

Theory
    All replicas of a drill publish the same logical stream, which begins at a time of the wall
    clock and goes on until the drill sets its end: each in a presentation of its own, at the pace
    of the clock. So the correct output is known independently of the topics.

    A replica numbers its records in a header, `drill-place`. One that is killed and started again
    reads the last record of its topic and continues after it; one that is *restored* continues some
    records earlier and publishes those again, as a query does that comes back with old data; one
    that *starts over* has lost its state, announces it by a higher incarnation, and knows only
    events that end from now on.

What happens on a crash
    The next process publishes what was not acknowledged.

    python -m lmerge_service.drills.replica '{"bootstrap": …}'
"""

import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import tenacity
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError

from lmerge_service.elements import START, Element, Insert, Stable
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import encode
from lmerge_service.workloads.generator import workload
from lmerge_service.workloads.lifetime import Life
from lmerge_service.workloads.presentation import Variation, timed

__all__ = ("DrillStream", "FaultProfile", "ReplicaSettings")

_PLACE: Final = "drill-place"
_TICK_SECONDS: Final = 0.01
_UNACKNOWLEDGED: Final = 500
_GARBAGE: Final = b'{"op":"insert","payload":'
_VARIATIONS: Final = (
    Variation(provisional=0.2, spread=300, pace="late", stable_every=20),
    Variation(
        provisional=0.4, revisions=2, spread=300, reinserted=0.05, pace="eager", stable_every=10
    ),
    Variation(
        provisional=0.2, spread=300, disorder=0.2, displacement=200, lag=100, stable_every=30
    ),
)


class DrillStream(msgspec.Struct, frozen=True, kw_only=True):
    """The logical stream; times are milliseconds since the epoch."""

    began: int
    finish: str
    """A file that holds, as soon as it is known, the time before which the last event begins."""
    rate: int = 100
    """Events a second."""
    live: int = 100
    """Events live at a time."""
    seed: int = 1

    def lives(self, until: int | None = None) -> Iterator[Life]:
        """Its events, to a time, or for as long as it goes on.

        Raises:
            ValueError: its end is before an event that it has yielded already.
        """
        gap = max(1, 2_000 // self.rate - 1)
        yielded = START
        for life in workload(
            events=sys.maxsize, seed=self.seed, payload_bytes=24, active=self.live, min_gap=1,
            max_gap=gap,
        ):  # fmt: skip
            vs = life.vs + self.began
            end = until if until is not None else self._end()
            if end is not None and vs >= end:
                if yielded >= end:
                    raise ValueError(f"the stream was to end at {end}, and is at {yielded}")
                return
            yielded = vs
            yield Life(life.payload, vs, tuple(ve + self.began for ve in life.ends))

    def _end(self) -> int | None:
        try:
            return int(Path(self.finish).read_text())
        except FileNotFoundError:
            return None


class FaultProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The faults of a replica."""

    lag: Annotated[float, msgspec.Meta(ge=0)] = 0
    """Everything so many seconds later."""
    skew: Annotated[float, msgspec.Meta(ge=0)] = 0
    """Its clock is so many seconds ahead: it publishes early, and its records' times are wrong."""
    lying: float = 0
    """The share of events to which it gives another end."""
    corrupt: float = 0
    """The share of elements that are followed by a record which is no element."""
    leap: float = 0
    """When it starts it publishes an event, and a stable, so many seconds ahead; 0: none."""


class ReplicaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a replica's process."""

    bootstrap: str
    topic: str
    number: int
    """Which of the presentations, from 0."""
    stream: DrillStream
    manner: FaultProfile = FaultProfile()
    incarnation: int = 0
    joining_at: int = START
    repeat: int = 0
    """So many records before the last one are published again."""

    def elements(self) -> Iterator[tuple[int, Element]]:
        """When each element is due, in milliseconds, and the element."""
        known = (life for life in self.stream.lives() if life.ve >= self.joining_at)
        stated = (_falsified(life, self.manner.lying) for life in known)
        late = int(self.manner.lag * 1_000)
        seed = f"{self.number}/{self.incarnation}"
        for at, element in timed(stated, _VARIATIONS[self.number % len(_VARIATIONS)], seed):
            yield at + late, element


def _falsified(life: Life, share: float) -> Life:
    """The wrong ends of a share of the events, the same each time."""
    if share and random.Random(f"{life.vs}").random() < share:
        return Life(life.payload, life.vs, tuple(ve + 77 for ve in life.ends))
    return life


class _Publisher:
    """Puts records into the topic, in order, and waits when much is not acknowledged."""

    def __init__(self, producer: AIOKafkaProducer, part: ReplicaSettings):
        self._producer, self._part = producer, part
        self._headers = incarnation_headers(part.incarnation, part.joining_at)
        self._pending: deque[asyncio.Future[object]] = deque()

    def now(self) -> float:
        """Milliseconds, by this replica's clock."""
        return (time.time() + self._part.manner.skew) * 1_000

    async def publish(self, value: bytes, place: int) -> None:
        headers = [*self._headers, (_PLACE, b"%d" % place)]
        self._pending.append(await self._send(value, headers))
        if len(self._pending) > _UNACKNOWLEDGED:
            await self._pending.popleft()

    @tenacity.retry(retry=tenacity.retry_if_exception_type(KafkaTimeoutError))
    async def _send(self, value: bytes, headers: list[tuple[str, bytes]]) -> asyncio.Future[object]:
        """Waits while the producer's buffer is full; a record that was rejected because of it was
        not buffered, and can be sent again."""
        sent: asyncio.Future[object] = await self._producer.send(
            self._part.topic, value, partition=0, headers=headers, timestamp_ms=int(self.now())
        )
        return sent

    async def leap(self, place: int) -> None:
        ahead = int(self.now() + self._part.manner.leap * 1_000)
        await self.publish(encode(Insert(b'{"far":true}', ahead, ahead + 1)), place)
        await self.publish(encode(Stable(ahead)), place)

    async def close(self) -> None:
        await asyncio.gather(*self._pending)


async def _last_place(part: ReplicaSettings) -> int:
    """The place of the topic's last record; -1 when there is none."""
    tp = TopicPartition(part.topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=part.bootstrap) as consumer:
        consumer.assign([tp])
        end = (await consumer.end_offsets([tp]))[tp]
        if not end:
            return -1
        consumer.seek(tp, end - 1)
        record = await consumer.getone(tp)
    return int(dict(record.headers)[_PLACE])


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(KafkaConnectionError), wait=tenacity.wait_fixed(0.1)
)
async def _run(part: ReplicaSettings) -> None:
    """Retries while Kafka cannot be reached at the start, when nothing is published yet; its owner
    ends it."""
    resumed = -1 if part.incarnation else await _last_place(part) - part.repeat
    garbled = random.Random(f"{part.number}")
    async with AIOKafkaProducer(
        bootstrap_servers=part.bootstrap, enable_idempotence=True
    ) as producer:
        publisher = _Publisher(producer, part)
        if part.manner.leap:
            await publisher.leap(resumed)
        for place, (at, element) in enumerate(part.elements()):
            if place <= resumed:
                continue
            if (early := (at - publisher.now()) / 1_000) > 0:
                await asyncio.sleep(max(early, _TICK_SECONDS))
            await publisher.publish(encode(element), place)
            if part.manner.corrupt and garbled.random() < part.manner.corrupt:
                await publisher.publish(_GARBAGE, place)
        await publisher.close()


if __name__ == "__main__":
    asyncio.run(_run(msgspec.json.decode(sys.argv[1], type=ReplicaSettings)))
