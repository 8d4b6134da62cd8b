"""The physical plans of a query, and their numbers.

Theory
    Replicas of a query should differ in how they compute it, so that what one gets wrong or late
    another does not. `physical_plans` enumerates what can be chosen: the logical plan
    (`rewriting`), hence the order of joins and the stages of aggregates; the level at which
    aggregates and windows emit, all alike or each by itself; how windows are computed; and whether
    input or output waits until it is final. Each has the same result in the end.

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

from collections import Counter
from collections.abc import Hashable, Iterator
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
from lmerge_service.queries.properties import keys
from lmerge_service.queries.rewriting import variants

__all__ = ("distance", "numbered_plans", "physical_plans", "query_variants", "summary")

_CONSIDERED: Final = 200
"""So many plans are compared with each other."""
_VARIANTS: Final = 24
_MOST: Final = 16
_LEVELS: Final[dict[Emit, int]] = {"on_update": 0, "ordered": 1, "on_watermark": 2, "on_close": 3}
_STATELESS: Final = (logical.Select, logical.Project, logical.FlatMap, logical.Lifetime)


def numbered_plans(query: Query, most: int = _MOST) -> list[PhysicalPlan]:
    """Physical plans of a query, of which the position, from 1, is the number: at most so many."""
    left = list(islice(physical_plans(query), _CONSIDERED))
    taken = [left.pop(0)]
    nearest = [distance(plan, taken[0]) for plan in left]
    while left and len(taken) < most:
        best = max(range(len(left)), key=nearest.__getitem__)  # the first of those
        taken.append(left.pop(best))
        nearest.pop(best)
        nearest = [min(n, distance(p, taken[-1])) for n, p in zip(nearest, left, strict=True)]
    return taken


def physical_plans(query: Query) -> Iterator[PhysicalPlan]:
    """All physical plans of a query: of each variant those of one level, then those of several."""
    plans = list(query_variants(query))
    for each in plans:
        yield from _of_one_level(Query(each))
    for each in plans:
        yield from _of_several_levels(Query(each))


def query_variants(query: Query) -> dict[Node, tuple[str, ...]]:
    """The logical plans that replicas of a query may have, the written one first, each with the
    rules that lead to it. One whose output has no key, while that of the query has, is none: it
    would cost its merge the case."""
    keyed = keys(query.plan).start is not None
    found = {each.plan: each.rules for each in variants(query.plan, 4 * _VARIANTS)}
    fitting = [plan for plan in found if not keyed or keys(plan).start is not None]
    return {plan: found[plan] for plan in fitting[:_VARIANTS]}


def _of_one_level(query: Query) -> Iterator[PhysicalPlan]:
    found = {each for node in logical.nodes(query.plan) for each in levels(node)}
    for windows in _window_plans(query):
        for emit in [each for each in _LEVELS if each in found] or ["on_update"]:
            yield _plan(query, emit, windows, {})
        for aligned in _aligned(query):
            yield _plan(query, "on_update", windows, {}, aligned)


def _of_several_levels(query: Query) -> Iterator[PhysicalPlan]:
    leveled = [node for node in logical.nodes(query.plan) if levels(node)]
    for windows in _window_plans(query):
        for each in product(*map(levels, leveled)):
            if len(set(each)) > 1:
                yield _plan(query, "on_update", windows, dict(zip(leveled, each, strict=True)))


def _window_plans(query: Query) -> Iterator[dict[Node, WindowPlan]]:
    windowed = [node for node in logical.nodes(query.plan) if len(window_plans(node)) > 1]
    # to replay is asked for where memory is short (`replayed`): as a rule it is dear
    offered = ([each for each in window_plans(node) if each != "replay"] for node in windowed)
    for each in product(*offered):
        yield dict(zip(windowed, each, strict=True))


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
    """What distinguishes physical plans."""

    emits: tuple[Emit, ...]
    """Of each node that has levels."""
    windows: tuple[WindowPlan, ...]
    """Of each node that has windows."""
    aligned: str
    """What waits."""
    stateful: Counter[Hashable]
    """The operators that hold state, by their sources."""


@lru_cache(maxsize=1_024)
def _traits(plan: PhysicalPlan) -> _Traits:
    chosen, usual = dict(plan.choices), Choice()
    nodes = list(logical.nodes(plan.plan))
    aligned = [node for node in nodes if chosen.get(node, usual).align is not None]
    what = "" if not aligned else "output aligned" if aligned == [plan.plan] else "sources aligned"
    return _Traits(
        tuple(chosen.get(node, usual).emit or plan.emit for node in nodes if levels(node)),
        tuple(chosen.get(node, usual).windows for node in nodes if len(window_plans(node)) > 1),
        what if logical.children(plan.plan) or not aligned else "sources aligned",
        Counter(map(_shape, nodes)),
    )


def _shape(node: Node) -> Hashable:
    """What an operator is, and what feeds it; nothing of one without state."""
    if isinstance(node, _STATELESS) or not logical.children(node):
        return None
    fed = [tuple(sorted(logical.sources(child))) for child in logical.children(node)]
    return (type(node).__name__, *fed)


def distance(one: PhysicalPlan, other: PhysicalPlan) -> float:
    """How much two plans differ: in levels, windows, what waits, and what holds state."""
    mine, theirs = _traits(one), _traits(other)
    total = (mine.stateful | theirs.stateful).total()
    same = (mine.stateful & theirs.stateful).total()
    return (
        abs(_mean(mine.emits) - _mean(theirs.emits))
        + 2 * (set(mine.windows) != set(theirs.windows))
        + 2 * (mine.aligned != theirs.aligned)
        + 4 * (1 - same / max(total, 1))
        + (one.plan != other.plan) / 2
    )


def _mean(emits: tuple[Emit, ...]) -> float:
    return sum(_LEVELS[emit] for emit in emits) / max(len(emits), 1)


def summary(plan: PhysicalPlan) -> str:
    """The choices of a plan in few words."""
    traits = _traits(plan)
    emits = dict.fromkeys(traits.emits or (plan.emit,))
    windows = [each for each in dict.fromkeys(traits.windows) if each != "grid"]
    words = (" and ".join(emits), " and ".join(windows), traits.aligned)
    return ", ".join(word for word in words if word)
