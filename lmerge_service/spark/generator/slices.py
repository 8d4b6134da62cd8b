"""A presentation in slices, each made apart, which together are one stream.

Theory
    A slice is what is sent in a range of time, as wide as a block of events. What is sent there
    comes from the block's own events and from those before it that are not fully emitted: no
    further back than `emission.reach`. So a slice needs the times of its own block and of the few
    before it, and nothing of other slices:

        events    |  block 3  |  block 4  |  block 5  |
                       `--reach--´`-------´
        slice 4                   |  sent  |  what may follow: what is not sent yet of these
                                              events, and the first vs of block 5

    Its stables and its place in the stream are then a matter of counting (`pieces`).

Invariants
    S1  A presentation is a legal stream, and its TDB is the logical stream's.
    S2  It depends on workload, variation and seed, not on where it is cut.

Cost
    0.5 µs an element with a payload of 100 bytes, 1.6 with one of 1,000; 0.1 of it for the
    summary. In memory some hundred bytes for each event of a block and of those before it that
    reach into the slice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from lmerge_service.elements import INFINITY
from lmerge_service.spark.generator.emission import Events, emit, reach
from lmerge_service.spark.generator.pieces import PieceContext, StreamPiece, Summary
from lmerge_service.spark.generator.randomness import Draws, Longs
from lmerge_service.spark.generator.workload import Workload
from lmerge_service.workloads.presentation import Variation

__all__ = ("MOST_UNDER_WAY", "Presentation", "check_variation")

MOST_UNDER_WAY: Final = 1_000_000
"""So many events may be emitted in part at once."""
_BLOCK: Final = 1 << 16
_BATCH_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 1 << 13
_ABSENT: Final = ("ends", "lag", "stable_every", "repeated_stables")
_PLAIN: Final = Variation()
_MOST_REVISIONS: Final = 100


def check_variation(variation: Variation) -> None:
    """Refuses what needs the stream from its beginning, or has no meaning here.

    Raises:
        ValueError: names it.
    """
    for name in _ABSENT:
        if getattr(variation, name) != getattr(_PLAIN, name):
            raise ValueError(f"{name} is not to be had of a generated stream")
    if variation.revisions > _MOST_REVISIONS:
        raise ValueError(f"revisions are {_MOST_REVISIONS} at the most, got {variation.revisions}")


@dataclass(frozen=True)
class Presentation:
    """One presentation of a workload; `seed` determines its elements, not the events."""

    workload: Workload
    variation: Variation
    seed: str = "0"
    block: int = _BLOCK

    def __post_init__(self) -> None:
        check_variation(self.variation)
        under_way = min(self.workload.events, 2 * self._reach // self.workload.max_gap)
        if under_way > MOST_UNDER_WAY:
            raise ValueError(
                f"about {under_way:,} events would be under way at once, more than "
                f"{MOST_UNDER_WAY:,}: shorten the events, their displacement or spread"
            )

    @cached_property
    def _reach(self) -> int:
        return reach(self.variation, self.workload.duration)

    @property
    def blocks(self) -> int:
        """How many slices there are."""
        return -(-self.workload.events // self.block)

    def bounds(self, number: int) -> tuple[int, int]:
        """The events [first, end) of a block."""
        first = number * self.block
        return first, min(first + self.block, self.workload.events)

    def summary(self, number: int, starts: Longs) -> Summary:
        """`starts` are the sums of gaps before each block, and of all (`Workload.starts`)."""
        return self._slice(number, starts).summary()

    def rows(self, number: int, starts: Longs, place: PieceContext) -> Iterator[pa.RecordBatch]:
        """The rows of a slice in batches of some megabytes, each with payloads made for it."""
        step = max(1, min(_BATCH_ROWS, _BATCH_BYTES // self.workload.payload_bytes))
        return self._slice(number, starts).rows(place, self.workload.payloads, step)

    def _slice(self, number: int, starts: Longs) -> StreamPiece:
        """What is sent in it."""
        lead = self.variation.lead
        draws = Draws(f"{self.workload.seed}/{self.seed} presentation")
        emitted = emit(self._events(number, starts), self.variation, draws)
        begin = None if number == 0 else int(starts[number]) - lead
        end, coming = None, INFINITY
        if number + 1 < self.blocks:
            end, after = int(starts[number + 1]) - lead, self.bounds(number)[1]
            first_vs = self.workload.times(after, after + 1, int(starts[number + 1]))[0]
            later = emitted.between(end, None).limit
            coming = int(later.min(initial=first_vs))
        return StreamPiece(emitted.between(begin, end).ordered(), coming, self.variation, draws)

    def _events(self, number: int, starts: Longs) -> Events:
        """Those of the block, and those before it that may reach into the slice."""
        since = int(starts[number]) - self._reach
        block = min(number, max(0, int(np.searchsorted(starts, since, "left")) - 1))
        first, end = self.bounds(block)[0], self.bounds(number)[1]
        vs = self.workload.times(first, end, int(starts[block]))
        numbers = np.arange(first, end)
        events = Events(numbers, vs, vs + self.workload.duration, numbers)
        return events.where(vs >= since)
