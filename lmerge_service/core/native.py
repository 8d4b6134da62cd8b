"""LMR3 by the engine: the index and its elements in native code, all else as in `LMerge`.

Theory
    The engine (`engine/`) has the index of case R3 and what elements and stables do to it under
    the policies that it knows. Elements come to it in a `Batch`, which it makes of records itself,
    or of elements, and what it emits is a `Batch` again: a sequence of elements, which are made
    when somebody looks at them. A stable that does no more than move its input, and the output
    behind it, is taken there as well. At any other Python is asked, as by every operator: where it
    breaks a rule, where inputs join, where another input leads, that is decided in `LMerge`.

    It is the same operator as LMR3: equal elements give equal elements, in the same order, equal
    breaches, counts and snapshots, so that either goes on from the other's state. LMR3 defines what
    is right; tests run both beside each other.

Invariants
    N1  Whatever has been processed, the parts of the state are those of LMR3, byte for byte.

Cost
    As LMR3's, a tenth of it for an element.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, cast

from lmerge_engine import Batch, NativeIndex, Remembered, Turns, payload_hash

from lmerge_service.core.base import LMerge, Versions
from lmerge_service.core.breaches import Breach, BreachKind
from lmerge_service.core.case import Case
from lmerge_service.core.columns import Marks
from lmerge_service.core.inputs import Input
from lmerge_service.core.policy import Emission, Policy
from lmerge_service.core.replay import unexpected_output
from lmerge_service.core.snapshots import Head
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.tdb import Event

__all__ = ("NativeLMR3", "TurnsTaken")

_AT_ONCE = 1_000
"""So many nodes are looked at together."""


_OUT_AT_ONCE = 4_000
"""Of so many elements that the output emits, or a few more, a caller is given a batch."""


class TurnsTaken(NamedTuple):
    """Why the taking of turns has stopped."""

    why: Literal["breached", "empty", "undrawn", "ended", "emitted"]
    """The input has broken a rule; it has no elements left, and needs more or has ended; numbers
    are needed, to draw whose turn it is; all inputs have ended; the output has emitted enough."""
    number: int
    """Which input, in the order in which they were attached."""


class NativeLMR3(LMerge):
    """Algorithm R3 by the engine; see the module's text. Payloads are bytes."""

    case = Case.R3
    hash_of: ClassVar["staticmethod[[Any], int]"] = staticmethod(payload_hash)
    _index: NativeIndex

    def __init__(self, policy: Policy = Policy()) -> None:
        super().__init__(policy)
        self._index = NativeIndex()
        self._slots: dict[Input, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._index)

    def remembering(self, most: int, otherwise: Callable[[int], Any]) -> Any:
        return Remembered(most)

    def empty(self) -> Batch:
        return Batch()

    # --- inputs -------------------------------------------------------------------------------

    def _enter(self, source: Input) -> None:
        slot = self._free.pop() if self._free else len(self._slots)
        self._slots[source] = slot
        self._index.attach(slot)

    def _forget(self, source: Input) -> None:
        slot = self._slots.pop(source)
        self._free.append(slot)
        self._index.forget(slot)

    # --- elements -----------------------------------------------------------------------------

    def _elements(
        self, source: Input, elements: Iterable[Element], partition: int, emission: Emission
    ) -> Batch:
        given = elements if isinstance(elements, Batch) else Batch(elements)
        out, at, size = Batch(), 0, len(given)
        sender = [*self.inputs.values()].index(source)
        while True:
            of = source.stables
            others = INFINITY if len(of) == 1 else min(of[:partition] + of[partition + 1 :])
            stables = of[partition], others, self.max_stable, self._lag
            at, counts, moved, breaches = self._index.take_on(
                self._attached(), sender, stables, given, at, out
            )
            self._count(source, counts)
            self._moved(source, partition, moved)
            for breach in breaches:
                place = breach[2]
                self._breached(Stable(self.max_stable) if place is None else given[place], breach)
            if at == size:
                return out
            element = given[at]
            if type(element) is Stable:  # else its breaches were to be recorded first
                self._stable(source, element, partition, out)
                at += 1

    def _attached(self) -> list[tuple[int, bool, int, int, int]]:
        """The inputs as stables need them."""
        slots = self._slots
        return [
            (slots[each], each.joined, each.stable, each.joining_at, each.gap_until)
            for each in self.inputs.values()
        ]

    def _moved(
        self,
        source: Input,
        partition: int,
        moved: tuple[int, int, int, int, tuple[int, int, int]],
    ) -> None:
        """Takes note of stables of an input, by which it leads where they have moved the output."""
        own, max_stable, sent, stables, emitted = moved
        if not sent:
            return
        source.stables_in += sent
        source.advance(partition, own)
        if not stables:
            return
        stats, self.max_stable = self._stats, max_stable
        stats.stables += stables
        if stats.leader != source.name:
            stats.switches += stats.leader is not None
            stats.leader = source.name
        self._emitted(source, emitted)

    def _emitted(self, leader: Input, emitted: tuple[int, int, int]) -> None:
        """Counts what stables of who leads had the output emit."""
        inserts, adjusts, removals = emitted
        leader.first += inserts
        self._stats.inserts += inserts
        self._stats.adjusts += adjusts
        self._stats.removals += removals

    def turns(self, order: str) -> Turns:
        """The inputs, attached and joined, to be taken in turn: round-robin, sequential, or random,
        which has to be given numbers. They have one partition each."""
        return Turns(order, [self._slots[source] for source in self.inputs.values()])

    def take_turns(self, turns: Turns, out: Batch) -> TurnsTaken:
        """Takes elements of the inputs in turn, as `process` takes one, until something is up;
        appends what the output emits."""
        sources = [*self.inputs.values()]
        while True:
            why, number, vc, breaches = self._index.take_turns(turns, self.max_stable, out)
            if why == "stable":
                source = sources[number]
                before = source.breaches.total()
                self._stable(source, Stable(vc), 0, out)
                turns.stable(number, source.stables[0])
                why = "breached" if source.breaches.total() > before else "emitted"
                if why == "emitted" and len(out) < _OUT_AT_ONCE:
                    continue
            for breach in breaches:
                self._breached(turns.last(number), breach)
            for at, each in enumerate(sources):
                self._count(each, turns.counts(at))
            return TurnsTaken(cast("Any", why), number)

    def _count(self, source: Input, counts: tuple[int, int, int, int]) -> None:
        inserts, adjusts, late, first = counts
        source.inserts += inserts
        source.adjusts += adjusts
        source.late += late
        source.first += first
        self._stats.inserts += first

    def _element(
        self,
        source: Input,
        element: Element,
        partition: int,
        emission: Emission,
        out: list[Element],
    ) -> None:
        out += self._elements(source, (element,), partition, emission)

    def _breached(self, element: Element, breach: tuple[Any, ...]) -> None:
        slot, kind, _, kept, versions = breach
        ends = dict(versions)
        sources = {self._slots[source]: source for source in self.inputs.values()}
        source = sources[slot]
        source.breaches[BreachKind(kind)] += 1
        seen = tuple(
            (each.name, (ends[number],) if number in ends else ())
            for number, each in sources.items()
        )
        event = None if kept is None else Event(*kept)
        shown = seen if versions or kept else ()
        found = Breach(source.name, source.incarnation, BreachKind(kind), element, event, shown)
        self._record(found)

    def _insert(
        self, source: Input, element: Insert[Any], emission: Emission, out: list[Element]
    ) -> None:
        raise AssertionError("elements are taken in batches")

    def _adjust(
        self,
        source: Input,
        element: Adjust[Any],
        own_stable: int,
        emission: Emission,
        out: list[Element],
    ) -> None:
        raise AssertionError("elements are taken in batches")

    # --- stables ------------------------------------------------------------------------------

    def _freeze(self, voters: Sequence[Input], t: int, out: Any) -> None:
        leader, inputs = voters[0], self._attached()
        emitted, breaches = self._index.freeze(self._slots[leader], t, self.max_stable, inputs, out)
        self._emitted(leader, emitted)
        for breach in breaches:
            self._breached(Stable(t), breach)

    # --- replay -------------------------------------------------------------------------------

    def _load_insert(self, element: Insert[Any]) -> None:
        if not self._index.load_insert(element.payload, element.vs, element.ve):
            raise unexpected_output(element, self.max_stable)

    def _load_adjust(self, element: Adjust[Any]) -> None:
        payload, vs = element.payload, element.vs
        if not self._index.load_adjust(payload, vs, element.vold, element.ve):
            raise unexpected_output(element, self.max_stable)

    def _load_stable(self, vc: int) -> None:
        self._index.load_stable(vc)

    # --- state --------------------------------------------------------------------------------

    body: ClassVar[Any] = tuple[
        list[int], list[bytes], list[int | None], list[list[int | None]], Marks, Marks
    ]

    def live_output(self) -> Iterator[Event]:
        for all_vs, payloads, outs, *_ in self._columns([]):
            for vs, payload, out in zip(all_vs, payloads, outs, strict=True):
                if out is not None:
                    yield Event(payload, vs, out)

    def output_ends(self, payload: Any, vs: int) -> list[int]:
        end = self._index.output_end(payload, vs)
        return [] if end is None else [end]

    def versions(self) -> Iterator[Versions]:
        sources = list(self.inputs.values())
        for all_vs, payloads, outs, ends, _, claims in self._columns(sources):
            claimed = {(place, number) for place, numbers in claims for number in numbers}
            for place, (vs, payload, out) in enumerate(zip(all_vs, payloads, outs, strict=True)):
                yield (
                    payload,
                    vs,
                    [] if out is None else [out],
                    [
                        (source.name, [column[place]])
                        for number, (source, column) in enumerate(zip(sources, ends, strict=True))
                        if column[place] is not None and (place, number) not in claimed
                    ],
                )

    def _columns(self, sources: Sequence[Input]) -> Iterator[tuple[Any, ...]]:
        ids, order = self._index.ids(), [self._slots[source] for source in sources]
        for at in range(0, len(ids), _AT_ONCE):
            yield self._index.columns(ids[at : at + _AT_ONCE], order)

    def _size(self) -> int:
        return len(self._index)

    def _items(self) -> Iterator[int]:
        return iter(self._index.ids())

    def _packed(self, items: list[int], numbers: Mapping[Input, int]) -> Any:
        return self._index.columns(items, [self._slots[source] for source in numbers])

    def load_head(self, head: Head) -> None:
        self._index.begin(head.max_stable)
        super().load_head(head)

    def load_body(self, body: Any) -> None:
        order = [self._slots[source] for source in self.inputs.values()]
        all_vs, payloads, outs, ends, blamed, claims = body
        try:
            self._index.load(all_vs, payloads, outs, ends, blamed, claims, order)
        except OverflowError as error:  # a time beyond int64
            raise ValueError(str(error)) from error

    def check(self) -> None:
        super().check()
        fault = self._index.fault()
        assert fault is None, fault
        assert self.max_stable < INFINITY or not len(self._index), "W3: state after the end"
