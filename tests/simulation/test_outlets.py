"""Topics that go away at any point of any schedule: the output is right, and counts are true."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import pytest

from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.service.status.build import readiness_of, status_of
from lmerge_service.service.status.document import ReasonKind, Status
from lmerge_service.service.task_phases import Phase
from lmerge_service.service.worker import Worker
from lmerge_service.tdb import TDB, reconstitute
from tests.simulation.adapter import build, machine, work
from tests.simulation.loop import run
from tests.simulation.memory import Broker
from tests.simulation.network import Network, Weather
from tests.simulation.test_unknown_decisions import TOPOLOGY

OUTPUT = TOPOLOGY.output
SOURCE = TopicPartition("in.a", 0)
EVENTS = 30
BAD = b"{}"


def event(number: int) -> Insert[bytes]:
    return Insert(b"%d" % number, number, number + 3)


MEANING = TDB([(event(n).payload, event(n).vs, event(n).ve) for n in range(EVENTS)], INFINITY)


@dataclass
class Played:
    """What came of a seed."""

    status: Status
    meaning: TDB
    sent: int
    """Records that are no elements."""
    letters: Counter[bytes]
    """Dead letters that are there, by the offset of what they are about."""


async def publish(broker: Broker, chance: Random) -> int:
    """A replica that publishes what is no element now and then; returns how often."""
    sent = 0
    for number in range(EVENTS):
        values = [encode(event(number)), encode(Stable(number))]
        if chance.random() < 0.3:
            values.insert(chance.randrange(3), BAD)
            sent += 1
        broker.produce(SOURCE, [(None, value, ()) for value in values])
        await asyncio.sleep(chance.expovariate(1.0))
    broker.produce(SOURCE, [(None, encode(Stable(INFINITY)), ())])
    return sent


async def go_away(broker: Broker, chance: Random) -> None:
    """Topics for dead letters and evidence are deleted, or nobody leads them for a while."""
    while True:
        await asyncio.sleep(chance.expovariate(1 / 8))
        topic = chance.choice([OUTPUT.dead_letter_topic, OUTPUT.events_topic])
        if chance.random() < 0.5:
            if broker.describe(topic) is not None:
                broker.delete(topic)
        else:
            broker.leaderless.add(topic)
            await asyncio.sleep(chance.expovariate(1 / 5))
            broker.leaderless.discard(topic)


async def ended(broker: Broker) -> None:
    decode, emitted = WireDecoder().decode, set[Element]()
    while Stable(INFINITY) not in emitted:
        await asyncio.sleep(1)
        emitted = {decode(each.value) for each in broker.topic(OUTPUT.topic).records}


async def play(seed: int) -> Played:
    chance = Random(seed)
    broker = Broker(asyncio.get_running_loop().time)
    broker.create("in.a")
    weather = Weather(lost=chance.choice([0, 0.01]), unanswered=chance.choice([0, 0.01]))
    network = Network(broker, Random(chance.random()))
    worker = build(TOPOLOGY, network)
    try:
        async with asyncio.timeout(3_000), asyncio.TaskGroup() as group:
            working = group.create_task(work(worker))
            while not worker.held:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            network.weather = weather  # at the very start it ends a worker
            vandal = group.create_task(go_away(broker, chance))
            sent = await publish(broker, chance)
            await ended(broker)
            vandal.cancel()
            broker.leaderless.clear()
            async with asyncio.timeout(120):  # it may recover, and count again
                while worker.held[0].task.phase is not Phase.LEADING:  # noqa: ASYNC110
                    await asyncio.sleep(1)
            await asyncio.sleep(3)  # what was committed last is counted when its answer is there
            played = _played(broker, worker, sent)
            working.cancel()
    except* asyncio.CancelledError:
        pass
    return played


def _played(broker: Broker, worker: Worker, sent: int) -> Played:
    decode = WireDecoder().decode
    emitted = [decode(each.value) for each in broker.topic(OUTPUT.topic).records]
    letters = Counter[bytes]()
    if broker.describe(OUTPUT.dead_letter_topic) is not None:
        for each in broker.topic(OUTPUT.dead_letter_topic).records:
            letters[dict(each.headers)["lmerge-offset"]] += 1
    return Played(status_of(worker), reconstitute(emitted), sent, letters)


def assert_true(seeds: Iterable[int]) -> Counter[str]:
    """Whatever these seeds do, output and counts are right; returns what they did."""
    seen = Counter[str]()
    for seed in seeds:
        with machine(Random(seed)):
            played = run(play(seed))
        status = played.status
        assert played.meaning == MEANING, f"seed {seed}"
        assert set(played.letters.values()) <= {1}, f"seed {seed}: no letter is there twice"
        assert status.replicas[0].dead_letters == played.sent, f"seed {seed}: counted once, and all"
        assert status.elements_in == 2 * EVENTS + 1 + played.sent, f"seed {seed}"
        seen["left out"] += status.tasks[0].unwritten["dead_letters"]
        seen["created again"] += sum(status.recreated.values())
        seen["rebuilds"] += status.rebuilds
    return seen


def test_n5_side_topics_that_go_away_change_neither_output_nor_counts() -> None:
    seen = assert_true([7, 13, 24, 31, 32, 34])
    assert min(seen[what] for what in ("left out", "created again", "rebuilds")) > 2, seen


@pytest.mark.deep
def test_n5_the_same_of_hundreds_of_schedules() -> None:
    assert_true(range(100, 500))


@pytest.mark.parametrize("topic", [OUTPUT.topic, OUTPUT.state_topic], ids=str)
def test_n5_a_topic_that_the_merge_rests_on_ends_it_by_name(topic: str) -> None:
    async def main() -> None:
        broker = Broker(asyncio.get_running_loop().time)
        broker.create("in.a")
        worker = build(TOPOLOGY, Network(broker, Random(1)))
        working = asyncio.create_task(work(worker))
        while not worker.held:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        broker.delete(topic)
        await asyncio.sleep(3)
        assert status_of(worker).unwritable == {topic: "was deleted"}
        with pytest.raises(StateError, match=f"topic {topic} was deleted: "):
            async with asyncio.timeout(10):
                await working

    with machine(Random(1)):
        run(main())


def test_n5_readiness_shows_when_nothing_can_be_published() -> None:
    async def main() -> None:
        broker = Broker(asyncio.get_running_loop().time)
        broker.create("in.a")
        worker = build(TOPOLOGY, Network(broker, Random(1)))
        working = asyncio.create_task(work(worker))
        while not worker.held:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        assert readiness_of(worker) == "running"
        broker.leaderless.add(OUTPUT.topic)
        broker.produce(SOURCE, [(None, encode(event(1)), ())])
        await asyncio.sleep(3)
        assert readiness_of(worker) == "unwritable"
        (why,) = status_of(worker).unwritable.values()
        assert why == "has no leader for partition 0: its brokers are down"
        await asyncio.sleep(7)
        assert ReasonKind.COMMIT_STALLED in status_of(worker).reason_kinds
        broker.leaderless.clear()
        await asyncio.sleep(5)
        assert readiness_of(worker) == "running"
        assert len(broker.topic(OUTPUT.topic).records) == 1
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    with machine(Random(1)):
        run(main())
