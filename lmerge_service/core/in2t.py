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
      - half-frozen nodes that s lacks, to be reported: `lacking`, walked only if a count says
        that there are any.
    So nodes that are not yet half frozen wait in a heap of vs, and half-frozen ones in heaps of
    ends: one by the output's end, and per input one of the nodes that it ends *before the output
    does* (where it ends them later, the output's end comes up first).

    Heaps forget lazily: an entry counts only while its node still has that end. When stale ones
    outnumber the rest a heap is made anew.

Invariants
    X1  No node without either an output end or an entry of an input.
    X2  A half-frozen node is on the output and has an entry (out, node) in the heap of outputs;
        for every input s with ends[s] < out it has one in the heap of s.
    X3  held[s] is the number of half-frozen nodes for which s has an end, or was blamed; only
        half-frozen nodes are blamed for, and each stands in the set of whom it was blamed on.
    X4  Every node that is not half frozen waits once, under its vs, which is in the heap once.
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
        "_held",
        "_nodes",
        "_ties",
        "_unfrozen",
        "touched",
    )

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, Hashable], Node] = {}
        self._unfrozen: dict[int, list[Node]] = {}  # by vs, in order of arrival
        self._coming: list[int] = []  # a heap of the keys of _unfrozen
        self._half: dict[Node, None] = {}
        self._by_out: Heap = []
        self._by_end: defaultdict[Input, Heap] = defaultdict(list)
        self._held: defaultdict[Input, int] = defaultdict(int)
        # half-frozen nodes that an input contradicts
        self._against: defaultdict[Input, dict[Node, None]] = defaultdict(dict)
        self._ties = count()
        self.touched = 0
        """Nodes handed out by the three walks, so that tests can count work."""

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        """All nodes by vs, within one vs in order of arrival; nodes may be deleted meanwhile."""
        return iter(sorted(self._nodes.values(), key=_vs_of))

    # --- nodes --------------------------------------------------------------------------------

    def find(self, vs: int, payload: Hashable) -> Node | None:
        """The paper's SameVsPayload. Complexity: O(1)."""
        return self._nodes.get((vs, payload))

    def add(self, vs: int, payload: Hashable) -> Node:
        """Makes the node for a key that has none. Complexity: O(1), O(lg w) for a new vs."""
        node = self._nodes[vs, payload] = Node(vs, payload)
        waiting = self._unfrozen.get(vs)
        if waiting is None:
            self._unfrozen[vs] = [node]
            heappush(self._coming, vs)
        else:
            waiting.append(node)
        return node

    def delete(self, node: Node) -> None:
        """Forgets a node and its payload.

        Complexity: O(inputs) for a half-frozen node, else O(nodes with its vs).
        """
        del self._nodes[node.vs, node.payload]
        if not node.half_frozen:
            if node.vs in self._unfrozen:  # else the walk over the newly half frozen has it
                self._unfrozen[node.vs].remove(node)
            return
        node.half_frozen = False
        del self._half[node]
        for source in node.ends:
            self._held[source] -= 1
        for source in node.blamed or ():
            self._held[source] -= source not in node.ends
            del self._against[source][node]

    def put_away(self, node: Node, t: int) -> None:
        """Files a node that stable(t) concerned: half frozen from now on, or gone when it is
        final or nobody put it out."""
        if node.out is None or node.out < t:
            self.delete(node)
        elif node.half_frozen:
            self.set_out(node, node.out)
        else:
            self.freeze(node)

    def delete_if_unused(self, node: Node) -> None:
        """Forgets a node that neither the output nor an input has (X1)."""
        if node.out is None and not node.ends:
            self.delete(node)

    # --- ends ---------------------------------------------------------------------------------

    def set_end(self, node: Node, source: Input, ve: int) -> None:
        """An input gives a half-frozen node an end. (Of others `ends` may be set directly.)"""
        if source not in node.ends and not (node.blamed and source in node.blamed):
            self._held[source] += 1
        node.ends[source] = ve
        assert node.out is not None
        if ve < node.out:
            self._push(self._by_end[source], ve, node, source)

    def drop_end(self, node: Node, source: Input) -> None:
        """An input has a node no more."""
        del node.ends[source]
        node.withdraw_claim(source)
        if node.half_frozen and not (node.blamed and source in node.blamed):
            self._held[source] -= 1

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
        if node.half_frozen:  # else `freeze` counts it
            self._against[source][node] = None
            if source not in node.ends:
                self._held[source] += 1
        return True

    def freeze(self, node: Node) -> None:
        """A node on the output becomes half frozen. Complexity: O(inputs + lg w)."""
        assert node.out is not None
        node.half_frozen = True
        self._half[node] = None
        for source in node.ends:
            self._held[source] += 1
        for source in node.blamed or ():
            self._against[source][node] = None
            if source not in node.ends:
                self._held[source] += 1
        self.set_out(node, node.out)

    def forget(self, source: Input) -> None:
        """Drops every entry of an input, and the nodes that are then unused. Complexity: O(w)."""
        for node in self:
            if node.blamed is not None:
                node.blamed.discard(source)
            if node.ends.pop(source, None) is not None:
                node.withdraw_claim(source)
                self.delete_if_unused(node)
        self._held.pop(source, None)
        self._by_end.pop(source, None)
        self._against.pop(source, None)

    def clear(self) -> None:
        """Forgets everything, at the end of the stream."""
        self.__init__()  # type: ignore[misc]

    # --- what a stable concerns -----------------------------------------------------------------

    def newly_half_frozen(self, t: int) -> Iterator[Node]:
        """Nodes with vs < t that are not half frozen yet, by vs; each must be deleted or frozen
        by whoever walks."""
        coming = self._coming
        while coming and coming[0] < t:
            for node in self._unfrozen.pop(heappop(coming)):
                self.touched += 1
                yield node

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
        """Half-frozen nodes that `source` lacks without having been blamed for it, by vs.

        Complexity: O(1) when there is none, else O(half-frozen nodes).
        """
        if self._held.get(source, 0) == len(self._half):
            return []
        self.touched += len(self._half)
        # _half is in the order of freezing, which is by vs
        return [n for n in self._half if source not in n.ends and source not in (n.blamed or ())]

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
        for key, node in self._nodes.items():
            assert (node.vs, node.payload) == key, f"{node} stands at {key}"
            assert node.ends or node.out is not None, f"X1: nobody has {node}"
            assert node.half_frozen == (node in self._half), f"{node} is lost"
        unfrozen = [node for nodes in self._unfrozen.values() for node in nodes]
        expected = {node for node in self._nodes.values() if not node.half_frozen}
        assert set(unfrozen) == expected, f"X4: {unfrozen} wait, not {expected}"
        assert len(unfrozen) == len(expected), "X4: a node waits twice"
        assert sorted(self._coming) == sorted(self._unfrozen), "X4: a vs waits twice, or not at all"
        self._check_heaps()

    def _check_heaps(self) -> None:
        by_out = {(end, id(node)) for end, _, node in self._by_out}
        by_end = {
            (source, end, id(node))
            for source, heap in self._by_end.items()
            for end, _, node in heap
        }
        held: dict[Input, int] = dict.fromkeys(self._held, 0)
        for node in self._half:
            assert node.out is not None, f"X2: {node} is not on the output"
            assert (node.out, id(node)) in by_out, f"X2: {node} is in no heap"
            for source, end in node.ends.items():
                late = end >= node.out or (source, end, id(node)) in by_end
                assert late, f"X2: {node} is not in the heap of {source}"
            for source in {*node.ends, *(node.blamed or ())}:
                held[source] = held.get(source, 0) + 1
            for source in node.blamed or ():
                assert node in self._against[source], f"X3: {source} is not known to contradict"
        assert held == self._held, f"X3: {held} nodes are held, not {self._held}"
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
