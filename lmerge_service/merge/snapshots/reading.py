"""Reads a task's last commit record and its snapshots back from the state topic."""

import hashlib
from contextlib import aclosing
from typing import Protocol

from lmerge_service.errors import StateError
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.state import chunks, last_with_key
from lmerge_service.merge.commit_record import MARK_KEY, CommitRecord, SnapshotPlace, chunk_key

__all__ = ("Opening", "read_commit", "read_snapshot")


class Opening(Protocol):
    """What takes the chunks of a snapshot, in order."""

    def take(self, chunk: bytes) -> None:
        """Takes the next chunk.

        Raises:
            StateError: it is damaged, of another version, or of something else.
        """


async def read_commit(source: Source, tp: TopicPartition, end: int) -> CommitRecord | None:
    """The last commit record of the task whose partition of the state topic is `tp`; `end` is where
    that ended a moment ago.

    Raises:
        StateError: it is of another version.
        TransportError: Kafka went away.
    """
    record = await last_with_key(source, tp, MARK_KEY, end=end)
    return None if record is None else CommitRecord.of(record.value)


async def read_snapshot(
    source: Source, tp: TopicPartition, place: SnapshotPlace, into: Opening
) -> None:
    """Reads a snapshot of the task whose partition of the state topic is `tp`.

    Raises:
        StateError: it is damaged, of another version, or of another merge.
        TransportError: Kafka went away.
    """
    keys = {chunk_key(place.slot, number) for number in range(place.chunks)}
    digest, found = hashlib.sha256(), 0
    async with aclosing(chunks(source, tp, place.first, place.last, keys)) as reading:
        async for chunk in reading:
            digest.update(chunk)
            into.take(chunk)
            found += 1
    if found != place.chunks or digest.hexdigest() != place.digest:
        raise StateError(f"the snapshot is damaged: {found} of {place.chunks} chunks are whole")
