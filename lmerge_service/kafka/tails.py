"""The end of a replica's topic: the last element of each partition, and its incarnation."""

from collections.abc import Iterable
from dataclasses import dataclass

from lmerge_service.elements import START, Element
from lmerge_service.errors import ElementError
from lmerge_service.formats.headers import incarnation_of
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.find import windows
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import Source, TopicPartition

__all__ = ("Tail", "next_incarnation", "tails")


@dataclass(frozen=True, slots=True)
class Tail:
    """The last element of a partition."""

    partition: int
    element: Element
    incarnation: int
    joining_at: int = START
    """The incarnation has every event that ends at this time or later; START: all events."""


def next_incarnation(tail: Iterable[Tail]) -> int:
    """The number after those of the given tails; 0 where there are none."""
    return max((each.incarnation + 1 for each in tail), default=0)


async def tails(connection: Connection, topic: str, partitions: int) -> list[Tail]:
    """Of those partitions that contain any element; records that are none are skipped.

    An open transaction is waited for: an incarnation may have begun in it.

    Raises:
        TransportError: Kafka cannot be reached, or refuses; a transaction is left open.
    """
    places = [TopicPartition(topic, number) for number in range(partitions)]
    found = []
    async with Source(connection) as source:
        beginnings, ends = await source.beginnings(places), await source.settled(places)
        for place in places:
            for start, end in windows(beginnings[place], ends[place]):
                if (tail := await _last(source, place, start, end)) is not None:
                    found.append(tail)
                    break
    return found


async def _last(source: Source, place: TopicPartition, start: int, end: int) -> Tail | None:
    last = None
    async for _, records in source.backlog({place: start}, {place: end}):
        for record in reversed(records):
            if (tail := _tail(place, record)) is not None:
                last = tail
                break
    return last


def _tail(place: TopicPartition, record: Record) -> Tail | None:
    try:
        incarnation, joining_at = incarnation_of(record.headers)
        element = WireDecoder().decode(record.value)
        return Tail(place.partition, element, incarnation, joining_at)
    except ElementError:
        return None
