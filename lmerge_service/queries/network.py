"""A network of operators: how a physical plan runs.

Theory
    The operators stand in topological order; each input of one is a source of the network or an
    earlier operator, and an operator may feed several (a shared part of the plan). A batch passes
    operator by operator: all that one emits goes, per port, into those it feeds, at once. So a
    diamond is inconsistent only within a call, and the netting at the top takes out what that
    leaves.

    >>> from lmerge_service.elements import Insert, Stable
    >>> from lmerge_service.queries.operators.stateless import Select
    >>> from lmerge_service.queries.operators.union import Union
    >>> twice = Network([
    ...     Part(Select(lambda row: row > 1), ["numbers"]),
    ...     Part(Union(2), [0, "numbers"]),
    ... ])
    >>> for element in twice.process_batch("numbers", [Insert(1, 0, 9), Insert(2, 0, 9)]):
    ...     print(element)
    Insert(payload=2, vs=0, ve=9)
    Insert(payload=1, vs=0, ve=9)
    Insert(payload=2, vs=0, ve=9)

Cost
    That of its operators, and O(1) for each element that passes from one to the next.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from lmerge_service.core.snapshots import sealed, unsealed
from lmerge_service.elements import START, Adjust, Element, Insert
from lmerge_service.errors import StateError
from lmerge_service.queries.netting import net
from lmerge_service.queries.operators.protocol import Operator, Skip

__all__ = ("Flow", "Network", "Part")


class Part(NamedTuple):
    """One operator, and what feeds each of its ports: the name of a source, or the position of an
    earlier operator."""

    operator: Operator
    feeds: Sequence[str | int]
    node: int | None = None
    """Which node of the plan it computes, in the order of `logical.nodes`."""


class Flow(msgspec.Struct):
    """What has passed one operator since the network began."""

    taken: int = 0
    """Elements in."""
    emitted: int = 0
    """Elements out, adjusts and stables among them."""
    adjusts: int = 0
    """Adjusts out."""
    nanoseconds: int = 0
    """Time spent in it, if the network has a clock."""
    skipped: int = 0
    """Inserts that it has emitted and that were left out, because they do not matter any more."""


class _Saved(msgspec.Struct, array_like=True):
    fingerprint: str
    flows: list[Flow]
    skip: int
    skips: list[tuple[str | int, int, int]]
    skipped: dict[str, int]


class Network:
    """Operators that feed each other; the last is the top, whose output is the network's.

    `fingerprint` names the plan, so that no state is taken for another plan's; `clock` gives
    nanoseconds, to count the time per operator; `unrevised` are the sources that send inserts only.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        fingerprint: str = "",
        clock: Callable[[], int] | None = None,
        unrevised: Collection[str] = (),
    ) -> None:
        self.operators = [part.operator for part in parts]
        self.flows = [Flow() for _ in parts]
        self._nodes = [part.node for part in parts]
        self.fingerprint = fingerprint
        self.skipped = dict.fromkeys(unrevised, 0)
        """How many inserts of each source that is not revised were left out."""
        self._clock = clock
        self._feeds = [part.feeds for part in parts]
        self._unrevised: set[str | int] = set(unrevised)
        """What emits inserts only, of sources and operators: their ends are final at once."""
        self.skip = START
        """What `skip_before` has been called with."""
        self._skips: dict[str | int, Skip] = {}
        """What is left out, of these."""
        self._fed: dict[str | int, list[tuple[int, int]]] = {}
        for at, (operator, feeds, _) in enumerate(parts):
            if len(feeds) != operator.ports:
                raise ValueError(f"operator {at} has {operator.ports} ports, {len(feeds)} feeds")
            for port, feed in enumerate(feeds):
                if isinstance(feed, int) and not 0 <= feed < at:
                    raise ValueError(f"operator {at} is fed by {feed}, which is not before it")
                self._fed.setdefault(feed, []).append((at, port))
            if operator.emits_inserts_only([feed in self._unrevised for feed in feeds]):
                self._unrevised.add(at)

    @property
    def sources(self) -> list[str]:
        """The names of what feeds the network."""
        return [feed for feed in self._fed if isinstance(feed, str)]

    @property
    def stable(self) -> int:
        """The stable point of the output."""
        return self.operators[-1].stable

    def __len__(self) -> int:
        """How many entries of state all operators hold."""
        return sum(len(operator) for operator in self.operators)

    def process(self, source: str, element: Element) -> list[Element]:
        """The net change of the output by one element of a source."""
        return self.process_batch(source, (element,))

    def process_batch(self, source: str, elements: Iterable[Element]) -> list[Element]:
        """The net change of the output by many elements of a source, and its stable if it rises.

        Raises:
            KeyError: the network has no such source.
        """
        waiting: dict[int, dict[int, Iterable[Element]]] = {}
        if (skip := self._skips.get(source)) is not None:
            batch = list(elements)
            elements = kept = _kept(batch, skip)
            self.skipped[source] += len(batch) - len(kept)
        for at, port in self._fed[source]:
            waiting.setdefault(at, {})[port] = elements
        top = len(self.operators) - 1
        for at in range(top):
            if (given := waiting.pop(at, None)) and (emitted := self._run(at, given)):
                for fed, port in self._fed.get(at, ()):
                    waiting.setdefault(fed, {})[port] = emitted
        return self._run(top, waiting[top]) if waiting else []

    def process_batches(self, given: Mapping[str, Iterable[Element]]) -> list[Element]:
        """The same for batches of several sources, one after the other, netted together."""
        return net([e for name, batch in given.items() for e in self.process_batch(name, batch)])

    def _run(self, at: int, given: Mapping[int, Iterable[Element]]) -> list[Element]:
        operator, flow, clock = self.operators[at], self.flows[at], self._clock
        begun = clock() if clock else 0
        emitted: list[Element] = []
        for port in sorted(given):
            batch = given[port] if isinstance(given[port], list) else list(given[port])
            flow.taken += len(batch)  # type: ignore[arg-type]
            emitted += operator.process_batch(batch, port)
        if len(given) > 1:
            emitted = net(emitted)
        if (skip := self._skips.get(at)) is not None:
            kept = _kept(emitted, skip)
            flow.skipped += len(emitted) - len(kept)
            emitted = kept
        flow.emitted += len(emitted)
        flow.adjusts += sum(1 for element in emitted if type(element) is Adjust)
        if clock:
            flow.nanoseconds += clock() - begun
        return emitted

    def skip_before(self, point: int) -> None:
        """Nothing about output events with a final ve below `point` matters any more: they may be
        left out, and so may input that matters for no others. The highest point counts for good.

        Left out are inserts of what is not revised, since their ends are final at once, and what
        operators leave out themselves.
        """
        if point <= self.skip:
            return
        self.skip = point
        top = len(self.operators) - 1
        wanted: dict[str | int, Skip | None] = {top: Skip(point)}
        for at in range(top, -1, -1):
            operator, skip = self.operators[at], wanted.get(at)
            of_inputs = operator.skip_before(skip) if skip else [None] * operator.ports
            for feed, each in zip(self._feeds[at], of_inputs, strict=True):
                wanted[feed] = _both(wanted[feed], each) if feed in wanted else each
        for feed in self._unrevised:
            if skip := wanted.get(feed):
                self._skips[feed] = skip

    def snapshot(self) -> bytes:
        """The state of all operators, behind a digest.

        Raises:
            StateError: a payload is of a kind that would not come back as it was.
        """
        skips = [(feed, *skip) for feed, skip in self._skips.items()]
        head = msgspec.msgpack.encode(
            _Saved(self.fingerprint, self.flows, self.skip, skips, self.skipped)
        )
        return sealed([head, *(operator.snapshot() for operator in self.operators)])

    def restore(self, saved: bytes) -> None:
        """Takes over the state of which `saved` is a snapshot, in place of its own.

        Raises:
            StateError: the bytes are damaged, or of another plan.
        """
        head, *parts = unsealed(saved)
        try:
            whole = msgspec.msgpack.decode(head, type=_Saved)
        except msgspec.MsgspecError as error:
            raise StateError(f"the snapshot is damaged: {error}") from error
        if whole.fingerprint != self.fingerprint or len(parts) != len(self.operators):
            raise StateError(
                f"the snapshot is of the plan {whole.fingerprint!r} with {len(parts)} operators; "
                f"this is {self.fingerprint!r} with {len(self.operators)}"
            )
        self.flows, self.skipped = whole.flows, whole.skipped
        self.skip = whole.skip
        self._skips = {feed: Skip(*skip) for feed, *skip in whole.skips}
        for operator, part in zip(self.operators, parts, strict=True):
            operator.restore(part)

    def check(self) -> None:
        """Asserts the invariants of every operator, and that none met an illegal element: below
        the top of a plan that would be a bug."""
        for operator in self.operators:
            operator.check()
            assert not operator.refused, f"{type(operator).__name__}: {operator.refused}"

    def stats(self) -> list[dict[str, Any]]:
        """Per operator its class, the node of the plan that it computes, what has passed it, and
        what it holds."""
        return [
            {"operator": type(operator).__name__, "node": node, "held": len(operator)}
            | msgspec.to_builtins(flow)
            for operator, node, flow in zip(self.operators, self._nodes, self.flows, strict=True)
        ]


def _kept(elements: list[Element], skip: Skip) -> list[Element]:
    before, since = skip
    return [e for e in elements if type(e) is not Insert or e.ve >= before or e.vs < since]


def _both(one: Skip | None, other: Skip | None) -> Skip | None:
    """What may be left out of what feeds two."""
    if one is None or other is None:
        return None
    return Skip(min(one.before, other.before), max(one.since, other.since))
