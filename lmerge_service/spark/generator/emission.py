"""The elements of many events at once, with their send times and deadlines.

Theory
    It is `workloads.presentation`, by columns instead of one by one. The elements of an event
    follow from a sequence of ends: a column is the ends at one place of that sequence, of those
    events that have one there. One pass over the columns makes elements of them (an end that
    holds already is left out), one backwards finds the least deadline of each element and those
    after it, one forwards the send times. Only the final end of an event is known here; earlier,
    provisional ends are made up.

    >>> events = Events(np.array([8]), np.array([100]), np.array([130]), np.array([0]))
    >>> emitted = emit(events, Variation(provisional=1.0, spread=5, pace="late"), Draws("1"))
    >>> [(int(ve), int(limit)) for ve, limit in zip(emitted.ve, emitted.limit)]
    [(128, 100), (130, 128)]

Invariants
    T1  The elements of an event depend on its number, its times, the variation and the seed.
    T2  Every send time lies in [vs - lead, vs - lead + reach].

Cost
    Linear in the events and in the columns, of which there are revisions + 1, and 2 more if
    `reinserted`; the same again for doubles and for phantoms.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from lmerge_service.elements import INFINITY
from lmerge_service.spark.generator.randomness import Bools, Draws, Longs
from lmerge_service.workloads.presentation import Variation

__all__ = ("Emitted", "Events", "emit", "reach")


@dataclass(frozen=True, slots=True)
class Events:
    """Some of the logical stream's, by columns."""

    number: Longs
    """Determines what is drawn for each event."""
    vs: Longs
    ve: Longs
    event: Longs
    """Identifies the event of an element (`Emitted.event`)."""

    def where(self, kept: Bools) -> "Events":
        """The events for which `kept` is true, in their order; all columns have its length."""
        columns = (self.number, self.vs, self.ve, self.event)
        return Events(*(each[kept] for each in columns))


@dataclass(frozen=True, slots=True)
class Emitted:
    """Elements by columns, in no order; an insert's vold is its vs."""

    send: Longs
    serial: Longs
    """Unique; rises with the event's number, and along the elements of one event."""
    event: Longs
    vs: Longs
    vold: Longs
    ve: Longs
    limit: Longs
    """The least deadline of the element and of the later ones of its event."""

    def ordered(self) -> "Emitted":
        """As they are sent."""
        return self._taken(np.lexsort((self.serial, self.send)))

    def between(self, first: int | None, end: int | None) -> "Emitted":
        """Those sent in [first, end); None: no bound."""
        kept = np.ones(len(self.send), bool)
        if first is not None:
            kept &= self.send >= first
        if end is not None:
            kept &= self.send < end
        return self._taken(np.flatnonzero(kept))

    def _taken(self, places: Longs) -> "Emitted":
        return Emitted(*(getattr(self, name)[places] for name in _COLUMNS))


_LONGEST_WAIT: Final = 1 << 53  # for an event without end that has an end at first
_COLUMNS: Final = ("send", "serial", "event", "vs", "vold", "ve", "limit")
_Column = tuple[Longs, Bools]
"""The ends at one place of the sequence, and which events have one there."""


def reach(variation: Variation, duration: int) -> int:
    """How long after its first possible moment an element is sent at the most (T2)."""
    delays = variation.displacement if variation.disorder else 0
    steps = 1
    if variation.provisional or variation.reinserted or variation.phantoms or variation.doubled:
        steps += _columns_of(variation) + 1
        shifted = variation.spread if variation.phantoms else 0
        revised = variation.spread if variation.provisional else 0
        delays += duration + variation.lead + shifted + revised
    return delays + (steps - 1) * (variation.displacement if variation.disorder else 0)


def _columns_of(variation: Variation) -> int:
    revised = variation.revisions if variation.provisional else 0
    return revised + 1 + (2 if variation.reinserted else 0)


def emit(events: Events, variation: Variation, draws: Draws) -> Emitted:
    """All elements of these events, of their transient doubles and of their phantoms."""
    base = (_columns_of(variation) + 1) * 3
    parts = []
    for kind, (some, columns) in enumerate(_sequences(events, variation, draws)):
        first = kind * (_columns_of(variation) + 1)
        serial = some.number * base + first
        parts += _steps(some, serial, columns, variation, draws)
    return Emitted(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _sequences(
    events: Events, variation: Variation, draws: Draws
) -> Iterator[tuple[Events, list[_Column]]]:
    number, everyone = events.number, np.ones(len(events.number), bool)
    own = _revised(events, [(events.ve, everyone)], "own", variation, draws)
    yield events, own
    if variation.doubled:
        some = events.where(twice := draws.chance("doubled", number, variation.doubled))
        yield some, _columns([_first_end(own)[twice], some.vs])
    if variation.phantoms:
        vs = events.vs + draws.picked("phantom", number, variation.spread)
        ve = _later(vs, _first_end(own) - events.vs)
        phantoms = Events(number, vs, ve, events.event)
        some = phantoms.where(draws.chance("phantoms", number, variation.phantoms))
        yield some, _revised(some, _columns([some.ve, some.vs]), "phantom", variation, draws)


def _columns(ends: list[Longs]) -> list[_Column]:
    return [(each, np.ones(len(each), bool)) for each in ends]


def _first_end(columns: list[_Column]) -> Longs:
    first, some = columns[0]
    first = first.copy()
    for ends, there in columns[1:]:
        missing = ~some
        first[missing & there] = ends[missing & there]
        some = some | there
    return first


def _revised(
    events: Events, ends: list[_Column], whose: str, variation: Variation, draws: Draws
) -> list[_Column]:
    """These ends with made-up ones before the last, and perhaps a removal and second insert."""
    number = events.number
    if variation.provisional:
        revisions = np.where(
            draws.chance(f"{whose} provisional", number, variation.provisional),
            draws.picked(f"{whose} revisions", number, variation.revisions),
            0,
        )
        made_up = [
            (_made_up(events, f"{whose} {at}", variation, draws), revisions > at)
            for at in range(variation.revisions)
        ]
        ends = [*ends[:-1], *made_up, ends[-1]]
    if variation.reinserted:
        again = draws.chance(f"{whose} reinserted", number, variation.reinserted)
        ends = [(_first_end(ends), again), (events.vs, again), *ends]
    return ends


def _made_up(events: Events, which: str, variation: Variation, draws: Draws) -> Longs:
    number = events.number
    offset = draws.picked(f"{which} offset", number, variation.spread)
    below = draws.chance(f"{which} below", number, 0.5)
    ends = np.where(below, np.maximum(events.ve - offset, events.vs + 1), _later(events.ve, offset))
    if variation.endless:
        ends[draws.chance(f"{which} endless", number, variation.endless)] = INFINITY
    return ends


def _later(times: Longs, by: Longs) -> Longs:
    """What lies behind infinity is infinity."""
    return np.minimum(times, INFINITY - by) + by


def _steps(
    events: Events, serial: Longs, columns: list[_Column], variation: Variation, draws: Draws
) -> list[tuple[Longs, ...]]:
    """By column, the elements that have their place there, as the columns of `Emitted`."""
    steps, held = [], events.vs
    for ends, there in columns:
        there = there & (ends != held)  # noqa: PLW2901 (less what holds already)
        due = np.where(held == events.vs, events.vs, np.minimum(held, ends))
        steps.append((there, held, ends, due))
        held = np.where(there, ends, held)
    limits, limit = [], np.full(len(held), INFINITY)
    for there, _, _, due in reversed(steps):
        limit = np.where(there, np.minimum(limit, due), limit)
        limits.append(limit)
    parts, send, begun = [], events.vs - variation.lead, np.zeros(len(held), bool)
    for at, ((there, was, ends, _), limit) in enumerate(zip(steps, reversed(limits), strict=True)):
        own = serial + at
        send = send + np.where(there & begun, _wait(limit - send, own, variation, draws), 0)
        if variation.disorder:
            delayed = there & draws.chance("disorder", own, variation.disorder)
            send = send + np.where(delayed, draws.picked("delay", own, variation.displacement), 0)
        begun |= there
        rows = (send, own, events.event, events.vs, was, ends, limit)
        parts.append(rows if there.all() else tuple(each[there] for each in rows))
    return parts


def _wait(window: Longs, serial: Longs, variation: Variation, draws: Draws) -> Longs:
    """How much of the time left before the deadline a revision lets pass."""
    share = draws.shares("wait", serial)
    match variation.pace:
        case "eager":
            share *= 0.1
        case "late":
            share = 1 - share * 0.1
        case "anytime":
            pass
    return (share * np.clip(window, 0, _LONGEST_WAIT)).astype(np.int64)
