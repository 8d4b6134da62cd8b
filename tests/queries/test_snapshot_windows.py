"""Snapshot windows with modules: against their meaning, level by level."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ModuleError
from lmerge_service.queries.meaning import windows as meaning
from lmerge_service.queries.modules import Application, udo
from lmerge_service.queries.operators.snapshot_windows import SnapshotWindows
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
    check_refused,
    check_taken_back,
    feeds_of,
    group_of,
    grouped,
    raising_modules,
    value_of,
)
from tests.seeds import seeds

LEVELS = ("on_update", "on_watermark", "on_close")


def make(name: str, emit: Any = "on_update") -> SnapshotWindows:
    return SnapshotWindows(USES[name].application(), key=group_of, emit=emit)


def means(name: str) -> Callable[[TDB], TDB]:
    return grouped(meaning.snapshot_windows, USES[name].rows)


def groups_of(tdb: TDB) -> list[TDB]:
    groups: dict[Any, list[Any]] = {}
    for event in tdb:
        groups.setdefault(group_of(event.payload), []).append(event)
    return [TDB(events) for events in groups.values()]


def is_open(name: str, window: Any, members: list[Any], point: int) -> bool:
    return window[1] >= point or (USES[name].sees_ends and any(e.ve >= point for e in members))


def stable_rule(name: str, emit: str) -> Callable[[Run], int]:
    """The least start of an open window, over all windows there are."""

    def rule(run: Run) -> int:
        tdb = run.inputs[0]
        point = tdb.stable
        if point in (START, INFINITY):
            return point
        if emit == "on_update" and not USES[name].module.time_sensitive:
            return point
        starts = [
            window[0]
            for group in groups_of(tdb)
            for window, members in meaning.snapshot_windows(group)
            if members and is_open(name, window, members, point)
        ]
        return min([point, *starts])

    return rule


def retained(name: str) -> Callable[[Run], int]:
    def most(run: Run) -> int:
        tdb = run.inputs[0]
        point = tdb.stable
        if point == INFINITY:
            return 0
        boundaries = 0
        for group in groups_of(tdb):
            held = [
                window[0]
                for window, members in meaning.snapshot_windows(group)
                if members and is_open(name, window, members, point)
            ]
            ends = {t for event in group for t in (event.vs, event.ve)}
            boundaries += len([t for t in ends if held and t >= min(held)])
        return boundaries

    return most


@pytest.mark.parametrize("emit", LEVELS)
@seeds(25)
def test_promises(emit: str, seeds: range) -> None:
    for seed in seeds:
        rng = Random(f"{seed} {emit}")
        name = rng.choice(list(USES))
        feeds = feeds_of(rng, endless=True)
        check_promises(
            lambda: make(name, emit),  # noqa: B023
            means(name),
            feeds,
            on_update=emit == "on_update",
            stable=stable_rule(name, emit),
            retained=retained(name),
        )
        check_batches(lambda: make(name, emit), means(name), feeds, rng)  # noqa: B023


def test_the_level_on_close_never_emits_an_adjust_and_others_agree_with_it() -> None:
    for name in USES:
        for seed in range(2):
            feeds = feeds_of(Random(f"close {seed} {name}"))
            outputs = []
            for emit in LEVELS:
                operator = make(name, emit)
                emitted = [e for _, element in feeds for e in operator.process(element)]
                assert emit != "on_close" or inserts_only(emitted), emitted
                outputs.append(tdb_of(emitted))
            assert outputs[0] == outputs[1] == outputs[2]


def test_a_stream_with_revisions_and_its_final_events_have_equal_windows() -> None:
    for name in USES:
        for seed in range(2):
            feeds = feeds_of(Random(f"revisions {seed} {name}"))
            final = without_revisions([element for _, element in feeds])
            one, two = make(name), make(name)
            revised = [e for _, element in feeds for e in one.process(element)]
            assert tdb_of(revised) == tdb_of(two.process_batch(final))


@pytest.mark.parametrize("name", ["every", "lifetimes", "lifetimes-full"])
def test_the_stable_point_is_tight(name: str) -> None:
    streams = [feeds_of(Random(seed), close=False, length=8) for seed in range(6)]
    for emit in LEVELS:
        share = share_tight(lambda: make(name, emit), streams, PAYLOADS)  # noqa: B023
        assert share >= 0.5, (emit, share)


@pytest.mark.parametrize("emit", LEVELS)
@pytest.mark.parametrize("kind", ["incremental", "whole", "values"])
def test_what_user_code_raises_leaves_the_state_as_before_the_call(kind: str, emit: Any) -> None:
    def raising(hook: Raising) -> SnapshotWindows:
        use = Application(raising_modules(hook)[kind], value=value_of)
        return SnapshotWindows(use, key=group_of, emit=emit)

    check_taken_back(raising, f"{kind} {emit}")


def test_a_window_that_failed_to_close_closes_when_it_is_tried_again() -> None:
    hook = Raising()
    use = Application(raising_modules(hook)["values"])
    windows = SnapshotWindows(use, emit="on_close")
    windows.process(Insert("a", 1, 3))
    hook.left = 1
    with pytest.raises(ModuleError):
        windows.process(Stable(5))
    windows.check()
    assert windows.process(Stable(5)) == [Insert("a", 1, 3), Stable(5)]


def test_a_snapshot_whose_end_is_the_stable_point_is_not_closed() -> None:
    """[1, 3), [3, 8), stable(5), stable(INFINITY) must give [1, 3) and [3, 8) as they are."""
    windows = make("every", "on_watermark")
    emitted = windows.process_batch([Insert(("g", 1), 1, 3), Insert(("g", 1), 3, 8), Stable(5)])
    assert emitted[-1] == Stable(3)
    assert windows.process(Adjust(("g", 1), 3, 8, 5)) == [
        Insert(("g", 1), 3, 5),
        Insert(("g", (1,)), 3, 5),
    ]


def test_a_module_bound_by_time_lets_the_stable_point_pass() -> None:
    @udo("1", time_sensitive=True, stamped=True, time_bound=True)
    def began(window: Any, events: Any) -> Any:
        return [(len(events), window.vs, window.vs + 1)]

    windows = SnapshotWindows(Application(began, clipping="full", timestamping="unchanged"))
    emitted = windows.process_batch([Insert("a", 1, 9), Stable(4)])
    assert emitted == [Insert(1, 1, 2), Stable(4)]
    assert windows.process(Insert("b", 6, 9)) == [Insert(2, 6, 7)]

    @udo("1", time_sensitive=True, stamped=True, time_bound=True)
    def lasts(window: Any, events: Any) -> Any:
        return [(window.ve, *window)]

    windows = SnapshotWindows(Application(lasts, clipping="full", timestamping="unchanged"))
    windows.process_batch([Insert("a", 1, 9), Stable(4)])
    with pytest.raises(ModuleError, match=r"time-bound.*changes at 6 what was at 1"):
        windows.process(Insert("b", 6, 9))


def test_what_its_state_shows_to_be_illegal_changes_nothing() -> None:
    for name in USES:
        windows = make(name)
        windows.process_batch([Insert(("g", 1), 6, 8), Stable(7)])
        illegal: list[Element] = [
            Insert(("g", 1), 6, 9),
            Adjust(("g", 1), 6, 9, 10),
            Adjust(("h", 1), 8, 9, 8),
        ]
        check_refused(windows, illegal)


def test_the_cost_is_that_of_the_snapshots_within() -> None:
    """With 4 times as many snapshots: the same per element, and per stable."""
    costs = []
    for n in (50, 200):
        windows = make("every")
        windows.process_batch([Insert(("g", i), 10 * i, 10 * i + 10) for i in range(n)])
        before = windows.touched
        windows.process_batch([Insert(("g", 1), 5 * n + 3, 5 * n + 12)])
        one = windows.touched - before
        windows.process(Stable(11))
        costs.append((one, windows.touched - before - one))
    assert costs[0] == costs[1]
