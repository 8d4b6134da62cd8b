"""Plans in words: every kind of node has its line, once in a flowchart."""

import msgspec
import pytest

from lmerge_service.queries import logical
from lmerge_service.queries.explaining import described, document, mermaid, tree, tree_nodes
from lmerge_service.queries.expressions import col
from lmerge_service.queries.module_library import average
from lmerge_service.queries.physical import physical
from lmerge_service.queries.plan import (
    Query,
    apply,
    count,
    counting,
    hopping,
    percentile,
    snapshots,
    sum_,
    tumbling,
)
from tests.queries.composed import SOURCES

points, one, two = SOURCES["points"], SOURCES["one"], SOURCES["two"]
other = two.rename(m="n")
MEAN = apply(average, "n", {"n": float})

LINES: dict[str, Query] = {
    "facts points (k: str, n: int)": points,
    "elements one (k: str, n: int)": one,
    "where col.n > 1": one.where(col.n > 1),
    "select k, m=col.n + 1": one.select("k", m=col.n + 1),
    "flat_map builtins:list": one.flat_map("builtins:list", {"k": str}),
    "at_most(3)": one.at_most(3),
    "inserts()": one.inserts(),
    "union": one.union(two),
    "join on k where col.m > col.n": one.join(other, "k", where=col.m > col.n),
    "left join on k": one.left_join(other, "k"),
    "join on k=l": one.join(other.rename(l="k"), {"k": "l"}),
    "semi_join on k, n": one.semi_join(two, ("k", "n")),
    "anti_join on k": one.anti_join(two, "k"),
    "clip on k": one.clip(two, "k"),
    "except_all": one.except_all(two),
    "aggregate by k: n=count(), p=percentile(col.n, 0.9)": one.by("k").aggregate(
        n=count(), p=percentile("n", 0.9)
    ),
    "aggregate, cut, gap: n=count()": one.aggregate(n=count(), cut=True, gap=True),
    "aggregate by k: top 2 n by col.n": one.by("k").top(2, "n", by="n"),
    "windows tumbling(5): n=count()": points.windows(tumbling(5)).aggregate(n=count()),
    "windows hopping(6, every=2, origin=1) by k: top 1 n by sum(col.n)": points.windows(
        hopping(6, every=2, origin=1)
    )
    .by("k")
    .top(1, "n", by=sum_("n")),
    "windows snapshots(): lmerge_service.queries.module_library:average(col.n)": one.windows(
        snapshots()
    ).apply(MEAN),
    "windows counting(2, ends=True) by k: lmerge_service.queries.module_library:average(col.n)": (
        one.windows(counting(2, ends=True)).by("k").apply(MEAN)
    ),
    "last_rows(2) by k": one.by("k").last_rows(2),
    "apply by k": one.by("k").apply(lambda group: group.distinct()),
}


@pytest.mark.parametrize("line", LINES)
def test_a_node_in_one_line(line: str) -> None:
    query = LINES[line]
    assert described(query.plan) == line
    assert str(query).splitlines()[0] == line
    assert msgspec.json.encode(document(query.plan))


def test_every_kind_of_node_has_its_line() -> None:
    kinds = {type(query.plan) for query in LINES.values()}
    assert kinds | {logical.Group} == set(logical.Node.__args__)


def test_the_plan_of_groups_stands_beside_what_is_grouped() -> None:
    assert list(tree(LINES["apply by k"].plan)) == [
        "apply by k",
        "├─ elements one (k: str, n: int)",
        "└─ distinct",
        "   └─ the group",
    ]


def test_a_shared_node_is_once_in_a_flowchart_and_marks_are_escaped() -> None:
    late = one.where(col.k == 'a"<#')
    lines = list(mermaid(late.union(late.window(2)).plan))
    assert lines == [
        "flowchart BT",
        '  n0["elements one (k: str, n: int)"]',
        "  n1[\"where col.k == 'a#quot;#lt;#35;'\"]",
        "  n0 --> n1",
        '  n2["window(2)"]',
        "  n1 --> n2",
        '  n3["union"]',
        "  n1 --> n3",
        "  n2 --> n3",
    ]


def test_each_operator_is_of_a_node_and_each_line_of_a_plan_knows_its_node() -> None:
    late = one.where(col.k == "a")
    plan = late.union(late.window(2)).plan
    assert list(tree(plan)) == [
        "union",
        "├─ where col.k == 'a'",
        "│  └─ elements one (k: str, n: int)",
        "└─ window(2)",
        "   └─ where col.k == 'a'",
        "      └─ elements one (k: str, n: int)",
    ]
    assert tree_nodes(plan) == [3, 1, 0, 2, 1, 0]
    stats = physical(plan).begin().stats()
    assert [(each["node"], each["operator"]) for each in stats] == [
        (0, "Elements"), (1, "Select"), (2, "AlterLifetime"), (3, "Union"),
    ]  # fmt: skip
    assert tree_nodes(LINES["apply by k"].plan) == [1, 0, None, None]
