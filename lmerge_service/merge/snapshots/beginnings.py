"""Where the reading of a merged topic can begin in its middle: at a snapshot of the merge.

Theory
    A merge keeps, in OUTPUT.state, snapshots of each task: which events its output partition holds
    that may still change, how far it is stable, and the offset from which on all this is not
    covered. So a reader has what whoever began with the first record has that still matters, at a
    cost that goes by what is live, and not by what was published:

        output     ins A  ins B  stable(7)  ins C │ adj C  ins D  stable(9) …
        snapshot                  B, C live, stable 7, offset 4
        reader     insert B  insert C  stable(7)    adj C  ins D  stable(9) …

    Partitions have snapshots of their own, and are stable up to different times. Each lacks what
    ended before its stable point; so the topic is correct from the latest of these times on.

    Of an output that has started over, the latest incarnation counts: it is correct from its own
    time on at the earliest, and begins where its first record is, if there is no snapshot of it. A
    partition that has not come to it has nothing yet.
"""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from lmerge_service.config.topology import Output
from lmerge_service.elements import START, Insert
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.merge.commit_record import CommitRecord
from lmerge_service.merge.snapshots.reading import read_commit, read_snapshot
from lmerge_service.merge.task_state import OpenedState
from lmerge_service.tdb import Event

__all__ = ("PartitionStart", "beginnings_of", "latest", "state_topic")

_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """What one partition of a topic held, and where to read on."""

    events: Sequence[Event]
    """Those that end at `stable` or later, by vs."""
    stable: int
    offset: int
    incarnation: int = 0
    """Of the output."""
    correct_from: int = START
    """That incarnation's; `stable` may be later."""

    def inserts(self, decoder: WireDecoder) -> list[Insert[bytes]]:
        """The events as elements, with payloads that are equal by the decoder's rule: where that
        normalises more than the least, it may be more than the merge's did."""
        if not (decoder.cache.nfc or decoder.cache.drop_nulls):
            return [Insert(*event) for event in self.events]  # type: ignore[arg-type]
        return [decoder.decode(encode(Insert(*event))) for event in self.events]  # type: ignore[misc]


def latest(beginnings: Sequence[PartitionStart]) -> tuple[int, int, list[PartitionStart]]:
    """The latest incarnation that partitions are in; from when on the topic is correct with what
    these have; and what each partition has of it.

    >>> later = PartitionStart((), 7, 3, incarnation=1, correct_from=50)
    >>> latest([PartitionStart((), 40, 9), later])[:2]
    (1, 50)
    """
    number = max(each.incarnation for each in beginnings)
    counting = [each for each in beginnings if each.incarnation == number]
    correct_from = max(max(each.stable, each.correct_from) for each in counting)
    empty = {"events": (), "stable": START, "incarnation": number}
    held = [e if e.incarnation == number else replace(e, **empty) for e in beginnings]  # type: ignore[arg-type]
    return number, correct_from, held


def state_topic(topic: str) -> str:
    """Where the merge that publishes to a topic keeps its state."""
    return Output(topic=topic).state_topic


async def beginnings_of(source: Source, topic: str, partitions: int) -> list[PartitionStart]:
    """Where to begin in each partition of a merge's output, whose state topic is there. One that
    has no snapshot, or none that is whole, is read from its first record. The source's positions
    are undefined afterwards.

    Raises:
        ConfigurationError: the merge keeps no events (case R0, R1 or R2).
        StateError: no snapshot of a partition can be used, and it has lost its beginning.
        TransportError: Kafka went away.
    """
    return [await _beginning(source, TopicPartition(topic, each)) for each in range(partitions)]


async def _beginning(source: Source, tp: TopicPartition) -> PartitionStart:
    """A leading task may take two snapshots, and delete what they cover, while we read one."""
    state = TopicPartition(state_topic(tp.topic), tp.partition)
    whys: list[str] = []
    for _ in range(_TRIES):
        begins = (await source.beginnings([tp]))[tp]
        commit = await read_commit(source, state, (await source.ends([state]))[state])
        commit = commit or CommitRecord()
        for place in commit.snapshots:
            opened = OpenedState("auto")
            try:
                await read_snapshot(source, state, place, opened)
                offset = await _behind(source, tp, opened, begins, commit.output_records)
            except StateError as error:
                whys.append(f"snapshot of transaction {place.transaction}: {error}")
            else:
                return _of(tp, opened, offset)
        if begins <= (begun := commit.output).offset:
            return PartitionStart((), START, begun.offset, begun.incarnation, begun.correct_from)
    whys = whys or ["there is no snapshot"]
    raise StateError(
        f"{tp.topic}-{tp.partition} has lost its beginning, and nothing can be read from a "
        f"snapshot ({'; '.join(dict.fromkeys(whys))})"
    )


def _of(tp: TopicPartition, opened: OpenedState, offset: int) -> PartitionStart:
    merge = opened.operator()
    if (live := merge.live_output()) is None:
        raise ConfigurationError(
            f"kafka:{tp.topic} is merged in case {merge.case}, which keeps no events: it can only "
            "be read from its first record"
        )
    events, begun = sorted(live, key=lambda event: event.vs), opened.commit.output
    return PartitionStart(events, merge.max_stable, offset, begun.incarnation, begun.correct_from)


async def _behind(
    source: Source, tp: TopicPartition, opened: OpenedState, begins: int, published: int
) -> int:
    """The offset behind the last record that a snapshot covers. `published` records were there at
    some moment after the partition began at `begins`.

    Raises:
        StateError: records were deleted that it does not cover.
    """
    head, covered = opened.head, opened.commit.output_records
    start, left = head.output, covered - head.counted
    if begins > start:
        if covered == published and not left:
            return begins
        raise StateError(f"it goes on at offset {start}, and the topic begins at {begins}")
    if not left:
        return start
    end = (await source.ends([tp]))[tp]
    async with aclosing(source.backlog({tp: start}, {tp: end})) as backlog:
        async for _, records in backlog:
            if len(records) >= left:
                return records[left - 1].offset + 1
            left -= len(records)
    raise StateError(f"{left} records are missing behind offset {start}")
