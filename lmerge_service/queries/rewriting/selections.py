"""Selections: they move towards the sources, and are split and joined."""

from collections.abc import Iterator
from typing import Final

import msgspec

from lmerge_service.queries import logical
from lmerge_service.queries.logical import Node, Select
from lmerge_service.queries.rewriting.rules import Rule, keeps, substituted, with_children
from lmerge_service.queries.sql_text import is_sql
from lmerge_service.queries.trees import Binary, reads

__all__ = ("SELECTIONS",)


def _split(node: Node) -> Iterator[Node]:
    match node:
        case Select(of, Binary("&", left, right)):
            yield Select(Select(of, left), right)


def _joined(node: Node) -> Iterator[Node]:
    match node:
        case Select(Select(of, first), second):
            yield Select(of, Binary("&", first, second))


def _exchanged(node: Node) -> Iterator[Node]:
    match node:
        case Select(Select(of, first), second) if not (is_sql(first) or is_sql(second)):
            yield Select(Select(of, second), first)


def _below_all(node: Node) -> Iterator[Node]:
    match node:
        case Select(logical.Union() | logical.MultisetOp() | logical.Lifetime() as of, where):
            yield with_children(of, [Select(child, where) for child in logical.children(of)])


def _below_left(node: Node) -> Iterator[Node]:
    match node:
        case Select(logical.SemiJoin() | logical.Clip() as of, where):
            yield msgspec.structs.replace(of, left=Select(of.left, where))
        case Select(logical.Join(outer="" | "left") as of, where) if keeps(of.left, reads(where)):
            yield msgspec.structs.replace(of, left=Select(of.left, where))


def _below_right(node: Node) -> Iterator[Node]:
    match node:
        case Select(logical.Join(outer="" | "right") as of, where) if keeps(of.right, reads(where)):
            yield msgspec.structs.replace(of, right=Select(of.right, where))


def _below_groups(node: Node) -> Iterator[Node]:
    match node:
        case Select(
            logical.Aggregate()
            | logical.Windows()
            | logical.SnapshotWindows()
            | logical.CountWindows()
            | logical.LastRows() as of,
            where,
        ) if reads(where) and reads(where) <= set(of.by):
            yield with_children(of, [Select(of.of, where)])


def _below_project(node: Node) -> Iterator[Node]:
    match node:
        case Select(logical.Project(of, columns), where):
            yield logical.Project(Select(of, substituted(where, dict(columns))), columns)


SELECTIONS: Final = (
    Rule("split a conjunction", "E", "", _split),
    Rule("join selections", "E", "", _joined),
    Rule("exchange selections", "E", "each calls a function of the user's", _exchanged),
    Rule("select below union, multisets and lifetimes", "E", "", _below_all),
    Rule("select below the left side", "E", "the condition reads its columns", _below_left),
    Rule("select below the right side", "E", "the condition reads its columns", _below_right),
    Rule("select below groups", "E", "the condition reads columns of the group", _below_groups),
    Rule("select below select of columns", "E", "", _below_project),
)
