"""What replicas do wrong, as a job on a real broker reports it: in the events topic, in its log,
and in what it hands to metrics."""

import json
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from lmerge_service.cli.spark_merge import _report
from lmerge_service.config.topology import load
from lmerge_service.elements import Adjust, Insert, Stable
from lmerge_service.merge.findings.evidence import Evidence
from lmerge_service.spark.merge.job import BatchProgress, JobSettings, MergeJob
from lmerge_service.spark.merge.serving import Metrics
from tests.service.cluster import Merge
from tests.spark.merge.test_job import checkpoint_of, job_of
from tests.spark.merge.test_retention import two_replicas, uncommit
from tests.spark.records import received

E1 = Insert(b'"e1"', 1, 10)


def evidence_of(merge: Merge) -> list[Evidence]:
    records = received(merge.bootstrap, f"{merge.output}.events")
    assert {each.key for each in records} == {b"b"}
    return [Evidence.of_record(each.value or b"") for each in records]


@pytest.mark.full
def test_n16_breaches_are_counted_and_reported_with_their_place(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """Also when the batch is run twice, since the job was killed before it was complete."""
    merge = two_replicas(bootstrap, tmp_path)
    merge.publish("a", [E1, Stable(4)])
    merge.publish("b", [Adjust(b'"e2"', 7, 8, 9), Stable(6)])
    progress: list[BatchProgress] = []
    settings = JobSettings(checkpoint_of(merge), available_now=True)
    with capture_logs() as logs:
        MergeJob(load(merge.path), settings, report=progress.append).run(spark)

    found = evidence_of(merge)
    assert [(each.kind, each.count, each.id) for each in found] == [
        ("unknown_event", 1, "0-1-0"),
        ("divergence", 1, "0-1-1"),
    ]
    places = [(each.first.topic, each.first.partition, each.first.offset) for each in found]  # type: ignore[union-attr]
    assert places == [(merge.topics["b"], 0, 0), (merge.topics["b"], 0, 1)]
    assert found[1].payload == '"e1"'
    assert found[1].at_ms > 1_700_000_000_000

    assert [(e["event"], e["kind"], e["replica"], e["offset"], e["count"]) for e in logs] == [
        ("found", "unknown_event", "b", 0, 1),
        ("found", "divergence", "b", 1, 1),
    ]
    [batch] = progress
    wrong = {("b", 0, "unknown_event"): 1, ("b", 0, "half_frozen_missing"): 1}
    assert batch.breaches == wrong
    metrics = Metrics()
    metrics.report(batch)
    for _, _, kind in wrong:
        shown = f'lmerge_replica_breaches_total{{kind="{kind}",partition="0",replica="b"}} 1.0'
        assert shown in generate_latest(metrics.registry).decode()

    uncommit(merge, 0)
    job_of(merge).run(spark)
    again = evidence_of(merge)
    assert len(again) == 2 * len(found)
    assert {each.id for each in again} == {each.id for each in found}, "reported twice as the same"


def test_n16_a_batch_reports_breaches_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = {("b", 0, "wrong_vold"): 1, ("b", 1, "wrong_vold"): 2, ("a", 0, "malformed"): 1_000}
    for as_json in (True, False):
        _report(BatchProgress(3, 12, 0.5, {}, wrong), as_json=as_json)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["breaches"] == {
        "b": {"wrong_vold": 3},
        "a": {"malformed": 1_000},
    }
    line = "batch 3: 12 records in 0.50 s; breaches of b: 3 wrong_vold"
    assert printed.err == f"{line}; breaches of a: 1,000 malformed\n"
