"""A worker that was away while another was given its tasks: what it was recovering begins anew."""

import asyncio
from random import Random

import pytest

from lmerge_service.service.task import MergeTask
from lmerge_service.service.task_phases import PhaseEvent, Role
from lmerge_service.service.worker import Worker
from tests.simulation.adapter import build, control_of
from tests.simulation.loop import run
from tests.simulation.memory import Broker
from tests.simulation.network import Network
from tests.simulation.test_unknown_decisions import TOPOLOGY


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
