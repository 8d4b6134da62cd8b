"""Lifetimes: what looks at one event at a time commutes."""

from collections.abc import Iterator
from typing import Final

from lmerge_service.queries import logical
from lmerge_service.queries.logical import Lifetime, Node, Union
from lmerge_service.queries.rewriting.rules import Rule, with_children

__all__ = ("LIFETIMES",)


def _below_union(node: Node) -> Iterator[Node]:
    match node:
        case Lifetime(Union(of)):
            yield Union(tuple(with_children(node, [each]) for each in of))


def _above_union(node: Node) -> Iterator[Node]:
    match node:
        case Union((Lifetime(_, function, arguments) as first, *_)):
            alike = [
                isinstance(each, Lifetime)
                and (each.function, each.arguments) == (function, arguments)
                for each in node.of
            ]
            if all(alike):
                yield with_children(first, [Union(tuple(logical.children(e)[0] for e in node.of))])


LIFETIMES: Final = (
    Rule("lifetimes below union", "E", "", _below_union),
    Rule("lifetimes above union", "E", "one function", _above_union),
)
