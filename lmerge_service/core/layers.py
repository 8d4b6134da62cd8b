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

    >>> layers = Layers()
    >>> for x, y in ((1, 8), (2, 6), (4, 9)): emitted = layers.raised("a", x, y)
    >>> for element in emitted: print(element)
    Adjust(payload='a', vs=2, vold=6, ve=8)
    Adjust(payload='a', vs=1, vold=8, ve=9)
    Insert(payload='a', vs=4, ve=6)

    The number of canonical events that start at t is max(0, f(t) - f(t-1)), so starts come and go
    at x and at y only. All other events that change keep their start, and have both their old and
    their new end in [x, …). So the elements are legal behind stable(c) if x >= c; and each adjust
    is of an event that stood there before the change, so their order doesn't matter.

Invariants
    L1  Canonical events are nested or apart, and none ends where another starts.
    L2  Each is held once by its end and once by its start. What ended before c goes by `forget`.

Cost
    O(log n + canonical boundaries between x and y), besides moving memory in short sorted lists.
    Taking an interval out of the midst of a longer one looks further, to where that one ends.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterator
from typing import TypeAlias

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert

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
        """What changes when f rises by 1 on [x, y); adjusts first, then inserts.

        Complexity: see Cost.
        """
        by_end = self.by_end
        if not by_end or by_end[-1][0] < x:  # as most are: apart from all there is
            by_end.append((y, x))
            self.by_start.append((x, y))
            return [Insert(payload, x, y)]
        return self._change(payload, *self._raised(x, y))

    def lowered(self, payload: Hashable, x: int, y: int) -> list[Element]:
        """The same when f falls by 1 on [x, y), where it is at least 1."""
        return self._change(payload, *self._lowered(x, y))

    def _change(
        self, payload: Hashable, gone: list[Interval], come: list[Interval]
    ) -> list[Element]:
        """The elements of the change it makes: per start, ends that go and come pair as adjusts."""
        self._steps += len(gone) + len(come)
        adjusts: list[Element] = []
        inserts: list[Element] = []
        for start, old, new in _paired(gone, come):
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
        return adjusts + inserts

    def _raised(self, x: int, y: int) -> tuple[list[Interval], list[Interval]]:
        """The canonical events that go and that come when f rises by 1 on [x, y)."""
        gone: list[Interval] = []
        come: list[Interval] = []
        start, end = x, y
        if (before := _first(self.by_end, x)) is not None:  # it ends at x no more
            start = before
            gone.append((start, x))
        for w in self._ends(x, y):
            outer = _first(self.by_end, w)
            assert outer is not None
            if outer < x:
                gone.append((outer, w))
                come.append((start, w))
                start = outer
        if (behind := _last(self.by_start, y)) is not None:  # it starts at y no more
            end = behind
            gone.append((y, end))
        for u in self._starts(x, y):
            outer = _last(self.by_start, u)
            assert outer is not None
            if outer > y:
                gone.append((u, outer))
                come.append((u, end))
                end = outer
        come.append((start, end))
        return gone, come

    def _lowered(self, x: int, y: int) -> tuple[list[Interval], list[Interval]]:
        """The same when f falls by 1 on [x, y), where it is at least 1."""
        gone: list[Interval] = []
        come: list[Interval] = []
        end = x
        for w in self._ends(x, y):
            inner = _at_most(self.by_end, w, x)
            if inner is not None:
                gone.append((inner, w))
                come.append((inner, end))
                end = w
        whole_start, whole_end = self._innermost_over(x, y)
        gone.append((whole_start, whole_end))
        come.append((whole_start, end))
        start = y
        for u in self._starts(x, y):
            inner = _at_least(self.by_start, u, y)
            if inner is not None:
                gone.append((u, inner))
                come.append((start, inner))
                start = u
        come.append((start, whole_end))
        return gone, [(start, end) for start, end in come if start < end]

    def _innermost_over(self, x: int, y: int) -> Interval:
        for z in self._ends(y - 1, INFINITY + 1):
            start = _at_most(self.by_end, z, x)
            if start is not None:
                return start, z
        raise AssertionError(f"f falls on [{x}, {y}) where no canonical event is")

    def _ends(self, x: int, y: int) -> Iterator[int]:
        """The ends of canonical events strictly between x and y, rising, each once."""
        at, keys = bisect_left(self.by_end, (x + 1, START)), self.by_end
        while at < len(keys) and keys[at][0] < y:
            self._steps += 1
            yield keys[at][0]
            at = bisect_left(keys, (keys[at][0] + 1, START), at)

    def _starts(self, x: int, y: int) -> Iterator[int]:
        """The starts of canonical events strictly between x and y, falling, each once."""
        at, keys = bisect_left(self.by_start, (y, START)) - 1, self.by_start
        while at >= 0 and keys[at][0] > x:
            self._steps += 1
            yield keys[at][0]
            at = bisect_left(keys, (keys[at][0], START), 0, at) - 1

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


def _paired(
    gone: list[Interval], come: list[Interval]
) -> Iterator[tuple[int, list[int], list[int]]]:
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
    for start, (old, new) in ends.items():
        yield start, old, new


# Sorted lists of pairs


def discard(pairs: list[Interval], pair: Interval) -> None:
    """Removes a pair that is there."""
    at = bisect_left(pairs, pair)
    assert pairs[at] == pair, f"{pair} is not there"
    del pairs[at]


def _first(pairs: list[Interval], key: int) -> int | None:
    """The least partner of a key."""
    return _at_least(pairs, key, START)


def _last(pairs: list[Interval], key: int) -> int | None:
    """The greatest partner of a key."""
    return _at_most(pairs, key, INFINITY)


def _at_least(pairs: list[Interval], key: int, least: int) -> int | None:
    at = bisect_left(pairs, (key, least))
    return pairs[at][1] if at < len(pairs) and pairs[at][0] == key else None


def _at_most(pairs: list[Interval], key: int, most: int) -> int | None:
    at = bisect_right(pairs, (key, most)) - 1
    return pairs[at][1] if at >= 0 and pairs[at][0] == key else None
