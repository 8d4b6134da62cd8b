"""User modules: functions, aggregates and operators that a query's author writes (StreamInsight).

Theory
    A *UDF* maps the values of one row to a value. A *UDA* maps what a window holds to one value, a
    *UDO* to any number of rows. A module never sees disorder, late events or corrections: the
    window operators call it again for each window that changes, and compare what it returns with
    what they have emitted.

    A non-incremental module is a function of all values of a window, in canonical order
    (`order.payload_order`), so that one that looks at their order is deterministic all the same. An
    incremental one is a class with `empty()`, `add(state, value)`, `remove(state, value)` and
    `compute(state)`. A state is a value: `add` returns another and leaves the old one as it was, so
    that an exception leaves the operator as before the call.

    A time-sensitive module also gets lifetimes, `(value, vs, ve)`, clipped by a policy
    (`window_policies`), and the window: its `add` and `remove` are called with `(state, value, vs,
    ve)`, its `compute` with the window first. If it is `stamped` it returns rows `(payload, vs,
    ve)`. A time-insensitive one does not see the window: windows whose ends move would change its
    result.

    Modules are registered by importable name, so that every process finds the same:

    >>> from lmerge_service.queries.window_policies import Window
    >>> half = module("lmerge_service.queries.module_library:percentile").bind(50)
    >>> use, hour = Application(half), Window(0, 60)
    >>> use.results("JFK", hour, use.state_of(hour, [(7, 1, 2), (30, 1, 2), (9, 4, 5)]))
    (Row(payload=('JFK', 9), vs=0, ve=60),)

Invariants
    M1  Results depend on the multiset of values (with lifetimes) and on the window, on nothing
        else: one in 64 is computed twice and compared.
    M2  What user code raises, or returns though it may not, is a `ModuleError` of one line, with
        the module, the window and the group.

Cost
    That of the module; O(n log n) to order the n values of a window for a non-incremental one.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final, NoReturn

from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ConfigurationError, ModuleError
from lmerge_service.queries.order import payload_order
from lmerge_service.queries.window_policies import (
    Clipping,
    Row,
    Timestamping,
    Window,
    clipped,
    stamped,
)

__all__ = (
    "Application",
    "Function",
    "Module",
    "module",
    "uda",
    "udf",
    "udo",
)

_CHECKED: Final = 64
"""One in so many results is computed twice."""
_SAMPLE: Final = 60
"""How much of a value stands in an error's line, in characters."""

Item = Any
"""What a window holds of an event: its value, or (value, vs, ve) for a time-sensitive module."""


@dataclass(frozen=True)
class Module:
    """A user's aggregate or operator, and what is declared of it; made by `uda` and `udo`."""

    name: str
    """Where it is imported from: `package.module:name`."""
    version: str
    """Part of the fingerprints of plans: to be changed with the results."""
    rows: bool
    """It returns rows (a UDO), not one value (a UDA)."""
    implementation: Any
    """A function, or a class for an incremental module."""
    parameters: tuple[Any, ...] = ()
    time_sensitive: bool = False
    stamped: bool = False
    """Its rows have lifetimes."""
    time_bound: bool = False
    """What an element changes of its rows is never before that element's sync time."""
    distinct_only: bool = False
    """It sees each value once, however many events have it."""
    reads: tuple[str, ...] = ()
    """The columns that it reads."""

    def __post_init__(self) -> None:
        for wrong, what in (
            (self.stamped and not self.time_sensitive, "stamped, but not time-sensitive"),
            (self.stamped and not self.rows, "stamped, but one value has no lifetime"),
            (self.time_bound and not self.stamped, "time-bound, but not stamped"),
            (self.distinct_only and self.incremental, "distinct only, but incremental"),
        ):
            if wrong:
                raise ConfigurationError(f"the module {self.name} is declared {what}")

    @property
    def incremental(self) -> bool:
        """Whether it adds and removes, instead of computing from all values."""
        return isinstance(self.implementation, type)

    @property
    def mergeable(self) -> bool:
        """Whether it merges states of parts."""
        return self.incremental and hasattr(self.implementation, "merge")

    @property
    def fingerprint(self) -> tuple[Any, ...]:
        """What distinguishes its results from those of another module."""
        return (self.name, self.version, *self.parameters)

    def bind(self, *parameters: Any) -> "Module":
        """The module with values for its parameters: arguments behind those that it is called with,
        or of the class."""
        return replace(self, parameters=parameters)


def uda(
    version: str,
    *,
    name: str | None = None,
    time_sensitive: bool = False,
    distinct_only: bool = False,
    reads: Sequence[str] = (),
) -> Callable[[Any], Module]:
    """Makes a function or class a user-defined aggregate: one value per window. `name` is that of
    the attribute where it is found, if it is another.

    >>> @uda("1")
    ... def spread(values):
    ...     return max(values) - min(values)
    >>> spread.version, spread.incremental
    ('1', False)
    """
    return lambda made: Module(
        _name_of(made, name),
        version,
        rows=False,
        implementation=made,
        time_sensitive=time_sensitive,
        distinct_only=distinct_only,
        reads=tuple(reads),
    )


def udo(
    version: str,
    *,
    name: str | None = None,
    time_sensitive: bool = False,
    stamped: bool = False,
    time_bound: bool = False,
    distinct_only: bool = False,
    reads: Sequence[str] = (),
) -> Callable[[Any], Module]:
    """Makes a function or class a user-defined operator: any number of rows per window."""
    return lambda made: Module(
        _name_of(made, name),
        version,
        rows=True,
        implementation=made,
        time_sensitive=time_sensitive,
        stamped=stamped,
        time_bound=time_bound,
        distinct_only=distinct_only,
        reads=tuple(reads),
    )


class Function:
    """A user-defined function: null if any value is, unless it is null-safe; made by `udf`."""

    __slots__ = ("_calls", "_function", "name", "null_safe", "version")

    def __init__(self, function: Callable[..., Any], version: str, null_safe: bool) -> None:
        self.name = _name_of(function)
        self.version = version
        self.null_safe = null_safe
        self._function = function
        self._calls = 0

    def __call__(self, *values: Any) -> Any:
        """Its value.

        Raises:
            ModuleError: it raised, or returned two values for the same arguments.
        """
        if not self.null_safe and None in values:
            return None
        self._calls += 1
        try:
            value = self._function(*values)
            again = value if self._calls % _CHECKED else self._function(*values)
        except Exception as error:
            raise ModuleError(_line(f"{self._call(values)} raised {error!r}")) from error
        if again != value:
            returned = f"returned {_short(value)} and {_short(again)}"
            raise ModuleError(_line(f"{self._call(values)} {returned}"))
        return value

    def _call(self, values: tuple[Any, ...]) -> str:
        return f"{self.name}({', '.join(map(_short, values))})"


def udf(version: str, *, null_safe: bool = False) -> Callable[[Callable[..., Any]], Function]:
    """Makes a function a user-defined function of the values of one row."""
    return lambda function: Function(function, version, null_safe)


def module(name: str, version: str | None = None) -> Module:
    """The module of an importable name `package.module:name`, of this version if one is given.

    Raises:
        ConfigurationError: there is none, or it is of another version.
    """
    package, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(package), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"there is no module {name!r} (package.module:name): {error}"
        ) from error
    if not isinstance(found, Module):
        raise ConfigurationError(f"{name!r} is not a module: decorate it with uda or udo")
    if version is not None and found.version != version:
        raise ConfigurationError(
            f"the module {name} is of version {found.version!r}, the plan wants {version!r}"
        )
    return found


class Application:
    """A module as a window operator uses it: with policies, and a way in and out of payloads.

    `value` gives what the module sees of a payload, `row` the payload of a result, from the group
    and the value or row that the module returned.

    Raises:
        ConfigurationError: the policies do not fit the module.
    """

    __slots__ = (
        *("_calls", "_compute", "_instance", "_value", "_row", "clipping", "incremental"),
        *("module", "persistent", "sees_ends", "sees_window", "time_bound", "timestamping"),
    )

    def __init__(
        self,
        module: Module,
        *,
        clipping: Clipping | str = Clipping.NONE,
        timestamping: Timestamping | str = Timestamping.ALIGN,
        value: Callable[[Any], Hashable] | None = None,
        row: Callable[[Any, Any], Hashable] | None = None,
    ) -> None:
        self.module = module
        self.clipping = _policy(Clipping, clipping)
        self.timestamping = _policy(Timestamping, timestamping)
        self.incremental = self.persistent = module.incremental
        """Its states are values, which `moved` leaves as they are; otherwise items are counted."""
        self.sees_window = module.time_sensitive
        """A window that moves is another window."""
        self.sees_ends = module.time_sensitive and self.clipping in (Clipping.NONE, Clipping.LEFT)
        """An end beyond the window changes what it returns."""
        self.time_bound = module.time_bound and self.timestamping is Timestamping.UNCHANGED
        if self.timestamping is not Timestamping.ALIGN and not module.stamped:
            raise ConfigurationError(
                f"the module {module.name} gives its rows no lifetimes: "
                f"timestamping {self.timestamping.value!r} is not for it, only 'align'"
            )
        self._value = value
        self._row = row or (lambda group, result: result if group is None else (group, result))
        self._calls = 0
        if self.incremental:
            self._instance = module.implementation(*module.parameters)
            self._compute = self._instance.compute
        else:
            self._instance, self._compute = None, module.implementation

    def value_of(self, payload: Hashable, vs: int = 0) -> Hashable:
        """What the module sees of a payload; when its event began does not matter."""
        return payload if self._value is None else self._value(payload)

    def item(self, value: Hashable, vs: int, ve: int, window: Window) -> Item:
        """What a window holds of an event."""
        return (value, *clipped(self.clipping, window, vs, ve)) if self.sees_window else value

    def empty(self) -> Any:
        """The state of a window without events: the module's own, or no items."""
        return self._instance.empty() if self.incremental else {}

    def moved(self, state: Any, item: Item, by: int, where: tuple[Any, Window]) -> Any:
        """The state with an item as many times more, or less; of (group, window) `where`. Items are
        counted in place, other states are values.

        Raises:
            ModuleError: the module raised.
        """
        if not self.incremental:
            count = state.get(item, 0) + by
            if count:
                state[item] = count
            else:
                del state[item]
            return state
        change = self._instance.add if by > 0 else self._instance.remove
        try:
            for _ in range(abs(by)):
                state = change(state, *(item if self.sees_window else (item,)))
        except Exception as error:
            self._fail(f"raised {error!r}", *where, error)
        return state

    def moved_back(self, state: Any, before: Any, item: Item, by: int) -> Any:
        """The state before it was moved, which was `before`, without calling the module."""
        return before if self.incremental else self.moved(state, item, -by, _NOWHERE)

    def state_of(self, window: Window, events: Iterable[tuple[Hashable, int, int]]) -> Any:
        """The state of a window that holds these (value, vs, ve)."""
        state = self.empty()
        for event in events:
            state = self.moved(state, self.item(*event, window), 1, (None, window))
        return state

    def merged(self, one: Any, two: Any) -> Any:
        """The state of what two states hold together, a new one.

        Raises:
            ModuleError: the module raised.
        """
        if not self.incremental:
            return dict(Counter(one) + Counter(two))
        try:
            return self._instance.merge(one, two)
        except Exception as error:
            self._fail(f"raised {error!r}", *_NOWHERE, error)

    def results(self, group: Any, window: Window, state: Any) -> tuple[Row, ...]:
        """The rows of a window whose state is this, in the module's order.

        Raises:
            ModuleError: the module raised, is not deterministic, or returned what it may not.
        """
        self._calls += 1
        try:
            found = self._computed(window, state)
            again = found if self._calls % _CHECKED else self._computed(window, state)
            stamps = [self._stamped(group, window, result) for result in found]
            rows = tuple([row for row in stamps if row is not None])
        except Exception as error:
            self._fail(f"raised {error!r}", group, window, error)
        if again != found:
            self._fail(f"returned {_short(found)} and {_short(again)}", group, window)
        return rows

    def checked_bound(self, changes: Iterable[Any], sync: int, group: Any, window: Window) -> None:
        """Checks that what changes of a time-bound module's rows is not before `sync`.

        Raises:
            ModuleError: it is.
        """
        for change in changes:
            at = getattr(change, "vold", None)
            at = change.vs if at is None else min(at, change.ve)
            if at < sync:
                what = f"is declared time-bound, but changes at {sync} what was at {at}"
                self._fail(what, group, window)

    def saved_value(self, value: Hashable) -> Any:
        """A value as msgpack carries it."""
        return portable(value)

    def loaded_value(self, saved: Any) -> Hashable:
        """The value that was saved."""
        return hashable(saved)

    def saved(self, state: Any) -> Any:
        """A state as msgpack carries it.

        Raises:
            StateError: it holds what does not come back as it was.
        """
        if not self.incremental:
            return [[portable(item), state[item]] for item in self._ordered(state)]
        if hasattr(self._instance, "save"):
            return self._instance.save(state)
        return portable(state)

    def loaded(self, saved: Any) -> Any:
        """The state of which `saved` was made."""
        if not self.incremental:
            return {hashable(item): count for item, count in saved}
        if hasattr(self._instance, "load"):
            return self._instance.load(saved)
        return hashable(saved)

    def _computed(self, window: Window, state: Any) -> list[Any]:
        """What it returns, the one value of an aggregate as a list, too."""
        seen = state if self.incremental else self._listed(state)
        args = (window, seen) if self.sees_window else (seen,)
        if self.incremental:
            result = self._compute(*args)
        else:
            result = self._compute(*args, *self.module.parameters)
        return list(result) if self.module.rows else [result]

    def _listed(self, state: Mapping[Item, int]) -> list[Item]:
        """The items in canonical order: by value, then by lifetime."""
        items = self._ordered(state)
        if self.module.distinct_only:
            return items
        return [item for item in items for _ in range(state[item])]

    def _ordered(self, state: Mapping[Item, int]) -> list[Item]:
        if self.sees_window:
            return sorted(state, key=lambda item: (payload_order(item[0]), item[1], item[2]))
        return sorted(state, key=payload_order)

    def _stamped(self, group: Any, window: Window, result: Any) -> Row | None:
        """The row of one result; None if nothing of it is left.

        Raises:
            ValueError, TypeError: it is no row, or not where it may be.
        """
        payload, lifetime = result, window
        if self.module.stamped:
            payload, vs, ve = result
            if not (type(vs) is type(ve) is int and START <= vs < ve <= INFINITY):
                raise ValueError(f"[{vs!r}, {ve!r}) is no lifetime")
            cut = stamped(self.timestamping, window, vs, ve)
            if cut is None:
                return None
            lifetime = Window(*cut)
        payload = self._row(group, payload)
        hash(payload)
        return Row(payload, *lifetime)

    def _fail(
        self, what: str, group: Any, window: Window, cause: BaseException | None = None
    ) -> NoReturn:
        raise ModuleError(
            _line(
                f"the module {self.module.name} (version {self.module.version}) {what} for the "
                f"window [{window.vs}, {window.ve}) of group {_short(group)}"
            )
        ) from cause


_NOWHERE: Final = (None, Window(START, INFINITY))


def _policy(kind: Any, policy: str) -> Any:
    try:
        return kind(policy)
    except ValueError:
        raise ConfigurationError(
            f"there is no {kind.__name__.lower()} {policy!r}, only "
            + ", ".join(repr(each.value) for each in kind)
        ) from None


def _name_of(made: Any, name: str | None = None) -> str:
    return f"{made.__module__}:{name or made.__qualname__}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SAMPLE else f"{text[:_SAMPLE]}..."


def _line(text: str) -> str:
    return " ".join(text.split())
