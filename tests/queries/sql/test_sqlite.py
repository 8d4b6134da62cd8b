"""What a statement means is what SQLite answers to the same text, at each instant, or per window.

At an instant, SQLite's tables hold the rows that are valid then. For a window, the table in windows
holds the facts of that window, and the statement is the same with that table behind FROM."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from lmerge_service.queries.meaning.plans import meaning
from lmerge_service.queries.plan import Query, elements
from lmerge_service.queries.sql.statements import query_over
from lmerge_service.tdb import TDB
from tests.queries.promises import snapshot_at
from tests.seeds import seeds

TABLES = {
    "a": elements("a", {"k": int, "x": int, "s": str}),
    "b": elements("b", {"k": int, "y": int}),
}
STATEMENTS = [
    "SELECT * FROM a",
    "SELECT k, x + 2 * k - 1 AS z, -x AS n FROM a WHERE x > 1 OR NOT k = 2",
    "SELECT x % 3 AS r, x BETWEEN 1 AND 2 AS u, x IN (1, 3) AS v, x IS NULL AS w FROM a",
    "SELECT CASE k WHEN 1 THEN 'one' WHEN 2 THEN s END AS z, COALESCE(x, k) AS c FROM a",
    "SELECT NULLIF(x, k) AS n, CAST(s AS TEXT) AS t FROM a WHERE s >= 'b'",
    "SELECT DISTINCT k, s FROM a",
    "SELECT a.k, a.x, b.y FROM a JOIN b ON a.k = b.k",
    "SELECT a.s, b.y FROM a JOIN b ON b.k = a.k AND b.y < a.x AND b.y > 0",
    "SELECT a.x, b.y FROM a LEFT JOIN b ON a.k = b.k",
    "SELECT a.x, b.y FROM a RIGHT JOIN b ON a.k = b.k",
    "SELECT a.x, b.y FROM a FULL JOIN b ON a.k = b.k",
    "SELECT a.k, b.y FROM a LEFT JOIN b ON a.k = b.k AND a.x > 1",
    "SELECT b.k, a.x FROM a RIGHT JOIN b ON a.k = b.k AND b.y > 1",
    "SELECT k, a.x, b.y FROM a FULL JOIN b USING (k)",
    "SELECT a.k, a.x, b.k AS z FROM a JOIN b ON a.k = b.k AND a.k = b.y",
    "SELECT a.x, b.k FROM a JOIN b ON a.k = b.k AND a.x = b.k",
    "SELECT * FROM a WHERE EXISTS (SELECT 1 FROM a t WHERE t.k = a.k AND t.x > a.x)",
    "SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.y = a.k)",
    "SELECT one.x, two.x AS x2 FROM a one JOIN a two ON one.k = two.k WHERE one.x < two.x",
    "SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k)",
    "SELECT * FROM a WHERE x > 0 AND NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND y > 1)",
    "SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.y > a.x)",
    "SELECT x FROM a WHERE k IN (SELECT y FROM b WHERE y > 0)",
    "SELECT k FROM a UNION ALL SELECT y FROM b",
    "SELECT k FROM a UNION SELECT y FROM b",
    "SELECT k FROM a EXCEPT SELECT y FROM b",
    "SELECT k FROM a INTERSECT SELECT y FROM b",
    "WITH t AS (SELECT k, x FROM a WHERE x > 0) SELECT t.x, b.y FROM t JOIN b ON t.k = b.k",
    "SELECT z + 1 AS y FROM (SELECT x * 2 AS z FROM a) AS q WHERE z > 2",
]
"""Those that are the same at an instant as over time."""
GROUPED = [
    "SELECT k, COUNT(*) AS n, COUNT(x) AS c, SUM(x) AS s FROM {a} GROUP BY {w}k",
    "SELECT MIN(x) AS lo, MAX(x) AS hi, COUNT(DISTINCT s) AS d, k FROM {a} GROUP BY {w}k",
    "SELECT k, AVG(x) AS m FROM {a} WHERE x > 0 GROUP BY {w}k HAVING COUNT(*) > 1",
    "SELECT k, SUM(x) + k AS t FROM {a} GROUP BY {w}k HAVING SUM(x) > 2 AND k < 3",
    "SELECT s, k, COUNT(*) FILTER (WHERE x > 1) AS n, MAX(x + k) AS t FROM {a} GROUP BY {w}k, s",
    "SELECT k, SUM(x) FILTER (WHERE s = 'a') AS t FROM {a} GROUP BY {w}k",
]
"""With and without windows; where no row is, neither has a group."""


def drawn(rng: Random) -> dict[str, TDB]:
    """Rows with nulls and repeats, with lifetimes that overlap."""

    def value(least: int, most: int) -> int | None:
        return None if rng.random() < 0.15 else rng.randint(least, most)

    def rows(make: Any) -> TDB:
        starts = [rng.randint(0, 12) for _ in range(rng.randint(5, 16))]
        return TDB((make(), vs, vs + rng.randint(1, 6)) for vs in starts)

    return {
        "a": rows(lambda: (value(1, 3), value(-2, 4), rng.choice("abc"))),
        "b": rows(lambda: (value(1, 3), value(-1, 3))),
    }


def answered(text: str, tables: dict[str, list[Any]]) -> Counter[Any]:
    """SQLite's answer over rows."""
    with sqlite3.connect(":memory:") as database:
        for name, rows in tables.items():
            names = TABLES[name].schema.names
            database.execute(f"CREATE TABLE {name} ({', '.join(names)})")
            marks = ", ".join("?" * len(names))
            database.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)  # noqa: S608
        found = Counter(database.execute(text).fetchall())
    database.close()
    return found


def instants(given: dict[str, TDB]) -> Iterator[tuple[int, dict[str, list[Any]]]]:
    for t in range(19):
        yield t, {name: list(snapshot_at(tdb, t).elements()) for name, tdb in given.items()}


@pytest.mark.parametrize("text", [*STATEMENTS, *(each.format(a="a", w="") for each in GROUPED)])
@seeds(4)
def test_at_each_instant_sqlite_answers_the_same(text: str, seeds: range) -> None:
    query: Query = query_over(text, TABLES)
    met = 0
    for seed in seeds:
        given = drawn(Random(seed))
        result = meaning(query.plan, given)
        for t, tables in instants(given):
            found, wanted = snapshot_at(result, t), answered(text, tables)
            assert found == wanted, (seed, t, found, wanted)
            met += len(wanted)
    assert met, "no row in any of them shows nothing"


@pytest.mark.parametrize("text", GROUPED)
@pytest.mark.parametrize(
    ("windows", "size", "every"),
    [("TUMBLE(a, vs, 4)", 4, 4), ("TABLE(HOP(TABLE a, DESCRIPTOR(vs), 2, 6))", 6, 2)],
    ids=["tumble", "hop"],
)
@seeds(4)
def test_in_each_window_sqlite_answers_the_same(
    text: str, windows: str, size: int, every: int, seeds: range
) -> None:
    query = query_over(text.format(a=windows, w="window_start, "), TABLES)
    met = 0
    for seed in seeds:
        given = drawn(Random(seed))
        result = list(meaning(query.plan, given))
        for start in range(-size, 24, every):
            inside = [row for row, vs, ve in given["a"] if vs < start + size and ve > start]
            wanted = answered(text.format(a="a", w=""), {"a": inside, "b": []})
            found = Counter(row for row, vs, ve in result if (vs, ve) == (start, start + size))
            assert found == wanted, (seed, start, found, wanted)
            met += len(wanted)
        assert all(ve - vs == size and vs % every == 0 for _, vs, ve in result)
    assert met, "no row in any of them shows nothing"
