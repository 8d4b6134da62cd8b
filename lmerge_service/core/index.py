"""What the indexes in2t and in3t share: nodes by key, and the order in which they freeze.

Theory
    The paper's top tier is a red-black tree by (Vs, Payload), for two uses: to find a node by its
    key, and to find those with vs < t. Dicts do the first, and a heap of the vs that no stable has
    passed yet does the second. Payloads need no order for it.

    Nodes that wait are in a dict by vs, since a stable takes all of one vs: a node that is alone at
    its vs stands there itself, several stand in a dict by payload, which alone would take more
    memory than the node. Half-frozen ones go one by one, so they are in one dict by both.

Invariants
    A vs of nodes that are not half frozen waits in the heap, once; a vs of half-frozen ones does
    not, and is below all that wait. A vs that waits may have no nodes any more.

Cost
    find O(1); a new node O(1), and O(lg w) for a new vs; a stable O(lg w) for each vs it passes.
"""

from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

__all__ = ("SLACK", "Ends", "Index")

SLACK = 64
"""How many stale entries a queue of ends may hold beyond as many as there are nodes."""


class _Keyed(Protocol):
    """What an index needs of a node."""

    vs: int
    payload: Hashable
    number: int
    half_frozen: bool


N = TypeVar("N", bound=_Keyed)


class Index(Generic[N]):
    """Nodes by vs and payload; see the module's text."""

    __slots__ = ("_coming", "_made", "_make", "_waiting", "frozen", "nodes", "touched")

    def __init__(self, make: Callable[[int, Hashable, int], N]) -> None:
        self._make = make  # takes vs, payload, and a number in order of arrival
        self.touched = 0
        """Nodes looked at for stables, so that tests can count work."""
        self._made = 0
        self._waiting = 0  # how many nodes wait
        self.nodes: dict[int, N | dict[Hashable, N]] = {}
        """Those that wait, by vs: one, or several by payload in order of arrival. To be read, not
        changed."""
        self.frozen: dict[tuple[int, Hashable], N] = {}
        """The half-frozen ones by vs and payload, likewise."""
        self._coming: list[int] = []

    def __iter__(self) -> Iterator[N]:
        """All nodes by vs, within one vs in order of arrival; nodes may be deleted meanwhile."""
        yield from sorted(self.frozen.values(), key=attrgetter("vs", "number"))
        for vs in sorted(self.nodes):
            yield from _several(self.nodes[vs])

    def find(self, vs: int, payload: Hashable) -> N | None:
        """The paper's SameVsPayload. Complexity: O(1)."""
        found = self.nodes.get(vs)
        if found is None:
            return self.frozen.get((vs, payload))
        if isinstance(found, dict):
            return found.get(payload)
        return found if found.payload == payload else None

    def add(self, vs: int, payload: Hashable) -> N:
        """Makes the node for a key that has none and that no stable has passed.

        Complexity: O(1), O(lg w) for a new vs."""
        self._made += 1
        self._waiting += 1
        node = self._make(vs, payload, self._made)
        found = self.nodes.get(vs)
        if found is None:
            self.nodes[vs] = node
            heappush(self._coming, vs)
        elif isinstance(found, dict):
            found[payload] = node
        else:
            self.nodes[vs] = {found.payload: found, payload: node}
        return node

    def make(self, vs: int, payload: Hashable) -> N:
        """A node that is not in the index yet. Complexity: O(1)."""
        self._made += 1
        return self._make(vs, payload, self._made)

    def count(self) -> int:
        """The number of nodes. Complexity: O(1)."""
        return self._waiting + len(self.frozen)

    def newly_half_frozen(self, t: int) -> list[N]:
        """Takes nodes with vs < t that are not half frozen yet, by vs, out of the index."""
        found: list[N] = []
        coming = self._coming
        while coming and coming[0] < t:
            waiting = self.nodes.pop(heappop(coming))
            if isinstance(waiting, dict):
                found += waiting.values()
            else:
                found.append(waiting)
        self._waiting -= len(found)
        self.touched += len(found)
        return found

    def drop(self, node: N) -> None:
        """Forgets a node that waits; its vs waits on. Complexity: O(1)."""
        found = self.nodes[node.vs]
        if isinstance(found, dict):
            del found[node.payload]
        else:
            self.nodes[node.vs] = {}
        self._waiting -= 1

    def check(self) -> None:
        for vs, found in self.nodes.items():
            assert not isinstance(found, dict) or all(n.payload == p for p, n in found.items())
            for node in _several(found):
                assert node.vs == vs, f"{node} stands at {vs}"
                assert not node.half_frozen, f"{node} waits"
        for (vs, payload), node in self.frozen.items():
            assert (node.vs, node.payload) == (vs, payload), f"{node} stands at {vs}"
            assert node.half_frozen, f"{node} does not wait"
            assert not self.nodes or vs < min(self.nodes), f"{node} waits as well"
        waiting = sum(len(_several(found)) for found in self.nodes.values())
        assert self._waiting == waiting, "nodes are miscounted"
        assert sorted(self._coming) == sorted(self.nodes), "what waits is not what is to come"


def _several(found: N | dict[Hashable, N]) -> list[N]:
    """The nodes that wait at one vs."""
    return list(found.values()) if isinstance(found, dict) else [found]


class Ends(Generic[N]):
    """A queue of nodes by an end of theirs, the earliest first.

    It forgets lazily: an entry counts only while its node still has that end. When stale entries
    may outnumber the rest it must be swept.
    """

    __slots__ = ("_heap", "_nodes", "size")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._nodes: dict[int, list[N]] = {}
        self.size = 0

    def push(self, end: int, node: N) -> None:
        """Complexity: O(lg distinct ends)."""
        nodes = self._nodes.get(end)
        if nodes is None:
            self._nodes[end] = [node]
            heappush(self._heap, end)
        else:
            nodes.append(node)
        self.size += 1

    def pop_before(self, t: int) -> list[N]:
        """Takes out all entries with end < t; gives their nodes, by end."""
        found: list[N] = []
        heap, nodes = self._heap, self._nodes
        while heap and heap[0] < t:
            found += nodes.pop(heappop(heap))
        self.size -= len(found)
        return found

    def sweep(self, most: int, counts: Callable[[N, int], bool]) -> None:
        """Drops entries that do not count, and repeated ones, if there may be more of these than
        the `most` that can count. Complexity: O(size), so O(1) for each entry that was pushed."""
        if self.size <= 2 * most + SLACK:
            return
        swept = {
            end: kept
            for end, nodes in self._nodes.items()
            if (kept := [node for node in dict.fromkeys(nodes) if counts(node, end)])
        }
        self._nodes = swept
        self._heap = list(swept)
        heapify(self._heap)
        self.size = sum(map(len, swept.values()))

    def __iter__(self) -> Iterator[tuple[int, N]]:
        return ((end, node) for end, nodes in self._nodes.items() for node in nodes)

    def check(self, most: int) -> None:
        entries = len(list(self))
        assert self.size == entries, f"{self.size} entries are counted, not {entries}"
        assert entries <= 2 * most + SLACK, f"a queue of {entries} for {most} nodes"
