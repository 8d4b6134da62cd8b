"""What the doctor finds in a cluster, check by check, and on a real broker."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from msgspec.structs import replace

from lmerge_service.config.topology import Topology
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.topics import TopicDetails
from lmerge_service.merge.commit_record import CommitRecord, OutputBeginning, SnapshotPlace
from lmerge_service.merge.doctor import examination
from lmerge_service.merge.doctor.diagnosis import Diagnosis, Severity
from lmerge_service.merge.doctor.own_topics import own_topic
from lmerge_service.merge.doctor.samples import Sample, samples_of
from lmerge_service.merge.inspection import Checked, Inspected
from tests.cli.conftest import LMERGE, environment
from tests.service.cluster import Merge

NOW = 1_796_000_000_000
"""In November 2026."""
WELL = TopicDetails(1, (), 3, frozenset({"Read", "Write", "Describe", "Delete"}))
SAFE = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "min.insync.replicas": "2",
    "max.message.bytes": "4000000",
}


def topology(**more: Any) -> Topology:
    replica = {"name": "a", "topic": "in.a"} | more.pop("replica", {})
    return Topology.model_validate(
        {
            "name": "m",
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "output": {"topic": "out"} | more.pop("output", {}),
            "replicas": [replica],
            **more,
        }
    )


def of_output(
    made: Topology,
    details: TopicDetails = WELL,
    *,
    name: str = "out",
    brokers: int = 3,
    **config: str,
) -> list[str]:
    keys = {key.replace("_", "."): value for key, value in config.items()}
    found = own_topic(made, name, details, SAFE | keys, brokers=brokers)
    return [str(each) for each in found]


def details(**changed: Any) -> TopicDetails:
    fields = ("partitions", "leaderless", "replication", "rights")
    return TopicDetails(**{name: getattr(WELL, name) for name in fields} | changed)


def test_a_topic_that_is_well_has_one_line() -> None:
    assert of_output(topology()) == ["ok       topic out: 1 partition, replication 3"]


@pytest.mark.parametrize(
    ("made", "found", "config", "expected"),
    [
        ({}, {"partitions": 3}, {}, "error: 3 partitions, and output.partitions is 1"),
        ({}, {"leaderless": (0,)}, {}, "error: partition 0 has no leader"),
        ({}, {"rights": frozenset({"Read", "Describe"})}, {}, "error: our user lacks Write"),
        ({}, {}, {"cleanup_policy": "compact"}, "error: cleanup.policy is compact"),
        ({}, {}, {"max_message_bytes": "1000"}, "error: max.message.bytes is 1000"),
        ({}, {}, {"retention_ms": "3600000"}, "warning: keeps records for 1:00:00, and a recovery"),
        ({"output": {"keep": "7d"}}, {}, {"segment_bytes": "1073741824"}, "warning: segment.bytes"),
        ({}, {"replication": 1}, {}, "warning: replication is 1"),
        ({}, {}, {"min_insync_replicas": "1"}, "warning: min.insync.replicas is 1 of 3"),
        ({}, {}, {"min_insync_replicas": "3"}, "warning: min.insync.replicas is 3 of 3"),
        ({}, {}, {"unclean_leader_election_enable": "true"}, "warning: unclean.leader.election"),
        (
            {"output": {"keep": "7d"}},
            {"rights": frozenset({"Read", "Write", "Describe"})},
            {},
            "error: our user lacks Delete",
        ),
    ],
)
def test_each_fault_of_a_topic_is_one_line(
    made: Mapping[str, Any], found: Mapping[str, Any], config: Mapping[str, str], expected: str
) -> None:
    keys = {key: value for key, value in config.items() if key != "unclean_leader_election_enable"}
    every = SAFE | {key.replace("_", "."): value for key, value in keys.items()}
    if "unclean_leader_election_enable" in config:
        every["unclean.leader.election.enable"] = "true"
    (line,) = own_topic(topology(**made), "out", details(**found), every, brokers=3)
    assert f"{line.severity}: {line.finding}".startswith(expected)
    assert line.remedy


def test_of_a_single_broker_no_topic_is_better_and_only_kafka_s_line_has_it() -> None:
    assert of_output(topology(), details(replication=1), brokers=1) == [
        "ok       topic out: 1 partition, replication 1"
    ]


def test_who_trims_needs_the_right_to_and_events_must_be_bounded() -> None:
    may = details(rights=frozenset({"Read", "Write", "Describe"}))
    kept = topology(output={"keep": "7d"})
    (line,) = of_output(kept, may, name="out.control")
    assert "our user lacks Delete" in line
    (line,) = of_output(topology(), may, name="out.control")
    assert line.startswith("ok")
    for name in ("out.events", "out.dead-letters"):
        (line,) = of_output(topology(), name=name)
        assert "retention.ms and retention.bytes are -1: it grows for ever" in line
    (line,) = of_output(topology(), name="out.events", retention_ms="1000")
    assert line.startswith("ok")
    (line,) = of_output(topology(), name="out.events", retention_bytes="1000")
    assert line.startswith("ok")


def test_decisions_are_for_ever_and_commit_records_compacted() -> None:
    (line,) = of_output(topology(), name="out.control", retention_ms="1000")
    assert "retention.ms is 1000; it must be -1" in line
    (line,) = of_output(topology(), name="out.state")
    assert "cleanup.policy is delete; it must be compact" in line


def test_a_table_is_compacted_as_wide_as_the_output_and_leaves_time_to_load_it() -> None:
    made = topology(output={"table": True, "partitions": 2})
    table: dict[str, str] = {"name": "out.table", "cleanup_policy": "compact"}
    (line,) = of_output(made, details(partitions=2), **table)  # type: ignore[arg-type]
    assert line.startswith("ok")
    lines = of_output(made, WELL, name="out.table", min_compaction_lag_ms="0")
    assert ["1 partition, and output.partitions is 2" in each for each in lines].count(True) == 1
    assert any("cleanup.policy is delete; it must be compact" in each for each in lines)
    assert any("min.compaction.lag.ms is 0" in each for each in lines)


# --- replicas ------------------------------------------------------------------------------------


class At:
    """A record as Kafka has it."""

    def __init__(self, offset: int, value: bytes, timestamp: int = NOW) -> None:
        self.offset, self.value, self.timestamp = offset, value, timestamp
        self.headers: Sequence[tuple[str, bytes]] = ()


def sample(*elements: Element, partition: int = 0, begins: int = 0, at: int = NOW) -> Sample:
    records: list[Any] = [At(n, encode(each), at) for n, each in enumerate(elements)]
    return Sample(TopicPartition("in.a", partition), begins, len(records), records)


def of_replica(made: Topology, *samples: Sample, found: TopicDetails | None = WELL) -> list[str]:
    lines = samples_of(made, made.replicas[0], found, samples, unix_ms=NOW)
    return [str(each) for each in lines]


GOOD = (Insert(b"1", NOW, NOW + 5), Stable(NOW))


def test_a_replica_that_is_well_has_one_line() -> None:
    expected = ["ok       replica a: topic in.a, the last 2 records are well"]
    assert of_replica(topology(), sample(*GOOD)) == expected
    assert of_replica(topology(), sample(*GOOD, Stable(INFINITY)))[0].startswith("ok")


def test_a_replica_that_is_not_there_is_waited_for() -> None:
    assert of_replica(topology(), found=None) == [
        "warning  replica a: topic in.a does not exist; it is waited for: start the replica"
    ]


def test_each_fault_of_a_replica_is_one_line() -> None:
    def only(expected: str, *samples: Sample, **made: Any) -> None:
        (line,) = of_replica(topology(**made), *samples)
        assert expected in line

    only("begins at offset 7: a merge that has not merged", sample(*GOOD, begins=7))
    only("no stable among the last 1 record;", sample(GOOD[0]), sample(*GOOD, partition=1))
    only("in time_unit ms, and 2026-11-", sample(Insert(b"1", 1, 5), Stable(NOW // 1_000)))
    only("is from 1:00:00 after now", sample(*GOOD, at=NOW + 3_600_000))
    seconds = sample(Insert(b"1", 1, 5), Stable(NOW // 1_000))
    assert of_replica(topology(time_unit="s"), seconds)[0].startswith("ok")
    assert of_replica(topology(time_unit="none"), seconds)[0].startswith("ok")
    broken = Sample(TopicPartition("in.a", 0), 0, 2, [At(0, b"{"), At(1, encode(Stable(NOW)))])  # type: ignore[list-item]
    only("in.a-0 at offset 0 is no element: ", broken)


def test_a_replica_that_is_not_co_partitioned_as_declared_is_found() -> None:
    made = topology(output={"partitions": 2}, replica={"co_partitioned": True})
    (line, *_) = of_replica(made, sample(*GOOD))
    assert "declared co_partitioned, has 1 partition, and the output 2" in line
    payloads = [Insert(b"%d" % number, NOW, NOW + 1) for number in range(10)]
    wide = details(partitions=2)
    (line,) = of_replica(made, sample(*payloads, Stable(NOW)), found=wide)
    assert "belongs to partition 1; write by the murmur2" in line


def test_an_output_that_rests_on_snapshots_of_which_none_is_whole_is_an_error() -> None:
    place = SnapshotPlace(1, 5, 10, 20, 3, 1_000, "00", 5)
    commit = CommitRecord(merge="m", transaction=9, output_records=100, snapshots=(place,))

    def found(commit: CommitRecord, begins: int, damage: str | None) -> str:
        task = Inspected(0, commit, (Checked(place, damage),))
        (only,) = examination._of_task(topology(), task, {0: begins})
        return str(only)

    assert found(commit, 7, None).startswith("ok")
    assert found(commit, 0, "damaged").startswith("ok"), "all of the output is there"
    lost = found(commit, 7, "damaged")
    assert lost.startswith("error")
    assert "none of 1 snapshots can be used" in lost
    assert "`lmerge restart-output`" in lost
    begun = replace(commit, output=OutputBeginning(2, 5, offset=7, records=60))
    assert "snapshots 1 of incarnation 2" in found(begun, 7, "damaged")
    nothing = replace(begun, output_records=60)
    assert found(nothing, 9, "damaged").startswith("ok"), "nothing of it was published yet"


def test_an_output_of_which_one_snapshot_alone_recovers_is_a_warning() -> None:
    """What Kafka has deleted is needed by the older one, as retention.bytes may have it."""
    latest, older = (
        SnapshotPlace(slot, 5, 10, 20, 3, 1_000, "00", 5, output, output)
        for slot, output in enumerate((80, 60))
    )
    commit = CommitRecord(merge="m", transaction=9, output_records=100, snapshots=(latest, older))

    def found(commit: CommitRecord, begins: int) -> str:
        task = Inspected(0, commit, tuple(Checked(each, None) for each in commit.snapshots))
        (only,) = examination._of_task(topology(), task, {0: begins})
        return str(only)

    assert found(commit, 60).startswith("ok")
    short = found(commit, 61)
    assert short.startswith("warning  task 0: the output begins at offset 61, and the older of its")
    assert "needs it from 60 on; the latest one alone recovers" in short
    assert found(replace(commit, output_records=60), 61).startswith("ok"), "it covers all there is"
    assert found(replace(commit, snapshots=(latest,)), 61).startswith("ok"), "there is no older one"


def test_brokers_are_to_be_three_and_to_know_topics_by_their_ids() -> None:
    def found(brokers: int, *, has_ids: bool) -> list[str]:
        return [str(each) for each in examination._of_kafka(topology(), brokers, has_ids=has_ids)]

    assert found(3, has_ids=True) == ["ok       Kafka at 127.0.0.1:1: 3 brokers"]
    (few,) = found(1, has_ids=True)
    assert few.startswith("warning  Kafka at 127.0.0.1:1: 1 broker; the loss of one stops")
    (old,) = found(3, has_ids=False)
    assert "older than Kafka 2.8, and returns no topic ids; upgrade it" in old
    assert len(found(1, has_ids=False)) == 2


def test_the_line_of_a_diagnosis_ends_with_what_to_do() -> None:
    found = Diagnosis(Severity.ERROR, "topic t", "it is gone", "bring it back")
    assert str(found) == "error    topic t: it is gone; bring it back"


# --- on a broker ---------------------------------------------------------------------------------


@pytest.mark.kafka
def test_before_the_first_start_and_while_a_worker_runs(bootstrap: str, tmp_path: Path) -> None:
    merge = Merge(bootstrap, tmp_path, replicas=("a",))
    merge.extra = {"time_unit": "none"}
    merge.write()

    def found() -> tuple[int, list[dict[str, Any]]]:
        run = subprocess.run(
            [*LMERGE, "doctor", str(merge.path), "--json"],
            capture_output=True, text=True, env=environment(), check=False, timeout=60,
        )  # fmt: skip
        return run.returncode, json.loads(run.stdout)

    code, before = found()
    assert code == 1, "one broker, and no replica yet"
    assert [each["subject"] for each in before if each["severity"] == "warning"] == [
        f"Kafka at {bootstrap}",
        "replica a",
    ]
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [Insert(b"1", 1, 5), Stable(4)])
        merge.wait_until_committed("a", 2)
        code, after = found()
    assert code == 1
    lines = {each["subject"]: each for each in after}
    assert lines["task 0"]["finding"].startswith("published records 2")
    assert lines["replica a"]["severity"] == "ok"
    assert lines[f"topic {merge.output}"]["severity"] == "ok"
    merge.extra |= {"output": {"topic": merge.output, "partitions": 2}}
    merge.write()
    code, wrong = found()
    assert code == 2
    assert [each["finding"] for each in wrong if each["severity"] == "error"] == [
        "1 partition, and output.partitions is 2"
    ] * 2
