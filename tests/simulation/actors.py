"""Who takes part in a simulated run: replicas that publish, workers that are killed, a supervisor.

Theory
    A replica publishes its stream in portions. A portion that may be written or not is written
    again, so that its topic holds repetitions; some write in transactions; some stop for ever;
    some start over, saying so by an incarnation or not. A worker is killed at some request, is
    overtaken by another, or meets bad weather only; a supervisor starts the next one. In the end
    the weather stays, but nobody is killed any more, and what remains must come to its end.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from lmerge_service.elements import Element, Stable
from lmerge_service.errors import LMergeError
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.topology import Topology
from tests.service.cluster import crc32
from tests.simulation.adapter import work
from tests.simulation.memory import Broker, Message, Producer
from tests.simulation.network import Network, Weather

__all__ = ("Publisher", "Supervisor")


@dataclass(frozen=True, slots=True)
class Publisher:
    """A replica."""

    topic: str
    partitions: int
    stream: Sequence[Element]
    transactional: bool
    stops_at: int | None
    """After so many elements it is never heard of again."""
    starts_over_at: int | None
    """After so many elements it begins its stream again."""
    says_so: bool
    """Starting over, it takes a new incarnation."""

    async def run(self, broker: Broker, chance: Random, weather: Weather) -> None:
        network = Network(broker, chance, weather)
        await _until_done(network, lambda: broker.create(self.topic, self.partitions))
        lives = [self.stream[: self.stops_at]]
        if self.starts_over_at is not None:
            lives = [self.stream[: self.starts_over_at], self.stream[: self.stops_at]]
        for incarnation, stream in enumerate(lives):
            headers = incarnation_headers(incarnation if self.says_so else 0)
            position = 0
            while position < len(stream):
                size = chance.randint(1, 8)
                await self._publish(network, stream[position : position + size], headers)
                position += size
                await asyncio.sleep(chance.expovariate(2.0))

    async def _publish(
        self, network: Network, portion: Sequence[Element], headers: list[tuple[str, bytes]]
    ) -> None:
        parts: list[list[Message]] = [[] for _ in range(self.partitions)]
        for element in portion:
            everywhere = type(element) is Stable
            for number in (
                range(self.partitions) if everywhere else [crc32(element.payload, self.partitions)]  # type: ignore[union-attr]
            ):
                parts[number].append((None, encode(element), headers))
        while True:
            try:
                await self._write(network, parts)
            except LMergeError:
                await asyncio.sleep(0.1)
            else:
                return

    async def _write(self, network: Network, parts: Sequence[list[Message]]) -> None:
        broker, producer = network.broker, None
        if self.transactional:
            name = f"{self.topic}.writer"
            producer = await network.request(lambda: broker.init_producer(name), "publishing")
        for number, messages in enumerate(parts):
            if messages:
                tp = TopicPartition(self.topic, number)
                await _produce(network, tp, messages, producer)
        if producer is not None:
            await network.request(lambda: broker.end(producer, commit=True), "publishing")


async def _produce(
    network: Network, tp: TopicPartition, messages: list[Message], producer: Producer | None
) -> None:
    await network.request(lambda: network.broker.produce(tp, messages, producer), "publishing")


async def _until_done(network: Network, work: object) -> None:
    while True:
        try:
            await network.request(work, "preparing")  # type: ignore[arg-type]
        except LMergeError:
            await asyncio.sleep(0.1)
        else:
            return


@dataclass(slots=True)
class Supervisor:
    """Starts workers, one after the other or one over the other."""

    topology: Topology
    broker: Broker
    chance: Random
    weather: Weather
    lives: int
    """How many workers are killed or overtaken before one is left in peace."""
    started: int = 0
    kills: int = 0
    overtaken: int = 0

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            LMergeError: a worker ended for a reason that a restart does not heal.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(self.lives):
                killed_at = self.chance.randint(1, 80) if self.chance.random() < 0.8 else None
                worker = group.create_task(self._life(killed_at))
                patience = self.chance.expovariate(1 / 30)
                await asyncio.wait({worker}, timeout=patience)
                self.overtaken += not worker.done()
            while True:
                await self._life(None)
                await asyncio.sleep(1)

    async def _life(self, killed_at: int | None) -> None:
        self.started += 1
        network = Network(
            self.broker,
            Random(self.chance.random()),
            self.weather,
            name=f"worker-{self.started}",
            killed_at=killed_at,
        )
        worker = asyncio.create_task(work(self.topology, network))
        killed = asyncio.create_task(network.killed.wait())
        try:
            await asyncio.wait({worker, killed}, return_when=asyncio.FIRST_COMPLETED)
            if not worker.done():
                self.kills += 1
                return
            worker.result()
        finally:
            worker.cancel()
            killed.cancel()
            await asyncio.gather(worker, killed, return_exceptions=True)
            network.close()
