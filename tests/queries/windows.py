"""What tests of windows share: modules, and what they return, computed again from whole members."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from lmerge_service.elements import Element
from lmerge_service.errors import ModuleError
from lmerge_service.queries.meaning import windows as meaning
from lmerge_service.queries.module_library import average, median, time_weighted_average
from lmerge_service.queries.modules import Application, Module, udo
from lmerge_service.queries.operators.protocol import Operator
from lmerge_service.queries.window_policies import Window
from lmerge_service.tdb import TDB, Event
from tests.queries.promises import tdb_of
from tests.queries.streams import Feed, legal_stream

PAYLOADS = (("g", 1), ("g", 3), ("h", 2))
"""(group, value)"""


def group_of(payload: Any) -> Any:
    return payload[0]


def value_of(payload: Any) -> Any:
    return payload[1]


@udo("1")
def every(values: Any) -> Any:
    """Each value, and the list of them: it shows duplicates and order."""
    return [*values, tuple(values)]


class Summed:
    """The sum and the count, twice: incremental, with rows."""

    def empty(self) -> Any:
        return (0, 0)

    def add(self, state: Any, value: Any) -> Any:
        return (state[0] + value, state[1] + 1)

    def remove(self, state: Any, value: Any) -> Any:
        return (state[0] - value, state[1] - 1)

    def merge(self, one: Any, two: Any) -> Any:
        return (one[0] + two[0], one[1] + two[1])

    def compute(self, state: Any) -> Any:
        return [state, state[1]]


summed = udo("1", name="summed")(Summed)


@udo("1", time_sensitive=True)
def lifetimes(window: Any, events: Any) -> Any:
    """All that it sees."""
    return [(*window, *(tuple(event) for event in events))]


@udo("1", time_sensitive=True, stamped=True)
def clipped_events(window: Any, events: Any) -> Any:
    """Each event, from the window's start at the earliest."""
    return [(value, max(vs, window.vs), max(ve, window.vs + 1)) for value, vs, ve in events]


@udo("1", time_sensitive=True, stamped=True, time_bound=True)
def passing(window: Any, events: Any) -> Any:
    """Each event as it is, if it begins in the window: bound by time."""
    return [event for event in events if event[1] >= window.vs]


Rows = Callable[[Any, Any, list[Any]], Iterable[tuple[Hashable, int, int]]]


def rows_of(module: Module, clipping: str = "none", timestamping: str = "align") -> Rows:
    """What a module makes of a window's members, by its definition."""

    def rows(window: Any, group: Any, members: list[Any]) -> Iterable[Event]:
        seen = sorted(
            (payload[1], *meaning.clip(clipping, window, Event(payload, vs, ve))[1:])
            for payload, vs, ve in members
        )
        items = seen if module.time_sensitive else [value for value, _, _ in seen]
        if module.incremental:
            made = module.implementation()
            state = made.empty()
            for item in items:
                state = made.add(state, *(item if module.time_sensitive else (item,)))
            items, call = state, made.compute
        else:
            call = module.implementation
        result = call(Window(*window), items) if module.time_sensitive else call(items)
        for row in result if module.rows else [result]:
            value, *life = row if module.stamped else (row, *window)
            yield from meaning.stamp(timestamping, window, Event((group, value), *life))

    return rows


@dataclass(frozen=True)
class Used:
    """A module with its policies."""

    module: Module
    clipping: str = "none"
    timestamping: str = "align"

    def application(self) -> Application:
        return Application(
            self.module,
            clipping=self.clipping,
            timestamping=self.timestamping,
            value=value_of,
            row=lambda group, value: (group, value),
        )

    @property
    def rows(self) -> Rows:
        return rows_of(self.module, self.clipping, self.timestamping)

    @property
    def sees_ends(self) -> bool:
        return self.module.time_sensitive and self.clipping in ("none", "left")


USES = {
    "every": Used(every),
    "summed": Used(summed),
    "average": Used(average),
    "median": Used(median),
    "weighted": Used(time_weighted_average, "full"),
    "lifetimes": Used(lifetimes),
    "lifetimes-left": Used(lifetimes, "left"),
    "lifetimes-right": Used(lifetimes, "right"),
    "lifetimes-full": Used(lifetimes, "full"),
    "unchanged": Used(clipped_events, "none", "unchanged"),
    "clip": Used(clipped_events, "right", "clip"),
}


def grouped(windows: Callable[[TDB], Any], rows: Rows) -> Callable[[TDB], TDB]:
    """The meaning of windows of each group."""

    def means(tdb: TDB) -> TDB:
        parts: dict[Any, list[Event]] = {}
        for event in tdb:
            parts.setdefault(group_of(event.payload), []).append(event)
        return TDB(
            row
            for group, events in parts.items()
            for row in meaning.windowed(windows(TDB(events)), rows, group)
        )

    return means


def feeds_of(rng: Random, **options: Any) -> list[Feed]:
    given: dict[str, Any] = {"payloads": PAYLOADS, "endless": False} | options
    return [(0, element) for element in legal_stream(rng, **given)]


# --- exceptions in user code ----------------------------------------------------------------------


class Raising:
    """Raises when it is called for the n-th time."""

    def __init__(self) -> None:
        self.left = -1

    def __call__(self) -> None:
        self.left -= 1
        if not self.left:
            raise RuntimeError("no")


def raising_modules(hook: Raising) -> dict[str, Module]:
    """Modules that call the hook wherever they are called."""

    class Incremental:
        def empty(self) -> Any:
            return ()

        def add(self, state: Any, value: Any) -> Any:
            hook()
            return tuple(sorted((*state, value)))

        def remove(self, state: Any, value: Any) -> Any:
            hook()
            left = list(state)
            left.remove(value)
            return tuple(left)

        def merge(self, one: Any, two: Any) -> Any:
            hook()
            return tuple(sorted((*one, *two)))

        def compute(self, state: Any) -> Any:
            hook()
            return [state]

    @udo("1", time_sensitive=True)
    def whole(window: Any, events: Any) -> Any:
        hook()
        return list(events)

    @udo("1")
    def values(values: Any) -> Any:
        hook()
        return list(values)

    return {"incremental": udo("1")(Incremental), "whole": whole, "values": values}


def check_refused(operator: Operator, illegal: Iterable[Element]) -> None:
    """Each of the elements is refused and changes nothing."""
    saved = operator.snapshot()
    for element in illegal:
        assert operator.process(element) == []
        assert [each for _, _, each in operator.refused] == [element]
        operator.refused.clear()
        assert operator.snapshot() == saved


def check_taken_back(
    make: Callable[[Raising], Operator],
    label: str,
    seeds: int = 3,
    stream: Callable[[Random], list[Element]] | None = None,
) -> None:
    """Promise Q10, user code raising at each place where it can: the state is the same, byte by
    byte, and the operator goes on as one that the batch has never reached."""
    for seed in range(seeds):
        rng = Random(f"{label} {seed}")
        elements = stream(rng) if stream else [e for _, e in feeds_of(rng, length=10)]
        cut = rng.randrange(len(elements))
        batch = elements[cut : cut + rng.choice((2, 4, 20))]
        for nth in range(1, 40):
            hook, quiet = Raising(), Raising()
            operator, twin = make(hook), make(quiet)
            first = operator.process_batch(elements[:cut])
            saved, kept = operator.snapshot(), operator.refused.copy()
            hook.left = nth
            try:
                operator.process_batch(batch)
            except (RuntimeError, ModuleError):
                pass
            else:
                break
            hook.left = -1
            operator.check()
            assert operator.refused == kept
            assert operator.snapshot() == saved
            again = operator.process_batch(batch)
            wanted = [*twin.process_batch(elements[:cut]), *twin.process_batch(batch)]
            assert tdb_of([*first, *again]) == tdb_of(wanted)
