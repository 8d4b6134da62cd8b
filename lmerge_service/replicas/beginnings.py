"""Where a replica without state begins: with the first fact, with a given one, or with those of
now.

Theory
    A replica that begins with the facts from S on has every event that begins at S or later, so
    it is correct from `joining_at(S)` on (`queries.properties`): that is its joining point, which
    the headers of its next incarnation have. With the present watermark of the facts as S, the
    joining point is where its windows have filled, and until the merge is there it waits for nobody
    and nobody for it. Times of records must be those of their facts, as `feed` writes them. Where
    the facts have ended, their end is the latest record: what begins there has only the end to
    emit, and joins at it.
"""

from collections.abc import Sequence

from lmerge_service.errors import StateError
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.find import windows
from lmerge_service.kafka.source import Source, TopicPartition

__all__ = ("check_kept", "present_watermark", "watermark_of")


async def watermark_of(connection: Connection, facts: str, width: int, lateness: int) -> int | None:
    """How far the facts are by now, in the time of their records: no later fact that counts will
    be below it. None as long as a partition is empty.

    Raises:
        TransportError: Kafka cannot be reached, or refuses.
    """
    places = [TopicPartition(facts, number) for number in range(width)]
    async with Source(connection) as source:
        beginnings, ends = await source.beginnings(places), await source.ends(places)
        highest = [await _highest(source, each, beginnings[each], ends[each]) for each in places]
    known = [time for time in highest if time is not None]
    return min(known) - lateness if len(known) == width else None


async def present_watermark(
    connection: Connection, sources: Sequence[tuple[str, int, int]]
) -> int | None:
    """How far all facts are by now, of sources (topic, partitions, lateness); None: there are no
    sources, or those of a partition have no facts yet.

    Raises:
        TransportError: Kafka cannot be reached, or refuses.
    """
    found = [await watermark_of(connection, *each) for each in sources]
    known = [each for each in found if each is not None]
    return min(known) if known and len(known) == len(found) else None


async def check_kept(connection: Connection, facts: str, width: int, since: int | None) -> None:
    """Refuses to begin with the facts of a time that Kafka may not keep any more; None: with the
    first there was.

    Raises:
        StateError: before the first record that is not earlier some have been deleted.
        TransportError: Kafka cannot be reached, or refuses.
    """
    places = [TopicPartition(facts, number) for number in range(width)]
    async with Source(connection) as source:
        kept = await source.beginnings(places)
        begins = kept if since is None else await source.since(places, since)
    for place in places:
        if 0 < kept[place] == begins[place]:
            which = "facts before it are" if since is None else f"facts from {since} on may be"
            raise StateError(
                f"{facts}-{place.partition} begins with offset {kept[place]}: {which} gone; begin "
                "with later ones (--since TIME, --rejoin)"
            )


async def _highest(source: Source, place: TopicPartition, begin: int, end: int) -> int | None:
    """Of the latest records of a partition."""
    for first, last in windows(begin, end):
        times = [
            record.timestamp
            async for _, records in source.backlog({place: first}, {place: last})
            for record in records
        ]
        if times:
            return max(times)
    return None
