"""A task that changes hands while its last commit is under way."""

import asyncio
import gc
import weakref
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from lmerge_service.config.topology import Topology, load
from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.errors import FencedError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import connection_of
from lmerge_service.kafka.sink import Committed, Outbox
from lmerge_service.merge.commit_record import CommitRecord
from lmerge_service.merge.decisions.ledger import undisputed
from lmerge_service.merge.internal_topics import prepare
from lmerge_service.merge.recovery import Recovery
from lmerge_service.service.task import MergeTask
from tests.service.cluster import Merge, logical, meaning, replica_streams
from tests.waiting import come_true


def test_a_task_that_is_asked_to_stop_stops_though_its_last_commit_is_fenced(
    bootstrap: str, tmp_path: Path
) -> None:
    """Else its worker would wait for it, as if it had not been asked to, and then end itself."""
    merge, lives = Merge(bootstrap, tmp_path), logical(60)
    for name, elements in replica_streams(lives).items():
        merge.publish(name, elements)
    asyncio.run(_handed_over(load(merge.path)))
    assert merge.output_is(meaning(lives))


async def _handed_over(topology: Topology) -> None:
    cluster = Cluster(connection_of(topology.kafka))
    async with cluster.topics() as topics, AsyncExitStack() as stack:
        await prepare(topics, topology)
        before, after = (MergeTask(topology, undisputed(topology), cluster) for _ in range(2))
        await before.lead(stack)
        committing, gate = asyncio.Event(), asyncio.Event()
        commit = before._transaction._sink.commit

        async def held_up(outbox: Outbox, *rest: Any) -> Committed:
            committing.set()
            await gate.wait()
            return await commit(outbox, *rest)

        before._transaction._sink.commit = held_up  # type: ignore[method-assign, assignment]
        stopping = asyncio.create_task(before.run())
        await committing.wait()
        await after.lead(stack)
        stopping.cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await _to_the_end(after)


def test_a_task_that_is_overtaken_while_it_recovers_is_fenced_and_blames_nobody(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had read the last commit record, then what the next owner had written behind it; that is
    nothing that "something else" has written, and no reason to end the worker."""
    merge = Merge(bootstrap, tmp_path)
    merge.publish("a", [Insert(b'"A"', 6, 12), Stable(10)])
    asyncio.run(_overtaken(merge, load(merge.path), monkeypatch))


async def _overtaken(merge: Merge, topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(connection_of(topology.kafka))
    async with cluster.topics() as topics, AsyncExitStack() as stack:
        await prepare(topics, topology)
        first, before, after = (
            MergeTask(topology, undisputed(topology), cluster) for _ in range(3)
        )
        await first.lead(stack)
        await _until_stable(first, 10)
        await asyncio.to_thread(merge.publish, "a", [Insert(b'"B"', 11, 15), Stable(20)])
        last_commit, heirs = Recovery.last_commit, [after]

        async def read_and_stand_still(self: Recovery, *, fenced: bool) -> CommitRecord | None:
            commit = await last_commit(self, fenced=fenced)
            if heirs:
                heir = heirs.pop()
                await heir.lead(stack)
                await _until_stable(heir, 20)
            return commit

        monkeypatch.setattr(Recovery, "last_commit", read_and_stand_still)
        with pytest.raises(FencedError, match="another worker leads by now"):
            await before.lead(stack)


async def _to_the_end(task: MergeTask) -> None:
    await _until_stable(task, INFINITY)


async def _until_stable(task: MergeTask, point: int) -> None:
    going_on = asyncio.create_task(task.run())
    async with asyncio.timeout(20):
        while task.progress.committed_stable != point:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    going_on.cancel()
    await asyncio.gather(going_on, return_exceptions=True)


@pytest.mark.full
def test_a_task_that_is_led_no_more_lets_go_of_its_state(bootstrap: str, tmp_path: Path) -> None:
    """A worker whose tasks come and go would else keep a state of each beside the one in use."""
    merge = Merge(bootstrap, tmp_path)
    merge.publish("a", [Insert(b'"A"', 6, 12), Stable(10)])
    asyncio.run(_led_once(load(merge.path)))


async def _led_once(topology: Topology) -> None:
    cluster = Cluster(connection_of(topology.kafka))
    async with cluster.topics() as topics:
        await prepare(topics, topology)
    task = MergeTask(topology, undisputed(topology), cluster)
    states = []
    for _ in range(2):
        async with AsyncExitStack() as stack:
            await task.lead(stack)
            states.append(weakref.ref(task.state.merge))
            running = asyncio.create_task(task.run())
            await come_true(lambda: task.progress.committed_stable == 10)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        del running
    gc.collect()
    assert states[0]() is None
    task.forget()
    assert states[1]() is None
