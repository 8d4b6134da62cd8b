"""The content of topics: a replica's lives as events with places, the output as legal streams.

Theory
    Of a replica, only legal elements count, and the rest is left out as a merge leaves it out: what
    is no element, what touches what the same partition declared final, what adjusts an event that
    is not there. A higher incarnation in a record's headers begins a new *life*; in a
    partition, records of a lower one behind it are stale. So a life does not depend on how
    partitions interleave.

    The output is checked strictly: every element must be legal where it stands (`tdb`), and in a
    keyed stream no event may be there twice at a time. Where it has started over, each of its
    incarnations is a stream of its own (`incarnations`).

    Times of the clock are record timestamps, of which the running maximum of a partition is
    taken, since writers' clocks may step back.
"""

import heapq
from bisect import bisect_right
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace

from lmerge_service.drills.records import CommittedRecord, CommittedTopic
from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.headers import incarnation_of
from lmerge_service.formats.repeats import Repeats
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.tdb import TDB

__all__ = (
    "IncarnationOutput",
    "Key",
    "MergedOutput",
    "OneIncarnation",
    "Published",
    "incarnations",
    "read_output",
    "read_replica",
    "stables_by_time",
)

Key = tuple[Hashable, int]
"""(payload, vs)."""

_TimedElement = tuple[int, CommittedRecord, Element]


@dataclass(slots=True)
class Published:
    """One event of a replica's life."""

    ve: int
    record: CommittedRecord
    """Its insert."""
    at: int
    """When it was inserted, in milliseconds."""


@dataclass(slots=True)
class _Stream:
    """One partition of one life."""

    stables: list[int] = field(default_factory=list)
    stable_times: list[int] = field(default_factory=list)
    events: dict[Key, list[Published]] = field(default_factory=dict)
    breaches: list[str] = field(default_factory=list)

    @property
    def stable(self) -> int:
        return self.stables[-1] if self.stables else START

    def frozen_at(self, vs: int) -> int | None:
        """When its stable passed vs: the events there were not to vanish any more."""
        index = bisect_right(self.stables, vs)
        return self.stable_times[index] if index < len(self.stables) else None


class IncarnationOutput:
    """The output of one incarnation of a replica."""

    def __init__(self, incarnation: int, joining_at: int, partitions: int, *, keyed: bool):
        self.incarnation = incarnation
        self.joining_at = joining_at
        self.streams = [_Stream() for _ in range(partitions)]
        self._keyed = keyed

    @property
    def stable(self) -> int:
        return min(stream.stable for stream in self.streams)

    @property
    def breaches(self) -> list[str]:
        return [text for stream in self.streams for text in stream.breaches]

    def tdb(self) -> TDB:
        return TDB(
            (
                (payload, vs, event.ve)
                for stream in self.streams
                for (payload, vs), events in stream.events.items()
                for event in events
            ),
            self.stable,
        )

    def take(self, record: CommittedRecord, element: Element, at: int) -> None:
        stream = self.streams[record.partition]
        c = stream.stable
        match element:
            case Stable(vc):
                if vc > c:
                    stream.stables.append(vc)
                    stream.stable_times.append(at)
                elif vc < c:
                    stream.breaches.append(f"{record.place}: stable({vc}) after stable({c})")
            case Insert(payload, vs, ve):
                if vs < c:
                    stream.breaches.append(f"{record.place}: {element} after stable({c})")
                else:
                    self._insert(stream, (payload, vs), Published(ve, record, at))
            case Adjust(vold=vold, ve=ve):
                if min(vold, ve) < c or not self._adjust(stream, element, c):
                    stream.breaches.append(f"{record.place}: {element} after stable({c})")

    def _insert(self, stream: _Stream, key: Key, event: Published) -> None:
        live = stream.events.setdefault(key, [])
        if live and self._keyed:
            stream.breaches.append(f"{event.record.place}: {key} is inserted again")
            live[0].ve = event.ve
        else:
            live.append(event)

    def _adjust(self, stream: _Stream, element: Adjust[Hashable], c: int) -> bool:
        live = stream.events.get((element.payload, element.vs), [])
        for event in live:
            if event.ve >= c if self._keyed else event.ve == element.vold:
                event.ve = element.ve
                if element.ve == element.vs:
                    live.remove(event)
                return True
        return False


def read_replica(
    topic: CommittedTopic, decoder: WireDecoder, *, keyed: bool
) -> list[IncarnationOutput]:
    """The lives of a replica, the latest last; at least one."""
    lives: dict[int, IncarnationOutput] = {}
    for partition in range(topic.partitions):
        latest, clock, repeats = 0, START, Repeats()
        for record in topic.of(partition):
            clock = max(clock, record.timestamp)
            try:
                incarnation, joining_at = incarnation_of(record.headers)
                if incarnation < latest:
                    continue
                if incarnation > latest:
                    latest, repeats = incarnation, Repeats()
                if repeats.is_repeat(partition, record):
                    continue
                if incarnation not in lives:
                    lives[incarnation] = IncarnationOutput(
                        incarnation, joining_at, topic.partitions, keyed=keyed
                    )
                lives[incarnation].take(record, decoder.decode(record.value), clock)
            except ElementError:
                continue  # a dead letter: the merge skips it
    if not lives:
        return [IncarnationOutput(0, START, topic.partitions, keyed=keyed)]
    return [lives[number] for number in sorted(lives)]


def stables_by_time(life: IncarnationOutput, partition: int | None = None) -> list[tuple[int, int]]:
    """(milliseconds, stable point) for each time that the minimum over partitions rose; or of one
    partition alone."""
    streams = life.streams if partition is None else life.streams[partition : partition + 1]
    points = [START] * len(streams)
    changes = heapq.merge(
        *(
            [(at, number, vc) for at, vc in zip(s.stable_times, s.stables, strict=True)]
            for number, s in enumerate(streams)
        )
    )
    found: list[tuple[int, int]] = []
    reached = START
    for at, number, vc in changes:
        points[number] = vc
        if min(points) > reached:
            reached = min(points)
            found.append((at, reached))
    return found


@dataclass(frozen=True, slots=True)
class OneIncarnation:
    """What an output published between two restarts."""

    incarnation: int
    correct_from: int
    """It has every event that ends at this time or later."""
    topic: CommittedTopic
    wrong: tuple[str, ...]
    """Records whose headers do not belong where they stand."""


def incarnations(topic: CommittedTopic) -> list[OneIncarnation]:
    """The incarnations of an output, the first one first; at least one."""
    records: dict[int, list[CommittedRecord]] = {}
    since: dict[int, int] = {}
    wrong: dict[int, list[str]] = {}
    for partition in range(topic.partitions):
        latest = 0
        for record in topic.of(partition):
            try:
                number, joining_at = incarnation_of(record.headers)
            except ElementError as error:
                number, joining_at = latest, since.get(latest, START)
                wrong.setdefault(number, []).append(f"{record.place}: {error}")
            if number < latest:
                why = f"{record.place}: incarnation {number} behind {latest}"
                wrong.setdefault(number, []).append(why)
            if joining_at != since.setdefault(number, joining_at):
                why = f"{record.place}: correct from {joining_at} and from {since[number]}"
                wrong.setdefault(number, []).append(why)
            latest = max(latest, number)
            records.setdefault(number, []).append(record)
    return [
        OneIncarnation(
            number,
            since.get(number, START),
            replace(topic, records=tuple(records.get(number, ())), beginning_lost=lost),
            tuple(wrong.get(number, ())),
        )
        for number in sorted(records) or [0]
        for lost in (topic.beginning_lost and number == min(records, default=0),)
    ]


@dataclass(slots=True)
class MergedOutput:
    """The output, each partition a stream of its own."""

    streams: list[TDB]
    stables: list[list[tuple[int, int]]]
    """Per partition (milliseconds, stable point)."""
    places: list[dict[Key, str]]
    """Per partition, where an event was inserted last."""
    illegal: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)

    @property
    def stable(self) -> int:
        """What all partitions have reached."""
        return min(stream.stable for stream in self.streams)

    def tdb(self) -> TDB:
        """The union of its partitions."""
        return TDB((event for stream in self.streams for event in stream), self.stable)


def read_output(topic: CommittedTopic, decoder: WireDecoder, *, keyed: bool) -> MergedOutput:
    """Reads the output to its end; what is illegal is named and left out."""
    width = topic.partitions
    output = MergedOutput(
        [TDB() for _ in range(width)], [[] for _ in range(width)], [{} for _ in range(width)]
    )
    for partition in range(width):
        live: dict[Key, int] = {}
        for at, record, element in _elements_of(topic, partition, decoder, output.illegal):
            _apply(output, partition, record, element, at, live if keyed else None)
    _find_strays(output)
    return output


def _elements_of(
    topic: CommittedTopic, partition: int, decoder: WireDecoder, illegal: list[str]
) -> Iterator[_TimedElement]:
    clock, repeats = START, Repeats()
    for record in topic.of(partition):
        clock = max(clock, record.timestamp)
        try:
            if repeats.is_repeat(partition, record):
                continue
            yield clock, record, decoder.decode(record.value)
        except ElementError as error:
            illegal.append(f"{record.place}: no element: {error}")


def _apply(
    output: MergedOutput,
    partition: int,
    record: CommittedRecord,
    element: Element,
    at: int,
    live: dict[Key, int] | None,
) -> None:
    tdb = output.streams[partition]
    if wrong := tdb.violation(element):
        output.illegal.append(f"{record.place}: {wrong}")
        return
    tdb.apply(element)
    match element:
        case Stable(vc):
            output.stables[partition].append((at, vc))
        case Insert(payload, vs):
            if live is not None and live.get((payload, vs), 0):
                first = output.places[partition][payload, vs]
                output.doubled.append(f"{record.place}: {payload!r} at {vs} is held since {first}")
            output.places[partition][payload, vs] = record.place
            if live is not None:
                live[payload, vs] = live.get((payload, vs), 0) + 1
        case Adjust(payload, vs, _, ve) if live is not None and ve == vs:
            live[payload, vs] -= 1


def _find_strays(output: MergedOutput) -> None:
    """An event that is inserted in two partitions is there twice for a reader of both."""
    home: dict[Key, str] = {}
    for places in output.places:
        for (payload, vs), place in places.items():
            other = home.setdefault((payload, vs), place)
            if other is not place:
                output.doubled.append(f"{place}: {payload!r} at {vs} is in {other} too")
