"""Small sets of streams to audit, by the thousand, and what the audit of one process finds.

A case is three streams of two partitions: presentations of one logical stream (in some cases of
two), whole or cut short, with events in one partition or in both, sometimes started over, and a
quarter of them with a fault or several somewhere. The same seed gives the same case.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

import pyarrow as pa

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.offline.audit import Audited, TopicAudit, compare
from lmerge_service.tdb import TDB, Difference, differences
from lmerge_service.workloads.lies import KINDS, falsified
from lmerge_service.workloads.lifetime import lives_of
from lmerge_service.workloads.presentation import Variation, present
from tests.offline.streams import on_the_wire

__all__ = (
    "STREAMS",
    "WIDTH",
    "Case",
    "Expected",
    "StreamRecord",
    "case_of",
    "encoded",
    "expected",
    "expected_by_key",
    "headers_of",
    "rows_of",
)

STREAMS: Final = 3
WIDTH: Final = 2
NO_ELEMENT: Final = b'{"op":"stable"}'


class StreamRecord(NamedTuple):
    """A record; `element` is None where it is none."""

    partition: int
    offset: int
    incarnation: int
    element: Element | None


@dataclass(frozen=True, slots=True)
class Case:
    """Streams, and the width of their slices in bits."""

    seed: int
    bits: int
    streams: Sequence[Sequence[StreamRecord]]


# Made


def case_of(seed: int) -> Case:
    rng = Random(seed)
    routes, multiset = rng.choice((1, 1, WIDTH)), rng.random() < 0.4
    logical = _logical(rng, multiset)
    other = _logical(rng, multiset) if rng.random() < 0.15 else logical
    streams = []
    for n in range(STREAMS):
        elements = _presented(rng, other if n else logical, multiset)
        streams.append(list(_sent(rng, _faulty(rng, elements), routes)))
    return Case(seed, rng.choice((0, 1, 2, 4)), streams)


def _logical(rng: Random, multiset: bool) -> list[tuple[str, int, int]]:
    events: dict[object, tuple[str, int, int]] = {}
    for number in range(rng.randint(0, 6)):
        vs = rng.choice((0, 1, 2, 3, rng.randint(0, 20)))
        ve = rng.choice((vs + 1, vs + rng.randint(1, 12), INFINITY))
        payload = rng.choice("ABCé")
        events[number if multiset else (payload, vs)] = (payload, vs, ve)
    return sorted(events.values(), key=lambda event: event[1])


def _presented(
    rng: Random, logical: Sequence[tuple[str, int, int]], multiset: bool
) -> list[Element]:
    some = (0.0, 0.3, 1.0)
    variation = Variation(
        provisional=rng.choice(some),
        revisions=rng.randint(1, 3),
        spread=rng.randint(1, 8),
        endless=rng.choice(some),
        reinserted=rng.choice((0.0, 0.0, 0.4)),
        phantoms=rng.choice((0.0, 0.3)),
        doubled=rng.choice(some) if multiset else 0.0,
        lead=rng.randint(0, 8),
        pace=rng.choice(("anytime", "eager", "late")),
        disorder=rng.choice(some),
        displacement=rng.randint(1, 8),
        stable_every=rng.choice((0, 1, 2, 4)),
        stable_lag=rng.randint(0, 5),
        repeated_stables=rng.choice((0.0, 0.5)),
    )
    elements = list(present(lives_of(logical), variation, rng.randint(0, 2**30)))
    return elements[: rng.randint(0, len(elements))] if rng.random() < 0.3 else elements


def _faulty(rng: Random, elements: list[Element]) -> list[Element]:
    if rng.random() < 0.75:
        return elements
    faults = {rng.randrange(max(len(elements), 1)) for _ in range(rng.choice((1, 1, 2, 5)))}
    faulty: list[Element] = []
    for at, element in enumerate(elements):
        by = rng.choice((-5, -2, -1, 1, 2, 5))
        faulty += falsified(rng.choice(KINDS), element, by) if at in faults else [element]
    return faulty


def _sent(rng: Random, elements: list[Element], routes: int) -> Iterator[StreamRecord]:
    """Over partitions, of which an event is in one as a rule, a stable in each."""
    offsets = [rng.randint(0, 5) for _ in range(WIDTH)]
    astray, over = rng.random() < 0.05, rng.random() < 0.12
    lives = [(0, elements)]
    if over:
        lives = [(0, elements[: rng.randint(0, len(elements))]), (1, elements)]
    published = [(life, element) for life, several in lives for element in several]
    if over and len(published) > 2 and rng.random() < 0.5:
        at = rng.randrange(len(published))
        published = [
            *published[at:],
            *published[:at],
        ]  # an old one's come after a new one's, out of their order
    for incarnation, element in published:
        everywhere = range(WIDTH)
        if not isinstance(element, Stable):
            route = rng.randrange(WIDTH) if astray else ord(element.payload) % routes
            everywhere = range(route, route + 1)
        for partition in everywhere:
            offsets[partition] += rng.choice((1, 1, 1, 3))
            element_sent = None if rng.random() < 0.0005 else element
            yield StreamRecord(partition, offsets[partition], incarnation, element_sent)


# As Spark is given them


def rows_of(cases: Sequence[Case]) -> pa.Table:
    """Rows of `streams.COLUMNS`, and `case`."""
    columns: dict[str, list[Any]] = {name: [] for name in _TYPES}
    for case in cases:
        for stream, several in enumerate(case.streams):
            for record in several:
                row = dict.fromkeys(_TYPES) | {
                    "case": case.seed,
                    "stream": stream,
                    "partition": record.partition,
                    "place": record.offset,
                    "slice": record.offset >> case.bits,
                    "incarnation": record.incarnation,
                    **_columns(record.element),
                }
                for name, column in columns.items():
                    column.append(row[name])
    return pa.table({name: pa.array(column, _TYPES[name]) for name, column in columns.items()})


_TYPES: Final = {
    **dict.fromkeys(("case", "place", "slice", "incarnation"), pa.int64()),
    **dict.fromkeys(("stream", "partition"), pa.int32()),
    "timestamp": pa.timestamp("us", "UTC"),
    **dict.fromkeys(("op", "payload", "reason", "message"), pa.string()),
    **dict.fromkeys(("vs", "vold", "ve", "vc"), pa.int64()),
}


def _columns(element: Element | None) -> dict[str, Any]:
    match element:
        case Insert(payload, vs, ve):
            return {"op": "insert", "payload": f'"{payload}"', "vs": vs, "ve": ve}
        case Adjust(payload, vs, vold, ve):
            return {"op": "adjust", "payload": f'"{payload}"', "vs": vs, "vold": vold, "ve": ve}
        case Stable(vc):
            return {"op": "stable", "vc": vc}
    return {"reason": "not_an_element", "message": "no vc"}


# As one process judges them


@dataclass(frozen=True, slots=True)
class Expected:
    """Faults as (stream, partition, offset, why), the verdict of what is legal."""

    refused: bool
    faults: set[tuple[int, int, int, str]]
    streams: list[Audited]
    differences: list[Difference]
    clipped: list[Difference]
    before: int


def expected(case: Case) -> Expected:
    refused, faults, streams = False, set(), []
    for number, several in enumerate(case.streams):
        partitions = [TopicPartition("t", n) for n in range(WIDTH)]
        audit = TopicAudit("t", partitions, WireDecoder())
        for partition in partitions:
            records = [
                _Record(record) for record in several if record.partition == partition.partition
            ]
            try:
                audit.take(partition, records)
            except ElementError:
                refused = True
        for partition, error in audit.illegal().items():
            where, _, why = str(error).partition(": not a legal stream: ")
            faults.add((number, partition.partition, int(where.split()[-1]), why))
        if not audit.illegal():
            streams.append(audit.result())
    if refused or faults:
        return Expected(refused, faults, streams, [], [], START)
    plain, clipped = compare(*streams), compare(*streams, clipped=True)
    assert clipped.before is not None
    return Expected(False, set(), streams, plain.differences, clipped.differences, clipped.before)


def encoded(record: StreamRecord) -> bytes:
    """The record's value."""
    return NO_ELEMENT if record.element is None else encode(on_the_wire(record.element))


def headers_of(record: StreamRecord) -> list[tuple[str, bytes]]:
    return incarnation_headers(record.incarnation)


class _Record:
    key = None

    def __init__(self, record: StreamRecord) -> None:
        self.offset = record.offset
        self.value = encoded(record)
        self.headers = headers_of(record)


def expected_by_key(case: Case) -> Expected:
    """The same by the letter of case R3, in which an event inserted again takes the later end."""
    refused, faults, tdbs = False, set(), []
    for number, several in enumerate(case.streams):
        last = max((record.incarnation for record in several), default=0)
        events: list[tuple[Any, int, int]] = []
        for partition in range(WIDTH):
            here = [each for each in several if each.partition == partition]
            refused |= any(each.element is None for each in here)
            now = [(each.offset, each.element) for each in here if each.incarnation == last]
            found = _by_key([(at, element) for at, element in now if element is not None])
            if isinstance(found, TDB):
                events += found
            else:
                faults.add((number, partition, *found))
        tdbs.append(TDB(events))
    legal = not (refused or faults)
    return Expected(refused, faults, [], differences(*tdbs) if legal else [], [], START)


def _by_key(elements: Sequence[tuple[int, Element]]) -> tuple[int, str] | TDB:
    """Of a partition the first fault, with its offset; else the TDB."""
    held: dict[tuple[Any, int], int] = {}
    stable = START
    for offset, element in elements:
        if isinstance(element, Stable):
            if why := TDB((), stable).violation(element):
                return offset, why
            stable = element.vc
            continue
        key = element.payload, element.vs
        if why := TDB([(*key, held[key])] if key in held else [], stable).violation(element):
            return offset, why
        if element.ve > element.vs:
            held[key] = element.ve
        else:
            del held[key]
    return TDB((b'"%b"' % payload.encode(), vs, ve) for (payload, vs), ve in held.items())
