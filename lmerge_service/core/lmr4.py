"""LMR4: any order, revisions allowed, no key: a multiset (the paper's Algorithm R4).

Theory
    An insert is emitted when its input has more events of that (payload, vs) than the output
    (line 9). Adjusts, and inserts that make up for what is out already, only fill the index.
    When the leading input sends stable(t), then of each (payload, vs) that gets half frozen the
    output is given as many events as the leader has (lines 20-22), and of each end below t as
    many as well (lines 23-26):

        a: insert(A,2,5)   -> insert(A,2,5)         in3t: (2,A): a=[5], out=[5]
        b: insert(A,2,8)   ->                       in3t: (2,A): a=[5], b=[8], out=[5]
        b: insert(A,2,5)   -> insert(A,2,5)         in3t: (2,A): a=[5], b=[5,8], out=[5,5]
        b: stable(7)       -> adjust(A,2,5→8), stable(7)
                                One 5 is final and forgotten: b=[5,8], out=[8].

The fewest changes
    `changes` computes how the output's events O of a key are brought in line with the desired ones
    L before stable(t). Let S and D be how many O has too many and too few of below t, end by end,
    and c = |O| - |L|. It takes max(S, D, D + c, S - c) changes, and no fewer do. Each event of S
    must be removed or moved, and each missing one of D be added or moved there. Where c > 0 at
    least c events must be removed, which helps none of D: hence D + c. Where c < 0 at least -c
    must be added, which helps none of S: hence S - c. The bound is reached when removals take
    what is below t first, additions likewise, and of what is left each move fixes one of S and
    one of D while there are both. Ends that are not below t wait.

Beyond the paper
    The events of one key differ in their ends only, so that an adjust whose old end its input
    does not hold has no event to be applied to: it is a breach and ignored. A removal takes an
    event away and no more (line 15 as printed leaves one of no length, and counts it).
    Where the leader has another number of live events of a half-frozen key than the output, it
    contradicts what is out. The breach is recorded, and the key follows the attached input with
    as many live events as the output that has the highest stable (the one attached first among
    equals), or else stays as it is.

Invariants
    M1  A node with vs < max_stable is on the output, each of its events with an end >= max_stable.
    M2  Under insert=first and adjust=lazy, no input has more events than the output of a key
        that is not half frozen.
    M3  Every entry belongs to an attached input.
    M4  After stable(INFINITY) the index is empty.

Cost
    insert and adjust O(lg d), d being the events of the key (O(d) where policies let revisions
    out at once), and O(lg w) when a vs appears or a half-frozen end moves; a stable costs what it
    changes, where the paper's costs all half-frozen nodes (`in3t`). Memory O(w (payload + inputs
    d)).
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

from lmerge_service.core.base import LMerge, Versions, unexpected_output
from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.case import Case
from lmerge_service.core.in3t import In3t, Node, beyond, has
from lmerge_service.core.inputs import Input
from lmerge_service.core.policy import Policy
from lmerge_service.core.snapshots import Head, hashable, portable, some
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.tdb import Event

__all__ = ("LMR4", "changes")


class LMR4(LMerge):
    """Algorithm R4; see the module's text.

    >>> merge = LMR4()
    >>> merge.attach("a"); merge.attach("b")
    >>> merge.process_batch("a", [Insert("A", 6, 12), Insert("A", 6, 12)])
    [Insert(payload='A', vs=6, ve=12), Insert(payload='A', vs=6, ve=12)]
    >>> merge.process_batch("b", [Insert("A", 6, 15), Insert("A", 6, 12)])
    []
    >>> merge.process("b", Stable(13))
    [Adjust(payload='A', vs=6, vold=12, ve=15), Stable(vc=13)]
    """

    case = Case.R4

    def __init__(self, policy: Policy = Policy()) -> None:
        super().__init__(policy)
        self._index = In3t()

    def _enter(self, source: Input) -> None:
        self._index.attach(source)

    def __len__(self) -> int:
        return len(self._index)

    # --- elements -----------------------------------------------------------------------------

    def process_batch(
        self, name: str, elements: Iterable[Element], partition: int = 0
    ) -> list[Element]:
        """As `LMerge.process_batch`, with `_insert` written out for what most elements are:
        inserts that are the input's first element about a key."""
        source = self.inputs.get(name)
        if source is None or not self._first or not self._lazy:
            return super().process_batch(name, elements, partition)
        out: list[Element] = []
        index = self._index
        nodes, frozen, add, add_first = index.nodes, index.frozen, index.add, index.add_first
        own_stable, max_stable = source.stables[partition], self.max_stable
        new = matched = late = 0
        for element in elements:
            if type(element) is Insert and own_stable <= (vs := element.vs) < element.ve:
                payload = element.payload
                if vs < max_stable:
                    node = frozen.get((vs, payload))
                    if node is None:
                        late += 1
                        continue
                    if source not in node.ends:
                        add_first(node, source, element.ve)
                        matched += 1
                        continue
                else:
                    found = nodes.get(vs)
                    if isinstance(found, dict):
                        node = found.get(payload)
                    else:
                        node = None if found is None or found.payload != payload else found
                    if node is None:
                        node = add(vs, payload)
                        node.ends[source] = [element.ve]
                        node.out.append(element.ve)
                        out.append(element)
                        new += 1
                        continue
                    if source not in node.ends:  # by M1 and M2 the output has one already
                        node.ends[source] = [element.ve]
                        matched += 1
                        continue
            self._element(source, element, partition, out)
            own_stable, max_stable = source.stables[partition], self.max_stable
            nodes, frozen = index.nodes, index.frozen
        source.inserts += new + matched + late
        source.first += new
        source.late += late
        self._stats.inserts += new
        return out

    def _insert(self, source: Input, element: Insert[Any], out: list[Element]) -> None:
        vs, ve = element.vs, element.ve
        node = self._index.find(vs, element.payload)
        if node is None:
            if vs < self.max_stable:
                source.late += 1
                return
            node = self._index.add(vs, element.payload)
        if node.half_frozen:
            self._index.revise(node, source, None, ve)
        else:
            ends = node.ends.get(source)
            if ends is None:
                ends = node.ends[source] = [ve]
            else:
                insort(ends, ve)
            if self._at_once():
                if len(ends) > len(node.out):
                    self._emit_insert(source, node, ve, out)
                    return
            elif self._emit_missing(source, node, ve, out):
                return
        if not self._lazy:
            self._reflect(source, node, ve, ve, out)

    def _adjust(self, source: Input, element: Adjust[Any], out: list[Element]) -> None:
        vs, vold, ve = element.vs, element.vold, element.ve
        node = self._index.find(vs, element.payload)
        if node is None:
            if vs < self.max_stable:
                source.late += 1
            else:
                self._blame(source, BreachKind.UNKNOWN_EVENT, element)
            return
        ends = node.ends.get(source)
        if ends is None or not has(ends, vold):
            unknown = BreachKind.UNKNOWN_EVENT if ends is None else BreachKind.WRONG_VOLD
            self._blame(source, unknown, element, None, self._versions(node))
            return
        left = ve if ve > vs else None
        if node.half_frozen:
            self._index.revise(node, source, vold, left)
        else:
            node.revise(source, vold, left)
        if not self._lazy:
            self._reflect(source, node, vold, ve, out)
        if left is None and not node.half_frozen:
            self._index.delete_if_unused(node)

    def _emit_missing(self, source: Input, node: Node, ve: int, out: list[Element]) -> bool:
        """Emits what the insert policy lets out of a node that is not half frozen; whether
        there was any."""
        before = len(node.out)
        while len(node.out) < self._awaited(node):
            self._emit_insert(source, node, self._missing_end(source, node, ve), out)
        return len(node.out) > before

    def _awaited(self, node: Node) -> int:
        """How many events an insert policy other than `first` lets out."""
        match self.policy.insert:
            case _ if self._replaying:
                return 0
            case "leader":
                leading = (len(node.ends.get(leader, ())) for leader in self._leaders())
                return max(leading, default=0)
            case "half_frozen":
                return 0
            case _:
                counts = sorted(map(len, node.ends.values()), reverse=True)
                witnesses = self.policy.witnesses(len(self.inputs))
                return counts[witnesses - 1] if witnesses <= len(counts) else 0

    def _missing_end(self, source: Input, node: Node, ve: int) -> int:
        """An end that an input has more often than the output: the one just inserted, if it is
        such an end."""
        if ve in beyond(node.ends[source], node.out):
            return ve
        return next(
            beyond(ends, node.out)[0]
            for each in self.inputs.values()
            if len(ends := node.ends.get(each, [])) > len(node.out)
        )

    def _reflect(self, source: Input, node: Node, vold: int, ve: int, out: list[Element]) -> None:
        """Lets the output follow an input's revision at once, if still legal: one event that
        the input does not have, at vold if possible, gets the end that it has, or goes."""
        if not node.out or not self._reflects(source):
            return
        ends = node.ends.get(source, [])
        surplus = beyond(node.out, ends)
        if not surplus:
            return
        moved = vold if vold in surplus else surplus[0]
        if ve == node.vs:
            if not node.half_frozen and len(node.out) > len(ends):
                self._emit_removal(node, moved, out)
        elif ve >= self.max_stable and ve in beyond(ends, node.out):
            self._emit_adjust(node, moved, ve, out)

    # --- stables ------------------------------------------------------------------------------

    def _freeze(self, voters: Sequence[Input], t: int, out: list[Element]) -> None:
        index = self._index
        if t == INFINITY:  # every event becomes final, and the index empty (M4)
            for node in index:
                self._follow(voters, node, t, out)
            index.clear()
            return
        leader = voters[0] if len(voters) == 1 else None
        for node in chain(index.due(voters, t), index.newly_half_frozen(t)):
            if leader is None or node.ends.get(leader) != node.out:  # as a rule they agree
                self._follow(voters, node, t, out)
            index.file(node)
        index.sweep()

    def _follow(self, voters: Sequence[Input], node: Node, t: int, out: list[Element]) -> None:
        """Makes the output's events of a key agree with the leader's as far as stable(t) forces
        it (lines 20-26)."""
        leader = self._elected(voters, node, t)
        if leader is None:
            return
        desired = node.live(leader, self.max_stable)
        if len(desired) == len(node.out) == 1:  # short, for as a rule a key has one event
            (vold,), (ve,) = node.out, desired
            if vold != ve and (vold < t or ve < t):
                self._emit_adjust(node, vold, ve, out)
            return
        for change in changes(node.out, desired, t):
            self._emit_change(leader, node, *change, out)

    def _elected(self, voters: Sequence[Input], node: Node, t: int) -> Input | None:
        """The input that a key follows. Of the voters with the right number of live events it is
        the one whose events below t most of those share; ties go to the one attached first.

        The right number is the output's when the key was half frozen before, else the largest;
        voters with another number, or other events below t, are to blame. Without any voter the
        key follows the joined input with the right number and the highest stable, if any.
        """
        half_frozen = node.vs < self.max_stable
        if len(voters) == 1:
            (leader,) = voters
            if not half_frozen or len(node.live(leader, self.max_stable)) == len(node.out):
                return leader
        live = {s: node.live(s, self.max_stable) for s in self.inputs.values()}
        count = len(node.out) if half_frozen else max(len(live[s]) for s in voters)
        right = [source for source, ends in live.items() if len(ends) == count]
        views = {s: tuple(end for end in live[s] if end < t) for s in right if s in voters}
        votes = Counter(views.values())
        majority = max(votes, key=lambda view: votes[view], default=None)
        for source in voters:
            if len(live[source]) < count:
                self._blame_once(source, BreachKind.HALF_FROZEN_MISSING, node, t)
            elif source not in views or views[source] != majority:
                self._blame_once(source, BreachKind.FROZEN_END_DISAGREES, node, t)
        if views:
            return next(source for source in views if views[source] == majority)
        joined = [source for source in right if source.joined]
        return max(joined, key=lambda source: source.stable, default=None)

    def _blame_once(self, source: Input, kind: BreachKind, node: Node, t: int) -> None:
        excused = node.vs < source.gap_until and kind is BreachKind.HALF_FROZEN_MISSING
        if self._index.blame(node, source) and not excused:
            kept = self._kept(source, node)
            self._blame(source, kind, Stable(t), kept, self._versions(node))

    def _kept(self, source: Input, node: Node) -> Event | None:
        """The first event of the output that an input contradicts, if there is one."""
        missed = beyond(node.out, node.ends.get(source, [])) or node.out
        return Event(node.payload, node.vs, missed[0]) if missed else None

    def _versions(self, node: Node) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple((s.name, tuple(node.ends.get(s, ()))) for s in self.inputs.values())

    # --- what is emitted ----------------------------------------------------------------------

    def _emit_change(
        self, leader: Input, node: Node, vold: int | None, ve: int | None, out: list[Element]
    ) -> None:
        if vold is None:
            assert ve is not None
            self._emit_insert(leader, node, ve, out)
        elif ve is None:
            self._emit_removal(node, vold, out)
        else:
            self._emit_adjust(node, vold, ve, out)

    def _emit_insert(self, source: Input, node: Node, ve: int, out: list[Element]) -> None:
        out.append(Insert(node.payload, node.vs, ve))
        self._index.put_out(node, ve)
        source.first += 1
        self._stats.inserts += 1

    def _emit_adjust(self, node: Node, vold: int, ve: int, out: list[Element]) -> None:
        out.append(Adjust(node.payload, node.vs, vold, ve))
        self._index.move_out(node, vold, ve)
        self._stats.adjusts += 1

    def _emit_removal(self, node: Node, vold: int, out: list[Element]) -> None:
        out.append(Adjust(node.payload, node.vs, vold, node.vs))
        self._index.take_out(node, vold)
        self._stats.adjusts += 1
        self._stats.removals += 1

    def _forget(self, source: Input) -> None:
        self._index.forget(source)

    # --- state --------------------------------------------------------------------------------

    def live_output(self) -> Iterator[Event]:
        for node in self._index:
            for end in node.out:
                yield Event(node.payload, node.vs, end)

    def versions(self) -> Iterator[Versions]:
        for node in self._index:
            ends = [(source.name, held) for source, held in node.ends.items()]
            yield node.payload, node.vs, node.out, ends

    def _load_insert(self, element: Insert[Any]) -> None:
        node = self._index.find(element.vs, element.payload)
        if node is None:
            node = self._index.add(element.vs, element.payload)
        self._index.put_out(node, element.ve)

    def _load_adjust(self, element: Adjust[Any]) -> None:
        node = self._index.find(element.vs, element.payload)
        if node is None or not has(node.out, element.vold):
            raise unexpected_output(element, self.max_stable)
        if element.ve == element.vs:
            self._index.take_out(node, element.vold)
            self._index.delete_if_unused(node)
        else:
            self._index.move_out(node, element.vold, element.ve)

    def _load_stable(self, vc: int) -> None:
        index = self._index
        if vc == INFINITY:
            index.clear()
            return
        for node in chain(index.due((), vc), index.newly_half_frozen(vc)):
            index.file(node)
        index.sweep()

    body: ClassVar[Any] = tuple[
        list[int],
        list[Any],
        list[list[int]],
        list[list[list[int] | None]],
        list[tuple[int, list[int]]],
    ]
    """Of all nodes: vs; payload; the output's ends; for each input its ends. Of some, by place: the
    inputs that are blamed."""

    def _size(self) -> int:
        return self._index.count()

    def _items(self) -> Iterator[Node]:
        return iter(self._index)

    def _packed(self, items: list[Node], numbers: Mapping[Input, int]) -> Any:
        return (
            [node.vs for node in items],
            [portable(node.payload) for node in items],
            [node.out for node in items],
            [[node.ends.get(source) for node in items] for source in numbers],
            [(at, some(node.blamed, numbers)) for at, node in enumerate(items) if node.blamed],
        )

    def load_head(self, head: Head) -> None:
        self._index.stable = head.max_stable
        super().load_head(head)

    def load_body(self, body: Any) -> None:
        index, sources = self._index, list(self.inputs.values())
        all_vs, payloads, outs, ends, blamed = body
        nodes = []
        for vs, payload, emitted in zip(all_vs, payloads, outs, strict=True):
            made = index.make if vs < self.max_stable else index.add
            node = made(vs, hashable(payload))
            for end in emitted:
                index.put_out(node, end)
            nodes.append(node)
        for source, column in zip(sources, ends, strict=True):
            for node, contributed in zip(nodes, column, strict=True):
                if contributed is not None:
                    node.ends[source] = contributed
        for place, numbers in blamed:
            nodes[place].blamed = {sources[number] for number in numbers}
        for node in nodes:
            if node.vs < self.max_stable:
                index.file(node)

    def check(self) -> None:
        super().check()
        self._index.check()
        attached = set(self.inputs.values())
        for node in self._index:
            if node.vs < self.max_stable:
                assert node.out, f"M1: {node} at max_stable {self.max_stable}"
            elif self._first and self._lazy:
                most = max(map(len, node.ends.values()), default=0)
                assert most <= len(node.out), f"M2: {node} is not all on the output"
            live = all(end >= self.max_stable for end in node.out)
            assert live, f"M1: {node} at max_stable {self.max_stable}"
            assert attached.issuperset(node.ends), f"M3: {node} has an entry of a detached input"
        at = self._index.stable
        assert self.max_stable in (at, INFINITY), f"M1: the index is at {at}, not {self.max_stable}"
        assert self.max_stable < INFINITY or not len(self._index), "M4: state after the end"


def changes(
    held: Sequence[int], desired: Sequence[int], t: int
) -> list[tuple[int | None, int | None]]:
    """The fewest changes by which sorted ends `held` get as many as `desired`, and the same below
    t: (end, None) removes one, (None, end) adds one, (end, end) moves one.

    >>> changes([5, 9], [6, 7], 8)
    [(5, 6), (9, 7)]
    >>> changes([5, 5, 20], [7, 20], 10), changes([9], [5, 7], 6)
    ([(5, None), (5, 7)], [(None, 5)])

    Complexity: O(length of both).
    """
    surplus, deficit = beyond(held, desired), beyond(desired, held)
    removed = max(len(surplus) - len(deficit), 0)
    added = max(len(deficit) - len(surplus), 0)
    # what is left is as long on either side, and sorted: what is below t comes first
    moved = zip(surplus[removed:], deficit[added:], strict=True)
    return [
        *((end, None) for end in surplus[:removed]),
        *((None, end) for end in deficit[:added]),
        *((vold, ve) for vold, ve in moved if vold < t or ve < t),
    ]
