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
    Sums show that an interval differs, and by how many events on either side, not how. Whoever is
    honest must never be blamed, so what can be explained by leaving out counts as left out.
    Where (vs, payload) is a key, a late event that comes again is known by `held`. So if the input
    has at least as many late events as it owed, they are not some of those it owed: it
    contradicts. If it has fewer, that is known as long as all it owed are remembered, at most
    `_SAMPLES` an interval and in `_SAMPLED` intervals. Where all starts agree, ends that do not
    contradict. What may be a repeat of an event that was there in time (`common`) makes the
    interval doubtful, in which nothing contradicts.
    Where it is no key, an input may repeat one event and leave out another one, whose numbers and
    ends then say nothing. There only an event that was never owed contradicts, and only if it
    starts after all that input and output are known to have in common: else it may repeat that.

Invariants
    V1  The sums of an interval are those of the output's events that the input did not hold when
        they were let go, less those of its late elements: a function of the prefixes.
    V2  confirmed_from, confirmed and the number of intervals' bounds: the first two never fall,
        the last is bounded by `_INTERVALS`; neighbours are merged when there are more.

Cost
    Nothing for an input whose version the index holds when an event is let go. Otherwise O(1) an
    event, and O(lg intervals) for another interval; memory O(intervals), and the hash and end of
    at most `_HELD` late events in each, by which repeats are known.

The hashes are the same in every process, so that snapshots carry the sums.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Final

from lmerge_service.elements import INFINITY, START, Insert
from lmerge_service.tdb import Event

__all__ = ("Agreement", "Compared", "Difference", "Disagreement", "Intervals", "digest")

_MASK: Final = 2**64 - 1
_ODD: Final = 0x9E3779B97F4A7C15
_INTERVALS: Final = 128
_SAMPLES: Final = 8
_SAMPLED: Final = 32
_DOUBTED: Final = 10
_TRUSTED: Final = 100
_WAITING: Final = 1_000
_HELD: Final = 10_000

_vs_of = attrgetter("vs")


def digest(vs: int, payload: Hashable) -> int:
    """A hash that is the same in every process, and for payloads that are equal.

    >>> digest(5, b"A") == digest(5, b"A"), digest(5, 1) == digest(5, 1.0)
    (True, True)
    >>> len({digest(5, "A"), digest(5, b"A"), digest(6, "A"), digest(5, ("A",))})
    4
    """
    said = b"b" + payload if type(payload) is bytes else _spelt(payload)
    found = blake2b(vs.to_bytes(8, "little", signed=True) + said, digest_size=8)
    return int.from_bytes(found.digest(), "little")


def _spelt(payload: Hashable) -> bytes:
    if isinstance(payload, tuple):
        parts = [_spelt(part) for part in payload]
        return b"t" + b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    if isinstance(payload, bytes):
        return b"b" + payload
    if isinstance(payload, str):
        return b"s" + payload.encode(errors="surrogatepass")
    if isinstance(payload, float) and not payload.is_integer():
        return b"f" + repr(payload).encode()
    if isinstance(payload, (int, float)):
        return b"i" + hex(int(payload)).encode()
    if payload is None:
        return b"n"
    return b"h" + hex(hash(payload)).encode()  # of a kind that no snapshot holds


def _at(key: int, end: int) -> int:
    """A hash of an event's digest and its end."""
    mixed = ((key ^ (end * _ODD)) & _MASK) * 0xD6E8FEB86659FD93 & _MASK
    return (mixed ^ (mixed >> 32)) * _ODD & _MASK


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
        "doubtful",
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
        """All that was owed has been in `owed`, and nothing makes it doubtful what `extra` has."""
        self.doubtful = False
        """What is not owed may be repeated, so that nothing here contradicts."""
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
        if len(self.owed) < self.room:
            self.owed[key] = event
        elif key not in self.owed:
            self.complete = False

    def receive(self, key: int, event: Event, *, may_be_repeated: bool) -> bool:
        """The input has one that it owed, or one that the output does not have; whether it is
        known to be one that it owed."""
        self.starts -= key
        self.received += 1
        if event.vs < self.first_start:
            self.first_start = event.vs
        if self.owed.pop(key, None) is not None:
            return True
        if may_be_repeated:
            self.doubtful = True
        elif self.complete:
            self.complete = len(self.extra) < self.room and key not in self.extra
            self.extra.setdefault(key, event)
        return False

    def take_back(self, key: int, vs: int) -> None:
        """The input does not have that any more."""
        self.starts += key
        self.received -= 1
        self.first_start = min(self.first_start, vs)
        if self.extra.pop(key, None) is None:
            self.complete = False  # it may be one that it owed

    def move(self, key: int, vold: int, ve: int) -> None:
        """The input has an end at ve, where it, or the output, has one at vold."""
        self.ends += _at(key, vold) - _at(key, ve)
        self.first_end = min(self.first_end, vold, ve)
        if self.other_ends and key in self.other_ends and self.other_ends[key].ve == ve:
            del self.other_ends[key]

    def differ(self, key: int, event: Event) -> None:
        """The output has ended an event that the input ends elsewhere, so far."""
        if len(self.other_ends) < self.room:
            self.other_ends[key] = event

    def contradicts(self, *, keyed: bool) -> bool:
        """Whether the two differ by more than what the input may have left out or repeated."""
        if keyed and (self.starts_agree or self.received >= self.emitted):
            return not self.doubtful
        return self.complete and bool(self.extra) and not (keyed and self.doubtful)

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
        self.doubtful |= other.doubtful
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
        "common",
        "confirmed",
        "confirmed_from",
        "contradicted",
        "differences",
        "got",
        "left_out",
        "left_out_lately",
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
        self.common = START
        """Events that start before this may be the input's already, without being known here: one
        that is not owed may be repeated."""
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

    def restart(self, since: int = START) -> None:
        """Nothing of what the output has let go of so far is compared any more, nor what starts
        before `since`."""
        self.differences, self._starts = {}, []
        self.since = max(self.since, since, self._intervals.reached)
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
        key, difference = digest(vs, payload), self._of(vs)
        difference.until = max(difference.until, until)
        if held is None:
            difference.ends += _at(key, ve)
            difference.first_end = min(difference.first_end, ve)
            difference.owe(key, Event(payload, vs, ve))
            return
        difference.move(key, ve, held)
        self._hold(difference, key, held)
        difference.differ(key, Event(payload, vs, ve))

    def hold_until(self, t: int) -> None:
        """The output has let go of events that start before t, the input holds them alike, and has
        not passed their ends by its stable: it may repeat or revise them."""
        if t > self.common:
            self.common = t

    def insert(self, payload: Hashable, vs: int, ve: int) -> None:
        """The input has an event that the output does not hold, or not any more.

        Complexity: O(lg intervals)."""
        if vs < self.since:
            return
        key, difference = digest(vs, payload), self._of(vs)
        if self._keyed:
            before = difference.held.get(key)
            self._hold(difference, key, ve)
            if before is not None:  # a repeated insert: the latest end counts
                difference.move(key, before, ve)
                return
        difference.ends -= _at(key, ve)
        if ve < difference.first_end:
            difference.first_end = ve
        self._receive(difference, key, Event(payload, vs, ve))

    def adjust(self, payload: Hashable, vs: int, vold: int, ve: int, *, horizon: int) -> None:
        """The input revises an event that the output does not hold, or not any more. What the
        output made final of it lies below the horizon."""
        if vs < self.since:
            return
        if vs < self.confirmed_from and self._intervals.of(vs) not in self.differences:
            return  # of an interval in which it left something out, and which is not compared more
        key, difference = digest(vs, payload), self._of(vs)
        if key not in difference.held:  # it was there in time, so that this may be repeated
            difference.doubtful = True
        vold = difference.held.get(key, vold)
        difference.until = max(difference.until, horizon)
        if ve > vs:
            self._hold(difference, key, ve)
            difference.move(key, vold, ve)
            return
        difference.held.pop(key, None)
        difference.ends += _at(key, vold)
        self._take_back(difference, key, vs)

    def owe_starts(self, payload: Hashable, vs: int, ve: int, events: int) -> None:
        """The output has so many events of a key more than the input (or fewer), whatever their
        ends; one of them is ve."""
        if vs < self.since:
            return
        key, difference = digest(vs, payload), self._of(vs)
        for _ in range(events):
            difference.owe(key, Event(payload, vs, ve))
        for _ in range(-events):
            if difference.receive(key, Event(payload, vs, ve), may_be_repeated=True):
                self.hold_until(vs + 1)
            else:
                difference.complete = False

    def take_back(self, payload: Hashable, vs: int) -> None:
        """The input removes an event that `owe_starts` has compared."""
        if vs >= self.since:
            self._take_back(self._of(vs), digest(vs, payload), vs)

    def owe_end(self, payload: Hashable, vs: int, ve: int, events: int, *, until: int) -> None:
        """Of the events of a key the output has ended so many more at ve than the input (or
        fewer); the input may still revise that up to `until`."""
        if vs < self.since:
            return
        key, difference = digest(vs, payload), self._of(vs)
        difference.ends += events * _at(key, ve)
        difference.until = max(difference.until, until)
        difference.first_end = min(difference.first_end, ve)
        if events > 0:
            difference.differ(key, Event(payload, vs, ve))

    def _receive(self, difference: Difference, key: int, event: Event) -> None:
        may_be_repeated = event.vs < self.common
        if difference.receive(key, event, may_be_repeated=may_be_repeated) and not self._keyed:
            self.hold_until(event.vs + 1)

    def _take_back(self, difference: Difference, key: int, vs: int) -> None:
        difference.take_back(key, vs)
        if not self._keyed:
            difference.complete = False  # it may have repeated the insert, and not this

    def _hold(self, difference: Difference, key: int, ve: int) -> None:
        """Remembers a late event by which a repeated one is known, up to a bound."""
        if self._keyed:
            difference.held[key] = ve
            if len(difference.held) > _HELD:
                difference.held.clear()
                difference.doubtful = True

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
        if alike:
            self.hold_until(owed[alike - 1].vs + 1)
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
                self.hold_until(one.vs + 1)
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

    def judge(self, t: int, limit: int = INFINITY) -> list[Disagreement]:
        """The input's stable and the output's have passed t: settles what that settles. Of what
        the output has not let go of, both agree up to `limit`.

        Complexity: O(intervals that are passed and not settled)."""
        found: list[Disagreement] = []
        limit = min(t, limit, self.owed[0].vs) if self.owed else min(t, limit)
        for start in self._starts[: bisect_right(self._starts, t)] if self._starts else ():
            difference, end = self.differences[start], self._intervals.end_of(start)
            passed = end is not None and end <= t
            if difference.starts_agree and difference.ends_agree:
                self._settle(difference)
                if passed:
                    if difference.held:
                        self.hold_until(end)  # type: ignore[arg-type]
                    self._drop(start)
            elif not passed or (difference.starts_agree and t <= difference.until and t < INFINITY):
                limit = min(limit, difference.first_end)
                if not difference.starts_agree:
                    limit = min(limit, difference.first_start)
            else:
                assert end is not None
                self._drop(start)
                if difference.contradicts(keyed=self._keyed):
                    found.append(_disagreement(difference, start, end))
                else:
                    self.leave_out(end, max(difference.emitted - difference.received, 1))
        self.contradicted |= bool(found)
        if not self.contradicted and self.repeated and limit > self.confirmed_from:
            self.confirmed = max(self.confirmed, limit)
        return found

    def _settle(self, difference: Difference) -> None:
        if not self._keyed and difference.received:
            self.common = max(self.common, self._intervals.reached)
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
