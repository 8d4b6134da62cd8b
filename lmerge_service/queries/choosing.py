"""Which plans of a query to run as replicas: cheap ones, that differ where replicas fail together.

Theory
    Over a sample each plan has a cost: its time. The cheapest is taken first, then, among those
    that cost at most `slack` times as much, again and again the one that differs most from all
    taken: in levels, windows, what waits and what holds state (`plan_numbering.distance`), and in
    when it is dear. Two plans of which each is at least twice as fast as the other for a part of
    the sample let their merge follow whichever is ahead (the paper's VI-E3); the smaller of these
    parts counts.

    >>> from lmerge_service.queries.plan_numbering import numbered_plans
    >>> from lmerge_service.queries.plan import count, facts, tumbling
    >>> flights = facts("flights", time="time", fields={"origin": str})
    >>> plans = numbered_plans(flights.windows(tumbling(60)).by("origin").aggregate(n=count()), 4)
    >>> samples = [PlanSample(nanoseconds=each) for each in (900, 500, 1_600, 1_400)]
    >>> for each in choose(plans, samples, 3):
    ...     print(each.number, each.why)
    2 the cheapest
    1 differs most from plan 2
    4 differs most from plans 1, 2
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.plan_numbering import distance
from lmerge_service.queries.sampling import PlanSample

__all__ = ("SLACK", "ChosenPlan", "choose", "excluded")

SLACK: Final = 3.0
"""How many times as dear as the cheapest a plan may be."""
_TURNS: Final = 8
"""How much it counts that each of two plans is the faster one for half of the sample each."""
_FASTER: Final = 2
"""How many times as fast that is; less may be chance."""


class ChosenPlan(NamedTuple):
    """A plan that was chosen, by its number, and why."""

    number: int
    why: str


def choose(
    plans: Sequence[PhysicalPlan],
    samples: Sequence[PlanSample],
    count: int,
    *,
    slack: float = SLACK,
    most_lag: int | None = None,
) -> list[ChosenPlan]:
    """So many of the plans, or all that are cheap enough, by what each does over one sample.

    `most_lag` is by how much of the application's time a stable may be behind.
    """
    out = dict(excluded(samples, slack=slack, most_lag=most_lag))
    left = [at for at in range(len(plans)) if at + 1 not in out]
    left.sort(key=lambda at: samples[at].nanoseconds)
    taken = left[:1]
    chosen = [ChosenPlan(at + 1, "the cheapest") for at in taken]
    left = left[1:]
    while left and len(taken) < count:
        best = max(left, key=lambda at: min(_difference(plans, samples, at, to) for to in taken))
        numbers = ", ".join(str(at + 1) for at in sorted(taken))
        chosen.append(
            ChosenPlan(best + 1, f"differs most from plan{'s' * (len(taken) > 1)} {numbers}")
        )
        taken.append(best)
        left.remove(best)
    return chosen


def excluded(
    samples: Sequence[PlanSample], *, slack: float = SLACK, most_lag: int | None = None
) -> Iterator[tuple[int, str]]:
    """The numbers of the plans that are not considered, and why."""
    quick = {
        number: sample
        for number, sample in enumerate(samples, 1)
        if most_lag is None or (sample.lag is not None and sample.lag <= most_lag)
    }
    least = min((sample.nanoseconds for sample in quick.values()), default=0)
    for number, sample in enumerate(samples, 1):
        if number not in quick:
            behind = "no stable before the end" if sample.lag is None else f"{sample.lag:,} behind"
            yield number, behind
        elif sample.nanoseconds > slack * least:
            yield number, f"{sample.nanoseconds / least:.1f} times as dear as the cheapest"


def _difference(
    plans: Sequence[PhysicalPlan], samples: Sequence[PlanSample], one: int, other: int
) -> float:
    mine, theirs = samples[one].batches, samples[other].batches
    faster = sum(a * _FASTER <= b for a, b in zip(mine, theirs, strict=True))
    slower = sum(b * _FASTER <= a for a, b in zip(mine, theirs, strict=True))
    turns = min(faster, slower) / max(1, len(mine))
    return distance(plans[one], plans[other]) + 2 * _TURNS * turns
