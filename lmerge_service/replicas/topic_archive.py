"""A topic of facts as an archive of events: ranges of offsets, with their times.

Theory
    Kafka keeps what a replica has read, for as long as the topic's retention lets it: nothing is to
    be written twice. Its buckets are ranges of offsets. In which a time begins Kafka knows, by the
    records' own times; it ends where facts of that time would be late.

Invariants
    T1  A scan has every event of its range that counts, or raises: what retention has deleted is
        never passed over.

Who owns what
    A `Source` is borrowed, whose positions are undefined afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from lmerge_service.elements import INFINITY, START, Insert
from lmerge_service.errors import ReplayError
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.queries import logical
from lmerge_service.queries.replay.archive import Archived
from lmerge_service.replicas.inputs import FactsInput

__all__ = ("FactAt", "TopicArchive", "archives_of")

_RANGE: Final = 10_000


class FactAt(NamedTuple):
    """An event, and the partition that it is in; its number is the offset there."""

    partition: int
    entry: Archived


@dataclass(slots=True)
class TopicArchive:
    """The facts of a topic."""

    source: Source
    facts: logical.Source
    topic: str
    width: int
    headroom: int = 1
    size: int = _RANGE
    """Offsets of a range."""
    read: int = 0
    """How many ranges have been read."""

    @property
    def places(self) -> list[TopicPartition]:
        """The topic's partitions."""
        return [TopicPartition(self.topic, number) for number in range(self.width)]

    async def first(self, since: int) -> dict[TopicPartition, int]:
        """From which offsets on the events with ve >= `since` are.

        Raises:
            ReplayError: some of them may have been deleted.
            TransportError: Kafka cannot be reached, or refuses.
        """
        kept = await self.source.beginnings(self.places)
        longest = logical.longest(self.facts)
        if since == START or longest == INFINITY:
            found = dict.fromkeys(self.places, 0)
        else:
            found = await self.source.since(self.places, since - longest)
        for place, at in found.items():
            # what is in the first record that is left may have been before it, too
            if kept[place] and at <= kept[place]:
                raise ReplayError(
                    f"it rests on all of {place.topic}-{place.partition} that is of time",
                    since,
                    await self._horizon(place, kept[place]),
                )
        return found

    async def _horizon(self, place: TopicPartition, begins: int) -> int:
        """The time of the first record that is left, or what is known of it."""
        end = (await self.source.ends([place]))[place]
        async for _, records in self.source.backlog({place: begins}, {place: min(begins + 1, end)}):
            return records[0].timestamp
        return INFINITY

    async def scan(self, since: int, before: int) -> list[FactAt]:
        """The events with ve >= `since` and vs < `before`, by partition, in order.

        Raises:
            ReplayError: some may have been deleted.
            TransportError: Kafka cannot be reached, or refuses.
        """
        starts = await self.first(since)
        ends = await self.source.ends(self.places)
        found: list[FactAt] = []
        for place in self.places:
            facts = FactsInput(self.facts, self.topic, self.width, self.headroom)
            first = starts[place]
            while first < ends[place]:
                last = min(first - first % self.size + self.size, ends[place])
                entries = await self._range(place, first, last, facts)
                found += [
                    FactAt(place.partition, entry)
                    for entry in entries
                    if entry.ve >= since and entry.vs < before
                ]
                first = last
                if facts.reached[place.partition] - self.facts.lateness >= before:
                    break  # nothing that counts is earlier any more
        return found

    async def _range(
        self, place: TopicPartition, first: int, last: int, facts: FactsInput
    ) -> list[Archived]:
        """The events of a range of offsets; `facts` has seen those before it."""
        self.read += 1
        entries: list[Archived] = []
        async for _, records in self.source.backlog({place: first}, {place: last}):
            for record in records:
                for event in facts.take(place.partition, [record]):
                    assert type(event) is Insert
                    entries.append(Archived(record.offset, event.payload, event.vs, event.ve))
            facts.dead.clear()
        return entries


def archives_of(
    source: Source,
    sources: Mapping[str, logical.Source | logical.Elements],
    topics: Mapping[str, str],
    widths: Mapping[str, int],
    headroom: int,
) -> dict[str, TopicArchive]:
    """Of each source of facts, by name."""
    return {
        name: TopicArchive(source, facts, topics[name], widths[name], headroom)
        for name, facts in sources.items()
        if isinstance(facts, logical.Source)
    }
