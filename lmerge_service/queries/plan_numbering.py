"""The physical plans of a query, and their numbers.

Theory
    Replicas of a query should differ in how they compute it, so that what one gets wrong or late
    another does not. `physical_plans` enumerates what can be chosen: the level at which aggregates
    and windows emit, all alike or each by itself; how windows are computed; and whether input or
    output waits until it is final. Each has the same result in the end.

    `numbered_plans` puts them in an order that every process finds, so that a number names a plan:
    1 is the query as it is written, emitting on update; each further one is that which differs most
    from all before it.

    >>> from lmerge_service.queries.plan import count, facts, hopping
    >>> flights = facts("flights", time="time", fields={"origin": str})
    >>> moving = flights.windows(hopping(60, every=20)).by("origin").aggregate(n=count())
    >>> for number, plan in enumerate(numbered_plans(moving, most=4), 1):
    ...     print(number, summary(plan))
    1 on_update
    2 on_close, panes
    3 on_update, panes, sources aligned
    4 on_update, expand, output aligned

Invariants
    N1  Equal queries have equal plans of equal numbers, in every process.
    N2  No two numbers are of one plan.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, product
from typing import Final, NamedTuple

from lmerge_service.elements import INFINITY
from lmerge_service.queries import logical
from lmerge_service.queries.logical import Node
from lmerge_service.queries.physical import (
    Choice,
    Emit,
    PhysicalPlan,
    WindowPlan,
    levels,
    physical,
    window_plans,
)
from lmerge_service.queries.plan import Query

__all__ = ("numbered_plans", "physical_plans", "summary")

_CONSIDERED: Final = 400
"""So many plans are compared with each other."""
_MOST: Final = 16
_LEVELS: Final[dict[Emit, int]] = {"on_update": 0, "ordered": 1, "on_watermark": 2, "on_close": 3}


def numbered_plans(query: Query, most: int = _MOST) -> list[PhysicalPlan]:
    """Physical plans of a query, of which the position, from 1, is the number: at most so many."""
    left = list(islice(physical_plans(query), _CONSIDERED))
    taken = [left.pop(0)]
    nearest = [_distance(plan, taken[0]) for plan in left]
    while left and len(taken) < most:
        best = max(range(len(left)), key=nearest.__getitem__)  # the first of those
        taken.append(left.pop(best))
        nearest.pop(best)
        nearest = [min(n, _distance(p, taken[-1])) for n, p in zip(nearest, left, strict=True)]
    return taken


def physical_plans(query: Query) -> Iterator[PhysicalPlan]:
    """All physical plans that choices make of a query, the simplest first."""
    nodes = list(logical.nodes(query.plan))
    leveled = [node for node in nodes if levels(node)]
    windowed = [node for node in nodes if len(window_plans(node)) > 1]
    shapes = list(product(*map(window_plans, windowed)))
    common = [each for each in _LEVELS if any(each in levels(node) for node in leveled)]
    for shape in shapes:
        windows = dict(zip(windowed, shape, strict=True))
        for emit in common or ["on_update"]:
            yield _plan(query, emit, windows, {})
        for aligned in _aligned(query):
            yield _plan(query, "on_update", windows, {}, aligned)
    for shape in shapes:
        windows = dict(zip(windowed, shape, strict=True))
        for each in product(*map(levels, leveled)):
            if len(set(each)) > 1:
                mixed = dict(zip(leveled, each, strict=True))
                yield _plan(query, "on_update", windows, mixed)


def _aligned(query: Query) -> Iterator[tuple[Node, ...]]:
    """What may wait until it is final: the sources, or the output."""
    yield tuple(logical.sources(query.plan).values())
    if logical.children(query.plan):
        yield (query.plan,)


def _plan(
    query: Query,
    emit: Emit,
    windows: dict[Node, WindowPlan],
    emits: dict[Node, Emit],
    aligned: tuple[Node, ...] = (),
) -> PhysicalPlan:
    choices = {
        Query(node): Choice(
            emits.get(node),
            INFINITY if node in aligned else None,
            windows.get(node, "grid"),
        )
        for node in {*windows, *emits, *aligned}
    }
    usual = Choice()
    return physical(
        query, emit=emit, choices={part: each for part, each in choices.items() if each != usual}
    )


class _Traits(NamedTuple):
    """What distinguishes physical plans, node by node."""

    levels: dict[Node, Emit]
    windows: dict[Node, WindowPlan]
    aligned: frozenset[Node]


@lru_cache(maxsize=1_024)
def _traits(plan: PhysicalPlan) -> _Traits:
    chosen, usual = dict(plan.choices), Choice()
    nodes = list(logical.nodes(plan.plan))
    return _Traits(
        {n: chosen.get(n, usual).emit or plan.emit for n in nodes if levels(n)},
        {n: chosen.get(n, usual).windows for n in nodes if len(window_plans(n)) > 1},
        frozenset(n for n in nodes if chosen.get(n, usual).align is not None),
    )


def _distance(one: PhysicalPlan, other: PhysicalPlan) -> float:
    """How much two plans differ: level by level, in their windows, and in what waits."""
    mine, theirs = _traits(one), _traits(other)
    steps = [abs(_LEVELS[e] - _LEVELS[theirs.levels[n]]) for n, e in mine.levels.items()]
    windows = [each != theirs.windows[node] for node, each in mine.windows.items()]
    return (
        sum(steps) / max(len(steps), 1)
        + 2 * sum(windows) / max(len(windows), 1)
        + 2 * (mine.aligned != theirs.aligned)
    )


def summary(plan: PhysicalPlan) -> str:
    """The choices of a plan in few words."""
    traits = _traits(plan)
    emits = list(dict.fromkeys(traits.levels.values())) or [plan.emit]
    words = [" and ".join(emits)]
    if windows := [each for each in dict.fromkeys(traits.windows.values()) if each != "grid"]:
        words.append(" and ".join(windows))
    if plan.plan in traits.aligned:
        words.append("output aligned")
    if traits.aligned - {plan.plan}:
        words.append("sources aligned")
    return ", ".join(words)
