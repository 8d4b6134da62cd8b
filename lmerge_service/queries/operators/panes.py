"""Other physical plans of grid windows over facts: panes, and expansion.

Meaning
    That of `operators.grids` with an aggregate, over facts: events that lie within one pane (of
    length gcd(size, hop)), so that no window begins or ends within one.
State
    Panes: per pane and group the aggregate's state; a window's is merged from its panes' when it is
    computed. Per window and group the rows emitted. `Expand` has none: it makes an event for each
    window of each fact, and a snapshot aggregate per window and group does the rest.
Stable
    As for grids: the least of c and the first window that ends behind c.
Retention
    Windows with l + size > c; panes from the first of these on.  need(T) = T - size + 1.
Cost
    A fact is added once, whatever overlaps, while grids merge it into size / hop windows. A window
    that is computed merges size / pane states. So panes are for windows that are computed once
    (`on_close`) and overlap much.

    >>> from lmerge_service.elements import Stable
    >>> from lmerge_service.queries.aggregates import Count
    >>> panes = PaneWindows(Grid(10, hop=5), Count(), emit="on_close")
    >>> panes.process_batch([Insert("a", 6, 7), Insert("b", 7, 8), Stable(12)])
    [Insert(payload=(2,), vs=0, ve=10), Stable(vc=5)]
    >>> Expand(Grid(10, hop=5)).process(Insert("a", 6, 7))
    [Insert(payload=(0, 6, 'a'), vs=0, ve=10), Insert(payload=(5, 6, 'a'), vs=5, ve=15)]
"""

from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush
from typing import Any

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START, Adjust, Insert
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.aggregates import Aggregate
from lmerge_service.queries.operators.aggregate_use import added_facts, key_and_values
from lmerge_service.queries.operators.grids import Grid, GridWindows
from lmerge_service.queries.operators.protocol import Changes, Operator, Skip
from lmerge_service.queries.operators.snapshots import Snapshots
from lmerge_service.queries.operators.windowing import NO_ROWS, Cell, Emit
from lmerge_service.queries.times import finite
from lmerge_service.queries.window_policies import Row

__all__ = ("Expand", "PaneWindows", "expanded")


class PaneWindows(GridWindows):
    """A grid of windows with an aggregate, over facts, by panes; arguments as of `GridWindows`.

    Raises:
        ConfigurationError: the aggregate's states can't be merged, or there is no such level.
    """

    __slots__ = ("_aggregate", "_empty", "_order", "_panes")

    def __init__(
        self,
        grid: Grid,
        aggregate: Aggregate,
        *,
        key: Callable[[Any], Hashable] | None = None,
        row: Callable[[Any, tuple[Any, ...]], Hashable] | None = None,
        emit: Emit = "on_update",
    ) -> None:
        super().__init__(grid, aggregate, key=key, row=row, emit=emit)
        if not aggregate.mergeable:
            raise ConfigurationError(f"states of {type(aggregate).__name__} can't be merged")
        self._aggregate = aggregate
        self._panes: dict[int, dict[Any, Cell]] = {}
        self._order: list[int] = []
        """The panes, as a heap; one without facts goes when the stable point has passed it."""
        self._empty: list[tuple[int, Any]] = []
        """(pane, group) that this batch has emptied."""

    def __len__(self) -> int:
        return super().__len__() + sum(len(groups) for groups in self._panes.values())

    def skip_before(self, skip: Skip) -> Sequence[Skip | None]:
        """A pane is of several windows, and whole for each."""
        return super().skip_before(skip) if self.emit == "on_close" else [None]

    def _fold(self, start: int, group: Any, facts: list[Insert[Any]]) -> None:
        added = added_facts(self._aggregate, facts)
        pane = self._pane(start, group)
        before = pane.state
        pane.state = added.to(before)
        pane.count += len(facts)
        self._journal.append((self._unfold, pane, before, added, len(facts)))
        self.touched += len(facts)
        if self.emit != "on_close" or pane.count == len(facts):  # the pane is new
            self._changed(start, group)

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        if element.vs < self.stables[0]:
            self._refuse(port, BreachKind.BROKE_OWN_STABLE, element)
            return
        raise self._no_fact(element)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        vs, new = element.vs, element.ve
        if min(element.vold, new) < self.stables[0]:
            self._refuse(port, BreachKind.BROKE_OWN_STABLE, element)
            return
        start = self._start(vs)
        if new - start > self.grid.pane:
            raise self._no_fact(element)
        group, entry = self._key(element.payload), self._use.value_of(element.payload, vs)
        pane = self._panes.get(start, {}).get(group)
        if pane is None:
            # The pane is forgotten if its windows are closed: then the end does not matter.
            if new == vs or start >= self.grid.first(self.stables[0]):
                self._refuse(port, BreachKind.UNKNOWN_EVENT, element)
            return
        if new > vs:
            return
        self._move(pane, entry, -1, (group, self._window(start)))
        if not pane.count:
            del self._panes[start][group]
            self._undo(self._panes[start].__setitem__, group, pane)
            self._empty.append((start, group))
        self._changed(start, group)

    def _changed(self, start: int, group: Any) -> None:
        """Has the windows of a pane computed."""
        for window in self.grid.of_pane(start):
            self._cell(window, group)
            self._dirty[window, group] = START
            self.touched += 1

    def _start(self, vs: int) -> int:
        return vs - (vs - self.grid.origin) % self.grid.pane

    def _pane(self, start: int, group: Any) -> Cell:
        groups = self._panes.get(start)
        if groups is None:
            groups = self._panes[start] = {}
            heappush(self._order, start)
        pane = groups.get(group)
        if pane is None:
            pane = groups[group] = Cell(self._use.empty())
            self._undo(groups.pop, group)
        return pane

    def _cell(self, start: int, group: Any) -> Cell:
        cell = super()._cell(start, group)
        cell.count = 1  # what a window has is in its panes
        return cell

    def _no_fact(self, element: Insert[Any] | Adjust[Any]) -> ValueError:
        return ValueError(
            f"{element} is not within a pane of {self.grid.pane}: panes are for facts, "
            "other events need GridWindows"
        )

    def _result(self, start: int, group: Any, sync: int) -> tuple[Cell, tuple[Row, ...]]:
        cell, state, held = self._windows[start][group], self._aggregate.empty(), False
        merge = self._aggregate.merge
        for at in range(start, start + self.grid.size, self.grid.pane):
            pane = self._panes.get(at, {}).get(group)
            if pane is not None:
                state, held = merge(state, pane.state), True
        self.touched += self.grid.size // self.grid.pane
        return cell, self._use.results(group, self._window(start), state) if held else NO_ROWS

    def _take_back(self) -> None:
        super()._take_back()
        self._empty.clear()

    def _advance(self, changes: Changes) -> int:
        grid = self.grid
        for emptied, group in self._empty:
            for start in grid.of_pane(emptied):
                panes = range(start, start + grid.size, grid.pane)
                if not any(group in self._panes.get(at, ()) for at in panes):
                    self._windows[start][group].count = 0
        self._empty.clear()
        stable = super()._advance(changes)
        point = self.stables[0]
        while self._order and self._order[0] < grid.first(point):
            del self._panes[heappop(self._order)]
        return stable

    def _forget_all(self) -> None:
        super()._forget_all()
        self._panes.clear()
        self._order.clear()

    def _state(self) -> Any:
        panes = [
            [start, portable(group), *pane.saved(self._use)]
            for start, groups in self._panes.items()
            for group, pane in groups.items()
        ]
        return [super()._state(), panes]

    def _load(self, state: Any) -> None:
        windows, panes = state
        super()._load(windows)
        for start, group, *pane in panes:
            self._panes.setdefault(start, {})[hashable(group)] = Cell.loaded(pane, self._use)
        self._order = sorted(self._panes)

    def check(self) -> None:
        """Asserts that windows and panes have the same groups, and none is held that is closed."""
        super().check()
        grid, windows = self.grid, dict[int, set[Any]]()
        assert sorted(self._order) == sorted(self._panes), "a pane is never forgotten"
        for at, groups in self._panes.items():
            assert at >= grid.first(self.stables[0]), f"the pane {at} is closed"
            for group, pane in groups.items():
                assert pane.count > 0, f"the pane {at} of {group} is empty"
                for start in grid.of_pane(at):
                    windows.setdefault(start, set()).add(group)
        for start, cells in self._windows.items():
            assert set(cells) == windows.get(start, set()), f"{start} has not its panes' groups"


class Expand(Operator):
    """Makes of each event, for each window of the grid that it overlaps, an event (window, vs,
    payload) of the window's lifetime; events have ends.

    Raises:
        OverflowError: by an event without end: it is in infinitely many windows.
    """

    __slots__ = ("grid",)

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid = grid

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        self._add(element.payload, element.vs, element.vs, element.ve, changes)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        payload, vs, old, new = element.payload, element.vs, element.vold, element.ve
        self._add(payload, vs, old, new, changes)
        for start in self._windows(vs, new, old):
            end = start + self.grid.size
            changes.append(Adjust((start, vs, payload), start, end, start))

    def _add(self, payload: Any, vs: int, old: int, new: int, changes: Changes) -> None:
        for start in self._windows(vs, old, new):
            changes.append(Insert((start, vs, payload), start, start + self.grid.size))

    def _windows(self, vs: int, old: int, new: int) -> range:
        """The windows that [vs, new) overlaps and [vs, old) does not."""
        first = self.grid.first(vs)
        if new == INFINITY:
            raise OverflowError("an event without end is in infinitely many windows")
        finite(finite(first) + self.grid.size)
        finite(new + self.grid.size)
        if new <= vs:
            return range(0)
        if old > vs:
            first += max(-(-(old - first) // self.grid.hop), 0) * self.grid.hop
        return range(first, new, self.grid.hop)

    def _advance(self, changes: Changes) -> int:
        point = self.stables[0]
        return point if point in (START, INFINITY) else min(point, self.grid.first(point))

    def __len__(self) -> int:
        return 0

    def _state(self) -> None:
        return None

    def _load(self, state: Any) -> None:
        pass


class _OfExpanded(Aggregate):
    """An aggregate of payloads, over what `Expand` makes of them."""

    __slots__ = ("_of", "linear", "mergeable", "sees_start", "single", "width")

    def __init__(self, of: Aggregate) -> None:
        super().__init__()
        self._of = of
        self.linear, self.mergeable, self.single = of.linear, of.mergeable, of.single
        self.sees_start, self.width = of.sees_start, of.width

    @property
    def overflowed(self) -> int:
        return self._of.overflowed

    def entry(self, payload: Any, vs: int) -> Any:
        _, began, of = payload
        return self._of.entry(of, began)

    def empty(self) -> Any:
        return self._of.empty()

    def copy(self, state: Any) -> Any:
        return self._of.copy(state)

    def add(self, state: Any, entry: Any, n: int = 1) -> Any:
        return self._of.add(state, entry, n)

    def remove(self, state: Any, entry: Any, n: int = 1) -> Any:
        return self._of.remove(state, entry, n)

    def merge(self, one: Any, two: Any) -> Any:
        return self._of.merge(one, two)

    def results(self, state: Any) -> Any:
        return self._of.results(state)

    def saved(self, state: Any) -> Any:
        return self._of.saved(state)

    def loaded(self, saved: Any) -> Any:
        return self._of.loaded(saved)

    def saved_entry(self, entry: Any) -> Any:
        return self._of.saved_entry(entry)

    def loaded_entry(self, saved: Any) -> Any:
        return self._of.loaded_entry(saved)


def expanded(
    grid: Grid,
    aggregate: Aggregate,
    *,
    key: Callable[[Any], Hashable] | None = None,
    row: Callable[[Any, tuple[Any, ...]], Hashable] | None = None,
    emit: Emit = "on_update",
) -> tuple[Expand, Snapshots]:
    """Grid windows as two operators, one behind the other: `Expand`, and a snapshot aggregate, cut,
    per window and group; arguments as of `GridWindows`."""
    group = key or (lambda payload: None)
    make = row or key_and_values
    snapshots = Snapshots(
        _OfExpanded(aggregate),
        lambda payload: (payload[0], group(payload[2])),
        lambda of, values: make(of[1], values),
        emit=emit,
        cut=True,
    )
    return Expand(grid), snapshots
