"""One simulated run: a seed decides everything, and the judge decides whether it went well.

    python -m tests.simulation --seed 7

Theory
    Three replicas present one logical stream, each in its own way, to topics of one to three
    partitions each. The output has one to three of its own, which as many workers share. Everything
    else is chance: how replicas publish, whether they leave transactions open, repeat themselves
    for ever or end too early, how often workers are killed and where, how bad the network is,
    whether snapshots are taken and spoilt, where logs begin, and what people decide meanwhile. When
    the output has ended, the topics are handed to the judge (`drills.history`), with what is so as
    the reference, and with what the decisions mean for it. An output that does not end within an
    hour of virtual time is a finding too, and so is a worker that gives up.
"""

import asyncio
import hashlib
import traceback
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import msgspec

from lmerge_service.config.topology import Topology
from lmerge_service.drills.control_log_check import Answer, ControlHistory, decided, lost
from lmerge_service.drills.history import History, Interval, ReplicaHistory, check
from lmerge_service.drills.records import CommittedTopic
from lmerge_service.drills.streams import incarnations
from lmerge_service.drills.verdicts import HistoryReport, Outcome
from lmerge_service.elements import INFINITY, Element, Stable
from lmerge_service.formats.routing import Router
from lmerge_service.formats.wire import encode
from lmerge_service.merge.findings.evidence import Evidence, NotificationKind
from lmerge_service.workloads.lifetime import Life
from tests.service.cluster import crc32, logical, meaning, replica_streams
from tests.simulation.actors import (
    LINGERING_SECONDS,
    Decay,
    Deletion,
    Publisher,
    Supervisor,
)
from tests.simulation.adapter import machine
from tests.simulation.disasters import Disasters, Restarter, wrong_in_upper_merge
from tests.simulation.folds import wrong_folds
from tests.simulation.late_readers import LateReaders
from tests.simulation.leaders import Leaders
from tests.simulation.loop import run
from tests.simulation.memory import Broker
from tests.simulation.network import Weather
from tests.simulation.people import People
from tests.simulation.table_readers import TableReaders

__all__ = ("Run", "command", "simulate")

_HOUR = 3_600.0
_END = encode(Stable(INFINITY))


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a seed."""

    seed: int
    report: HistoryReport
    topics: tuple[CommittedTopic, ...]
    ended: bool
    failed: str | None
    """Why a worker gave up."""
    seconds: float
    """Of virtual time."""
    seen: Counter[str]
    """What happened, and how often."""
    leaderless: float
    """The longest time in seconds that any task had no leader, since something last happened to a
    worker."""
    blamed: tuple[str, ...]
    """What was found of replicas that are reported to disagree, though none has lied."""
    late: tuple[str, ...]
    """What is wrong with the table, with readers that have begun in the middle of the output, or
    with a merge that has the output as its replica."""
    folded: tuple[str, ...]
    """What is wrong with folds of the decisions, or with what was deleted before them."""

    @property
    def good(self) -> bool:
        valid = self.report.outcome is Outcome.VALID
        wrong = self.blamed or self.late or self.folded
        return self.ended and self.failed is None and valid and not wrong

    def history(self) -> bytes:
        """Every record of every topic."""
        return msgspec.json.encode(self.topics)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.report.outcome}, "
            f"{self.failed or ('ended' if self.ended else 'NOT ENDED')}, "
            f"{''.join(f'BLAMED {each}, ' for each in self.blamed)}"
            f"{''.join(f'{each}, ' for each in (*self.late, *self.folded))}"
            f"{self.seen['kills']} kills, {self.seen['overtaken']} overtaken, "
            f"{self.seen['pauses']} pauses, {self.leaderless:.1f} s without a leader at most, "
            f"{self.seconds:.0f} s, history {hashlib.sha256(self.history()).hexdigest()[:16]}"
        )


def command(seed: int, *, loses: bool = False) -> str:
    """What replays a seed."""
    return f"python -m tests.simulation --seed {seed}{' --loses' if loses else ''}"


def simulate(seed: int, *, pauses: bool = False, native: bool = False, loses: bool = False) -> Run:
    """Plays a seed to its end; `pauses` has several workers that are paused, whatever the seed,
    `native` has the engine merge, under a policy that it knows, and `loses` has the state lost that
    a recovery needs (`disasters`)."""
    with machine(Random(f"machine {seed}"), Random(f"folds {seed}")) as logged:
        play = _Play(seed, Random(seed), logged, pauses=pauses, native=native, loses=loses)
        return run(play.play())


@dataclass(slots=True)
class _Play:
    seed: int
    chance: Random
    seen: Counter[str]
    broker: Broker = field(init=False)
    lives: Sequence[Life] = field(init=False)
    topology: Topology = field(init=False)
    weather: Weather = field(init=False)
    publishers: dict[str, Publisher] = field(default_factory=dict)
    """By topic."""
    supervisors: list[Supervisor] = field(default_factory=list)
    pauses: bool = False
    """Workers are paused now and then; then there are several, of several tasks."""
    native: bool = False
    """The engine merges."""
    loses: bool = False
    """What a recovery needs is lost now and then."""
    disasters: Disasters | None = None
    leaders: Leaders = field(init=False)
    late: LateReaders = field(init=False)
    table: TableReaders = field(init=False)
    answers: Sequence[Answer] = ()
    running: list[asyncio.Task[None]] = field(default_factory=list)

    async def play(self) -> Run:
        self._set_up()
        self._set_going()
        ended, failed = False, None
        try:
            ended = await self._until_ended()
        except Exception as error:  # whatever it is, it is a finding
            failed = _in_a_line(error)
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)
        seconds = asyncio.get_running_loop().time()
        output = self.topology.output.topic
        whole = {output, self.topology.output.control_topic, *self.publishers}
        topics = tuple(self.broker.topic(name, ever=name in whole) for name in self.broker.names())
        by_name = {topic.name: topic for topic in topics}
        report = check(self._history(by_name))
        blamed = self._blamed(by_name[self.topology.output.events_topic])
        leaderless = self.leaders.longest
        late = tuple(self._misread(by_name)) if output in by_name else ()
        folded = tuple(wrong_folds(self.broker, self.topology))
        return Run(
            self.seed, report, topics, ended, failed, seconds, self.seen, leaderless, blamed, late,
            folded,
        )  # fmt: skip

    def _misread(self, topics: dict[str, CommittedTopic]) -> Iterator[str]:
        output = self.topology.output
        yield from self.late.wrong(topics[output.topic])
        yield from self.table.wrong(topics[output.topic])
        if self.loses:
            gaps, chance = lost(topics[output.events_topic]), Random(f"upper {self.seed}")
            reference = meaning(self.lives)
            yield from wrong_in_upper_merge(topics[output.topic], reference, gaps, chance)
            restarts = dict(decided(topics[output.control_topic]).restarts)
            for each in incarnations(topics[output.topic]):
                self.seen["incarnations"] += each.incarnation > 0
                if each.incarnation and restarts.get(each.incarnation) != each.correct_from:
                    yield f"incarnation {each.incarnation} was not decided so: {restarts}"

    # --- the beginning --------------------------------------------------------------------------

    def _set_up(self) -> None:
        chance = self.chance
        self.broker = Broker(asyncio.get_running_loop().time)
        self.lives = logical(chance.randint(15, 60), seed=self.seed)
        self.pauses |= chance.random() < 0.4
        width = chance.randint(2, 4) if self.pauses else chance.choice([1, 1, 2, 3])
        lags = chance.random() < 0.3
        streams = replica_streams(self.lives, seed=self.seed)
        faithful = chance.choice(list(streams))
        for name, stream in streams.items():
            self._plan(name, stream, width, faithful=name == faithful)
        self.weather = Weather(
            lost=chance.choice([0, 0, 0.003, 0.02]),
            unanswered=chance.choice([0, 0, 0.003, 0.02]),
            slow=chance.choice([0.005, 0.02, 0.1]),
            cut_off=chance.choice([0, 0, 0, 0.001]),
        )
        self._trouble(Random(f"trouble {self.seed}"), faithful)
        patience = LINGERING_SECONDS[0] - 5 if self._one_ends_early else 10
        self.topology = _topology(
            chance, self.publishers.values(), width, lags=lags, patience=patience,
            keep=Random(f"keep {self.seed}").choice([None, 1, 20]), native=self.native,
            table=Random(f"has table {self.seed}").random() < 0.5,
        )  # fmt: skip
        if self.loses:
            how = Random(f"loses {self.seed}").choice(["stop", "restart"])
            changed = self.topology.output.model_copy(update={"on_lost_state": how})
            self.topology = self.topology.model_copy(update={"output": changed})

    def _trouble(self, chance: Random, faithful: str) -> None:
        """Some leave transactions open, repeat themselves for ever, or end in the middle."""
        publishers = {each.name: each for each in self.publishers.values()}
        lower = _first_stable(publishers[faithful].stream)
        alone = chance.random() < 0.15  # what is new comes from one only, and no end is confirmed
        # Of a co-partitioned one that carries the output a task sees one partition only.
        may_end_early = chance.random() < 0.4 and not publishers[faithful].co_partitioned
        for name, each in publishers.items():
            each.seen = self.seen
            if alone and name != faithful:
                each.stops_at = each.stops_at or 1
            each.lingers = chance.choice([0, 0, 0.1]) if each.transactional else 0.0
            if each.stops_at:
                each.repeats = chance.choice(["repeats", "lives", "repeats" if alone else None])
            elif name != faithful and may_end_early and not self._one_ends_early:
                self._end_early(each, chance, lower)
                each.ends_behind = publishers[faithful].topic
        if self._one_ends_early:  # nobody else may be silent for longer than patience lasts
            self.weather = replace(self.weather, cut_off=0.0)
            carrying = publishers[faithful]
            carrying.transactional, carrying.lingers = True, 0.3
            carrying.takes_incarnations = True
            for each in publishers.values():
                if each is not carrying and not each.ends_early:
                    each.stops_at, each.repeats = 0, None

    def _end_early(self, publisher: Publisher, chance: Random, lower: int) -> None:
        """Ends a stream in the middle, without a stable before: of two that end, guards believe
        the one that has published more, and who is late with all it publishes makes no progress."""
        kept = publisher.stream[: chance.randrange(len(publisher.stream))]
        kept = [each for each in kept if type(each) is not Stable]
        if lower < INFINITY:
            publisher.stream, publisher.ends_early = [*kept, Stable(INFINITY)], True
            publisher.starts_over_at = None
            self.seen["ends early"] += 1

    @property
    def _one_ends_early(self) -> bool:
        return any(each.ends_early for each in self.publishers.values())

    def _plan(self, name: str, stream: Sequence[Element], width: int, *, faithful: bool) -> None:
        chance = self.chance
        publisher = self._publisher(name, f"in.{name}", stream, width)
        publisher.transactional = chance.random() < 0.4
        if not faithful and chance.random() < 0.4:
            publisher.stops_at = chance.randrange(len(stream))
        if chance.random() < 0.3:
            publisher.starts_over_at = chance.randrange(len(stream))
        publisher.takes_incarnations = chance.random() < 0.6

    def _publisher(self, name: str, topic: str, stream: Sequence[Element], width: int) -> Publisher:
        co_partitioned = self.chance.random() < 0.2
        partitions = width if co_partitioned else self.chance.randint(1, 3)
        publisher = Publisher(
            name,
            topic,
            partitions,
            Router(width).partition_of
            if co_partitioned
            else lambda payload: crc32(payload, partitions),
            stream,
            co_partitioned=co_partitioned,
        )
        self.publishers[topic] = publisher
        return publisher

    def _set_going(self) -> None:
        chance = self.chance
        workers = chance.randint(2, 4) if self.pauses else chance.choice([1, 1, 2, 3])
        lives = chance.randint(0, 6)
        for publisher in self.publishers.values():
            self._publishing(publisher)
        for number in range(workers):
            supervisor = Supervisor(
                f"worker-{number}", self.topology, self.broker, Random(chance.random()),
                self.weather, chance.randint(0, lives), self.seen, pauses=self.pauses,
            )  # fmt: skip
            supervisor.bears_loss = self.loses and self.topology.output.on_lost_state == "stop"
            self.supervisors.append(supervisor)
            self._start(supervisor.run())
        self.leaders = Leaders(self.topology, self.broker, self.weather, self.supervisors)
        if self.loses:
            self._lose(Random(f"disasters {self.seed}"))
        else:
            self._start(self.leaders.run())
        reading = Random(f"late {self.seed}")
        self.late = LateReaders(self.topology, self.broker, reading, self.weather)
        self.late.bears_loss = self.loses
        self._start(self.late.run())
        self._keep_table(Random(f"table {self.seed}"))
        decay = None
        if chance.random() < 0.5:
            decay = Decay(self.topology, self.broker, Random(chance.random()), self.seen)
            self._start(decay.run())
        # Where one ends early, others must not be taken away.
        if decides := chance.random() < 0.7 and not self._one_ends_early:
            self._start(self._people().run())
        self._delete(Random(f"deletes {self.seed}"), decay, decides=decides)

    def _delete(self, chance: Random, decay: Decay | None, *, decides: bool) -> None:
        """Not of an output that does not forget while snapshots go bad: all of them may. Who was
        detached or in quarantine is merged from the beginning of what its topic has."""
        keeps = decay is not None and self.topology.output.keep is None
        if self.loses or keeps or chance.random() < 0.5:
            return
        spoilt, deleted = (set(), {}) if decay is None else (decay.spoilt, decay.deleted)
        deletion = Deletion(
            self.topology, self.broker, chance, self.seen, spoilt, deleted, sources=not decides
        )
        self._start(deletion.run())

    def _lose(self, chance: Random) -> None:
        self.disasters = Disasters(
            self.topology, self.broker, chance,
            lambda: [each for one in self.supervisors for each in one.networks.values()],
            self.seen, chance.randint(1, 3),
        )  # fmt: skip
        self._start(self.disasters.run())
        restarter = Restarter(
            self.topology, self.broker, Random(chance.random()), self.weather,
            lambda: sum(each.lost for each in self.supervisors), self.seen,
        )  # fmt: skip
        self._start(restarter.run())

    def _keep_table(self, chance: Random) -> None:
        """In half of the runs; then some workers are started without, and the topic is deleted."""
        self.table = TableReaders(
            self.topology, self.broker, chance, self.weather, self.seen,
            deletes=chance.random() < 0.3,
        )  # fmt: skip
        if self.topology.output.table:
            self.table.begin()
            self._start(self.table.run())
            toggles = chance.random() < 0.3
            for supervisor in self.supervisors if toggles else ():
                supervisor.toggles = Random(chance.random())

    def _people(self) -> People:
        people = People(
            self.topology,
            self.broker,
            Random(self.chance.random()),
            self.weather,
            self.publishers,
            lambda: [each for one in self.supervisors for each in one.workers.values()],
            self._publish_more,
            self.chance.randint(1, 15),
            self.seen,
        )
        self.answers = people.answers
        return people

    def _publish_more(self, name: str, topic: str, late: bool) -> Publisher:
        """Another replica, from now on."""
        lives, correct_from = self.lives, None
        if late:
            correct_from = self.chance.choice(self.lives).ve
            lives = [life for life in self.lives if life.ve >= correct_from]
        streams = replica_streams(lives, seed=self.chance.getrandbits(30))
        stream = self.chance.choice(list(streams.values()))
        publisher = self._publisher(name, topic, stream, self.topology.output.partitions)
        publisher.correct_from = correct_from
        self._publishing(publisher)
        return publisher

    def _publishing(self, publisher: Publisher) -> None:
        self._start(publisher.run(self.broker, Random(self.chance.random()), self.weather))

    def _start(self, actor: Coroutine[Any, Any, None]) -> None:
        self.running.append(asyncio.get_running_loop().create_task(actor))

    # --- the end --------------------------------------------------------------------------------

    async def _until_ended(self) -> bool:
        """Whether the output came to its end within the hour."""
        while asyncio.get_running_loop().time() < _HOUR:
            await asyncio.sleep(1)
            for task in self.running:
                if task.done():
                    task.result()
            if self._has_ended():
                return True
        return False

    def _has_ended(self) -> bool:
        output = self.topology.output
        if self.broker.describe(output.topic) is None:
            return False
        last = incarnations(self.broker.topic(output.topic, ever=True))[-1]
        ends = {each.partition for each in last.topic.records if each.value == _END}
        return len(ends) == output.partitions

    def _blamed(self, events: CommittedTopic) -> tuple[str, ...]:
        """Who is reported to disagree, where nobody has lied and no gap was accepted.
        Who starts over in silence repeats itself: of a multiset that is one event too many."""
        publishers = self.publishers.values()
        if any(each.ends_early or each.turned_at is not None for each in publishers):
            return ()
        if self.topology.resolved_case == "R4" and not all(
            each.takes_incarnations for each in publishers
        ):
            return ()
        found = [Evidence.of_record(each.value) for each in events.records if each.value]
        if any(each.kind == NotificationKind.ACCEPTED_GAP for each in found):
            return ()
        return tuple(
            f"{each.replica} in task {each.task}: {each.reason}"
            for each in found
            if each.kind == NotificationKind.DISAGREES
        )

    def _history(self, topics: dict[str, CommittedTopic]) -> History:
        output = self.topology.output
        right = decided(topics[output.control_topic])
        return History(
            output=topics[output.topic],
            replicas={
                name: _replica(topics[name], publisher, right)
                for name, publisher in self.publishers.items()
                if name in topics
            },
            reference=meaning(self.lives),
            skew_ms=0,
            kills=self.seen["kills"],
            lost=lost(topics[output.events_topic]),
            decided=right,
            answers=self.answers,
        )


def _in_a_line(error: BaseException) -> str:
    """An error in a line, with the place that it comes from."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"


def _replica(topic: CommittedTopic, publisher: Publisher, right: ControlHistory) -> ReplicaHistory:
    """Once it has turned liar, nobody listens to it."""
    spans = right.spans.get((publisher.name, publisher.topic), [])
    end = INFINITY if publisher.turned_at is None else publisher.turned_at - 1
    return ReplicaHistory(
        topic,
        honest=not publisher.ends_early,  # what it would have removed is final then
        co_partitioned=publisher.co_partitioned,
        attached=[Interval(*span) for span in spans],
        merged=[Interval(min(start for start, _ in spans), end)] if spans else [],
    )


def _first_stable(stream: Sequence[Element]) -> int:
    return next(each.vc for each in stream if type(each) is Stable)


def _topology(
    chance: Random,
    publishers: Iterable[Publisher],
    width: int,
    *,
    lags: bool,
    patience: float,
    keep: int | None,
    native: bool,
    table: bool,
) -> Topology:
    usual = {"insert": "first", "adjust": "lazy"} if native else {}
    return Topology.model_validate(
        {
            "name": "simulated",
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "output": {"topic": "out", "partitions": width, "keep": keep, "table": table},
            "replicas": [
                {"name": each.name, "topic": each.topic, "co_partitioned": each.co_partitioned}
                for each in publishers
            ],
            "policy": {
                "insert": chance.choice(["first", "leader", "half_frozen"]),
                "adjust": chance.choice(["lazy", "eager", "leader"]),
                "stable": "lag(3000)" if lags else "max",
                **usual,
            },
            "engine": "native" if native else "python",
            "standbys": chance.choice([0, 1, 2]),
            "snapshot_seconds": chance.choice([0.5, 3, 10, 86_400]),
            "limits": {"batch_records": chance.choice([3, 10, 100])},
            "guards": {"patience_seconds": patience},
        }
    )
