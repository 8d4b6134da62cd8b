"""Panes and expansion: other physical plans of grid windows over facts."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.aggregates import Aggregate, Composite, Count, First, Max, Sum, TopK
from lmerge_service.queries.meaning import windows as meaning
from lmerge_service.queries.module_aggregates import ModuleAggregate
from lmerge_service.queries.network import Network, Part
from lmerge_service.queries.operators.grids import Grid, GridWindows
from lmerge_service.queries.operators.panes import Expand, PaneWindows, expanded
from lmerge_service.queries.operators.windowing import Emit
from lmerge_service.tdb import TDB
from tests.queries.futures import share_tight
from tests.queries.promises import (
    Run,
    check_batches,
    check_promises,
    inserts_only,
    tdb_of,
)
from tests.queries.windows import (
    PAYLOADS,
    Raising,
    check_refused,
    check_taken_back,
    feeds_of,
    group_of,
    grouped,
    raising_modules,
    summed,
    value_of,
)
from tests.seeds import seeds

GRIDS = {"tumbling": Grid(4), "hop": Grid(6, 2, 1), "odd": Grid(5, 2)}
LEVELS: tuple[Emit, ...] = ("on_update", "on_watermark", "on_close")
FAR = 40

AGGREGATES: dict[str, Callable[[], Aggregate]] = {
    "all": lambda: Composite({"n": Count(), "sum": Sum(value_of), "max": Max(value_of)}),
    "linear": lambda: Composite({"n": Count(), "sum": Sum(value_of)}),
    "first": lambda: First(value_of),
    "top": lambda: TopK(2, value_of, lambda payload: (payload[1],)),
    "module": lambda: ModuleAggregate(summed, value_of),
}


def facts(rng: Random, **options: Any) -> list[tuple[int, Element]]:
    """A legal stream of facts, some of which are taken back, or moved within their pane (of 1: not
    at all)."""
    feeds: list[tuple[int, Element]] = []
    tdb = TDB()
    for _ in range(rng.randrange(options.get("length", 14) + 1)):
        point, draw = max(tdb.stable, 0), rng.random()
        gone = [event for event in tdb if event.vs >= point]
        element: Element
        if draw < 0.25:
            element = Stable(min(point + rng.choice((0, 1, 2, 3, 6)), 16))
        elif draw < 0.45 and gone:
            payload, vs, ve = rng.choice(sorted(gone, key=repr))
            element = Adjust(payload, vs, ve, vs)
        else:
            vs = point + rng.randrange(max(14 - point, 1))
            element = Insert(rng.choice(PAYLOADS), vs, vs + 1)
        tdb.apply(element)
        feeds.append((0, element))
    if options.get("close", True):
        feeds.append((0, Stable(INFINITY)))
    return feeds


def panes(name: str, grid: Grid, emit: Any = "on_update") -> PaneWindows:
    return PaneWindows(grid, AGGREGATES[name](), key=group_of, emit=emit)


def means(name: str, grid: Grid) -> Callable[[TDB], TDB]:
    def rows(window: Any, group: Any, members: list[Any]) -> list[Any]:
        aggregate = AGGREGATES[name]()
        state = aggregate.empty()
        for payload, vs, _ in members:
            state = aggregate.add(state, aggregate.entry(payload, vs))
        return [((group, *values), *window) for values in aggregate.results(state)]

    return grouped(
        lambda tdb: meaning.grid_windows(tdb, grid.size, grid.hop, grid.origin, FAR), rows
    )


def first_open(grid: Grid, point: int) -> int:
    return min(s for s in range(grid.origin - 20 * grid.hop, 99, grid.hop) if s + grid.size > point)


def stable_rule(grid: Grid) -> Callable[[Run], int]:
    def rule(run: Run) -> int:
        point = run.inputs[0].stable
        return point if point in (START, INFINITY) else min(point, first_open(grid, point))

    return rule


def retained(grid: Grid) -> Callable[[Run], int]:
    def most(run: Run) -> int:
        tdb = run.inputs[0]
        if tdb.stable == INFINITY:
            return 0
        cells, held = set(), set()
        for event in tdb:
            pane = event.vs - (event.vs - grid.origin) % grid.pane
            for start in range(grid.origin - 20 * grid.hop, 99, grid.hop):
                if start <= event.vs < start + grid.size and start + grid.size > tdb.stable:
                    cells.add((start, group_of(event.payload)))
                    held.add((pane, group_of(event.payload)))
            if pane >= first_open(grid, tdb.stable):
                held.add((pane, group_of(event.payload)))
        return len(cells) + len(held)

    return most


@pytest.mark.parametrize("emit", LEVELS)
@pytest.mark.parametrize("grid", GRIDS)
@seeds(10)
def test_promises(grid: str, emit: str, seeds: range) -> None:
    for seed in seeds:
        rng, each = Random(f"{seed} {emit} {grid}"), GRIDS[grid]
        name, feeds = rng.choice(list(AGGREGATES)), facts(rng)
        check_promises(
            lambda: panes(name, each, emit),  # noqa: B023
            means(name, each),
            feeds,
            on_update=emit == "on_update",
            stable=stable_rule(each),
            retained=retained(each),
        )
        check_batches(lambda: panes(name, each, emit), means(name, each), feeds, rng)  # noqa: B023


@pytest.mark.parametrize("grid", GRIDS)
@seeds(10)
def test_panes_grids_and_expansion_are_one_query(grid: str, seeds: range) -> None:
    for seed in seeds:
        rng, each = Random(f"three {seed} {grid}"), GRIDS[grid]
        name, feeds = rng.choice(list(AGGREGATES)), [element for _, element in facts(rng)]
        wanted = means(name, each)(tdb_of(feeds))
        for emit in LEVELS:
            grids = GridWindows(each, AGGREGATES[name](), key=group_of, emit=emit)
            windows, snapshots = expanded(each, AGGREGATES[name](), key=group_of, emit=emit)
            network = Network([Part(windows, ["facts"]), Part(snapshots, [0])])
            operator = panes(name, each, emit)
            one = [e for element in feeds for e in operator.process(element)]
            two = [e for element in feeds for e in grids.process(element)]
            three = [e for element in feeds for e in network.process("facts", element)]
            network.check()
            assert tdb_of(one) == tdb_of(two) == tdb_of(three) == wanted
            assert emit != "on_close" or inserts_only([*one, *two, *three])
            assert len(network) == 0


@seeds(20)
def test_expansion_makes_an_event_for_each_window(seeds: range) -> None:
    """Of other events than facts, too, as long as they end."""
    for seed in seeds:
        rng = Random(f"expand {seed}")
        grid = rng.choice([*GRIDS.values(), Grid(2, 5)])

        def means(tdb: TDB, grid: Grid = grid) -> TDB:
            windows = meaning.grid_windows(tdb, grid.size, grid.hop, grid.origin, FAR)
            return TDB(
                ((window[0], event.vs, event.payload), *window)
                for window, members in windows
                for event in members
            )

        feeds = feeds_of(rng)
        check_promises(lambda: Expand(grid), means, feeds, stable=stable_rule(grid))  # noqa: B023
        check_batches(lambda: Expand(grid), means, feeds, rng)  # noqa: B023


def test_the_stable_point_is_tight() -> None:
    streams = [facts(Random(seed), close=False, length=8) for seed in range(8)]
    grid = GRIDS["hop"]
    for emit in LEVELS:
        assert share_tight(lambda: Facts(panes("all", grid, emit)), streams, PAYLOADS) >= 0.5  # noqa: B023
    assert share_tight(lambda: Expand(grid), streams, PAYLOADS) >= 0.5


class Facts(PaneWindows):
    """Panes that pass over what is no fact."""

    def __init__(self, of: PaneWindows) -> None:
        super().__init__(of.grid, of._aggregate, key=group_of, emit=of.emit)

    def process_batch(self, elements: Any, port: int = 0) -> list[Element]:
        elements = [e for e in elements if type(e) is Stable or e.ve - e.vs <= 1]
        return super().process_batch(elements, port)


@pytest.mark.parametrize("emit", LEVELS)
@pytest.mark.parametrize("kind", ["incremental", "values", "mixed"])
def test_what_user_code_raises_leaves_the_state_as_before_the_call(kind: str, emit: Any) -> None:
    def raising(hook: Raising) -> PaneWindows:
        def row(key: Any, values: Any) -> Any:
            hook()
            return (key, *values)

        modules = raising_modules(hook)
        module = ModuleAggregate(modules["values" if kind == "values" else "incremental"], value_of)
        parts = {"max": Max(value_of), "module": module}
        aggregate = Composite(parts) if kind == "mixed" else module
        return PaneWindows(GRIDS["hop"], aggregate, key=group_of, row=row, emit=emit)

    def of_facts(rng: Random) -> list[Element]:
        return [element for _, element in facts(rng)]

    check_taken_back(raising, f"{kind} {emit}", stream=of_facts)


def test_what_is_no_fact_is_refused_and_changes_nothing() -> None:
    windows = panes("all", GRIDS["hop"])
    windows.process_batch([Insert(("g", 1), 3, 4), Stable(2)])
    saved = windows.snapshot()
    with pytest.raises(ValueError, match="not within a pane of 2"):
        windows.process_batch([Insert(("g", 1), 5, 6), Insert(("g", 1), 3, 6)])
    with pytest.raises(ValueError, match="not within a pane of 2"):
        windows.process_batch([Insert(("h", 1), 5, 6), Adjust(("g", 1), 3, 4, 6)])
    assert windows.snapshot() == saved
    assert windows.process_batch([Adjust(("g", 1), 3, 4, 5)]) == []
    illegal: list[Element] = [
        Insert(("g", 1), 1, 2),
        Adjust(("h", 1), 3, 4, 3),
        Adjust(("g", 1), 1, 2, 1),
    ]
    check_refused(windows, illegal)
    assert windows.snapshot() == saved


def test_an_event_without_end_is_not_expanded() -> None:
    with pytest.raises(OverflowError, match="without end"):
        Expand(Grid(5)).process(Insert("a", 1, INFINITY))


def test_states_that_do_not_merge_are_refused() -> None:
    class Alone(Count):
        mergeable = False

    with pytest.raises(ConfigurationError, match="Alone can't be merged"):
        PaneWindows(Grid(5), Alone())


def test_a_fact_is_added_once_and_a_window_merged_when_it_closes() -> None:
    costs = []
    for n in (400, 1_600):
        windows = PaneWindows(Grid(60, 10), Count(), emit="on_close")
        windows.process_batch([Insert("a", 60 + i % 10, 61 + i % 10) for i in range(n)])
        added = windows.touched
        windows.process(Stable(70))
        costs.append((added - n, windows.touched - added))
    assert costs[0] == costs[1] == (6, 6)
