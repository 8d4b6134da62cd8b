"""LMR2: inserts with non-decreasing vs, (vs, payload) is a key (the paper's Algorithm R2).

Theory
    Events with the latest vs, max_vs, may come in any order; a hash table by payload holds those
    that are out. A higher vs clears it (lines 5-10):

        a: insert(A,1,5)   -> insert(A,1,5)     tied = {A}
        b: insert(B,1,4)   -> insert(B,1,4)     tied = {A, B}
        b: insert(A,1,5)   ->                   a copy
        b: insert(C,2,3)   -> insert(C,2,3)     tied = {C}

Beyond the paper
    The table also records which inputs have the event, so that a second insert by one of them, and
    one with another end than is out, are detected.

Invariants
    K1 and K2 (`ordered`).
    T3  `tied` are the output's events at max_vs; every input that has contributed one is attached.

Cost
    O(s) an element, with s inputs; memory O(g (p + s)), with g events at one vs.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.case import Case
from lmerge_service.core.inputs import Input
from lmerge_service.core.ordered import Ordered
from lmerge_service.core.policy import Policy
from lmerge_service.elements import Element, Insert
from lmerge_service.tdb import Event

__all__ = ("LMR2",)


class _Tie:
    """An event at max_vs: its end on the output, and the inputs that have contributed it."""

    __slots__ = ("contributing_inputs", "ve")

    def __init__(self, ve: int, *contributing_inputs: Input) -> None:
        self.ve = ve
        self.contributing_inputs = list(contributing_inputs)


class LMR2(Ordered):
    """Algorithm R2; see the module's text.

    >>> merge = LMR2()
    >>> merge.attach("a"); merge.attach("b")
    >>> merge.process_batch("a", [Insert("A", 1, 5), Insert("B", 1, 4)])
    [Insert(payload='A', vs=1, ve=5), Insert(payload='B', vs=1, ve=4)]
    >>> merge.process_batch("b", [Insert("B", 1, 4), Insert("A", 1, 5), Insert("C", 1, 9)])
    [Insert(payload='C', vs=1, ve=9)]
    """

    case = Case.R2

    def __init__(self, policy: Policy = Policy()) -> None:
        super().__init__(policy)
        self._tied: dict[Hashable, _Tie] = {}

    def _kept(self) -> int:
        return len(self._tied)

    def _take(self, source: Input, element: Insert[Any], out: list[Element]) -> None:
        tie = self._tied.get(element.payload)
        if tie is None:
            self._tied[element.payload] = _Tie(element.ve, source)
            self._emit(source, element, out)
        else:
            self._repeat(source, element, tie)

    def _repeat(self, source: Input, element: Insert[Any], tie: _Tie) -> None:
        if source in tie.contributing_inputs:
            self._blame(source, BreachKind.DUPLICATE_KEY, element)
            return
        tie.contributing_inputs.append(source)
        if element.ve != tie.ve:
            kept = Event(element.payload, element.vs, tie.ve)
            self._blame(source, BreachKind.FROZEN_END_DISAGREES, element, kept)

    def _clear(self) -> None:
        self._tied = {}

    def _forget(self, source: Input) -> None:
        super()._forget(source)
        for tie in self._tied.values():
            if source in tie.contributing_inputs:
                tie.contributing_inputs.remove(source)

    def _repeats(self, element: Insert[Any]) -> bool:
        return element.payload in self._tied

    def _is_new(self, source: Input, element: Insert[Any]) -> bool:
        return not self._repeats(element)

    def _load(self, element: Insert[Any], contributing_inputs: Sequence[Input] = ()) -> None:
        self._tied[element.payload] = _Tie(element.ve, *contributing_inputs)

    def _events(self) -> Iterator[tuple[Insert[Any], Sequence[Input]]]:
        for payload, tie in self._tied.items():
            yield Insert(payload, self.max_vs, tie.ve), tie.contributing_inputs

    def check(self) -> None:
        super().check()
        attached = set(self.inputs.values())
        for payload, tie in self._tied.items():
            assert attached.issuperset(tie.contributing_inputs), (
                f"T3: {payload!r} is contributed by {tie.contributing_inputs}"
            )
