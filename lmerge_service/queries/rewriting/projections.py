"""Projections: they move towards the sources, fall together, and drop what nobody reads."""

from collections.abc import Iterator
from typing import Final

from lmerge_service.queries import logical
from lmerge_service.queries.logical import Apply, MultisetOp, Node, Project
from lmerge_service.queries.properties.keys import renamed
from lmerge_service.queries.rewriting.rules import (
    Rule,
    arranged,
    needed,
    reads_starts,
    substituted,
    with_children,
)
from lmerge_service.queries.trees import Name

__all__ = ("PROJECTIONS", "tidy")


def tidy(plan: Node) -> Node:
    """The plan without what changes nothing: of projections one above the other one, none that
    keeps all as it is, and of coalesces one. These are equations of class E, and no plans that
    differ."""
    node = with_children(plan, [tidy(child) for child in logical.children(plan)])
    match node:
        case Project(Project(of, first), second):
            by = dict(first)
            merged = tuple((name, substituted(tree, by)) for name, tree in second)
            return tidy(Project(of, merged))
        case Project(of, columns):
            if columns == tuple((name, Name(name)) for name in logical.schema_of(of).names):
                return of
        case MultisetOp((MultisetOp((_,), "coalesce") as of,), "coalesce"):
            return of
    return node


def _below(node: Node) -> Iterator[Node]:
    match node:
        case Project(logical.Union() | logical.Lifetime() as of, columns):
            yield with_children(of, [Project(each, columns) for each in logical.children(of)])


def _below_distinct(node: Node) -> Iterator[Node]:
    match node:
        case Project(logical.MultisetOp((of,), function), columns):
            if renamed(columns).keys() >= set(logical.schema_of(of).names):
                yield logical.MultisetOp((Project(of, columns),), function)


def _unread(node: Node) -> Iterator[Node]:
    match node:
        case logical.Aggregate(of, by, results) | logical.Windows(of, by, _, results):
            if not reads_starts(results) or isinstance(results, Apply):
                names = logical.schema_of(of).names
                read = [name for name in names if name in needed(by, results)]
                if len(read) < len(names):
                    yield with_children(node, [arranged(of, read or names[:1])])


PROJECTIONS: Final = (
    Rule("project below union and lifetimes", "E", "", _below),
    Rule("project below distinct and coalesce", "E", "all columns stay", _below_distinct),
    Rule("drop what an aggregate does not read", "E", "not first or last", _unread),
)
