"""A query whose plan is switched while it runs, beside what it means."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from lmerge_service.core.snapshots import unsealed
from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.queries import logical
from lmerge_service.queries.expressions import col
from lmerge_service.queries.meaning import plans as meaning
from lmerge_service.queries.physical import Choice, Emit, PhysicalPlan, physical
from lmerge_service.queries.plan import Query, count, elements, facts, hopping, max_, sum_
from lmerge_service.queries.plan_switch import RunningQuery
from lmerge_service.queries.properties import required_history
from lmerge_service.tdb import TDB
from tests.queries.promises import not_chatty, snapshot_at
from tests.queries.streams import interleaved, legal_stream

FIELDS = {"k": str, "n": int}
ROWS = (("a", 1), ("a", 2), ("b", 1))
A, B, C = (elements(name, FIELDS) for name in ("a", "b", "c"))
POINTS = facts("points", time="t", fields=FIELDS)
LEVELS: tuple[Emit, ...] = ("on_update", "ordered", "on_watermark", "on_close")


def _joined(left: Query, right: Query) -> Query:
    return left.join(right.rename(m="n"), "k").select("k", "n", "m")


_TWO = A.join(B.rename(m="n"), "k")
_COUNTED = A.by("k").aggregate(n=count(), m=max_("n"))
_WINDOWED = POINTS.windows(hopping(4, every=2)).by("k").aggregate(n=count(), m=sum_("n"))

EQUIVALENT: Mapping[str, Sequence[Query]] = {
    "distinct of a union": (
        A.union(B).distinct(),
        A.distinct().union(B.distinct()).distinct(),
        B.distinct().union(A).distinct(),
    ),
    "distinct of a join": (_joined(A, B).distinct(), _joined(A.distinct(), B.distinct())),
    "order of joins": (
        _TWO.join(C.rename(l="n"), "k").select("k", "n", "m", "l"),
        A.join(B.rename(m="n").join(C.rename(l="n"), "k"), "k").select("k", "n", "m", "l"),
        C.rename(l="n").join(_TWO, "k").select("k", "n", "m", "l"),
    ),
    "snapshot aggregates": (_COUNTED, A.coalesce().by("k").aggregate(n=count(), m=max_("n"))),
    "aggregates of a join": (
        _joined(A, B).by("k").aggregate(n=count()),
        _joined(B, A).by("k").aggregate(n=count()),
    ),
    "anti-joins": (A.anti_join(B, "k").anti_join(C, "k"), A.anti_join(B.union(C), "k")),
    "semi-join": (
        A.semi_join(B, "k"),
        A.join(B.select("k").distinct(), "k").select("k", "n"),
    ),
    "except all": (A.except_all(B).except_all(C), A.except_all(B.union(C))),
    "intersect all": (A.intersect_all(B), A.except_all(A.except_all(B))),
    "left join": (
        A.left_join(B.rename(m="n"), "k").where(col.n > 0),
        A.where(col.n > 0).left_join(B.rename(m="n"), "k"),
    ),
    "windows": (_WINDOWED,),
}


def plans_of(rng: Random, queries: Sequence[Query]) -> PhysicalPlan:
    """A physical plan of one of these queries."""
    query = rng.choice(queries)
    if query is _WINDOWED:
        level = rng.choice((None, "on_watermark", "on_close"))
        chosen = {query: Choice(emit=level, windows=rng.choice(("grid", "panes")))}
        return physical(query, choices=chosen, align=rng.choice((None, None, 2)))
    chosen = {
        Query(node): Choice(rng.choice((None, *LEVELS)), rng.choice((None, None, None, 0, 3)))
        for node in logical.nodes(query.plan)
        if rng.random() < 0.2
    }
    return physical(query, emit=rng.choice(LEVELS), choices=chosen)


def streams_for(
    rng: Random, query: Query, length: int = 10, payloads: Sequence[tuple[object, ...]] = ROWS
) -> list[tuple[str, Element]]:
    """Legal streams for the sources of a query, interleaved."""
    sources = logical.sources(query.plan)
    names = sorted(sources)
    streams = [
        legal_stream(
            rng,
            payloads=payloads,
            length=length,
            horizon=10,
            points=isinstance(sources[name], logical.Source),
        )
        for name in names
    ]
    return [(names[port], element) for port, element in interleaved(rng, *streams)]


class Switching:
    """A query that runs; whatever it emits is held against the meaning."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self.meant = plan.plan
        self.query = RunningQuery(plan)
        self.inputs = {name: TDB() for name in logical.sources(plan.plan)}
        self.output = TDB()
        self.emitted: list[Element] = []
        self.is_unique = True
        """Whether no payload was twice at one instant across a switch (W2)."""

    def feed(self, source: str, batch: Sequence[Element]) -> list[Element]:
        for element in batch:
            self.inputs[source].apply(element)
        return self.take(self.query.process_batch(source, batch))

    def take(self, emitted: Sequence[Element]) -> list[Element]:
        before = TDB(self.output, self.output.stable)
        for element in emitted:
            self.output.apply(element)
        not_chatty(before, self.output, emitted)
        self.emitted += emitted
        self.check()
        return [*emitted]

    def history(self, plan: PhysicalPlan) -> tuple[dict[str, list[Element]], dict[str, int]]:
        """What the plan needs and no more, and from when on that is."""
        since = required_history(plan.plan, self.output.stable)
        return {name: history_of(self.inputs[name], t) for name, t in since.items()}, since

    def across(self) -> Counter[object]:
        stable = self.query.stable
        return Counter(e.payload for e in self.output if e.vs < stable <= e.ve)

    def switch(self, plan: PhysicalPlan) -> list[Element]:
        self.is_unique &= max(self.across().values(), default=0) < 2
        history, reaching = self.history(plan)
        return self.take(self.query.switch_plan(plan, history, reaching=reaching))

    def resume(self, plan: PhysicalPlan) -> list[Element]:
        """Another process, which has the output and nothing else."""
        self.is_unique &= max(self.across().values(), default=0) < 2
        stable = self.output.stable
        live = [event for event in self.output if event.ve >= stable]
        history, reaching = self.history(plan)
        self.query, emitted = RunningQuery.resume(plan, live, stable, history, reaching=reaching)
        return self.take(emitted)

    def restart(self) -> None:
        """Another process, which has a snapshot."""
        restored = RunningQuery(self.query.plan)
        restored.restore(self.query.snapshot())
        mine, theirs = (unsealed(each.snapshot())[0] for each in (self.query, restored))
        assert mine == theirs, "another output, or another switch"
        self.query = restored

    def wanted(self) -> TDB:
        return meaning.meaning(self.meant, self.inputs)

    def check(self) -> None:
        """The output is the meaning's before its stable point, and what the query holds of it."""
        query, output, wanted = self.query, self.output, self.wanted()
        query.check()
        stable = output.stable
        assert query.stable == stable, "it emits another stable"
        if stable < INFINITY:
            held = Counter(query.output)
            assert held == Counter(event for event in output if event.ve >= stable)
        else:
            assert not len(query), "state is left behind the end"
        if self.is_unique:
            assert output.before(stable) == wanted.before(stable)
        for t in range(-4, min(stable, 30)):
            assert snapshot_at(output, t) == snapshot_at(wanted, t), f"another snapshot at {t}"

    def check_end(self) -> None:
        assert self.output.stable == INFINITY, "the inputs are closed, the output is not"
        assert not self.query.is_switching, "the switch is never over"
        if self.is_unique:
            assert self.output == self.wanted(), f"{self.output} instead of {self.wanted()}"


def history_of(tdb: TDB, since: int) -> list[Element]:
    """The events of a source from a time on, and its stable point."""
    events: Iterable[Element] = (Insert(*event) for event in tdb if event.ve >= since)
    return [*events, Stable(tdb.stable)] if tdb.stable > START else [*events]
