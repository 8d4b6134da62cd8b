"""Several output partitions and workers on a real broker: tasks are spread, and move when workers
come, go and die under load; of two that would write one partition, one is fenced."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from lmerge_service.elements import Insert, Stable
from lmerge_service.kafka.client import Connection
from lmerge_service.kafka.routing import Router
from lmerge_service.kafka.sink import Sink
from lmerge_service.tdb import TDB
from tests.service.cluster import Merge, Worker, logical, meaning, replica_streams

pytestmark = pytest.mark.kafka

TASKS = 3


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    return Merge(bootstrap, tmp_path)


def by_route(payload: bytes, width: int) -> int:
    """As a co-partitioned replica must be."""
    return Router(width, ()).partition_of(payload)


def led(worker: Worker) -> set[int]:
    """The tasks that it merges at the moment."""
    status: Any = worker.status()
    tasks = [] if status is None else status["tasks"]
    return {
        each["partition"] for each in tasks if (each["role"], each["phase"]) == ("leads", "running")
    }


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 45) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError(f"waited in vain until {what}")


def wait_until_spread(workers: Sequence[Worker]) -> None:
    """Each task is led once, and no worker leads more than its share."""

    def is_spread() -> bool:
        mine = [led(worker) for worker in workers]
        counts = [len(tasks) for tasks in mine]
        return sum(counts) == TASKS == len(set().union(*mine)) and max(counts) - min(counts) <= 1

    wait_until(is_spread, f"{TASKS} tasks are spread over {len(workers)} workers")


def test_d16_workers_come_go_and_die_under_load(merge: Merge) -> None:
    """nats#3006: a rolling restart, a kill -9, one more; the replicas are partitioned
    by other hashes and widths, and one like the output."""
    lives = logical(2_000, seed=51)
    streams = replica_streams(lives, seed=51)
    replicas: list[dict[str, Any]] = [
        {"name": name, "topic": topic} for name, topic in merge.topics.items()
    ]
    replicas[2]["co_partitioned"] = True
    merge.extra = {
        "output": {"topic": merge.output, "partitions": TASKS},
        "replicas": replicas,
        "snapshot_seconds": 0.5,
    }
    merge.write()
    c = streams["c"]
    merge.publish("c", c[: len(c) // 2], partitions=TASKS, partitioner=by_route)
    with ExitStack() as stack:

        def start() -> Worker:
            return stack.enter_context(merge.worker())

        workers = [start() for _ in range(3)]
        with merge.speaking({"a": streams["a"], "b": streams["b"]}, {"a": 2, "b": 5}, elements=3):
            wait_until_spread(workers)
            for old in list(workers):
                assert old.terminate() == 0
                workers.remove(old)
                workers.append(start())
            wait_until_spread(workers)
            workers.pop(0).kill()
            wait_until_spread(workers)
            workers.append(start())
            wait_until_spread(workers)
        merge.publish("c", c[len(c) // 2 :], partitions=TASKS, partitioner=by_route)
        for worker in workers:
            for number in led(worker):
                worker.wait(partial(has_ended, number), f"task {number} to end")
        for worker in workers:
            assert worker.said("fenced") == []
            assert worker.terminate() == 0
    assert merge.says(meaning(lives))


def has_ended(partition: int, status: Any) -> bool:
    """The task's output has ended, and so have all replicas, the co-partitioned one too."""
    (task,) = [each for each in status["tasks"] if each["partition"] == partition]
    return all(each["ended"] for each in (task["output"], *task["replicas"]))


def test_who_takes_the_output_from_outside_ends_the_worker_after_its_session(
    merge: Merge,
) -> None:
    """Nobody of its group has the task, so it was a stranger: exit 5, and not a word more."""
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [Insert(b'"before"', 1, 9), Stable(2)])
        worker.wait(lambda s: s["output"]["stable_point"] == 2, "stable(2)")
        asyncio.run(take_over(merge))
        merge.publish("a", [Insert(b'"behind"', 3, 9)])
        wait_until(lambda: bool(worker.said("fenced")), "it is fenced")
        told = time.monotonic()
        assert worker.process.wait(30) == 5
        assert time.monotonic() - told > 1.5, "it waits to be told by its group"
        assert "another instance has taken over" in worker.text().splitlines()[-1]
    found = merge.audit()
    assert found.tdb == TDB([(b'"before"', 1, 9)], 2)


async def take_over(merge: Merge) -> None:
    """As a second merge with the same output would."""
    async with Sink(
        Connection(merge.bootstrap),
        transactional_id=f"lmerge.{merge.output}.0",
        output=TopicPartition(merge.output, 0),
        dead_letters=merge.dead_letters,
        state=TopicPartition(f"{merge.output}.state", 0),
        events=f"{merge.output}.events",
        max_record_bytes=1 << 20,
    ):
        pass
