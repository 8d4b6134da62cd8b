"""in2t, the two-tier index of case R3: a node per (vs, payload), in it the end each input gives.

Theory
    The paper's Figure 1 (left). The top tier finds a node by (vs, payload) and walks the nodes
    with vs < t in order of vs; the second tier is a small dict from input to that input's end,
    beside the end that the output holds (the paper's entry with key ∞). The payload is held once,
    by its node, however many inputs carry it.

    Nodes with one vs share a dict by payload, so payloads need to be hashable, not orderable, and
    the order among the (few) distinct vs is all that has to be kept: a `SortedDict`.

Invariants
    X1  No vs without a node, and no node without either an output end or an entry of an input.

Cost
    find O(1); add and delete O(1), and O(lg w) when a vs appears or vanishes; half_frozen(t) is
    linear in the nodes it yields. Memory O(w (payload + inputs)).
"""

from collections.abc import Hashable, Iterator
from typing import Any

from sortedcontainers import SortedDict

from lmerge_service.core.inputs import Input

__all__ = ("In2t", "Node")


class Node:
    """One event, as each input and the output have it; an absent end means they don't have it."""

    __slots__ = ("blamed", "ends", "out", "payload", "vs")

    def __init__(self, vs: int, payload: Hashable):
        self.vs = vs
        self.payload = payload
        self.ends: dict[Input, int] = {}
        self.out: int | None = None
        self.blamed: set[Input] | None = None
        """Inputs already reported for contradicting the output's half-frozen event."""

    def __repr__(self) -> str:
        ends = {source.name: ve for source, ve in self.ends.items()}
        return f"Node(vs={self.vs}, payload={self.payload!r}, ends={ends}, out={self.out})"


class In2t:
    """The index; see the module's text.

    >>> index = In2t()
    >>> node = index.add(6, "A")
    >>> index.find(6, "A") is node, index.find(6, "B")
    (True, None)
    >>> list(index.half_frozen(6)), list(index.half_frozen(7)) == [node]
    ([], True)
    """

    __slots__ = ("_by_vs", "_size")

    def __init__(self) -> None:
        self._by_vs: Any = SortedDict()  # vs -> {payload: Node}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Node]:
        """All nodes by vs, within one vs in order of arrival; nodes may be deleted meanwhile."""
        for vs in list(self._by_vs):
            yield from list(self._by_vs[vs].values())

    def find(self, vs: int, payload: Hashable) -> Node | None:
        """The paper's SameVsPayload. Complexity: O(1)."""
        nodes = self._by_vs.get(vs)
        return None if nodes is None else nodes.get(payload)

    def add(self, vs: int, payload: Hashable) -> Node:
        """Makes the node for a key that has none. Complexity: O(1), O(lg w) for a new vs."""
        node = Node(vs, payload)
        nodes = self._by_vs.get(vs)
        if nodes is None:
            self._by_vs[vs] = {payload: node}
        else:
            nodes[payload] = node
        self._size += 1
        return node

    def delete(self, node: Node) -> None:
        """Forgets a node and its payload. Complexity: O(1), O(lg w) for the last of a vs."""
        nodes = self._by_vs[node.vs]
        del nodes[node.payload]
        if not nodes:
            del self._by_vs[node.vs]
        self._size -= 1

    def delete_if_unused(self, node: Node) -> None:
        """Forgets a node that neither the output nor an input has (X1)."""
        if node.out is None and not node.ends:
            self.delete(node)

    def half_frozen(self, t: int) -> Iterator[Node]:
        """The paper's FindHalfFrozen: nodes with vs < t, by vs; they may be deleted meanwhile."""
        for vs in list(self._by_vs.irange(maximum=t, inclusive=(True, False))):
            yield from list(self._by_vs[vs].values())

    def clear(self) -> None:
        self._by_vs.clear()
        self._size = 0

    def check(self) -> None:
        """Asserts X1 and that every node stands where its key says."""
        count = 0
        for vs, nodes in self._by_vs.items():
            assert nodes, f"X1: vs={vs} has no node"
            for payload, node in nodes.items():
                assert (node.vs, node.payload) == (vs, payload), f"{node} stands at {vs}, {payload}"
                assert node.ends or node.out is not None, f"X1: nobody has {node}"
                count += 1
        assert count == self._size, f"{count} nodes, but size says {self._size}"
