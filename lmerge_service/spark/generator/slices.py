"""A presentation in slices, each made apart, which together are one stream.

Theory
    A slice is what is sent in a range of time, as wide as a block of events. What is sent there
    comes from the block's own events and from those before it that have not all been told: no
    further back than `telling.reach`. So a slice needs the times of its own block and of the few
    before it, and nothing of other slices:

        events    |  block 3  |  block 4  |  block 5  |
                       `--reach--´`-------´
        slice 4                   |  sent  |  the floor at its end: what is not sent yet of
                                              these events, and the first vs of block 5

    The *floor* behind an element is the least deadline of all that comes later; it never falls.
    A stable is due behind an element with some probability and says the floor, less
    `stable_lag`, if that is more than the last one said. Where the elements and stables of a slice
    stand in the whole stream is known once the slices before it are counted (`Summary`): with
    the number of its elements, and the floors of its stables that are due first and last.

Invariants
    S1  A presentation is a legal stream, and its TDB is the logical stream's.
    S2  It depends on workload, variation and seed, not on where it is cut.
    S3  With stable_lag=0 every stable but the last is the floor of its place, and there is at
        least one other element between two.

Cost
    About 1 µs an element besides its payload, a quarter of it for the summary. In memory 300
    bytes for each event of a block and of those before it that reach into the slice.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from lmerge_service.elements import INFINITY, START
from lmerge_service.present.presentation import Variation
from lmerge_service.spark.generator.randomness import Bools, Draws, Longs
from lmerge_service.spark.generator.telling import Events, Told, reach, tell
from lmerge_service.spark.generator.workload import Workload

__all__ = ("MOST_UNDER_WAY", "Place", "Presentation", "Summary")

MOST_UNDER_WAY: Final = 1_000_000
"""So many events may be untold in part at once."""
_BLOCK: Final = 1 << 16
_BATCH_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 1 << 13
_ABSENT: Final = ("told", "lag", "stable_every", "repeated_stables")
_PLAIN: Final = Variation()


@dataclass(frozen=True, slots=True)
class Summary:
    """What a slice is to those behind it."""

    elements: int
    stables: int
    """Different ones that are due."""
    first: int
    last: int
    """Of them; START without any."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a slice must know of those before it."""

    offset: int
    said: int
    """The last stable."""


@dataclass(frozen=True)
class Presentation:
    """One way to tell a workload; `seed` counts for what is told how, not for the events."""

    workload: Workload
    variation: Variation
    seed: str = "0"
    block: int = _BLOCK

    def __post_init__(self) -> None:
        for name in _ABSENT:
            if getattr(self.variation, name) != getattr(_PLAIN, name):
                raise ValueError(f"{name} is not to be had of a generated stream")
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
        told, floors = self._slice(number, starts)
        due = np.unique(self._stables(told, floors))
        first, last = (int(due[0]), int(due[-1])) if len(due) else (START, START)
        return Summary(len(told.send), len(due), first, last)

    def places(self, summaries: Iterable[Summary]) -> list[Place]:
        """Of each slice, and of what follows the last."""
        places = [Place(0, START)]
        for each in summaries:
            before = places[-1]
            stables = each.stables - (each.stables > 0 and each.first <= before.said)
            offset = before.offset + each.elements + stables
            places.append(Place(offset, max(before.said, each.last)))
        return places

    def rows(self, number: int, starts: Longs, place: Place) -> Iterator[pa.RecordBatch]:
        """The rows of a slice in order: offset, op, payload, vs, vold, ve, vc."""
        told, floors = self._slice(number, starts)
        stables = np.full(len(told.send), START)
        stables[self._due(told, floors)] = self._stables(told, floors)
        said = np.maximum.accumulate(np.concatenate(([place.said], stables)))
        rises = np.flatnonzero(said[1:] > said[:-1])
        rows = _Rows(told, rises, said[1:][rises])
        yield from rows.batches(self.workload, place.offset)

    def last_row(self, place: Place) -> pa.RecordBatch:
        """stable(INFINITY), behind the last slice."""
        end = np.array([INFINITY])
        nothing = np.zeros(0, np.int64)
        return next(
            _Rows(Told(*[nothing] * len(fields(Told))), np.array([-1]), end).batches(
                self.workload, place.offset
            )
        )

    @property
    def _draws(self) -> Draws:
        return Draws(f"{self.workload.seed}/{self.seed} presentation")

    def _slice(self, number: int, starts: Longs) -> tuple[Told, Longs]:
        """What is sent in it, in order, and the floor behind each."""
        lead = self.variation.lead
        last = number + 1 >= self.blocks
        begin = None if number == 0 else int(starts[number]) - lead
        end = None if last else int(starts[number + 1]) - lead
        told = tell(self._events(number, starts), self.variation, self._draws)
        coming = INFINITY
        if end is not None:
            after = self.bounds(number)[1]
            coming = int(self.workload.times(after, after + 1, int(starts[number + 1]))[0])
            later = told.between(end, None).limit
            coming = min(coming, int(later.min(initial=INFINITY)))
        told = told.between(begin, end).ordered()
        limits = np.concatenate((told.limit[1:], [coming]))[: len(told.send)]
        return told, np.minimum.accumulate(limits[::-1])[::-1]

    def _events(self, number: int, starts: Longs) -> Events:
        """Those of the block, and those before it that may reach into the slice."""
        since = int(starts[number]) - self._reach
        block = min(number, max(0, int(np.searchsorted(starts, since, "left")) - 1))
        first, end = self.bounds(block)[0], self.bounds(number)[1]
        vs = self.workload.times(first, end, int(starts[block]))
        events = Events(np.arange(first, end), vs, vs + self.workload.duration)
        return events.where(vs >= since)

    def _due(self, told: Told, floors: Longs) -> Bools:
        """Behind which elements a stable is due that says something."""
        if not self.variation.stable_probability:
            return np.zeros(len(floors), bool)
        due = self._draws.chance("stable", told.serial, self.variation.stable_probability)
        return due & (floors < INFINITY)

    def _stables(self, told: Told, floors: Longs) -> Longs:
        return floors[self._due(told, floors)] - self.variation.stable_lag


@dataclass(frozen=True)
class _Rows:
    """Elements in order, and stables, each behind the element of that place."""

    told: Told
    behind: Longs
    stables: Longs

    def batches(self, workload: Workload, offset: int) -> Iterator[pa.RecordBatch]:
        """Of some megabytes each, since payloads are made for one at a time."""
        elements, stables = len(self.told.send), len(self.stables)
        order = np.full(elements + stables, -1)  # the element in each row, or no element
        stable_rows = self.behind + 1 + np.arange(stables)
        spoken = np.ones(len(order), bool)
        spoken[stable_rows] = False
        order[spoken] = np.arange(elements)
        said = np.zeros(len(order), np.int64)
        said[stable_rows] = self.stables
        step = max(1, min(_BATCH_ROWS, _BATCH_BYTES // workload.payload_bytes))
        for at in range(0, len(order), step):
            yield self._batch(workload, order[at : at + step], said[at : at + step], offset + at)

    def _batch(self, workload: Workload, order: Longs, said: Longs, offset: int) -> pa.RecordBatch:
        silent = order < 0  # a stable, which has no element
        rows = {name: getattr(self.told, name)[order[~silent]] for name in ("vs", "vold", "ve")}
        events, which = np.unique(self.told.event[order[~silent]], return_inverse=True)
        inserts = rows["vold"] == rows["vs"]
        ops = np.full(len(order), 2, np.int8)
        ops[~silent] = np.where(inserts, 0, 1)
        place = np.cumsum(~silent) - 1
        adjusts = ops == 1
        columns = {
            "offset": pa.array(np.arange(offset, offset + len(order))),
            "op": pa.DictionaryArray.from_arrays(ops, _OPS).cast(pa.string()),
            "payload": workload.payloads(events).take(
                pa.array(which[np.maximum(place, 0)] if len(which) else place, mask=silent)
            ),
            **{
                name: pa.array(_spread(values, place), mask=~adjusts if name == "vold" else silent)
                for name, values in rows.items()
            },
            "vc": pa.array(said, mask=~silent),
        }
        return pa.RecordBatch.from_pydict(columns)


_OPS: Final = pa.array(["insert", "adjust", "stable"])


def _spread(values: Longs, place: Longs) -> Longs:
    return values[np.maximum(place, 0)] if len(values) else np.zeros(len(place), np.int64)
