"""Queries over the flights (`lmerge replica feed flights.facts`), for `lmerge query`.

Times are milliseconds since the epoch, UTC. See docs/replicas.md.
"""

from lmerge_service.queries.expressions import col
from lmerge_service.queries.plan import count, elements, facts, hopping, max_, sum_

MINUTE = 60_000
HOUR = 60 * MINUTE

flights = facts(
    "flights.facts",
    time="time",
    ends=col.fact == "end",
    lateness=15 * MINUTE,
    fields={"fact": str, "origin": str, "carrier": str, "delay": int},
)
departed = flights.where(col.fact == "departed")

delays = (  # per origin and hour, one every 20 minutes
    departed.windows(hopping(HOUR, every=20 * MINUTE))
    .by("origin")
    .aggregate(flights=count(), delay=sum_("delay"), longest=max_("delay"))
)

late = departed.where(col.delay > 60).select("origin", "carrier")  # case R4: equal events

busy = elements(  # over what a merge of `delays` publishes
    "delays.merged", {"origin": str, "flights": int, "delay": int, "longest": int}
).where(col.flights > 20)
