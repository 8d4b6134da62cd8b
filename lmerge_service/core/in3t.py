"""in3t, the three-tier index of case R4: a node per (vs, payload), in it the ends each input gives.

Theory
    The paper's Figure 1 (right): the top tier finds a node by (vs, payload), the second tier is a
    small dict from input to that input's events at this key, beside those of the output (the
    paper's entry with key ∞), and the third tier holds their ends. The ends are a multiset, kept
    as a sorted list: an event given twice stands in it twice, its length is the count, and
    bisection finds how many ends lie below a time. The payload is held once, by its node.

        a: insert(A,2,5), insert(A,2,5), insert(A,2,8)      (2,A): a=[5,5,8], out=[5,5,8]
        a: adjust(A,2,5→9)                                  (2,A): a=[5,8,9], out=[5,5,8]

    An end is *live* when it is not below the output's stable point. What is below is final: the
    output forgets it, and an input's is kept only because the input itself may still revise it.

    As in `in2t` a stable must not look at every half-frozen node. What stable(t) can concern is
      - nodes with vs < t that were not half frozen before: `newly_half_frozen`;
      - half-frozen nodes whose earliest live end is below t, on the output or for an input: a
        heap by the output's, and per input a heap of the nodes that it ends before the output
        does (where it does not, the output's end comes up first);
      - half-frozen nodes of which a deciding input has another number of live events than the
        output. These are walked for only if a count says that there are any, and remembered.
    So nodes stand in a dict by vs, in it one by payload, and the vs that are not yet half frozen
    wait in a heap. `due` gives the latter two. Since an input's end that is passed changes how many
    live events it has, `due` gives the nodes of every input's heap, not of the deciding ones' only.

Invariants
    Y1  No node without events on the output or of an input; ends are sorted, and none of the
        output's is below the stable point.
    Y2  A half-frozen node is on the output and has an entry (out[0], node) in the heap of
        outputs; for every input whose earliest live end e is below out[0], (e, node) is in the
        heap of that input.
    Y3  held[s] is the number of half-frozen nodes of which s has as many live events as the
        output, or was blamed; whom a node is blamed on is known from either side.
    Y4  A vs of nodes that are not half frozen is in the heap, once; a vs of half-frozen ones is
        not. (A vs that waits may have no nodes any more.)
    Y5  No heap of ends is longer than twice the half-frozen nodes plus a constant. So a storm of
        adjusts cannot make them grow, and final nodes are let go.

Cost
    find O(1); add O(1), and O(lg w) for a new vs; an event of an input O(lg d), d being those
    with its key; what a stable touches costs O(lg w + inputs lg d) per node, and no other node
    costs anything. Memory O(w (payload + inputs d)).
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import TypeAlias

from lmerge_service.core.inputs import Input
from lmerge_service.elements import START

__all__ = ("In3t", "Node", "beyond", "has")

_SLACK = 64


class Node:
    """The events of one key, as each input and the output have them."""

    __slots__ = ("blamed", "ends", "half_frozen", "number", "out", "payload", "vs")

    def __init__(self, vs: int, payload: Hashable, number: int):
        self.vs = vs
        self.payload = payload
        self.number = number  # in order of arrival, which decides among nodes of one vs
        self.ends: dict[Input, list[int]] = {}
        self.out: list[int] = []
        self.half_frozen = False
        self.blamed: set[Input] | None = None
        """Inputs already reported for contradicting the output's half-frozen events."""

    def revise(self, source: Input, vold: int | None, ve: int | None) -> None:
        """An input has one event less at vold, where it had one, and one more at ve."""
        ends = self.ends.setdefault(source, [])
        if vold is not None:
            _remove(ends, vold)
        if ve is not None:
            insort(ends, ve)
        elif not ends:
            del self.ends[source]

    def live(self, source: Input, t: int) -> list[int]:
        """The ends of an input's events that are not below t. Complexity: O(live ends)."""
        ends = self.ends.get(source, [])
        return ends[bisect_left(ends, t) :]

    def __repr__(self) -> str:
        ends = {source.name: ends for source, ends in self.ends.items()}
        return f"Node(vs={self.vs}, payload={self.payload!r}, ends={ends}, out={self.out})"


Heap: TypeAlias = list[tuple[int, int, Node]]
"""(end, number of the node, node): nodes are never compared, but with themselves."""


class In3t:
    """The index; see the module's text.

    >>> index = In3t()
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
        "_doubles",
        "_half",
        "_held",
        "_made",
        "nodes",
        "stable",
        "touched",
    )

    def __init__(self) -> None:
        self.stable = START
        """The output's stable point, which says what is live; during a stable the coming one."""
        self.touched = 0
        """Nodes looked at for stables, so that tests can count work."""
        self._made = 0
        self.clear()

    def __len__(self) -> int:
        """The number of events: at each node those on the output, or one that is held back."""
        return sum(map(len, self.nodes.values())) + self._doubles

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
        self._made += 1
        node = Node(vs, payload, self._made)
        group = self.nodes.get(vs)
        if group is None:
            self.nodes[vs] = {payload: node}
            heappush(self._coming, vs)
        else:
            group[payload] = node
        return node

    def delete_if_unused(self, node: Node) -> None:
        """Forgets a node that neither the output nor an input has (Y1). Only one that is not
        half frozen can be; its vs waits on. Complexity: O(1)."""
        if not node.out and not node.ends:
            del self.nodes[node.vs][node.payload]

    def file(self, node: Node) -> None:
        """Puts away a node that the stable concerned: half frozen from now on, or gone when all
        its events are final. Complexity: O(inputs (lg d + lg w))."""
        out, t = node.out, self.stable
        if out and out[0] < t:
            final = bisect_left(out, t)
            self._doubles -= min(final, len(out) - 1)
            del out[:final]
        if not out:
            self._discard(node)
            return
        node.half_frozen = True
        if node not in self._half:
            self._half[node] = None
            self.nodes.setdefault(node.vs, {})[node.payload] = node
        # Heaps are compacted once after all that a stable concerns.
        first, number = out[0], node.number
        heappush(self._by_out, (first, number, node))
        for source, ends in node.ends.items():
            if ends == out:  # as a rule
                self._held[source] += 1
                continue
            self._held[source] += self._counts(node, source)
            end = self._first_end(node, source)
            if end is not None and end < first:
                heappush(self._by_end[source], (end, number, node))
        for source in node.blamed or ():
            self._against[source][node] = None
            self._held[source] += source not in node.ends

    def _discard(self, node: Node) -> None:
        if node in self._half:
            del self._half[node]
            group = self.nodes[node.vs]
            del group[node.payload]
            if not group:
                del self.nodes[node.vs]
        for source in node.blamed or ():
            self._against[source].pop(node, None)

    def forget(self, source: Input) -> None:
        """Drops every entry of an input, and the nodes that are then unused. Complexity: O(w)."""
        for node in self:
            if node.blamed is not None:
                node.blamed.discard(source)
            if node.ends.pop(source, None) is not None:
                self.delete_if_unused(node)
        for record in (self._held, self._by_end, self._against):
            record.pop(source, None)

    def clear(self) -> None:
        """Forgets everything, at the end of the stream."""
        self.nodes: dict[int, dict[Hashable, Node]] = {}
        """By vs and payload, within one vs in order of arrival: to be read, not changed."""
        self._doubles = 0  # events of the output beyond the first of each node
        self._coming: list[int] = []  # a heap of the vs that are not half frozen
        self._half: dict[Node, None] = {}
        self._by_out: Heap = []
        self._by_end: defaultdict[Input, Heap] = defaultdict(list)
        self._held: defaultdict[Input, int] = defaultdict(int)
        # half-frozen nodes that an input contradicts
        self._against: defaultdict[Input, dict[Node, None]] = defaultdict(dict)

    # --- events -------------------------------------------------------------------------------

    def revise(self, node: Node, source: Input, vold: int | None, ve: int | None) -> None:
        """The same for a half-frozen node. (Others may be told directly.)"""
        if vold is None or ve is None or (vold < self.stable) != (ve < self.stable):
            self._held[source] -= self._counts(node, source)
            node.revise(source, vold, ve)
            self._held[source] += self._counts(node, source)
        else:  # as many events are live as before
            node.revise(source, vold, ve)
        self._watch(node, source)

    def put_out(self, node: Node, ve: int) -> None:
        """The output has one more event, of a node that is not half frozen."""
        if node.out:
            self._doubles += 1
            insort(node.out, ve)
        else:
            node.out.append(ve)

    def move_out(self, node: Node, vold: int, ve: int) -> None:
        """The output revises one of its events."""
        first = node.out[0]
        _remove(node.out, vold)
        insort(node.out, ve)
        if node.half_frozen and node.out[0] != first:
            self._push(self._by_out, node.out[0], node, None)
            for source in node.ends:
                self._watch(node, source)

    def take_out(self, node: Node, ve: int) -> None:
        """The output has one event less, of a node that is not half frozen."""
        _remove(node.out, ve)
        self._doubles -= bool(node.out)

    def blame(self, node: Node, source: Input) -> bool:
        """Notes that an input contradicts a node that is about to be filed; whether that is
        new."""
        if node.blamed is None:
            node.blamed = set()
        known = source in node.blamed
        node.blamed.add(source)
        return not known

    def _counts(self, node: Node, source: Input) -> bool:
        """Whether an input is counted as having what the output has of a node (Y3)."""
        if node.blamed and source in node.blamed:
            return True
        ends = node.ends.get(source)
        return ends is not None and len(ends) - bisect_left(ends, self.stable) == len(node.out)

    # --- what a stable concerns -----------------------------------------------------------------

    def newly_half_frozen(self, t: int) -> Iterator[Node]:
        """Takes nodes with vs < t that are not half frozen yet, by vs, out of the index; whoever
        walks must file each."""
        coming = self._coming
        while coming and coming[0] < t:
            group = self.nodes.pop(heappop(coming))
            self.touched += len(group)
            yield from group.values()

    def due(self, sources: Iterable[Input], t: int) -> list[Node]:
        """Half-frozen nodes of which the output or an input ends an event before t, or of which
        one of the sources has another number of live events than the output; in order.

        From now on what is not below t is live. Whoever asks must file each.
        """
        found: dict[Node, None] = {}
        for source in sources:
            found.update(self._against.get(source, {}))
            if self._held.get(source, 0) != len(self._half):
                self.touched += len(self._half)
                found.update((n, None) for n in self._half if not self._counts(n, source))
        heap = self._by_out
        while heap and heap[0][0] < t:
            end, _, node = heappop(heap)
            if node.half_frozen and end == node.out[0]:
                found[node] = None
        for source, heap in self._by_end.items():
            while heap and heap[0][0] < t:
                end, _, node = heappop(heap)
                if node.half_frozen and end == self._first_end(node, source):
                    found[node] = None
        self.touched += len(found)
        for node in found:
            self._unfile(node)
        self.stable = t
        return sorted(found, key=attrgetter("vs", "number"))

    def _unfile(self, node: Node) -> None:
        node.half_frozen = False
        for source, ends in node.ends.items():
            self._held[source] -= ends == node.out or self._counts(node, source)
        for source in node.blamed or ():
            self._held[source] -= source not in node.ends

    # --- heaps --------------------------------------------------------------------------------

    def _heaps(self) -> list[tuple[Input | None, Heap]]:
        """The heap of the output, under None, and those of the inputs."""
        return [(None, self._by_out), *self._by_end.items()]

    def _first_end(self, node: Node, source: Input | None) -> int | None:
        """The earliest live end that an input gives, or, for None, the output."""
        ends = node.out if source is None else node.ends.get(source, ())
        first = bisect_left(ends, self.stable)
        return ends[first] if first < len(ends) else None

    def _watch(self, node: Node, source: Input) -> None:
        end = self._first_end(node, source)
        if end is not None and end < node.out[0]:
            self._push(self._by_end[source], end, node, source)

    def _push(self, heap: Heap, end: int, node: Node, source: Input | None) -> None:
        """Into the heap of an input, or, for None, of the output."""
        heappush(heap, (end, node.number, node))
        if len(heap) > 2 * len(self._half) + _SLACK:
            self._compact(heap, source)

    def compact(self) -> None:
        """Lets go of final nodes (Y5); to be called after nodes were filed for a stable."""
        for source, heap in self._heaps():
            if len(heap) > 2 * len(self._half) + _SLACK:
                self._compact(heap, source)

    def _compact(self, heap: Heap, source: Input | None) -> None:
        heap[:] = [
            (end, node.number, node)
            for node in self._half
            if (end := self._end_in_heap(node, source)) is not None
        ]
        heapify(heap)

    def _end_in_heap(self, node: Node, source: Input | None) -> int | None:
        """The end by which a half-frozen node stands in a heap, if it belongs there (Y2)."""
        end = self._first_end(node, source)
        return end if source is None or end is None or end < node.out[0] else None

    def check(self) -> None:
        """Asserts Y1 to Y5."""
        for vs, group in self.nodes.items():
            for payload, node in group.items():
                assert (node.vs, node.payload) == (vs, payload), f"{node} stands at {vs}"
                assert node.ends or node.out, f"Y1: nobody has {node}"
                for ends in (*node.ends.values(), node.out):
                    assert ends == sorted(ends), f"Y1: {node} is out of order"
                assert all(node.ends.values()), f"Y1: an empty entry in {node}"
                assert not node.out or node.out[0] >= self.stable, f"Y1: {node} has a final event"
                assert node.half_frozen == (node in self._half), f"{node} is lost"
                assert node.half_frozen != (vs in self._coming), f"Y4: {node} waits, or does not"
            assert group or vs in self._coming, f"Y4: no node at {vs}"
        assert len(set(self._coming)) == len(self._coming), "Y4: a vs waits twice"
        assert self.nodes.keys() >= set(self._coming), "Y4: a vs waits for nothing"
        assert all(self.find(n.vs, n.payload) is n for n in self._half), "a node is lost"
        doubles = sum(len(node.out) - 1 for node in self if node.out)
        assert doubles == self._doubles, f"{self._doubles} events counted, not {doubles}"
        self._check_heaps()

    def _check_heaps(self) -> None:
        entries = {(source, end, n) for source, heap in self._heaps() for end, _, n in heap}
        held: dict[Input, int] = dict.fromkeys(self._held, 0)
        for node in self._half:
            assert node.out, f"Y2: {node} is not on the output"
            for each in (None, *node.ends):
                end = self._end_in_heap(node, each)
                assert end is None or (each, end, node) in entries, f"Y2: {node} is not in a heap"
            for source in {*node.ends, *(node.blamed or ())}:
                counts = self._counts(node, source)
                held[source] = held.get(source, 0) + counts
        assert held == self._held, f"Y3: {held} nodes are held, not {dict(self._held)}"
        contradicted = {(s, node) for node in self._half for s in node.blamed or ()}
        known = {(s, node) for s, nodes in self._against.items() for node in nodes}
        assert contradicted == known, f"Y3: {known} are known, not {contradicted}"
        for _, heap in self._heaps():
            assert len(heap) <= 2 * len(self._half) + _SLACK, f"Y5: a heap of {len(heap)}"


def beyond(many: Sequence[int], few: Sequence[int]) -> list[int]:
    """The ends that one sorted list has more often than another, as often as that.

    >>> beyond([5, 5, 8, 9], [5, 7, 8])
    [5, 9]

    Complexity: O(length of both).
    """
    found = []
    position, length = 0, len(few)
    for end in many:
        while position < length and few[position] < end:
            position += 1
        if position < length and few[position] == end:
            position += 1
        else:
            found.append(end)
    return found


def has(ends: Sequence[int], end: int) -> bool:
    """Whether an end is in a sorted list. Complexity: O(lg length)."""
    at = bisect_left(ends, end)
    return at < len(ends) and ends[at] == end


def _remove(ends: list[int], end: int) -> None:
    """Removes one of the equal ends: the last, which moves the fewest."""
    del ends[bisect_right(ends, end) - 1]
