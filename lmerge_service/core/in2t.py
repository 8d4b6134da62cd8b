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

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec

from lmerge_service.core.index import SLACK, Ends, Index
from lmerge_service.core.inputs import Input
from lmerge_service.elements import START

__all__ = ("In2t", "Node")


class Node(msgspec.Struct, eq=False):
    """One event, as each input and the output have it; an absent end means they don't have it.

    A struct for the time that making one takes; compared by identity."""

    vs: int
    payload: Any
    number: int
    """In order of arrival, which decides among nodes of one vs."""
    ends: dict[Input, int] = {}
    out: int | None = None
    half_frozen: bool = False
    blamed: set[Input] | None = None
    """Inputs already reported for contradicting the output's half-frozen event."""
    claims: set[Input] | None = None
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

    def contributing_inputs(self) -> list[Input]:
        """The inputs that have inserted the event and still have it."""
        claims = self.claims or ()
        return [source for source in self.ends if source not in claims]

    def __repr__(self) -> str:
        ends = {source.name: ve for source, ve in self.ends.items()}
        return f"Node(vs={self.vs}, payload={self.payload!r}, ends={ends}, out={self.out})"


class In2t(Index[Node]):
    """The index; see the module's text.

    >>> index = In2t()
    >>> node = index.add(6, "A")
    >>> index.find(6, "A") is node, index.find(6, "B")
    (True, None)
    >>> index.newly_half_frozen(6), index.newly_half_frozen(7) == [node]
    ([], True)
    """

    __slots__ = ("_by_end", "_by_out", "_disputed", "_lacking", "_stable")

    def __init__(self) -> None:
        super().__init__(Node)
        self._by_out: Ends[Node] = Ends()
        self._by_end: defaultdict[Input, Ends[Node]] = defaultdict(Ends)
        self._disputed: Ends[Node] = Ends()
        self._lacking: dict[Input, dict[Node, None]] = {}
        self._stable = START  # ends below it are final, so that nothing can follow them

    def __len__(self) -> int:
        return self.count()

    # --- nodes --------------------------------------------------------------------------------

    def delete_if_unused(self, node: Node) -> None:
        """Forgets a node that neither the output nor an input has (X1). Only one that is not
        half frozen can be. Complexity: O(1)."""
        if node.out is None and not node.ends:
            self.drop(node)

    def freeze(self, nodes: Iterable[Node]) -> None:
        """Nodes on the output become half frozen. Complexity: O(inputs + lg w) each."""
        frozen, lacking = self.frozen, self._lacking
        attached = len(lacking)
        for node in nodes:
            frozen[node.vs, node.payload] = node
            node.half_frozen = True
            ends = node.ends
            if len(ends) < attached:
                blamed = node.blamed or ()
                for source, lacks in lacking.items():
                    if source not in ends and source not in blamed:
                        lacks[node] = None
            self._file(node)

    def refile(self, nodes: Iterable[Node], t: int) -> None:
        """Files nodes that were due at t by their ends of now, or forgets them when final."""
        self._stable = t
        for node in nodes:
            if node.out < t:  # type: ignore[operator]
                self._let_go(node)
            else:
                self._file(node)
        self._sweep()

    def _let_go(self, node: Node) -> None:
        """Forgets a half-frozen node. Complexity: O(inputs)."""
        del self.frozen[node.vs, node.payload]
        node.half_frozen = False
        if len(node.ends) < len(self._lacking):
            for lacks in self._lacking.values():
                lacks.pop(node, None)

    def clear(self) -> None:
        """Forgets all nodes, at the end of the stream."""
        sources = list(self._lacking)
        self.__init__()  # type: ignore[misc]
        for source in sources:
            self.attach(source)

    # --- ends ---------------------------------------------------------------------------------

    def set_end(self, node: Node, source: Input, ve: int) -> None:
        """An input gives a half-frozen node an end. (Of others `ends` may be set directly.)"""
        self._lacking[source].pop(node, None)
        node.ends[source] = ve
        assert node.out is not None
        if ve < node.out:
            ends = self._by_end[source]
            ends.push(ve, node)
            self._dispute(node)
            if ends.size > 2 * len(self.frozen) + SLACK:
                self._sweep()

    def drop_end(self, node: Node, source: Input) -> None:
        """An input has a node no more."""
        del node.ends[source]
        node.withdraw_claim(source)
        if node.half_frozen and source not in (node.blamed or ()):
            self._lacking[source][node] = None

    def set_out(self, node: Node, ve: int) -> None:
        """The output gives a half-frozen node another end. Complexity: O(inputs + lg w)."""
        node.out = ve
        self._file(node)
        self._sweep()

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
        """Notes that an input contradicts an event of the output; whether that is new."""
        if node.blamed is None:
            node.blamed = set()
        elif source in node.blamed:
            return False
        node.blamed.add(source)
        if node.half_frozen:
            self._lacking[source].pop(node, None)
            self._dispute(node)
        return True

    def _dispute(self, node: Node) -> None:
        """Watches all ends that a contradicted node may follow."""
        if node.blamed and node.out is not None:
            for end in node.ends.values():
                if self._stable <= end < node.out:
                    self._disputed.push(end, node)

    # --- inputs -------------------------------------------------------------------------------

    def attach(self, source: Input) -> None:
        """A new input, which lacks everything. Complexity: O(w)."""
        self._lacking[source] = dict.fromkeys(self.frozen.values())

    def forget(self, source: Input) -> None:
        """Drops every entry of an input, and the nodes that are then unused. Complexity: O(w)."""
        self._lacking.pop(source, None)
        self._by_end.pop(source, None)
        for node in self:
            if node.blamed is not None:
                node.blamed.discard(source)
            if node.ends.pop(source, None) is not None:
                node.withdraw_claim(source)
                self.delete_if_unused(node)

    # --- what a stable concerns -----------------------------------------------------------------

    def due(self, sources: Iterable[Input], t: int) -> list[Node]:
        """Half-frozen nodes that the output, or one of the sources, ends before t, and those that
        are contradicted and that any input ends before t; the caller must file them again by
        `refile`."""
        due = [n for n in self._by_out.pop_before(t) if n.half_frozen and n.out < t]  # type: ignore[operator]
        for source in sources:
            ending = self._by_end[source].pop_before(t)
            due += [n for n in ending if n.half_frozen and n.ends.get(source, t) < t]
        due += [node for node in self._disputed.pop_before(t) if node.half_frozen]
        found = list(dict.fromkeys(due))
        self.touched += len(found)
        return found

    def lacking(self, source: Input) -> list[Node]:
        """Half-frozen nodes that `source` lacks without having been blamed for it, by vs."""
        found = self._lacking[source]
        self.touched += len(found)
        return sorted(found, key=attrgetter("vs", "number"))

    def _sweep(self) -> None:
        """Lets go of stale entries where there are many (X5)."""
        most = len(self.frozen)
        self._by_out.sweep(most, lambda node, end: node.half_frozen and node.out == end)
        for source, ends in self._by_end.items():
            ends.sweep(most, partial(_is_end_of, source))
        self._disputed.sweep(most * (len(self._lacking) + 1), _is_end_of_any)

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
                if node.blamed and self._stable <= end < node.out:
                    assert (end, node) in disputed, f"X2: {node} is disputed"
        for source, lacking in self._lacking.items():
            lacks = {
                node
                for node in half_frozen
                if source not in node.ends and source not in (node.blamed or ())
            }
            assert lacking.keys() == lacks, f"X3: {source} lacks {lacks}, not {lacking}"
        for ends in (self._by_out, *self._by_end.values()):
            ends.check(len(self.frozen))
        self._disputed.check(len(self.frozen) * (len(self._lacking) + 1))


def _is_end_of(source: Input, node: Node, end: int) -> bool:
    return node.half_frozen and node.ends.get(source) == end


def _is_end_of_any(node: Node, end: int) -> bool:
    return node.half_frozen and end in node.ends.values()
