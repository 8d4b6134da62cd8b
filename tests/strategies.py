"""Hypothesis strategies: logical streams, their physical presentations, interleavings and lies.

Times are small (0 to 30, ends also INFINITY) and payloads few ('A' to 'D'), so that events
collide in vs, in payload and in their ends. Presentations come in two kinds:

- *drawn* (`presentations`): each end, each place in the order and each stable is a choice of its
  own, so that a failure shrinks to events sent at once, in order, without stables;
- *seeded* (`seeded_presentations`): `lmerge_service.workloads` with a drawn variation and seed, as
  the demo and the benchmarks use it.

Both vary order, provisional ends above and below the final one, phantoms, removal and second
insertion, and where stables stand; both are legal and equivalent to the logical stream.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Final, TypeVar

from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import Event
from lmerge_service.workloads.lies import KINDS, falsified
from lmerge_service.workloads.lifetime import deadline, elements_of, lives_of
from lmerge_service.workloads.presentation import Variation, present

__all__ = (
    "HORIZON",
    "PAYLOADS",
    "any_elements",
    "interleavings",
    "logical_streams",
    "lying_presentations",
    "presentations",
    "seeded_presentations",
    "times",
    "variations",
)

PAYLOADS: Final = "ABCD"
HORIZON: Final = 30
"""No vs and no finite end of a logical stream lies beyond."""

Logical = Sequence[Event]
T = TypeVar("T")
_Change = Insert[Any] | Adjust[Any]


@cache
def times(least: int = 0, most: int = HORIZON, *, endless: bool = False) -> st.SearchStrategy[int]:
    """Times of [least, most], the first few of them more often, and INFINITY if `endless`."""
    few = range(least, min(least + 5, most + 1))
    return st.sampled_from((*few, *range(least, most + 1), *[INFINITY] * (3 * endless)))


@st.composite
def _event(draw: st.DrawFn) -> Event:
    vs = draw(times(0, HORIZON - 1))
    return Event(draw(st.sampled_from(PAYLOADS)), vs, draw(times(vs + 1, endless=True)))


_EVENTS: Final = _event()


def logical_streams(
    max_events: int = 6, *, unique_keys: bool = True, unique_vs: bool = False
) -> st.SearchStrategy[list[Event]]:
    """The events of a logical stream, in order of vs.

    (payload, vs) is a key unless `unique_keys` is off (case R4); `unique_vs` is for case R0.
    """

    def key(event: Event) -> object:
        return event.vs if unique_vs else event[:2]

    unique_by = key if unique_keys or unique_vs else None
    lists = st.lists(_EVENTS, max_size=max_events, unique_by=unique_by)
    return lists.map(lambda drawn: sorted(drawn, key=lambda event: event.vs))


@st.composite
def presentations(
    draw: st.DrawFn, logical: Logical, n: int, case: str = "R3", *, closed: bool = True
) -> list[list[Element]]:
    """n drawn presentations of one logical stream, within the restrictions of "R0" to "R4".

    `closed` ones end with stable(INFINITY).
    """
    return [draw(_presentation(logical, case, closed)) for _ in range(n)]


@st.composite
def _presentation(draw: st.DrawFn, logical: Logical, case: str, closed: bool) -> list[Element]:
    if case in ("R3", "R4"):
        order = draw(_merged([*draw(_lifetimes(logical)), *draw(_phantoms(logical, case))]))
        sequence = [element for _, element in order]
    else:
        tied = st.permutations(logical) if case == "R2" else st.just(logical)
        sequence = [Insert(*event) for event in sorted(draw(tied), key=lambda event: event.vs)]
    elements = list(_punctuated(sequence, draw(_slacks(len(sequence)))))
    return [*elements, Stable(INFINITY)] if closed else elements


@st.composite
def _lifetimes(draw: st.DrawFn, logical: Logical) -> list[list[_Change]]:
    """Per event the elements that present it, through ends made up anywhere (vs: removed)."""
    return [
        elements_of(payload, vs, [*draw(st.lists(_ends(vs), max_size=2)), ve])
        for payload, vs, ve in logical
    ]


@st.composite
def _phantoms(draw: st.DrawFn, logical: Logical, case: str) -> list[list[_Change]]:
    """Events sent and removed: with keys of their own, but for case R4 often doubles of others."""
    if case == "R3":
        taken = {event[:2] for event in logical}
        drawn = draw(st.lists(_EVENTS, max_size=2, unique_by=lambda event: event[:2]))
    else:
        taken = set()
        drawn = draw(
            st.lists(st.sampled_from(logical) | _EVENTS if logical else _EVENTS, max_size=2)
        )
    return [
        elements_of(payload, vs, [ve, *draw(st.lists(_ends(vs), max_size=1)), vs])
        for payload, vs, ve in drawn
        if (payload, vs) not in taken
    ]


def _ends(vs: int) -> st.SearchStrategy[int]:
    return times(vs, HORIZON + 5, endless=True)


@cache
def _slacks(n: int) -> st.SearchStrategy[list[int | None]]:
    """After each element no stable, or one that stays so far behind what is possible."""
    slack = st.sampled_from((None, *range(4), None, *range(4, HORIZON, 5)))
    return st.lists(slack, min_size=n, max_size=n)


def _punctuated(sequence: Sequence[_Change], slacks: Sequence[int | None]) -> Iterator[Element]:
    floors = list(accumulate(map(deadline, reversed(sequence)), min, initial=HORIZON + 5))
    floors.pop()
    last = START
    for element, slack in zip(sequence, slacks, strict=True):
        yield element
        floor = floors.pop()
        if slack is not None and floor - slack >= last:
            last = floor - slack
            yield Stable(last)


@st.composite
def seeded_presentations(
    draw: st.DrawFn, logical: Logical, n: int, case: str = "R3"
) -> list[list[Element]]:
    """n presentations by `lmerge_service.workloads`, each with its own variation and seed."""
    lives = lives_of(logical)
    return [
        list(present(lives, draw(variations(case)), draw(st.integers(0, 2**16)))) for _ in range(n)
    ]


def variations(case: str = "R3") -> st.SearchStrategy[Variation]:
    """Any variation, at the scale of these small times; `doubled` only in case R4."""
    fraction = st.sampled_from((0.0, 0.3, 1.0))
    return st.builds(
        Variation,
        ends=st.sampled_from(("all", "first", "final")),
        provisional=fraction,
        revisions=st.integers(1, 3),
        spread=st.integers(1, 10),
        endless=fraction,
        reinserted=fraction,
        phantoms=fraction,
        doubled=fraction if case == "R4" else st.just(0.0),
        lead=st.integers(0, 10),
        pace=st.sampled_from(("anytime", "eager", "late")),
        disorder=fraction,
        displacement=st.integers(1, 10),
        lag=st.integers(0, 10),
        stable_every=st.integers(0, 5),
        stable_probability=fraction,
        stable_lag=st.integers(0, 10),
        repeated_stables=fraction,
    )


@st.composite
def lying_presentations(
    draw: st.DrawFn, logical: Logical, n: int, case: str = "R3"
) -> list[list[Element]]:
    """n drawn presentations in which any element may have become any kind of lie.

    They shrink to the truth. What shares nothing with a truth is `st.lists(any_elements())`.
    """
    truthful = draw(presentations(logical, n, case, closed=draw(st.booleans())))
    return [list(_bent(elements, draw(_lies(len(elements))))) for elements in truthful]


_Falsehood = tuple[str, int]
_FALSEHOODS: Final = tuple((kind, by) for by in (1, -1, 2, -2, 5, -5) for kind in KINDS)


@cache
def _lies(n: int) -> st.SearchStrategy[list[_Falsehood | None]]:
    """For each element the truth, three times out of four, or a lie."""
    truth = (None,) * (3 * len(_FALSEHOODS))
    return st.lists(st.sampled_from((*truth, *_FALSEHOODS)), min_size=n, max_size=n)


def _bent(elements: list[Element], lies: list[_Falsehood | None]) -> Iterator[Element]:
    for element, lie in zip(elements, lies, strict=True):
        if lie is None:
            yield element
        else:
            kind, by = lie
            yield from falsified(kind, element, by)


def any_elements() -> st.SearchStrategy[Element]:
    """An element that nothing is known about but that it is one."""
    inserts = _EVENTS.map(lambda event: Insert(*event))
    adjusts = _EVENTS.flatmap(lambda event: _ends(event.vs).map(lambda ve: Adjust(*event, ve)))
    stables = st.builds(Stable, times(endless=True))
    return inserts | adjusts | stables


def interleavings(streams: Sequence[Sequence[T]]) -> st.SearchStrategy[list[tuple[int, T]]]:
    """Orders in which the inputs' elements may arrive, each as (number of the input, element).

    They shrink to one input after the other.
    """
    return _merged(streams)


@st.composite
def _merged(draw: st.DrawFn, sequences: Sequence[Sequence[T]]) -> list[tuple[int, T]]:
    left = {number: list(reversed(items)) for number, items in enumerate(sequences) if items}
    size = sum(map(len, left.values()))
    most = max(len(left) - 1, 0)
    merged = []
    for choice in draw(st.lists(st.integers(0, most), min_size=size, max_size=size)):
        number = list(left)[choice % len(left)]
        merged.append((number, left[number].pop()))
        if not left[number]:
            del left[number]
    return merged
