"""Cleanse: makes any stream an ordered one of final events, so that the simplest merge will do.

Theory
    Case R1 needs inserts in order of vs, equal vs in the same order everywhere, and no adjust.
    Any stream becomes one when its events are held back until they are fully frozen and are then
    released in order (paper VI-D). A final event waits for the ones that start before it and are
    still open, and so does the output's stable: it stops at the first vs that is held.

        insert(A,2,5)       ->
        adjust(A,2,5→9)     ->
        insert(B,3,4)       ->
        stable(6)           -> stable(2)                        B is final, A is not
        stable(10)          -> insert(A,2,9), insert(B,3,4), stable(10)

    A Cleanse at each input of LMR1 is an alternative to LMR3 and LMR4: every input holds payloads
    of its own, and no event is emitted before its end is final.

Order of ties
    Replicas must release equal vs alike, whatever arrived first, and payloads need not be
    orderable. Events that start together leave together, sorted by `order(payload)`, those of
    one payload by their ends. An order is sound when it gives equal keys to equal payloads and
    to no others, in every process. `by_text` is, for bytes and str, compared as such (canonical
    JSON is bytes), and for types whose equal values have one repr. It is not for 1 beside 1.0,
    which are equal, nor where a repr shows an address or the order of a set: give an order then.

What a stream may not send
    is ignored and counted in `ignored`: what its own stable had made final, an adjust of an event
    or an end that is not held, a stable that falls. So the output is legal whatever comes in.

Invariants
    C1  The output has inserts and stables only, in order of vs, and stable_out <= stable.
    C2  No held event starts before stable_out, and the first held one starts there if
        stable_out < stable.
    C3  Every held vs is in the heap once.
    C4  Each event of a vs below `stable` waits for one, itself perhaps, that ends at `stable` or
        later and starts no later.

Cost
    insert O(1), and O(lg w) for a new vs; adjust O(1). A stable that releases nothing costs O(1),
    and if the longest event among the first to start was revised since, O(events that start
    there); each released event costs O(lg w), and a key of `order`. Memory: every event that is
    not final or started after one that is not, payload included, for each input again.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from heapq import heappop, heappush
from typing import Any

from lmerge_service.core.base import LMerge
from lmerge_service.core.breaches import BreachKind
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable

__all__ = ("Cleanse", "Cleansed", "by_text")


def by_text(payload: Hashable) -> tuple[str, Any]:
    """The default order of ties: by type, then bytes and str as such, other payloads by repr.

    >>> sorted([b"b", "c", 10, b"a", 9], key=by_text)
    [b'a', b'b', 10, 9, 'c']
    """
    kind = type(payload)
    return kind.__name__, payload if kind is bytes or kind is str else repr(payload)


class Cleanse:
    """Orders one stream; see the module's text. (payload, vs) need not be a key.

    >>> cleanse = Cleanse()
    >>> cleanse.process(Insert("B", 4, 6)), cleanse.process(Insert("A", 2, 5))
    ([], [])
    >>> cleanse.process(Stable(7))  # doctest: +NORMALIZE_WHITESPACE
    [Insert(payload='A', vs=2, ve=5), Insert(payload='B', vs=4, ve=6), Stable(vc=7)]
    """

    __slots__ = ("_ends", "_held", "_open_until", "_order", "_starts", "ignored", "stable",
                 "stable_out")  # fmt: skip

    def __init__(self, order: Callable[[Any], Any] = by_text):
        self.stable = START
        """The input's stable point."""
        self.stable_out = START
        """The output's."""
        self.ignored: Counter[BreachKind] = Counter()
        self._order = order
        self._ends: dict[int, dict[Hashable, list[int]]] = {}  # vs -> payload -> ends
        self._starts: list[int] = []  # a heap of the keys of _ends
        self._held = 0
        self._open_until = START  # an end among the first to start; none of them ends later

    def __len__(self) -> int:
        """The number of held events."""
        return self._held

    def process(self, element: Element) -> list[Element]:
        """Takes one element; returns what may be released, often nothing."""
        return self.process_batch((element,))

    def process_batch(self, elements: Iterable[Element]) -> list[Element]:
        """The same for many elements, in order."""
        out: list[Element] = []
        insert, adjust = self._insert, self._adjust
        for element in elements:
            kind = type(element)
            if kind is Insert:
                insert(element)  # type: ignore[arg-type]
            elif kind is Adjust:
                adjust(element)  # type: ignore[arg-type]
            else:
                self._stable(element, out)  # type: ignore[arg-type]
        return out

    def _insert(self, element: Insert[Any]) -> None:
        vs = element.vs
        if vs < self.stable:
            self.ignored[BreachKind.BROKE_OWN_STABLE] += 1
            return
        self._held += 1
        together = self._ends.get(vs)
        if together is None:
            self._ends[vs] = {element.payload: [element.ve]}
            heappush(self._starts, vs)
        elif (ends := together.get(element.payload)) is None:
            together[element.payload] = [element.ve]
        else:
            ends.append(element.ve)

    def _adjust(self, element: Adjust[Any]) -> None:
        vs, vold, ve = element.vs, element.vold, element.ve
        if vold < self.stable or ve < self.stable:
            self.ignored[BreachKind.BROKE_OWN_STABLE] += 1
            return
        together = self._ends.get(vs, {})
        ends = together.get(element.payload)
        if ends is None:
            self.ignored[BreachKind.UNKNOWN_EVENT] += 1
            return
        if vold not in ends:
            self.ignored[BreachKind.WRONG_VOLD] += 1
            return
        ends.remove(vold)
        if ve > vs:
            ends.append(ve)
        else:
            self._held -= 1
            if not ends:
                del together[element.payload]
        if vold == self._open_until:
            self._open_until = START

    def _stable(self, element: Stable, out: list[Element]) -> None:
        c = element.vc
        if c < self.stable:
            self.ignored[BreachKind.STABLE_REGRESSION] += 1
            return
        self.stable = c
        starts = self._starts
        while starts and starts[0] < c and not self._is_first_open():
            self._release_first(out)
        reached = min(c, starts[0]) if starts else c
        if reached > self.stable_out:
            self.stable_out = reached
            out.append(Stable(reached))

    def _is_first_open(self) -> bool:
        """Whether one of the events that start first is not final yet."""
        if self.stable == INFINITY:
            return False
        if self._open_until < self.stable:
            together = self._ends[self._starts[0]]
            self._open_until = max(map(max, together.values()), default=START)
        return self._open_until >= self.stable

    def _release_first(self, out: list[Element]) -> None:
        vs = heappop(self._starts)
        together = self._ends.pop(vs)
        for payload in sorted(together, key=self._order) if len(together) > 1 else together:
            ends = together[payload]
            out.extend(Insert(payload, vs, ve) for ve in sorted(ends))
            self._held -= len(ends)
        self._open_until = START

    def check(self) -> None:
        """Asserts C1 to C4, as far as the state shows them."""
        held = [
            (vs, ve)
            for vs, together in self._ends.items()
            for ends in together.values()
            for ve in ends
        ]
        assert len(held) == self._held, f"{self._held} events counted, {len(held)} held"
        assert sorted(self._starts) == sorted(self._ends), "C3: heap and index differ"
        assert self.stable_out <= self.stable, "C1: the output is ahead of the input"
        assert all(vs >= self.stable_out for vs, _ in held), "C2: the output passed a held event"
        if self.stable_out < self.stable:
            assert self.stable_out == min(held)[0], "C2: the output waits for nothing"
        open_starts = [vs for vs, ve in held if ve >= self.stable]
        if self.stable == INFINITY or not open_starts:
            assert all(vs >= self.stable for vs, _ in held), "C4: a final event is held"
        else:
            blocked = min(open_starts)
            waiting = [vs for vs, _ in held if vs < self.stable]
            assert all(vs >= blocked for vs in waiting), "C4: an event waits for none"


class Cleansed:
    """A merge with a Cleanse at each input: the paper's C+LMR1, given an operator of case R1.

    Time and memory are those of the operator and of a Cleanse per input.
    """

    def __init__(self, merge: LMerge, order: Callable[[Any], Any] = by_text):
        self.merge = merge
        self.cleanses: dict[str, Cleanse] = {}
        self._order = order

    def __len__(self) -> int:
        """The number of events held, by the inputs and by the merge."""
        return len(self.merge) + sum(map(len, self.cleanses.values()))

    def attach(self, name: str, joining_at: int = START) -> None:
        """Adds an input, or begins a new incarnation of it, of which the old one is no part."""
        self.merge.attach(name, joining_at)
        self.cleanses[name] = Cleanse(self._order)

    def detach(self, name: str) -> list[Element]:
        """Removes an input and what it had not released."""
        out = self.merge.detach(name)
        del self.cleanses[name]
        return out

    def process(self, name: str, element: Element) -> list[Element]:
        """Takes one element of an input; returns what the output emits."""
        return self.process_batch(name, (element,))

    def process_batch(self, name: str, elements: Iterable[Element]) -> list[Element]:
        """The same for many elements of one input, in order."""
        cleanse = self.cleanses.get(name)
        released = elements if cleanse is None else cleanse.process_batch(elements)
        return self.merge.process_batch(name, released)
