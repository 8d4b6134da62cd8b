"""Durations counted into buckets, as Prometheus expects them: small to keep, and additive.

>>> taken = Durations((0.01, 0.1))
>>> for seconds in (0.004, 0.01, 0.05, 3.0):
...     taken.observe(seconds)
>>> taken.buckets(), round(taken.total, 3)
([('0.01', 2), ('0.1', 3), ('+Inf', 4)], 3.064)
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

__all__ = ("COMMITS", "Durations")

COMMITS: Final = (
    0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""From a small transaction to the end of the patience with one, in seconds."""


class Durations:
    """So many durations up to each bound, and their sum."""

    def __init__(self, bounds: Sequence[float] = COMMITS):
        """`bounds` are in seconds, and rise."""
        self.total = 0.0
        """Seconds."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, seconds: float) -> None:
        """Counts one; a duration at a bound is up to it."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Each bound, and how many durations were up to it; the last bound is infinite."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))
