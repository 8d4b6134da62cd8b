"""LMR0: inserts with strictly increasing vs (the paper's Algorithm R0).

Theory
    Every vs occurs once, so the highest one seen separates new from old (lines 3-5):

        a: insert(A,1,5)   -> insert(A,1,5)     max_vs = 1
        b: insert(A,1,5)   ->                   not above max_vs: a copy
        b: insert(B,3,9)   -> insert(B,3,9)     max_vs = 3
        a: stable(4)       -> stable(4)
        b: insert(C,3,8)   ->                   b steps back in time: a breach

Beyond the paper
    An insert below max_stable is dropped: as printed the algorithm emits it when an input misses
    elements, or sends a stable during a lull. The last event is kept, so that an input which has
    another one at its vs is detected.

Invariants
    K1 and K2 (`ordered`).

Cost
    O(1) an element, O(1) memory.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.case import Case
from lmerge_service.core.inputs import Input
from lmerge_service.core.ordered import Ordered
from lmerge_service.core.policy import Policy
from lmerge_service.elements import Element, Insert

__all__ = ("LMR0",)


class LMR0(Ordered):
    """Algorithm R0; see the module's text.

    >>> merge = LMR0()
    >>> merge.attach("a"); merge.attach("b")
    >>> merge.process("a", Insert("A", 1, 5)), merge.process("b", Insert("A", 1, 5))
    ([Insert(payload='A', vs=1, ve=5)], [])
    """

    case = Case.R0

    def __init__(self, policy: Policy = Policy()) -> None:
        super().__init__(policy)
        self._last: Insert[Any] | None = None

    def _kept(self) -> int:
        return int(self._last is not None)

    def _take(self, source: Input, element: Insert[Any], out: list[Element]) -> None:
        if self._last is None:
            self._last = element
            self._emit(source, element, out)
        elif element != self._last:
            self._blame(source, BreachKind.BROKE_CASE, element)

    def _clear(self) -> None:
        self._last = None

    def _repeats(self, element: Insert[Any]) -> bool:
        return True

    def _is_new(self, source: Input, element: Insert[Any]) -> bool:
        return self._last is None

    def _load(self, element: Insert[Any], contributing_inputs: Sequence[Input] = ()) -> None:
        self._last = element

    def _events(self) -> Iterator[tuple[Insert[Any], Sequence[Input]]]:
        if self._last is not None:
            yield self._last, ()
