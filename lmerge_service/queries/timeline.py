"""Columns sorted by time, cut into parts: a change in the midst of many entries moves few of them.

Theory
    Entry i is the i-th value of each column; the first column has times, strictly rising. A change
    replaces a range of entries by others. Plain lists would do, but a change near the front of a
    long list moves all that is behind it. So there are parts, each a list of columns, with at most
    `LOAD` entries when they are cut. Whoever wants to change a range asks for the one part that
    holds it, with a neighbour on either side; if several do, they are joined first.

    >>> line = Timeline(2, [[1, 5, 9], ["a", "b", "c"]])
    >>> times, names = line.window(5, 7)
    >>> times[1:2], names[1:2] = [4, 6], ["x", "y"]; line.fit(line.window(5, 7))
    >>> list(zip(*line.columns())), len(line)
    ([(1, 'a'), (4, 'x'), (6, 'y'), (9, 'c')], 4)

Invariants
    L1  Times rise, within parts and from part to part; the columns of a part are of one length.
    L2  No part is empty, unless it is the only one; none has more than 2 * `LOAD` entries after
        `fit`.

Cost
    With k entries in the range, a window takes O(log n + k + LOAD) steps, nearly all of them
    moving memory.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, TypeAlias

__all__ = ("Part", "Timeline")

Part: TypeAlias = list[list[Any]]
"""Columns, the first of times."""

LOAD = 512
"""Entries of a part that has been cut; small in tests."""


class Timeline:
    """Sorted columns; see the module's text."""

    __slots__ = ("parts",)

    def __init__(self, width: int, columns: Iterable[list[Any]] | None = None) -> None:
        self.parts: list[Part] = [list(columns) if columns else [[] for _ in range(width)]]
        if columns:
            self.fit(self.parts[0])

    def __len__(self) -> int:
        """How many entries there are."""
        return sum(len(part[0]) for part in self.parts)

    def columns(self) -> Part:
        """All columns, whole."""
        return [[v for part in self.parts for v in part[at]] for at in range(len(self.parts[0]))]

    def window(self, first: int, last: int) -> Part:
        """The part with all entries in [first, last], and the last before and the first behind
        them, if there are such. It may be changed in that range; call `fit` afterwards.

        Complexity: O(1) if there is one part only.
        """
        parts = self.parts
        if len(parts) == 1:
            return parts[0]
        low = max(bisect_left(parts, first, key=_low) - 1, 0)
        high = bisect_right(parts, last, key=_low)
        if high < len(parts) and (not high or parts[high - 1][0][-1] <= last):
            high += 1
        if high - low == 1:
            return parts[low]
        joined = [[v for part in parts[low:high] for v in part[at]] for at in range(len(parts[0]))]
        parts[low:high] = [joined]
        return joined

    def fit(self, part: Part) -> None:
        """Restores L2 for a part that has been changed."""
        size = len(part[0])
        if 0 < size <= 2 * LOAD or (not size and len(self.parts) == 1):
            return
        at = next(i for i, each in enumerate(self.parts) if each is part)
        cut = range(0, size, LOAD)
        self.parts[at : at + 1] = [[column[i : i + LOAD] for column in part] for i in cut]
        if not self.parts:
            self.parts.append([[] for _ in part])

    def fill(self, part: Part) -> None:
        """Has these columns, of which it takes possession, in the place of none."""
        self.parts[0] = part
        self.fit(part)

    def at_most(self, time: int) -> tuple[Part, int] | None:
        """The part and the position of the last entry that is not behind `time`."""
        parts = self.parts
        if len(parts) == 1:
            part = parts[0]
        else:
            part = parts[max(bisect_right(parts, time, key=_low) - 1, 0)]
        at = bisect_right(part[0], time) - 1
        return (part, at) if at >= 0 else None

    def find(self, time: int) -> tuple[Part, int] | None:
        """The part and the position of the entry at `time`."""
        found = self.at_most(time)
        return found if found and found[0][0][found[1]] == time else None

    def behead(self, number: int) -> None:
        """Takes out the first entries."""
        while number and number >= len(self.parts[0][0]) and len(self.parts) > 1:
            number -= len(self.parts.pop(0)[0])
        if number:
            for column in self.parts[0]:
                del column[:number]

    def check(self) -> None:
        """Asserts L1 and L2."""
        times = self.columns()[0]
        assert all(one < two for one, two in pairwise(times)), "L1: disorder"
        for part in self.parts:
            size = len(part[0])
            assert all(len(column) == size for column in part), "L1: columns of unequal length"
            assert size or len(self.parts) == 1, "L2: an empty part"
            assert size <= 2 * LOAD, "L2: a part is too large"


def _low(part: Part) -> int:
    time: int = part[0][0]
    return time
