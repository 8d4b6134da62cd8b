"""Results by instants: what of a result is missing, and since when it has been known."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from lmerge_service.elements import Adjust, Element, Stable
from lmerge_service.tdb import TDB

__all__ = ("Answers", "difference")


def difference(found: TDB, right: TDB) -> tuple[float, float]:
    """Result time that is missing, and too much, as parts of what is right.

    >>> difference(TDB([("p", 0, 4)]), TDB([("p", 0, 3), ("p", 3, 5)]))
    (0.2, 0.0)
    """
    missing = extra = whole = 0
    changes, wanted = _changes(found), _changes(right)
    for payload in changes.keys() | wanted.keys():
        times = sorted(changes[payload].keys() | wanted[payload].keys())
        have = want = 0
        for at, until in pairwise(times):
            have += changes[payload][at]
            want += wanted[payload][at]
            missing += max(want - have, 0) * (until - at)
            extra += max(have - want, 0) * (until - at)
            whole += want * (until - at)
    return missing / whole, extra / whole


def _changes(tdb: TDB) -> defaultdict[Any, Counter[int]]:
    """Per payload by how many there are more, at which time."""
    changes: defaultdict[Any, Counter[int]] = defaultdict(Counter)
    for payload, vs, ve in tdb:
        changes[payload][vs] += 1
        changes[payload][ve] -= 1
    return changes


class Answers:
    """Since when there has been an answer about each of some instants, and since when the last one.

    A group has one row at an instant.

    >>> from lmerge_service.elements import Insert
    >>> answers = Answers([5], group=lambda row: row[0])
    >>> answers.take(6, [Insert(("a", 1), 4, 9)])
    >>> answers.take(8, [Adjust(("a", 1), 4, 9, 5), Insert(("a", 2), 5, 9)])
    >>> answers.waits()
    ([1], [3])
    """

    def __init__(self, instants: Sequence[int], group: Callable[[Any], Hashable]) -> None:
        self._instants, self._group = instants, group
        self._rows: dict[tuple[Hashable, int], Any] = {}
        """By group and instant."""
        self._first: dict[tuple[Hashable, int], int] = {}
        self._last: dict[tuple[Hashable, int], int] = {}

    def take(self, at: int, emitted: Iterable[Element]) -> None:
        """What was emitted at a moment, all of it."""
        before: dict[tuple[Hashable, int], Any] = {}
        for element in emitted:
            if type(element) is Stable:
                continue
            payload, vs, ve = element.payload, element.vs, element.ve  # type: ignore[union-attr]
            vold = element.vold if type(element) is Adjust else vs
            for instant in self._between(min(vold, ve), max(vold, ve)):
                key = self._group(payload), instant
                before.setdefault(key, self._rows.get(key))
                if ve > vold:
                    self._rows[key] = payload
                elif self._rows.get(key) == payload:
                    del self._rows[key]
        for key, row in before.items():
            if (now := self._rows.get(key)) is not None:
                self._first.setdefault(key, at)
            if now != row:
                self._last[key] = at

    def _between(self, start: int, end: int) -> Sequence[int]:
        return self._instants[bisect_left(self._instants, start) : bisect_left(self._instants, end)]

    def waits(self) -> tuple[list[int], list[int]]:
        """From each instant for which a group has a row in the end to the first answer about it,
        and to the right one; 0 if it was there before."""
        known = list(self._rows)
        return tuple(  # type: ignore[return-value]
            [max(0, since[key] - key[1]) for key in known] for since in (self._first, self._last)
        )
