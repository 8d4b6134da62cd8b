"""What is to be looked at again when a stable passes it: a heap of keys by time.

Theory
    A stable makes some of the state final that is held per key. To look at every key at every
    stable would cost as much as there is alive; so each key waits under the first time at which
    something of it goes, and a stable takes out those below it and no others.

    >>> expiry = Expiry()
    >>> expiry.schedule("a", 7); expiry.schedule("b", 5); expiry.schedule("a", 3)
    >>> expiry.schedule("c", 4); expiry.cancel("c")
    >>> list(expiry.before(6)), len(expiry)
    (['a', 'b'], 0)
    >>> list(Expiry.of({"d": 9, "e": 2, "f": INFINITY}).before(INFINITY))
    ['e', 'd']

Invariants
    E1  A key waits once, under the least time it was scheduled for since it last came out.
    E2  The heap is no longer than twice the keys that wait plus a constant.

Cost
    O(log n) per key that is scheduled earlier or comes out, amortised.
"""

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from lmerge_service.elements import INFINITY

__all__ = ("Expiry",)

_SLACK = 64

K = TypeVar("K", bound=Hashable)


class Expiry(Generic[K]):
    """Keys, each with the time when it is due. What is due at INFINITY never comes out."""

    __slots__ = ("_due", "_heap", "_serial")

    def __init__(self) -> None:
        self._due: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._serial = count()  # keys need not be orderable

    @classmethod
    def of(cls, due: dict[K, int]) -> "Expiry[K]":
        """One with all of these scheduled, in their order. Complexity: O(n)."""
        expiry = cls()
        expiry._due = {key: at for key, at in due.items() if at < INFINITY}
        expiry._fill()
        return expiry

    def __len__(self) -> int:
        """How many keys wait."""
        return len(self._due)

    def schedule(self, key: K, due: int) -> None:
        """Has `key` come out when `before` passes `due`, unless it comes out earlier anyway.

        Complexity: O(log n) if it is earlier, else O(1).
        """
        if due < self._due.get(key, INFINITY):
            self._due[key] = due
            heappush(self._heap, (due, next(self._serial), key))
            if len(self._heap) > 2 * len(self._due) + _SLACK:
                self._fill()

    def cancel(self, key: K) -> None:
        """Lets go of a key, if it waits.

        Complexity: O(1), amortised.
        """
        if self._due.pop(key, None) is not None:
            self._compact()

    def due(self, key: K) -> int:
        """When `key` is due; INFINITY if it does not wait."""
        return self._due.get(key, INFINITY)

    def before(self, point: int) -> Iterator[K]:
        """Takes out the keys that are due before `point`, the earliest first."""
        heap = self._heap
        while heap and heap[0][0] < point:
            due, _, key = heappop(heap)
            if self._due.get(key) == due:  # else it was cancelled, or is due at another time
                del self._due[key]
                yield key
        self._compact()

    def clear(self) -> None:
        """Lets go of all keys."""
        self._due.clear()
        self._heap.clear()

    def check(self) -> None:
        """Asserts E1 and E2."""
        waiting = {(due, key) for due, _, key in self._heap}
        assert all((due, key) in waiting for key, due in self._due.items()), "E1: one is lost"
        assert len(self._heap) <= 2 * len(self._due) + _SLACK, "E2: the heap grows"

    def _compact(self) -> None:
        """Lets go of entries that count no more, when they may be many (E2). `schedule`, which is
        called most, does so itself."""
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._fill()

    def _fill(self) -> None:
        self._heap[:] = [*zip(self._due.values(), self._serial, self._due, strict=False)]
        heapify(self._heap)
