"""What LMerge is measured against: a merge that counts, and R3 with an index per input.

Theory
    *Counting* (paper I). If all inputs send the same sequence, whichever is ahead leads: the
    k-th element is emitted when the first input sends its k-th. One input that missed one
    element is enough to break it:

        a: p, q      -> p, q
        b: q, r, s   -> s           b's third is taken for the third of all: r is lost
        a: r, s      -> s           and s comes twice

    *LMR3−* (paper VI-A). Each input's events lie in an index of their own, ordered by vs, and the
    output's in another: to know what was emitted, and to adjust it before a stable. The output
    is that of LMR3 under its default policy; the cost is not: an event is stored once for every
    input, payload included, and a stable looks at each event of the output that starts before
    it, and at the leader's version of it.

What an input may not send
    The counting merge does not detect it, and emits it too. LMR3− ignores it, and counts it in
    `ignored`; where inputs disagree on what is half frozen the output stays as it is, so that it
    is legal whatever they do.

Invariants, of LMR3−
    B1  Each event of an input is on the output.
    B2  Events of the output that start before max_stable end there or later.

Cost, of LMR3−
    w live events, of which h start before the stable, n inputs: insert and adjust
    O(lg w) twice; stable O(h lg w), and O(n lg w) for each event that becomes final. Memory
    O(n w payload).
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

from sortedcontainers import SortedDict

from lmerge_service.core.breaches import BreachKind
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable

__all__ = ("CountingMerge", "LMR3Minus")


class CountingMerge:
    """Follows whichever input has sent most; right only while no input misses or adds anything.

    >>> merge = CountingMerge()
    >>> merge.attach("a"); merge.attach("b")
    >>> merge.process("a", Insert("p", 1, 2)), merge.process("b", Insert("p", 1, 2))
    ([Insert(payload='p', vs=1, ve=2)], [])
    """

    def __init__(self) -> None:
        self._received: dict[str, int] = {}
        self._emitted = 0

    def attach(self, name: str) -> None:
        """Adds an input that is about to send its first element."""
        self._received[name] = 0

    def process(self, name: str, element: Element) -> list[Element]:
        """Takes one element of an input. Complexity: O(1)."""
        self._received[name] += 1
        if self._received[name] <= self._emitted:
            return []
        self._emitted += 1
        return [element]


class _Index:
    """The live events of one stream in order of vs; (payload, vs) is a key."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: SortedDict = SortedDict()  # vs -> payload -> end

    def __len__(self) -> int:
        return sum(map(len, self._ends.values()))

    def get(self, vs: int, payload: Hashable) -> int | None:
        """The end of an event, if it is there. Complexity: O(1)."""
        together = self._ends.get(vs)
        return None if together is None else together.get(payload)

    def put(self, vs: int, payload: Hashable, ve: int) -> None:
        """Adds an event, or gives it another end. Complexity: O(1), O(lg w) for a new vs."""
        together = self._ends.get(vs)
        if together is None:
            self._ends[vs] = {payload: ve}
        else:
            together[payload] = ve

    def drop(self, vs: int, payload: Hashable) -> None:
        """Forgets an event, if it is there."""
        together = self._ends.get(vs)
        if together is not None and together.pop(payload, None) is not None and not together:
            del self._ends[vs]

    def before(self, t: int) -> list[tuple[int, Hashable, int]]:
        """(vs, payload, ve) of the events with vs < t, by vs."""
        return [
            (vs, payload, ve)
            for vs in self._ends.irange(maximum=t, inclusive=(True, False))
            for payload, ve in self._ends[vs].items()
        ]


class LMR3Minus:
    """The paper's LMR3−: emits what LMR3 emits, from an index per input; see the module's text.

    >>> merge = LMR3Minus()
    >>> merge.attach("a"); merge.attach("b")
    >>> merge.process("a", Insert("A", 6, 12)), merge.process("b", Insert("A", 6, 15))
    ([Insert(payload='A', vs=6, ve=12)], [])
    >>> merge.process("b", Stable(13))
    [Adjust(payload='A', vs=6, vold=12, ve=15), Stable(vc=13)]
    """

    def __init__(self) -> None:
        self.max_stable = START
        self.ignored: Counter[BreachKind] = Counter()
        self._stables: dict[str, int] = {}
        self._inputs: dict[str, _Index] = {}
        self._output = _Index()

    def __len__(self) -> int:
        """The number of live events of the output."""
        return len(self._output)

    def attach(self, name: str) -> None:
        """Adds an input that is correct from the beginning of time, or a new incarnation of it."""
        self._inputs[name] = _Index()
        self._stables[name] = START

    def detach(self, name: str) -> None:
        """Removes an input and all that it held. Complexity: O(1)."""
        del self._inputs[name], self._stables[name]

    def process(self, name: str, element: Element) -> list[Element]:
        """Takes one element of an input; returns what the output emits, often nothing."""
        return self.process_batch(name, (element,))

    def process_batch(self, name: str, elements: Iterable[Element]) -> list[Element]:
        """The same for many elements of one input, in order."""
        out: list[Element] = []
        index, own_stable = self._inputs[name], self._stables[name]
        for element in elements:
            kind = type(element)
            if kind is Insert:
                if element.vs < own_stable:  # type: ignore[union-attr]
                    self.ignored[BreachKind.BROKE_OWN_STABLE] += 1
                else:
                    self._insert(index, element, out)  # type: ignore[arg-type]
            elif kind is Adjust:
                if element.vold < own_stable or element.ve < own_stable:  # type: ignore[union-attr]
                    self.ignored[BreachKind.BROKE_OWN_STABLE] += 1
                else:
                    self._adjust(index, element)  # type: ignore[arg-type]
            elif element.vc < own_stable:  # type: ignore[union-attr]
                self.ignored[BreachKind.STABLE_REGRESSION] += 1
            else:
                own_stable = self._stables[name] = element.vc  # type: ignore[union-attr]
                if own_stable > self.max_stable:
                    self._freeze(index, own_stable, out)
        return out

    def _insert(self, index: _Index, element: Insert[Any], out: list[Element]) -> None:
        vs, payload = element.vs, element.payload
        if self._output.get(vs, payload) is None:
            if vs < self.max_stable:
                return  # late: the event is final, or final is that there is none
            self._output.put(vs, payload, element.ve)
            out.append(element)
        index.put(vs, payload, element.ve)

    def _adjust(self, index: _Index, element: Adjust[Any]) -> None:
        vs, payload = element.vs, element.payload
        if index.get(vs, payload) is None:
            if vs >= self.max_stable or self._output.get(vs, payload) is not None:
                self.ignored[BreachKind.UNKNOWN_EVENT] += 1
        elif element.ve > vs:
            index.put(vs, payload, element.ve)
        else:
            index.drop(vs, payload)

    def _freeze(self, leader: _Index, t: int, out: list[Element]) -> None:
        """Makes the output agree with the leader as far as stable(t) forces it."""
        for vs, payload, held in self._output.before(t):
            ve = self._followed(leader.get(vs, payload), vs, held, t)
            if ve != held:
                out.append(Adjust(payload, vs, held, ve))
            if ve < t or t == INFINITY:
                self._output.drop(vs, payload)
                for index in self._inputs.values():
                    index.drop(vs, payload)
            elif ve != held:
                self._output.put(vs, payload, ve)
        self.max_stable = t
        out.append(Stable(t))

    def _followed(self, end: int | None, vs: int, held: int, t: int) -> int:
        """The end of an event of the output, given the leader's; vs if it must go."""
        if end is None:
            return vs if vs >= self.max_stable else held
        forced = end >= self.max_stable and (end < t or held < t)
        return end if forced else held

    def check(self) -> None:
        """Asserts B1 and B2."""
        for name, index in self._inputs.items():
            for vs, payload, _ in index.before(INFINITY):
                assert self._output.get(vs, payload) is not None, f"B1: only {name} has {payload}"
        for vs, payload, ve in self._output.before(self.max_stable):
            assert ve >= self.max_stable, f"B2: {payload} at {vs} ended at {ve}"
