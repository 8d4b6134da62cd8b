"""Plans: values with schemas, checked where they are written."""

import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest

from lmerge_service.elements import INFINITY, START, Insert
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries import logical, module_library
from lmerge_service.queries.expressions import col, lit
from lmerge_service.queries.fact_reader import FactReader
from lmerge_service.queries.logical import Node, fingerprint, headroom, longest, nodes
from lmerge_service.queries.plan import (
    Query,
    apply,
    average,
    count,
    counting,
    distinct_count,
    elements,
    facts,
    first,
    hopping,
    max_,
    median,
    min_,
    percentile,
    snapshots,
    sum_,
    tumbling,
)
from lmerge_service.queries.rows import Refusal, RefusalReason

MINUTE, HOUR = 60, 3_600
FLIGHT = ("carrier", "flight")
FIELDS = {"fact": str, "origin": str, "carrier": str, "flight": int, "delay": int, "fare": float}
flights = facts("flights", time="time", ends=col.fact == "end", lateness=900, fields=FIELDS)
weather = facts("weather", time="at", fields={"origin": str, "wind": float, "wet": bool})
live = elements("live", {"origin": str, "n": int})
departed = flights.where(col.fact == "departed")


def spread(row: tuple[object, ...]) -> list[tuple[object, ...]]:
    return [row[:1], row[1:2]]


SPREAD = f"{__name__}:spread"
ENDS = apply(module_library.time_weighted_average, "n", {"mean": float})
CLIPPED = apply(module_library.time_weighted_average, "n", {"mean": float}, clipping="full")


def queries() -> dict[str, Query]:
    """One of each kind."""
    in_air = departed.extend(24 * HOUR - 1).clip(flights.where(col.fact == "arrived"), on=FLIGHT)
    return {
        "delays": departed.windows(hopping(HOUR, every=20 * MINUTE))
        .by("origin")
        .aggregate(flights=count(), delay=sum_("delay"), longest=max_("delay")),
        "top": departed.windows(tumbling(3 * HOUR))
        .by("origin")
        .top(3, "carrier", by=sum_("delay"), rank="place", score="delay"),
        "in air": in_air.select(*FLIGHT),
        "crowded": in_air.by("origin").aggregate(n=count()).where(col.n > 40),
        "weathered": departed.quantise(HOUR).left_join(weather.quantise(HOUR), on="origin"),
        "pairs": departed.window(5).join(
            weather.window(9), {"origin": "origin"}, where=col.wind > col.fare
        ),
        "renamed": departed.join(departed, "flight", prefix="other_"),
        "semi": departed.semi_join(weather, "origin", where=col.wet),
        "anti": departed.anti_join(weather, {"origin": "origin"}),
        "full": departed.full_join(live.at_most(9), "origin"),
        "right": departed.right_join(live.at_most(9), ["origin"]),
        "union": live.union(live, flights.select("origin", n=col.flight)),
        "sets": live.distinct().except_(live).union_max(live.intersect(live.intersect_all(live))),
        "except": live.except_all(live.coalesce()),
        "lifetimes": live.shift(-1).shorten(1).hop(5, 10).starts().ends().last().at_most(4),
        "endless": live.inserts().by("origin").aggregate(cut=True, n=distinct_count("n")),
        "deletes": live.deletes().aggregate(gap=True, least=min_("n"), first=first(col.n * 2)),
        "mean": live.at_most(3).aggregate(mean=average("n"), p=percentile("n", 0.9), m=median("n")),
        "rows": live.by("origin").last_rows(2).union(live.last_rows(1)),
        "best": live.top(2, "origin", by="n", rank=None),
        "snapshots": live.at_most(5).windows(snapshots()).by("origin").apply(ENDS),
        "counts": live.windows(counting(3, ends=True)).apply(CLIPPED),
        "grid": live.windows(tumbling(7, origin=2)).by("origin").apply(CLIPPED),
        "each": live.by("origin").apply(lambda group: group.where(col.n > 1).last_rows(1)),
        "spread": departed.flat_map(SPREAD, {"code": str}),
        "columns": live.with_columns(m=col.n + 1, one=lit(1)).rename(airport="origin"),
    }


QUERIES = queries()


@pytest.mark.parametrize("name", QUERIES)
def test_a_plan_is_a_value(name: str) -> None:
    query, again = QUERIES[name], queries()[name]
    assert query == again
    assert hash(query) == hash(again)
    packed = msgspec.msgpack.encode(query.plan)
    unpacked = msgspec.msgpack.decode(packed, type=Node)
    assert unpacked == query.plan
    assert fingerprint(unpacked) == query.fingerprint
    others = [other.fingerprint for key, other in QUERIES.items() if key != name]
    assert query.fingerprint not in others


def test_fingerprints_are_the_same_in_every_process() -> None:
    code = (
        "from tests.queries.test_plan import QUERIES;"
        "print(*(query.fingerprint for query in QUERIES.values()))"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == [query.fingerprint for query in QUERIES.values()]


SCHEMAS = {
    "delays": "(origin: str, flights: int, delay: int, longest: int)",
    "top": "(origin: str, carrier: str, delay: int, place: int)",
    "in air": "(carrier: str, flight: int)",
    "crowded": "(origin: str, n: int)",
    "weathered": "(fact: str, origin: str, carrier: str, flight: int, delay: int, fare: float, "
    "wind: float, wet: bool)",
    "full": "(fact: str, origin: str, carrier: str, flight: int, delay: int, fare: float, n: int)",
    "mean": "(mean: float, p: float, m: float)",
    "best": "(origin: str)",
    "counts": "(mean: float)",
    "each": "(origin: str, n: int)",
    "columns": "(airport: str, n: int, m: int, one: int)",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_inferred(name: str) -> None:
    assert str(QUERIES[name].schema) == SCHEMAS[name]


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "where": (
        lambda: flights.where(col.dely > 1),
        r"where col.dely > 1: there is no column 'dely'; there is fact, origin, carrier",
    ),
    "no condition": (lambda: flights.where(col.delay), r"a condition is bool, not int"),
    "select": (lambda: live.select("origin", m=col.m), r"select m=col.m: there is no column 'm'"),
    "twice": (lambda: live.select("origin", "origin"), r"'origin' is bound twice"),
    "again": (lambda: live.with_columns(n=col.n), r"'n' is bound twice"),
    "rename": (lambda: live.rename(x="y"), r"rename: there is no column 'y'"),
    "null": (lambda: live.select(n=None), r"null alone is of no kind"),
    "time": (lambda: facts("f", time="t", fields={"t": str}), r"the time 't' is an int"),
    "until": (lambda: facts("f", time="t", until="u", fields={"u": float}), r"'u' is an int"),
    "ends": (lambda: facts("f", time="t", fields={}, ends=col.x), r"ends=col.x: there is no"),
    "heartbeats": (
        lambda: facts("f", time="t", fields={}, heartbeats=col.x),
        r"heartbeats=col.x: there is no",
    ),
    "lateness": (lambda: facts("f", time="t", fields={}, lateness=-1), r"lateness is an int of at"),
    "key": (lambda: facts("f", time="t", fields={}, key="k"), r"key: there is no column 'k'"),
    "ambiguous": (
        lambda: departed.join(flights, "flight"),
        r"the column 'fact' is ambiguous, both sides have it: .* prefix=",
    ),
    "on nothing": (lambda: departed.join(weather, ()), r"name the columns that are equal"),
    "on": (lambda: departed.join(weather, "gate"), r"join, left side: there is no column 'gate'"),
    "on right": (lambda: departed.join(weather, {"origin": "gate"}), r"right side: there is no"),
    "on kinds": (
        lambda: departed.join(weather, {"origin": "wind"}),
        r"'origin' is str, 'wind' is float: cast one",
    ),
    "join where": (
        lambda: departed.join(weather, "origin", where=col.gate > 1),
        r"join where col.gate > 1: there is no column 'gate'",
    ),
    "semi where": (
        lambda: departed.semi_join(departed, "flight", where=col.delay > 1),
        r"'delay' is ambiguous, both sides have it",
    ),
    "clip": (lambda: departed.clip(weather, "wind"), r"clip, left side: there is no column"),
    "union": (lambda: live.union(weather), r"union: .*are not the columns.*same order"),
    "order": (lambda: live.except_(live.select("n", "origin")), r"except: .* same order"),
    "one source twice": (
        lambda: live.union(elements("live", {"origin": str, "n": int, "x": int}).select(*"on")),
        r"there is no column 'o'",
    ),
    "bound twice": (
        lambda: live.union(
            elements("live", {"origin": str, "n": int, "x": int}).select("origin", "n")
        ),
        r"the source 'live' is bound twice",
    ),
    "by": (lambda: live.by("gate").aggregate(n=count()), r"by: there is no column 'gate'"),
    "by twice": (lambda: live.by("n", "n").aggregate(m=count()), r"'n' is bound twice"),
    "result and group": (lambda: live.by("n").aggregate(n=count()), r"'n' is bound twice"),
    "no result": (live.aggregate, r"name a result"),
    "sum": (lambda: live.aggregate(s=sum_("origin")), r"s=sum\(col.origin\): .* not a number"),
    "sum of none": (lambda: live.aggregate(s=sum_("m")), r"there is no column 'm'"),
    "percentile": (lambda: live.aggregate(p=percentile("n", 1.5)), r"between 0 and 1"),
    "no decimal": (lambda: live.aggregate(p=percentile("n", "x")), r"is a decimal"),
    "gap": (
        lambda: Query(
            logical.Aggregate(
                live.plan, ("n",), (("m", logical.Aggregation("count")),), False, True
            )
        ),
        r"gap=True is for all rows together",
    ),
    "size": (lambda: live.windows(tumbling(0)).aggregate(n=count()), r"size is an int of at least"),
    "every": (lambda: live.windows(hopping(5, every=-1)).aggregate(n=count()), r"every is an int"),
    "window": (lambda: live.window(0), r"window: width is an int of at least 1, not 0"),
    "extend": (lambda: live.extend(-1), r"extend: by is an int of at least 0, not -1"),
    "float": (lambda: live.shift(1.5), r"shift: by is an int, not 1.5"),  # type: ignore[arg-type]
    "last rows": (lambda: live.last_rows(0), r"last_rows is an int of at least 1"),
    "top": (lambda: live.top(0, "n", by="n"), r"top is an int of at least 1"),
    "top of nothing": (lambda: live.top(1, by="n"), r"name the columns of its rows"),
    "top by": (lambda: live.top(1, "n", by="m"), r"top by col.m: there is no column"),
    "rank": (lambda: live.top(1, "n", by="n", rank="n"), r"'n' is bound twice"),
    "count": (lambda: live.windows(counting(0)).apply(CLIPPED), r"a count window is an int"),
    "snapshot aggregate": (
        lambda: live.windows(snapshots()).aggregate(n=count()),
        r"leave out windows\(\)",
    ),
    "endless join": (
        lambda: live.inserts().join(departed, "origin"),
        r"left side may never end, .* at_most\(d\)",
    ),
    "endless semi-join": (lambda: live.semi_join(live.deletes(), "n"), r"would hold all"),
    "endless windows": (
        lambda: live.inserts().shift(1).windows(tumbling(5)).aggregate(m=count()),
        r"may never end, so it would be in all",
    ),
    "unclipped": (
        lambda: live.windows(tumbling(5)).apply(ENDS),
        r"sees ends that may never come, .* clipping='right'",
    ),
    "unclipped snapshots": (lambda: live.windows(snapshots()).apply(ENDS), r"never be final"),
    "unclipped counts": (lambda: live.windows(counting(2)).apply(ENDS), r"never be final"),
    "module": (
        lambda: live.windows(tumbling(5)).apply(apply("nowhere:x", "n", {"m": int})),
        r"there is no module 'nowhere:x'",
    ),
    "no module": (
        lambda: live.windows(tumbling(5)).apply(apply(int, "n", {"m": int})),
        r"is not a module: decorate it",
    ),
    "policy": (
        lambda: live.windows(tumbling(5)).apply(
            apply(module_library.median, "n", {"m": float}, timestamping="clip")
        ),
        r"only 'align'",
    ),
    "one value": (
        lambda: live.windows(tumbling(5)).apply(
            apply(module_library.median, "n", {"m": float, "o": int})
        ),
        r"returns one value",
    ),
    "flat_map": (lambda: live.flat_map("nowhere:x", {"m": int}), r"there is no function"),
    "apply": (lambda: live.by("n").apply(lambda group: group.union(live)), r"takes in that group"),
    "apply other": (lambda: live.by("n").apply(lambda _: live), r"takes in that group"),
    "lifetime": (
        lambda: Query(logical.Lifetime(live.plan, "window", ())),
        r"no function of lifetimes 'window' of 0",
    ),
    "multiset": (lambda: Query(logical.MultisetOp((live.plan,), "except")), r"no 'except' of 1"),
    "empty union": (lambda: Query(logical.Union(())), r"union of no input"),
    "aggregation": (
        lambda: live.aggregate(m=logical.Aggregation("mode", live.plan.fields)),  # type: ignore
        r"there is average, count",
    ),
    "aggregation of": (
        lambda: live.aggregate(m=logical.Aggregation("sum")),
        r"sum takes a column",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_found_where_they_are_written(name: str) -> None:
    build, message = WRONG[name]
    with pytest.raises(ConfigurationError, match=message):
        build()


def test_what_is_unbounded_may_be_bounded() -> None:
    live.inserts().at_most(5).join(departed, "origin")
    live.deletes().window(3).windows(tumbling(5)).aggregate(m=count())
    assert longest(live.at_most(5).windows(tumbling(5)).apply(ENDS).plan) == 5


LONGEST = {
    "delays": HOUR,
    "top": 3 * HOUR,
    "in air": 24 * HOUR,
    "crowded": INFINITY,
    "weathered": HOUR,
    "pairs": 5,
    "renamed": 1,
    "union": INFINITY,
    "lifetimes": 1,
    "endless": INFINITY,
    "sets": INFINITY,
    "full": 9,
    "right": 9,
    "snapshots": 5,
    "each": INFINITY,
    "semi": 1,
}


@pytest.mark.parametrize("name", LONGEST)
def test_how_long_events_can_be(name: str) -> None:
    assert longest(QUERIES[name].plan) == LONGEST[name]


def test_facts_span_an_interval_if_they_say_so() -> None:
    spans = facts("spans", time="begin", until="end", fields={"x": int})
    assert longest(spans.plan) == INFINITY
    assert isinstance(spans.plan, logical.Source)
    reader = FactReader(spans.plan)
    assert reader.event({"begin": 3, "end": 9.0, "x": 1}) == Insert((1,), 3, 9)
    for end, reason in (
        (3, RefusalReason.NOT_A_FACT),
        (None, RefusalReason.NOT_A_FACT),
        ("9", RefusalReason.WRONG_TYPE),
        (2**63, RefusalReason.TIME_OVERFLOW),
        (INFINITY, RefusalReason.TIME_OVERFLOW),
    ):
        refused = reader.event({"begin": 3, "end": end, "x": 1})
        assert isinstance(refused, Refusal)
        assert (refused.reason, refused.column) == (reason, "end")


def test_a_fact_is_refused_if_the_plan_could_not_move_its_time() -> None:
    query = departed.extend(100).shift(-50).windows(hopping(30, every=7)).aggregate(n=count())
    assert isinstance(flights.plan, logical.Source)
    room = headroom(query.plan)
    assert room >= 187
    reader = FactReader(flights.plan, room)
    for time in (START + room, INFINITY - room, 0):
        assert isinstance(reader.event({"time": time}), Insert)
    for time in (START + room - 1, INFINITY - room + 1, START, INFINITY, 2**70):
        refused = reader.event({"time": time})
        assert isinstance(refused, Refusal)
        assert refused.reason is RefusalReason.TIME_OVERFLOW
    for fact, reason in (
        ({}, RefusalReason.NOT_A_FACT),
        ([], RefusalReason.NOT_A_FACT),
        ({"time": True}, RefusalReason.WRONG_TYPE),
        ({"time": 1.5}, RefusalReason.WRONG_TYPE),
        ({"time": float("nan")}, RefusalReason.NAN),
        ({"time": 1, "delay": "x"}, RefusalReason.WRONG_TYPE),
    ):
        refused = reader.event(fact)
        assert isinstance(refused, Refusal)
        assert refused.reason is reason


def test_facts_that_end_their_partition() -> None:
    assert isinstance(flights.plan, logical.Source)
    reader = FactReader(flights.plan)
    for fact, ends in (("end", True), ("departed", False), (None, False)):
        event = reader.event({"time": 1, "fact": fact})
        assert isinstance(event, Insert)
        assert reader.ends(event.payload) is ends
    assert isinstance(weather.plan, logical.Source)
    assert not FactReader(weather.plan).ends((None, None, None))


def test_equal_parts_of_a_plan_are_one() -> None:
    query = departed.union(departed).join(
        departed.union(departed).rename(f="fact"), "flight", prefix="x_"
    )
    kinds = [type(node).__name__ for node in nodes(query.plan)]
    assert kinds.count("Union") == 1
    assert kinds.count("Select") == 1
    assert kinds[0] == "Source"
    assert kinds[-1] == "Join"
