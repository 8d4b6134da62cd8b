"""Pieces of a stream, each given its stables and its place by itself.

Theory
    The *floor* behind an element is the least deadline of all that comes later; it never falls.
    A stable is due behind an element with some probability. Its time is the floor, less
    `stable_lag`; it is emitted if that is more than the last one. A piece needs the least
    deadline of what comes after it. Where the rows of a piece stand in the whole stream is known
    once the pieces before it are counted: with the number of elements, and the floors of its
    stables that are due first and last (`Summary`), since floors never fall.

Invariants
    P1  However a stream is cut, its pieces have the same rows together.
    P2  With stable_lag=0 every stable but the last is the floor of its place, and there is at
        least one other element between two.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from lmerge_service.elements import INFINITY, START
from lmerge_service.spark.generator.emission import Emitted
from lmerge_service.spark.generator.randomness import Bools, Draws, Longs
from lmerge_service.workloads.presentation import Variation

__all__ = (
    "Payloads",
    "PieceContext",
    "StreamPiece",
    "Summary",
    "ending",
    "floors_behind",
    "places",
)

Payloads: TypeAlias = Callable[[Longs], pa.StringArray]
"""The payloads of events, by `Emitted.event`."""

_OPS: Final = pa.array(["insert", "adjust", "stable"])
_INSERT, _ADJUST, _STABLE = range(3)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a piece is to those behind it."""

    elements: int
    stables: int
    """Different ones that are due."""
    first: int
    last: int
    """Of them; START without any."""


@dataclass(frozen=True, slots=True)
class PieceContext:
    """What a piece needs of those before it."""

    offset: int
    stable: int
    """The last one."""


def places(summaries: Iterable[Summary]) -> list[PieceContext]:
    """Of each piece, and of what follows the last."""
    found = [PieceContext(0, START)]
    for each in summaries:
        before = found[-1]
        stables = each.stables - (each.stables > 0 and each.first <= before.stable)
        offset = before.offset + each.elements + stables
        found.append(PieceContext(offset, max(before.stable, each.last)))
    return found


def floors_behind(limits: Longs, coming: int) -> Longs:
    """The floor behind each element, when the least deadline of what follows them all is
    `coming`."""
    later = np.concatenate((limits[1:], [coming]))[: len(limits)]
    return np.minimum.accumulate(later[::-1])[::-1]


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Elements in the order in which they are sent."""

    emitted: Emitted
    coming: int
    """The least deadline of what follows the piece; INFINITY: nothing does."""
    variation: Variation
    draws: Draws

    def summary(self) -> Summary:
        """How many elements and different stables the piece has, and its first and last stable."""
        stables = np.unique(self._stables()[1])
        first, last = (int(stables[0]), int(stables[-1])) if len(stables) else (START, START)
        return Summary(len(self.emitted.send), len(stables), first, last)

    def rows(self, place: PieceContext, payloads: Payloads, step: int) -> Iterator[pa.RecordBatch]:
        """The rows in order, so many a batch: offset, op, payload, vs, vold, ve, vc."""
        due, stables = self._stables()
        points = np.full(len(due), START)
        points[due] = stables
        points = np.maximum.accumulate(np.concatenate(([place.stable], points)))
        rises = np.flatnonzero(points[1:] > points[:-1])
        rows = _Rows(self.emitted, rises, points[1:][rises])
        yield from rows.batches(place.offset, payloads, step)

    def _stables(self) -> tuple[Bools, Longs]:
        """Behind which elements a stable below INFINITY is due, and its time."""
        floors = floors_behind(self.emitted.limit, self.coming)
        probability = self.variation.stable_probability
        due = self.draws.chance("stable", self.emitted.serial, probability) & (floors < INFINITY)
        return due, floors[due] - self.variation.stable_lag


def ending(place: PieceContext) -> pa.RecordBatch:
    """stable(INFINITY), behind the last piece."""
    nothing = Emitted(*[np.zeros(0, np.int64)] * len(fields(Emitted)))
    rows = _Rows(nothing, np.array([-1]), np.array([INFINITY]))
    return next(rows.batches(place.offset, lambda events: pa.array([], pa.string()), 1))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Elements in order, and stables, each behind the element of that place."""

    emitted: Emitted
    behind: Longs
    stables: Longs

    def batches(self, offset: int, payloads: Payloads, step: int) -> Iterator[pa.RecordBatch]:
        elements, stables = len(self.emitted.send), len(self.stables)
        order = np.full(elements + stables, -1)  # the element in each row, or no element
        stable_rows = self.behind + 1 + np.arange(stables)
        element_rows = np.ones(len(order), bool)
        element_rows[stable_rows] = False
        order[element_rows] = np.arange(elements)
        points = np.zeros(len(order), np.int64)
        points[stable_rows] = self.stables
        for at in range(0, len(order), step):
            part = slice(at, at + step)
            yield self._batch(order[part], points[part], offset + at, payloads)

    def _batch(
        self, order: Longs, points: Longs, offset: int, payloads: Payloads
    ) -> pa.RecordBatch:
        is_stable = order < 0  # a stable, which is no element of `emitted`
        chosen = order[~is_stable]
        emitted = self.emitted
        vs, vold, ve = (column[chosen] for column in (emitted.vs, emitted.vold, emitted.ve))
        events, which = np.unique(emitted.event[chosen], return_inverse=True)
        ops = np.full(len(order), _STABLE, np.int8)
        ops[~is_stable] = np.where(vold == vs, _INSERT, _ADJUST)
        place = np.maximum(np.cumsum(~is_stable) - 1, 0)  # among `chosen`; of no matter for stables

        def column(values: Longs, absent: Bools) -> pa.Int64Array:
            return pa.array(values[place] if len(values) else place, mask=absent)

        return pa.RecordBatch.from_pydict(
            {
                "offset": pa.array(np.arange(offset, offset + len(order))),
                "op": pa.DictionaryArray.from_arrays(ops, _OPS).cast(pa.string()),
                "payload": payloads(events).take(column(which, is_stable)),
                "vs": column(vs, is_stable),
                "vold": column(vold, ops != _ADJUST),
                "ve": column(ve, is_stable),
                "vc": pa.array(points, mask=~is_stable),
            }
        )
