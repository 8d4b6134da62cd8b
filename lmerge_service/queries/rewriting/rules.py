"""What a rule is, and what families of rules share: rebuilding nodes and trees.

>>> from lmerge_service.queries.trees import Binary, Literal, Name
>>> from lmerge_service.queries.rows import Kind
>>> late = Binary(">", Name("delay"), Literal(15, Kind.INT))
>>> print(substituted(late, {"delay": Binary("+", Name("one"), Name("two"))}))
(col.one + col.two) > 15
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from lmerge_service.queries import logical
from lmerge_service.queries.logical import Aggregation, Apply, Node, Top
from lmerge_service.queries.trees import (
    Binary,
    Call,
    Cast,
    Coalesce,
    IsNull,
    Name,
    Not,
    Tree,
    When,
    reads,
)

__all__ = (
    "Rule",
    "arranged",
    "keeps",
    "needed",
    "reads_starts",
    "substituted",
    "with_children",
    "with_parts",
)


@dataclass(frozen=True, slots=True)
class Rule:
    """An equation of the algebra, read in one direction.

    `rewritten` gives what becomes of a plan by rewriting its top node; nothing where the rule's
    condition does not hold.
    """

    name: str
    kind: Literal["E", "S"]
    condition: str
    """When the sides are equal; "" for always."""
    rewritten: Callable[[Node], Iterable[Node]]


def with_children(node: Node, children: Sequence[Node]) -> Node:
    """The node over other children."""
    if tuple(children) == logical.children(node):
        return node
    match node:
        case logical.Union() | logical.MultisetOp():
            return msgspec.structs.replace(node, of=tuple(children))
        case logical.Join() | logical.SemiJoin() | logical.Clip():
            return msgspec.structs.replace(node, left=children[0], right=children[1])
    return msgspec.structs.replace(node, of=children[0])


def arranged(node: Node, names: Sequence[str]) -> Node:
    """The node with its columns in this order."""
    if logical.schema_of(node).names == tuple(names):
        return node
    return logical.Project(node, tuple((name, Name(name)) for name in names))


def keeps(node: Node, names: Iterable[str]) -> bool:
    """Whether a node has all of these columns."""
    return set(names) <= set(logical.schema_of(node).names)


def needed(by: Iterable[str], results: logical.Results) -> frozenset[str]:
    """The columns that an aggregate or window looks at."""
    return frozenset(by).union(*_read(results))


def _read(results: logical.Results) -> Iterator[frozenset[str]]:
    match results:
        case Top(columns=columns, by=score):
            yield frozenset(columns)
            of = score.of if isinstance(score, Aggregation) else score
            if of is not None:
                yield reads(of)
        case Apply(of=of):
            yield reads(of)
        case _:
            yield from (reads(each.of) for _, each in results if each.of is not None)


def reads_starts(results: logical.Results) -> bool:
    """Whether results depend on when events start, or on the order of rows that start together:
    `first`, `last`, and modules that see lifetimes."""
    match results:
        case Apply():
            return True
        case Top(by=score):
            return isinstance(score, Aggregation) and score.function in ("first", "last")
    return any(each.function in ("first", "last") for _, each in results)


def substituted(tree: Tree, by: Mapping[str, Tree]) -> Tree:
    """The tree with trees in place of columns."""

    if isinstance(tree, Name):
        return by.get(tree.name, tree)
    return with_parts(tree, lambda part: substituted(part, by))


def with_parts(tree: Tree, each: Callable[[Tree], Tree]) -> Tree:
    """The tree over what becomes of its parts."""
    match tree:
        case Binary(op, left, right):
            return Binary(op, each(left), each(right))
        case Not(of):
            return Not(each(of))
        case IsNull(of):
            return IsNull(each(of))
        case Coalesce(args):
            return Coalesce(tuple(map(each, args)))
        case When(branches, otherwise):
            return When(tuple((each(c), each(v)) for c, v in branches), each(otherwise))
        case Cast(of, kind):
            return Cast(each(of), kind)
        case Call(args=args):
            return msgspec.structs.replace(tree, args=tuple(map(each, args)))
    return tree
