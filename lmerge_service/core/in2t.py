"""in2t, the two-tier index of case R3: a node per (vs, payload), in it the end each input gives.

Theory
    The paper's Figure 1 (left): the top tier finds a node by (vs, payload), the second tier is a
    small dict from input to that input's end, beside the end that the output holds (the paper's
    entry with key ∞). The payload is held once, by its node, however many inputs carry it.

    The paper walks all half-frozen nodes at every stable(t). Most of them have nothing to do with
    it. What a stable of input s can concern is
      - nodes with vs < t that were not half frozen before: `newly_half_frozen`;
      - half-frozen nodes whose output end is below t, or whose end by s is, and those that s
        was seen to contradict before: `due`;
      - half-frozen nodes that s lacks, to be reported: `lacking`.
    So nodes stand in a dict by vs, in it one by payload. The vs that are not yet half frozen wait
    in a heap. Half-frozen nodes are in heaps of ends: one by the output's end, and per input one
    of the nodes that it ends *before the output does* (where it ends them later, the output's end
    comes up first); and per input there is a set of those that it lacks.

    Heaps forget lazily: an entry counts only while its node still has that end. When stale ones
    outnumber the rest a heap is made anew.

Invariants
    X1  No node without either an output end or an entry of an input.
    X2  A half-frozen node is on the output and has an entry (out, node) in the heap of outputs;
        for every input s with ends[s] < out it has one in the heap of s.
    X3  Each attached input has the set of half-frozen nodes that it lacks and was not blamed for;
        and each half-frozen node stands in the set of whom it was blamed on.
    X4  A vs of nodes that are not half frozen is in the heap, once; a vs of half-frozen ones is
        not. (A vs that waits may have no nodes any more.)
    X5  No heap of ends is longer than twice the half-frozen nodes plus a constant. So a storm of
        adjusts cannot make them grow, and final nodes are let go.

Cost
    find O(1); add O(1), and O(lg w) for a new vs; what a stable touches costs O(lg w + inputs)
    per node, and no other node costs anything. Memory O(w (payload + inputs)).
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeAlias

from lmerge_service.core.inputs import Input

__all__ = ("In2t", "Node")

_SLACK = 64


class Node:
    """One event, as each input and the output have it; an absent end means they don't have it."""

    __slots__ = ("blamed", "claims", "ends", "half_frozen", "out", "payload", "vs")

    def __init__(self, vs: int, payload: Hashable):
        self.vs = vs
        self.payload = payload
        self.ends: dict[Input, int] = {}
        self.out: int | None = None
        self.half_frozen = False
        self.blamed: set[Input] | None = None
        """Inputs already reported for contradicting the output's half-frozen event."""
        self.claims: set[Input] | None = None
        """Inputs that revised the event without ever having inserted it."""

    def claim(self, source: Input, ve: int) -> None:
        """An input gives an end to an event that it never inserted."""
        self.ends[source] = ve
        self.claims = {*(self.claims or ()), source}

    def withdraw_claim(self, source: Input) -> bool:
        """An input inserts the event after all; whether it had only claimed it."""
        if self.claims is None or source not in self.claims:
            return False
        self.claims.discard(source)
        return True

    def tellers(self) -> list[Input]:
        """The inputs that have inserted the event and still have it."""
        claims = self.claims or ()
        return [source for source in self.ends if source not in claims]

    def __repr__(self) -> str:
        ends = {source.name: ve for source, ve in self.ends.items()}
        return f"Node(vs={self.vs}, payload={self.payload!r}, ends={ends}, out={self.out})"


Heap: TypeAlias = list[tuple[int, int, Node]]
"""(end, tie, node); the tie is unique, so nodes are never compared."""


class In2t:
    """The index; see the module's text.

    >>> index = In2t()
    >>> node = index.add(6, "A")
    >>> index.find(6, "A") is node, index.find(6, "B")
    (True, None)
    >>> list(index.newly_half_frozen(6)), list(index.newly_half_frozen(7)) == [node]
    ([], True)
    """

    __slots__ = (
        "_against",
        "_by_end",
        "_by_out",
        "_coming",
        "_half",
        "_lacking",
        "_ties",
        "nodes",
        "touched",
    )

    def __init__(self) -> None:
        self.nodes: dict[int, dict[Hashable, Node]] = {}
        """By vs and payload, within one vs in order of arrival: to be read, not changed."""
        self._coming: list[int] = []
        self._half: dict[Node, None] = {}
        self._by_out: Heap = []
        self._by_end: defaultdict[Input, Heap] = defaultdict(list)
        self._lacking: dict[Input, dict[Node, None]] = {}
        # half-frozen nodes that an input contradicts
        self._against: defaultdict[Input, dict[Node, None]] = defaultdict(dict)
        self._ties = count()
        self.touched = 0
        """Nodes handed out by the three walks, so that tests can count work."""

    def __len__(self) -> int:
        return sum(map(len, self.nodes.values()))

    def __iter__(self) -> Iterator[Node]:
        """All nodes by vs, within one vs in order of arrival; nodes may be deleted meanwhile."""
        for vs in sorted(self.nodes):
            yield from list(self.nodes[vs].values())

    # --- nodes --------------------------------------------------------------------------------

    def find(self, vs: int, payload: Hashable) -> Node | None:
        """The paper's SameVsPayload. Complexity: O(1)."""
        group = self.nodes.get(vs)
        return None if group is None else group.get(payload)

    def add(self, vs: int, payload: Hashable) -> Node:
        """Makes the node for a key that has none. Complexity: O(1), O(lg w) for a new vs."""
        node = Node(vs, payload)
        group = self.nodes.get(vs)
        if group is None:
            self.nodes[vs] = {payload: node}
            heappush(self._coming, vs)
        else:
            group[payload] = node
        return node

    def delete(self, node: Node) -> None:
        """Forgets a node and its payload. Complexity: O(inputs)."""
        group = self.nodes[node.vs]
        del group[node.payload]
        if not node.half_frozen:
            return  # and a group that is empty now waits until a stable passes it
        if not group:
            del self.nodes[node.vs]
        node.half_frozen = False
        del self._half[node]
        if len(node.ends) < len(self._lacking):
            for lacking in self._lacking.values():
                lacking.pop(node, None)
        for source in node.blamed or ():
            del self._against[source][node]

    def delete_if_unused(self, node: Node) -> None:
        """Forgets a node that neither the output nor an input has (X1)."""
        if node.out is None and not node.ends:
            self.delete(node)

    # --- ends ---------------------------------------------------------------------------------

    def set_end(self, node: Node, source: Input, ve: int) -> None:
        """An input gives a half-frozen node an end. (Of others `ends` may be set directly.)"""
        self._lacking[source].pop(node, None)
        node.ends[source] = ve
        assert node.out is not None
        if ve < node.out:
            self._push(self._by_end[source], ve, node, source)

    def drop_end(self, node: Node, source: Input) -> None:
        """An input has a node no more."""
        del node.ends[source]
        node.withdraw_claim(source)
        if node.half_frozen and source not in (node.blamed or ()):
            self._lacking[source][node] = None

    def set_out(self, node: Node, ve: int) -> None:
        """The output gives a half-frozen node another end. Complexity: O(inputs + lg w)."""
        node.out = ve
        self._push(self._by_out, ve, node, None)
        for source, end in node.ends.items():
            if end < ve:
                self._push(self._by_end[source], end, node, source)

    def blame(self, node: Node, source: Input) -> bool:
        """Notes that an input contradicts a half-frozen node; whether that is new."""
        if node.blamed is None:
            node.blamed = set()
        elif source in node.blamed:
            return False
        node.blamed.add(source)
        if node.half_frozen:
            self._hold_against(node, source)
        return True

    def _hold_against(self, node: Node, source: Input) -> None:
        self._against[source][node] = None
        self._lacking[source].pop(node, None)

    def freeze(self, node: Node) -> None:
        """A node on the output becomes half frozen. Complexity: O(inputs + lg w)."""
        out, ends = node.out, node.ends
        assert out is not None
        self.nodes.setdefault(node.vs, {})[node.payload] = node
        node.half_frozen = True
        self._half[node] = None
        if len(ends) < len(self._lacking):
            for source, lacking in self._lacking.items():
                if source not in ends:
                    lacking[node] = None
        for source in node.blamed or ():
            self._hold_against(node, source)
        # Heaps are compacted once after all that a stable freezes.
        heappush(self._by_out, (out, next(self._ties), node))
        for source, end in ends.items():
            if end < out:
                heappush(self._by_end[source], (end, next(self._ties), node))

    # --- inputs -------------------------------------------------------------------------------

    def attach(self, source: Input) -> None:
        """A new input, which lacks everything. Complexity: O(half-frozen nodes)."""
        self._lacking[source] = dict.fromkeys(self._half)

    def forget(self, source: Input) -> None:
        """Drops every entry of an input, and the nodes that are then unused. Complexity: O(w)."""
        self._lacking.pop(source, None)
        self._by_end.pop(source, None)
        self._against.pop(source, None)
        for node in self:
            if node.blamed is not None:
                node.blamed.discard(source)
            if node.ends.pop(source, None) is not None:
                node.withdraw_claim(source)
                self.delete_if_unused(node)

    def clear(self) -> None:
        """Forgets all nodes, at the end of the stream."""
        sources = list(self._lacking)
        self.__init__()  # type: ignore[misc]
        for source in sources:
            self.attach(source)

    # --- what a stable concerns -----------------------------------------------------------------

    def newly_half_frozen(self, t: int) -> Iterator[Node]:
        """Takes nodes with vs < t that are not half frozen yet, by vs, out of the index; those
        that are to stay must be given to `freeze`."""
        coming = self._coming
        while coming and coming[0] < t:
            group = self.nodes.pop(heappop(coming))
            self.touched += len(group)
            yield from group.values()

    def due(self, sources: Iterable[Input], t: int) -> list[Node]:
        """Half-frozen nodes that the output, or one of the sources, ends before t, or that one
        of them contradicts; by vs."""
        found = {node: None for source in sources for node in self._against.get(source, ())}
        heap = self._by_out
        while heap and heap[0][0] < t:
            end, _, node = heappop(heap)
            if node.half_frozen and node.out == end:
                found[node] = None
        for source in sources:
            heap = self._by_end.get(source, [])
            while heap and heap[0][0] < t:
                end, _, node = heappop(heap)
                if node.half_frozen and node.ends.get(source) == end:
                    found[node] = None
        self.touched += len(found)
        return sorted(found, key=_vs_of)

    def lacking(self, source: Input) -> list[Node]:
        """Half-frozen nodes that `source` lacks without having been blamed for it, by vs."""
        found = self._lacking[source]
        self.touched += len(found)
        return sorted(found, key=_vs_of)

    # --- heaps --------------------------------------------------------------------------------

    def _push(self, heap: Heap, end: int, node: Node, source: Input | None) -> None:
        """Into the heap of an input, or, for None, of the output."""
        heappush(heap, (end, next(self._ties), node))
        self._compact_heap(heap, source)

    def compact(self) -> None:
        """Lets go of final nodes (X5); to be called after nodes were deleted for a stable."""
        self._compact_heap(self._by_out, None)
        for source, heap in self._by_end.items():
            self._compact_heap(heap, source)

    def _compact_heap(self, heap: Heap, source: Input | None) -> None:
        if len(heap) > 2 * len(self._half) + _SLACK:
            heap[:] = [
                (end, next(self._ties), node)
                for node in self._half
                if (end := _end_in_heap(node, source)) is not None
            ]
            heapify(heap)

    def check(self) -> None:
        """Asserts X1 to X5."""
        for vs, group in self.nodes.items():
            for payload, node in group.items():
                assert (node.vs, node.payload) == (vs, payload), f"{node} stands at {vs}"
                assert node.ends or node.out is not None, f"X1: nobody has {node}"
                assert node.half_frozen == (node in self._half), f"{node} is lost"
                assert node.half_frozen != (vs in self._coming), f"X4: {node} waits, or does not"
            assert group or vs in self._coming, f"X4: no node at {vs}"
        assert len(set(self._coming)) == len(self._coming), "X4: a vs waits twice"
        assert self.nodes.keys() >= set(self._coming), "X4: a vs waits for nothing"
        self._check_heaps()

    def _check_heaps(self) -> None:
        by_out = {(end, id(node)) for end, _, node in self._by_out}
        by_end = {
            (source, end, id(node))
            for source, heap in self._by_end.items()
            for end, _, node in heap
        }
        for node in self._half:
            assert node.out is not None, f"X2: {node} is not on the output"
            assert (node.out, id(node)) in by_out, f"X2: {node} is in no heap"
            for source, end in node.ends.items():
                late = end >= node.out or (source, end, id(node)) in by_end
                assert late, f"X2: {node} is not in the heap of {source}"
            for source in node.blamed or ():
                assert node in self._against[source], f"X3: {source} is not known to contradict"
        for source, lacking in self._lacking.items():
            lacks = {
                n for n in self._half if source not in n.ends and source not in (n.blamed or ())
            }
            assert lacking.keys() == lacks, f"X3: {source} lacks {lacks}, not {lacking}"
        for heap in (self._by_out, *self._by_end.values()):
            assert len(heap) <= 2 * len(self._half) + _SLACK, f"X5: a heap of {len(heap)}"


def _end_in_heap(node: Node, source: Input | None) -> int | None:
    """The end by which a half-frozen node stands in a heap, if it belongs there (X2)."""
    if source is None:
        return node.out
    end = node.ends.get(source)
    assert node.out is not None
    return end if end is not None and end < node.out else None


def _vs_of(node: Node) -> int:
    return node.vs
