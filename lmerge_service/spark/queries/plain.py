"""The same queries without Spark: one process, no state that outlives it.

Theory
    What Spark does around a bucket is little for one process: read a batch, make the pieces, choose
    rows, route them, write the output and wait until it is written. There is no checkpoint, so
    every start is a new incarnation, which begins with the first fact, or with those of now
    (`beginnings`), unless it can resume by what its topic holds (`resuming`). It starts in a
    second, which makes it a good third replica, and the one to have when nothing but Python is
    there.

Who owns what
    `run_plain` owns its clients. The output topic is made when it is missing.

What happens on a crash at each await
    What is written stays; the next start is the next incarnation, or resumes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from lmerge_service.elements import INFINITY, START, Element, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.routing import Router
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import Batches, Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.kafka.writing import TopicWriter
from lmerge_service.replicas.beginnings import Beginning
from lmerge_service.replicas.lateness import FURTHEST, RowReader
from lmerge_service.spark.queries.bucket import BatchResult, InputRow, QueryBucket, QuerySettings
from lmerge_service.spark.queries.chosen import Chosen
from lmerge_service.spark.queries.plans import Batch, Query, QueryPlan
from lmerge_service.spark.queries.resuming import begin, check_resuming
from lmerge_service.tdb import TDB

__all__ = ("Plain", "run_plain")

_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A query by a plan, from a topic to a topic."""

    query: Query
    plan: QueryPlan
    connection: Connection
    facts: str
    to: str
    lateness: int
    partitions: int = 1
    since: int | None = None
    """Begin with the facts of this time; None: with the first."""
    rejoin: bool = False
    """At each start but the first, begin with the facts of now."""
    resume: bool = False
    """Go on from what the topic holds, if it holds anything."""
    batch: int | None = None
    stopped: Callable[[], bool] = field(default=lambda: False)

    @property
    def chosen(self) -> Chosen:
        """The query's rows, which need no Spark.

        Raises:
            ConfigurationError: the query is SQL.
        """
        if not isinstance(self.query.rows, Chosen):
            raise ConfigurationError(f"query {self.query.name} is SQL, which needs Spark")
        return self.query.rows


async def run_plain(
    plain: Plain,
    begun: Callable[[Beginning], None] = lambda _: None,
    each: Callable[[Batch], None] = lambda _: None,
) -> bool:
    """Runs it until the facts end, or `stopped` is true; reports the beginning, and every batch.
    True: it has ended, all output is written.

    Raises:
        ConfigurationError: there are no such facts, the query needs Spark, or it is to resume and
            cannot.
        TransportError: Kafka cannot be reached, or refuses.
        StateError: a partition cannot be read, or facts that it has to begin with may be gone.
    """
    choose = plain.chosen
    if plain.resume:
        check_resuming(plain.query, plain.plan)
    async with AsyncExitStack() as stack:
        async with Topics(plain.connection) as topics:
            width = await topics.width(plain.facts)
            if width is None:
                raise ConfigurationError(f"there is no topic {plain.facts}")
            partitions = await topics.ensure(plain.to, partitions=plain.partitions)
        begins, held = await begin(plain.connection, plain, width, partitions)
        begun(begins)
        if begins.since == INFINITY:
            return True
        source = await stack.enter_async_context(Source(plain.connection, fetch_wait_ms=50))
        writer = await stack.enter_async_context(
            TopicWriter(
                plain.connection,
                plain.to,
                incarnation_headers(begins.incarnation, begins.joining_at),
            )
        )
        places = [TopicPartition(plain.facts, number) for number in range(width)]
        if begins.since is None:
            source.assign(await source.beginnings(places))
        else:
            source.assign(await source.since(places, begins.since))
        outputs = [TDB()] * partitions if held is None else held.partitions
        runner = _Runner(plain, choose, width, begins.joining_at, outputs)
        while not runner.ended and not plain.stopped():
            started = time.monotonic()
            read = await source.poll(_POLL_SECONDS, plain.batch or plain.plan.batch)
            for place, why in source.lost.items():
                raise StateError(f"{place.topic}-{place.partition} {why}")
            if read:
                await writer.write(runner.take(read))
                each(runner.batch(time.monotonic() - started))
        return runner.ended


class _Runner:
    """From records to records; never awaits."""

    def __init__(
        self, plain: Plain, choose: Chosen, width: int, joining_at: int, outputs: Sequence[TDB]
    ) -> None:
        """`outputs`: what each output partition holds already."""
        settings = QuerySettings(
            shape=plain.query.shape,
            plan=plain.plan,
            lateness=plain.lateness,
            partitions=width,
            joining_at=joining_at,
        )
        self._choose = choose
        self._key = plain.query.key
        self._lateness = plain.lateness
        self._router = Router(len(outputs), plain.query.key)
        self._buckets = [
            QueryBucket.resumed(settings, each) or QueryBucket(settings) for each in outputs
        ]
        self._results: list[BatchResult] = []
        self._number = -1
        self._facts = self._refused = self._records = 0

    @property
    def ended(self) -> bool:
        return bool(self._results) and all(each.watermark == INFINITY for each in self._results)

    def take(self, read: Batches) -> Sequence[tuple[int, bytes | None, bytes]]:
        """What is to be written: partition, key and value."""
        given: list[list[InputRow]] = [[] for _ in self._buckets]
        self._facts = self._refused = 0
        for place, records in read.items():
            facts = [_fact(record) for record in records]
            reading = RowReader(self._lateness)
            offsets = [record.offset for record in records]
            reading.take(
                np.array(offsets, np.int64), np.array([_time(fact) for fact in facts], np.int64)
            )
            if (piece := reading.piece()) is None:
                continue
            self._facts, self._refused = self._facts + piece.rows, self._refused + piece.refused
            data = msgspec.json.encode(piece).decode()
            for bucket in given:
                bucket.append(InputRow("piece", place.partition, piece.first, 0, data))
            for offset, fact in zip(offsets, facts, strict=True):
                self._choose_row(given, place.partition, offset, fact)
        self._results = [
            bucket.batch(its) for bucket, its in zip(self._buckets, given, strict=True)
        ]
        written = [
            (number, self._key_of(element), encode(element))
            for number, result in enumerate(self._results)
            for element in result.elements
        ]
        self._records, self._number = len(written), self._number + 1
        return written

    def _choose_row(
        self, given: list[list[InputRow]], partition: int, offset: int, fact: Mapping[str, Any]
    ) -> None:
        time = _time(fact)
        if time in (START, INFINITY) or (row := self._choose.of(fact)) is None:
            return
        key = msgspec.json.encode({name: row.get(name) for name in self._key})
        data = msgspec.json.encode(row).decode()
        bucket = given[self._router.partition_of(key)]
        bucket.append(InputRow("row", partition, offset, time, data))

    def _key_of(self, element: Element) -> bytes | None:
        if isinstance(element, Stable):
            return None
        assert isinstance(element.payload, bytes)
        return self._router.key_of(element.payload)

    def batch(self, seconds: float) -> Batch:
        results = self._results
        return Batch(
            number=self._number,
            facts=self._facts,
            refused=self._refused,
            late=sum(one.late for one in results),
            skipped=sum(one.skipped for one in results),
            records=self._records,
            watermark=min(one.watermark for one in results),
            point=min(one.point for one in results),
            kept=sum(one.kept for one in results),
            seconds=seconds,
        )


def _fact(record: Record) -> Mapping[str, Any]:
    """The fields of a record; none, if it is no object."""
    try:
        fact = msgspec.json.decode(record.value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return fact if isinstance(fact, dict) else {}


def _time(fact: Mapping[str, Any]) -> int:
    """As Spark reads it with `catalogue.FACTS`."""
    if fact.get("fact") == "end":
        return INFINITY
    time = fact.get("time")
    return time if type(time) is int and -FURTHEST < time < FURTHEST else START
