"""Reads a task's partition of the state topic: its last commit record, and a snapshot's chunks.

Who owns what
    Nothing is owned: a `Source` is borrowed, whose positions are undefined afterwards. Only the
    task's own transactions write the partition (`sink`), so that what is read is committed.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from lmerge_service.errors import StateError
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import Source, TopicPartition

__all__ = ("chunks", "last_with_key")

_NEAR = 16
_FURTHER = 8


async def last_with_key(
    source: Source, tp: TopicPartition, key: bytes, *, end: int
) -> Record | None:
    """The last record before `end` with this key; if that was compacted away meanwhile, since a
    later one has taken its place, the last of all. None: there is none.

    It is looked for from the end backwards, since it is near the end, and the partition may be
    long.
    """
    while (found := await _last_before(source, tp, key, end)) is None:
        later = (await source.ends([tp]))[tp]
        if later <= end:
            return None
        end = later
    return found


async def _last_before(source: Source, tp: TopicPartition, key: bytes, end: int) -> Record | None:
    begin = (await source.beginnings([tp]))[tp]
    span = _NEAR
    while True:
        start = max(begin, end - span)
        found = None
        async for _, records in source.backlog({tp: start}, {tp: end}):
            found = next((each for each in reversed(records) if each.key == key), found)
        if found is not None or start == begin:
            return found
        span *= _FURTHER


async def chunks(
    source: Source, tp: TopicPartition, first: int, last: int, keys: set[bytes]
) -> AsyncGenerator[bytes, None]:
    """The values of the records in first..last that have one of the keys, in order.

    Raises:
        StateError: the partition does not reach that far, or begins later.
    """
    begin, end = (await source.beginnings([tp]))[tp], (await source.ends([tp]))[tp]
    if begin > first or end <= last:
        raise StateError(f"{tp.topic}-{tp.partition} has {begin} to {end}, not {first} to {last}")
    async with aclosing(source.backlog({tp: first}, {tp: last + 1})) as backlog:
        async for _, records in backlog:
            for record in records:
                if record.key in keys and record.value is not None:
                    yield record.value
