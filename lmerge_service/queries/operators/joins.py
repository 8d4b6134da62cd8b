"""Join: pairs of events of equal key, for as long as both are there.

Meaning
    For each left and right event whose keys are equal and not null, whose payloads satisfy the
    residual predicate and whose lifetimes overlap, one event: the combined payload, [greater vs,
    lesser ve). Multiplicities multiply. A residual sees payloads, never times.
State
    Per side and key the events by (ve, vs), each with its payloads and how often; and when the
    first of a key ends.
Stable
    The least of the inputs'.
Retention
    Side j keeps what ends at c_k or later, c_k being the other side's stable point: what ends
    before can't meet an event that is still to come, nor one whose end still moves. An event that
    was dropped is kept again if its end grows to c_k.  need(T) = T on both sides.
Cost
    O(log n + events of the key that end behind vs) per insert, of which all but those that begin
    behind ve are matches; an adjust the same, between its two ends. A stable costs what it drops.

The output is in order of vs only if the inputs are consumed in that order.

    >>> from lmerge_service.elements import Stable
    >>> first = lambda payload: payload[0]
    >>> both = Join(left_key=first, right_key=first, combine=lambda p, q: p + q[1:])
    >>> both.process(Insert(("k", 1), 2, 6)), both.process(Insert(("k", 2), 3, 5), port=1)
    ([], [Insert(payload=('k', 1, 2), vs=3, ve=5)])
    >>> both.process(Adjust(("k", 1), 2, 6, 4))
    [Adjust(payload=('k', 1, 2), vs=3, vold=5, ve=4)]
    >>> both.process(Stable(9), port=1), len(both)  # the left event has ended before 9
    ([], 1)
    >>> both.process(Stable(4)), len(both)
    ([Stable(vc=4)], 1)
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, TypeAlias

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.expiry import Expiry
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, Adjust, Insert
from lmerge_service.queries.operators.protocol import Changes, Skip
from lmerge_service.queries.operators.reversible import Reversible

__all__ = ("Join", "pair")

_FEW: Final = 8
"""So many events are looked through faster than searched."""

Entry: TypeAlias = tuple[int, int, dict[Hashable, int]]
"""(ve, vs, how often each payload) of the events of one key and lifetime."""


def pair(left: Any, right: Any) -> tuple[Any, Any]:
    """The payload of a joined event, unless a join is given another function."""
    return left, right


class Join(Reversible):
    """The equi-join of a left (port 0) and a right input (port 1).

    `left_key` and `right_key` take a payload of their side; a key that is None, or a tuple with
    None in it, equals none. `residual`, if there is one, and `combine` take a left and a right
    payload. All are pure functions.
    """

    __slots__ = ("_combine", "_keys", "_residual", "_sides")

    ports = 2

    def __init__(
        self,
        left_key: Callable[[Any], Hashable],
        right_key: Callable[[Any], Hashable],
        residual: Callable[[Any, Any], object] | None = None,
        combine: Callable[[Any, Any], Hashable] = pair,
    ) -> None:
        super().__init__()
        self._keys = (left_key, right_key)
        self._residual = residual
        self._combine = combine
        self._sides = (_Side(), _Side())

    def __len__(self) -> int:
        """How many events both sides hold."""
        return self._sides[0].count + self._sides[1].count

    def skip_before(self, skip: Skip) -> Sequence[Skip | None]:
        """A row is no longer than either of its events, and begins with one of them."""
        return [skip, skip]

    def emits_inserts_only(self, inputs: Sequence[bool]) -> bool:
        return all(inputs)

    def check(self) -> None:
        """Asserts the invariants of both sides, and that they hold what the retention rule names
        and no more."""
        super().check()
        for side, bound in zip(self._sides, reversed(self.stables), strict=True):
            side.check(bound)

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        payload, vs, ve = element.payload, element.vs, element.ve
        key = self._keys[port](payload)
        if key is None or (type(key) is tuple and None in key):
            return
        if others := self._sides[1 - port].events.get(key):
            for start, end, joined, times in self._matches(payload, port, others, vs, ve):
                found = Insert(joined, vs if vs > start else start, ve if ve < end else end)
                changes.append(found)
                if times > 1:
                    changes += [found] * (times - 1)
        bound = self.stables[1 - port]
        if ve >= bound and bound < INFINITY:
            self._sides[port].hold(key, payload, vs, ve)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        payload, vs, vold, ve = element.payload, element.vs, element.vold, element.ve
        key = self._keys[port](payload)
        if key is None or (type(key) is tuple and None in key):
            return
        found: Changes = []
        if others := self._sides[1 - port].events.get(key):
            x, y = (vold, ve) if vold < ve else (ve, vold)
            for begin, end, joined, times in self._matches(payload, port, others, x, y):
                start, old, new = max(vs, begin), min(vold, end), min(ve, end)
                if start < old:
                    found += [Adjust(joined, start, old, max(start, new))] * times
                else:
                    found += [Insert(joined, start, new)] * times
        side, bound = self._sides[port], self.stables[1 - port]
        if bound < INFINITY:
            if vold >= bound and not side.release(key, payload, vs, vold):
                self._refuse(port, BreachKind.UNKNOWN_EVENT, element)
                return
            if ve >= bound and ve > vs:
                side.hold(key, payload, vs, ve)
        changes += found

    def _matches(
        self, payload: Hashable, port: int, others: list[Entry], x: int, y: int
    ) -> list[tuple[int, int, Hashable, int]]:
        """(vs, ve, combined payload, times) of what overlaps [x, y) on the other side."""
        combine, residual = self._combine, self._residual
        if len(others) > _FEW:
            others = others[bisect_left(others, (x + 1,)) :]
        self.touched += len(others)
        found = []
        for ve, vs, payloads in others:
            if vs < y and ve > x:
                for other, times in payloads.items():
                    left, right = (other, payload) if port else (payload, other)
                    if residual is None or residual(left, right):
                        found.append((vs, ve, combine(left, right), times))
        return found

    def _advance(self, changes: Changes) -> int:
        for side, bound in zip(self._sides, reversed(self.stables), strict=True):
            self.touched += side.forget(bound)
        return min(self.stables)

    def _state(self) -> Any:
        return [side.state() for side in self._sides]

    def _load(self, state: Any) -> None:
        self._sides = (_Side(), _Side())
        for side, key, entries in zip(self._sides, self._keys, state, strict=True):
            side.load(key, entries)


class _Side:
    """The events of one side."""

    __slots__ = ("count", "events", "expiry")

    def __init__(self) -> None:
        self.events: dict[Hashable, list[Entry]] = {}
        """By key, sorted."""
        self.expiry: Expiry[Hashable] = Expiry()
        """The keys by the first end of theirs."""
        self.count = 0

    def hold(self, key: Hashable, payload: Hashable, vs: int, ve: int, times: int = 1) -> None:
        """Keeps an event. Complexity: O(log n)."""
        self.count += times
        entries = self.events.get(key)
        if entries is None:
            self.events[key] = [(ve, vs, {payload: times})]
            self.expiry.schedule(key, ve)
            return
        at = bisect_left(entries, (ve, vs))
        if at < len(entries) and entries[at][0] == ve and entries[at][1] == vs:
            payloads = entries[at][2]
            payloads[payload] = payloads.get(payload, 0) + times
        else:
            entries.insert(at, (ve, vs, {payload: times}))
            if not at:
                self.expiry.schedule(key, ve)

    def release(self, key: Hashable, payload: Hashable, vs: int, ve: int) -> bool:
        """Lets go of an event, if it is there. Complexity: O(log n)."""
        entries = self.events.get(key, [])
        at = bisect_left(entries, (ve, vs))
        if at == len(entries) or entries[at][0] != ve or entries[at][1] != vs:
            return False
        payloads = entries[at][2]
        times = payloads.get(payload)
        if times is None:
            return False
        self.count -= 1
        if times > 1:
            payloads[payload] = times - 1
            return True
        del payloads[payload]
        if not payloads:
            del entries[at]
            if not entries:
                del self.events[key]
                self.expiry.cancel(key)
        return True

    def forget(self, bound: int) -> int:
        """Drops what ends before `bound`; returns how many lifetimes that were."""
        if bound == INFINITY:
            self.events.clear()
            self.expiry.clear()
            self.count = 0
            return 0
        gone = 0
        for key in self.expiry.before(bound):
            entries = self.events[key]
            final = bisect_left(entries, (bound,))
            self.count -= sum([sum(payloads.values()) for _, _, payloads in entries[:final]])
            gone += final
            if final == len(entries):
                del self.events[key]
            else:
                del entries[:final]
                self.expiry.schedule(key, entries[0][0])
        return gone

    def state(self) -> Any:
        """What is held; keys are left out, since payloads have them."""
        return [
            [[ve, vs, [[portable(p), n] for p, n in payloads.items()]]
             for ve, vs, payloads in entries]
            for entries in self.events.values()
        ]  # fmt: skip

    def load(self, key: Callable[[Any], Hashable], state: Any) -> None:
        """Takes over what `state` gave."""
        for entries in state:
            for ve, vs, payloads in entries:
                for saved, times in payloads:
                    payload = hashable(saved)
                    self.hold(key(payload), payload, vs, ve, times)

    def check(self, bound: int) -> None:
        """Asserts the invariants of its fields, and that nothing ends before `bound`."""
        self.expiry.check()
        counts = [n for es in self.events.values() for _, _, each in es for n in each.values()]
        assert self.count == sum(counts), "the count is wrong"
        assert all(n > 0 for n in counts), "an event is held not once"
        for key, entries in self.events.items():
            lifetimes = [entry[:2] for entry in entries]
            assert lifetimes == sorted(set(lifetimes)), f"{key!r} is out of order"
            assert all(payloads for _, _, payloads in entries), f"{key!r} has an empty lifetime"
            assert bound <= entries[0][0], (
                f"{key!r} holds what ended before the other side's stable"
            )
            assert self.expiry.due(key) <= entries[0][0], f"{key!r} is forgotten too late"
