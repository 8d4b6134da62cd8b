"""Rules: class E has equal TDBs, class S equal snapshots; all variants are one query."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from lmerge_service.queries import logical
from lmerge_service.queries.expressions import col, is_null, udf
from lmerge_service.queries.logical import Node
from lmerge_service.queries.meaning.plans import meaning
from lmerge_service.queries.module_library import average
from lmerge_service.queries.plan import (
    Query,
    apply,
    count,
    counting,
    first,
    max_,
    min_,
    snapshots,
    sum_,
    tumbling,
)
from lmerge_service.queries.rewriting import RULES, Rule, variants
from lmerge_service.queries.rewriting.closure import rewritten
from lmerge_service.queries.rewriting.projections import tidy
from lmerge_service.tdb import TDB
from tests.queries.composed import SOURCES, drawn
from tests.queries.promises import snapshot_at
from tests.queries.test_history import given_for
from tests.seeds import seeds

points, one, two = SOURCES["points"], SOURCES["one"], SOURCES["two"]
other, third = two.rename(m="n"), points.rename(o="n")
MEAN = apply(average, "n", {"n": float})

PLANS: dict[str, Query] = {
    "conjunction": one.where((col.n > 1) & (col.k == "a")),
    "conditions": one.where(col.n > 0).where(col.k != "b"),
    "conditions of functions": one.where(
        udf("tests.queries.costly:accepts_left", col.n, returns=bool)
    ).where(udf("tests.queries.costly:accepts_right", col.n + 1, returns=bool)),
    "a function or another": one.where(
        udf(
            "tests.queries.costly:accepts_left",
            col.n,
            returns=bool,
            also=["tests.queries.costly:accepts_right"],
        )
    ),
    "select of union": one.union(two).where(col.n > 1),
    "select of difference": one.except_all(two).where(col.n > 1),
    "select of lifetime": one.window(3).where(is_null(col.n)),
    "select of clip": one.at_most(4).clip(two, "k").where(col.n > 1),
    "select of anti-join": one.anti_join(other, "k", where=col.m > col.n).where(col.n == 1),
    "select of join, left": one.join(other, "k").where(col.n > 1),
    "select of join, right": one.join(other, "k").where(col.m > 1),
    "select of join, key": one.join(other, "k").where(col.k == "a"),
    "select of left join": one.left_join(other, "k").where(col.n > 1),
    "select of left join, padded": one.left_join(other, "k").where(is_null(col.m)),
    "select of right join": one.right_join(other, "k").where(col.m > 1),
    "select of full join": one.full_join(other, "k").where(col.n > 1),
    "select of groups": one.by("k").aggregate(n=sum_("n")).where(col.k == "a"),
    "select of values": one.by("k").aggregate(n=sum_("n")).where(col.n > 1),
    "select of windows": points.windows(tumbling(3))
    .by("k")
    .top(1, "n", by="n")
    .where(col.k == "a"),
    "select of snapshots": one.windows(snapshots()).by("k").apply(MEAN).where(col.k == "a"),
    "select of counting": one.windows(counting(2)).by("k").apply(MEAN).where(col.k == "a"),
    "select of rows": one.by("k").last_rows(1).where(col.k == "a"),
    "select of rows, values": one.by("k").last_rows(1).where(col.n > 1),
    "select of columns": one.select("k", n=col.n + 1).where(col.n > 2),
    "columns of columns": one.select("k", m=col.n + 1).select("k", n=col.m * 2),
    "all columns": one.select("k", "n"),
    "columns of union": one.union(two).select(n=col.n, k=col.k),
    "columns of lifetime": one.window(2).select("k"),
    "columns of distinct": one.distinct().rename(n2="n"),
    "columns of distinct, one gone": one.distinct().select("k"),
    "join": one.join(other, "k", where=col.m > col.n),
    "outer join": one.right_join(other, "k", where=col.m > col.n),
    "joins": one.join(other, "k").join(third, "k", where=col.o >= col.n),
    "joins by other columns": one.join(other, "k").join(
        third.rename(p="k"), {"m": "o"}, where=col.p == col.k
    ),
    "joins by the first's column": one.join(other, "k").join(third, {"n": "o"} | {"k": "k"}),
    "union joined": one.union(two).join(third, "k"),
    "union left joined": one.union(two).left_join(third, "k"),
    "joined with union": one.join(other.union(other.window(2)), "k"),
    "semi-join": one.semi_join(two, "k"),
    "semi-join by another name": one.semi_join(other.rename(k2="k"), {"k": "k2", "n": "m"}),
    "anti-joins": one.anti_join(two, "k").anti_join(points, "k"),
    "anti-joins by two columns": one.anti_join(two, ("k", "n")).anti_join(points, ("n", "k")),
    "semi-joins": one.semi_join(two, "k").anti_join(other, "k", where=col.m > col.n),
    "distinct join": one.join(other, "k", where=col.m >= col.n).distinct(),
    "distinct union": one.union(two).distinct(),
    "coalesced join": one.join(other, "k").coalesce(),
    "coalesced union": one.union(two).coalesce(),
    "distinct distinct": one.distinct().distinct(),
    "distinct of all": one.union_max(two).distinct(),
    "distinct aggregate": one.by("k").aggregate(n=count()).distinct(),
    "distinct top": one.top(2, "k", by="n", rank=None).distinct(),
    "distinct snapshots": one.by("k").aggregate(n=count(), cut=True).distinct(),
    "differences": one.except_all(two).except_all(points),
    "differences of sets": one.except_(two).except_(points),
    "mixed differences": one.except_(two).except_all(points),
    "intersection": one.intersect_all(two),
    "union of lifetimes": one.window(2).union(two.window(2)),
    "union of other lifetimes": one.window(2).union(two.window(3)),
    "lifetime of union": one.union(two).quantise(3),
    "parts": one.union(two).by("k").aggregate(n=count(), least=min_("n"), most=max_("n")),
    "parts of a sum": one.union(two).by("k").aggregate(n=sum_("n")),
    "parts, cut": one.union(two).by("k").aggregate(n=count(), cut=True),
    "all together": one.aggregate(c=count("n"), most=max_("n")),
    "all together in windows": points.windows(tumbling(3)).aggregate(c=count()),
    "aggregate and semi-join": one.by("k").aggregate(n=sum_("n")).semi_join(two, "k"),
    "aggregate and anti-join": one.by("k").aggregate(n=count()).anti_join(two, "k"),
    "semi-join and aggregate": one.semi_join(two, "k").by("k").aggregate(n=count()),
    "semi-join and first": one.semi_join(two, "k").by("k").aggregate(n=first("n")),
    "unread": one.join(other, "k").by("k").aggregate(n=count()),
    "unread by first": one.by("k").aggregate(n=first("n")),
    "tumbling": points.windows(tumbling(3, origin=3)).by("k").aggregate(n=sum_("n")),
    "tumbling, ranked": points.windows(tumbling(3)).by("k").top(2, "n", by="n"),
    "tumbling first": points.windows(tumbling(3)).by("k").aggregate(n=first("n")),
    "tumbling from elsewhere": points.windows(tumbling(3, origin=1)).aggregate(n=count()),
    "below a count": one.coalesce().by("k").aggregate(n=count()),
    "below a distinct": one.join(other, "k").where(col.m > 1).distinct(),
    "below a semi-join": one.semi_join(two.coalesce(), "k"),
    "snapshots below a count": one.by("k")
    .aggregate(n=count(), cut=True)
    .distinct()
    .aggregate(m=count()),
}  # fmt: skip


def equal(one: Node, other: Node, rng: Random) -> bool:
    given = given_for(rng, one)
    return meaning(one, given) == meaning(other, given)


@pytest.mark.parametrize("name", PLANS)
@seeds(6, most=60)
def test_each_rewriting_of_each_plan_has_its_tdb(seeds: range, name: str) -> None:
    plan = PLANS[name].plan
    assert equal(plan, tidy(plan), Random(seeds[0]))
    for rule, rewriting in rewritten(plan):
        for seed in seeds:
            assert equal(plan, rewriting, Random(seed)), (rule.name, seed, rewriting)


@seeds(40, most=120)
def test_each_rewriting_of_random_plans_has_their_tdb(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        plan = drawn(rng, rng.randrange(1, 5)).plan
        for rule, rewriting in rewritten(plan):
            assert equal(plan, rewriting, rng), (rule.name, seed, rewriting)


@seeds(12, most=40)
def test_all_variants_of_random_plans_have_their_tdb(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        plan = drawn(rng, rng.randrange(1, 5)).plan
        found = variants(plan, 20)
        assert found[0] == (plan, ())
        assert len({each.plan for each in found}) == len(found)
        for variant in found:
            assert logical.schema_of(variant.plan) == logical.schema_of(plan)
            assert equal(plan, variant.plan, rng), (seed, variant)


def test_projections_that_change_nothing_are_tidied_away() -> None:
    kept = one.select(n=col.n + 1, k=col.k)
    for rough in (kept.select("n", "k"), kept.select("k", "n").select("n", "k")):
        assert tidy(rough.plan) == kept.plan
    assert tidy(one.select("k", "n").distinct().plan) == one.distinct().plan
    assert tidy(one.select("k").select("k").plan) == one.select("k").plan


def test_every_rule_is_used_by_some_plan() -> None:
    used = Counter(rule.name for query in PLANS.values() for rule, _ in rewritten(query.plan))
    assert used.keys() == {rule.name for rule in RULES}
    assert len(used) == len(RULES)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("select of left join, padded", "select below the right side"),
        ("select of full join", "select below the left side"),
        ("conditions", "exchange selections"),
        ("select of values", "select below groups"),
        ("select of rows, values", "select below groups"),
        ("joins by the first's column", "join the right two first"),
        ("mixed differences", "take away all at once"),
        ("union of other lifetimes", "lifetimes above union"),
        ("parts of a sum", "aggregate each part of a union"),
        ("parts, cut", "aggregate each part of a union"),
        ("tumbling first", "tumbling windows as snapshots of a grid"),
        ("tumbling from elsewhere", "tumbling windows as snapshots of a grid"),
        ("unread by first", "drop what an aggregate does not read"),
        ("columns of distinct, one gone", "project below distinct and coalesce"),
        ("distinct top", "leave out what changes nothing"),
        ("semi-join and first", "aggregate below a semi-join"),
        ("semi-joins", "semi-join as join with distinct keys"),
    ],
)
def test_where_a_condition_does_not_hold_its_rule_is_not_used(name: str, rule: str) -> None:
    (found,) = (each for each in RULES if each.name == rule)
    assert list(found.rewritten(PLANS[name].plan)) == []


# Snapshots only


def at_all_times(tdb: TDB) -> list[Counter[object]]:
    return [snapshot_at(tdb, at) for at in range(30)]


CUT = TDB([(("a", 1), 1, 3), (("a", 1), 3, 5), (("b", 1), 2, 4)])


def s_rules(plan: Node) -> Iterator[tuple[Rule, Node]]:
    return (
        (rule, rewriting) for rule, rewriting in rewritten(plan, snapshots=True) if rule.kind == "S"
    )


@seeds(40)
def test_rules_of_class_s_have_equal_snapshots(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        plan = drawn(rng, rng.randrange(1, 4)).plan
        for rule, rewriting in s_rules(plan):
            given = given_for(rng, plan, endless=False)
            found = [at_all_times(meaning(each, given)) for each in (plan, rewriting)]
            assert found[0] == found[1], (rule.name, seed)


@pytest.mark.parametrize(
    ("rule", "query"),
    [
        ("leave out coalesce", one.coalesce()),
        ("coalesce", one.window(2)),
        (
            "leave out distinct of snapshots",
            one.by("k").aggregate(n=count("n"), cut=True).distinct(),
        ),
    ],
)
def test_rules_of_class_s_are_not_of_class_e(rule: str, query: Query) -> None:
    """What meets is one event, or stays two."""
    (found,) = (other for each, other in s_rules(query.plan) if each.name == rule)
    assert meaning(found, {"one": CUT}) != meaning(query.plan, {"one": CUT})


@pytest.mark.parametrize(
    ("query", "below"),
    [
        (one.coalesce().by("k").aggregate(n=count()), True),
        (one.coalesce().where(col.n > 1).distinct(), True),
        (one.semi_join(two.coalesce(), "k"), True),
        (one.coalesce().semi_join(two, "k"), False),
        (one.coalesce().window(3).distinct(), False),
        (one.coalesce().by("k").aggregate(n=first("n")), False),
        (one.coalesce().by("k").aggregate(n=count(), cut=True), False),
        (one.coalesce().union(two), False),
        (one.coalesce().at_most(9).windows(tumbling(3)).aggregate(n=count()), False),
        (one.coalesce().last_rows(1), False),
        (one.coalesce().clip(two.coalesce(), "k"), False),
    ],
)
def test_rules_of_class_s_are_used_below_what_depends_on_snapshots(
    query: Query, below: bool
) -> None:
    names = {rule.name for rule, _ in rewritten(query.plan)}
    assert ("leave out coalesce" in names) == below


@pytest.mark.parametrize(
    "query",
    [
        one.extend(9).by("k").aggregate(n=count()),
        one.extend(9).distinct(),
        one.union(two).coalesce(),
    ],
)
def test_no_plan_coalesces_what_is_coalesced(query: Query) -> None:
    """It costs an operator more, for the same: plans of one query had up to 23 in a row."""
    for each in variants(query.plan):
        for node in logical.nodes(each.plan):
            twice = isinstance(node, logical.MultisetOp) and node.function == "coalesce"
            below = node.of[0] if isinstance(node, logical.MultisetOp) and twice else None
            assert not (isinstance(below, logical.MultisetOp) and below.function == "coalesce")


# What is no rule


def window_counts(query: Query) -> Query:
    return query.at_most(9).windows(tumbling(2)).aggregate(n=count())


FORBIDDEN: dict[str, tuple[Query, Query]] = {
    "windows over coalesced input": (window_counts(one), window_counts(one.coalesce())),
    "count windows and selection": (
        one.windows(counting(2)).apply(apply(average, "n", {"m": float})),
        one.where(col.k == "a").windows(counting(2)).apply(apply(average, "n", {"m": float})),
    ),
    "last rows and selection": (
        one.last_rows(1).where(col.k == "a"),
        one.where(col.k == "a").last_rows(1),
    ),
    "last rows and union": (
        one.union(two).last_rows(1),
        one.last_rows(1).union(two.last_rows(1)),
    ),
    "lifetimes and distinct": (one.distinct().window(3), one.window(3).distinct()),
    "lifetimes and joins": (
        one.join(other, "k").window(3),
        one.window(3).join(other.window(3), "k"),
    ),
    "left join and its right side": (
        one.left_join(other, "k").where(is_null(col.m)),
        one.left_join(other.where(is_null(col.m)), "k"),
    ),
    "semi-join and anti-join together": (
        one,
        one.semi_join(two, "k").union(one.anti_join(two, "k")),
    ),
    "selection of a group's value": (
        one.by("k").aggregate(n=count()).where(col.n > 1),
        one.where(col.n > 1).by("k").aggregate(n=count()),
    ),
    "mixed differences": (
        one.except_all(two).except_(points),
        one.except_all(two.union(points)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_is_no_rule_is_none(name: str) -> None:
    left, right = (query.plan for query in FORBIDDEN[name])
    assert not all(_alike(left, right, seed) for seed in range(200)), "it might be a rule"
    assert right not in {each.plan for each in variants(left)}


def _alike(left: Node, right: Node, seed: int) -> bool:
    plan = (
        logical.Union((left, right))
        if logical.schema_of(left) == logical.schema_of(right)
        else left
    )
    given = given_for(Random(seed), plan)
    return meaning(left, given) == meaning(right, given)


def test_a_join_of_what_is_canonical_is_not() -> None:
    """Layers of pairs are not pairs of layers."""
    given = {
        "one": TDB([(("a", 1), 1, 6), (("a", 1), 2, 4)]),
        "two": TDB([(("a", 2), 1, 6), (("a", 2), 3, 5)]),
    }
    coalesced = one.coalesce().join(other.coalesce(), "k").plan
    assert meaning(coalesced, given) != meaning(one.join(other, "k").coalesce().plan, given)
    assert coalesced not in {each.plan for each in variants(one.join(other, "k").coalesce().plan)}
