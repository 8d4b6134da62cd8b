"""Partition columns: a plan over each part by itself is the plan over the whole."""

from collections.abc import Hashable, Iterable
from random import Random

import pytest

from lmerge_service.queries import logical
from lmerge_service.queries.expressions import col
from lmerge_service.queries.logical import Node
from lmerge_service.queries.meaning.plans import meaning
from lmerge_service.queries.plan import Query, count, elements, facts, sum_, tumbling
from lmerge_service.queries.properties import partition_columns
from lmerge_service.tdb import TDB, Event
from tests.queries.composed import SOURCES, drawn
from tests.queries.test_history import given_for
from tests.seeds import seeds

points, one, two = SOURCES["points"], SOURCES["one"], SOURCES["two"]


@seeds(120)
def test_random_plans_over_parts_are_the_plan_over_all(seeds: range) -> None:
    divided = 0
    for seed in seeds:
        rng = Random(seed)
        plan = drawn(rng, rng.randrange(1, 5)).plan
        columns = partition_columns(plan)
        if columns is None:
            continue
        divided += 1
        given = given_for(rng, plan)
        assert _sum(meaning(plan, part) for part in parts(plan, given, columns)) == meaning(
            plan, given
        ), (seed, columns)
    assert divided


def parts(
    plan: Node, given: dict[str, TDB], columns: dict[str, tuple[str, ...]]
) -> list[dict[str, TDB]]:
    """The TDBs of the sources by the values of these columns."""
    found: dict[Hashable, dict[str, list[Event]]] = {}
    for name, tdb in given.items():
        schema = logical.schema_of(logical.sources(plan)[name])
        places = [schema.position(column) for column in columns[name]]
        for event in tdb:
            values = tuple(event.payload[at] for at in places)  # type: ignore[index]
            found.setdefault(values, {}).setdefault(name, []).append(event)
    return [{name: TDB(part.get(name, ())) for name in given} for part in found.values()]


def _sum(tdbs: Iterable[TDB]) -> TDB:
    return TDB(event for tdb in tdbs for event in tdb)


FLIGHTS = {"origin": str, "carrier": str, "flight": int, "delay": int}
flights = facts("flights", time="time", fields=FLIGHTS)
sky = facts("sky", time="time", fields={"station": str, "wind": float})
per_origin = flights.windows(tumbling(60)).by("origin")

PLANS: dict[str, tuple[Query, dict[str, tuple[str, ...]] | None]] = {
    "a source": (one, {"one": ("k", "n")}),
    "rows": (one.where(col.n > 1).window(3), {"one": ("k", "n")}),
    "a column that is computed": (one.select("k", n=col.n + 1).distinct(), {"one": ("k",)}),
    "a column that is gone": (one.select("k"), {"one": ("k", "n")}),
    "distinct without a column": (one.select(n=col.n + 1).distinct(), None),
    "groups": (per_origin.aggregate(n=count()), {"flights": ("origin",)}),
    "groups of two": (
        flights.window(60).by("carrier", "origin").aggregate(n=count()),
        {"flights": ("origin", "carrier")},
    ),
    "no groups": (flights.aggregate(n=count()), None),
    "coarser groups above": (
        flights.window(60)
        .by("origin", "carrier")
        .aggregate(n=count())
        .by("carrier")
        .aggregate(n=sum_("n")),
        {"flights": ("carrier",)},
    ),
    "other groups above": (
        flights.window(60)
        .by("origin", "carrier")
        .aggregate(n=count())
        .by("n")
        .aggregate(m=count()),
        None,
    ),
    "join": (
        flights.join(sky, on={"origin": "station"}),
        {"flights": ("origin",), "sky": ("station",)},
    ),
    "group by the partner's column": (
        flights.join(sky, on={"origin": "station"}).by("station").aggregate(n=count()),
        {"flights": ("origin",), "sky": ("station",)},
    ),
    "group by a column that is padded": (
        flights.left_join(sky, on={"origin": "station"}).by("station").aggregate(n=count()),
        None,
    ),
    "right join": (
        flights.right_join(sky, on={"origin": "station"}).by("station").aggregate(n=count()),
        {"flights": ("origin",), "sky": ("station",)},
    ),
    "full join": (
        one.full_join(two.rename(m="n"), on="k").by("k").aggregate(n=count()),
        {"one": ("k",), "two": ("k",)},
    ),
    "join with itself": (one.join(one.rename(m="n"), on="k"), {"one": ("k",)}),
    "union": (one.union(two).by("k").aggregate(n=count()), {"one": ("k",), "two": ("k",)}),
    "union crosswise": (
        elements("cross", {"k": str, "n": str})
        .union(elements("cross", {"k": str, "n": str}).select(k=col.n, n=col.k))
        .distinct(),
        None,
    ),
    "semi-join": (one.semi_join(two, on="k").by("n").aggregate(n2=count()), None),
    "clip": (flights.extend(9).clip(flights, on="origin"), {"flights": ("origin",)}),
    "last_rows": (one.by("k").last_rows(1), {"one": ("k",)}),
    "applied": (
        one.by("k", "n").apply(lambda group: group.by("n").last_rows(1)),
        {"one": ("n",)},
    ),
    "applied to all rows": (one.by("k").apply(lambda group: group.aggregate(n=count())), None),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_columns_of_a_plan(name: str) -> None:
    query, columns = PLANS[name]
    assert partition_columns(query.plan) == columns


def test_of_facts_that_meet_by_another_column_none_may_be_apart() -> None:
    both = elements("both", {"k": str, "n": str})
    crossed = both.join(both.rename(m="n", o="k"), on={"k": "m"})
    assert partition_columns(crossed.plan) is None
