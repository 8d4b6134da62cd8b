"""Finds the latest record about an event in a topic: partition, offset and text, for evidence.

Theory
    The caller has just merged the event, so its record is near the end of what was read:
    the partition is read backwards in windows that double, from a given offset down to a limit.

        before=10_000   [9_000, 10_000) → [7_000, 9_000) → [3_000, 7_000) → …

    Within a window the last match counts, so the result is the topic's latest record before
    `before`. Offsets are not all records: markers and compacted ones make windows thinner.

Who owns what
    A search owns a consumer of its own for as long as it lasts, so that it moves no other
    position. On a crash nothing is left behind.

Cost
    Reads at most `limit` offsets a partition, and at most three times as many as lie between the
    match and `before`.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

from lmerge_service.elements import Element, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import Source, TopicPartition

__all__ = ("FoundRecord", "find_event", "windows")

_FIRST_WINDOW = 1_000


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record about the event."""

    topic: str
    partition: int
    offset: int
    element: Element
    value: bytes | None


async def find_event(
    connection: Connection,
    before: Mapping[TopicPartition, int],
    payload: Hashable,
    vs: int,
    decoder: WireDecoder,
    *,
    limit: int = 100_000,
) -> FoundRecord | None:
    """The last insert or adjust of ⟨payload, vs⟩ before these offsets, in any of the partitions.

    An event lives in one partition of a replica's topic; where it is in several, the first given
    is taken. None: not in the latest `limit` offsets of any.

    Raises:
        TransportError: Kafka cannot be reached, or refuses.
        StateError: a partition cannot be read.
    """
    async with Source(connection, max_record_bytes=decoder.max_record_bytes) as source:
        beginnings = await source.beginnings(list(before))
        for tp, end in before.items():
            for start, stop in windows(max(beginnings[tp], end - limit), end):
                if found := await _last_in(source, tp, start, stop, (payload, vs), decoder):
                    return found
    return None


def windows(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges that cover [start, end) from its end on, each twice as long as the one before.

    >>> list(windows(0, 5_000))
    [(4000, 5000), (2000, 4000), (0, 2000)]
    """
    size = _FIRST_WINDOW
    while end > start:
        yield max(start, end - size), end
        end -= size
        size *= 2


async def _last_in(
    source: Source,
    tp: TopicPartition,
    start: int,
    end: int,
    event: tuple[Hashable, int],
    decoder: WireDecoder,
) -> FoundRecord | None:
    found = None
    async for _, records in source.backlog({tp: start}, {tp: end}):
        for record in records:
            if (element := _about(record, event, decoder)) is not None:
                found = FoundRecord(tp.topic, tp.partition, record.offset, element, record.value)
    return found


def _about(record: Record, event: tuple[Hashable, int], decoder: WireDecoder) -> Element | None:
    """The record's element, if it is about the event."""
    try:
        element = decoder.decode(record.value)
    except ElementError:  # a dead letter, which was reported when it was merged
        return None
    if type(element) is Stable:
        return None
    found = (element.payload, element.vs)  # type: ignore[union-attr]
    return element if found == event else None
