"""Which partitions are read on: none too far ahead of one that has something to be read."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from lmerge_service.errors import StateError
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.queries.logical import Source as Facts
from lmerge_service.queries.plan import facts
from lmerge_service.replicas.inputs import FactsInput
from lmerge_service.replicas.reading import InputReading
from tests.replicas.records import Read, facts_of

SLOW, FAST = TopicPartition("slow", 0), TopicPartition("fast", 0)


class Topics:
    """As `kafka.source.Source`, over records in memory."""

    def __init__(self, records: Mapping[TopicPartition, Sequence[Read]]) -> None:
        self._records = records
        self._positions: dict[TopicPartition, int] = {}
        self.paused: frozenset[TopicPartition] = frozenset()
        self.lost: dict[TopicPartition, str] = {}

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._positions = dict(positions)

    def pause(self, places: Collection[TopicPartition]) -> None:
        self.paused |= frozenset(places)

    def resume(self, places: Collection[TopicPartition]) -> None:
        self.paused -= frozenset(places)

    def position(self, place: TopicPartition) -> int:
        return self._positions[place]

    async def ends(self, places: Sequence[TopicPartition], **_: Any) -> dict[TopicPartition, int]:
        return {place: len(self._records[place]) for place in places}

    async def poll(self, _: float, most: int) -> dict[TopicPartition, list[Read]]:
        found = {}
        for place, at in self._positions.items():
            if place not in self.paused and (left := list(self._records[place][at : at + most])):
                found[place] = left
                self._positions[place] += len(left)
        return found


def reading(topics: Topics, skew: int) -> InputReading:
    inputs = {}
    for name in ("fast", "slow"):
        source = facts(name, time="t", fields={}).plan
        assert isinstance(source, Facts)
        inputs[name] = FactsInput(source, name, 1)
    positions = {"fast": [0], "slow": [0]}
    return InputReading(topics, inputs, positions, skew=skew, clock=lambda: 0.0)  # type: ignore[arg-type]


def test_what_is_too_far_ahead_waits_for_what_can_be_read() -> None:
    async def read() -> None:
        slow = facts_of(*({"t": t} for t in range(1, 100)))
        topics = Topics({FAST: facts_of(*({"t": 10 * t} for t in range(1, 100))), SLOW: slow})
        found = reading(topics, skew=200)
        furthest = 0
        while topics.position(SLOW) < 99 or topics.position(FAST) < 99:
            portions = await found.read(0, 10)
            assert portions, "something is always read on"
            for source, partition, records in portions:
                source.take(partition, records)
            found.balance()
            places = {place: each.reached[0] for place, (each, _) in found.places().items()}
            if topics.position(SLOW) < 99:
                furthest = max(furthest, places[FAST] - places[SLOW])
        assert furthest <= 200 + 10 * 10

    asyncio.run(read())


def test_what_has_nothing_to_be_read_stops_nobody() -> None:
    async def read() -> None:
        topics = Topics({FAST: facts_of({"t": 5_000}), SLOW: facts_of({"t": 1})})
        found = reading(topics, skew=10)
        for source, partition, records in await found.read(0, 10):
            source.take(partition, records)
        found.balance()
        assert found.paused == frozenset()

    asyncio.run(read())


def test_the_source_that_is_least_far_comes_first() -> None:
    async def read() -> None:
        topics = Topics({FAST: facts_of({"t": 5}, {"t": 6}), SLOW: facts_of({"t": 1}, {"t": 2})})
        found = reading(topics, skew=10)
        for source, partition, records in await found.read(0, 1):
            source.take(partition, records)
        assert [portion.input.name for portion in await found.read(0, 1)] == ["slow", "fast"]

    asyncio.run(read())


def test_a_partition_that_cannot_be_read_ends_it_with_the_place() -> None:
    topics = Topics({FAST: [], SLOW: []})
    topics.lost[SLOW] = "the broker no longer has the offset to go on from"
    with pytest.raises(StateError, match=r"slow-0 the broker no longer has the offset"):
        asyncio.run(reading(topics, skew=10).read(0, 1))
