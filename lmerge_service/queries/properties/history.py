"""How much of the past a plan needs: what a replica that joins late has to read.

Theory
    need(T) of a plan is a time per source. A network that takes in exactly the events with
    ve >= need(T), and then the stables, agrees with one that took in everything on all output
    events with ve >= T; but where a node has no exact starts, a row that is there at T - 1 and at T
    may start at another time below T. The nodes' needs compose from the top down. All of them are T
    less a constant, so a plan has one *depth* per source; INFINITY where nothing less than all will
    do.

    A node whose result depends on starts (`at_most`, `window`, the left side of `clip`, `first` and
    `last`, modules that see lifetimes) takes from a child without exact starts only what cannot be
    one of those rows: the child's rows are at most `logical.longest` long, so those with ve >= T
    start at T less that or later.

    Whoever merges the output of a replica wants its starts exact, too: a row that begins elsewhere
    is another event. So a replica without exact starts is right about what ends at T + `longest` or
    later, which has begun at T or later; where rows may be of any length, it never is, and resumes
    from its output or its state, which have the starts.

    >>> from lmerge_service.queries.plan import count, facts, hopping
    >>> flights = facts("flights", time="time", fields={"origin": str, "delay": int})
    >>> delays = flights.windows(hopping(60, every=20)).by("origin").aggregate(n=count())
    >>> required_history(delays.plan, 1_000), joining_at(delays.plan, {"flights": 1_000})
    ({'flights': 941}, 1060)
    >>> required_history(flights.by("origin").last_rows(1).plan, 1_000) == {"flights": START}
    True

Invariants
    H1  The theorem above (tests/queries/test_history.py).
    H2  `joining_at` is the least T for which facts from there on hold all of need(T), and more by
        `longest` where starts are not exact.
"""

from collections.abc import Mapping
from functools import lru_cache

from lmerge_service.elements import INFINITY, START
from lmerge_service.queries import logical, modules
from lmerge_service.queries.logical import Aggregation, Apply, Node, Top
from lmerge_service.queries.operators.lifetimes import AtMost
from lmerge_service.queries.window_policies import Clipping, Timestamping

__all__ = ("has_exact_starts", "joining_at", "required_history")

_DERIVED = frozenset({"window", "at_most", "hop", "inserts", "starts", "ends", "deletes", "last"})
"""Lifetimes that need what makes their starts exact, or that make them of ends."""


def required_history(plan: Node, before: int) -> dict[str, int]:
    """need(T), T being `before`: of each source, by name, the time such that its events with ve at
    that time or later suffice for all output events with ve >= T. START where all are needed: the
    plan resumes from its state only."""
    return {name: _back(before, depth) for name, depth in _depths(plan).items()}


def joining_at(plan: Node, since: Mapping[str, int]) -> int:
    """The least time T such that a replica is right about all output events with ve >= T, if it
    takes in the facts of each source from the time `since` on (START: all of them), or, of a source
    of elements, all events with ve above that; their starts are exact. INFINITY if there is none.
    """
    found = START
    for name, depth in _depths(plan).items():
        if since[name] != START:
            source = logical.sources(plan)[name]
            # Facts from S on are the events with ve > S; of intervals older ones may be among
            # these, too, however old.
            reach = logical.longest(source) if isinstance(source, logical.Source) else 1
            found = max(found, _back(since[name], -_sum(depth, reach)))
    if found == START or has_exact_starts(plan):
        return found
    return _back(found, -logical.longest(plan))


@lru_cache(maxsize=4_096)
def has_exact_starts(plan: Node, group: bool = True) -> bool:
    """Whether rows keep their starts where older input is missing; `group`: whether those do that
    a plan for groups takes in."""
    below = [has_exact_starts(child, group) for child in logical.children(plan)]
    match plan:
        case logical.Group():
            return group
        case logical.Lifetime(function=function):
            return function in _DERIVED or below[0]
        case logical.Join(outer=outer):
            return all(below) and not outer
        case logical.MultisetOp() | logical.SemiJoin():
            return False
        case logical.Aggregate(gap=gap):
            return gap  # which needs everything
        case logical.SnapshotWindows(results=results):
            return _sees_lifetimes(results)
        case logical.Clip() | logical.Windows() | logical.CountWindows() | logical.LastRows():
            return True
        case logical.GroupApply(plan=each):
            return has_exact_starts(each, below[0])
    return all(below)


@lru_cache(maxsize=256)
def _depths(plan: Node) -> dict[str, int]:
    """How far below T need(T) of each source is."""
    found = _composed(plan, 0, group=True)
    return {
        node.name: depth
        for node, depth in found.items()
        if isinstance(node, logical.Source | logical.Elements)
    }


def _composed(plan: Node, depth: int, *, group: bool) -> dict[Node, int]:
    """The depth of each node, that of the plan given."""
    found = {plan: depth}
    for node in reversed(list(logical.nodes(plan))):
        below = _below(node, found[node], group)
        for child, needed in zip(logical.children(node), below, strict=True):
            found[child] = max(found.get(child, needed), needed)
    return found


def _below(node: Node, depth: int, group: bool) -> list[int]:
    """The depth of each child, of a node whose own is `depth`."""
    children = logical.children(node)
    if depth == INFINITY:
        return [INFINITY for _ in children]

    def seen(of: Node, depth: int, starts: bool = True) -> int:
        """The depth at which starts are exact, if they are looked at."""
        exact = not starts or has_exact_starts(of, group)
        return depth if exact else _sum(depth, logical.longest(of))

    match node:
        case logical.Lifetime(of):
            function, exact = logical.lifetime_of(node), has_exact_starts(of, group)
            by = -function.required_history(0, exact)
            if isinstance(function, AtMost) and not exact:
                by = min(by, logical.longest(of))
            return [_sum(depth, by)]
        case logical.Clip(left, right):
            # What starts behind a left event that ends at T or later ends two ticks behind it; a
            # start that is not exact must be at that event's or before.
            margin = 2 if has_exact_starts(right, group) else 1
            return [seen(left, depth), _sum(depth, logical.longest(left), -margin)]
        case logical.Aggregate(of, results=results, gap=gap):
            # The event before a gap may be of any age.
            return [INFINITY if gap else seen(of, depth, _reads_starts(results))]
        case logical.Windows(of, grid=grid, results=results):
            if _is_unbounded(results):
                return [INFINITY]
            return [seen(of, _sum(depth, grid.size - 1), _reads_starts(results))]
        case logical.SnapshotWindows(of, results=results) if _sees_lifetimes(results):
            # A snapshot is no longer than its members.
            whole = INFINITY if _is_unbounded(results) else logical.longest(of)
            return [seen(of, _sum(depth, whole))]
        case logical.CountWindows() | logical.LastRows():
            return [INFINITY]
        case logical.GroupApply(of, plan=plan):
            found = _composed(plan, depth, group=has_exact_starts(of, group))
            return [max(d for leaf, d in found.items() if isinstance(leaf, logical.Group))]
    return [depth for _ in children]


def _reads_starts(results: logical.Results) -> bool:
    """Whether results depend on when members start, where that is before their window."""
    match results:
        case Apply(clipping=clipping):
            return _sees_lifetimes(results) and clipping in (Clipping.NONE, Clipping.RIGHT)
        case Top(by=score):
            return isinstance(score, Aggregation) and score.function in ("first", "last")
    return any(each.function in ("first", "last") for _, each in results)


def _sees_lifetimes(results: Apply) -> bool:
    return modules.module(results.module).time_sensitive


def _is_unbounded(results: logical.Results) -> bool:
    """Whether a row may end at any time behind its window."""
    return isinstance(results, Apply) and results.timestamping == Timestamping.UNCHANGED


def _sum(*depths: int) -> int:
    """INFINITY and more than there are times are INFINITY."""
    total = INFINITY if INFINITY in depths else sum(depths)
    return min(total, INFINITY)


def _back(time: int, depth: int) -> int:
    """`depth` before a time, within the times that there are."""
    if time in (START, INFINITY):
        return time
    return START if depth == INFINITY else min(max(time - depth, START), INFINITY)
