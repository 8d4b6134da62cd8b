"""Align: holds inserts back, so that revisions come home before they are emitted.

Meaning
    Its input. B, the blocking time, changes only when things are emitted: it belongs to the plan,
    and replicas may differ in it. It is application time, since the system's would make a replica
    depend on when it runs.
State
    The inserts that are held, with the adjusts folded into them, and the greatest vs so far.
Stable
    min(c, least vs that is held).
Retention
    What begins behind o = greatest vs - B (B = INFINITY: START) and what started with it or later
    is not final: vs > o, and neither it nor all that began before it have ve < c.  need(T) = T.
Cost
    O(1) per element, O(log n) per distinct vs; an adjust looks at the ends of its (payload, vs).

Events leave in order of vs, those that start together at once and in the order of their payloads:
when vs <= o, or at a stable(c) when all of them, and all that start before, have ended before c. A
revision of what has left passes at once; an event that is retracted while it is held is never
emitted. B = 0 holds nothing. B = INFINITY emits final events in order and no adjust: that is
`core.cleanse`, on which this stands.

    >>> from lmerge_service.elements import Stable
    >>> align = Align(2)
    >>> align.process(Insert("a", 3, 9)), align.process(Adjust("a", 3, 9, 6))
    ([], [])
    >>> align.process(Insert("b", 5, 8))
    [Insert(payload='a', vs=3, ve=6)]
    >>> align.process(Adjust("a", 3, 6, 7))
    [Adjust(payload='a', vs=3, vold=6, ve=7)]
    >>> align.process(Stable(7)), align.process(Stable(9))
    ([Stable(vc=5)], [Insert(payload='b', vs=5, ve=8), Stable(vc=9)])
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lmerge_service.core.cleanse import Cleanse
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.queries.operators.protocol import Changes, Operator, Skip
from lmerge_service.queries.order import payload_order

__all__ = ("Align",)


class Align(Operator):
    """Holds events until the greatest vs is `blocking` behind theirs, or they are final.

    `order` sorts the payloads of events that start together; it must give equal keys to equal
    payloads and to no others. The default takes what snapshots do.

    Raises:
        ValueError: `blocking` is negative.
    """

    __slots__ = ("_greatest", "_held", "blocking", "order")

    def __init__(self, blocking: int, order: Callable[[Any], Any] = payload_order) -> None:
        if blocking < 0:
            raise ValueError(f"the blocking time must be at least 0, got {blocking}")
        super().__init__()
        self.blocking = blocking
        self.order = order
        self._held = _Held(order)
        self._greatest = START

    def __len__(self) -> int:
        return len(self._held)

    def skip_before(self, skip: Skip) -> Sequence[Skip | None]:
        return [skip] * self.ports

    def emits_inserts_only(self, inputs: Sequence[bool]) -> bool:
        return all(inputs)

    def process_batch(self, elements: Iterable[Element], port: int = 0) -> list[Element]:
        """As for every operator; the stable rises also when data releases what it waited for."""
        emitted = super().process_batch(elements, port)
        if self._held.stable_out > self.stable:
            self.stable = self._held.stable_out
            emitted.append(Stable(self.stable))
        return emitted

    def check(self) -> None:
        """Asserts that what is held may be, and that the output waits for it alone."""
        super().check()
        self._held.check()
        assert self._held.stable == self.stables[0], "what is held has another stable point"
        assert self._held.stable_out == self.stable, "the output's stable point is another"
        assert not self._held.ignored, self._held.ignored
        assert self._held.first() > self._released_until(), "what should have left is held"

    def _released_until(self) -> int:
        """o: what begins by then is not held."""
        if self.blocking == INFINITY:
            return START - 1
        return self._greatest - self.blocking

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        self._greatest = max(self._greatest, element.vs)
        self._held.process(element)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        if not self._held.fold(element):
            changes.append(element)

    def _settle(self, changes: Changes) -> None:
        self._held.release_until(self._released_until(), changes)

    def _advance(self, changes: Changes) -> int:
        released = self._held.process(Stable(self.stables[0]))
        changes += [element for element in released if type(element) is Insert]
        return self._held.stable_out

    def _state(self) -> Any:
        return [self._greatest, *self._held.state()]

    def _load(self, state: Any) -> None:
        self._greatest, *held = state
        self._held = _Held(self.order)
        self._held.load(*held)


class _Held(Cleanse):
    """A Cleanse that also lets go of what is not final."""

    __slots__ = ()

    def first(self) -> int:
        """The least vs that is held."""
        return self._starts[0] if self._starts else INFINITY

    def fold(self, element: Adjust[Any]) -> bool:
        """Applies an adjust of what is held; False if that is nothing."""
        ends = self._ends.get(element.vs, {}).get(element.payload)
        if ends is None or element.vold not in ends:
            return False
        self._adjust(element)
        return True

    def release_until(self, point: int, changes: Changes) -> None:
        """Releases what begins by `point`, and what is final behind it."""
        released: list[Element] = []
        while self._starts and self._may_leave(self._starts[0], point):
            self._release_first(released)
        changes += released  # type: ignore[arg-type]
        self.stable_out = min(self.stable, self.first())

    def _may_leave(self, vs: int, point: int) -> bool:
        return vs <= point or (vs < self.stable and not self._is_first_open())

    def state(self) -> list[Any]:
        """The stable point, and what is held."""
        held = [
            [vs, [[portable(payload), ends] for payload, ends in together.items()]]
            for vs, together in self._ends.items()
        ]
        return [self.stable, held]

    def load(self, stable: int, held: Any) -> None:
        """Takes over what `state` gave."""
        for vs, together in held:
            for payload, ends in together:
                for ve in ends:
                    self._insert(Insert(hashable(payload), vs, ve))
        self.stable = stable  # behind the inserts, some of which began before
        self.stable_out = min(stable, self.first())
