"""The nodes of an index as columns, which is how the cases with a key keep them in a snapshot.

Theory
    A part of a snapshot has a list for each field of its nodes rather than an object for each node,
    which makes few objects on either way:

        vs                                  [6, 8]
        payload                             ["A", "B"]
        what the output holds               [7, null]          in case R4 lists of ends
        for each input, what it has         [[7, null], [12, 10]]
        by place, the inputs to blame       [[0, [1]]]
        by place, those that only claim     [[1, [1]]]          case R3 only

    Inputs are numbered in the order in which the head has them. Half-frozen nodes come first, and
    are filed, which rebuilds the queues and sets of the index; these are not kept.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from lmerge_service.core.index import Index, KeyedNode
from lmerge_service.core.inputs import Input
from lmerge_service.core.snapshots import hashable, portable, some

__all__ = ("Marks", "marked", "marks", "packed", "unpacked")

Marks = list[tuple[int, list[int]]]
"""Of some nodes, by place: the numbers of inputs."""

N = TypeVar("N", bound=KeyedNode)


def packed(nodes: Sequence[KeyedNode], numbers: Mapping[Input, int]) -> tuple[Any, ...]:
    """The columns that both cases have.

    Raises:
        StateError: a payload is of a kind that would not come back as it was.
    """
    return (
        [node.vs for node in nodes],
        [portable(node.payload) for node in nodes],
        [node.out for node in nodes],
        [[node.ends.get(source) for node in nodes] for source in numbers],
        marks((node.blamed for node in nodes), numbers),
    )


def unpacked(columns: Sequence[Any], index: Index[N], sources: Sequence[Input]) -> list[N]:
    """Makes the nodes of these columns in an index that has the stable point already; gives them.

    Raises:
        LookupError, TypeError, ValueError: the columns are damaged.
    """
    all_vs, payloads, outs, ends, blamed = columns
    nodes = []
    for vs, payload, out in zip(all_vs, payloads, outs, strict=True):
        made = index.make if vs < index.stable else index.add
        nodes.append(made(vs, hashable(payload), {}, out))
    for source, column in zip(sources, ends, strict=True):
        for node, contributed in zip(nodes, column, strict=True):
            if contributed is not None:
                node.ends[source] = contributed
    for place, inputs in marked(blamed, sources):
        nodes[place].blamed = inputs
    index.file(node for node in nodes if node.vs < index.stable)
    if any(node.vs < index.stable and not node.half_frozen for node in nodes):
        raise ValueError("a half-frozen event is not on the output")
    return nodes


def marks(sets: Iterable[set[Input] | None], numbers: Mapping[Input, int]) -> Marks:
    """Sets of inputs, of which most are empty or None, by their places."""
    return [(at, some(inputs, numbers)) for at, inputs in enumerate(sets) if inputs]


def marked(given: Marks, sources: Sequence[Input]) -> Iterator[tuple[int, set[Input]]]:
    """The places and sets of inputs of which these are the `marks`."""
    return ((at, {sources[number] for number in numbers}) for at, numbers in given)
