"""Metrics: what a scrape gives is what docs/operations/metrics.md lists, and is true."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lmerge_service.config.topology import load
from lmerge_service.elements import Adjust, Insert, Stable
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import connection_of
from lmerge_service.merge.feedback import FeedbackOut
from lmerge_service.service.status.metrics import metrics_of
from lmerge_service.service.worker import Worker
from tests.operations.documented import documented_metrics
from tests.service.cluster import Merge, running


def registry_of(worker: Worker) -> CollectorRegistry:
    output = worker.topology.output.topic
    connection = connection_of(worker.topology.kafka)
    return metrics_of(worker, FeedbackOut(connection, output, tasks=1, replicas=list))


class Scrape:
    """What Prometheus would read."""

    def __init__(self, registry: CollectorRegistry):
        text = generate_latest(registry).decode()
        self.families: list[Metric] = list(text_string_to_metric_families(text))

    def number(self, name: str, **labels: str) -> float | None:
        """The one sample with these labels; None if it is absent."""
        found = [
            sample.value
            for family in self.families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) < 2, f"{name} {labels}: {found}"
        return found[0] if found else None

    def types(self) -> dict[str, str]:
        """By name as a query has it."""
        return {_queried(family): family.type for family in self.families}

    def labels(self) -> Iterable[tuple[str, frozenset[str]]]:
        for family in self.families:
            for sample in family.samples:
                yield _queried(family), frozenset(sample.labels) - {"le"}


def _queried(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else str(family.name)


@contextlib.asynccontextmanager
async def leading_and_following(merge: Merge) -> AsyncIterator[tuple[Worker, Worker]]:
    """Two workers in this process; the first has read all and taken a snapshot, the second is
    warm."""
    async with running(merge) as leads, running(merge) as follows, asyncio.timeout(30):
        while not (  # noqa: ASYNC110
            leads.held[0].task.state.snapshots
            and follows.held[0].task.lifecycle.is_warm
            and has_read_all(leads)
            and leads.retention.kept
            and leads.folding.begins is not None
        ):
            await asyncio.sleep(0.02)
        yield leads, follows


def has_read_all(worker: Worker) -> bool:
    """What `merge` has published, and has put it out and compared it."""
    scraped = Scrape(registry_of(worker))
    if not any(name == "lmerge_replica_confirmed_point" for name, _ in scraped.labels()):
        return False
    number = scraped.number
    repeated = number("lmerge_replica_repeated_records_total", replica="b")
    return (repeated, number("lmerge_output_elements_total", kind="insert")) == (2, 2)


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    made = Merge(bootstrap, tmp_path)
    made.extra = {"snapshot_seconds": 0.1, "output": {"topic": made.output, "table": True}}
    made.write()
    made.publish("a", [Insert(b"1", 1_000, 9_000), Stable(5_000)])
    made.publish(
        "b", [Insert(b"1", 1_000, 9_000), Adjust(b"1", 1_000, 9_000, 8_000), Stable(4_000)]
    )
    for _ in range(3):  # behind the output's stable, so that it is late in no order of reading
        made.publish("b", [Insert(b"2", 6_000, 9_000)], seq=1)
    return made


def test_a_scrape_gives_what_is_documented_and_the_numbers_are_true(merge: Merge) -> None:
    async def scrape() -> tuple[Scrape, Scrape]:
        async with leading_and_following(merge) as (leads, follows):
            return Scrape(registry_of(leads)), Scrape(registry_of(follows))

    leads, follows = asyncio.run(scrape())
    documented = documented_metrics()
    for each in (leads, follows):
        assert each.types() == {name: kind for name, (kind, _) in documented.items()}
    shown = {*leads.labels(), *follows.labels()}
    assert shown == {(name, labels) for name, (_, labels) in documented.items()}
    assert_of_who_leads(leads)
    assert_of_who_follows(follows)


def assert_of_who_leads(scrape: Scrape) -> None:
    number = scrape.number
    assert number("lmerge_build_info", case="R3", version="0.1.0") == 1
    assert (number("lmerge_ready"), number("lmerge_task_leads")) == (1, 1)
    assert number("lmerge_worker_state", state="running") == 1
    assert number("lmerge_worker_state", state="standby") == 0
    assert number("lmerge_health_reasons", kind="excluded") == 1, "c is not there"
    assert number("lmerge_health_reasons", kind="redundancy_lost") == 0
    assert number("lmerge_decisions_version") == 1
    assert number("lmerge_output_stable_point") == 5_000
    assert number("lmerge_output_stable_timestamp_seconds") == 5.0
    assert number("lmerge_replica_stable_point", replica="b") == 4_000
    assert number("lmerge_replica_behind_output_seconds", replica="b") == 1.0
    assert number("lmerge_replica_leads", replica="a") == 1
    assert number("lmerge_replica_elements_total", replica="b", kind="adjust") == 1
    assert number("lmerge_replica_repeated_records_total", replica="a") == 0
    assert number("lmerge_replica_repeated_records_total", replica="b") == 2
    assert number("lmerge_replica_stable_point", replica="c") is None, "unknown is absent"
    assert number("lmerge_replica_lag_records", replica="c") is None
    assert number("lmerge_replica_state", replica="c", state="excluded") == 1
    assert number("lmerge_replica_breaches_total", replica="a", kind="wrong_vold") == 0
    assert number("lmerge_output_elements_total", kind="insert") == 2
    assert (number("lmerge_snapshots_total", outcome="taken") or 0) >= 1
    assert (number("lmerge_snapshot_size_bytes") or 0) > 100
    assert number("lmerge_takeovers_total") == 1
    assert 0 < (number("lmerge_recovery_duration_seconds") or 0) < 30
    assert number("lmerge_standby_behind_seconds") is None
    commits = number("lmerge_commit_latency_seconds_count")
    assert 1 <= (commits or 0) <= (number("lmerge_transactions_total") or 0)
    assert number("lmerge_commit_latency_seconds_bucket", le="+Inf") == commits


def assert_of_who_follows(scrape: Scrape) -> None:
    number = scrape.number
    assert (number("lmerge_ready"), number("lmerge_task_leads")) == (1, 0)
    assert number("lmerge_worker_state", state="standby") == 1
    assert 0 <= (number("lmerge_standby_behind_seconds") or -1) < 30
    assert number("lmerge_recovery_duration_seconds") is None
    assert number("lmerge_snapshots_total", outcome="taken") == 0
    assert number("lmerge_takeovers_total") == 0


def test_a_worker_that_has_not_met_kafka_shows_what_it_knows(tmp_path: Path) -> None:
    """Without a broker: the families are there, and nothing is made up."""

    async def scrape() -> Scrape:
        merge = Merge("127.0.0.1:1", tmp_path)
        topology = load(merge.path)
        return Scrape(registry_of(Worker(topology, Cluster(connection_of(topology.kafka)))))

    found = asyncio.run(scrape())
    assert found.types() == {name: kind for name, (kind, _) in documented_metrics().items()}
    assert found.number("lmerge_ready") == 0
    assert found.number("lmerge_worker_state", state="starting") == 1
    assert found.number("lmerge_kafka_reachable", what="group") is None
    assert found.number("lmerge_decisions_version") is None
    assert found.number("lmerge_health_reasons", kind="not_running") == 1
