"""One simulated run: a seed decides everything, and the judge decides whether it went well.

    python -m tests.simulation --seed 7

Theory
    Three replicas present one logical stream, each in its own way. Everything else is chance: how
    they publish, how often the worker is killed and where, how bad the network is. When the
    output has ended, the topics are handed to the judge (`chaos.history`), with what is so as the
    reference. An output that does not end within an hour of virtual time is a finding too.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from chaos.history import History, Replica, check
from chaos.records import Topic
from chaos.verdicts import Outcome, Report
from lmerge_service.elements import INFINITY, Element, Stable
from lmerge_service.formats.wire import encode
from lmerge_service.topology import Topology
from tests.service.cluster import logical, meaning, replica_streams
from tests.simulation.actors import Publisher, Supervisor
from tests.simulation.adapter import silent
from tests.simulation.loop import run
from tests.simulation.memory import Broker
from tests.simulation.network import Weather

__all__ = ("Run", "command", "simulate")

_HOUR = 3_600.0
_END = encode(Stable(INFINITY))


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a seed."""

    seed: int
    report: Report
    topics: tuple[Topic, ...]
    ended: bool
    kills: int
    overtaken: int
    seconds: float
    """Of virtual time."""

    @property
    def good(self) -> bool:
        return self.ended and self.report.outcome is Outcome.VALID

    def history(self) -> bytes:
        """Every record of every topic."""
        return msgspec.json.encode(self.topics)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.report.outcome}, {'ended' if self.ended else 'NOT ENDED'}, "
            f"{self.kills} kills, {self.overtaken} overtaken, {self.seconds:.0f} s, history "
            f"{hashlib.sha256(self.history()).hexdigest()[:16]}"
        )


def command(seed: int) -> str:
    """What replays a seed."""
    return f"python -m tests.simulation --seed {seed}"


def simulate(seed: int) -> Run:
    """Plays a seed to its end."""
    with silent():
        return run(_play(seed))


async def _play(seed: int) -> Run:
    chance = Random(seed)
    loop = asyncio.get_running_loop()
    broker = Broker(loop.time)
    lives = logical(chance.randint(10, 60), seed=seed)
    lags = chance.random() < 0.3
    publishers = _publishers(chance, replica_streams(lives, seed=seed))
    weather = Weather(lost=chance.choice([0, 0.01, 0.03]), unheard=chance.choice([0, 0.01, 0.03]))
    supervisor = Supervisor(
        _topology(chance, publishers, lags),
        broker,
        Random(chance.random()),
        weather,
        chance.randint(0, 6),
    )
    running = [
        loop.create_task(publisher.run(broker, Random(chance.random()), weather))
        for publisher in publishers.values()
    ]
    supervising = loop.create_task(supervisor.run())
    ended = await _until_ended(broker, supervising)
    for task in (supervising, *running):
        task.cancel()
    await asyncio.gather(supervising, *running, return_exceptions=True)
    output = broker.topic("out")
    replicas = {name: broker.topic(publisher.topic) for name, publisher in publishers.items()}
    report = check(
        History(
            output=output,
            replicas={name: Replica(topic) for name, topic in replicas.items()},
            reference=meaning(lives),
            skew_ms=0,
            kills=supervisor.kills,
        )
    )
    topics = (output, broker.topic("out.dead-letters"), *replicas.values())
    return Run(seed, report, topics, ended, supervisor.kills, supervisor.overtaken, loop.time())


def _publishers(chance: Random, streams: Mapping[str, Sequence[Element]]) -> dict[str, Publisher]:
    faithful = chance.choice(list(streams))
    found = {}
    for name, stream in streams.items():
        stops = name != faithful and chance.random() < 0.4
        starts_over = chance.random() < 0.3
        partitions = chance.randint(1, 3)
        found[name] = Publisher(
            topic=f"in.{name}",
            partitions=partitions,
            stream=stream,
            transactional=chance.random() < 0.4,
            stops_at=chance.randrange(len(stream)) if stops else None,
            starts_over_at=chance.randrange(len(stream)) if starts_over else None,
            says_so=chance.random() < 0.6,
        )
    return found


def _topology(chance: Random, replicas: Iterable[str], lags: bool) -> Topology:
    return Topology.model_validate(
        {
            "name": "simulated",
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "output": {"topic": "out"},
            "replicas": [{"name": name, "topic": f"in.{name}"} for name in replicas],
            "policy": {
                "insert": chance.choice(["first", "leader", "half_frozen"]),
                "adjust": chance.choice(["lazy", "eager", "leader"]),
                "stable": "lag(3000)" if lags else "max",
            },
            # A snapshot is taken by a child process, which has no part in virtual time.
            "snapshot_seconds": 86_400,
            "limits": {"batch_records": chance.choice([3, 10, 100])},
            "guards": {"patience_seconds": 10},
        }
    )


async def _until_ended(broker: Broker, supervising: asyncio.Task[None]) -> bool:
    """Whether the output came to its end within the hour."""
    while asyncio.get_running_loop().time() < _HOUR:
        done, _ = await asyncio.wait({supervising}, timeout=1)
        if done:
            await supervising
        if broker.describe("out") and any(r.value == _END for r in broker.topic("out").records):
            return True
    return False
