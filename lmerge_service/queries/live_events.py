"""The events of a stream that may still change: what it has emitted, or has received.

Theory
    Whoever goes on where a stream stands needs of its past the events that may still change, those
    with ve >= the stable point, and nothing else. This is that multiset, kept as the stream goes
    by: another plan continues the output from it, and a query that has to begin anew can be fed
    with it in the place of the elements that led to it.

    >>> live = LiveEvents()
    >>> live.apply([Insert("p", 1, 5), Insert("q", 2, 9), Adjust("q", 2, 9, 7), Stable(6)])
    >>> list(live), live.stable
    ([Event(payload='q', vs=2, ve=7)], 6)

Invariants
    V1  It holds what the stream's TDB holds with ve >= `stable`, as often; nothing behind
        stable(INFINITY).
    V2  It keeps no more than twice of that, plus a constant, plus what has come since.

Cost
    O(1) per element, amortised: what is final goes when the entries have doubled. There is no heap.
    Batches of inserts are kept as they are until then: most are final as a whole before they would
    have to be looked into.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import Any, Final

from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import Event

__all__ = ("LiveEvents",)

_SLACK: Final = 16_384


class LiveEvents:
    """The multiset of events (payload, vs, ve) that end at `stable` or later."""

    __slots__ = ("_events", "_most", "_recent", "_size", "_swept", "stable")

    def __init__(self, events: Iterable[tuple[Any, int, int]] = (), stable: int = START) -> None:
        self.stable = stable
        self._events: dict[Insert[Any], int] = {}
        """How often each event is there; of those that are final some."""
        self._recent: list[tuple[list[Element], int]] = []
        """Batches of inserts that have come since, each with the greatest end, and their size."""
        self._size = 0
        self._most = _SLACK
        """So many entries, and what is final goes."""
        self._swept = True
        """Nothing has come since it went."""
        self.apply(Insert(*event) for event in events)

    @property
    def entries(self) -> int:
        """How much is held; some of it may be final. Complexity: O(1)."""
        return len(self._events) + self._size

    def __len__(self) -> int:
        """How many events there are. Complexity: O(entries)."""
        return sum(self.counted().values())

    def __iter__(self) -> Iterator[Event]:
        """Each, as often as it is there."""
        events = self.counted().items()
        return chain.from_iterable(repeat(Event(e.payload, e.vs, e.ve), n) for e, n in events)

    def counted(self) -> dict[Insert[Any], int]:
        """How often each is there, by the insert that adds it; not to be changed."""
        self._sweep()
        return self._events

    def apply(self, elements: Iterable[Element]) -> None:
        """Takes what the stream goes on with. What was final before is not looked for."""
        batch = list(elements)
        if not batch:
            return
        self._swept = False
        ends = [e.ve for e in batch if type(e) is Insert]
        last = batch[-1]
        stable = type(last) is Stable
        if len(ends) == len(batch) - stable:
            if ends:
                self._recent.append((batch, max(ends)))
                self._size += len(batch)
            if stable and last.vc > self.stable:  # type: ignore[union-attr]
                self.stable = last.vc  # type: ignore[union-attr]
        else:
            self._fold_recent()
            self._fold(batch)
        if self.entries > self._most or self.stable == INFINITY:
            self._sweep()

    def _fold_recent(self) -> None:
        recent, stable = self._recent, self.stable
        self._recent, self._size = [], 0
        for batch, end in recent:
            if end >= stable:
                self._fold(batch)

    def _fold(self, elements: Iterable[Element]) -> None:
        events = self._events
        held = events.get
        for element in elements:
            kind = type(element)
            if kind is Insert:
                events[element] = held(element, 0) + 1  # type: ignore[index, arg-type]
            elif kind is Adjust:
                payload, vs = element.payload, element.vs  # type: ignore[union-attr]
                old = Insert(payload, vs, element.vold)  # type: ignore[union-attr]
                if times := held(old, 0):
                    if times > 1:
                        events[old] = times - 1
                    else:
                        del events[old]
                if element.ve > vs:  # type: ignore[union-attr]
                    new = Insert(payload, vs, element.ve)  # type: ignore[union-attr]
                    events[new] = held(new, 0) + 1
            elif element.vc > self.stable:  # type: ignore[union-attr]
                self.stable = element.vc  # type: ignore[union-attr]

    def _sweep(self) -> None:
        """Lets go of what is final."""
        if self._swept:
            return
        self._fold_recent()
        stable = self.stable
        if stable == INFINITY:
            self._events = {}
        elif stable > START:
            self._events = {e: n for e, n in self._events.items() if e.ve >= stable}
        self._most, self._swept = 2 * len(self._events) + _SLACK, True

    def state(self) -> Any:
        """What msgpack can carry of it.

        Raises:
            StateError: a payload is of a kind that would not come back as it was.
        """
        events = self.counted().items()
        return [self.stable, [[portable(e.payload), e.vs, e.ve, n] for e, n in events]]

    @classmethod
    def loaded(cls, state: Any) -> "LiveEvents":
        """What `state` was made of."""
        stable, events = state
        live = cls(stable=stable)
        live._events = {Insert(hashable(p), vs, ve): n for p, vs, ve, n in events}
        live._most = 2 * len(events) + _SLACK
        return live

    def copy(self) -> "LiveEvents":
        """One that goes on by itself. Complexity: O(entries), a copy of a table."""
        live = LiveEvents(stable=self.stable)
        live._events, live._most = self.counted().copy(), self._most
        return live

    def check(self) -> None:
        """Asserts V1 and V2."""
        events, stable = self._events, self.stable
        assert self.entries <= max(self._most, _SLACK), "V2: too much is kept"
        assert self._size == sum(len(batch) for batch, _ in self._recent), "V2: miscounted"
        assert all(times > 0 for times in events.values()), "V1: an event is there no more"
        assert all(e.vs < e.ve for e in events), "V1: an event has no length"
        assert stable < INFINITY or not events, "V1: events are left behind the end"
