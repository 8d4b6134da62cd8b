"""Hopping and tumbling windows: against their meaning, level by level, module by module."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, ModuleError
from lmerge_service.queries.aggregates import Composite, Count, Max, Sum, TopK
from lmerge_service.queries.meaning import windows as meaning
from lmerge_service.queries.module_aggregates import ModuleAggregate
from lmerge_service.queries.modules import Application, udo
from lmerge_service.queries.operators.grids import Grid, GridWindows
from lmerge_service.tdb import TDB
from tests.queries.futures import share_tight
from tests.queries.promises import (
    Run,
    check_batches,
    check_promises,
    inserts_only,
    tdb_of,
)
from tests.queries.streams import without_revisions
from tests.queries.windows import (
    PAYLOADS,
    USES,
    Raising,
    Used,
    check_refused,
    check_taken_back,
    feeds_of,
    group_of,
    grouped,
    passing,
    raising_modules,
    summed,
    value_of,
)
from tests.seeds import seeds

GRIDS = {"tumbling": Grid(4), "hop": Grid(5, 2, 1), "gaps": Grid(2, 5)}
LEVELS = ("on_update", "on_watermark", "on_close")
FAR = 40
"""Behind all windows of a stream that ends."""


def aggregate_rows(window: Any, group: Any, members: list[Any]) -> list[Any]:
    values = [payload[1] for payload, _, _ in members]
    return [((group, len(values), sum(values), max(values)), *window)]


def top_rows(window: Any, group: Any, members: list[Any]) -> list[Any]:
    values = sorted((payload[1] for payload, _, _ in members), reverse=True)[:2]
    return [((group, value, rank), *window) for rank, value in enumerate(values, 1)]


FUNCTIONS: dict[str, tuple[Callable[[], Any], Any, bool]] = {
    "aggregates": (
        lambda: Composite({"n": Count(), "sum": Sum(value_of), "max": Max(value_of)}),
        aggregate_rows,
        False,
    ),
    "linear": (
        lambda: Composite({"n": Count(), "sum": Sum(value_of)}),
        lambda *given: [((p[:3]), vs, ve) for p, vs, ve in aggregate_rows(*given)],
        False,
    ),
    "top": (lambda: TopK(2, value_of, lambda p: (p[1],)), top_rows, False),
    "module-aggregate": (
        lambda: ModuleAggregate(summed, value_of),
        USES["summed"].rows,
        False,
    ),
    **{name: (use.application, use.rows, use.sees_ends) for name, use in USES.items()},
}


def make(name: str, grid: Grid, emit: Any = "on_update", **options: Any) -> GridWindows:
    return GridWindows(grid, FUNCTIONS[name][0](), key=group_of, emit=emit, **options)


def means(name: str, grid: Grid, until: int = FAR) -> Callable[[TDB], TDB]:
    return grouped(
        lambda tdb: meaning.grid_windows(tdb, grid.size, grid.hop, grid.origin, until),
        FUNCTIONS[name][1],
    )


def windows_of(tdb: TDB, grid: Grid) -> list[Any]:
    return [
        (window, members)
        for window, members in meaning.grid_windows(tdb, grid.size, grid.hop, grid.origin, FAR)
        if members
    ]


def stable_rule(grid: Grid, sees_ends: bool) -> Callable[[Run], int]:
    """Over all windows there are: the first that is still open, or may change otherwise."""

    def rule(run: Run) -> int:
        tdb = run.inputs[0]
        point = tdb.stable
        if point in (START, INFINITY):
            return point
        starts = range(grid.origin - 20 * grid.hop, 100, grid.hop)
        held = [point, min(start for start in starts if start + grid.size > point)]
        if sees_ends:
            held += [w[0] for w, ms in windows_of(tdb, grid) if any(e.ve >= point for e in ms)]
        return min(held)

    return rule


def retained(grid: Grid, sees_ends: bool) -> Callable[[Run], int]:
    def most(run: Run) -> int:
        tdb, reached = run.inputs[0], run.operator.max_event_time  # type: ignore[attr-defined]
        point = tdb.stable
        cells = {
            (window, group_of(event.payload))
            for window, members in windows_of(tdb, grid)
            for event in members
            if window[0] <= reached
            and (window[1] > point or (sees_ends and any(e.ve >= point for e in members)))
        }
        starts = range(grid.origin - 20 * grid.hop, 99, grid.hop)
        waiting = {
            event
            for event in tdb
            if any(reached < w < event.ve and w + grid.size > event.vs for w in starts)
        }
        live = {event for event in tdb if event.ve >= point} if sees_ends else set()
        return 0 if point == INFINITY else len(cells) + len(waiting) + len(live)

    return most


@pytest.mark.parametrize("emit", LEVELS)
@pytest.mark.parametrize("grid", GRIDS)
@seeds(12)
def test_promises(grid: str, emit: str, seeds: range) -> None:
    each = GRIDS[grid]
    for seed in seeds:
        rng = Random(f"{seed} {emit} {grid}")
        name = rng.choice(list(FUNCTIONS))
        sees_ends, feeds = FUNCTIONS[name][2], feeds_of(rng)
        run = check_promises(
            lambda: make(name, each, emit),  # noqa: B023
            means(name, each),
            feeds,
            on_update=False,
            stable=stable_rule(each, sees_ends),
            retained=retained(each, sees_ends),
        )
        assert run.output == means(name, each)(run.inputs[0])
        check_batches(lambda: make(name, each, emit), means(name, each), feeds, rng)  # noqa: B023


@pytest.mark.parametrize("grid", GRIDS)
@seeds(12)
def test_on_update_it_equals_its_meaning_of_the_windows_that_have_begun(
    grid: str, seeds: range
) -> None:
    """Ends at INFINITY among them: those enter windows as these begin."""
    for seed in seeds:
        rng = Random(f"begun {seed} {grid}")
        name = rng.choice(list(FUNCTIONS))
        operator, tdb, output, reached = make(name, GRIDS[grid]), TDB(), TDB(), START
        for _, element in feeds_of(rng, endless=True, close=False):
            tdb.apply(element)
            for emitted in operator.process(element):
                output.apply(emitted)
            if not isinstance(element, Adjust):
                reached = max(reached, getattr(element, "vs", tdb.stable))
            assert operator.max_event_time == reached
            assert output == means(name, GRIDS[grid], reached)(tdb)


def test_the_level_on_close_never_emits_an_adjust_and_others_agree_with_it() -> None:
    for name in FUNCTIONS:
        for seed in range(2):
            feeds = feeds_of(Random(f"close {seed} {name}"))
            outputs = []
            for emit in LEVELS:
                operator = make(name, GRIDS["hop"], emit)
                emitted = [e for _, element in feeds for e in operator.process(element)]
                assert emit != "on_close" or inserts_only(emitted), emitted
                outputs.append(tdb_of(emitted))
            assert outputs[0] == outputs[1] == outputs[2]


def test_a_stream_with_revisions_and_its_final_events_have_equal_windows() -> None:
    for name in FUNCTIONS:
        for seed in range(2):
            feeds = feeds_of(Random(f"revisions {seed} {name}"))
            final = without_revisions([element for _, element in feeds])
            one, two = make(name, GRIDS["hop"]), make(name, GRIDS["hop"])
            revised = [e for _, element in feeds for e in one.process(element)]
            assert tdb_of(revised) == tdb_of(two.process_batch(final))


@pytest.mark.parametrize("name", ["every", "lifetimes", "lifetimes-left"])
def test_the_stable_point_is_tight(name: str) -> None:
    streams = [feeds_of(Random(seed), close=False, length=8) for seed in range(6)]
    for emit in LEVELS:
        share = share_tight(
            lambda: make(name, GRIDS["hop"], emit),  # noqa: B023
            streams,
            PAYLOADS,
        )
        assert share >= 0.5, (emit, share)


# --- modules that are bound by time ---------------------------------------------------------------


def bound(emit: Any = "on_update") -> GridWindows:
    use = Used(passing, "none", "unchanged").application()
    return GridWindows(GRIDS["hop"], use, key=group_of, emit=emit)


@seeds(6)
def test_a_time_bound_module_lets_the_stable_point_pass_on_update(seeds: range) -> None:
    grid = GRIDS["hop"]
    rows = Used(passing, "none", "unchanged").rows
    means = grouped(lambda tdb: meaning.grid_windows(tdb, 5, 2, 1, FAR), rows)
    for seed in seeds:
        for emit in LEVELS:
            check_promises(
                lambda: bound(emit),  # noqa: B023
                means,
                feeds_of(Random(f"bound {seed}")),
                on_update=False,
                stable=(lambda run: run.inputs[0].stable)
                if emit == "on_update"
                else stable_rule(grid, True),
            )


def test_a_module_that_is_not_bound_by_time_though_declared_so_is_found_out() -> None:
    @udo("1", time_sensitive=True, stamped=True, time_bound=True)
    def counting(window: Any, events: Any) -> Any:
        return [(len(events), min(vs for _, vs, _ in events), window.ve)]

    use = Application(counting, timestamping="unchanged")
    windows = GridWindows(Grid(10), use)
    windows.process_batch([Insert("a", 1, 2), Stable(2)])
    with pytest.raises(ModuleError, match=r"time-bound.*window \[0, 10\)"):
        windows.process(Insert("a", 5, 6))


# --- exceptions in user code ----------------------------------------------------------------------


def raising_windows(hook: Raising, kind: str, emit: Any) -> GridWindows:
    def column(payload: Any) -> Any:
        hook()
        return payload[1]

    def group(payload: Any) -> Any:
        hook()
        return payload[0]

    def row(key: Any, values: Any) -> Any:
        hook()
        return (key, *values)

    def incremental() -> ModuleAggregate:
        return ModuleAggregate(raising_modules(hook)["incremental"], column)

    functions: dict[str, Callable[[], Any]] = {
        "aggregates": lambda: Composite({"n": Count(), "max": Max(column)}),
        "mixed": lambda: Composite({"max": Max(value_of), "m": incremental()}),
        "merged": incremental,
    }
    if kind in functions:
        return GridWindows(Grid(5, 2), functions[kind](), key=group, row=row, emit=emit)
    use = Application(raising_modules(hook)[kind], value=column)
    return GridWindows(Grid(5, 2), use, key=group, emit=emit)


@pytest.mark.parametrize("emit", LEVELS)
@pytest.mark.parametrize("kind", ["incremental", "whole", "aggregates", "mixed", "merged"])
def test_what_user_code_raises_leaves_the_state_as_before_the_call(kind: str, emit: Any) -> None:
    check_taken_back(lambda hook: raising_windows(hook, kind, emit), f"{kind} {emit}")


# --- the rest -------------------------------------------------------------------------------------


def test_windows_of_a_module_that_sees_ends_close_when_all_members_have_ended() -> None:
    windows = make("lifetimes", Grid(5), "on_close")
    assert windows.process_batch([Insert(("g", 1), 2, 12), Stable(7)]) == [Stable(0)]
    assert windows.process_batch([Insert(("g", 3), 8, 9), Stable(12)]) == []
    assert windows.process(Stable(13)) == [
        Insert(("g", (0, 5, (1, 2, 12))), 0, 5),
        Insert(("g", (5, 10, (1, 2, 12), (3, 8, 9))), 5, 10),
        Stable(10),
    ]
    assert len(windows) == 1
    assert windows.process(Stable(15)) == [
        Insert(("g", (10, 15, (1, 2, 12))), 10, 15),
        Stable(15),
    ]


@seeds(12)
def test_a_leap_changes_when_windows_are_emitted_and_not_what(seeds: range) -> None:
    for seed in seeds:
        rng = Random(f"leap {seed}")
        name, emit, grid = rng.choice(list(FUNCTIONS)), rng.choice(LEVELS), GRIDS["hop"]
        leap = rng.choice((0, 1, 3))
        check_promises(
            lambda: make(name, grid, emit, max_leap=leap),  # noqa: B023
            means(name, grid),
            feeds_of(rng),
            on_update=False,
            stable=stable_rule(grid, FUNCTIONS[name][2]),
            retained=retained(grid, FUNCTIONS[name][2]),
        )


def test_a_far_future_fact_opens_no_more_than_the_leap_allows() -> None:
    windows = GridWindows(Grid(10), Count(), max_leap=20)
    windows.process(Insert("a", 0, INFINITY))
    assert windows.process(Insert("b", 1_000_000, 1_000_001)) == [
        Insert((1,), 10, 20),
        Insert((1,), 20, 30),
    ]
    assert windows.process(Adjust("a", 0, INFINITY, 25)) == []
    emitted = windows.process_batch([Stable(INFINITY)])
    assert emitted == [Insert((1,), 1_000_000, 1_000_010), Stable(INFINITY)]


def test_an_event_without_end_is_in_the_windows_that_have_begun_when_the_stream_ends() -> None:
    windows = GridWindows(Grid(10), Count())
    windows.process_batch([Insert("a", 5, INFINITY), Insert("b", 25, 26)])
    assert windows.process(Stable(INFINITY)) == [Stable(INFINITY)]
    assert len(windows) == 0


def test_what_its_state_shows_to_be_illegal_changes_nothing() -> None:
    for function in (Count(), USES["every"].application()):
        windows = GridWindows(Grid(5), function, key=group_of)
        windows.process_batch([Insert(("g", 1), 6, 8), Stable(7)])
        illegal: list[Element] = [
            Insert(("g", 1), 6, 9),
            Adjust(("g", 1), 6, 9, 6),
            Adjust(("h", 1), 8, 9, 8),
            Adjust(("g", 1), 8, 20, 9),
        ]
        check_refused(windows, illegal)


def test_a_time_beyond_int64_changes_nothing() -> None:
    windows = GridWindows(Grid(10), Count())
    with pytest.raises(OverflowError):
        windows.process(Insert("a", INFINITY - 3, INFINITY - 2))
    assert len(windows) == 0


def test_a_grid_or_level_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="windows of 0 every 5"):
        Grid(0, 5)
    with pytest.raises(ConfigurationError, match="not ordered"):
        GridWindows(Grid(5), Count(), emit="ordered")  # type: ignore[arg-type]


@pytest.mark.parametrize("emit", LEVELS)
def test_stables_cost_what_they_close(emit: Any) -> None:
    """With 4 times as many windows open, or events that wait, a stable that closes one costs the
    same; and an element what it overlaps."""
    costs = []
    for n in (20, 80):
        windows = GridWindows(Grid(10), Count(), key=lambda payload: payload, emit=emit)
        windows.process_batch([Insert(i, 0, 10 * i + 5) for i in range(n)])
        windows.process_batch([Insert("a", 10 * i, 10 * i + 1) for i in range(n)])
        before = windows.touched
        windows.process(Stable(11))
        one = windows.touched - before
        windows.process(Insert("b", 10 * n - 3, 10 * n - 2))
        costs.append((one, windows.touched - before - one))
    assert costs[0] == costs[1]


def test_a_window_for_which_an_adjust_changes_nothing_is_not_touched() -> None:
    windows = GridWindows(Grid(10), Count())
    windows.process_batch([Insert("a", 1, 12), Insert("b", 25, 26)])
    before = windows.touched
    assert windows.process(Adjust("a", 1, 12, 13)) == []
    assert windows.touched == before


def test_what_has_waited_longer_enters_first_after_a_restart_too() -> None:
    """Both wait for the window 20; "a" came first, but was scheduled for it last."""
    windows = GridWindows(Grid(2, 10), Count(), key=lambda payload: payload, max_leap=0)
    windows.process_batch([Insert("a", 1, 30), Insert("b", 13, 30), Stable(11)])
    other = GridWindows(Grid(2, 10), Count(), key=lambda payload: payload, max_leap=0)
    other.restore(windows.snapshot())
    emitted = windows.process(Stable(21))
    assert emitted == [Insert(("a", 1), 20, 22), Insert(("b", 1), 20, 22), Stable(20)]
    assert other.process(Stable(21)) == emitted


def test_a_batch_of_facts_is_folded_once_per_pane_and_group() -> None:
    costs = []
    for n in (500, 2_000):
        windows = GridWindows(Grid(60, 20), Count(), key=lambda payload: payload)
        windows.process_batch([Insert(i % 5, 60 + i % 20, 61 + i % 20) for i in range(n)])
        costs.append(windows.touched)
    assert costs == [500 + 5 * 3, 2_000 + 5 * 3]
