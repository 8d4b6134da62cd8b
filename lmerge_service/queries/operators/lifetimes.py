"""Functions of lifetimes: one operator, AlterLifetime, and the closed set of what it may apply.

Meaning
    Each event ⟨p, [vs, ve)⟩ becomes ⟨p, [a, b)⟩, a and b functions of vs and ve; nothing where
    a >= b. The set is closed because each function needs its own rules (c: the input's stable):

    | function                | [a, b)                     | stable    | need(T); starts inexact |
    |-------------------------|----------------------------|-----------|-------------------------|
    | Window(w)               | [vs, vs+w)                 | c         | T-w+1; T-w              |
    | Shift(d)                | [vs+d, ve+d)               | c+d       | T-d                     |
    | Extend(d)               | [vs, ve+d)                 | c         | T-d                     |
    | Shorten(d)              | [vs, ve-d)                 | c-d       | T+d; T                  |
    | AtMost(d)               | [vs, min(ve, vs+d))        | c         | T; T-d                  |
    | Hop(h, w)               | [⌊vs/h⌋h, ⌊vs/h⌋h+w)       | ⌊c/h⌋h    | T-w+1; T-w              |
    | Quantise(h)             | [⌊vs/h⌋h, ⌈ve/h⌉h)         | ⌊c/h⌋h    | T-h+1                   |
    | Inserts()               | [vs, inf)                  | c         | all                     |
    | Starts()                | [vs, vs+1)                 | c         | T; T-1                  |
    | Ends()                  | [ve, ve+1)                 | c         | T-1                     |
    | Deletes()               | [ve, inf)                  | c         | all                     |
    | Last()                  | [ve-1, ve)                 | c-1       | T                       |

State
    None: an adjust carries both ends, so both images are known.
Stable
    As in the table: below it no image can change any more. Shorten can't pass c: an end at c may
    still move, and so an image's end at c-d.
Retention
    Nothing.  need(T): as in the table, with T of the output; where it differs, the second is for
    an input whose rows may start at another time in a replica that joined late.
Cost
    O(1) per element.

An adjust whose images are equal is nothing, one that moves the image's end is an adjust, one that
moves its start is a removal and an insert. A removal stays a removal, also where b does not depend
on ve. An image beyond int64 is an OverflowError, which a source excludes by the range of times
that it accepts; a stable point beyond it is moved back to the last finite time.

    >>> from lmerge_service.elements import Stable
    >>> moving = AlterLifetime(Window(3))
    >>> moving.process_batch([Insert("a", 1, 9), Adjust("a", 1, 9, 4), Stable(2)])
    [Insert(payload='a', vs=1, ve=4), Stable(vc=2)]
    >>> moving.process(Insert("b", 4, 50)), moving.process(Adjust("b", 4, 50, 4))
    ([Insert(payload='b', vs=4, ve=7)], [Adjust(payload='b', vs=4, vold=7, ve=4)])
    >>> AlterLifetime(Ends()).process_batch([Insert("a", 1, 9), Adjust("a", 1, 9, 6)])
    [Insert(payload='a', vs=6, ve=7)]
    >>> AlterLifetime(Quantise(10)).process_batch([Insert("a", 7, 21), Stable(19)])
    [Insert(payload='a', vs=0, ve=30), Stable(vc=10)]
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lmerge_service.elements import INFINITY, START, Adjust, Insert
from lmerge_service.queries.operators.protocol import Changes, Skip
from lmerge_service.queries.operators.stateless import Stateless
from lmerge_service.queries.times import ceiled, floored, moved

__all__ = (
    "AlterLifetime",
    "AtMost",
    "Deletes",
    "Ends",
    "Extend",
    "Hop",
    "Inserts",
    "Last",
    "Lifetime",
    "Quantise",
    "Shift",
    "Shorten",
    "Starts",
    "Window",
)


@dataclass(frozen=True, slots=True)
class Lifetime(ABC):
    """A function of lifetimes with its rules: what AlterLifetime is built from."""

    keeps_starts: ClassVar[bool] = True
    """Whether different vs have different images: then a key (payload, vs) stays one."""

    @abstractmethod
    def image(self, vs: int, ve: int) -> tuple[int, int]:
        """The lifetime [a, b) that [vs, ve) becomes; none if a >= b.

        Raises:
            OverflowError: a or b is beyond int64.
        """

    def stable(self, point: int) -> int:
        """The output's stable point, of the input's."""
        return point

    @abstractmethod
    def required_history(self, until: int, exact_starts: bool = True) -> int:
        """need(T): the input events with ve >= this suffice for all output events with
        ve >= `until`. `exact_starts`: whether the input of a cold replica has the starts that
        everyone's has.

        Raises:
            OverflowError: the time is beyond int64.
        """

    @abstractmethod
    def longest(self, length: int) -> int:
        """An upper bound of b - a, if `length` is one of ve - vs; INFINITY if there is none."""


@dataclass(frozen=True, slots=True)
class Window(Lifetime):
    """[vs, vs + width): a moving window; what began within the last `width`."""

    width: int

    def __post_init__(self) -> None:
        _at_least(1, width=self.width)

    def image(self, vs: int, ve: int) -> tuple[int, int]:
        return vs, moved(vs, self.width)

    def required_history(self, until: int, exact_starts: bool = True) -> int:
        return moved(until, (1 if exact_starts else 0) - self.width)

    def longest(self, length: int) -> int:
        return self.width


@dataclass(frozen=True, slots=True)
class Shift(Lifetime):
    """[vs + by, ve + by); `by` of either sign."""

    by: int

    def image(self, vs: int, ve: int) -> tuple[int, int]:
        return moved(vs, self.by), moved(ve, self.by)

    def stable(self, point: int) -> int:
        return _point(point, self.by)

    def required_history(self, until: int, exact_starts: bool = True) -> int:
        return moved(until, -self.by)

    def longest(self, length: int) -> int:
        return length


@dataclass(frozen=True, slots=True)
class Extend(Lifetime):
    """[vs, ve + by)."""

    by: int

    def __post_init__(self) -> None:
        _at_least(0, by=self.by)

    def image(self, vs: int, ve: int) -> tuple[int, int]:
        return vs, moved(ve, self.by)

    def required_history(self, until: int, exact_starts: bool = True) -> int:
        return moved(until, -self.by)

    def longest(self, length: int) -> int:
        return moved(length, self.by)


@dataclass(frozen=True, slots=True)
class Shorten(Lifetime):
    """[vs, ve - by); nothing of what is no longer than that."""

    by: int

    def __post_init__(self) -> None:
        _at_least(0, by=self.by)

    def image(self, vs: int, ve: int) -> tuple[int, int]:
        return vs, moved(ve, -self.by)

    def stable(self, point: int) -> int:
        return _point(point, -self.by)

    def required_history(self, until: int, exact_starts: bool = True) -> int:
        return moved(until, self.by) if exact_starts else until

    def longest(self, length: int) -> int:
        return max(0, moved(length, -self.by))


@dataclass(frozen=True, slots=True)
class AtMost(Lifetime):
    """[vs, min(ve, vs + length)): no event is longer than `length`."""

    length: int

    def __post_init__(self) -> None:
        _at_least(1, length=self.length)

    def image(self, vs: int, ve: int) -> tuple[int, int]:
        if vs > START and ve < INFINITY and ve <= vs + self.length:
            return vs, ve  # without `moved`: a sum beyond int64 would do no harm here
        return vs, moved(vs, self.length)

    def required_history(self, until: int, exact_starts: bool = True) -> int:
        return until if exact_starts else moved(until, -self.length)

    def longest(self, length: int) -> int:
        return min(length, self.length)


@dataclass(frozen=True, slots=True)
class Hop(Lifetime):
    """[⌊vs/every⌋·every, the same + width): results that change once per hop. These are not the
    windows of `operators.grids`, which an event may be in several of."""

    keeps_starts: ClassVar[bool] = False

    every: int
    width: int

    def __post_init__(self) -> None:
        _at_least(1, every=self.every, width=self.width)

    def image(self, vs: int, ve: int) -> tuple[int, int]:
        begin = floored(vs, self.every)
        return begin, moved(begin, self.width)

    def stable(self, point: int) -> int:
        return _floored_point(point, self.every)

    def required_history(self, until: int, exact_starts: bool = True) -> int:
        return moved(until, (1 if exact_starts else 0) - self.width)

    def longest(self, length: int) -> int:
        return self.width


@dataclass(frozen=True, slots=True)
class Quantise(Lifetime):
    """[⌊vs/grid⌋·grid, ⌈ve/grid⌉·grid): all of the grid that the event touches."""

    keeps_starts: ClassVar[bool] = False

    grid: int

    def __post_init__(self) -> None:
        _at_least(1, grid=self.grid)

    def image(self, vs: int, ve: int) -> tuple[int, int]:
        return floored(vs, self.grid), ceiled(ve, self.grid)

    def stable(self, point: int) -> int:
        return _floored_point(point, self.grid)

    def required_history(self, until: int, exact_starts: bool = True) -> int:
        return moved(until, 1 - self.grid)

    def longest(self, length: int) -> int:
        # the longest image is of what begins one tick before a point of the grid
        return moved(ceiled(moved(length, -1), self.grid), self.grid)


@dataclass(frozen=True, slots=True)
class Inserts(Lifetime):
    """[vs, INFINITY): what has begun. A plan with it has no finite memory."""

    def image(self, vs: int, ve: int) -> tuple[int, int]:
        return vs, INFINITY

    def required_history(self, until: int, exact_starts: bool = True) -> int:
        return START

    def longest(self, length: int) -> int:
        return INFINITY


@dataclass(frozen=True, slots=True)
class Starts(Lifetime):
    """[vs, vs + 1): the instant of each insert; over coalesced input, Istream."""

    def image(self, vs: int, ve: int) -> tuple[int, int]:
        return vs, moved(vs, 1)

    def required_history(self, until: int, exact_starts: bool = True) -> int:
        return until if exact_starts else moved(until, -1)

    def longest(self, length: int) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Ends(Lifetime):
    """[ve, ve + 1): the instant after each event; nothing yet of an event without end."""

    keeps_starts: ClassVar[bool] = False

    def image(self, vs: int, ve: int) -> tuple[int, int]:
        return ve, moved(ve, 1)

    def required_history(self, until: int, exact_starts: bool = True) -> int:
        return moved(until, -1)

    def longest(self, length: int) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Deletes(Lifetime):
    """[ve, INFINITY): what has ended. A plan with it has no finite memory."""

    keeps_starts: ClassVar[bool] = False

    def image(self, vs: int, ve: int) -> tuple[int, int]:
        return ve, INFINITY

    def required_history(self, until: int, exact_starts: bool = True) -> int:
        return START

    def longest(self, length: int) -> int:
        return INFINITY


@dataclass(frozen=True, slots=True)
class Last(Lifetime):
    """[ve - 1, ve): the last instant of each event; over coalesced input, Dstream."""

    keeps_starts: ClassVar[bool] = False

    def image(self, vs: int, ve: int) -> tuple[int, int]:
        return moved(ve, -1), ve

    def stable(self, point: int) -> int:
        return _point(point, -1)

    def required_history(self, until: int, exact_starts: bool = True) -> int:
        return until

    def longest(self, length: int) -> int:
        return 1


class AlterLifetime(Stateless):
    """Applies one function to every lifetime."""

    __slots__ = ("_image", "lifetime")

    def __init__(self, lifetime: Lifetime) -> None:
        super().__init__()
        self.lifetime = lifetime
        self._image = lifetime.image

    def skip_before(self, skip: Skip) -> Sequence[Skip | None]:
        before = self.lifetime.required_history(skip.before)
        return [Skip(before) if before > START and skip.since == START else None]

    def check(self) -> None:
        """Asserts that the stable point follows its rule."""
        assert self.stable == max(self.lifetime.stable(self.stables[0]), START), self.stable

    def _changed(self, data: Changes) -> Changes:
        image = self._image
        changes: Changes = []
        for element in data:
            if type(element) is Insert:
                a, b = image(element.vs, element.ve)
                if a < b:
                    changes.append(Insert(element.payload, a, b))
            else:
                self._revise(element, changes)  # type: ignore[arg-type]
        return changes

    def _revise(self, element: Adjust[Any], changes: Changes) -> None:
        payload, vs = element.payload, element.vs
        old = a, b = self._image(vs, element.vold)
        new = self._image(vs, element.ve) if element.ve > vs else (a, a)
        if old == new:
            return
        if a == new[0] and a < b:
            changes.append(Adjust(payload, a, b, max(new)))
            return
        if a < b:
            changes.append(Adjust(payload, a, b, a))
        if new[0] < new[1]:
            changes.append(Insert(payload, *new))

    def _advance(self, changes: Changes) -> int:
        return self.lifetime.stable(self.stables[0])


def _point(point: int, by: int) -> int:
    """`point` + `by`; what would pass the finite times stops there, which promises less."""
    if point in (INFINITY, START):
        return point
    return min(max(point + by, START), INFINITY - 1)


def _floored_point(point: int, grid: int) -> int:
    return point if point == INFINITY else max(point - point % grid, START)


def _at_least(least: int, **given: int) -> None:
    for name, value in given.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
