"""Several output partitions and workers on a real broker: tasks are spread, and move when workers
come, go and die under load; of two that would write one partition, one is fenced."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import TopicPartition

from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.formats.routing import Router
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.sink import Outbox, Sink
from lmerge_service.merge.commit_record import COMMIT_KEY, CommitRecord
from lmerge_service.tdb import TDB, reconstitute
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
        each["partition"] for each in tasks if (each["role"], each["phase"]) == ("leads", "leading")
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


@pytest.mark.full
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
        with merge.publishing({"a": streams["a"], "b": streams["b"]}, {"a": 2, "b": 5}, elements=3):
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
            assert worker.logged("fenced") == []
            assert worker.terminate() == 0
    assert merge.output_is(meaning(lives))


@pytest.mark.parametrize(
    "tasks", [(0, 1), pytest.param((1, 0), marks=pytest.mark.full)], ids=["first", "second"]
)
def test_a_replica_that_is_not_partitioned_as_declared_is_let_go_by_all_tasks(
    merge: Merge, tasks: tuple[int, int]
) -> None:
    """One event is in the partition of the other task, which does not read it."""
    merge.extra = {
        "output": {"topic": merge.output, "partitions": 2},
        "replicas": [
            {"name": "a", "topic": merge.topics["a"]},
            {"name": "b", "topic": merge.topics["b"], "co_partitioned": True},
        ],
    }
    merge.write()
    wrong, home = tasks
    payloads = [b'"%d"' % number for number in range(40)]
    payload = next(each for each in payloads if by_route(each, 2) == home)
    events = [Insert(each, number, 100) for number, each in enumerate(payloads)]

    def partitioner(each: bytes, width: int) -> int:
        return wrong if each == payload else by_route(each, width)

    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("b", events, partitions=2, partitioner=partitioner)

        def is_out(status: Any) -> bool:
            found = [each for each in status["replicas"] if each["name"] == "b"]
            return all(each["state"] == "quarantined" for each in found)

        status = worker.wait(is_out, "b to be in quarantine")
        (why,) = {each["why"] for each in status["replicas"] if each["name"] == "b"}
        assert f"of partition {wrong}, which belongs in partition {home}" in why
        assert payload.decode() in why
        assert "attach it without co_partitioned" in why
        merge.publish("a", [*events, Stable(INFINITY)])
        for number in range(2):
            worker.wait(
                partial(lambda n, s: s["tasks"][n]["output"]["ended"], number), f"task {number}"
            )
        one = worker.get("/status?partition=1&replica=a")
        assert one is not None
        assert [each["partition"] for each in one.json()["tasks"]] == [1]
        assert [each["name"] for each in one.json()["tasks"][0]["replicas"]] == ["a"]
        wrong_number = worker.get("/status?partition=x")
        assert wrong_number is not None
        assert wrong_number.status_code == 422
    assert merge.output_is(reconstitute(events))


def has_ended(partition: int, status: Any) -> bool:
    """The task's output has ended, and so have all replicas, the co-partitioned one too."""
    (task,) = [each for each in status["tasks"] if each["partition"] == partition]
    return all(each["ended"] for each in (task["output"], *task["replicas"]))


@pytest.mark.full
def test_n1_a_worker_that_stood_still_leads_or_follows_again(merge: Merge) -> None:
    """While it stood still for nine sessions the other has led all tasks; the group gives one
    straight back to it, and what it believes of it is over."""
    merge.extra = {"output": {"topic": merge.output, "partitions": 2}}
    merge.write()
    lives = logical(600, seed=71)
    stream = {"a": replica_streams(lives, seed=71)["a"]}
    with ExitStack() as stack:
        workers = [stack.enter_context(merge.worker()) for _ in range(2)]
        wait_until(lambda: sorted(map(len, map(led, workers))) == [1, 1], "each leads one")
        paused, other = sorted(workers, key=lambda each: min(led(each)))
        with merge.publishing(stream, elements=3):
            for _ in range(3):
                paused.stop()
                wait_until(lambda: led(other) == {0, 1}, "the other leads both")
                time.sleep(1.0)  # it publishes meanwhile
                began = time.monotonic()
                paused.go_on()
                wait_until(lambda: sorted(map(len, map(led, workers))) == [1, 1], "each leads one")
                assert time.monotonic() - began < 10
        for worker in workers:
            assert worker.process.poll() is None, worker.text()
            for number in led(worker):
                worker.wait(partial(has_ended_for, "a", number), f"task {number} to end")
        assert paused.logged("fenced")
        assert sum(each["fences"] for each in paused.status()["tasks"]) >= 1
        for worker in workers:
            assert worker.terminate() == 0
    assert merge.output_is(meaning(lives))


def has_ended_for(replica: str, partition: int, status: Any) -> bool:
    (task,) = [each for each in status["tasks"] if each["partition"] == partition]
    ended = [each["ended"] for each in task["replicas"] if each["name"] == replica]
    return bool(task["output"]["ended"]) and ended == [True]


@pytest.mark.full
def test_n1_a_producer_from_outside_fences_once_and_ends_nothing(merge: Merge) -> None:
    """It publishes nothing and has no commit record: whoever it was, the task is this worker's."""
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [Insert(b'"before"', 1, 9), Stable(2)])
        worker.wait(lambda s: s["output"]["stable_point"] == 2, "stable(2)")
        asyncio.run(take_over(merge))
        merge.publish("a", [Insert(b'"behind"', 3, 9), Stable(4)])
        worker.wait(lambda s: s["output"]["stable_point"] == 4, "stable(4)")
        assert len(worker.logged("fenced")) == 1
        assert worker.terminate() == 0
    found = merge.audit()
    assert found.tdb == TDB([(b'"before"', 1, 9), (b'"behind"', 3, 9)], 4)


@pytest.mark.full
def test_n1_another_merge_of_the_same_output_ends_the_worker_and_is_named(merge: Merge) -> None:
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [Insert(b'"before"', 1, 9), Stable(2)])
        worker.wait(lambda s: s["output"]["stable_point"] == 2, "stable(2)")
        commit = merge.last_commit()
        assert commit is not None
        asyncio.run(take_over(merge, msgspec.structs.replace(commit, merge="theirs")))
        merge.publish("a", [Insert(b'"behind"', 3, 9)])
        assert worker.process.wait(30) == 5
        assert f"{merge.output}-0: merge 'theirs' publishes to" in worker.text().splitlines()[-1]
    found = merge.audit()
    assert found.tdb == TDB([(b'"before"', 1, 9)], 2)


async def take_over(merge: Merge, commit: CommitRecord | None = None) -> None:
    """As a second merge with the same output would; `commit record` is what it commits."""
    async with Sink(
        Connection(merge.bootstrap),
        transactional_id=f"lmerge.{merge.output}.0",
        output=TopicPartition(merge.output, 0),
        dead_letters=merge.dead_letters,
        state=TopicPartition(f"{merge.output}.state", 0),
        events=f"{merge.output}.events",
        max_record_bytes=1 << 20,
    ) as sink:
        if commit is not None:
            await sink.commit(Outbox(state=[(COMMIT_KEY, commit.encoded())]))


@pytest.mark.full
def test_kills_while_tasks_leave_the_others_and_join_them_again(merge: Merge) -> None:
    """One replica runs ahead, so that guards hold its stables, in one task earlier than in another;
    the worker is killed where it reads alone, and where it reads together."""
    lives = logical(1_500, seed=81)
    streams = replica_streams(lives, seed=81)
    merge.extra = {
        "output": {"topic": merge.output, "partitions": TASKS},
        "guards": {"patience_seconds": 20, "max_leap": 200},
        "snapshot_seconds": 0.5,
    }
    merge.write()
    widths = {"b": 2, "c": 1}
    merge.publish("a", streams.pop("a"))
    for name in streams:
        merge.publish(name, streams[name][:3], partitions=widths[name])
        streams[name] = streams[name][3:]

    def alone(status: Any) -> set[bool]:
        return {each["read_alone"] for task in status["tasks"] for each in task["replicas"]}

    with merge.worker() as worker:
        worker.wait(lambda s: alone(s) == {True, False}, "a to be held, and the others not")
        worker.kill()
    with ExitStack() as stack, merge.publishing(streams, widths, elements=2):
        for number in range(8):
            worker = stack.enter_context(merge.worker())
            wanted = bool(number % 2)
            with suppress(AssertionError):  # a may not be held any more
                worker.wait(lambda s: wanted in alone(s), "it to read so", seconds=5)  # noqa: B023
            worker.kill()
    with merge.worker() as worker:
        for number in range(TASKS):
            worker.wait(partial(has_ended, number), f"task {number} to end")
        assert worker.terminate() == 0
    assert merge.output_is(meaning(lives))
