"""A standby that finds nothing to go on from, while the leading worker has it all in memory."""

import asyncio
from random import Random

import pytest

from lmerge_service.config.topology import Topology
from lmerge_service.elements import Element, Insert, Stable
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.commit_record import COMMIT_KEY, CommitRecord
from lmerge_service.service.task_phases import Phase
from lmerge_service.service.worker import Worker
from tests.simulation.adapter import build, machine, work
from tests.simulation.loop import run
from tests.simulation.memory import Broker
from tests.simulation.network import Network

SOURCE, OUT = TopicPartition("in.a", 0), TopicPartition("out", 0)
STATE = TopicPartition("out.state", 0)


def topology(on_lost_state: str) -> Topology:
    return Topology.model_validate(
        {
            "name": "m",
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "output": {"topic": "out", "on_lost_state": on_lost_state},
            "snapshot_seconds": 100,
            "replicas": [{"name": "a", "topic": "in.a"}],
        }
    )


def publish(broker: Broker, start: int, end: int) -> None:
    elements: list[Element] = [Insert(b"%d" % n, n, n + 50) for n in range(start, end)]
    elements.append(Stable(end))
    broker.produce(SOURCE, [(None, encode(each), ()) for each in elements])


def commit_of(broker: Broker) -> CommitRecord:
    mark = broker.last(STATE, COMMIT_KEY)
    return CommitRecord() if mark is None else CommitRecord.of(mark.value)


async def until_covered(broker: Broker) -> CommitRecord:
    """Two snapshots have all that was published, so that no further one is taken for a while."""
    while True:
        await asyncio.sleep(1)
        commit = commit_of(broker) if broker.describe("out.state") else CommitRecord()
        places = commit.snapshots
        if len(places) == 2 and places[1].records >= commit.output_records > 0:
            return commit


def phase_of(worker: Worker) -> Phase | None:
    return worker.held[0].task.phase if 0 in worker.held else None


async def lose(on_lost_state: str) -> None:
    broker = Broker(asyncio.get_running_loop().time)
    broker.create("in.a")
    publish(broker, 0, 20)
    made = topology(on_lost_state)
    first = build(made, Network(broker, Random(1), name="first"))
    leads = asyncio.create_task(work(first))
    commit = await until_covered(broker)
    for place in commit.snapshots:
        broker.spoil(STATE, place.first, b"spoilt")
    broker.truncate(OUT, 1)
    second = build(made, Network(broker, Random(2), name="second"))
    follows = asyncio.create_task(work(second))
    await asyncio.sleep(60)
    assert not any(each.done() for each in (leads, follows))
    assert phase_of(second) is not Phase.FOLLOWING, "it has nothing to follow from"
    assert commit_of(broker).output.incarnation == 0, "only who leads may start the output over"
    publish(broker, 20, 40)
    await asyncio.sleep(300)
    assert not any(each.done() for each in (leads, follows))
    assert phase_of(second) is Phase.FOLLOWING
    for task in (leads, follows):
        task.cancel()
    await asyncio.gather(leads, follows, return_exceptions=True)


@pytest.mark.parametrize("on_lost_state", ["stop", "restart"])
def test_it_waits_for_the_leaders_next_snapshots_and_does_not_end(on_lost_state: str) -> None:
    with machine(Random(1)):
        run(lose(on_lost_state))
