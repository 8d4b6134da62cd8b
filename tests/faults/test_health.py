"""Replays of health that lies."""

import asyncio

import pytest

from lmerge_service.elements import Insert, Stable
from lmerge_service.kafka.source import Batches, Source
from tests.service.cluster import Merge, running


def test_l1_the_lag_of_a_task_that_is_stuck_rises(
    merge: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Burrow#287, #126, #292, burrow_exporter#26: the lag is frozen at the last commit, or 0 for
    a dead consumer."""
    merge.publish("a", [Insert(b'"x"', 1, 5), Stable(2)])
    poll, sticks, stuck = Source.poll, asyncio.Event(), asyncio.Event()

    async def poll_until_stuck(self: Source, seconds: float, most: int | None = None) -> Batches:
        tasks = {tp.topic for tp in self._next} & {merge.topics["a"]}  # not the control log's
        if sticks.is_set() and tasks:
            stuck.set()
            await asyncio.get_running_loop().create_future()
        return await poll(self, seconds, most)

    async def run() -> None:
        async with running(merge) as worker:
            task = worker.held[0].task
            while task.progress.committed_stable != 2:  # noqa: ASYNC110 (another task sets it)
                await asyncio.sleep(0.02)
            sticks.set()
            await stuck.wait()
            await asyncio.to_thread(merge.publish, "a", [Stable(k) for k in range(3, 80)])
            async with asyncio.timeout(10):
                while (task.replicas[0].lag or 0) < 70:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    monkeypatch.setattr(Source, "poll", poll_until_stuck)
    asyncio.run(run())
