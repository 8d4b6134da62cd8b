"""Random queries with random streams, to compare estimates with."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.queries import logical
from lmerge_service.queries.checking import Step
from lmerge_service.queries.expressions import col
from lmerge_service.queries.physical import (
    Choice,
    Emit,
    PhysicalPlan,
    levels,
    physical,
    window_plans,
)
from lmerge_service.queries.plan import (
    Query,
    average,
    count,
    facts,
    hopping,
    max_,
    sum_,
    tumbling,
)

FIELDS = {"k": int, "v": int}
SOURCES = {name: facts(name, time="t", fields=FIELDS) for name in ("one", "two")}


class Arrivals(NamedTuple):
    """How facts of a source come: Poisson, keys evenly drawn."""

    gap: float
    keys: int


def steps(rng: Random, arrivals: dict[str, Arrivals], events: int) -> list[Step]:
    """Facts of all sources in order of time, each with a stable behind it."""
    total = sum(1 / each.gap for each in arrivals.values())
    found: list[Step] = []
    for name, each in arrivals.items():
        at, left = 0.0, int(events / each.gap / total)
        for _ in range(left):
            at += rng.expovariate(1 / each.gap)
            t = int(at)
            row = (rng.randrange(each.keys), rng.randrange(100))
            found.append(Step(f"{t}", name, [Insert(row, t, t + 1), Stable(t)]))
    found.sort(key=lambda step: step.elements[0].vs)  # type: ignore[union-attr]
    return found


def closed(given: list[Step], names: list[str]) -> list[Step]:
    """The same, to the end."""
    return [*given, *(Step("end", name, [Stable(INFINITY)]) for name in names)]


def arrivals(rng: Random) -> dict[str, Arrivals]:
    """Of both sources."""
    return {name: Arrivals(rng.choice((5, 10, 30)), rng.choice((4, 20, 100))) for name in SOURCES}


Step_ = Callable[[Random, Query], Query]
UNARY: tuple[Step_, ...] = (
    lambda rng, query: query.where(col.v < rng.choice((10, 50, 90))),
    lambda rng, query: query.select("k", v=(col.v * 7 + 3)),
    lambda rng, query: query.window(rng.choice((20, 100, 400))),
    lambda rng, query: query.window(rng.choice((20, 100, 400))),
    lambda rng, query: (
        query.select("k").with_columns(v=col.k).window(rng.choice((50, 200))).distinct()
    ),
    lambda rng, query: query.window(rng.choice((50, 200, 600))).by("k").aggregate(v=count()),
    lambda rng, query: query.window(rng.choice((50, 200, 600))).by("k").aggregate(v=max_("v")),
    lambda rng, query: query.window(rng.choice((50, 200))).aggregate(k=count(), v=sum_("v")),
    lambda rng, query: query.by("k").last_rows(rng.choice((1, 3))).at_most(1_000),
    _windowed := lambda rng, query: (
        query.starts()
        .windows(rng.choice((tumbling(100), hopping(200, every=50), hopping(600, every=100))))
        .by("k")
        .aggregate(v=count(), m=average("v"))
        .select("k", "v")
    ),
    _windowed,
)


def _joined(rng: Random, left: Query, right: Query) -> Query:
    w = rng.choice((20, 100))
    found = left.window(w).join(right.rename(w="v").window(w), "k")
    return found.select("k", v=col.v + col.w)


BINARY: tuple[Callable[[Random, Query, Query], Query], ...] = (
    _joined,
    _joined,
    lambda rng, left, right: left.union(right),
    lambda rng, left, right: left.window(rng.choice((20, 100))).semi_join(right.window(50), "k"),
    lambda rng, left, right: left.window(rng.choice((20, 100))).anti_join(right.window(50), "k"),
    lambda rng, left, right: left.window(rng.choice((100, 400))).clip(right, "k"),
)


def drawn(rng: Random) -> Query:
    """A query of one to three operators that hold state, or none."""
    query = SOURCES["one"]
    for _ in range(rng.randrange(1, 3)):
        query = rng.choice(UNARY)(rng, query)
    if rng.random() < 0.4:
        other = SOURCES["two"]
        if rng.random() < 0.5:
            other = rng.choice(UNARY[:4])(rng, other)
        query = rng.choice(BINARY)(rng, query, other)
        if rng.random() < 0.5:
            query = rng.choice(UNARY)(rng, query)
    return query


def chosen(rng: Random, query: Query) -> PhysicalPlan:
    """One of its physical plans."""
    emits: tuple[Emit, ...] = ("on_update", "on_update", "ordered", "on_watermark", "on_close")
    choices = {
        Query(node): Choice(windows=rng.choice([p for p in window_plans(node) if p != "replay"]))
        for node in logical.nodes(query.plan)
        if levels(node)
    }
    align = INFINITY if rng.random() < 0.2 else None
    return physical(query, emit=rng.choice(emits), choices=choices, align=align)
