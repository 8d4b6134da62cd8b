"""Events that are due at some time, and times of which the least holds a stable point."""

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

from lmerge_service.core.expiry import Expiry
from lmerge_service.elements import INFINITY

__all__ = ("Holding", "Scheduled")

E = TypeVar("E", bound=Hashable)


class Scheduled(Generic[E]):
    """A multiset of events, each of which is due at some time. Those that come out together come in
    the order in which they came in, so that what is restored goes on alike."""

    __slots__ = ("_due", "_events", "_serial")

    def __init__(self) -> None:
        self._events: dict[E, tuple[int, int]] = {}  # times, serial
        self._due: Expiry[E] = Expiry()
        self._serial = 0

    def __len__(self) -> int:
        return len(self._events)

    def __contains__(self, event: object) -> bool:
        return event in self._events

    def __iter__(self) -> Iterator[E]:
        return iter(sorted(self._events, key=self._order))

    def times(self, event: E) -> int:
        """How often it is there."""
        return self._events.get(event, (0, 0))[0]

    def due(self, event: E) -> int:
        """When it is due; INFINITY if it is not there, or has come out."""
        return self._due.due(event)

    def set(self, event: E, times: int, due: int) -> None:
        """Has it be there so often, due at `due`."""
        self._due.cancel(event)
        if not times:
            self._events.pop(event, None)
            return
        held = self._events.get(event)
        if held is None:
            self._serial += 1
        self._events[event] = (times, self._serial if held is None else held[1])
        self._due.schedule(event, due)

    def entry(self, event: E) -> tuple[int, int]:
        """How often it is there, and its place in the order; what `put_back` takes."""
        return self._events.get(event, (0, 0))

    def put_back(self, event: E, entry: tuple[int, int], due: int) -> None:
        """Has it be there as it was, due at `due`."""
        self.set(event, entry[0], due)
        if entry[0]:
            self._events[event] = entry

    def before(self, point: int) -> list[E]:
        """Those due before `point`; they stay, and are due no more until they are set again."""
        return sorted(self._due.before(point), key=self._order)

    def clear(self) -> None:
        self._events.clear()
        self._due.clear()

    def _order(self, event: E) -> int:
        return self._events[event][1]


class Holding:
    """A multiset of times of which the least is wanted: those that hold a stable point.

    Complexity: O(log n) amortised.
    """

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._heap: list[int] = []

    def move(self, t: int, by: int) -> None:
        """Adds a time as many times, or removes it."""
        if t not in self._times:
            self._times[t] = 0
            heappush(self._heap, t)
        self._times[t] += by

    def least(self) -> int:
        """The least time; INFINITY if there is none."""
        while self._heap and not self._times[self._heap[0]]:
            del self._times[heappop(self._heap)]
        return self._heap[0] if self._heap else INFINITY
