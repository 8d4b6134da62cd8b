"""The stage that reads: which bucket needs which record, and many of them packed into one row.

Theory
    A bucket is an output partition, and needs the elements whose logical key is routed there, as
    the service's tasks do; the buckets of a record are found here once, and not in every bucket:

    | record | goes to |
    |---|---|
    | insert, adjust | the bucket of its payload's key (`Router`) |
    | stable | all |
    | no element | the one that writes its dead letter: partition mod buckets |
    | the first of a piece of a later incarnation | all, so that none goes on with the old one |
    | of a dialect | all: its meaning depends on those before it |
    | of a co-partitioned replica | the bucket of its partition |
    | of the control topic | wakes all up |

    A bucket checks its records once more, by `Ingest`: so a record that goes to more buckets than
    need it does no harm.

Cost
    2 µs a record, of which decoding is half. A worker keeps one decoder and one router for all
    its tasks.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

from lmerge_service.elements import Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.bulk import Rule
from lmerge_service.formats.headers import incarnation_of
from lmerge_service.formats.routing import Router
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.spark.io.decoding import headers_of
from lmerge_service.spark.merge.chunks import NUDGE, Chunk, Headers, packed
from lmerge_service.spark.merge.plan import Kind, Work

__all__ = ("CHUNKS", "Piece", "Tools", "batch_number", "packing", "rule_of", "shares")

CHUNKS: Final = "bucket int, chunk binary"


def batch_number() -> int:
    """The number of the batch that the present task is of."""
    context = TaskContext.get()
    number = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    assert number is not None, "outside of a streaming query"
    return int(number)


def rule_of(work: Work) -> Rule:
    limits = work.topology.limits
    topology = work.topology
    return Rule(topology.nfc, topology.drop_nulls, limits.max_record_bytes, limits.max_nesting)


def packing(work: Work) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """For `mapInArrow`: from (source, partition, offset, timestamp, key, headers, value) to
    `CHUNKS`; the timestamp in milliseconds, headers as text (`elements.headers_text`)."""

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        topics = work.plan.topics_at(batch_number())
        for batch in batches:
            rows = [
                (work.keys[bucket], packed(chunk))
                for piece in _pieces(batch)
                for bucket, chunk in _placed(work, topics.get(piece.topic), piece)
            ]
            yield pa.RecordBatch.from_pydict(
                {
                    "bucket": pa.array([bucket for bucket, _ in rows], pa.int32()),
                    "chunk": pa.array([chunk for _, chunk in rows], pa.binary()),
                }
            )

    return pack


class Piece:
    """Records of one topic partition, as they came."""

    __slots__ = ("headers", "keys", "offsets", "partition", "times", "topic", "values")

    def __init__(
        self,
        topic: str,
        partition: int,
        offsets: list[int],
        values: list[bytes | None],
        keys: list[bytes | None],
        times: list[int],
        headers: Sequence[str | None] = (),
    ) -> None:
        self.topic, self.partition = topic, partition
        self.offsets, self.values, self.keys, self.times = offsets, values, keys, times
        self.headers: dict[int, Headers] = {
            at: headers_of(each) for at, each in enumerate(headers) if each is not None
        }

    def some(self, places: Sequence[int], *, keyed: Sequence[int], timed: bool) -> Chunk:
        """Those at some places, with the keys of some of these."""
        headers, keys = self.headers, self.keys
        keyed_places = set(keyed)
        return Chunk(
            self.topic,
            self.partition,
            [self.offsets[at] for at in places],
            [self.values[at] for at in places],
            {n: headers[at] for n, at in enumerate(places) if at in headers} if headers else {},
            {
                n: key
                for n, at in enumerate(places)
                if at in keyed_places and (key := keys[at]) is not None
            },
            [self.times[at] for at in places] if timed else [],
        )


def _pieces(batch: pa.RecordBatch) -> Iterator[Piece]:
    sources, partitions = batch.column("source").to_pylist(), batch.column("partition").to_pylist()
    columns = [batch.column(name) for name in ("offset", "value", "key", "timestamp", "headers")]
    start = 0
    for (source, partition), run in groupby(zip(sources, partitions, strict=True)):
        count = sum(1 for _ in run)
        offset, value, key, time, headers = (each.slice(start, count) for each in columns)
        start += count
        yield Piece(
            source,
            partition,
            offset.to_pylist(),
            value.to_pylist(),
            key.to_pylist(),
            time.to_pylist(),
            () if headers.null_count == count else headers.to_pylist(),
        )


def _placed(work: Work, kind: Kind | None, piece: Piece) -> Iterator[tuple[int, Chunk]]:
    buckets = len(work.keys)
    if piece.topic == work.topology.output.control_topic:
        yield from ((bucket, NUDGE) for bucket in range(buckets))
        return
    if kind is None:
        return  # not begun: it is read again from its beginning then
    for bucket, places, refused in shares(
        kind, buckets, piece, _tools(rule_of(work), buckets, work.topology.key)
    ):
        if places:
            yield bucket, piece.some(places, keyed=refused, timed=not kind.wire)


_Share = tuple[int, Sequence[int], Sequence[int]]
"""A bucket, the places of its records, and of those whose keys it needs."""


class Tools:
    """What a worker keeps for its tasks."""

    def __init__(self, rule: Rule, buckets: int, key: tuple[str, ...]) -> None:
        self.decoder: WireDecoder = rule.decoder()
        self.router = Router(buckets, key)


_tools = lru_cache(maxsize=4)(Tools)


def shares(kind: Kind, buckets: int, piece: Piece, tools: Tools) -> list[_Share]:
    """What each bucket gets of a piece."""
    everything = range(len(piece.values))
    if not kind.wire:
        into = [piece.partition] if kind.co_partitioned else range(buckets)
        return [(bucket, everything, everything) for bucket in into if bucket < buckets]
    owners, refused = _owners(piece, tools, buckets)
    if kind.co_partitioned:
        return [(piece.partition, everything, refused)] if piece.partition < buckets else []
    if buckets == 1:
        return [(0, everything, refused)]
    places: list[list[int]] = [[] for _ in range(buckets)]
    for at, owner in enumerate(owners):
        if owner is None:
            for each in places:
                each.append(at)
        else:
            places[owner].append(at)
    return [(bucket, some, refused) for bucket, some in enumerate(places)]


def _owners(piece: Piece, tools: Tools, buckets: int) -> tuple[list[int | None], list[int]]:
    """The bucket of each record, None for all; and the places of those that are refused."""
    decoder, decode, headers = tools.decoder, tools.decoder.decode, piece.headers
    keeps, owner = decoder.keeps, piece.partition % buckets
    payloads: list[bytes | None] = []
    refused: list[int] = []
    for at, value in enumerate(piece.values):
        try:
            if at in headers:
                incarnation_of(headers[at])
            element = decoder.seen[value] if keeps else decode(value)  # type: ignore[index]
        except ElementError:
            refused.append(at)
            payloads.append(None)
        else:
            payloads.append(None if type(element) is Stable else element.payload)  # type: ignore[union-attr]
    decoder.weigh(len(piece.values))
    if buckets == 1:
        return [], refused
    tools.router.learn(payload for payload in payloads if payload is not None)
    route = tools.router.partition_of
    owners = [None if payload is None else route(payload) for payload in payloads]
    for at in refused:
        owners[at] = owner
    for at in _firsts(piece):
        owners[at] = None
    return owners, refused


def _firsts(piece: Piece) -> list[int]:
    """The first record of each incarnation but the first one."""
    found: dict[int, int] = {}
    for at, headers in piece.headers.items():
        try:
            incarnation, _ = incarnation_of(headers)
        except ElementError:
            continue
        if incarnation:
            found.setdefault(incarnation, at)
    return list(found.values())
