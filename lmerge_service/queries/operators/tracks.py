"""Rows that an operator has made of its state, in order of time, and how they change.

Theory
    Rows of a track do not overlap: those of one group, or of one payload. A change replaces some by
    others; what it emits is the difference, row by row of equal starts.

    >>> old = [[1, 4], [4, 9], [("a",), ("b",)]]
    >>> new = [[1, 3], [3, 9], [("a",), ("b",)]]
    >>> for element in difference(old, new): print(element)
    Adjust(payload='a', vs=1, vold=4, ve=3)
    Adjust(payload='b', vs=4, vold=9, ve=4)
    Insert(payload='b', vs=3, ve=9)
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from itertools import pairwise
from typing import Any, TypeAlias

from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import Adjust, Element, Insert
from lmerge_service.queries.operators.protocol import Changes
from lmerge_service.queries.timeline import Part, Timeline

__all__ = ("Label", "Payloads", "Row", "Track", "difference", "in_order", "labels", "pieces")

Payloads: TypeAlias = tuple[Hashable, ...]
"""Those of rows with one lifetime."""

Row: TypeAlias = tuple[int, int, Payloads]
"""(start, end, payloads)."""

Label: TypeAlias = tuple[Hashable, int]
"""A payload, and how many like it come before it."""


class Track:
    """Rows that do not overlap, as columns of starts, ends and payloads."""

    __slots__ = ("line", "number")

    def __init__(self, number: int, line: Timeline | None = None) -> None:
        self.number = number
        """Orders what is due at one time; given out in the order of arrival."""
        self.line = line or Timeline(3)

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.line)

    def __bool__(self) -> bool:
        return bool(self.line.parts[0][0])

    def rows(self) -> Iterator[Row]:
        """All rows, in order."""
        for part in self.line.parts:
            yield from zip(*part, strict=True)

    def saved(self) -> Any:
        """The rows, of what msgpack can carry."""
        starts, ends, payloads = self.line.columns()
        rows = [[portable(payload) for payload in each] for each in payloads]
        return [self.number, starts, ends, rows]

    @classmethod
    def loaded(cls, saved: Any) -> "Track":
        """The track that was saved."""
        number, starts, ends, rows = saved
        return cls(number, Timeline(3, [starts, ends, [hashable(row) for row in rows]]))


def labels(payloads: Payloads | None) -> dict[Label, None]:
    """Each payload, and how many of those before it are alike; in order."""
    if payloads is None:
        return {}
    before: Counter[Hashable] = Counter()
    found: dict[Label, None] = {}
    for payload in payloads:
        found[payload, before[payload]] = None
        before[payload] += 1
    return found


def pieces(old: Part, new: Part) -> Iterator[tuple[int, int, Payloads | None, Payloads | None]]:
    """(start, end, payloads before, payloads now) of all pieces of time where they differ."""
    times = sorted({*old[0], *old[1], *new[0], *new[1]})
    at = to = 0
    for start, end in pairwise(times):
        while at < len(old[0]) and old[1][at] <= start:
            at += 1
        while to < len(new[0]) and new[1][to] <= start:
            to += 1
        was = old[2][at] if at < len(old[0]) and old[0][at] <= start else None
        now = new[2][to] if to < len(new[0]) and new[0][to] <= start else None
        if was != now:
            yield start, end, was, now


def difference(old: Part, new: Part) -> Changes:
    """What turns rows that do not overlap into others; as net changes are ordered, and one if all
    rows have one payload each."""
    if not old[0]:
        return [
            Insert(one, start, end) for start, end, each in zip(*new, strict=True) for one in each
        ]
    shorter: Changes = []
    longer: Changes = []
    inserts: Changes = []
    starts, ends, payloads = new
    at, count = 0, len(starts)
    for start, end, was in zip(*old, strict=True):
        while at < count and starts[at] < start:
            inserts += [Insert(payload, starts[at], ends[at]) for payload in payloads[at]]
            at += 1
        if at == count or starts[at] != start:
            shorter += [Adjust(payload, start, end, start) for payload in was]
            continue
        to, now = ends[at], payloads[at]
        at += 1
        if now != was:
            shorter += [Adjust(payload, start, end, start) for payload in was]
            inserts += [Insert(payload, start, to) for payload in now]
        elif to != end:
            moved = shorter if to < end else longer
            moved += [Adjust(payload, start, end, to) for payload in was]
    for row in range(at, count):
        inserts += [Insert(payload, starts[row], ends[row]) for payload in payloads[row]]
    return [*shorter, *longer, *inserts]


def in_order(changes: list[Insert[Any] | Adjust[Any]], keyed: bool) -> list[Element]:
    """Net changes in the order of their sync times; if rows of one payload never overlap (`keyed`),
    unless one would then come or grow before another makes room. Input in order never brings that
    about."""

    def place(element: Insert[Any] | Adjust[Any]) -> tuple[int, int]:
        if type(element) is Insert:
            return element.vs, 2
        return min(element.vold, element.ve), element.ve > element.vold  # type: ignore[union-attr]

    ordered = sorted(changes, key=place)
    larger: set[Hashable] = set()
    for element in ordered:
        if type(element) is Insert or element.ve > element.vold:  # type: ignore[union-attr]
            larger.add(element.payload)
        elif keyed and element.payload in larger:
            return [*changes]
    return [*ordered]
