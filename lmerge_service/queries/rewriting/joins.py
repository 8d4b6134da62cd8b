"""Joins and semi-joins: their order, their sides, and each by the other."""

from collections.abc import Iterator
from typing import Final

import msgspec

from lmerge_service.queries import logical
from lmerge_service.queries.logical import Join, MultisetOp, Node, Project, SemiJoin, Union
from lmerge_service.queries.rewriting.rules import Rule, arranged, keeps
from lmerge_service.queries.trees import Binary, Name, Tree, reads

__all__ = ("JOINS",)

_TURNED: Final = {"": "", "left": "right", "right": "left", "full": "full"}


def _turned(node: Node) -> Iterator[Node]:
    match node:
        case Join(left, right, on, where, outer):
            pairs = tuple((other, one) for one, other in on)
            turned = Join(right, left, pairs, where, _TURNED[outer])  # type: ignore[arg-type]
            yield arranged(turned, logical.schema_of(node).names)


def _associated(node: Node) -> Iterator[Node]:
    """(A ⋈ B) ⋈ C: A ⋈ (B ⋈ C)."""
    match node:
        case Join(Join(a, b, first, inner, ""), c, second, outer, "") if keeps(
            b, (one for one, _ in second)
        ):
            right = Join(b, c, second, None)
            if outer is not None and keeps(right, reads(outer)):
                right, outer = Join(b, c, second, outer), None
            yield arranged(
                Join(a, right, first, _both(inner, outer)), logical.schema_of(node).names
            )


def _both(one: Tree | None, other: Tree | None) -> Tree | None:
    if one is None or other is None:
        return one if other is None else other
    return Binary("&", one, other)


def _distributed(node: Node) -> Iterator[Node]:
    match node:
        case Join(Union(of), outer="" | "left"):
            yield Union(tuple(msgspec.structs.replace(node, left=each) for each in of))
    match node:
        case Join(right=Union(of), outer=""):
            yield Union(tuple(msgspec.structs.replace(node, right=each) for each in of))


def _semi_join_as_join(node: Node) -> Iterator[Node]:
    match node:
        case SemiJoin(left, right, on, None, anti=False):
            columns = tuple((one, Name(other)) for one, other in on)
            if len(dict(columns)) == len(columns):
                keys = MultisetOp((Project(right, columns),), "distinct")
                yield Join(left, keys, tuple((one, one) for one, _ in on))


def _anti_joins_joined(node: Node) -> Iterator[Node]:
    """(A ▷ B) ▷ C: A ▷ (B ∪ C)."""
    match node:
        case SemiJoin(SemiJoin(a, b, first, None, anti=True), c, second, None, anti=True):
            if sorted(one for one, _ in first) == sorted({one for one, _ in second}):
                names = [one for one, _ in first]
                if len(set(names)) == len(names):
                    both = Union((_keys(b, first, names), _keys(c, second, names)))
                    yield SemiJoin(a, both, tuple((one, one) for one in names), None, anti=True)


def _keys(of: Node, on: tuple[tuple[str, str], ...], names: list[str]) -> Node:
    """The key columns of the right side, by the names that they have on the left."""
    known = dict(on)
    return Project(of, tuple((name, Name(known[name])) for name in names))


def _semi_joins_swapped(node: Node) -> Iterator[Node]:
    match node:
        case SemiJoin(SemiJoin(a) as inner):
            yield msgspec.structs.replace(inner, left=msgspec.structs.replace(node, left=a))


JOINS: Final = (
    Rule("turn a join round", "E", "columns in order by a projection", _turned),
    Rule("join the right two first", "E", "the key of the second is in the middle", _associated),
    Rule("join each part of a union", "E", "inner; left, of the left side", _distributed),
    Rule("semi-join as join with distinct keys", "E", "no condition", _semi_join_as_join),
    Rule("anti-joins by one, of a union", "E", "one key, no conditions", _anti_joins_joined),
    Rule("swap semi-joins", "E", "", _semi_joins_swapped),
)
