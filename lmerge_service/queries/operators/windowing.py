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
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.netting import Data, net_change
from lmerge_service.queries.operators.protocol import Changes, Operator
from lmerge_service.queries.window_policies import Row, Window

__all__ = (
    "NO_ROWS",
    "Cell",
    "Emit",
    "Found",
    "Use",
    "WindowOperator",
    "bound_changes",
    "rows_changed",
)

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

    def emits_inserts_only(self, inputs: Sequence[bool]) -> bool:
        return self.emit == "on_close"

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
