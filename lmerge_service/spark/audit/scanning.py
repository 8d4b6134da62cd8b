"""One look at every row: what it counts for in its slice, and what is taken along of its event.

Theory
    Rows come in as columns of numbers and the payload's hash, and are put in order of their places,
    a *chunk* of some hundred thousand at a time. Two things leave:

    * of each slice in the chunk a *piece*: counts, highest stable, earliest deadline (`counting`),
      its first and last place, and whether it is `doubtful`: an element of it stands behind a
      higher stable of the chunk than its deadline allows, or two rows have one place;
    * of each insert and adjust the numbers that decide whether its event is plain (`screening`),
      in 48 bytes. They leave in *bundles*, one for each of `BUCKETS` ranges of the hash, so that
      Spark moves a few large rows instead of many small ones.

    A chunk holds back its last slices for the next one, so that rows that lie out of order nearby
    leave no slice in two pieces.

Invariants
    S1  Each row is in one piece; each insert and adjust in one bundle, which is of one stream,
        partition and incarnation, and in order of places.
    S2  A piece that is not doubtful is legal by the stables of its chunk, and no two of its rows
        have one place. So it is legal where it stands, unless another piece has a place between
        its first and last one, or it has a deadline below what was stable before it.

Cost
    The hash is Spark's; numpy does the rest, in 0.2 µs a row. A worker has 2**18 rows at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StructField,
    StructType,
)

from lmerge_service.elements import INFINITY, START
from lmerge_service.formats.bulk import Rule
from lmerge_service.spark.audit.hashing import event_hashes
from lmerge_service.spark.io.decoding import decoding

__all__ = (
    "BUCKETS",
    "NUMBERS",
    "PACKED",
    "event_hash",
    "scanned",
    "scanned_records",
    "scanning",
)

BUCKETS: Final = 1024
NUMBERS: Final = ("place", "slice", "vs", "vold", "ve", "vc", "ms", "hash")
"""What is looked at of a row, as int64 or null."""
PACKED: Final = ("hash", "vs", "place", "vold", "ve", "ms")
"""Of an insert or adjust, as int64; what is not there (vold, ms) is -2**63."""
_COUNTS: Final = ("inserts", "adjusts", "removals", "stables", "refused", "unplaced")

_CHUNK: Final = 1 << 18
_HELD_BACK: Final = 1024
_ORIGIN: Final = ("stream", "partition", "incarnation")
_BOUNDS: Final = ("slice", "from", "until", "stable", "deadline", "to")
_MADE: Final = (
    *(StructField(name, LongType()) for name in (*_BOUNDS, *_COUNTS)),
    StructField("doubtful", BooleanType()),
    StructField("bucket", IntegerType()),
    StructField("bundle", BinaryType()),
)
"""Columns beside the origin; either those of pieces are null, or those of bundles."""

_Scan = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def event_hash(by: Sequence[str]) -> Column:
    """By which rows of one (payload, vs) come together; others hardly ever do (`screening`)."""
    return F.xxhash64(*by, "payload", "vs")


def scanned(rows: DataFrame, by: Sequence[str], *, chunk: int = _CHUNK) -> DataFrame:
    """Pieces and bundles of all rows, together; a bundle has a `bucket`, a piece has none.

    `rows` are of `streams.COLUMNS`; so many are a `chunk`. Each element is looked at, so that one
    that a source does not take for one fails here.
    """
    origin = [*by, *_ORIGIN]
    is_event = F.col("op").isNotNull() & (F.col("op") != "stable")
    numbers = rows.select(
        *origin,
        *("place", "slice", "vs", "vold", "ve", "vc"),
        F.unix_millis("timestamp").alias("ms"),
        F.when(is_event, event_hash(by)).alias("hash"),
    )
    given = [numbers.schema[name] for name in origin]
    return numbers.mapInArrow(scanning(origin, chunk), StructType([*given, *_MADE]))


def scanned_records(raw: DataFrame, rule: Rule, stream: int, *, bits: int) -> DataFrame:
    """The same of a topic's records (`elements.raw_records`, in order), which are decoded on the
    way; slices are of so many bits."""
    decode, scan = decoding(rule, keys="none", once=True), scanning(_ORIGIN)

    def decode_and_scan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return scan(_numbers_of(batch, stream, bits) for batch in decode(batches))

    kinds = IntegerType(), IntegerType(), LongType()
    given = [StructField(name, kind) for name, kind in zip(_ORIGIN, kinds, strict=True)]
    return raw.mapInArrow(decode_and_scan, StructType([*given, *_MADE]))


def _numbers_of(decoded: pa.RecordBatch, stream: int, bits: int) -> pa.RecordBatch:
    """The columns of a stream's rows that `scanned` selects."""
    count, place = len(decoded), decoded.column("offset")
    payload, vs = decoded.column("payload"), decoded.column("vs")
    hashes = event_hashes(payload, np.asarray(pc.fill_null(vs, 0)))
    micros = np.asarray(pc.fill_null(decoded.column("timestamp").cast(pa.int64()), 0))
    untimed = np.asarray(decoded.column("timestamp").is_null())
    made = {
        "stream": pa.repeat(pa.scalar(stream, pa.int32()), count),
        "slice": pc.shift_right(place, bits),
        "place": place,
        "ms": pa.array(micros // 1000, mask=untimed),
        "hash": pa.array(hashes, mask=np.asarray(payload.is_null())),
    }
    passed = ("partition", "incarnation", "vs", "vold", "ve", "vc")
    return pa.RecordBatch.from_pydict(made | {name: decoded.column(name) for name in passed})


def scanning(origin: Sequence[str], chunk: int = _CHUNK) -> _Scan:
    """For `mapInArrow`: from the origin and `NUMBERS` to pieces and bundles."""

    def scan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        count = 0
        parts = (batch.slice(at, chunk) for batch in batches for at in range(0, len(batch), chunk))
        for part in parts:
            waiting.append(part)
            count += len(part)
            if count >= chunk:
                whole = _Chunk.of(pa.Table.from_batches(waiting), origin)
                ready, waiting = whole.held_back(min(_HELD_BACK, chunk // 2))
                count = sum(map(len, waiting))
                yield from ready.output()
        if count:
            yield from _Chunk.of(pa.Table.from_batches(waiting), origin).output()

    return scan


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows by origin and by place."""

    rows: pa.Table
    origin: Sequence[str]
    group: np.ndarray
    """Of each row the number of its origin, from 0."""

    @classmethod
    def of(cls, table: pa.Table, origin: Sequence[str]) -> "_Chunk":
        rows = table.combine_chunks()
        group = _numbered([rows.column(name) for name in origin])
        place = _numbers(rows, "place")
        order: np.ndarray | None = None
        if group.any():
            order = np.lexsort((place, group))
        elif not _rises(place):
            order = np.argsort(place, kind="stable")
        if order is not None:
            rows, group = rows.take(pa.array(order)), group[order]
        return cls(rows, origin, group)

    def held_back(self, count: int) -> "tuple[_Chunk, list[pa.RecordBatch]]":
        """Without the slices of its last rows, so many, if all are of one origin; and these."""
        if self.group[-1]:
            return self, []
        slices = _numbers(self.rows, "slice")
        cut = int(np.searchsorted(slices, slices[max(len(slices) - count, 0)]))
        if not cut:
            return self, []
        first = _Chunk(self.rows.slice(0, cut), self.origin, self.group[:cut])
        return first, self.rows.slice(cut).to_batches()

    def output(self) -> Iterator[pa.RecordBatch]:
        numbers = {name: _numbers(self.rows, name) for name in NUMBERS}
        there = {name: _there(self.rows, name) for name in NUMBERS}
        yield self._pieces(numbers, there)
        events = np.flatnonzero(there["hash"])
        if len(events):
            yield self._bundles(np.stack([numbers[name][events] for name in PACKED], 1), events)

    def _pieces(
        self, numbers: dict[str, np.ndarray], there: dict[str, np.ndarray]
    ) -> pa.RecordBatch:
        place, vs, vold, ve, vc = (numbers[name] for name in ("place", "vs", "vold", "ve", "vc"))
        is_event, is_adjust, is_stable = there["vs"], there["vold"], there["vc"]
        starts = _starts(self.group, numbers["slice"])
        deadline = np.where(is_adjust, np.minimum(vold, ve), np.where(is_event, vs, INFINITY))
        deadline = np.where(is_stable, vc, deadline)
        late = deadline < _highest_before(vc, self.group)
        late[1:] |= (place[1:] == place[:-1]) & (self.group[1:] == self.group[:-1])
        counted = {
            "inserts": is_event & ~is_adjust,
            "adjusts": is_adjust,
            "removals": is_adjust & (ve == vs),
            "stables": is_stable,
            "refused": ~(is_event | is_stable),
            "unplaced": ~there["place"],
        }
        has_stables = np.add.reduceat(counted["stables"], starts, dtype=np.int64) > 0
        timed = np.add.reduceat(there["ms"], starts, dtype=np.int64) > 0
        made = {
            "slice": pa.array(numbers["slice"][starts]),
            "from": pa.array(place[starts]),
            "until": pa.array(place[np.append(starts[1:], len(place)) - 1]),
            "stable": pa.array(np.maximum.reduceat(vc, starts), mask=~has_stables),
            "deadline": pa.array(np.minimum.reduceat(deadline, starts)),
            "to": pa.array(np.maximum.reduceat(numbers["ms"], starts), mask=~timed),
            "doubtful": pa.array(np.logical_or.reduceat(late, starts)),
        }
        for name, which in counted.items():
            made[name] = pa.array(np.add.reduceat(which, starts, dtype=np.int64))
        return self._batch(starts, made)

    def _bundles(self, packed: np.ndarray, events: np.ndarray) -> pa.RecordBatch:
        """`packed` has a row for each of `events`, which are places in the chunk."""
        group = self.group[events]
        bucket = (packed[:, 0].view(np.uint64) >> np.uint64(54)).astype(np.uint16)
        order = np.argsort(bucket, kind="stable")  # by radix, as they are short
        if group[-1]:
            order = order[np.argsort(group[order], kind="stable")]
        group, bucket = group[order], bucket[order]
        starts = _starts(group, bucket)
        bounds = (np.append(starts, len(order)) * packed.itemsize * len(PACKED)).astype(np.int32)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(packed[order])]
        made = {
            "bucket": pa.array(bucket[starts].astype(np.int32)),
            "bundle": pa.Array.from_buffers(pa.binary(), len(starts), buffers),
        }
        return self._batch(events[order[starts]], made)

    def _batch(self, at: np.ndarray, made: dict[str, pa.Array]) -> pa.RecordBatch:
        """`made`, beside the origin at the places; what else there might be is null."""
        origin = {name: self.rows.column(name).take(pa.array(at)) for name in self.origin}
        columns = {name: each.combine_chunks() for name, each in origin.items()}
        kinds = dict.fromkeys((*_BOUNDS, *_COUNTS), pa.int64())
        kinds |= {"doubtful": pa.bool_(), "bucket": pa.int32(), "bundle": pa.binary()}
        for name, kind in kinds.items():
            columns[name] = made[name] if name in made else pa.nulls(len(at), kind)
        return pa.RecordBatch.from_pydict(columns)


def _numbered(columns: Sequence[pa.ChunkedArray]) -> np.ndarray:
    """Rows with the same values have the same number; if all have, it is 0."""
    number: Any = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        if len(encoded.dictionary) > 1:
            number = number * len(encoded.dictionary) + encoded.indices.to_numpy()
    return np.unique(number, return_inverse=True)[1] if number.any() else number


def _numbers(rows: pa.Table, name: str) -> np.ndarray:
    """A column; what is null is -2**63."""
    column = rows.column(name)
    filled = pc.fill_null(column, START) if column.null_count else column
    return np.asarray(filled.combine_chunks())


def _there(rows: pa.Table, name: str) -> np.ndarray:
    return np.asarray(rows.column(name).is_valid())


def _rises(numbers: np.ndarray) -> bool:
    return bool(np.all(numbers[1:] >= numbers[:-1]))


def _starts(*columns: np.ndarray) -> np.ndarray:
    """Where a row differs from the one before."""
    differs = np.zeros(len(columns[0]), bool)
    differs[0] = True
    for each in columns:
        differs[1:] |= each[1:] != each[:-1]
    return np.flatnonzero(differs)


def _highest_before(vc: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The highest stable of the same origin before each row."""
    before = np.full(len(vc), START)
    starts = _starts(group)
    for start, end in zip(starts, np.append(starts[1:], len(vc)), strict=True):
        np.maximum.accumulate(vc[start : end - 1], out=before[start + 1 : end])
    return before
