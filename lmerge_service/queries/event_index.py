"""Events by lifetime: which overlap an interval, which start in one, which ended before a point.

Theory
    Events of equal lifetime are held together, payload by payload; the lifetimes are in two sorted
    lists, by start and by end. Those that overlap [x, y) start before y and end behind x; whichever
    of these two conditions fewer meet is read.

    >>> index = EventIndex()
    >>> for vs, ve in ((1, 4), (2, 9), (6, 8)): index.hold("a", vs, ve)
    >>> index.overlapping(3, 5), index.starting(2, 7), index.forget(8), list(index)
    ([(1, 4), (2, 9)], [(2, 9), (6, 8)], 1, [('a', 2, 9, 1), ('a', 6, 8, 1)])

Invariants
    V1  Each lifetime that is held is once in each list, and has a payload.
    V2  `len` is the number of events, each counted as often as it is there.

Cost
    O(log n), besides moving memory in sorted lists, and O(1) per lifetime found.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterator
from typing import Any

from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY

__all__ = ("EventIndex",)

Lifetime = tuple[int, int]


class EventIndex:
    """A multiset of events."""

    __slots__ = ("_count", "by_end", "by_start", "held")

    def __init__(self) -> None:
        self.held: dict[Lifetime, dict[Hashable, int]] = {}
        """(vs, ve) to payloads, each as often as it is there."""
        self.by_start: list[Lifetime] = []
        """(vs, ve), sorted, each once."""
        self.by_end: list[Lifetime] = []
        """(ve, vs), sorted, each once."""
        self._count = 0

    def __len__(self) -> int:
        """How many events there are."""
        return self._count

    def __iter__(self) -> Iterator[tuple[Hashable, int, int, int]]:
        """(payload, vs, ve, how often), in order of lifetimes."""
        for vs, ve in self.by_start:
            for payload, times in self.held[vs, ve].items():
                yield payload, vs, ve, times

    def hold(self, payload: Hashable, vs: int, ve: int, times: int = 1) -> None:
        """Adds an event."""
        payloads = self.held.get((vs, ve))
        if payloads is None:
            payloads = self.held[vs, ve] = {}
            insort(self.by_start, (vs, ve))
            insort(self.by_end, (ve, vs))
        payloads[payload] = payloads.get(payload, 0) + times
        self._count += times

    def release(self, payload: Hashable, vs: int, ve: int) -> bool:
        """Takes an event out once; False if it is not there."""
        payloads = self.held.get((vs, ve))
        if payloads is None or payload not in payloads:
            return False
        if payloads[payload] > 1:
            payloads[payload] -= 1
        else:
            del payloads[payload]
        if not payloads:
            del self.held[vs, ve]
            _discard(self.by_start, (vs, ve))
            _discard(self.by_end, (ve, vs))
        self._count -= 1
        return True

    def overlapping(self, x: int, y: int) -> list[Lifetime]:
        """(vs, ve) of all events that overlap [x, y), and perhaps of others: what starts before y,
        or what ends behind x. Complexity: O(log n + the fewer of these)."""
        before = bisect_left(self.by_start, (y,))
        behind = bisect_left(self.by_end, (x + 1,))
        if before <= len(self.by_end) - behind:
            return self.by_start[:before]
        return [(vs, ve) for ve, vs in self.by_end[behind:]]

    def starting(self, x: int, y: int) -> list[Lifetime]:
        """(vs, ve) of the events with x <= vs < y."""
        at = bisect_left(self.by_start, (x,))
        return self.by_start[at : bisect_left(self.by_start, (y,), at)]

    def due(self) -> int:
        """The first end; INFINITY if there is none."""
        return self.by_end[0][0] if self.by_end else INFINITY

    def forget(self, point: int) -> int:
        """Drops the events that ended before `point`; returns how many those were."""
        final = bisect_left(self.by_end, (point,))
        dropped = self.by_end[:final]
        del self.by_end[:final]
        for ve, vs in dropped:
            _discard(self.by_start, (vs, ve))
        return self._uncounted([(vs, ve) for ve, vs in dropped])

    def forget_starts(self, point: int) -> int:
        """Drops the events that started before `point`; returns how many those were."""
        final = bisect_left(self.by_start, (point,))
        dropped = self.by_start[:final]
        del self.by_start[:final]
        for vs, ve in dropped:
            _discard(self.by_end, (ve, vs))
        return self._uncounted(dropped)

    def _uncounted(self, dropped: list[Lifetime]) -> int:
        gone = sum([sum(self.held.pop(lifetime).values()) for lifetime in dropped])
        self._count -= gone
        return gone

    def state(self) -> list[Any]:
        """The events, of what msgpack can carry.

        Raises:
            StateError: a payload is of a kind that would not come back as it was.
        """
        return [
            [vs, ve, [[portable(p), n] for p, n in self.held[vs, ve].items()]]
            for vs, ve in self.by_start
        ]

    def load(self, state: Any) -> None:
        """Takes over what `state` gave, in place of its own; it is sorted, and stays so."""
        held: dict[Lifetime, dict[Hashable, int]] = {}
        count = 0
        for vs, ve, saved in state:
            payloads = held[vs, ve] = {}
            for payload, times in saved:
                payloads[hashable(payload)] = times
                count += times
        self.held, self._count = held, count
        self.by_start = [*held]
        self.by_end = [(ve, vs) for vs, ve in held]
        self.by_end.sort()

    def check(self) -> None:
        """Asserts V1 and V2."""
        assert self.by_start == sorted(self.held), "V1: by_start has other lifetimes"
        assert self.by_end == sorted((ve, vs) for vs, ve in self.held), "V1: by_end has others"
        assert all(self.held.values()), "V1: a lifetime has no payload"
        assert all(times > 0 for _, _, _, times in self), "V1: a payload is there no more"
        assert self._count == sum(times for _, _, _, times in self), "V2: miscounted"


def _discard(lifetimes: list[Lifetime], lifetime: Lifetime) -> None:
    del lifetimes[bisect_right(lifetimes, lifetime) - 1]
