"""The screen: which events are not plain, decided by hashes and times alone.

Theory
    All elements of all streams about one (payload, vs) come to one task, in order. An event is
    *plain* if each stream begins with an insert, each adjust takes up the end before it, no insert
    comes while there is an event, each stream has it in one partition, and all leave one end:

        place   op                 held before   end
        3       insert [6, 20)     –             20
        7       adjust 20 → 25     20 = vold     25
        9       adjust 25 → 6      25 = vold     –       removed

    What is plain is legal and means the same everywhere, as a key (R3) and as a multiset (R4).
    The others are *odd*, and are compared by payload (`equivalence`).

    Events are identified by 64 bits of a hash of payload and vs. Two with one hash look like one,
    of which each stream inserts two: odd, so that they are compared by payload. An error is missed
    only where an element is about B that should be about A, with the same times. So of d such
    pairs one is missed with a probability of at most d / 2**64. That holds for errors: whoever
    writes payloads to deceive an audit can make two with one hash.

Invariants
    V1  An event that is not odd is legal by either rule and the same in all streams, but for such
        a pair.

Cost
    A stable sort by the hash and some twenty sweeps over what a task has, in numpy: 0.3 µs an
    element; 48 bytes an element for the shuffle.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from lmerge_service.elements import INFINITY, START
from lmerge_service.spark.audit.freshness import measured
from lmerge_service.spark.audit.scanning import BUCKETS, PACKED

__all__ = ("delays_of", "odd_of", "pieces_of", "screened", "screening")

_FOUND: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("hash", "twice", "vs", "lowest")),
        ("wrong", pa.bool_()),
        *((name, pa.int64()) for name in ("delay", "events")),
    ]
)
_MOST_OF_A_BATCH: Final = 1 << 16

_Batches = Iterator[pa.RecordBatch]


def screened(scan: DataFrame, streams: int, *, pieces: int) -> DataFrame:
    """The pieces of slices in a scan (`scanning`) as they are, and what the screen found of its
    bundles, in so many tasks; `pieces_of`, `odd_of` and `delays_of` separate them."""
    pieces = min(pieces, BUCKETS)
    of_bucket = F.floor(F.col("bucket") * pieces / BUCKETS)
    piece = F.coalesce(of_bucket, F.pmod(F.hash("slice"), F.lit(pieces))).cast("int")
    spread = scan.withColumn("bucket", piece).repartitionById(pieces, "bucket").drop("bucket")
    passed = spread.drop("bundle").schema
    schema = StructType([StructField(each.name, each.dataType) for each in passed])
    for name in _FOUND.names:
        schema.add(name, BooleanType() if name == "wrong" else LongType())
    return spread.mapInArrow(screening(streams, passed.names), schema)


def pieces_of(screen: DataFrame) -> DataFrame:
    """A row for each slice of each stream, partition and incarnation, or several."""
    return screen.where(F.col("doubtful").isNotNull()).drop(*_FOUND.names)


def odd_of(screen: DataFrame, point: int | None = None) -> DataFrame:
    """Of each odd event its `hash`, and how many rows have the place of another (`twice`).

    Less those whose ends differ only as far as they are beyond the `point`.
    """
    odd = screen.where(F.col("hash").isNotNull())
    if point is not None:
        odd = odd.where(F.col("wrong") | ((F.col("vs") < point) & (F.col("lowest") < point)))
    return odd.select("hash", "twice")


def delays_of(screen: DataFrame) -> DataFrame:
    """How many `events` had which `delay` (`freshness`); null: the first stream lacks them."""
    return screen.where(F.col("events").isNotNull()).select("delay", "events")


def screening(streams: int, passed: Sequence[str]) -> Callable[[_Batches], _Batches]:
    """For `mapInArrow`: from pieces and bundles to pieces, of which these columns are passed on,
    and what is found of the bundles, all of which are taken together."""

    def screen(batches: _Batches) -> _Batches:
        bundles = []
        for batch in batches:
            is_bundle = batch.column("bundle").is_valid()
            bundles.append(batch.select(["stream", "partition", "bundle"]).filter(is_bundle))
            pieces = batch.select(passed).filter(pc.invert(is_bundle))
            if len(pieces):
                yield _beside(pieces, _found(len(pieces)))
        if not sum(map(len, bundles)):
            return
        events = _Events.of(pa.Table.from_batches(bundles))
        for found in (events.odd(streams), events.delays()):
            for start in range(0, len(found), _MOST_OF_A_BATCH):
                some = found.slice(start, _MOST_OF_A_BATCH)
                yield _beside(_nothing(pieces.schema, len(some)), some)

    return screen


def _beside(left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    names = [*left.schema.names, *right.schema.names]
    return pa.RecordBatch.from_arrays([*left.columns, *right.columns], names)


def _nothing(schema: pa.Schema, count: int) -> pa.RecordBatch:
    nothing = [pa.nulls(count, each.type) for each in schema]
    return pa.RecordBatch.from_arrays(nothing, schema.names)


@dataclass(frozen=True, slots=True)
class _Events:
    """Inserts and adjusts by hash, stream, partition and place."""

    packed: np.ndarray
    """A row for each, a column for each of `PACKED`."""
    stream: np.ndarray
    partition: np.ndarray

    @classmethod
    def of(cls, bundles: pa.Table) -> "_Events":
        packed, counts = _unpacked(bundles)
        about = {
            name: np.asarray(bundles.column(name).combine_chunks())
            for name in ("stream", "partition")
        }
        first = np.cumsum(counts) - counts
        # Bundles one behind another in their order, so that a stable sort leaves rows in theirs.
        order = np.lexsort((packed[first, 2], about["partition"], about["stream"]))
        counts = counts[order]
        skipped = np.repeat(first[order] - (np.cumsum(counts) - counts), counts)
        rows = np.arange(len(packed)) + skipped
        of_bundle = np.repeat(order, counts)
        sort = np.argsort(packed[rows, 0], kind="stable")
        found = cls._taken(packed, about, rows[sort], of_bundle[sort])
        if found._in_order():
            return found
        by = (found.packed[:, 2], found.partition, found.stream, found.packed[:, 0])
        again = np.lexsort(by)
        return cls._taken(packed, about, rows[sort][again], of_bundle[sort][again])

    @classmethod
    def _taken(
        cls, packed: np.ndarray, about: dict[str, Any], rows: np.ndarray, of_bundle: np.ndarray
    ) -> "_Events":
        return cls(packed[rows], about["stream"][of_bundle], about["partition"][of_bundle])

    def _in_order(self) -> bool:
        place = self.packed[:, 2]
        return bool(np.all(place[1:][self._linked()] >= place[:-1][self._linked()]))

    def _same(self) -> np.ndarray:
        """Whether a row is of the event of the row before; of all but the first."""
        key = self.packed[:, 0]
        same: np.ndarray = key[1:] == key[:-1]
        return same

    def _linked(self) -> np.ndarray:
        """And of its stream and partition."""
        linked: np.ndarray = self._same() & (self.stream[1:] == self.stream[:-1])
        linked &= self.partition[1:] == self.partition[:-1]
        return linked

    def odd(self, streams: int) -> pa.RecordBatch:
        _, vs, place, vold, ve, _ = self.packed.T
        same, linked = self._same(), self._linked()
        end = np.where(ve > vs, ve, START)
        held = np.full(len(end), START)
        held[1:][linked] = end[:-1][linked]
        wrong = vold != held  # an insert has no vold and must find nothing
        wrong[1:] |= same & (vs[1:] != vs[:-1])
        twice = np.zeros(len(end), bool)
        twice[1:] = linked & (place[1:] == place[:-1])
        left = end != START
        left[:-1] &= ~linked
        # Of each event: what is against it, how many ends are left, the lowest and the highest.
        firsts = self._firsts()
        against = np.logical_or.reduceat(wrong | twice | self._again(left), firsts)
        count = np.add.reduceat(left, firsts, dtype=np.int64)
        lowest = np.minimum.reduceat(np.where(left, end, INFINITY), firsts)
        highest = np.maximum.reduceat(np.where(left, end, START), firsts)
        lowest[count < streams] = START
        odd = against | ((count > 0) & (lowest != highest))
        return _found(
            hash=self.packed[firsts[odd], 0],
            twice=np.add.reduceat(twice, firsts, dtype=np.int64)[odd],
            vs=vs[firsts[odd]],
            lowest=lowest[odd],
            wrong=against[odd],
        )

    def _again(self, left: np.ndarray) -> np.ndarray:
        """Which of the rows that leave an end do so after another one of their event and stream,
        in another partition."""
        rows = np.flatnonzero(left)
        key, stream = self.packed[rows, 0], self.stream[rows]
        again = np.zeros(len(left), bool)
        again[rows[1:]] = (key[1:] == key[:-1]) & (stream[1:] == stream[:-1])
        return again

    def _firsts(self) -> np.ndarray:
        """Of each event the first row."""
        return np.flatnonzero(np.concatenate([[True], ~self._same()]))

    def delays(self) -> pa.RecordBatch:
        """Of events that any stream has emitted; no `delay`: the first stream has not."""
        inserts = self.packed[:, 3] == START
        timed = inserts & (self.packed[:, 5] != START)
        if not timed.any():
            return _found()
        delay, alone = measured(self.packed[:, 5], timed, self.stream == 0, self._firsts())
        kinds, counts = np.unique(delay, return_counts=True)
        delays = pa.array([*kinds.tolist(), *[None] * (alone > 0)], pa.int64())
        events = np.array([*counts.tolist(), *[alone] * (alone > 0)], np.int64)
        return _found(delay=delays, events=events)


def _unpacked(bundles: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """The rows of all bundles, one behind another, and how many each has."""
    parts, counts = [], []
    for chunk in bundles.column("bundle").chunks:
        _, bounds, data = chunk.buffers()
        ends = np.frombuffer(bounds, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        parts.append(np.frombuffer(data, np.int64, (ends[-1] - ends[0]) // 8, ends[0]))
        counts.append(np.diff(ends) // (8 * len(PACKED)))
    return np.concatenate(parts).reshape(-1, len(PACKED)), np.concatenate(counts)


def _found(count: int = 0, **columns: Any) -> pa.RecordBatch:
    count = max([count, *map(len, columns.values())])
    arrays = [
        pa.array(columns[each.name]) if each.name in columns else pa.nulls(count, each.type)
        for each in _FOUND
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_FOUND)
