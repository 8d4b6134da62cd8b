"""The temporal database of a stream prefix: reconstitution, legality, equivalence, compatibility.

Theory
    `reconstitute(elements)` gives the TDB of a prefix, a multiset of events; two prefixes are
    equivalent when their TDBs are equal, whatever the elements were (paper III-A):

    >>> from lmerge_service.elements import Adjust, Insert, Stable
    >>> one = reconstitute([Insert("A", 6, 20), Adjust("A", 6, 20, 30), Adjust("A", 6, 30, 25)])
    >>> one == reconstitute([Insert("A", 6, 25), Stable(6)])
    True

    `compatibility` is the independent judge of a merge: it knows the inputs' TDBs and the
    output's, nothing of the algorithm, and applies conditions C1 to C3 of III-D to every key.
    C2's half-frozen clause is read as L <= Lm; as printed (Lm <= L) it refuses outputs that the
    definition of III-B allows (docs/semantics.md). `multiset_compatibility` is that of case R4.

Invariants
    T1  A TDB holds events with vs < ve only, each with a positive count.
    T2  `stable` never falls; `apply` refuses what 2.1 of docs/semantics.md calls illegal, and
        then changes nothing.

Cost
    O(1) per element, memory in the number of events: this is the oracle, it forgets nothing.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import reduce
from operator import and_
from typing import NamedTuple

from lmerge_service.elements import (
    START,
    Adjust,
    Element,
    Insert,
    Stable,
    defect,
    is_fully_frozen,
    is_half_frozen,
)
from lmerge_service.errors import IllegalStreamError

__all__ = (
    "TDB",
    "Difference",
    "Event",
    "compatibility",
    "differences",
    "multiset_compatibility",
    "reconstitute",
)


class Event(NamedTuple):
    """One row of a TDB."""

    payload: Hashable
    vs: int
    ve: int


class TDB:
    """The multiset of events that a prefix describes, and its latest stable point.

    Equality is equivalence: the stable point does not count.
    """

    __slots__ = ("_events", "stable")

    def __init__(self, events: Iterable[tuple[Hashable, int, int]] = (), stable: int = START):
        self._events: Counter[Event] = Counter(Event(*event) for event in events)
        self.stable = stable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TDB) and self._events == other._events

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self._events.total()

    def __iter__(self) -> Iterator[Event]:
        return self._events.elements()

    def __repr__(self) -> str:
        return f"TDB({list(self)}, stable={self.stable})"

    def violation(self, element: Element) -> str | None:
        """Why `element` may not follow this prefix, or None when it may."""
        if wrong := defect(element):
            return wrong
        match element:
            case Insert(vs=vs) if vs < self.stable:
                return f"insert with vs={vs} below the stream's own stable({self.stable})"
            case Adjust(vold=vold, ve=ve) if min(vold, ve) < self.stable:
                return (
                    f"adjust from {vold} to {ve} touches what the stream's own "
                    f"stable({self.stable}) made final"
                )
            case Adjust(payload, vs, vold) if (payload, vs, vold) not in self._events:
                return f"adjust of an event [{vs}, {vold}) that the stream does not hold"
            case Stable(vc) if vc < self.stable:
                return f"stable({vc}) after stable({self.stable})"
        return None

    def apply(self, element: Element) -> None:
        """Advances the prefix by one legal element.

        Raises:
            IllegalStreamError: the element may not follow; the TDB is unchanged.
        """
        if wrong := self.violation(element):
            raise IllegalStreamError(wrong)
        match element:
            case Insert(payload, vs, ve):
                self._events[Event(payload, vs, ve)] += 1
            case Adjust(payload, vs, vold, ve):
                self._remove(Event(payload, vs, vold))
                if ve > vs:
                    self._events[Event(payload, vs, ve)] += 1
            case Stable(vc):
                self.stable = vc

    def before(self, point: int) -> "TDB":
        """What began before `point`, with ends cut there: what stable(point) makes final of it.

        >>> TDB([("A", 2, 9), ("B", 3, 5), ("C", 7, 8)]).before(6)
        TDB([Event(payload='A', vs=2, ve=6), Event(payload='B', vs=3, ve=5)], stable=6)
        """
        return TDB(((p, vs, min(ve, point)) for p, vs, ve in self if vs < point), point)

    def _remove(self, event: Event) -> None:
        if self._events[event] == 1:
            del self._events[event]
        else:
            self._events[event] -= 1


def reconstitute(elements: Iterable[Element]) -> TDB:
    """The TDB of a legal prefix.

    Raises:
        IllegalStreamError: some element may not stand where it stands; the message names its
            position in the prefix, counted from 0.
    """
    tdb = TDB()
    for position, element in enumerate(elements):
        try:
            tdb.apply(element)
        except IllegalStreamError as error:
            raise IllegalStreamError(f"element {position}, {element}: {error}") from None
    return tdb


class Difference(NamedTuple):
    """What TDBs hold for one (payload, vs): of each the ends, sorted, less those that all hold."""

    payload: Hashable
    vs: int
    ends: tuple[tuple[int, ...], ...]


def differences(*tdbs: TDB) -> list[Difference]:
    """Every (payload, vs) for which not all TDBs agree, by vs and then by the payload's text."""
    shared = reduce(and_, (tdb._events for tdb in tdbs))
    ends: dict[tuple[Hashable, int], list[list[int]]] = {}
    for side, tdb in enumerate(tdbs):
        for event in (tdb._events - shared).elements():
            ends.setdefault((event.payload, event.vs), [[] for _ in tdbs])[side].append(event.ve)
    found = [
        Difference(payload, vs, tuple(tuple(sorted(each)) for each in sides))
        for (payload, vs), sides in ends.items()
    ]
    return sorted(found, key=lambda d: (d.vs, repr(d.payload)))


def compatibility(inputs: Sequence[TDB], output: TDB) -> list[str]:
    """The conditions C1 to C3 (case R3) that `output` breaks; empty when it is compatible.

    Preconditions: the inputs are mutually consistent and (payload, vs) is a key in each.
    """
    leading = max((tdb.stable for tdb in inputs), default=START)
    broken = []
    if output.stable > leading:
        broken.append(f"C1: output stable({output.stable}) is beyond every input's, {leading}")
    views = [(_by_key(tdb), tdb.stable) for tdb in inputs]
    outputs = _by_key(output)
    for key in {key for view, _ in [*views, (outputs, 0)] for key in view}:
        support = [(view[key][0], last) for view, last in views if key in view]
        held = outputs.get(key, [])
        if not _may_hold(held, output.stable, key[1], support):
            broken.append(f"C2: {key} is {held} in the output, {support} in the inputs")
        if not _holds_what_it_must(held, output.stable, key[1], support):
            broken.append(f"C3: {key} is {held} in the output, {support} in the inputs")
    return broken


def multiset_compatibility(leading: TDB, output: TDB) -> list[str]:
    """What `output` breaks of the conditions without keys (case R4), with its stable point that of
    the leading input; empty when it is compatible: of each (payload, vs) the events that are fully
    frozen are those of the leading input, and as many are half frozen.

    >>> leading = TDB([("A", 2, 9), ("A", 2, 4)], stable=6)
    >>> multiset_compatibility(leading, TDB([("A", 2, 7), ("A", 2, 4)], stable=6))
    []
    >>> multiset_compatibility(leading, TDB([("A", 2, 9)], stable=6))
    ["frozen: ('A', 2) is [9] in the output, [4, 9] in the leading input"]
    """
    c = output.stable
    views = _by_key(output), _by_key(leading)
    broken = []
    for key in {key for view in views for key in view if key[1] < c}:
        one, other = (sorted(view.get(key, [])) for view in views)
        frozen = [[ve for ve in ends if ve < c] for ends in (one, other)]
        if frozen[0] != frozen[1] or len(one) != len(other):
            broken.append(f"frozen: {key} is {one} in the output, {other} in the leading input")
    return broken


def _by_key(tdb: TDB) -> dict[tuple[Hashable, int], list[int]]:
    view: dict[tuple[Hashable, int], list[int]] = {}
    for payload, vs, ve in tdb:
        view.setdefault((payload, vs), []).append(ve)
    return view


def _may_hold(held: list[int], last: int, vs: int, support: list[tuple[int, int]]) -> bool:
    """C2: what the output may contain for one key; `support` is (ve, stable) per input."""
    if len(held) > 1:
        return False
    if not held or vs >= last:
        return True
    (out,) = held
    if is_half_frozen(vs, out, last):
        return any(
            (is_half_frozen(vs, ve, lm) and last <= lm)
            or (is_fully_frozen(vs, ve, lm) and last <= ve)
            for ve, lm in support
        )
    return any(ve == out and is_fully_frozen(vs, ve, lm) for ve, lm in support)


def _holds_what_it_must(
    held: list[int], last: int, vs: int, support: list[tuple[int, int]]
) -> bool:
    """C3: what the output must contain for one key."""
    if last <= vs:
        return True
    half_frozen_out = any(is_half_frozen(vs, out, last) for out in held)
    frozen = [ve for ve, lm in support if is_fully_frozen(vs, ve, lm)]
    if frozen:
        (ve,) = set(frozen)
        return half_frozen_out if last <= ve else held == [ve]
    reaching = [lm for ve, lm in support if is_half_frozen(vs, ve, lm)]
    return not reaching or (last <= max(reaching) and half_frozen_out)
