"""The canonical events of one payload: the maximal intervals of the layers of a step function.

Theory
    Let f(t) be how often a payload is valid at t. Layer k is {t : f(t) >= k}, and the canonical
    events are the maximal intervals of the layers: nested or apart, and none ends where another
    starts. They depend on f alone. When f rises by 1 on [x, y), the layers move up by one there: a
    layer that covered [x, y) stays, the next one covers it now, and an event across x takes over
    the end of the event around it (across y: its start):

        f + 1 on [4, 9)     ├──────────┤  1..8      becomes    ├─────────────┤  1..9
                              ├────┤      2..6                   ├──────┤       2..8
                                                                    ├─┤         4..6

    When it falls by 1, the same happens backwards.

    A change of f on [x, y) is swept once, with a stack of the starts of the layers that are open.
    Where f rises layers are opened, where it falls the innermost are closed. What is beneath the
    stack opened before x, and is closed in the order in which it was, the latest start first.
    Behind y old and new f are equal, so there the old and the new stack go down together: of the
    layers that are open at y each ends where it did, and only its start may be another.

    >>> layers = Layers()
    >>> for x, y in ((1, 8), (2, 6), (4, 9)): emitted = layers.raised("a", x, y)
    >>> for element in emitted: print(element)
    Adjust(payload='a', vs=2, vold=6, ve=8)
    Adjust(payload='a', vs=1, vold=8, ve=9)
    Insert(payload='a', vs=4, ve=6)
    >>> layers.changed("a", [(3, -2), (6, 1), (7, 1)])
    [Adjust(payload='a', vs=4, vold=6, ve=9), Adjust(payload='a', vs=1, vold=9, ve=3), \
Adjust(payload='a', vs=2, vold=8, ve=3), Insert(payload='a', vs=7, ve=8)]

    Let f change on [x, y) by 1. The number of canonical events that start at t is
    max(0, f(t) - f(t-1)), so starts come and go at x and at y only. All other events that change
    keep their start, and have both their old and their new end in [x, …). So the elements are legal
    behind stable(c) if x >= c; and each adjust is of an event that stood there before the change,
    so their order doesn't matter.

Invariants
    L1  Canonical events are nested or apart, and none ends where another starts.
    L2  Each is held once by its end and once by its start. What ended before c goes by `forget`.

Cost
    O(log n + canonical boundaries between x and y), besides moving memory in short sorted lists.
    Taking an interval out of the midst of a longer one looks further, to where that one ends.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from typing import TypeAlias

from lmerge_service.elements import START, Adjust, Element, Insert

__all__ = ("Interval", "Layers", "discard")

Interval: TypeAlias = tuple[int, int]
"""(start, end), or (end, start) in a list by end."""


class Layers:
    """The canonical events that are not forgotten."""

    __slots__ = ("_steps", "by_end", "by_start")

    def __init__(self) -> None:
        self.by_end: list[Interval] = []
        """(end, start), sorted: of equal ends the outermost is first."""
        self.by_start: list[Interval] = []
        """(start, end) of the same, sorted: of equal starts the outermost is last."""
        self._steps = 0

    def __len__(self) -> int:
        """How many canonical events there are."""
        return len(self.by_end)

    def raised(self, payload: Hashable, x: int, y: int) -> list[Element]:
        """What changes when f rises by 1 on [x, y); adjusts first, then inserts."""
        return self.changed(payload, ((x, 1), (y, -1)))

    def lowered(self, payload: Hashable, x: int, y: int) -> list[Element]:
        """The same when f falls by 1 on [x, y), where it is at least 1."""
        return self.changed(payload, ((x, -1), (y, 1)))

    def changed(self, payload: Hashable, steps: Sequence[tuple[int, int]]) -> list[Element]:
        """What changes when f changes by other steps than it does: each is (t, by), in order of t,
        and their sum is 0 behind the last.

        Complexity: see Cost.
        """
        x, y = steps[0][0], steps[-1][0]
        if len(steps) == 2 and steps[0][1] == 1:
            by_end, by_start = self.by_end, self.by_start
            ends, starts = bisect_left(by_end, (x,)), bisect_left(by_start, (x,))
            if (ends == len(by_end) or by_end[ends][0] > y) and (
                starts == len(by_start) or by_start[starts][0] > y
            ):  # nothing starts or ends in [x, y], so it is inside of, or apart from, all there is
                by_end.insert(ends, (y, x))
                by_start.insert(starts, (x, y))
                return [Insert(payload, x, y)]
        return self._replace(payload, *self._swept(steps, x, y))

    def _swept(
        self, steps: Sequence[tuple[int, int]], x: int, y: int
    ) -> tuple[list[Interval], list[Interval]]:
        """The canonical events that go and those that come, some of which may be the same."""
        closed = _between(self.by_end, x, y)
        begun = _between(self.by_start, x, y)
        slope = dict(steps)
        for end, _ in closed:
            slope[end] = slope.get(end, 0) - 1
        for start, _ in begun:
            slope[start] = slope.get(start, 0) + 1
        beneath = sorted([start for _, start in closed if start < x])
        stack: list[int] = []
        around: list[Interval] = []  # what ends behind y, and is closed before y now
        further = self._around(x, y)
        come: list[Interval] = []
        for t, by in sorted(slope.items()):
            if by > 0:
                stack += [t] * by
                continue
            for _ in range(-by):
                if stack:
                    start = stack.pop()
                elif beneath:
                    start = beneath.pop()
                else:
                    around.append(next(further))
                    start = around[-1][0]
                come.append((start, t))
        gone = [(start, end) for end, start in closed]
        open_before = [*reversed(around), *_outermost_first(begun, y)]
        for (was, end), start in zip(open_before, [*beneath, *stack], strict=True):
            gone.append((was, end))
            come.append((start, end))
        self._steps += len(slope)
        return gone, come

    def _around(self, x: int, y: int) -> Iterator[Interval]:
        """The canonical events that start before x and end behind y, the innermost first."""
        by_end = self.by_end
        at = bisect_left(by_end, (y + 1,))
        while at < len(by_end):
            behind = bisect_left(by_end, (by_end[at][0] + 1,), at)
            for end, start in reversed(by_end[at:behind]):
                self._steps += 1
                if start < x:
                    yield start, end
            at = behind
        raise AssertionError(f"f falls on [{x}, {y}) where no canonical event is")

    def _replace(
        self, payload: Hashable, gone: list[Interval], come: list[Interval]
    ) -> list[Element]:
        """The elements of the change it makes: per start, ends that go and come pair as adjusts."""
        adjusts: list[Element] = []
        inserts: list[Element] = []
        for start, (old, new) in _paired(gone, come).items():
            for end in old:
                discard(self.by_end, (end, start))
                discard(self.by_start, (start, end))
            for end in new:
                insort(self.by_end, (end, start))
                insort(self.by_start, (start, end))
            both = min(len(old), len(new))
            adjusts += [Adjust(payload, start, *ends) for ends in zip(old, new, strict=False)]
            adjusts += [Adjust(payload, start, end, start) for end in old[both:]]
            inserts += [Insert(payload, start, end) for end in new[both:]]
            self._steps += len(old) + len(new)
        return adjusts + inserts

    def take_steps(self) -> int:
        """Boundaries looked at, and events changed, since the last call."""
        steps, self._steps = self._steps, 0
        return steps

    def forget(self, c: int) -> None:
        """Drops what ended before c."""
        final = bisect_left(self.by_end, (c, START))
        for end, start in self.by_end[:final]:
            discard(self.by_start, (start, end))
        del self.by_end[:final]

    def check(self) -> None:
        """Asserts L1 and L2."""
        assert self.by_end == sorted(self.by_end), "L2: by_end is sorted"
        assert self.by_start == sorted((s, e) for e, s in self.by_end), "L2: by_start is the same"
        starts = {start for _, start in self.by_end}
        assert starts.isdisjoint(end for end, _ in self.by_end), "L1: one ends where one starts"
        for end, start in self.by_end:
            for other_end, other in self.by_end:
                assert not start < other < end < other_end, "L1: neither nested nor apart"


def _paired(gone: list[Interval], come: list[Interval]) -> dict[int, tuple[list[int], list[int]]]:
    """Per start the ends that go and those that come, without those that do both."""
    ends: dict[int, tuple[list[int], list[int]]] = {}
    for start, end in gone:
        ends.setdefault(start, ([], []))[0].append(end)
    for start, end in come:
        old, new = ends.setdefault(start, ([], []))
        if end in old:
            old.remove(end)
        else:
            new.append(end)
    return ends


def _outermost_first(begun: list[Interval], y: int) -> list[Interval]:
    """Those that end behind y."""
    found = [(start, end) for start, end in begun if end > y]
    if len(found) > 1:
        found.sort(key=lambda interval: (interval[0], -interval[1]))
    return found


# Sorted lists of pairs


def discard(pairs: list[Interval], pair: Interval) -> None:
    """Removes a pair that is there."""
    at = bisect_left(pairs, pair)
    assert pairs[at] == pair, f"{pair} is not there"
    del pairs[at]


def _between(pairs: list[Interval], x: int, y: int) -> list[Interval]:
    """Those whose first part is in [x, y]."""
    at = bisect_left(pairs, (x,))
    return pairs[at : bisect_left(pairs, (y + 1,), at)]
