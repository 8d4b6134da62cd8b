"""Distinct, coalesce and the set operators. All are canonical, which makes most rules class E."""

from collections.abc import Iterator
from typing import Final

import msgspec

from lmerge_service.queries.logical import Aggregate, Join, Lifetime, MultisetOp, Node, Union
from lmerge_service.queries.properties.keys import keys
from lmerge_service.queries.rewriting.rules import Rule

__all__ = ("MULTISETS",)


def _unary(of: Node, function: str) -> MultisetOp:
    return MultisetOp((of,), function)


def _is(node: Node, function: str) -> bool:
    return isinstance(node, MultisetOp) and node.function == function


def _of_parts(node: Node) -> Iterator[Node]:
    """f(A ∪ B): f(f(A) ∪ f(B))."""
    match node:
        case MultisetOp((Union(of),), function):
            if not all(_is(each, function) for each in of):
                parts = tuple(_unary(each, function) for each in of)
                yield _unary(Union(parts), function)


def _distinct_below_join(node: Node) -> Iterator[Node]:
    match node:
        case MultisetOp((Join(left, right, outer="") as join,), "distinct"):
            yield msgspec.structs.replace(
                join, left=_unary(left, "distinct"), right=_unary(right, "distinct")
            )


def _coalesce_below_join(node: Node) -> Iterator[Node]:
    match node:
        case MultisetOp((Join(left, right, outer="") as join,), "coalesce"):
            if not (_is(left, "coalesce") and _is(right, "coalesce")):
                one, other = _unary(left, "coalesce"), _unary(right, "coalesce")
                yield _unary(msgspec.structs.replace(join, left=one, right=other), "coalesce")


def _already(node: Node) -> Iterator[Node]:
    match node:
        case MultisetOp((of,), "coalesce") if _is_canonical(of):
            yield of
        case MultisetOp((of,), "distinct") if _is_canonical(of) and _is_a_set(of):
            yield of


def _is_canonical(node: Node) -> bool:
    return isinstance(node, MultisetOp) or (isinstance(node, Aggregate) and not node.cut)


def _is_a_set(node: Node) -> bool:
    return keys(node).unique is not None


def _differences(node: Node) -> Iterator[Node]:
    """(A - B) - C: A - (B ∪ C)."""
    match node:
        case MultisetOp((MultisetOp((a, b), inner), c), "except_all" | "except" as function):
            if inner == function:
                yield MultisetOp((a, Union((b, c))), function)


def _intersection(node: Node) -> Iterator[Node]:
    """A ∩ B: A - (A - B)."""
    match node:
        case MultisetOp((a, b), "intersect_all"):
            yield MultisetOp((a, MultisetOp((a, b), "except_all")), "except_all")


def _uncut(node: Node) -> Iterator[Node]:
    match node:
        case MultisetOp((Aggregate(cut=True) as of,), "distinct") if _is_a_set(of):
            yield of


def _uncoalesced(node: Node) -> Iterator[Node]:
    match node:
        case MultisetOp((of,), "coalesce"):
            yield of


def _coalesced(node: Node) -> Iterator[Node]:
    if isinstance(node, Union | Join | Lifetime):
        yield _unary(node, "coalesce")


MULTISETS: Final = (
    Rule("distinct or coalesce each part of a union first", "E", "", _of_parts),
    Rule("distinct below a join", "E", "inner", _distinct_below_join),
    Rule("coalesce below a join, too", "E", "inner", _coalesce_below_join),
    Rule("leave out what changes nothing", "E", "the input is canonical", _already),
    Rule("take away all at once", "E", "", _differences),
    Rule("intersection by differences", "E", "with multiplicities", _intersection),
    Rule("leave out distinct of snapshots", "S", "each payload once", _uncut),
    Rule("leave out coalesce", "S", "", _uncoalesced),
    Rule("coalesce", "S", "a union, a join, or lifetimes", _coalesced),
)
