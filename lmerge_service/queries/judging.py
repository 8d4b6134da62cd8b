"""The judge of a merge, element by element, over streams that are longer than it remembers.

Theory
    `tdb.compatibility` (conditions C1 to C3) and, without keys, `tdb.multiset_compatibility` decide
    key by key. An element concerns its own key and those that the merge emits for it; a stable
    concerns all keys that are open: of which some stream has an event that is not final. A key that
    is final everywhere has been judged and is forgotten.

    >>> from lmerge_service.elements import Insert, Stable
    >>> judge = Judge(2, Case.R3)
    >>> judge.received(0, Insert("A", 6, 20)), judge.emitted(Insert("A", 6, 20)), judge.broken()
    (None, None, [])
    >>> judge.received(1, Stable(8)), judge.broken()
    (None, [])
    >>> judge.emitted(Stable(8)), judge.broken()  # doctest: +ELLIPSIS
    (None, ["C2: ('A', 6) is [20] in the output, [(20, -...)] in the inputs"])

Invariants
    J1  It finds what the whole TDBs, compared after every element, would show.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeAlias

from lmerge_service.core import Case
from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB, compatibility, multiset_compatibility

__all__ = ("Judge",)

_Key: TypeAlias = tuple[Hashable, int]


class Judge:
    """Judges the output of a merge of so many inputs under a case."""

    def __init__(self, inputs: int, case: Case) -> None:
        self._inputs = [_View() for _ in range(inputs)]
        self._output = _View()
        self._keyless = case in (Case.R1, Case.R4)
        self._touched: set[_Key] = set()
        self._open: set[_Key] = set()
        self._moved = False

    def received(self, number: int, element: Element) -> None:
        """An input has sent an element."""
        self._take(self._inputs[number], element)

    def emitted(self, element: Element) -> None:
        """The merge has emitted one."""
        self._take(self._output, element)

    def _take(self, view: "_View", element: Element) -> None:
        if type(element) is Stable:
            self._moved = True
        else:
            key = (element.payload, element.vs)  # type: ignore[union-attr]
            self._touched.add(key)
            self._open.add(key)
        view.apply(element)

    def broken(self) -> list[str]:
        """What the output breaks, now that the merge has emitted all for what it received."""
        keys = self._open if self._moved else self._touched
        leading = max(self._inputs, key=lambda view: view.stable)
        output = self._output.of(keys)
        if self._keyless:
            broken = multiset_compatibility(leading.of(keys), output)
            if output.stable != leading.stable:
                broken.append(
                    f"stable({output.stable}) where the leading input's is {leading.stable}"
                )
        else:
            broken = compatibility([view.of(keys) for view in self._inputs], output)
        if self._moved:
            self._forget()
        self._touched, self._moved = set(), False
        return broken

    def _forget(self) -> None:
        views = (*self._inputs, self._output)
        point = min(view.stable for view in views)
        final = [key for key in self._open if all(view.is_final(key, point) for view in views)]
        for key in final:
            self._open.discard(key)
            for view in views:
                view.ends.pop(key, None)


class _View:
    """The events of the keys of one stream that are open."""

    def __init__(self) -> None:
        self.stable = START
        self.ends: dict[_Key, Counter[int]] = {}

    def apply(self, element: Element) -> None:
        match element:
            case Insert(payload, vs, ve):
                self.ends.setdefault((payload, vs), Counter())[ve] += 1
            case Adjust(payload, vs, vold, ve):
                ends = self.ends.setdefault((payload, vs), Counter())
                ends[vold] -= 1
                ends[ve] += ve > vs
            case Stable(vc):
                self.stable = vc

    def of(self, keys: Iterable[_Key]) -> TDB:
        found = [(key, ends) for key in keys if (ends := self.ends.get(key))]
        return TDB(((*key, ve) for key, ends in found for ve in (+ends).elements()), self.stable)

    def is_final(self, key: _Key, point: int) -> bool:
        return key[1] < point and all(ve < point for ve in +self.ends.get(key, Counter()))
