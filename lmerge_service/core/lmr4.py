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

Whom the output follows
    Before stable(t), with s the stable point until then, each key with vs < t in which the output
    and the leader differ. Half frozen is vs < s; live is an end of s or later:

        half frozen  the leader's live events   the leader is    -> whose live events are L
        -----------  ------------------------   --------------   ----------------------------
        no           any number                                  -> the leader's
        yes          as many as the output's                     -> the leader's
        yes          fewer                      to blame: lacks  -> the second opinion's: those
        yes          more                       to blame: ends      of the joined input with the
                                                                    output's number and the highest
                                                                    stable; without one, nothing

    What is emitted is `changes(O, L, t)`, where O are the output's; of a key that is half frozen
    these are moves only. Under `stable=quorum(k)` the voters with the right number elect one of
    them; the right number is the output's for a key that is half frozen, else the largest.

Beyond the paper
    The events of one key differ in their ends only, so that an adjust whose old end its input
    does not hold has no event to be applied to: it is a breach and ignored. A removal takes an
    event away and no more (line 15 as printed leaves one of no length, and counts it).
    Where the leader has another number of live events of a half-frozen key than the output, it
    contradicts what is out; the paper's algorithm follows it, against its own stable.

Invariants
    W1 to W4 (`keyed`).
    M1  Under insert=first and adjust=lazy, no input has more events than the output of a key
        that is not half frozen.

Cost
    insert and adjust O(lg d), d being the events of the key (O(d) where policies let revisions
    out at once), and O(lg w) when a vs appears or a half-frozen end moves; a stable costs what it
    changes, where the paper's costs all half-frozen nodes (`in3t`). Memory O(w (payload + inputs
    d)).
"""

from bisect import insort
from collections.abc import Sequence
from typing import Any, ClassVar

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.case import Case
from lmerge_service.core.columns import Marks, unpacked
from lmerge_service.core.election import elected, leaders, outvoted, second_opinion
from lmerge_service.core.in3t import In3t, Node, beyond, has
from lmerge_service.core.inputs import Input
from lmerge_service.core.keyed import Keyed
from lmerge_service.core.policy import Emission, Policy
from lmerge_service.elements import Adjust, Element, Insert
from lmerge_service.tdb import Event

__all__ = ("LMR4", "changes")


class LMR4(Keyed[Node]):
    """Algorithm R4; see the module's text.

    >>> from lmerge_service.elements import Stable
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
    _index: In3t

    def __init__(self, policy: Policy = Policy()) -> None:
        super().__init__(policy)
        self._index = In3t()
        self._several = True

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
        if node.half_frozen:
            self._index.revise(node, source, None, ve)
        else:
            ends = node.ends.get(source)
            if ends is None:
                ends = node.ends[source] = [ve]
            else:
                insort(ends, ve)
            if emission.at_once:
                if len(ends) > len(node.out):
                    self._emit_insert(source, node, ve, out)
                    return
            elif emission.awaited and self._emit_missing(source, node, ve, out):
                return
        if emission.reflected:
            self._reflect(source, node, ve, ve, out)

    def _adjust(
        self,
        source: Input,
        element: Adjust[Any],
        own_stable: int,
        emission: Emission,
        out: list[Element],
    ) -> None:
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
        if emission.reflected:
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
        """How many events an insert policy that names inputs lets out."""
        if self.policy.insert == "leader":
            leading = leaders(self.inputs.values())
            return max((len(node.ends_of(leader)) for leader in leading), default=0)
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

    def _follow(self, voters: Sequence[Input], node: Node, t: int, out: list[Element]) -> None:
        leader = self._followed(voters, node, t)
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

    def _followed(self, voters: Sequence[Input], node: Node, t: int) -> Input | None:
        """The input that a key follows, by the table of the module's text; blames those that
        contradict what is out, or the majority. Ties go to the input attached first."""
        half_frozen = node.vs < self.max_stable
        if len(voters) == 1:
            (leader,) = voters
            if not half_frozen or len(node.live(leader, self.max_stable)) == len(node.out):
                return leader
        live = {s: node.live(s, self.max_stable) for s in self.inputs.values()}
        count = len(node.out) if half_frozen else max(len(live[s]) for s in voters)
        right = [source for source, ends in live.items() if len(ends) == count]
        views = {s: tuple(end for end in live[s] if end < t) for s in right if s in voters}
        winner = elected(views) if views else None
        for source, kind in outvoted(voters, views, winner, lambda s: len(live[s]) < count):
            self._blame_once(source, kind, node, t)
        if winner is not None:
            return winner
        return second_opinion(source for source in right if source.joined)

    def _kept(self, source: Input, node: Node) -> Event | None:
        missed = beyond(node.out, node.ends.get(source, [])) or node.out
        return Event(node.payload, node.vs, missed[0]) if missed else None

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

    # --- state --------------------------------------------------------------------------------

    body: ClassVar[Any] = tuple[
        list[int], list[Any], list[list[int]], list[list[list[int] | None]], Marks
    ]

    def load_body(self, body: Any) -> None:
        index = self._index
        for node in unpacked(body, index, list(self.inputs.values())):
            index.doubles += max(len(node.out) - 1, 0)

    def check(self) -> None:
        super().check()
        if self._emission.at_once and not self._emission.reflected:
            for node in self._index:
                if not node.half_frozen:
                    most = max(map(len, node.ends.values()), default=0)
                    assert most <= len(node.out), f"M1: {node} is not all on the output"


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
