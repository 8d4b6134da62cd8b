"""in2t, the two-tier index of case R3: a node per (vs, payload), in it the end each input gives.

Theory
    The paper's Figure 1 (left): the top tier finds a node by (vs, payload), the second tier is a
    small dict from input to that input's end, beside the end that the output holds (the paper's
    entry with key ∞). The payload is held once, by its node, however many inputs carry it.

    The paper walks all half-frozen nodes at every stable(t). Most of them have nothing to do with
    it. What a stable of input s can concern is
      - nodes with vs < t that were not half frozen before: `newly_half_frozen`;
      - half-frozen nodes whose output end is below t, or whose end by s is: `due`;
      - half-frozen nodes that some input contradicts, so that another input's end may count, if
        such an end is below t: `due` as well;
      - half-frozen nodes that s lacks, to be reported: `lacking`.
    So there are queues of half-frozen nodes by the output's end, by each input's where that ends
    *before the output does* (where it does not, the output's end comes up first), and by every
    end of nodes that are contradicted; and per input there is a set of those that it lacks. What
    is final for all inputs alike is dropped as soon as a stable reaches it.

Invariants
    X1  No node without either an output end or an entry of an input.
    X2  A half-frozen node is on the output and has an entry (out, node) in the queue of outputs;
        for every input s with ends[s] < out it has one in the queue of s; and if an input was
        blamed for it, it has one for each end in [stable, out) in the queue of disputes.
    X3  Each attached input has the set of half-frozen nodes that it lacks and was not blamed for.
    X4  Only half-frozen nodes have a vs that does not wait (`index`).
    X5  No queue of ends is longer than twice the entries that can count in it, plus a constant.

Cost
    find O(1); add O(1), and O(lg w) for a new vs; what a stable touches costs O(lg w + inputs)
    per node, and no other node costs anything. Memory O(w (payload + inputs)).
"""

from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from lmerge_service.core.index import SLACK, EndQueue, Index, in_order
from lmerge_service.core.inputs import Input

__all__ = ("In2t", "Node")


class Node(msgspec.Struct, eq=False):
    """One event, as each input and the output have it; an absent end means they don't have it.

    A struct for the time that making one takes; compared by identity. `KeyedNode` has what its
    methods do."""

    vs: int
    payload: Any
    number: int
    ends: dict[Input, int]
    out: int | None
    half_frozen: bool = False
    blamed: set[Input] | None = None
    claims: set[Input] | None = None
    """Inputs that revised the event without ever having inserted it."""

    def set_output(self, index: "In2t", vold: int | None, ve: int | None) -> None:
        """As `KeyedNode.set_output`; by the key vold is the end that the output holds."""
        assert self.out == vold
        self.out = ve
        if self.half_frozen:
            index.refile(self)

    def has_output(self, end: int) -> bool:
        return self.out == end

    def can_insert(self) -> bool:
        return self.out is None

    def output_ends(self) -> list[int]:
        return [] if self.out is None else [self.out]

    def ends_of(self, source: Input) -> Sequence[int]:
        return [self.ends[source]] if source in self.ends else []

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

    def contributing_inputs(self) -> list[Input]:
        claims = self.claims or ()
        return [source for source in self.ends if source not in claims]

    def forget(self, source: Input) -> None:
        if self.blamed is not None:
            self.blamed.discard(source)
        if self.ends.pop(source, None) is not None:
            self.withdraw_claim(source)

    def __repr__(self) -> str:
        ends = {source.name: ve for source, ve in self.ends.items()}
        return f"Node(vs={self.vs}, payload={self.payload!r}, ends={ends}, out={self.out})"


class In2t(Index[Node]):
    """The index; see the module's text.

    >>> index = In2t()
    >>> node = index.add(6, "A", {}, None)
    >>> index.find(6, "A") is node, index.find(6, "B")
    (True, None)
    >>> index.newly_half_frozen(6), index.newly_half_frozen(7) == [node]
    ([], True)
    """

    __slots__ = ("_disputed",)

    def __init__(self) -> None:
        super().__init__(Node)
        self._disputed: EndQueue[Node] = EndQueue()

    # --- nodes --------------------------------------------------------------------------------

    def add_empty(self, vs: int, payload: Hashable) -> Node:
        return self.add(vs, payload, {}, None)

    def file(self, nodes: Iterable[Node]) -> None:
        frozen, differing, t = self.frozen, self._differing, self.stable
        attached = len(differing)
        for node in nodes:
            if node.out is None or node.out < t:
                continue
            frozen[node.vs, node.payload] = node
            node.half_frozen = True
            ends = node.ends
            if len(ends) < attached:
                blamed = node.blamed or ()
                for source, lacks in differing.items():
                    if source not in ends and source not in blamed:
                        lacks[node] = None
            self._file(node)
        self._sweep()

    def refile(self, node: Node) -> None:
        self._file(node)
        self._sweep()

    def _take_out(self, node: Node) -> None:
        del self.frozen[node.vs, node.payload]
        node.half_frozen = False
        if len(node.ends) < len(self._differing):  # as a rule every input has it
            for lacks in self._differing.values():
                lacks.pop(node, None)

    # --- ends ---------------------------------------------------------------------------------

    def set_end(self, node: Node, source: Input, ve: int) -> None:
        """An input gives a half-frozen node an end. (Of others `ends` may be set directly.)"""
        self._differing[source].pop(node, None)
        node.ends[source] = ve
        assert node.out is not None
        if ve < node.out:
            ends = self._by_end[source]
            ends.push(ve, node)
            self._dispute(node)
            if ends.size > 2 * len(self.frozen) + SLACK:
                self._sweep()

    add_first = set_end

    def drop_end(self, node: Node, source: Input) -> None:
        """An input has a node no more."""
        del node.ends[source]
        node.withdraw_claim(source)
        if node.half_frozen and source not in (node.blamed or ()):
            self._differing[source][node] = None

    def _file(self, node: Node) -> None:
        """Into the queues, by its ends of now (X2)."""
        out = node.out
        assert out is not None
        self._by_out.push(out, node)
        for source, end in node.ends.items():
            if end < out:
                self._by_end[source].push(end, node)
        if node.blamed:
            self._dispute(node)

    def blame(self, node: Node, source: Input) -> bool:
        new = super().blame(node, source)
        if new and node.half_frozen:
            self._differing[source].pop(node, None)
            self._dispute(node)
        return new

    def _dispute(self, node: Node) -> None:
        """Watches all ends that a contradicted node may follow."""
        if node.blamed and node.out is not None:
            for end in node.ends.values():
                if self.stable <= end < node.out:
                    self._disputed.push(end, node)

    # --- what a stable concerns -----------------------------------------------------------------

    def due(self, sources: Iterable[Input], t: int) -> list[Node]:
        """Half-frozen nodes that the output, or one of the sources, ends before t, and those that
        are contradicted and that any input ends before t; else as `Index.due`."""
        due = [n for n in self._by_out.pop_before(t) if n.half_frozen and n.out < t]  # type: ignore[operator]
        for source in sources:
            ending = self._by_end[source].pop_before(t)
            due += [n for n in ending if n.half_frozen and n.ends.get(source, t) < t]
        due += [node for node in self._disputed.pop_before(t) if node.half_frozen]
        return self._taken_out(dict.fromkeys(due), t)

    def lacking(self, source: Input) -> list[Node]:
        """Half-frozen nodes that `source` lacks without having been blamed for it, by vs."""
        found = self._differing[source]
        self.touched += len(found)
        return in_order(found)

    def _sweep(self) -> None:
        """Lets go of stale entries where there are many (X5)."""
        most = len(self.frozen)
        self._by_out.sweep(most, lambda node, end: node.half_frozen and node.out == end)
        for source, ends in self._by_end.items():
            ends.sweep(most, partial(_is_end_of, source))
        self._disputed.sweep(most * (len(self._differing) + 1), _is_end_of_any)

    def check(self) -> None:
        """Asserts X1 to X5."""
        super().check()
        half_frozen = list(self.frozen.values())
        by_out, disputed = set(self._by_out), set(self._disputed)
        by_end = {source: set(ends) for source, ends in self._by_end.items()}
        for node in self:
            assert node.ends or node.out is not None, f"X1: nobody has {node}"
        for node in half_frozen:
            assert node.out is not None, f"X2: {node} is not on the output"
            assert (node.out, node) in by_out, f"X2: {node} is in no queue"
            for source, end in node.ends.items():
                late = end >= node.out or (end, node) in by_end[source]
                assert late, f"X2: {node} is not in the queue of {source}"
                if node.blamed and self.stable <= end < node.out:
                    assert (end, node) in disputed, f"X2: {node} is disputed"
        for source, lacking in self._differing.items():
            lacks = {
                node
                for node in half_frozen
                if source not in node.ends and source not in (node.blamed or ())
            }
            assert lacking.keys() == lacks, f"X3: {source} lacks {lacks}, not {lacking}"
        for ends in (self._by_out, *self._by_end.values()):
            ends.check(len(self.frozen))
        self._disputed.check(len(self.frozen) * (len(self._differing) + 1))


def _is_end_of(source: Input, node: Node, end: int) -> bool:
    return node.half_frozen and node.ends.get(source) == end


def _is_end_of_any(node: Node, end: int) -> bool:
    return node.half_frozen and end in node.ends.values()
