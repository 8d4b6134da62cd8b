"""What one node makes of the flows that it takes in, what it holds, and the work that it does.

Theory
    A flow has the characteristics of its events (`formulas`), and beyond the thesis: how many
    elements carry them, since an event may be revised; how often a batch comes; and how far its
    stable point is behind, of what came and of the source's. Work is counted in units of a time
    that calibration measures (`units`), per unit of the application's time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Self

from lmerge_service.queries.costs.formulas import Stream

__all__ = ("Flow", "Step", "merged_work")


class Flow(NamedTuple):
    """A stream within a plan."""

    stream: Stream
    """Of its events as they are in the end."""
    elements: float
    """Inserts and adjusts in a unit of time."""
    calls: float
    """Batches in a unit of time."""
    moves: float = 0.0
    """Of these, the ones that only move an end, which some functions of lifetimes do not see."""
    early: float = 0.0
    """Of these, the ones that start behind all that came, which windows let wait."""
    lag: float = 0.0
    """How far its stable point is behind the source's, at the most."""
    behind: float = 0.0
    """How far it is behind the greatest start."""

    def scaled(self, part: float, stream: Stream) -> Self:
        """So many elements of each, of a stream of these characteristics."""
        return self._replace(
            stream=stream,
            elements=self.elements * part,
            moves=self.moves * part,
            early=self.early * part,
        )

    @property
    def revisions(self) -> float:
        """ρ, elements for each event; 1 is an insert and no adjust."""
        return self.elements * self.stream.gap if self.stream.gap < inf else 1.0

    @property
    def batch(self) -> float:
        """Elements in a batch."""
        return self.elements / self.calls if self.calls else 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """What a node emits, holds and does."""

    flow: Flow
    work: Mapping[str, float]
    """How much of each unit in a unit of time."""
    held: float = 0.0
    """Entries of state, as `len` of the operator counts them."""
    kind: str = ""
    """What an entry of its state is."""


def merged_work(*works: Mapping[str, float]) -> dict[str, float]:
    """All of it."""
    found: dict[str, float] = {}
    for work in works:
        for unit, number in work.items():
            found[unit] = found.get(unit, 0.0) + number
    return found
