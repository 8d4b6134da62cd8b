"""Topics, Source and Sink over the Kafka in memory, as `lmerge_service.kafka` has them.

They keep to the same words: same methods, same errors, same meaning of positions. The suite in
`test_contract` runs against these and against a real broker.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from chaos.records import Record
from lmerge_service.errors import ConfigurationError, StateError, TransportError
from lmerge_service.kafka.sink import OffsetAndMetadata, Outbox
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import TopicInfo
from tests.simulation.memory import Message, OutOfRange, Producer, UnknownTopic
from tests.simulation.network import Network

__all__ = ("MemorySink", "MemorySource", "MemoryTopics")

_STALL_SECONDS = 120.0


class MemoryTopics:
    """As `kafka.topics.Topics`."""

    def __init__(self, network: Network):
        self._network = network

    async def __aenter__(self) -> "MemoryTopics":
        await self._network.request(lambda: None, "connecting")
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def describe(self, names: Iterable[str], *, seconds: float = 15) -> dict[str, TopicInfo]:
        broker, wanted = self._network.broker, list(names)
        found = await self._network.request(
            lambda: {name: broker.describe(name) for name in wanted},
            "asking which topics there are",
        )
        return {name: TopicInfo(*info) for name, info in found.items() if info is not None}

    async def partitions(self, names: Iterable[str], *, seconds: float = 15) -> dict[str, int]:
        return {name: info.partitions for name, info in (await self.describe(names)).items()}

    async def committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        broker = self._network.broker
        return await self._network.request(lambda: broker.committed(group), "asking for offsets")

    async def ensure(
        self, name: str, *, partitions: int = 1, config: dict[str, str] | None = None
    ) -> int:
        broker = self._network.broker
        await self._network.request(
            lambda: broker.create(name, partitions, config), f"making topic {name}"
        )
        return (await self.partitions([name]))[name]

    async def delete(self, *names: str) -> None:
        for name in names:
            await self._network.request(lambda n=name: self._network.broker.delete(n), "deleting")  # type: ignore[misc]

    async def require(self, name: str, key: str, holds: Callable[[str], bool], must: str) -> None:
        broker = self._network.broker
        value = (await self._network.request(lambda: broker.config(name), "asking"))[key]
        if not holds(value):
            raise ConfigurationError(f"topic {name} has {key}={value}; it {must}")


class MemorySource:
    """As `kafka.source.Source`."""

    def __init__(self, network: Network):
        self._network = network
        self._positions: dict[TopicPartition, int] = {}
        self.lost: dict[TopicPartition, str] = {}

    async def __aenter__(self) -> "MemorySource":
        await self._network.request(lambda: None, "connecting")
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def beginnings(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._ask(self._network.broker.beginning, partitions)

    async def ends(
        self, partitions: Sequence[TopicPartition], *, seconds: float = 15
    ) -> dict[TopicPartition, int]:
        return await self._ask(self._network.broker.last_stable, partitions)

    async def high_watermarks(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return await self._ask(self._network.broker.high_watermark, partitions)

    async def _ask(
        self, of: Callable[[TopicPartition], int], partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return await self._network.request(
            lambda: {tp: of(tp) for tp in partitions}, "asking where topics begin or end"
        )

    def position(self, tp: TopicPartition) -> int | None:
        return self._positions.get(tp)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._positions = dict(positions)

    async def poll(
        self, seconds: float, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """Some of what is there: which partitions answer first is chance."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while True:
            news = self._network.news
            found = await self._network.request(lambda: self._fetch(max_records), "reading")
            if found or self.lost or clock() >= until:
                return found
            try:
                async with asyncio.timeout(until - clock()):
                    await news.wait()
            except TimeoutError:
                return {}

    def _fetch(self, most: int | None) -> dict[TopicPartition, list[Record]]:
        found: dict[TopicPartition, list[Record]] = {}
        room = 1_000_000 if most is None else most
        for tp in self._network.chance.sample(list(self._positions), len(self._positions)):
            if tp in self.lost or room <= 0:
                continue
            if found and self._network.chance.random() < 0.3:
                continue  # its answer comes later
            try:
                records, position = self._network.broker.fetch(tp, self._positions[tp], room)
            except UnknownTopic:
                continue
            except OutOfRange:
                self.lost[tp] = "the broker no longer has the offset to go on from"
                continue
            self._positions[tp] = position
            room -= len(records)
            if records:
                found[tp] = records
        return found

    async def backlog(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> AsyncIterator[tuple[TopicPartition, list[Record]]]:
        self.assign({tp: offset for tp, offset in starts.items() if offset < ends[tp]})
        clock = asyncio.get_running_loop().time
        progress = clock()
        while self._positions:
            for tp, records in (await self.poll(0.2)).items():
                if inside := [record for record in records if record.offset < ends[tp]]:
                    yield tp, inside
                progress = clock()
            for tp in self._positions.keys() & self.lost.keys():
                raise StateError(f"{tp.topic}-{tp.partition} {self.lost[tp]}")
            self._positions = {tp: at for tp, at in self._positions.items() if at < ends[tp]}
            if clock() - progress > _STALL_SECONDS:
                raise TransportError(f"reading stalled ({self._positions})")


class MemorySink:
    """As `kafka.sink.Sink`."""

    def __init__(
        self,
        network: Network,
        *,
        transactional_id: str,
        group: str,
        topic: str,
        dead_letter_topic: str,
        max_record_bytes: int,
    ):
        self._network = network
        self._transactional_id = transactional_id
        self._group = group
        self._output = TopicPartition(topic, 0)
        self._dead_letters = TopicPartition(dead_letter_topic, 0)
        self._producer: Producer

    async def __aenter__(self) -> "MemorySink":
        broker, name = self._network.broker, self._transactional_id
        self._producer = await self._network.request(
            lambda: broker.init_producer(name), "taking over the output"
        )
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def commit(self, outbox: Outbox) -> None:
        """Four requests at the most: what comes between them is in the log, and open."""
        broker, producer, doing = self._network.broker, self._producer, "committing"
        records: list[Message] = [(key, value, ()) for key, value in outbox.records]
        letters: list[Message] = [letter.to_record() for letter in outbox.dead]
        for tp, messages in ((self._output, records), (self._dead_letters, letters)):
            for start in range(0, len(messages), 16):
                part = messages[start : start + 16]
                await self._network.request(
                    lambda tp=tp, part=part: broker.produce(tp, part, producer),  # type: ignore[misc]
                    doing,
                )
        if outbox.offsets:
            offsets = outbox.offsets
            await self._network.request(
                lambda: broker.add_offsets(producer, self._group, offsets), doing
            )
        await self._network.request(lambda: broker.end(producer, commit=True), doing)
