"""What every LMerge algorithm shares: inputs that come and go, the stable point, blame, counts.

Theory
    An operator is a pure function of (state, input, element). A subclass says what an insert and
    an adjust do to its index and how the output is prepared for a stable; this class decides
    *which* stable that is. Under the default policy the output's stable point `max_stable` is the
    highest of the joined inputs' (paper III-D, V-B):

        a: stable(10)                           -> stable(10)
        b attached, joining at 20: stable(22)   ->              (remembered: b is joining)
        a: stable(20)                           -> stable(20), stable(22)   (b is joined now)

Invariants
    O1  max_stable never falls, and no joined input's stable is beyond it.
    O2  An attached input is joined iff joining_at <= max_stable or an operator accepted the gap.
    O3  Attaching a name again is a new incarnation: nothing of the old one is left.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from lmerge_service.core.breaches import Breach, BreachKind
from lmerge_service.core.inputs import Input
from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import Event

__all__ = ("Case", "Gap", "Operator", "Stats")

_KEPT_BREACHES = 1_000


class Case(StrEnum):
    """The restriction that the inputs obey (paper III-C); it chooses the algorithm."""

    R3 = "R3"


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of time that no input can vouch for: nobody is joined, `input` is next at `end`."""

    start: int
    end: int
    input: str


@dataclass(slots=True)
class Stats:
    """What the output has carried, and who led it."""

    inserts: int = 0
    adjusts: int = 0
    stables: int = 0
    removals: int = 0
    """Adjusts that removed an event; counted in `adjusts` as well."""
    leader: str | None = None
    """The input whose stable moved the output last."""
    switches: int = 0
    """How often the leader changed."""
    breaches_dropped: int = 0
    """Breaches that were counted but not kept, because nobody fetched the kept ones."""


class Operator(ABC):
    """An LMerge operator; see the module's text. Never awaits, logs, reads a clock or raises for
    what an input says."""

    case: ClassVar[Case]

    def __init__(self) -> None:
        self.max_stable = START
        self.inputs: dict[str, Input] = {}
        """The attached inputs by name, in the order in which they were attached."""
        self.stats = Stats()
        self._incarnations: dict[str, int] = {}
        self._breaches: deque[Breach] = deque(maxlen=_KEPT_BREACHES)

    # --- inputs -------------------------------------------------------------------------------

    def attach(self, name: str, joining_at: int = START, partitions: int = 1) -> None:
        """Adds an input that is correct for every event with ve >= joining_at.

        A name that is attached already is a new incarnation: it keeps its place among the inputs,
        which decides ties, and nothing else.
        """
        if (before := self.inputs.get(name)) is not None:
            self._forget(before)
        number = self._incarnations.get(name, -1) + 1
        self._incarnations[name] = number
        source = Input(name, number, joining_at, partitions)
        source.joined = joining_at <= self.max_stable
        self.inputs[name] = source

    def detach(self, name: str) -> list[Element]:
        """Removes an input and all that only it held; half-frozen output events stay.

        Returns the elements to emit: none under the default policy.
        """
        source = self.inputs.pop(name, None)
        if source is None:
            raise ValueError(f"no input {name!r} is attached")
        self._forget(source)
        return []

    @property
    def gap(self) -> Gap | None:
        """The range nobody vouches for: no joined input is left, and every joining one starts
        beyond max_stable. The output waits until `accept_gap`, or until an input is attached that
        closes it."""
        if not self.inputs or any(source.joined for source in self.inputs.values()):
            return None
        first = min(self.inputs.values(), key=lambda source: source.joining_at)
        return Gap(self.max_stable, first.joining_at, first.name)

    def accept_gap(self) -> tuple[Gap, list[Element]]:
        """Goes on without the range of `gap`: an operator's explicit choice to lose it.

        Events that the output had half frozen stay as they are unless an input still has them.

        Raises:
            ValueError: there is no gap.
        """
        gap = self.gap
        if gap is None:
            raise ValueError("there is no gap to accept")
        source = self.inputs[gap.input]
        source.joined = True
        source.gap_until = gap.end
        out: list[Element] = []
        self._settle(out)
        return gap, out

    # --- elements -----------------------------------------------------------------------------

    def process(self, name: str, element: Element, partition: int = 0) -> list[Element]:
        """Takes one element of an input; returns what the output has to say, often nothing."""
        return self.process_batch(name, (element,), partition)

    def process_batch(
        self, name: str, elements: Iterable[Element], partition: int = 0
    ) -> list[Element]:
        """The same for many elements of one partition of one input, in order."""
        source = self.inputs.get(name)
        out: list[Element] = []
        if source is None:
            self._refuse_detached(name, elements)
            return out
        insert, adjust = self._insert, self._adjust
        own_stable = source.stables[partition]
        for element in elements:
            kind = type(element)
            if kind is Insert:
                source.inserts += 1
                if element.vs < own_stable:  # type: ignore[union-attr]
                    self._blame(source, BreachKind.BROKE_OWN_STABLE, element)
                else:
                    insert(source, element, out)  # type: ignore[arg-type]
            elif kind is Adjust:
                source.adjusts += 1
                if element.vold < own_stable or element.ve < own_stable:  # type: ignore[union-attr]
                    self._blame(source, BreachKind.BROKE_OWN_STABLE, element)
                else:
                    adjust(source, element)  # type: ignore[arg-type]
            else:
                self._stable(source, element, partition, out)  # type: ignore[arg-type]
                own_stable = source.stables[partition]
        return out

    def _refuse_detached(self, name: str, elements: Iterable[Element]) -> None:
        if name not in self._incarnations:
            raise ValueError(f"no input {name!r} was ever attached")
        for element in elements:
            self._record(Breach(name, self._incarnations[name], BreachKind.AFTER_DETACH, element))

    def _stable(self, source: Input, element: Stable, partition: int, out: list[Element]) -> None:
        source.stables_in += 1
        before = source.stables[partition]
        if element.vc > before:
            source.advance(partition, element.vc)
            self._settle(out)
        elif element.vc < before:
            self._blame(source, BreachKind.STABLE_REGRESSION, element)

    def _settle(self, out: list[Element]) -> None:
        """Moves the output to the highest stable of a joined input, as often as that helps others
        to be joined; ties go to the input attached first."""
        while True:
            joined = [source for source in self.inputs.values() if source.joined]
            leader = max(joined, key=lambda source: source.stable, default=None)
            if leader is None or leader.stable <= self.max_stable:
                return
            self._freeze(leader, leader.stable, out)
            self._emit_stable(leader, out)

    def _emit_stable(self, leader: Input, out: list[Element]) -> None:
        self.max_stable = leader.stable
        out.append(Stable(leader.stable))
        self.stats.stables += 1
        if self.stats.leader != leader.name:
            self.stats.switches += self.stats.leader is not None
            self.stats.leader = leader.name
        for source in self.inputs.values():
            source.joined = source.joined or source.joining_at <= self.max_stable

    @abstractmethod
    def _insert(self, source: Input, element: Insert[Any], out: list[Element]) -> None: ...

    @abstractmethod
    def _adjust(self, source: Input, element: Adjust[Any]) -> None: ...

    @abstractmethod
    def _freeze(self, leader: Input, t: int, out: list[Element]) -> None:
        """Makes the output compatible with what it is about to say: stable(t), as leader did."""

    @abstractmethod
    def _forget(self, source: Input) -> None:
        """Drops every entry of an input."""

    # --- blame --------------------------------------------------------------------------------

    def breaches(self) -> list[Breach]:
        """Hands over the breaches recorded since the last call (the latest 1,000 of them)."""
        found = list(self._breaches)
        self._breaches.clear()
        return found

    def _blame(
        self, source: Input, kind: BreachKind, element: Element, kept: Event | None = None
    ) -> None:
        source.breaches[kind] += 1
        self._record(Breach(source.name, source.incarnation, kind, element, kept))

    def _record(self, breach: Breach) -> None:
        if len(self._breaches) == _KEPT_BREACHES:
            self.stats.breaches_dropped += 1
        self._breaches.append(breach)

    # --- state --------------------------------------------------------------------------------

    @abstractmethod
    def __len__(self) -> int:
        """The number of live events: those not fully frozen."""

    @abstractmethod
    def load_output(self, elements: Iterable[Element]) -> None:
        """Starts from what the output has already said (promise 7): first the output prefix by
        this method, then `attach` and the input prefixes by `process`, in any interleaving, give
        the state that the original had.

        Raises:
            StateError: the elements are no legal stream, so no merge of ours has written them.
        """

    @abstractmethod
    def snapshot(self) -> bytes:
        """The whole state; `restore` makes an operator that goes on the same. Aliases nothing."""

    def check(self) -> None:
        """Asserts every invariant, in words."""
        for source in self.inputs.values():
            source.check()
            if source.joined:
                assert source.stable <= self.max_stable, f"O1: {source} is beyond {self.max_stable}"
            else:
                assert source.joining_at > self.max_stable, f"O2: {source} should be joined"
