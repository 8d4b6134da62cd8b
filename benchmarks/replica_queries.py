"""The queries that benchmarks of replicas run, as a user's file has them."""

from lmerge_service.queries.expressions import col
from lmerge_service.queries.plan import count, facts, hopping, max_, sum_

__all__ = ("MINUTE", "delays", "in_air")

MINUTE = 60_000
HOUR = 60 * MINUTE

_flights = facts(
    "flights",
    time="time",
    ends=col.fact == "end",
    lateness=15 * MINUTE,
    fields={"fact": str, "flight": int, "origin": str, "delay": int},
)
_departed = _flights.where(col.fact == "departed")

delays = (
    _departed.windows(hopping(HOUR, every=20 * MINUTE))
    .by("origin")
    .aggregate(flights=count(), delay=sum_("delay"), longest=max_("delay"))
)
in_air = (
    _departed.select("flight", "origin")
    .extend(10**12)
    .clip(_flights.where(col.fact == "arrived"), on="flight")
)
