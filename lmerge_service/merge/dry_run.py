"""A dry run: a replica is compared with the output that it would go into; nothing is written.

Theory
    An operator under `stable: quorum(2)` over two inputs moves where *both* have declared time
    final, keeps what either of them has there, and reports each input that has it otherwise. So
    the operator over the output and the replica, whose own output nobody sees, compares every
    event once, and holds no more than what is not final in both:

        output    ins(p, 1, 9)  ins(q, 2, 5)      stable(10)
        replica   ins(p, 1, 7)            ins(r, 3, 4)      stable(10)
                  → p has another end, q is missing, r is only the replica's

    An output that has lost its beginning is read from a snapshot on (`snapshots.beginnings`): it is
    correct from some time on, as a replica that joined late is, and what ends before is not
    compared.

Invariants
    S1  No more than `LIVE` events and one batch are held beyond what is not final in whichever is
        behind: the one that is ahead is not read on meanwhile.

Who owns what
    A `DryRun` owns a consumer, in no group, and an admin client, from `async with` on; a search for
    a place owns a consumer for as long as it lasts. On a crash nothing is left behind.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from lmerge_service.config.topology import Replica, Topology
from lmerge_service.core import DIVERGENT, Breach, BreachKind, Case, Policy, lmerge
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.dialects import decoders_of
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.find import FoundRecord
from lmerge_service.kafka.source import Batches, TopicPartition
from lmerge_service.merge.snapshots.beginnings import PartitionStart, beginnings_of, latest
from lmerge_service.merge.step import MergeStep
from lmerge_service.tdb import Event

__all__ = ("LIVE", "Compared", "DifferenceKind", "DifferingEvent", "DryRun")

LIVE: Final = 100_000
_OUTPUT: Final = "output"
_REPLICA: Final = "replica"
_POLL_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 2.0
_BATCH: Final = 4_000
_SHOWN: Final = 20


class DifferenceKind(StrEnum):
    """How an event differs."""

    MISSING = "missing"
    """The output has it, and the replica has not."""
    ADDED = "added"
    """The replica has it, and the output has not."""
    OTHER_END = "other_end"
    """Both have it, with other ends."""


@dataclass(frozen=True, slots=True)
class DifferingEvent:
    """One event that would be another."""

    kind: DifferenceKind
    payload: bytes
    vs: int
    output: tuple[int, ...]
    """The ends that the output gives it; none if it does not have it."""
    replica: tuple[int, ...]
    """The same of the replica."""
    at: tuple[FoundRecord | None, FoundRecord | None] = (None, None)
    """The last records about it in the output and in the replica, where they were found."""


@dataclass(slots=True)
class Compared:
    """What was found until now."""

    output_stable: int = START
    replica_stable: int = START
    stable: int = START
    """Up to where both were compared."""
    events: int = 0
    """That were compared to their ends."""
    live: int = 0
    """Events that are held."""
    most_live: int = 0
    lag: tuple[int, int] = (0, 0)
    """Records of the output and of the replica that were there and not read."""
    counts: Counter[DifferenceKind] = field(default_factory=Counter)
    first: list[DifferingEvent] = field(default_factory=list)
    """The first 20 of them."""
    breaches: Counter[str] = field(default_factory=Counter)
    """What else the replica did wrong, by kind."""
    dead: int = 0
    """Records of the replica that are no elements."""


class DryRun:
    """Compares a replica with the output of a merge; use as `async with`, then `run`."""

    def __init__(
        self, topology: Topology, replica: Replica, cluster: Cluster, *, live: int = LIVE
    ) -> None:
        """`live`: how many events are held before the one that is ahead waits.

        Raises:
            ConfigurationError: the replica's own description does not allow to compare it.
        """
        ordered = topology.resolved_case in {Case.R0, Case.R2, Case.R3}
        self._merge = lmerge(Case.R3 if ordered else Case.R4, Policy(stable="quorum(2)"))
        limits = topology.limits
        self._decoder = WireDecoder(
            nfc=topology.nfc,
            drop_nulls=topology.drop_nulls,
            max_record_bytes=limits.max_record_bytes,
            max_depth=limits.max_nesting,
        )
        self.found = Compared()
        self._topology, self._replica, self._cluster = topology, replica, cluster
        self._live = live
        self._names = {topology.output.topic: _OUTPUT, replica.topic: _REPLICA}
        if len(self._names) < 2:
            raise ConfigurationError(f"{replica.topic} is the output: there is nothing to compare")
        self._steps: dict[str, MergeStep] = {}
        self._inserted = 0

    async def __aenter__(self) -> "DryRun":
        """Raises TransportError when Kafka cannot be reached, ConfigurationError for a topic, and
        StateError where nobody knows what the output held before it begins."""
        async with AsyncExitStack() as stack:
            self._topics = await stack.enter_async_context(self._cluster.topics())
            self._source = await stack.enter_async_context(
                self._cluster.source(max_record_bytes=self._topology.limits.max_record_bytes)
            )
            await self._begin()
            self._opened = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    async def _begin(self) -> None:
        found = await self._topics.describe(list(self._names))
        for topic in self._names:
            if topic not in found:
                raise ConfigurationError(f"there is no topic {topic}: there is nothing to compare")
        self._infos = found
        starts = await self._source.beginnings(self._partitions())
        self._upto = await self._source.ends(self._partitions())
        joining_at = START if self._replica.joining_at is None else self._replica.joining_at
        for tp, at in starts.items():
            if joining_at == START and at > 0 and tp.topic == self._replica.topic:
                raise ConfigurationError(
                    f"{tp.topic} begins at offset {at} of partition {tp.partition}: state from "
                    "when on the replica is to be compared (--joining-at)"
                )
        begun, output = await self._begun(starts), self._topology.output.topic
        behind = {TopicPartition(output, n): each.offset for n, each in enumerate(begun)}
        self._source.assign(starts | behind)
        incarnation, correct_from, holding = latest(begun) if begun else (0, START, [])
        self._steps = {
            _OUTPUT: self._step(_OUTPUT, output, correct_from, None, incarnation),
            _REPLICA: self._step(_REPLICA, self._replica.topic, joining_at, self._replica),
        }
        self._count([*self._accept_gaps(), *self._hold(holding)])

    async def _begun(self, starts: Mapping[TopicPartition, int]) -> list[PartitionStart]:
        """By partition, what a snapshot has of an output that has lost its beginning; else none."""
        topic, state = self._topology.output.topic, self._topology.output.state_topic
        lost = [tp for tp in self._partitions(topic) if starts[tp]]
        if not lost:
            return []
        if not await self._topics.describe([state]):
            raise ConfigurationError(
                f"{topic} begins at offset {starts[lost[0]]} of partition {lost[0].partition}, and "
                f"there is no {state}: nobody knows what was before"
            )
        async with self._cluster.source(  # a search moves its positions
            max_record_bytes=self._topology.limits.max_record_bytes
        ) as source:
            return await beginnings_of(source, topic, self._infos[topic].partitions)

    def _hold(self, holding: Sequence[PartitionStart]) -> Iterator[Element]:
        """Begins with what the partitions of the output held."""
        for partition, each in enumerate(holding):
            held: list[Element] = [*each.inserts(self._decoder)]
            if each.stable > START:
                held.append(Stable(each.stable))
            yield from self._steps[_OUTPUT].input.process(held, partition)

    def _accept_gaps(self) -> list[Element]:
        """What was before both are correct is not compared."""
        emitted: list[Element] = []
        while self._merge.gap is not None:
            emitted += self._merge.accept_gap()[1]
        return emitted

    def _partitions(self, topic: str | None = None) -> list[TopicPartition]:
        """Of a topic, or of both."""
        infos = self._infos.items()
        selected = [(name, info) for name, info in infos if topic in {None, name}]
        return [TopicPartition(name, n) for name, info in selected for n in range(info.partitions)]

    def _step(
        self,
        name: str,
        topic: str,
        joining_at: int,
        replica: Replica | None,
        incarnation: int = 0,
    ) -> MergeStep:
        return MergeStep(
            self._merge,
            name,
            self._decoder,
            topic=topic,
            partitions=self._infos[topic].partitions,
            joining_at=joining_at,
            incarnation=incarnation,
            normalise=replica is not None and replica.normalise,
            dialect=None if replica is None else decoders_of(replica.format, self._decoder),
        )

    # --- comparing ------------------------------------------------------------------------------

    async def run(self, span: int | None, report: Callable[[Compared], object]) -> Compared:
        """Compares what the topics contain by now, once open transactions have ended; with a `span`
        of the streams' time, so much beyond the output's stable point by then. `report` receives
        the progress, every two seconds.

        Raises:
            StateError: a topic has lost what is to be read, was recreated or has more partitions.
            TransportError: Kafka went away; a transaction is left open before the end.
        """
        clock = asyncio.get_running_loop().time
        if span is None:
            self._upto = await self._source.settled(self._partitions())
        looked, until = clock(), None
        while not self._is_over(until):
            await self._compare(await self._source.poll(_POLL_SECONDS, _BATCH))
            if clock() - looked >= _LOOK_SECONDS:
                await self._look()
                looked = clock()
                report(self.found)
            if until is None and self._has_read_all():
                if span is None:
                    break
                if self.found.output_stable > START:
                    until = min(self.found.output_stable + span, INFINITY)
        await self._look()
        return self.found

    def _is_over(self, until: int | None) -> bool:
        stable = self.found.stable
        return stable == INFINITY or (until is not None and stable >= until)

    def _has_read_all(self) -> bool:
        """What the topics held when they were opened, as far as it can be compared."""
        read = {
            topic: all((self._source.position(tp) or 0) >= self._upto[tp] for tp in parts)
            for topic in self._names
            if (parts := self._partitions(topic))
        }
        waiting = {tp.topic for tp in self._source.paused}
        return any(read.values()) and all(done or topic in waiting for topic, done in read.items())

    async def _compare(self, batches: Batches) -> None:
        out: list[Element] = []
        dead: list[DeadLetter] = []
        for tp, records in batches.items():
            step = self._steps[self._names[tp.topic]]
            step.take(tp.partition, records, out, dead)
            if step.decoder.torn is not None:
                raise StateError(f"{tp.topic} {step.decoder.torn}")
        if self._source.lost:
            tp, why = next(iter(self._source.lost.items()))
            raise StateError(f"{tp.topic}, partition {tp.partition}: {why}")
        self._count([*out, *self._accept_gaps()])
        found, inputs = self.found, self._merge.inputs
        found.output_stable, found.replica_stable = inputs[_OUTPUT].stable, inputs[_REPLICA].stable
        found.stable, found.live = self._merge.max_stable, len(self._merge)
        found.events = self._inserted - found.live
        found.most_live = max(found.most_live, found.live)
        found.dead += sum(letter.replica == _REPLICA for letter in dead)
        for breach in self._merge.breaches():
            await self._note(breach)
        self._pace()

    def _count(self, emitted: Iterable[Element]) -> None:
        for each in emitted:
            self._inserted += type(each) is Insert
            self._inserted -= type(each) is Adjust and each.ve == each.vs

    def _pace(self) -> None:
        """The one that is ahead waits while much is held."""
        found = self.found
        ahead = self._replica.topic
        if found.output_stable > found.replica_stable:
            ahead = self._topology.output.topic
        wait = found.live > self._live and found.output_stable != found.replica_stable
        held = set(self._partitions(ahead) if wait else [])
        self._source.resume(self._source.paused - held)
        self._source.pause(held - self._source.paused)

    async def _note(self, breach: Breach) -> None:
        kind = breach.kind
        if kind not in DIVERGENT or breach.kept is None:
            if breach.input == _REPLICA:
                self.found.breaches[kind.value] += 1
            return
        difference = DifferenceKind.OTHER_END
        if kind is BreachKind.HALF_FROZEN_MISSING:
            missing = breach.input == _REPLICA
            difference = DifferenceKind.MISSING if missing else DifferenceKind.ADDED
        self.found.counts[difference] += 1
        if len(self.found.first) < _SHOWN:
            self.found.first.append(await self._located(difference, breach, breach.kept))

    async def _located(self, kind: DifferenceKind, breach: Breach, event: Event) -> DifferingEvent:
        ends = dict(breach.versions)
        assert isinstance(event.payload, bytes)
        places = [
            await self._place(topic, event) if ends.get(name) else None
            for topic, name in self._names.items()
        ]
        output, replica = ends.get(_OUTPUT, ()), ends.get(_REPLICA, ())
        return DifferingEvent(
            kind, event.payload, event.vs, output, replica, (places[0], places[1])
        )

    async def _place(self, topic: str, event: Event) -> FoundRecord | None:
        if topic == self._replica.topic and self._replica.format != "wire":
            return None  # its records have to be decoded before they are about events
        before = {
            tp: at
            for tp in self._partitions(topic)
            if (at := self._source.position(tp)) is not None
        }
        return await self._cluster.find_event(before, event, decoder=self._decoder)

    # --- how far it is --------------------------------------------------------------------------

    async def _look(self) -> None:
        found = await self._topics.describe(list(self._names))
        for topic, info in self._infos.items():
            if topic in found and found[topic] != info:
                raise StateError(f"{topic} was recreated, or has got more partitions: begin again")
        behind = Counter[str]()
        for tp, end in (await self._source.high_watermarks(self._partitions())).items():
            behind[tp.topic] += max(0, end - (self._source.position(tp) or 0))
        self.found.lag = (behind[self._topology.output.topic], behind[self._replica.topic])
