"""A checkpoint: what a stream meant up to some time, as the beginning of another replica's topic.

Theory
    A stream that was recorded up to stable(t) has every event that ends at t or later, and what
    is before t is final. So a replica that begins with these events, and goes on with what the
    query emits after them, is correct from t on (V-B), and need not wait until every event that
    it has not seen beginning has ended:

        recorded    ins(p, 1, 5)  ins(q, 2, 9)  stable(7)  ins(r, 8, 12)
        beginning   ins(q, 2, 9)  ins(r, 8, 12)  stable(7)          correct from 7 on

    What was recorded in several parts, such as the partitions of a topic, is as far as its least
    stable. Nothing later is final, and the query goes on from there. A part may itself be complete
    only from a later time on, as the state of a merge is from its own stable on. Then the whole is
    correct from the latest of these times, though the query has to go on from the least:

        part 0      ins(q, 2, 9)  stable(7)      complete from 7 on: what ended before is gone
        part 1      ins(s, 3, 6)  stable(4)      complete from 4 on
        beginning   ins(q, 2, 9)  ins(s, 3, 6)  stable(4)           correct from 7 on
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, IllegalStreamError
from lmerge_service.tdb import TDB, Event

__all__ = ("Checkpoint", "StreamContent", "checkpoint", "composed", "held")

_LOOKED_AFTER: Final = 100_000
"""So many elements, or as many as there were live events, and what is final is dropped."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a replica begins with."""

    events: list[Event]
    """Those that end at `stable` or later, by vs."""
    stable: int
    """The query goes on from here."""
    correct_from: int
    """Every event that ends at this time or later is there; not below `stable`."""

    def beginning(self) -> Iterator[Element]:
        """The elements with which the replica begins.

        >>> found = composed("f", [(TDB([("p", 1, 5), ("r", 8, 12), ("q", 2, 9)], stable=7), 0)])
        >>> list(found.beginning())
        [Insert(payload='q', vs=2, ve=9), Insert(payload='r', vs=8, ve=12), Stable(vc=7)]
        """
        for payload, vs, ve in self.events:
            yield Insert(payload, vs, ve)
        yield Stable(self.stable)


def checkpoint(name: str, elements: Iterable[tuple[int, Element]]) -> Checkpoint:
    """What a recorded stream, named `name` in errors, holds at its last stable; lines are given
    with the elements.

    Raises:
        IllegalStreamError: it is no stream, with the line.
        ConfigurationError: nothing in it is final, or all is.
    """
    return composed(name, [(held(f"{name}:", elements), START)])


class StreamContent:
    """What a stream holds so far, less what was final before; `place` and the number of an element
    locate it.

    Complexity: memory in what is not final, not in the stream.
    """

    def __init__(self, place: str) -> None:
        self.tdb = TDB()
        self._place = place
        self._left = _LOOKED_AFTER

    def take(self, number: int, element: Element) -> None:
        """Raises IllegalStreamError: it does not go on so, with the place."""
        try:
            self.tdb.apply(element)
        except IllegalStreamError as error:
            raise IllegalStreamError(f"{self._place}{number}: {error}") from None
        self._left -= 1
        if self._left < 0:
            self.tdb = TDB(_live(self.tdb, self.tdb.stable), self.tdb.stable)
            self._left = max(_LOOKED_AFTER, len(self.tdb))


def held(place: str, elements: Iterable[tuple[int, Element]]) -> TDB:
    """What a stream holds in the end, as `StreamContent` has it.

    Raises:
        IllegalStreamError: it is no stream, with the place.
    """
    holding = StreamContent(place)
    for number, element in elements:
        holding.take(number, element)
    return holding.tdb


def composed(name: str, parts: Iterable[tuple[TDB, int]]) -> Checkpoint:
    """The checkpoint that parts are together, each with the time from which on it is complete:
    every event that ends then or later is in it.

    Raises:
        ConfigurationError: nothing is final, or all is.
    """
    parts = list(parts)
    stable = min((tdb.stable for tdb, _ in parts), default=START)
    if stable == START:
        raise ConfigurationError(f"{name} has no stable: there is no time from which it is correct")
    if stable == INFINITY:
        raise ConfigurationError(f"{name} has ended: there is nothing to go on with")
    events = [event for tdb, _ in parts for event in _live(tdb, stable)]
    correct_from = max(stable, *(complete_from for _, complete_from in parts))
    if correct_from == INFINITY:
        raise ConfigurationError(f"a part of {name} has ended: there is nothing to go on with")
    return Checkpoint(sorted(events, key=lambda each: each.vs), stable, correct_from)


def _live(tdb: TDB, stable: int) -> Iterator[Event]:
    return (event for event in tdb if event.ve >= stable)
