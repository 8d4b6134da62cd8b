"""A task whose mark rests on decisions that its worker has not read: slow is not deleted."""

import asyncio
from contextlib import AsyncExitStack
from random import Random
from typing import cast

import pytest

from lmerge_service.config.topology import Topology
from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.errors import StateError, TransportError
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.service.task import MergeTask
from tests.simulation.adapter import build, carried_out, machine
from tests.simulation.clients import MemoryCluster
from tests.simulation.loop import run
from tests.simulation.memory import Broker
from tests.simulation.network import Network

TOPOLOGY = Topology.model_validate(
    {
        "name": "m",
        "kafka": {"bootstrap": "127.0.0.1:1"},
        "output": {"topic": "out"},
        "replicas": [{"name": "a", "topic": "in.a"}],
    }
)
CONTROL = TOPOLOGY.output.control_topic


async def merged() -> Network:
    """What a worker leaves that has carried out one decision, its topology's."""
    network = Network(Broker(asyncio.get_running_loop().time), Random(1))
    network.broker.create("in.a")
    elements = (Insert(b"1", 1, 5), Stable(INFINITY))
    messages = [(None, encode(element), ()) for element in elements]
    network.broker.produce(TopicPartition("in.a", 0), messages)
    working = asyncio.create_task(build(TOPOLOGY, network).run())
    while carried_out(network.broker, TOPOLOGY) < 1:  # noqa: ASYNC110 - a log is looked at
        await asyncio.sleep(1)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return network


async def lead_with_nothing_read(network: Network) -> None:
    task = MergeTask(TOPOLOGY, Ledger(TOPOLOGY), cast(Cluster, MemoryCluster(network)))
    async with AsyncExitStack() as stack:
        await task.lead(stack)


def test_a_control_log_that_is_slow_is_tried_again() -> None:
    async def main() -> None:
        network = await merged()
        with pytest.raises(
            TransportError, match="not read to its end yet: of 1 decisions 0"
        ) as raised:
            await lead_with_nothing_read(network)
        assert raised.value.retriable

    with machine(Random(1)):
        run(main())


def test_a_control_log_that_was_deleted_ends_the_worker() -> None:
    async def main() -> None:
        network = await merged()
        network.broker.delete(CONTROL)
        network.broker.create(CONTROL)
        with pytest.raises(
            StateError, match=r"0 decisions, and 1 were carried out: it was deleted"
        ):
            await lead_with_nothing_read(network)

    with machine(Random(1)):
        run(main())
