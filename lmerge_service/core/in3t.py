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
        queue by the output's, and per input a queue of the nodes that it ends before the output
        does (where it does not, the output's end comes up first);
      - half-frozen nodes of which a deciding input has another number of live events than the
        output: per input there is a set of these.
    `due` gives the latter two. Since an input's end that is passed changes how many live events
    it has, `due` gives the nodes of every input's queue, not of the deciding ones' only.

Invariants
    Y1  No node without events on the output or of an input; ends are sorted, and none of the
        output's is below the stable point.
    Y2  A half-frozen node is on the output and has an entry (out[0], node) in the queue of
        outputs; for every input whose earliest live end e is below out[0], (e, node) is in the
        queue of that input.
    Y3  Each attached input has the set of half-frozen nodes of which it has another number of
        live events than the output, and was not blamed for.
    Y4  Only half-frozen nodes have a vs that does not wait (`index`).
    Y5  No queue of ends is longer than twice the half-frozen nodes plus a constant.

Cost
    find O(1); add O(1), and O(lg w) for a new vs; an event of an input O(lg d), d being those
    with its key; what a stable touches costs O(lg w + inputs lg d) per node, and no other node
    costs anything. Memory O(w (payload + inputs d)).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterable, Sequence
from functools import partial

from lmerge_service.core.index import SLACK, Index
from lmerge_service.core.inputs import Input

__all__ = ("In3t", "Node", "beyond", "has")


class Node:
    """The events of one key, as each input and the output have them; sorted ends, which are never
    empty for an input. `KeyedNode` has what its methods do."""

    __slots__ = ("blamed", "ends", "half_frozen", "number", "out", "payload", "vs")

    def __init__(
        self, vs: int, payload: Hashable, number: int, ends: dict[Input, list[int]], out: list[int]
    ):
        self.vs = vs
        self.payload = payload
        self.number = number
        self.ends = ends
        self.out = out
        self.half_frozen = False
        self.blamed: set[Input] | None = None

    def set_output(self, index: "In3t", vold: int | None, ve: int | None) -> None:
        """As `KeyedNode.set_output`. Complexity: O(d), unless the node is half frozen."""
        out = self.out
        first = out[0] if self.half_frozen else None
        if vold is None:
            index.doubles += bool(out)
        else:
            _remove(out, vold)
        if ve is None:
            index.doubles -= bool(out)
        else:
            insort(out, ve)
        if first is not None and out[0] != first:
            index.refile(self)

    def drop_final(self, index: "In3t", t: int) -> None:
        """The output's events that end before t are final and not held any more."""
        out = self.out
        if out and out[0] < t:
            final = bisect_left(out, t)
            index.doubles -= min(final, len(out) - 1)
            del out[:final]

    def has_output(self, end: int) -> bool:
        return has(self.out, end)

    def can_insert(self) -> bool:
        return True

    def output_ends(self) -> list[int]:
        return self.out

    def ends_of(self, source: Input) -> Sequence[int]:
        return self.ends.get(source, ())

    def contributing_inputs(self) -> list[Input]:
        return list(self.ends)

    def forget(self, source: Input) -> None:
        if self.blamed is not None:
            self.blamed.discard(source)
        self.ends.pop(source, None)

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


class In3t(Index[Node]):
    """The index; see the module's text.

    >>> index = In3t()
    >>> node = index.add(6, "A", {}, [])
    >>> index.find(6, "A") is node, index.find(6, "B")
    (True, None)
    >>> index.newly_half_frozen(6), index.newly_half_frozen(7) == [node]
    ([], True)
    """

    __slots__ = ("doubles",)

    def __init__(self) -> None:
        super().__init__(Node)
        self.doubles = 0
        """Events of the output beyond the first of each node."""

    def __len__(self) -> int:
        """The number of events: at each node those on the output, or one that is held back."""
        return self.count() + self.doubles

    # --- nodes --------------------------------------------------------------------------------

    def add_empty(self, vs: int, payload: Hashable) -> Node:
        return self.add(vs, payload, {}, [])

    def file(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            node.drop_final(self, self.stable)
            out = node.out
            if not out:
                continue
            self.frozen[node.vs, node.payload] = node
            node.half_frozen = True
            self._by_out.push(out[0], node)
            for source, differing in self._differing.items():
                ends = node.ends.get(source)
                if ends == out:  # as a rule
                    continue
                if not self._agrees(node, source):
                    differing[node] = None
                end = self._first_end(node, source)
                if end is not None and end < out[0]:
                    self._by_end[source].push(end, node)
        self._sweep()

    def refile(self, node: Node) -> None:
        self._by_out.push(node.out[0], node)
        for source in node.ends:
            self._watch(node, source)
        if self._by_out.size > 2 * len(self.frozen) + SLACK:
            self._sweep()

    # --- events -------------------------------------------------------------------------------

    def revise(self, node: Node, source: Input, vold: int | None, ve: int | None) -> None:
        """The same for a half-frozen node. (For others `node.revise` is enough.)"""
        node.revise(source, vold, ve)
        if self._agrees(node, source):
            self._differing[source].pop(node, None)
        else:
            self._differing[source][node] = None
        self._watch(node, source)

    def add_first(self, node: Node, source: Input, ve: int) -> None:
        node.ends[source] = [ve]
        if ve < self.stable:
            return  # it is final, so that the input has as many live events as before: none
        if len(node.out) == 1:
            self._differing[source].pop(node, None)
        if ve < node.out[0]:
            self._watch(node, source)

    def _agrees(self, node: Node, source: Input) -> bool:
        """Whether an input has as many live events as the output, or was blamed (Y3)."""
        if node.blamed and source in node.blamed:
            return True
        ends = node.ends.get(source)
        return ends is not None and len(ends) - bisect_left(ends, self.stable) == len(node.out)

    # --- what a stable concerns -----------------------------------------------------------------

    def due(self, sources: Iterable[Input], t: int) -> list[Node]:
        """Half-frozen nodes of which the output or an input ends an event before t, or of which
        one of the sources has another number of live events than the output; else as
        `Index.due`."""
        found = {node: None for source in sources for node in self._differing[source]}
        ending = self._by_out.pop_before(t)
        found |= dict.fromkeys(n for n in ending if n.half_frozen and n.out[0] < t)
        for source, queue in self._by_end.items():
            ending = queue.pop_before(t)
            found |= dict.fromkeys(n for n in ending if self._ends_before(source, n, t))
        return self._taken_out(found, t)

    # --- queues -------------------------------------------------------------------------------

    def _first_end(self, node: Node, source: Input) -> int | None:
        """The earliest live end that an input gives."""
        ends = node.ends.get(source, ())
        first = bisect_left(ends, self.stable)
        return ends[first] if first < len(ends) else None

    def _watch(self, node: Node, source: Input) -> None:
        end = self._first_end(node, source)
        if end is not None and end < node.out[0]:
            queue = self._by_end[source]
            queue.push(end, node)
            if queue.size > 2 * len(self.frozen) + SLACK:
                self._sweep()

    def _sweep(self) -> None:
        """Lets go of stale entries where there are many (Y5)."""
        self._by_out.sweep(len(self.frozen), _is_first_of_output)
        for source, queue in self._by_end.items():
            queue.sweep(len(self.frozen), partial(self._is_first_of, source))

    def _ends_before(self, source: Input, node: Node, t: int) -> bool:
        end = self._first_end(node, source)
        return node.half_frozen and end is not None and end < t

    def _is_first_of(self, source: Input, node: Node, end: int) -> bool:
        return node.half_frozen and self._first_end(node, source) == end

    def check(self) -> None:
        """Asserts Y1 to Y5."""
        super().check()
        for node in self:
            assert node.ends or node.out, f"Y1: nobody has {node}"
            for ends in (*node.ends.values(), node.out):
                assert ends == sorted(ends), f"Y1: {node} is out of order"
            assert all(node.ends.values()), f"Y1: an empty entry in {node}"
            assert not node.out or node.out[0] >= self.stable, f"Y1: {node} has a final event"
        doubles = sum(len(node.out) - 1 for node in self if node.out)
        assert doubles == self.doubles, f"{self.doubles} events counted, not {doubles}"
        half_frozen = list(self.frozen.values())
        by_out = set(self._by_out)
        by_end = {source: set(queue) for source, queue in self._by_end.items()}
        for node in half_frozen:
            assert node.out, f"Y2: {node} is not on the output"
            assert (node.out[0], node) in by_out, f"Y2: {node} is in no queue"
            for source in node.ends:
                end = self._first_end(node, source)
                late = end is None or end >= node.out[0] or (end, node) in by_end[source]
                assert late, f"Y2: {node} is not in the queue of {source}"
        for source, differing in self._differing.items():
            differs = {node for node in half_frozen if not self._agrees(node, source)}
            assert differing.keys() == differs, (
                f"Y3: {source} differs in {differs}, not {differing}"
            )
        for queue in (self._by_out, *self._by_end.values()):
            queue.check(len(self.frozen))


def _is_first_of_output(node: Node, end: int) -> bool:
    return node.half_frozen and node.out[0] == end


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
