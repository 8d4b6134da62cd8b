"""Functions that compute the same: each in place of the other.

That they do is what their author declares (`udf(..., also=...)`); they may differ in which values
are dear for them, or in who wrote them.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from lmerge_service.queries import logical
from lmerge_service.queries.logical import Node
from lmerge_service.queries.rewriting.rules import Rule, with_parts
from lmerge_service.queries.trees import Call, Tree

__all__ = ("FUNCTIONS",)


def _other(tree: Tree) -> Tree:
    """The tree by the next function wherever there are several."""
    found = with_parts(tree, _other)
    match found:
        case Call(function, also=(following, *more)):
            return msgspec.structs.replace(found, function=following, also=(*more, function))
    return found


def _exchanged(node: Node) -> Iterator[Node]:
    match node:
        case logical.Select(of, where) if (other := _other(where)) != where:
            yield logical.Select(of, other)
        case logical.Project(of, columns):
            others = tuple((name, _other(tree)) for name, tree in columns)
            if others != columns:
                yield logical.Project(of, others)


FUNCTIONS: Final = (
    Rule("another function that computes the same", "E", "it is declared so", _exchanged),
)
