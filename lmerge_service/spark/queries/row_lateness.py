r"""Which rows of a micro-batch are late, though no task reads a whole partition.

Theory
    Late is what is late by offsets (`replicas.lateness`). Spark's own watermark moves between
    batches and drops rows by where these end, so that two runs of one query differ.

    The maximum of a prefix is associative. So the reader of a piece of a partition reports
    its first offset, its maximum, and which of its rows are late already by what is before them in
    the piece; the bucket, which knows what was before, decides the rest:

        lateness 10      piece from 0         piece from 4
        times            20 31 15 22          19 40 29
        reported         high 31, late [2]    high 40, late [6]
        before           -∞                   31: 19 is late as well

Invariants
    L1  What is late, and the watermark behind a set of offsets, do not depend on how these were cut
        into pieces and batches.
    L2  A row that counts is not below any watermark before it.

Cost
    O(1) per row, in numpy; a piece is as long as its list of late rows.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from lmerge_service.elements import INFINITY, START

__all__ = ("FactsLateness", "RowReader", "RowSummary")


class RowSummary(msgspec.Struct, frozen=True):
    """A summary of consecutive rows of one partition."""

    first: int
    high: int
    """The highest time; INFINITY if the partition has ended, START if there is no time in it."""
    late: list[int]
    """Offsets of rows that are late by what is before them in the piece."""
    rows: int
    refused: int
    """How many of them have no time."""


class RowReader:
    """Makes the piece of rows that come in order of their offsets."""

    def __init__(self, lateness: int) -> None:
        self._lateness = lateness
        self._first: int | None = None
        self._high = START
        self._late: list[int] = []
        self._rows = self._refused = 0

    def take(self, offsets: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> None:
        """Rows with their times; START for one that has none, INFINITY for an end."""
        if not len(offsets):
            return
        if self._first is None:
            self._first = int(offsets[0])
        highs = np.maximum.accumulate(np.concatenate(([self._high], times)))
        before, timed = highs[:-1], times > START
        late = timed & (before > START) & (times < before - np.int64(self._lateness))
        self._late += offsets[late].tolist()
        self._high = int(highs[-1])
        self._rows += len(offsets)
        self._refused += int((~timed).sum())

    def piece(self) -> RowSummary | None:
        """None: there was no row."""
        if self._first is None:
            return None
        return RowSummary(self._first, self._high, self._late, self._rows, self._refused)


class FactsLateness:
    """How far each partition of the facts is, and which rows of the current batch count."""

    def __init__(self, lateness: int, partitions: int, seen: Iterable[int] = ()) -> None:
        self._lateness = lateness
        self.seen = [*seen] or [START] * partitions
        self._firsts: dict[int, list[int]] = {}
        self._before: dict[int, list[int]] = {}
        self._late: dict[int, frozenset[int]] = {}

    def begin(self, pieces: Mapping[int, list[RowSummary]]) -> None:
        """Takes the pieces of a batch, by partition."""
        self._firsts, self._before, self._late = {}, {}, {}
        for partition, of_partition in pieces.items():
            ordered = sorted(of_partition, key=lambda piece: piece.first)
            self._firsts[partition] = [piece.first for piece in ordered]
            self._before[partition] = befores = []
            for piece in ordered:
                befores.append(self.seen[partition])
                self.seen[partition] = max(self.seen[partition], piece.high)
            self._late[partition] = frozenset(at for piece in ordered for at in piece.late)

    def counts(self, partition: int, offset: int, time: int) -> bool:
        """Whether a row of the current batch is in time."""
        if offset in self._late[partition]:
            return False
        place = bisect_right(self._firsts[partition], offset) - 1
        before = self._before[partition][place]
        return before == START or time >= before - self._lateness

    @property
    def watermark(self) -> int:
        """START as long as a partition has no rows."""
        least = min(self.seen)
        return least if least in (START, INFINITY) else least - self._lateness
