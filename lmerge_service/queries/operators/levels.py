"""When rows are emitted, and as what: the levels of speculation of snapshot aggregates.

Theory
    At `on_update` a row is emitted as it is. At the other levels that depends on t, a time that
    never falls: a row [s, e) with e <= t is emitted as it is; at `ordered` one with s <= t < e as
    [s, INFINITY). So what has been emitted of a row follows from t and need not be kept. When t
    rises, rows that wait in a heap are emitted otherwise.

    >>> from lmerge_service.queries.timeline import Timeline
    >>> ordered, rows, changes = Levels("ordered"), Track(0), []
    >>> ordered.register(rows)
    >>> rows.line = Timeline(3, [[1, 5], [5, 8], [("a",), ("b",)]])
    >>> for row in rows.rows(): ordered.gained(rows, *row, changes)
    >>> for t in (1, 6): ordered.rise(t, changes)
    >>> for element in changes: print(element)
    Insert(payload='a', vs=1, ve=9223372036854775807)
    Adjust(payload='a', vs=1, vold=9223372036854775807, ve=5)
    Insert(payload='b', vs=5, ve=9223372036854775807)

Invariants
    V1  A row that t will have emitted otherwise is in the heap, under the least such t.
    V2  If rows hold back the stable, each that is held is in a heap by its start.
    V3  The heaps are no longer than twice the rows plus a constant after `compact`.

Cost
    O(log n) per row that comes, or is emitted because t rises; amortised for what has gone.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any, Final, Literal, TypeAlias

from lmerge_service.elements import INFINITY, START, Adjust, Insert
from lmerge_service.queries.operators.protocol import Changes
from lmerge_service.queries.operators.tracks import Payloads, Track

__all__ = ("Emit", "Levels")

Emit: TypeAlias = Literal["on_update", "ordered", "on_watermark", "on_close"]

_SLACK: Final = 64


class Levels:
    """The rows of all tracks of an operator, and t."""

    __slots__ = (
        *("_release", "_starts", "_tracks", "emit", "front", "holds_back", "touched"),
        "unfinished",
    )

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self.holds_back = emit in ("on_watermark", "on_close")
        """Whether rows that have begun hold back the stable."""
        self.front = START
        """t; at `on_close` the greatest time before the input's stable point."""
        self.touched = 0
        """Entries of the heaps looked at."""
        self.unfinished: tuple[int, int] | None = None
        """(track, end) of a row that `rise` has left out, as it may yet grow."""
        self._tracks: dict[int, Track] = {}
        self._release: list[tuple[int, int, int, int]] = []
        """(time, track, start, end): what is emitted otherwise when t reaches the time."""
        self._starts: list[tuple[int, int]] = []
        """(start, track)."""

    def register(self, track: Track) -> None:
        """Lets the rows of a track be found by its number."""
        if self.emit != "on_update":
            self._tracks[track.number] = track

    def drop(self, track: Track) -> None:
        """Forgets a track."""
        self._tracks.pop(track.number, None)

    def lost(
        self, track: Track, start: int, end: int, payloads: Payloads, changes: Changes
    ) -> None:
        """Takes back what has been emitted of a row that is no more."""
        shown: int | None = end
        if self.emit != "on_update":
            shown = self._emitted_end(start, end, self.front)
            if self.unfinished == (track.number, end):
                self.unfinished = shown = None
        if shown is not None:
            changes += [Adjust(payload, start, shown, start) for payload in payloads]

    def gained(
        self, track: Track, start: int, end: int, payloads: Payloads, changes: Changes
    ) -> None:
        """Emits what is to be emitted of a new row, and sees to it that the rest will be."""
        shown: int | None = end
        if self.emit != "on_update":
            shown = self._emitted_end(start, end, self.front)
            if (due := self._next_release(start, end)) is not None:
                heappush(self._release, (due, track.number, start, end))
            if self.holds_back:
                heappush(self._starts, (start, track.number))
        if shown is not None:
            changes += [Insert(payload, start, shown) for payload in payloads]

    def rise(
        self,
        front: int,
        changes: Changes,
        may_grow: Callable[[Track, int], bool] = lambda track, end: False,
    ) -> None:
        """Raises t, and emits what that releases. At `on_close` a row that ends below the stable
        and `may_grow` nevertheless, one at most, is left for later."""
        before = self.front
        if front <= before:
            return
        self.front = front
        release, seen = self._release, set()
        while release and release[0][0] <= front:
            _, number, start, end = heappop(release)
            self.touched += 1
            payloads = self._payloads(number, start, end)
            if payloads is None or (number, start) in seen:
                continue
            seen.add((number, start))
            if self.emit == "on_close" and front < INFINITY and may_grow(self._tracks[number], end):
                self.unfinished = (number, end)
                continue
            self._emit_otherwise(start, end, payloads, before, changes)
            if (due := self._next_release(start, end)) is not None:
                heappush(release, (due, number, start, end))
        if front == INFINITY and self.unfinished:
            starts, ends, rows = self._tracks[self.unfinished[0]].line.parts[-1]
            changes += [Insert(payload, starts[-1], ends[-1]) for payload in rows[-1]]

    def least_start(self, otherwise: int) -> int:
        """The least start of a row that is held, if it is less and holds back the stable."""
        starts = self._starts
        while starts and not self._holds(*starts[0]):
            heappop(starts)
            self.touched += 1
        return min(otherwise, starts[0][0]) if starts else otherwise

    def compact(self, rows: int) -> None:
        """Drops what is out of date from the heaps, if that may be the larger part of them beside
        `rows` rows."""
        if max(len(self._release), len(self._starts)) > 2 * rows + _SLACK:
            self.schedule()

    def schedule(self) -> None:
        """Makes the heaps anew."""
        self._release, self._starts = [], []
        for track in self._tracks.values():
            for start, end, _ in track.rows():
                if (due := self._next_release(start, end)) is not None:
                    self._release.append((due, track.number, start, end))
                if self.holds_back:
                    self._starts.append((start, track.number))
        heapify(self._release)
        heapify(self._starts)

    def check(self, tracks: Iterable[Track], rows: int) -> None:
        """Asserts V1 to V3 for these tracks, which are all, with so many rows."""
        longest = max(len(self._release), len(self._starts))
        assert longest <= 2 * rows + _SLACK, "V3: the heaps grow"
        if self.emit == "on_update":
            assert not self._tracks, "all is emitted at once"
            return
        release, starts = set(self._release), set(self._starts)
        held: set[int] = set()
        for track in tracks:
            held.add(track.number)
            assert self._tracks.get(track.number) is track, "a track cannot be found"
            for start, end, _ in track.rows():
                due = self._next_release(start, end)
                waits = due is None or (due, track.number, start, end) in release
                unfinished = self.unfinished == (track.number, end)
                assert waits or unfinished, f"V1: [{start}, {end}) is never emitted"
                holds = (start, track.number) in starts or not self.holds_back
                assert holds, f"V2: [{start}, {end}) holds nothing back"
        assert held == self._tracks.keys(), "a track is left behind"

    def state(self) -> Any:
        """What does not follow from the rows, of what msgpack can carry."""
        return [self.front, self.unfinished]

    def load(self, state: Any) -> None:
        """Takes over what `state` gave; tracks are to be registered, and then scheduled."""
        self.front, unfinished = state
        self.unfinished = tuple(unfinished) if unfinished else None

    def _emitted_end(self, start: int, end: int, front: int) -> int | None:
        """As what a row is emitted when t is `front`: with which end, or not at all (None)."""
        if end <= front:
            return end
        return INFINITY if self.emit == "ordered" and start <= front else None

    def _next_release(self, start: int, end: int) -> int | None:
        """At which t a row is emitted otherwise than now; None if at none."""
        if end <= self.front:
            return None
        if self.emit != "ordered":
            return end
        if start > self.front:
            return start
        return None if end == INFINITY else end

    def _emit_otherwise(
        self, start: int, end: int, payloads: Payloads, before: int, changes: Changes
    ) -> None:
        was = self._emitted_end(start, end, before)
        now = self._emitted_end(start, end, self.front)
        assert now is not None, "it was not due"
        if was is None:
            changes += [Insert(payload, start, now) for payload in payloads]
        elif was != now:
            changes += [Adjust(payload, start, was, now) for payload in payloads]

    def _payloads(self, number: int, start: int, end: int) -> Payloads | None:
        """Those of a row, if it is there."""
        track = self._tracks.get(number)
        found = track.line.find(start) if track else None
        if found is None:
            return None
        (_, ends, rows), at = found
        payloads: Payloads = rows[at]
        return payloads if ends[at] == end else None

    def _holds(self, start: int, number: int) -> bool:
        track = self._tracks.get(number)
        return track is not None and track.line.find(start) is not None
