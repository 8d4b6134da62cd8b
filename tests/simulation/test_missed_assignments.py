"""A worker that recovers a task which another has taken over meanwhile: it begins anew."""

import asyncio
from random import Random

import pytest

from lmerge_service.errors import FencedError
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.service.task import MergeTask
from lmerge_service.service.task_phases import PhaseEvent, Role
from lmerge_service.service.worker import Worker
from tests.simulation.adapter import build, control_of
from tests.simulation.loop import run
from tests.simulation.memory import Broker
from tests.simulation.network import Network
from tests.simulation.test_unknown_decisions import TOPOLOGY, lead_with_nothing_read, merged


def test_what_recovers_begins_anew_where_another_may_have_led_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other has fenced it, and was paused with a transaction open: until that ends, for a
    minute, the recovery would wait for it, and nobody would lead (simulation, seed 483)."""
    began: list[Role] = []

    async def hold(_: Worker, task: MergeTask, role: Role) -> None:
        began.append(role)
        task.lifecycle.move(PhaseEvent.ASSIGNED)
        await asyncio.Event().wait()

    async def assume(worker: Worker, group: asyncio.TaskGroup, *, missed: bool) -> int:
        await worker._assume(group, {0: "leads"}, missed=missed)
        await asyncio.sleep(0)
        return len(began)

    async def main() -> None:
        network = Network(Broker(asyncio.get_running_loop().time), Random(1))
        worker = build(TOPOLOGY, network)
        worker.control = control_of(TOPOLOGY, network)
        async with asyncio.TaskGroup() as group:
            counts = [await assume(worker, group, missed=missed) for missed in (False, False, True)]
            assert counts == [1, 1, 2]
            worker.held[0].task.lifecycle.move(PhaseEvent.TOOK_OVER)
            assert await assume(worker, group, missed=True) == 2, "who leads finds out by a commit"
            worker.held[0].running.cancel()

    monkeypatch.setattr(Worker, "_hold", hold)
    run(main())


def test_who_is_fenced_while_it_recovers_does_not_wait_for_the_end_of_a_transaction() -> None:
    """Another has led since it fenced, and was paused with a transaction open: that may last for a
    minute, and nobody would lead (simulation, seed 10277)."""
    output, state = TOPOLOGY.output.topic, TOPOLOGY.output.state_topic

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        network = await merged()
        other = network.broker.init_producer("another")
        network.broker.produce(TopicPartition(state, 0), [(b"k", b"v", ())], other)
        began = clock()
        with pytest.raises(FencedError, match=r"out.state-0: a transaction is open from offset \d"):
            await lead_with_nothing_read(network)
        assert 5 <= clock() - began < 7
        network.broker.end(other, commit=False)
        network.broker.produce(TopicPartition(output, 0), [(None, b"x", ())], other)
        with pytest.raises(FencedError, match="out-0: a transaction is open from offset"):
            await lead_with_nothing_read(network)

    run(main())
