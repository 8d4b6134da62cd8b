"""How often results of the set operators change, which the thesis has no formulas for.

Theory
    Of one payload f1 and f2 events of the sides are there at an instant: as many as a queue with as
    many servers as are wanted serves, independent and Poisson with the means a1 and a2, however
    long events last. An operator shows g(f1, f2) of them, and its events begin where g rises. To an
    event that comes or ends the others are as at any time, so that the rates follow from the
    chances that f1 is above f2, equal to it, or 0.

    An event that comes changes what is known of its whole lifetime. Where it is asked only whether
    there are any events, it changes that if it outlasts those of its own side, and one of the other
    side outlasts them, too. Where they are counted, f1 - f2 goes up and down as all that are there
    end, n = a1 + a2, and crosses 0 about √(πn/2) times: so many pieces change.

    >>> alone, both = Sides(0.01, 100, 0.0, 100), Sides(0.01, 100, 0.01, 100)
    >>> [round(result("except", alone)[at] * 1_000, 1) for at in range(3)]  # ends are not joined
    [3.7, 632.1, 10.0]
    >>> [round(each * 1_000, 1) for each in result("intersect", both)]
    [4.7, 399.6, 8.6]
"""

from math import exp, pi, sqrt
from typing import NamedTuple

__all__ = ("Result", "Sides", "result")

_SURE = 12
"""Standard deviations behind which nothing is looked for."""


class Sides(NamedTuple):
    """Of one payload the rates and lifetimes of both sides."""

    one: float
    one_length: float
    two: float
    two_length: float

    @property
    def alive(self) -> tuple[float, float]:
        """How many are there at an instant, on average."""
        return self.one * self.one_length, self.two * self.two_length


class Result(NamedTuple):
    """What is shown of one payload."""

    rate: float
    """Of events as they are in the end."""
    alive: float
    """How many are there at an instant."""
    elements: float
    """The rate of changes that are shown, if each event comes by itself."""


def result(function: str, sides: Sides) -> Result:
    """Of a set operator."""
    if function in ("except", "intersect"):
        return _of_any(function, sides)
    return _of_counts(function, sides)


def _of_any(function: str, sides: Sides) -> Result:
    one, two = sides.one, sides.two
    none, no_other = (exp(-each) for each in sides.alive)
    outlast, outlasted = _outlasts(sides), _outlasts(Sides(*sides[2:], *sides[:2]))
    if function == "except":
        rate = one * none * no_other + two * no_other * (1 - none)
        return Result(rate, (1 - none) * no_other, one + two * outlast)
    rate = one * none * (1 - no_other) + two * no_other * (1 - none)
    return Result(rate, (1 - none) * (1 - no_other), one * outlasted + two * outlast)


def _outlasts(sides: Sides) -> float:
    """How likely the last event of the first side is there, and ends behind the last one of the
    other: the time since each came is exponential."""
    mine, length, others, other_length = sides
    if not mine:
        return 0.0
    longer = length - other_length
    first = mine / (mine + others) * (1 - exp(-(mine + others) * min(length, other_length)))
    if longer <= 0:
        return exp(others * longer) * first
    return 1 - exp(-mine * longer) * (1 - first)


def _of_counts(function: str, sides: Sides) -> Result:
    one, two = sides.one, sides.two
    above, equal, lesser = _compared(*sides.alive)
    a1, a2 = sides.alive
    below = 1 - above - equal
    pieces = max(sqrt(pi * (a1 + a2) / 2), 1.0)
    match function:
        case "except_all":
            rate = one * (above + equal) + two * above
            return Result(rate, a1 - lesser, rate * pieces)
        case "intersect_all":
            rate = one * below + two * above
            return Result(rate, lesser, rate * pieces)
    rate = one * (above + equal) + two * (below + equal)
    return Result(rate, a1 + a2 - lesser, (one + two) * pieces)


def _compared(one: float, two: float) -> tuple[float, float, float]:
    """Of two Poisson numbers with these means: how likely the first is above, how likely they are
    equal, and the mean of the lesser."""
    most = int(max(one, two) + _SURE * sqrt(max(one, two)) + _SURE)
    mine, theirs = _poisson(one, most), _poisson(two, most)
    above = equal = lesser = 0.0
    fewer = 0.0  # how likely the other is below
    mine_left, theirs_left = 1.0, 1.0  # how likely each is no less
    for number, (p, q) in enumerate(zip(mine, theirs, strict=True)):
        above += p * fewer
        equal += p * q
        lesser += mine_left * theirs_left if number else 0.0
        fewer += q
        mine_left -= p
        theirs_left -= q
    return above, equal, lesser


def _poisson(mean: float, most: int) -> list[float]:
    found = [exp(-mean)]
    for number in range(1, most + 1):
        found.append(found[-1] * mean / number)
    return found
