"""All plans that the rules make of one.

Theory
    Rules rewrite any part of a plan; so from a plan they reach others, and from these others, each
    once, in the order of the number of steps; projections that they leave behind are tidied up.
    Rules of class S are used where only snapshots count: below coalesced aggregates, multiset
    operators and the right side of semi-joins, as far as the operators between take snapshots to
    snapshots.

    >>> from lmerge_service.queries.expressions import col
    >>> from lmerge_service.queries.plan import elements
    >>> one, two = (elements(name, {"k": str, "n": int}) for name in ("one", "two"))
    >>> for variant in variants(one.union(two).where(col.n > 1).plan):
    ...     print(type(variant.plan).__name__, *variant.rules)
    Select
    Union select below union, multisets and lifetimes

Invariants
    C1  Every variant has the TDB of the plan, whatever the input, and its columns.
    C2  The order depends on the plan alone, and begins with it; no plan is there twice.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from lmerge_service.errors import ConfigurationError
from lmerge_service.queries import logical
from lmerge_service.queries.logical import Node
from lmerge_service.queries.rewriting.aggregates import AGGREGATES
from lmerge_service.queries.rewriting.functions import FUNCTIONS
from lmerge_service.queries.rewriting.joins import JOINS
from lmerge_service.queries.rewriting.lifetimes import LIFETIMES
from lmerge_service.queries.rewriting.multisets import MULTISETS
from lmerge_service.queries.rewriting.projections import PROJECTIONS, tidy
from lmerge_service.queries.rewriting.rules import Rule, reads_starts, with_children
from lmerge_service.queries.rewriting.selections import SELECTIONS

__all__ = ("RULES", "Variant", "rewritten", "variants")

RULES: Final[tuple[Rule, ...]] = (
    *JOINS,
    *SELECTIONS,
    *AGGREGATES,
    *MULTISETS,
    *LIFETIMES,
    *PROJECTIONS,
    *FUNCTIONS,
)


class Variant(NamedTuple):
    """A plan, and the rules that lead to it."""

    plan: Node
    rules: tuple[str, ...]


def variants(plan: Node, limit: int = 64) -> list[Variant]:
    """The plan, and others with its result: at most so many in all."""
    return list(islice(_reached(plan), limit))


def _reached(plan: Node) -> Iterator[Variant]:
    found = {plan, tidy(plan)}
    waiting = [Variant(plan, ())]
    for variant in waiting:  # it grows
        yield variant
        for rule, rough in rewritten(variant.plan):
            if (other := tidy(rough)) not in found:
                found.add(other)
                waiting.append(Variant(other, (*variant.rules, rule.name)))


def rewritten(plan: Node, *, snapshots: bool = False) -> Iterator[tuple[Rule, Node]]:
    """What one rule makes of one part of a plan; `snapshots`: only those of the plan count."""
    for rule in RULES:
        if rule.kind == "E" or snapshots:
            yield from ((rule, other) for other in rule.rewritten(plan) if _fits(plan, other))
    children = logical.children(plan)
    for at, child in enumerate(children):
        for rule, other in rewritten(child, snapshots=_counts(plan, at, snapshots)):
            whole = with_children(plan, [*children[:at], other, *children[at + 1 :]])
            if _fits(plan, whole):
                yield rule, whole


def _fits(plan: Node, other: Node) -> bool:
    """Whether the other plan can run; it may ask for bounds that were found elsewhere before."""
    try:
        return logical.schema_of(other) == logical.schema_of(plan)
    except ConfigurationError:
        return False


def _counts(node: Node, port: int, snapshots: bool) -> bool:
    """Whether of a node's input snapshots alone count, given whether they do of its output."""
    match node:
        case logical.MultisetOp():
            return True
        case logical.Aggregate(results=results, cut=False):
            return not reads_starts(results)
        case logical.SemiJoin() if port == 1:
            return True
        case (
            logical.Select()
            | logical.Project()
            | logical.FlatMap()
            | logical.Union()
            | logical.Join()
            | logical.SemiJoin()
        ):
            return snapshots
    return False
