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

Whom the output follows
    Before stable(t), with s the stable point until then, each event with vs < t that the output
    and the leader differ in (lines 17-25). Half frozen is vs < s, so that the end is s or later:

        output  leader's end   half frozen   -> what is emitted
        ------  ------------   -----------   ---------------------------------------------------
        -       -              no            -> nothing
        -       any            no            -> insert(end)
        out     -              no            -> adjust(out→vs): the event goes
        out     s or later     no, yes       -> adjust(out→end), if end < t or out < t
        out     -              yes           -> the leader is to blame, and the second opinion's
        out     before s       yes              end is followed likewise; without one, nothing
        claims  any            no            -> nothing: the event was never inserted

    With an end of t or later on both sides nothing is forced: the event stays half frozen, and
    what is to come decides.

Beyond the paper
    The algorithm as printed may cut or remove an event that an earlier leader half froze, when
    inputs disagree. Such a move would contradict the output's own stable, so it is not made: the
    breach is recorded, and the event follows the attached input that has it with the highest
    stable (the one attached first among equals), or else stays as it is. A joining input counts
    last, and for ends from its joining time on only.
    An adjust of an event that its input never inserted is a breach too. It is held as a claim, so
    that the state does not depend on which input came first, but alone it emits nothing.

Invariants
    W1 to W4 (`keyed`).
    L1  Under insert=first and adjust=lazy, a node that is not on the output holds only claims.

Cost
    insert and adjust O(1), and O(lg w) when a vs appears or a half-frozen end moves; a stable
    costs what it changes, where the paper's costs all half-frozen nodes (`in2t`). Memory O(w
    (payload + inputs)).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.case import Case
from lmerge_service.core.columns import Marks, marked, marks, packed, unpacked
from lmerge_service.core.election import elected, leaders, outvoted, second_opinion
from lmerge_service.core.in2t import In2t, Node
from lmerge_service.core.inputs import Input
from lmerge_service.core.keyed import Keyed
from lmerge_service.core.policy import Emission, Policy
from lmerge_service.elements import INFINITY, Adjust, Element, Insert
from lmerge_service.tdb import Event

__all__ = ("LMR3",)


_TABLE: Final = {
    # output, leader's end, half frozen
    ("none", "none", False): "nothing",
    ("none", "live", False): "insert",
    ("held", "none", False): "remove",
    ("held", "live", False): "follow the leader",
    ("held", "live", True): "follow the leader",
    ("held", "none", True): "follow the second",
    ("held", "final", True): "follow the second",
    ("claims", "none", False): "nothing",
    ("claims", "live", False): "nothing",
}
"""The table of the module's text; an end is live from s on, and final before. There is no other
combination: what is half frozen is on the output (W1), and of what is not each end is live."""


class LMR3(Keyed[Node]):
    """Algorithm R3; see the module's text.

    >>> from lmerge_service.elements import Stable
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
    _index: In2t

    def __init__(self, policy: Policy = Policy()) -> None:
        super().__init__(policy)
        self._index = In2t()
        self._several = False

    # --- elements -----------------------------------------------------------------------------

    def _insert(
        self, source: Input, element: Insert[Any], emission: Emission, out: list[Element]
    ) -> None:
        vs, ve = element.vs, element.ve
        node = self._index.find(vs, element.payload)
        if node is None:
            if vs < self.max_stable:
                source.late += 1
                return
            node = self._index.add_empty(vs, element.payload)
        if source in node.ends and not node.withdraw_claim(source):
            self._blame_at(source, BreachKind.DUPLICATE_KEY, element, node)
        if node.half_frozen:
            self._index.set_end(node, source, ve)
        else:
            node.ends[source] = ve  # the input's latest end counts (line 10)
        if node.out is None:  # by W1 vs >= max_stable: the insert is still legal
            if emission.at_once or (emission.awaited and self._is_awaited(node)):
                self._emit_insert(source, node, ve, out)
        elif emission.reflected:
            self._reflect(source, node, ve, out)

    def _adjust(
        self,
        source: Input,
        element: Adjust[Any],
        own_stable: int,
        emission: Emission,
        out: list[Element],
    ) -> None:
        vs, ve = element.vs, element.ve
        node = self._index.find(vs, element.payload)
        if node is None:
            if vs < self.max_stable:
                source.late += 1
                return
            if vs < own_stable:
                self._blame(source, BreachKind.BROKE_OWN_STABLE, element)
                return
            self._blame(source, BreachKind.UNKNOWN_EVENT, element)
            if ve > vs:
                self._index.add_empty(vs, element.payload).claim(source, ve)
            return
        held = node.ends.get(source)
        if _is_final_for_itself(node, held, own_stable):
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
        if emission.reflected:
            self._reflect(source, node, ve, out)
        if ve == vs:
            self._index.delete_if_unused(node)

    def _is_awaited(self, node: Node) -> bool:
        """The insert policy lets an event out that is not on the output yet."""
        contributing_inputs = node.contributing_inputs()
        if self.policy.insert == "leader":
            return any(each in contributing_inputs for each in leaders(self.inputs.values()))
        return len(contributing_inputs) >= self.policy.witnesses(len(self.inputs))

    def _reflect(self, source: Input, node: Node, ve: int, out: list[Element]) -> None:
        """Lets the output follow an input's revision at once, if that is still legal."""
        if node.out is None or node.out == ve or not self._reflects(source):
            return
        if ve == node.vs and not node.half_frozen:
            self._emit_removal(node, node.out, out)
        elif ve >= self.max_stable:
            self._emit_adjust(node, node.out, ve, out)

    # --- stables ------------------------------------------------------------------------------

    def _freeze(self, voters: Sequence[Input], t: int, out: list[Element]) -> None:
        if t < INFINITY:  # else `_follow` does so, event by event
            for voter in voters:
                for node in self._index.lacking(voter):
                    self._blame_once(voter, BreachKind.HALF_FROZEN_MISSING, node, t)
        super()._freeze(voters, t, out)

    def _follow(self, voters: Sequence[Input], node: Node, t: int, out: list[Element]) -> None:
        stable, held = self.max_stable, node.out
        half_frozen = node.vs < stable
        if half_frozen and t == INFINITY:
            self._blame_lacking(voters, node)
        leader = voters[0] if len(voters) == 1 else self._elected(voters, node, t)
        end = node.ends.get(leader)
        output = "held" if held is not None else _unheld(node)
        version = "none" if end is None else "live" if end >= stable else "final"
        step = _TABLE[output, version, half_frozen]
        if step == "follow the second":
            if end is not None:
                self._blame_once(leader, BreachKind.FROZEN_END_DISAGREES, node, t)
            end = self._second_end(node)
        if held is None:
            if step == "insert" and end is not None:
                self._emit_insert(leader, node, end, out)
        elif step == "remove":
            self._emit_removal(node, held, out)
        elif end is not None and end != held and (end < t or held < t):
            self._emit_adjust(node, held, end, out)

    def _elected(self, voters: Sequence[Input], node: Node, t: int) -> Input:
        """The voter whose version of an event most voters share, of those that have it; ties go
        to the one attached first. A voter with another version, or none, is to blame."""
        having = [source for source in self.inputs.values() if source in voters]
        having = [source for source in having if source in node.ends]
        floor = max(self.max_stable, node.vs)
        views = {s: min(node.ends[s], t) for s in having if node.ends[s] >= floor}  # t: alive
        if not views:
            return having[0] if having else voters[0]
        if len(views) == len(voters) and len(set(views.values())) == 1:
            return having[0]  # as a rule all agree
        winner = elected(views)
        if node.out is not None or node.contributing_inputs():
            for source, kind in outvoted(voters, views, winner, lambda s: s not in node.ends):
                self._blame_once(source, kind, node, t)
        return winner

    def _second_end(self, node: Node) -> int | None:
        """The end that the second opinion gives, if there is one."""
        legal = [
            source
            for source in self.inputs.values()
            if source in node.ends
            and node.ends[source] >= (self.max_stable if source.joined else source.joining_at)
        ]
        followed = second_opinion(legal)
        return None if followed is None else node.ends[followed]

    # --- blame --------------------------------------------------------------------------------

    def _blame_lacking(self, voters: Sequence[Input], node: Node) -> None:
        """Blames the voters that lack a half-frozen event at the end of the stream."""
        for voter in voters:
            if voter not in node.ends:
                self._blame_once(voter, BreachKind.HALF_FROZEN_MISSING, node, INFINITY)

    def _blame_at(self, source: Input, kind: BreachKind, element: Element, node: Node) -> None:
        self._blame(source, kind, element, self._kept(source, node), self._versions(node))

    def _kept(self, source: Input, node: Node) -> Event | None:
        return None if node.out is None else Event(node.payload, node.vs, node.out)

    # --- state --------------------------------------------------------------------------------

    body: ClassVar[Any] = tuple[
        list[int], list[Any], list[int | None], list[list[int | None]], Marks, Marks
    ]

    def _packed(self, items: list[Node], numbers: Mapping[Input, int]) -> Any:
        return (*packed(items, numbers), marks((node.claims for node in items), numbers))

    def load_body(self, body: Any) -> None:
        *columns, claims = body
        sources = list(self.inputs.values())
        nodes = unpacked(columns, self._index, sources)
        for place, inputs in marked(claims, sources):
            nodes[place].claims = inputs

    def check(self) -> None:
        super().check()
        if self._emission.at_once and not self._emission.reflected:
            for node in self._index:
                if node.out is None:
                    assert not node.contributing_inputs(), f"L1: {node} is not on the output"


def _unheld(node: Node) -> str:
    """What there is of an event that is not on the output."""
    return "none" if node.contributing_inputs() else "claims"


def _is_final_for_itself(node: Node, held: int | None, own_stable: int) -> bool:
    """The input's own stable made final that the event ended at `held`, or that there is none:
    what it repeats must not count where the output is behind (several partitions, a lag, a
    quorum). Of an event that the output has half frozen it may still claim the end."""
    if held is None:
        return node.vs < own_stable and not node.half_frozen
    return held < own_stable
