"""What cases R0, R1 and R2 share: inserts that come in order of vs, and nothing is revised.

Theory
    An ordered input has sent all about times before the last vs it inserted, so of the output
    only the latest vs, `max_vs`, can still grow. What lies before is done: an insert below
    max_vs is a laggard's, or one that a faster input lacked (V-C); both are dropped. So is what
    lies below max_stable, which the paper's algorithms would emit, against their own stable.
    Nothing can be withdrawn either, so a stable forces nothing.

    A joining input has not sent all about the times before joining_at: if it moved max_vs, what
    others have yet to send about them would be lost. So its inserts wait until it is joined; those
    with vs < joining_at, which may be some of many, never count.

Invariants
    K1  Inserts are emitted in order of vs, none below the output's stable point.
    K2  source.front is the highest vs that the input has inserted in order, once it is joined.
    K3  Only inputs that are not joined have inserts waiting (or of a follower, what the original's
        output has not emitted yet).

Beyond the paper
    An element that the case rules out is recorded as a breach and changes nothing, so that the
    caller may quarantine the input, or rebuild under a weaker case (`weakened`).
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from lmerge_service.core.base import LMerge
from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.case import Case
from lmerge_service.core.inputs import Input
from lmerge_service.core.policy import Emission, Policy
from lmerge_service.core.replay import unexpected_output
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert

__all__ = ("BEFORE", "InOrder", "Ordered", "Restricted")

BEFORE = START - 1
"""Before every time: the highest vs of a stream without inserts."""

_Item: TypeAlias = tuple[Input | None, Insert[Any], Sequence[Input]]
"""An insert that waits, by its input, or one at max_vs, and the inputs that have contributed it."""


class InOrder(LMerge):
    """Holds inputs to the order of case R0, R1 or R2; what breaks it is blamed and left out."""

    any_partitions: ClassVar[bool] = False

    def _is_in_order(self, source: Input, element: Insert[Any]) -> bool:
        step = element.vs - source.front
        if step < 0 or (step == 0 and self.case is Case.R0):
            self._blame(source, BreachKind.BROKE_CASE, element)
            return False
        if step > 0:
            source.front = element.vs
            source.at_front = 0
        return True

    def _adjust(
        self,
        source: Input,
        element: Adjust[Any],
        own_stable: int,
        emission: Emission,
        out: list[Element],
    ) -> None:
        self._blame(source, BreachKind.BROKE_CASE, element)


class Ordered(InOrder):
    """An operator that keeps no event but those at the latest vs."""

    def __init__(self, policy: Policy = Policy()) -> None:
        if policy.remembers:
            raise ValueError(f"case {self.case} keeps no events, which {policy} needs")
        super().__init__(policy)
        self.max_vs = BEFORE
        self._waiting: dict[Input, deque[Insert[Any]]] = {}

    def _insert(
        self, source: Input, element: Insert[Any], emission: Emission, out: list[Element]
    ) -> None:
        if element.vs < source.joining_at:
            source.late += 1
        elif not source.joined:
            self._waiting.setdefault(source, deque()).append(element)
        elif self._is_in_order(source, element):
            if element.vs < self.max_vs or element.vs < self.max_stable:
                source.late += 1
                return
            if element.vs > self.max_vs:
                self._advance(element.vs)
            self._take(source, element, out)

    def _advance(self, vs: int) -> None:
        self.max_vs = vs
        self._clear()

    @abstractmethod
    def _take(self, source: Input, element: Insert[Any], out: list[Element]) -> None:
        """An insert at max_vs."""

    def __len__(self) -> int:
        return self._kept() + sum(map(len, self._waiting.values()))

    @abstractmethod
    def _kept(self) -> int:
        """How many events at max_vs are kept."""

    def _on_joined(self, source: Input, out: list[Element]) -> None:
        for element in self._waiting.pop(source, ()):
            self._insert(source, element, self._emission, out)

    def _apply_deferred(self) -> None:
        for source in [source for source in self._waiting if source.joined]:
            waiting = self._waiting[source]
            while waiting and not self._goes_out(source, waiting[0]):
                self._insert(source, waiting.popleft(), self._emission, [])
            if not waiting:
                del self._waiting[source]

    def replay_input(
        self, name: str, elements: Iterable[Element], partition: int = 0
    ) -> list[Element]:
        source, out = self.inputs.get(name), list[Element]()
        if source is not None and source.joined:  # what waits still was cut off the output
            self._on_joined(source, out)
        return out + super().replay_input(name, elements, partition)

    def _goes_out(self, source: Input, element: Insert[Any]) -> bool:
        """Whether the output does not have an insert yet, and would."""
        if element.vs == self.max_vs >= self.max_stable:
            return self._is_new(source, element)
        return element.vs > self.max_vs and element.vs >= self.max_stable

    @abstractmethod
    def _is_new(self, source: Input, element: Insert[Any]) -> bool:
        """Whether the output does not have an insert at max_vs yet."""

    def _freeze(self, voters: Sequence[Input], t: int, out: list[Element]) -> None:
        if t == INFINITY:
            self._clear()

    @abstractmethod
    def _clear(self) -> None:
        """Lets go of the events at what was max_vs."""

    def _forget(self, source: Input) -> None:
        self._waiting.pop(source, None)

    def _emit(self, source: Input, element: Insert[Any], out: list[Element]) -> None:
        out.append(element)
        source.first += 1
        self._stats.inserts += 1

    def _load_insert(self, element: Insert[Any]) -> None:
        if element.vs < self.max_vs or (element.vs == self.max_vs and self._repeats(element)):
            raise unexpected_output(element, self.max_stable)
        if element.vs > self.max_vs:
            self._advance(element.vs)
        self._load(element)

    @abstractmethod
    def _repeats(self, element: Insert[Any]) -> bool:
        """Whether the output cannot have this event besides the ones it has at max_vs."""

    @abstractmethod
    def _load(self, element: Insert[Any], contributing_inputs: Sequence[Input] = ()) -> None:
        """An insert of the output at max_vs, and which inputs have contributed it, if known."""

    def _load_adjust(self, element: Adjust[Any]) -> None:
        raise unexpected_output(element, self.max_stable)

    def _load_stable(self, vc: int) -> None:
        if vc == INFINITY:
            self._clear()

    body: ClassVar[Any] = list[tuple[int | None, Any, int, int, list[int]]]
    """Of an insert that waits its input; payload, vs, ve; of one at max_vs the inputs that have
    contributed it."""

    def _size(self) -> int:
        return len(self)

    def _items(self) -> Iterator[_Item]:
        for event, contributing_inputs in self._events():
            yield None, event, contributing_inputs
        for source, inserts in self._waiting.items():
            for event in inserts:
                yield source, event, ()

    def _packed(self, items: list[_Item], numbers: Mapping[Input, int]) -> Any:
        return [
            (
                None if source is None else numbers[source],
                portable(event.payload),
                event.vs,
                event.ve,
                [numbers[each] for each in contributing_inputs],
            )
            for source, event, contributing_inputs in items
        ]

    @abstractmethod
    def _events(self) -> Iterator[tuple[Insert[Any], Sequence[Input]]]:
        """The output's events at max_vs, and the inputs that have contributed each, where kept."""

    def load_body(self, body: Any) -> None:
        sources = list(self.inputs.values())
        for number, payload, vs, ve, contributing_inputs in body:
            element = Insert(hashable(payload), vs, ve)
            if number is None:
                self.max_vs = vs
                self._load(element, [sources[each] for each in contributing_inputs])
            else:
                self._waiting.setdefault(sources[number], deque()).append(element)

    def check(self) -> None:
        super().check()
        for source in self.inputs.values():
            assert source.front < self.max_stable or source.front <= self.max_vs, f"K2: {source}"
        assert not any(source.joined for source in self._waiting), f"K3: {self._waiting}"


class Restricted(InOrder):
    """Mixed into an operator with an index: for policies under which cases R0 to R2 must remember
    events."""

    _elements = LMerge._elements  # no short cut past `_insert`

    def _insert(
        self, source: Input, element: Insert[Any], emission: Emission, out: list[Element]
    ) -> None:
        if self._is_in_order(source, element):
            super()._insert(source, element, emission, out)  # type: ignore[safe-super]
