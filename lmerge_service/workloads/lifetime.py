"""The history of one event in a stream: the ends it is given, one after the other.

Theory
    An event keeps its payload and vs for life; only its end is revised. So all that a stream
    ever sends for it is the sequence of its ends, the last of which is final. An end equal to vs
    means that the event is not there: removed, or not inserted yet.

    >>> Life("A", 6, (20, 30, 25)).elements()  # doctest: +NORMALIZE_WHITESPACE
    [Insert(payload='A', vs=6, ve=20), Adjust(payload='A', vs=6, vold=20, ve=30),
     Adjust(payload='A', vs=6, vold=30, ve=25)]
    >>> Life("B", 6, (9, 6)).is_event  # announced and withdrawn: a phantom
    False

    Every way of presenting a logical stream is then a choice of ends for each event (plus some
    phantoms) and a choice of order; `deadline` is how late an element may come.

Invariants
    L1  No end lies below vs.
    L2  `elements` may be sent after stable(c) iff c <= the least of their deadlines; sent in
        their order they leave the event [vs, ve) if `is_event`, else nothing.

Cost
    Linear in the number of ends.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from lmerge_service.elements import Adjust, Insert
from lmerge_service.tdb import TDB

__all__ = ("Life", "deadline", "elements_of", "final_tdb", "lives_of")


@dataclass(frozen=True, slots=True)
class Life:
    """The ends that a stream sends for the event ⟨payload, vs⟩; the last one is final."""

    payload: Hashable
    vs: int
    ends: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.ends or min(self.ends) < self.vs:
            raise ValueError(f"a life needs ends, none below vs={self.vs}, got {self.ends}")

    @property
    def ve(self) -> int:
        """The final end; vs when the event is finally not there."""
        return self.ends[-1]

    @property
    def is_event(self) -> bool:
        """Whether the logical stream holds the event; what does not is a phantom."""
        return self.ends[-1] > self.vs

    def elements(self) -> list[Insert[Any] | Adjust[Any]]:
        """The elements that carry the ends in their order."""
        return elements_of(self.payload, self.vs, self.ends)


def elements_of(payload: Hashable, vs: int, ends: Iterable[int]) -> list[Insert[Any] | Adjust[Any]]:
    """The elements that give the event ⟨payload, vs⟩ these ends, leaving out what holds already.

    >>> elements_of("A", 6, (9, 9, 6, 8))  # doctest: +NORMALIZE_WHITESPACE
    [Insert(payload='A', vs=6, ve=9), Adjust(payload='A', vs=6, vold=9, ve=6),
     Insert(payload='A', vs=6, ve=8)]
    """
    elements: list[Insert[Any] | Adjust[Any]] = []
    held = vs
    for ve in ends:
        if ve == held:
            continue
        elements.append(Insert(payload, vs, ve) if held == vs else Adjust(payload, vs, held, ve))
        held = ve
    return elements


def deadline(element: Insert[Any] | Adjust[Any]) -> int:
    """The greatest c after whose stable(c) the element is still legal (docs/semantics.md, 2.1).

    >>> deadline(Adjust("A", 6, 20, 12))
    12
    """
    return element.vs if isinstance(element, Insert) else min(element.vold, element.ve)


def lives_of(events: Iterable[tuple[Hashable, int, int]]) -> list[Life]:
    """The events of a TDB as lives of one end each, in order of vs (ties as given)."""
    return sorted((Life(payload, vs, (ve,)) for payload, vs, ve in events), key=lambda a: a.vs)


def final_tdb(lives: Iterable[Life]) -> TDB:
    """The logical stream: what holds when every end has been sent.

    >>> final_tdb([Life("A", 6, (20, 25)), Life("B", 6, (9, 6))])
    TDB([Event(payload='A', vs=6, ve=25)], stable=-9223372036854775808)
    """
    return TDB((life.payload, life.vs, life.ve) for life in lives if life.is_event)
