"""What window operators share: they apply a batch, compute the windows that it touches, and commit.

Theory
    User code runs while a batch is applied (keys, values, incremental modules) and while windows
    are computed. Neither emits anything nor forgets anything, and each change of state is entered
    in a journal; so whatever user code raises, the journal takes the batch back, last entry first,
    without calling user code (promise Q10). Only then is what windows emit now compared with what
    they have emitted, and what has become final forgotten.

    Levels (`emit`): `on_update` emits what follows from what is known of the windows that have
    begun; `on_watermark` a window when `max_event_time`, the greatest start or stable point seen,
    reaches its end; `on_close` when nothing of it can change any more, hence inserts only.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.aggregates import Aggregate, Composite, Count
from lmerge_service.queries.expiry import Expiry
from lmerge_service.queries.modules import Row, Window
from lmerge_service.queries.netting import Data, net_change
from lmerge_service.queries.operators.protocol import Changes, Operator

__all__ = (
    "NO_ROWS",
    "Added",
    "AggregateUse",
    "Cell",
    "Emit",
    "Found",
    "Holding",
    "Scheduled",
    "Use",
    "WindowOperator",
    "added_facts",
    "bound_changes",
    "is_persistent",
    "key_and_values",
    "rows_changed",
)

E = TypeVar("E", bound=Hashable)

Emit: TypeAlias = Literal["on_update", "on_watermark", "on_close"]

NO_ROWS: Final[tuple[Row, ...]] = ()


class Use(Protocol):
    """How a window operator computes: a module with policies, or an aggregate."""

    sees_window: bool
    sees_ends: bool
    time_bound: bool
    persistent: bool

    def value_of(self, payload: Hashable, vs: int) -> Any: ...
    def item(self, value: Any, vs: int, ve: int, window: Window) -> Any: ...
    def empty(self) -> Any: ...
    def moved(self, state: Any, item: Any, by: int, where: tuple[Any, Window]) -> Any: ...
    def moved_back(self, state: Any, before: Any, item: Any, by: int) -> Any: ...
    def results(self, group: Any, window: Window, state: Any) -> tuple[Row, ...]: ...
    def checked_bound(
        self, changes: Iterable[Any], sync: int, group: Any, window: Window
    ) -> None: ...
    def saved(self, state: Any) -> Any: ...
    def loaded(self, saved: Any) -> Any: ...
    def saved_value(self, value: Any) -> Any: ...
    def loaded_value(self, saved: Any) -> Any: ...


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


class Cell:
    """One window of one group: how many events it has, its state, and the rows it has emitted."""

    __slots__ = ("count", "open", "rows", "state")

    def __init__(self, state: Any) -> None:
        self.count = 0
        self.state = state
        self.rows = NO_ROWS
        self.open = 0
        """How many of them may still end otherwise; kept where the module sees that."""

    def saved(self, use: Use) -> list[Any]:
        """What msgpack carries of it."""
        rows = [[portable(payload), vs, ve] for payload, vs, ve in self.rows]
        return [self.count, self.open, use.saved(self.state), rows]

    @classmethod
    def loaded(cls, saved: list[Any], use: Use) -> "Cell":
        """The cell of which `saved` was made."""
        count, opened, state, rows = saved
        cell = cls(use.loaded(state))
        cell.count, cell.open = count, opened
        cell.rows = tuple([Row(hashable(payload), vs, ve) for payload, vs, ve in rows])
        return cell


Found: TypeAlias = list[tuple[Cell, tuple[Row, ...]]]
"""Windows, each with the rows that it is to have emitted now."""


class WindowOperator(Operator):
    """The base of window operators.

    A subclass applies elements (`_insert`, `_adjust`) and a stable point (`_reach`), entering in
    the journal what it changes; computes (`_computed`); and forgets what is final (`_advance`).

    Raises:
        ConfigurationError: there is no such level.
    """

    __slots__ = ("_journal", "_key", "_use", "emit", "max_event_time")

    def __init__(self, use: Use, key: Callable[[Any], Hashable] | None, emit: Emit) -> None:
        super().__init__()
        if emit not in get_args(Emit):
            raise ConfigurationError(f"windows emit {', '.join(get_args(Emit))}, not {emit}")
        self.emit = emit
        self.max_event_time = START
        """The greatest start or finite stable point seen; windows begin when it reaches them."""
        self._use = use
        self._key: Callable[[Any], Any] = key or (lambda payload: None)
        self._journal: list[tuple[Any, ...]] = []

    def process_batch(self, elements: Iterable[Element], port: int = 0) -> list[Element]:
        """As for every operator; what user code raises leaves the state as it was."""
        reached, refused = self.max_event_time, len(self.refused)
        try:
            point = self._applied(elements)
            if point > self.stables[0]:
                self._reach(point)
            found = self._computed(point)
        except Exception:
            self._take_back()
            self.max_event_time = reached
            del self.refused[refused:]
            raise
        self._journal.clear()
        changes: Changes = []
        for cell, rows in found:
            if rows != cell.rows:
                rows_changed(cell.rows, rows, changes)
                cell.rows = rows
        self.stables[0] = point
        stable = self._advance(changes)
        emitted = self._netted(changes)
        if stable > self.stable:
            self.stable = stable
            emitted.append(Stable(stable))
        return emitted

    def _applied(self, elements: Iterable[Element]) -> int:
        """Applies the data; returns the greatest stable point."""
        point = self.stables[0]
        changes: Changes = []
        for element in elements:
            kind = type(element)
            if kind is Insert:
                self._insert(element, 0, changes)  # type: ignore[arg-type]
            elif kind is Adjust:
                self._adjust(element, 0, changes)  # type: ignore[arg-type]
            elif element.vc > point:  # type: ignore[union-attr]
                point = element.vc  # type: ignore[union-attr]
        return point

    @abstractmethod
    def _reach(self, point: int) -> None:
        """Applies that the stable point is to be `point`; journaled."""

    @abstractmethod
    def _advance(self, changes: Changes) -> int:
        """Called behind every batch, when what windows emit has changed: forgets what is final, and
        returns the output's stable point by the stable rule."""

    @abstractmethod
    def _computed(self, point: int) -> Found:
        """What the windows touched are to have emitted, `point` being the stable point."""

    def _undo(self, function: Callable[..., Any], *args: Any) -> None:
        """Enters in the journal what takes a change back."""
        self._journal.append((function, *args))

    def _take_back(self) -> None:
        while self._journal:
            function, *args = self._journal.pop()
            function(*args)

    def _move(self, cell: Cell, item: Any, by: int, where: tuple[Any, Window]) -> None:
        """Adds an item to a window as many times, or removes it; journaled."""
        before = cell.state
        cell.state = self._use.moved(before, item, by, where)
        cell.count += by
        cell.open += by
        self._journal.append((self._move_back, cell, before, item, by))
        self.touched += 1

    def _move_back(self, cell: Cell, before: Any, item: Any, by: int) -> None:
        cell.state = self._use.moved_back(cell.state, before, item, by)
        cell.count -= by
        cell.open -= by


class Scheduled(Generic[E]):
    """A multiset of events, each of which is due at some time. Those that come out together come in
    the order in which they came in, so that what is restored goes on alike."""

    __slots__ = ("_due", "_events", "_serial")

    def __init__(self) -> None:
        self._events: dict[E, tuple[int, int]] = {}  # times, serial
        self._due: Expiry[E] = Expiry()
        self._serial = 0

    def __len__(self) -> int:
        return len(self._events)

    def __contains__(self, event: object) -> bool:
        return event in self._events

    def __iter__(self) -> Iterator[E]:
        return iter(sorted(self._events, key=self._order))

    def times(self, event: E) -> int:
        """How often it is there."""
        return self._events.get(event, (0, 0))[0]

    def due(self, event: E) -> int:
        """When it is due; INFINITY if it is not there, or has come out."""
        return self._due.due(event)

    def set(self, event: E, times: int, due: int) -> None:
        """Has it be there so often, due at `due`."""
        self._due.cancel(event)
        if not times:
            self._events.pop(event, None)
            return
        held = self._events.get(event)
        if held is None:
            self._serial += 1
        self._events[event] = (times, self._serial if held is None else held[1])
        self._due.schedule(event, due)

    def entry(self, event: E) -> tuple[int, int]:
        """How often it is there, and its place in the order; what `put_back` takes."""
        return self._events.get(event, (0, 0))

    def put_back(self, event: E, entry: tuple[int, int], due: int) -> None:
        """Has it be there as it was, due at `due`."""
        self.set(event, entry[0], due)
        if entry[0]:
            self._events[event] = entry

    def before(self, point: int) -> list[E]:
        """Those due before `point`; they stay, and are due no more until they are set again."""
        return sorted(self._due.before(point), key=self._order)

    def clear(self) -> None:
        self._events.clear()
        self._due.clear()

    def _order(self, event: E) -> int:
        return self._events[event][1]


class Holding:
    """A multiset of times of which the least is wanted: those that hold a stable point.

    Complexity: O(log n) amortised.
    """

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._heap: list[int] = []

    def move(self, t: int, by: int) -> None:
        """Adds a time as many times, or removes it."""
        if t not in self._times:
            self._times[t] = 0
            heappush(self._heap, t)
        self._times[t] += by

    def least(self) -> int:
        """The least time; INFINITY if there is none."""
        while self._heap and not self._times[self._heap[0]]:
            del self._times[heappop(self._heap)]
        return self._heap[0] if self._heap else INFINITY


def rows_changed(old: Sequence[Row], new: Sequence[Row], changes: Changes) -> None:
    """Appends what turns the old rows into the new ones; to be netted."""
    if len(old) > 1 or len(new) > 1:
        gone, come = Counter(old), Counter(new)
        old, new = list((gone - come).elements()), list((come - gone).elements())
    for payload, vs, ve in old:
        changes.append(Adjust(payload, vs, ve, vs))
    for payload, vs, ve in new:
        changes.append(Insert(payload, vs, ve))


def bound_changes(old: Sequence[Row], new: Sequence[Row]) -> list[Data]:
    """The net change between the rows of one window before and after."""
    changes: Changes = []
    rows_changed(old, new, changes)
    return net_change(changes)
