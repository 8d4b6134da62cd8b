"""Composed plans: a whole network is held to the promises of one operator."""

import sqlite3
from collections import Counter
from random import Random
from typing import Any

import pytest

from lmerge_service.queries import logical
from lmerge_service.queries.logical import Node
from lmerge_service.queries.physical import Emit, physical
from lmerge_service.queries.trees import (
    Binary,
    Coalesce,
    IsNull,
    Literal,
    Name,
    Not,
    Tree,
    When,
)
from lmerge_service.tdb import TDB
from tests.queries.composed import Running, chosen, drawn, feeds_for, maker, means, running, waits
from tests.queries.promises import check_batches, check_promises, snapshot_at
from tests.queries.streams import interleaved
from tests.seeds import seeds

LEVELS: tuple[Emit, ...] = ("ordered", "on_watermark", "on_close")


@seeds(60)
def test_networks_that_emit_on_update_mean_their_plan_after_every_element(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        query = drawn(rng, rng.randrange(1, 5))
        feeds = feeds_for(rng, query)
        exact = not waits(query)
        check_promises(running(query), means(query), feeds, on_update=exact)
        check_batches(running(query), means(query), feeds, rng)


@pytest.mark.parametrize("emit", LEVELS)
@seeds(20)
def test_networks_of_other_levels_mean_their_plan_before_their_stable(
    emit: Emit, seeds: range
) -> None:
    for seed in seeds:
        rng = Random(seed)
        query = drawn(rng, rng.randrange(1, 5))
        feeds = feeds_for(rng, query)
        make = running(query, emit=emit)
        check_promises(make, means(query), feeds, on_update=False)
        check_batches(make, means(query), feeds, rng)


@seeds(20)
def test_networks_of_mixed_choices(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        query = drawn(rng, rng.randrange(1, 5))
        feeds = feeds_for(rng, query)
        make = maker(chosen(rng, query))
        check_promises(make, means(query), feeds, on_update=False)


@seeds(30)
def test_interleaving_changes_no_final_result(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        query = drawn(rng, 3)
        feeds = feeds_for(rng, query)
        ports = sorted({port for port, _ in feeds})
        streams = [[element for at, element in feeds if at == port] for port in ports]
        outputs = []
        for _ in range(3):
            network, output = Running(physical(query)), TDB()
            for port, element in interleaved(rng, *streams):
                for emitted in network.process(element, port):
                    output.apply(emitted)
            outputs.append(output)
        assert outputs[0] == outputs[1] == outputs[2]


# Snapshots against SQLite


@seeds(60)
def test_snapshots_are_the_relational_result_of_snapshots(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        query = drawn(rng, rng.randrange(1, 5), reducible=True)
        names = sorted(logical.sources(query.plan))
        network, output = Running(physical(query)), TDB()
        inputs = {name: TDB() for name in names}
        for port, element in feeds_for(rng, query, length=10):
            inputs[names[port]].apply(element)
            for emitted in network.process(element, port):
                output.apply(emitted)
        text = sql(query.plan)
        times = {t for tdb in (output, *inputs.values()) for e in tdb for t in (e.vs, e.ve - 1)}
        for t in sorted(times):
            wanted = relational(text, {name: snapshot_at(tdb, t) for name, tdb in inputs.items()})
            assert snapshot_at(output, t) == wanted, (t, text)


def relational(text: str, tables: dict[str, Counter[Any]]) -> Counter[Any]:
    """The result of a query over tables of these rows."""
    with sqlite3.connect(":memory:") as base:
        for name, rows in tables.items():
            base.execute(f"CREATE TABLE {name} (k TEXT, n INTEGER)")
            base.executemany(f"INSERT INTO {name} VALUES (?, ?)", rows.elements())  # noqa: S608
        found = Counter(base.execute(text).fetchall())
    base.close()
    return found


def sql(node: Node) -> str:
    """A plan whose results are snapshots' as SQL, in the dialect of SQLite."""
    below = [f"({sql(child)})" for child in logical.children(node)]
    names = ", ".join(names_of(node))
    match node:
        case logical.Source(name=name) | logical.Elements(name=name):
            return f"SELECT {names} FROM {name}"  # noqa: S608
        case logical.Select(where=where):
            return f"SELECT * FROM {below[0]} WHERE {scalar(where)}"  # noqa: S608
        case logical.Project(columns=columns):
            texts = [f"{scalar(tree)} AS {name}" for name, tree in columns]
            return f"SELECT {', '.join(texts)} FROM {below[0]}"  # noqa: S608
        case logical.Union():
            return " UNION ALL ".join(f"SELECT * FROM {each}" for each in below)  # noqa: S608
        case logical.MultisetOp(function=function):
            return multiset(function, below)
        case logical.Join(on=on, where=where, outer=outer):
            assert on == (("k", "k"),)
            mine = "".join(f"x.{name}, " for name in names_of(node.left) if name != "k")
            condition = "x.k = y.k" + ("" if where is None else f" AND {scalar(where)}")
            kind = f"{outer} OUTER" if outer else "INNER"
            return (
                f"SELECT COALESCE(x.k, y.k) AS k, {mine}y.m AS m "  # noqa: S608
                f"FROM {below[0]} x {kind} JOIN {below[1]} y ON {condition}"
            )
        case logical.SemiJoin(where=where, anti=anti):
            condition = "x.k = y.k" + ("" if where is None else f" AND {scalar(where)}")
            return (
                f"SELECT x.* FROM {below[0]} x WHERE {'NOT ' if anti else ''}EXISTS "  # noqa: S608
                f"(SELECT 1 FROM {below[1]} y WHERE {condition})"
            )
        case logical.Aggregate(by=by, results=results):
            assert isinstance(results, tuple)
            texts = [*by, *(f"{aggregate(each)} AS {name}" for name, each in results)]
            grouping = f"GROUP BY {', '.join(by)}" if by else "HAVING COUNT(*) > 0"
            return f"SELECT {', '.join(texts)} FROM {below[0]} {grouping}"  # noqa: S608
    raise AssertionError(node)


def names_of(node: Node) -> tuple[str, ...]:
    return logical.schema_of(node).names


def multiset(function: str, below: list[str]) -> str:
    """SQLite has no ALL but for UNION: rows are numbered among their equals."""
    numbered = [
        f"SELECT *, ROW_NUMBER() OVER (PARTITION BY k, n) AS r FROM {each}"  # noqa: S608
        for each in below
    ]
    plain = [f"SELECT * FROM {each}" for each in below]  # noqa: S608
    match function:
        case "coalesce":
            return plain[0]
        case "distinct":
            return f"SELECT DISTINCT * FROM {below[0]}"  # noqa: S608
        case "except":
            return " EXCEPT ".join(plain)
        case "intersect":
            return " INTERSECT ".join(plain)
        case "except_all":
            return f"SELECT k, n FROM ({' EXCEPT '.join(numbered)})"  # noqa: S608
        case "intersect_all":
            return f"SELECT k, n FROM ({' INTERSECT '.join(numbered)})"  # noqa: S608
        case "union_max":
            return f"SELECT k, n FROM ({' UNION '.join(numbered)})"  # noqa: S608
    raise AssertionError(function)


def aggregate(aggregation: logical.Aggregation) -> str:
    of = "*" if aggregation.of is None else scalar(aggregation.of)
    match aggregation.function:
        case "count" | "count_of":
            return f"COUNT({of})"
        case "distinct_count":
            return f"COUNT(DISTINCT {of})"
        case "average":
            return f"AVG({of})"
        case function:
            return f"{function.upper()}({of})"


def scalar(tree: Tree) -> str:
    match tree:
        case Name(name):
            return name
        case Literal(value):
            return "NULL" if value is None else repr(value)
        case Binary(op, left, right):
            word = {"&": "AND", "|": "OR", "==": "="}.get(op, op)
            return f"({scalar(left)} {word} {scalar(right)})"
        case Not(of):
            return f"(NOT {scalar(of)})"
        case IsNull(of):
            return f"({scalar(of)} IS NULL)"
        case Coalesce(args):
            return f"COALESCE({', '.join(map(scalar, args))})"
        case When(branches, otherwise):
            whens = " ".join(f"WHEN {scalar(c)} THEN {scalar(v)}" for c, v in branches)
            return f"(CASE {whens} ELSE {scalar(otherwise)} END)"
    raise AssertionError(tree)
