"""Count windows by start and by end, with modules: against their meaning, level by level."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.meaning import windows as meaning
from lmerge_service.queries.modules import Application
from lmerge_service.queries.operators.count_windows import CountWindows
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
    value_of,
)
from tests.seeds import seeds

LEVELS = ("on_update", "on_watermark", "on_close")
SHAPES = [(n, by) for n in (1, 2, 3) for by in ("start", "end")]


def make(name: str, n: int, by: Any, emit: Any = "on_update") -> CountWindows:
    return CountWindows(n, USES[name].application(), by=by, key=group_of, emit=emit)


def means(name: str, n: int, by: str) -> Callable[[TDB], TDB]:
    return grouped(lambda tdb: meaning.count_windows(tdb, n, by), USES[name].rows)


def first_open(group: TDB, n: int, by: str, sees_ends: bool, point: int) -> int | None:
    """The (n - 1)-th point below the stable point, counted from the end; or the first window before
    it of an event that may still end otherwise."""
    points = sorted({e.vs if by == "start" else e.ve for e in group} - {INFINITY})
    below = [t for t in points if t < point]
    held = []
    if n > 1 and below:
        held.append(below[max(len(below) - n + 1, 0)])
    if sees_ends:
        for window, members in meaning.count_windows(group, n, by):
            if any(e.ve >= point for e in members):
                held.append(window[0])
    return min(held, default=None)


def groups_of(tdb: TDB) -> list[TDB]:
    groups: dict[Any, list[Any]] = {}
    for event in tdb:
        groups.setdefault(group_of(event.payload), []).append(event)
    return [TDB(events) for events in groups.values()]


def stable_rule(name: str, n: int, by: str) -> Callable[[Run], int]:
    def rule(run: Run) -> int:
        tdb = run.inputs[0]
        if tdb.stable in (START, INFINITY):
            return tdb.stable
        found = (first_open(g, n, by, USES[name].sees_ends, tdb.stable) for g in groups_of(tdb))
        return min([tdb.stable, *(t for t in found if t is not None)])

    return rule


def retained(name: str, n: int, by: str) -> Callable[[Run], int]:
    def most(run: Run) -> int:
        tdb, held = run.inputs[0], 0
        for group in groups_of(tdb):
            first = first_open(group, n, by, USES[name].sees_ends, tdb.stable)
            least = tdb.stable if first is None else min(first, tdb.stable)
            points = {e.vs if by == "start" else e.ve for e in group} - {INFINITY}
            held += len([t for t in points if t >= least])
        return 0 if tdb.stable == INFINITY else held

    return most


@pytest.mark.parametrize("emit", LEVELS)
@seeds(25)
def test_promises(emit: str, seeds: range) -> None:
    for seed in seeds:
        rng = Random(f"{seed} {emit}")
        name, (n, by) = rng.choice(list(USES)), rng.choice(SHAPES)
        feeds = feeds_of(rng, endless=True)
        check_promises(
            lambda: make(name, n, by, emit),  # noqa: B023
            means(name, n, by),
            feeds,
            on_update=emit == "on_update",
            stable=stable_rule(name, n, by),
            retained=retained(name, n, by),
        )
        check_batches(lambda: make(name, n, by, emit), means(name, n, by), feeds, rng)  # noqa: B023


def test_the_level_on_close_never_emits_an_adjust_and_others_agree_with_it() -> None:
    for name in list(USES)[::2]:
        for n, by in SHAPES:
            feeds = feeds_of(Random(f"close {n} {by} {name}"))
            outputs = []
            for emit in LEVELS:
                operator = make(name, n, by, emit)
                emitted = [e for _, element in feeds for e in operator.process(element)]
                assert emit != "on_close" or inserts_only(emitted), emitted
                outputs.append(tdb_of(emitted))
            assert outputs[0] == outputs[1] == outputs[2]


def test_a_stream_with_revisions_and_its_final_events_have_equal_windows() -> None:
    for name in list(USES)[::2]:
        for n, by in SHAPES:
            feeds = feeds_of(Random(f"revisions {n} {by} {name}"))
            final = without_revisions([element for _, element in feeds])
            one, two = make(name, n, by), make(name, n, by)
            revised = [e for _, element in feeds for e in one.process(element)]
            assert tdb_of(revised) == tdb_of(two.process_batch(final))


@pytest.mark.parametrize("name", ["every", "lifetimes"])
@pytest.mark.parametrize("by", ["start", "end"])
def test_the_stable_point_is_tight(name: str, by: str) -> None:
    """n = 2: one point more makes a window."""
    streams = [feeds_of(Random(seed), close=False, length=8) for seed in range(8)]
    for emit in LEVELS:
        share = share_tight(
            lambda: make(name, 2, by, emit),  # noqa: B023
            streams,
            PAYLOADS,
            below=True,
        )
        assert share >= 0.5, (emit, share)


@pytest.mark.parametrize("emit", LEVELS)
@pytest.mark.parametrize("kind", ["incremental", "whole", "values"])
def test_what_user_code_raises_leaves_the_state_as_before_the_call(kind: str, emit: Any) -> None:
    for by in ("start", "end"):

        def raising(hook: Raising, by: Any = by) -> CountWindows:
            use = Application(raising_modules(hook)[kind], value=value_of)
            return CountWindows(2, use, by=by, key=group_of, emit=emit)

        check_taken_back(raising, f"{kind} {emit} {by}")


@seeds(4)
def test_a_time_bound_module_lets_the_stable_point_pass_on_update(seeds: range) -> None:
    """n = 1: what passes events on changes nothing before an element's sync time."""
    use = Used(passing, "none", "unchanged")
    means = grouped(lambda tdb: meaning.count_windows(tdb, 1, "start"), use.rows)
    for seed in seeds:
        check_promises(
            lambda: CountWindows(1, use.application(), key=group_of),
            means,
            feeds_of(Random(f"bound {seed}")),
            stable=lambda run: run.inputs[0].stable,
        )


def test_a_window_with_a_member_without_a_final_end_is_not_removed() -> None:
    """n = 1, [3, 8), stable(4), 8 becomes 13: the row at 3 is replaced."""
    windows = make("lifetimes", 1, "start")
    row = ("g", (3, 4, (1, 3, 8)))
    assert windows.process_batch([Insert(("g", 1), 3, 8), Stable(4)]) == [
        Insert(row, 3, 4),
        Stable(3),
    ]
    assert windows.process_batch([Adjust(("g", 1), 3, 8, 13), Stable(14)]) == [
        Adjust(row, 3, 4, 3),
        Insert(("g", (3, 4, (1, 3, 13))), 3, 4),
        Stable(14),
    ]


def test_an_end_that_a_closed_window_does_not_see_may_move() -> None:
    windows = make("lifetimes-right", 1, "start")
    assert windows.process_batch([Insert(("g", 1), 3, 8), Stable(4)]) == [
        Insert(("g", (3, 4, (1, 3, 4))), 3, 4),
        Stable(4),
    ]
    assert windows.process(Adjust(("g", 1), 3, 8, 13)) == []
    assert not windows.refused


def test_what_its_state_shows_to_be_illegal_changes_nothing() -> None:
    for by in ("start", "end"):
        for name in USES:
            windows = make(name, 2, by)
            windows.process_batch([Insert(("g", 1), 6, 8), Stable(7)])
            illegal: list[Element] = [
                Insert(("g", 1), 6, 9),
                Adjust(("g", 1), 8, 9, 8),
                Adjust(("h", 1), 8, 9, 8),
            ]
            check_refused(windows, illegal)


def test_windows_of_no_points_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="windows of 0 points"):
        make("every", 0, "start")
    with pytest.raises(ConfigurationError, match="not 'middle'"):
        make("every", 2, "middle")


def test_the_cost_is_that_of_the_windows_touched() -> None:
    costs = []
    for n in (50, 200):
        windows = make("every", 3, "start")
        windows.process_batch([Insert(("g", i), 10 * i, 10 * i + 5) for i in range(n)])
        before = windows.touched
        windows.process(Insert(("g", 1), 5 * n + 3, 5 * n + 4))
        one = windows.touched - before
        windows.process(Stable(11))
        costs.append((one, windows.touched - before - one))
    assert costs[0] == costs[1]
