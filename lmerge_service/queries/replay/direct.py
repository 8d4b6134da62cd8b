"""The direct answer: a result is corrected by the revision and itself alone.

A query's operators answer directly by the state that they hold, as long as the stable point is
below; here is what can be done without any, of a result that was emitted, with the number of values
that it is of. Sums, counts and averages can always be corrected: what comes in goes out again. A
minimum or maximum can unless its own value goes, and nothing at least as extreme takes its place.
Where there is no direct answer a replay is needed (`revising`).

    >>> average = Kept("average", 74, 5)
    >>> answered(average, 75, 72)
    Kept(function='average', value=73.4, values=5)
    >>> print(answered(Kept("max", 75, 5), 75, 72), answered(Kept("max", 75, 5), 75, 76).value)
    None 76
"""

from fractions import Fraction
from typing import Any, NamedTuple

from lmerge_service.errors import ConfigurationError

__all__ = ("Kept", "answered")


class Kept(NamedTuple):
    """A result: the value of an aggregation over values of which none is null."""

    function: str
    """count, sum, average, min or max."""
    value: Any
    values: int
    """How many it is of."""


def answered(kept: Kept, old: Any, new: Any) -> Kept | None:
    """The result where `new` takes the place of `old`; None as `old`: it is one more; as `new`: one
    less. None as answer: it takes a replay.

    Raises:
        ConfigurationError: there is no such function, or no value left to take away.
    """
    count = kept.values + (new is not None) - (old is not None)
    if count < 0:
        raise ConfigurationError(f"{old!r} cannot be taken from a result of no values")
    match kept.function:
        case "count":
            return Kept("count", count, count)
        case "sum":
            return Kept("sum", kept.value + (new or 0) - (old or 0), count)
        case "average":
            total = Fraction(kept.value) * kept.values + Fraction(new or 0) - Fraction(old or 0)
            return Kept("average", float(total / count), count) if count else None
        case "min" | "max" as function:
            better = min if function == "min" else max
            known = [each for each in (kept.value, new) if each is not None]
            if old is not None and old == kept.value and (new is None or better(old, new) != new):
                return None
            return Kept(function, better(known), count)
    raise ConfigurationError(f"{kept.function} of a result cannot be corrected directly")
