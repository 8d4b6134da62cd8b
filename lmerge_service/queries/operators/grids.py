"""Hopping and tumbling windows: modules and aggregates over a grid of windows, per group.

Meaning
    The windows are [l, l + size), l = origin + k hop; hop = size tumbles, hop > size leaves gaps.
    An event belongs to every window that it overlaps; to touch is not to overlap. Each window of
    each group that has a member emits what the aggregate or module returns of its members: an
    aggregate's rows live as long as the window, a stamped module's as its policy has it
    (`queries.modules`). An event that never ends belongs to infinitely many windows; those that
    begin behind `max_event_time` are not emitted, not even by stable(INFINITY).
State
    Per window and group the aggregate's or module's state, and the rows emitted. An event that
    reaches beyond `max_event_time` waits, and enters windows as these begin. If the module sees
    unclipped ends: the events that may still end otherwise.
Stable
    The least of c and L, the first window that is still open: L = min {l : l + size > c}. A module
    that sees unclipped ends holds it at the first window of any event with ve >= c. A time-bound
    module, emitted on update, lets c pass: what an element changes is checked against its sync
    time.
Retention
    Windows with l + size > c (with unclipped ends also those of an event with ve >= c); events that
    reach beyond `max_event_time`; with unclipped ends those with ve >= c.
    need(T) = T - size + 1, exact starts.
Cost
    An event costs O(1) for each window that it enters. In a batch, facts of one group and one pane
    (no window begins or ends within) are folded once and merged into the pane's windows, if the
    aggregate is linear. Each window touched is computed once per batch. A stable costs what it
    closes, and O(log n) per event that waits for a window that begins.

`max_leap` bounds how far one insert moves `max_event_time`: an event farther ahead waits until a
stable, or others, come near. That changes when windows are emitted, and not what.

    >>> from lmerge_service.elements import Stable
    >>> from lmerge_service.queries.aggregates import Count
    >>> count = GridWindows(Grid(10, hop=5), Count())
    >>> for element in count.process_batch([Insert("a", 6, 8), Insert("b", 7, 12)]): print(element)
    Insert(payload=(2,), vs=0, ve=10)
    Insert(payload=(2,), vs=5, ve=15)
    >>> count.process_batch([Adjust("b", 7, 12, 7), Stable(12)])  # doctest: +NORMALIZE_WHITESPACE
    [Adjust(payload=(2,), vs=0, vold=10, ve=0), Adjust(payload=(2,), vs=5, vold=15, ve=5),
     Insert(payload=(1,), vs=0, ve=10), Insert(payload=(1,), vs=5, ve=15), Stable(vc=5)]
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import gcd
from operator import itemgetter
from typing import Any, TypeAlias

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.aggregates import Aggregate
from lmerge_service.queries.modules import Application
from lmerge_service.queries.operators.aggregate_use import Added, AggregateUse, added_facts
from lmerge_service.queries.operators.protocol import Changes, Skip
from lmerge_service.queries.operators.scheduling import Holding, Scheduled
from lmerge_service.queries.operators.windowing import (
    NO_ROWS,
    Cell,
    Emit,
    Found,
    Use,
    WindowOperator,
    bound_changes,
)
from lmerge_service.queries.times import finite
from lmerge_service.queries.window_policies import Row, Window

__all__ = ("Grid", "GridWindows")

_START = itemgetter(0)

_Event: TypeAlias = tuple[Any, Any, int, int]
"""(group, value, vs, ve)"""


@dataclass(frozen=True, slots=True)
class Grid:
    """The windows [l, l + size), l = origin + k hop; without `hop` they tumble.

    Raises:
        ConfigurationError: size or hop is less than 1.

    >>> list(Grid(10, 5).windows(12, 22)), Grid(5, 10).first(7), Grid(10, 4).pane
    ([5, 10, 15, 20], 10, 2)
    """

    size: int
    hop: int = 0
    origin: int = 0

    def __post_init__(self) -> None:
        if not self.hop:
            object.__setattr__(self, "hop", self.size)
        if self.size < 1 or self.hop < 1:
            raise ConfigurationError(f"windows of {self.size} every {self.hop} are none")

    @property
    def pane(self) -> int:
        """The greatest length that divides both: no window begins or ends within a pane."""
        return gcd(self.size, self.hop)

    def first(self, t: int) -> int:
        """The first window that ends behind t."""
        return t - self.size + self.hop - (t - self.size - self.origin) % self.hop

    def windows(self, vs: int, ve: int, until: int = INFINITY) -> range:
        """The windows that [vs, ve) overlaps, those that begin by `until`."""
        return range(self.first(vs), ve if ve <= until else until + 1, self.hop)

    def after(self, t: int) -> int:
        """The first window that begins behind t."""
        return t + self.hop - (t - self.origin) % self.hop

    def of_pane(self, start: int) -> range:
        """The windows that contain the pane that begins at `start`."""
        return range(self.first(start), start + 1, self.hop)


class GridWindows(WindowOperator):
    """A grid of windows with an aggregate or a module.

    `key` gives the group of a payload. `row` makes the payload of a group and a tuple of results,
    for an aggregate (`AggregateUse`); an `Application` has its own.

    Raises:
        ConfigurationError: the level, or a policy of the module, is none.
    """

    __slots__ = (
        *("_closed", "_closing", "_dirty", "_holding", "_leap", "_live"),
        *("_passed", "_producing", "_skipped", "_sums", "_waiting", "_windows", "grid"),
    )

    def __init__(
        self,
        grid: Grid,
        function: Aggregate | Application,
        *,
        key: Callable[[Any], Hashable] | None = None,
        row: Callable[[Any, tuple[Any, ...]], Hashable] | None = None,
        emit: Emit = "on_update",
        max_leap: int | None = None,
    ) -> None:
        use: Use = AggregateUse(function, row) if isinstance(function, Aggregate) else function
        super().__init__(use, key, emit)
        self.grid = grid
        self._sums = function if isinstance(function, Aggregate) else None
        self._leap = max_leap
        self._windows: dict[int, dict[Any, Cell]] = {}
        self._closing: list[int] = []
        """The windows with l + size > c that have had an event, as a heap."""
        self._producing: list[int] = []
        """Those not emitted yet, at `on_watermark`."""
        self._dirty: dict[tuple[int, Any], int] = {}
        """The windows to compute, with the least sync time of what touched them."""
        self._waiting: Scheduled[_Event] = Scheduled()
        """The events that are to enter windows that have not begun, due with the next of these."""
        self._live: Scheduled[_Event] = Scheduled()
        """With unclipped ends: the events with ve >= c, due with their ends."""
        self._holding = Holding()
        """With unclipped ends: the first window of each live event."""
        self._closed: list[tuple[int, Any]] = []
        """(window, group) that this batch closes."""
        self._passed: list[int] = []
        """The windows whose end the stable point passes in this batch."""
        self._skipped: list[tuple[int, int]] = []
        """(first, end) of ranges of windows that had not begun when a skip covered them:
        nothing is folded into them, and nothing emitted of them."""

    def __len__(self) -> int:
        cells = sum(len(groups) for groups in self._windows.values())
        return cells + len(self._waiting) + len(self._live)

    def skip_before(self, skip: Skip) -> Sequence[Skip | None]:
        """A window that ends before does not matter, whatever is in it; one that may have been
        emitted is revised to the end. A module may give rows other ends: it needs all."""
        if self._sums is None:
            return [None]
        size, end = self.grid.size, skip.before - self.grid.size
        since = skip.since if skip.since == START else skip.since + size - 1
        if self.emit != "on_close":
            begins = self.grid.after(self.max_event_time)
            self._skip_windows(max(begins, skip.since), end)
            since = max(since, begins - self.grid.hop + size)
        return [Skip(end + 1, since)]

    def _skip_windows(self, first: int, end: int) -> None:
        if first < end and self._skipped and first <= self._skipped[-1][1]:
            first, _ = self._skipped.pop()
        if first < end:
            self._skipped.append((first, end))

    def _skips(self, start: int) -> bool:
        return any(first <= start < end for first, end in self._skipped)

    # --- applying: all of it journaled --------------------------------------------------------

    def _applied(self, elements: Iterable[Element]) -> int:
        if self._sums is None or self._leap is not None:
            return super()._applied(elements)
        panes, others, point = self._sorted(elements)
        for (start, group), facts in panes.items():
            self._fold(start, group, facts)
        for element in others:
            if type(element) is Insert:
                self._insert(element, 0, [])
            else:
                self._adjust(element, 0, [])  # type: ignore[arg-type]
        return point

    def _sorted(
        self, elements: Iterable[Element]
    ) -> tuple[dict[tuple[int, Any], list[Insert[Any]]], list[Element], int]:
        """Inserts within one pane, by (pane, group); the other data, which may come behind them;
        the greatest stable point."""
        point = frozen = self.stables[0]
        key = self._key
        pane, origin = self.grid.pane, self.grid.origin
        reached = self.max_event_time
        panes: dict[tuple[int, Any], list[Insert[Any]]] = {}
        others: list[Element] = []
        for element in elements:
            kind = type(element)
            if kind is Insert:
                vs: int = element.vs  # type: ignore[union-attr]
                start = vs - (vs - origin) % pane
                if element.ve - start > pane or vs < frozen:  # type: ignore[union-attr]
                    others.append(element)
                    continue
                if vs > reached:
                    reached = vs
                place = (start, key(element.payload))  # type: ignore[union-attr]
                facts = panes.get(place)
                if facts is None:
                    panes[place] = [element]  # type: ignore[list-item]
                else:
                    facts.append(element)  # type: ignore[arg-type]
            elif kind is Adjust:
                others.append(element)
            elif element.vc > point:  # type: ignore[union-attr]
                point = element.vc  # type: ignore[union-attr]
        self._begin(reached)
        return panes, others, point

    def _fold(self, start: int, group: Any, facts: list[Insert[Any]]) -> None:
        """Adds the facts of one pane and group to the pane's windows."""
        assert self._sums is not None
        cells = []
        for window in self.grid.of_pane(start):
            if self._skipped and self._skips(window):
                continue
            cells.append(self._cell(window, group))
            self._dirty[window, group] = START
        added = added_facts(self._sums, facts)
        number = len(facts)
        self.touched += number + len(cells)
        for cell in cells:
            before = cell.state
            cell.state = added.to(before)
            cell.count += number
            self._journal.append((self._unfold, cell, before, added, number))

    def _unfold(self, cell: Cell, before: Any, added: Added, number: int) -> None:
        cell.count -= number
        cell.state = added.taken_from(cell.state, before)

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        vs, ve = element.vs, element.ve
        if vs < self.stables[0]:
            self._refuse(port, BreachKind.BROKE_OWN_STABLE, element)
            return
        group, value = self._key(element.payload), self._use.value_of(element.payload, vs)
        self._begin(self._leapt(vs))
        for start in self.grid.windows(vs, ve, self.max_event_time):
            self._alter(start, group, self._use.item(value, vs, ve, self._window(start)), 1, vs)
        self._wait((group, value, vs, ve), 1)
        if self._use.sees_ends:
            self._keep((group, value, vs, ve), 1)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        vs, old, new = element.vs, element.vold, element.ve
        sync = min(old, new)
        if sync < self.stables[0]:
            self._refuse(port, BreachKind.BROKE_OWN_STABLE, element)
            return
        group, value = self._key(element.payload), self._use.value_of(element.payload, vs)
        windows = self.grid.windows(
            vs if self._use.sees_ends else max(sync, vs), max(old, new), self.max_event_time
        )
        if not self._holds(group, value, vs, old, windows):
            self._refuse(port, BreachKind.UNKNOWN_EVENT, element)
            return
        item = self._use.item
        for start in windows:
            window = self._window(start)
            gone = item(value, vs, old, window) if start < old else None
            come = item(value, vs, new, window) if start < new and new > vs else None
            if start < old and start < new and gone == come and new > vs:
                continue
            if start < new and new > vs:
                self._alter(start, group, come, 1, sync)
            if start < old:
                self._alter(start, group, gone, -1, sync)
        self._wait((group, value, vs, old), -1)
        if new > vs:
            self._wait((group, value, vs, new), 1)
        if self._use.sees_ends:
            self._keep((group, value, vs, old), -1)
            if new > vs:
                self._keep((group, value, vs, new), 1)

    def _leapt(self, vs: int) -> int:
        """How far a start moves `max_event_time`."""
        reached = self.max_event_time
        if self._leap is None or reached == START:
            return vs
        return min(vs, reached + self._leap)

    def _begin(self, reached: int) -> None:
        """Lets the windows begin that `max_event_time` reaches: what waits for them enters."""
        before = self.max_event_time
        if reached <= before:
            return
        self.max_event_time = reached
        events = [
            (event, max(self.grid.first(event[2]), self.grid.after(before)))
            for event in self._waiting.before(reached + 1)
        ]
        self._enter(events, reached)

    def _enter(self, events: list[tuple[_Event, int]], until: int) -> None:
        """Enters events that have waited, each for a window, into those that begin by `until`."""
        for event, due in events:  # all of them: they are due no more
            self._undo(self._waiting.put_back, event, self._waiting.entry(event), due)
        for event, due in events:
            self._enter_one(event, due, until)

    def _enter_one(self, event: _Event, due: int, until: int) -> None:
        group, value, vs, ve = event
        times, hop = self._waiting.times(event), self.grid.hop
        for start in range(due, ve if ve <= until else until + 1, hop):
            item = self._use.item(value, vs, ve, self._window(start))
            self._alter(start, group, item, times, start)
            due = start + hop
        self._waiting.set(event, times if due < ve else 0, due)

    def _reach(self, point: int) -> None:
        if point < INFINITY:
            self._begin(point)
            self._end(point)
            return
        self._begin(max((event[2] for event in self._waiting), default=self.max_event_time))
        due = self._waiting.due
        self._enter([(e, due(e)) for e in self._waiting if e[3] < INFINITY], INFINITY)

    def _end(self, point: int) -> None:
        """With unclipped ends: takes note of the events that can't end otherwise any more."""
        for event in self._live.before(point):
            group, _, vs, ve = event
            times = self._live.times(event)
            self._keep(event, -times)
            for start in self.grid.windows(vs, ve):
                cell = self._windows[start][group]
                self._undo(setattr, cell, "open", cell.open)
                cell.open -= times
                if not cell.open and start + self.grid.size <= self.stables[0]:
                    self._closed.append((start, group))

    def _alter(self, start: int, group: Any, item: Any, by: int, sync: int) -> None:
        """Adds an item to a window, or removes it, by an element of this sync time."""
        if self._skipped and self._skips(start):
            return
        self._move(self._cell(start, group), item, by, (group, self._window(start)))
        key = (start, group)
        self._dirty[key] = min(sync, self._dirty.get(key, sync))

    def _window(self, start: int) -> Window:
        return Window(start, start + self.grid.size)

    def _cell(self, start: int, group: Any) -> Cell:
        groups = self._windows.get(start)
        if groups is None:
            end = finite(finite(start) + self.grid.size)
            groups = self._windows[start] = {}
            heappush(self._closing, start)
            self._undo(self._forget_window, start)
            if self.emit == "on_watermark":
                heappush(self._producing, end)
        cell = groups.get(group)
        if cell is None:
            cell = groups[group] = Cell(self._use.empty())
            self._undo(groups.pop, group)
        return cell

    def _forget_window(self, start: int) -> None:
        """Takes back that a window has been made."""
        del self._windows[start]
        for heap, t in ((self._closing, start), (self._producing, start + self.grid.size)):
            if t in heap:
                heap.remove(t)
                heapify(heap)

    def _holds(self, group: Any, value: Any, vs: int, ve: int, windows: range) -> bool:
        """Whether the state may have the event: it waits if it must, and its first window of those
        to change has it."""
        if self._next(vs) < ve and (group, value, vs, ve) not in self._waiting:
            return False
        if not windows or windows[0] >= ve or self._skips(windows[0]):
            return True
        cell = self._windows.get(windows[0], {}).get(group)
        if cell is None or self._use.persistent or self._sums is not None:
            return cell is not None
        return self._use.item(value, vs, ve, self._window(windows[0])) in cell.state

    def _next(self, vs: int) -> int:
        """The first window that has not begun of an event that starts at `vs`."""
        return max(self.grid.first(vs), self.grid.after(self.max_event_time))

    def _wait(self, event: _Event, by: int) -> None:
        """Has an event wait, or wait no longer, if some of its windows have not begun."""
        due = self._next(event[2])
        if due < event[3]:
            self._undo(self._waiting.put_back, event, self._waiting.entry(event), due)
            self._waiting.set(event, self._waiting.times(event) + by, due)

    def _keep(self, event: _Event, by: int) -> None:
        """Keeps, or no longer, an event that may still end otherwise."""
        times = self._live.times(event)
        self._undo(self._live.put_back, event, self._live.entry(event), event[3])
        self._undo(self._hold, event, -by)
        self._hold(event, by)
        self._live.set(event, times + by, event[3])

    def _hold(self, event: _Event, by: int) -> None:
        """Has the first window of a live event hold the stable point, or no longer. (One that it
        does not overlap, in a gap, begins behind ve >= c, and holds nothing.)"""
        self._holding.move(self.grid.first(event[2]), by)

    # --- computing ----------------------------------------------------------------------------

    def _computed(self, point: int) -> Found:
        self._close(point)
        if self.emit == "on_close":
            self._closed.sort(key=_START)
            return [self._result(start, group, start) for start, group in self._closed]
        dirty = self._dirty
        if self.emit == "on_update":
            return [self._result(*key, dirty[key]) for key in sorted(dirty, key=_START)]
        reached = INFINITY if point == INFINITY else self.max_event_time
        size, producing = self.grid.size, self._producing
        while producing and producing[0] <= reached:
            end = heappop(producing)
            self._undo(heappush, producing, end)
            for group in self._windows.get(end - size, ()):
                dirty.setdefault((end - size, group), START)
        keys = [key for key in sorted(dirty, key=_START) if key[0] + size <= reached]
        return [self._result(*key, dirty[key]) for key in keys]

    def _close(self, point: int) -> None:
        """Takes note of the windows that nothing can change any more."""
        closing, size, all_ended = self._closing, self.grid.size, point == INFINITY
        waits = self._use.sees_ends and not all_ended
        while closing and closing[0] + size <= point:
            start = heappop(closing)
            self._undo(heappush, closing, start)
            self._passed.append(start)
            cells = self._windows[start].items()
            self._closed += [(start, group) for group, cell in cells if not (waits and cell.open)]
        if self._use.sees_ends and all_ended:
            self._closed += [
                (start, group)
                for start, groups in self._windows.items()
                for group, cell in groups.items()
                if start + size <= self.stables[0] and cell.open
            ]

    def _result(self, start: int, group: Any, sync: int) -> tuple[Cell, tuple[Row, ...]]:
        cell, window = self._windows[start][group], self._window(start)
        rows = self._use.results(group, window, cell.state) if cell.count else NO_ROWS
        if self._use.time_bound and self.emit == "on_update":
            self._use.checked_bound(bound_changes(cell.rows, rows), sync, group, window)
        return cell, rows

    def _take_back(self) -> None:
        super()._take_back()
        self._dirty.clear()
        self._closed.clear()
        self._passed.clear()

    # --- forgetting ---------------------------------------------------------------------------

    def _advance(self, changes: Changes) -> int:
        point = self.stables[0]
        for start, group in self._dirty:
            if not self._windows[start][group].count:
                del self._windows[start][group]
        for start, group in self._closed:
            self._windows[start].pop(group, None)
            self._passed.append(start)
        for start in self._passed:
            if not self._windows.get(start, True):
                del self._windows[start]
        self._dirty.clear()
        self._closed.clear()
        self._passed.clear()
        if point == INFINITY:
            self._forget_all()
            return INFINITY
        if self._skipped:
            size = self.grid.size
            self._skipped = [each for each in self._skipped if each[1] + size > point]
        if point == START or (self._use.time_bound and self.emit == "on_update"):
            return point
        held = self._holding.least() if self._use.sees_ends else INFINITY
        return min(point, self.grid.first(point), held)

    def _forget_all(self) -> None:
        for held in (self._waiting, self._live, self._windows, self._skipped):
            held.clear()
        self._holding = Holding()

    def _state(self) -> Any:
        use = self._use
        cells = [
            [start, portable(group), *cell.saved(use)]
            for start, groups in self._windows.items()
            for group, cell in groups.items()
        ]
        waiting, live = self._saved(self._waiting), self._saved(self._live)
        return [self.max_event_time, cells, waiting, live, self._skipped]

    def _saved(self, events: Scheduled[_Event]) -> list[Any]:
        saved = self._use.saved_value
        return [
            [portable(event[0]), saved(event[1]), *event[2:], events.times(event)]
            for event in events
        ]

    def _load(self, state: Any) -> None:
        self._forget_all()
        self.max_event_time, cells, waiting, live, skipped = state
        self._skipped = [(first, end) for first, end in skipped]
        for start, group, *cell in cells:
            self._windows.setdefault(start, {})[hashable(group)] = Cell.loaded(cell, self._use)
        size, point, reached = self.grid.size, self.stables[0], self.max_event_time
        self._closing = [start for start in self._windows if start + size > point]
        heapify(self._closing)
        if self.emit == "on_watermark":
            self._producing = [start + size for start in self._windows if start + size > reached]
            heapify(self._producing)
        loaded = self._use.loaded_value
        for group, value, vs, ve, times in waiting:
            event = (hashable(group), loaded(value), vs, ve)
            self._waiting.set(event, times, self._next(vs))
        for group, value, vs, ve, times in live:
            event = (hashable(group), loaded(value), vs, ve)
            self._live.set(event, times, ve)
            self._hold(event, times)

    def check(self) -> None:
        """Asserts that what is held is what the retention rule names."""
        super().check()
        point, size, reached = self.stables[0], self.grid.size, self.max_event_time
        closing = set(self._closing)
        for start, groups in self._windows.items():
            over = start + size <= point
            assert start <= reached, f"the window {start} has not begun"
            assert not groups or not over or self._use.sees_ends, f"{start} is closed"
            assert start in closing or (over and groups), f"{start} is never closed"
            for group, cell in groups.items():
                assert cell.count > 0, f"the window {start} of {group} is empty"
                assert not over or cell.open > 0, f"the window {start} of {group} is closed"
        for event in self._waiting:
            due = self._next(event[2])
            assert self._waiting.times(event) > 0, f"{event} waits less than once"
            assert self._waiting.due(event) == due < event[3], f"{event} waits amiss"
        for event in self._live:
            assert self._live.times(event) > 0, f"{event} is live less than once"
            assert event[3] >= point, f"{event} is final"
        assert not any((self._journal, self._dirty, self._closed, self._passed)), "a batch is open"
