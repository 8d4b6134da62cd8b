"""LMR3: any order, revisions allowed, (payload, vs) is a key (the paper's Algorithm R3).

Theory
    The first input to insert an event puts it on the output. Later inserts and all adjusts only
    fill the index; nothing is said about them until a stable forces it. When the leading input
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
    that the state does not depend on which input came first, but alone it puts nothing out.

Invariants
    L1  A node with vs < max_stable is on the output, with an end >= max_stable.
    L2  A node that is not on the output holds nothing but claims.
    L3  Every entry belongs to an attached input.
    L4  After stable(INFINITY) the index is empty.

Cost
    insert and adjust O(1), and O(lg w) when a vs appears or a half-frozen end moves; a stable
    costs what it changes, where the paper's costs all half-frozen nodes (`in2t`). Memory O(w
    (payload + inputs)).
"""

from collections.abc import Hashable, Iterable
from hashlib import sha256
from typing import Any

import msgspec

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.in2t import In2t, Node
from lmerge_service.core.inputs import Input
from lmerge_service.core.operator import Case, Operator, Stats
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.tdb import Event

__all__ = ("LMR3",)

_SNAPSHOT_VERSION = 1
_DIGEST_BYTES = 32
_NOBODY = Input("", 0, 0, 1)
"""Leads nothing: for walks that only the output's ends decide."""


class LMR3(Operator):
    """Algorithm R3 under the default policy; see the module's text.

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

    def __init__(self) -> None:
        super().__init__()
        self._index = In2t()

    def __len__(self) -> int:
        return len(self._index)

    def _insert(self, source: Input, element: Insert[Any], out: list[Element]) -> None:
        vs = element.vs
        node = self._index.find(vs, element.payload)
        if node is None:
            if vs < self.max_stable:
                source.late += 1
                return
            node = self._index.add(vs, element.payload)
        if source in node.ends:
            self._blame(source, BreachKind.DUPLICATE_KEY, element)
        if node.half_frozen:
            self._index.set_end(node, source, element.ve)
            return
        node.ends[source] = element.ve  # the input's latest word counts (line 10)
        if node.out is None:  # by L1 vs >= max_stable: the insert is still legal
            node.out = element.ve
            out.append(element)
            source.first += 1
            self.stats.inserts += 1

    def _adjust(self, source: Input, element: Adjust[Any]) -> None:
        vs, ve = element.vs, element.ve
        node = self._index.find(vs, element.payload)
        if node is None:
            if vs < self.max_stable:
                source.late += 1
                return
            self._blame(source, BreachKind.UNKNOWN_EVENT, element)
            if ve > vs:
                self._index.add(vs, element.payload).ends[source] = ve
            return
        held = node.ends.get(source)
        if held is None:
            self._blame(source, BreachKind.UNKNOWN_EVENT, element)
        elif held != element.vold:
            self._blame(source, BreachKind.WRONG_VOLD, element)
        if ve > vs:
            if node.half_frozen:
                self._index.set_end(node, source, ve)
            else:
                node.ends[source] = ve
        elif held is not None:
            self._index.drop_end(node, source)
            self._index.delete_if_unused(node)

    def _freeze(self, leader: Input, t: int, out: list[Element]) -> None:
        if t == INFINITY:
            self._finish(leader, out)
            return
        index = self._index
        for node in index.lacking(leader):
            self._blame_once(leader, BreachKind.HALF_FROZEN_MISSING, node, t)
        for node in index.due(leader, t):
            self._follow(leader, node, t, out)
            if node.out < t:  # type: ignore[operator]
                index.delete(node)
            else:
                index.set_out(node, node.out)  # type: ignore[arg-type]
        for node in index.newly_half_frozen(t):
            if node.out is not None:  # else a claim that no insert ever backed (L2)
                self._follow(leader, node, t, out)
            if node.out is None or node.out < t:
                index.delete(node)
            else:
                index.freeze(node)
        index.compact()

    def _follow(self, leader: Input, node: Node, t: int, out: list[Element]) -> None:
        """Makes an event of the output agree with the leader as far as stable(t) forces it."""
        end = node.ends.get(leader)
        assert node.out is not None
        if end is None and not node.half_frozen:
            self._emit_adjust(node, node.vs, out)  # unfrozen, and the leader says it is not there
        elif end is not None and end >= self.max_stable:
            if end != node.out and (end < t or node.out < t):
                self._emit_adjust(node, end, out)
        else:
            if end is not None:
                self._blame_once(leader, BreachKind.FROZEN_END_DISAGREES, node, t)
            kept = self._second_opinion(node)
            if kept != node.out and (kept < t or node.out < t):
                self._emit_adjust(node, kept, out)

    def _finish(self, leader: Input, out: list[Element]) -> None:
        """stable(INFINITY): every event becomes final, and the index empty (L4)."""
        for node in self._index:
            if node.half_frozen and leader not in node.ends:
                self._blame_once(leader, BreachKind.HALF_FROZEN_MISSING, node, INFINITY)
            if node.out is not None and node.out != node.ends.get(leader):
                self._follow(leader, node, INFINITY, out)
        self._index.clear()

    def _second_opinion(self, node: Node) -> int:
        """The end given by the attached input with the highest stable, of those that the output
        may still follow; the output's own end when there is none."""
        legal = [source for source, end in node.ends.items() if end >= self.max_stable]
        if not legal:
            assert node.out is not None
            return node.out
        order = list(self.inputs.values())
        return node.ends[max(legal, key=lambda source: (source.stable, -order.index(source)))]

    def _blame_once(self, leader: Input, kind: BreachKind, node: Node, t: int) -> None:
        excused = node.vs < leader.gap_until and kind is BreachKind.HALF_FROZEN_MISSING
        if self._index.blame(node, leader) and not excused:
            assert node.out is not None
            self._blame(leader, kind, Stable(t), Event(node.payload, node.vs, node.out))

    def _emit_adjust(self, node: Node, end: int, out: list[Element]) -> None:
        assert node.out is not None
        out.append(Adjust(node.payload, node.vs, node.out, end))
        node.out = end
        self.stats.adjusts += 1
        self.stats.removals += end == node.vs

    def _forget(self, source: Input) -> None:
        self._index.forget(source)

    # --- state --------------------------------------------------------------------------------

    def load_output(self, elements: Iterable[Element]) -> None:
        if self.inputs:
            raise ValueError("the output prefix comes first, before any input is attached")
        for element in elements:
            match element:
                case Insert(payload, vs, ve):
                    self._load_insert(element, payload, vs, ve)
                case Adjust():
                    self._load_adjust(element)
                case Stable(vc):
                    self._load_stable(vc)

    def _load_insert(self, element: Element, payload: Hashable, vs: int, ve: int) -> None:
        if vs < self.max_stable or self._index.find(vs, payload) is not None:
            raise _foreign(element, self.max_stable)
        self._index.add(vs, payload).out = ve

    def _load_adjust(self, element: Adjust[Any]) -> None:
        node = self._index.find(element.vs, element.payload)
        legal = min(element.vold, element.ve) >= self.max_stable
        if node is None or node.out != element.vold or not legal:
            raise _foreign(element, self.max_stable)
        if element.ve == element.vs:
            self._index.delete(node)
        elif node.half_frozen:
            self._index.set_out(node, element.ve)
        else:
            node.out = element.ve

    def _load_stable(self, vc: int) -> None:
        if vc <= self.max_stable:
            raise _foreign(Stable(vc), self.max_stable)
        self.max_stable = vc
        index = self._index
        if vc == INFINITY:
            index.clear()
            return
        for node in index.due(_NOBODY, vc):
            index.delete(node)
        for node in index.newly_half_frozen(vc):
            assert node.out is not None
            if node.out < vc:
                index.delete(node)
            else:
                index.freeze(node)
        index.compact()

    def snapshot(self) -> bytes:
        order = {source: number for number, source in enumerate(self.inputs.values())}
        return _sealed(
            _Snapshot(
                case=self.case,
                version=_SNAPSHOT_VERSION,
                max_stable=self.max_stable,
                incarnations=self._incarnations,
                stats=self.stats,
                inputs=[_SavedInput.of(source) for source in order],
                nodes=[
                    (
                        node.vs,
                        node.payload,
                        node.out,
                        [(order[source], ve) for source, ve in node.ends.items()],
                        [order[source] for source in order if source in (node.blamed or ())],
                    )
                    for node in self._index
                ],
            )
        )

    @classmethod
    def restore(cls, saved: bytes) -> "LMR3":
        """The operator that `snapshot` was taken of.

        Raises:
            StateError: the bytes are damaged, of another version, or of another case.
        """
        state = _decode(saved)
        try:
            merge = cls._of(state)
            merge.check()
        except (AssertionError, IndexError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"the snapshot is damaged: {error!r}") from error
        return merge

    @classmethod
    def _of(cls, state: "_Snapshot") -> "LMR3":
        merge = cls()
        merge.max_stable = state.max_stable
        merge.stats = state.stats
        merge._incarnations = state.incarnations
        sources = [each.to_input() for each in state.inputs]
        merge.inputs = {source.name: source for source in sources}
        for vs, payload, node_out, ends, blamed in state.nodes:
            node = merge._index.add(vs, _hashable(payload))
            node.out = node_out
            node.ends = {sources[number]: ve for number, ve in ends}
            node.blamed = {sources[number] for number in blamed} or None
        for node in merge._index.newly_half_frozen(merge.max_stable):
            merge._index.freeze(node)
        return merge

    def check(self) -> None:
        super().check()
        self._index.check()
        attached = set(self.inputs.values())
        for node in self._index:
            if node.vs < self.max_stable:
                live = node.out is not None and node.out >= self.max_stable
                assert live, f"L1: {node} at max_stable {self.max_stable}"
            assert attached.issuperset(node.ends), f"L3: {node} has an entry of a detached input"
        assert self.max_stable < INFINITY or not len(self._index), "L4: state after the end"


def _foreign(element: Element, max_stable: int) -> StateError:
    return StateError(
        f"the output holds {element} where a merge at stable({max_stable}) cannot have put it: "
        "something else writes to this output"
    )


class _SavedInput(msgspec.Struct, array_like=True):
    name: str
    incarnation: int
    joining_at: int
    joined: bool
    gap_until: int
    stables: list[int]
    counts: tuple[int, int, int, int, int]
    breaches: dict[BreachKind, int]

    @classmethod
    def of(cls, source: Input) -> "_SavedInput":
        counts = (source.inserts, source.adjusts, source.stables_in, source.first, source.late)
        return cls(
            source.name,
            source.incarnation,
            source.joining_at,
            source.joined,
            source.gap_until,
            source.stables,
            counts,
            dict(source.breaches),
        )

    def to_input(self) -> Input:
        source = Input(self.name, self.incarnation, self.joining_at, len(self.stables))
        source.joined = self.joined
        source.gap_until = self.gap_until
        source.stables = self.stables
        source.stable = min(self.stables)
        source.inserts, source.adjusts, source.stables_in, source.first, source.late = self.counts
        source.breaches.update(self.breaches)
        return source


class _Snapshot(msgspec.Struct):
    case: str
    version: int
    max_stable: int
    incarnations: dict[str, int]
    stats: Stats
    inputs: list[_SavedInput]
    nodes: list[tuple[int, Any, int | None, list[tuple[int, int]], list[int]]]


def _sealed(state: _Snapshot) -> bytes:
    """The state behind its digest, so that no damaged byte passes for state."""
    body = msgspec.msgpack.encode(state)
    return sha256(body).digest() + body


def _decode(saved: bytes) -> _Snapshot:
    digest, body = saved[:_DIGEST_BYTES], saved[_DIGEST_BYTES:]
    if sha256(body).digest() != digest:
        raise StateError("the snapshot is damaged: its digest does not match")
    try:
        state = msgspec.msgpack.decode(body, type=_Snapshot)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        raise StateError(f"the snapshot is damaged: {error}") from error
    if (state.case, state.version) != (Case.R3, _SNAPSHOT_VERSION):
        raise StateError(
            f"the snapshot is of case {state.case}, version {state.version}; "
            f"this is case {Case.R3}, version {_SNAPSHOT_VERSION}"
        )
    return state


def _hashable(payload: Any) -> Hashable:
    """Msgpack gives a tuple back as a list."""
    if isinstance(payload, list):
        return tuple(_hashable(part) for part in payload)
    hash(payload)
    return payload  # type: ignore[no-any-return]
