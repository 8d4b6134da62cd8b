"""Where elements enter a plan: the operator that looks whether they are legal.

Meaning
    Its input; what may not stand where it stands is left out, as if it had not come.
State
    The events that an adjust may still name: those with ve >= c, as often as each is there.
Stable
    The input's.
Retention
    Events with ve >= c.  need(T) = T.
Cost
    O(1) per element; at a stable O(events that it makes final · log n).

    >>> source = Elements()
    >>> source.process_batch([Insert("a", 1, 5), Stable(3), Adjust("a", 1, 4, 6)])
    [Insert(payload='a', vs=1, ve=5), Stable(vc=3)]
    >>> source.refused
    [(0, <BreachKind.WRONG_VOLD: 'wrong_vold'>, Adjust(payload='a', vs=1, vold=4, ve=6))]
"""

from collections.abc import Hashable, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable, defect
from lmerge_service.queries.operators.protocol import Changes, Operator

__all__ = ("Elements",)


class Elements(Operator):
    """Passes the legal elements of one stream on."""

    __slots__ = ("_due", "_live", "_serial")

    def __init__(self) -> None:
        super().__init__()
        self._live: dict[tuple[Hashable, int], dict[int, int]] = {}
        """By payload and start the ends, each as often as it is there."""
        self._due: list[tuple[int, int, tuple[Hashable, int]]] = []
        self._serial = count()  # payloads need not be orderable

    def __len__(self) -> int:
        return sum([sum(ends.values()) for ends in self._live.values()])

    def process_batch(self, elements: Iterable[Element], port: int = 0) -> list[Element]:
        """As for every operator; a stable inside the batch binds the elements behind it."""
        changes: Changes = []
        point = self.stables[0]
        for element in elements:
            if kind := self._breach(element, point):
                self._refuse(port, kind, element)
            elif type(element) is Stable:
                point = element.vc
            elif type(element) is Insert:
                self._insert(element, port, changes)
            else:
                self._adjust(element, port, changes)  # type: ignore[arg-type]
        emitted = self._netted(changes)
        if point > self.stable:
            self.stables[0] = self.stable = point
            self._forget()
            emitted.append(Stable(point))
        return emitted

    def check(self) -> None:
        """Asserts that what is held is what the retention rule names, and will be forgotten."""
        super().check()
        scheduled = {(due, key) for due, _, key in self._due}
        for key, ends in self._live.items():
            for end, times in ends.items():
                assert times > 0, f"{key} is held {times} times"
                assert end >= self.stable, f"{key} is held though it is final"
                assert (end, key) in scheduled, f"{key} is never forgotten"

    def _breach(self, element: Element, point: int) -> BreachKind | None:
        if defect(element) is not None:
            return BreachKind.MALFORMED
        if type(element) is Stable:
            return BreachKind.STABLE_REGRESSION if element.vc < point else None
        if type(element) is Insert:
            return BreachKind.BROKE_OWN_STABLE if element.vs < point else None
        assert type(element) is Adjust
        if min(element.vold, element.ve) < point:
            return BreachKind.BROKE_OWN_STABLE
        ends = self._live.get((element.payload, element.vs))
        if ends is None:
            return BreachKind.UNKNOWN_EVENT
        return None if element.vold in ends else BreachKind.WRONG_VOLD

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        self._hold(element.payload, element.vs, element.ve)
        changes.append(element)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        self._drop((element.payload, element.vs), element.vold, 1)
        if element.ve > element.vs:
            self._hold(element.payload, element.vs, element.ve)
        changes.append(element)

    def _advance(self, changes: Changes) -> int:
        return self.stables[0]

    def _hold(self, payload: Hashable, vs: int, ve: int, times: int = 1) -> None:
        key = (payload, vs)
        ends = self._live.get(key)
        if ends is None:
            ends = self._live[key] = {}
        if ve not in ends:
            heappush(self._due, (ve, next(self._serial), key))
        ends[ve] = ends.get(ve, 0) + times

    def _drop(self, key: tuple[Hashable, int], ve: int, times: int) -> None:
        ends = self._live[key]
        ends[ve] -= times
        if not ends[ve]:
            del ends[ve]
        if not ends:
            del self._live[key]

    def _forget(self) -> None:
        point = self.stable
        if point == INFINITY:
            self._live.clear()
            self._due.clear()
        while self._due and self._due[0][0] < point:
            end, _, key = heappop(self._due)
            self.touched += 1
            held = self._live.get(key)
            if held is not None and end in held:
                self._drop(key, end, held[end])

    def _state(self) -> Any:
        return [[portable(p), vs, *ends.items()] for (p, vs), ends in self._live.items()]

    def _load(self, state: Any) -> None:
        self._live, self._due = {}, []
        for payload, vs, *ends in state:
            for ve, times in ends:
                self._hold(hashable(payload), vs, ve, times)
