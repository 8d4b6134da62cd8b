"""The inference: which case do recorded streams obey, and which element is the first that breaks?

Theory
    A case is a set of restrictions (docs/semantics.md, "Cases"), and each restriction is broken
    by a first element:

    >>> elements = [Insert("A", 7, 9), Insert("A", 7, 8), Insert("B", 5, 9)]
    >>> found = infer([recorded("x", enumerate(elements, 1))])
    >>> for case in Case:
    ...     print(case, found.obeys(case), found.first_break(case))
    R0 False x:2: vs 7 twice
    R1 False x:3: vs 5 after vs 7
    R2 False x:2: second insert of the payload at vs 7
    R3 False x:2: second insert of the payload at vs 7
    R4 True None
    >>> print(found.case)
    R4

    Order at equal vs is the one restriction on several streams together. They are read in lock
    step, the one with the lowest vs first, and their events at one vs are compared one by one; a
    stream that is past a vs must have had all that the others have there. Where there are ties
    and no second stream had them, R1 is neither shown nor refuted.

    Each stream is also held to its own stables, as by the audit. What is not legal is counted and
    left out, as a merge leaves it out; but an adjust counts as one, legal or not.

    The partitions of a topic are streams of their own, each with its order and stables. That is
    no order of the whole: a topic of which several partitions hold events obeys R3 at best.

Cost
    O(lg w) per element. Memory: the live events (w) of each stream (`inference`); while ties are
    compared, the events of one vs of each stream on top; and nothing that grows with the length
    of a stream.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from lmerge_service.core.case import Case
from lmerge_service.core.properties import StreamProperties
from lmerge_service.elements import START, Element, Insert
from lmerge_service.errors import ConfigurationError, ElementError
from lmerge_service.formats.headers import RecordLike, incarnation_of
from lmerge_service.formats.repeats import Repeats
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.offline.inference import (
    IN_ORDER,
    Break,
    Inference,
    RecordedElement,
    Restriction,
)

if TYPE_CHECKING:
    from lmerge_service.kafka.connection import Connection

__all__ = ("Inferred", "RecordedStream", "TopicDecoder", "infer", "recorded", "recorded_topic")

_NEEDED: Final[Mapping[Case, tuple[Restriction, ...]]] = {
    Case.R0: (*IN_ORDER, Restriction.STRICTLY_ORDERED),
    Case.R1: IN_ORDER,  # and ties, which no stream shows alone
    Case.R2: (*IN_ORDER, Restriction.KEY),
    Case.R3: (Restriction.KEY,),
    Case.R4: (),
}


class RecordedStream(NamedTuple):
    """A recorded stream, and what is inferred of it as it is read.

    The producer of `elements` may call `inference.restart()` before the first of a new beginning.
    """

    inference: Inference
    elements: Iterator[RecordedElement]


def recorded(name: str, elements: Iterable[tuple[int, Element]]) -> RecordedStream:
    """A file, by its (line, element) pairs."""
    located = (RecordedElement(f"{name}:{line}", element) for line, element in elements)
    return RecordedStream(Inference(name), located)


@dataclass(frozen=True, slots=True)
class Inferred:
    """What recorded streams, taken for replicas of one query, have in common."""

    streams: Sequence[Inference]
    ties: Break | None
    """The first event of a vs that another stream has not got at that place."""
    ties_shown: bool
    """No ties, or the same order of them in several streams."""
    ties_unknown: str
    """Why nothing is known of ties, if so; else empty."""

    @property
    def legal(self) -> bool:
        return not any(each.illegal for each in self.streams)

    @property
    def properties(self) -> StreamProperties:
        """What all of these streams have shown."""
        return StreamProperties(
            ordered=self._keep(Restriction.ORDERED, Restriction.ONE_PARTITION),
            strictly_ordered=self._keep(Restriction.STRICTLY_ORDERED, Restriction.ONE_PARTITION),
            revises=not self._keep(Restriction.NO_ADJUSTS),
            deterministic_ties=self.ties_shown,
            key=self._keep(Restriction.KEY),
        )

    @property
    def case(self) -> Case:
        """The strongest case that all of them obey."""
        return self.properties.case

    def _keep(self, *restrictions: Restriction) -> bool:
        return all(each.first_break(restrictions) is None for each in self.streams)

    def obeys(self, case: Case) -> bool | None:
        """Whether all streams do; None when they might (R1 only, see `ties_unknown`)."""
        if self.first_break(case) is not None:
            return False
        return True if case is not Case.R1 or self.ties_shown else None

    def first_break(self, case: Case) -> Break | None:
        """The first element that breaks a case, in the first stream that does."""
        for each in self.streams:
            if found := each.first_break(_NEEDED[case]):
                return found
        return self.ties if case is Case.R1 else None


def infer(recordings: Sequence[RecordedStream]) -> Inferred:
    """Reads all streams to their ends.

    Raises:
        LMergeError: what the readers raise.
    """
    streams = [_Stream(each) for each in recordings]
    compared = _Comparison()
    if len(streams) > 1:
        compared.run(streams)
    _read_on(streams)
    inferences = [each.inference for each in recordings]
    tied = [each for each in inferences if Restriction.STRICTLY_ORDERED in each.breaks]
    restarted = [each.name for each in inferences if each.restarts]
    able = all(each.orders_ties for each in inferences)
    if not able or not tied:
        return Inferred(inferences, None, able, "")
    if restarted and len(streams) > 1:
        why = f"{restarted[0]} has started over, so its order was not compared"
        return Inferred(inferences, None, False, why)
    if compared.found is not None:
        return Inferred(inferences, compared.found, False, "")
    if not compared.ties:
        return Inferred(inferences, None, False, "only several replicas can show it")
    return Inferred(inferences, None, True, "")


def _read_on(streams: "Sequence[_Stream]") -> None:
    """By turns, so that no reader is left waiting for long."""
    reading = [each.read() for each in streams]
    while reading:
        reading = [each for each in reading if next(each, None) is not None]


class _Group(NamedTuple):
    """What a stream has at one vs."""

    vs: int
    events: list[RecordedElement]
    whole: bool
    """The stream is past this vs: nothing will follow."""


class _Stream:
    """Feeds the inference of one stream while handing out what it read."""

    def __init__(self, stream: RecordedStream) -> None:
        self.inference = stream.inference
        self._elements = stream.elements
        self._legal = True

    def read(self) -> Iterator[RecordedElement]:
        take = self.inference.take
        for each in self._elements:
            self._legal = take(*each)
            yield each

    def groups(self) -> Iterator[_Group]:
        """The events by vs, as long as the stream could obey R1, in its first incarnation."""
        events: list[RecordedElement] = []
        vs = START
        restarts = self.inference.restarts
        for each in self.read():
            if not self.inference.orders_ties or self.inference.restarts > restarts:
                return
            if not self._legal:
                continue
            element = each.element
            reached = element.vs if isinstance(element, Insert) else self.inference.stable
            if events and reached > vs:
                yield _Group(vs, events, True)
                events = []
            if isinstance(element, Insert):
                vs = element.vs
                events.append(each)
        if events:
            yield _Group(vs, events, False)


@dataclass(slots=True)
class _Comparison:
    """Several streams side by side, vs by vs."""

    found: Break | None = None
    ties: int = 0
    """How many vs had several events in several streams."""
    _heads: dict[int, _Group] = field(default_factory=dict)

    def run(self, streams: Sequence[_Stream]) -> None:
        """Reads on until the streams end, differ, or one of them cannot obey R1 any more."""
        groups = [each.groups() for each in streams]
        waiting = set(range(len(streams)))
        while self.found is None:
            for number in sorted(waiting):
                if (head := next(groups[number], None)) is not None:
                    self._heads[number] = head
            if not self._heads or not all(each.inference.orders_ties for each in streams):
                return
            vs = min(head.vs for head in self._heads.values())
            waiting = {number for number, head in self._heads.items() if head.vs == vs}
            self._compare(streams, vs, {n: self._heads.pop(n) for n in sorted(waiting)})

    def _compare(self, streams: Sequence[_Stream], vs: int, heads: dict[int, _Group]) -> None:
        longest = max(heads, key=lambda number: len(heads[number].events))
        reference, name = heads[longest].events, streams[longest].inference.name
        self.ties += len(heads) > 1 and len(reference) > 1
        for number, stream in enumerate(streams):
            head = heads.get(number)
            events = head.events if head else []
            whole = head.whole if head else number in self._heads or stream.inference.stable > vs
            for place, (one, other) in enumerate(zip(events, reference, strict=False), 1):
                if one.element != other.element:
                    self._differ(one, f"event {place} at vs {vs} is another one at {other.where}")
                    return
            if whole and len(events) < len(reference):
                beyond = reference[len(events)]
                which = f"event {len(events) + 1} at vs {vs} of {name}"
                self._differ(beyond, f"{which} is not in {stream.inference.name}")
                return

    def _differ(self, at: RecordedElement, why: str) -> None:
        self.found = Break(at.where, at.element, why, 0)


# Topics


class TopicDecoder:
    """Turns the records of a topic into elements; of a replica that started over only the last
    incarnation counts."""

    def __init__(self, topic: str, partitions: int, decoder: WireDecoder) -> None:
        self.inference = Inference(f"kafka:{topic}", partitions)
        self._topic = topic
        self._decoder = decoder
        self._incarnation, self._repeats = 0, Repeats()

    def decode(self, partition: int, record: RecordLike) -> RecordedElement | None:
        """Nothing of an older incarnation, and nothing twice of a writer that numbers its records.

        Raises:
            ElementError: with topic[partition]@offset.
        """
        where = f"{self._topic}[{partition}]@{record.offset}"
        try:
            incarnation, _ = incarnation_of(record.headers)
            element = self._decoder.decode(record.value)
        except ElementError as error:
            raise ElementError(error.reason, f"{where}: {error}") from None
        if incarnation > self._incarnation:
            self._incarnation, self._repeats = incarnation, Repeats()
            self.inference.restart()
        if incarnation < self._incarnation or self._repeats.is_repeat(partition, record):
            return None
        return RecordedElement(where, element, partition)


@contextmanager
def recorded_topic(
    connection: "Connection", topic: str, decoder: WireDecoder
) -> Iterator[RecordedStream]:
    """A topic from its beginning to its present end, as a read_committed consumer sees it; from
    what is left, if its beginning is gone.

    It is read on demand: nothing but what the client has fetched waits in memory.

    Raises:
        ConfigurationError: there is no such topic.
        ElementError: while it is read, with topic[partition]@offset.
    """
    # Slow to import, and of no use to files.
    import asyncio

    from lmerge_service.kafka.topics import Topics

    async def width() -> int | None:
        async with Topics(connection) as topics:
            return await topics.width(topic)

    with asyncio.Runner() as runner:
        if (partitions := runner.run(width())) is None:
            raise ConfigurationError(
                f"kafka:{topic}: there is no such topic at {connection.bootstrap}"
            )
        reader = TopicDecoder(topic, partitions, decoder)
        batches = _batches(connection, topic, partitions)

        reader.inference.begins = runner.run(_begins(connection, topic, partitions))

        async def following() -> tuple[int, Sequence[RecordLike]] | None:
            return await anext(batches, None)

        def elements() -> Iterator[RecordedElement]:
            while (batch := runner.run(following())) is not None:
                partition, records = batch
                decoded = (reader.decode(partition, record) for record in records)
                yield from (each for each in decoded if each is not None)

        # A runner closes what is left open of an asynchronous generator.
        yield RecordedStream(reader.inference, elements())


async def _begins(connection: "Connection", topic: str, partitions: int) -> dict[int, int]:
    """The first offset of each partition that has lost its beginning."""
    from lmerge_service.kafka.source import Source, TopicPartition

    async with Source(connection) as source:
        starts = await source.beginnings([TopicPartition(topic, n) for n in range(partitions)])
    return {tp.partition: start for tp, start in starts.items() if start}


async def _batches(
    connection: "Connection", topic: str, partitions: int
) -> AsyncIterator[tuple[int, Sequence[RecordLike]]]:
    from lmerge_service.kafka.source import Source, TopicPartition

    parts = [TopicPartition(topic, number) for number in range(partitions)]
    async with Source(connection) as source:
        starts = await source.beginnings(parts)
        async for tp, records in source.backlog(starts, await source.settled(parts)):
            yield tp.partition, records
