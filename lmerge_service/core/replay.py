"""How an operator follows another one, the original, that runs elsewhere.

Theory
    What an operator emits next depends on what inputs have sent and the output has emitted, and on
    nothing else. So both are enough to follow it, and neither emits anything:

        original   a: insert(A,6,7) -> insert(A,6,7)     b: stable(3) -> stable(3)
        follower   replay_output: insert(A,6,7), stable(3)
                   replay_input:  a: insert(A,6,7)       b: stable(3)

    One that follows from the beginning rebuilds; from a snapshot, it recovers; for ever, it is a
    standby. The output comes first: what an input had the original emit is then there already, so
    that the input's element only fills the index.

Invariants
    P1  An element that no operator at this stable point can have emitted is refused.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from lmerge_service.core.inputs import Input
from lmerge_service.core.policy import Emission
from lmerge_service.core.stats import Stats
from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError

__all__ = ("Replay", "never_attached", "unexpected_output")


class Replay(ABC):
    """The part of an operator that follows; see the module's text."""

    max_stable: int
    inputs: dict[str, Input]
    _incarnations: dict[str, int]
    _stats: Stats
    _replayed: Emission

    def replay_output(self, elements: Iterable[Element]) -> None:
        """Takes what the output has emitted since: from its beginning, or since this operator was
        where the original was. In steps as large or small as one likes, load

        (a) by `replay_output` what the output has emitted, in one call or several;
        (b) by `attach`, `detach` and `accept` what was decided about inputs, in order;
        (c) by `replay_input` what the inputs that are attached now have sent, each partition in
            order.

        After each step the operator goes on like the original at that point (promise 7), whatever
        inputs do, but for the order of elements of one vs before one stable: that is the order of
        arrival, which is not recorded. What a loaded stable freezes is frozen whatever inputs
        have, and inputs whose joining time it reaches are joined.

        Within a step `check` may find that an event which the output has taken back is still held
        by inputs (L1, M1: until its stable is loaded), or that inserts of an input wait though it
        is joined (K3: until (a) is complete). Of counts, those of the output are the original's;
        which input was first, late or leading is not known here.

        Raises:
            StateError: the elements are no legal sequel, so no merge of ours has written them; the
                operator is of no use any more.
        """
        for element in elements:
            match element:
                case Insert():
                    if element.vs < self.max_stable:
                        raise unexpected_output(element, self.max_stable)
                    self._load_insert(element)
                    self._stats.inserts += 1
                case Adjust():
                    if min(element.vold, element.ve) < self.max_stable:
                        raise unexpected_output(element, self.max_stable)
                    self._load_adjust(element)
                    self._stats.adjusts += 1
                    self._stats.removals += element.ve == element.vs
                case Stable(vc):
                    if vc <= self.max_stable:
                        raise unexpected_output(element, self.max_stable)
                    self._load_stable(vc)
                    self._stats.stables += 1
                    self.max_stable = vc
                    self._join(vc)
        self._apply_deferred()

    def replay_input(
        self, name: str, elements: Iterable[Element], partition: int = 0
    ) -> list[Element]:
        """Takes elements that the original took before its output reached what was loaded. What an
        input sent that is detached by now does not matter any more.

        Returns what the output should have held and did not: nothing, unless it was cut short, or
        was emitted under another policy. What a policy holds back stays held back.

        Of breaches it reports again those that the original found in these very elements, and no
        others. What a *stable* brought to light (`half_frozen_missing`, `frozen_end_disagrees`)
        is not among them. The operator does not record, though, for which events since the
        snapshot (or the beginning) an input was blamed so: when it goes on by itself, the next
        stable of that input that finds them reports them once more.

        Raises:
            ValueError: no input of that name was ever attached.
        """
        source = self.inputs.get(name)
        if source is None:
            if name not in self._incarnations:
                raise never_attached(name)
            return []
        return self._elements(source, elements, partition, self._replayed)

    # --- what a case adds -----------------------------------------------------------------------

    @abstractmethod
    def _elements(
        self, source: Input, elements: Iterable[Element], partition: int, emission: Emission
    ) -> list[Element]:
        """Takes elements of one partition of an input, in order; returns what the output emits, by
        `emission` where no stable forces it."""

    @abstractmethod
    def _load_insert(self, element: Insert[Any]) -> None:
        """Takes an insert of the output that is not below its stable point."""

    @abstractmethod
    def _load_adjust(self, element: Adjust[Any]) -> None:
        """Takes an adjust of the output that touches nothing below its stable point."""

    @abstractmethod
    def _load_stable(self, vc: int) -> None:
        """Takes a stable of the output that moves its stable point to vc."""

    @abstractmethod
    def _join(self, t: int) -> list[Input]:
        """Has the inputs joined that are correct from the stable point t on; gives them."""

    def _apply_deferred(self) -> None:  # noqa: B027 (few cases do)
        """Takes up what inputs sent while they were joining, as far as the loaded output contains
        it."""


def never_attached(name: str) -> ValueError:
    """What to raise for a name that no input has ever had."""
    return ValueError(f"no input {name!r} was ever attached")


def unexpected_output(element: Element, max_stable: int) -> StateError:
    """What to raise for an element of the output that is not ours."""
    return StateError(
        f"the output holds {element} where a merge at stable({max_stable}) cannot have put it: "
        "something else writes to this output"
    )
