"""Modules that come with it: numbers in, nulls left out, exact until the last step.

>>> from lmerge_service.queries.modules import Application, Window
>>> use, window = Application(time_weighted_average, clipping="full"), Window(0, 10)
>>> use.results(None, window, use.state_of(window, [(10, -5, 5), (20, 5, 30)]))
(Row(payload=15.0, vs=0, ve=10),)
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Any

from lmerge_service.queries.modules import uda

__all__ = ("average", "median", "percentile", "time_weighted_average")

_MOST = 100


class _Average:
    """The mean of the values, a float; null of no values. States are (sum, count)."""

    def empty(self) -> tuple[Any, int]:
        return 0, 0

    def add(self, state: tuple[Any, int], value: Any) -> tuple[Any, int]:
        return state if value is None else (state[0] + _exact(value), state[1] + 1)

    def remove(self, state: tuple[Any, int], value: Any) -> tuple[Any, int]:
        return state if value is None else (state[0] - _exact(value), state[1] - 1)

    def merge(self, one: tuple[Any, int], two: tuple[Any, int]) -> tuple[Any, int]:
        return one[0] + two[0], one[1] + two[1]

    def compute(self, state: tuple[Any, int]) -> float | None:
        return float(Fraction(state[0]) / state[1]) if state[1] else None

    def save(self, state: tuple[Any, int]) -> Any:
        return [*_packed(state[0]), state[1]]

    def load(self, saved: Any) -> tuple[Any, int]:
        return _unpacked(*saved[:2]), saved[2]


class _TimeWeightedAverage:
    """The values, each as long as it lives, over the length of the window: a float. Time that no
    event covers counts as 0. Clip `full`: unclipped lifetimes weigh more than the window."""

    def empty(self) -> Any:
        return 0

    def add(self, state: Any, value: Any, vs: int, ve: int) -> Any:
        return state if value is None else state + _exact(value) * (ve - vs)

    def remove(self, state: Any, value: Any, vs: int, ve: int) -> Any:
        return state if value is None else state - _exact(value) * (ve - vs)

    def merge(self, one: Any, two: Any) -> Any:
        return one + two

    def compute(self, window: Any, state: Any) -> float:
        return float(Fraction(state) / (window.ve - window.vs))

    def save(self, state: Any) -> Any:
        return _packed(state)

    def load(self, saved: Any) -> Any:
        return _unpacked(*saved)


average = uda("1", name="average")(_Average)
time_weighted_average = uda("1", name="time_weighted_average", time_sensitive=True)(
    _TimeWeightedAverage
)


@uda("1")
def median(values: Sequence[Any]) -> float | None:
    """The middle value, or the mean of the two in the middle: a float; null of no values."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, high = known[(len(known) - 1) // 2], known[len(known) // 2]
    return float(Fraction(_exact(low) + _exact(high)) / 2)


@uda("1")
def percentile(values: Sequence[Any], percent: float) -> Any:
    """The least value that `percent` % of the values (0 to 100) do not exceed (nearest rank)."""
    if not 0 <= percent <= _MOST:
        raise ValueError(f"{percent} is no percentage")
    known = [value for value in values if value is not None]
    rank = ceil(Fraction(percent) * len(known) / _MOST)
    return known[max(rank, 1) - 1] if known else None


def _exact(value: Any) -> Any:
    """The number as an int or a fraction: sums that depend on no order."""
    return value if type(value) is int else Fraction(value)


def _packed(number: Any) -> list[bytes]:
    return [
        part.to_bytes(part.bit_length() // 8 + 1, "big", signed=True)
        for part in Fraction(number).as_integer_ratio()
    ]


def _unpacked(numerator: bytes, denominator: bytes) -> Any:
    number = Fraction(
        int.from_bytes(numerator, "big", signed=True), int.from_bytes(denominator, "big")
    )
    return number.numerator if number.denominator == 1 else number
