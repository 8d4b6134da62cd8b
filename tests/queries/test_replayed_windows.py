"""Windows that keep nothing but the facts, and compute what a batch touches anew."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from lmerge_service.elements import INFINITY, Adjust, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.aggregates import Count, Max
from lmerge_service.queries.operators.grids import Grid, GridWindows
from lmerge_service.queries.operators.panes import PaneWindows
from lmerge_service.queries.operators.protocol import Operator
from lmerge_service.queries.operators.windowing import Emit
from lmerge_service.queries.physical import Choice, physical
from lmerge_service.queries.physical import replayed as replayed_plan
from lmerge_service.queries.plan import count, facts, hopping
from lmerge_service.queries.plan_numbering import summary
from lmerge_service.queries.replay.replayed_windows import ReplayedWindows
from tests.queries.promises import Run, check_batches, check_promises, inserts_only, tdb_of
from tests.queries.test_panes import AGGREGATES, GRIDS, LEVELS, means, stable_rule
from tests.queries.test_panes import facts as drawn_facts
from tests.queries.windows import check_refused, check_taken_back, group_of, value_of
from tests.seeds import seeds


def replayed(name: str, grid: Grid, emit: Emit = "on_update", bucket: int = 1) -> ReplayedWindows:
    def begin() -> Operator:
        of = PaneWindows if grid.hop < grid.size else GridWindows
        return of(grid, AGGREGATES[name](), key=group_of, emit="on_close")

    return ReplayedWindows(grid, begin, emit=emit, bucket=bucket)


def retained(grid: Grid) -> Callable[[Run], int]:
    def most(run: Run) -> int:
        tdb = run.inputs[0]
        # facts that were taken back are there twice, until their bucket goes
        return 0 if tdb.stable == INFINITY else 40 * (len(tdb) + 1)

    return most


@pytest.mark.parametrize("emit", LEVELS)
@pytest.mark.parametrize("grid", GRIDS)
@seeds(6)
def test_promises(grid: str, emit: Emit, seeds: range) -> None:
    for seed in seeds:
        rng, each = Random(f"{seed} {emit} {grid}"), GRIDS[grid]
        name, feeds, bucket = rng.choice(list(AGGREGATES)), drawn_facts(rng), rng.choice((1, 3))
        make = lambda: replayed(name, each, emit, bucket)  # noqa: B023, E731
        check_promises(
            make,
            means(name, each),
            feeds,
            on_update=emit == "on_update",
            stable=stable_rule(each),
            retained=retained(each),
        )
        check_batches(make, means(name, each), feeds, rng)


@seeds(10)
def test_the_elements_are_those_of_grids(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        grid, name = rng.choice([*GRIDS.values()]), rng.choice(list(AGGREGATES))
        feeds = [element for _, element in drawn_facts(rng)]
        for emit in LEVELS:
            one = replayed(name, grid, emit)
            other = GridWindows(grid, AGGREGATES[name](), key=group_of, emit=emit)
            mine = [e for element in feeds for e in one.process(element)]
            theirs = [e for element in feeds for e in other.process(element)]
            assert tdb_of(mine) == tdb_of(theirs)
            assert emit != "on_close" or inserts_only(mine)


def test_facts_go_when_their_windows_have_closed() -> None:
    windows = replayed("all", Grid(10, 5), "on_close")
    for start in range(0, 1_000, 10):
        windows.process_batch([Insert(("a", 1), at, at + 1) for at in range(start, start + 10)])
        windows.process(Stable(start))
    assert len(windows) <= 25
    assert windows.touched <= 4 * 1_000  # each fact is in two windows


@pytest.mark.parametrize("emit", LEVELS)
def test_each_fact_is_replayed_by_the_batches_that_touch_its_windows(emit: Emit) -> None:
    touched = []
    for number in (200, 800):
        windows = replayed("all", Grid(10), emit)
        for start in range(0, number, 20):
            windows.process_batch([Insert(("a", 1), at, at + 1) for at in range(start, start + 20)])
            windows.process(Stable(start))
        touched.append(windows.touched)
    assert touched[1] <= 4.2 * touched[0]


def test_what_is_illegal_is_refused() -> None:
    windows = replayed("all", Grid(10))
    windows.process_batch([Insert(("a", 1), 12, 13), Stable(11)])
    check_refused(
        windows,
        [
            Insert(("a", 1), 10, 11),
            Adjust(("a", 1), 13, 14, 13),
            Adjust(("b", 1), 12, 13, 12),
            Adjust(("a", 1), 9, 10, 9),
        ],
    )
    for element in (Insert(("a", 1), 12, 14), Adjust(("a", 1), 12, 13, 14)):
        with pytest.raises(ConfigurationError, match="are over facts"):
            windows.process(element)


@pytest.mark.parametrize("emit", LEVELS)
def test_what_user_code_raises_leaves_the_state_as_before_the_call(emit: Emit) -> None:
    def make(hook: Any) -> Operator:
        def row(key: Any, values: Any) -> Any:
            hook()
            return (key, *values)

        grid = Grid(6, 2)
        begin = lambda: PaneWindows(grid, Max(value_of), key=group_of, row=row, emit="on_close")  # noqa: E731
        return ReplayedWindows(grid, begin, emit=emit, bucket=3)

    check_taken_back(make, emit, stream=lambda rng: [e for _, e in drawn_facts(rng)])


def test_replay_is_a_choice_of_a_plan() -> None:
    flights = facts("flights", time="t", fields={"origin": str, "delay": int})
    hourly = flights.windows(hopping(60, every=20)).by("origin").aggregate(n=count())
    plan = physical(hourly, emit="on_close", choices={hourly: Choice(windows="replay")})
    assert summary(plan) == "on_close, replay"
    assert [type(each) for each in plan.begin().operators] == [ReplayedWindows]
    assert plan.fingerprint != physical(hourly, emit="on_close").fingerprint
    assert replayed_plan(physical(hourly, emit="on_close")) == plan
    with pytest.raises(ConfigurationError, match="nothing to replay"):
        replayed_plan(physical(flights))


@pytest.mark.full
def test_it_holds_less_than_windows_do() -> None:
    grid = Grid(600, 10)
    begin = lambda: PaneWindows(grid, Count(), key=group_of, emit="on_close")  # noqa: E731
    by_replay = ReplayedWindows(grid, begin, bucket=100)
    by_state = GridWindows(grid, Count(), key=group_of)
    batch = [Insert((f"group {at}", 1), at % 300, at % 300 + 1) for at in range(300)]
    by_state.process_batch(batch)
    by_replay.process_batch(batch)
    assert len(by_replay.snapshot()) < len(by_state.snapshot()) / 20
