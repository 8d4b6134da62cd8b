"""A task that changes hands while its last commit is under way."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from lmerge_service.elements import INFINITY
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.sink import Committed, Outbox
from lmerge_service.service.connection import connection_of
from lmerge_service.service.ledger import undisputed
from lmerge_service.service.own_topics import prepare
from lmerge_service.service.task import MergeTask
from lmerge_service.topology import Topology, load
from tests.service.cluster import Merge, logical, meaning, replica_streams


def test_a_task_that_is_told_to_stop_stops_though_its_last_commit_is_fenced(
    bootstrap: str, tmp_path: Path
) -> None:
    """Else its worker would wait for it, as if it had not been told, and then end itself."""
    merge, lives = Merge(bootstrap, tmp_path), logical(60)
    for name, elements in replica_streams(lives).items():
        merge.publish(name, elements)
    asyncio.run(_handed_over(load(merge.path)))
    assert merge.says(meaning(lives))


async def _handed_over(topology: Topology) -> None:
    cluster = Cluster(connection_of(topology.kafka))
    async with cluster.topics() as topics, AsyncExitStack() as stack:
        await prepare(topics, topology)
        before, after = (MergeTask(topology, undisputed(topology), cluster) for _ in range(2))
        await before.lead(stack)
        committing, gate = asyncio.Event(), asyncio.Event()
        commit = before._outgoing._sink.commit

        async def held_up(outbox: Outbox, *rest: Any) -> Committed:
            committing.set()
            await gate.wait()
            return await commit(outbox, *rest)

        before._outgoing._sink.commit = held_up  # type: ignore[method-assign, assignment]
        stopping = asyncio.create_task(before.run())
        await committing.wait()
        await after.lead(stack)
        stopping.cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await _to_the_end(after)


async def _to_the_end(task: MergeTask) -> None:
    going_on = asyncio.create_task(task.run())
    async with asyncio.timeout(20):
        while task.progress.committed_stable != INFINITY:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    going_on.cancel()
    await asyncio.gather(going_on, return_exceptions=True)
