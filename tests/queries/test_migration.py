"""Example 30.1 at a tenth of its rate: when each way is done, what comes meanwhile, and what of it
is lost with a plan; and what a Parallel Track makes of distinct (D9)."""

from functools import cache
from pathlib import Path

import pytest

from benchmarks.instants import difference
from benchmarks.migration import DEATHS, Played, draw, measure, play, run
from benchmarks.migration_ways import RESUMED, SECOND, WAYS, Example, joins
from benchmarks.parallel_track import ParallelTrack
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.queries.expressions import col
from lmerge_service.queries.meaning import plans as meaning
from lmerge_service.queries.physical import physical
from lmerge_service.queries.plan import elements
from lmerge_service.tdb import TDB, reconstitute
from tests.queries.promises import snapshot_at
from tests.queries.vectors import vectors

EXAMPLE = Example(rate=10)
SMALL = Example(rate=10, seconds=16, width=5 * SECOND, begins=5 * SECOND, dies=7 * SECOND)
DONE = {"adopt": 0, "GenMig": 10, "LMerge": 10, "LMerge, cold": 20, "Parallel Track": 20}


@cache
def _played(way: str, dies: str | None = None) -> Played:
    return play(way, EXAMPLE, dies)


def test_two_tracks_beside_each_other_have_a_row_twice() -> None:
    """D9, the first two elements of A and of B in D8. A result is old if one of its parts is."""
    case = vectors("pipes")["D9"]
    a, b = (elements(name, {"k": str, f"{name}_old": bool}) for name in ("a", "b"))

    below = a.join(b, "k").select("k", old=col.a_old | col.b_old).distinct()
    above = a.distinct().join(b.distinct(), "k").select("k", old=col.a_old | col.b_old)
    tracks = ParallelTrack(physical(below), physical(above), 1, 2 * 101)
    emitted: list[Element] = []
    given = {name: vectors("pipes")["D8"]["input"][name.upper()][:2] for name in ("a", "b")}
    for position in (0, 1):
        if position:
            tracks.begin(40, {"a": [Stable(40)], "b": [Stable(40)]})
        for name in ("a", "b"):
            payload, vs, ve = given[name][position]
            emitted += tracks.process_batch(vs, name, [Insert((payload,), vs, ve)])
    for name in ("a", "b"):
        emitted += tracks.process_batch(242, name, [Stable(INFINITY)])
    found = reconstitute(emitted)
    wanted = TDB([((payload,), vs, ve) for payload, vs, ve in case["expect"]])
    assert all(snapshot_at(found, t) == snapshot_at(wanted, t) for t in range(300))
    assert {snapshot_at(found, t)[("a",)] for t in range(70, 121)} == {2}


def test_the_example_is_what_its_plans_mean() -> None:
    inputs = {name: TDB() for name in "abcd"}
    for _, given in SMALL.steps():
        for name, batch in given.items():
            for element in batch:
                inputs[name].apply(element)
    meant = meaning.meaning(joins()[0].plan, inputs)
    assert len(meant) > 0
    for way in WAYS:
        assert play(way, SMALL).result == meant, way


@pytest.mark.full
def test_genmig_is_done_a_window_after_it_began() -> None:
    played = _played("GenMig")
    assert played.done == 30 * SECOND
    assert difference(played.result, _played("uninterrupted").result) == (0, 0)
    assert max(behind for _, behind in played.behind) == 0
    assert played.silence()[1] < SECOND


def test_a_parallel_track_is_silent_for_a_window_and_then_bursts() -> None:
    played = _played("Parallel Track")
    events = dict(played.per_second())
    assert played.done == 40 * SECOND
    assert all(events[second] == 0 for second in range(30, 39))
    assert events[39] > 5 * max(events[second] for second in range(10, 30))
    since, silent = played.silence()
    assert (since // SECOND, silent >= 10 * SECOND) == (29, True)
    assert difference(played.result, _played("uninterrupted").result) == (0, 0)


@pytest.mark.full
@pytest.mark.parametrize("way", DONE)
def test_each_way_ends_when_it_should_with_what_is_right(way: str) -> None:
    played = _played(way)
    assert played.done == (20 + DONE[way]) * SECOND
    assert difference(played.result, _played("uninterrupted").result) == (0, 0)
    if way != "Parallel Track":
        assert played.per_second() == _played("uninterrupted").per_second()


@pytest.mark.full
def test_what_is_lost_with_a_plan_that_dies_midway() -> None:
    """Result time that is missing, in percent, with the old plan and with the new one; to LMerge
    nothing happens once both are joined. An output of which the stable stays waits for good."""
    lost = {
        (way, dies): (
            round(
                100 * difference(_played(way, dies).result, _played("uninterrupted").result)[0], 1
            ),
            _played(way, dies).behind[-1][1] // SECOND,
        )
        for way in DONE
        for dies in DEATHS
    }
    assert lost == {
        ("adopt", "old"): (0, 0),  # it is gone by then
        ("adopt", "new"): (63.2, 25),
        ("GenMig", "old"): (10.9, 25),
        ("GenMig", "new"): (60.4, 25),
        ("LMerge", "old"): (0, 0),
        ("LMerge", "new"): (0, 0),
        ("LMerge, cold", "old"): (2.8, 25),
        ("LMerge, cold", "new"): (0, 0),
        ("Parallel Track", "old"): (2.8, 0),
        ("Parallel Track", "new"): (60.4, 25),
    }


@pytest.mark.full
def test_a_query_that_is_resumed_has_lost_nothing() -> None:
    played = _played(RESUMED, "new")
    assert difference(played.result, _played("uninterrupted").result) == (0, 0)
    assert 2 * SECOND <= played.silence()[1] < 3 * SECOND


@pytest.mark.full
def test_each_measure_is_reported_and_drawn(tmp_path: Path) -> None:
    played = run(1, SMALL)
    names = list[str]()
    measure(played, lambda name, _unit, values: names.append(name))
    assert {name.split(":")[0] for name in names} >= {"GenMig", "LMerge, the old plan dies"}
    draw(played, tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {"migration.svg", "migration-deaths.svg"}
