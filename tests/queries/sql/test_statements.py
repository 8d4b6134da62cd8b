"""Each statement is the query that a person would write with the fluent API: one fingerprint."""

import pytest

from lmerge_service.queries.expressions import coalesce, col, floor_div, lit, mod, when
from lmerge_service.queries.plan import (
    Query,
    average,
    count,
    distinct_count,
    first,
    hopping,
    max_,
    median,
    min_,
    percentile,
    sum_,
    tumbling,
)
from lmerge_service.queries.sql.statements import query_over, sql
from tests.queries.sql.tables import HOUR, TABLES, closed, flights, in_air, merged, weather

hourly = flights.windows(tumbling(HOUR))

PAIRS: dict[str, Query] = {
    # Rows
    "SELECT * FROM flights": flights,
    "SELECT origin, delay FROM flights": flights.select("origin", "delay"),
    'SELECT "origin", `delay` FROM Flights AS f': flights.select("origin", "delay"),
    "SELECT ORIGIN AS airport FROM flights": flights.select(airport=col.origin),
    "SELECT f.*, delay > 15 AS late FROM flights f": flights.with_columns(late=col.delay > 15),
    "SELECT * FROM flights WHERE delay > 15 AND origin <> 'JFK'": flights.where(
        (col.delay > 15) & (col.origin != "JFK")
    ),
    "SELECT * FROM flights WHERE NOT (delay IS NULL OR delay <= -5)": flights.where(
        ~(col.delay.is_null() | (col.delay <= -5))
    ),
    "SELECT * FROM flights WHERE delay IS NOT NULL": flights.where(~col.delay.is_null()),
    "SELECT * FROM flights WHERE delay NOT BETWEEN 1 AND 3": flights.where(
        ~((col.delay >= 1) & (col.delay <= 3))
    ),
    "SELECT * FROM flights WHERE origin IN ('JFK', 'EWR')": flights.where(
        (col.origin == "JFK") | (col.origin == "EWR")
    ),
    "SELECT * FROM flights WHERE origin NOT IN ('JFK')": flights.where(~(col.origin == "JFK")),
    "SELECT delay + 1 - delay * 2 AS x, -delay AS y FROM flights": flights.select(
        x=col.delay + 1 - col.delay * 2, y=-col.delay
    ),
    "SELECT FLOOR(delay / 60) AS hours FROM flights": flights.select(
        hours=floor_div(col.delay, 60)
    ),
    "SELECT delay % 7 AS day, MOD(delay, 7) AS again FROM flights": flights.select(
        day=(
            rest := when(
                (mod(col.delay, 7) != 0) & ((col.delay < 0) != (lit(7) < 0)), mod(col.delay, 7) - 7
            ).otherwise(mod(col.delay, 7))
        ),
        again=rest,
    ),
    "SELECT CASE WHEN delay > 15 THEN 'late' ELSE 'on time' END AS x FROM flights": flights.select(
        x=when(col.delay > 15, "late").otherwise("on time")
    ),
    "SELECT CASE origin WHEN 'JFK' THEN 1 WHEN 'EWR' THEN 2 END AS x FROM flights": flights.select(
        x=when(col.origin == "JFK", 1).when(col.origin == "EWR", 2).otherwise(None)
    ),
    "SELECT COALESCE(delay, 0) AS x, NULLIF(delay, 0) AS y FROM flights": flights.select(
        x=coalesce(col.delay, 0), y=when(col.delay == 0, None).otherwise(col.delay)
    ),
    "SELECT CAST(delay AS DOUBLE) AS x, delay::VARCHAR AS y, true AS z FROM flights": (
        flights.select(x=col.delay.cast(float), y=col.delay.cast(str), z=lit(True))
    ),
    "SELECT CAST(NULL AS BIGINT) AS x, 1.5 AS y, 'it''s' AS z FROM flights": flights.select(
        x=lit(None).cast(int), y=lit(1.5), z=lit("it's")
    ),
    "SELECT DISTINCT origin FROM flights": flights.select("origin").distinct(),
    "WITH late AS (SELECT * FROM flights WHERE delay > 15), l AS (SELECT origin FROM late) "
    "SELECT * FROM l": flights.where(col.delay > 15).select("origin"),
    "SELECT x + 1 AS y FROM (SELECT delay AS x FROM flights) AS t WHERE x > 0": (
        flights.select(x=col.delay).where(col.x > 0).select(y=col.x + 1)
    ),
    # Windows
    "SELECT window_start, origin, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE flights, "
    "DESCRIPTOR(time), INTERVAL '1' HOUR)) GROUP BY window_start, window_end, origin": (
        hourly.by("origin").aggregate(n=count())
    ),
    "SELECT origin, COUNT(*) AS n FROM TUMBLE(flights, time, INTERVAL '1 HOUR') "
    "GROUP BY origin, window_end": hourly.by("origin").aggregate(n=count()),
    "SELECT SUM(delay) AS total FROM HOP(flights, time, INTERVAL '20' MINUTES, "
    "INTERVAL '1' HOUR) GROUP BY window_start": flights.windows(
        hopping(HOUR, every=HOUR // 3)
    ).aggregate(total=sum_("delay")),
    "SELECT COUNT(*) AS n FROM TABLE(HOP(TABLE flights, DESCRIPTOR(time), INTERVAL '0.5' SECOND, "
    "2500, INTERVAL '100' MILLISECOND)) GROUP BY window_start": flights.windows(
        hopping(2_500, every=500, origin=100)
    ).aggregate(n=count()),
    "SELECT w.origin, MAX(w.delay) AS worst FROM TUMBLE(flights, time, INTERVAL '1' HOUR) w "
    "WHERE carrier = 'AA' GROUP BY w.window_start, w.origin "
    "HAVING COUNT(*) > 3 AND MAX(delay) > 0": (
        flights.where(col.carrier == "AA")
        .windows(tumbling(HOUR))
        .by("origin")
        .aggregate(worst=max_("delay"), aggregate_1=count())
        .where((col.aggregate_1 > 3) & (col.worst > 0))
        .select("origin", "worst")
    ),
    "SELECT origin, COUNT(*) AS n FROM TUMBLE(flights, time, INTERVAL '1' HOUR) "
    "GROUP BY window_start, origin HAVING n > 40": hourly.by("origin")
    .aggregate(n=count())
    .where(col.n > 40),
    "SELECT flights + 1 AS x FROM (SELECT * FROM TUMBLE(merged, vs, INTERVAL '1' HOUR)) AS t": (
        merged.quantise(HOUR).select(x=col.flights + 1)
    ),
    "SELECT COUNT(*) AS n, w.origin AS airport FROM TUMBLE(flights, time, INTERVAL '1' HOUR) w "
    "GROUP BY window_start, origin": hourly.by("origin")
    .aggregate(n=count())
    .select("n", airport=col.origin),
    "SELECT f.origin, f.carrier, w.temp FROM "
    "(SELECT * FROM TABLE(TUMBLE(TABLE flights, DESCRIPTOR(time), INTERVAL '1' HOUR))) f LEFT JOIN "
    "(SELECT window_start, window_end, origin, temp FROM TABLE(TUMBLE(TABLE weather, "
    "DESCRIPTOR(time), INTERVAL '1' HOUR))) w ON f.origin = w.origin AND "
    "f.window_start = w.window_start AND f.window_end = w.window_end": (
        flights.quantise(HOUR)
        .left_join(weather.quantise(HOUR).select("origin", "temp"), on="origin")
        .select("origin", "carrier", "temp")
    ),
    "SELECT MAX(n) AS most FROM (SELECT window_start, origin, COUNT(*) AS n FROM "
    "TUMBLE(flights, time, INTERVAL '1' HOUR) GROUP BY window_start, origin) AS t "
    "GROUP BY window_start": hourly.by("origin")
    .aggregate(n=count())
    .windows(tumbling(HOUR))
    .aggregate(most=max_("n")),
    # Aggregates
    "SELECT COUNT(*) AS n FROM in_air": in_air.aggregate(n=count()),
    "SELECT origin, COUNT(*) AS n FROM in_air GROUP BY origin HAVING COUNT(*) > 1": (
        in_air.by("origin").aggregate(n=count()).where(col.n > 1)
    ),
    "SELECT COUNT(delay) AS a, COUNT(DISTINCT carrier) AS b, SUM(delay + 1) AS c, AVG(delay) AS d, "
    "MIN(delay) AS e, MEDIAN(delay) AS f, FIRST_VALUE(delay) AS g, "
    "PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY delay) AS h FROM in_air": in_air.aggregate(
        a=count("delay"),
        b=distinct_count("carrier"),
        c=sum_(col.delay + 1),
        d=average("delay"),
        e=min_("delay"),
        f=median("delay"),
        g=first("delay"),
        h=percentile("delay", "0.9"),
    ),
    "SELECT COUNT(*) FILTER (WHERE delay > 15) AS late, SUM(delay) FILTER (WHERE delay > 0) AS s "
    "FROM in_air": in_air.aggregate(
        late=count(when(col.delay > 15, 1).otherwise(None)),
        s=sum_(when(col.delay > 0, col.delay).otherwise(None)),
    ),
    "SELECT origin, SUM(delay) * 2 AS twice, SUM(delay) AS once FROM in_air GROUP BY origin": (
        in_air.by("origin")
        .aggregate(aggregate_1=sum_("delay"), once=sum_("delay"))
        .select("origin", twice=col.aggregate_1 * 2, once=col.aggregate_1)
    ),
    # Joins
    "SELECT * FROM flights f JOIN closed c ON f.origin = c.airport": flights.join(
        closed, on={"origin": "airport"}
    ),
    "SELECT f.delay, w.delay AS wait, origin FROM flights f JOIN weather w USING (origin)": (
        flights.join(weather, on="origin", prefix="w_").select(
            "delay", wait=col.w_delay, origin=col.origin
        )
    ),
    "SELECT f.carrier FROM flights f INNER JOIN closed c ON c.airport = f.origin AND "
    "f.delay > c.level AND c.level > 1": flights.join(
        closed, on={"origin": "airport"}, where=(col.level > 1) & (col.delay > col.level)
    ).select("carrier"),
    "SELECT * FROM flights f RIGHT JOIN closed c ON f.origin = c.airport": flights.right_join(
        closed, on={"origin": "airport"}
    ),
    "SELECT * FROM flights f FULL OUTER JOIN closed c ON f.origin = c.airport": flights.full_join(
        closed, on={"origin": "airport"}
    ),
    "SELECT a.carrier FROM flights a JOIN flights b ON a.origin = b.origin JOIN closed c "
    "ON c.airport = a.origin": flights.join(flights, on="origin", prefix="b_")
    .join(closed, on={"origin": "airport"})
    .select("carrier"),
    # Subqueries
    "SELECT * FROM flights f WHERE EXISTS (SELECT 1 FROM closed c WHERE c.airport = f.origin)": (
        flights.semi_join(closed, on={"origin": "airport"})
    ),
    "SELECT * FROM flights WHERE delay > 0 AND NOT EXISTS (SELECT * FROM closed WHERE level > 2 "
    "AND airport = origin AND delay < level)": flights.where(col.delay > 0).anti_join(
        closed.where(col.level > 2), on={"origin": "airport"}, where=col.delay < col.level
    ),
    "SELECT carrier FROM flights WHERE origin IN (SELECT airport FROM closed WHERE level = 1)": (
        flights.semi_join(
            closed.where(col.level == 1).select("airport"), on={"origin": "airport"}
        ).select("carrier")
    ),
    "SELECT * FROM flights f WHERE EXISTS (SELECT 1 FROM weather WHERE origin = f.origin)": (
        flights.semi_join(weather, on="origin")
    ),
    # Several
    "SELECT origin FROM flights UNION ALL SELECT airport FROM closed": flights.select(
        "origin"
    ).union(closed.select("airport").rename(origin="airport")),
    "SELECT origin FROM flights UNION SELECT origin FROM weather": flights.select("origin")
    .union(weather.select("origin"))
    .distinct(),
    "SELECT origin FROM flights EXCEPT SELECT origin FROM weather": flights.select(
        "origin"
    ).except_(weather.select("origin")),
    "SELECT origin FROM flights EXCEPT ALL SELECT origin FROM weather": flights.select(
        "origin"
    ).except_all(weather.select("origin")),
    "(SELECT origin FROM flights) INTERSECT ALL (SELECT origin FROM weather)": flights.select(
        "origin"
    ).intersect_all(weather.select("origin")),
    "SELECT origin FROM flights INTERSECT SELECT origin FROM weather": flights.select(
        "origin"
    ).intersect(weather.select("origin")),
    "SELECT origin FROM flights -- a comment\nWHERE /* another */ delay > 0;": flights.where(
        col.delay > 0
    ).select("origin"),
}


@pytest.mark.parametrize("text", PAIRS)
def test_a_statement_is_the_fluent_query(text: str) -> None:
    found = query_over(text, TABLES)
    assert str(found) == str(PAIRS[text])
    assert found.fingerprint == PAIRS[text].fingerprint


def test_intervals_are_in_the_unit_of_the_times() -> None:
    text = (
        "SELECT COUNT(*) AS n FROM TUMBLE(flights, time, INTERVAL '90' MINUTE) GROUP BY window_end"
    )
    for unit, size in (("s", 5_400), ("us", 5_400_000_000), ("ns", 5_400_000_000_000)):
        assert sql(text, unit=unit, flights=flights) == flights.windows(tumbling(size)).aggregate(
            n=count()
        )


def test_a_name_that_differs_in_case_is_found_unless_it_is_quoted_or_two_are_alike() -> None:
    both = flights.select("origin", Origin=col.carrier)
    assert sql("SELECT Origin FROM t", t=both) == both.select("Origin")
    assert sql("SELECT origin FROM t", t=both) == both.select("origin")
