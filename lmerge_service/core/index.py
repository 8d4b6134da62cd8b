"""What the indexes in2t and in3t share: nodes by key, and the order in which they freeze.

Theory
    The paper's top tier is a red-black tree by (Vs, Payload), for two uses: to find a node by its
    key, and to find those with vs < t. Dicts do the first, and a heap of the vs that no stable has
    passed yet does the second. Payloads need no order for it.

    Nodes that wait are in a dict by vs, since a stable takes all of one vs: a node that is alone at
    its vs stands there itself, several stand in a dict by payload, which alone would take more
    memory than the node. Half-frozen ones go one by one, so they are in one dict by both.

    A stable takes the nodes that it concerns out of the index: those that were not half frozen
    before, `newly_half_frozen`, and half-frozen ones that are `due`. The operator changes what the
    output holds of them, and `file` puts those away again that are not final. A node that is taken
    out is not half frozen, so that changing it costs nothing; of one that is, `Node.set_output`
    has the index `refile` it.

    What is due is found without looking at all half-frozen nodes: there are queues of them by the
    output's end and, where an input's is earlier, by that; and for each input there is the set of
    those of which it has another number of live events than the output (`differing`).

Invariants
    A vs of nodes that are not half frozen waits in the heap, once; a vs of half-frozen ones does
    not, and is below all that wait. A vs that waits may have no nodes any more.

Cost
    find O(1); a new node O(1), and O(lg w) for a new vs; a stable O(lg w) for each vs it passes.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from lmerge_service.core.inputs import Input
from lmerge_service.elements import START

__all__ = ("SLACK", "EndQueue", "Index", "KeyedNode", "in_order")

SLACK = 64
"""How many stale entries a queue of ends may hold beyond as many as there are nodes."""


class KeyedNode(Protocol):
    """What indexes and operators need of a node: the events of one (vs, payload)."""

    vs: int
    payload: Hashable
    number: int
    """In order of arrival, which decides among nodes of one vs."""
    ends: dict[Input, Any]
    """What each input has, if it has anything."""
    out: Any
    """What the output holds; written by `set_output` only, once the node is made."""
    half_frozen: bool
    blamed: set[Input] | None
    """Inputs already reported for contradicting the output's half-frozen events."""

    def set_output(self, index: Any, vold: int | None, ve: int | None) -> None:
        """The output has one event less, at vold, unless that is None, and one more, at ve,
        likewise. `index` is the node's, which files a half-frozen node anew."""

    def has_output(self, end: int) -> bool:
        """Whether the output has an event with this end."""

    def can_insert(self) -> bool:
        """Whether the output may have one event more."""

    def output_ends(self) -> list[int]:
        """The ends of the output's events, sorted; to be read, not changed."""

    def ends_of(self, source: Input) -> Sequence[int]:
        """The ends of an input's events, sorted; to be read, not changed."""

    def contributing_inputs(self) -> list[Input]:
        """The inputs that have inserted an event and still have it."""

    def forget(self, source: Input) -> None:
        """Drops all that the node has of an input."""


N = TypeVar("N", bound=KeyedNode)


class Index(ABC, Generic[N]):
    """Nodes by vs and payload; see the module's text."""

    __slots__ = (
        *("_by_end", "_by_out", "_coming", "_differing", "_made", "_make", "_waiting"),
        *("frozen", "nodes", "stable", "touched"),
    )

    def __init__(self, make: Callable[[int, Hashable, int, Any, Any], N]) -> None:
        self._make = make  # takes vs, payload, a number in order of arrival, ends and out
        self.touched = 0
        """Nodes looked at for stables, so that tests can count work."""
        self.stable = START
        """The output's stable point; ends below it are final. During a stable the coming one."""
        self._made = 0
        self._waiting = 0  # how many nodes wait
        self.nodes: dict[int, N | dict[Hashable, N]] = {}
        """Those that wait, by vs: one, or several by payload in order of arrival. To be read, not
        changed."""
        self.frozen: dict[tuple[int, Hashable], N] = {}
        """The half-frozen ones by vs and payload, likewise."""
        self._coming: list[int] = []
        self._by_out: EndQueue[N] = EndQueue()
        self._by_end: defaultdict[Input, EndQueue[N]] = defaultdict(EndQueue)
        self._differing: dict[Input, dict[N, None]] = {}

    def __iter__(self) -> Iterator[N]:
        """All nodes by vs, within one vs in order of arrival; nodes may be deleted meanwhile."""
        yield from in_order(self.frozen.values())
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

    def add(self, vs: int, payload: Hashable, ends: Any, out: Any) -> N:
        """Makes the node for a key that has none and that no stable has passed, with what inputs
        and the output have of it.

        Complexity: O(1), O(lg w) for a new vs."""
        self._made += 1
        self._waiting += 1
        node = self._make(vs, payload, self._made, ends, out)
        found = self.nodes.get(vs)
        if found is None:
            self.nodes[vs] = node
            heappush(self._coming, vs)
        elif isinstance(found, dict):
            found[payload] = node
        else:
            self.nodes[vs] = {found.payload: found, payload: node}
        return node

    @abstractmethod
    def add_empty(self, vs: int, payload: Hashable) -> N:
        """The same for one that neither an input nor the output has yet."""

    def make(self, vs: int, payload: Hashable, ends: Any, out: Any) -> N:
        """A node that is not in the index yet; to be filed. Complexity: O(1)."""
        self._made += 1
        return self._make(vs, payload, self._made, ends, out)

    def __len__(self) -> int:
        """The number of live events."""
        return self.count()

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

    def delete_if_unused(self, node: N) -> None:
        """Forgets a node that neither the output nor an input has (X1, Y1). Only one that is not
        half frozen can be. Complexity: O(1)."""
        if not node.ends and not node.output_ends():
            self.drop(node)

    def clear(self) -> None:
        """Forgets all nodes, at the end of the stream."""
        stable, sources = self.stable, list(self._differing)
        self.__init__()  # type: ignore[misc]
        self.stable = stable
        for source in sources:
            self.attach(source)

    # --- inputs -------------------------------------------------------------------------------

    def attach(self, source: Input) -> None:
        """A new input, which has no events. Complexity: O(w)."""
        self._differing[source] = dict.fromkeys(self.frozen.values())

    def forget(self, source: Input) -> None:
        """Drops every entry of an input, and the nodes that are then unused. Complexity: O(w)."""
        self._differing.pop(source, None)
        self._by_end.pop(source, None)
        for node in self:
            node.forget(source)
            self.delete_if_unused(node)

    # --- what a stable concerns -----------------------------------------------------------------

    @abstractmethod
    def due(self, sources: Iterable[Input], t: int) -> list[N]:
        """Takes out the half-frozen nodes that stable(t) concerns when `sources` decide, in any
        order. From now on what is not below t is live. The caller must `file` them."""

    @abstractmethod
    def file(self, nodes: Iterable[N]) -> None:
        """Puts away nodes that were taken out for a stable: half frozen from now on, or gone when
        all their events on the output are final, or there are none.

        Complexity: O(inputs + lg w) each, for in3t O(inputs (lg d + lg w)).
        """

    @abstractmethod
    def refile(self, node: N) -> None:
        """Files a half-frozen node by the output's ends of now. Complexity: O(inputs + lg w)."""

    @abstractmethod
    def add_first(self, node: N, source: Input, ve: int) -> None:
        """An input that has no event of a half-frozen node has one now. (Of others `ends` may be
        set directly.)"""

    def blame(self, node: N, source: Input) -> bool:
        """Notes that an input contradicts an event of the output; whether that is new."""
        if node.blamed is None:
            node.blamed = set()
        elif source in node.blamed:
            return False
        node.blamed.add(source)
        return True

    def take_all(self) -> list[N]:
        """Takes out all nodes, in order, for the end of the stream; the caller must `clear` then.
        Complexity: O(w lg w)."""
        nodes = list(self)
        for node in nodes:
            node.half_frozen = False
        return nodes

    def _taken_out(self, found: dict[N, None], t: int) -> list[N]:
        self.touched += len(found)
        for node in found:
            self._take_out(node)
        self.stable = t
        return list(found)

    def _take_out(self, node: N) -> None:
        """Undoes `file`, but for entries in queues, which go stale. Complexity: O(inputs)."""
        del self.frozen[node.vs, node.payload]
        node.half_frozen = False
        for differing in self._differing.values():
            differing.pop(node, None)

    def check(self) -> None:
        """Asserts the invariants."""
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


def in_order(nodes: Iterable[N]) -> list[N]:
    """Nodes by vs, within one vs in order of arrival."""
    return sorted(nodes, key=attrgetter("vs", "number"))


def _several(found: N | dict[Hashable, N]) -> list[N]:
    """The nodes that wait at one vs."""
    return list(found.values()) if isinstance(found, dict) else [found]


class EndQueue(Generic[N]):
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
        """Adds a node, at an end of it. Complexity: O(lg distinct ends)."""
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
        """Asserts that it is no longer than `most` entries that can count allow."""
        entries = len(list(self))
        assert self.size == entries, f"{self.size} entries are counted, not {entries}"
        assert entries <= 2 * most + SLACK, f"a queue of {entries} for {most} nodes"
