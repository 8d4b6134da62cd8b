"""A query whose plan is switched: its output goes on as one stream of the same meaning."""

import gc
from random import Random
from time import process_time

import pytest

from lmerge_service.core import Policy, lmerge
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.queries.expressions import col
from lmerge_service.queries.live_events import LiveEvents
from lmerge_service.queries.physical import physical
from lmerge_service.queries.plan import count
from lmerge_service.queries.plan_switch import RunningQuery, saved_output
from lmerge_service.tdb import TDB, reconstitute
from tests.queries.composed import drawn
from tests.queries.switching import (
    EQUIVALENT,
    ROWS,
    A,
    B,
    Switching,
    history_of,
    plans_of,
    streams_for,
)
from tests.seeds import seeds

NAMES = pytest.mark.parametrize("name", EQUIVALENT)


@NAMES
@seeds(6)
def test_plans_switched_at_any_time_mean_one_query(name: str, seeds: range) -> None:
    queries = EQUIVALENT[name]
    for seed in seeds:
        rng = Random(seed)
        run = Switching(plans_of(rng, queries))
        often = rng.choice((0.1, 0.3))
        rows = rng.choice((ROWS, ROWS[:1]))
        for source, element in streams_for(rng, queries[0], payloads=rows):
            run.feed(source, [element])
            draw = rng.random()
            if draw < often:
                run.switch(plans_of(rng, queries))
            elif draw < 1.5 * often:
                run.resume(plans_of(rng, queries))
            elif draw < 2 * often:
                run.restart()
        run.check_end()


@seeds(10)
def test_random_queries_switch_between_physical_plans(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        query = drawn(rng, rng.randrange(1, 4))
        run = Switching(plans_of(rng, [query]))
        for source, element in streams_for(rng, query, length=8):
            run.feed(source, [element])
            if rng.random() < 0.25:
                run.switch(plans_of(rng, [query]))
        run.check_end()


@NAMES
@seeds(2)
def test_batches_and_what_of_them_is_switched(name: str, seeds: range) -> None:
    queries = EQUIVALENT[name]
    for seed in seeds:
        rng = Random(seed)
        run = Switching(plans_of(rng, queries))
        left = streams_for(rng, queries[0], length=16)
        while left:
            source, size = left[0][0], rng.choice((1, 3, 6))
            batch: list[Element] = []
            while left and left[0][0] == source and len(batch) < size:
                batch.append(left.pop(0)[1])
            run.feed(source, batch)
            if rng.random() < 0.3:
                run.switch(plans_of(rng, queries))
        run.check_end()


@NAMES
@seeds(2)
def test_between_plans_that_emit_on_update_a_switch_emits_nothing(name: str, seeds: range) -> None:
    queries = [physical(query) for query in EQUIVALENT[name]]
    for seed in seeds:
        rng = Random(seed)
        run = Switching(rng.choice(queries))
        for source, element in streams_for(rng, EQUIVALENT[name][0]):
            run.feed(source, [element])
            if rng.random() < 0.5:
                emitted = run.switch(rng.choice(queries))
                assert not [each for each in emitted if not isinstance(each, Stable)]


@NAMES
@seeds(2)
def test_a_merge_takes_a_switched_query_for_a_replica_like_any_other(
    name: str, seeds: range
) -> None:
    queries = EQUIVALENT[name]
    for seed in seeds:
        rng = Random(seed)
        rows = (("a", 1), ("b", 1), ("c", 1))
        run, twin = Switching(plans_of(rng, queries)), Switching(plans_of(rng, queries))
        merge = lmerge("R4", Policy(adjust=rng.choice(("lazy", "eager"))))
        merge.attach("switched")
        merge.attach("twin")
        merged = []
        for source, element in streams_for(rng, queries[0], payloads=rows):
            for replica, running in (("switched", run), ("twin", twin)):
                emitted = running.feed(source, [element])
                if replica == "switched" and rng.random() < 0.2:
                    emitted += running.switch(plans_of(rng, queries))
                merged += merge.process_batch(replica, emitted)
                merge.check()
        if run.is_unique:
            assert not merge.breaches()
            assert reconstitute(merged) == run.wanted()


@seeds(10)
def test_restored_in_the_midst_of_a_switch_it_goes_on_alike(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        queries = EQUIVALENT[rng.choice(list(EQUIVALENT))]
        run = Switching(plans_of(rng, queries))
        feeds = streams_for(rng, queries[0])
        at = rng.randrange(len(feeds))
        twin: RunningQuery | None = None
        for position, (source, element) in enumerate(feeds):
            if position == at:
                run.switch(plans_of(rng, queries))
                twin = RunningQuery(run.query.plan)
                twin.restore(run.query.snapshot())
            emitted = run.feed(source, [element])
            if twin is not None:
                assert twin.process_batch(source, [element]) == emitted
                assert twin.stats()[-1]["held"] == run.query.stats()[-1]["held"]


# Literally


def test_an_event_across_the_stable_point_keeps_its_start() -> None:
    run = Switching(physical(A.distinct()))
    row = ("x", 1)
    given: list[Element] = [Insert(row, 2, 5), Insert(row, 4, 9), Insert(row, 8, 11), Stable(6)]
    assert run.feed("a", given) == [Insert(row, 2, 11), Stable(6)]
    # Without [2, 5), which the new plan does not need, its event starts at 4.
    assert run.switch(physical(A.distinct())) == []
    assert run.query.network.operators[-1].process_batch([]) == []
    assert run.query.is_switching
    assert run.feed("a", [Adjust(row, 8, 11, 8)]) == [Adjust(row, 2, 11, 9)]
    assert run.feed("a", [Insert(row, 20, 21)]) == [Insert(row, 20, 21)]
    assert run.feed("a", [Stable(9)]) == [Stable(9)]
    assert run.query.is_switching  # [2, 9) may still grow
    assert run.feed("a", [Adjust(row, 4, 9, 12), Stable(13)]) == [
        Adjust(row, 2, 9, 12),
        Stable(13),
    ]
    assert not run.query.is_switching


def test_what_the_new_plan_has_not_emitted_waits_and_its_stables_are_withheld() -> None:
    counted = A.by("k").aggregate(n=count())
    run = Switching(physical(counted))
    assert run.feed("a", [Insert(("x", 1), 2, 9), Insert(("y", 1), 7, 9), Stable(5)]) == [
        Insert(("x", 1), 2, 9),
        Insert(("y", 1), 7, 9),
        Stable(5),
    ]
    assert run.switch(physical(counted, emit="on_close")) == []
    assert (run.query.stable, run.query.network.stable) == (5, 2)
    assert run.feed("a", [Adjust(("y", 1), 7, 9, 7), Insert(("z", 1), 8, 9)]) == []
    # By its stable the new plan shows that there is no y; x it emits itself, which changes nothing.
    assert run.feed("a", [Stable(10)]) == [
        Adjust(("y", 1), 7, 9, 7),
        Insert(("z", 1), 8, 9),
        Stable(10),
    ]
    assert not run.query.is_switching


def test_a_plan_that_is_ahead_takes_the_stable_along() -> None:
    counted = A.by("k").aggregate(n=count())
    run = Switching(physical(counted, emit="on_close"))
    assert run.feed("a", [Insert(("x", 1), 2, 9), Stable(5)]) == [Stable(2)]
    assert run.switch(physical(counted)) == [Insert(("x", 1), 2, 9), Stable(5)]
    assert not run.query.is_switching
    assert run.switch(physical(counted)) == []


def test_of_events_with_equal_payloads_each_continues_one() -> None:
    row = ("x", 1)
    coalesced = physical(A.coalesce())
    parts = [Insert(row, 1, 4), Insert(row, 3, 9), Insert(row, 2, 12), Insert(row, 4, 8)]
    run = Switching(coalesced)
    run.feed("a", [*parts, Stable(6)])
    assert sorted(run.output) == [(row, 1, 12), (row, 2, 9), (row, 3, 8)]
    assert run.switch(coalesced) == []
    assert run.feed("a", [Adjust(row, 2, 12, 7)])
    run.feed("a", [Stable(INFINITY)])


def test_a_query_resumes_from_its_output_alone() -> None:
    counted = A.by("k").aggregate(n=count())
    history: dict[str, list[Element]] = {
        "a": [Insert(("x", 1), 4, 9), Insert(("x", 2), 5, 7), Stable(6)]
    }
    output = [(("x", 1), 2, 5), (("x", 2), 3, 9)]  # the second was two events before [4, 9)
    query, emitted = RunningQuery.resume(physical(counted), output[1:], 6, history)
    assert emitted == [Adjust(("x", 2), 3, 9, 7), Insert(("x", 1), 7, 9)]
    assert query.process_batch("a", [Adjust(("x", 2), 5, 7, 8), Stable(8)]) == [
        Adjust(("x", 1), 7, 9, 7),
        Adjust(("x", 2), 3, 7, 8),
        Insert(("x", 1), 8, 9),
        Stable(8),
    ]


def test_another_query_contradicts_and_its_output_stays_legal() -> None:
    run = RunningQuery(physical(A))
    output = TDB()
    for element in run.process_batch("a", [Insert(("x", 1), 2, 9), Stable(5)]):
        output.apply(element)
    history = {"a": history_of(TDB([(("y", 1), 2, 9)], 5), 5)}
    for element in run.switch_plan(physical(A), history):
        output.apply(element)
    assert run.contradictions == 2  # y is across the stable point, x is not
    for element in run.process_batch("a", [Adjust(("y", 1), 2, 9, 7), Stable(20)]):
        output.apply(element)
    assert run.stats()[-1]["operator"] != "SwitchedOutput"


def test_a_snapshot_has_the_output_for_any_plan() -> None:
    counted = A.by("k").aggregate(n=count())
    query = RunningQuery(physical(counted, emit="on_close"))
    query.process_batch("a", [Insert(("x", 1), 2, 4), Insert(("x", 1), 6, 9), Stable(5)])
    saved = query.snapshot()
    with pytest.raises(StateError, match="plan"):
        RunningQuery(physical(counted)).restore(saved)
    output = saved_output(saved)
    output.apply([])
    assert (list(output), output.stable) == ([], 5)
    history: dict[str, list[Element]] = {"a": [Insert(("x", 1), 6, 9), Stable(5)]}
    _, emitted = RunningQuery.resume(physical(counted), output, output.stable, history)
    assert emitted == [Insert(("x", 1), 6, 9)]
    for damaged in (b"", saved[:-1], bytes(64)):
        with pytest.raises(StateError, match="damaged"):
            saved_output(damaged)


def test_plans_that_cannot_go_on_are_refused_and_the_query_stays() -> None:
    query = RunningQuery(physical(A.distinct()))
    query.process_batch("a", [Insert(("x", 1), 2, 9), Stable(5)])
    before = query.snapshot()
    with pytest.raises(ConfigurationError, match=r"m: int.*can't go on.*k: str, n: int"):
        query.switch_plan(physical(A.rename(m="n")), {"a": []})
    with pytest.raises(ConfigurationError, match="'b', of which no history is given; there is 'a'"):
        query.switch_plan(physical(A.union(B)), {"a": []})
    least = (
        r"'a' has its events with ve >= 6; to go on at stable\(5\) the plan needs its events with"
    )
    with pytest.raises(ConfigurationError, match=f"{least} ve >= 5"):
        query.switch_plan(physical(A.distinct()), {"a": []}, reaching={"a": 6})
    with pytest.raises(ConfigurationError, match="needs all its events"):
        query.switch_plan(physical(A.last_rows(1)), {"a": []}, reaching={"a": 0})
    assert query.snapshot() == before


def test_live_events_are_swept_now_and_then() -> None:
    live = LiveEvents()
    for t in range(30_000):
        live.apply([Insert(t % 3, t, t + 5), Insert(t % 3, t, t + 5), Stable(t)])
        assert live.entries < 17_000
    live.check()
    assert live.counted() is live.counted(), "swept, though nothing has come since"
    assert len(live) == 12
    assert live.entries < 50
    copied = LiveEvents.loaded(live.state())
    assert (list(copied), copied.stable) == (list(live), live.stable)
    live.apply([Adjust(2, 29_999, 30_004, 30_001), Adjust(2, 29_999, 30_004, 29_999)])
    assert [event for event in live if event.vs == 29_999] == [(2, 29_999, 30_001)]
    live.apply([Stable(INFINITY)])
    assert (len(live), live.entries) == (0, 0)


@pytest.mark.deep
def test_a_hundred_thousand_live_events_are_switched_in_a_second() -> None:
    query, number = A.where(col.n >= 0), 100_000
    events: list[Element] = [Insert((f"k{n}", n), n % 1_000, 2_000 + n) for n in range(number)]
    running = RunningQuery(physical(query))
    history: dict[str, list[Element]] = {"a": [*events, Stable(1_500)]}
    running.process_batch("a", history["a"])
    taken = []
    for _ in range(5):
        gc.collect()
        begun = process_time()
        assert running.switch_plan(physical(query), history) == []
        taken.append(process_time() - begun)
    assert len(running.output) == number
    assert min(taken) < 1
