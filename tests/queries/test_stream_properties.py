"""Keys and stream properties: what a plan promises of its output holds in every prefix of it."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from random import Random

import pytest

from lmerge_service.core.case import Case
from lmerge_service.core.properties import StreamProperties
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.queries import logical
from lmerge_service.queries.expressions import col
from lmerge_service.queries.module_library import average
from lmerge_service.queries.physical import Choice, PhysicalPlan, physical
from lmerge_service.queries.plan import (
    Query,
    apply,
    count,
    counting,
    facts,
    hopping,
    snapshots,
    sum_,
    tumbling,
)
from lmerge_service.queries.properties import Keys, case, keys, stream_properties
from lmerge_service.tdb import TDB, Event
from tests.queries.composed import FIELDS, ROWS, SOURCES, chosen, drawn
from tests.queries.streams import Feed, interleaved, legal_stream, without_revisions
from tests.seeds import seeds

points, one, two = SOURCES["points"], SOURCES["one"], SOURCES["two"]
KEYED = facts("keyed", time="t", fields=FIELDS, key=("k", "n"))
WITH_KEYS = {"keyed": KEYED, "points": points, "one": one, "united": one.distinct()}

Streams = list[list[Element]]


def streams_for(rng: Random, query: Query) -> Streams:
    """Streams for the sources of a query, by the order of their names."""
    return [
        _keyed(rng)
        if name == "keyed"
        else legal_stream(rng, payloads=ROWS, length=10, horizon=10, points=name == "points")
        for name in sorted(logical.sources(query.plan))
    ]


def _keyed(rng: Random) -> list[Element]:
    """Facts of which no two have one key."""
    stream: list[Element] = [Insert(row, vs := rng.randrange(10), vs + 1) for row in ROWS]
    rng.shuffle(stream)
    stream.insert(rng.randrange(6), Stable(rng.randrange(3)))
    legal, tdb = [], TDB()
    for element in stream:
        if tdb.violation(element) is None:
            tdb.apply(element)
            legal.append(element)
    return [*legal, Stable(INFINITY)]


Batches = list[list[Element]]


def output_of(plan: PhysicalPlan, feeds: Sequence[Feed], rng: Random) -> Batches:
    """What a network emits, of single elements or batches of a source."""
    network, left = plan.begin(), list(feeds)
    output: Batches = []
    names = sorted(network.sources)
    while left:
        port, batch = left[0][0], [left.pop(0)[1]]
        while left and left[0][0] == port and rng.random() < 0.5:
            batch.append(left.pop(0)[1])
        output.append(network.process_batch(names[port], batch))
    return output


def lacking(plan: PhysicalPlan, batches: Batches) -> list[str]:
    """Which promises of a plan its output does not keep."""
    promised, output = stream_properties(plan), [e for batch in batches for e in batch]
    lacks = set()
    starts = [element.vs for element in output if isinstance(element, Insert)]
    pairs = list(pairwise(starts))
    if promised.ordered and any(one > other for one, other in pairs):
        lacks.add("ordered")
    if promised.strictly_ordered and any(one >= other for one, other in pairs):
        lacks.add("strictly_ordered")
    if not promised.revises and any(isinstance(element, Adjust) for element in output):
        lacks.add("revises")
    tdb = TDB()
    for batch in batches:
        for element in batch:
            tdb.apply(element)
            if promised.key and _repeats((e.payload, e.vs) for e in tdb):
                lacks.add("key")
        lacks |= set(lacking_keys(plan, tdb))
    return sorted(lacks)


def lacking_keys(plan: PhysicalPlan, tdb: TDB) -> Iterator[str]:
    """Which keys do not distinguish the events."""
    names = logical.schema_of(plan.plan).names
    for name, columns in keys(plan.plan)._asdict().items():
        places = [names.index(column) for column in columns or ()]
        rows = [(tuple(e.payload[at] for at in places), e) for e in tdb]  # type: ignore[index]
        if columns is None:
            continue
        if name == "once" and _repeats(row for row, _ in rows):
            yield name
        if name == "unique" and any(_repeats(there) for there in _instants(rows)):
            yield name
        if name == "start" and _repeats((row, e.vs) for row, e in rows):
            yield name


def _instants(rows: Sequence[tuple[Hashable, Event]]) -> Iterator[list[Hashable]]:
    for at in {e.vs for _, e in rows}:
        yield [row for row, e in rows if e.vs <= at < e.ve]


def _repeats(values: Iterable[Hashable]) -> bool:
    return max(Counter(values).values(), default=0) > 1


def ties(batches: Batches) -> dict[int, list[object]]:
    """Of each vs the inserts in their order."""
    found: dict[int, list[object]] = {}
    for element in [each for batch in batches for each in batch]:
        if isinstance(element, Insert):
            found.setdefault(element.vs, []).append(element.payload)
    return found


@seeds(100, most=1_000)
def test_no_plan_promises_what_a_prefix_lacks(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        query = drawn(rng, rng.randrange(1, 5), of=WITH_KEYS)
        streams, plan = streams_for(rng, query), chosen(rng, query)
        output = output_of(plan, interleaved(rng, *streams), rng)
        assert not (lacks := lacking(plan, output)), (seed, lacks, plan)
        check_ties(plan, streams, output, rng)


def check_ties(plan: PhysicalPlan, streams: Streams, output: Batches, rng: Random) -> None:
    """Another presentation of the same events has its ties in the same order, if it is promised."""
    if stream_properties(plan).deterministic_ties:
        others = [without_revisions(stream) for stream in streams]
        again = output_of(plan, interleaved(rng, *others), rng)
        assert ties(again) == ties(output), plan


STEPS = (
    *(lambda q: q.by("k").aggregate(n=count()), lambda q: q.aggregate(n=count())),
    lambda q: q.aggregate(n=count(), gap=True),
    lambda q: q.by("k").aggregate(cut=True, n=count()),
    lambda q: q.starts().windows(tumbling(3)).by("k").aggregate(n=count()),
    lambda q: q.starts().windows(hopping(4, every=2)).aggregate(n=count()),
    lambda q: q.starts().windows(hopping(4, every=2)).by("k").top(2, "n", by="n"),
    lambda q: q.starts().windows(tumbling(4)).top(2, "n", by="n"),
    lambda q: q.starts().windows(tumbling(4)).top(2, "k", by=sum_("n"), rank=None, score="s"),
    lambda q: q.top(2, "k", "n", by="n"),
    lambda q: q.at_most(5).windows(tumbling(3)).by("k").apply(apply(average, "n", {"n": float})),
    lambda q: q.windows(snapshots()).by("k").apply(apply(average, "n", {"n": float})),
    lambda q: q.windows(counting(1)).by("k").apply(apply(average, "n", {"n": float})),
    lambda q: q.windows(counting(2, ends=True)).apply(apply(average, "n", {"n": float})),
    *(lambda q: q.by("k").last_rows(1), lambda q: q.last_rows(2), lambda q: q.distinct()),
    *(lambda q: q.join(one.distinct().rename(m="n"), "k"), lambda q: q.window(3)),
    *(lambda q: q.left_join(KEYED.rename(m="n"), "k"), lambda q: q.quantise(3)),
    lambda q: q.full_join(KEYED.rename(m="n"), "k", where=col.m > col.n),
    lambda q: q.select("k"),
    *(lambda q: q.extend(6).anti_join(one, "k"), lambda q: q.extend(6).semi_join(one, "k")),
    lambda q: q.starts().windows(hopping(6, every=2)).by("k").aggregate(n=count()).anti_join(
        points, "k"
    ),
    *(lambda q: q.extend(6).clip(points, "k"), lambda q: q.extend(6).except_(one)),
    *(lambda q: q.extend(3), lambda q: q.shift(2), lambda q: q.shorten(1), lambda q: q.last()),
    lambda q: q.right_join(
        two.by("k").aggregate(m=count()).rename(other="k"), {"k": "other"}, where=col.n > 1
    ),
    lambda q: two.by("k").aggregate(m=count()).left_join(
        q.rename(other="k"), {"k": "other"}, where=col.n > 1
    ),
    *(lambda q: q.intersect_all(one), lambda q: q.except_all(two), lambda q: q.union_max(two)),
    *(lambda q: q.coalesce(), lambda q: q.union(points), lambda q: q.ends(), lambda q: q.deletes()),
    *(lambda q: q.right_join(one.distinct().rename(m="n"), "k"), lambda q: q.hop(3, 4)),
)  # fmt: skip
"""Steps whose results have an order or a key, or lose it."""


@pytest.mark.parametrize("step", range(len(STEPS)))
@seeds(20, most=400)
def test_no_step_promises_too_much_at_any_level(seeds: range, step: int) -> None:
    for seed in seeds:
        rng = Random(seed)
        below = rng.choice((points, one, KEYED, one.distinct(), KEYED.at_most(1)))
        query = STEPS[step](below)
        if rng.random() < 0.5 and "n" in query.schema:
            query = rng.choice((lambda q: q.select("n"), lambda q: q.where(col.n >= 1)))(query)
        plan, streams = chosen(rng, query), streams_for(rng, query)
        output = output_of(plan, interleaved(rng, *streams), rng)
        assert not (lacks := lacking(plan, output)), (seed, lacks, plan)
        check_ties(plan, streams, output, rng)


PER_ORIGIN = points.windows(tumbling(60)).by("k")
CASES: list[tuple[PhysicalPlan, Case]] = [
    (physical(points), Case.R4),
    (physical(KEYED), Case.R3),
    (physical(KEYED.hop(5, 5).select("n", "k")), Case.R3),
    (physical(KEYED.select("n")), Case.R4),
    (physical(points, align=INFINITY), Case.R1),
    (physical(KEYED, align=INFINITY), Case.R1),
    (physical(PER_ORIGIN.aggregate(n=count())), Case.R3),
    (physical(PER_ORIGIN.aggregate(n=count()).select("n")), Case.R4),
    (physical(PER_ORIGIN.aggregate(n=count()), emit="on_close"), Case.R2),
    (physical(PER_ORIGIN.aggregate(n=count()), emit="on_watermark"), Case.R3),
    (physical(points.windows(tumbling(60)).aggregate(n=count()), emit="on_close"), Case.R0),
    (physical(points.windows(hopping(9, every=2)).aggregate(n=count()), emit="on_close"), Case.R0),
    (
        physical(
            points.windows(tumbling(60)).aggregate(n=count()),
            emit="on_watermark",
            choices={points: Choice(align=INFINITY)},
        ),
        Case.R0,
    ),
    (physical(points.windows(tumbling(60)).top(2, "k", by=sum_("n")), emit="on_close"), Case.R1),
    (physical(PER_ORIGIN.top(2, "n", by="n", rank=None)), Case.R4),
    (physical(PER_ORIGIN.top(2, "n", by="n")), Case.R3),
    (physical(one.aggregate(n=count()), emit="on_close"), Case.R0),
    (physical(one.by("k").aggregate(n=count()), emit="on_close"), Case.R3),
    (
        physical(
            points.aggregate(n=count(), cut=True),
            emit="on_watermark",
            choices={points: Choice(align=INFINITY)},
        ),
        Case.R0,
    ),
    (
        physical(
            points.aggregate(n=count()),
            emit="on_watermark",
            choices={points: Choice(align=INFINITY)},
        ),
        Case.R3,
    ),
    (physical(one.distinct()), Case.R3),
    (physical(one.distinct().join(two.distinct().rename(m="n"), "k")), Case.R3),
    (physical(one.distinct().join(two.rename(m="n"), "k")), Case.R4),
    (physical(KEYED.extend(9).left_join(two.distinct().rename(m="n"), "k")), Case.R3),
    (physical(one.union(two)), Case.R4),
    (physical(one.except_all(two)), Case.R4),
    (physical(KEYED.coalesce()), Case.R3),
    (physical(KEYED.extend(5).clip(points, "k")), Case.R3),
    (physical(KEYED.by("k").last_rows(2)), Case.R3),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "wanted"), CASES)
def test_the_case_of_a_plan(plan: PhysicalPlan, wanted: Case) -> None:
    assert case([plan]) == wanted


def test_the_case_of_several_plans_is_that_of_what_all_promise() -> None:
    query = points.windows(tumbling(60)).aggregate(n=count())
    final, early = physical(query, emit="on_close"), physical(query)
    assert (case([final]), case([early]), case([final, early])) == (Case.R0, Case.R3, Case.R3)
    assert stream_properties(final) == StreamProperties(strictly_ordered=True, revises=False)
    with pytest.raises(ValueError, match="no properties"):
        case([])


# Each key where it would be lost if a rule took too much


def test_padded_rows_of_both_sides_may_be_equal() -> None:
    """Neither has a partner; what is left of both is (None, None, None)."""
    nothing = (None, None)
    query = KEYED.full_join(KEYED.rename(m="n"), "k")
    network = physical(query).begin()
    output = network.process_batch("keyed", [Insert(nothing, 1, 2)])
    assert output == [Insert((None, None, None), 1, 2)] * 2
    assert keys(query.plan) == Keys()


def test_rows_without_a_left_side_differ_in_the_right_one() -> None:
    per_k = two.by("k").aggregate(m=count()).rename(other="k")
    padded = one.distinct().right_join(per_k, {"k": "other"})
    assert keys(padded.plan).unique == frozenset({"k", "n", "other"})
    turned = per_k.left_join(one.distinct(), {"other": "k"})
    assert keys(turned.plan).unique == frozenset({"k", "n", "other"})


def test_a_partner_that_is_one_does_not_count_in_the_key() -> None:
    per_k = two.by("k").aggregate(m=count())
    assert keys(one.distinct().join(per_k, "k").plan).unique == frozenset({"k", "n"})
    assert keys(one.by("k").aggregate(n=count()).join(per_k, "k").plan).unique == frozenset({"k"})
    assert keys(per_k.rename(k2="k").plan).unique == frozenset({"k2"})
    assert keys(per_k.select("m").plan) == Keys()
