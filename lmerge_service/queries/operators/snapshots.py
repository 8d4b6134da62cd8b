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
    as one without end, so that input in order of time gives output in order (but for a gap that
    goes with the event behind it). `on_watermark` emits
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

    >>> from lmerge_service.elements import Stable
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
from collections.abc import Callable, Hashable, Iterable
from itertools import pairwise
from typing import Any, get_args

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.aggregates import Aggregate
from lmerge_service.queries.expiry import Expiry
from lmerge_service.queries.netting import net_change
from lmerge_service.queries.operators import boundaries
from lmerge_service.queries.operators.boundaries import Boundaries, Sweep
from lmerge_service.queries.operators.levels import Emit, Levels
from lmerge_service.queries.operators.protocol import Changes, Operator
from lmerge_service.queries.operators.tracks import (
    Label,
    Payloads,
    Row,
    Track,
    difference,
    in_order,
    labels,
    pieces,
)
from lmerge_service.queries.timeline import Part, Timeline

__all__ = ("Snapshots",)


class _Group:
    """What is held of one group: its boundaries and the rows between them, and if rows of several
    payloads overlap, a track of each one's rows, by payload and which of several alike it is."""

    __slots__ = ("bounds", "key", "tracks", "whole")

    def __init__(self, key: Hashable, bounds: Timeline, whole: Track) -> None:
        self.key = key
        self.bounds = bounds
        self.whole = whole
        self.tracks: dict[Label, Track] = {}


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
        *("_apart", "_boundaries", "_by", "_changed", "_cut", "_due", "_emit", "_entry", "_gap"),
        *("_greatest", "_groups", "_held", "_levels", "_lines", "_next", "_results", "_row"),
        *("_rows", "aggregate"),
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
        self._levels = Levels(self._emit)
        self._greatest = START
        """The greatest start of the batch at hand."""
        self._next = 0
        self._changed: dict[Hashable, boundaries.Changes] = {}
        """What the batch at hand changes, by group."""
        self._apart = False
        """Whether each row is changed once at most by the batch at hand."""

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
            self._apart = False

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
            below = [row for row in group.whole.rows() if row[1] <= times[0]]
            assert [*group.whole.rows()] == below + wanted, f"{key!r} shows other rows"
            if self._lines:
                self._check_tracks(group, wanted)
            for track in self._tracks_of(group):
                track.line.check()
        assert (held, rows) == (self._held, self._rows), "the counts are wrong"
        self._due.check()
        self._levels.check(t for g in self._groups.values() for t in self._tracks_of(g))

    def _check_tracks(self, group: _Group, wanted: list[Row]) -> None:
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
        assert merged == found, f"{found} is shown, not {merged}"
        assert all(len(track.line) for track in group.tracks.values()), "an empty track is held"

    def _wanted(self, group: _Group) -> list[Row]:
        """The rows that the boundaries show, each with the start that the held one has."""
        show = self._show(group.key)
        shown = [show(s) if n else self._gap for s, n in self._boundaries.states(group.bounds)]
        shown[-1] = None
        times = group.bounds.columns()[0]
        rows: list[Row] = []
        covering = [row for row in group.whole.rows() if row[0] <= times[0] < row[1]]
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
        self._apart = len(planned) == len(planned[0][2]) == 1 and self.aggregate.single
        for key, known, swept in planned:
            group = known or self._new_group(key)
            for sweep in swept:
                self._apply(group, sweep, changes)
            if not group.bounds.parts[0][0]:
                self._drop_group(group)
        if self._emit in ("ordered", "on_watermark"):
            self._levels.rise(self._greatest, changes)
        self._levels.compact(self._rows)

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

    def _new_track(self, emitted: bool) -> Track:
        track = Track(self._next)
        self._next += 1
        if emitted:
            self._levels.register(track)
        return track

    def _drop_group(self, group: _Group) -> None:
        del self._groups[group.key]
        self._due.cancel(group.key)
        self._levels.drop(group.whole)

    def _tracks_of(self, group: _Group) -> Iterable[Track]:
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

    def _compare(self, track: Track, old: Part, new: Part, changes: Changes) -> None:
        """Emits the difference of rows that were and rows that are, both in order."""
        if self._emit == "on_update":
            changes += difference(old, new)
            return
        starts, ends, payloads = new
        at, count = 0, len(starts)
        for start, end, was in zip(*old, strict=True):
            while at < count and starts[at] < start:
                self._levels.gained(track, starts[at], ends[at], payloads[at], changes)
                at += 1
            if at < count and starts[at] == start:
                at += 1
                if (ends[at - 1], payloads[at - 1]) == (end, was):
                    continue
                self._levels.lost(track, start, end, was, changes)
                self._levels.gained(track, start, ends[at - 1], payloads[at - 1], changes)
            else:
                self._levels.lost(track, start, end, was, changes)
        for row in range(at, count):
            self._levels.gained(track, starts[row], ends[row], payloads[row], changes)

    def _toggle(self, group: _Group, old: Part, new: Part, changes: Changes) -> None:
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
                self._levels.drop(group.tracks.pop(label))

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
        self._rows += len(rows) - len(lost)
        self.touched += len(rows) + len(lost)
        for start, end in lost:
            self._levels.lost(track, start, end, (payload,), changes)
        for start, end in rows:
            self._levels.gained(track, start, end, (payload,), changes)

    def _may_grow(self, track: Track, end: int) -> bool:
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
                self._levels.rise(INFINITY, changes)
            self._begin()
            return INFINITY
        due = [*self._due.before(point if emit == "on_update" else point + 1)]
        if emit == "on_close":
            self._levels.rise(point - 1, changes, self._may_grow)
        elif emit != "on_update":
            passed = [self._groups[key].bounds.at_most(point) for key in due]
            self._levels.rise(
                max([START, *(part[0][at] for part, at in filter(None, passed))]), changes
            )
        for key in due:
            self._forget(self._groups[key], point)
        self._levels.compact(self._rows)
        return self._stable_at(point)

    def _forget(self, group: _Group, point: int) -> None:
        """Drops what a stable has made final of a group, and has the next of it looked at."""
        line = group.bounds
        dropped = self._boundaries.forget(line, point, keep=self._gap is not None)
        self._held -= dropped
        self.touched += dropped + 1
        for payloads in self._forget_rows(group.whole, point, not self._lines):
            for label in labels(payloads) if self._lines else ():
                if track := group.tracks.get(label):
                    self._forget_rows(track, point, True)
                    if not track.line.parts[0][0]:
                        self._levels.drop(group.tracks.pop(label))
        times = line.parts[0][0]
        if not times:
            self._drop_group(group)
        elif times[0] >= point:
            self._due.schedule(group.key, times[0])
        elif len(line.parts) > 1 or len(times) > 1:
            later = times[1] if len(times) > 1 else line.parts[1][0][0]
            self._due.schedule(group.key, later)

    def _forget_rows(self, track: Track, point: int, emitted: bool) -> list[Payloads]:
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
        stable = self._levels.least_start(point)
        if self._gap is not None and self._groups:
            times, _, alive, *_ = self._groups[None].bounds.parts[0]
            if times[0] < point and not alive[0]:
                stable = min(stable, times[0])
        return stable

    def _netted(self, changes: Changes) -> list[Element]:
        if self._emit == "on_update":
            return [*changes] if self._apart else super()._netted(changes)
        changes.sort(key=_start)
        netted = net_change(changes)
        return in_order(netted) if self._emit == "ordered" else [*netted]

    def _state(self) -> Any:
        groups = [
            [
                portable(group.key),
                self._boundaries.saved(group.bounds),
                group.whole.saved(),
                [
                    [portable(payload), nth, track.saved()]
                    for (payload, nth), track in group.tracks.items()
                ],
            ]
            for group in self._groups.values()
        ]
        return [self._levels.state(), self._next, groups]

    def _load(self, state: Any) -> None:
        self._begin()
        levels, self._next, groups = state
        self._levels.load(levels)
        for key, bounds, whole, tracks in groups:
            group = _Group(hashable(key), self._boundaries.loaded(bounds), Track.loaded(whole))
            for payload, nth, rows in tracks:
                group.tracks[hashable(payload), nth] = Track.loaded(rows)
            self._groups[group.key] = group
            self._held += len(group.bounds)
            self._rows += sum(len(t.line) for t in (group.whole, *group.tracks.values()))
            times = group.bounds.columns()[0]
            later = bisect_left(times, self.stables[0])
            if later < len(times):
                self._due.schedule(group.key, times[later])
            for track in self._tracks_of(group):
                self._levels.register(track)
        self._levels.schedule()


def _values(key: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    return values


def _key_and_values(key: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*key, *values) if isinstance(key, tuple) else (key, *values)


def _start(element: Insert[Any] | Adjust[Any]) -> int:
    return element.vs
