"""Group apply: any plan, once per group.

Meaning
    Per value of the key the meaning of the subplan, of the events that have this key in each input.
State
    Per group an operator or network of its own.
Stable
    The least over the groups, and over a new one that has seen no events: a group that comes into
    being may emit whatever that one may.
Retention
    What the groups hold; one that holds nothing after a stable is dropped.  need(T) = the
    subplan's.
Cost
    That of the subplans, and O(groups) per stable. Aggregates, windows, distinct and last_rows are
    grouped natively, at O(what it makes final) per stable: prefer those.

Data goes to the groups that it has, a stable to all. If the subplan itself raises, groups of the
same batch may have been changed before; the keys of a batch are all evaluated before any is.

    >>> from lmerge_service.elements import INFINITY
    >>> from lmerge_service.queries.operators.last_rows import LastRows
    >>> until_next = GroupApply(lambda sample: sample[0], lambda: LastRows(1))
    >>> until_next.process_batch([Insert(("x", 5), 1, 2), Insert(("y", 7), 2, 3)]) == [
    ...     Insert(("x", 5), 1, INFINITY), Insert(("y", 7), 2, INFINITY)]
    True
    >>> until_next.process_batch([Insert(("x", 6), 3, 4), Stable(3)]) == [
    ...     Adjust(("x", 5), 1, INFINITY, 3), Insert(("x", 6), 3, INFINITY), Stable(3)]
    True
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.queries.network import Network, Part
from lmerge_service.queries.operators.protocol import Changes, Operator

__all__ = ("GroupApply",)

Key = Callable[[Any], Hashable]


class GroupApply(Operator):
    """Applies what `subplan` begins to each group of events with equal `key`.

    `subplan` returns a new operator, or a new network. `key` is a pure function of the payload, or
    a sequence of them, one per input. The inputs are the operator's ports, or the network's sources
    in the order of `sources`, by default the network's own.
    """

    __slots__ = (
        *("_fresh", "_groups", "_key", "_parts", "_passed", "_source", "_sources", "_subplan"),
        "ports",
    )

    def __init__(
        self,
        key: Key | Sequence[Key],
        subplan: Callable[[], Operator | Network],
        sources: Sequence[str] = (),
    ) -> None:
        begun = subplan()
        if isinstance(begun, Network):
            self._sources = list(sources or begun.sources)
        else:
            self._sources = [str(port) for port in range(begun.ports)]
        self.ports = len(self._sources)
        self._key = [key] * self.ports if callable(key) else list(key)
        if len(self._key) != self.ports:
            raise ValueError(f"{len(self._key)} keys are given for {self.ports} inputs")
        super().__init__()
        self._subplan = subplan
        self._passed = list(self.stables)
        """The stable of each input that the groups have."""
        self._fresh = self._begin()
        self._groups: dict[Hashable, Network] = {}
        self._parts: dict[Hashable, list[Element]] = {}
        """The batch at hand, by group, and the source that it is of."""
        self._source = ""

    def __len__(self) -> int:
        """How many entries of state all groups hold."""
        return sum(map(len, self._groups.values()))

    def check(self) -> None:
        """Asserts the invariants of the groups."""
        super().check()
        assert not len(self._fresh), "the new group holds something"
        assert self.stable <= self._fresh.stable, "the output is ahead of a new group"
        for key, group in self._groups.items():
            group.check()
            assert self.stable <= group.stable, f"the output is ahead of the group {key!r}"

    def process_batch(self, elements: Iterable[Element], port: int = 0) -> list[Element]:
        """As for every operator."""
        self._source = self._sources[port]
        try:
            return super().process_batch(elements, port)
        finally:
            self._parts.clear()

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        self._parts.setdefault(self._key[port](element.payload), []).append(element)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        self._parts.setdefault(self._key[port](element.payload), []).append(element)

    def _settle(self, changes: Changes) -> None:
        for key, part in self._parts.items():
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = self._begin()
            _pass(group, self._source, part, changes)

    def _advance(self, changes: Changes) -> int:
        for source, point, passed in zip(self._sources, self.stables, self._passed, strict=True):
            if point > passed:
                for group in (*self._groups.values(), self._fresh):
                    self.touched += 1
                    _pass(group, source, [Stable(point)], changes)
        self._passed = list(self.stables)
        self._groups = {key: group for key, group in self._groups.items() if len(group)}
        return min([group.stable for group in (*self._groups.values(), self._fresh)])

    def _begin(self) -> Network:
        """A new group, at the stables that the others have."""
        begun = self._subplan()
        if not isinstance(begun, Network):
            begun = Network([Part(begun, self._sources)])
        for source, point in zip(self._sources, self._passed, strict=True):
            if point > START:
                begun.process(source, Stable(point))
        return begun

    def _state(self) -> Any:
        groups = [[portable(key), group.snapshot()] for key, group in self._groups.items()]
        return [self._passed, groups]

    def _load(self, state: Any) -> None:
        self._passed, groups = state
        self._fresh = self._begin()
        self._groups = {}
        for key, saved in groups:
            group = self._groups[hashable(key)] = self._begin()
            group.restore(saved)


def _pass(group: Network, source: str, elements: list[Element], changes: Changes) -> None:
    emitted = group.process_batch(source, elements)
    changes += [each for each in emitted if not isinstance(each, Stable)]
