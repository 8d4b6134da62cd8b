"""Count windows: a module over what begins, or ends, at n consecutive points, per group.

Meaning
    The points of a group are the distinct starts of its events, or their distinct finite ends. From
    each point a window reaches to one tick behind the (n - 1)-th next, if there is one: [s, last +
    1). Its members are the events that start (end) within. Each window emits what the module
    returns. A late point replaces windows.
State
    Per group its points in order, each with the events that have it, and of the window that begins
    there the rows emitted.
Stable
    Of the points of a group below c, the (n - 1)-th from the end; the first, if there are fewer;
    with n = 1, or without points, c. A module that sees unclipped ends holds it at the first window
    of an event with ve >= c. The least over the groups, and c if the module is bound by time and
    emitted on update. So a group that is quiet holds it: count windows per group are for groups
    that do not rest.
Retention
    The points from there on.  need(T) = START: which points belong together depends on all before.
Cost
    An event touches n windows, each of which is computed from its members; O(log n) beside that. A
    stable costs what it closes.

    >>> from lmerge_service.elements import Stable
    >>> from lmerge_service.queries.modules import udo
    >>> @udo("1")
    ... def together(values): return [tuple(values)]
    >>> windows = CountWindows(2, Application(together))
    >>> windows.process_batch([Insert("a", 1, 4), Insert("c", 6, 8)])
    [Insert(payload=('a', 'c'), vs=1, ve=7)]
    >>> windows.process_batch([Insert("b", 3, 9), Stable(7)])  # doctest: +NORMALIZE_WHITESPACE
    [Adjust(payload=('a', 'c'), vs=1, vold=7, ve=1), Insert(payload=('a', 'b'), vs=1, ve=4),
     Insert(payload=('b', 'c'), vs=3, ve=7), Stable(vc=6)]
"""

from collections.abc import Callable, Hashable
from typing import Any, Literal

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, Adjust, Insert
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.modules import Application
from lmerge_service.queries.operators.point_windows import Place, PointWindows
from lmerge_service.queries.operators.protocol import Changes
from lmerge_service.queries.operators.windowing import Emit
from lmerge_service.queries.order import payload_order
from lmerge_service.queries.window_policies import Window

__all__ = ("CountWindows",)


class CountWindows(PointWindows):
    """Windows of `n` starts (`by="start"`) or ends (`by="end"`) with a module. `key` gives the
    group of a payload.

    Raises:
        ConfigurationError: n is less than 1; points are neither starts nor ends; no such level.
    """

    __slots__ = ("_by_end", "_n")

    def __init__(
        self,
        n: int,
        module: Application,
        *,
        by: Literal["start", "end"] = "start",
        key: Callable[[Any], Hashable] | None = None,
        emit: Emit = "on_update",
    ) -> None:
        super().__init__(module, key, emit)
        if n < 1:
            raise ConfigurationError(f"windows of {n} points are none")
        if by not in ("start", "end"):
            raise ConfigurationError(f"count windows count starts or ends, not {by!r}")
        self._n = n
        self._by_end = by == "end"

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        vs, ve = element.vs, element.ve
        if vs < self.stables[0]:
            self._refuse(port, BreachKind.BROKE_OWN_STABLE, element)
            return
        key, value = self._key(element.payload), self._use.value_of(element.payload)
        self.max_event_time = max(self.max_event_time, vs)
        self._put(key, value, vs, ve, 1, vs)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        vs, old, new = element.vs, element.vold, element.ve
        sync = min(old, new)
        if sync < self.stables[0]:
            self._refuse(port, BreachKind.BROKE_OWN_STABLE, element)
            return
        key, value = self._key(element.payload), self._use.value_of(element.payload)
        if not self._by_end and new > vs and not self._use.sees_window:
            return  # ends do not matter
        held = self._holds(key, value, vs, old)
        if held is False:
            self._refuse(port, BreachKind.UNKNOWN_EVENT, element)
        if not held:
            return
        if new > vs:
            self._put(key, value, vs, new, 1, sync)
        self._put(key, value, vs, old, -1, sync)

    def _holds(self, key: Any, value: Any, vs: int, ve: int) -> bool | None:
        """Whether the event is there; None if its end does not matter any more."""
        point = self._point(vs, ve)
        if point is None:
            return True
        group = self._groups.get(key)
        place = group.place(point) if group else None
        if place is not None:
            return self._member(value, vs, ve) in place.state
        return None if point < self.stables[0] else False

    def _point(self, vs: int, ve: int) -> int | None:
        if not self._by_end:
            return vs
        return ve if ve < INFINITY else None

    def _member(self, value: Any, vs: int, ve: int) -> Any:
        return (value, vs, ve) if self._use.sees_window else value

    def _put(self, key: Any, value: Any, vs: int, ve: int, by: int, sync: int) -> None:
        """Adds an event to its point, or removes it; touches the windows that have the point."""
        point = self._point(vs, ve)
        if point is None:
            return
        group, member = self._group(key), self._member(value, vs, ve)
        at = group.at(point)
        if at == len(group.times) or group.times[at] != point:
            self._add_place(group, at, Place(group, point, {}))
        place = group.places[at]
        self._undo(_shift, place, member, -by)
        _shift(place, member, by)
        for other in group.places[max(at - self._n + 1, 0) : at + 1]:
            self._touch(other, sync)
        if not place.points:
            self._remove_place(group, at, sync)

    def _window(self, place: Place) -> Window | None:
        times = place.group.times
        last = place.group.at(place.start) + self._n - 1
        return Window(place.start, times[last] + 1) if last < len(times) else None

    def _members(self, place: Place) -> list[tuple[Any, int]]:
        at = place.group.at(place.start)
        return [
            held for each in place.group.places[at : at + self._n] for held in each.state.items()
        ]

    def _state_of(self, place: Place, window: Window) -> Any:
        state, where = self._use.empty(), (place.group.key, window)
        for member, times in self._members(place):
            item = member
            if self._use.sees_window:
                value, vs, ve = member
                item = self._use.item(value, vs, ve, window)
            state = self._use.moved(state, item, times, where)
            self.touched += 1
        return state

    def _final_behind(self, place: Place, window: Window) -> int:
        ends = [window.ve - 1]
        if self._use.sees_ends:
            ends += [member[2] for member, _ in self._members(place)]
        return max(ends)

    def _free(self) -> bool:
        return self.emit == "on_update" and self._use.time_bound

    def _saved_state(self, state: Any) -> Any:
        return [[portable(member), state[member]] for member in sorted(state, key=payload_order)]

    def _loaded_state(self, saved: Any) -> Any:
        return {hashable(member): times for member, times in saved}


def _shift(place: Place, member: Any, by: int) -> None:
    times = place.state.get(member, 0) + by
    if times:
        place.state[member] = times
    else:
        del place.state[member]
    place.points += by
