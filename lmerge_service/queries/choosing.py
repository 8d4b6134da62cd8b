"""Which plans of a query to run as replicas: cheap ones, that differ where replicas fail together.

Theory
    Each plan is estimated (`costs`) from characteristics of the streams, which the caller states or
    a sample shows. The cheapest that is not too far behind is taken first, then, among those that
    cost at most `slack` times as much, again and again the one that differs most from all taken: in
    levels, windows, what waits and what holds state (`plan_numbering.distance`), and in when it is
    dear. Two plans of which each is at least twice as fast as the other for a part of the sample
    let their merge follow whichever is ahead (the paper's VI-E3); the smaller of these parts
    counts. Plans that would take more than four fifths of the memory or of the processor that
    there is are not considered: the thesis keeps a fifth in reserve.

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
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.costs.characteristics import Characteristics
from lmerge_service.queries.costs.estimating import PlanEstimate, estimate
from lmerge_service.queries.costs.units import UnitCosts
from lmerge_service.queries.explaining import described
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.plan_numbering import distance

__all__ = ("SLACK", "Budget", "ChosenPlan", "PlanCost", "choose", "excluded", "priced")

SLACK: Final = 3.0
"""How many times as dear as the cheapest a plan may be."""
_USABLE: Final = 0.8
"""Of memory and processor; the rest is the thesis' reserve."""
_TURNS: Final = 8
"""How much it counts that each of two plans is the faster one for half of the sample each."""
_FASTER: Final = 2
"""How many times as fast that is; less may be chance."""


class ChosenPlan(NamedTuple):
    """A plan that was chosen, by its number, and why."""

    number: int
    why: str


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
) -> list[ChosenPlan]:
    """So many of the plans, which are numbered from 1, or all that are cheap enough.

    `most_lag` is by how much of the application's time a stable may be behind.
    """
    out = dict(excluded(costs, slack=slack, most_lag=most_lag, budget=budget))
    left = [at for at in range(len(costs)) if at + 1 not in out]
    left.sort(key=lambda at: costs[at].nanoseconds)
    taken = left[:1]
    chosen = [ChosenPlan(at + 1, "the cheapest") for at in taken]
    left = left[1:]
    while left and len(taken) < count:
        best = max(left, key=lambda at: min(_difference(costs[at], costs[to]) for to in taken))
        chosen.append(ChosenPlan(best + 1, _why(costs, best, taken)))
        taken.append(best)
        left.remove(best)
    return chosen


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


def _why(costs: Sequence[PlanCost], best: int, taken: Sequence[int]) -> str:
    numbers = ", ".join(str(at + 1) for at in sorted(taken))
    why = f"differs most from plan{'s' * (len(taken) > 1)} {numbers}"
    by_turns = [at + 1 for at in taken if _turns(costs[best], costs[at])]
    return f"{why}; dear where plan {by_turns[0]} is cheap, and the reverse" if by_turns else why


def _difference(one: PlanCost, other: PlanCost) -> float:
    return distance(one.plan, other.plan) + 2 * _TURNS * _turns(one, other)


def _turns(one: PlanCost, other: PlanCost) -> float:
    """For which part of the sample each is the faster one: the lesser of both."""
    faster = sum(a * _FASTER <= b for a, b in zip(one.parts, other.parts, strict=True))
    slower = sum(b * _FASTER <= a for a, b in zip(one.parts, other.parts, strict=True))
    return min(faster, slower) / max(1, len(one.parts))
