"""Tables that change: from changes of rows to elements, in three ways.

Theory
    `Versions`: a row is valid from the change that brings it to the change that takes it away.
    Changes of one key count in the order of the partition, which is the order of a changelog:

    >>> table = Versions()
    >>> table.apply(RowChange(b"k", b"A", 3)), table.apply(RowChange(b"k", b"B", 7))[0]
    ([Insert(payload=b'A', vs=3, ve=9223372036854775807)], \
Adjust(payload=b'A', vs=3, vold=9223372036854775807, ve=7))

    *At one instant* the last change counts: what it replaces began and ended at once, and never
    was. A change that claims an *earlier* time than the one before it takes effect with that one:
    per key, time stands still rather than go back. A change to what holds already gives no
    element, be it a repeated record, an update that changes nothing or the deletion of what is not
    there. And a row that goes and comes back at one instant has not been away:

    >>> table.apply(RowChange(b"k", b"A", 7))[1]
    Adjust(payload=b'A', vs=3, vold=7, ve=9223372036854775807)

    So the events of a key are the maximal intervals of its history, however that is written: as
    upserts, as deletion and insertion, with repeats. A repeated run of changes plays that run
    again at the latest instant, and ends where it was.

    `Intervals`: a row carries its own lifetime; a change of its key replaces row and interval, a
    deletion removes it as if it had never been (what Flink calls a retraction).
    `Facts`: the same without keys, where a retraction repeats the row.

Invariants
    T1  What is emitted is legal behind stable(c) if `touches` gave c or more, or None.
    T2  Versions keeps of each key: the row, or that there is none, since when, and what was just
        before. What was before goes with the first stable beyond the instant of the change, and a
        deleted key with it; a live row stays, as its event does in the merge.
    T3  Intervals keeps the rows that are not final: ve >= c. Facts keeps nothing.
    T4  The state is a function of the changes and stables applied, and `saved` is all of it.

Cost
    O(log n) per change, in the changes behind the stable; `forget` O(log n) for each that goes.
"""

import heapq
from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert

__all__ = ("Facts", "Intervals", "RowChange", "Table", "Versions")


class RowChange(NamedTuple):
    """What becomes of a key: a row, or none (None).

    `vs` is the time of the change, for Versions; else `vs` and `ve` are the row's lifetime.
    """

    key: bytes
    row: bytes | None
    vs: int
    ve: int = INFINITY


class Table(Protocol):
    """What the decoders need of the three."""

    def touches(self, change: RowChange) -> int | None:
        """The earliest time that the change touches; None when it changes nothing."""

    def apply(self, change: RowChange) -> list[Element]:
        """The elements of the change, in order; none where it changes nothing."""

    def forget(self, c: int) -> None:
        """Lets go of what stable(c) makes final."""

    def live(self) -> list[bytes]:
        """The keys that have a row."""

    def holds(self, key: bytes) -> bytes | None:
        """The row of a key."""

    def saved(self) -> Any:
        """The state as plain values, which `load` takes."""

    def load(self, saved: Any) -> None:
        """Replaces the state by what `saved` returned."""

    def check(self, c: int) -> None:
        """Asserts the invariants, in words."""


class _Held(NamedTuple):
    row: bytes | None
    vs: int
    """From when the row is valid, or the key has none."""
    at: int
    """When the row was written last, which can be later than vs: it was confirmed, or came back."""
    before: tuple[bytes, int] | None
    """The row that ended at vs, and its vs."""


class Versions:
    """One row per key at a time, each from change to change."""

    def __init__(self) -> None:
        self._held: dict[bytes, _Held] = {}
        self._recent: list[tuple[int, bytes]] = []
        """A heap of (at, key) with all that a stable has still to visit."""

    def touches(self, change: RowChange) -> int | None:
        held = self._held.get(change.key)
        if change.row == (held and held.row):
            return None
        return change.vs if held is None else max(change.vs, held.at)

    def apply(self, change: RowChange) -> list[Element]:
        key, row, _, _ = change
        t = self.touches(change)
        if t is None:
            self._confirm(change)
            return []
        held = self._held.get(key) or _Held(None, START, START, None)
        before = held.before if t == held.vs else None
        elements: list[Element] = []
        if held.row is not None:
            elements.append(Adjust(held.row, held.vs, INFINITY, t))
            if t > held.vs:
                before = held.row, held.vs
        if row is not None and before is not None and before[0] == row:
            elements.append(Adjust(row, before[1], t, INFINITY))
            self._keep(key, _Held(row, before[1], t, None))
            return elements
        if row is not None:
            elements.append(Insert(row, t, INFINITY))
        self._keep(key, _Held(row, t, t, before))
        return elements

    def _confirm(self, change: RowChange) -> None:
        """The row is still so at a later time, before which it cannot change any more."""
        held = self._held.get(change.key)
        if held is not None and held.row is not None and change.vs > held.at:
            self._keep(change.key, _Held(held.row, held.vs, change.vs, None))

    def _keep(self, key: bytes, held: _Held) -> None:
        self._held[key] = held
        heapq.heappush(self._recent, (held.at, key))

    def forget(self, c: int) -> None:
        while self._recent and self._recent[0][0] < c:
            at, key = heapq.heappop(self._recent)
            held = self._held.get(key)
            if held is None or held.at != at:
                continue
            if held.row is None:
                del self._held[key]
            else:
                self._held[key] = held._replace(before=None)
        if c == INFINITY:
            self._held.clear()

    def live(self) -> list[bytes]:
        return [key for key, held in self._held.items() if held.row is not None]

    def holds(self, key: bytes) -> bytes | None:
        held = self._held.get(key)
        return held and held.row

    def saved(self) -> Any:
        waiting = set(self._recent)
        return [(key, *held, (held.at, key) in waiting) for key, held in self._held.items()]

    def load(self, saved: Any) -> None:
        self._held, self._recent = {}, []
        for key, row, vs, at, before, waiting in saved:
            self._held[key] = _Held(row, vs, at, before and (before[0], before[1]))
            if waiting:
                self._recent.append((at, key))
        heapq.heapify(self._recent)

    def check(self, c: int) -> None:
        waiting = set(self._recent)
        for key, held in self._held.items():
            assert held.vs <= held.at, "a row is valid after the change that brought it"
            assert held.at >= c or held.row is not None, "T2: a deleted key is kept for ever"
            assert held.at >= c or held.before is None, "T2: what was before is kept for ever"
            assert held.at < c or (held.at, key) in waiting, "T2: no stable will visit a key"


class Intervals:
    """One row per key, which carries its own lifetime."""

    def __init__(self) -> None:
        self._held: dict[bytes, tuple[bytes, int, int]] = {}
        self._ends: list[tuple[int, bytes]] = []

    def touches(self, change: RowChange) -> int | None:
        key, row, vs, ve = change
        held = self._held.get(key)
        if held is None:
            return None if row is None else vs
        if row is None:
            return held[1]
        if held == (row, vs, ve):
            return None
        return min(held[2], ve) if held[:2] == (row, vs) else min(held[1], vs)

    def apply(self, change: RowChange) -> list[Element]:
        key, row, vs, ve = change
        if self.touches(change) is None:
            return []
        held = self._held.pop(key, None)
        if row is not None:
            self._held[key] = row, vs, ve
            heapq.heappush(self._ends, (ve, key))
            if held is not None and held[:2] == (row, vs):
                return [Adjust(row, vs, held[2], ve)]
        elements: list[Element] = []
        if held is not None:
            elements.append(Adjust(*held, held[1]))
        if row is not None:
            elements.append(Insert(row, vs, ve))
        return elements

    def forget(self, c: int) -> None:
        while self._ends and self._ends[0][0] < c:
            ve, key = heapq.heappop(self._ends)
            if key in self._held and self._held[key][2] == ve:
                del self._held[key]
        if c == INFINITY:
            self._held.clear()
            self._ends.clear()

    def live(self) -> list[bytes]:
        return list(self._held)

    def holds(self, key: bytes) -> bytes | None:
        held = self._held.get(key)
        return held and held[0]

    def saved(self) -> Any:
        return [(key, *held) for key, held in self._held.items()]

    def load(self, saved: Any) -> None:
        self._held = {key: (row, vs, ve) for key, row, vs, ve in saved}
        self._ends = [(ve, key) for key, (_, _, ve) in self._held.items()]
        heapq.heapify(self._ends)

    def check(self, c: int) -> None:
        for key, (_, vs, ve) in self._held.items():
            assert vs < ve, "a row is never valid"
            assert ve >= c, "T3: a final row is kept"
            assert (ve, key) in self._ends, "T3: no stable will visit a key"


class Facts:
    """Rows with lifetimes and without keys; the key of a change is +, or - for a retraction."""

    def touches(self, change: RowChange) -> int | None:
        return change.vs

    def apply(self, change: RowChange) -> list[Element]:
        sign, row, vs, ve = change
        assert row is not None, "a retraction repeats its row"
        payload: Hashable = row
        return [Insert(payload, vs, ve) if sign == b"+" else Adjust(payload, vs, ve, vs)]

    def forget(self, c: int) -> None:
        pass

    def live(self) -> list[bytes]:
        return []

    def holds(self, key: bytes) -> bytes | None:
        return None

    def saved(self) -> Any:
        return []

    def load(self, saved: Any) -> None:
        pass

    def check(self, c: int) -> None:
        pass
