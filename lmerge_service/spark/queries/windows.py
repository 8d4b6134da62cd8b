r"""Hopping windows over groups: what a fold makes of the rows of each, as events.

Theory
    A row of time t counts in each window [s, s+size), s a multiple of `slide`, that holds t. A
    window is final when the watermark has reached its end, so after watermark m nothing is emitted
    any more about windows that begin before

        c = the least multiple s of slide with s + size > m

    which is the stable. *Early*: a window holds what its fold makes of it; at the end of a batch,
    its results are compared with those emitted before, and the difference is emitted. *Final*:
    time is cut into panes, which lie wholly in or out of each window; a row goes into one pane
    only, and a window's panes are joined when it is final:

        size 60, slide 20     |─ pane ─|─ pane ─|─ pane ─|─ pane ─|
                              [      window             )
                                       [      window             )

Invariants
    W1  An insert has vs >= the last stable, an adjust ends at or above it (a removal too).
    W2  (payload, vs) is a key of the output: payloads of one window differ, and those of
        different groups have other group fields.
    W3  Of windows below the stable nothing is kept, nor of panes all of whose windows are.

Cost
    Early: size/slide folds per row. Final: one, and size/slide joins per pane.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from typing import Any

import msgspec

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.formats.payload import canonical
from lmerge_service.spark.queries.plans import Fold, Operator, QueryPlan, Row
from lmerge_service.tdb import TDB

__all__ = ("Windows",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The shape: windows of `size`, one every `slide`, for each group of equal fields."""

    size: int
    slide: int
    group: tuple[str, ...]
    fold: Fold

    def __post_init__(self) -> None:
        if not 0 < self.slide <= self.size:
            raise ValueError(f"0 < slide <= size, got slide={self.slide}, size={self.size}")

    @property
    def memory(self) -> int:
        return self.size

    def begin(self, plan: QueryPlan) -> Operator:
        return _Early(self, plan.grid) if plan.early else _Final(self, plan.grid)

    def resume(self, plan: QueryPlan, output: TDB) -> Operator | None:
        """Always returns None: an open window's count may include facts beyond the stable point, so
        the output alone cannot restore it."""
        return None

    def starts(self, time: int, span: int = 1) -> Iterable[int]:
        """Of the windows that hold [time, time + span)."""
        last = time // self.slide * self.slide
        least = time + span - self.size
        return range(last, least - 1, -self.slide)

    def stable(self, watermark: int, grid: int) -> int:
        """The stable for a watermark: the start of the first open window, on the grid."""
        if watermark in (START, INFINITY):
            return watermark
        first = (watermark - self.size) // self.slide * self.slide + self.slide
        return first // grid * grid

    def group_of(self, row: Row) -> str:
        """The values of the group's columns as a JSON array; equal text, equal group."""
        return msgspec.json.encode([row.get(name) for name in self.group]).decode()

    def payloads(self, group: str, held: Any) -> list[bytes]:
        """Of a window, in the fold's order."""
        fields = dict(zip(self.group, msgspec.json.decode(group), strict=True))
        results = self.fold.results(held)
        return [canonical(msgspec.json.encode(fields | result)) for result in results]


class _Windowed:
    """What both have in common: how far it is."""

    def __init__(self, shape: Windows, grid: int) -> None:
        self.shape = shape
        self.skipped = 0
        self._grid = grid
        self._stable = START

    def _rise(self, watermark: int) -> list[Element]:
        stable = self.shape.stable(watermark, self._grid)
        if stable <= self._stable:
            return []
        self._stable = stable
        return [Stable(stable)]


class _Early(_Windowed):
    """Emits what is known, and revises it."""

    def __init__(self, shape: Windows, grid: int) -> None:
        super().__init__(shape, grid)
        self._held: dict[tuple[int, str], Any] = {}
        self._emitted: dict[tuple[int, str], list[bytes]] = {}
        self._touched: set[tuple[int, str]] = set()

    def __len__(self) -> int:
        return len(self._held)

    def take(self, time: int, row: Row, point: int) -> None:
        group, fold = self.shape.group_of(row), self.shape.fold
        for start in self.shape.starts(time):
            cell = start, group
            if start + self.shape.size < point and cell not in self._emitted:
                self.skipped += 1
                self._held.pop(cell, None)
                continue
            held = self._held[cell] if cell in self._held else fold.empty()
            self._held[cell] = fold.add(held, row)
            self._touched.add(cell)

    def advance(self, watermark: int, point: int) -> list[Element]:
        elements: list[Element] = []
        for cell in sorted(self._touched):
            if cell in self._held:
                elements += self._revised(cell, point)
        self._touched.clear()
        risen = self._rise(watermark)
        for kept in (self._held, self._emitted):
            for cell in [each for each in kept if each[0] < self._stable]:
                del kept[cell]
        return elements + risen

    def _revised(self, cell: tuple[int, str], point: int) -> list[Element]:
        start, group = cell
        end, old = start + self.shape.size, self._emitted.get(cell, [])
        if end < point and cell not in self._emitted:
            self.skipped += 1
            del self._held[cell]
            return []
        new = self.shape.payloads(group, self._held[cell])
        if new or old:
            self._emitted[cell] = new  # also if nothing is left: it was begun
        elements: list[Element] = [
            Adjust(each, start, end, start) for each in old if each not in new
        ]
        return elements + [Insert(each, start, end) for each in new if each not in old]

    def save(self) -> Any:
        cells = [
            [start, group, held, self._emitted.get((start, group))]
            for (start, group), held in self._held.items()
        ]
        return [self._stable, cells]

    def load(self, saved: Any) -> None:
        self._stable, cells = saved
        self._held = {(start, group): held for start, group, held, _ in cells}
        self._emitted = {
            (start, group): emitted for start, group, _, emitted in cells if emitted is not None
        }


class _Final(_Windowed):
    """Emits what is final."""

    def __init__(self, shape: Windows, grid: int) -> None:
        super().__init__(shape, grid)
        self._pane = gcd(shape.size, shape.slide)
        self._panes: dict[str, dict[int, Any]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._panes.values()))

    def take(self, time: int, row: Row, point: int) -> None:
        at = time // self._pane * self._pane
        if max(self.shape.starts(at, self._pane)) + self.shape.size < point:
            self.skipped += 1
            return
        panes = self._panes.setdefault(self.shape.group_of(row), {})
        held = panes[at] if at in panes else self.shape.fold.empty()
        panes[at] = self.shape.fold.add(held, row)

    def advance(self, watermark: int, point: int) -> list[Element]:
        before = self._stable
        risen = self._rise(watermark)
        if not risen:
            return []
        elements: list[Insert[Any]] = []
        for group, panes in self._panes.items():
            starts = {
                start for at in panes for start in self.shape.starts(at, self._pane)
                if before <= start < self._stable
            }  # fmt: skip
            for start in starts:
                elements += self._window(group, panes, start, point)
        self._forget()
        elements.sort(key=lambda each: (each.vs, each.payload))
        return [*elements, *risen]

    def _window(
        self, group: str, panes: dict[int, Any], start: int, point: int
    ) -> list[Insert[Any]]:
        end = start + self.shape.size
        if end < point:
            self.skipped += 1
            return []
        held = self.shape.fold.empty()
        for at in range(start, end, self._pane):
            if at in panes:
                held = self.shape.fold.join(held, panes[at])
        return [Insert(each, start, end) for each in self.shape.payloads(group, held)]

    def _forget(self) -> None:
        for group, panes in list(self._panes.items()):
            for at in [at for at in panes if max(self.shape.starts(at)) < self._stable]:
                del panes[at]
            if not panes:
                del self._panes[group]

    def save(self) -> Any:
        return [
            self._stable,
            [[group, list(panes.items())] for group, panes in self._panes.items()],
        ]

    def load(self, saved: Any) -> None:
        self._stable, groups = saved
        self._panes = {group: dict(panes) for group, panes in groups}
