"""The boundaries of one group's snapshots, and what is aggregated between them.

Theory
    A boundary is a time at which an event of the group begins or ends. Between two consecutive
    boundaries the same events are valid: a snapshot. An event, an adjust or a removal is a change
    on [x, y): it adds endpoints at x and y, or takes them away, and adds its entry to all
    snapshots between, or takes it away. Changes of a batch are collected per time, and applied by
    one sweep over the boundaries that they span.

    Two ways to hold states. Of a *linear* aggregate (`queries.aggregates`) each boundary has the
    state of its snapshot: the sweep merges into each the sum of the changes that are open there.
    The state of another is a multiset as large as the events that are valid, too large to have one
    per boundary; so each boundary has the entries that come and go there, and every `SPACING`-th
    the state (a checkpoint), from which the sweep starts. Measured for the greatest value with 10,
    100 and 1,000 events alive at a time: in batches of 1,000 it takes 10, 11 and 19 µs per event,
    where a list in each boundary takes 8, 67 and 770; element by element it is the list that is
    faster, 8, 4 and 3 times. With 1,000 alive it takes a third to a sixth of the memory.

Invariants
    B1  A boundary is held exactly if an endpoint of an event lies there, or if it is the last one
        below what has been forgotten.
    B2  The state of a snapshot is that of the events that cover it.
    B3  A boundary without a checkpoint has no more than a few times `SPACING` boundaries between
        it and the last one before it that has one, or the first.

Cost
    A sweep over k boundaries takes O(log n + k) steps. If not linear it walks O(SPACING) more, and
    copies a state at its start and at each checkpoint: memory moved, in proportion to the events
    alive, which shows with 10,000 of them in one group.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from lmerge_service.queries.aggregates import Aggregate
from lmerge_service.queries.timeline import Part, Timeline

__all__ = ("Boundaries", "Change", "Changes", "Show", "Sweep")

SPACING = 16
"""Boundaries from one checkpoint to the next; small in tests."""

_NONE: Final[dict[Any, int]] = {}

Change: TypeAlias = list[Any]
"""At one time: endpoints that come, events that do, changes that open; the entries of the events,
as a linear state or a dict of how many come."""

Changes: TypeAlias = dict[int, Change]
"""Changes of one group by time."""

Show: TypeAlias = Callable[[Any], Any]
"""What is shown of a snapshot, of its state."""


class Sweep(NamedTuple):
    """What a sweep makes of the boundaries in [first, last]: the new ones, and what they show."""

    first: int
    last: int
    columns: Part
    shown: list[Any]
    looked_at: int


class Boundaries:
    """How boundaries hold states of an aggregate: as columns of times, endpoints, events alive,
    and states, and entries if it is not linear.
    """

    __slots__ = ("_aggregate", "_empty", "_linear")

    def __init__(self, aggregate: Aggregate) -> None:
        self._aggregate = aggregate
        self._linear = aggregate.linear
        self._empty = aggregate.empty() if self._linear else None

    def timeline(self) -> Timeline:
        """No boundaries."""
        return Timeline(4 if self._linear else 5)

    def note(
        self, changes: Changes, at: int, endpoints: int, alive: int, opened: int, entry: Any
    ) -> None:
        """Notes a change at one time."""
        change = changes.get(at)
        if change is None and self._linear:
            changes[at] = [endpoints, alive, opened, self._aggregate.add(self._empty, entry, alive)]
            return
        if change is None:
            change = changes[at] = [0, 0, 0, {}]
        change[0] += endpoints
        change[1] += alive
        change[2] += opened
        if self._linear:
            change[3] = self._aggregate.add(change[3], entry, alive)
        elif times := change[3].get(entry, 0) + alive:
            change[3][entry] = times
        else:
            change[3].pop(entry, None)

    def sweeps(self, line: Timeline, changes: Changes, show: Show) -> list[Sweep]:
        """What the changes make of the boundaries, range by range, and what is shown of the state
        of each snapshot that is not empty; the boundaries stay as they are."""
        found: list[Sweep] = []
        times: list[int] = []
        opened = bare = 0
        for at in sorted(changes):
            times.append(at)
            opened += changes[at][2]
            if opened:
                continue
            if not self._linear:
                sweep = self._entries_sweep(line, times, changes, show, bare)
                bare = _bare(sweep.columns[3], bare)
                found.append(sweep)
            elif line.parts[0][0]:
                found.append(self._linear_sweep(line, times, changes, show))
            else:
                found.append(self._first_sweep(times, changes, show))
            times = []
        assert not opened, "a change has no end"
        return found

    def forget(self, line: Timeline, point: int, keep: bool) -> int:
        """Drops the boundaries before the last one below `point`, and that one as well if no event
        is alive there, unless `keep`. Returns how many."""
        parts, dropped = line.parts, 0
        state = None
        if not self._linear and (last := line.at_most(point - 1)):
            part, at = last
            state = part[3][at]
            if state is None:
                state, _ = self._state_before(line, part, at + 1, keep=False)
        while len(parts) > 1 and parts[1][0][0] < point:
            dropped += len(parts[0][0])
            del parts[0]
        part = parts[0]
        below = bisect_left(part[0], point)
        if below and (keep or part[2][below - 1]):
            below -= 1
            if not self._linear:
                part[3][below] = state
        line.behead(below)
        return dropped + below

    def states(self, line: Timeline) -> Iterator[tuple[Any, int]]:
        """(state, events alive) of every snapshot that begins at a boundary; to be looked at."""
        columns = line.columns()
        if self._linear:
            yield from zip(columns[3], columns[2], strict=True)
            return
        state = self._aggregate.empty()
        for alive, held, entries in zip(*columns[2:], strict=True):
            copied = None if held is None else self._aggregate.copy(held)
            state = self._moved(state, entries) if copied is None else copied
            yield state, alive

    def saved(self, line: Timeline) -> list[Any]:
        """The columns, of what msgpack can carry."""
        aggregate = self._aggregate
        times, endpoints, alive, states, *more = line.columns()
        found = [times, endpoints, alive]
        found.append([None if state is None else aggregate.saved(state) for state in states])
        for entries in more:
            save = aggregate.saved_entry
            found.append([[(save(entry), n) for entry, n in each.items()] for each in entries])
        return found

    def loaded(self, saved: list[Any]) -> Timeline:
        """The boundaries that were saved."""
        aggregate = self._aggregate
        times, endpoints, alive, states, *more = saved
        columns = [times, endpoints, alive]
        columns.append([None if state is None else aggregate.loaded(state) for state in states])
        for entries in more:
            load = aggregate.loaded_entry
            columns.append([{load(entry): n for entry, n in each} for each in entries])
        return Timeline(len(columns), columns)

    def check(self, line: Timeline, point: int) -> None:
        """Asserts B1, as far as boundaries alone show it, and that states agree."""
        line.check()
        times, endpoints, alive, held, *entries = line.columns()
        assert times, "a group without boundaries is held"
        assert all(n >= 0 for n in alive), "more events end than have begun"
        assert not alive[-1], "an event has no end"
        assert sum(time < point for time in times) <= 1, "B1: what is final is held"
        assert all(endpoints), "B1: a boundary without endpoints"
        if not self._linear:
            state = self._aggregate.empty()
            for at, own in enumerate(entries[0]):
                known = held[at]
                if at or known is None:
                    state = self._moved(state, own)
                    assert known is None or known == state, "B2: a checkpoint is wrong"
                else:
                    state = self._aggregate.copy(known)

    def _linear_sweep(
        self, line: Timeline, changed: list[int], changes: Changes, show: Show
    ) -> Sweep:
        merge = self._aggregate.merge
        first, last = changed[0], changed[-1]
        times, endpoints, alive, states = line.window(first, last)
        low, high = bisect_left(times, first), bisect_right(times, last)
        old = times[low:high]
        # of the snapshot that each one was in, and of the changes that are open
        number, state = (alive[low - 1], states[low - 1]) if low else (0, self._empty)
        more, change_state = 0, self._empty
        new: Part = [[], [], [], []]
        add_time, add_endpoints, add_alive, add_state = [column.append for column in new]
        shown: list[Any] = []
        merged = sorted({*old, *changed}) if old else changed
        at, count = low, high
        for time in merged:
            if at < count and times[at] == time:
                ends, number, state = endpoints[at], alive[at], states[at]
                at += 1
            else:
                ends = 0
            change = changes.get(time)
            if change is not None:
                ends += change[0]
                more += change[1]
                change_state = merge(change_state, change[3])
            if ends:
                now = merge(state, change_state)
                add_time(time)
                add_endpoints(ends)
                add_alive(number + more)
                add_state(now)
                shown.append(show(now) if number + more else None)
        return Sweep(first, last, new, shown, len(merged))

    def _first_sweep(self, changed: list[int], changes: Changes, show: Show) -> Sweep:
        """That of a linear aggregate where there are no boundaries yet."""
        merge, number, state = self._aggregate.merge, 0, self._empty
        new: Part = [[], [], [], []]
        times, endpoints, alive, states = new
        shown: list[Any] = []
        for time in changed:
            ends, more, _, entries = changes[time]
            number += more
            state = merge(state, entries)
            if ends:
                times.append(time)
                endpoints.append(ends)
                alive.append(number)
                states.append(state)
                shown.append(show(state) if number else None)
        return Sweep(changed[0], changed[-1], new, shown, len(changed))

    def _entries_sweep(
        self, line: Timeline, changed: list[int], changes: Changes, show: Show, bare: int
    ) -> Sweep:
        """`bare` boundaries of earlier sweeps of the batch, not in `line` yet, may be between the
        last checkpoint and this one."""
        add, remove, copy = self._aggregate.add, self._aggregate.remove, self._aggregate.copy
        first, last = changed[0], changed[-1]
        part = line.window(first, last)
        times, endpoints, alive, states, entries = part
        low, high = bisect_left(times, first), bisect_right(times, last)
        state, walked = self._state_before(line, part, low)
        number, more, since = (alive[low - 1] if low else 0), 0, walked + bare
        new: Part = [[], [], [], [], []]
        add_time, add_endpoints, add_alive, add_state, add_own = [c.append for c in new]
        shown: list[Any] = []
        merged = sorted({*times[low:high], *changed})
        at = low
        for time in merged:
            if at < high and times[at] == time:
                ends, number, own = endpoints[at], alive[at], entries[at]
                checkpoint = states[at] is not None
                at += 1
            else:
                ends, own, checkpoint = 0, _NONE, False
            change = changes.get(time)
            if change is not None:
                ends += change[0]
                more += change[1]
                own = _together(own, change[3])
            if not ends:
                continue
            for entry, times_more in own.items():
                if times_more > 0:
                    state = add(state, entry, times_more)
                else:
                    state = remove(state, entry, -times_more)
            since += 1
            if checkpoint or since >= SPACING:
                since = 0
                add_state(copy(state))
            else:
                add_state(None)
            add_time(time)
            add_endpoints(ends)
            add_alive(number + more)
            add_own(own)
            shown.append(show(state) if number + more else None)
        return Sweep(first, last, new, shown, len(merged) + walked)

    def _state_before(
        self, line: Timeline, part: Part, at: int, keep: bool = True
    ) -> tuple[Any, int]:
        """The state of the snapshot before entry `at` of a part, to be changed, and how many
        boundaries were walked for it. Without `keep` the checkpoint that it is made from is used
        up."""
        aggregate = self._aggregate
        parts = line.parts
        number = 0 if len(parts) == 1 else next(i for i, each in enumerate(parts) if each is part)
        here, end, missing = part, at, []
        state = None
        while True:
            while end and state is None:
                end -= 1
                state = part[3][end]
                if state is None:
                    missing.append(part[4][end])
            if state is not None or not number:
                break
            number -= 1
            part = parts[number]
            end = len(part[0])
        if state is None:
            state = aggregate.empty()
        elif keep:
            state = aggregate.copy(state)
        for entries in reversed(missing):
            state = self._moved(state, entries)
        if keep and len(missing) > 2 * SPACING and at:  # some went with their boundaries
            here[3][at - 1] = aggregate.copy(state)
        return state, len(missing)

    def _moved(self, state: Any, entries: dict[Any, int]) -> Any:
        add, remove = self._aggregate.add, self._aggregate.remove
        for entry, times in entries.items():
            state = add(state, entry, times) if times > 0 else remove(state, entry, -times)
        return state


def _bare(states: list[Any], before: int) -> int:
    """How many boundaries there are behind the last checkpoint; `before` if there is none, more."""
    for back, state in enumerate(reversed(states)):
        if state is not None:
            return back
    return before + len(states)


def _together(one: dict[Any, int], two: dict[Any, int]) -> dict[Any, int]:
    """The sum of both."""
    if not one or not two:
        return one or two
    found = one.copy()
    for entry, times in two.items():
        if times := found.get(entry, 0) + times:
            found[entry] = times
        else:
            del found[entry]
    return found
