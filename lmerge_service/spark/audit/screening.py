"""The screen: which events are not plain, told from hashes and times alone.

Theory
    All that any stream says of one (payload, vs) comes to one task, in order. An event is *plain*
    if each stream begins with an insert, each adjust takes up the end before it, no insert comes
    while there is an event, each stream speaks of it in one partition, and all leave one end:

        place   op                 held before   end
        3       insert [6, 20)     –             20
        7       adjust 20 → 25     20 = vold     25
        9       adjust 25 → 6      25 = vold     –       removed

    What is plain is legal and means the same everywhere, as a key (R3) and as a multiset (R4).
    The others are *odd*, and are judged by the letter, from their payloads (`equivalence`).

    Events are told apart by 64 bits of a hash of payload and vs. Two with one hash look like one,
    of which each stream inserts two: odd, so that they are told apart. Only where streams *differ*
    can that hide something: if one says of B what another says of A, with the same times. So
    of d such pairs one is missed with a probability of at most d / 2**64.

Invariants
    V1  Whoever is not odd is legal by either rule, and not disagreed on, but for such a pair.

Cost
    A stable sort by the hash and some twenty sweeps over what a task has, in numpy: 0.3 µs an
    element; 48 bytes an element for the shuffle.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import START
from lmerge_service.spark.audit.freshness import delays_of
from lmerge_service.spark.audit.scanning import BUCKETS, PACKED

__all__ = ("screened",)

_FOUND: Final = pa.schema(
    [
        ("hash", pa.int64()),
        ("twice", pa.int64()),
        ("delay", pa.int64()),
        ("events", pa.int64()),
    ]
)
_MOST_OF_A_BATCH: Final = 1 << 16


def screened(bundles: DataFrame, streams: int, *, pieces: int, clipped: bool) -> DataFrame:
    """Of each odd event its `hash`, and how many rows have the place of another (`twice`); and how
    many `events` had which `delay` (`freshness`), in rows whose hash is null.

    `clipped`: ends are compared as far as the bundles' column `point`. Done in so many pieces.
    """
    kept = ["stream", "partition", *["point"] * clipped, "bundle"]
    pieces = min(pieces, BUCKETS)
    piece = F.floor(F.col("bucket") * pieces / BUCKETS).cast("int")
    spread = bundles.select(piece.alias("piece"), *kept).repartitionById(pieces, "piece")
    schema = "hash long, twice long, delay long, events long"
    return spread.drop("piece").mapInArrow(_screening(streams), schema)


def _screening(streams: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def screen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if bundles := list(batches):
            said = _Said.of(pa.Table.from_batches(bundles))
            for found in (said.odd(streams), said.delays()):
                for start in range(0, len(found), _MOST_OF_A_BATCH):
                    yield found.slice(start, _MOST_OF_A_BATCH)

    return screen


@dataclass(frozen=True, slots=True)
class _Said:
    """Inserts and adjusts by hash, stream, partition and place."""

    packed: np.ndarray
    """A row for each, a column for each of `PACKED`."""
    stream: np.ndarray
    partition: np.ndarray
    point: np.ndarray | None

    @classmethod
    def of(cls, bundles: pa.Table) -> "_Said":
        packed, counts = _unpacked(bundles)
        about = {
            name: np.asarray(bundles.column(name).combine_chunks())
            for name in bundles.column_names
            if name != "bundle"
        }
        first = np.cumsum(counts) - counts
        # Bundles one behind another in their order, so that a stable sort leaves rows in theirs.
        order = np.lexsort((packed[first, 2], about["partition"], about["stream"]))
        counts = counts[order]
        skipped = np.repeat(first[order] - (np.cumsum(counts) - counts), counts)
        rows = np.arange(len(packed)) + skipped
        of_bundle = np.repeat(order, counts)
        sort = np.argsort(packed[rows, 0], kind="stable")
        said = cls._taken(packed, about, rows[sort], of_bundle[sort])
        if said._in_order():
            return said
        by = (said.packed[:, 2], said.partition, said.stream, said.packed[:, 0])
        again = np.lexsort(by)
        return cls._taken(packed, about, rows[sort][again], of_bundle[sort][again])

    @classmethod
    def _taken(
        cls, packed: np.ndarray, about: dict[str, Any], rows: np.ndarray, of_bundle: np.ndarray
    ) -> "_Said":
        point = about["point"][of_bundle] if "point" in about else None
        return cls(packed[rows], about["stream"][of_bundle], about["partition"][of_bundle], point)

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
        event = np.concatenate([[0], np.cumsum(~same)])
        end = np.where(ve > vs, ve, START)
        held = np.full(len(end), START)
        held[1:][linked] = end[:-1][linked]
        wrong = vold != held  # an insert has no vold and must find nothing
        wrong[1:] |= same & (vs[1:] != vs[:-1])
        twice = np.zeros(len(end), bool)
        twice[1:] = linked & (place[1:] == place[:-1])
        odd = np.bincount(event, wrong | twice) > 0
        left = end != START
        left[:-1] &= ~linked
        self._compare(odd, event[left], end[left], left, streams)
        hashes = self.packed[np.flatnonzero(np.concatenate([[True], ~same])), 0]
        times = np.bincount(event, twice).astype(np.int64)
        return _found(hash=hashes[odd], twice=times[odd])

    def _compare(
        self, odd: np.ndarray, event: np.ndarray, end: np.ndarray, left: np.ndarray, streams: int
    ) -> None:
        """Makes odd what streams leave differently; of each end that is left, and its event."""
        stream = self.stream[left]
        follows = event[1:] == event[:-1]
        odd[event[1:][follows & (stream[1:] == stream[:-1])]] = True
        if self.point is not None:
            point = self.point[left]
            end = np.minimum(end, point)
            counts = self.packed[left, 1] < point
            event, end = event[counts], end[counts]
            follows = event[1:] == event[:-1]
        odd[event[1:][follows & (end[1:] != end[:-1])]] = True
        count = np.bincount(event, minlength=len(odd))
        odd |= (count != 0) & (count != streams)

    def delays(self) -> pa.RecordBatch:
        """Of events that the first stream or another one told of; no `delay`: the first has not."""
        inserts = self.packed[:, 3] == START
        timed = inserts & (self.packed[:, 5] != START)
        if not timed.any():
            return _found()
        starts = np.flatnonzero(np.concatenate([[True], ~self._same()]))
        delay, alone = delays_of(self.packed[:, 5], timed, self.stream == 0, starts)
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


def _found(**columns: Any) -> pa.RecordBatch:
    count = max(map(len, columns.values()), default=0)
    arrays = [
        pa.array(columns[each.name]) if each.name in columns else pa.nulls(count, each.type)
        for each in _FOUND
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_FOUND)
