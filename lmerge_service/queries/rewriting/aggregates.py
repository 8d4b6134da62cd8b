"""Aggregates: from parts, below semi-joins, and windows by snapshots.

A count, a least and a greatest value of all rows follow from those of parts of the rows. A sum does
not: that of a part may be beyond int64 where that of all is not.
"""

from collections.abc import Iterator
from typing import Final

from lmerge_service.queries import logical
from lmerge_service.queries.logical import (
    Aggregate,
    Aggregation,
    Apply,
    Lifetime,
    Node,
    SemiJoin,
    Union,
    Windows,
)
from lmerge_service.queries.rewriting.rules import Rule, reads_starts, with_children
from lmerge_service.queries.trees import Name

__all__ = ("AGGREGATES",)

_MERGED: Final = {"count": "sum", "count_of": "sum", "min": "min", "max": "max"}
"""By which aggregation of parts' results each is computed."""

_Aggregations = tuple[tuple[str, Aggregation], ...]


def _merged(results: logical.Results) -> _Aggregations | None:
    """The aggregations of parts' results; None where parts do not suffice."""
    if not isinstance(results, tuple) or not all(a.function in _MERGED for _, a in results):
        return None
    return tuple((name, Aggregation(_MERGED[a.function], Name(name))) for name, a in results)


def _of_union(node: Node) -> Iterator[Node]:
    """γ(A ∪ B): γ'(γA ∪ γB)."""
    match node:
        case Aggregate(Union(of), by, results, cut=False, gap=False):
            if (merged := _merged(results)) is not None:
                parts = tuple(with_children(node, [each]) for each in of)
                if not all(isinstance(each, Aggregate) for each in of):
                    yield Aggregate(Union(parts), by, merged)


def _in_two_stages(node: Node) -> Iterator[Node]:
    """By one column more, and these together."""
    match node:
        case Aggregate(of, (), results, cut=False, gap=False):
            if (merged := _merged(results)) is not None and not isinstance(of, Aggregate):
                yield Aggregate(Aggregate(of, (_finer(of, results),), results), (), merged)
        case Windows(of, (), grid, results) if grid.every >= grid.size:
            if (merged := _merged(results)) is not None:
                first = Windows(of, (_finer(of, results),), grid, results)
                yield Aggregate(first, (), merged, cut=True)


def _finer(of: Node, results: logical.Results) -> str:
    """The first column, if no result has its name."""
    assert isinstance(results, tuple)
    taken = {name for name, _ in results}
    return next((n for n in logical.schema_of(of).names if n not in taken), "")


def _below_semi_join(node: Node) -> Iterator[Node]:
    match node:
        case SemiJoin(Aggregate(of, by, results, cut=False, gap=False) as left, right, on, None):
            if {one for one, _ in on} <= set(by) and not reads_starts(results):
                below = SemiJoin(of, right, on, None, node.anti)
                yield with_children(left, [below])


def _above_semi_join(node: Node) -> Iterator[Node]:
    match node:
        case Aggregate(SemiJoin(left, right, on, None) as of, by, results, cut=False, gap=False):
            if {one for one, _ in on} <= set(by) and not reads_starts(results):
                yield SemiJoin(with_children(node, [left]), right, on, None, of.anti)


def _tumbling(node: Node) -> Iterator[Node]:
    match node:
        case Windows(of, by, grid, results) if not isinstance(results, Apply):
            tumbles = grid.every == grid.size and grid.origin % grid.size == 0
            if tumbles and logical.longest(of) == 1 and not reads_starts(results):
                yield Aggregate(Lifetime(of, "quantise", (grid.size,)), by, results, cut=True)


AGGREGATES: Final = (
    Rule("aggregate each part of a union", "E", "count, min, max; coalesced", _of_union),
    Rule("aggregate in two stages", "E", "count, min, max; no groups", _in_two_stages),
    Rule(
        "aggregate above a semi-join", "E", "its key is in the group; coalesced", _below_semi_join
    ),
    Rule(
        "aggregate below a semi-join", "E", "its key is in the group; coalesced", _above_semi_join
    ),
    Rule("tumbling windows as snapshots of a grid", "E", "of facts; not first or last", _tumbling),
)
