"""A query that runs, and may be computed by another plan from any time on.

Theory
    State is a plan's own: another plan of the same query, a later version of an operator, or a
    process that has lost its state has none. Its output is common property. So whoever is to go on
    with it is fed, while nobody listens, with the input that matters (`required_history`); what
    that emits is netted to one change, and of it what the output has not, or has otherwise, is
    emitted: no window has to fill, and a reader sees revisions at most (`switched_output`).

        the output        ins(a, 0, 60)  ins(b, 0, 60)  stable(30)
        the new plan      ins(a, 0, 60)  ins(b, 0, 45)  stable(20)    from history
        emitted           adj(b, 0, 60→45)                           stable(30) stands

    Plans that emit on every update have the same TDB after the same input: between them a switch
    emits nothing, unless starts are not exact, and then only what has begun since differs.

    The history is given, not kept. The events that an input still holds are on hand in Kafka, or in
    the snapshot of whoever reads it, and a switch is rare: to keep them beside the operators' own
    state would cost memory and time for every element of every query, for good. `LiveEvents` folds
    a source that consists of elements, and not of facts, to the events that make its history.

Invariants
    S1  The output is one legal stream, whatever plans have computed it.
    S2  Without a switch the elements are the network's, as they are; so they are again as soon as
        nothing from before the switch is left.
    S3  `output` is what the stream has emitted with ve >= its stable point.

Cost
    Beside the network's: O(1) per element of output (`LiveEvents`). A switch costs what its history
    costs the new network, and O(live events of the output).

    >>> from lmerge_service.elements import Insert
    >>> from lmerge_service.queries.physical import physical
    >>> from lmerge_service.queries.plan import count, facts, tumbling
    >>> flights = facts("flights", time="time", fields={"origin": str, "delay": int})
    >>> hourly = flights.windows(tumbling(60)).by("origin").aggregate(n=count())
    >>> query = RunningQuery(physical(hourly, emit="on_close"))
    >>> given = [Insert(("JFK", 5), 7, 8), Insert(("JFK", 2), 61, 62), Stable(65)]
    >>> query.process_batch("flights", given)
    [Insert(payload=('JFK', 1), vs=0, ve=60), Stable(vc=60)]
    >>> query.switch_plan(physical(hourly), {"flights": given})
    [Insert(payload=('JFK', 1), vs=60, ve=120)]
    >>> query.process_batch("flights", [Insert(("JFK", 9), 70, 71)])
    [Adjust(payload=('JFK', 1), vs=60, vold=120, ve=60), Insert(payload=('JFK', 2), vs=60, ve=120)]
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from lmerge_service.core.snapshots import sealed, unsealed
from lmerge_service.elements import START, Element, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.queries.live_events import LiveEvents
from lmerge_service.queries.logical import schema_of
from lmerge_service.queries.netting import net
from lmerge_service.queries.network import Network
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.properties import required_history
from lmerge_service.queries.switched_output import SwitchedOutput

__all__ = ("History", "RunningQuery", "saved_output")

_VERSION: Final = 1
_BATCH: Final = 10_000
"""So many elements of a history are fed at once."""

History = Mapping[str, Iterable[Element]]
"""Per source a legal stream: its events with ve >= the time that the plan requires, or more, and
its stable point."""


class _Saved(msgspec.Struct, array_like=True):
    version: int
    output: Any
    switched: Any
    skip: int


class RunningQuery:
    """The network of a plan, and the output that it has emitted, of one output partition.

    `clock` gives nanoseconds, to count the time per operator.
    """

    def __init__(self, plan: PhysicalPlan, clock: Callable[[], int] | None = None) -> None:
        self.plan = plan
        self.network = plan.begin(clock)
        self.output = LiveEvents()
        """What the output holds that may still change; not to be changed."""
        self._clock = clock
        self._switched: SwitchedOutput | None = None
        self._skip = START

    @classmethod
    def resume(
        cls,
        plan: PhysicalPlan,
        output: Iterable[tuple[Any, int, int]],
        stable: int,
        history: History,
        *,
        reaching: Mapping[str, int] | None = None,
        skip: int = START,
        clock: Callable[[], int] | None = None,
    ) -> tuple["RunningQuery", list[Element]]:
        """A query that goes on with an output of which nothing is left but itself: its events with
        ve >= `stable`, its stable point; `skip` is what `skip_before` was called with. Otherwise as
        `switch_plan`; it returns what is to be emitted first."""
        query = cls(plan, clock)
        query.output, query._skip = LiveEvents(output, stable), skip
        return query, query._continue(plan, query.network, history, reaching)

    @property
    def stable(self) -> int:
        """The stable point of the output."""
        return self.output.stable

    @property
    def is_switching(self) -> bool:
        """Whether something from before the last switch is left."""
        return self._switched is not None

    @property
    def contradictions(self) -> int:
        """How many events of the new plan contradict the output since the last switch, if it is not
        over: more than none is a plan of another query, or a history that was not whole."""
        return 0 if self._switched is None else self._switched.contradictions

    def __len__(self) -> int:
        """How many entries of state are held; O(operators)."""
        switched = 0 if self._switched is None else len(self._switched)
        return len(self.network) + self.output.entries + switched

    def process_batch(self, source: str, elements: Iterable[Element]) -> list[Element]:
        """As `Network.process_batch`."""
        return self._emitted(self.network.process_batch(source, elements))

    def process_batches(self, given: Mapping[str, Iterable[Element]]) -> list[Element]:
        """As `Network.process_batches`."""
        return self._emitted(self.network.process_batches(given))

    def _emitted(self, elements: list[Element]) -> list[Element]:
        if self._switched is not None:
            elements = self._switched.process_batch(elements)
            if self._switched.is_over and self.network.stable >= self._switched.since:
                self._switched = None
        if elements:
            self.output.apply(elements)
        return elements

    def switch_plan(
        self,
        plan: PhysicalPlan,
        history: History,
        *,
        reaching: Mapping[str, int] | None = None,
    ) -> list[Element]:
        """Has another plan of the query compute it from now on; returns what the output emits to
        become the new plan's. What raises leaves the query as it was.

        `history` is the input that has been processed so far, of each source the events with
        ve >= `required_history(plan, stable)`, and its stable point. `reaching` is from when on it
        is whole, per source; those that are not named are whole from their beginning.

        Raises:
            ConfigurationError: it is a plan of other sources or columns, a source has no history,
                or one that does not reach far enough.
        """
        new, old = schema_of(plan.plan), schema_of(self.plan.plan)
        if str(new) != str(old):
            raise ConfigurationError(
                f"a plan with rows {new} can't go on with an output of rows {old}: "
                "switch between plans of one query"
            )
        return self._continue(plan, plan.begin(self._clock), history, reaching)

    def _continue(
        self,
        plan: PhysicalPlan,
        network: Network,
        history: History,
        reaching: Mapping[str, int] | None,
    ) -> list[Element]:
        _check_history(network, plan, self.stable, history, reaching or {})
        if self._skip > START:
            network.skip_before(self._skip)
        computed = LiveEvents(stable=self.stable)
        for source in network.sources:
            elements = iter(history[source])
            while batch := list(islice(elements, _BATCH)):
                emitted = network.process_batch(source, batch)
                computed.apply(each for each in emitted if type(each) is not Stable)
        switched, changes = SwitchedOutput.begun(self.output, computed, self._skip)
        self.plan, self.network, self._switched = plan, network, switched
        first: list[Element] = [*changes]
        self.output.apply(first)
        return net([*first, *self._emitted([Stable(network.stable)])])

    def go_on_from(self, output: LiveEvents) -> list[Element]:
        """Has `output` be what was emitted, in the place of what this query has by itself: of a
        process that was killed, and whose input has been processed anew. Returns what makes it that
        of this query: nothing, where plans emit on every update or on close; operators that emit by
        how input was batched may have it otherwise. Events that end before the point of
        `skip_before`, which one of the two may have left out, are not compared.

        Raises:
            StateError: they differ while a switch is under way, or in what is final.
        """
        skip = self._skip
        if (self.stable, self.output.counted()) == (output.stable, output.counted()):
            self.output = output
            return []
        mine, theirs = (
            LiveEvents(((e.payload, e.vs, e.ve) for e in each if e.ve >= skip), output.stable)
            for each in (self.output, output)
        )
        stable, other = self.stable, mine.counted() != theirs.counted()
        if stable < output.stable or (other and self._switched is not None):
            raise StateError(
                "the output is not what this state emits: is there another writer, or other input?"
            )
        self.output, first = output, list[Element]()
        if other:
            switched, changes = SwitchedOutput.begun(theirs, mine, skip)
            first += changes
            self.output.apply(first)
            self._switched = None if switched.is_over else switched
        if other and self._switched is not None:
            return net([*first, *self._emitted([Stable(stable)])])
        return first if stable == output.stable else net([*first, *self._emitted([Stable(stable)])])

    def skip_before(self, point: int) -> None:
        """As `Network.skip_before`, for the plans to come as well."""
        if point > self._skip:
            self._skip = point
            self.network.skip_before(point)

    def snapshot(self) -> bytes:
        """The whole state, behind a digest.

        Raises:
            StateError: a payload is of a kind that would not come back as it was.
        """
        switched = None if self._switched is None else self._switched.state()
        saved = _Saved(_VERSION, self.output.state(), switched, self._skip)
        return sealed([msgspec.msgpack.encode(saved), self.network.snapshot()])

    def restore(self, saved: bytes) -> None:
        """Takes over the state of which `saved` is a snapshot, in place of its own.

        Raises:
            StateError: the bytes are damaged, or of another plan or version: `saved_output` has of
                those what another plan can go on from.
        """
        whole, network = _opened(saved)
        self.network.restore(network)
        self.output, self._skip = LiveEvents.loaded(whole.output), whole.skip
        self._switched = None if whole.switched is None else SwitchedOutput.loaded(whole.switched)

    def check(self) -> None:
        """Asserts the invariants of the network, the output and a switch."""
        self.network.check()
        self.output.check()
        if self._switched is not None:
            self._switched.check()
            assert self.stable == max(self._switched.since, self.network.stable), "S1: stable"
        else:
            assert self.stable == self.network.stable, "S2: the output is not the network's"

    def stats(self) -> list[dict[str, Any]]:
        """Those of the network, and during a switch what it holds."""
        operators = self.network.stats()
        if self._switched is not None:
            held, wrong = len(self._switched), self._switched.contradictions
            switch = {"operator": "SwitchedOutput", "held": held, "contradictions": wrong}
            operators.append(switch)
        return operators


def saved_output(saved: bytes) -> LiveEvents:
    """The output in a snapshot of a query, by whichever plan; bring it up to date with what has
    been emitted since, and `resume` by another plan.

    Raises:
        StateError: the bytes are damaged, or of another version.
    """
    whole, _ = _opened(saved)
    return LiveEvents.loaded(whole.output)


def _opened(saved: bytes) -> tuple[_Saved, bytes]:
    head, *networks = unsealed(saved)
    try:
        whole = msgspec.msgpack.decode(head, type=_Saved)
    except msgspec.MsgspecError as error:
        raise StateError(f"the snapshot is damaged: {error}") from error
    if whole.version != _VERSION or len(networks) != 1:
        raise StateError(f"the snapshot is of version {whole.version}, this is version {_VERSION}")
    return whole, networks[0]


def _check_history(
    network: Network, plan: PhysicalPlan, stable: int, history: History, reaching: Mapping[str, int]
) -> None:
    required = required_history(plan.plan, stable)
    for source in network.sources:
        if source not in history:
            given = ", ".join(map(repr, history)) or "none"
            raise ConfigurationError(
                f"the plan reads {source!r}, of which no history is given; there is {given}"
            )
        since, needed = reaching.get(source, START), required[source]
        if since > needed:
            every = "all its events" if needed == START else f"its events with ve >= {needed}"
            raise ConfigurationError(
                f"the history of {source!r} has its events with ve >= {since}; to go on at "
                f"stable({stable}) the plan needs {every}"
            )
