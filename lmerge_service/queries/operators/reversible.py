"""Operators that take a batch back when user code raises in the midst of it (promise Q10).

Theory
    Every element has an inverse: an insert is taken back by a removal, a removal by an insert, any
    other adjust by the adjust the other way. So an operator whose state is a function of its
    inputs' TDBs goes back to where it was by the inverses of what it had applied, last first. That
    costs nothing while all goes well. The user's functions are pure: called before with the same
    arguments they returned, so they return again.

    >>> inverse(Adjust("a", 1, 5, 9)), inverse(Adjust("a", 1, 5, 1)), inverse(Insert("a", 1, 5))
    (Adjust(payload='a', vs=1, vold=9, ve=5), Insert(payload='a', vs=1, ve=5), \
Adjust(payload='a', vs=1, vold=5, ve=1))
"""

from collections.abc import Iterable
from operator import length_hint
from typing import Any

from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.queries.netting import Data
from lmerge_service.queries.operators.protocol import Changes, Operator

__all__ = ("Reversible", "inverse")


class Reversible(Operator):
    """An operator that applies a batch whole or not at all; the user's functions are called by
    `_insert` and `_adjust`, before these change the state."""

    __slots__ = ()

    def process_batch(self, elements: Iterable[Element], port: int = 0) -> list[Element]:
        """As for every operator."""
        batch = elements if isinstance(elements, list) else list(elements)
        left, refused = iter(batch), len(self.refused)
        try:
            return super().process_batch(left, port)
        except Exception:
            applied = batch[: len(batch) - length_hint(left) - 1]
            self._take_back(applied, port, refused)
            raise

    def _take_back(self, applied: list[Element], port: int, refused: int) -> None:
        without = {id(element) for _, _, element in self.refused[refused:]}
        changes: Changes = []
        for element in reversed(applied):
            if type(element) is Stable or id(element) in without:
                continue
            undone = inverse(element)  # type: ignore[arg-type]
            if type(undone) is Insert:
                self._insert(undone, port, changes)
            else:
                self._adjust(undone, port, changes)  # type: ignore[arg-type]
        self._settle(changes)
        del self.refused[refused:]


def inverse(element: Data) -> Data:
    """What takes the change of `element` back."""
    payload: Any = element.payload
    if type(element) is Insert:
        return Adjust(payload, element.vs, element.ve, element.vs)
    assert type(element) is Adjust
    if element.ve == element.vs:
        return Insert(payload, element.vs, element.vold)
    return Adjust(payload, element.vs, element.ve, element.vold)
