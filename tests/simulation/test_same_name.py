"""N8 over a Kafka in memory: two merges of one name, in whatever order they start and die."""

import asyncio
from collections import Counter
from random import Random

import pytest

from lmerge_service.config.topology import Topology
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.source import TopicPartition
from tests.simulation.adapter import build, machine, work
from tests.simulation.loop import run
from tests.simulation.memory import Broker
from tests.simulation.network import Network, Weather

EVENTS = [Insert(b"%d" % number, number, number + 5) for number in range(20)]


def topology(output: str, tasks: int) -> Topology:
    return Topology.model_validate(
        {
            "name": "one-name",
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "output": {"topic": output, "partitions": tasks},
            "replicas": [{"name": "a", "topic": "in.a"}],
        }
    )


def merged(broker: Broker, output: str) -> Counter[bytes | None]:
    """How often each record is in the output; none where there is no output."""
    if broker.describe(output) is None:
        return Counter()
    return Counter(record.value for record in broker.topic(output).records)


async def play(seed: int) -> tuple[str, str]:
    """Starts both, each at its time; once one is kept out, all is published. Gives the output of
    the one that stays, and what the other prints."""
    chance = Random(seed)
    broker, tasks = Broker(asyncio.get_running_loop().time), chance.choice([1, 2, 3])
    broker.create("in.a")
    weather = Weather(lost=chance.choice([0, 0.02]), slow=chance.choice([0.005, 0.1]))

    async def start(output: str, wait: float) -> None:
        await asyncio.sleep(wait)
        network = Network(broker, Random(chance.random()), weather, name=f"worker of {output}")
        try:
            while await work(build(topology(output, tasks), network)):  # noqa: ASYNC110 - it ends
                await asyncio.sleep(1)  # by the weather, and is started again
        finally:
            network.close()

    waits = chance.choice([(0, 0), (0, 3), (3, 0)])
    running = {
        asyncio.create_task(start(output, wait)): output
        for output, wait in zip(("out.1", "out.2"), waits, strict=True)
    }
    done, left = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    ((loser,), (winner,)) = done, left
    elements: list[Element] = [*EVENTS, Stable(INFINITY)]
    records = [(None, encode(each), ()) for each in elements]
    broker.produce(TopicPartition("in.a", 0), records)
    wanted = Counter({encode(each): 1 for each in EVENTS} | {encode(Stable(INFINITY)): tasks})
    while merged(broker, running[winner]) != wanted:
        assert not winner.done(), winner.exception()
        await asyncio.sleep(1)
    winner.cancel()
    await asyncio.gather(winner, return_exceptions=True)
    assert not merged(broker, running[loser])
    with pytest.raises(ConfigurationError) as refused:
        loser.result()
    return running[winner], str(refused.value)


def test_n8_whichever_comes_first_keeps_all_tasks_and_the_other_names_it() -> None:
    won = Counter[str]()
    for seed in range(25):
        with machine(Random(seed)):
            winner, message = run(play(seed))
        assert f"with output {winner}, not" in message, f"seed {seed}: {message}"
        won[winner] += 1
    assert min(won["out.1"], won["out.2"]) > 3, "one of the orders is rare"


def test_n8_who_was_killed_is_waited_for() -> None:
    """Its session is over before the next one gives up."""

    async def main() -> None:
        broker = Broker(asyncio.get_running_loop().time)
        broker.create("in.a")
        networks = [Network(broker, Random(n), name=f"w{n}") for n in range(2)]
        first = asyncio.create_task(work(build(topology("out.1", 1), networks[0])))
        while not broker.group("lmerge.one-name.workers").members:  # noqa: ASYNC110 - nothing reports when
            await asyncio.sleep(0.1)
        networks[0].killed.set()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        second = build(topology("out.2", 1), networks[1])
        working = asyncio.create_task(work(second))
        while second.members is None or second.members.assignment.active != {0}:
            assert not working.done(), working.exception()
            await asyncio.sleep(0.1)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        for network in networks:
            network.close()

    with machine(Random(1)):
        run(main())
