"""Which of the input a revision touches the results of, by the plan alone.

Theory
    A revision of events within [x, e) of one source changes only output that ends between two
    times. Below: once the source is stable up to x, nothing changes before the stable point of the
    output, which is the plan's stable rule at x. Above: output that ends at T or later rests on
    events that end at need(T) = T - depth or later (`properties.required_history`), so what the
    revision changes ends at e + depth or before. Both ways round this is what that output rests on:

                    x    e                             the revision
              rule(x)────────e + depth                 ends of the output that changes
        need(rule(x))────────────────▶ u               the events that this rests on

    u is where what begins changes later output only: rule(u) > e + depth. Output that ends within
    is exact if it is computed of these events, with the revision or without; output at the edges is
    not, and does not differ.

    That needs a plan whose depth is finite and whose starts are exact; a plan with windows over
    events that may have no end has more windows the longer it runs. Other plans have no reach
    (None), and are replayed as a whole.

Invariants
    R1  Computed of `since` and `before` of each source, output with `least` <= ve <= `greatest`
        is that of all input; other output is equal with the revision and without.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from lmerge_service.elements import INFINITY, START, Stable
from lmerge_service.queries import logical
from lmerge_service.queries.logical import Node
from lmerge_service.queries.network import Network
from lmerge_service.queries.physical import build
from lmerge_service.queries.properties import has_exact_starts, required_history

__all__ = ("Reach", "has_reach", "reach")

_MIDDLE = 0
"""A time far from both ends, at which a plan's depth is asked for."""


class Reach(NamedTuple):
    """What a revision changes, and what that rests on."""

    least: int
    """The output that changes ends then or later …"""
    greatest: int
    """… and then or before."""
    since: dict[str, int]
    """By source: it rests on events that end then or later …"""
    before: dict[str, int]
    """… and begin before."""


@lru_cache(maxsize=256)
def has_reach(plan: Node) -> bool:
    """Whether what a revision touches has bounds that follow from the plan."""
    endless = any(
        isinstance(node, logical.Windows) and logical.longest(node.of) == INFINITY
        for node in logical.nodes(plan)
    )
    known = START not in required_history(plan, _MIDDLE).values()
    return known and has_exact_starts(plan) and not endless


def reach(plan: Node, spans: Mapping[str, tuple[int, int]]) -> Reach | None:
    """What revisions reach, of each source those within [x, e): x the least start, e the greatest
    end. None: they have no reach."""
    if not has_reach(plan):
        return None
    names = list(logical.sources(plan))
    depth = {name: _MIDDLE - need for name, need in required_history(plan, _MIDDLE).items()}
    least = min(_rule(plan, name, x) for name, (x, _) in spans.items())
    greatest = max(_sum(e, depth[name]) for name, (_, e) in spans.items())
    since = {name: _sum(least, -depth[name]) for name in names}
    return Reach(least, greatest, since, {name: _behind(plan, name, greatest) for name in names})


def _behind(plan: Node, source: str, ends: int) -> int:
    """The least time found such that what begins there or later changes only what ends later."""
    if ends == INFINITY:
        return INFINITY
    time = ends + 1
    while (rule := _rule(plan, source, time)) <= ends:
        time += ends - rule + 1
    return time


def _rule(plan: Node, source: str, time: int) -> int:
    """The stable point of the output, if a source is stable up to a time, and the others whole."""
    network: Network = build(plan)
    for name in network.sources:
        network.process_batch(name, [Stable(time if name == source else INFINITY)])
    return network.stable


def _sum(time: int, by: int) -> int:
    return time if time in (START, INFINITY) else min(max(time + by, START), INFINITY)
