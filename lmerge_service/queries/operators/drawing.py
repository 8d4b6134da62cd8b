"""The rows of groups' snapshots: made of what boundaries show, kept, compared and emitted.

Theory
    Boundaries show the payloads of each snapshot. Rows are the snapshots that are not empty, or if
    coalesced the runs of those that show the same. When a sweep has changed the boundaries in a
    range, rows are made anew there: the first begins where the row began that covers the boundary
    before it, the last ends where that one ended which covers the boundary behind it, since neither
    side has changed. So a run is never walked, however long.

    If a snapshot may show several payloads, each has its own rows: those of the whole show where
    what is shown differs, and payloads are taken out of their tracks and put into others there.

Invariants
    D1  The rows of the whole are what the boundaries show, from the first boundary on; each begins
        where it would if all boundaries were held.
    D2  A payload's track has the maximal intervals in which it is shown; of several alike that are
        shown together each has a track.

Cost
    O(log n + k) for k rows that are replaced, and boundaries between them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from lmerge_service.queries.operators.boundaries import Sweep
from lmerge_service.queries.operators.levels import Levels
from lmerge_service.queries.operators.protocol import Changes
from lmerge_service.queries.operators.tracks import (
    Label,
    Payloads,
    Row,
    Track,
    difference,
    labels,
    pieces,
)
from lmerge_service.queries.timeline import Part, Timeline

__all__ = ("Drawing", "Group", "Range")


class Group:
    """What is held of one group: its boundaries and the rows between them, and if rows of several
    payloads overlap, a track of each one's rows, by payload and which of several alike it is."""

    __slots__ = ("bounds", "key", "tracks", "whole")

    def __init__(self, key: Hashable, bounds: Timeline, whole: Track) -> None:
        self.key = key
        self.bounds = bounds
        self.whole = whole
        self.tracks: dict[Label, Track] = {}

    def held(self) -> int:
        """How many rows there are, of the whole and of each payload."""
        return len(self.whole) + sum(len(track) for track in self.tracks.values())


class Range(NamedTuple):
    """Where boundaries have changed, and what is around."""

    before: int | None
    """The last boundary before."""
    after: int | None
    """The first behind."""
    quiet: bool
    """A gap begins at `before`, if anything comes behind it."""


class Drawing:
    """The rows of all groups of an operator, and how they are drawn.

    `cut` gives each snapshot its rows, `gap` are the payloads of empty ones between others, and
    with `several` a snapshot may show more than one payload, which have rows of their own unless
    `cut`.
    """

    __slots__ = ("_cut", "_gap", "_next", "levels", "lines", "rows", "touched")

    def __init__(self, levels: Levels, cut: bool, several: bool, gap: Payloads | None) -> None:
        self.levels = levels
        self.lines = several and not cut
        """Whether rows of a group may overlap, so that each payload has a track."""
        self.rows = 0
        """How many are held."""
        self.touched = 0
        """Rows looked at."""
        self._cut = cut
        self._gap = gap
        self._next = 0

    def new_group(self, key: Hashable, bounds: Timeline) -> Group:
        """A group without rows."""
        return Group(key, bounds, self._new_track(emitted=not self.lines))

    def drop(self, group: Group) -> None:
        """Forgets a group, which has no rows."""
        self.levels.drop(group.whole)

    def draw(self, group: Group, sweep: Sweep, changes: Changes) -> None:
        """Makes the first rows of a group, and emits them."""
        none: Part = [[], [], []]
        new: Part = [[], [], []]
        self._run(new, None, sweep.first, sweep.columns[0], self._shown(sweep, None))
        self.rows += len(new[0])
        self.touched += len(new[0])
        group.whole.line.fill(new)
        if self.lines:
            self._toggle(group, none, new, changes)
        else:
            self._compare(group.whole, none, new, changes)

    def redraw(self, group: Group, where: Range, sweep: Sweep, changes: Changes) -> None:
        """Makes the rows of a range what its boundaries show, and emits the change."""
        part, at, to, new = self._redrawn(group.whole.line, where, sweep)
        old = [column[at:to] for column in part]
        for column, values in zip(part, new, strict=True):
            column[at:to] = values
        self.rows += len(new[0]) - len(old[0])
        self.touched += len(new[0]) + len(old[0])
        group.whole.line.fit(part)
        if self.lines:
            self._toggle(group, old, new, changes)
        else:
            self._compare(group.whole, old, new, changes)

    def forget(self, group: Group, point: int) -> None:
        """Drops the rows that end below `point`, but for one that may grow."""
        for payloads in self._forget_rows(group, group.whole, point):
            for label in labels(payloads) if self.lines else ():
                if track := group.tracks.get(label):
                    self._forget_rows(group, track, point)
                    if not track:
                        self.levels.drop(group.tracks.pop(label))

    def counted(self) -> int:
        """How many rows and entries of heaps have been looked at since the last call; the heaps are
        made anew if they have grown too long."""
        self.levels.compact(self.rows)
        looked_at = self.touched + self.levels.touched
        self.touched = self.levels.touched = 0
        return looked_at

    def state(self) -> Any:
        """What does not follow from the groups' rows, of what msgpack can carry."""
        return [self._next, self.levels.state()]

    def load(self, state: Any, groups: Iterable[Group]) -> None:
        """Takes over what `state` gave, and the rows of these groups, which are all."""
        self._next, levels = state
        self.levels.load(levels)
        for group in groups:
            self.rows += group.held()
            for track in self._tracks_of(group):
                self.levels.register(track)
        self.levels.schedule()

    def may_grow(self, group: Group, track: Track, end: int) -> bool:
        """Whether a gap of its values may follow on the row of a track that ends at `end`."""
        gap = self._gap
        if gap is None or self._cut:
            return False
        if group.bounds.parts[-1][0][-1] != end:
            return False
        if self.lines:
            return group.tracks.get((gap[0], 0)) is track
        payloads: Payloads = track.line.parts[-1][2][-1]
        return payloads == gap

    def check(self, group: Group, shown: list[Any]) -> None:
        """Asserts D1 and D2 of a group whose boundaries show this."""
        times = group.bounds.columns()[0]
        wanted = self._wanted(group, times, shown)
        below = [row for row in group.whole.rows() if row[1] <= times[0]]
        assert [*group.whole.rows()] == below + wanted, f"D1: {group.key!r} has other rows"
        if self.lines:
            self._check_tracks(group, wanted)
        for track in (group.whole, *group.tracks.values()):
            track.line.check()

    def check_all(self, groups: Iterable[Group]) -> None:
        """Asserts that rows are counted and found."""
        held = [*groups]
        assert self.rows == sum(group.held() for group in held), "rows are miscounted"
        tracks = [track for group in held for track in self._tracks_of(group)]
        self.levels.check(tracks, self.rows)

    def _check_tracks(self, group: Group, wanted: list[Row]) -> None:
        """Each payload's rows cover what its snapshots do, from the first boundary on."""
        first = group.bounds.parts[0][0][0]
        covered = [
            (label, max(start, first), end)
            for start, end, payloads in wanted
            for label in labels(payloads)
        ]
        found = [
            (label, max(start, first), end)
            for label, track in group.tracks.items()
            for start, end, _ in track.rows()
            if end > first
        ]
        for rows in (covered, found):  # payloads need not be orderable
            rows.sort(key=lambda row: (repr(row[0]), *row[1:]))
        merged: list[tuple[Any, int, int]] = []
        for label, start, end in covered:
            touches = merged and merged[-1][0] == label and merged[-1][2] == start
            merged.append((label, merged.pop()[1] if touches else start, end))
        assert merged == found, f"D2: {found} is shown, not {merged}"
        assert all(len(track.line) for track in group.tracks.values()), "an empty track is held"

    def _wanted(self, group: Group, times: list[int], shown: list[Any]) -> list[Row]:
        """The rows that the boundaries show, each with the start that the held one has."""
        shown = [self._gap if payloads is None else payloads for payloads in shown[:-1]]
        rows: list[Row] = []
        covering = [row for row in group.whole.rows() if row[0] <= times[0] < row[1]]
        for (start, end), payloads in zip(pairwise(times), shown, strict=True):
            if payloads is None:
                continue
            if rows and rows[-1][1] == start and rows[-1][2] == payloads and not self._cut:
                rows[-1] = (rows[-1][0], end, payloads)
            else:
                held = covering and start == times[0]
                rows.append((covering[0][0] if held else start, end, payloads))
        return rows

    def _new_track(self, emitted: bool) -> Track:
        track = Track(self._next)
        self._next += 1
        if emitted:
            self.levels.register(track)
        return track

    def _tracks_of(self, group: Group) -> Iterable[Track]:
        """The tracks whose rows are emitted."""
        return group.tracks.values() if self.lines else (group.whole,)

    def _shown(self, sweep: Sweep, after: int | None) -> list[Any]:
        """What the boundaries of a sweep show, gaps included."""
        if self._gap is None:
            return sweep.shown
        shown = [self._gap if payloads is None else payloads for payloads in sweep.shown]
        if after is None and shown:
            shown[-1] = None  # no snapshot begins at the last boundary
        return shown

    def _redrawn(self, line: Timeline, where: Range, sweep: Sweep) -> tuple[Part, int, int, Part]:
        """The part in which rows are to be replaced, from where to where, and the rows to come."""
        before, after, quiet = where
        cut, gap = self._cut, self._gap
        low = sweep.first if before is None else before
        part = line.window(low, sweep.last if after is None else after)
        starts, ends, payloads = part
        current, start = None, low
        at = bisect_right(starts, low) - 1 if before is not None else bisect_left(starts, low)
        if before is not None:
            if at >= 0 and ends[at] > before:
                current, start = payloads[at], starts[at]
            elif quiet and at >= 0 and ends[at] == before and payloads[at] == gap and not cut:
                current, start = gap, starts[at]
            else:
                at += 1
                current = gap if quiet else None
        to = len(starts) if after is None else bisect_left(starts, after)
        new: Part = [[], [], []]
        shown = self._shown(sweep, after)
        current, start = self._run(new, current, start, sweep.columns[0], shown)
        add_start, add_end, add_payloads = [column.append for column in new]
        end = before if after is None else after
        if after is not None and not cut:
            # the row that crosses `after`; or with gaps, one that begins there
            if to > at and ends[to - 1] > after:
                if current != payloads[to - 1]:
                    if current is not None:
                        add_start(start)
                        add_end(after)
                        add_payloads(current)
                    current, start = payloads[to - 1], after
                end = ends[to - 1]
            elif gap and current and starts[to : to + 1] == [after] and payloads[to] == current:
                end = ends[to]
                to += 1
        if current is not None and end is not None and start < end:
            add_start(start)
            add_end(end)
            add_payloads(current)
        return part, at, to, new

    def _run(
        self, new: Part, current: Payloads | None, start: int, times: list[int], shown: list[Any]
    ) -> tuple[Payloads | None, int]:
        """Adds the rows that end within a sweep, of which the first shows `current` from `start`
        on; returns what the last one shows, and from when on."""
        starts, ends, payloads = new
        cut = self._cut
        for time, here in zip(times, shown, strict=True):
            if here == current and (not cut or here is None):
                continue
            if current is not None:
                starts.append(start)
                ends.append(time)
                payloads.append(current)
            current, start = here, time
        return current, start

    def _compare(self, track: Track, old: Part, new: Part, changes: Changes) -> None:
        """Emits the difference of rows that were and rows that are, both in order."""
        if self.levels.emit == "on_update":
            changes += difference(old, new)
            return
        starts, ends, payloads = new
        at, count = 0, len(starts)
        for start, end, was in zip(*old, strict=True):
            while at < count and starts[at] < start:
                self.levels.gained(track, starts[at], ends[at], payloads[at], changes)
                at += 1
            if at < count and starts[at] == start:
                at += 1
                if (ends[at - 1], payloads[at - 1]) == (end, was):
                    continue
                self.levels.lost(track, start, end, was, changes)
                self.levels.gained(track, start, ends[at - 1], payloads[at - 1], changes)
            else:
                self.levels.lost(track, start, end, was, changes)
        for row in range(at, count):
            self.levels.gained(track, starts[row], ends[row], payloads[row], changes)

    def _toggle(self, group: Group, old: Part, new: Part, changes: Changes) -> None:
        """Takes payloads out of the tracks where they are shown no more, and puts them where they
        are shown now."""
        gone: dict[Label, list[tuple[int, int]]] = {}
        come: dict[Label, list[tuple[int, int]]] = {}
        for start, end, was, now in pieces(old, new):
            before, after = labels(was), labels(now)
            left = [label for label in before if label not in after]
            added = [label for label in after if label not in before]
            for spans, changed in ((gone, left), (come, added)):
                for label in changed:
                    found = spans.setdefault(label, [])
                    if found and found[-1][1] == start:
                        found[-1] = (found[-1][0], end)
                    else:
                        found.append((start, end))
        for label, ranges in gone.items():
            for start, end in ranges:
                self._off(group.tracks[label], start, end, label[0], changes)
        for label, ranges in come.items():
            track = group.tracks.get(label)
            if track is None:
                track = group.tracks[label] = self._new_track(emitted=True)
            for start, end in ranges:
                self._on(track, start, end, label[0], changes)
        for label in gone:
            if label in group.tracks and not group.tracks[label].line.parts[0][0]:
                self.levels.drop(group.tracks.pop(label))

    def _off(self, track: Track, low: int, high: int, payload: Hashable, changes: Changes) -> None:
        """Cuts [low, high) out of the row around it."""
        part = track.line.window(low, high)
        at = bisect_right(part[0], low) - 1
        start, end = part[0][at], part[1][at]
        rows = [(s, e) for s, e in ((start, low), (high, end)) if s < e]
        self._replace_rows(track, part, at, at + 1, rows, payload, changes)

    def _on(self, track: Track, low: int, high: int, payload: Hashable, changes: Changes) -> None:
        """Adds [low, high), joined with the rows that touch it."""
        part = track.line.window(low, high)
        starts, ends, _ = part
        at, to = bisect_left(ends, low), bisect_right(starts, high)
        if at < to:
            low, high = min(low, starts[at]), max(high, ends[to - 1])
        self._replace_rows(track, part, at, to, [(low, high)], payload, changes)

    def _replace_rows(
        self,
        track: Track,
        part: Part,
        at: int,
        to: int,
        rows: list[tuple[int, int]],
        payload: Hashable,
        changes: Changes,
    ) -> None:
        starts, ends, payloads = part
        lost = list(zip(starts[at:to], ends[at:to], strict=True))
        starts[at:to] = [start for start, _ in rows]
        ends[at:to] = [end for _, end in rows]
        payloads[at:to] = [(payload,) for _ in rows]
        track.line.fit(part)
        self.rows += len(rows) - len(lost)
        self.touched += len(rows) + len(lost)
        for start, end in lost:
            self.levels.lost(track, start, end, (payload,), changes)
        for start, end in rows:
            self.levels.gained(track, start, end, (payload,), changes)

    def _forget_rows(self, group: Group, track: Track, point: int) -> list[Payloads]:
        """Drops the rows of a track that end below `point`; returns their payloads."""
        dropped: list[Payloads] = []
        for _, ends, payloads in track.line.parts:
            below = bisect_left(ends, point)
            dropped += payloads[:below]
            if below < len(ends):
                break
        else:
            if dropped and self._gap and self.may_grow(group, track, track.line.parts[-1][1][-1]):
                dropped.pop()
        track.line.behead(len(dropped))
        self.rows -= len(dropped)
        self.touched += len(dropped)
        return dropped
