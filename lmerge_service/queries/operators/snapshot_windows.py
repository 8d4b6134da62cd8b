"""Snapshot windows: a module over the events of each snapshot, per group.

Meaning
    The windows are those between consecutive endpoints of a group's events; the events that cover
    one are its members. Each that has any emits what the module returns. (`operators.snapshots`
    has aggregates; rows that neighbour are not merged here.)
State
    Per group its boundaries in order, each with the number of endpoints there, and of the snapshot
    that begins there the members, or an incremental module's state, and the rows emitted.
Stable
    Of a module that does not see windows, emitted on update: c, since endpoints below c stay, and
    of the row that is open at c only the end moves. Otherwise the least start of a window with
    members that is open, start < c <= end; if the module sees unclipped ends, also of any window
    of an event with ve >= c. c if there is none, or if the module is bound by time and emitted on
    update.
Retention
    The boundaries from the last one below c on, if its snapshot has members; with unclipped ends
    from the start of the first event with ve >= c.  need(T) = T: exact starts; with unclipped ends,
    or a module that sees `vs`, the events that begin below T as they are.
Cost
    An event costs O(log n), and O(1) for each snapshot within it (an adjust: between its two ends),
    beside the module; a snapshot that is divided is copied, O(members) unless it is incremental. A
    stable costs what it closes.

    >>> from lmerge_service.elements import Stable
    >>> from lmerge_service.queries.modules import uda
    >>> @uda("1")
    ... def count(values): return len(values)
    >>> windows = SnapshotWindows(Application(count))
    >>> windows.process(Insert("a", 1, 9))
    [Insert(payload=1, vs=1, ve=9)]
    >>> windows.process_batch([Insert("c", 3, 6), Stable(4)])  # doctest: +NORMALIZE_WHITESPACE
    [Adjust(payload=1, vs=1, vold=9, ve=3), Insert(payload=2, vs=3, ve=6),
     Insert(payload=1, vs=6, ve=9), Stable(vc=4)]
"""

from collections.abc import Callable, Hashable
from typing import Any

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import Adjust, Insert
from lmerge_service.queries.modules import Application
from lmerge_service.queries.operators.point_windows import Group, Place, PointWindows
from lmerge_service.queries.operators.protocol import Changes
from lmerge_service.queries.operators.windowing import Emit
from lmerge_service.queries.order import payload_order
from lmerge_service.queries.window_policies import Window

__all__ = ("SnapshotWindows",)


class SnapshotWindows(PointWindows):
    """Snapshot windows with a module. `key` gives the group of a payload.

    Raises:
        ConfigurationError: there is no such level.
    """

    __slots__ = ("_valued",)

    def __init__(
        self,
        module: Application,
        *,
        key: Callable[[Any], Hashable] | None = None,
        emit: Emit = "on_update",
    ) -> None:
        super().__init__(module, key, emit)
        self._valued = module.incremental and not module.sees_window
        """A snapshot has the module's state, not its members: that needs no window."""

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        vs, ve = element.vs, element.ve
        if vs < self.stables[0]:
            self._refuse(port, BreachKind.BROKE_OWN_STABLE, element)
            return
        key, value = self._key(element.payload), self._use.value_of(element.payload)
        group = self._group(key)
        self.max_event_time = max(self.max_event_time, vs)
        self._add_end(group, vs, vs)
        self._add_end(group, ve, vs)
        self._cover(group, vs, ve, self._member(value, vs, ve), 1, vs)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        vs, old, new = element.vs, element.vold, element.ve
        sync = min(old, new)
        if sync < self.stables[0]:
            self._refuse(port, BreachKind.BROKE_OWN_STABLE, element)
            return
        key, value = self._key(element.payload), self._use.value_of(element.payload)
        group = self._groups.get(key)
        was, will = self._member(value, vs, old), self._member(value, vs, new)
        if group is None or not self._has(group, old, was):
            self._refuse(port, BreachKind.UNKNOWN_EVENT, element)
            return
        if new == vs:
            self._cover(group, vs, old, was, -1, vs)
            self._remove_end(group, vs, vs)
            self._remove_end(group, old, vs)
            return
        self._add_end(group, new, sync)
        if was != will:
            self._cover(group, vs, new, will, 1, sync)
            self._cover(group, vs, old, was, -1, sync)
        elif new > old:
            self._cover(group, old, new, will, 1, sync)
        else:
            self._cover(group, new, old, was, -1, sync)
        self._remove_end(group, old, sync)

    def _member(self, value: Any, vs: int, ve: int) -> Any:
        """What a snapshot holds of an event. It covers the snapshot, so an end that is clipped is
        the window's."""
        if not self._use.sees_window:
            return value
        return (value, vs, ve) if self._use.sees_ends else (value, vs, None)

    def _has(self, group: Group, ve: int, member: Any) -> bool:
        at = group.at(ve)
        if not 0 < at < len(group.times) or group.times[at] != ve:
            return False
        place = group.places[at - 1]
        return place.count > 0 if self._valued else member in place.state

    def _add_end(self, group: Group, t: int, sync: int) -> None:
        """One endpoint more at t; a snapshot that it divides becomes two."""
        at = group.at(t)
        place = group.places[at] if at < len(group.times) else None
        if place is None or place.start != t:
            place = Place(group, t, self._use.empty() if self._valued else {})
            if at:
                before = group.places[at - 1]
                place.count = before.count
                place.state = before.state if self._valued else dict(before.state)
                self._touch(before, sync)
            self._add_place(group, at, place)
            self._touch(place, sync)
        self._undo(setattr, place, "points", place.points)
        place.points += 1

    def _remove_end(self, group: Group, t: int, sync: int) -> None:
        """One endpoint less at t; without any, two snapshots become one."""
        at = group.at(t)
        place = group.places[at]
        self._undo(setattr, place, "points", place.points)
        place.points -= 1
        if not place.points:
            self._remove_place(group, at, sync)
            if at:
                self._touch(group.places[at - 1], sync)

    def _cover(self, group: Group, x: int, y: int, member: Any, by: int, sync: int) -> None:
        """Adds a member to the snapshots in [x, y), or removes it."""
        for at in range(group.at(x), group.at(y)):
            place = group.places[at]
            if self._valued:
                window = Window(place.start, group.times[at + 1])
                self._move(place, member, by, (group.key, window))
            else:
                self._undo(_shift, place, member, -by)
                _shift(place, member, by)
            self._touch(place, sync)

    def _window(self, place: Place) -> Window | None:
        times = place.group.times
        at = place.group.at(place.start) + 1
        return Window(place.start, times[at]) if place.count and at < len(times) else None

    def _state_of(self, place: Place, window: Window) -> Any:
        if not self._use.sees_window:
            return place.state
        state, where = self._use.empty(), (place.group.key, window)
        for (value, vs, ve), times in place.state.items():
            item = self._use.item(value, vs, window.ve if ve is None else ve, window)
            state = self._use.moved(state, item, times, where)
        return state

    def _final_behind(self, place: Place, window: Window) -> int:
        if not self._use.sees_ends:
            return window.ve
        ends: list[int] = [ve for _, _, ve in place.state]
        return max(ends)

    def _free(self) -> bool:
        return self.emit == "on_update" and (not self._use.sees_window or self._use.time_bound)

    def _is_empty(self, place: Place) -> bool:
        return not place.count

    def _saved_state(self, state: Any) -> Any:
        if self._valued:
            return self._use.saved(state)
        return [[portable(member), state[member]] for member in sorted(state, key=payload_order)]

    def _loaded_state(self, saved: Any) -> Any:
        if self._valued:
            return self._use.loaded(saved)
        return {hashable(member): times for member, times in saved}


def _shift(place: Place, member: Any, by: int) -> None:
    times = place.state.get(member, 0) + by
    if times:
        place.state[member] = times
    else:
        del place.state[member]
    place.count += by
