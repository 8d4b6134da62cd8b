"""Random queries, composed of all operators, and the streams that they take in."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, cast

from lmerge_service.elements import INFINITY, Element
from lmerge_service.queries import logical
from lmerge_service.queries.expressions import Expression, coalesce, col, is_null, lit, when
from lmerge_service.queries.meaning import plans as meaning
from lmerge_service.queries.network import Network
from lmerge_service.queries.operators.protocol import Operator
from lmerge_service.queries.physical import Choice, Emit, PhysicalPlan, physical
from lmerge_service.queries.plan import (
    Query,
    average,
    count,
    distinct_count,
    elements,
    facts,
    hopping,
    max_,
    min_,
    sum_,
)
from lmerge_service.tdb import TDB
from tests.queries.promises import Make
from tests.queries.streams import Feed, interleaved, legal_stream

FIELDS = {"k": str, "n": int}
ROWS = (("a", 1), ("a", 2), ("b", 1), ("b", None), (None, 2))
SOURCES = {
    "points": facts("points", time="t", fields=FIELDS),
    "one": elements("one", FIELDS),
    "two": elements("two", FIELDS),
}


def chosen(rng: Random, query: Query) -> PhysicalPlan:
    """A random physical plan of a query."""
    emits: tuple[Emit, ...] = ("on_update", "ordered", "on_watermark", "on_close")
    choices = {
        Query(node): Choice(
            rng.choice((None, *emits)), rng.choice((None, None, None, 0, 3, INFINITY))
        )
        for node in logical.nodes(query.plan)
        if rng.random() < 0.4
    }
    align = rng.choice((None, None, None, 2, INFINITY))
    return physical(query, emit=rng.choice(emits), choices=choices, align=align)


class Running:
    """A network as an operator, so that it can be held to the promises of one."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self.network: Network = plan.begin()
        self.names = sorted(self.network.sources)
        self.ports = len(self.names)

    @property
    def stable(self) -> int:
        return self.network.stable

    @property
    def refused(self) -> list[Any]:
        return [each for operator in self.network.operators for each in operator.refused]

    def process(self, element: Element, port: int = 0) -> list[Element]:
        return self.network.process(self.names[port], element)

    def process_batch(self, batch: Sequence[Element], port: int = 0) -> list[Element]:
        return self.network.process_batch(self.names[port], batch)

    def snapshot(self) -> bytes:
        return self.network.snapshot()

    def restore(self, saved: bytes) -> None:
        self.network.restore(saved)

    def check(self) -> None:
        self.network.check()

    def __len__(self) -> int:
        return len(self.network)


def running(query: Query, **choices: Any) -> Make:
    """Makes the network of a query, as an operator."""
    plan = physical(query, **choices)
    return lambda: cast(Operator, Running(plan))


def means(query: Query) -> Callable[..., TDB]:
    """The meaning of a query over the TDBs of its sources, in the order of their names."""
    names = sorted(logical.sources(query.plan))
    return lambda *tdbs: meaning.meaning(query.plan, dict(zip(names, tdbs, strict=True)))


def feeds_for(rng: Random, query: Query, length: int = 10, *, endless: bool = True) -> list[Feed]:
    """Streams for the sources of a query, interleaved; ports are in the order of names."""
    streams = [
        legal_stream(
            rng,
            payloads=ROWS,
            length=length,
            horizon=10,
            points=name == "points",
            endless=endless,
        )
        for name in sorted(logical.sources(query.plan))
    ]
    return interleaved(rng, *streams)


def drawn(
    rng: Random, depth: int, *, reducible: bool = False, of: Mapping[str, Query] = SOURCES
) -> Query:
    """A random query of rows (k: str, n: int) over sources by name. A `reducible` one has at each
    instant what its relational counterpart has of the inputs at that instant."""
    if not depth:
        return of[rng.choice(sorted(of))]

    def below() -> Query:
        return drawn(rng, rng.randrange(depth), reducible=reducible, of=of)

    choices = REDUCIBLE if reducible else REDUCIBLE + OTHERS
    return rng.choice(choices)(rng, drawn(rng, depth - 1, reducible=reducible, of=of), below)


Below = Callable[[], Query]
Step = Callable[[Random, Query, Below], Query]


def _condition(rng: Random) -> Expression:
    return rng.choice(
        (
            col.n > 1,
            col.k == "a",
            (col.k != "b") | is_null(col.n),
            ~(col.n == 1) & (col.k == "a"),
            coalesce(col.n, 2) >= 2,
        )
    )


def _number(rng: Random) -> Expression:
    return rng.choice(
        (
            col.n + 1,
            3 - col.n,
            coalesce(col.n, 0),
            col.n * 2,
            when(col.k == "a", 1).otherwise(col.n),
        )
    )


def _aggregations(rng: Random) -> dict[str, Any]:
    every = {
        "n": rng.choice((count(), count("n"), sum_("n"), min_("n"), max_(col.n + 1))),
        "m": rng.choice((average("n"), distinct_count("n"), sum_(col.n * 0.5))),
    }
    return every if rng.random() < 0.5 else {"n": every["n"]}


def _aggregated(rng: Random, query: Query, _: Below) -> Query:
    if rng.random() < 0.2:
        return query.aggregate(**_aggregations(rng)).select("n", k=lit("all")).select("k", "n")
    return query.by("k").aggregate(**_aggregations(rng)).select("k", "n")


def _joined(rng: Random, query: Query, below: Below) -> Query:
    right = below().rename(m="n")
    where = rng.choice((None, None, col.m > col.n, col.m != 1))
    join = rng.choice((Query.join, Query.join, Query.left_join, Query.right_join, Query.full_join))
    made = join(query, right, "k", where=where)
    return made.select("k", n=rng.choice((coalesce(col.m, col.n), col.n, col.m + col.n)))


def _semi_joined(rng: Random, query: Query, below: Below) -> Query:
    join = rng.choice((Query.semi_join, Query.anti_join))
    right = below()
    if rng.random() < 0.5:
        return join(query, right, "k")
    return join(
        query, right.rename(m="n"), {"k": "k"}, where=rng.choice((col.m > col.n, col.m < 2))
    )


def _multiset(rng: Random, query: Query, below: Below) -> Query:
    binary = rng.choice(
        (
            *(Query.except_, Query.except_all, Query.intersect, Query.intersect_all),
            *(Query.union_max, Query.union),
        )
    )
    unary = rng.choice((Query.distinct, Query.coalesce))
    return unary(query) if rng.random() < 0.3 else binary(query, below())


def _projected(rng: Random, query: Query, _: Below) -> Query:
    return query.select("k", n=_number(rng))


REDUCIBLE: tuple[Step, ...] = (
    lambda rng, query, _: query.where(_condition(rng)),
    _projected,
    _joined,
    _joined,
    _semi_joined,
    _multiset,
    _multiset,
    _multiset,
    _aggregated,
    _aggregated,
)


def _lifetime(rng: Random, query: Query, _: Below) -> Query:
    return rng.choice(
        (
            lambda: query.window(rng.choice((1, 3))),
            lambda: query.shift(rng.choice((-2, 1))),
            lambda: query.extend(2),
            lambda: query.shorten(1),
            lambda: query.at_most(3),
            lambda: query.hop(3, 4),
            lambda: query.quantise(3),
            query.starts,
            query.ends,
            query.last,
        )
    )()


def _windowed(rng: Random, query: Query, _: Below) -> Query:
    points = query.starts() if rng.random() < 0.7 else query.at_most(4)
    grid = hopping(rng.choice((2, 4)), every=rng.choice((2, 3, 4)), origin=rng.choice((0, 1)))
    windowed = points.windows(grid)
    if rng.random() < 0.2:
        return windowed.by("k").top(1, "n", by=sum_("n"), rank=None)
    return windowed.by("k").aggregate(**_aggregations(rng)).select("k", "n")


def _topped(rng: Random, query: Query, _: Below) -> Query:
    return rng.choice(
        (
            lambda: query.by("k").top(1, "n", by=-col.n, rank=None),
            lambda: query.top(2, "k", by=sum_("n"), rank="n"),
            lambda: query.top(2, "k", by=count(), score="n", rank=None),
            lambda: query.top(2, "k", "n", by="n", rank="r").select("k", n=col.r),
        )
    )()


def _cut(rng: Random, query: Query, _: Below) -> Query:
    if rng.random() < 0.5:
        return query.by("k").aggregate(cut=True, n=count())
    return query.aggregate(cut=rng.random() < 0.5, gap=True, n=count()).select(
        k=lit("all"), n=col.n
    )


def _clipped(_: Random, query: Query, below: Below) -> Query:
    return query.clip(below(), "k")


def _last_rows(rng: Random, query: Query, _: Below) -> Query:
    return rng.choice((query, query.by("k"))).last_rows(rng.choice((1, 2)))


def _each(rng: Random, query: Query, _: Below) -> Query:
    plan = rng.choice(
        (
            lambda group: group.where(col.n > 1).last_rows(1),
            lambda group: group.distinct().aggregate(n=count()).select(k=lit("each"), n=col.n),
            lambda group: group,
        )
    )
    return query.by(*rng.choice((("k",), ("k", "n")))).apply(plan)


OTHERS: tuple[Step, ...] = (
    *(_clipped, _last_rows, _each),
    _lifetime,
    _lifetime,
    _lifetime,
    _windowed,
    _windowed,
    _topped,
    _cut,
)


def waits(query: Query) -> bool:
    """Whether a plan has windows that may begin behind all that is known: then what is before its
    stable is right at any time, the rest in the end."""
    return any(
        isinstance(node, logical.Windows) and logical.longest(node.of) > 1
        for node in logical.nodes(query.plan)
    )
