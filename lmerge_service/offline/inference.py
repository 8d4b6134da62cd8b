"""What one recorded stream shows of itself: which restrictions it breaks, and where first.

Theory
    Every restriction of III-C but one can be judged element by element. An adjust breaks those
    that allow inserts only, an insert below an earlier vs those on order; a key needs the events
    that are there, but only those that can still meet another:

    >>> x = Inference("x")
    >>> x.take("x:1", Insert("A", 7, 9)), x.take("x:2", Stable(20))   # A is final: forgotten
    (True, True)
    >>> x.take("x:3", Insert("B", 30, 40)), x.take("x:4", Insert("B", 30, 50))
    (True, True)
    >>> print(x.breaks[Restriction.KEY], x.max_live)
    x:4: second insert of the payload at vs 30 2

    What is not legal where it stands is counted and left out; but an adjust counts as one, legal
    or not.

Invariants
    I1  The elements before a first break obey the restriction, those up to it don't.
    I2  An event is forgotten once every partition's stable has passed its end: from then on it is
        fully frozen, so no legal adjust can touch it and, as vs < ve, no legal insert can share
        its key.

Cost
    O(lg w) per element, for w live events; memory for these. Of a topic they include what the
    slowest partition's stable has not passed: a partition that never sends a stable keeps all.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple

from lmerge_service.elements import START, Adjust, Element, Insert, Stable, defect
from lmerge_service.errors import IllegalStreamError
from lmerge_service.tdb import TDB, Event

__all__ = ("IN_ORDER", "Break", "Inference", "RecordedElement", "Restriction")


class Restriction(StrEnum):
    """What an element can break; `Case`s are sets of these."""

    LEGAL = "legal"
    NO_ADJUSTS = "no_adjusts"
    ORDERED = "ordered"
    STRICTLY_ORDERED = "strictly_ordered"
    KEY = "key"
    ONE_PARTITION = "one_partition"
    """No more than one partition of a topic holds events."""
    SAME_TIES = "same_ties"
    """Of several streams: the events of one vs come in the same order."""


IN_ORDER: Final = (Restriction.NO_ADJUSTS, Restriction.ORDERED, Restriction.ONE_PARTITION)
"""What cases R0 to R2 have in common."""


class RecordedElement(NamedTuple):
    """One recorded element."""

    where: str
    element: Element
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Break:
    """The first element that breaks a restriction."""

    where: str
    """file:line or topic[partition]@offset."""
    element: Element
    why: str
    number: int
    """How many elements of its stream were read before it."""

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


class Inference:
    """What one stream, or one topic with its partitions, has shown so far."""

    def __init__(self, name: str, partitions: int = 1) -> None:
        self.name = name
        self.partitions = partitions
        self.restarts = 0
        """How often the stream has started over."""
        self.begins: dict[int, int] = {}
        """By partition whose beginning is gone, the first offset that is left: it may go on with
        events that nobody has seen the inserts of."""
        self._begin()

    def _begin(self) -> None:
        self.inserts = 0
        self.adjusts = 0
        self.stables = 0
        self.illegal = 0
        """Elements that are not legal where they stand; counted by kind as well."""
        self.disordered = 0
        """Inserts below a vs that was there before, in the same partition."""
        self.max_disorder = 0
        """How far below, at the most, in the stream's unit of time."""
        self.breaks: dict[Restriction, Break] = {}
        self._keys = _Keys()
        self._streams = [_Live(self._keys) for _ in range(self.partitions)]
        self._last_vs: list[int | None] = [None] * self.partitions
        self._event_partition: int | None = None
        self._forgotten = START
        self.max_live = 0
        """Events not yet forgotten (I2), at the most."""
        self.max_multiplicity = 0
        """Such events with equal payload and vs, at the most."""

    def restart(self) -> None:
        """Forgets everything: the stream has started over, and only its last incarnation counts."""
        self._begin()
        self.restarts += 1

    @property
    def stable(self) -> int:
        """The lowest stable of the partitions."""
        return min(each.stable for each in self._streams)

    @property
    def orders_ties(self) -> bool:
        """So far the stream could obey R1, if only its ties come in the right order."""
        return not any(each in self.breaks for each in IN_ORDER)

    def first_break(self, needed: Iterable[Restriction]) -> Break | None:
        """The first element that breaks any of these."""
        found = [self.breaks[each] for each in needed if each in self.breaks]
        return min(found, key=lambda each: each.number, default=None)

    def take(self, where: str, element: Element, partition: int = 0) -> bool:
        """Advances by one element; whether it was legal."""
        number = self.inserts + self.adjusts + self.stables
        kind = type(element)
        if kind is Insert:
            self.inserts += 1
        elif kind is Adjust:
            self.adjusts += 1
            self._break(Restriction.NO_ADJUSTS, where, element, "an adjust", number)
        else:
            self.stables += 1
        if kind is Adjust and partition in self.begins:
            self._streams[partition].suppose(element)  # type: ignore[arg-type]
        try:
            self._streams[partition].apply(element)
        except IllegalStreamError as error:
            self.illegal += 1
            self._break(Restriction.LEGAL, where, element, str(error), number)
            return False
        if isinstance(element, Insert):
            self._judge_insert(where, element, partition, number)
        elif isinstance(element, Stable):
            self._forget()
        if not isinstance(element, Stable):
            self._judge_partition(where, element, partition, number)
        return True

    def _judge_insert(self, where: str, element: Insert[Any], partition: int, number: int) -> None:
        vs, before = element.vs, self._last_vs[partition]
        if before is None or vs > before:
            self._last_vs[partition] = vs
        elif vs == before:
            self._break(Restriction.STRICTLY_ORDERED, where, element, f"vs {vs} twice", number)
        else:
            why = f"vs {vs} after vs {before}"
            self._break(Restriction.ORDERED, where, element, why, number)
            self._break(Restriction.STRICTLY_ORDERED, where, element, why, number)
            self.disordered += 1
            self.max_disorder = max(self.max_disorder, before - vs)
        multiplicity = self._keys.counts[element.payload, vs]
        self.max_multiplicity = max(self.max_multiplicity, multiplicity)
        self.max_live = max(self.max_live, self._keys.live)
        if multiplicity > 1:
            why = f"second insert of the payload at vs {vs}"
            self._break(Restriction.KEY, where, element, why, number)

    def _judge_partition(self, where: str, element: Element, partition: int, number: int) -> None:
        if self._event_partition is None:
            self._event_partition = partition
        elif self._event_partition != partition:
            why = f"partition {partition} holds events beside partition {self._event_partition}"
            self._break(Restriction.ONE_PARTITION, where, element, why, number)

    def _forget(self) -> None:
        stable = self.stable
        if stable > self._forgotten:
            self._forgotten = stable
            for each in self._streams:
                each.forget(stable)

    def _break(
        self, broken: Restriction, where: str, element: Element, why: str, number: int
    ) -> None:
        if broken not in self.breaks:
            self.breaks[broken] = Break(where, element, why, number)


_SLACK: Final = 64


class _Keys:
    """How many live events each (payload, vs) has, over all partitions."""

    __slots__ = ("counts", "live")

    def __init__(self) -> None:
        self.counts: dict[tuple[Any, int], int] = {}
        self.live = 0

    def add(self, payload: Any, vs: int) -> None:
        self.live += 1
        self.counts[payload, vs] = self.counts.get((payload, vs), 0) + 1

    def drop(self, payload: Any, vs: int, count: int = 1) -> None:
        self.live -= count
        self.counts[payload, vs] -= count
        if not self.counts[payload, vs]:
            del self.counts[payload, vs]


class _Live(TDB):
    """The TDB of one partition, which forgets on demand.

    The heap holds the end of every live event. An adjust leaves an entry behind that no event
    may stand for any more; when these are the more, the heap is rebuilt.
    """

    __slots__ = ("_heap", "_keys", "_pushed")

    def __init__(self, keys: _Keys) -> None:
        super().__init__()
        self._keys = keys
        self._heap: list[tuple[int, int, Event]] = []
        self._pushed = 0  # decides between equal ends, since payloads need not be orderable

    def apply(self, element: Element) -> None:
        super().apply(element)
        match element:
            case Insert(payload, vs, ve):
                self._keys.add(payload, vs)
                self._push(Event(payload, vs, ve))
            case Adjust(payload, vs, _, ve) if ve > vs:
                self._push(Event(payload, vs, ve))
            case Adjust(payload, vs):
                self._keys.drop(payload, vs)

    def suppose(self, adjust: Adjust[Any]) -> None:
        """Holds the event that an adjust is of, which may have been inserted before what is read,
        if that makes the adjust legal and nothing is known of such an event."""
        payload, vs = adjust.payload, adjust.vs
        event = Event(payload, vs, adjust.vold)
        if defect(adjust) or (payload, vs) in self._keys.counts or adjust.vold < self.stable:
            return
        self._events[event] += 1
        self._keys.add(payload, vs)
        self._push(event)

    def forget(self, stable: int) -> None:
        """Lets go of what is fully frozen by then."""
        heap = self._heap
        while heap and heap[0][0] < stable:
            _, _, event = heappop(heap)
            if count := self._events.pop(event, 0):
                self._keys.drop(event.payload, event.vs, count)

    def _push(self, event: Event) -> None:
        self._pushed += 1
        heappush(self._heap, (event.ve, self._pushed, event))
        if len(self._heap) > 2 * len(self._events) + _SLACK:
            self._heap = [(each.ve, number, each) for number, each in enumerate(self._events)]
            heapify(self._heap)
