"""How window operators compute aggregates: rows folded in, taken back, and made of results.

Theory
    What user code an aggregate calls, it calls for entries, before a state changes; but a module in
    the place of an aggregate (`module_aggregates`) is called all along, and may raise. So every
    change of a state can be taken back without calling it: a *persistent* aggregate leaves the
    states given to it as they are, and of others the inverse change is made, part by part.

    Facts that go into several windows are folded once, if the aggregate is linear (`Added`).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from lmerge_service.elements import Insert
from lmerge_service.queries.aggregates import Aggregate, Composite, Count
from lmerge_service.queries.window_policies import Row, Window

__all__ = (
    "Added",
    "AggregateUse",
    "added_facts",
    "changed",
    "changed_back",
    "is_persistent",
    "key_and_values",
)


class AggregateUse:
    """An aggregate as a window operator computes it: rows that are aligned to the window.

    `row` makes a payload of the group and a tuple of results (default: `key_and_values`).
    """

    __slots__ = ("_row", "aggregate", "empty", "persistent", "value_of")

    sees_window: bool = False
    sees_ends: bool = False
    time_bound: bool = False

    def __init__(
        self,
        aggregate: Aggregate,
        row: Callable[[Any, tuple[Any, ...]], Hashable] | None = None,
    ) -> None:
        self.aggregate = aggregate
        self.persistent = is_persistent(aggregate)
        self.value_of: Callable[[Hashable, int], Any] = aggregate.entry
        self.empty: Callable[[], Any] = aggregate.empty
        self._row = row or key_and_values

    def item(self, value: Any, vs: int, ve: int, window: Window) -> Any:
        """The entry alone: it sees no lifetimes."""
        return value

    def moved(self, state: Any, item: Any, by: int, where: tuple[Any, Window]) -> Any:
        """The state with an entry as many times more, or less."""
        return changed(self.aggregate, state, item, by)

    def moved_back(self, state: Any, before: Any, item: Any, by: int) -> Any:
        """The state before it was moved, without calling user code."""
        return changed_back(self.aggregate, state, before, item, by)

    def results(self, group: Any, window: Window, state: Any) -> tuple[Row, ...]:
        """A row per tuple of results."""
        make = self._row
        return tuple(
            [Row(make(group, values), *window) for values in self.aggregate.results(state)]
        )

    def checked_bound(self, changes: Iterable[Any], sync: int, group: Any, window: Window) -> None:
        """Nothing to check."""

    def saved(self, state: Any) -> Any:
        return self.aggregate.saved(state)

    def loaded(self, saved: Any) -> Any:
        return self.aggregate.loaded(saved)

    def saved_value(self, value: Any) -> Any:
        return self.aggregate.saved_entry(value)

    def loaded_value(self, saved: Any) -> Any:
        return self.aggregate.loaded_entry(saved)


def key_and_values(group: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The columns of the group's key (or the key), and then the values; just these without one."""
    if group is None:
        return values
    return (*group, *values) if type(group) is tuple else (group, *values)


class Added:
    """Rows to be added to several states of an aggregate: of a linear one as a state to merge, of
    others one by one."""

    __slots__ = ("_aggregate", "_entries", "_sum")

    def __init__(self, aggregate: Aggregate, rows: Sequence[Insert[Any]]) -> None:
        entry = aggregate.entry
        self._aggregate = aggregate
        self._entries: Sequence[Any] = ()
        if type(aggregate) is Count:
            self._sum: Any = aggregate.add(aggregate.empty(), 1, len(rows))
            return
        self._entries = [entry(row.payload, row.vs) for row in rows]
        if aggregate.linear:
            add, self._sum = aggregate.add, aggregate.empty()
            for each in self._entries:
                self._sum = add(self._sum, each)

    def to(self, state: Any) -> Any:
        """The state with the rows."""
        aggregate = self._aggregate
        if aggregate.linear:
            return aggregate.merge(state, self._sum)
        for entry in self._entries:
            state = aggregate.add(state, entry)
        return state

    def taken_from(self, state: Any, before: Any) -> Any:
        """The state without the rows; `before` is the one that they were added to, which a linear
        aggregate leaves as it was, and so does one whose states are values."""
        if is_persistent(self._aggregate):
            return before
        for entry in self._entries:
            state = self._aggregate.remove(state, entry)
        return state


class _AddedParts:
    """The same for a composite aggregate, part by part: the states are tuples of theirs."""

    __slots__ = ("_parts",)

    def __init__(self, aggregate: Composite, rows: Sequence[Insert[Any]]) -> None:
        self._parts = [added_facts(part, rows) for part in aggregate.parts]

    def to(self, state: Any) -> Any:
        done: list[Any] = []
        try:
            for part, each in zip(self._parts, state, strict=True):
                done.append(part.to(each))
        except Exception:
            for part, each, old in zip(self._parts, done, state, strict=False):
                part.taken_from(each, old)
            raise
        return tuple(done)

    def taken_from(self, state: Any, before: Any) -> Any:
        parts = zip(self._parts, state, before, strict=True)
        return tuple([part.taken_from(each, old) for part, each, old in parts])


def added_facts(aggregate: Aggregate, rows: Sequence[Insert[Any]]) -> Any:
    """Rows to be added to several states of an aggregate (`Added`); calls its columns."""
    if type(aggregate) is Composite:
        return _AddedParts(aggregate, rows)
    return Added(aggregate, rows)


def changed(aggregate: Aggregate, state: Any, entry: Any, by: int) -> Any:
    """The state with an entry as many times more, or less; of a composite aggregate no part is
    changed if one raises."""
    if type(aggregate) is not Composite or aggregate.linear:
        return aggregate.add(state, entry, by) if by > 0 else aggregate.remove(state, entry, -by)
    done: list[Any] = []
    parts = list(zip(aggregate.parts, state, entry, strict=True))
    try:
        for part, each, value in parts:
            done.append(changed(part, each, value, by))
    except Exception:
        for (part, each, value), new in zip(parts, done, strict=False):
            changed_back(part, new, each, value, by)
        raise
    return tuple(done)


def changed_back(aggregate: Aggregate, state: Any, before: Any, entry: Any, by: int) -> Any:
    """The state before it was `changed`, which was `before`, by value or by the inverse change;
    no user code is called."""
    if is_persistent(aggregate):
        return before
    if type(aggregate) is Composite:
        parts = zip(aggregate.parts, state, before, entry, strict=True)
        return tuple([changed_back(part, new, old, value, by) for part, new, old, value in parts])
    return changed(aggregate, state, entry, -by)


def is_persistent(aggregate: Aggregate) -> bool:
    """Whether the aggregate leaves the states given to it as they are."""
    return aggregate.linear or getattr(aggregate, "persistent", False)
