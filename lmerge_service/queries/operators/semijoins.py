"""Semi-join and anti-join: the parts of left events in which a right event is their partner, or in
which none is.

Meaning
    A right event is a partner of a left one if their keys are equal, no part of them is null, and
    the residual predicate holds for their payloads. Of each left event the semi-join gives the
    maximal intervals in which it has a partner, the anti-join those in which it has none: where a
    key is null, all of it. Equal left events give equal fragments, each its own.
State
    Per key the left events; of the right events the starts and ends; and the *support*, the
    intervals in which a partner is there, disjoint and apart. A fragment is a left event cut to
    one of them, or to a gap between two, so the support's intervals that are open keep the start
    that they had, and the end of the last one that has gone is kept: the first gap's start. With a
    residual there is one support per left payload, and starts and ends are kept per right payload.
Stable
    m, the least of the inputs' stables.
Retention
    Left and right events with ve >= m; a key with none of them holds nothing.  need(T) = T on both
    sides, but a fragment that covers T may then start at another time below T.
Cost
    Left: O(log n + fragments changed). Right: the same, if the support grows, and O(1) for each
    left event that starts before the change's end and does not overlap it, or that ends behind its
    start and does not, whichever are fewer. Where a right event is taken back or cut short,
    O(log n) besides for each step of `queries.multiplicity` along those that stay. With a residual,
    times the left payloads of the key; and where one is new, O(right events of the key). A stable
    costs what it makes final.

The support changes only where the number of partners goes from 0 to 1 or back, and only there
fragments change. What arrives changes nothing before m, so that a fragment that was open then is
lengthened or cut by an adjust:

    >>> from lmerge_service.elements import Stable
    >>> first = lambda payload: payload[0]
    >>> alone = AntiJoin(left_key=first, right_key=first)
    >>> alone.process(Insert(("k", "left"), 1, 20))
    [Insert(payload=('k', 'left'), vs=1, ve=20)]
    >>> for element in alone.process(Insert(("k", "r"), 5, 9), port=1): print(element)
    Adjust(payload=('k', 'left'), vs=1, vold=20, ve=5)
    Insert(payload=('k', 'left'), vs=9, ve=20)
    >>> alone.process(Insert(("k", "s"), 7, 9), port=1)
    []
    >>> alone.process(Stable(8)), alone.process(Stable(8), port=1)
    ([], [Stable(vc=8)])
    >>> for element in alone.process(Adjust(("k", "s"), 7, 9, 12), port=1): print(element)
    Adjust(payload=('k', 'left'), vs=9, vold=20, ve=9)
    Insert(payload=('k', 'left'), vs=12, ve=20)
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator
from typing import Any, ClassVar

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.expiry import Expiry
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START, Adjust, Insert
from lmerge_service.queries.event_index import EventIndex
from lmerge_service.queries.multiplicity import Multiplicity, Pieces
from lmerge_service.queries.operators.protocol import Changes
from lmerge_service.queries.operators.reversible import Reversible

__all__ = ("AntiJoin", "SemiJoin")

_LEFT = 0

Times = list[int]
Zones = tuple[Times, Times]
"""The begins and the ends of intervals in order, none overlapping another."""


class SemiJoin(Reversible):
    """The parts of left events (port 0) in which a right event (port 1) is their partner.

    `left_key` and `right_key` take a payload of their side; a key that is None, or a tuple with
    None in it, equals none. `residual`, if there is one, takes a left and a right payload. All are
    pure functions.
    """

    __slots__ = ("_expiry", "_keys", "_live", "_residual", "_sides")

    ports = 2
    _outside: ClassVar[bool] = False

    def __init__(
        self,
        left_key: Callable[[Any], Hashable],
        right_key: Callable[[Any], Hashable],
        residual: Callable[[Any, Any], object] | None = None,
    ) -> None:
        super().__init__()
        self._sides = (left_key, right_key)
        self._residual = residual
        self._keys: dict[Hashable, _Group] = {}
        self._expiry: Expiry[_Part | _Cover] = Expiry()
        self._live = 0

    def __len__(self) -> int:
        """How many left and right events are held."""
        return self._live

    def check(self) -> None:
        """Asserts the invariants of the state."""
        super().check()
        self._expiry.check()
        assert self._live == sum(len(group) for group in self._keys.values()), "the count is wrong"
        for key, group in self._keys.items():
            assert not group.empty(), f"{key!r} holds nothing"
            for each in group:
                assert self.stable <= each.due(), f"{key!r} holds what is final"
                assert self._expiry.due(each) <= each.due(), f"{key!r} is forgotten too late"
            group.check(self.stable, self._residual)

    # --- elements -----------------------------------------------------------------------------

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        payload, vs, ve = element.payload, element.vs, element.ve
        key = self._sides[port](payload)
        if _null(key):
            if port == _LEFT and self._outside:
                changes.append(element)
            return
        group = self._keys.get(key)
        if group is None:
            group = _Group(key, self._residual is not None)
        if port == _LEFT:
            part = self._part(group, payload)
            part.hold(payload, vs, ve)
            self._expiry.schedule(part, ve)
            for begin, end in part.support.fragments(vs, ve, vs, self._outside):
                changes.append(Insert(payload, begin, end))
        else:
            parts = self._partners(group, payload)
            cover = group.cover(payload)
            cover.add(vs, ve)
            self._expiry.schedule(cover, ve)
            self._more(parts, vs, ve, changes)
        self._keys[key] = group
        self._live += 1

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        key = self._sides[port](element.payload)
        if _null(key):
            if port == _LEFT and self._outside:
                changes.append(element)
            return
        group = self._keys.get(key)
        if group is None:
            self._refuse(port, BreachKind.UNKNOWN_EVENT, element)
        elif port == _LEFT:
            self._adjust_left(group, element, changes)
        else:
            self._adjust_right(group, element, changes)

    def _adjust_left(self, group: "_Group", element: Adjust[Any], changes: Changes) -> None:
        payload, vs, vold, ve = element.payload, element.vs, element.vold, element.ve
        part = group.parts.get(group.which(payload))
        if part is None or not part.release(payload, vs, vold):
            self._refuse(_LEFT, BreachKind.UNKNOWN_EVENT, element)
            return
        support, since = part.support, min(vold, ve)
        if ve > vs:
            part.hold(payload, vs, ve)
            self._expiry.schedule(part, ve)
        else:
            self._live -= 1
            self._tidy(group, part)
        old = support.fragments(vs, vold, since, self._outside)
        new = support.fragments(vs, ve, since, self._outside)
        self.touched += len(old) + len(new)
        _compare(payload, 1, old, new, changes)

    def _adjust_right(self, group: "_Group", element: Adjust[Any], changes: Changes) -> None:
        payload, vs, vold, ve = element.payload, element.vs, element.vold, element.ve
        parts = self._partners(group, payload)
        cover = group.covers.get(group.which(payload))
        if cover is None or not cover.move(vs, vold, ve):
            self._refuse(1, BreachKind.UNKNOWN_EVENT, element)
        elif ve > vold:
            self._more(parts, vold, ve, changes)
        elif ve < vold:
            self._fewer(group, parts, ve, vold, changes)
            if ve > vs:
                self._expiry.schedule(cover, ve)
            else:
                self._live -= 1
                self._tidy(group, cover)

    def _tidy(self, group: "_Group", item: "_Part | _Cover") -> None:
        """Lets go of a part or cover that holds nothing, and of a group that does."""
        if not len(item) and group.drop(item):
            self._expiry.cancel(item)
        if group.empty():
            for each in group:
                self._expiry.cancel(each)
            del self._keys[group.key]

    # --- what a right event changes -----------------------------------------------------------

    def _more(self, parts: list["_Part"], x: int, y: int, changes: Changes) -> None:
        """One partner more on [x, y)."""
        for part in parts:
            self.touched += 1
            if change := part.support.gain(x, y, self._outside):
                self._cut(part, x, y, *change, changes)
                self._expiry.schedule(part, part.due())

    def _fewer(
        self, group: "_Group", parts: list["_Part"], x: int, y: int, changes: Changes
    ) -> None:
        """One partner fewer on [x, y), where there was one."""
        for part in parts:
            pieces = [(x, y)]
            for right, cover in group.covers.items():
                if self._residual is None or self._residual(part.left, right):
                    pieces = [p for piece in pieces for p in self._uncovered(cover, *piece)]
            self.touched += 1 + len(pieces)
            if pieces:
                old, new = part.support.lose(pieces, self._outside)
                self._cut(part, pieces[0][0], pieces[-1][1], old, new, changes)
                self._expiry.schedule(part, part.due())

    def _uncovered(self, cover: "_Cover", x: int, y: int) -> Pieces:
        pieces, steps = cover.uncovered(x, y)
        self.touched += steps
        return pieces

    def _cut(self, part: "_Part", x: int, y: int, old: Zones, new: Zones, changes: Changes) -> None:
        """Cuts the left events that overlap [x, y) anew, from the zones there were to those there
        are."""
        for vs, ve in part.overlapping(x, y):
            self.touched += 1
            if ve > x and vs < y:
                before, after = _clipped(*old, vs, ve), _clipped(*new, vs, ve)
                for payload, times in part.held[vs, ve].items():
                    _compare(payload, times, before, after, changes)

    # --- classes of payloads ------------------------------------------------------------------

    def _part(self, group: "_Group", payload: Hashable) -> "_Part":
        """The left events that have their partners in common with `payload`."""
        which = group.which(payload)
        part = group.parts.get(which)
        if part is None:
            assert self._residual is not None
            matching = [c for right, c in group.covers.items() if self._residual(payload, right)]
            part = group.parts[which] = _Part(group, payload)
            for cover in matching:
                pieces, steps = cover.covered(START, INFINITY)
                self.touched += steps
                for x, y in pieces:
                    part.support.gain(x, y, False)
            self._expiry.schedule(part, part.due())
        return part

    def _partners(self, group: "_Group", right: Hashable) -> list["_Part"]:
        """Those that the right payload is a partner of."""
        if self._residual is None:
            return list(group.parts.values())
        return [part for part in group.parts.values() if self._residual(part.left, right)]

    # --- stables and state --------------------------------------------------------------------

    def _advance(self, changes: Changes) -> int:
        point = min(self.stables)
        if point == INFINITY:
            self._keys.clear()
            self._expiry.clear()
            self._live = 0
            return point
        for item in self._expiry.before(point):
            gone = item.forget(point)
            self._live -= gone
            self.touched += 1 + gone
            self._expiry.schedule(item, item.due())
            self._tidy(item.group, item)
        return point

    def _state(self) -> Any:
        return [[portable(key), *group.state()] for key, group in self._keys.items()]

    def _load(self, state: Any) -> None:
        self._keys, self._expiry = {}, Expiry()
        for saved, parts, covers in state:
            key = hashable(saved)
            group = self._keys[key] = _Group(key, self._residual is not None)
            group.load(parts, covers)
            for item in group:
                self._expiry.schedule(item, item.due())
        self._live = sum(len(group) for group in self._keys.values())


class AntiJoin(SemiJoin):
    """The parts of left events (port 0) in which no right event (port 1) is their partner.

    The arguments are those of `SemiJoin`; a left event whose key is null has none.
    """

    __slots__ = ()

    _outside = True


class _Group:
    """All of one key: left events by what they may match, right events by payload.

    With a residual, left events of one payload are a part, and so are right events; else all left
    events are one part, and all right events are.
    """

    __slots__ = ("by_payload", "covers", "key", "parts")

    def __init__(self, key: Hashable, by_payload: bool) -> None:
        self.key = key
        self.by_payload = by_payload
        self.parts: dict[Hashable, _Part] = {} if by_payload else {None: _Part(self, None)}
        self.covers: dict[Hashable, _Cover] = {}

    def __len__(self) -> int:
        return sum(map(len, self))

    def __iter__(self) -> "Iterator[_Part | _Cover]":
        yield from self.parts.values()
        yield from self.covers.values()

    def empty(self) -> bool:
        """Whether no events are held. Complexity: O(1)."""
        return not self.covers and not (self.parts if self.by_payload else len(self.parts[None]))

    def which(self, payload: Hashable) -> Hashable:
        """Under what it is in `parts` and `covers`."""
        return payload if self.by_payload else None

    def cover(self, payload: Hashable) -> "_Cover":
        """The right events of the payload, or of all."""
        which = self.which(payload)
        cover = self.covers.get(which)
        if cover is None:
            cover = self.covers[which] = _Cover(self, which)
        return cover

    def drop(self, item: "_Part | _Cover") -> bool:
        """Lets go of it, if it can be made anew: the one part of a key without residual knows what
        its covers have been."""
        if isinstance(item, _Cover):
            del self.covers[item.right]
        elif self.by_payload:
            del self.parts[item.left]
        else:
            return False
        return True

    def state(self) -> tuple[Any, Any]:
        parts = [[portable(left), part.state()] for left, part in self.parts.items()]
        covers = [[portable(right), c.starts, c.ends] for right, c in self.covers.items()]
        return parts, covers

    def load(self, parts: Any, covers: Any) -> None:
        for left, saved in parts:
            part = _Part(self, hashable(left))
            part.load(saved)
            self.parts[part.left] = part
        for right, starts, ends in covers:
            cover = self.covers[hashable(right)] = _Cover(self, hashable(right))
            cover.starts, cover.ends = starts, ends

    def check(self, point: int, residual: Callable[[Any, Any], object] | None) -> None:
        """Asserts that it holds what the operator documents, point being the output's stable."""
        for right, cover in self.covers.items():
            assert len(cover), f"nothing of {right!r} is held"
            cover.check()
        for part in self.parts.values():
            assert len(part) or not self.by_payload, f"nothing of {part.left!r} is held"
            matching = [
                cover
                for right, cover in self.covers.items()
                if residual is None or residual(part.left, right)
            ]
            part.check()
            part.support.check(point, matching)


class _Part(EventIndex):
    """Left events that have all partners in common, and when there is one."""

    __slots__ = ("group", "left", "support")

    def __init__(self, group: _Group, left: Hashable) -> None:
        super().__init__()
        self.group = group
        self.left = left
        """Their payload, if there is a residual."""
        self.support = _Support()

    def due(self) -> int:
        """The first end of an event or an interval of the support."""
        ends = self.support.ends
        return min(super().due(), ends[0]) if ends else super().due()

    def forget(self, point: int) -> int:
        """Drops what ended before `point`; returns how many events that were."""
        self.support.forget(point)
        return super().forget(point)

    def state(self) -> list[Any]:
        return [super().state(), self.support.begins, self.support.ends, self.support.edge]

    def load(self, state: Any) -> None:
        held, support = state[0], self.support
        super().load(held)
        support.begins, support.ends, support.edge = state[1:]


class _Support:
    """When a partner is there: intervals that neither overlap nor touch; those from m on."""

    __slots__ = ("begins", "edge", "ends")

    def __init__(self) -> None:
        self.begins: Times = []
        self.ends: Times = []
        self.edge = START
        """The end of the last interval that was forgotten."""

    def fragments(self, vs: int, ve: int, since: int, outside: bool) -> Pieces:
        """What of [vs, ve) is inside, or outside, the intervals: maximal parts, from the one that
        is open at `since` or is the first behind it. Complexity: O(log n + parts)."""
        begins, ends = self.begins, self.ends
        found = []
        if outside:
            at = bisect_right(begins, since)
            begin = ends[at - 1] if at else self.edge
            while begin < ve:
                end = begins[at] if at < len(begins) else INFINITY
                if max(vs, begin) < min(ve, end):
                    found.append((max(vs, begin), min(ve, end)))
                if at == len(begins):
                    break
                begin = ends[at]
                at += 1
        else:
            at = bisect_right(ends, since)
            while at < len(begins) and begins[at] < ve:
                found.append((max(vs, begins[at]), min(ve, ends[at])))
                at += 1
        return found

    def gain(self, x: int, y: int, outside: bool) -> tuple[Zones, Zones] | None:
        """[x, y) is inside, too; the zones there were and are, or None if nothing changes."""
        begins, ends = self.begins, self.ends
        first, last = bisect_left(ends, x), bisect_right(begins, y)
        if first < last:
            if begins[first] <= x and ends[first] >= y:
                return None
            x, y = min(x, begins[first]), max(y, ends[last - 1])
        return self._replace(first, last, [x], [y], outside)

    def lose(self, pieces: Pieces, outside: bool) -> tuple[Zones, Zones]:
        """The pieces, all of one interval, are outside; the zones there were and are."""
        at = bisect_right(self.ends, pieces[0][0])
        begins = [self.begins[at], *(end for _, end in pieces)]
        ends = [*(begin for begin, _ in pieces), self.ends[at]]
        if begins[0] == ends[0]:
            del begins[0], ends[0]
        if begins and begins[-1] == ends[-1]:
            del begins[-1], ends[-1]
        return self._replace(at, at + 1, begins, ends, outside)

    def _replace(
        self, first: int, last: int, begins: Times, ends: Times, outside: bool
    ) -> tuple[Zones, Zones]:
        old = self._zones(first, last, outside)
        self.begins[first:last] = begins
        self.ends[first:last] = ends
        return old, self._zones(first, first + len(begins), outside)

    def _zones(self, first: int, last: int, outside: bool) -> Zones:
        """Intervals, or the gaps before, between and behind them."""
        begins, ends = self.begins[first:last], self.ends[first:last]
        if not outside:
            return begins, ends
        before = self.ends[first - 1] if first else self.edge
        behind = self.begins[last] if last < len(self.begins) else INFINITY
        return [before, *ends], [*begins, behind]

    def forget(self, point: int) -> None:
        final = bisect_left(self.ends, point)
        if final:
            self.edge = self.ends[final - 1]
            del self.begins[:final], self.ends[:final]

    def check(self, point: int, covers: list["_Cover"]) -> None:
        """Asserts that from `point` on it is where one of the covers is."""
        assert self.begins == sorted(self.begins), "the support is out of order"
        last = self.edge
        for begin, end in zip(self.begins, self.ends, strict=True):
            assert last < begin or begin == START, "intervals touch"
            assert begin < end, "an interval is empty"
            assert end >= point, "an interval is final"
            last = end
        for t in {point, *(t for c in covers for t in (*c.starts, *c.ends)), *self.begins}:
            if t >= point:
                inside = self.fragments(t, t + 1, t, False) != []
                assert inside == any(c.valid(t) for c in covers), f"the support is wrong at {t}"


class _Cover(Multiplicity):
    """Right events that are partners of the same left events."""

    __slots__ = ("group", "right")

    def __init__(self, group: _Group, right: Hashable) -> None:
        super().__init__()
        self.group = group
        self.right = right
        """Their payload, if there is a residual."""


def _null(key: Hashable) -> bool:
    return key is None or (type(key) is tuple and None in key)


def _clipped(begins: Times, ends: Times, vs: int, ve: int) -> Pieces:
    """What of [vs, ve) is in the zones. Complexity: O(log n + parts)."""
    at, found = bisect_right(ends, vs), []
    while at < len(begins) and begins[at] < ve:
        begin, end = max(vs, begins[at]), min(ve, ends[at])
        if begin < end:
            found.append((begin, end))
        at += 1
    return found


def _compare(
    payload: Hashable,
    times: int,
    old: Pieces,
    new: Pieces,
    changes: Changes,
) -> None:
    """Adds to the changes, so often, what makes the new fragments of the old."""
    if old == new:
        return
    come = dict(new)
    change: Changes = []
    for begin, end in old:
        now = come.pop(begin, None)
        if now is None:
            change.append(Adjust(payload, begin, end, begin))
        elif now != end:
            change.append(Adjust(payload, begin, end, now))
    change += [Insert(payload, begin, end) for begin, end in come.items()]
    changes += change * times
