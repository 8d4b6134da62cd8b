"""Select, project and flat_map: what looks at one payload at a time.

Meaning
    select keeps the events whose payload satisfies a predicate, project puts a function of the
    payload in its place, flat_map puts several payloads, or none, in its place. Lifetimes stay. A
    predicate sees no times: it would turn adjusts into inserts; `operators.lifetimes` has what
    changes them.
State
    None. An adjust evaluates the payload of its insert, so it meets the same fate.
Stable
    The input's.
Retention
    Nothing.  need(T) = T.
Cost
    O(1) per element, O(payloads that come of it) for flat_map.

    >>> late = Select(lambda row: row[1] > 15)
    >>> late.process_batch([Insert(("AA", 20), 1, 5), Insert(("UA", 3), 2, 4), Stable(2)])
    [Insert(payload=('AA', 20), vs=1, ve=5), Stable(vc=2)]
    >>> late.process(Adjust(("AA", 20), 1, 5, 9))
    [Adjust(payload=('AA', 20), vs=1, vold=5, ve=9)]
    >>> Project(lambda row: row[:1]).process(Insert(("AA", 20), 1, 5))
    [Insert(payload=('AA',), vs=1, ve=5)]
    >>> FlatMap(lambda row: [row[:1], row[1:]]).process(Adjust(("AA", 20), 1, 5, 1))
    [Adjust(payload=('AA',), vs=1, vold=5, ve=1), Adjust(payload=(20,), vs=1, vold=5, ve=1)]
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.queries.netting import net_change
from lmerge_service.queries.operators.protocol import Changes, Operator, Skip

__all__ = ("FlatMap", "Project", "Select", "Stateless")


class Stateless(Operator):
    """An operator whose output depends on the element at hand alone."""

    __slots__ = ()

    def __len__(self) -> int:
        return 0

    def skip_before(self, skip: Skip) -> Sequence[Skip | None]:
        return [skip] * self.ports

    def emits_inserts_only(self, inputs: Sequence[bool]) -> bool:
        return all(inputs)

    def process_batch(self, elements: Iterable[Element], port: int = 0) -> list[Element]:
        """As for every operator."""
        batch = elements if isinstance(elements, list) else list(elements)
        data: Changes = [e for e in batch if type(e) is not Stable]  # type: ignore[misc]
        emitted: list[Element] = [*net_change(self._changed(data))]
        if len(data) < len(batch):
            point = max([e.vc for e in batch if type(e) is Stable])
            self.stables[port] = max(self.stables[port], point)
            stable = self._advance([])
            if stable > self.stable:
                self.stable = stable
                emitted.append(Stable(stable))
        return emitted

    @abstractmethod
    def _changed(self, data: Changes) -> Changes:
        """What becomes of inserts and adjusts: a list of its own, since that is faster than a call
        for each."""

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        changes += self._changed([element])

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        changes += self._changed([element])

    def _advance(self, changes: Changes) -> int:
        return self.stables[0]

    def _state(self) -> None:
        return None

    def _load(self, state: Any) -> None:
        pass


class Select(Stateless):
    """Keeps the events whose payload satisfies `predicate`, a pure function."""

    __slots__ = ("_predicate",)

    def __init__(self, predicate: Callable[[Any], object]) -> None:
        super().__init__()
        self._predicate = predicate

    def _changed(self, data: Changes) -> Changes:
        predicate = self._predicate
        return [e for e in data if predicate(e.payload)]


class Project(Stateless):
    """Puts `function` of the payload in its place; a pure function."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[Any], Hashable]) -> None:
        super().__init__()
        self._function = function

    def _changed(self, data: Changes) -> Changes:
        function = self._function
        return [
            Insert(function(e.payload), e.vs, e.ve)
            if type(e) is Insert
            else Adjust(function(e.payload), e.vs, e.vold, e.ve)  # type: ignore[union-attr]
            for e in data
        ]


class FlatMap(Stateless):
    """Puts the payloads that `function` returns in the place of one; a pure function."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[Any], Iterable[Hashable]]) -> None:
        super().__init__()
        self._function = function

    def _changed(self, data: Changes) -> Changes:
        function = self._function
        return [
            Insert(payload, e.vs, e.ve)
            if type(e) is Insert
            else Adjust(payload, e.vs, e.vold, e.ve)  # type: ignore[union-attr]
            for e in data
            for payload in function(e.payload)
        ]
