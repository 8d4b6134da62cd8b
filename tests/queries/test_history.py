"""Required history: what a replica that joins late has to read, and from when on it is right."""

from collections.abc import Mapping
from random import Random

import pytest

from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.queries import logical
from lmerge_service.queries.expressions import col
from lmerge_service.queries.logical import Node
from lmerge_service.queries.meaning.plans import meaning
from lmerge_service.queries.module_library import average, time_weighted_average
from lmerge_service.queries.physical import build
from lmerge_service.queries.plan import (
    Query,
    apply,
    count,
    counting,
    facts,
    first,
    hopping,
    snapshots,
    sum_,
    tumbling,
)
from lmerge_service.queries.properties import has_exact_starts, joining_at, required_history
from lmerge_service.tdb import TDB
from tests.queries.composed import FIELDS, ROWS, SOURCES, drawn
from tests.queries.promises import tdb_of
from tests.queries.streams import legal_stream
from tests.seeds import seeds

Given = Mapping[str, TDB]
points, one, two = SOURCES["points"], SOURCES["one"], SOURCES["two"]
distinct = one.distinct()
WEIGHED = apply(time_weighted_average, "n", {"n": float}, clipping="right")
MEAN = apply(average, "n", {"n": float})


def given_for(rng: Random, plan: Node, *, endless: bool = True) -> dict[str, TDB]:
    """The TDBs of the sources of a plan."""
    return {
        name: tdb_of(
            legal_stream(rng, payloads=ROWS, points=name in ("points", "more"), endless=endless)
        )
        for name in logical.sources(plan)
    }


def since(given: Given, need: Mapping[str, int]) -> dict[str, TDB]:
    """The events that end at the needed time of their source, or later."""
    return {name: TDB(e for e in tdb if e.ve >= need[name]) for name, tdb in given.items()}


def relevant(plan: Node, found: TDB, before: int) -> TDB:
    """What the theorem is about: rows that end at the time or later, but for the starts before it
    of rows that reach it where starts are not exact."""
    exact = has_exact_starts(plan)
    return TDB(
        (p, vs if exact or vs >= before else before - 1, ve) for p, vs, ve in found if ve >= before
    )


def agree(plan: Node, given: Given, need: Mapping[str, int], before: int) -> bool:
    """Whether the needed history gives what all of it gives, from a time on."""
    whole, known = meaning(plan, given), meaning(plan, since(given, need))
    return relevant(plan, known, before) == relevant(plan, whole, before)


@seeds(60, most=600)
def test_the_required_history_of_random_plans_suffices(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        plan = drawn(rng, rng.randrange(1, 5)).plan
        given = given_for(rng, plan)
        for before in range(0, 18, 2):
            need = required_history(plan, before)
            assert agree(plan, given, need, before), (seed, before, need)


@seeds(30, most=300)
def test_a_network_that_joins_late_agrees_from_then_on(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        query = drawn(rng, rng.randrange(1, 5))
        given = given_for(rng, query.plan)
        before = rng.randrange(18)
        need = required_history(query.plan, before)
        found = [fed(query, tdbs) for tdbs in (given, since(given, need))]
        whole, known = (relevant(query.plan, tdb, before) for tdb in found)
        assert known == whole, (seed, before, need)


def fed(query: Query, given: Given) -> TDB:
    """What a network makes of events, and then of the stables."""
    network, output = build(query), TDB()
    emitted = [e for name, tdb in given.items() for e in network.process_batch(name, _inserts(tdb))]
    emitted += [e for name in given for e in network.process(name, Stable(INFINITY))]
    for element in emitted:
        output.apply(element)
    return output


def _inserts(tdb: TDB) -> list[Element]:
    return [Insert(*event) for event in sorted(tdb, key=repr)]


# Each operator: its need is enough, and no more than that

TIGHT: dict[str, Query] = {
    "select": points.where(col.n > 1),
    "project": one.select("k"),
    "union": one.union(two),
    "window": one.window(3),
    "window of inexact starts": distinct.window(3),
    "shift": one.shift(2),
    "shift back": one.shift(-2),
    "extend": one.extend(2),
    "shorten": one.shorten(2),
    "shorten inexact starts": distinct.shorten(2),
    "at_most": one.at_most(3),
    "at_most of inexact starts": distinct.at_most(3),
    "hop of inexact starts": distinct.hop(3, 4),
    "hop": one.hop(1, 4),
    "quantise": one.quantise(3),
    "starts": one.starts(),
    "starts of inexact ones": distinct.starts(),
    "ends": one.ends(),
    "last": one.last(),
    "join": one.join(two.rename(m="n"), "k"),
    "left join": one.left_join(two.rename(m="n"), "k"),
    "semi-join": one.semi_join(two, "k"),
    "anti-join": one.anti_join(two, "k"),
    "clip": one.at_most(4).clip(two, "k"),
    "clip by inexact starts": one.at_most(4).clip(two.distinct(), "k"),
    "clip of inexact starts": one.except_(two).join(points.rename(m="n"), "k").clip(two, "k"),
    "distinct": distinct,
    "except_all": one.except_all(two),
    "aggregate": one.by("k").aggregate(n=count()),
    "cut aggregate": one.by("k").aggregate(cut=True, n=count()),
    "first": one.by("k").aggregate(n=first("n")),
    "hopping": points.windows(hopping(4, every=2)).by("k").aggregate(n=count()),
    "tumbling": one.at_most(5).windows(tumbling(3)).by("k").aggregate(n=count()),
    "first of inexact starts": distinct.join(one.at_most(3).rename(m="n"), "k")
    .windows(tumbling(3))
    .by("k")
    .aggregate(n=first("n")),
    "module": one.at_most(5).windows(tumbling(3)).by("k").apply(WEIGHED),
    "snapshots": one.windows(snapshots()).by("k").apply(MEAN),
    "snapshots of lifetimes": one.at_most(4).windows(snapshots()).by("k").apply(WEIGHED),
    "groups": one.by("k").apply(lambda group: group.distinct().at_most(3)),
    "chain": one.distinct().window(3).by("k").aggregate(n=count()).at_most(2),
}
STATE_ONLY: dict[str, Query] = {
    "inserts": one.inserts(),
    "deletes": one.deletes(),
    "last_rows": one.last_rows(2),
    "count windows": one.windows(counting(2)).by("k").apply(MEAN),
    "gap": one.aggregate(gap=True, n=count()),
    "clip of inexact starts": distinct.clip(two, "k"),
    "clip of what has no longest": one.clip(two, "k"),
    "snapshots of lifetimes": one.windows(snapshots()).by("k").apply(WEIGHED),
    "groups": one.by("k").apply(lambda group: group.last_rows(1)),
    "first of inexact starts": distinct.by("k").aggregate(n=first("n")),
}


@pytest.mark.parametrize("name", TIGHT)
def test_each_need_suffices(name: str) -> None:
    plan = TIGHT[name].plan
    for seed in range(20):
        given = given_for(Random(seed), plan)
        for before in range(18):
            need = required_history(plan, before)
            assert agree(plan, given, need, before), (seed, before, need)


LOOSE = {"clip of inexact starts", "snapshots of lifetimes", "first of inexact starts"}
"""Where a bound of lengths stands in for the starts themselves."""


@pytest.mark.parametrize("name", sorted(TIGHT.keys() - LOOSE))
def test_less_history_is_found_out(name: str) -> None:
    """For each source one tick less is too little for some stream."""
    plan = TIGHT[name].plan
    for source in logical.sources(plan):
        assert differs(plan, source), source


def differs(plan: Node, source: str) -> bool:
    """Whether some stream shows that a tick more of this source was needed."""
    for seed in range(400):
        given = given_for(Random(seed), plan)
        for before in range(4, 16):
            need = required_history(plan, before)
            if not agree(plan, given, need | {source: need[source] + 1}, before):
                return True
    return False


@pytest.mark.parametrize("name", STATE_ONLY)
def test_what_depends_on_all_that_was_resumes_from_state_only(name: str) -> None:
    plan = STATE_ONLY[name].plan
    assert START in required_history(plan, 9).values()
    assert joining_at(plan, dict.fromkeys(logical.sources(plan), 5)) == INFINITY
    assert joining_at(plan, dict.fromkeys(logical.sources(plan), START)) == START
    late = {n: 8 if at == START else at for n, at in required_history(plan, 9).items()}
    assert any(not agree(plan, given_for(Random(seed), plan), late, 9) for seed in range(1_500)), (
        "some old event matters"
    )


# The two counterexamples to needs without exact starts


def test_a_cut_above_rows_without_exact_starts_needs_them_whole() -> None:
    """A late joiner would begin the distinct row [4, 14) at 8, and cut it at 11."""
    plan = distinct.at_most(3).plan
    given = {"one": TDB([(("a", 1), 4, 10), (("a", 1), 8, 14)])}
    assert meaning(plan, given) == TDB([(("a", 1), 4, 7)])
    assert required_history(plan, 11) == {"one": 8}
    assert not agree(plan, given, {"one": 11}, 11)
    assert agree(plan, given, {"one": 8}, 11)


def test_a_clip_of_rows_without_exact_starts_needs_all() -> None:
    """What ended the row [4, 11) lies before where a late joiner would begin it."""
    plan = distinct.clip(two, "k").plan
    given = {
        "one": TDB([(("a", 1), 4, 8), (("a", 1), 7, 11)]),
        "two": TDB([(("a", 2), 7, 8)]),
    }
    assert meaning(plan, given) == TDB([(("a", 1), 4, 7)])
    assert required_history(plan, 9) == {"one": START, "two": START}
    assert not agree(plan, given, {"one": 9, "two": START}, 9)


def test_a_cut_snapshot_that_is_there_may_have_begun_where_another_event_ended() -> None:
    plan = TIGHT["cut aggregate"].plan
    given = {"one": TDB([(("a", 1), 1, 3), (("a", 1), 1, 9)])}
    assert meaning(plan, given) == TDB([(("a", 2), 1, 3), (("a", 1), 3, 9)])
    assert meaning(plan, since(given, {"one": 5})) == TDB([(("a", 1), 1, 9)])
    assert not has_exact_starts(plan)


# Joining


@pytest.mark.parametrize(
    "name", [n for n in TIGHT if set(logical.sources(TIGHT[n].plan)) <= {"points"}]
)
def test_facts_from_a_time_on_are_right_from_the_joining_time_and_no_earlier(name: str) -> None:
    plan = TIGHT[name].plan
    early = 0
    for seed in range(60):
        given = given_for(Random(seed), plan)
        for start in range(3, 9):
            facts_since = {"points": start + 1}  # a fact of time t ends at t + 1
            joining = joining_at(plan, {"points": start})
            assert agree(plan, given, facts_since, joining), (seed, start)
            early += not agree(plan, given, facts_since, joining - 1)
    assert early


def right(plan: Node, given: Given, start: int, joining: int) -> bool:
    """Whether the facts from `start` on give the very events that all of them give, from the
    joining time on."""
    tdbs = given, since(given, dict.fromkeys(given, start + 1))
    whole, known = (
        TDB(event for event in meaning(plan, tdb) if event.ve >= joining) for tdb in tdbs
    )
    return whole == known


INEXACT: dict[str, Query] = {
    "cut aggregate": points.extend(3).by("k").aggregate(cut=True, n=count()),
    "left join": points.where(col.n == 1)
    .extend(5)
    .left_join(points.where(col.n > 1).extend(5).rename(m="n"), "k"),
    "anti-join": points.where(col.n == 1)
    .extend(5)
    .anti_join(points.where(col.n > 1).extend(5), "k"),
}


@pytest.mark.parametrize("name", INEXACT)
def test_without_exact_starts_a_replica_is_right_once_no_row_has_begun_before(name: str) -> None:
    plan = INEXACT[name].plan
    assert not has_exact_starts(plan)
    early = 0
    for seed in range(60):
        given = given_for(Random(seed), plan)
        for start in range(3, 9):
            joining = joining_at(plan, {"points": start})
            assert joining < INFINITY
            assert right(plan, given, start, joining), (seed, start)
            early += not right(plan, given, start, joining - logical.longest(plan))
    assert early, "rows that are there at the time have begun before"


def test_a_row_of_any_length_may_have_begun_before_any_time() -> None:
    """A count that stays the same is one row: a replica that joins has another one."""
    alive = points.extend(49).by("k").aggregate(n=count()).plan
    given = {"points": TDB((("a", 1), t, t + 1) for t in range(0, 300, 10))}
    known = TDB(event for event in given["points"] if event.ve > 100)
    row, late = (("a", 5), 40, 300), (("a", 5), 140, 300)
    assert row in list(meaning(alive, given))
    assert late in list(meaning(alive, {"points": known}))
    for plan in (alive, points.extend(49).distinct().plan):
        assert joining_at(plan, {"points": 100}) == INFINITY
        assert joining_at(plan, {"points": START}) == START


def test_the_joining_times_of_the_flights() -> None:
    hour = 3_600
    flights = facts("flights", time="time", fields=FIELDS)
    more = facts("more", time="time", fields=FIELDS)
    for query, joining in (
        (flights.where(col.n > 1), 1_001),
        (flights.windows(tumbling(hour)).by("k").aggregate(n=sum_("n")), 1_000 + hour),
        (flights.extend(hour - 1).clip(more, "k"), 1_000 + hour),
        (flights.shift(5), 1_006),
    ):
        since = dict.fromkeys(logical.sources(query.plan), 1_000)
        assert joining_at(query.plan, since) == joining


def test_facts_with_ends_of_their_own_may_reach_as_far_as_they_like() -> None:
    spans = facts("spans", time="from", until="to", fields=FIELDS)
    assert required_history(spans.plan, 9) == {"spans": 9}
    assert joining_at(spans.plan, {"spans": 4}) == INFINITY
    assert joining_at(spans.plan, {"spans": START}) == START


def test_needs_stay_within_the_times_that_there_are() -> None:
    assert required_history(one.window(9).plan, START + 3) == {"one": START}
    assert required_history(one.shift(-9).plan, INFINITY - 3) == {"one": INFINITY}
    assert required_history(one.window(9).plan, START) == {"one": START}
    assert joining_at(points.window(9).plan, {"points": INFINITY - 3}) == INFINITY
