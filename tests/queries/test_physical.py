"""Physical plans: what is chosen, what it is checked for, and that it depends on no hash seed."""

import hashlib
import os
import subprocess
import sys
from random import Random

import msgspec
import pytest

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, ModuleError, StateError
from lmerge_service.queries import logical, module_library
from lmerge_service.queries.aggregates import Count, Max, Sum
from lmerge_service.queries.expressions import col, udf
from lmerge_service.queries.physical import Choice, PhysicalPlan, build, physical, window_plans
from lmerge_service.queries.plan import (
    apply,
    count,
    counting,
    elements,
    facts,
    hopping,
    max_,
    snapshots,
    sum_,
    tumbling,
)
from lmerge_service.queries.ranking import TopGroups
from lmerge_service.tdb import TDB
from tests.queries.composed import ROWS, Running, drawn, feeds_for, means, running
from tests.queries.promises import check_promises, tdb_of
from tests.queries.streams import legal_stream
from tests.queries.test_plan import QUERIES
from tests.seeds import seeds

flights = facts("flights", time="time", fields={"origin": str, "delay": int})
live = elements("live", {"k": str, "n": int})


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_runs(name: str) -> None:
    query = QUERIES[name]
    network = build(query)
    for source, leaf in logical.sources(query.plan).items():
        rows = [tuple(None for _ in leaf.fields), tuple(_some(c.kind) for c in leaf.fields)]
        batch = [Insert(row, t, t + 1) for t in (1, 2) for row in rows]
        network.process_batch(source, [*batch, Stable(2)])
    for source in network.sources:
        network.process(source, Stable(INFINITY))
    assert network.stable == INFINITY
    assert len(network) == 0
    network.check()


def _some(kind: object) -> object:
    return {"BOOL": True, "INT": 1, "FLOAT": 1.5, "STR": "departed"}[kind.name]  # type: ignore[attr-defined]


def test_a_physical_plan_is_a_value() -> None:
    hourly = flights.windows(tumbling(60)).by("origin").aggregate(n=count())
    plans = [
        physical(hourly),
        physical(hourly, emit="on_close"),
        physical(hourly, align=5),
        physical(hourly, choices={flights: Choice(align=5)}),
        physical(hourly, choices={hourly: Choice(emit="on_watermark")}),
        physical(flights),
    ]
    assert len({plan.fingerprint for plan in plans}) == len(plans)
    assert len(set(plans)) == len(plans)
    for plan in plans:
        packed = msgspec.msgpack.encode(plan)
        again = msgspec.msgpack.decode(packed, type=PhysicalPlan)
        assert again == plan
        assert again.fingerprint == plan.fingerprint
    assert physical(hourly) == physical(hourly.plan)
    with pytest.raises(StateError, match="the snapshot is of the plan"):
        plans[1].begin().restore(plans[0].begin().snapshot())


def test_equal_parts_run_once() -> None:
    late = flights.where(col.delay > 15)
    both = late.union(late.shift(1)).join(late.rename(more="delay"), "origin")
    kinds = [type(operator).__name__ for operator in build(both).operators]
    assert kinds == ["Select", "AlterLifetime", "Union", "Project", "Join"]


def test_choices_are_about_parts_of_the_query() -> None:
    hourly = flights.windows(tumbling(60)).by("origin").aggregate(n=count())
    with pytest.raises(ConfigurationError, match="no part of the query"):
        physical(hourly, choices={live: Choice(align=1)})
    with pytest.raises(ConfigurationError, match="no level 'eager'"):
        physical(hourly, emit="eager")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="panes are for"):
        physical(
            live.windows(tumbling(60)).aggregate(m=count()), choices={live: Choice(windows="panes")}
        )
    with pytest.raises(ConfigurationError, match="align is at least 0"):
        physical(hourly, align=-1)


def test_windows_are_expanded_only_where_events_end() -> None:
    """An event without end would be an event for infinitely many windows."""
    windows = tumbling(60)
    forms = [
        (flights.windows(windows).aggregate(n=count()), ("grid", "panes", "expand", "replay")),
        (live.at_most(9).windows(windows).aggregate(n=count()), ("grid", "expand")),
        (live.windows(windows).aggregate(n=count()), ("grid",)),
        (live, ("grid",)),
    ]
    for query, wanted in forms:
        assert window_plans(query.plan) == wanted
        for form in ("grid", "panes", "expand", "replay"):
            if form in wanted:
                physical(query, choices={query: Choice(windows=form)}).begin()
            else:
                with pytest.raises(ConfigurationError, match=f"{form} (is|are) for aggregates"):
                    physical(query, choices={query: Choice(windows=form)})
    with pytest.raises(ConfigurationError, match="no windows 'tiles'; there is grid, panes"):
        physical(live, choices={live: Choice(windows="tiles")})  # type: ignore[arg-type]


def test_a_query_of_a_source_alone_runs() -> None:
    for query, kinds in ((flights, ["Elements"]), (live, ["Elements"])):
        network = build(query)
        assert [type(operator).__name__ for operator in network.operators] == kinds
        name = network.sources[0]
        assert network.process(name, Insert(("a", 1), 3, 4)) == [Insert(("a", 1), 3, 4)]
    held = build(flights, align=INFINITY)
    assert held.process("flights", Insert(("a", 1), 3, 4)) == []
    assert held.process("flights", Stable(5)) == [Insert(("a", 1), 3, 4), Stable(5)]


def test_alignment_takes_revisions_out() -> None:
    now, later = build(live), build(live, align=10)
    stream: list[Element] = [
        Insert(("a", 1), 1, 5),
        Adjust(("a", 1), 1, 5, 9),
        Insert(("a", 2), 12, 13),
    ]
    assert now.process_batch("live", stream[:1]) == stream[:1]
    assert later.process_batch("live", stream[:2]) == []
    assert later.process_batch("live", stream[2:]) == [Insert(("a", 1), 1, 9)]


def test_illegal_elements_are_refused_where_they_enter() -> None:
    network = build(live.where(col.n > 0))
    assert network.process("live", Adjust(("a", 1), 1, 5, 9)) == []
    assert len(network.operators[0].refused) == 1
    assert not network.operators[1].refused


@seeds(20)
def test_panes_mean_what_windows_do(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        grid = hopping(rng.choice((2, 4, 6)), every=rng.choice((1, 2, 3)), origin=1)
        windows = live.starts().windows(grid).by("k")
        query = rng.choice(
            (
                windows.aggregate(n=count(), s=sum_("n")),
                windows.aggregate(most=max_("n")),
                windows.top(2, "n", by="n"),
                windows.top(2, "n", by=count()),
            )
        )
        stream = legal_stream(rng, payloads=ROWS, length=10, horizon=12)
        emit = rng.choice(("on_update", "on_watermark", "on_close"))
        panes = running(query, emit=emit, choices={query: Choice(windows="panes")})
        feeds = [(0, element) for element in stream]
        check_promises(panes, means(query), feeds, on_update=emit == "on_update")


def test_outer_joins_pad_the_sides_that_they_keep() -> None:
    right = elements("right", {"k": str, "m": int})
    mine, theirs, both = ("a", 1, None), ("b", None, 2), ("c", 3, 4)
    for join, rows in (
        (live.join, {both}),
        (live.left_join, {both, mine}),
        (live.right_join, {both, theirs}),
        (live.full_join, {both, mine, theirs}),
    ):
        network = build(join(right, "k"))
        network.process_batch("live", [Insert(("a", 1), 1, 5), Insert(("c", 3), 1, 5)])
        network.process_batch("right", [Insert(("b", 2), 1, 5), Insert(("c", 4), 1, 5)])
        emitted = [network.process(name, Stable(INFINITY)) for name in ("live", "right")]
        assert emitted[-1][-1:] == [Stable(INFINITY)]
        again = build(join(right, "k"))
        output = again.process_batch("right", [Insert(("b", 2), 1, 5), Insert(("c", 4), 1, 5)])
        output += again.process_batch("live", [Insert(("a", 1), 1, 5), Insert(("c", 3), 1, 5)])
        assert tdb_of(output) == TDB((row, 1, 5) for row in rows)


def test_snapshots_are_cut_or_joined_as_the_plan_chooses() -> None:
    batch: list[Element] = [Insert(("a", 1), 1, 5), Insert(("a", 2), 5, 9)]
    counted = TDB([(("a", 1), 1, 9)])
    assert tdb_of(build(live.by("k").aggregate(n=count())).process_batch("live", batch)) == counted
    cut = build(live.by("k").aggregate(cut=True, n=count())).process_batch("live", batch)
    assert tdb_of(cut) == TDB([(("a", 1), 1, 5), (("a", 1), 5, 9)])


def test_levels_are_those_that_are_chosen() -> None:
    """Of the plan, or of a part of it."""
    counted = live.by("k").aggregate(n=count())
    stream: list[Element] = [
        Insert(("a", 1), 1, 5),
        Insert(("a", 2), 3, 9),
        Adjust(("a", 2), 3, 9, 7),
        Stable(INFINITY),
    ]
    for network in (
        build(counted, emit="on_close"),
        build(counted, choices={counted: Choice(emit="on_close")}),
    ):
        emitted = [each for element in stream for each in network.process("live", element)]
        assert not any(isinstance(each, Adjust) for each in emitted)
    now = build(counted, emit="on_close", choices={counted: Choice(emit="on_update")})
    assert any(isinstance(each, Adjust) for e in stream for each in now.process("live", e))


# Modules and functions in plans


def halves(row: tuple[str, int]) -> list[tuple[str, int]]:
    return [(row[0], row[1] // 2)] * 2


def wrong(row: tuple[str, int]) -> object:
    return {0: [("a",)], 1: [("a", "b")], 2: ["ab"], 3: [1 // 0 if row[1] == 3 else 0]}[row[1]]


def cube(value: int) -> int:
    return value**3


def test_functions_of_the_users() -> None:
    query = live.flat_map(f"{__name__}:halves", {"k": str, "n": int}).select(
        "k", n=udf(f"{__name__}:cube", col.n, returns=int)
    )
    network = build(query)
    emitted = network.process("live", Insert(("a", 5), 1, 2))
    assert emitted == [Insert(("a", 8), 1, 2)] * 2
    broken = build(live.flat_map(f"{__name__}:wrong", {"k": str, "n": int}))
    for n, message in (
        (0, "a row of 2 columns"),
        (1, "wrong_type"),
        (2, "row of 2"),
        (3, "raised"),
    ):
        with pytest.raises(ModuleError, match=message):
            broken.process("live", Insert(("a", n), 1, 2))


@seeds(10)
def test_modules_in_plans_mean_what_they_do(seeds: range) -> None:
    median = apply(module_library.median, "n", {"m": float})
    mean = apply(module_library.time_weighted_average, "n", {"m": float}, clipping="full")
    short = live.at_most(4)
    queries = [
        short.starts().windows(hopping(4, every=2)).by("k").apply(median),
        short.starts().windows(tumbling(3)).apply(mean),
    ]
    queries += [
        short.windows(snapshots()).by("k").apply(mean),
        short.windows(snapshots()).apply(median),
        live.windows(counting(2)).by("k").apply(median),
        short.windows(counting(2, ends=True)).apply(mean),
    ]
    for seed in seeds:
        rng = Random(seed)
        for query in queries:
            stream = legal_stream(rng, payloads=ROWS[:4], length=8, horizon=10)
            check_promises(running(query), means(query), [(0, element) for element in stream])


# Ranking


def test_the_top_groups_are_those_of_all_rows_whatever_the_order() -> None:
    def made() -> TopGroups:
        return TopGroups(2, lambda row: row[:1], Sum(lambda row: row[1]), scored=True)

    rows = [("a", 5), ("b", 7), ("c", 1), ("a", 4), ("b", None), ("d", 7), (None, 9)]
    for seed in range(200):
        rng = Random(seed)
        top, state = made(), made().empty()
        held: list[tuple[str | None, int | None]] = []
        for _ in range(12):
            if held and rng.random() < 0.4:
                row = held.pop(rng.randrange(len(held)))
                state = top.remove(state, top.entry(row, 0))
            else:
                held.append(row := rng.choice(rows))
                state = top.add(state, top.entry(row, 0))
            totals: dict[str | None, int] = {}
            for key, value in held:
                totals[key] = totals.get(key, 0) + (value or 0)
            for key in totals:
                if all(value is None for other, value in held if other == key):
                    totals[key] = -1  # null, the least
            order = sorted(totals, key=lambda key: (-totals[key], key is not None, key or ""))
            wanted = [
                (key, None if totals[key] < 0 else totals[key], rank)
                for rank, key in enumerate(order[:2], 1)
            ]
            assert list(top.results(state)) == wanted
            again = top.loaded(msgspec.msgpack.decode(msgspec.msgpack.encode(top.saved(state))))
            assert again == state
            assert top.results(top.merge(top.copy(state), again)) == made().results(
                made().merge(made().copy(state), state)
            )


def test_groups_are_ranked_by_one_value() -> None:
    with pytest.raises(ValueError, match="none"):
        TopGroups(0, lambda row: row, Count())
    top = TopGroups(1, lambda row: row[:1], Max(lambda row: row[1]), ranked=False)
    with pytest.raises(ValueError, match="has no 1 of"):
        top.remove(top.empty(), top.entry(("a", 1), 0))
    assert top.results(top.add({}, top.entry(("a", 1), 0))) == (("a",),)
    with pytest.raises(ValueError, match="one value"):
        TopGroups(1, lambda row: row, top)


def test_the_top_carriers_by_all_their_delay() -> None:
    departed = facts("f", time="t", fields={"origin": str, "carrier": str, "delay": int})
    top = (
        departed.windows(tumbling(60))
        .by("origin")
        .top(2, "carrier", by=sum_("delay"), score="delay")
    )
    network = build(top)
    rows = [("JFK", "AA", 5), ("JFK", "UA", 7), ("JFK", "DL", 1), ("EWR", "UA", 2)]
    network.process_batch("f", [Insert(row, 3, 4) for row in rows])
    emitted = network.process_batch("f", [Insert(("JFK", "AA", 4), 9, 10), Stable(60)])
    assert emitted == [
        Adjust(("JFK", "UA", 7, 1), 0, 60, 0),
        Adjust(("JFK", "AA", 5, 2), 0, 60, 0),
        Insert(("JFK", "AA", 9, 1), 0, 60),
        Insert(("JFK", "UA", 7, 2), 0, 60),
        Stable(60),
    ]


# Hash seeds


def test_what_is_emitted_depends_on_no_hash_seed() -> None:
    """Every query of these tests, and drawn ones, over fixed streams, in two processes."""
    code = "from tests.queries.test_physical import digest_of_all; print(digest_of_all())"
    digests = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "4711")
    ]
    assert digests[0] == digests[1]
    assert len(digests[0]) > 30


def digest_of_all() -> str:
    """A digest of all that networks emit, batch by batch, and of the bytes of their snapshots."""
    digest = hashlib.sha256()
    for seed in range(60):
        rng = Random(seed)
        query = drawn(rng, rng.randrange(1, 5))
        emit = rng.choice(("on_update", "on_update", "ordered", "on_watermark", "on_close"))
        network = Running(physical(query, emit=emit))  # type: ignore[arg-type]
        feeds = feeds_for(rng, query)
        while feeds:
            port = feeds[0][0]
            batch: list[Element] = []
            while feeds and feeds[0][0] == port and len(batch) < 4:
                batch.append(feeds.pop(0)[1])
            digest.update(repr(network.process_batch(batch, port)).encode())
        output = network.network.snapshot()
        digest.update(output)
    return digest.hexdigest()


def test_the_meaning_of_a_batch_is_that_of_its_elements() -> None:
    stream: list[Element] = [
        Insert(("a", 3), 1, 9),
        Insert(("b", 3), 2, 4),
        Adjust(("a", 3), 1, 9, 1),
        Stable(3),
    ]
    query = live.by("k").aggregate(n=count())
    one, many = build(query), build(query)
    by_elements = [e for element in stream for e in one.process("live", element)]
    by_batch = many.process_batch("live", stream)
    assert tdb_of(by_batch) == tdb_of(by_elements) == TDB([(("b", 1), 2, 4)])
    assert len(by_batch) < len(by_elements)
