"""LMR3: any order, revisions allowed, (payload, vs) is a key (the paper's Algorithm R3).

Theory
    The first input to insert an event puts it on the output. Later inserts and all adjusts only
    fill the index; nothing is emitted for them until a stable forces it. When the leading input
    sends stable(t), each event with vs < t is brought in line with the leader's version if it
    would otherwise freeze wrongly (lines 17-27):

        a: insert(A,6,7)     -> insert(A,6,7)         in2t: (6,A): a=7, out=7
        b: insert(B,8,∞)     -> insert(B,8,∞)         in2t: (8,B): b=∞, out=∞
        b: insert(A,6,12)    ->                       in2t: (6,A): a=7, b=12, out=7
        b: adjust(B,8,∞→10)  ->                       in2t: (8,B): b=10, out=∞
        b: stable(11)        -> adjust(A,6,7→12), adjust(B,8,∞→10), stable(11)
                                A's end 12 >= 11 is half frozen and stays; B is final and goes.

Beyond the paper
    The algorithm as printed may cut or remove an event that an earlier leader half froze, when
    inputs disagree. Such a move would contradict the output's own stable, so it is not made: the
    breach is recorded, and the event follows the attached input that has it with the highest
    stable (the one attached first among equals), or else stays as it is.
    An adjust of an event that its input never inserted is a breach too. It is held as a claim, so
    that the state does not depend on which input came first, but alone it emits nothing.

Invariants
    L1  A node with vs < max_stable is on the output, with an end >= max_stable.
    L2  Under insert=first and adjust=lazy, a node that is not on the output holds only claims.
    L3  Every entry belongs to an attached input.
    L4  After stable(INFINITY) the index is empty.

Cost
    insert and adjust O(1), and O(lg w) when a vs appears or a half-frozen end moves; a stable
    costs what it changes, where the paper's costs all half-frozen nodes (`in2t`). Memory O(w
    (payload + inputs)).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

from lmerge_service.core.base import LMerge, Versions, unexpected_output
from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.case import Case
from lmerge_service.core.in2t import In2t, Node
from lmerge_service.core.inputs import Input
from lmerge_service.core.policy import Policy
from lmerge_service.core.snapshots import Head, hashable, portable, some
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.tdb import Event

__all__ = ("LMR3",)


class LMR3(LMerge):
    """Algorithm R3; see the module's text.

    >>> merge = LMR3()
    >>> merge.attach("a"); merge.attach("b")
    >>> merge.process("a", Insert("A", 6, 12))
    [Insert(payload='A', vs=6, ve=12)]
    >>> merge.process("b", Insert("A", 6, 15))
    []
    >>> merge.process("b", Stable(13))
    [Adjust(payload='A', vs=6, vold=12, ve=15), Stable(vc=13)]
    """

    case = Case.R3

    def __init__(self, policy: Policy = Policy()) -> None:
        super().__init__(policy)
        self._index = In2t()

    def _enter(self, source: Input) -> None:
        self._index.attach(source)

    def __len__(self) -> int:
        return len(self._index)

    # --- elements -----------------------------------------------------------------------------

    def process_batch(
        self, name: str, elements: Iterable[Element], partition: int = 0
    ) -> list[Element]:
        """As `LMerge.process_batch`, with `_insert` written out for what most elements are:
        inserts that are the input's first element about an event."""
        source = self.inputs.get(name)
        if source is None or not self._first or not self._lazy:
            return super().process_batch(name, elements, partition)
        out: list[Element] = []
        index = self._index
        nodes, frozen, add, set_end = index.nodes, index.frozen, index.add, index.set_end
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
                        set_end(node, source, element.ve)
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
                        node.out = node.ends[source] = element.ve
                        out.append(element)
                        new += 1
                        continue
                    if source not in node.ends and node.out is not None:
                        node.ends[source] = element.ve
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
        if source in node.ends and not node.withdraw_claim(source):
            self._blame_at(source, BreachKind.DUPLICATE_KEY, element, node)
        if node.half_frozen:
            self._index.set_end(node, source, ve)
        else:
            node.ends[source] = ve  # the input's latest end counts (line 10)
        if node.out is None:  # by L1 vs >= max_stable: the insert is still legal
            if self._at_once() or self._is_awaited(node):
                self._emit_insert(source, node, ve, out)
        elif not self._lazy:
            self._reflect(source, node, ve, out)

    def _adjust(self, source: Input, element: Adjust[Any], out: list[Element]) -> None:
        vs, ve = element.vs, element.ve
        node = self._index.find(vs, element.payload)
        if node is None:
            if vs < self.max_stable:
                source.late += 1
                return
            if vs < self._own_stable:
                self._blame(source, BreachKind.BROKE_OWN_STABLE, element)
                return
            self._blame(source, BreachKind.UNKNOWN_EVENT, element)
            if ve > vs:
                self._index.add(vs, element.payload).claim(source, ve)
            return
        held = node.ends.get(source)
        if self._is_final_for_itself(node, held):
            self._blame_at(source, BreachKind.BROKE_OWN_STABLE, element, node)
            return
        if held is None:
            self._blame_at(source, BreachKind.UNKNOWN_EVENT, element, node)
        elif held != element.vold:
            self._blame_at(source, BreachKind.WRONG_VOLD, element, node)
        if ve > vs:
            if held is None:
                node.claim(source, ve)
            if node.half_frozen:
                self._index.set_end(node, source, ve)
            else:
                node.ends[source] = ve
        elif held is not None:
            self._index.drop_end(node, source)
        if not self._lazy:
            self._reflect(source, node, ve, out)
        if ve == vs:
            self._index.delete_if_unused(node)

    def _is_final_for_itself(self, node: Node, held: int | None) -> bool:
        """The input's own stable made final that the event ended at `held`, or that there is none:
        what it repeats must not count where the output is behind (several partitions, a lag, a
        quorum). Of an event that the output has half frozen it may still claim the end."""
        if held is None:
            return node.vs < self._own_stable and not node.half_frozen
        return held < self._own_stable

    def _is_awaited(self, node: Node) -> bool:
        """The insert policy lets an event out that is not on the output yet."""
        match self.policy.insert:
            case _ if self._replaying:
                return False
            case "leader":
                contributing_inputs = node.contributing_inputs()
                return any(leader in contributing_inputs for leader in self._leaders())
            case "half_frozen":
                return False
            case _:
                return len(node.contributing_inputs()) >= self.policy.witnesses(len(self.inputs))

    def _reflect(self, source: Input, node: Node, ve: int, out: list[Element]) -> None:
        """Lets the output follow an input's revision at once, if that is still legal."""
        if node.out is None or node.out == ve or not self._reflects(source):
            return
        if node.half_frozen:
            if ve >= self.max_stable:
                self._emit_adjust(node, ve, out)
                self._index.set_out(node, ve)
            return
        self._emit_adjust(node, ve, out)
        if ve == node.vs:
            node.out = None

    # --- stables ------------------------------------------------------------------------------

    def _freeze(self, voters: Sequence[Input], t: int, out: list[Element]) -> None:
        if t == INFINITY:
            self._finish(voters, out)
            return
        index = self._index
        for voter in voters:
            for node in index.lacking(voter):
                self._blame_once(voter, BreachKind.HALF_FROZEN_MISSING, node, t)
        several, leader = len(voters) > 1, voters[0]
        due = index.due(voters, t)
        disputed = [n for n in due if several or n.out != n.ends.get(leader)]
        for node in sorted(disputed, key=attrgetter("vs", "number")):
            self._follow(voters, node, t, out)
        index.refile(due, t)
        staying = []
        for node in index.newly_half_frozen(t):
            if several or node.out != node.ends.get(leader):
                self._follow(voters, node, t, out)
            if node.out is not None and node.out >= t:
                staying.append(node)
        index.freeze(staying)

    def _finish(self, voters: Sequence[Input], out: list[Element]) -> None:
        """stable(INFINITY): every event becomes final, and the index empty (L4)."""
        for node in self._index:
            for voter in voters:
                if node.half_frozen and voter not in node.ends:
                    self._blame_once(voter, BreachKind.HALF_FROZEN_MISSING, node, INFINITY)
            self._follow(voters, node, INFINITY, out)
        self._index.clear()

    def _follow(self, voters: Sequence[Input], node: Node, t: int, out: list[Element]) -> None:
        """Makes the output's version of an event agree with the leader's as far as stable(t)
        forces it (lines 17-25)."""
        leader = voters[0] if len(voters) == 1 else self._elected(voters, node, t)
        end = node.ends.get(leader)
        if node.out is None:
            if end is not None and node.contributing_inputs():
                self._emit_insert(leader, node, end, out)
        elif end is None and not node.half_frozen:
            self._emit_adjust(node, node.vs, out)  # unfrozen, and the leader does not have it
        elif end is not None and end >= self.max_stable:
            if end != node.out and (end < t or node.out < t):
                self._emit_adjust(node, end, out)
        else:
            if end is not None:
                self._blame_once(leader, BreachKind.FROZEN_END_DISAGREES, node, t)
            kept = self._second_opinion(node)
            if kept != node.out and (kept < t or node.out < t):
                self._emit_adjust(node, kept, out)

    def _elected(self, voters: Sequence[Input], node: Node, t: int) -> Input:
        """The voter whose version of an event most voters share, of those that have it; ties go
        to the one attached first. A voter with another version, or none, is to blame."""
        having = [source for source in self.inputs.values() if source in voters]
        having = [source for source in having if source in node.ends]
        floor = self.max_stable if node.half_frozen else node.vs
        views = {s: min(node.ends[s], t) for s in having if node.ends[s] >= floor}  # t: alive
        if not views:
            return having[0] if having else voters[0]
        votes = Counter(views.values())
        winner = max(views, key=lambda source: votes[views[source]])
        if node.out is not None or node.contributing_inputs():
            for source in voters:
                if source not in node.ends:
                    self._blame_once(source, BreachKind.HALF_FROZEN_MISSING, node, t)
                elif views.get(source) != views[winner]:
                    self._blame_once(source, BreachKind.FROZEN_END_DISAGREES, node, t)
        return winner

    def _second_opinion(self, node: Node) -> int:
        """The end given by the attached input with the highest stable, of those that the output
        may still follow; the output's own end when there is none. A joining input counts last,
        and for ends from its joining time on only."""
        legal = [
            source
            for source, end in node.ends.items()
            if end >= (self.max_stable if source.joined else source.joining_at)
        ]
        if not legal:
            assert node.out is not None
            return node.out
        order = [source for source in self.inputs.values() if source in legal]
        return node.ends[max(order, key=lambda source: (source.joined, source.stable))]

    def _blame_once(self, source: Input, kind: BreachKind, node: Node, t: int) -> None:
        excused = node.vs < source.gap_until and kind is BreachKind.HALF_FROZEN_MISSING
        if self._index.blame(node, source) and not excused:
            self._blame_at(source, kind, Stable(t), node)

    def _blame_at(self, source: Input, kind: BreachKind, element: Element, node: Node) -> None:
        kept = None if node.out is None else Event(node.payload, node.vs, node.out)
        ends = node.ends
        views = ((s.name, (ends[s],) if s in ends else ()) for s in self.inputs.values())
        self._blame(source, kind, element, kept, tuple(views))

    # --- what is emitted ----------------------------------------------------------------------

    def _emit_insert(self, source: Input, node: Node, end: int, out: list[Element]) -> None:
        out.append(Insert(node.payload, node.vs, end))
        node.out = end
        source.first += 1
        self._stats.inserts += 1

    def _emit_adjust(self, node: Node, end: int, out: list[Element]) -> None:
        assert node.out is not None
        out.append(Adjust(node.payload, node.vs, node.out, end))
        node.out = end
        self._stats.adjusts += 1
        self._stats.removals += end == node.vs

    def _forget(self, source: Input) -> None:
        self._index.forget(source)

    # --- state --------------------------------------------------------------------------------

    def live_output(self) -> Iterator[Event]:
        for node in self._index:
            if node.out is not None:
                yield Event(node.payload, node.vs, node.out)

    def versions(self) -> Iterator[Versions]:
        for node in self._index:
            ends = [(source.name, [node.ends[source]]) for source in node.contributing_inputs()]
            yield node.payload, node.vs, [] if node.out is None else [node.out], ends

    def _load_insert(self, element: Insert[Any]) -> None:
        node = self._index.find(element.vs, element.payload)
        if node is None:
            node = self._index.add(element.vs, element.payload)
        elif node.out is not None:
            raise unexpected_output(element, self.max_stable)
        node.out = element.ve

    def _load_adjust(self, element: Adjust[Any]) -> None:
        node = self._index.find(element.vs, element.payload)
        if node is None or node.out != element.vold:
            raise unexpected_output(element, self.max_stable)
        if element.ve == element.vs:
            node.out = None
            self._index.delete_if_unused(node)
        elif node.half_frozen:
            self._index.set_out(node, element.ve)
        else:
            node.out = element.ve

    def _load_stable(self, vc: int) -> None:
        index = self._index
        if vc == INFINITY:
            index.clear()
            return
        index.refile(index.due((), vc), vc)
        newly = index.newly_half_frozen(vc)
        index.freeze(node for node in newly if node.out is not None and node.out >= vc)

    body: ClassVar[Any] = tuple[
        list[int],
        list[Any],
        list[int | None],
        list[list[int | None]],
        list[tuple[int, list[int]]],
        list[tuple[int, list[int]]],
    ]
    """Of all nodes: vs; payload; the output's end; for each input its ends. Of some, by place: the
    inputs that are blamed; those that only claim."""

    def _size(self) -> int:
        return len(self._index)

    def _items(self) -> Iterator[Node]:
        return iter(self._index)

    def _packed(self, items: list[Node], numbers: Mapping[Input, int]) -> Any:
        return (
            [node.vs for node in items],
            [portable(node.payload) for node in items],
            [node.out for node in items],
            [[node.ends.get(source) for node in items] for source in numbers],
            [(at, some(node.blamed, numbers)) for at, node in enumerate(items) if node.blamed],
            [(at, some(node.claims, numbers)) for at, node in enumerate(items) if node.claims],
        )

    def load_head(self, head: Head) -> None:
        super().load_head(head)
        self._index.refile((), self.max_stable)

    def load_body(self, body: Any) -> None:
        index, sources = self._index, list(self.inputs.values())
        all_vs, payloads, outs, ends, blamed, claims = body
        nodes = []
        for vs, payload, end in zip(all_vs, payloads, outs, strict=True):
            made = index.make if vs < self.max_stable else index.add
            node = made(vs, hashable(payload))
            node.out = end
            nodes.append(node)
        for source, column in zip(sources, ends, strict=True):
            for node, end in zip(nodes, column, strict=True):
                if end is not None:
                    node.ends[source] = end
        for place, numbers in blamed:
            nodes[place].blamed = {sources[number] for number in numbers}
        for place, numbers in claims:
            nodes[place].claims = {sources[number] for number in numbers}
        index.freeze(node for node in nodes if node.vs < self.max_stable)

    def check(self) -> None:
        super().check()
        self._index.check()
        attached = set(self.inputs.values())
        for node in self._index:
            if node.vs < self.max_stable:
                live = node.out is not None and node.out >= self.max_stable
                assert live, f"L1: {node} at max_stable {self.max_stable}"
            if self._first and self._lazy and node.out is None:
                assert not node.contributing_inputs(), f"L2: {node} is not on the output"
            assert attached.issuperset(node.ends), f"L3: {node} has an entry of a detached input"
        assert self.max_stable < INFINITY or not len(self._index), "L4: state after the end"
