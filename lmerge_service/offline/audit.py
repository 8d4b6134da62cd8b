"""The audit: are streams, in files or topics, legal, and do they mean the same?

Theory
    Each stream is first held to its own stables: every element must be legal where it stands
    (docs/semantics.md). Of a topic, each partition is a stream of its own, and of a replica that
    started over only the last incarnation counts, so that whether a topic is legal does not depend
    on how its partitions interleave; what an incarnation leaves uncovered behind the one before is
    named (`StreamRestart`). Then the TDBs are compared: equivalent when they are equal,
    whatever the elements were. Streams that have not ended are compared as they stand, and the
    verdict names them; or *clipped*: as far as the lowest of their stable points, before which all
    of them are final.

    Of a merge's output that has lost its beginning the audit begins at a snapshot of the merge; all
    streams are then compared by the events that end at its stable point or later.

Cost
    O(1) per element; memory in the number of events, since a TDB forgets nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert
from lmerge_service.errors import (
    ConfigurationError,
    ElementError,
    IllegalStreamError,
    StateError,
)
from lmerge_service.formats.headers import RecordLike, incarnation_of
from lmerge_service.formats.repeats import RecordReading, Repeats
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.tdb import TDB, Difference, Event, differences

if TYPE_CHECKING:
    from lmerge_service.kafka.connection import Connection
    from lmerge_service.kafka.source import Source, TopicPartition
    from lmerge_service.merge.snapshots.beginnings import PartitionStart

__all__ = (
    "Audited",
    "EquivalenceVerdict",
    "StreamRestart",
    "TopicAudit",
    "audit_elements",
    "audit_topic",
    "compare",
    "snapshots_of",
)


@dataclass(frozen=True, slots=True)
class StreamRestart:
    """A stream that has started over."""

    incarnation: int
    correct_from: int
    """It has every event that ends at this time or later; START: all events."""
    former_stable: int
    """How far the incarnation before it was stable, by what is left of it."""
    former_illegal: str | None = None
    """Where the incarnation before it was no legal stream; None: nowhere."""

    @property
    def gap(self) -> tuple[int, int] | None:
        """The times, without the end, that neither covers."""
        lost = self.former_stable < self.correct_from
        return (self.former_stable, self.correct_from) if lost else None


@dataclass(slots=True)
class Audited:
    """One legal stream: its TDB, and how many elements made it."""

    name: str
    tdb: TDB
    inserts: int = 0
    adjusts: int = 0
    stables: int = 0
    contradicted: str | None = None
    """Where its numbers (`lmerge-seq`) were contradicted, and how often; None: nowhere."""
    since: int = START
    """The events that end at this time or later are known; START: all are."""
    restarts: tuple["StreamRestart", ...] = ()
    """How often it started over, the first time first."""

    @property
    def events(self) -> int:
        return len(self.tdb)

    @property
    def stable(self) -> int:
        return self.tdb.stable

    @property
    def complete(self) -> bool:
        """The stream has ended with stable(INFINITY)."""
        return self.tdb.stable == INFINITY

    def take(self, element: Element, where: str) -> None:
        """Advances by one element.

        Raises:
            IllegalStreamError: the element is not legal here; the message begins with `where`.
        """
        try:
            self.tdb.apply(element)
        except IllegalStreamError as error:
            raise IllegalStreamError(f"{where}: not a legal stream: {error}") from None
        kind = type(element)
        if kind is Insert:
            self.inserts += 1
        elif kind is Adjust:
            self.adjusts += 1
        else:
            self.stables += 1


@dataclass(frozen=True, slots=True)
class EquivalenceVerdict:
    """Whether streams mean the same; every (payload, vs) for which they don't."""

    streams: tuple[Audited, ...]
    differences: list[Difference]
    before: int | None = None
    """They were compared as far as this point; None: as they stand."""
    since: int = START
    """They were compared by the events that end at this time or later; START: by all."""

    @property
    def equivalent(self) -> bool:
        return not self.differences

    @property
    def differences_total(self) -> int:
        return len(self.differences)


def compare(*streams: Audited, clipped: bool = False) -> EquivalenceVerdict:
    """Compares streams as they stand; `clipped`: what is final in all of them only."""
    tdbs, point = [each.tdb for each in streams], None
    if (since := max(each.since for each in streams)) > START:
        tdbs = [TDB((e for e in each if e.ve >= since), each.stable) for each in tdbs]
    if clipped:
        point = min(each.stable for each in tdbs)
        if point < since:
            raise ConfigurationError(
                f"nothing can be compared: all are known from {since} on only, and final before "
                f"{point} only"
            )
        tdbs = [each.before(point) for each in tdbs]
    return EquivalenceVerdict(streams, differences(*tdbs), point, since)


def audit_elements(name: str, stream: Iterable[tuple[int, Element]]) -> Audited:
    """Audits (line, element) pairs of a file.

    Raises:
        IllegalStreamError: with file:line.
    """
    audited = Audited(name, TDB())
    for line, element in stream:
        audited.take(element, f"{name}:{line}")
    return audited


async def audit_topic(connection: "Connection", topic: str, decoder: WireDecoder) -> Audited:
    """Audits a topic from its beginning to its present end, as a read_committed consumer sees it.

    What is in an open transaction belongs to it, and is waited for. An output that has lost its
    beginning is audited from a snapshot on.

    Raises:
        ConfigurationError: there is no such topic, or it has lost its beginning and is no output of
            a merge with snapshots.
        TransportError: Kafka cannot be reached, or refuses; a transaction is left open.
        ElementError, IllegalStreamError: with topic-partition at offset.
    """
    # Slow to import, and of no use to the audit of files.
    from lmerge_service.kafka.source import Source, TopicPartition
    from lmerge_service.kafka.topics import Topics

    async with Topics(connection) as topics:
        width = await topics.width(topic)
    if width is None:
        raise ConfigurationError(f"kafka:{topic}: there is no such topic at {connection.bootstrap}")
    partitions = [TopicPartition(topic, number) for number in range(width)]
    reader = TopicAudit(topic, partitions, decoder)
    async with Source(connection) as source:
        starts = await source.beginnings(partitions)
        if any(starts.values()):
            by_number = {tp.partition: start for tp, start in starts.items()}
            found = await snapshots_of(source, connection, topic, by_number)
            reader.begin(dict(zip(partitions, found, strict=True)))
            starts = {tp: found[tp.partition].offset for tp in partitions}
        async for tp, records in source.backlog(starts, await source.settled(partitions)):
            reader.take(tp, records)
    return reader.result()


async def snapshots_of(
    source: "Source", connection: "Connection", topic: str, starts: Mapping[int, int]
) -> "list[PartitionStart]":
    """By partition, what the last whole snapshot of the merge has in place of the records that are
    gone; `starts` are the first offsets that are left, of which some are not 0.

    Raises:
        ConfigurationError: the topic is no output of a merge with snapshots.
        TransportError: Kafka cannot be reached, or refuses.
    """
    from lmerge_service.kafka.topics import Topics
    from lmerge_service.merge.snapshots.beginnings import beginnings_of, state_topic

    partition, start = next((number, start) for number, start in starts.items() if start)
    lost = f"kafka:{topic} begins at offset {start} of partition {partition}"
    async with Topics(connection) as topics:
        has_state = bool(await topics.describe([state_topic(topic)]))
    if not has_state:
        raise ConfigurationError(
            f"{lost}, and only of a merge's output it is known what was before: audit it from a "
            "recording, or as long as it is whole"
        )
    try:
        return await beginnings_of(source, topic, len(starts))
    except StateError as error:
        why = f"{lost}, and cannot be audited from a snapshot: {error}"
        raise ConfigurationError(why) from None


def _event(insert: Insert[bytes]) -> Event:
    return Event(insert.payload, insert.vs, insert.ve)


@dataclass(slots=True)
class _PartitionAudit:
    """One partition, in the incarnation that it has come to."""

    stream: Audited
    incarnation: int = 0
    illegal: IllegalStreamError | None = None
    """The first element that is not legal; what is behind it is left out."""
    contradicted: list[str] = field(default_factory=list)
    repeats: Repeats = field(default_factory=Repeats)

    @property
    def has_any(self) -> bool:
        stream = self.stream
        return bool(stream.inserts + stream.adjusts + stream.stables) or self.illegal is not None


class TopicAudit:
    """A stream for each partition and incarnation. What a partition had of an incarnation that it
    has left is let go, but for how far that was stable, and whether it was legal."""

    def __init__(self, topic: str, partitions: "Sequence[TopicPartition]", decoder: WireDecoder):
        self._topic = topic
        self._decoder = decoder
        self._partitions = {tp: self._empty(0) for tp in partitions}
        self._since: dict[int, int] = {0: START}
        """By incarnation, from when on it is correct."""
        self._left: dict[int, dict[TopicPartition, tuple[int, IllegalStreamError | None]]] = {}
        """By incarnation, of the partitions that have left it: its stable point and first fault."""

    def _empty(self, incarnation: int) -> _PartitionAudit:
        return _PartitionAudit(Audited(self._topic, TDB()), incarnation)

    def begin(self, beginnings: "Mapping[TopicPartition, PartitionStart]") -> None:
        """Begins with what a snapshot has of each partition."""
        from lmerge_service.merge.snapshots.beginnings import latest

        incarnation, since, holding = latest([*beginnings.values()])
        self._since = {incarnation: since}
        for tp, each in zip(beginnings, holding, strict=True):
            tdb = TDB(map(_event, each.inserts(self._decoder)), each.stable)
            self._partitions[tp] = _PartitionAudit(Audited(self._topic, tdb), incarnation)

    def take(self, tp: "TopicPartition", records: Iterable[RecordLike]) -> None:
        """Raises:
        ElementError: a record is no element.
        """
        for record in records:
            where = f"{tp.topic}-{tp.partition} at offset {record.offset}"
            try:
                incarnation, joining_at = incarnation_of(record.headers)
                element = self._decoder.decode(record.value)
            except ElementError as error:
                raise ElementError(error.reason, f"{where}: {error}") from None
            self._since.setdefault(incarnation, joining_at)
            if incarnation > self._partitions[tp].incarnation:
                self._leave(tp, incarnation)
            partition = self._partitions[tp]
            if incarnation == partition.incarnation and partition.illegal is None:
                self._take(partition, tp, record, element, where)

    def _leave(self, tp: "TopicPartition", incarnation: int) -> None:
        if (before := self._partitions[tp]).has_any:
            at = before.stream.stable, before.illegal
            self._left.setdefault(before.incarnation, {})[tp] = at
        self._partitions[tp] = self._empty(incarnation)

    @staticmethod
    def _take(
        partition: _PartitionAudit,
        tp: "TopicPartition",
        record: RecordLike,
        element: Element,
        where: str,
    ) -> None:
        try:
            reading = partition.repeats.read(tp.partition, record.headers, record.value)
            if reading is RecordReading.REPEAT:
                return
            if reading is RecordReading.CONTRADICTION:
                partition.contradicted.append(where)
            partition.stream.take(element, where)
        except ElementError as error:
            raise ElementError(error.reason, f"{where}: {error}") from None
        except IllegalStreamError as error:  # of no matter if the replica starts over
            partition.illegal = error

    @property
    def _last(self) -> int:
        return max(each.incarnation for each in self._partitions.values())

    def _current(self) -> "dict[TopicPartition, _PartitionAudit]":
        """Each partition in the last incarnation; one that has not come to it has nothing."""
        last = self._last
        return {
            tp: each if each.incarnation == last else self._empty(last)
            for tp, each in self._partitions.items()
        }

    def illegal(self) -> "dict[TopicPartition, IllegalStreamError]":
        """By partition, the first element of the last incarnation that is not legal."""
        current = self._current().items()
        return {tp: each.illegal for tp, each in current if each.illegal is not None}

    def result(self) -> Audited:
        """Raises:
        IllegalStreamError: of the first partition that is not legal.
        """
        for error in self.illegal().values():
            raise error
        current = self._current().values()
        streams = [each.stream for each in current]
        events = (event for each in streams for event in each.tdb)
        stable = min(each.tdb.stable for each in streams)
        return Audited(
            f"kafka:{self._topic}",
            TDB(events, stable),
            sum(each.inserts for each in streams),
            sum(each.adjusts for each in streams),
            sum(each.stables for each in streams),
            _contradiction([where for each in current for where in each.contradicted]),
            self._since.get(self._last, START),
            tuple(self._restarts()),
        )

    def _restarts(self) -> Iterator[StreamRestart]:
        """From each incarnation of which there is anything to the next."""
        present = {each.incarnation for each in self._partitions.values() if each.has_any}
        numbers = sorted({*self._left, *present})
        for before, number in pairwise(numbers):
            former = dict(self._left.get(before, {}))
            for tp, each in self._partitions.items():
                if each.incarnation == before:
                    former[tp] = each.stream.stable, each.illegal
            stables = [former[tp][0] if tp in former else START for tp in self._partitions]
            faults = (error for _, error in former.values() if error is not None)
            fault = next(map(str, faults), None)
            yield StreamRestart(number, self._since.get(number, START), min(stables), fault)


def _contradiction(places: Sequence[str]) -> str | None:
    if not places:
        return None
    return (
        f"{len(places)} records are other ones than were read under their numbers, "
        f"the first in {places[0]}"
    )
