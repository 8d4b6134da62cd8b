"""What a statement cannot say is refused: where it stands, why, and the nearest that is there."""

import re

import pytest

from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.sql.statements import query_over, sql
from tests.queries.sql.tables import TABLES, flights

REFUSED = {
    "": "line 1, column 1: a query is one SELECT",
    "(NULL)": "line 1, column 1: a query is one SELECT",
    "DROP TABLE flights": "line 1, column 1: a query is one SELECT",
    "SELECT origin FROM flights;\nSELECT 1": "line 2, column 8: another statement: a query is one",
    "SELECT origin FROM": "line 1, column 15: the statement ends too early",
    "SELECT 'a FROM flights": "line 1, column 8: a quote or a comment is not closed",
    'SELECT origin,\n  "delay FROM flights': "line 2, column 3: a quote or a comment is not closed",
    "SELECT /* of\nall */ origin\n/* FROM": "line 3, column 1: a quote or a comment is not closed",
    "SELECT origin": "line 1, column 8: name a table",
    "SELECT origin FROM\n  airports": "line 2, column 3: there is no table airports; there is",
    "SELECT orign FROM flights": "line 1, column 8: there is no column orign; there is origin",
    "SELECT w.origin FROM flights f": "column 8: no table is called w here; there is f",
    "SELECT w.* FROM flights f": "there is no table w; there is f",
    "SELECT delay + origin AS x FROM flights": "column 8: select x=col.delay + col.origin",
    "SELECT delay + 1 FROM flights": "column 8: give delay + 1 a name: delay + 1 AS name",
    "SELECT delay, delay FROM flights": "two columns are called delay",
    "SELECT delay / 2 AS x FROM flights": "column 8: / is not supported: FLOOR(a / b)",
    "SELECT origin || 'x' AS x FROM flights": "column 8: || is not supported",
    "SELECT * FROM flights WHERE origin LIKE 'J%'": "column 29: LIKE is not supported",
    "SELECT UPPER(origin) AS x FROM flights": "column 8: UPPER() is not supported",
    "SELECT thing(origin) AS x FROM flights": "column 8: THING() is not supported",
    "SELECT CAST(delay AS DECIMAL(3, 1)) AS x FROM flights": "CAST to BIGINT, DOUBLE or VARCHAR is",
    "SELECT TRY_CAST(delay AS BIGINT) AS x FROM flights": "CAST to BIGINT, DOUBLE or VARCHAR is",
    "SELECT * FROM flights WHERE delay = NULL": "column 29: nothing equals NULL",
    "SELECT * FROM flights ORDER BY delay": "column 32: ORDER is not supported",
    "SELECT * FROM flights LIMIT 3": "LIMIT is not supported",
    "SELECT DISTINCT ON (origin) * FROM flights": "SELECT DISTINCT, without ON, is",
    "SELECT SUM(delay) OVER (PARTITION BY origin) AS x FROM flights": "OVER is not supported",
    "SELECT delay IS DISTINCT FROM 3 AS x FROM flights": "IS DISTINCT FROM is not supported",
    "SELECT * FROM flights WHERE delay BETWEEN SYMMETRIC 5 AND 1": "SYMMETRIC is not supported",
    "SELECT FLOOR(delay / 60, 1) AS x FROM flights": "FLOOR() is not supported",
    "SELECT MAX(delay, 2) AS x FROM flights": "MAX(delay, 2) is not supported",
    "SELECT * FROM flights WHERE COUNT(*) > 3": "column 29: COUNT() within this is not supported",
    "SELECT * FROM flights FOR UPDATE": "line 1, column 8: FOR UPDATE is not supported",
    "SELECT a FROM flights AS f(a, b, c)": "column 15: columns behind a table's name",
    "SELECT a FROM (SELECT origin FROM flights) AS f(a)": "columns behind a table's name",
    "SELECT * FROM flights, weather": "a join needs an equality",
    "SELECT * FROM flights CROSS JOIN weather": "CROSS JOIN is not supported: INNER",
    "SELECT * FROM flights NATURAL JOIN weather": "NATURAL is not supported",
    "SELECT * FROM flights LEFT SEMI JOIN closed ON origin = airport": "LEFT SEMI JOIN is not",
    "SELECT * FROM flights LEFT ANTI JOIN closed ON origin = airport": "and WHERE [NOT] EXISTS (",
    "SELECT * FROM flights f JOIN weather w ON f.delay > w.delay": "a join needs an equality",
    "SELECT * FROM flights JOIN flights ON delay = delay": "two tables are called flights",
    "SELECT * FROM flights f JOIN weather w ON origin = w.origin": "origin is ambiguous",
    "SELECT delay FROM flights f JOIN weather w USING (origin)": "delay is ambiguous",
    "SELECT w.origin FROM flights f LEFT JOIN weather w ON f.origin = w.origin": "has no partner",
    "SELECT f.origin FROM flights f RIGHT JOIN weather w USING (origin)": "has no partner",
    "SELECT f.origin FROM flights f FULL JOIN weather w USING (origin)": "has no partner",
    "SELECT f.origin FROM flights f FULL JOIN weather w ON f.origin = w.origin": "once: join USING",
    "SELECT * FROM flights WHERE origin NOT IN (SELECT airport FROM closed)": "use NOT EXISTS",
    "SELECT * FROM flights WHERE delay > 0 OR EXISTS (SELECT 1 FROM closed)": "joined to other",
    "SELECT * FROM flights WHERE EXISTS (SELECT 1 FROM closed)": "a subquery needs an equality",
    "SELECT * FROM flights WHERE origin IN (SELECT * FROM closed)": "a subquery of one column",
    "SELECT * FROM flights WHERE delay + 1 IN (SELECT level FROM closed)": "is for a column",
    "SELECT * FROM flights WHERE delay > (SELECT MAX(level) AS x FROM closed)": "is not supported",
    "SELECT origin, delay FROM flights UNION ALL SELECT airport FROM closed": "not as many columns",
    "SELECT origin FROM flights UNION ALL SELECT level FROM closed": "column 45: union: ",
    "SELECT origin FROM TUMBLE(flights, time, 5) "
    "GROUP BY window_start, origin": "SELECT DISTINCT is",
    "SELECT COUNT(*) AS n FROM TUMBLE(flights, time, 5)": "a table in windows is grouped by them",
    "SELECT COUNT(*) AS n, delay FROM TUMBLE(flights, time, 5) "
    "GROUP BY window_start": "delay is not aggregated",
    "SELECT COUNT(*) FROM TUMBLE(flights, time, 5) GROUP BY window_start": "give COUNT(*) a name",
    "SELECT window_start AS ws, COUNT(*) AS n FROM TUMBLE(flights, time, 5) "
    "GROUP BY window_start": "column",
    "SELECT window_start + 1 AS ws "
    "FROM TUMBLE(flights, time, 5)": "window_start is the beginning or the end",
    "SELECT window_start FROM TUMBLE(flights, time, 5)": "select a column",
    "SELECT window_start FROM flights": "window_start is the beginning or the end",
    "SELECT COUNT(*) AS n FROM flights GROUP BY TUMBLE(time, 5)": "stand behind FROM",
    "SELECT COUNT(*) AS n FROM flights GROUP BY ROLLUP (origin)": "is not supported",
    "SELECT COUNT(*) AS n FROM TUMBLE(flights, delay, 5) GROUP BY window_end": "that is time",
    "SELECT COUNT(*) AS n FROM TUMBLE(flights, time) GROUP BY window_end": "TUMBLE(table, time",
    "SELECT COUNT(*) AS n FROM CUMULATE(flights, time, 5) "
    "GROUP BY window_end": "TUMBLE and HOP are",
    "SELECT COUNT(*) AS n FROM TUMBLE(flights, time, INTERVAL '1' MONTH) GROUP BY window_end": (
        "the unit MONTH has no fixed length"
    ),
    "SELECT COUNT(*) AS n FROM TUMBLE(flights, time, INTERVAL '1 hour 5 minutes') "
    "GROUP BY window_end": "is no number of one unit",
    "SELECT COUNT(*) AS n FROM TUMBLE(flights, time, 0.5) GROUP BY window_end": "no whole number",
    "SELECT COUNT(*) AS n FROM TUMBLE(flights, time, 0) GROUP BY window_end": "at least 1",
    "SELECT * FROM HOP(flights, time, 5, 10)": "have to be grouped",
    "SELECT * FROM TUMBLE(flights, time, 5, 1)": "have to be grouped",
    "SELECT * FROM (SELECT * FROM TUMBLE(flights, time, 5)) a JOIN (SELECT * FROM "
    "TUMBLE(flights, time, 6)) b ON a.origin = b.origin AND a.window_end = b.window_end": (
        "only rows in the same windows"
    ),
    "SELECT MAX(n) AS m FROM (SELECT window_start, COUNT(*) AS n FROM HOP(flights, time, 5, 10) "
    "GROUP BY window_start) t GROUP BY window_start": "window_start is the beginning or the end",
    "SELECT SUM(DISTINCT delay) AS n FROM in_air": "SUM(DISTINCT delay) is not supported",
    "SELECT COUNT(DISTINCT origin, carrier) AS n FROM in_air": "is not supported: COUNT",
    "SELECT STDDEV(delay) AS n FROM in_air": "STDDEV(delay) is not supported: COUNT",
    "SELECT PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY delay DESC) AS n FROM in_air": "supported",
    "SELECT SUM(origin) AS n FROM in_air": "col.origin is str, not a number",
    "SELECT origin AS n, COUNT(*) AS origin FROM in_air GROUP BY origin": "two columns are called",
    "WITH t (a) AS (SELECT origin FROM flights) SELECT * FROM t": "columns behind a name of WITH",
    "SELECT * EXCEPT (origin) FROM flights": "are not supported: name the columns",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_means_no_query_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        query_over(text, TABLES)
    message = str(raised.value)
    assert re.match(r"SQL, line \d+, column \d+: ", message), message
    assert "\n" not in message
    assert REFUSED[text] in message, message


def test_a_unit_is_one_of_four() -> None:
    with pytest.raises(ConfigurationError, match="no unit of time 'h'; there is s, ms, us, ns"):
        sql("SELECT * FROM flights", unit="h", flights=flights)


def test_what_is_too_long_or_too_deep_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="over 100,000"):
        sql("SELECT " + " " * 100_000 + "* FROM flights", flights=flights)
    deep = "(" * 5_000 + "delay" + ")" * 5_000
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        sql(f"SELECT {deep} AS x FROM flights", flights=flights)  # noqa: S608
