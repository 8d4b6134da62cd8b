"""In which partition the keys of a replica are, so that a key that moves is noticed.

Theory
    A table's decoder holds the rows of its partition. Where a key moves to another one (the topic
    got more partitions, or is not partitioned by the key) the row that it has in the first never
    ends: the change that ends it has no effect in the second. Partitions are read in any order, so
    the key's first records may well be read last. So a key has a *home*: the partition in which
    it has a row, or had a change at a time that another partition has not passed yet. A change in
    another partition than its home is no change of that partition's table, and cannot be merged.

    What every partition has passed need not be remembered, since a record from before it is `late`
    wherever it comes; nor what the output has passed, since that is final.

    >>> homes, later = Homes(), [RowChange(b"k", b"A", 9)]
    >>> homes.settle(0, [RowChange(b"k", None, 7)], 7), homes.elsewhere(1, later, {})
    (None, (b'k', 0))
    >>> homes.forget(8), homes.elsewhere(1, later, {})
    (None, None)

Invariants
    H1  Remembered are keys without a row, or whose row ends, as long as a partition may still
        bring something from before that; live rows are the tables' own.

Cost
    One look into each other partition's table for each change.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lmerge_service.elements import INFINITY
from lmerge_service.formats.dialects.tables import RowChange

__all__ = ("Holder", "Homes")


class Holder(Protocol):
    """What is needed of a partition's decoder."""

    def holds(self, key: bytes) -> bool:
        """It has a row of this key."""
        ...


class Homes:
    """Of one replica in one incarnation; see the module's text."""

    def __init__(self) -> None:
        self._left: dict[bytes, tuple[int, int]] = {}
        """key -> the partition of its last change without a lasting row, and that change's time."""
        self._due: list[tuple[int, bytes]] = []

    def elsewhere(
        self, partition: int, changes: Sequence[RowChange], holders: Mapping[int, Holder]
    ) -> tuple[bytes, int] | None:
        """The first key of these changes whose home is another partition, and which that is."""
        for change in changes:
            home, _ = self._left.get(change.key, (partition, 0))
            if home != partition:
                return change.key, home
            for number, holder in holders.items():
                if number != partition and holder.holds(change.key):
                    return change.key, number
        return None

    def settle(self, partition: int, changes: Sequence[RowChange], latest: int) -> None:
        """Remembers changes that were made, `latest` being the latest time that the partition has
        seen, where no table will."""
        for key, row, _, ve in changes:
            if row is None or ve < INFINITY:
                until = latest if row is None else max(ve, latest)
                self._left[key] = partition, until
                heapq.heappush(self._due, (until, key))
            else:
                self._left.pop(key, None)

    def forget(self, c: int) -> None:
        """Everything before c was passed by all partitions, or by the output."""
        while self._due and self._due[0][0] < c:
            until, key = heapq.heappop(self._due)
            if key in self._left and self._left[key][1] == until:
                del self._left[key]

    def saved(self) -> Any:
        """The state as plain values, which `load` takes: (key, partition, until) each."""
        return [(key, *left) for key, left in self._left.items()]

    def load(self, saved: Any) -> None:
        """Replaces the state by what `saved` returned."""
        self._left = {key: (partition, until) for key, partition, until in saved}
        self._due = [(until, key) for key, (_, until) in self._left.items()]
        heapq.heapify(self._due)

    def check(self) -> None:
        """Asserts H1, as far as it can be checked."""
        due = set(self._due)
        assert all((until, key) in due for key, (_, until) in self._left.items()), (
            "H1: a key is remembered for ever"
        )
