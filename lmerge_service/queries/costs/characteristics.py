"""What a plan's costs depend on: its sources, and figures of its nodes, each with a default.

The caller states the characteristics of the sources, or a recorded sample shows both
(`costs.measuring`). What is known of a node is how many of its events pass, how many groups it has
and, where it calls functions of the user's, how long these take. Without a sample a selection
passes 0.1 of its events if it asks for equality, else 0.3; a tenth of all pairs of events have
equal keys, and so there are ten groups.

>>> from lmerge_service.queries.expressions import col
>>> from lmerge_service.queries.plan import facts
>>> flights = facts("flights", time="time", fields={"origin": str, "delay": int})
>>> known = Characteristics({"flights": Stream(20, 1)})
>>> [known.selectivity(flights.where(each).plan) for each in (col.delay > 15, col.origin == "JFK")]
[0.3, 0.1]
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from lmerge_service.queries import logical, trees
from lmerge_service.queries.costs.formulas import Stream
from lmerge_service.queries.logical import Aggregation, Node
from lmerge_service.queries.trees import Binary, Call, Literal, Name, Tree

__all__ = ("Characteristics", "Figures", "calls_user_code", "operations")

_EQUALITY: Final = 0.1
_OTHER: Final = 0.3
_GROUPS: Final = 10.0
_BATCH: Final = 100


@dataclass(frozen=True, slots=True)
class Figures:
    """What a sample shows of a node; None where it shows nothing, or the node has no such thing."""

    selectivity: float | None = None
    """Which part of the events, or of pairs that overlap, passes; of `flat_map`, how many rows."""
    key_selectivity: float | None = None
    """Which part of all pairs has equal keys."""
    groups: float | None = None
    """Groups, keys of the right side, or distinct payloads."""
    nanoseconds: float | None = None
    """What an element takes, if functions of the user's are called."""


_NOTHING: Final = Figures()


@dataclass(frozen=True, slots=True)
class Characteristics:
    """The streams that a query takes in."""

    sources: Mapping[str, Stream]
    figures: Mapping[Node, Figures] = field(default_factory=dict)
    batch: int = _BATCH
    """So many events of all sources are taken in at once."""

    def of(self, node: Node) -> Figures:
        """What is known of a node."""
        return self.figures.get(node, _NOTHING)

    def selectivity(self, node: Node) -> float:
        """Of a selection or join."""
        found = self.of(node).selectivity
        if found is not None:
            return found
        match node:
            case logical.Select(where=Binary("==")) | logical.Join(where=None):
                return _EQUALITY
            case logical.Join():
                return _EQUALITY * _OTHER
        return _OTHER

    def key_selectivity(self, node: Node) -> float:
        """Of a join, without its condition."""
        found = self.of(node).key_selectivity
        return _EQUALITY if found is None else found

    def groups(self, node: Node) -> float:
        """How many groups, keys or values a node has."""
        found = self.of(node).groups
        return _GROUPS if found is None else max(found, 1.0)

    def fan_out(self, node: Node) -> float:
        """How many rows `flat_map` makes of one."""
        found = self.of(node).selectivity
        return 1.0 if found is None else found


def calls_user_code(node: Node) -> bool:
    """Whether a node calls functions or modules: how long they take, only a sample shows."""
    match node:
        case logical.FlatMap():
            return True
        case logical.GroupApply(plan=plan):
            return any(map(calls_user_code, logical.nodes(plan)))
        case logical.SnapshotWindows() | logical.CountWindows():
            return True
        case logical.Windows(results=logical.Apply()):
            return True
    return any(isinstance(part, Call) for tree in _trees(node) for part in _parts(tree))


def operations(tree: Tree) -> int:
    """How many operators and functions an expression has; none if it is a column."""
    return sum(not isinstance(part, Name | Literal) for part in _parts(tree))


def _trees(node: Node) -> Iterator[Tree]:
    match node:
        case logical.Select(where=where):
            yield where
        case logical.Project(columns=columns):
            yield from (tree for _, tree in columns)
        case logical.Join(where=where) | logical.SemiJoin(where=where) if where is not None:
            yield where
        case logical.Aggregate(results=results) | logical.Windows(results=results):
            yield from _of_results(results)


def _of_results(results: logical.Results) -> Iterator[Tree]:
    if isinstance(results, logical.Apply):
        yield results.of
    elif isinstance(results, logical.Top):
        of = results.by.of if isinstance(results.by, Aggregation) else results.by
        yield from () if of is None else (of,)
    else:
        yield from (each.of for _, each in results if each.of is not None)


def _parts(tree: Tree) -> Iterator[Tree]:
    yield tree
    for child in trees.children(tree):
        yield from _parts(child)
