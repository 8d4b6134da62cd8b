"""The queries over flights that come along, each in two plans at the least.

    | query | events |
    |---|---|
    | delays | per origin and hopping hour: flights that departed, their delay in all, the longest |
    | in-air | each flight from its departure to its arrival |
    | top-carriers | per origin and three hours: the carriers with most delay |
    | weather | each departure, with the weather of its hour at its airport |

`conservative` plans emit final results only; `speculative` ones emit what is known and revise it.
They also differ in the size of batches, in how time is cut, in the steps of an aggregate, in which
side of a join waits, and in how often they emit stables.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lmerge_service.errors import ConfigurationError
from lmerge_service.spark.queries.airborne import Airborne
from lmerge_service.spark.queries.chosen import Chosen
from lmerge_service.spark.queries.folds import Aggregates, Enriched, Top
from lmerge_service.spark.queries.plans import FactsSource, Query, QueryPlan
from lmerge_service.spark.queries.windows import Windows

__all__ = ("FACTS", "QUERIES", "plan_of", "query_of")

_MINUTE: Final = 60_000
_HOUR: Final = 60 * _MINUTE
_FLIGHT: Final = ("carrier", "date", "dest", "flight", "origin", "tail")
_WEATHER: Final = ("precip", "temp", "visib", "wind_speed")

FACTS: Final = FactsSource(
    schema="fact string, time long, carrier string, date string, dest string, flight long, "
    "origin string, tail string, departs long, arrives long, delay long, precip double, "
    "temp double, visib double, wind_speed double",
    ends="fact = 'end'",
)
"""What `lmerge replica feed` writes (`workloads.facts`)."""


def _plans(conservative: str, speculative: str, *, grid: int) -> Mapping[str, QueryPlan]:
    plans = {
        "conservative": QueryPlan(
            summary=conservative, early=False, batch=20_000, grid=grid, tasks=1
        ),
        "speculative": QueryPlan(summary=speculative, early=True, batch=4_000),
    }
    return MappingProxyType(plans)


_ALL: Final = (
    Query(
        name="delays",
        summary="per origin and hopping hour: departures, their delay in all, the longest",
        rows=Chosen(("departed",), ("origin", "delay")),
        key=("origin",),
        shape=Windows(
            size=_HOUR,
            slide=20 * _MINUTE,
            group=("origin",),
            fold=Aggregates(
                {"flights": ("count", None), "delay": ("sum", "delay"), "longest": ("max", "delay")}
            ),
        ),
        plans=_plans(
            "aggregates panes of 20 minutes, joins three of them when their window is final",
            "aggregates each window by itself, emits it at once, revises it",
            grid=_HOUR,
        ),
        source=FACTS,
    ),
    Query(
        name="in-air",
        summary="each flight from its departure to its arrival",
        rows=Chosen(
            ("scheduled", "cancelled", "departed", "arrived"),
            ("fact", "departs", "arrives", *_FLIGHT),
        ),
        key=("origin", "dest"),
        shape=Airborne(fields=_FLIGHT, limit=24 * _HOUR),
        plans=_plans(
            "emits a flight when its arrival is final; its stable waits for flights in the air",
            "announces by the schedule, expects arrivals, revises and withdraws",
            grid=1,
        ),
        source=FACTS,
    ),
    Query(
        name="top-carriers",
        summary="per origin and three hours: the three carriers with most delay, ranked",
        rows=Chosen(("departed",), ("origin", "carrier", "delay")),
        key=("origin",),
        shape=Windows(
            size=3 * _HOUR,
            slide=3 * _HOUR,
            group=("origin",),
            fold=Top(3, of="carrier", by="delay"),
        ),
        plans=_plans(
            "ranks when the window is final",
            "ranks at once, revises the ranks that change",
            grid=6 * _HOUR,
        ),
        source=FACTS,
    ),
    Query(
        name="weather",
        summary="each departure, with the weather of its hour at its airport",
        rows=Chosen(
            ("departed", "weather"),
            ("carrier", "date", "flight", "origin", "dest", "delay", *_WEATHER),
        ),
        key=("origin",),
        shape=Windows(
            size=_HOUR,
            slide=_HOUR,
            group=("origin",),
            fold=Enriched(
                identity=("carrier", "date", "flight"), left=("dest", "delay"), right=_WEATHER
            ),
        ),
        plans=_plans(
            "both sides wait until the hour is over",
            "departures do not wait; those emitted without their weather are emitted again with it",
            grid=4 * _HOUR,
        ),
        source=FACTS,
    ),
)

QUERIES: Final[Mapping[str, Query]] = MappingProxyType({each.name: each for each in _ALL})


def query_of(name: str) -> Query:
    """Raises ConfigurationError: there is none of that name."""
    if name not in QUERIES:
        raise ConfigurationError(f"no query {name!r}: choose one of {', '.join(QUERIES)}")
    return QUERIES[name]


def plan_of(query: Query, name: str) -> QueryPlan:
    """Raises ConfigurationError: the query has none of that name."""
    if name not in query.plans:
        plans = ", ".join(query.plans)
        raise ConfigurationError(f"{query.name} has no plan {name!r}: choose one of {plans}")
    return query.plans[name]
