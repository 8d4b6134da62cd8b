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

    A record that was decoded goes on as its element. A bucket still selects what is its own
    (`Ownership`), so a record that goes to more buckets than need it does no harm.

    A run of records without headers, all of which are elements, is decoded, divided and packed by
    the native engine where it is installed (`core.engine`).

Cost
    2 µs a record, of which decoding is half, by the engine 0.5. A worker keeps one decoder and one
    router for all its tasks.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.bulk import Rule
from lmerge_service.formats.headers import JOINING_AT_HEADER, SEQ_HEADER, incarnation_of, seq_of
from lmerge_service.formats.repeats import content_of
from lmerge_service.formats.routing import Router
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.spark.io.decoding import headers_of
from lmerge_service.spark.merge.chunks import (
    ADJUST,
    INSERT,
    NUDGE,
    RAW,
    STABLE,
    Chunk,
    Headers,
    NativeChunk,
    packed,
)
from lmerge_service.spark.merge.plan import TopicKind, Work

if TYPE_CHECKING:
    from lmerge_engine import Batch
    from lmerge_engine import Decoder as NativeDecoder

__all__ = ("CHUNKS", "Run", "Tools", "batch_number", "packing", "rule_of", "shares")

CHUNKS: Final = "bucket int, chunk binary"
Share: TypeAlias = tuple[int, Chunk | NativeChunk]
"""A bucket, and what it gets."""


def batch_number() -> int:
    """The number of the batch that the present task is of."""
    context = TaskContext.get()
    number = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    assert number is not None, "outside of a streaming query"
    return int(number)


def rule_of(work: Work) -> Rule:
    """By which rule records are decoded: the topology's payload equality and limits."""
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
                for run in _runs(batch)
                for bucket, chunk in _placed(work, topics.get(run.topic), run)
            ]
            yield pa.RecordBatch.from_pydict(
                {
                    "bucket": pa.array([bucket for bucket, _ in rows], pa.int32()),
                    "chunk": pa.array([chunk for _, chunk in rows], pa.binary()),
                }
            )

    return pack


class Run:
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

    def raw(self, places: Sequence[int]) -> Chunk:
        """The records at some places, as they came."""
        headers, keys = self.headers, self.keys
        return Chunk(
            self.topic, self.partition, [self.offsets[at] for at in places],
            kinds=bytes([RAW]) * len(places),
            values={n: self.values[at] for n, at in enumerate(places)},
            headers={n: headers[at] for n, at in enumerate(places) if at in headers},
            keys={n: key for n, at in enumerate(places) if (key := keys[at]) is not None},
            timestamps=[self.times[at] for at in places],
        )  # fmt: skip

    def decoded(self, places: Sequence[int], elements: Sequence[Element | None]) -> Chunk:
        """The records at some places as their elements, of which None is that of one that has to
        be rejected. One that joins late may have to be, so its value goes as well."""
        headers = self.headers
        kinds, payloads, times = _columns([elements[at] for at in places])
        chunk = Chunk(
            self.topic, self.partition, [self.offsets[at] for at in places], kinds, payloads, times
        )
        if not headers and RAW not in kinds:
            return chunk
        values, keys = self.values, self.keys
        names = {at: {name for name, _ in headers[at]} for at in places if at in headers}
        late = {at for at, found in names.items() if JOINING_AT_HEADER in found}
        whole = {at for at in places if elements[at] is None} | late
        return msgspec.structs.replace(
            chunk,
            values={n: values[at] for n, at in enumerate(places) if at in whole},
            contents={
                n: content_of(values[at])
                for n, at in enumerate(places)
                if at not in whole and SEQ_HEADER in names.get(at, ())
            },
            headers={n: headers[at] for n, at in enumerate(places) if at in headers},
            keys={
                n: key
                for n, at in enumerate(places)
                if at in whole and (key := keys[at]) is not None
            },
        )


def _columns(elements: Sequence[Element | None]) -> tuple[bytes, list[bytes], list[int]]:
    """Kinds, payloads and times, as in a chunk."""
    kinds = bytearray()
    payloads: list[bytes] = []
    times: list[int] = []
    for element in elements:
        if type(element) is Insert:
            kinds.append(INSERT)
            payloads.append(element.payload)
            times += element.vs, element.ve
        elif type(element) is Adjust:
            kinds.append(ADJUST)
            payloads.append(element.payload)
            times += element.vs, element.vold, element.ve
        elif type(element) is Stable:
            kinds.append(STABLE)
            times.append(element.vc)
        else:
            kinds.append(RAW)
    return bytes(kinds), payloads, times


def _runs(batch: pa.RecordBatch) -> Iterator[Run]:
    sources, partitions = batch.column("source").to_pylist(), batch.column("partition").to_pylist()
    columns = [batch.column(name) for name in ("offset", "value", "key", "timestamp", "headers")]
    start = 0
    for (source, partition), group in groupby(zip(sources, partitions, strict=True)):
        count = sum(1 for _ in group)
        offset, value, key, time, headers = (each.slice(start, count) for each in columns)
        start += count
        yield Run(
            source,
            partition,
            offset.to_pylist(),
            value.to_pylist(),
            key.to_pylist(),
            time.to_pylist(),
            () if headers.null_count == count else headers.to_pylist(),
        )


def _placed(work: Work, kind: TopicKind | None, run: Run) -> Iterator[Share]:
    buckets = len(work.keys)
    if run.topic == work.topology.output.control_topic:
        yield from ((bucket, NUDGE) for bucket in range(buckets))
        return
    if kind is None:
        return  # not begun: it is read again from its beginning then
    native = work.topology.engine_choice.is_native
    tools = _tools(rule_of(work), buckets, work.topology.key, native=native)
    yield from shares(kind, buckets, run, tools)


class Tools:
    """What a worker keeps for its tasks."""

    def __init__(
        self, rule: Rule, buckets: int, key: tuple[str, ...], *, native: bool = False
    ) -> None:
        self.decoder: WireDecoder = rule.decoder(native=native)
        self.router = Router(buckets, key)


_tools = lru_cache(maxsize=4)(Tools)


def shares(kind: TopicKind, buckets: int, run: Run, tools: Tools) -> Iterator[Share]:
    """What each bucket gets of a run."""
    everything = range(len(run.values))
    into: Sequence[int] = range(buckets)
    if kind.co_partitioned:
        into = [run.partition] if run.partition < buckets else []
    if not kind.wire:
        yield from ((bucket, run.raw(everything)) for bucket in into)
        return
    if tools.decoder.native is not None and not run.headers:
        batch = _decoded_natively(run, tools.decoder, tools.decoder.native)
        if batch is not None:
            yield from _divided(run, batch, into, None if kind.co_partitioned else tools.router)
            return
    elements = _decoded(run, tools.decoder)
    if kind.co_partitioned or buckets == 1:
        yield from ((bucket, run.decoded(everything, elements)) for bucket in into)
        return
    for bucket, places in enumerate(_places(run, elements, tools.router)):
        if places:
            yield bucket, run.decoded(places, elements)


def _decoded_natively(run: Run, decoder: WireDecoder, native: "NativeDecoder") -> "Batch | None":
    """The elements of all records by the engine; None: one is none."""
    batch, at, values = native.empty(), 0, run.values
    while (at := native.values(values, at, batch)) < len(values):
        try:
            batch.append(decoder.decode(values[at]))
        except ElementError:
            return None
        at += 1
    return batch


def _divided(
    run: Run, batch: "Batch", into: Sequence[int], router: Router | None
) -> Iterator[Share]:
    """The chunks of the buckets; without a router all is for each."""
    if router is None or router.partitions == 1:
        columns = batch.packed(run.offsets)[0]
        parts = [(bucket, columns) for bucket in into]
    else:
        routes = router.routes_of(batch)
        parts = [*enumerate(batch.packed(run.offsets, routes, router.partitions))]
    for bucket, each in parts:
        if each is not None:
            offsets, kinds, payloads, times = each
            packed = map(msgspec.Raw, (offsets, payloads, times))
            raw_offsets, raw_payloads, raw_times = packed
            yield (
                bucket,
                NativeChunk(run.topic, run.partition, raw_offsets, kinds, raw_payloads, raw_times),
            )


def _decoded(run: Run, decoder: WireDecoder) -> list[Element | None]:
    """The element of each record, None where it is none."""
    decode, headers, keeps = decoder.decode, run.headers, decoder.keeps
    elements: list[Element | None] = []
    for at, value in enumerate(run.values):
        try:
            if at in headers:
                incarnation_of(headers[at])
                seq_of(headers[at])
            elements.append(decoder.seen[value] if keeps else decode(value))  # type: ignore[index]
        except ElementError:
            elements.append(None)
    decoder.weigh(len(run.values))
    return elements


def _places(run: Run, elements: Sequence[Element | None], router: Router) -> list[list[int]]:
    """By bucket, the places of the records that it needs."""
    places: list[list[int]] = [[] for _ in range(router.partitions)]
    payloads = [e.payload for e in elements if type(e) is Insert or type(e) is Adjust]
    for_all, routes = {*_firsts(run)}, iter(router.partitions_of(payloads))
    for at, element in enumerate(elements):
        route = next(routes) if type(element) is Insert or type(element) is Adjust else None
        if at in for_all or type(element) is Stable:
            for each in places:
                each.append(at)
        elif route is not None:
            places[route].append(at)
        else:
            places[run.partition % router.partitions].append(at)
    return places


def _firsts(run: Run) -> list[int]:
    """The first record of each incarnation but the first one."""
    found: dict[int, int] = {}
    for at, headers in run.headers.items():
        try:
            incarnation, _ = incarnation_of(headers)
        except ElementError:
            continue
        if incarnation:
            found.setdefault(incarnation, at)
    return list(found.values())
