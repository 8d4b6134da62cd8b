"""How many events are valid at each time, from where a stable point stands on.

Theory
    At t as many events are valid as have started by t less those that have ended by t, so two
    sorted lists will do, and need not match ends to starts. What ended before c
    goes with as many of the first starts: these were before c, too, so the number at t >= c is
    still right.

    Where none is valid is found without looking at every boundary: of the n events that have
    started by some time, one is valid until n have ended, and there the search goes on.

    >>> events = Multiplicity()
    >>> for vs, ve in ((1, 6), (2, 5), (8, 9)): events.add(vs, ve)
    >>> events.valid(3), events.uncovered(0, 20), events.covered(3, 20)
    (2, ([(0, 1), (6, 8), (9, 20)], 6), ([(3, 6), (8, 9)], 4))

Invariants
    M1  There are as many starts as ends, each sorted, and each end is behind its start.
    M2  The number is right at every time that has not been forgotten.

Cost
    O(log n), besides moving memory in sorted lists; see the methods.
"""

from bisect import bisect_left, bisect_right, insort

from lmerge_service.elements import INFINITY

__all__ = ("Multiplicity", "Pieces")

Pieces = list[tuple[int, int]]
"""Intervals [x, y), rising, that neither overlap nor touch."""


class Multiplicity:
    """The starts and the ends of a multiset of events."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def __len__(self) -> int:
        """How many events are held."""
        return len(self.ends)

    def valid(self, t: int) -> int:
        """How many events are valid at t. Complexity: O(log n)."""
        return bisect_right(self.starts, t) - bisect_right(self.ends, t)

    def add(self, vs: int, ve: int) -> None:
        """Adds an event."""
        insort(self.starts, vs)
        insort(self.ends, ve)

    def move(self, vs: int, vold: int, ve: int) -> bool:
        """Moves the end of an event, or removes it if ve = vs; False if it can't be there."""
        starts, ends = self.starts, self.ends
        end = bisect_left(ends, vold)
        if end == len(ends) or ends[end] != vold:
            return False
        if ve == vs:
            start = bisect_left(starts, vs)
            if start == len(starts) or starts[start] != vs:
                return False
            del starts[start]
        del ends[end]
        if ve > vs:
            insort(ends, ve)
        return True

    def due(self) -> int:
        """The first end; INFINITY if there is none."""
        return self.ends[0] if self.ends else INFINITY

    def forget(self, point: int) -> int:
        """Drops the events that ended before `point`; returns how many those were."""
        final = bisect_left(self.ends, point)
        del self.starts[:final], self.ends[:final]
        return final

    def uncovered(self, x: int, y: int) -> tuple[Pieces, int]:
        """The parts of [x, y) in which no event is valid, and the steps that took.

        Complexity: O(log n) per step; one step leads past all events that have started.
        """
        starts, ends = self.starts, self.ends
        pieces: Pieces = []
        steps, at = 0, x
        while at < y:
            steps += 1
            started = bisect_right(starts, at)
            if started > bisect_right(ends, at):
                at = ends[started - 1]
            else:
                until = min(starts[started], y) if started < len(starts) else y
                pieces.append((at, until))
                at = until
        return pieces, steps

    def covered(self, x: int, y: int) -> tuple[Pieces, int]:
        """The parts of [x, y) in which an event is valid, and the steps that took."""
        pieces: Pieces = []
        gaps, steps = self.uncovered(x, y)
        for begin, end in gaps:
            if x < begin:
                pieces.append((x, begin))
            x = end
        if x < y:
            pieces.append((x, y))
        return pieces, steps

    def check(self) -> None:
        """Asserts M1."""
        assert len(self.starts) == len(self.ends), "M1: other starts than ends"
        assert self.starts == sorted(self.starts), "M1: starts are out of order"
        assert self.ends == sorted(self.ends), "M1: ends are out of order"
        pairs = zip(self.starts, self.ends, strict=True)
        assert all(start < end for start, end in pairs), "M1: an end is before its start"
