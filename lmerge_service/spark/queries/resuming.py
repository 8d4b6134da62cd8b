"""Where a replica without state begins: as a new incarnation, or by what its topic holds.

Theory
    The output of a replica up to stable(t) is final before t, whoever has written it: itself before
    it was killed, or the checkpoint with which the topic begins (`lmerge jumpstart`). An operator
    that can restore its state from this (`Shape.resume`) goes on with the facts from t on, in the
    same incarnation, and no reader sees that it had stopped:

        the topic    ins(p, 2, 9)  ins(q, 8, 12)  stable(7)
        the facts    from 7 on     p arrived at 8   →   adjust(p, 2, 9, 8)

    Partitions are at different points. The facts are read from the least of these, and each
    partition takes those that are not below its own. A topic may have repeats (a job that was
    killed does its last batch again), so its meaning is the output of a merge of it alone.

What happens on a crash: nothing is written here.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from lmerge_service.core import Policy, lmerge
from lmerge_service.elements import INFINITY, START, Element
from lmerge_service.errors import ConfigurationError, ElementError
from lmerge_service.formats.headers import incarnation_of
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.tails import tails
from lmerge_service.offline.checkpoint import Holding
from lmerge_service.replicas.beginnings import (
    Beginning,
    check_kept,
    next_beginning,
    watermark_of,
)
from lmerge_service.spark.queries.plans import Query, QueryPlan
from lmerge_service.tdb import TDB

__all__ = ("ResumeRequest", "TopicContent", "begin", "check_resuming")


class ResumeRequest(Protocol):
    """What a replica is to be, in Spark or without."""

    @property
    def query(self) -> Query:
        """What it computes."""

    @property
    def facts(self) -> str:
        """The topic that it reads."""

    @property
    def to(self) -> str:
        """The topic that it publishes to."""

    @property
    def lateness(self) -> int:
        """How far the watermark stays behind the latest fact of a partition, in milliseconds."""

    @property
    def since(self) -> int | None:
        """Begin with the facts of this time; None: with the first."""

    @property
    def rejoin(self) -> bool:
        """At each start but the first, begin with the facts of now."""

    @property
    def resume(self) -> bool:
        """Go on from what the topic holds, if it holds anything."""


def check_resuming(query: Query, plan: QueryPlan) -> None:
    """Raises ConfigurationError: the query by this plan cannot."""
    if query.shape.resume(plan, TDB()) is None:
        raise ConfigurationError(
            f"{query.name} by this plan cannot resume, since its state cannot be restored "
            "from its output: without --resume it begins anew"
        )


@dataclass(frozen=True, slots=True)
class TopicContent:
    """What a replica's topic holds."""

    incarnation: int
    joining_at: int
    partitions: list[TDB]
    """What each holds of this incarnation, which may be nothing."""

    @property
    def stable(self) -> int:
        """The least: the facts are needed from here on."""
        return min(each.stable for each in self.partitions)


async def begin(
    connection: Connection, request: ResumeRequest, width: int, partitions: int
) -> tuple[Beginning, TopicContent | None]:
    """What it is from now on, and, where it resumes, what its topic holds; `width` is that of the
    facts. A beginning with the facts of INFINITY has nothing more to emit.

    Raises:
        StateError: facts that it has to begin with may be gone.
        TransportError: Kafka cannot be reached, or refuses.
    """
    held = await _held_in(connection, request.to, partitions) if request.resume else None
    if held is not None:
        since = None if held.stable == START else held.stable
        begins = Beginning(held.incarnation, since, held.joining_at)
    else:
        tail = await tails(connection, request.to, partitions)
        since = request.since
        if request.rejoin and tail:
            since = await watermark_of(connection, request.facts, width, request.lateness)
        begins = next_beginning(tail, since, request.query.shape.memory)
    if begins.since != INFINITY:
        await check_kept(connection, request.facts, width, begins.since)
    return begins, held


async def _held_in(connection: Connection, topic: str, partitions: int) -> TopicContent | None:
    """The output of the last incarnation; None: there is none. Records that are no elements are
    passed over, as the merge passes over them."""
    places = [TopicPartition(topic, number) for number in range(partitions)]
    contents = [_Content() for _ in places]
    async with Source(connection) as source:
        beginnings, ends = await source.beginnings(places), await source.settled(places)
        for place, each in zip(places, contents, strict=True):
            whole = {place: beginnings[place]}, {place: ends[place]}
            async for _, records in source.backlog(*whole):
                each.take(records)
    last = max(contents, key=lambda each: each.incarnation)
    if last.incarnation < 0:
        return None
    tdbs = [each.tdb if each.incarnation == last.incarnation else TDB() for each in contents]
    return TopicContent(last.incarnation, last.joining_at, tdbs)


class _Content:
    """The output of the last incarnation in one partition."""

    def __init__(self) -> None:
        self._decoder = WireDecoder()
        self._begin(-1, START)

    def _begin(self, incarnation: int, joining_at: int) -> None:
        self.incarnation, self.joining_at = incarnation, joining_at
        self._holding = Holding("merged alone: ")
        self._merge = lmerge("R3", Policy(adjust="eager"))  # so that the last write counts
        self._merge.attach("it")

    @property
    def tdb(self) -> TDB:
        return self._holding.tdb

    def take(self, records: Iterable[Record]) -> None:
        for record, incarnation, joining_at, element in self._elements(records):
            if incarnation > self.incarnation:
                self._begin(incarnation, joining_at)
            if incarnation == self.incarnation:  # what is left of an earlier one is passed over
                for merged in self._merge.process("it", element):
                    self._holding.take(record.offset, merged)

    def _elements(self, records: Iterable[Record]) -> Iterator[tuple[Record, int, int, Element]]:
        for record in records:
            try:
                incarnation, joining_at = incarnation_of(record.headers)
                yield record, incarnation, joining_at, self._decoder.decode(record.value)
            except ElementError:
                continue
