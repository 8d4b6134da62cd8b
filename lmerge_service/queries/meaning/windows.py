"""Windows over whole temporal databases: grids, snapshots and counts, and what modules see of them.

`rows` gives what a window emits: called with the window (vs, ve), the group and its members, it
returns events (payload, vs, ve). Each function puts every window to it that has a member.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import pairwise
from typing import Any

from lmerge_service.elements import INFINITY
from lmerge_service.tdb import TDB, Event

__all__ = ("clip", "count_windows", "grid_windows", "snapshot_windows", "stamp", "windowed")

Window = tuple[int, int]
Rows = Callable[[Window, Any, list[Event]], Iterable[tuple[Hashable, int, int]]]


def windowed(windows: Iterable[tuple[Window, list[Event]]], rows: Rows, group: Any = None) -> TDB:
    """What all windows emit together."""
    return TDB(
        row for window, members in windows if members for row in rows(window, group, members)
    )


def grid_windows(
    tdb: TDB, size: int, hop: int, origin: int, until: int
) -> Iterator[tuple[Window, list[Event]]]:
    """The windows [l, l + size), l = origin + k hop, with the events that they overlap; those with
    l <= until, since an event without end belongs to infinitely many."""
    least = min((event.vs for event in tdb), default=0) - size
    for start in range(origin + hop * ((least - origin) // hop), until + 1, hop):
        yield (start, start + size), [e for e in tdb if e.vs < start + size and start < e.ve]


def snapshot_windows(tdb: TDB) -> Iterator[tuple[Window, list[Event]]]:
    """The windows between consecutive endpoints, with the events that cover them."""
    ends = sorted({t for event in tdb for t in (event.vs, event.ve)})
    for window in pairwise(ends):
        yield window, [e for e in tdb if e.vs <= window[0] and window[1] <= e.ve]


def count_windows(tdb: TDB, n: int, by: str) -> Iterator[tuple[Window, list[Event]]]:
    """For each distinct start (finite end) the window to one tick behind the (n - 1)-th next, if
    there is one, with the events that start (end) within."""

    def point(event: Event) -> int:
        return event.vs if by == "start" else event.ve

    points = sorted({point(event) for event in tdb} - {INFINITY})
    for first, last in zip(points, points[n - 1 :], strict=False):
        yield (first, last + 1), [e for e in tdb if first <= point(e) <= last]


def clip(policy: str, window: Window, event: Event) -> Event:
    """The event as a module sees it."""
    vs = max(event.vs, window[0]) if policy in ("left", "full") else event.vs
    ve = min(event.ve, window[1]) if policy in ("right", "full") else event.ve
    return Event(event.payload, vs, ve)


def stamp(policy: str, window: Window, event: Event) -> list[Event]:
    """The row of a window that a module has returned, or none."""
    if policy == "align":
        return [Event(event.payload, *window)]
    if policy == "clip":
        cut = Event(event.payload, max(event.vs, window[0]), min(event.ve, window[1]))
        return [cut] if cut.vs < cut.ve else []
    assert event.vs >= window[0], "a row begins before its window"
    return [event]
