"""What every physical operator is: a function of elements with a state, and promises.

Promises
    Q1  When all inputs are closed by stable(INFINITY), the output's TDB is the operator's meaning
        (`queries.meaning`) of the inputs' TDBs.
    Q2  The output is a legal stream, whatever legal streams come in.
    Q3  After any element, c being the output's stable point, the output's TDB and the meaning of
        the inputs' TDBs are equal before c.
    Q4  The output's stable point is the value of the operator's stable rule, a function of the
        inputs' stable points and the live state; INFINITY on all inputs gives INFINITY.
    Q5  An operator that emits on every update equals its meaning after every element.
    Q6  After a stable only what the retention rule names is held, and nothing after INFINITY.
    Q7  One call emits the net change, in as few elements as express it (`queries.netting`).
    Q8  Equal calls emit equal elements, under any PYTHONHASHSEED.
    Q9  An operator restored from a snapshot goes on like the original; a snapshot aliases nothing.
    Q10 An operator trusts its inputs (`operators.sources` checks what enters a plan). What its own
        state shows to be illegal changes nothing and is in `refused`. An exception, which only
        user code raises, leaves the state as it was before the call.

A batch takes its data first and only its greatest stable, last: to delay a stable weakens a
promise, so that is sound. An operator applies all data and may then compare once what it should
have emitted with what it has; that is what makes batches cheap and their output quiet.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.snapshots import sealed, unsealed
from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.queries.netting import Data, net_change

__all__ = ("Changes", "Operator", "Skip")

_VERSION: Final = 1

Changes = list[Data]
"""Inserts and adjusts that an operator wants to emit; netted before they are."""


class _Saved(msgspec.Struct, array_like=True):
    version: int
    kind: str
    stables: list[int]
    stable: int
    state: Any


class Skip(NamedTuple):
    """Which events of a stream may be left out, if their ends are final: those with ve < `before`
    and vs >= `since`."""

    before: int
    since: int = START


class Operator(ABC):
    """The base of all operators: dispatch, netting, stables, snapshots.

    A subclass defines what an insert, an adjust and a stable change (`_insert`, `_adjust`,
    `_advance`), and what its state is (`_state`, `_load`).
    """

    __slots__ = ("refused", "stable", "stables", "touched")

    ports: int = 1
    """How many inputs it has."""

    def __init__(self) -> None:
        self.stables = [START] * self.ports
        """The stable point of each input."""
        self.stable = START
        """The stable point of the output."""
        self.refused: list[tuple[int, BreachKind, Element]] = []
        """(port, kind, element) of what could not be applied; whoever reads it empties it."""
        self.touched = 0
        """Entries of the state looked at, for tests of cost."""

    def process(self, element: Element, port: int = 0) -> list[Element]:
        """The net change of the output by one element of input `port`."""
        return self.process_batch((element,), port)

    def process_batch(self, elements: Iterable[Element], port: int = 0) -> list[Element]:
        """The net change of the output by many elements of input `port`, and its stable, if that
        rises."""
        changes: Changes = []
        insert, adjust = self._insert, self._adjust
        point = self.stables[port]
        for element in elements:
            kind = type(element)
            if kind is Insert:
                insert(element, port, changes)  # type: ignore[arg-type]
            elif kind is Adjust:
                adjust(element, port, changes)  # type: ignore[arg-type]
            elif element.vc > point:  # type: ignore[union-attr]
                point = element.vc  # type: ignore[union-attr]
        self._settle(changes)
        if point == self.stables[port]:
            return self._netted(changes)
        self.stables[port] = point
        stable = self._advance(changes)
        emitted = self._netted(changes)
        if stable > self.stable:
            self.stable = stable
            emitted.append(Stable(stable))
        return emitted

    def skip_before(self, skip: Skip) -> Sequence[Skip | None]:
        """Such events of the output do not matter any more. Returns which events of each input do
        not matter therefore; None where all do. What was emitted is revised as ever.

        An operator without exact starts needs its input whole: without older events, those that
        matter would start at another time.
        """
        return [None] * self.ports

    def emits_inserts_only(self, inputs: Sequence[bool]) -> bool:
        """Whether it revises nothing, `inputs` being which of its inputs are revised by nothing."""
        return False

    def snapshot(self) -> bytes:
        """The state, behind a digest; not what was refused.

        Raises:
            StateError: a payload is of a kind that would not come back as it was.
        """
        kind = type(self).__name__
        saved = _Saved(_VERSION, kind, self.stables, self.stable, self._state())
        try:
            return sealed([msgspec.msgpack.encode(saved)])
        except (TypeError, OverflowError) as error:
            raise StateError(f"the state of {kind} can't be saved: {error}") from error

    def restore(self, saved: bytes) -> None:
        """Takes over the state of which `saved` is a snapshot, in place of its own.

        Raises:
            StateError: the bytes are damaged, of another version or of another operator.
        """
        kind = type(self).__name__
        (part,) = unsealed(saved)
        try:
            whole = msgspec.msgpack.decode(part, type=_Saved)
        except msgspec.MsgspecError as error:
            raise StateError(f"the snapshot is damaged: {error}") from error
        if (whole.version, whole.kind, len(whole.stables)) != (_VERSION, kind, self.ports):
            raise StateError(
                f"the snapshot is of {whole.kind}, version {whole.version}; this is {kind}, "
                f"version {_VERSION}"
            )
        self.stables, self.stable = whole.stables, whole.stable
        self._load(whole.state)

    def check(self) -> None:
        """Asserts the invariants of the state, in words."""
        assert self.stable <= max(self.stables), "the output is ahead of every input"

    @abstractmethod
    def __len__(self) -> int:
        """How many entries of state are held."""

    @abstractmethod
    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        """Applies an insert; appends to `changes` what it changes in the output."""

    @abstractmethod
    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        """Applies an adjust likewise."""

    def _settle(self, changes: Changes) -> None:  # noqa: B027 (most operators don't wait)
        """Called once behind the data of a batch: an operator that compares once does it here."""

    @abstractmethod
    def _advance(self, changes: Changes) -> int:
        """Applies that an input's stable point (`stables`) has risen: emits what that releases,
        forgets what need not be kept, and returns the output's stable point by the stable rule."""

    @abstractmethod
    def _state(self) -> Any:
        """The state, of what msgpack can carry; it is encoded at once, so it may alias."""

    @abstractmethod
    def _load(self, state: Any) -> None:
        """Takes over what `_state` gave; tuples have become lists (`core.snapshots.hashable`)."""

    def _netted(self, changes: Changes) -> list[Element]:
        return [*net_change(changes)]

    def _refuse(self, port: int, kind: BreachKind, element: Element) -> None:
        self.refused.append((port, kind, element))
