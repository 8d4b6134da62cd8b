"""Clip: left events end where the next right event of their key starts.

Meaning
    A left event [vs, ve) becomes [vs, min(ve, r)), r being the least start behind vs among the
    right events of equal key; where a key is null, it stays. Where right events end does not
    matter. It is the pattern "until the next": flights from departure to arrival, samples until the
    next sample.
State
    Per key the left events, and the starts of right events, each as often as it is there. An end
    that was emitted follows from both.
Stable
    m, the least of the inputs' stables.
Retention
    Left events whose emitted end is at m or behind it; right starts likewise. What starts before m
    clips no other event any more.  need(T) = T on the left, and on the right T less the longest
    left lifetime.
Cost
    O(log n + left events that start between the neighbours of a right start that comes or goes). A
    stable costs what it makes final.

What clipped an event before m does so for good, so that later adjusts of that event change nothing:

    >>> from lmerge_service.elements import Stable
    >>> flying = Clip(left_key=lambda flight: flight, right_key=lambda landed: landed[0])
    >>> flying.process_batch([Insert("AA1", 3, 90), Insert("UA2", 4, 80)])
    [Insert(payload='AA1', vs=3, ve=90), Insert(payload='UA2', vs=4, ve=80)]
    >>> flying.process(Insert(("AA1", "landed"), 8, 9), port=1)
    [Adjust(payload='AA1', vs=3, vold=90, ve=8)]
    >>> flying.process(Stable(10)), flying.process(Stable(10), port=1)
    ([], [Stable(vc=10)])
    >>> flying.process(Adjust("AA1", 3, 90, 50)), len(flying)
    ([], 1)
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.expiry import Expiry
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START, Adjust, Insert
from lmerge_service.queries.event_index import EventIndex
from lmerge_service.queries.operators.protocol import Changes, Skip
from lmerge_service.queries.operators.reversible import Reversible

__all__ = ("Clip",)

_LEFT = 0


class Clip(Reversible):
    """Ends left events (port 0) where the next right event (port 1) of their key starts.

    `left_key` and `right_key` take a payload of their side; a key that is None, or a tuple with
    None in it, equals none. Both are pure functions.
    """

    __slots__ = ("_expiry", "_keys", "_live", "_sides")

    ports = 2

    def __init__(
        self, left_key: Callable[[Any], Hashable], right_key: Callable[[Any], Hashable]
    ) -> None:
        super().__init__()
        self._sides = (left_key, right_key)
        self._keys: dict[Hashable, _Group] = {}
        self._expiry: Expiry[Hashable] = Expiry()
        self._live = 0

    def __len__(self) -> int:
        """How many left events and right starts are held."""
        return self._live

    def check(self) -> None:
        """Asserts the invariants of the state."""
        super().check()
        self._expiry.check()
        assert self._live == sum(map(len, self._keys.values())), "the count is wrong"
        for key, group in self._keys.items():
            assert len(group), f"{key!r} holds nothing"
            assert self.stable <= group.due(), f"{key!r} holds what is final"
            assert self._expiry.due(key) <= group.due(), f"{key!r} is forgotten too late"
            group.check(self.stable)

    def skip_before(self, skip: Skip) -> Sequence[Skip | None]:
        """A row is no longer than its left event; where right ones start clips later left ones."""
        return [skip, None]

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        payload, vs, ve = element.payload, element.vs, element.ve
        key = self._sides[port](payload)
        if _null(key):
            if port == _LEFT:
                changes.append(element)
            return
        group = self._keys.get(key)
        if group is None:
            group = self._keys[key] = _Group()
        if port == _LEFT:
            group.left.hold(payload, vs, ve)
            self._live += 1
            self._expiry.schedule(key, ve)
            end = min(ve, group.next(vs))
            changes.append(element if end == ve else Insert(payload, vs, end))
        elif group.count(vs, 1) == 1:
            self._live += 1
            self._expiry.schedule(key, vs)
            self._clip(group, vs, group.next(vs), vs, changes)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        payload, vs, vold, ve = element.payload, element.vs, element.vold, element.ve
        key = self._sides[port](payload)
        if _null(key):
            if port == _LEFT:
                changes.append(element)
            return
        group = self._keys.get(key)
        if port == _LEFT:
            if group is not None and group.left.release(payload, vs, vold):
                self._move(key, group, element, changes)
            elif vs >= self.stable:  # else it was clipped for good
                self._refuse(port, BreachKind.UNKNOWN_EVENT, element)
        elif ve == vs:
            if group is None or vs not in group.starts:
                self._refuse(port, BreachKind.UNKNOWN_EVENT, element)
            elif group.count(vs, -1) == 0:
                self._live -= 1
                self._clip(group, vs, vs, group.next(vs), changes)
                self._tidy(key, group)

    def _move(self, key: Hashable, group: "_Group", element: Adjust[Any], changes: Changes) -> None:
        """Moves the end of a left event that has been taken out."""
        payload, vs, vold, ve = element.payload, element.vs, element.vold, element.ve
        until = group.next(vs)
        if ve > vs:
            group.left.hold(payload, vs, ve)
            self._expiry.schedule(key, ve)
        else:
            self._live -= 1
            self._tidy(key, group)
        if min(vold, until) != min(ve, until):
            changes.append(Adjust(payload, vs, min(vold, until), min(ve, until)))

    def _clip(self, group: "_Group", r: int, was: int, now: int, changes: Changes) -> None:
        """The left events for which r is the next start, if it is one, end at `now` by it instead
        of at `was`."""
        for vs, ve in group.left.starting(group.last(r), r):
            self.touched += 1
            old, new = min(ve, was), min(ve, now)
            if old != new:
                for payload, times in group.left.held[vs, ve].items():
                    changes += [Adjust(payload, vs, old, new)] * times

    def _tidy(self, key: Hashable, group: "_Group") -> None:
        if not len(group):
            del self._keys[key]
            self._expiry.cancel(key)

    def _advance(self, changes: Changes) -> int:
        point = min(self.stables)
        if point == INFINITY:
            self._keys.clear()
            self._expiry.clear()
            self._live = 0
            return point
        for key in self._expiry.before(point):
            group = self._keys[key]
            gone = group.forget(point)
            self._live -= gone
            self.touched += 1 + gone
            self._expiry.schedule(key, group.due())
            self._tidy(key, group)
        return point

    def _state(self) -> Any:
        return [
            [portable(key), group.left.state(), [[r, group.starts[r]] for r in group.order]]
            for key, group in self._keys.items()
        ]

    def _load(self, state: Any) -> None:
        self._keys = {hashable(key): _Group.loaded(left, starts) for key, left, starts in state}
        self._expiry = Expiry.of({key: group.due() for key, group in self._keys.items()})
        self._live = sum(map(len, self._keys.values()))


class _Group:
    """All of one key."""

    __slots__ = ("left", "order", "starts")

    def __init__(self) -> None:
        self.left = EventIndex()
        self.starts: dict[int, int] = {}
        """Of right events, each as often as it is there."""
        self.order: list[int] = []
        """The same, sorted."""

    @classmethod
    def loaded(cls, left: Any, starts: Any) -> "_Group":
        """One that was saved."""
        group = cls()
        group.left.load(left)
        if starts:
            group.starts = dict(starts)
            group.order = sorted(group.starts)
        return group

    def __len__(self) -> int:
        return len(self.left) + len(self.order)

    def count(self, r: int, by: int) -> int:
        """Counts a start once more or less; returns how often it is there now."""
        times = self.starts.get(r, 0) + by
        if times == by == 1:
            insort(self.order, r)
        if times:
            self.starts[r] = times
        else:
            del self.starts[r], self.order[bisect_left(self.order, r)]
        return times

    def next(self, t: int) -> int:
        """The least start behind t, or INFINITY."""
        at = bisect_right(self.order, t)
        return self.order[at] if at < len(self.order) else INFINITY

    def last(self, t: int) -> int:
        """The greatest start before t, or START."""
        at = bisect_left(self.order, t)
        return self.order[at - 1] if at else START

    def due(self) -> int:
        """The first end of a left event, or right start."""
        return min(self.left.due(), self.order[0]) if self.order else self.left.due()

    def forget(self, point: int) -> int:
        """Drops what ended or was clipped before `point`, and the starts that clipped it; returns
        how many that were."""
        gone = self.left.forget(point)
        final = bisect_left(self.order, point)
        if final:
            gone += self.left.forget_starts(self.order[final - 1]) + final
            for r in self.order[:final]:
                del self.starts[r]
            del self.order[:final]
        return gone

    def check(self, point: int) -> None:
        """Asserts the invariants of its fields."""
        self.left.check()
        assert self.order == sorted(self.starts), "order has other starts"
        assert all(times > 0 for times in self.starts.values()), "a start is there no more"


def _null(key: Hashable) -> bool:
    return key is None or (type(key) is tuple and None in key)
