"""One logical stream into many physical presentations, each legal and all equivalent.

Theory
    Each element gets a *send time*: an event's insert its vs less a lead, each further element a
    time between the one before it and its deadline, and disorder adds a delay. The order of send
    times is the order of the stream. After every element the *floor* is the least deadline of
    all that is still to come; any stable(c) with c <= floor is legal there, and no higher one can
    be kept. Elements sent past their deadline therefore hold the stables back, never break them:

    >>> from lmerge_service.workloads.lifetime import Life
    >>> lives = [Life("A", 6, (20, 25)), Life("B", 8, (12,))]
    >>> elements = list(present(lives, Variation(pace="late", stable_every=1), seed=0))
    >>> for element in elements: print(element)
    Insert(payload='A', vs=6, ve=20)
    Stable(vc=8)
    Insert(payload='B', vs=8, ve=12)
    Stable(vc=20)
    Adjust(payload='A', vs=6, vold=20, ve=25)
    Stable(vc=9223372036854775807)

Invariants
    P1  A presentation is a legal stream, and its TDB is `final_tdb(lives)`, whatever the
        variation and the seed.
    P2  While (payload, vs) is a key of the lives it is one of every prefix, unless `doubled`.
    P3  With stable_lag=0 every stable but the last is the floor of its place.
    P4  The same lives, variation and seed give the same elements, in any process; how stables
        are placed changes nothing about the other elements.

Cost
    O(log a) per element, a being the events between their first and last send time, in one lazy
    pass over the lives; `phantoms` first take the keys of all lives into memory.
"""

import heapq
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from random import Random
from typing import Literal, assert_never

from lmerge_service.elements import INFINITY, START, Element, Stable
from lmerge_service.workloads.lifetime import Life, deadline, elements_of

__all__ = ("Variation", "present", "presentations", "timed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """How a presentation departs from the plainest one; fractions lie in [0, 1].

    Which ends are sent for an event:
        ends: all of its life, the first and the final one, or the final one alone.
        provisional, revisions, spread, endless: this fraction of the events gets up to
            `revisions` made-up ends, up to `spread` below or above the final one; a fraction
            `endless` of those is INFINITY.
        reinserted: this fraction is inserted, removed and inserted again.
    What else is sent:
        phantoms: per event, the fraction of further events (its payload up to `spread` later)
            that are inserted, perhaps revised, and removed.
        doubled: this fraction of events for a while appears twice: for case R4 only.
    When:
        lead: inserts are sent so long before vs (what is removed goes between then and vs).
        pace: in the time left to its deadline a revision comes early, late, or anywhere.
        disorder, displacement: this fraction of elements is delayed by up to `displacement`.
        lag: all is sent so much later, which shows in `timed` only.
    Stables:
        stable_every: one is due after every so many elements (0: none).
        stable_probability: one is due after an element with this probability.
        stable_lag: it stays so far behind the floor.
        repeated_stables: when it would not rise, send the last one again with this probability.
        closed: the stream ends with stable(INFINITY).
    """

    ends: Literal["all", "first", "final"] = "all"
    provisional: float = 0.0
    revisions: int = 1
    spread: int = 1
    endless: float = 0.0
    reinserted: float = 0.0
    phantoms: float = 0.0
    doubled: float = 0.0
    lead: int = 0
    pace: Literal["eager", "late", "anytime"] = "anytime"
    disorder: float = 0.0
    displacement: int = 1
    lag: int = 0
    stable_every: int = 0
    stable_probability: float = 0.0
    stable_lag: int = 0
    repeated_stables: float = 0.0
    closed: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, float) and not 0 <= value <= 1:
                raise ValueError(f"{field.name} is a fraction, got {value}")
            least = 1 if field.name in ("revisions", "spread", "displacement") else 0
            if type(value) is int and value < least:
                raise ValueError(f"{field.name} must be at least {least}, got {value}")


def present(lives: Iterable[Life], variation: Variation, seed: int | str) -> Iterator[Element]:
    """One presentation of the logical stream, lazily.

    Raises:
        ValueError: the lives are not in order of vs.
    """
    return (element for _, element in timed(lives, variation, seed))


def presentations(
    lives: Sequence[Life], variations: Sequence[Variation], seed: int | str
) -> list[Iterator[Element]]:
    """One presentation of the same logical stream per variation, independently seeded."""
    return [present(lives, each, f"{seed}/{n}") for n, each in enumerate(variations)]


def timed(
    lives: Iterable[Life], variation: Variation, seed: int | str
) -> Iterator[tuple[int, Element]]:
    """The presentation with send times, which never fall: for pacing, or merging by time.

    Raises:
        ValueError: the lives are not in order of vs.
    """
    outbox = _Outbox()
    cadence = _Cadence(variation, Random(f"{seed} stables"))
    send = START
    for send, element in _in_order_of_sending(lives, variation, Random(f"{seed}"), outbox):
        yield send + variation.lag, element
        if cadence.is_due() and (vc := cadence.stable(outbox.floor())) is not None:
            yield send + variation.lag, Stable(vc)
    if variation.closed:
        yield send + variation.lag, Stable(INFINITY)


class _Cadence:
    """Decides where stables stand."""

    def __init__(self, variation: Variation, rng: Random) -> None:
        self._variation = variation
        self._rng = rng
        self._elements = 0
        self._last = START

    def is_due(self) -> bool:
        """To be called once after each element."""
        self._elements += 1
        every = self._variation.stable_every
        if every and self._elements % every == 0:
            return True
        return _chance(self._rng, self._variation.stable_probability)

    def stable(self, floor: int) -> int | None:
        vc = floor - self._variation.stable_lag
        if self._last < vc and floor < INFINITY:
            self._last = vc
            return vc
        repeated = self._last > START and _chance(self._rng, self._variation.repeated_stables)
        return self._last if repeated else None


class _Outbox:
    """Elements not sent yet, by send time, and how many of them share each deadline."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, int, int, Element]] = []
        self._put = 0
        self._deadlines: list[int] = []  # a heap of the keys of _due
        self._due: dict[int, int] = {}
        self._coming = INFINITY

    def put(self, send: int, limit: int, element: Element) -> None:
        self._put += 1  # unique, so that elements are never compared
        heapq.heappush(self._pending, (send, self._put, limit, element))
        if limit in self._due:
            self._due[limit] += 1
        else:
            self._due[limit] = 1
            heapq.heappush(self._deadlines, limit)

    def release(self, until: int | None, coming: int) -> Iterator[tuple[int, Element]]:
        """What is sent by `until` (None: all), while all that is put later is due at `coming`."""
        self._coming = coming
        self._forget_passed()
        pending, due = self._pending, self._due
        while pending and (until is None or pending[0][0] <= until):
            send, _, limit, element = heapq.heappop(pending)
            due[limit] -= 1
            yield send, element

    def floor(self) -> int:
        """The least deadline of all that is still to come."""
        self._forget_passed()
        return min(self._coming, self._deadlines[0]) if self._deadlines else self._coming

    def _forget_passed(self) -> None:
        while self._deadlines and not self._due[self._deadlines[0]]:
            del self._due[heapq.heappop(self._deadlines)]


def _in_order_of_sending(
    lives: Iterable[Life], variation: Variation, rng: Random, outbox: _Outbox
) -> Iterator[tuple[int, Element]]:
    for vs, steps in _steps_by_life(lives, variation, rng):
        yield from outbox.release(vs - variation.lead, vs)
        for step in steps:
            outbox.put(*step)
    yield from outbox.release(None, INFINITY)


_Step = tuple[int, int, Element]
"""(send time, the least deadline of this element and those after it, element)."""


def _steps_by_life(
    lives: Iterable[Life], variation: Variation, rng: Random
) -> Iterator[tuple[int, list[_Step]]]:
    """Per life that is sent at all: its vs, its steps and those of what comes with it."""
    taken: set[tuple[Hashable, int]] = set()
    if variation.phantoms:
        lives = list(lives)
        taken.update((life.payload, life.vs) for life in lives)
    last = START
    for life in lives:
        if life.vs < last:
            raise ValueError(f"lives must come in order of vs, got {life.vs} after {last}")
        last = life.vs
        steps: list[_Step] = []
        for vs, ends in _histories(life, variation, rng, taken):
            steps += _steps(life.payload, vs, ends, variation, rng)
        if steps:
            yield life.vs, steps


def _histories(
    life: Life, variation: Variation, rng: Random, taken: set[tuple[Hashable, int]]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The (vs, ends) sent for the life, for its transient double and for its phantom."""
    own = _own_ends(life, variation)
    if max(own) == life.vs:
        return
    own = _revised(life, own, variation, rng)
    yield life.vs, own
    if _chance(rng, variation.doubled):
        yield life.vs, (own[0], life.vs)
    if _chance(rng, variation.phantoms):
        vs = life.vs + _pick(rng, variation.spread)
        ve = min(vs + own[0] - life.vs, INFINITY)
        if vs < ve and (life.payload, vs) not in taken:
            taken.add((life.payload, vs))
            phantom = Life(life.payload, vs, (ve, vs))
            yield vs, _revised(phantom, phantom.ends, variation, rng)


def _own_ends(life: Life, variation: Variation) -> tuple[int, ...]:
    match variation.ends:
        case "all":
            return life.ends
        case "first":
            return life.ends[0], life.ve
        case "final":
            return (life.ve,)
    assert_never(variation.ends)


def _revised(
    life: Life, ends: tuple[int, ...], variation: Variation, rng: Random
) -> tuple[int, ...]:
    """These ends with made-up ones before the last, and perhaps a removal and second insert."""
    if _chance(rng, variation.provisional):
        made_up = (
            _made_up_end(life, variation, rng) for _ in range(_pick(rng, variation.revisions))
        )
        ends = (*ends[:-1], *made_up, ends[-1])
    if _chance(rng, variation.reinserted):
        ends = (ends[0], life.vs, *ends)
    return ends


def _made_up_end(life: Life, variation: Variation, rng: Random) -> int:
    if _chance(rng, variation.endless):
        return INFINITY
    basis = life.ve if life.is_event else life.ends[0]
    offset = _pick(rng, variation.spread)
    if rng.random() < 0.5:
        return max(basis - offset, life.vs + 1)
    return min(basis + offset, INFINITY)


def _steps(
    payload: Hashable, vs: int, ends: tuple[int, ...], variation: Variation, rng: Random
) -> Iterator[_Step]:
    elements = elements_of(payload, vs, ends)
    limits = list(accumulate(map(deadline, reversed(elements)), min))
    send, disorder = vs - variation.lead, variation.disorder
    for position, element in enumerate(elements):
        limit = limits.pop()
        if position:
            send += _wait(limit - send, variation, rng)
        if disorder and rng.random() < disorder:
            send += _pick(rng, variation.displacement)
        yield send, limit, element


def _wait(window: int, variation: Variation, rng: Random) -> int:
    """How much of the time left before the deadline a revision lets pass."""
    if window <= 0:
        return 0
    match variation.pace:
        case "eager":
            share = rng.random() * 0.1
        case "late":
            share = 1 - rng.random() * 0.1
        case "anytime":
            share = rng.random()
    return int(share * window)


def _chance(rng: Random, probability: float) -> bool:
    """True with this probability; draws nothing when the probability is 0."""
    return probability > 0 and rng.random() < probability


def _pick(rng: Random, most: int) -> int:
    """An integer in [1, most]; three times as fast as `randint`."""
    return min(1 + int(rng.random() * most), most)
