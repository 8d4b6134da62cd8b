"""Which plans of a query to run as replicas: cheap ones, that differ where replicas fail together.

Theory
    Each plan is estimated (`costs`) from characteristics of the streams, which the caller states or
    a sample shows. The cheapest that is not too far behind is taken first, then, among those that
    cost at most `slack` times as much, again and again the one that differs most from all taken: in
    levels, windows, what waits and what holds state (`plan_numbering.distance`), in the engine that
    runs it, and in when it is dear. Two plans of which each is at least twice as fast as the other
    for a part of the sample let their merge follow whichever is ahead (the paper's VI-E3); the
    smaller of these parts counts. Plans that would take more than four fifths of the memory or of
    the processor that there is are not considered: the thesis keeps a fifth in reserve.

    Engines are a process of Python; Spark, with the same operators; and Spark's own aggregation
    (`native`), which shares no operator with any plan and computes the query as it is written. What
    Spark takes itself is not estimated: an engine that is allowed counts as a difference, and the
    first plan is one whose time is known.

    >>> from lmerge_service.queries.plan_numbering import numbered_plans
    >>> from lmerge_service.queries.plan import count, facts, tumbling
    >>> flights = facts("flights", time="time", fields={"origin": str})
    >>> plans = numbered_plans(flights.windows(tumbling(60)).by("origin").aggregate(n=count()), 4)
    >>> costs = [PlanCost(plan, each) for plan, each in zip(plans, (900, 500, 1_600, 1_400))]
    >>> for each in choose(costs, 3):
    ...     print(each.number, each.why)
    2 the cheapest
    1 differs most from plan 2
    4 differs most from plans 1, 2
    >>> for each in choose(costs, 3, engines=("python", "spark", "native")):
    ...     print(each.number, each.engine)
    2 python
    1 native
    4 spark
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.costs.characteristics import Characteristics
from lmerge_service.queries.costs.estimating import PlanEstimate, estimate
from lmerge_service.queries.costs.units import UnitCosts
from lmerge_service.queries.explaining import described
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.plan_numbering import distance
from lmerge_service.queries.properties import is_native

__all__ = (
    "ENGINES",
    "SLACK",
    "Budget",
    "ChosenPlan",
    "Engine",
    "PlanCost",
    "choose",
    "excluded",
    "priced",
)

Engine: TypeAlias = Literal["python", "spark", "native"]
ENGINES: Final[tuple[Engine, ...]] = ("python", "spark", "native")
"""What runs a plan: a process of Python, Spark with the plan's operators, Spark's aggregation."""

SLACK: Final = 3.0
"""How many times as dear as the cheapest a plan may be."""
_USABLE: Final = 0.8
"""Of memory and processor; the rest is the thesis' reserve."""
_TURNS: Final = 8
"""How much it counts that each of two plans is the faster one for half of the sample each."""
_FASTER: Final = 2
"""How many times as fast that is; less may be chance."""
_OTHER_ENGINE: Final = 2
"""How much it counts that two plans run on different engines, with the same operators …"""
_NO_OPERATOR: Final = 4
"""… and how much more that one of these has none of them."""


class ChosenPlan(NamedTuple):
    """A plan that was chosen, by its number, and why."""

    number: int
    why: str
    engine: Engine = "python"


@dataclass(frozen=True, slots=True)
class PlanCost:
    """What a plan costs."""

    plan: PhysicalPlan
    nanoseconds: float
    """For an event of the sources."""
    lag: float = 0.0
    """How far its stable point is behind, in the application's time."""
    bytes: float = 0.0
    """Of state."""
    taken: float = 0.0
    """Events of the sources in a unit of the application's time."""
    parts: Sequence[float] = ()
    """Nanoseconds for an event in each part of a sample."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a replica may take; None is no bound."""

    bytes: float | None = None
    cores: float | None = None
    per_second: float = 1_000.0
    """Units of the application's time in a second."""

    def exceeded(self, cost: PlanCost) -> str | None:
        """What a plan would take too much of: more than four fifths."""
        if self.bytes is not None and cost.bytes > _USABLE * self.bytes:
            return f"needs {cost.bytes / self.bytes:.0%} of the memory; at most {_USABLE:.0%}"
        if self.cores is not None:
            share = cost.nanoseconds * cost.taken * self.per_second / 1e9 / self.cores
            if share > _USABLE:
                return f"needs {share:.0%} of the processor; at most {_USABLE:.0%}"
        return None


_NO_BOUND: Final = Budget()


def priced(
    plans: Sequence[PhysicalPlan],
    known: Characteristics,
    units: UnitCosts,
    parts: Sequence[Characteristics] = (),
) -> list[PlanCost]:
    """What plans cost for streams as they are known, and for those of parts of a sample.

    Raises:
        ConfigurationError: functions of the user's are called, and no sample shows how long they
            take.
    """
    return [
        PlanCost(
            plan,
            _time(found := estimate(plan, known, units)),
            found.lag,
            found.bytes or 0.0,
            found.taken,
            [_time(estimate(plan, part, units)) for part in parts],
        )
        for plan in plans
    ]


def _time(found: PlanEstimate) -> float:
    if found.nanoseconds is not None:
        return found.nanoseconds
    what = "" if found.unknown is None else described(found.unknown)
    raise ConfigurationError(f"only a sample shows how long functions take: {what}")


def choose(
    costs: Sequence[PlanCost],
    count: int,
    *,
    slack: float = SLACK,
    most_lag: int | None = None,
    budget: Budget = _NO_BOUND,
    engines: Sequence[Engine] = ("python",),
) -> list[ChosenPlan]:
    """So many of the plans, which are numbered from 1, or all that are cheap enough; the first is
    the query as it is written, of which `native` takes the place. The same plan on two engines is
    two.

    `most_lag` is by how much of the application's time a stable may be behind.
    """
    out = dict(excluded(costs, slack=slack, most_lag=most_lag, budget=budget))
    left = list(_candidates(costs, {at for at in range(len(costs)) if at + 1 not in out}, engines))
    left.sort(key=lambda each: (each.engine == "native", costs[each.at].nanoseconds))
    taken = left[:1]
    chosen = [
        ChosenPlan(
            each.at + 1, "the only one" if each.engine == "native" else "the cheapest", each.engine
        )
        for each in taken
    ]
    left = left[1:]
    while left and len(taken) < count:
        best = max(left, key=lambda each: min(_difference(costs, each, to) for to in taken))
        chosen.append(ChosenPlan(best.at + 1, _why(costs, best, taken), best.engine))
        taken.append(best)
        left.remove(best)
    return chosen


class _Candidate(NamedTuple):
    """A plan by its position, on an engine."""

    at: int
    engine: Engine


def _candidates(
    costs: Sequence[PlanCost], fitting: set[int], engines: Sequence[Engine]
) -> Iterator[_Candidate]:
    """Each plan that fits on each engine, and Spark's aggregation once."""
    for engine in ENGINES:
        if engine in engines and engine != "native":
            yield from (_Candidate(at, engine) for at in sorted(fitting))
    if "native" in engines and costs and is_native(written := costs[0].plan.plan):
        alike = [at for at in sorted(fitting) if costs[at].plan.plan == written]
        # the nearest to what it does: it emits nothing that is not final, and waits no longer
        if alike:
            yield _Candidate(min(alike, key=lambda at: _unlike_native(costs[at])), "native")


def _unlike_native(cost: PlanCost) -> tuple[float, bool]:
    return cost.lag, cost.plan.emit != "on_close"


def excluded(
    costs: Sequence[PlanCost],
    *,
    slack: float = SLACK,
    most_lag: int | None = None,
    budget: Budget = _NO_BOUND,
) -> Iterator[tuple[int, str]]:
    """The numbers of the plans that are not considered, and why."""
    quick = {}
    for number, cost in enumerate(costs, 1):
        if most_lag is not None and cost.lag > most_lag:
            yield number, f"{cost.lag:,.0f} behind"
        elif why := budget.exceeded(cost):
            yield number, why
        else:
            quick[number] = cost.nanoseconds
    least = min(quick.values(), default=0.0)
    for number, nanoseconds in quick.items():
        if nanoseconds > slack * least:
            yield number, f"{nanoseconds / least:.1f} times as dear as the cheapest"


def _why(costs: Sequence[PlanCost], best: _Candidate, taken: Sequence[_Candidate]) -> str:
    numbers = ", ".join(map(_called, sorted(taken)))
    why = f"differs most from plan{'s' * (len(taken) > 1)} {numbers}"
    by_turns = [_called(each) for each in taken if _turns(costs, best, each)]
    return f"{why}; dear where plan {by_turns[0]} is cheap, and the reverse" if by_turns else why


def _called(each: _Candidate) -> str:
    number = each.at + 1
    return {"python": f"{number}", "spark": f"{number} on Spark", "native": "native"}[each.engine]


def _difference(costs: Sequence[PlanCost], one: _Candidate, other: _Candidate) -> float:
    apart = distance(costs[one.at].plan, costs[other.at].plan)
    if one.engine != other.engine:
        apart += _OTHER_ENGINE
        apart += _NO_OPERATOR * ("native" in (one.engine, other.engine))
    return apart + 2 * _TURNS * _turns(costs, one, other)


def _turns(costs: Sequence[PlanCost], one: _Candidate, other: _Candidate) -> float:
    """For which part of the sample each is the faster one: the lesser of both."""
    if "native" in (one.engine, other.engine):
        return 0.0
    mine, theirs = costs[one.at].parts, costs[other.at].parts
    faster = sum(a * _FASTER <= b for a, b in zip(mine, theirs, strict=True))
    slower = sum(b * _FASTER <= a for a, b in zip(mine, theirs, strict=True))
    return min(faster, slower) / max(1, len(mine))
