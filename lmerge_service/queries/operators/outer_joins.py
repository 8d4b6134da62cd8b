"""Outer joins: an inner join, and what has no partner.

Meaning
    inner ∪ project(anti-join, pad) for each side that is kept: left, right, or both. That is their
    definition too: an event without a partner in part of its lifetime comes out padded for that
    part, cut where partners come and go.
State
    That of a join, and of an anti-join for each side that is kept.
Stable
    The least of the inputs'.
Retention
    Those of its parts.  need(T) = T, but a padded row that covers T may begin at another time
    below it.
Cost
    The sum of its parts'.

    >>> from lmerge_service.elements import Stable
    >>> first = lambda payload: payload[0]
    >>> left = OuterJoin(first, first, combine=lambda p, q: p + q[1:],
    ...                  left_only=lambda p: (*p, None))
    >>> left.process(Insert(("k", 1), 2, 6))
    [Insert(payload=('k', 1, None), vs=2, ve=6)]
    >>> for element in left.process(Insert(("k", 7), 4, 9), port=1): print(element)
    Adjust(payload=('k', 1, None), vs=2, vold=6, ve=4)
    Insert(payload=('k', 1, 7), vs=4, ve=6)
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from lmerge_service.elements import Adjust, Insert
from lmerge_service.queries.netting import Data
from lmerge_service.queries.operators.joins import Join, pair
from lmerge_service.queries.operators.protocol import Changes
from lmerge_service.queries.operators.reversible import Reversible, inverse
from lmerge_service.queries.operators.semijoins import AntiJoin

__all__ = ("OuterJoin",)

Pad = Callable[[Any], Hashable]


class _Part(NamedTuple):
    operator: Join | AntiJoin
    turned: bool
    """Whether its left side is our right one."""
    pad: Pad | None


class OuterJoin(Reversible):
    """The outer join of a left (port 0) and a right input (port 1).

    `left_only` makes the payload of a left event that has no partner, `right_only` of a right one;
    a side without is not padded: with neither it is the inner join. The other arguments are those
    of `Join`. All are pure functions.
    """

    __slots__ = ("_parts",)

    ports = 2

    def __init__(
        self,
        left_key: Callable[[Any], Hashable],
        right_key: Callable[[Any], Hashable],
        residual: Callable[[Any, Any], object] | None = None,
        combine: Callable[[Any, Any], Hashable] = pair,
        left_only: Pad | None = None,
        right_only: Pad | None = None,
    ) -> None:
        super().__init__()
        self._parts = [_Part(Join(left_key, right_key, residual, combine), False, None)]
        if left_only is not None:
            alone = AntiJoin(left_key, right_key, residual)
            self._parts.append(_Part(alone, False, left_only))
        if right_only is not None:
            turned = None if residual is None else _turned(residual)
            alone = AntiJoin(right_key, left_key, turned)
            self._parts.append(_Part(alone, True, right_only))

    def __len__(self) -> int:
        return sum(len(part.operator) for part in self._parts)

    def check(self) -> None:
        """Asserts the invariants of its parts, and that they have its stable points."""
        super().check()
        for operator, turned, _ in self._parts:
            operator.check()
            assert operator.stables == self.stables[:: -1 if turned else 1], "a part is behind"

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        self._apply(element, port, changes)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        self._apply(element, port, changes)

    def _apply(self, element: Data, port: int, changes: Changes) -> None:
        """Applies an element to all parts, or to none if one refuses it or user code raises."""
        applied: list[_Part] = []
        found: Changes = []
        try:
            for part in self._parts:
                given: Changes = []
                _give(part, element, port, given)
                if part.operator.refused:
                    ((_, kind, _),) = part.operator.refused
                    part.operator.refused.clear()
                    self._take_back_from(applied, element, port)
                    self._refuse(port, kind, element)
                    return
                applied.append(part)
                found += given if part.pad is None else _padded(given, part.pad)
        except Exception:
            self._take_back_from(applied, element, port)
            raise
        finally:
            self.touched = sum(part.operator.touched for part in self._parts)
        changes += found

    def _take_back_from(self, parts: list[_Part], element: Data, port: int) -> None:
        for part in parts:
            _give(part, inverse(element), port, [])

    def _advance(self, changes: Changes) -> int:
        for operator, turned, pad in self._parts:
            given: Changes = []
            operator.stables = self.stables[:: -1 if turned else 1]
            operator.stable = operator._advance(given)
            changes += given if pad is None else _padded(given, pad)
        self.touched = sum(part.operator.touched for part in self._parts)
        return min(self.stables)

    def _state(self) -> Any:
        return [part.operator.snapshot() for part in self._parts]

    def _load(self, state: Any) -> None:
        for part, saved in zip(self._parts, state, strict=True):
            part.operator.restore(saved)


def _give(part: _Part, element: Data, port: int, changes: Changes) -> None:
    into = 1 - port if part.turned else port
    if type(element) is Insert:
        part.operator._insert(element, into, changes)
    else:
        part.operator._adjust(element, into, changes)  # type: ignore[arg-type]


def _padded(changes: Changes, pad: Pad) -> Changes:
    return [
        Insert(pad(e.payload), e.vs, e.ve)
        if type(e) is Insert
        else Adjust(pad(e.payload), e.vs, e.vold, e.ve)  # type: ignore[union-attr]
        for e in changes
    ]


def _turned(residual: Callable[[Any, Any], object]) -> Callable[[Any, Any], object]:
    return lambda right, left: residual(left, right)
