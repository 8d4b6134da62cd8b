"""Finalize and Repair: what makes a source of elements one that a plan can rely on.

Finalize(M)
    Forces progress: once an event with vs has come, what changes anything before f = vs - M is
    late. It is dropped and counted, and stable(f) is emitted. So M, the memory, is part of the
    query: all replicas must have the same, and read each partition of the input by itself and in
    its order. An incoming stable(c) raises f to c.

    What is late depends on the elements before it alone, never on how they come in batches. A
    late adjust leaves the event with the end that was emitted last; the next one starts from there:

    >>> from lmerge_service.elements import Stable
    >>> final = Finalize(10)
    >>> final.process_batch([Insert("a", 1, 30), Insert("b", 20, 25)])
    [Insert(payload='a', vs=1, ve=30), Insert(payload='b', vs=20, ve=25), Stable(vc=10)]
    >>> final.process(Insert("c", 9, 12)), final.process(Adjust("a", 1, 30, 7)), final.late
    ([], [], 2)
    >>> final.process(Adjust("a", 1, 7, 16))
    [Adjust(payload='a', vs=1, vold=30, ve=16)]

Repair
    Puts adjusts behind what they adjust, where elements of one event come by several partitions and
    overtake each other. An adjust whose event is not there, or has not that end yet, waits as an
    edge from its old end to its new one; what gives an event the old end takes it along, and one
    element comes out. Adjusts that wait and lead around in a circle change nothing and go.

    >>> repair = Repair()
    >>> repair.process(Adjust("a", 1, 8, 6)), repair.process(Adjust("a", 1, 9, 8))
    ([], [])
    >>> repair.process(Insert("a", 1, 9))
    [Insert(payload='a', vs=1, ve=6)]

Meaning
    Finalize has none as a function of TDBs; if nothing is late, its input. Repair: its input, in
    an order in which each adjust is legal.
State
    The events that an adjust may still change: Finalize with the end that the source has given and
    the one that was emitted, Repair with its end, and the adjusts that wait.
Stable
    Finalize: the greater of c and the greatest vs - M. Repair: c.
Retention
    Finalize: events whose emitted end is f or later. Repair: events with ve >= c, waiting adjusts
    with both ends >= c; what waited below that was not connected any more, is dropped and counted.
    need(T) = T.
Cost
    O(1) per element; an adjust that waits, the adjusts that wait for the same payload and vs. A
    stable costs what it makes final, O(log n) each.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, TypeAlias

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.expiry import Expiry
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.queries.operators.protocol import Changes, Operator

__all__ = ("Finalize", "Repair")

Key: TypeAlias = tuple[Hashable, int]
"""(payload, vs)."""


class Finalize(Operator):
    """Drops and counts (`late`) what changes anything more than `memory` before the greatest vs;
    nothing with a memory of INFINITY.

    Raises:
        ValueError: `memory` is negative.
    """

    __slots__ = ("_expiry", "_greatest", "_live", "late", "memory")

    def __init__(self, memory: int) -> None:
        if memory < 0:
            raise ValueError(f"the memory must be at least 0, got {memory}")
        super().__init__()
        self.memory = memory
        self.late = 0
        """How many elements were dropped."""
        self._greatest = START
        self._live: dict[Key, dict[int, list[int]]] = {}
        """The ends that were emitted, by the end that the source has given."""
        self._expiry: Expiry[Key] = Expiry()

    def __len__(self) -> int:
        return sum(len(ends) for given in self._live.values() for ends in given.values())

    def process_batch(self, elements: Iterable[Element], port: int = 0) -> list[Element]:
        """As for every operator; each element is judged by those before it, so that batches make
        no difference."""
        changes: Changes = []
        for element in elements:
            if type(element) is Insert:
                self._insert(element, port, changes)
            elif type(element) is Adjust:
                self._adjust(element, port, changes)
            else:
                self.stables[port] = max(self.stables[port], element.vc)  # type: ignore[union-attr]
        emitted = self._netted(changes)
        point = self._point()
        if point > self.stable:
            self.stable = point
            self._forget(point)
            emitted.append(Stable(point))
        return emitted

    def check(self) -> None:
        """Asserts that what is held is what the retention rule names, and will be forgotten."""
        self._expiry.check()
        for key, given in self._live.items():
            assert given, f"{key} holds nothing"
            least = min(min(ends) for ends in given.values())
            assert least >= self.stable, f"{key} is held though it is final"
            assert self._expiry.due(key) <= least, f"{key} is never forgotten"

    def _point(self) -> int:
        """f: what changes anything before is late."""
        if self.memory == INFINITY:
            return self.stables[0]
        return max(self.stables[0], self._greatest - self.memory)

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        if element.vs < self._point():
            self.late += 1
            return
        self._greatest = max(self._greatest, element.vs)
        self._hold((element.payload, element.vs), element.ve, element.ve)
        changes.append(element)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        vs, ve = element.vs, element.ve
        key = (element.payload, vs)
        ends = self._live.get(key, {}).get(element.vold)
        if ends is None:  # its insert was late, or it is final
            self.late += 1
            return
        emitted = max(ends)
        late = min(emitted, ve) < self._point()
        self._release(key, element.vold, emitted)
        if ve > vs:
            self._hold(key, ve, emitted if late else ve)
        if late:
            self.late += 1
        else:
            changes.append(Adjust(element.payload, vs, emitted, ve))

    def _hold(self, key: Key, given: int, emitted: int) -> None:
        self._live.setdefault(key, {}).setdefault(given, []).append(emitted)
        self._expiry.schedule(key, emitted)

    def _release(self, key: Key, given: int, emitted: int) -> None:
        held = self._live[key]
        held[given].remove(emitted)
        if not held[given]:
            del held[given]
        if not held:
            del self._live[key]
            self._expiry.cancel(key)

    def _forget(self, point: int) -> None:
        if point == INFINITY:
            self._live.clear()
            self._expiry.clear()
        for key in self._expiry.before(point):
            self.touched += 1
            held = self._live[key]
            for given, ends in list(held.items()):
                ends[:] = [end for end in ends if end >= point]
                if not ends:
                    del held[given]
            if held:
                self._expiry.schedule(key, min(min(ends) for ends in held.values()))
            else:
                del self._live[key]

    def _advance(self, changes: Changes) -> int:
        return self._point()

    def _state(self) -> Any:
        live = [[portable(p), vs, list(given.items())] for (p, vs), given in self._live.items()]
        return [self._greatest, self.late, live]

    def _load(self, state: Any) -> None:
        self._greatest, self.late, live = state
        self._live, self._expiry = {}, Expiry()
        for payload, vs, held in live:
            for given, ends in held:
                for emitted in ends:
                    self._hold((hashable(payload), vs), given, emitted)


class Repair(Operator):
    """Emits each adjust behind what it adjusts; counts in `dropped` those that never could be."""

    __slots__ = ("_chains", "_expiry", "dropped")

    def __init__(self) -> None:
        super().__init__()
        self.dropped = 0
        self._chains: dict[Key, _Chain] = {}
        self._expiry: Expiry[Key] = Expiry()

    def __len__(self) -> int:
        """How many events are held, and adjusts that wait."""
        return sum(map(len, self._chains.values()))

    def check(self) -> None:
        """Asserts that nothing waits for what is there, and nothing final is held."""
        super().check()
        self._expiry.check()
        for key, chain in self._chains.items():
            assert len(chain), f"{key} holds nothing"
            assert not chain.ends.keys() & chain.edges.keys(), f"{key}: an adjust waits in vain"
            assert chain.due() >= self.stable, f"{key} is held though it is final"
            assert self._expiry.due(key) <= chain.due(), f"{key} is never forgotten"

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        payload, vs, ve = element.payload, element.vs, element.ve
        if vs < self.stable:
            self._refuse(port, BreachKind.BROKE_OWN_STABLE, element)
            return
        key = (payload, vs)
        chain = self._chains.setdefault(key, _Chain())
        end = chain.follow(ve)
        if end > vs:
            chain.ends[end] += 1
            changes.append(Insert(payload, vs, end))
        self._schedule(key, chain)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        payload, vs, vold, ve = element.payload, element.vs, element.vold, element.ve
        if min(vold, ve) < self.stable:
            self._refuse(port, BreachKind.BROKE_OWN_STABLE, element)
            return
        if vold == ve:
            return
        key = (payload, vs)
        chain = self._chains.setdefault(key, _Chain())
        if vold in chain.ends:
            chain.drop(vold)
            end = chain.follow(ve)
            if end > vs:
                chain.ends[end] += 1
            changes.append(Adjust(payload, vs, vold, end))
        else:
            self.touched += chain.wait(vold, ve)
        self._schedule(key, chain)

    def _schedule(self, key: Key, chain: "_Chain") -> None:
        if len(chain):
            self._expiry.schedule(key, chain.due())
        else:
            del self._chains[key]
            self._expiry.cancel(key)

    def _advance(self, changes: Changes) -> int:
        point = self.stables[0]
        if point == INFINITY:
            self.dropped += sum(chain.waiting() for chain in self._chains.values())
            self._chains.clear()
            self._expiry.clear()
        for key in self._expiry.before(point):
            self.touched += 1
            chain = self._chains[key]
            self.dropped += chain.forget(point)
            self._schedule(key, chain)
        return point

    def _state(self) -> Any:
        chains = [
            [portable(p), vs, list(chain.ends.items()), list(chain.edges.items())]
            for (p, vs), chain in self._chains.items()
        ]
        return [self.dropped, chains]

    def _load(self, state: Any) -> None:
        self.dropped, chains = state
        self._chains, self._expiry = {}, Expiry()
        for payload, vs, ends, edges in chains:
            key = (hashable(payload), vs)
            chain = self._chains[key] = _Chain()
            chain.ends.update(dict(ends))
            chain.edges.update(edges)
            self._schedule(key, chain)


class _Chain:
    """The events of one payload and vs, and the adjusts that wait for one of them.

    No circle waits: the ends that events have when all adjusts have come are those that the
    adjusts' old and new ends sum up to, whichever way they were followed.
    """

    __slots__ = ("edges", "ends")

    def __init__(self) -> None:
        self.ends: Counter[int] = Counter()
        self.edges: dict[int, list[int]] = {}
        """New ends by old end, in the order in which they came."""

    def __len__(self) -> int:
        return self.ends.total() + self.waiting()

    def waiting(self) -> int:
        """How many adjusts wait."""
        return sum(map(len, self.edges.values()))

    def due(self) -> int:
        """The first time below which something of it goes."""
        edges = [min(vold, *new) for vold, new in self.edges.items()]
        return min([*self.ends, *edges], default=INFINITY)

    def drop(self, end: int) -> None:
        """One event less with this end."""
        self.ends[end] -= 1
        if not self.ends[end]:
            del self.ends[end]

    def take(self, vold: int, ve: int) -> None:
        """One adjust less that waits."""
        self.edges[vold].remove(ve)
        if not self.edges[vold]:
            del self.edges[vold]

    def follow(self, end: int) -> int:
        """The end that waiting adjusts lead to from `end`; they wait no more."""
        while end in self.edges:
            following = self.edges[end][0]
            self.take(end, following)
            end = following
        return end

    def wait(self, vold: int, ve: int) -> int:
        """Has an adjust wait, unless it closes a circle, which goes; returns the edges seen."""
        seen: set[tuple[int, int]] = set()
        path = self._path(ve, vold, seen)
        if path is None:
            self.edges.setdefault(vold, []).append(ve)
        else:
            for edge in path:
                self.take(*edge)
        return len(seen)

    def _path(
        self, begin: int, goal: int, seen: set[tuple[int, int]]
    ) -> list[tuple[int, int]] | None:
        """The waiting adjusts that lead from one end to another."""
        if begin == goal:
            return []
        for following in self.edges.get(begin, ()):
            if (begin, following) not in seen:
                seen.add((begin, following))
                rest = self._path(following, goal, seen)
                if rest is not None:
                    return [(begin, following), *rest]
        return None

    def forget(self, point: int) -> int:
        """Drops what is final; returns how many adjusts waited for nothing."""
        for end in [end for end in self.ends if end < point]:
            del self.ends[end]
        lost = [(o, n) for o, new in self.edges.items() for n in new if min(o, n) < point]
        for edge in lost:
            self.take(*edge)
        return len(lost)
