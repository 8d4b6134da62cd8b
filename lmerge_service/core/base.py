"""What every LMerge algorithm shares: inputs that come and go, the stable point, blame, counts.

Theory
    An operator is a pure function of (state, input, element). A subclass defines what an insert and
    an adjust do to its index and how the output is prepared for a stable; this class decides
    *which* stable that is. Under the default policy the output's stable point `max_stable` is the
    highest of the joined inputs' (paper III-D, V-B):

        a: stable(10)                           -> stable(10)
        b attached, joining at 20: stable(22)   ->              (remembered: b is joining)
        a: stable(20)                           -> stable(20), stable(22)   (b is joined now)

    Under `stable=quorum(k)` the k joined inputs with the highest stables vote, and the lowest of
    theirs is the output's; with fewer than k joined inputs the output waits.

Invariants
    O1  max_stable never falls, and it is as high as the policy allows for the joined inputs.
    O2  An attached input is joined iff joining_at <= max_stable or an operator accepted the gap.
    O3  Attaching a name again is a new incarnation: nothing of the old one is left.
    O4  What is emitted next depends on what inputs have sent and the output has emitted, and on
        nothing else.

Following
    By O4 an operator can follow another one, the original, that runs elsewhere (`replay`):
    `replay_output` takes the elements that the original has emitted, `attach`, `detach` and
    `accept` the decisions about its inputs, and `replay_input` the elements that the inputs have
    sent.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, ClassVar, TypeAlias

from lmerge_service.core.breaches import Breach, BreachKind
from lmerge_service.core.case import Case
from lmerge_service.core.election import leaders, next_stable
from lmerge_service.core.inputs import Input
from lmerge_service.core.policy import Emission, Policy
from lmerge_service.core.replay import Replay, never_attached
from lmerge_service.core.snapshots import Head, SavedInput, headed, parted, sealed
from lmerge_service.core.stats import Stats
from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import Event

__all__ = ("Gap", "LMerge", "Versions")

Versions: TypeAlias = tuple[Any, int, Sequence[int], Sequence[tuple[str, Sequence[int]]]]
"""Payload and vs of live events; the ends that the output gives them; for inputs that have them, by
name, the ends that they give."""

_KEPT_BREACHES = 1_000


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of time that too few joined inputs cover; `input` is the next, at `end`."""

    start: int
    end: int
    input: str


class LMerge(Replay):
    """An LMerge operator; see the module's text. Never awaits, logs, reads a clock or raises for
    what an input sends."""

    case: ClassVar[Case]
    """The restriction that the inputs obey."""
    any_partitions: ClassVar[bool] = True
    """Whether an input may be spread over several partitions, which give no order together."""

    def __init__(self, policy: Policy = Policy()) -> None:
        self.policy = policy
        self.max_stable = START
        self.inputs: dict[str, Input] = {}
        """The attached inputs by name, in the order in which they were attached."""
        self._stats = Stats()
        self._incarnations: dict[str, int] = {}
        self._breaches: deque[Breach] = deque(maxlen=_KEPT_BREACHES)
        self._emission, self._replayed = policy.emission, policy.replayed
        self._voters, self._lag = policy.voters, policy.lag

    # --- inputs -------------------------------------------------------------------------------

    def attach(
        self,
        name: str,
        joining_at: int = START,
        partitions: int = 1,
        *,
        accepted_gap: bool = False,
    ) -> None:
        """Adds an input that is correct for every event with ve >= joining_at.

        A name that is attached already is a new incarnation: it keeps its place among the inputs,
        which decides ties, and nothing else. `accepted_gap` is for rebuilding: `accept_gap` had
        this input joined before its time.

        Raises:
            ValueError: several partitions, in a case that needs an order across them.
        """
        if partitions > 1 and not self.any_partitions:
            raise ValueError(
                f"case {self.case} needs an order, which {partitions} partitions of {name!r} do "
                "not give together"
            )
        if (before := self.inputs.get(name)) is not None:
            self._forget(before)
        number = self._incarnations.get(name, -1) + 1
        self._incarnations[name] = number
        source = Input(name, number, joining_at, partitions)
        source.joined = accepted_gap or joining_at <= self.max_stable
        source.gap_until = joining_at if accepted_gap else START
        self.inputs[name] = source
        self._enter(source)

    def attach_like(self, other: "LMerge") -> None:
        """Attaches the inputs of another operator, which have not sent anything here, and takes
        over what it has counted."""
        for name, source in other.inputs.items():
            self._incarnations[name] = source.incarnation - 1
            accepted = source.gap_until > START
            self.attach(name, source.joining_at, len(source.stables), accepted_gap=accepted)
        self._incarnations = dict(other._incarnations)
        self._stats = replace(other._stats)

    def detach(self, name: str) -> list[Element]:
        """Removes an input and all that only it held; half-frozen output events stay.

        Returns the elements to emit: none under any of today's policies.
        """
        source = self.inputs.pop(name, None)
        if source is None:
            raise ValueError(f"no input {name!r} is attached")
        self._forget(source)
        return []

    @property
    def gap(self) -> Gap | None:
        """The range that is not covered: fewer inputs are joined than decide about a stable, and
        those that could make up for it start beyond max_stable. The output waits until
        `accept_gap`, or until an input is attached that closes it."""
        joining = [source for source in self.inputs.values() if not source.joined]
        joined = len(self.inputs) - len(joining)
        if joined >= self._voters or len(self.inputs) < self._voters:
            return None
        first = min(joining, key=lambda source: source.joining_at)
        return Gap(self.max_stable, first.joining_at, first.name)

    def accept_gap(self) -> tuple[Gap, list[Element]]:
        """Goes on without the range of `gap`: an operator's explicit choice to lose it. Under a
        quorum there may be another gap then, until enough inputs are joined.

        Events that the output had half frozen stay as they are unless an input still has them.

        Raises:
            ValueError: there is no gap.
        """
        gap = self.gap
        if gap is None:
            raise ValueError("there is no gap to accept")
        source = self.inputs[gap.input]
        source.accept_gap()
        out = self.empty()
        self._on_joined(source, out)
        self._advance_stable(out)
        return gap, out

    def accept(self, name: str, end: int) -> None:
        """Follows the original in having accepted the gap up to `end`, where the input begins
        (`Gap.end`). To be called after what the output has emitted since is loaded; again, it does
        nothing.

        Raises:
            ValueError: no attached input of that name joins at `end`.
        """
        source = self.inputs.get(name)
        if source is None or source.joining_at != end:
            raise ValueError(f"no input {name!r} that joins at {end} is attached")
        source.accept_gap()
        self._apply_deferred()

    # --- elements -----------------------------------------------------------------------------

    hash_of: ClassVar["staticmethod[[Any], int]"] = staticmethod(hash)
    """A hash of a payload, the same for all operators of this class in this process."""

    def remembering(self, most: int, otherwise: Callable[[int], Any]) -> Any:
        """What remembers the keys of elements that this operator emits (`findings.losses`):
        `otherwise`, unless they are native."""
        return otherwise(most)

    def empty(self) -> list[Element]:
        """A sequence without elements, of the kind that `process_batch` returns: what to collect
        elements in."""
        return []

    def process(self, name: str, element: Element, partition: int = 0) -> list[Element]:
        """Takes one element of an input; returns what the output emits, often nothing.

        Raises:
            ValueError: no input of that name was ever attached.
        """
        source = self.inputs.get(name)
        if source is None:
            return self.process_batch(name, (element,), partition)
        out: list[Element] = []
        self._element(source, element, partition, self._emission, out)
        return out

    def process_batch(
        self, name: str, elements: Iterable[Element], partition: int = 0
    ) -> list[Element]:
        """The same for many elements of one partition of one input, in order."""
        source = self.inputs.get(name)
        if source is None:
            self._refuse_detached(name, elements)
            return []
        return self._elements(source, elements, partition, self._emission)

    def _elements(
        self, source: Input, elements: Iterable[Element], partition: int, emission: Emission
    ) -> list[Element]:
        out: list[Element] = []
        for element in elements:
            self._element(source, element, partition, emission, out)
        return out

    def _element(
        self,
        source: Input,
        element: Element,
        partition: int,
        emission: Emission,
        out: list[Element],
    ) -> None:
        kind = type(element)
        if kind is Insert:
            source.inserts += 1
            if element.vs < source.stables[partition]:  # type: ignore[union-attr]
                self._blame(source, BreachKind.BROKE_OWN_STABLE, element)
            elif element.ve <= element.vs:  # type: ignore[union-attr]
                self._blame(source, BreachKind.MALFORMED, element)
            else:
                self._insert(source, element, emission, out)  # type: ignore[arg-type]
        elif kind is Adjust:
            source.adjusts += 1
            if min(element.vold, element.ve) < source.stables[partition]:  # type: ignore[union-attr]
                self._blame(source, BreachKind.BROKE_OWN_STABLE, element)
            elif element.vold <= element.vs or element.ve < element.vs:  # type: ignore[union-attr]
                self._blame(source, BreachKind.MALFORMED, element)
            else:
                own_stable = source.stables[partition]
                self._adjust(source, element, own_stable, emission, out)  # type: ignore[arg-type]
        else:
            self._stable(source, element, partition, out)  # type: ignore[arg-type]

    def _refuse_detached(self, name: str, elements: Iterable[Element]) -> None:
        if name not in self._incarnations:
            raise never_attached(name)
        for element in elements:
            self._record(Breach(name, self._incarnations[name], BreachKind.AFTER_DETACH, element))

    def _stable(self, source: Input, element: Stable, partition: int, out: list[Element]) -> None:
        source.stables_in += 1
        before = source.stables[partition]
        if element.vc > before:
            source.advance(partition, element.vc)
            self._advance_stable(out)
        elif element.vc < before:
            self._blame(source, BreachKind.STABLE_REGRESSION, element)

    def _advance_stable(self, out: list[Element]) -> None:
        """Moves the output to the stable that the joined inputs give, as often as that helps
        others to be joined."""
        while True:
            t, voters = self._next_stable()
            if t <= self.max_stable:
                return
            self._freeze(voters, t, out)
            self._emit_stable(t, voters[0], out)

    def _next_stable(self) -> tuple[int, Sequence[Input]]:
        """The stable point that the policy gives, and the inputs that decide what is frozen by
        it, the highest first; ties go to the input attached first."""
        return next_stable(self.inputs.values(), self._voters, self._lag)

    def _emit_stable(self, t: int, leader: Input, out: list[Element]) -> None:
        self.max_stable = t
        out.append(Stable(t))
        self._stats.stables += 1
        if self._stats.leader != leader.name:
            self._stats.switches += self._stats.leader is not None
            self._stats.leader = leader.name
        for source in self._join(t):
            self._on_joined(source, out)

    def _join(self, t: int) -> list[Input]:
        """Has the inputs joined that are correct from the stable point t on; gives them."""
        newly = [s for s in self.inputs.values() if not s.joined and s.joining_at <= t]
        for source in newly:
            source.joined = True
        return newly

    def _is_leader(self, source: Input) -> bool:
        """It leads, and was attached first of those that do."""
        return source.joined and source is leaders(self.inputs.values())[0]

    def _reflects(self, source: Input) -> bool:
        """Whether the adjust policy, unless lazy, names this input."""
        return self.policy.adjust == "eager" or self._is_leader(source)

    # --- what a case adds -----------------------------------------------------------------------

    @abstractmethod
    def _insert(
        self, source: Input, element: Insert[Any], emission: Emission, out: list[Element]
    ) -> None:
        """Takes a well-formed insert that does not touch what its own partition has made final."""

    @abstractmethod
    def _adjust(
        self,
        source: Input,
        element: Adjust[Any],
        own_stable: int,
        emission: Emission,
        out: list[Element],
    ) -> None:
        """The same for an adjust; `own_stable` is the stable of its own partition."""

    @abstractmethod
    def _freeze(self, voters: Sequence[Input], t: int, out: list[Element]) -> None:
        """Makes the output compatible with what it is about to emit: stable(t), as the voters
        did."""

    def _enter(self, source: Input) -> None:
        """Makes room for a new input."""

    def _on_joined(self, source: Input, out: list[Element]) -> None:
        """Takes up what an input sent while it was joining, where the case had to put it off."""

    @abstractmethod
    def _forget(self, source: Input) -> None:
        """Drops every entry of an input."""

    # --- blame --------------------------------------------------------------------------------

    def breaches(self) -> list[Breach]:
        """Hands over the breaches recorded since the last call (the latest 1,000 of them)."""
        found = list(self._breaches)
        self._breaches.clear()
        return found

    def blame(self, name: str, kind: BreachKind, element: Element) -> None:
        """Records a breach of an attached input that was found before its element came here."""
        self._blame(self.inputs[name], kind, element)

    def _blame(
        self,
        source: Input,
        kind: BreachKind,
        element: Element,
        kept: Event | None = None,
        versions: tuple[tuple[str, tuple[int, ...]], ...] = (),
    ) -> None:
        source.breaches[kind] += 1
        self._record(Breach(source.name, source.incarnation, kind, element, kept, versions))

    def _record(self, breach: Breach) -> None:
        if len(self._breaches) == _KEPT_BREACHES:
            self._stats.breaches_dropped += 1
        self._breaches.append(breach)

    def stats(self) -> Stats:
        """What the output has carried so far: a live view, not a copy."""
        return self._stats

    # --- feedback -------------------------------------------------------------------------------

    def feedback(self) -> dict[str, int]:
        """For each input that lags the time t such that nothing it could send about events with
        ve < t matters any more (paper V-D). It may leave out events with a *final* ve < t."""
        t = self.max_stable
        return {name: t for name, source in self.inputs.items() if source.stable < t}

    # --- state --------------------------------------------------------------------------------

    @abstractmethod
    def __len__(self) -> int:
        """The number of live events: those not fully frozen."""

    def live_output(self) -> Iterator[Event] | None:
        """The output's events with ve >= max_stable, as it has emitted them, in no order: all of
        them that may still change. None: the case keeps too few of them.

        >>> from lmerge_service.core import lmerge
        >>> merge = lmerge("R3")
        >>> output = [Insert("p", 1, 5), Insert("q", 2, 9), Stable(7), Insert("r", 8, 12)]
        >>> merge.replay_output(output)
        >>> [(event.payload, event.ve) for event in merge.live_output()]
        [('q', 9), ('r', 12)]
        """
        return None

    def output_ends(self, payload: Hashable, vs: int) -> list[int]:
        """The ends of the output's live events with this payload and vs; none where the case keeps
        no events.

        >>> from lmerge_service.core import lmerge
        >>> merge = lmerge("R4")
        >>> merge.replay_output([Insert("p", 1, 5), Insert("p", 1, 5)])
        >>> merge.output_ends("p", 1), merge.output_ends("q", 1)
        ([5, 5], [])
        """
        return []

    def versions(self) -> Iterator[Versions] | None:
        """The live events by (payload, vs): the ends that the output gives them, and each input
        that has inserted them; an input's late ones are missing. None: the case has no index.

        >>> from lmerge_service.core import lmerge
        >>> merge = lmerge("R3")
        >>> merge.attach("a"); merge.attach("b")
        >>> [*merge.process("a", Insert("p", 1, 5)), *merge.process("b", Insert("p", 1, 7))]
        [Insert(payload='p', vs=1, ve=5)]
        >>> list(merge.versions())
        [('p', 1, [5], [('a', [5]), ('b', [7])])]
        """
        return None

    def parts(self, nodes: int = 2_000) -> Iterator[bytes]:
        """The whole state, but for breaches that have not been fetched, in parts: first one that
        describes it, then its events, at most `nodes` keys in each. They are bytes, so that they
        alias nothing, and `restore_parts` makes of them an operator that goes on the same. The
        operator must stay as it is until the last part is taken.

        Raises:
            StateError: a payload is of a kind that would not come back as it was.
            ValueError: the operator went on meanwhile.

        Complexity: a part O(its events), the first O(w).
        """
        numbers = {source: number for number, source in enumerate(self.inputs.values())}
        head = self._head()
        for part in parted(head, self._items(), nodes, lambda some: self._packed(some, numbers)):
            yield part
            if self._head() != head:
                raise ValueError("the operator went on while the parts of its state were taken")

    def snapshot(self) -> bytes:
        """All `parts` in one, behind a digest; `restore` makes an operator of it.

        Raises:
            StateError: a payload is of a kind that would not come back as it was.
        """
        return sealed(self.parts())

    def _head(self) -> bytes:
        return headed(
            case=self.case,
            policy=astuple(self.policy),
            max_stable=self.max_stable,
            incarnations=self._incarnations,
            stats=self._stats,
            inputs=[SavedInput.of(source) for source in self.inputs.values()],
            items=self._size(),
        )

    def load_head(self, head: Head) -> None:
        """Takes the first part of the state of an operator of the same case and policy."""
        self.max_stable = head.max_stable
        self._stats = head.stats
        self._incarnations = head.incarnations
        self.inputs = {each.name: each.to_input() for each in head.inputs}
        for source in self.inputs.values():
            self._enter(source)

    body: ClassVar[Any]
    """The type of the body of the other parts."""

    @abstractmethod
    def _size(self) -> int:
        """The number of items."""

    @abstractmethod
    def _items(self) -> Iterator[Any]:
        """What the case has, in order."""

    @abstractmethod
    def _packed(self, items: list[Any], numbers: Mapping[Input, int]) -> Any:
        """Items as plain data, with inputs as numbers."""

    @abstractmethod
    def load_body(self, body: Any) -> None:
        """Takes the body of the next part, after the first one.

        Raises:
            LookupError, TypeError, ValueError: they are damaged.
        """

    def check(self) -> None:
        """Asserts every invariant, in words."""
        t, _ = self._next_stable()
        assert t <= self.max_stable, f"O1: the output should be at {t}, not {self.max_stable}"
        for source in self.inputs.values():
            source.check()
            if not source.joined:
                assert source.joining_at > self.max_stable, f"O2: {source} should be joined"
