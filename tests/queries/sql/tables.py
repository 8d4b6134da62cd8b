"""The tables that the statements of these tests are over."""

from lmerge_service.queries.expressions import col
from lmerge_service.queries.plan import Query, elements, facts

HOUR = 3_600_000

flights = facts(
    "flights",
    time="time",
    fields={"origin": str, "carrier": str, "delay": int, "distance": float},
)
weather = facts("weather", time="time", fields={"origin": str, "temp": int, "delay": int})
closed = facts("closed", time="at", until="until", fields={"airport": str, "level": int})
merged = elements("delays.merged", {"origin": str, "flights": int})
in_air = flights.extend(HOUR).where(col.delay >= 0)

TABLES: dict[str, Query] = {
    "flights": flights,
    "weather": weather,
    "closed": closed,
    "merged": merged,
    "in_air": in_air,
}
