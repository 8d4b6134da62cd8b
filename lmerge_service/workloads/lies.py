"""Presentations that lie: what a merge must survive without contradicting itself.

Theory
    A lie replaces one element of a truthful stream by a false one. What results still consists
    of elements, but it may break its own stables, adjust what it does not hold, or mean
    something else than the other inputs:

    >>> falsified("wrong_vold", Adjust("A", 6, 20, 25), by=3)
    [Adjust(payload='A', vs=6, vold=23, ve=25)]
    >>> falsified("early", Stable(11), by=3)
    [Stable(vc=14)]

Invariants
    Y1  Each replacement is an element: `elements.defect` finds nothing.
    Y2  The same elements, lies and seed give the same stream in any process.

Cost
    O(1) per element and kind, lazily.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from random import Random
from typing import Final

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable

__all__ = ("KINDS", "Lie", "falsified", "lie")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """The fraction of elements replaced by each kind of lie; times are off by up to `by`.

    drop: the element is left out. repeat: it is sent twice. shift: the times of an insert, or
    the new end of an adjust, are off. early: a stable promises too much. wrong_vold: an adjust
    names an end that the event does not have. unknown: an adjust follows of an event never
    inserted. regress: a lower stable follows a stable.
    """

    drop: float = 0.0
    repeat: float = 0.0
    shift: float = 0.0
    early: float = 0.0
    wrong_vold: float = 0.0
    unknown: float = 0.0
    regress: float = 0.0
    by: int = 10

    def __post_init__(self) -> None:
        if self.by < 1 or not all(0 <= getattr(self, kind) <= 1 for kind in KINDS):
            raise ValueError(f"kinds of lies are fractions and by at least 1, got {self}")


KINDS: Final = tuple(field.name for field in fields(Lie) if field.name != "by")


def lie(elements: Iterable[Element], lies: Lie, seed: int | str) -> Iterator[Element]:
    """The stream with these lies in it.

    >>> list(lie([Insert("A", 6, 20), Stable(8)], Lie(repeat=1.0), seed=0))
    [Insert(payload='A', vs=6, ve=20), Insert(payload='A', vs=6, ve=20), Stable(vc=8), Stable(vc=8)]
    """
    rng = Random(f"{seed}")
    chances = [(kind, chance) for kind, chance in asdict(lies).items() if kind != "by" and chance]
    for element in elements:
        sent = [element]
        for kind, chance in chances:
            sent = [
                replacement
                for one in sent
                for replacement in (
                    falsified(kind, one, _amount(rng, lies.by)) if rng.random() < chance else [one]
                )
            ]
        yield from sent


def falsified(kind: str, element: Element, by: int) -> list[Element]:
    """What a replica that lies so sends instead of the element; `by` is not 0, may be negative.

    An element that the kind does not concern is sent as it is.
    """
    match kind, element:
        case "drop", _:
            return []
        case "repeat", _:
            return [element, element]
        case "shift", Insert(payload, vs, ve):
            vs = _within(START, vs + by, INFINITY - 1)
            return [Insert(payload, vs, _within(vs + 1, ve + by, INFINITY))]
        case "shift", Adjust(payload, vs, vold, ve):
            return [Adjust(payload, vs, vold, _within(vs, ve + by, INFINITY))]
        case "early", Stable(vc):
            return [Stable(min(vc + abs(by), INFINITY))]
        case "wrong_vold", Adjust(payload, vs, vold, ve):
            return [Adjust(payload, vs, _within(vs + 1, vold + by, INFINITY), ve)]
        case "unknown", Insert(payload, vs) | Adjust(payload, vs):
            vs = _within(START, vs + by, INFINITY - 2)
            return [element, Adjust(payload, vs, vs + 2, vs + 1)]
        case "regress", Stable(vc):
            return [element, Stable(max(vc - abs(by), START))]
    if kind not in KINDS:
        raise ValueError(f"no such lie: {kind}")
    return [element]


def _amount(rng: Random, by: int) -> int:
    return rng.choice((-1, 1)) * rng.randint(1, by)


def _within(least: int, value: int, most: int) -> int:
    return max(least, min(value, most))
