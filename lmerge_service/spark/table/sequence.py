"""A stream's records in order, held to their own word, as intervals that open and close.

Theory
    An insert opens the interval ⟨payload, vs, ve⟩ at its offset; an adjust closes one with vold
    and opens one with ve, unless ve = vs. Each partition is a stream of its own, and its
    incarnations too: of a lower one than the partition has had before nothing counts. What an
    adjust closes must be open; that is seen when opened and closed are brought together
    (`versions`). Here an element is held to the stable before it.

    The time of a record is the latest one of its partition so far, so that what was known at a
    time is a prefix.

Invariants
    Q1  A row for each interval opened or closed, and for each incarnation of each partition a
        mark with its progress.
    Q2  An element below its own stable, or a record that is none, ends the job, with its place.

Cost
    Linear, by columns. All records of a partition pass through one task, in order.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lmerge_service.elements import START
from lmerge_service.errors import ElementError, IllegalStreamError, StateError
from lmerge_service.spark.table.progress import Progress

__all__ = ("CLOSED", "INTERVALS", "MARK", "OPENED", "TAKEN", "marked", "sequencing")

OPENED: Final = 0
CLOSED: Final = 1
MARK: Final = 2
INTERVALS: Final = (
    "side int, partition int, incarnation long, payload string, vs long, ve long, at long, "
    "time long"
)
TAKEN: Final = (
    *("partition", "offset", "time", "incarnation", "op", "payload", "vs", "vold", "ve", "vc"),
    *("reason", "message"),
)
"""The columns that are looked at, in this order."""

Longs = NDArray[np.int64]


def sequencing(
    source: str, reached: Mapping[int, Progress]
) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """For `mapInArrow`: from the columns `TAKEN`, sorted by partition and offset, to rows of
    `INTERVALS`."""

    def take(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        runs: dict[int, _Run] = {}
        for batch in batches:
            partition = _longs(batch.column("partition"))
            for first, end in _stretches(partition):
                number = int(partition[first])
                if number not in runs:
                    runs[number] = _Run(source, number, reached.get(number, Progress(number)))
                yield from runs[number].take(batch.slice(first, end - first))
        marks = [mark for run in runs.values() for mark in run.marks()]
        if marks:
            yield marked(marks)

    return take


class _Run:
    """One partition's records, one batch after the other."""

    def __init__(self, source: str, partition: int, reached: Progress) -> None:
        self._source = source
        self._partition = partition
        self._next = reached.next
        self._time = reached.time
        self._incarnation = reached.incarnation
        self._stable = reached.stable
        self._begun: dict[int, tuple[int, int]] = {}
        self._records = 0
        self._ended: list[Progress] = []

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._check(batch)
        times = _longs(batch.column("time"), START)
        times = np.maximum.accumulate(np.concatenate(([self._time], times)))[1:]
        self._time = int(times[-1])
        incarnations = _longs(batch.column("incarnation"))
        highest = np.maximum.accumulate(np.concatenate(([self._incarnation], incarnations)))[1:]
        current = incarnations == highest
        if not current.all():
            batch, times = batch.filter(pa.array(current)), times[current]
        for first, end in _stretches(incarnations[current]):
            part = batch.slice(first, end - first)
            self._begin(part, int(times[first]))
            yield from self._intervals(part, times[first:end])

    def marks(self) -> Iterator[Progress]:
        """Of what was taken; also where nothing of it counted, since time has passed."""
        yield from self._ended
        yield self._mark()

    def _check(self, batch: pa.RecordBatch) -> None:
        offsets = _longs(batch.column("offset"))
        if offsets[0] < self._next or (np.diff(offsets) <= 0).any():
            raise StateError(f"{self._source}-{self._partition}: an offset is there twice")
        self._next = int(offsets[-1]) + 1
        if batch.column("op").null_count:
            [at, *_] = np.flatnonzero(batch.column("op").is_null().to_numpy(zero_copy_only=False))
            row = batch.slice(int(at), 1).to_pylist()[0]
            raise ElementError(row["reason"], f"{self._at(row['offset'])}: {row['message']}")

    def _begin(self, part: pa.RecordBatch, time: int) -> None:
        incarnation = part.column("incarnation")[0].as_py()
        if incarnation > self._incarnation:
            if self._records:
                self._ended.append(self._mark())
            self._incarnation, self._stable, self._records = incarnation, START, 0
            self._begun[incarnation] = (part.column("offset")[0].as_py(), time)
        self._records += len(part)

    def _mark(self) -> Progress:
        begun = self._begun.get(self._incarnation, (-1, START))
        return Progress(
            self._partition,
            self._incarnation,
            self._next,
            self._stable,
            self._time,
            *begun,
            self._records,
        )

    def _intervals(self, part: pa.RecordBatch, times: Longs) -> Iterator[pa.RecordBatch]:
        op = part.column("op")
        insert, adjust = _bools(pc.equal(op, "insert")), _bools(pc.equal(op, "adjust"))
        vs, vold, ve = (_longs(part.column(name)) for name in ("vs", "vold", "ve"))
        stables = np.concatenate(([self._stable], _longs(part.column("vc"), START)))
        stables = np.maximum.accumulate(stables)
        self._stable = int(stables[-1])
        due = np.where(insert, vs, np.minimum(vold, ve))
        broken = (insert | adjust) & (due < stables[:-1])
        if broken.any():
            self._refuse(part, int(np.flatnonzero(broken)[0]), stables)
        for side, rows, ends in (
            (OPENED, (insert | adjust) & (ve > vs), ve),
            (CLOSED, adjust, vold),
        ):
            if rows.any():
                yield self._rows(part, side, np.flatnonzero(rows), ends, times)

    def _rows(
        self, part: pa.RecordBatch, side: int, places: Longs, ends: Longs, times: Longs
    ) -> pa.RecordBatch:
        taken = part.take(pa.array(places))
        count = len(places)
        return pa.RecordBatch.from_pydict(
            {
                "side": pa.repeat(pa.scalar(side, pa.int32()), count),
                "partition": taken.column("partition"),
                "incarnation": taken.column("incarnation"),
                "payload": taken.column("payload"),
                "vs": taken.column("vs"),
                "ve": pa.array(ends[places]),
                "at": taken.column("offset"),
                "time": pa.array(times[places]),
            }
        )

    def _refuse(self, part: pa.RecordBatch, at: int, stables: Longs) -> None:
        row = part.slice(at, 1).to_pylist()[0]
        times = [f"{name}={row[name]}" for name in ("vs", "vold", "ve") if row[name] is not None]
        raise IllegalStreamError(
            f"{self._at(row['offset'])}: not a legal stream: {row['op']} with {', '.join(times)} "
            f"below the stream's own stable({stables[at]})"
        )

    def _at(self, offset: int) -> str:
        return f"{self._source}-{self._partition} at offset {offset}"


def marked(marks: list[Progress]) -> pa.RecordBatch:
    """Rows of `INTERVALS` that carry progress."""
    count = len(marks)
    zeros = pa.array(np.zeros(count, np.int64))
    return pa.RecordBatch.from_pydict(
        {
            "side": pa.repeat(pa.scalar(MARK, pa.int32()), count),
            "partition": pa.array([each.partition for each in marks], pa.int32()),
            "incarnation": pa.array([each.incarnation for each in marks], pa.int64()),
            "payload": pa.array([msgspec.json.encode(each).decode() for each in marks]),
            **dict.fromkeys(("vs", "ve", "at", "time"), zeros),
        }
    )


def _stretches(values: Longs) -> Iterator[tuple[int, int]]:
    """[first, end) of each run of equal values."""
    if len(values):
        cuts = (np.flatnonzero(np.diff(values)) + 1).tolist()
        yield from zip([0, *cuts], [*cuts, len(values)], strict=True)


def _longs(column: pa.Array, absent: int = 0) -> Longs:
    found: Longs = column.fill_null(absent).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _bools(column: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
    return found
