"""Last rows: the events of the last n times at which one started, per partition.

Meaning
    Each event keeps its start, and ends at the n-th next distinct start of its partition, never if
    there are fewer. So n = 1 makes samples into "until the next". Events that start together are
    one row, so that ties don't matter. Where input events end does not matter; what is removed is
    no row.
State
    Per partition the distinct starts, and the payloads of each.
Stable
    The input's: an end that may still move is at c, behind it or at INFINITY.
Retention
    Events that start at c or behind it, and those of the n last distinct starts before it, per
    partition.  need(T) = -inf: the row that a start ends may be of any age, so a plan with it
    resumes from its state only.
Cost
    O(n + log starts) per element, n adjusts being what a start in the midst changes; a batch sweeps
    the starts that it changes, and the n before each, once. A stable costs what it makes final.

    >>> from lmerge_service.elements import Stable
    >>> until_next = LastRows(1, by=lambda sample: sample[0])
    >>> until_next.process_batch([Insert(("x", 5), 1, 2), Insert(("x", 7), 4, 5), Stable(3)])
    [Insert(payload=('x', 5), vs=1, ve=4), \
Insert(payload=('x', 7), vs=4, ve=9223372036854775807), Stable(vc=3)]
    >>> until_next.process(Insert(("x", 6), 3, 4))
    [Adjust(payload=('x', 5), vs=1, vold=4, ve=3), Insert(payload=('x', 6), vs=3, ve=4)]
    >>> until_next.process(Adjust(("x", 7), 4, 5, 4)) == [
    ...     Adjust(("x", 7), 4, INFINITY, 4), Adjust(("x", 6), 3, 4, INFINITY)]
    True
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.expiry import Expiry
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, Adjust, Insert
from lmerge_service.queries.operators.protocol import Changes
from lmerge_service.queries.operators.reversible import Reversible

__all__ = ("LastRows",)


class LastRows(Reversible):
    """Ends each event at the `n`-th next distinct start, of those of equal `by` if that is given: a
    pure function of the payload.

    Raises:
        ValueError: n is less than 1.
    """

    __slots__ = ("_by", "_changing", "_expiry", "_live", "_partitions", "n")

    def __init__(self, n: int, by: Callable[[Any], Hashable] | None = None) -> None:
        if n < 1:
            raise ValueError(f"the last {n} rows are none")
        super().__init__()
        self.n = n
        self._by = by
        self._partitions: dict[Hashable, _Partition] = {}
        self._changing: dict[Hashable, _Partition] = {}
        self._expiry: Expiry[Hashable] = Expiry()
        self._live = 0

    def __len__(self) -> int:
        """How many events are held."""
        return self._live

    def check(self) -> None:
        """Asserts the invariants of the state."""
        super().check()
        self._expiry.check()
        assert not self._changing, "something is not settled"
        partitions = self._partitions
        assert self._live == sum(map(len, partitions.values())), "the count is wrong"
        for key, partition in partitions.items():
            assert len(partition), f"{key!r} holds nothing"
            due = partition.due(self.n)
            assert self.stable <= due, f"{key!r} holds what is final"
            assert self._expiry.due(key) <= due, f"{key!r} is forgotten too late"
            partition.check()

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        key = self._by(element.payload) if self._by else ()
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._partitions[key] = _Partition()
        partition.add(element.payload, element.vs, 1)
        self._changing[key] = partition
        self._live += 1

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        payload, vs = element.payload, element.vs
        key = self._by(payload) if self._by else ()
        partition = self._partitions.get(key)
        if partition is None or payload not in partition.rows.get(vs, ()):
            # one that has an end no more may still be adjusted
            if element.ve == vs or vs >= self.stable:
                self._refuse(port, BreachKind.UNKNOWN_EVENT, element)
        elif element.ve == vs:
            partition.add(payload, vs, -1)
            self._changing[key] = partition
            self._live -= 1

    def _settle(self, changes: Changes) -> None:
        for key, partition in self._changing.items():
            self.touched += partition.settle(self.n, changes)
            if len(partition):
                self._expiry.schedule(key, partition.due(self.n))
            else:
                del self._partitions[key]
                self._expiry.cancel(key)
        self._changing.clear()

    def _advance(self, changes: Changes) -> int:
        point = self.stables[0]
        if point == INFINITY:
            self._partitions.clear()
            self._expiry.clear()
            self._live = 0
            return point
        for key in self._expiry.before(point):
            partition = self._partitions[key]
            gone = partition.forget(point, self.n)
            self._live -= gone
            self.touched += 1 + gone
            self._expiry.schedule(key, partition.due(self.n))
        return point

    def _state(self) -> Any:
        return [
            [portable(key), [[vs, _saved(partition.rows[vs])] for vs in partition.starts]]
            for key, partition in self._partitions.items()
        ]

    def _load(self, state: Any) -> None:
        self._partitions, self._expiry = {}, Expiry()
        for saved, rows in state:
            key = hashable(saved)
            partition = self._partitions[key] = _Partition()
            for vs, payloads in rows:
                partition.starts.append(vs)
                partition.rows[vs] = {hashable(payload): times for payload, times in payloads}
            partition.count = sum(n for row in partition.rows.values() for n in row.values())
            self._expiry.schedule(key, partition.due(self.n))
        self._live = sum(map(len, self._partitions.values()))


class _Partition:
    """The rows of one partition, and what of them has changed since the last batch."""

    __slots__ = ("changes", "count", "rows", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        """The distinct starts, sorted."""
        self.rows: dict[int, dict[Hashable, int]] = {}
        """By start the payloads, each as often as it is there."""
        self.changes: dict[int, dict[Hashable, int]] = {}
        """By start how much oftener, or less often, a payload is there than it was."""
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def add(self, payload: Hashable, vs: int, by: int) -> None:
        """Counts an event once more or less."""
        row = self.rows.get(vs)
        if row is None:
            row = self.rows[vs] = {}
            insort(self.starts, vs)
        _add(row, payload, by)
        if not row:
            del self.rows[vs], self.starts[bisect_left(self.starts, vs)]
        _add(self.changes.setdefault(vs, {}), payload, by)
        self.count += by

    def settle(self, n: int, changes: Changes) -> int:
        """Appends what the changes since the last call change in the output; returns how many
        starts were looked at."""
        came, gone, looked = set(), set(), 0
        for vs, change in self.changes.items():
            now = self.rows.get(vs, {})
            before = sum(now.values()) - sum(change.values())
            if before and not now:
                gone.add(vs)
            elif now and not before:
                came.add(vs)
        moved: set[int] = set()
        for low, high in self._runs(sorted(came | gone), n):
            new = self._around(low, high, n)
            old = sorted({*new, *(vs for vs in gone if low <= vs <= high)} - came)
            looked += len(new)
            for vs in sorted({*new, *old}):
                if vs <= high:
                    moved.add(vs)
                    self._compare(vs, _nth(old, vs, n), _nth(new, vs, n), changes)
        for vs in sorted(self.changes.keys() - moved):
            end = _nth(self._around(vs, vs, n), vs, n)
            self._compare(vs, end, end, changes)
        looked += len(self.changes)
        self.changes.clear()
        return looked

    def _runs(self, times: list[int], n: int) -> Iterator[tuple[int, int]]:
        """The first and last of what lies so near together that it changes the same rows."""
        starts = self.starts
        low = high = 0
        for at, vs in enumerate(times):
            if not at:
                low = vs
            elif bisect_left(starts, vs) - bisect_right(starts, high) >= n:
                yield low, high
                low = vs
            high = vs
        if times:
            yield low, high

    def _around(self, low: int, high: int, n: int) -> list[int]:
        """The starts from the n before `low` to the n behind `high`."""
        before = max(bisect_left(self.starts, low) - n, 0)
        return self.starts[before : bisect_right(self.starts, high) + n]

    def _compare(self, vs: int, was: int, end: int, changes: Changes) -> None:
        """Appends the elements for the payloads of one start, which ended at `was`, and end at
        `end`."""
        row, change = self.rows.get(vs, {}), self.changes.get(vs, {})
        for payload in [*row, *(p for p in change if p not in row)]:
            now = row.get(payload, 0)
            before = now - change.get(payload, 0)
            both = min(now, before)
            if was != end:
                changes += [Adjust(payload, vs, was, end)] * both
            changes += [Adjust(payload, vs, was, vs)] * (before - both)
            changes += [Insert(payload, vs, end)] * (now - both)

    def due(self, n: int) -> int:
        """When one of the starts is of no more use: when the n behind it are final."""
        return self.starts[n] if len(self.starts) > n else INFINITY

    def forget(self, point: int, n: int) -> int:
        """Drops all starts before `point` but the last n; returns how many events that were."""
        final = max(bisect_left(self.starts, point) - n, 0)
        gone = sum(sum(self.rows.pop(vs).values()) for vs in self.starts[:final])
        del self.starts[:final]
        self.count -= gone
        return gone

    def check(self) -> None:
        """Asserts the invariants of its fields."""
        assert not self.changes, "a change is not settled"
        assert self.starts == sorted(self.rows), "starts has others than rows"
        assert all(self.rows.values()), "a start has no payload"
        assert all(n > 0 for row in self.rows.values() for n in row.values()), "a row is gone"
        assert self.count == sum(sum(row.values()) for row in self.rows.values()), "miscounted"


def _add(times: dict[Hashable, int], payload: Hashable, by: int) -> None:
    now = times.get(payload, 0) + by
    if now:
        times[payload] = now
    else:
        del times[payload]


def _nth(starts: list[int], vs: int, n: int) -> int:
    """The n-th start behind vs, or INFINITY."""
    at = bisect_right(starts, vs) + n - 1
    return starts[at] if at < len(starts) else INFINITY


def _saved(row: dict[Hashable, int]) -> list[Any]:
    return [[portable(payload), times] for payload, times in row.items()]
