"""Snapshot aggregates, grouped: what an aggregate is at every instant (Goldstein and Hong).

Meaning
    Between two consecutive endpoints of a group's events the same events are valid. For each such
    snapshot that is not empty there is a row for each tuple of the aggregate's results. Coalesced,
    the default, neighbouring rows of one payload are one row: what comes out depends on what is
    valid at each instant alone. With `cut` each snapshot has its own rows. With `gap`, of an
    aggregate without groups, empty snapshots between the first and the last endpoint have a row of
    these values.

    Levels (`emit`): `on_update` emits all rows that follow from what is known. `ordered` emits them
    up to t, the greatest start of an event or boundary below a stable seen, the last of each group
    as one without end, so that input in order of time gives output in order. `on_watermark` emits
    rows that end by t: inserts alone, if the input is in order and without adjusts and each
    snapshot has its own rows. `on_close` emits what can change no more: inserts alone, always.
State
    Per group the boundaries with what is aggregated between them (`operators.boundaries`), and the
    rows. Which rows are emitted, and as what, follows from t.
Stable
    `on_update`, `ordered`: c. Endpoints before c are fixed, so of the row that is open at c only
    the end may move, beyond c. `on_watermark`, `on_close`: the least start of a row [s, e) with
    s < c <= e, if there is one, else c: it is to be emitted yet, or may be taken back. With `gap`,
    if no event is valid before and at c, no more than the last boundary before c, where the next
    gap begins; a row that ends there with the values of the gap counts as open, as that gap will
    lengthen it.
Retention
    Boundaries from the last one before c, rows that end at c or later, and the row that ends where
    a gap of its values may follow.  need(T) = T; starts are not exact if coalesced.
Cost
    An element or batch that changes what is aggregated between k boundaries takes O(log n + k) and
    as much for the rows that it changes; O(n) memory for n events that are not final. The output is
    as large as the overlap: with m events alive, one more splits a row and changes about m others.
    A stable takes O(log n) per boundary that it passes, however many events or groups are alive.

    >>> from lmerge_service.queries.aggregates import Count
    >>> count = Snapshots(Count())
    >>> count.process(Insert("x", 1, 5))
    [Insert(payload=(1,), vs=1, ve=5)]
    >>> for element in count.process(Insert("y", 3, 8)): print(element)
    Adjust(payload=(1,), vs=1, vold=5, ve=3)
    Insert(payload=(2,), vs=3, ve=5)
    Insert(payload=(1,), vs=5, ve=8)
    >>> count.process(Stable(6))
    [Stable(vc=6)]
    >>> final = Snapshots(Count(), emit="on_close")
    >>> for element in final.process_batch([Insert("x", 1, 5), Insert("y", 3, 8), Stable(6)]):
    ...     print(element)
    Insert(payload=(1,), vs=1, ve=3)
    Insert(payload=(2,), vs=3, ve=5)
    Stable(vc=5)
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias, get_args

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.aggregates import Aggregate
from lmerge_service.queries.expiry import Expiry
from lmerge_service.queries.netting import net_change
from lmerge_service.queries.operators import boundaries
from lmerge_service.queries.operators.boundaries import Boundaries, Sweep
from lmerge_service.queries.operators.protocol import Changes, Operator
from lmerge_service.queries.timeline import Part, Timeline

__all__ = ("Emit", "Snapshots")

Emit: TypeAlias = Literal["on_update", "ordered", "on_watermark", "on_close"]

_SLACK: Final = 64

Payloads: TypeAlias = tuple[Hashable, ...]
_Row: TypeAlias = tuple[int, int, Payloads]


class _Track:
    """Rows that do not overlap, as columns of starts, ends and payloads."""

    __slots__ = ("line", "number")

    def __init__(self, number: int, line: Timeline | None = None) -> None:
        self.number = number
        """Orders what is due at one time; given out in the order of arrival."""
        self.line = line or Timeline(3)


class _Group:
    """What is held of one group: its boundaries and the rows between them, and if rows of several
    payloads overlap, a track of each one's rows, by payload and which of several alike it is."""

    __slots__ = ("bounds", "key", "tracks", "whole")

    def __init__(self, key: Hashable, bounds: Timeline, whole: _Track) -> None:
        self.key = key
        self.bounds = bounds
        self.whole = whole
        self.tracks: dict[tuple[Hashable, int], _Track] = {}


class Snapshots(Operator):
    """The aggregate of the events that are valid at each instant, per group.

    Args:
        aggregate: what to compute; with several aggregates, `aggregates.Composite`.
        by: the group key of a payload; without it, all events are one group.
        row: the payload of a result, of the key and the tuple of values. Without it, the key's
            columns (or the key) and then the values; just the values without `by`.
        emit: the level.
        cut: each snapshot has rows of its own.
        gap: the values of empty snapshots between the first and the last endpoint.

    Raises:
        ConfigurationError: there is no such level, or `gap` together with `by`.
    """

    __slots__ = (
        *("_boundaries", "_by", "_changed", "_cut", "_due", "_emit", "_entry", "_front", "_gap"),
        *(
            "_greatest",
            "_groups",
            "_held",
            "_holds_back",
            "_lines",
            "_next",
            "_release",
            "_results",
            "_row",
        ),
        *("_rows", "_starts", "_tracks", "_unfinished", "aggregate"),
    )

    def __init__(
        self,
        aggregate: Aggregate,
        by: Callable[[Any], Hashable] | None = None,
        row: Callable[[Any, tuple[Any, ...]], Hashable] | None = None,
        *,
        emit: Emit = "on_update",
        cut: bool = False,
        gap: tuple[Any, ...] | None = None,
    ) -> None:
        super().__init__()
        if emit not in get_args(Emit):
            raise ConfigurationError(f"emit is one of {', '.join(get_args(Emit))}, not {emit!r}")
        if gap is not None and by is not None:
            raise ConfigurationError(
                "a gap has a row only without groups: one that is quiet "
                "would hold back the output of all"
            )
        self.aggregate = aggregate
        self._entry = aggregate.entry
        self._results = aggregate.results
        self._by = by
        self._row = row or (_values if by is None else _key_and_values)
        self._emit = emit
        self._cut = cut
        self._lines = not cut and not aggregate.single
        """Whether rows of a group may overlap, so that each payload has a track."""
        self._gap: Payloads | None = None if gap is None else (self._row(None, gap),)
        self._holds_back = emit in ("on_watermark", "on_close")
        """Whether rows that have begun hold back the stable."""
        self._boundaries = Boundaries(aggregate)
        self._begin()

    def _begin(self) -> None:
        """No state."""
        self._groups: dict[Hashable, _Group] = {}
        self._held = 0
        """Boundaries."""
        self._rows = 0
        self._due: Expiry[Hashable] = Expiry()
        """Groups, by a boundary that a stable has not passed."""
        self._front = START
        """t, the time up to which rows are emitted; `on_close` has the greatest time before c."""
        self._greatest = START
        """The greatest start of the batch at hand."""
        self._next = 0
        self._tracks: dict[int, _Track] = {}
        """The tracks by number, unless it emits on every update."""
        self._release: list[tuple[int, int, int, int]] = []
        """(time, track, start, end): what is to be emitted otherwise when t reaches the time."""
        self._starts: list[tuple[int, int]] = []
        """(start, track) of rows, where they hold back the stable."""
        self._unfinished: tuple[int, int] | None = None
        """(track, end) of the row that a gap of its values may lengthen yet, at `on_close`."""
        self._changed: dict[Hashable, boundaries.Changes] = {}
        """What the batch at hand changes, by group."""

    @property
    def overflowed(self) -> int:
        """How many results were null because they were too large."""
        return self.aggregate.overflowed

    def __len__(self) -> int:
        return self._held + self._rows

    def process_batch(self, elements: Iterable[Element], port: int = 0) -> list[Element]:
        """As for every operator."""
        try:
            return super().process_batch(elements, port)
        finally:
            self._changed = {}
            self._greatest = START

    def check(self) -> None:
        """Asserts that rows are what the boundaries show, and that what is due will be found."""
        super().check()
        point = self.stables[0]
        assert not self._changed, "a batch has left changes behind"
        held = rows = 0
        for key, group in self._groups.items():
            held += len(group.bounds)
            rows += len(group.whole.line) + sum(len(t.line) for t in group.tracks.values())
            self._boundaries.check(group.bounds, point)
            times = group.bounds.columns()[0]
            later = next((t for t in times if t >= point), INFINITY)
            assert self._due.due(key) <= later, f"the group {key!r} is never looked at"
            wanted = self._wanted(group)
            below = [row for row in _rows(group.whole.line) if row[1] <= times[0]]
            assert [*_rows(group.whole.line)] == below + wanted, f"{key!r} shows other rows"
            if self._lines:
                self._check_tracks(group, wanted)
            for track in self._tracks_of(group):
                self._check_waiting(track)
        assert (held, rows) == (self._held, self._rows), "the counts are wrong"
        self._due.check()

    def _check_tracks(self, group: _Group, wanted: list[_Row]) -> None:
        """Each payload's rows cover what its snapshots do, from the first boundary on."""
        first = group.bounds.parts[0][0][0]
        covered = sorted(
            (label, max(start, first), end)
            for start, end, payloads in wanted
            for label in _labels(payloads)
        )
        found = sorted(
            (label, max(start, first), end)
            for label, track in group.tracks.items()
            for start, end, _ in _rows(track.line)
            if end > first
        )
        merged: list[tuple[Any, int, int]] = []
        for label, start, end in covered:
            touches = merged and merged[-1][0] == label and merged[-1][2] == start
            merged.append((label, merged.pop()[1] if touches else start, end))
        assert merged == found, f"{found} is shown, not {merged}"
        assert all(len(track.line) for track in group.tracks.values()), "an empty track is held"

    def _check_waiting(self, track: _Track) -> None:
        """What is to be emitted, and what holds the stable back, can be found."""
        track.line.check()
        if self._emit == "on_update":
            return
        assert self._tracks[track.number] is track, "a track is not found by its number"
        release, starts = set(self._release), set(self._starts)
        for start, end, _ in _rows(track.line):
            due = self._next_release(start, end)
            waits = (due, track.number, start, end) in release
            unfinished = self._unfinished == (track.number, end)
            assert due is None or waits or unfinished, f"[{start}, {end}) is never emitted"
            if self._holds_back:
                assert (start, track.number) in starts, f"[{start}, {end}) holds nothing back"

    def _wanted(self, group: _Group) -> list[_Row]:
        """The rows that the boundaries show, each with the start that the held one has."""
        show = self._show(group.key)
        shown = [show(s) if n else self._gap for s, n in self._boundaries.states(group.bounds)]
        shown[-1] = None
        times = group.bounds.columns()[0]
        rows: list[_Row] = []
        covering = [row for row in _rows(group.whole.line) if row[0] <= times[0] < row[1]]
        for (start, end), payloads in zip(pairwise(times), shown, strict=False):
            if payloads is None:
                continue
            if rows and rows[-1][1] == start and rows[-1][2] == payloads and not self._cut:
                rows[-1] = (rows[-1][0], end, payloads)
            else:
                held = covering and start == times[0]
                rows.append((covering[0][0] if held else start, end, payloads))
        return rows

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        payload, vs, ve = element.payload, element.vs, element.ve
        if vs < self.stables[0] or ve <= vs:
            kind = BreachKind.MALFORMED if ve <= vs else BreachKind.BROKE_OWN_STABLE
            self._refuse(port, kind, element)
            return
        key = None if self._by is None else self._by(payload)
        entry = self._entry(payload, vs)
        changed = self._changed.get(key)
        if changed is None:
            changed = self._changed[key] = {}
        note = self._boundaries.note
        note(changed, vs, 1, 1, 1, entry)
        note(changed, ve, 1, -1, -1, entry)
        if vs > self._greatest:
            self._greatest = vs

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        payload, vs, vold, ve = element.payload, element.vs, element.vold, element.ve
        key = None if self._by is None else self._by(payload)
        if kind := self._breach(key, element):
            self._refuse(port, kind, element)
            return
        if ve == vold:
            return
        entry = self._entry(payload, vs)
        changed = self._changed.setdefault(key, {})
        note = self._boundaries.note
        if ve == vs:
            note(changed, vs, -1, -1, 1, entry)
            note(changed, vold, -1, 1, -1, entry)
        else:
            opens = 1 if vold < ve else -1
            note(changed, vold, -1, 1, opens, entry)
            note(changed, ve, 1, -1, -opens, entry)

    def _breach(self, key: Hashable, element: Adjust[Any]) -> BreachKind | None:
        vs, vold, ve = element.vs, element.vold, element.ve
        if ve < vs or vold <= vs:
            return BreachKind.MALFORMED
        if min(vold, ve) < self.stables[0]:
            return BreachKind.BROKE_OWN_STABLE
        changed, group = self._changed.get(key), self._groups.get(key)
        endpoints = changed[vold][0] if changed and vold in changed else 0
        if endpoints <= 0 and group and (found := group.bounds.find(vold)):
            part, at = found
            endpoints += part[1][at]
        return None if endpoints > 0 else BreachKind.UNKNOWN_EVENT

    def _settle(self, changes: Changes) -> None:
        if not self._changed:
            return
        groups, sweeps = self._groups, self._boundaries.sweeps
        planned: list[tuple[Hashable, _Group | None, list[Sweep]]] = []
        for key, changed in self._changed.items():  # user code is called here, and not below
            group = groups.get(key)
            line = group.bounds if group else self._boundaries.timeline()
            planned.append((key, group, sweeps(line, changed, self._show(key))))
        for key, known, swept in planned:
            group = known or self._new_group(key)
            for sweep in swept:
                self._apply(group, sweep, changes)
            if not group.bounds.parts[0][0]:
                self._drop_group(group)
        if self._emit in ("ordered", "on_watermark"):
            self._rise(self._greatest, changes)
        self._compact()

    def _show(self, key: Hashable) -> boundaries.Show:
        """What is shown of a group's snapshots: the payloads of rows."""
        results, row = self._results, self._row
        if row is _values:
            return results
        if self.aggregate.single:
            return lambda state: (row(key, results(state)[0]),)
        return lambda state: tuple([row(key, values) for values in results(state)]) or None

    def _new_group(self, key: Hashable) -> _Group:
        group = _Group(key, self._boundaries.timeline(), self._new_track(emitted=not self._lines))
        self._groups[key] = group
        return group

    def _new_track(self, emitted: bool) -> _Track:
        track = _Track(self._next)
        self._next += 1
        if emitted and self._emit != "on_update":
            self._tracks[track.number] = track
        return track

    def _drop_group(self, group: _Group) -> None:
        del self._groups[group.key]
        self._due.cancel(group.key)
        self._tracks.pop(group.whole.number, None)

    def _tracks_of(self, group: _Group) -> Iterable[_Track]:
        """The tracks whose rows are emitted."""
        return group.tracks.values() if self._lines else (group.whole,)

    def _apply(self, group: _Group, sweep: Sweep, changes: Changes) -> None:
        """Puts what a sweep has made in the place of the boundaries, and of the rows."""
        line = group.bounds
        part = line.window(sweep.first, sweep.last)
        times = part[0]
        low, high = bisect_left(times, sweep.first), bisect_right(times, sweep.last)
        before = times[low - 1] if low else None
        after = times[high] if high < len(times) else None
        quiet = self._gap is not None and before is not None and not part[2][low - 1]
        columns = sweep.columns
        for column, new in zip(part, columns, strict=True):
            column[low:high] = new
        self._held += len(columns[0]) - (high - low)
        line.fit(part)
        if columns[0]:
            self._due.schedule(group.key, columns[0][0])
        self.touched += sweep.looked_at
        if self._gap is not None:
            shown = [self._gap if payloads is None else payloads for payloads in sweep.shown]
            if after is None and shown:
                shown[-1] = None  # no snapshot begins at the last boundary
            sweep = sweep._replace(shown=shown)
        self._redraw(group, before, after, quiet, sweep, changes)

    def _redraw(
        self,
        group: _Group,
        before: int | None,
        after: int | None,
        quiet: bool,
        sweep: Sweep,
        changes: Changes,
    ) -> None:
        """Makes the rows between the boundaries `before` and `after` what they show, and emits the
        change. `quiet` has a gap begin at `before`, if anything comes behind it."""
        line, cut, gap = group.whole.line, self._cut, self._gap
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
        add_start, add_end, add_payloads = [column.append for column in new]
        for time, here in zip(sweep.columns[0], sweep.shown, strict=True):
            if here == current and (not cut or here is None):
                continue
            if current is not None:
                add_start(start)
                add_end(time)
                add_payloads(current)
            current, start = here, time
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
        old = [column[at:to] for column in part]
        for column, values in zip(part, new, strict=True):
            column[at:to] = values
        self._rows += len(new[0]) - len(old[0])
        self.touched += len(new[0]) + len(old[0])
        line.fit(part)
        if self._lines:
            self._toggle(group, old, new, changes)
        else:
            self._compare(group.whole, old, new, changes)

    def _compare(self, track: _Track, old: Part, new: Part, changes: Changes) -> None:
        """Emits the difference of rows that were and rows that are, both in order."""
        on_update = self._emit == "on_update"
        starts, ends, payloads = new
        at, count = 0, len(starts)
        for start, end, was in zip(*old, strict=True):
            while at < count and starts[at] < start:
                self._gained(track, starts[at], ends[at], payloads[at], changes)
                at += 1
            if at < count and starts[at] == start:
                now, to = payloads[at], ends[at]
                at += 1
                if now == was:
                    if to == end:
                        continue
                    if on_update:
                        for payload in was:
                            changes.append(Adjust(payload, start, end, to))
                        continue
                self._lost(track, start, end, was, changes)
                self._gained(track, start, to, now, changes)
            else:
                self._lost(track, start, end, was, changes)
        for row in range(at, count):
            self._gained(track, starts[row], ends[row], payloads[row], changes)

    def _toggle(self, group: _Group, old: Part, new: Part, changes: Changes) -> None:
        """Takes payloads out of the tracks where they are shown no more, and puts them where they
        are shown now."""
        gone: dict[tuple[Hashable, int], list[tuple[int, int]]] = {}
        come: dict[tuple[Hashable, int], list[tuple[int, int]]] = {}
        for start, end, was, now in _pieces(old, new):
            before, after = _labels(was), _labels(now)
            left = [label for label in before if label not in after]
            added = [label for label in after if label not in before]
            for spans, labels in ((gone, left), (come, added)):
                for label in labels:
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
                self._tracks.pop(group.tracks.pop(label).number, None)

    def _off(self, track: _Track, low: int, high: int, payload: Hashable, changes: Changes) -> None:
        """Cuts [low, high) out of the row around it."""
        part = track.line.window(low, high)
        at = bisect_right(part[0], low) - 1
        start, end = part[0][at], part[1][at]
        rows = [(s, e) for s, e in ((start, low), (high, end)) if s < e]
        self._replace_rows(track, part, at, at + 1, rows, payload, changes)

    def _on(self, track: _Track, low: int, high: int, payload: Hashable, changes: Changes) -> None:
        """Adds [low, high), joined with the rows that touch it."""
        part = track.line.window(low, high)
        starts, ends, _ = part
        at, to = bisect_left(ends, low), bisect_right(starts, high)
        if at < to:
            low, high = min(low, starts[at]), max(high, ends[to - 1])
        self._replace_rows(track, part, at, to, [(low, high)], payload, changes)

    def _replace_rows(
        self,
        track: _Track,
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
        self._rows += len(rows) - len(lost)
        self.touched += len(rows) + len(lost)
        for start, end in lost:
            self._lost(track, start, end, (payload,), changes)
        for start, end in rows:
            self._gained(track, start, end, (payload,), changes)

    def _lost(
        self, track: _Track, start: int, end: int, payloads: Payloads, changes: Changes
    ) -> None:
        """Takes back what had been emitted of a row."""
        shown: int | None = end
        if self._emit != "on_update":
            shown = self._emitted_end(start, end, self._front)
            if self._unfinished == (track.number, end):
                self._unfinished = shown = None
        if shown is not None:
            for payload in payloads:
                changes.append(Adjust(payload, start, shown, start))

    def _gained(
        self, track: _Track, start: int, end: int, payloads: Payloads, changes: Changes
    ) -> None:
        """Emits what is to be emitted of a row, and sees to it that the rest will be."""
        shown: int | None = end
        if self._emit != "on_update":
            shown = self._emitted_end(start, end, self._front)
            if (due := self._next_release(start, end)) is not None:
                heappush(self._release, (due, track.number, start, end))
            if self._holds_back:
                heappush(self._starts, (start, track.number))
        if shown is not None:
            for payload in payloads:
                changes.append(Insert(payload, start, shown))

    def _emitted_end(self, start: int, end: int, front: int) -> int | None:
        """As what a row is emitted when t is `front`: with which end, or not at all (None)."""
        if end <= front:
            return end
        return INFINITY if self._emit == "ordered" and start <= front else None

    def _next_release(self, start: int, end: int) -> int | None:
        """At which t a row is emitted otherwise than now; None if at none."""
        if end <= self._front:
            return None
        if self._emit != "ordered":
            return end
        if start > self._front:
            return start
        return None if end == INFINITY else end

    def _rise(self, front: int, changes: Changes) -> None:
        """Raises t, and emits what that releases."""
        before = self._front
        if front <= before:
            return
        self._front = front
        release, seen = self._release, set()
        while release and release[0][0] <= front:
            _, number, start, end = heappop(release)
            self.touched += 1
            track = self._tracks.get(number)
            found = track.line.find(start) if track else None
            if not track or not found or (number, start) in seen:
                continue
            (_, ends, payloads), at = found
            if ends[at] != end:
                continue
            seen.add((number, start))
            if self._emit == "on_close" and front < INFINITY and self._may_grow(track, end):
                self._unfinished = (number, end)
                continue
            was = self._emitted_end(start, end, before)
            now = self._emitted_end(start, end, front)
            assert now is not None
            for payload in payloads[at]:
                if was is None:
                    changes.append(Insert(payload, start, now))
                elif was != now:
                    changes.append(Adjust(payload, start, was, now))
            if (due := self._next_release(start, end)) is not None:
                heappush(release, (due, number, start, end))
        if front == INFINITY and self._unfinished:
            starts, ends, payloads = self._tracks[self._unfinished[0]].line.parts[-1]
            changes.append(Insert(payloads[-1][0], starts[-1], ends[-1]))

    def _may_grow(self, track: _Track, end: int) -> bool:
        """Whether a gap of its values may follow on the row of a track that ends at `end`."""
        gap = self._gap
        if gap is None or self._cut:
            return False
        group = self._groups[None]
        if group.bounds.parts[-1][0][-1] != end:
            return False
        if self._lines:
            return group.tracks.get((gap[0], 0)) is track
        payloads: Payloads = track.line.parts[-1][2][-1]
        return payloads == gap

    def _advance(self, changes: Changes) -> int:
        point, emit = self.stables[0], self._emit
        if point == INFINITY:
            if emit != "on_update":
                self._rise(INFINITY, changes)
            self._begin()
            return INFINITY
        due = [*self._due.before(point if emit == "on_update" else point + 1)]
        if emit == "on_close":
            self._rise(point - 1, changes)
        elif emit != "on_update":
            passed = [self._groups[key].bounds.at_most(point) for key in due]
            self._rise(max([START, *(part[0][at] for part, at in filter(None, passed))]), changes)
        for key in due:
            self._forget(self._groups[key], point)
        self._compact()
        return self._stable_at(point)

    def _forget(self, group: _Group, point: int) -> None:
        """Drops what a stable has made final of a group, and has the next of it looked at."""
        line = group.bounds
        dropped = self._boundaries.forget(line, point, keep=self._gap is not None)
        self._held -= dropped
        self.touched += dropped + 1
        for payloads in self._forget_rows(group.whole, point, not self._lines):
            for label in _labels(payloads) if self._lines else ():
                if track := group.tracks.get(label):
                    self._forget_rows(track, point, True)
                    if not track.line.parts[0][0]:
                        self._tracks.pop(group.tracks.pop(label).number, None)
        times = line.parts[0][0]
        if not times:
            self._drop_group(group)
        elif times[0] >= point:
            self._due.schedule(group.key, times[0])
        elif len(line.parts) > 1 or len(times) > 1:
            later = times[1] if len(times) > 1 else line.parts[1][0][0]
            self._due.schedule(group.key, later)

    def _forget_rows(self, track: _Track, point: int, emitted: bool) -> list[Payloads]:
        """Drops the rows of a track that end below `point`; returns their payloads."""
        dropped: list[Payloads] = []
        for _, ends, payloads in track.line.parts:
            below = bisect_left(ends, point)
            dropped += payloads[:below]
            if below < len(ends):
                break
        else:
            if dropped and self._gap and self._may_grow(track, track.line.parts[-1][1][-1]):
                dropped.pop()
        track.line.behead(len(dropped))
        self._rows -= len(dropped)
        self.touched += len(dropped)
        return dropped

    def _stable_at(self, point: int) -> int:
        """The stable rule."""
        stable = point
        if self._holds_back:
            starts = self._starts
            while starts and not self._holds(*starts[0]):
                heappop(starts)
                self.touched += 1
            if starts:
                stable = min(stable, starts[0][0])
        if self._gap is not None and self._groups:
            times, _, alive, *_ = self._groups[None].bounds.parts[0]
            if times[0] < point and not alive[0]:
                stable = min(stable, times[0])
        return stable

    def _holds(self, start: int, number: int) -> bool:
        track = self._tracks.get(number)
        return track is not None and track.line.find(start) is not None

    def _compact(self) -> None:
        """Drops what is out of date from the heaps when it may be the larger part of them."""
        if max(len(self._release), len(self._starts)) <= 2 * self._rows + _SLACK:
            return
        self._release, self._starts = [], []
        for track in self._tracks.values():
            self._schedule(track)
        heapify(self._release)
        heapify(self._starts)

    def _schedule(self, track: _Track) -> None:
        """Enters the rows of a track into the heaps, which are none any more."""
        for start, end, _ in _rows(track.line):
            if (due := self._next_release(start, end)) is not None:
                self._release.append((due, track.number, start, end))
            if self._holds_back:
                self._starts.append((start, track.number))

    def _netted(self, changes: Changes) -> list[Element]:
        if self._emit == "on_update":
            return super()._netted(changes)
        changes.sort(key=_start)
        netted = net_change(changes)
        return _in_order(netted) if self._emit == "ordered" else [*netted]

    def _state(self) -> Any:
        groups = [
            [
                portable(group.key),
                self._boundaries.saved(group.bounds),
                _saved_rows(group.whole),
                [
                    [portable(payload), nth, _saved_rows(track)]
                    for (payload, nth), track in group.tracks.items()
                ],
            ]
            for group in self._groups.values()
        ]
        return [self._front, self._next, self._unfinished, groups]

    def _load(self, state: Any) -> None:
        self._begin()
        self._front, self._next, unfinished, groups = state
        self._unfinished = tuple(unfinished) if unfinished else None
        for key, bounds, whole, tracks in groups:
            group = _Group(hashable(key), self._boundaries.loaded(bounds), _loaded_rows(whole))
            for payload, nth, rows in tracks:
                group.tracks[hashable(payload), nth] = _loaded_rows(rows)
            self._groups[group.key] = group
            self._held += len(group.bounds)
            self._rows += sum(len(t.line) for t in (group.whole, *group.tracks.values()))
            times = group.bounds.columns()[0]
            later = bisect_left(times, self.stables[0])
            if later < len(times):
                self._due.schedule(group.key, times[later])
            if self._emit != "on_update":
                for track in self._tracks_of(group):
                    self._tracks[track.number] = track
                    self._schedule(track)
        heapify(self._release)
        heapify(self._starts)


def _values(key: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    return values


def _key_and_values(key: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*key, *values) if isinstance(key, tuple) else (key, *values)


def _start(element: Insert[Any] | Adjust[Any]) -> int:
    return element.vs


def _rows(line: Timeline) -> Iterator[_Row]:
    for part in line.parts:
        yield from zip(*part, strict=True)


def _labels(payloads: Payloads | None) -> dict[tuple[Hashable, int], None]:
    """Each payload, and how many of those before it are alike; in order."""
    if payloads is None:
        return {}
    before: Counter[Hashable] = Counter()
    labels: dict[tuple[Hashable, int], None] = {}
    for payload in payloads:
        labels[payload, before[payload]] = None
        before[payload] += 1
    return labels


def _pieces(old: Part, new: Part) -> Iterator[tuple[int, int, Payloads | None, Payloads | None]]:
    """(start, end, payloads before, payloads now) of all pieces of time where they differ."""
    times = sorted({*old[0], *old[1], *new[0], *new[1]})
    at = to = 0
    for start, end in pairwise(times):
        while at < len(old[0]) and old[1][at] <= start:
            at += 1
        while to < len(new[0]) and new[1][to] <= start:
            to += 1
        was = old[2][at] if at < len(old[0]) and old[0][at] <= start else None
        now = new[2][to] if to < len(new[0]) and new[0][to] <= start else None
        if was != now:
            yield start, end, was, now


def _in_order(changes: list[Insert[Any] | Adjust[Any]]) -> list[Element]:
    """Changes in the order of their sync times, unless an event would then grow before another of
    its payload makes room."""

    def place(element: Insert[Any] | Adjust[Any]) -> tuple[int, int]:
        if type(element) is Insert:
            return element.vs, 2
        return min(element.vold, element.ve), element.ve > element.vold  # type: ignore[union-attr]

    ordered = sorted(changes, key=place)
    grown: set[Hashable] = set()
    for element in ordered:
        if type(element) is Adjust:
            if element.ve > element.vold:
                grown.add(element.payload)
            elif element.payload in grown:
                return [*changes]
    return [*ordered]


def _saved_rows(track: _Track) -> Any:
    starts, ends, payloads = track.line.columns()
    rows = [[portable(payload) for payload in each] for each in payloads]
    return [track.number, starts, ends, rows]


def _loaded_rows(saved: Any) -> _Track:
    number, starts, ends, rows = saved
    return _Track(number, Timeline(3, [starts, ends, [hashable(row) for row in rows]]))
