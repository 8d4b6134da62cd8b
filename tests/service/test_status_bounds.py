"""A status and a scrape stay small, however many replicas and tasks there are."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from lmerge_service.config.topology import load
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import connection_of
from lmerge_service.merge.replica_states import ReplicaPhase
from lmerge_service.service.status import metrics
from lmerge_service.service.status.aggregate import output_of_all, replicas_of_all
from lmerge_service.service.status.bounds import MOST_ROWS, Reused, as_one_task, part_of
from lmerge_service.service.status.build import status_of
from lmerge_service.service.status.document import (
    OpenTransactionStatus,
    OutdatedStatus,
    OutputStatus,
    ReplicaActivity,
    ReplicaStatus,
    Status,
    TaskStatus,
)
from lmerge_service.service.task_phases import Phase
from lmerge_service.service.worker import Worker
from tests.operations.documented import documented_metrics
from tests.service.cluster import Merge
from tests.service.test_metrics import Scrape, registry_of

KB = 1_000


def replica(name: str, partitions: int = 20, **known: Any) -> ReplicaStatus:
    """A replica with something in every field."""
    text = "the reason in words, as long as they usually are, with topic, partition and offset"
    opened = OpenTransactionStatus(partition=3, offset=123_456, records=77, seconds=3.5)
    outdated = OutdatedStatus(partition=3, offset=123_456, records=77, incarnation=3)
    fields: dict[str, Any] = {
        "name": name, "topic": f"flights.{name}", "state": ReplicaPhase.JOINED, "why": text,
        "held": [], "partitions": partitions, "silent_partitions": list(range(partitions)),
        "incarnation": 4, "stable_point": 1_700_000_000_000, "ended": False,
        "behind_output": 12_345, "read_alone": False, "lag_records": 123_456,
        "open_transactions": [opened], "liveness": ReplicaActivity.PROGRESSING,
        "idle_seconds": 0.123, "silent_seconds": 0.123, "inserts": 12_345_678,
        "adjusts": 12_345_678, "stables": 123_456, "delivered_first": 1, "share_first": 0.3333333,
        "late": 12_345, "stale": 0, "repeated": 0,
        "repeated_at": None, "unusual": 0, "contradicted": 0,
        "contradicted_at": None, "outdated": [outdated], "dead_letters": 3, "lost_events": 0,
        "breaches": {"duplicate_key": 3, "wrong_vold": 4}, "confirmed": 1_700_000_000_000,
        "confirmed_from": 1_600_000_000_000, "confirmed_to_the_end": False, "disagrees": False,
        "left_out": 0, "unconfirmed": False, "in_trouble": True,
    }  # fmt: skip
    return ReplicaStatus(**{**fields, **known})


def task(partition: int, replicas: list[ReplicaStatus]) -> TaskStatus:
    output = OutputStatus(
        topic="flights", case="R3", policy={"insert": "first"}, stable_point=1_700_000_000_000,
        incarnation=0, correct_from=None, ended=False, live_events=12_345, inserts=12_345_678,
        adjusts=123_456, removals=1_234, stables=12_345, leader="r0", leader_since=1.7e9,
        leader_before="r1", leader_why="its stable(1700000000000) came first", leader_switches=3,
        transactions=123_456, commit_ms_p50=5.5, commit_ms_p99=22.5, gap=None,
    )  # fmt: skip
    return TaskStatus(
        partition=partition, role="leads", phase=Phase.LEADING, takeovers=1, rebuilds=0, fences=0,
        recovery_seconds=1.5, behind_seconds=None, restored_from=None, snapshot=None, log=None,
        table=None, stuck=None, cutover=None, divergences=0, findings={"leader": {"r0": 2}},
        snapshots_taken=3, snapshots_failed=0, commit_seconds=None,
        unwritten={"dead_letters": 0, "events": 0}, detached={}, output=output, replicas=replicas,
    )  # fmt: skip


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    """It has not met Kafka."""
    topology = load(Merge("127.0.0.1:1", tmp_path).path)
    wide = topology.output.model_copy(update={"partitions": 64})
    topology = topology.model_copy(update={"output": wide})
    return Worker(topology, Cluster(connection_of(topology.kafka)))


def nothing(worker: Worker) -> Status:
    async def shown() -> Status:
        return status_of(worker)

    return asyncio.run(shown())


def status(worker: Worker, replicas: int, tasks: int) -> Status:
    """Of a worker that leads many tasks."""
    shown = [
        task(number, [replica(f"r{each}") for each in range(replicas)]) for number in range(tasks)
    ]
    return nothing(worker).model_copy(
        update={
            "tasks": shown,
            "output": output_of_all(worker.topology, shown, []),
            "replicas": replicas_of_all(shown),
        }
    )


def size(part: Status) -> int:
    return len(part.model_dump_json())


def test_a_status_of_100_replicas_in_64_tasks_is_small_and_has_what_is_asked_for(
    worker: Worker,
) -> None:
    whole = status(worker, 100, 64)
    assert size(whole) > 6_000 * KB
    shown = part_of(whole)
    assert size(shown) < 400 * KB
    assert (len(shown.tasks), len(shown.replicas), shown.rows_left_out) == (64, 100, 6_400)
    assert not any(each.replicas for each in shown.tasks)
    assert shown.output == whole.output
    one = part_of(whole, partitions=[5])
    assert size(one) < 400 * KB
    assert one.tasks == [whole.tasks[5]]
    assert (one.rows_left_out, one.output) == (0, whole.output), "the worker's, as before"
    named = part_of(whole, replicas=["r7", "r9"])
    assert size(named) < 400 * KB
    assert [each.name for each in named.replicas] == ["r7", "r9"]
    assert [[r.name for r in each.replicas] for each in named.tasks] == 64 * [["r7", "r9"]]
    both = part_of(whole, [5], ["r7"])
    assert [[r.name for r in each.replicas] for each in both.tasks] == [["r7"]]
    assert size(both) < 10 * KB
    assert part_of(whole, [64], ["r7"]).tasks == [], "it is another worker's"


def test_a_status_with_few_rows_is_whole(worker: Worker) -> None:
    assert MOST_ROWS == 1_000
    few, many = status(worker, 10, 64), status(worker, 16, 64)
    assert part_of(few) == few
    bare = part_of(few, with_rows=False)
    assert (bare.rows_left_out, bare.replicas) == (640, few.replicas)
    assert not any(each.replicas for each in bare.tasks)
    assert part_of(many).rows_left_out == 1_024


def test_all_tasks_as_one_add_their_findings_up(worker: Worker) -> None:
    one = as_one_task(status(worker, 2, 3))
    assert one is not None
    assert one.findings == {"leader": {"r0": 6}}
    assert [each.inserts for each in one.replicas] == 2 * [3 * 12_345_678]
    assert as_one_task(nothing(worker)) is None


def test_a_status_that_took_long_is_shown_again_for_a_while(worker: Worker) -> None:
    now = spent = 0.0
    made: list[Status] = []

    def make() -> Status:
        nonlocal spent
        spent += 0.5
        made.append(nothing(worker))
        return made[-1]

    latest = Reused(make, lambda: now, lambda: spent)
    assert latest() is latest() is made[0]
    now = 9.9
    assert latest() is made[0]
    now = 10.0
    assert latest() is made[1]
    assert len(made) == 2


def scraped(worker: Worker, found: Status, patch: pytest.MonkeyPatch) -> CollectorRegistry:
    patch.setattr(metrics, "status_of", lambda _: found)
    return registry_of(worker)


def test_a_scrape_of_100_replicas_in_64_tasks_is_small_and_as_documented(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = status(worker, 100, 64)

    async def scrape() -> tuple[Scrape, int]:
        registry = scraped(worker, shown, monkeypatch)
        return Scrape(registry), len(generate_latest(registry))

    found, large = asyncio.run(scrape())
    assert large < 2_000 * KB
    assert found.types() == {name: kind for name, (kind, _) in documented_metrics().items()}
    number = found.number
    summed = number("lmerge_replica_elements_total", replica="r3", partition="", kind="insert")
    assert summed == 64 * 12_345_678
    assert number("lmerge_notifications_total", kind="leader", replica="r0", partition="") == 128
    assert number("lmerge_replica_leads", replica="r0", partition="") == 1
    assert number("lmerge_replica_leads", replica="r1", partition="") == 0
    assert number("lmerge_output_elements_total", partition="63", kind="insert") == 12_345_678


def test_a_scrape_with_few_rows_has_replicas_by_task(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = status(worker, 15, 64)

    async def scrape() -> str:
        registry = scraped(worker, shown, monkeypatch)
        return generate_latest(registry).decode()

    text = asyncio.run(scrape())
    assert len(text) < 10_000 * KB
    assert 'lmerge_replica_late_elements_total{partition="7",replica="r3"} 12345' in text
