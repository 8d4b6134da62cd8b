"""What LMR3 and LMR4 share: an index by (vs, payload) of what each input and the output have.

Theory
    The first input to insert an event puts it on the output, unless a policy holds it back. Later
    elements about it only fill the index. Before the output emits stable(t), the operator follows
    the leading input in what t makes final:

        1. the index gives the nodes that stable(t) concerns (`due`, `newly_half_frozen`);
        2. of those, each with another version of the leader than the output's is brought in line
           as far as t forces it (`_follow`, which is what the cases differ in);
        3. the index files them again, half frozen, or forgets what is final.

    In case R3 a node has one event, which its end identifies; in case R4 it has several, which
    their ends do. `KeyedNode` and `Index` have one form for both.

Invariants
    W1  A node with vs < max_stable is on the output, with no end below max_stable.
    W2  Every entry belongs to an attached input.
    W3  After stable(INFINITY) the index is empty.
    W4  Only `Node.set_output` changes what the output holds of a node, and `Node.drop_final` lets
        go of what is final.
"""

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

from lmerge_service.core.base import LMerge, Versions
from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.columns import packed
from lmerge_service.core.index import Index, KeyedNode, in_order
from lmerge_service.core.inputs import Input
from lmerge_service.core.policy import Emission
from lmerge_service.core.replay import unexpected_output
from lmerge_service.core.snapshots import Head
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.tdb import Event

__all__ = ("Keyed",)

N = TypeVar("N", bound=KeyedNode)


class Keyed(LMerge, Generic[N]):
    """An operator with an index; see the module's text."""

    _several: bool
    """Whether a node has several events, so that their ends are in a list, or one."""
    _index: Index[N]

    def __len__(self) -> int:
        return len(self._index)

    def _enter(self, source: Input) -> None:
        self._index.attach(source)

    def _forget(self, source: Input) -> None:
        self._index.forget(source)

    # --- elements -----------------------------------------------------------------------------

    def _elements(
        self, source: Input, elements: Iterable[Element], partition: int, emission: Emission
    ) -> list[Element]:
        """As `LMerge._elements`, with `_insert` written out for what most elements are: inserts
        that are the input's first element about a key, and revise nothing that is reflected."""
        if not emission.at_once:
            return super()._elements(source, elements, partition, emission)
        out: list[Element] = []
        index = self._index
        nodes, frozen, add, add_first = index.nodes, index.frozen, index.add, index.add_first
        several, lazy = self._several, not emission.reflected
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
                    if lazy and source not in node.ends:
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
                        ve = element.ve  # the node is made with it, which writes nothing (W4)
                        if several:
                            add(vs, payload, {source: [ve]}, [ve])
                        else:
                            add(vs, payload, {source: ve}, ve)
                        out.append(element)
                        new += 1
                        continue
                    if (
                        source not in node.ends
                        and node.out is not None
                        and (lazy or node.out == element.ve)
                    ):
                        node.ends[source] = [element.ve] if several else element.ve
                        matched += 1
                        continue
            self._element(source, element, partition, emission, out)
            own_stable, max_stable = source.stables[partition], self.max_stable
            nodes, frozen = index.nodes, index.frozen
        source.inserts += new + matched + late
        source.first += new
        source.late += late
        self._stats.inserts += new
        return out

    # --- stables ------------------------------------------------------------------------------

    def _freeze(self, voters: Sequence[Input], t: int, out: list[Element]) -> None:
        index = self._index
        leader = voters[0] if len(voters) == 1 else None
        if t == INFINITY:  # every event becomes final, and the index empty (W3)
            for node in _disputed(index.take_all(), leader):
                self._follow(voters, node, t, out)
            index.clear()
            return
        due, newly = index.due(voters, t), index.newly_half_frozen(t)
        for node in chain(in_order(_disputed(due, leader)), _disputed(newly, leader)):
            self._follow(voters, node, t, out)
        index.file(chain(due, newly))

    @abstractmethod
    def _follow(self, voters: Sequence[Input], node: N, t: int, out: list[Element]) -> None:
        """Makes the output's version of a node, which is taken out of the index, agree with that
        of the leader, or of whom the voters elect, as far as stable(t) forces it."""

    # --- blame --------------------------------------------------------------------------------

    def _blame_once(self, source: Input, kind: BreachKind, node: N, t: int) -> None:
        """Blames an input for what stable(t) brings to light of a node, unless it was already, or
        an accepted gap excuses it."""
        excused = node.vs < source.gap_until and kind is BreachKind.HALF_FROZEN_MISSING
        if self._index.blame(node, source) and not excused:
            kept = self._kept(source, node)
            self._blame(source, kind, Stable(t), kept, self._versions(node))

    @abstractmethod
    def _kept(self, source: Input, node: N) -> Event | None:
        """The event of the output that an input contradicts, if there is one."""

    def _versions(self, node: N) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple((s.name, tuple(node.ends_of(s))) for s in self.inputs.values())

    # --- what is emitted ----------------------------------------------------------------------

    def _emit_insert(self, source: Input, node: N, ve: int, out: list[Element]) -> None:
        out.append(Insert(node.payload, node.vs, ve))
        node.set_output(self._index, None, ve)
        source.first += 1
        self._stats.inserts += 1

    def _emit_adjust(self, node: N, vold: int, ve: int, out: list[Element]) -> None:
        out.append(Adjust(node.payload, node.vs, vold, ve))
        node.set_output(self._index, vold, ve)
        self._stats.adjusts += 1

    def _emit_removal(self, node: N, vold: int, out: list[Element]) -> None:
        out.append(Adjust(node.payload, node.vs, vold, node.vs))
        node.set_output(self._index, vold, None)
        self._stats.adjusts += 1
        self._stats.removals += 1

    # --- replay -------------------------------------------------------------------------------

    def _load_insert(self, element: Insert[Any]) -> None:
        node = self._index.find(element.vs, element.payload)
        if node is None:
            node = self._index.add_empty(element.vs, element.payload)
        elif not node.can_insert():
            raise unexpected_output(element, self.max_stable)
        node.set_output(self._index, None, element.ve)

    def _load_adjust(self, element: Adjust[Any]) -> None:
        node = self._index.find(element.vs, element.payload)
        if node is None or not node.has_output(element.vold):
            raise unexpected_output(element, self.max_stable)
        if element.ve == element.vs:
            node.set_output(self._index, element.vold, None)
            self._index.delete_if_unused(node)
        else:
            node.set_output(self._index, element.vold, element.ve)

    def _load_stable(self, vc: int) -> None:
        index = self._index
        if vc == INFINITY:
            index.clear()
        else:
            index.file(chain(index.due((), vc), index.newly_half_frozen(vc)))

    # --- state --------------------------------------------------------------------------------

    def live_output(self) -> Iterator[Event]:
        for node in self._index:
            for end in node.output_ends():
                yield Event(node.payload, node.vs, end)

    def output_ends(self, payload: Hashable, vs: int) -> list[int]:
        node = self._index.find(vs, payload)
        return [] if node is None else node.output_ends()

    def versions(self) -> Iterator[Versions]:
        for node in self._index:
            ends = [(source.name, node.ends_of(source)) for source in node.contributing_inputs()]
            yield node.payload, node.vs, node.output_ends(), ends

    def _size(self) -> int:
        return self._index.count()

    def _items(self) -> Iterator[N]:
        return iter(self._index)

    def _packed(self, items: list[N], numbers: Mapping[Input, int]) -> Any:
        return packed(items, numbers)

    def load_head(self, head: Head) -> None:
        self._index.stable = head.max_stable
        super().load_head(head)

    def check(self) -> None:
        super().check()
        self._index.check()
        attached = set(self.inputs.values())
        for node in self._index:
            ends = node.output_ends()
            if node.vs < self.max_stable:
                assert ends, f"W1: {node} at max_stable {self.max_stable}"
            live = all(end >= self.max_stable for end in ends)
            assert live, f"W1: {node} at max_stable {self.max_stable}"
            assert attached.issuperset(node.ends), f"W2: {node} has an entry of a detached input"
        at = self._index.stable
        assert self.max_stable in (at, INFINITY), f"W1: the index is at {at}, not {self.max_stable}"
        assert self.max_stable < INFINITY or not len(self._index), "W3: state after the end"


def _disputed(nodes: Iterable[N], leader: Input | None) -> list[N]:
    """The nodes of which a single leader has another version than the output; as a rule they agree.
    Without a single leader all of them."""
    return [node for node in nodes if leader is None or node.ends.get(leader) != node.out]
