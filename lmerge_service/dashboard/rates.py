"""Rates of counts that are seen now and then."""

from collections.abc import Mapping
from typing import Final

__all__ = ("Rates",)

_SMOOTHED: Final = 5


class Rates:
    """Elements a second, of the counts of successive snapshots; None until two are known.

    >>> rates = Rates()
    >>> rates.take(10.0, {"a": 100}), rates.take(12.0, {"a": 500}), rates.of("a")
    (None, None, 200.0)

    A count that falls is a process that was restarted: it is counted from there.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[float, dict[str, int]]] = []

    def take(self, now: float, counts: Mapping[str, int]) -> None:
        """A snapshot of counts at a time in seconds."""
        if self._seen and any(counts.get(key, 0) < n for key, n in self._seen[-1][1].items()):
            self._seen.clear()
        self._seen.append((now, dict(counts)))
        del self._seen[:-_SMOOTHED]

    def names(self) -> list[str]:
        """Of what the last snapshot counts."""
        return list(self._seen[-1][1]) if self._seen else []

    def of(self, key: str) -> float | None:
        """The rate over the last few snapshots."""
        if len(self._seen) < 2:
            return None
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        if last <= first or key not in before or key not in after:
            return None
        return (after[key] - before[key]) / (last - first)
