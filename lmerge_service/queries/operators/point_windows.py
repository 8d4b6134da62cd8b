"""What snapshot windows and count windows share: windows that begin at the points of a group.

Theory
    The points of a group are times of its events, kept in order, each with the window that begins
    there. What a batch changes is known by its windows; they are computed once, at the end, in
    order of their starts. A window waits under the time that must pass before nothing of it can
    change; the windows that a stable closes are a prefix of the group's, but for those that wait
    for members without a final end, and a prefix that is closed is forgotten.
"""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

from lmerge_service.core.expiry import Expiry
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START
from lmerge_service.queries.modules import Application
from lmerge_service.queries.operators.protocol import Changes
from lmerge_service.queries.operators.scheduling import Holding
from lmerge_service.queries.operators.windowing import (
    NO_ROWS,
    Cell,
    Emit,
    Found,
    WindowOperator,
    bound_changes,
)
from lmerge_service.queries.window_policies import Row, Window

__all__ = ("Group", "Place", "PointWindows")


class Group:
    """The points of one group in order, and the window that begins at each."""

    __slots__ = ("held", "key", "places", "serial", "times")

    def __init__(self, key: Any, serial: int) -> None:
        self.key = key
        self.serial = serial
        self.times: list[int] = []
        self.places: list[Place] = []
        self.held: int | None = None
        """The first point, as it holds the stable point."""

    def at(self, t: int) -> int:
        """The position of the first point that is not before `t`."""
        return bisect_left(self.times, t)

    def place(self, t: int) -> "Place | None":
        """The window that begins at `t`."""
        at = self.at(t)
        return self.places[at] if at < len(self.times) and self.times[at] == t else None


class Place(Cell):
    """A point and the window that begins there."""

    __slots__ = ("closed", "gone", "group", "points", "start")

    def __init__(self, group: Group, start: int, state: Any) -> None:
        super().__init__(state)
        self.group = group
        self.start = start
        self.points = 0
        """How many events have the point."""
        self.gone = False
        self.closed = False
        """Nothing of its window can change."""


class PointWindows(WindowOperator):
    """The base: groups, the windows to compute, levels, what is closed and forgotten."""

    __slots__ = ("_closing", "_closings", "_dirty", "_groups", "_holding", "_producing", "_serial")

    _use: Application

    def __init__(
        self, module: Application, key: Callable[[Any], Hashable] | None, emit: Emit
    ) -> None:
        super().__init__(module, key, emit)
        self._groups: dict[Any, Group] = {}
        self._serial = count()
        self._dirty: dict[Place, int] = {}
        """The windows to compute, with the least sync time of what touched them."""
        self._producing: list[tuple[int, int, Place]] = []
        """At `on_watermark` (end, serial, window), until the watermark reaches the end."""
        self._closing: Expiry[Place] = Expiry()
        """The windows that are not closed, each under the time that must pass."""
        self._closings: list[Place] = []
        """Those that this batch closes."""
        self._holding = Holding()
        """The first point of each group."""

    def __len__(self) -> int:
        return sum(len(group.times) for group in self._groups.values())

    # --- for subclasses -----------------------------------------------------------------------

    @abstractmethod
    def _window(self, place: Place) -> Window | None:
        """The window that begins at a point; None if there is none (yet)."""

    @abstractmethod
    def _state_of(self, place: Place, window: Window) -> Any:
        """The module's state for a window; None if it has no members."""

    @abstractmethod
    def _final_behind(self, place: Place, window: Window) -> int:
        """When the stable point has passed this, nothing of the window can change."""

    @abstractmethod
    def _free(self) -> bool:
        """Whether the stable point passes, whatever is open."""

    def _group(self, key: Any) -> Group:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, next(self._serial))
            self._undo(self._groups.pop, key)
        return group

    def _add_place(self, group: Group, at: int, place: Place) -> None:
        """Makes a point; journaled."""
        group.times.insert(at, place.start)
        group.places.insert(at, place)
        self._undo(self._drop_place, group, at)

    def _drop_place(self, group: Group, at: int) -> Place:
        del group.times[at]
        return group.places.pop(at)

    def _remove_place(self, group: Group, at: int, sync: int) -> None:
        """Takes a point away, with what its window has emitted; journaled."""
        place = self._drop_place(group, at)
        self._undo(group.places.insert, at, place)
        self._undo(group.times.insert, at, place.start)
        self._undo(setattr, place, "gone", False)
        place.gone = True
        self._touch(place, sync)

    def _touch(self, place: Place, sync: int) -> None:
        """Has a window computed, touched by an element of this sync time."""
        self._dirty[place] = min(sync, self._dirty.get(place, sync))
        self.touched += 1

    # --- computing ----------------------------------------------------------------------------

    def _reach(self, point: int) -> None:
        if point < INFINITY:
            self.max_event_time = max(self.max_event_time, point)

    def _computed(self, point: int) -> Found:
        for place in self._dirty:
            self._wait(place)
        self._close(point)
        reached = INFINITY if point == INFINITY else self.max_event_time
        if self.emit == "on_close":
            wanted = self._closings
        else:
            if self.emit == "on_watermark":
                self._produce(reached)
            wanted = list(self._dirty)
        wanted.sort(key=lambda place: (place.start, place.group.serial))
        return [(place, self._result(place, reached)) for place in wanted]

    def _wait(self, place: Place) -> None:
        """Has a window wait for what closes it."""
        before = self._closing.due(place)
        self._undo(self._wait_until, place, before)
        window = None if place.gone else self._window(place)
        due = INFINITY if window is None else self._final_behind(place, window)
        self._wait_until(place, due)

    def _wait_until(self, place: Place, due: int) -> None:
        self._closing.cancel(place)
        self._closing.schedule(place, due)

    def _close(self, point: int) -> None:
        """Takes note of the windows that nothing can change any more."""
        if point == INFINITY:
            places = (place for group in self._groups.values() for place in group.places)
            self._closings = [p for p in places if not p.closed and self._window(p) is not None]
            return
        for place in list(self._closing.before(point)):
            window = self._window(place)
            assert window is not None
            self._undo(self._wait_until, place, self._final_behind(place, window))
            self._closings.append(place)
            self.touched += 1

    def _produce(self, reached: int) -> None:
        """Has the windows computed whose ends the watermark has reached."""
        producing = self._producing
        while producing and producing[0][0] <= reached:
            entry = heappop(producing)
            self._undo(heappush, producing, entry)
            end, _, place = entry
            window = None if place.gone or place.closed else self._window(place)
            if window is not None and window.ve == end:
                self._dirty.setdefault(place, START)

    def _result(self, place: Place, reached: int) -> tuple[Row, ...]:
        window = None if place.gone else self._window(place)
        if window is None:
            return NO_ROWS
        if self.emit == "on_watermark" and window.ve > reached:
            heappush(self._producing, (window.ve, next(self._serial), place))
            return NO_ROWS
        state = self._state_of(place, window)
        if state is None:
            return NO_ROWS
        rows = self._use.results(place.group.key, window, state)
        if self._use.time_bound and self.emit == "on_update":
            changes = bound_changes(place.rows, rows)
            self._use.checked_bound(changes, self._dirty[place], place.group.key, window)
        return rows

    def _take_back(self) -> None:
        super()._take_back()
        self._dirty.clear()
        self._closings.clear()

    # --- forgetting ---------------------------------------------------------------------------

    def _advance(self, changes: Changes) -> int:
        point = self.stables[0]
        touched = {place.group.key: place.group for place in self._dirty}
        for place in self._closings:
            place.closed = True
            touched[place.group.key] = place.group
        self._dirty.clear()
        self._closings.clear()
        if point == INFINITY:
            self._forget_all()
            return INFINITY
        for group in touched.values():
            self._forget(group, point)
        if point == START or self._free():
            return point
        return min(point, self._holding.least())

    def _forget(self, group: Group, point: int) -> None:
        """Forgets the windows of a group that are closed, and none before them is open; and windows
        without members that begin below the stable point."""
        gone = 0
        for place in group.places:
            if not (place.closed or (place.start < point and self._is_empty(place))):
                break
            self._closing.cancel(place)
            gone += 1
        del group.places[:gone], group.times[:gone]
        first = group.times[0] if group.times else None
        if first != group.held:
            if group.held is not None:
                self._holding.move(group.held, -1)
            if first is not None:
                self._holding.move(first, 1)
            group.held = first
        if first is None:
            self._groups.pop(group.key, None)

    def _is_empty(self, place: Place) -> bool:
        return False

    def _forget_all(self) -> None:
        self._groups.clear()
        self._closing.clear()
        self._producing.clear()
        self._holding = Holding()

    # --- snapshots ----------------------------------------------------------------------------

    @abstractmethod
    def _saved_state(self, state: Any) -> Any:
        """What msgpack carries of a place's state."""

    @abstractmethod
    def _loaded_state(self, saved: Any) -> Any:
        """The state that was saved."""

    def _state(self) -> Any:
        groups = []
        for group in self._groups.values():
            places = [
                [
                    *(place.start, place.points, place.count, place.closed),
                    self._saved_state(place.state),
                    [[portable(payload), vs, ve] for payload, vs, ve in place.rows],
                ]
                for place in group.places
            ]
            groups.append([portable(group.key), places])
        return [self.max_event_time, groups]

    def _load(self, state: Any) -> None:
        self._forget_all()
        self.max_event_time, groups = state
        for saved_key, places in groups:
            key = hashable(saved_key)
            group = self._groups[key] = Group(key, next(self._serial))
            for start, points, number, closed, saved, rows in places:
                place = Place(group, start, self._loaded_state(saved))
                place.points, place.count, place.closed = points, number, closed
                place.rows = tuple([Row(hashable(payload), vs, ve) for payload, vs, ve in rows])
                group.places.append(place)
                group.times.append(start)
            group.held = group.times[0]
            self._holding.move(group.held, 1)
            for place in group.places:
                self._wait_again(place)
        heapify(self._producing)

    def _wait_again(self, place: Place) -> None:
        window = None if place.closed else self._window(place)
        if window is None:
            return
        self._closing.schedule(place, self._final_behind(place, window))
        if self.emit == "on_watermark" and window.ve > self.max_event_time:
            self._producing.append((window.ve, next(self._serial), place))

    def check(self) -> None:
        """Asserts the order of points, and that nothing is held that is closed."""
        super().check()
        point = self.stables[0]
        for key, group in self._groups.items():
            assert group.times, f"the group {key} is empty"
            assert group.times == sorted(set(group.times)), f"the points of {key} have no order"
            assert group.times == [place.start for place in group.places], f"{key} is torn"
            assert group.held == group.times[0], f"another point than the first holds {key}"
            assert not group.places[0].closed, f"the first window of {key} is closed"
            for place in group.places:
                assert place.points > 0 or place.start < point, f"{place.start} is no point"
                assert not place.gone, f"{place.start} of {key} is gone"
                window = None if place.closed else self._window(place)
                due = INFINITY if window is None else self._final_behind(place, window)
                assert self._closing.due(place) == due, f"{place.start} of {key} waits amiss"
                assert due >= point, f"{place.start} of {key} is closed"
        assert not any((self._journal, self._dirty, self._closings)), "a batch is open"
