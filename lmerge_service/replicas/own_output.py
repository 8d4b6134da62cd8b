"""What a replica's own topic holds: the events that may still change, by partition.

Theory
    The output is legal by itself, so that its last incarnation's TDB up to its end is known by
    reading it: whole, where nothing else is left, or from where a snapshot has it.

Who owns what
    A `Source` is borrowed, whose positions are undefined afterwards.

What happens on a crash: nothing is written here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lmerge_service.elements import START, Element
from lmerge_service.errors import ElementError, IllegalStreamError, StateError
from lmerge_service.formats.headers import incarnation_of
from lmerge_service.formats.repeats import Repeats
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.queries.live_events import LiveEvents
from lmerge_service.queries.operators.sources import Elements
from lmerge_service.replicas.commit_record import OutputPartition
from lmerge_service.replicas.output_reader import OutputReader

__all__ = ("OutputContent", "OwnOutput", "read_on", "read_whole")


@dataclass(frozen=True, slots=True)
class OwnOutput:
    """Of the last incarnation."""

    incarnation: int
    joining_at: int
    outputs: list[LiveEvents]
    offsets: list[int]
    """Of each partition an offset, before which there are …"""
    counted: list[int]
    """… so many records of this incarnation."""
    records: list[int]
    """How many there are of it in all."""


async def read_whole(
    source: Source, topic: str, partitions: int, reader: OutputReader
) -> OwnOutput | None:
    """Reads the topic from its beginning; None: it has no elements.

    Raises:
        StateError: a record is no element of this query's, or may not stand where it stands.
        TransportError: Kafka went away.
    """
    places = [TopicPartition(topic, number) for number in range(partitions)]
    beginnings, ends = await source.beginnings(places), await source.settled(places)
    found = [OutputContent(place, reader) for place in places]
    async for place, records in source.backlog(beginnings, ends):
        found[place.partition].take(records)
    last = max(found, key=lambda each: each.incarnation)
    if last.incarnation < 0:
        return None
    now = [each if each.incarnation == last.incarnation else None for each in found]
    counted = [0 if each is None else each.records for each in now]
    return OwnOutput(
        last.incarnation,
        last.joining_at,
        [LiveEvents() if each is None else each.live for each in now],
        [ends[place] for place in places],
        counted,
        counted,
    )


class OutputContent:
    """The output of the last incarnation in one partition, from its beginning on."""

    def __init__(self, place: TopicPartition, reader: OutputReader) -> None:
        self._place = place
        self._reader = reader
        self._begin(-1, START)

    def _begin(self, incarnation: int, joining_at: int) -> None:
        self.incarnation, self.joining_at = incarnation, joining_at
        self.live, self.records = LiveEvents(), 0
        self._legal = Elements()
        self._repeats = Repeats()

    @property
    def number(self) -> int:
        """That of the last record; 0 if its writer does not number them."""
        return self._repeats.of(self._place.partition).last

    def take(self, records: Sequence[Record]) -> None:
        """Takes the records that come next.

        Raises:
            StateError: one is no element of this query's, or may not stand where it stands.
        """
        usual = self._reader.at_once([record.value for record in records])
        for record, found in zip(records, usual, strict=True):
            try:
                incarnation, joining_at = incarnation_of(record.headers)
                if incarnation < self.incarnation:
                    continue  # what is left of an earlier one
                element = found or self._reader.element(record.value)
                if incarnation > self.incarnation:
                    self._begin(incarnation, joining_at)
                self.records += 1
                if self._repeats.is_repeat(self._place.partition, record):
                    continue  # a job on Spark writes at least once
            except (ElementError, IllegalStreamError) as error:
                raise StateError(f"{self._at(record)}: {error}") from error
            self.live.apply(self._legal.process(element))
            if self._legal.refused:
                _, kind, _ = self._legal.refused[0]
                raise StateError(
                    f"{self._at(record)}: the topic is no legal stream by itself ({kind}), as when "
                    "it was written at least once; begin a new incarnation with --rejoin"
                )

    def _at(self, record: Record) -> str:
        return f"{self._place.topic}-{self._place.partition}, offset {record.offset}"


async def read_on(
    source: Source,
    topic: str,
    outputs: Sequence[LiveEvents],
    since: Sequence[OutputPartition],
    until: Sequence[OutputPartition],
    reader: OutputReader,
) -> None:
    """Brings outputs that were read up to `since` up to `until`, the last commit record.

    Raises:
        StateError: the topic has other records than were counted: somebody else wrote to it, or
            some are gone.
        TransportError: Kafka went away.
    """
    places = {TopicPartition(topic, n): each.offset for n, each in enumerate(since)}
    left = {n: each.records - each.counted for n, each in enumerate(since)}
    counts = {n: each.counted for n, each in enumerate(since)}
    beginnings, ends = await source.beginnings([*places]), await source.settled([*places])
    for place, offset in places.items():
        wanted = until[place.partition].records > counts[place.partition]
        if wanted and beginnings[place] > offset:
            raise StateError(
                f"{topic}-{place.partition} begins with offset {beginnings[place]}, and is needed "
                f"from {offset} on: its retention is too short"
            )
    async for place, records in source.backlog(places, ends):
        number = place.partition
        counts[number] += len(records)
        behind, left[number] = records[left[number] :], max(0, left[number] - len(records))
        outputs[number].apply(_elements(place, behind, reader))
    for number, each in enumerate(until):
        if counts[number] != each.records:
            raise StateError(
                f"{topic}-{number} has {counts[number]} records of this incarnation, and "
                f"{each.records} were committed: has somebody else written to it?"
            )


def _elements(
    place: TopicPartition, records: Sequence[Record], reader: OutputReader
) -> list[Element]:
    found = []
    usual = reader.at_once([record.value for record in records])
    for record, element in zip(records, usual, strict=True):
        try:
            found.append(element or reader.element(record.value))
        except (ElementError, IllegalStreamError) as error:
            at = f"{place.topic}-{place.partition}, offset {record.offset}"
            raise StateError(f"{at}: {error}") from error
    return found
