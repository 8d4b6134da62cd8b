"""Confirmation: how far each replica is known to agree with the output, also where it is late.

Theory
    A stable point shows how far a replica has come, not that it publishes the same as the others.
    A replica whose elements are all late does not change the output, so that its divergence would
    show only once it leads. So each event [vs, ve) counts as two *facts*, that it starts, at time
    vs, and that it ends, at time ve, and the hashes of facts are summed by time:

        output   insert(A,2,9)  adjust(A,2,9→5)      bin 2: h(A,2)      bin 5: h(A,2,5)
        b        insert(A,2,5)                       bin 2: h(A,2)      bin 5: h(A,2,5)

    An adjust moves a fact from one bin to another; order does not matter. A fact before c is final
    behind stable(c): so once a bin lies before the replica's stable and the output's, both sums are
    final, and equal if and only if the facts are (but for collisions of 64 bits).

    Where they differ, the replica may have left events out, as feedback allows: nothing is
    confirmed across it, and the confirmed range restarts behind it. If it has a fact that the
    output lacks, it *disagrees*, and no more is confirmed until it starts over.

Which of both
    Where (payload, vs) is a key, the facts themselves are kept beside the sum, as hashes, in bins
    that are not of a sample: so a repeated element counts once, and what is extra shows. Of a
    sample, and of a multiset, numbers decide. Fewer facts: left out. As many, or more where it is
    a multiset: it disagrees. More where there is a key: repeated, perhaps, so not confirmed.

    A replica is *confirmed* from `since` to `point`, START for nowhere: each fact of the output
    within is its own, and it has no others. It takes at least one fact that both have.

What is compared
    All facts, as long as `_BUDGET` lasts, which `_BUDGET_PER_SECOND` fill up, both divided among
    the tasks of a worker; bins that are begun when it is used up are of a sample, those whose
    payloads' hashes are multiples of `_SAMPLE`, and stay that, also where none of the sample is in
    the bin yet. So one wrong event in a fast stream may be missed, and many are not. Bins with all
    facts that are not passed when the budget is overdrawn by as much again are not compared at all.
    Cases R0 to R2 know no adjusts: there an event is one fact, at vs.
    A worker that takes over begins with what the operator holds, at the output's stable point.

Invariants
    C1  The sums of an input and of the output in a bin that is compared are those of all their
        facts in that bin.
    C2  No more than `_BINS` bins are open, of many tasks in a worker fewer in each, since each has
        to find their width; it is a power of two that grows when there would be more.

Cost
    About 3 % of a worker that is busy: 0.1 to 0.2 µs for an element beside the sample, 1 to 4 for
    one that is compared. Memory O(bins x replicas), and some 10,000 hashes of each replica.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from lmerge_service.core import Case, Input, LMerge
from lmerge_service.core.batches import as_batch
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.merge.findings.record_range import RecordRange

__all__ = ("Confirmation", "Confirmed", "Disagreement")

_BINS: Final = 1_024
_FEWEST_BINS: Final = 128
_BUDGET: Final = 5_000
_BUDGET_PER_SECOND: Final = 1_000
_SAMPLE: Final = 64
_LOOK_SECONDS: Final = 0.5
_OFTEN: Final = 16
"""So many tasks of a worker look that often; of twice as many each half as often."""
_HELD: Final = -1
"""No partition: of what the operator holds, which is legal."""
_DOUBTED: Final = 10
_TRUSTED: Final = 100


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A range of time in which a replica has a fact that the output lacks."""

    replica: str
    start: int
    end: int
    emitted: int
    """Facts of the output, of those that were compared."""
    received: int
    first: RecordRange | None
    """Where the replica's facts were published; None: before this worker led."""
    last: RecordRange | None

    def __str__(self) -> str:
        where = f", {self.first.upto(self.last)}" if self.first and self.last else ""
        return (
            f"in [{self.start}, {self.end}) it has other events than the output: {self.received} "
            f"starts and ends{where}, the output has {self.emitted}"
        )


@dataclass(slots=True)
class Confirmed:
    """Of one replica."""

    since: int
    point: int = START
    """Confirmed from `since` to here; START: nowhere."""
    disagrees: bool = False
    left_out: int = 0
    """Events of the output that its stables have passed without it having them, of those that were
    compared."""
    repeated: int = 0
    """Facts of the output that it has, since it last left one out."""
    left_out_lately: int = 0
    """The same since it last had repeated so many in a row as to be trusted."""

    @property
    def is_doubtful(self) -> bool:
        """It leaves out what the output has, and has not repeated enough since."""
        return self.left_out_lately >= _DOUBTED and self.repeated < _TRUSTED

    def agree(self, facts: int) -> None:
        """So many facts of the output are the replica's too."""
        self.repeated += facts

    def leave_out(self, end: int, starts: int) -> None:
        """A bin that ends at `end` lacks facts, `starts` of them starts of events: nothing is
        confirmed across it."""
        self.since = max(self.since, end)
        self.left_out += max(starts, 0)
        if self.repeated >= _TRUSTED:
            self.left_out_lately = 0
        self.left_out_lately += max(starts, 1)
        self.repeated = 0

    def reach(self, t: int) -> None:
        """All that is before t was compared."""
        if self.repeated and not self.disagrees and t > self.since:
            self.point = max(self.point, t)


class _Cell:
    """The facts of one side in one bin."""

    __slots__ = ("digest", "facts", "first", "known", "last", "starts")

    def __init__(self, first: RecordRange | None, *, keeps: bool) -> None:
        self.digest = self.facts = self.starts = 0
        self.first = self.last = first
        self.known: set[int] | None = set() if keeps else None

    def note(self, fact: int, starts: int) -> None:
        if self.known is not None:
            if fact in self.known:
                return
            self.known.add(fact)
        self.digest += fact
        self.facts += 1
        self.starts += starts

    def take_back(self, fact: int, starts: int) -> bool:
        """Whether it was there, as far as that is known."""
        if self.known is not None:
            if fact not in self.known:
                return False
            self.known.discard(fact)
        self.digest -= fact
        self.facts -= 1
        self.starts -= starts
        return True

    def add(self, other: "_Cell") -> None:
        if self.known is not None and other.known is not None:
            self.known |= other.known
        self.digest += other.digest
        self.facts += other.facts
        self.starts += other.starts
        self.first, self.last = self.first or other.first, other.last or self.last


_NOTHING: Final = _Cell(None, keeps=False)


class _Side:
    """The facts of the output, or of one input, in bins that are not compared yet."""

    __slots__ = ("cells", "closed", "confirmed", "source", "stables")

    def __init__(self, source: Input | None, since: int) -> None:
        self.stables = defaultdict[int, int](lambda: START)
        """Of its partitions."""
        self.source = source
        self.cells: dict[int, _Cell] = {}
        self.closed = since
        """Facts before this are compared, or never will be."""
        self.confirmed = Confirmed(since)


class Confirmation:
    """Of one task, from taking over to giving up; times as in the topology's unit."""

    def __init__(self, merge: LMerge, clock: Callable[[], float], *, share: int = 1) -> None:
        """`clock` gives seconds; `share` is how many tasks of a worker share the budget."""
        self.share = share
        self._bins = max(_FEWEST_BINS, _BINS // max(1, share // 2))
        self._merge = merge
        self._clock = clock
        self._ends = merge.case in (Case.R3, Case.R4)
        self._keyed = merge.case not in (Case.R1, Case.R4)
        self._shift = 0
        self._watched: dict[int, int] = {}
        """By bin the mask of its sample: the facts are in it whose payloads' hashes have none of
        these bits. -1: none is."""
        self._whole = 0
        """How many bins have all facts."""
        self._budget, self._filled, self._looked = _BUDGET / share, clock(), clock()
        self._output = _Side(None, START)
        self._sides: dict[str, _Side] = {}
        self._begin()

    def _begin(self) -> None:
        """With what the operator holds."""
        merge = self._merge
        versions = merge.versions()
        since = merge.max_stable
        if versions is None:
            fronts = [each.front for each in merge.inputs.values()]
            since = max([since, *(front + 1 for front in fronts if front > START)])
        self._output.closed = since
        for name, source in merge.inputs.items():
            self._side(name, source).stables.update(enumerate(source.stables))
        if versions is None:
            return
        mask = 0
        if len(merge) > self._budget:
            self._budget, mask = 0.0, _SAMPLE - 1
        for payload, vs, outs, versions_of in versions:
            if merge.hash_of(payload) & mask:
                held = (ends for _, ends in versions_of)
                self._leave_to_sample([Insert(payload, vs, ve) for ve in chain(outs, *held)])
                self._fit()
                continue
            self._add(self._output, [Insert(payload, vs, ve) for ve in outs], None, _HELD)
            for name, ends in versions_of:
                self._add(self._sides[name], [Insert(payload, vs, ve) for ve in ends], None, _HELD)
            self._fit()

    # --- elements -------------------------------------------------------------------------------

    def emitted(self, elements: Sequence[Element], place: RecordRange) -> None:
        """The output's elements that came of some records."""
        self._add(self._output, self._sampled(elements), place)

    def received(
        self, name: str, partition: int, elements: Sequence[Element], place: RecordRange
    ) -> None:
        """The elements of an attached input that the operator has processed."""
        side = self._side(name, self._merge.inputs[name])
        self._add(side, self._sampled(elements), place, partition)
        self._fit()

    def _sampled(self, elements: Sequence[Element]) -> Sequence[Element]:
        """The elements to compare; all but a sample are charged to the budget."""
        self._fill()
        if self._whole or self._budget > 0:
            self._budget -= len(elements)
            return elements
        mask = _SAMPLE - 1
        if (batch := as_batch(elements)) is not None:
            sampled, bins = batch.sampled(mask, self._shift)
            self._leave_bins_to_sample(bins)
            return sampled
        hash_of = self._merge.hash_of
        sampled, others = list[Element](), list[Insert[Any] | Adjust[Any]]()
        for e in elements:
            if type(e) is Stable or not hash_of(e.payload) & mask:  # type: ignore[union-attr]
                sampled.append(e)
            else:
                others.append(e)  # type: ignore[arg-type]
        self._leave_to_sample(others)
        return sampled

    def _leave_to_sample(self, elements: Iterable[Insert[Any] | Adjust[Any]]) -> None:
        """The facts of these are not compared, so no bin in which they are may have all facts."""
        shift, some = self._shift, list(elements)
        self._leave_bins_to_sample({e.vs >> shift for e in some} | {e.ve >> shift for e in some})

    def _leave_bins_to_sample(self, bins: set[int]) -> None:
        shift, watched = self._shift, self._watched
        closed, never = self._output.closed >> shift, INFINITY >> shift
        for number in bins.difference(watched):
            if closed <= number != never:
                watched[number] = _SAMPLE - 1

    def _fill(self) -> None:
        now = self._clock()
        due = (now - self._filled) * _BUDGET_PER_SECOND
        self._budget = min(self._budget + due / self.share, _BUDGET / self.share)
        self._filled = now

    def _side(self, name: str, source: Input) -> _Side:
        """Of an input as it is attached now; one that was attached again starts from nothing."""
        side = self._sides.get(name)
        if side is None or side.source is not source:
            since = max(source.joining_at, self._output.closed)
            side = self._sides[name] = _Side(source, since)
        return side

    def _add(
        self,
        side: _Side,
        elements: Iterable[Element],
        place: RecordRange | None,
        partition: int = 0,
    ) -> None:
        """Takes the facts of elements; those that break their own partition's stable have none, as
        in the operator."""
        ends, closed, cell_of, hash_of = self._ends, side.closed, self._cell, self._merge.hash_of
        stable = side.stables[partition]
        for element in elements:
            kind = type(element)
            if kind is Stable:
                stable = max(stable, element.vc)  # type: ignore[union-attr]
                continue
            payload, vs, ve = element.payload, element.vs, element.ve  # type: ignore[union-attr]
            key = hash_of(payload)
            if kind is Insert:
                if vs < stable:
                    continue
                if vs >= closed and (cell := cell_of(side, vs, key, place)) is not None:
                    cell.note(hash((payload, vs) if ends else (payload, vs, ve)), 1)
            else:
                vold: int = element.vold  # type: ignore[union-attr]
                if min(vold, ve) < stable:
                    continue
                if (
                    closed <= vold < INFINITY
                    and (cell := cell_of(side, vold, key, place))
                    and not cell.take_back(hash((payload, vs, vold)), 0)
                ):
                    continue  # of an event that it does not have, as when it repeats itself
                if ve == vs:
                    if vs >= closed and (cell := cell_of(side, vs, key, place)):
                        cell.take_back(hash((payload, vs)), 1)
                    continue
            if ends and closed <= ve < INFINITY and (cell := cell_of(side, ve, key, place)):
                cell.note(hash((payload, vs, ve)), 0)
        side.stables[partition] = stable

    def _cell(self, side: _Side, at: int, key: int, place: RecordRange | None) -> _Cell | None:
        """Where to note a fact at a time, if it is compared; `key` is its payload's hash."""
        number = at >> self._shift
        mask = self._watched.get(number)
        if mask is None:
            mask = self._watched[number] = 0 if self._budget > 0 else _SAMPLE - 1
            self._whole += not mask
        if key & mask:
            return None
        cell = side.cells.get(number)
        if cell is None:
            cell = side.cells[number] = _Cell(place, keeps=self._keyed and not mask)
        cell.last = place
        return cell

    # --- bins -----------------------------------------------------------------------------------

    def _fit(self) -> None:
        """Makes bins twice as wide as long as there are too many (C2), and leaves those alone that
        have cost too much."""
        if self._whole and self._budget < -_BUDGET / self.share:
            for number, mask in self._watched.items():
                self._watched[number] = mask or -1
            self._whole = 0
        while len(self._watched) > self._bins:
            self._shift += 1
            before, self._watched = self._watched, {}
            for number, mask in before.items():
                into = number >> 1
                self._watched[into] = mask if self._watched.get(into, mask) == mask else -1
            self._whole = sum(not mask for mask in self._watched.values())
            for side in (self._output, *self._sides.values()):
                _halve(side)

    def _forget(self) -> None:
        """Lets go of what everybody has passed."""
        passed = min((each.closed for each in self._sides.values()), default=self._merge.max_stable)
        if passed <= self._output.closed:
            return
        self._output.closed = passed
        for number in [n for n in self._watched if n < passed >> self._shift]:
            self._whole -= not self._watched.pop(number)
            self._output.cells.pop(number, None)

    # --- what is known by now -------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """`look` compares; where many tasks share a worker, more seldom."""
        apart = _LOOK_SECONDS * max(1.0, self.share / _OFTEN)
        return self._clock() - self._looked >= apart

    def look(self) -> list[Disagreement]:
        """Compares what became final, now and then."""
        if not self.is_due:
            return []
        self._looked = self._clock()
        return self.compare()

    def compare(self) -> list[Disagreement]:
        """Compares what became final on both sides."""
        merge, found = self._merge, list[Disagreement]()
        for name in [name for name in self._sides if name not in merge.inputs]:
            del self._sides[name]
        for name, source in merge.inputs.items():
            side = self._side(name, source)
            found += self._compare(name, side, min(source.stable, merge.max_stable))
        self._forget()
        return found

    def _compare(self, name: str, side: _Side, t: int) -> Iterable[Disagreement]:
        shift, output = self._shift, self._output.cells
        reached = t >> shift if t < INFINITY else INFINITY
        begins = side.closed
        if reached <= begins >> shift:
            side.confirmed.reach(begins)
            return
        due = [n for n in output.keys() | side.cells.keys() if begins >> shift <= n < reached]
        for number in sorted(due):
            emitted, received = output.get(number, _NOTHING), side.cells.pop(number, _NOTHING)
            start, end = number << shift, (number + 1) << shift
            if start < begins or self._watched.get(number) == -1:
                continue  # one side lacks a part of it
            if emitted.digest == received.digest:
                side.confirmed.agree(emitted.facts)
            elif not self._contradicts(emitted, received):
                side.confirmed.leave_out(end, emitted.starts - received.starts)
            else:
                side.confirmed.disagrees = True
                counts = emitted.facts, received.facts
                yield Disagreement(name, start, end, *counts, received.first, received.last)
        side.closed = max(begins, t if reached == INFINITY else reached << shift)
        side.confirmed.reach(side.closed)

    def _contradicts(self, emitted: _Cell, received: _Cell) -> bool:
        """Whether, of two that differ, the replica has a fact that the output lacks."""
        if received.known is not None:
            return bool(received.known - (emitted.known or set()))
        if received.facts > emitted.facts:
            return not self._keyed
        return received.facts == emitted.facts

    def of(self, name: str) -> Confirmed | None:
        """What is known of an input; None: nothing yet."""
        side = self._sides.get(name)
        return None if side is None else side.confirmed


def _halve(side: _Side) -> None:
    before, side.cells = side.cells, {}
    for number, cell in before.items():
        if (into := side.cells.get(number >> 1)) is None:
            side.cells[number >> 1] = cell
        else:
            into.add(cell)
