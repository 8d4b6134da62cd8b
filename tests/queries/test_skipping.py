"""Feedback through a plan: what is left out does not matter, and what is there is as it was."""

from random import Random
from typing import Any

import pytest

from lmerge_service.core import lmerge
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.queries import logical
from lmerge_service.queries.expressions import col
from lmerge_service.queries.meaning import plans as meaning
from lmerge_service.queries.network import Network
from lmerge_service.queries.physical import Emit, physical
from lmerge_service.queries.plan import Query, count, facts, hopping, sum_, tumbling
from lmerge_service.queries.plan_switch import RunningQuery
from lmerge_service.tdb import TDB
from tests.queries.composed import drawn
from tests.queries.switching import LEVELS, POINTS, A, plans_of, streams_for
from tests.seeds import seeds

OTHER = facts("others", time="t", fields={"k": str, "m": int})
JOINED = POINTS.window(3).join(OTHER.window(5), "k")
WINDOWED = POINTS.windows(hopping(4, every=2)).by("k").aggregate(n=count(), m=sum_("n"))
QUERIES = {
    "select": POINTS.where(col.n == 1).select("k"),
    "lifetimes": POINTS.extend(3).shift(2),
    "union": POINTS.window(4).union(POINTS.where(col.n > 1).extend(2)),
    "join": JOINED,
    "join with elements": POINTS.window(4).join(A.rename(m="n"), "k"),
    "windows": WINDOWED,
    "windows over lifetimes": POINTS.extend(2).windows(tumbling(3)).by("k").aggregate(n=count()),
    "windows of a join": JOINED.starts().windows(tumbling(4)).by("k").aggregate(n=count()),
    "aggregates of windows": WINDOWED.by("k").aggregate(n=sum_("n")),
    "snapshot aggregates": POINTS.window(4).by("k").aggregate(n=count()),
    "clip": POINTS.extend(5).clip(OTHER, "k"),
    "distinct": POINTS.window(5).distinct(),
}
NAMES = pytest.mark.parametrize("name", QUERIES)


def feeds_of(rng: Random, query: Query) -> list[tuple[str, Element]]:
    return streams_for(rng, query, length=14)


def fed(network: Network | RunningQuery, output: TDB, source: str, element: Element) -> None:
    for each in network.process_batch(source, [element]):
        output.apply(each)


def since(tdb: TDB, point: int) -> TDB:
    return TDB(event for event in tdb if event.ve >= point)


def check_skipping(rng: Random, query: Query, plan: Any) -> tuple[int, Network]:
    """Feeds a network, and skips at random times; returns how many inserts were left out."""
    network, output = plan.begin(), TDB()
    inputs = {name: TDB() for name in logical.sources(query.plan)}
    skip = START
    for source, element in feeds_of(rng, query):
        if rng.random() < 0.2:
            skip = max(skip, rng.randrange(0, 18))
            network.skip_before(skip)
        if rng.random() < 0.1:
            restored = plan.begin()
            restored.restore(network.snapshot())
            network = restored
        inputs[source].apply(element)
        before = TDB(output)
        fed(network, output, source, element)
        network.check()
        wanted, stable = meaning.meaning(query.plan, inputs), network.stable
        assert since(output.before(stable), skip) == since(wanted.before(stable), skip)
        # What was emitted is revised to the end: what is final is the meaning's, or not there.
        final = [event for event in output if event.ve < stable]
        missing = TDB(final)
        assert all(event in list(wanted) for event in missing), (before, output, wanted)
    assert network.stable == INFINITY
    assert not len(network)
    assert since(output, skip) == since(meaning.meaning(query.plan, inputs), skip)
    skipped = sum(network.skipped.values()) + sum(flow.skipped for flow in network.flows)
    return skipped, network


@NAMES
@pytest.mark.parametrize("emit", LEVELS)
@seeds(3)
def test_what_is_left_out_does_not_matter(name: str, emit: Emit, seeds: range) -> None:
    query = QUERIES[name]
    for seed in seeds:
        check_skipping(Random(seed), query, physical(query, emit=emit))


@seeds(12)
def test_random_plans_leave_out_what_does_not_matter(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        query = drawn(rng, rng.randrange(1, 4))
        check_skipping(rng, query, plans_of(rng, [query]))


@NAMES
@seeds(2)
def test_a_merge_with_feedback_has_the_output_of_one_without(name: str, seeds: range) -> None:
    query = QUERIES[name]
    for seed in seeds:
        outputs = []
        for heeds in (False, True):
            rng = Random(seed)
            plans = [physical(query, emit=rng.choice(LEVELS)) for _ in range(2)]
            merge, output = lmerge("R4"), TDB()
            for replica in ("first", "second"):
                merge.attach(replica)
            running = {"first": plans[0].begin(), "second": plans[1].begin()}
            feeds = feeds_of(rng, query)
            left = {"first": list(feeds), "second": list(feeds)}
            while any(left.values()):
                # The second falls behind, catches up, or both take turns.
                replica = rng.choice([name for name, rest in left.items() for _ in rest])
                if len(left["first"]) > 3 and rng.random() < 0.5:
                    replica = "first"
                source, element = left[replica].pop(0)
                for each in running[replica].process_batch(source, [element]):
                    for emitted in merge.process(replica, each):
                        output.apply(emitted)
                if heeds:
                    for behind, point in merge.feedback().items():
                        running[behind].skip_before(point)
            outputs.append(output)
            assert not merge.breaches()
        assert outputs[0] == outputs[1]


@seeds(10)
def test_plans_are_switched_under_feedback(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        query = QUERIES[rng.choice(list(QUERIES))]
        running, output, skip = RunningQuery(plans_of(rng, [query])), TDB(), START
        inputs = {name: TDB() for name in logical.sources(query.plan)}
        for source, element in feeds_of(rng, query):
            inputs[source].apply(element)
            fed(running, output, source, element)
            draw = rng.random()
            if draw < 0.2:
                skip = max(skip, rng.randrange(0, 18))
                running.skip_before(skip)
            elif draw < 0.4:
                history: dict[str, list[Element]] = {
                    name: [*(Insert(*event) for event in tdb), Stable(tdb.stable)]
                    for name, tdb in inputs.items()
                }
                for each in running.switch_plan(plans_of(rng, [query]), history):
                    output.apply(each)
            running.check()
        wanted = meaning.meaning(query.plan, inputs)
        assert since(output, skip) == since(wanted, skip)


# Literally


def test_facts_of_windows_that_do_not_matter_are_not_looked_at() -> None:
    for emit in ("on_close", "on_update"):
        query = POINTS.windows(tumbling(10)).by("k").aggregate(n=count())
        network = physical(query, emit=emit).begin()
        network.process_batch("points", [Insert(("a", 1), 5, 6)])
        network.skip_before(40)
        late = [Insert(("a", 1), t, t + 1) for t in (7, 12, 29, 30)]
        emitted = network.process_batch("points", [*late, Stable(40)])
        first = [Insert(("a", 2), 0, 10)] if emit == "on_update" else []
        assert [e for e in emitted if isinstance(e, Insert)] == [*first, Insert(("a", 1), 30, 40)]
        # [0, 10) has been emitted where it is on update, and is revised to the end.
        assert network.skipped == {"points": 2 if first else 3}


def test_joins_neither_probe_nor_keep_what_does_not_matter() -> None:
    network = physical(JOINED).begin()
    network.process_batch("points", [Insert(("a", 1), 0, 1)])
    network.skip_before(10)
    assert network.process_batch("points", [Insert(("a", 1), 6, 7), Insert(("a", 1), 7, 8)]) == []
    assert network.skipped == {"points": 1, "others": 0}
    assert network.process_batch("others", [Insert(("a", 2), 2, 3), Insert(("a", 3), 5, 6)]) == [
        Insert(("a", 1, 3), 7, 10)
    ]
    assert network.skipped == {"points": 1, "others": 1}
    network.skip_before(4)  # the highest point counts for good
    assert network.process_batch("points", [Insert(("a", 1), 6, 7)]) == []


def test_operators_without_exact_starts_keep_their_input() -> None:
    query = POINTS.window(4).by("k").aggregate(n=count())
    network = physical(query, emit="on_close").begin()
    network.skip_before(6)
    given: list[Element] = [Insert(("a", 1), 0, 1), Insert(("a", 1), 4, 5), Stable(20)]
    # The row [0, 8) begins with the first event, which ends at 4.
    assert network.process_batch("points", given) == [Insert(("a", 1), 0, 8), Stable(20)]
    assert network.skipped == {"points": 0}
    again: list[Element] = [Insert(("a", 1), 30, 31), Insert(("a", 1), 40, 41), Stable(60)]
    network.skip_before(40)
    assert network.process_batch("points", again) == [Insert(("a", 1), 40, 44), Stable(60)]
    assert network.stats()[-1]["skipped"] == 1


def test_elements_may_grow_so_that_none_is_left_out() -> None:
    network = physical(A.where(col.n > 0)).begin()
    network.skip_before(20)
    assert network.process_batch("a", [Insert(("a", 1), 2, 5)]) == [Insert(("a", 1), 2, 5)]
    assert network.skipped == {}


def test_what_feeds_two_is_left_out_where_neither_needs_it() -> None:
    network = physical(QUERIES["union"]).begin()
    network.skip_before(20)
    given: list[Element] = [
        Insert(("a", 2), 15, 16),
        Insert(("a", 2), 16, 17),
        Insert(("a", 2), 17, 18),
    ]
    emitted = network.process_batch("points", given)
    assert sorted((e.vs, e.ve) for e in emitted if isinstance(e, Insert)) == [
        (16, 20),
        (17, 20),
        (17, 21),
    ]
    assert network.skipped == {"points": 1}


def test_windows_that_do_not_matter_have_no_rows_of_any_event() -> None:
    query = A.at_most(9).windows(tumbling(10)).by("k").aggregate(n=count())
    network = physical(query).begin()
    assert network.process_batch("a", [Insert(("a", 1), 5, 6)]) == [Insert(("a", 1), 0, 10)]
    network.skip_before(40)
    within, across, reaching = [Insert(("a", 1), vs, vs + 8) for vs in (11, 16, 24)]
    assert network.process_batch("a", [within, across]) == []
    assert network.process_batch("a", [reaching]) == []  # [30, 40) has not begun
    assert network.process_batch("a", [Insert(("a", 1), 31, 33)]) == [Insert(("a", 2), 30, 40)]
    assert network.process_batch("a", [Adjust(("a", 1), 24, 32, 29)]) == [
        Adjust(("a", 2), 30, 40, 30),
        Insert(("a", 1), 30, 40),
    ]
    network.check()
    assert network.process_batch("a", [Stable(INFINITY)]) == [Stable(INFINITY)]
