"""LMR1: inserts with non-decreasing vs, equal vs in the same order everywhere (Algorithm R1).

Theory
    Among events with the latest vs, max_vs, the j-th of one input is the j-th of every other. So
    a count per input of those it has inserted separates new from old: an input that gets beyond
    what is out brings a new one (lines 8-10). A higher vs restarts the counts:

        a: insert(A,1,5)   -> insert(A,1,5)     tied = A       a at 1, b at 0
        b: insert(A,1,5)   ->                                  a at 1, b at 1
        b: insert(B,1,5)   -> insert(B,1,5)     tied = A B     a at 1, b at 2
        a: insert(B,1,5)   ->                                  a at 2, b at 2
        a: insert(C,2,9)   -> insert(C,2,9)     tied = C       a at 1

Beyond the paper
    Counts alone do not detect inputs that differ: if one lacks an event at max_vs, the paper's
    algorithm emits another one twice and loses that one. Here the events at max_vs are kept, and
    an input that has another one at its place is detected: the element is a breach and does not
    count.

Invariants
    K1 and K2 (`ordered`).
    T1  `tied` are the output's events at max_vs, in order.
    T2  An input with front = max_vs, where that is not final, agrees with tied[:at_front].

Cost
    O(1) an element; memory O(g p + s), with g events at one vs, where the paper's is O(s).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.case import Case
from lmerge_service.core.inputs import Input
from lmerge_service.core.ordered import Ordered
from lmerge_service.core.policy import Policy
from lmerge_service.elements import Element, Insert

__all__ = ("LMR1",)


class LMR1(Ordered):
    """Algorithm R1; see the module's text.

    >>> merge = LMR1()
    >>> merge.attach("a"); merge.attach("b")
    >>> merge.process_batch("a", [Insert("A", 1, 5), Insert("A", 1, 5)])
    [Insert(payload='A', vs=1, ve=5), Insert(payload='A', vs=1, ve=5)]
    >>> merge.process_batch("b", [Insert("A", 1, 5), Insert("A", 1, 5), Insert("B", 1, 5)])
    [Insert(payload='B', vs=1, ve=5)]
    """

    case = Case.R1

    def __init__(self, policy: Policy = Policy()) -> None:
        super().__init__(policy)
        self._tied: list[Insert[Any]] = []

    def _kept(self) -> int:
        return len(self._tied)

    def _take(self, source: Input, element: Insert[Any], out: list[Element]) -> None:
        place = source.at_front
        if place == len(self._tied):
            self._tied.append(element)
            self._emit(source, element, out)
        elif self._tied[place] != element:
            self._blame(source, BreachKind.BROKE_CASE, element)
            return
        source.at_front = place + 1

    def _clear(self) -> None:
        self._tied = []

    def _repeats(self, element: Insert[Any]) -> bool:
        return False

    def _is_new(self, source: Input, element: Insert[Any]) -> bool:
        place = source.at_front if source.front == element.vs else 0
        return place == len(self._tied)

    def _load(self, element: Insert[Any], contributing_inputs: Sequence[Input] = ()) -> None:
        self._tied.append(element)

    def _events(self) -> Iterator[tuple[Insert[Any], Sequence[Input]]]:
        return ((element, ()) for element in self._tied)

    def check(self) -> None:
        super().check()
        assert all(each.vs == self.max_vs for each in self._tied), f"T1: {self._tied}"
        for source in self.inputs.values():
            if source.front == self.max_vs >= self.max_stable:
                assert source.at_front <= len(self._tied), f"T2: {source} is at {source.at_front}"
