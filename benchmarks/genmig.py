"""GenMig: a plan hands over to another at one instant of the data (Krämer's thesis, chapter 29).

Theory
    Two plans that mean the same at every instant may share the work by time: what is valid before
    T is computed by the old one, from T on by the new one. T lies beyond whatever the old plan
    holds: the latest start of any input, a window, and a little more. Input across T is cut there;
    results that touch T from either side are put together again.

        T = 10        ins(p, 4, 13) at the input
        old plan      ins(p, 4, 10)             closed as soon as all inputs have come to T
        new plan      ins(p, 10, 13)
        output        ins(p, 4, 13)             fused

    The thesis' inputs are inserts in order; ours revise, too. Both versions of an interval are
    clipped, and what differs is the change: growth across T is an insert at T for the new plan.

Invariants
    G1  The output is legal, and means what the plans mean at every instant.
    G2  Where no payload is twice at one instant, it has the events of an uninterrupted plan.
    G3  Inside, clocks count halves, and T is odd: it is the end or start of nothing but the cut.

Needs
    Plans that are snapshot-reducible, windows upstream; ends of input no further than `width`
    behind a start; levels at which no row is open beyond its input (all but `ordered`).

Differences from Algorithms 25 to 27: progress is the inputs' stables, which for ordered inserts are
their starts; what starts behind T leaves at once, since our order is that of stables; and pairs
stay together until they are final, since an end may still move. Algorithm 27 as printed forgets
what waits in its maps at the end; here it is an error, since plans that mean the same leave none.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.queries.netting import net
from lmerge_service.queries.network import Network

__all__ = ("Fork", "Fuse", "GenMig", "doubled", "halved")

_Change: TypeAlias = "tuple[Any, int, int, int]"
"""An event's payload and start, its end before and after; an end that is the start: no event."""


class GenMig:
    """A network that hands over to another; sources take elements in whole units of time."""

    def __init__(self, network: Network) -> None:
        self.old: Network | None = network
        self.new: Network | None = None
        self.fuse: Fuse | None = None
        self.stable = START
        self._fork: Fork | None = None
        self._latest = START
        """The greatest start of any input."""
        self._last_end = START
        self._stables = {source: Stable(START) for source in network.sources}

    @property
    def is_done(self) -> bool:
        """Whether the new plan computes alone."""
        return self.old is None

    def __len__(self) -> int:
        """How many entries of state are held."""
        return sum(len(each) for each in (self.old, self.new, self.fuse) if each is not None)

    def migrate(self, new: Network, width: int) -> int:
        """Begins to hand over to a network without state; returns T, in halves of the unit. No
        event is longer than `width`.

        Raises:
            ValueError: one is, and lives at T; or nothing has come yet, so that T is not known.
        """
        if self._latest == START:
            raise ValueError("no input has begun: there is nothing to hand over")
        split = self._latest + 2 * width + 1
        if self._last_end >= split:
            end = self._last_end // 2
            raise ValueError(f"an input event ends at {end}, more than {width} behind all starts")
        self.new, self._fork, self.fuse = new, Fork(split), Fuse(split)
        for source in new.sources:
            self._migrated(source, *self._fork.divide([self._stables[source]]), new)
        return split

    def process_batch(self, source: str, elements: Iterable[Element]) -> list[Element]:
        """Elements of a source; returns what the output emits.

        Raises:
            ValueError: the plans do not mean the same at T.
        """
        given = [doubled(element) for element in elements]
        self._monitor(source, given)
        if self.new is None or self._fork is None:
            assert self.old is not None, "one of two plans computes"
            return halved(self.old.process_batch(source, given))
        before, after = self._fork.divide(given)
        return halved(self._migrated(source, before, after, self.new))

    def _monitor(self, source: str, given: list[Element]) -> None:
        for element in given:
            if type(element) is not Stable:
                self._latest = max(self._latest, element.vs)  # type: ignore[union-attr]
                self._last_end = max(self._last_end, element.ve)  # type: ignore[union-attr]
                continue
            self._stables[source] = element

    def _migrated(
        self, source: str, before: list[Element], after: list[Element], new: Network
    ) -> list[Element]:
        old, fuse = self.old, self.fuse
        emitted = old.process_batch(source, before) if old is not None else []
        after = new.process_batch(source, after)
        if fuse is None:
            return after
        if old is not None and old.stable == INFINITY:
            self.old = None
        fused = fuse.process(emitted, after)
        if self.is_done and new.stable > fuse.split and fuse.waiting:
            raise ValueError(f"at {fuse.split / 2} one of two plans has what the other has not")
        point = fuse.held_from(new.stable if old is None or self.is_done else old.stable)
        if self.is_done and point > fuse.last_end:
            self.fuse = None
        if point > self.stable:
            self.stable = point
            fused.append(Stable(point))
        return fused


class Fork:
    """Divides an input at T (Algorithm 26, and revisions)."""

    def __init__(self, split: int) -> None:
        self.split = split

    def divide(self, elements: Iterable[Element]) -> tuple[list[Element], list[Element]]:
        """What the old plan gets, and the new one.

        >>> Fork(9).divide([Insert("p", 4, 8), Adjust("p", 4, 8, 13), Stable(5)])
        ... # doctest: +NORMALIZE_WHITESPACE
        ([Insert(payload='p', vs=4, ve=8), Adjust(payload='p', vs=4, vold=8, ve=9), Stable(vc=5)],
         [Insert(payload='p', vs=9, ve=13), Stable(vc=9)])
        """
        split = self.split
        before: list[Element] = []
        after: list[Element] = []
        for element in elements:
            if type(element) is Stable:
                before.append(element if element.vc < split else Stable(INFINITY))
                after.append(Stable(max(element.vc, split)))
                continue
            payload, vs, old, new = _change(element)
            if vs < split:
                before += _changed(payload, vs, min(old, split), min(new, split))
            start = max(vs, split)
            after += _changed(payload, start, max(old, start), max(new, start))
        return before, after


class Fuse:
    """Puts results together that the cut has divided (Algorithm 27, and revisions)."""

    def __init__(self, split: int) -> None:
        self.split = split
        self.last_end = split
        """The greatest end of what has begun at T."""
        self.waiting: set[Hashable] = set()
        """Payloads of which more touches T on one side than on the other: not for long, if the
        plans mean the same and both live."""
        self._starts: defaultdict[Hashable, list[int]] = defaultdict(list)
        """Of the old plan's results that end at T, by payload, as they came."""
        self._ends: defaultdict[Hashable, list[int]] = defaultdict(list)
        """Of the new plan's results that start at T."""
        self._emitted: dict[Hashable, Counter[tuple[int, int]]] = {}

    def __len__(self) -> int:
        """How many results touch T."""
        return sum(len(each) for held in (self._starts, self._ends) for each in held.values())

    def held_from(self, stable: int) -> int:
        """The stable of the output, by that of a plan: what waits may begin before it."""
        alone = [self._starts[each][len(self._ends[each]) :] for each in self.waiting]
        return min([stable, *(start for starts in alone for start in starts)])

    def process(self, before: Iterable[Element], after: Iterable[Element]) -> list[Element]:
        """What the two plans emit; returns what the output does, without stables."""
        split = self.split
        changes: list[Element] = []
        touched: dict[Hashable, None] = {}
        for payload, vs, old, new in map(_change, _data(before)):
            if split in (old, new):
                touched[payload] = None
            if old == split:
                self._starts[payload].remove(vs)
            elif old > vs:
                changes.append(Adjust(payload, vs, old, vs))
            if new == split:
                self._starts[payload].append(vs)
            elif new > vs:
                changes.append(Insert(payload, vs, new))
        for payload, vs, old, new in map(_change, _data(after)):
            if vs > split:
                changes += _changed(payload, vs, old, new)
                continue
            touched[payload] = None
            if old > vs:
                self._ends[payload].remove(old)
            if new > vs:
                self._ends[payload].append(new)
                self.last_end = max(self.last_end, new)
        for payload in touched:
            changes += self._fused(payload)
        return net(changes)

    def _fused(self, payload: Hashable) -> Iterator[Element]:
        """What makes the output's events across T the pairs that there are."""
        starts, ends = self._starts[payload], self._ends[payload]
        if len(starts) == len(ends):
            self.waiting.discard(payload)
        else:
            self.waiting.add(payload)
        pairs = Counter(zip(starts, ends, strict=False))
        emitted = self._emitted.get(payload, Counter())
        self._emitted[payload] = pairs
        for vs, ve in (emitted - pairs).elements():
            yield Adjust(payload, vs, ve, vs)
        for vs, ve in (pairs - emitted).elements():
            yield Insert(payload, vs, ve)


def _data(elements: Iterable[Element]) -> Iterator[Insert[Any] | Adjust[Any]]:
    return (each for each in elements if type(each) is not Stable)  # type: ignore[misc]


def _change(element: Any) -> _Change:
    vold = element.vs if type(element) is Insert else element.vold
    return element.payload, element.vs, vold, element.ve


def _changed(payload: Any, vs: int, old: int, new: int) -> list[Element]:
    """The element that gives the event another end, if it is another."""
    if old == new:
        return []
    return [Insert(payload, vs, new) if old == vs else Adjust(payload, vs, old, new)]


_LEAST: Final = START // 2


def doubled(element: Element) -> Element:
    """The element by a clock that counts halves. Its times are finite, but for a stable's."""
    match element:
        case Insert(payload, vs, ve):
            return Insert(payload, 2 * vs, 2 * ve)
        case Adjust(payload, vs, vold, ve):
            return Adjust(payload, 2 * vs, 2 * vold, 2 * ve)
    return Stable(INFINITY if element.vc == INFINITY else 2 * max(element.vc, _LEAST))


def halved(elements: Iterable[Element]) -> list[Element]:
    """Elements by the clock of the input. What is odd is between two instants, and rounded up: of
    whole instants an interval has the same.

    >>> halved([Insert("p", 4, 343), Insert("p", 343, 344), Stable(345), Stable(INFINITY)])
    ... # doctest: +NORMALIZE_WHITESPACE
    [Insert(payload='p', vs=2, ve=172), Stable(vc=173), Stable(vc=9223372036854775807)]
    """
    found: list[Element] = []
    for element in elements:
        if type(element) is Stable:
            point = element.vc
            found.append(element if point == INFINITY else Stable(-(-point // 2)))
        else:
            payload, *times = _change(element)
            found += _changed(payload, *(-(-time // 2) for time in times))
    return found
