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
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, get_args

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.expiry import Expiry
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.aggregates import Aggregate
from lmerge_service.queries.netting import net_change
from lmerge_service.queries.operators import boundaries
from lmerge_service.queries.operators.boundaries import Boundaries, Sweep
from lmerge_service.queries.operators.drawing import Drawing, Group, Range
from lmerge_service.queries.operators.levels import Emit, Levels
from lmerge_service.queries.operators.protocol import Changes, Operator
from lmerge_service.queries.operators.tracks import Payloads, Track, in_order
from lmerge_service.queries.timeline import Timeline

__all__ = ("Snapshots",)


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
        *(
            "_apart",
            "_boundaries",
            "_by",
            "_changed",
            "_cut",
            "_drawing",
            "_due",
            "_emit",
            "_entry",
        ),
        *("_gap", "_greatest", "_groups", "_held", "_results", "_row", "aggregate"),
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
        self._gap: Payloads | None = None if gap is None else (self._row(None, gap),)
        self._boundaries = Boundaries(aggregate)
        self._begin()

    def _begin(self) -> None:
        """No state."""
        self._groups: dict[Hashable, Group] = {}
        self._held = 0
        """Boundaries."""
        self._due: Expiry[Hashable] = Expiry()
        """Groups, by a boundary that a stable has not passed."""
        several = not self.aggregate.single
        self._drawing = Drawing(Levels(self._emit), self._cut, several, self._gap)
        self._greatest = START
        """The greatest start of the batch at hand."""
        self._changed: dict[Hashable, boundaries.Changes] = {}
        """What the batch at hand changes, by group."""
        self._apart = False
        """Whether each row is changed once at most by the batch at hand."""

    @property
    def overflowed(self) -> int:
        """How many results were null because they were too large."""
        return self.aggregate.overflowed

    def __len__(self) -> int:
        return self._held + self._drawing.rows

    def emits_inserts_only(self, inputs: Sequence[bool]) -> bool:
        return self._emit == "on_close"

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
        for key, group in self._groups.items():
            self._boundaries.check(group.bounds, point)
            times = group.bounds.columns()[0]
            later = next((t for t in times if t >= point), INFINITY)
            assert self._due.due(key) <= later, f"the group {key!r} is never looked at"
            show, states = self._show(key), self._boundaries.states(group.bounds)
            self._drawing.check(group, [show(s) if n else None for s, n in states])
        groups = self._groups.values()
        assert self._held == sum(len(g.bounds) for g in groups), "boundaries are miscounted"
        self._drawing.check_all(groups)
        self._due.check()

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
        planned: list[tuple[Hashable, Timeline, list[Sweep]]] = []
        for key, changed in self._changed.items():  # user code is called here, and not below
            group = groups.get(key)
            line = group.bounds if group else self._boundaries.timeline()
            planned.append((key, line, sweeps(line, changed, self._show(key))))
        self._apart = len(planned) == len(planned[0][2]) == 1 and self.aggregate.single
        for key, line, swept in planned:
            group = groups.get(key) or self._new_group(key, line)
            for sweep in swept:
                self._apply(group, sweep, changes)
            if not group.bounds.parts[0][0]:
                self._drop_group(group)
        if self._emit in ("ordered", "on_watermark"):
            self._drawing.levels.rise(self._greatest, changes)
        self.touched += self._drawing.counted()

    def _show(self, key: Hashable) -> boundaries.Show:
        """What is shown of a group's snapshots: the payloads of rows."""
        results, row = self._results, self._row
        if row is _values:
            return results
        if self.aggregate.single:
            return lambda state: (row(key, results(state)[0]),)
        return lambda state: tuple([row(key, values) for values in results(state)]) or None

    def _new_group(self, key: Hashable, line: Timeline) -> Group:
        group = self._drawing.new_group(key, line)
        self._groups[key] = group
        return group

    def _drop_group(self, group: Group) -> None:
        del self._groups[group.key]
        self._due.cancel(group.key)
        self._drawing.drop(group)

    def _apply(self, group: Group, sweep: Sweep, changes: Changes) -> None:
        """Puts what a sweep has made in the place of the boundaries, and of the rows."""
        line = group.bounds
        part = line.window(sweep.first, sweep.last)
        times = part[0]
        if not times:
            self._begin_group(group, sweep, changes)
            return
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
        self._drawing.redraw(group, Range(before, after, quiet), sweep, changes)

    def _begin_group(self, group: Group, sweep: Sweep, changes: Changes) -> None:
        """The same where there is nothing around, as for most keys of many."""
        times = sweep.columns[0]
        self.touched += sweep.looked_at
        if not times:
            return
        self._held += len(times)
        group.bounds.fill(sweep.columns)
        self._due.schedule(group.key, times[0])
        self._drawing.draw(group, sweep, changes)

    def _advance(self, changes: Changes) -> int:
        point, emit = self.stables[0], self._emit
        if point == INFINITY:
            if emit != "on_update":
                self._drawing.levels.rise(INFINITY, changes)
            self._begin()
            return INFINITY
        due = [*self._due.before(point if emit == "on_update" else point + 1)]
        levels = self._drawing.levels
        if emit == "on_close":
            levels.rise(point - 1, changes, self._may_grow)
        elif emit != "on_update":
            passed = [self._groups[key].bounds.at_most(point) for key in due]
            levels.rise(max((p[0][at] for p, at in filter(None, passed)), default=START), changes)
        for key in due:
            self._forget(self._groups[key], point)
        self.touched += self._drawing.counted()
        return self._stable_at(point)

    def _may_grow(self, track: Track, end: int) -> bool:
        """Whether the next gap may lengthen a row; there are gaps in one group only."""
        return self._gap is not None and self._drawing.may_grow(self._groups[None], track, end)

    def _forget(self, group: Group, point: int) -> None:
        """Drops what a stable has made final of a group, and has the next of it looked at."""
        line = group.bounds
        times, _, alive, *_ = line.parts[0]
        if len(times) > 1 and times[1] >= point > times[0] and alive[0] and self._gap is None:
            self.touched += 1  # all of it may still change
            self._due.schedule(group.key, times[1])
            return
        dropped = self._boundaries.forget(line, point, keep=self._gap is not None)
        self._held -= dropped
        self.touched += dropped + 1
        self._drawing.forget(group, point)
        times = line.parts[0][0]
        if not times:
            self._drop_group(group)
        elif times[0] >= point:
            self._due.schedule(group.key, times[0])
        elif len(line.parts) > 1 or len(times) > 1:
            later = times[1] if len(times) > 1 else line.parts[1][0][0]
            self._due.schedule(group.key, later)

    def _stable_at(self, point: int) -> int:
        """The stable rule."""
        stable = self._drawing.levels.least_start(point)
        if self._gap is not None and self._groups:
            times, _, alive, *_ = self._groups[None].bounds.parts[0]
            if times[0] < point and not alive[0]:
                stable = min(stable, times[0])
        return stable

    def _netted(self, changes: Changes) -> list[Element]:
        if self._apart and self._emit == "on_update":
            return [*changes]
        changes.sort(key=_start)
        netted = net_change(changes)
        if self._emit != "ordered":
            return [*netted]
        return in_order(netted, keyed=not self.aggregate.alike)

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
        return [self._drawing.state(), groups]

    def _load(self, state: Any) -> None:
        self._begin()
        drawing, groups = state
        for key, bounds, whole, tracks in groups:
            group = Group(hashable(key), self._boundaries.loaded(bounds), Track.loaded(whole))
            for payload, nth, rows in tracks:
                group.tracks[hashable(payload), nth] = Track.loaded(rows)
            self._groups[group.key] = group
            self._held += len(group.bounds)
            times = group.bounds.columns()[0]
            later = bisect_left(times, self.stables[0])
            if later < len(times):
                self._due.schedule(group.key, times[later])
        self._drawing.load(drawing, self._groups.values())


def _values(key: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    return values


def _key_and_values(key: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*key, *values) if isinstance(key, tuple) else (key, *values)


def _start(element: Insert[Any] | Adjust[Any]) -> int:
    return element.vs
