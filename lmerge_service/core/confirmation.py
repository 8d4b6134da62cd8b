"""How far each input has been confirmed to agree with the output, also where it is late.

Theory
    What an index still holds is compared there. What is late is about events that the output has
    made final and let go, so nothing of them is left to compare with but a *digest*: the sum of
    the hashes of *facts*. An event [vs, ve) is two facts: that it starts, and that it ends at ve.
    Sums do not depend on order, and an adjust moves a fact from one end to another:

        output: A [2,5) is final, b lacks it      starts +h(A)  ends +h(A,5)     b owes A
        b: insert(A,2,9)                          starts  0     ends +h(A,5)-h(A,9)
        b: adjust(A,2,9→5)                        starts  0     ends  0          settled

    There is one pair of sums per input and *interval* of vs, the stretch from one stable of the
    output to a later one. An input that has passed an interval by its own stable can add nothing
    to it, and what it has not repeated by then it *left out*; what it has instead *contradicts*
    the output. Leaving out is legal for whoever heeds feedback, so it is no breach; but nothing
    is confirmed across it: the confirmed range begins anew behind it, with the next event that
    the input repeats.

    An input is *confirmed* from one time to another: each event of the output that starts, or
    ends, in between is its own as well, and it has no others. That is not its stable point: one
    that only sends stables is confirmed nowhere. After a contradiction nothing more is confirmed,
    until the input starts over.

Which of both
    Sums show that an interval differs, and by how many events on either side, not how. If the
    input has at least as many late events as it owed, they are not some of those it owed: it
    contradicts. If it has fewer, it is known as long as all it owed are remembered, at most
    `_SAMPLES` an interval and in `_SAMPLED` intervals. Beyond that it counts as left out.

Invariants
    V1  The sums of an interval are those of the output's events that the input did not hold when
        they were let go, less those of its late elements: a function of the prefixes.
    V2  confirmed_from, confirmed and the number of intervals' bounds: the first two never fall,
        the last is bounded by `_INTERVALS`; neighbours are merged when there are more.

Cost
    Nothing for an input whose version the index holds when an event is let go. Otherwise O(1) an
    event, and O(lg intervals) for another interval; memory O(intervals), and the hash and end of
    each late event that starts after the input's own stable, by which repeats are known.

The hashes are Python's own, which every process salts in its own way. So a snapshot carries the
sums with a mark of the salt: under another one, a restored operator compares from its output's
stable point on.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from lmerge_service.elements import INFINITY, START, Insert
from lmerge_service.tdb import Event

__all__ = ("SALT", "Agreement", "Compared", "Difference", "Disagreement", "Intervals")

_MASK: Final = 2**64 - 1
_INTERVALS: Final = 128
_SAMPLES: Final = 8
_SAMPLED: Final = 32
_DOUBTED: Final = 10
_TRUSTED: Final = 100
_WAITING: Final = 1_000

_vs_of = attrgetter("vs")

SALT: Final = hash("lmerge") & _MASK
"""Another one where hashes are others."""


@dataclass(frozen=True, slots=True)
class Compared:
    """An interval of vs in which an input and the output differ."""

    start: int
    end: int
    emitted: int
    """Events of the output that the input did not have in time."""
    received: int
    """Events of the input that came late, or that the output does not have."""
    event: Event | None
    """One that the output does not have, if it is known."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """What contradicts the output, and an event of the output that the input does not have, if it
    is known."""

    compared: Compared
    kept: Event | None


class Difference:
    """What the output has in one interval beyond what the input has."""

    __slots__ = (
        "complete",
        "emitted",
        "ends",
        "extra",
        "first_end",
        "first_start",
        "held",
        "other_ends",
        "owed",
        "received",
        "room",
        "starts",
        "until",
    )

    def __init__(self, room: int = _SAMPLES) -> None:
        self.room = room
        """How many events of a kind may be remembered."""
        self.starts = self.ends = 0
        self.emitted = self.received = 0
        self.first_start = self.first_end = INFINITY
        self.until = START
        """Up to where the input may still move an end to where the output has it."""
        self.complete = room > 0
        """All that was owed has been in `owed`."""
        self.held: dict[int, int] = {}
        """Where (vs, payload) is a key: the ends of the input's late events."""
        self.owed: dict[int, Event] = {}
        self.other_ends: dict[int, Event] = {}
        self.extra: dict[int, Event] = {}

    @property
    def starts_agree(self) -> bool:
        return not self.starts & _MASK

    @property
    def ends_agree(self) -> bool:
        return not self.ends & _MASK

    def forget_times(self) -> None:
        self.first_start = self.first_end = INFINITY
        self.until = START

    def owe(self, key: int, event: Event) -> None:
        """The output has an event that the input does not have."""
        self.starts += key
        self.emitted += 1
        self.first_start = min(self.first_start, event.vs)
        if len(self.owed) < self.room and key not in self.owed:
            self.owed[key] = event
        else:
            self.complete = False

    def receive(self, key: int, event: Event) -> None:
        """The input has one that it owed, or one that the output does not have."""
        self.starts -= key
        self.received += 1
        if event.vs < self.first_start:
            self.first_start = event.vs
        if self.owed.pop(key, None) is None and self.complete:
            self.complete = len(self.extra) < self.room and key not in self.extra
            self.extra.setdefault(key, event)

    def take_back(self, key: int, vs: int) -> None:
        """The input does not have that any more."""
        self.starts += key
        self.received -= 1
        self.first_start = min(self.first_start, vs)
        if self.extra.pop(key, None) is None:
            self.complete = False  # it may be one that it owed

    def move(self, key: int, vold: int, ve: int) -> None:
        """The input has an end at ve, where it, or the output, has one at vold."""
        self.ends += hash((key, vold)) - hash((key, ve))
        self.first_end = min(self.first_end, vold, ve)
        if self.other_ends and key in self.other_ends and self.other_ends[key].ve == ve:
            del self.other_ends[key]

    def differ(self, key: int, event: Event) -> None:
        """The output has ended an event that the input ends elsewhere, so far."""
        if len(self.other_ends) < self.room:
            self.other_ends[key] = event

    def contradicts(self) -> bool:
        """Whether the starts differ by more than what the input may have left out."""
        if self.received >= self.emitted:
            return True
        return self.complete and bool(self.extra)

    def add(self, other: "Difference") -> None:
        """Takes in the difference in the next interval."""
        self.starts += other.starts
        self.ends += other.ends
        self.emitted += other.emitted
        self.received += other.received
        self.first_start = min(self.first_start, other.first_start)
        self.first_end = min(self.first_end, other.first_end)
        self.until = max(self.until, other.until)
        self.complete &= other.complete
        self.held |= other.held
        self.owed |= other.owed
        self.other_ends |= other.other_ends
        self.extra |= other.extra
        self.complete &= max(len(self.owed), len(self.extra)) <= _SAMPLES


class Intervals:
    """The bounds between intervals of vs, shared by all inputs of an operator."""

    __slots__ = ("bounds", "reached", "touched", "weights")

    def __init__(self) -> None:
        self.bounds = [START]
        self.weights = [1]
        """Of how many intervals each was made."""
        self.reached = START
        """Whatever the output has let go of starts before this."""
        self.touched = False
        """Something was added since the last bound."""

    def of(self, vs: int) -> int:
        """The start of the interval that a time is in."""
        return self.bounds[bisect_right(self.bounds, vs) - 1]

    def end_of(self, start: int) -> int | None:
        """None: the interval is the last one, which has no end yet."""
        after = bisect_right(self.bounds, start)
        return self.bounds[after] if after < len(self.bounds) else None

    def close(self, t: int) -> bool:
        """Nothing below t will be added to a new interval; whether there are too many now."""
        self.reached = t
        if self.touched and t > self.bounds[-1]:
            self.bounds.append(t)
            self.weights.append(1)
            self.touched = False
        return len(self.bounds) > _INTERVALS

    def coarsen(self, agreements: "list[Agreement]") -> None:
        """Drops the bounds that nobody needs, and merges neighbours where these are few: as evenly
        as possible, and to half as many at most (of two that stay, the sum is above `most`)."""
        first = min((each.first_interval for each in agreements), default=INFINITY)
        needed = max(bisect_right(self.bounds, first) - 1, 1)
        del self.bounds[1:needed], self.weights[1:needed]
        most = 4 * sum(self.weights) // _INTERVALS
        bounds, weights = self.bounds[:1], self.weights[:1]
        for bound, weight in zip(self.bounds[1:-1], self.weights[1:-1], strict=True):
            if weights[-1] + weight <= most:
                weights[-1] += weight
            else:
                bounds.append(bound)
                weights.append(weight)
        self.bounds, self.weights = [*bounds, *self.bounds[-1:]], [*weights, *self.weights[-1:]]
        for each in agreements:
            each.coarsen()


class Agreement:
    """Of one input with the output; see the module's text.

    >>> intervals = Intervals()
    >>> b = Agreement(intervals, keyed=True)
    >>> b.owe("A", 2, 5, until=5)
    >>> _ = intervals.close(10)
    >>> b.insert("A", 2, 9); b.adjust("A", 2, 9, 5, horizon=10)
    >>> b.judge(10), b.confirmed
    ([], 10)
    >>> b.owe("B", 12, 15, until=15); b.insert("C", 12, 15); _ = intervals.close(20)
    >>> found = b.judge(20); found[0].kept, found[0].compared.event, b.confirmed
    (Event(payload='B', vs=12, ve=15), Event(payload='C', vs=12, ve=15), 10)
    """

    __slots__ = (
        "_intervals",
        "_keyed",
        "_starts",
        "confirmed",
        "confirmed_from",
        "contradicted",
        "differences",
        "differences",
        "got",
        "kept",
        "left_out",
        "left_out_lately",
        "most_kept",
        "owed",
        "repeated",
        "since",
    )

    def __init__(self, intervals: Intervals, *, keyed: bool, since: int = START) -> None:
        self._intervals = intervals
        self._keyed = keyed
        self.differences: dict[int, Difference] = {}
        """By the start of their interval; to be read, not changed."""
        self._starts: list[int] = []
        self.since = since
        """Of events that start before this nothing is compared: the input need not have them, or
        the output had let go of them when it came."""
        self.confirmed_from = since
        self.confirmed = since
        """Confirmed from there to here, both START for never."""
        self.contradicted = False
        """It has another event than the output, or another end of one."""
        self.repeated = 0
        """Events of the output that the input has, since it last left one out."""
        self.left_out = 0
        """Events of the output that it passed by its stable without having them."""
        self.left_out_lately = 0
        """The same since it last had repeated so many in a row as to be trusted."""
        self.kept: dict[int, int] = {}
        """Where (vs, payload) is a key: ends of events that the output has let go of and the input
        has alike, and may still repeat or revise."""
        self.most_kept = _SAMPLES
        self.owed: list[Insert[Any]] = []
        """Of inputs in order of vs: what went out and is not compared yet."""
        self.got: list[Insert[Any]] = []
        """The same of what they have inserted."""

    @property
    def is_doubtful(self) -> bool:
        """It has left out what the output has, and has not repeated enough since."""
        return self.left_out_lately >= _DOUBTED and self.repeated < _TRUSTED

    @property
    def first_interval(self) -> int:
        return self._starts[0] if self._starts else INFINITY

    def restart(self) -> None:
        """Nothing of what the output has let go of so far is compared any more."""
        self.differences, self._starts, self.kept = {}, [], {}
        self.since = max(self.since, self._intervals.reached)
        self.confirmed_from = max(self.confirmed_from, self.since)
        self.repeated = 0

    # --- what differs -------------------------------------------------------------------------

    def owe(
        self, payload: Hashable, vs: int, ve: int, held: int | None = None, *, until: int
    ) -> None:
        """The output has let go of an event that the input does not hold, or holds with another
        end, which it may still revise up to `until`. Complexity: O(lg intervals)."""
        if vs < self.since:
            return
        key, difference = hash((vs, payload)), self._of(vs)
        difference.until = max(difference.until, until)
        if held is None:
            difference.ends += hash((key, ve))
            difference.first_end = min(difference.first_end, ve)
            difference.owe(key, Event(payload, vs, ve))
            return
        difference.move(key, ve, held)
        if self._keyed:
            difference.held[key] = held
        difference.differ(key, Event(payload, vs, ve))

    def keep(self, payload: Hashable, vs: int, ve: int) -> None:
        """The output has let go of an event that the input holds alike, with an end that it has not
        passed by its stable: it may repeat its insert, or revise it."""
        self.kept[hash((vs, payload))] = ve

    def insert(self, payload: Hashable, vs: int, ve: int) -> None:
        """The input has an event that the output does not hold, or not any more.

        Complexity: O(lg intervals)."""
        if vs < self.since:
            return
        key = hash((vs, payload))
        if self.kept and key in self.kept:  # a repeated insert: the latest end counts
            if self.kept[key] != ve:
                self._revise_kept(key, self._of(vs), ve)
            return
        difference = self._of(vs)
        if self._keyed:
            before = difference.held.get(key)
            difference.held[key] = ve
            if before is not None:  # likewise
                difference.move(key, before, ve)
                return
        difference.ends -= hash((key, ve))
        if ve < difference.first_end:
            difference.first_end = ve
        difference.receive(key, Event(payload, vs, ve))

    def adjust(
        self, payload: Hashable, vs: int, vold: int, ve: int, *, horizon: int, own: int = START
    ) -> None:
        """The input revises an event that the output does not hold, or not any more. What the
        output made final of it lies below the horizon. What the input does not have, of before its
        `own` stable, it only repeats: its own word had made that final."""
        if vs < self.since:
            return
        key, difference = hash((vs, payload)), self._of(vs)
        if key in self.kept:
            difference.held[key] = self.kept.pop(key)
        elif self._keyed and vs < own and key not in difference.held:
            return
        vold = difference.held.get(key, vold)
        difference.until = max(difference.until, horizon)
        if ve > vs:
            if self._keyed:
                difference.held[key] = ve
            difference.move(key, vold, ve)
            return
        difference.held.pop(key, None)
        difference.ends += hash((key, vold))
        difference.take_back(key, vs)

    def owe_starts(self, payload: Hashable, vs: int, ve: int, events: int) -> None:
        """The output has so many events of a key more than the input (or fewer), whatever their
        ends; one of them is ve."""
        if vs < self.since:
            return
        key, difference = hash((vs, payload)), self._of(vs)
        for _ in range(events):
            difference.owe(key, Event(payload, vs, ve))
        for _ in range(-events):
            difference.receive(key, Event(payload, vs, ve))

    def take_back(self, payload: Hashable, vs: int) -> None:
        """The input removes an event that `owe_starts` has compared."""
        if vs >= self.since:
            self._of(vs).take_back(hash((vs, payload)), vs)

    def owe_end(self, payload: Hashable, vs: int, ve: int, events: int, *, until: int) -> None:
        """Of the events of a key the output has ended so many more at ve than the input (or
        fewer); the input may still revise that up to `until`."""
        if vs < self.since:
            return
        key, difference = hash((vs, payload)), self._of(vs)
        difference.ends += events * hash((key, ve))
        difference.until = max(difference.until, until)
        difference.first_end = min(difference.first_end, ve)
        if events > 0:
            difference.differ(key, Event(payload, vs, ve))

    def _revise_kept(self, key: int, difference: Difference, ve: int) -> None:
        before = self.kept.pop(key)
        difference.held[key] = ve
        difference.until = max(difference.until, before)
        difference.move(key, before, ve)

    def _of(self, vs: int) -> Difference:
        start = self._intervals.of(vs)
        found = self.differences.get(start)
        self._intervals.touched = True
        if found is None:
            room = _SAMPLES if len(self.differences) < _SAMPLED else 0
            found = self.differences[start] = Difference(room)
            insort(self._starts, start)
        return found

    def match(self, t: int) -> None:
        """Of an input in order of vs: compares what it has inserted with what went out, one by
        one. What it has passed by its stable(t), and what waits for too long, goes into the sums.
        """
        owed, got = self.owed, self.got
        alike = min(len(owed), len(got))
        if owed[:alike] != got[:alike]:  # as a rule they are
            alike = self._align()
        del owed[:alike], got[:alike]
        self.has(alike)
        for each in got:
            self.insert(each.payload, each.vs, each.ve)
        got.clear()
        waits = max(len(owed) - _WAITING, bisect_left(owed, t, key=_vs_of))
        for each in owed[:waits]:
            self.owe(each.payload, each.vs, each.ve, until=each.vs)
        del owed[:waits]

    def _align(self) -> int:
        """Puts what differs into the sums, up to where one of both has no more; how many are left
        that are alike."""
        owed, got = self.owed, self.got
        alike: list[Insert[Any]] = []
        at = place = 0
        while at < len(owed) and place < len(got):
            one, other = owed[at], got[place]
            if one == other:
                alike.append(one)
                at, place = at + 1, place + 1
            elif other.vs < one.vs:  # of what went into the sums before
                self.insert(other.payload, other.vs, other.ve)
                place += 1
            else:
                self.owe(one.payload, one.vs, one.ve, until=one.vs)
                at += 1
        owed[:at] = got[:place] = alike
        return len(alike)

    # --- what is known by now -----------------------------------------------------------------

    def has(self, events: int) -> None:
        """So many more events of the output are the input's as well."""
        self.repeated += events

    def leave_out(self, end: int, events: int = 1) -> None:
        """The input has passed events that start before `end` without having them."""
        self.confirmed_from = max(self.confirmed_from, end)
        self.left_out += events
        if self.repeated >= _TRUSTED:
            self.left_out_lately = 0
        self.left_out_lately += events
        self.repeated = 0

    def judge(self, t: int) -> list[Disagreement]:
        """The input's stable and the output's have passed t: settles what that settles.

        Complexity: O(intervals that are passed and not settled)."""
        found: list[Disagreement] = []
        if len(self.kept) > self.most_kept or (self.kept and t == INFINITY):
            self.kept = {key: end for key, end in self.kept.items() if end >= t}
            self.most_kept = 2 * len(self.kept) + _SAMPLES
        limit = min(t, self.owed[0].vs) if self.owed else t
        for start in self._starts[: bisect_right(self._starts, t)] if self._starts else ():
            difference, end = self.differences[start], self._intervals.end_of(start)
            passed = end is not None and end <= t
            if difference.starts_agree and difference.ends_agree:
                self._settle(difference)
                if passed:
                    self.kept |= {key: end for key, end in difference.held.items() if end >= t}
                    self._drop(start)
            elif not difference.starts_agree:
                if end is None or end > t:
                    limit = min(limit, difference.first_start, difference.first_end)
                    continue
                self._drop(start)
                if difference.contradicts():
                    found.append(_disagreement(difference, start, end))
                else:
                    self.leave_out(end, difference.emitted - difference.received)
            elif not passed or (t <= difference.until and t < INFINITY):
                limit = min(limit, difference.first_end)
            else:
                assert end is not None
                self._drop(start)
                found.append(_disagreement(difference, start, end))
        self.contradicted |= bool(found)
        if not self.contradicted and self.repeated and limit > self.confirmed_from:
            self.confirmed = max(self.confirmed, limit)
        return found

    def _settle(self, difference: Difference) -> None:
        self.has(max(difference.received, 0))
        difference.emitted = difference.received = 0
        difference.forget_times()
        difference.owed.clear()
        difference.other_ends.clear()
        difference.extra.clear()
        difference.complete = difference.room > 0

    def _drop(self, start: int) -> None:
        del self.differences[start]
        self._starts.remove(start)

    def load(self, differences: dict[int, Difference]) -> None:
        """Takes those that an input had when it was saved."""
        self.differences = differences
        self._starts = sorted(differences)

    def coarsen(self) -> None:
        """The intervals have become fewer."""
        differences = self.differences
        self.differences, self._starts = {}, []
        for start in sorted(differences):
            into = self._intervals.of(start)
            if into in self.differences:
                self.differences[into].add(differences[start])
            else:
                self.differences[into] = differences[start]
                self._starts.append(into)


def _disagreement(difference: Difference, start: int, end: int) -> Disagreement:
    counts = (difference.emitted, difference.received)
    owed, other = difference.owed.values(), difference.other_ends.values()
    return Disagreement(
        Compared(start, end, *counts, next(iter(difference.extra.values()), None)),
        next(iter(owed), None) or next(iter(other), None),
    )
