"""Queries over what becomes known of the flights that left New York in 2013: replicas of each are
`lmerge query run topologies/flights.py:NAME`; `lmerge query feed` publishes the facts."""

from lmerge_service.queries.expressions import col
from lmerge_service.queries.plan import count, elements, facts, hopping, max_, sum_, tumbling

MINUTE = 60_000
HOUR = 60 * MINUTE
FLIGHT = ("carrier", "date", "flight", "origin", "dest")
WEATHER = ("temp", "wind_speed", "precip", "visib")

known = facts(
    "flights.facts",
    time="time",
    ends=col.fact == "end",
    lateness=15 * MINUTE,
    fields={
        "fact": str,
        "carrier": str,
        "date": str,
        "flight": int,
        "origin": str,
        "dest": str,
        "tail": str,
        "departs": int,
        "arrives": int,
        "delay": int,
        **dict.fromkeys(WEATHER, float),
    },
)
departed = known.where(col.fact == "departed")

# Per origin and hour, one every 20 minutes: departures, their delay in all, the longest.
delays = (
    departed.windows(hopping(HOUR, every=20 * MINUTE))
    .by("origin")
    .aggregate(flights=count(), delay=sum_("delay"), longest=max_("delay"))
)

# Each flight from its departure to its arrival, or for a day if that is not known.
in_air = (
    departed.extend(24 * HOUR - 1)
    .clip(known.where(col.fact == "arrived"), on=(*FLIGHT, "departs"))
    .select(*FLIGHT, "tail")
)

# Per origin and three hours: the three carriers with most delay, ranked.
top_carriers = (
    departed.windows(tumbling(3 * HOUR))
    .by("origin")
    .top(3, "carrier", by=sum_("delay"), rank="rank", score="delay")
    .where(col.delay > 0)
)

# Each departure, with the weather of its hour at its airport.
weather = (
    departed.select(*FLIGHT, "delay")
    .quantise(HOUR)
    .left_join(
        known.where(col.fact == "weather").select("origin", *WEATHER).quantise(HOUR), on="origin"
    )
)

# Departures an hour late and more: equal events, case R4.
late = departed.where(col.delay > 60).select("origin", "carrier")

# Of what a merge of `delays` publishes, the hours with many departures.
busy = elements(
    "delays.merged", {"origin": str, "flights": int, "delay": int, "longest": int}
).where(col.flights > 20)
