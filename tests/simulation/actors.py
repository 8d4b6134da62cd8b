"""Who takes part in a simulated run beside those who decide: replicas, workers, and decay.

Theory
    A replica publishes its stream in portions. A portion that may be written or not is written
    again, so that its topic holds repetitions; some write in transactions, and some of these leave
    them open for long, to commit them, or to die in them and write the same again; some stop for
    ever, or repeat themselves for ever; some end in the middle, as if that were all; some start
    over, with a new incarnation or in silence. One that is merged no more may turn
    liar: what it publishes from then on is false. A worker is killed at some request, is
    overtaken by another, or meets bad weather only; a supervisor starts the next one. In the end
    the weather stays, but nobody is killed any more, and what remains must come to its end.

    Meanwhile the state topic is compacted, and snapshots in it go bad: of marks, which the broker
    must keep, nothing is lost. Kafka deletes what is old by itself, of the output and of replicas'
    topics, whatever anybody reads at that moment: up to what the latest snapshots cover.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal, TypeAlias, cast

from lmerge_service.config.topology import Topology
from lmerge_service.drills.records import CommittedRecord
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.errors import LMergeError, LostOutputError, StateError, TransportError
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.merge.commit_record import (
    COMMIT_KEY,
    CommitRecord,
    ReplicaCheckpoint,
    SnapshotPlace,
)
from lmerge_service.merge.snapshots.reading import read_snapshot
from lmerge_service.merge.task_state import OpenedState
from lmerge_service.service.worker import Worker
from tests.simulation.adapter import build, work
from tests.simulation.clients import MemorySource
from tests.simulation.memory import Broker, Message, Producer
from tests.simulation.network import Network, Weather

__all__ = ("LINGERING_SECONDS", "Decay", "Deletion", "Publisher", "Repetition", "Supervisor")

LINGERING_SECONDS: Final = (25.0, 50.0)
Repetition: TypeAlias = Literal["repeats", "lives"]


@dataclass(slots=True)
class Publisher:
    """A replica."""

    name: str
    topic: str
    partitions: int
    partition_of: Callable[[bytes], int]
    stream: Sequence[Element]
    correct_from: int | None = None
    """From when on its stream is correct; None: from the beginning."""
    co_partitioned: bool = False
    transactional: bool = False
    stops_at: int | None = None
    """After so many elements it publishes nothing any more."""
    starts_over_at: int | None = None
    """After so many elements it begins its stream again."""
    takes_incarnations: bool = False
    """Starting over, it takes a new incarnation."""
    lingers: float = 0.0
    """The share of its transactions that are open for long."""
    died: bool = False
    """It has died in its latest long transaction; not in two, one after the other."""
    repeats: Repetition | None = None
    """Having stopped, it repeats what it has published, in the same life or in ever new ones."""
    ends_early: bool = False
    """Its stream ends in the middle."""
    ends_behind: str | None = None
    """The topic of another one, which has begun before this one ends: nobody waits for a replica
    that never wrote anything."""
    seen: Counter[str] = field(default_factory=Counter)
    """Where what it does is counted."""
    turned_at: int | None = None
    """When it became a liar, in milliseconds."""

    @property
    def is_whole(self) -> bool:
        """It publishes what is true, and all of it in the end."""
        cut = self.stops_at is not None or self.ends_early
        return not cut and self.turned_at is None and self.correct_from is None

    async def run(self, broker: Broker, chance: Random, weather: Weather) -> None:
        network = Network(broker, chance, weather)
        await _until_done(network, lambda: broker.create(self.topic, self.partitions))
        lives = [self.stream[: self.stops_at]]
        if self.starts_over_at is not None:
            lives = [self.stream[: self.starts_over_at], self.stream[: self.stops_at]]
        for incarnation, stream in enumerate(lives):
            position = 0
            while position < len(stream) and self.turned_at is None:
                size = chance.randint(1, 8)
                portion = stream[position : position + size]
                if self.ends_behind is not None and position + size >= len(stream):
                    await _until_begun(broker, self.ends_behind)
                await self._publish(network, portion, incarnation if self.takes_incarnations else 0)
                position += size
                await asyncio.sleep(chance.expovariate(1.0))
        if self.repeats is not None:
            await self._repeat(network, len(lives) - 1 if self.takes_incarnations else 0)

    async def _repeat(self, network: Network, incarnation: int) -> None:
        """Brings nothing new, for ever; little enough for whoever reads it in any weather."""
        chance, published = network.chance, self.stream[: self.stops_at]
        while self.turned_at is None:
            start = 0 if self.repeats == "lives" else chance.randrange(len(published) + 1)
            incarnation += self.repeats == "lives"
            await self._publish(network, published[start : start + 2], incarnation)
            self.seen["repeated for ever"] += 1
            await asyncio.sleep(chance.uniform(1, 8))

    def turn(self, broker: Broker, chance: Random) -> None:
        """Publishes what is not so, at once, and that this is all there is."""
        self.turned_at = int(asyncio.get_running_loop().time() * 1_000)
        inserts = [element for element in self.stream if type(element) is Insert]
        lies: list[Element] = [
            Insert(b'"a lie about %d"' % vs, vs, vs + chance.randint(1, 100))
            for vs in (chance.choice(inserts).vs for _ in range(3))
        ]
        lies += [
            Insert(each.payload, each.vs, each.ve + 1)
            for each in chance.sample(inserts, min(3, len(inserts)))
        ]
        lies += [
            Stable(max(each.vs for each in inserts) + chance.randint(1, 1_000)),
            Stable(INFINITY),
        ]
        incarnation = int(self.takes_incarnations and self.starts_over_at is not None)
        for number, messages in enumerate(self._parts(lies, incarnation)):
            broker.produce(TopicPartition(self.topic, number), messages)

    def _parts(self, portion: Sequence[Element], incarnation: int) -> list[list[Message]]:
        headers = incarnation_headers(incarnation)
        parts: list[list[Message]] = [[] for _ in range(self.partitions)]
        for element in portion:
            if type(element) is Stable:
                numbers: Sequence[int] = range(self.partitions)
            else:
                numbers = [self.partition_of(element.payload)]  # type: ignore[union-attr]
            for number in numbers:
                parts[number].append((None, encode(element), headers))
        return parts

    async def _publish(
        self, network: Network, portion: Sequence[Element], incarnation: int
    ) -> None:
        parts = self._parts(portion, incarnation)
        while True:
            try:
                await self._write(network, parts)
            except LMergeError:
                await asyncio.sleep(0.1)
            else:
                return

    async def _write(self, network: Network, parts: Sequence[list[Message]]) -> None:
        broker, producer = network.broker, None
        if self.transactional:
            name = f"{self.topic}.writer"
            producer = await network.request(lambda: broker.init_producer(name), "publishing")
        for number, messages in enumerate(parts):
            if messages:
                tp = TopicPartition(self.topic, number)
                await _produce(network, tp, messages, producer)
        if producer is not None:
            if network.chance.random() < self.lingers:
                await self._linger(network.chance)
            await network.request(lambda: broker.end(producer, commit=True), "publishing")

    async def _linger(self, chance: Random) -> None:
        """Longer than the guards' patience, and less than the broker's.

        Raises:
            TransportError: it dies; started again, it aborts what it has left open.
        """
        await asyncio.sleep(chance.uniform(*LINGERING_SECONDS))
        self.seen["lingered"] += 1
        self.died = not self.died and chance.random() < 0.4
        if self.died:
            raise TransportError("the writer has died")


async def _until_begun(broker: Broker, topic: str) -> None:
    while not broker.has_records(topic):  # noqa: ASYNC110 - the broker is looked at
        await asyncio.sleep(0.1)


async def _produce(
    network: Network, tp: TopicPartition, messages: list[Message], producer: Producer | None
) -> None:
    await network.request(lambda: network.broker.produce(tp, messages, producer), "publishing")


async def _until_done(network: Network, work: object) -> None:
    while True:
        try:
            await network.request(work, "preparing")  # type: ignore[arg-type]
        except LMergeError:
            await asyncio.sleep(0.1)
        else:
            return


@dataclass(slots=True)
class Supervisor:
    """Starts workers, one after the other or one over the other."""

    name: str
    topology: Topology
    broker: Broker
    chance: Random
    weather: Weather
    lives: int
    """How many workers are killed or overtaken before one is left in peace."""
    seen: Counter[str]
    """Where kills and such are counted."""
    workers: dict[str, Worker] = field(default_factory=dict)
    """Those that run, by name."""
    networks: dict[str, Network] = field(default_factory=dict)
    """Theirs to the broker."""
    pauses: bool = False
    """They are paused now and then, for less and for more than a session."""
    started: int = 0
    lost: int = 0
    """How many workers have ended because nothing was left to go on from; …"""
    bears_loss: bool = False
    """… they are started again, as others are."""
    toggles: Random | None = None
    """By whose chance one is started without the output's table."""

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            LMergeError: a worker ended for a reason that a restart does not heal.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(self.lives):
                worker = group.create_task(self._life(*self._end()))
                patience = self.chance.expovariate(1 / 30)
                await asyncio.wait({worker}, timeout=patience)
                self.seen["overtaken"] += not worker.done()
            while True:
                await self._life(None, "")
                await asyncio.sleep(1)

    def _end(self) -> tuple[int | None, str]:
        """At which of its requests a worker is killed, and for what they are."""
        chance = self.chance.random()
        if chance < 0.2:
            return None, ""
        if chance < 0.6:
            return self.chance.randint(1, 60), "committing"
        return self.chance.randint(1, 200), ""

    def _drawn_pauses(self) -> dict[int, float]:
        """By number of the request: less than a session, about one, or more than a transaction
        may stay open."""
        chance = self.chance
        return {
            chance.randint(1, 500): chance.choice(
                [chance.uniform(0.1, 5), chance.uniform(5, 9), chance.uniform(6, 40), 80.0]
            )
            for _ in range(chance.randint(0, 5))
        }

    def _drawn_topology(self) -> Topology:
        if self.toggles is None or self.toggles.random() < 0.6:
            return self.topology
        output = self.topology.output.model_copy(update={"table": False})
        self.seen["without table"] += 1
        return self.topology.model_copy(update={"output": output})

    async def _life(self, killed_at: int | None, killed_doing: str) -> None:
        self.started += 1
        network = Network(
            self.broker,
            Random(self.chance.random()),
            self.weather,
            name=f"{self.name}-{self.started}",
            killed_at=killed_at,
            killed_doing=killed_doing,
            pauses=self._drawn_pauses() if self.pauses else None,
        )
        self.networks[network.name] = network
        running = self.workers[network.name] = build(self._drawn_topology(), network)
        worker = asyncio.create_task(work(running))
        killed = asyncio.create_task(network.killed.wait())
        try:
            await asyncio.wait({worker, killed}, return_when=asyncio.FIRST_COMPLETED)
            if not worker.done():
                self.seen["kills"] += 1
                return
            try:
                worker.result()
            except LostOutputError:
                self.lost += 1
                if not self.bears_loss:
                    raise
                await asyncio.sleep(2)
        finally:
            self.seen["pauses"] += network.paused
            del self.workers[network.name], self.networks[network.name]
            worker.cancel()
            killed.cancel()
            await asyncio.gather(worker, killed, return_exceptions=True)
            network.close()


@dataclass(frozen=True, slots=True)
class Decay:
    """Compacts the state topic, and spoils snapshots in it; of an output that forgets one of two is
    left whole."""

    topology: Topology
    broker: Broker
    chance: Random
    seen: Counter[str]
    spoilt: set[str] = field(default_factory=set)
    """The digests that they had."""
    deleted: dict[int, int] = field(default_factory=dict)
    """By partition of the output, up to where Kafka has deleted by itself (`Deletion`)."""

    async def run(self) -> None:
        """Until cancelled."""
        topic = self.topology.output.state_topic
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / 5))
            if self.broker.describe(topic) is None:
                continue
            if self.chance.random() < 0.4:
                self.broker.compact(topic)
            else:
                self._spoil(topic)

    def _spoil(self, topic: str) -> None:
        chunks = [
            record
            for record in self.broker.topic(topic).records
            if record.key is not None and record.key.startswith(b"snapshot/") and record.value
        ]
        if not chunks:
            return
        record = self.chance.choice(chunks)
        if self.topology.output.keep is not None and not self._is_spare(record):
            return
        value = bytearray(record.value or b"")
        place = self.chance.randrange(len(value))
        match self.chance.choice(["missing", "truncated", "damaged"]):
            case "missing":
                spoilt = None
            case "truncated":
                spoilt = bytes(value[:place])
            case _:
                value[place] ^= 1 << self.chance.randrange(8)
                spoilt = bytes(value)
        self.broker.spoil(TopicPartition(topic, record.partition), record.offset, spoilt)
        self.seen["spoilt"] += 1

    def _is_spare(self, record: CommittedRecord) -> bool:
        """It is of the latest snapshot, and the one before is whole."""
        places = commit_of(self.broker, self.topology, record.partition).snapshots
        if len(places) < 2 or self.spoilt.intersection(each.digest for each in places):
            return False
        if self.deleted.get(record.partition, 0) > places[1].output:
            return False
        spare = places[0].first <= record.offset <= places[0].last
        if spare:
            self.spoilt.add(places[0].digest)
        return spare


@dataclass(frozen=True, slots=True)
class Deletion:
    """Kafka's own, by `retention.ms` or `retention.bytes`: from any moment on, the logs of the
    output and of replicas' topics begin anywhere up to what snapshots cover."""

    topology: Topology
    broker: Broker
    chance: Random
    seen: Counter[str]
    spoilt: Set[str]
    """The digests of snapshots that are damaged."""
    deleted: dict[int, int]
    """By partition of the output, up to where."""
    sources: bool
    """Replicas' topics lose their beginning, too: none of them is to be merged from there once
    more."""

    async def run(self) -> None:
        """Until cancelled."""
        output = self.topology.output
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / 8))
            if self.broker.describe(output.state_topic) is None:
                continue
            standings: list[Mapping[str, ReplicaCheckpoint]] = []
            for partition in range(output.partitions):
                whole = self._whole(partition)
                if whole:
                    tp = TopicPartition(output.topic, partition)
                    if self._delete(tp, whole[0].output):
                        self.deleted[partition] = self.broker.beginning(tp)
                found = [await self._standing(partition, each) for each in whole]
                standings += [each for each in found if each is not None] or [{}]
            if self.sources:
                self._delete_sources(standings)

    def _whole(self, partition: int) -> list[SnapshotPlace]:
        """The snapshots by which a task may recover, the latest first."""
        places = commit_of(self.broker, self.topology, partition).snapshots
        return [each for each in places if each.digest not in self.spoilt]

    async def _standing(
        self, partition: int, place: SnapshotPlace
    ) -> Mapping[str, ReplicaCheckpoint] | None:
        """The replicas that a snapshot has merged; None: a later one has taken its place."""
        opened, source = OpenedState(), MemorySource(Network(self.broker, self.chance))
        tp = TopicPartition(self.topology.output.state_topic, partition)
        try:
            await read_snapshot(cast(Source, source), tp, place, opened)
        except StateError:
            return None
        return opened.commit.replicas

    def _delete(self, tp: TopicPartition, most: int) -> bool:
        """Whether anything was there to delete."""
        begins = self.broker.beginning(tp)
        self.broker.truncate(tp, self.chance.randint(begins, max(begins, most)))
        self.seen["deleted by Kafka"] += (deletes := self.broker.beginning(tp) > begins)
        return deletes

    def _delete_sources(self, standings: Sequence[Mapping[str, ReplicaCheckpoint]]) -> None:
        """Of replicas that all snapshots have merged, what each task has that reads it."""
        for name in sorted(set(standings[0]).intersection(*standings[1:])):
            nexts: dict[TopicPartition, int] = {}
            for standing in standings:
                topic = standing[name].topic
                for number, each in standing[name].partitions.items():
                    tp = TopicPartition(topic, number)
                    nexts[tp] = min(each.next, nexts.get(tp, each.next))
            for tp, most in nexts.items():
                self.seen["deleted of replicas"] += self._delete(tp, most)


def commit_of(broker: Broker, topology: Topology, partition: int) -> CommitRecord:
    """A task's last commit record."""
    tp = TopicPartition(topology.output.state_topic, partition)
    mark = broker.last(tp, COMMIT_KEY)
    return CommitRecord() if mark is None else CommitRecord.of(mark.value)
