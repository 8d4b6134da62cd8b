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
    in a heap. Half-frozen nodes are in queues of ends: one by the output's end, and per input one
    of the nodes that it ends *before the output does* (where it ends them later, the output's end
    comes up first); and per input there is a set of those that it lacks.

    These queues of ends forget lazily: an entry counts only while its node still has that end.
    When stale entries may outnumber the rest, a queue is swept.

Invariants
    X1  No node without either an output end or an entry of an input.
    X2  A half-frozen node is on the output and has an entry (out, node) in the queue of outputs;
        for every input s with ends[s] < out it has one in the queue of s.
    X3  Each attached input has the set of half-frozen nodes that it lacks and was not blamed for;
        and each half-frozen node stands in the set of whom it was blamed on.
    X4  A vs of nodes that are not half frozen is in the heap, once; a vs of half-frozen ones is
        not. (A vs that waits may have no nodes any more.)
    X5  No queue of ends is longer than twice the half-frozen nodes plus a constant. So a storm of
        adjusts cannot make them grow, and final nodes are let go.

Cost
    find O(1); add O(1), and O(lg w) for a new vs; what a stable touches costs O(lg w + inputs)
    per node, and no other node costs anything. Memory O(w (payload + inputs)).
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from operator import attrgetter

from lmerge_service.core.inputs import Input

__all__ = ("Ends", "In2t", "Node")

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


class Ends:
    """Nodes by an end of theirs, the earliest first; stale entries stay until they are swept."""

    __slots__ = ("_heap", "_nodes", "size")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._nodes: dict[int, list[Node]] = {}
        self.size = 0

    def push(self, end: int, node: Node) -> None:
        """Complexity: O(lg distinct ends)."""
        nodes = self._nodes.get(end)
        if nodes is None:
            self._nodes[end] = [node]
            heappush(self._heap, end)
        else:
            nodes.append(node)
        self.size += 1

    def pop_before(self, t: int) -> Iterator[tuple[int, list[Node]]]:
        """Takes out all entries with end < t, by end."""
        heap = self._heap
        while heap and heap[0] < t:
            end = heappop(heap)
            nodes = self._nodes.pop(end)
            self.size -= len(nodes)
            yield end, nodes

    def sweep(self, counts: Callable[[Node, int], bool]) -> None:
        """Drops entries that do not count, and repeated ones. Complexity: O(size)."""
        swept = {
            end: kept
            for end, nodes in self._nodes.items()
            if (kept := [node for node in dict.fromkeys(nodes) if counts(node, end)])
        }
        self._nodes = swept
        self._heap = list(swept)
        heapify(self._heap)
        self.size = sum(map(len, swept.values()))

    def __iter__(self) -> Iterator[tuple[int, Node]]:
        return ((end, node) for end, nodes in self._nodes.items() for node in nodes)


class In2t:
    """The index; see the module's text.

    >>> index = In2t()
    >>> node = index.add(6, "A")
    >>> index.find(6, "A") is node, index.find(6, "B")
    (True, None)
    >>> index.newly_half_frozen(6), index.newly_half_frozen(7) == [node]
    ([], True)
    """

    __slots__ = (
        "_against",
        "_by_end",
        "_by_out",
        "_coming",
        "_half_frozen",
        "_lacking",
        "nodes",
        "touched",
    )

    def __init__(self) -> None:
        self.nodes: dict[int, dict[Hashable, Node]] = {}
        """By vs and payload, within one vs in order of arrival: to be read, not changed."""
        self._coming: list[int] = []
        self._half_frozen = 0  # how many nodes are
        self._by_out = Ends()
        self._by_end: defaultdict[Input, Ends] = defaultdict(Ends)
        self._lacking: dict[Input, dict[Node, None]] = {}
        # half-frozen nodes that an input contradicts
        self._against: defaultdict[Input, dict[Node, None]] = defaultdict(dict)
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
        if node.half_frozen:
            self._let_go([node])
        else:  # a group that is empty then waits until a stable passes it
            del self.nodes[node.vs][node.payload]

    def refile(self, nodes: Iterable[Node], t: int) -> None:
        """Files nodes that were due at t by their ends of now, or forgets them when final."""
        self._let_go(node for node in nodes if node.out is not None and node.out < t)
        for node in nodes:
            if node.half_frozen and node.out is not None:
                self.set_out(node, node.out)

    def _let_go(self, nodes: Iterable[Node]) -> None:
        """Forgets half-frozen nodes. Complexity: O(inputs) each."""
        groups, lacking = self.nodes, self._lacking
        attached = len(lacking)
        for node in nodes:
            group = groups[node.vs]
            del group[node.payload]
            if not group:
                del groups[node.vs]
            node.half_frozen = False
            self._half_frozen -= 1
            if len(node.ends) < attached:
                for lacks in lacking.values():
                    lacks.pop(node, None)
            if node.blamed:
                for source in node.blamed:
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
            self._by_end[source].push(ve, node)
            self._sweep_end(source)

    def drop_end(self, node: Node, source: Input) -> None:
        """An input has a node no more."""
        del node.ends[source]
        node.withdraw_claim(source)
        if node.half_frozen and source not in (node.blamed or ()):
            self._lacking[source][node] = None

    def set_out(self, node: Node, ve: int) -> None:
        """The output gives a half-frozen node another end. Complexity: O(inputs + lg w)."""
        node.out = ve
        self._by_out.push(ve, node)
        for source, end in node.ends.items():
            if end < ve:
                self._by_end[source].push(end, node)
        self.compact()

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

    def freeze(self, nodes: Iterable[Node]) -> None:
        """Nodes on the output become half frozen. Complexity: O(inputs + lg w) each."""
        groups, lacking, push = self.nodes, self._lacking, self._by_out.push
        attached = len(lacking)
        for node in nodes:
            out, ends = node.out, node.ends
            assert out is not None
            group = groups.get(node.vs)
            if group is None:
                groups[node.vs] = {node.payload: node}
            else:
                group[node.payload] = node
            node.half_frozen = True
            self._half_frozen += 1
            if len(ends) < attached:
                for source, lacks in lacking.items():
                    if source not in ends:
                        lacks[node] = None
            if node.blamed:
                for source in node.blamed:
                    self._hold_against(node, source)
            push(out, node)
            for source, end in ends.items():
                if end < out:
                    self._by_end[source].push(end, node)
        self.compact()

    # --- inputs -------------------------------------------------------------------------------

    def attach(self, source: Input) -> None:
        """A new input, which lacks everything. Complexity: O(w)."""
        self._lacking[source] = {node: None for node in self if node.half_frozen}

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

    def newly_half_frozen(self, t: int) -> list[Node]:
        """Takes nodes with vs < t that are not half frozen yet, by vs, out of the index; those
        that are to stay must be given to `freeze`."""
        found: list[Node] = []
        coming = self._coming
        while coming and coming[0] < t:
            found += self.nodes.pop(heappop(coming)).values()
        self.touched += len(found)
        return found

    def due(self, sources: Iterable[Input], t: int) -> Iterable[Node]:
        """Half-frozen nodes that the output, or one of the sources, ends before t, or that one
        of them contradicts; whoever asks must have them filed anew by `refile`."""
        found = {node: None for source in sources for node in self._against.get(source, ())}
        for end, nodes in self._by_out.pop_before(t):
            for node in nodes:
                if node.half_frozen and node.out == end:
                    found[node] = None
        for source in sources:
            for end, nodes in self._by_end[source].pop_before(t):
                for node in nodes:
                    if node.half_frozen and node.ends.get(source) == end:
                        found[node] = None
        self.touched += len(found)
        return found

    def lacking(self, source: Input) -> list[Node]:
        """Half-frozen nodes that `source` lacks without having been blamed for it, by vs."""
        found = self._lacking[source]
        self.touched += len(found)
        return sorted(found, key=attrgetter("vs"))

    # --- queues of ends -------------------------------------------------------------------------

    def compact(self) -> None:
        """Lets go of stale entries (X5); to be called after nodes were deleted for a stable."""
        if self._by_out.size > 2 * self._half_frozen + _SLACK:
            self._by_out.sweep(lambda node, end: node.half_frozen and node.out == end)
        for source in self._by_end:
            self._sweep_end(source)

    def _sweep_end(self, source: Input) -> None:
        ends = self._by_end[source]
        if ends.size > 2 * self._half_frozen + _SLACK:
            ends.sweep(lambda node, end: node.half_frozen and node.ends.get(source) == end)

    def check(self) -> None:
        """Asserts X1 to X5."""
        for vs, group in self.nodes.items():
            for payload, node in group.items():
                assert (node.vs, node.payload) == (vs, payload), f"{node} stands at {vs}"
                assert node.ends or node.out is not None, f"X1: nobody has {node}"
                assert node.half_frozen != (vs in self._coming), f"X4: {node} waits, or does not"
            assert group or vs in self._coming, f"X4: no node at {vs}"
        assert len(set(self._coming)) == len(self._coming), "X4: a vs waits twice"
        assert self.nodes.keys() >= set(self._coming), "X4: a vs waits for nothing"
        self._check_queues()

    def _check_queues(self) -> None:
        half_frozen = [node for node in self if node.half_frozen]
        assert len(half_frozen) == self._half_frozen, f"{self._half_frozen}, not {half_frozen}"
        by_out = set(self._by_out)
        by_end = {source: set(ends) for source, ends in self._by_end.items()}
        for node in half_frozen:
            assert node.out is not None, f"X2: {node} is not on the output"
            assert (node.out, node) in by_out, f"X2: {node} is in no queue"
            for source, end in node.ends.items():
                late = end >= node.out or (end, node) in by_end[source]
                assert late, f"X2: {node} is not in the queue of {source}"
            for source in node.blamed or ():
                assert node in self._against[source], f"X3: {source} is not known to contradict"
        for source, lacking in self._lacking.items():
            lacks = {
                node
                for node in half_frozen
                if source not in node.ends and source not in (node.blamed or ())
            }
            assert lacking.keys() == lacks, f"X3: {source} lacks {lacks}, not {lacking}"
        for ends in (self._by_out, *self._by_end.values()):
            assert ends.size == len(list(ends)), f"{ends.size} entries are counted"
            assert ends.size <= 2 * self._half_frozen + _SLACK, f"X5: {ends.size} entries"
