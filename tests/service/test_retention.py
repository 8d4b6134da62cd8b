"""An output that forgets: trimmed by the worker, and by whoever else, at any time."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from msgspec.structs import replace

from lmerge_service.config.topology import load
from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import Source
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.state_file import export_to, outputs
from lmerge_service.offline.audit import Audited, audit_topic, compare
from lmerge_service.tdb import TDB
from tests.merge.test_recovery import commit_again, last_commit, rebuilt
from tests.service.cluster import Merge, Worker, logical, meaning, replica_streams

pytestmark = pytest.mark.kafka

ETERNAL, SHORT = Insert(b'"eternal"', 1, INFINITY), Insert(b'"short"', 5, 9)


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    """With snapshots as often as possible, and records that are old after a second."""
    made = Merge(bootstrap, tmp_path)
    made.extra = {"snapshot_seconds": 0.2, "output": {"topic": made.output, "keep": "1s"}}
    made.write()
    return made


class Reader:
    """What a consumer makes of the output that reads along from an offset."""

    def __init__(self, merge: Merge, start: int = 0) -> None:
        self.tdb = TDB()
        self.offset = start
        self._merge = merge
        self._done = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._read()))

    @contextmanager
    def reading(self) -> Iterator["Reader"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._done.set()
            self._thread.join(30)

    async def _read(self) -> None:
        decode, tp = WireDecoder().decode, TopicPartition(self._merge.output, 0)
        async with Topics(Connection(self._merge.bootstrap)) as topics:
            await topics.ensure(tp.topic)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._merge.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="none",
        )
        async with consumer:
            consumer.assign([tp])
            consumer.seek(tp, self.offset)
            while not self._done.is_set() and self.tdb.stable < INFINITY:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        self.tdb.apply(decode(record.value))
                        self.offset = record.offset + 1

    def wait_until_ended(self) -> None:
        self._thread.join(60)
        assert self.tdb.stable == INFINITY, self.offset


def bounds(merge: Merge) -> tuple[int, int]:
    """Where the output begins and ends."""

    async def ask() -> tuple[int, int]:
        tp = TopicPartition(merge.output, 0)
        async with Source(Connection(merge.bootstrap)) as source:
            return (await source.beginnings([tp]))[tp], (await source.high_watermarks([tp]))[tp]

    return asyncio.run(ask())


def trim(merge: Merge, before: int) -> None:
    trim_topic(merge, merge.output, before)


def wait_until_trimmed(merge: Merge, worker: Worker, beyond: int) -> Any:
    """The log's status, once the output begins at an offset or behind it."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        status = worker.status()
        tasks = status["tasks"] if status else ()
        if tasks and (log := tasks[0]["log"]) and log["begins"] >= beyond:
            return log
        time.sleep(0.1)
    raise AssertionError(f"{status}\n{worker.text()}")


@pytest.mark.full
def test_what_nobody_needs_is_deleted_and_whoever_reads_along_misses_nothing(merge: Merge) -> None:
    """Killed after each deletion, workers go on from snapshots of a log that begins later; at the
    end snapshots cover all that was published, and it goes as well."""
    lives, begins, parts = logical(300), 0, 3
    streams = replica_streams(lives)
    with Reader(merge).reading() as reader:
        for part in range(parts):
            with merge.worker() as worker:
                for name, stream in streams.items():
                    size = -(-len(stream) // parts)
                    merge.publish(name, stream[part * size : (part + 1) * size])
                begins = wait_until_trimmed(merge, worker, begins + 1)["begins"]
                assert (rebuilt(worker)["from_snapshot_of"] is not None) == (part > 0)
        with merge.worker() as worker:
            worker.wait_until_ended()
            reader.wait_until_ended()
            log = wait_until_trimmed(merge, worker, reader.offset)  # all that was published
    assert log["held_by"] is None
    assert log["needed"] == log["begins"]
    assert reader.tdb == meaning(lives)


@pytest.mark.full
def test_without_a_record_left_and_with_none_that_is_needed_it_goes_on(merge: Merge) -> None:
    """Someone deletes all there is, as retention does while nothing is published."""
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, SHORT, Stable(10)])
        merge.wait_until_committed("a", 3)
        wait_until_trimmed(merge, worker, 3)  # two snapshots cover it
        worker.kill()
    trim(merge, bounds(merge)[1])
    with Reader(merge, bounds(merge)[1]).reading() as reader, merge.worker() as worker:
        worker.wait_until_running()
        assert rebuilt(worker)["from_snapshot_of"] is not None
        merge.publish("b", [ETERNAL, Insert(b'"later"', 20, 30), Stable(INFINITY)])
        worker.wait_until_ended()
        reader.wait_until_ended()
    assert set(reader.tdb) == {(b'"later"', 20, 30)}


@pytest.mark.full
def test_another_policy_is_merged_by_against_what_a_snapshot_has_of_the_output(
    merge: Merge,
) -> None:
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, SHORT, Stable(10)])
        wait_until_trimmed(merge, worker, 3)
        worker.kill()
    merge.extra["policy"] = {"adjust": "eager"}
    merge.write()
    with Reader(merge, bounds(merge)[0]).reading() as reader, merge.worker() as worker:
        status = worker.wait_until_running()
        assert "is of" in worker.logged("snapshot not used")[0]["error"]
        assert rebuilt(worker)["from_snapshot_of"] is None
        assert rebuilt(worker)["live_events"] == status["output"]["live_events"] == 1
        merge.publish("a", [Insert(b'"later"', 20, 30)])
        merge.publish("b", [ETERNAL, Insert(b'"later"', 20, 40), Stable(INFINITY)])
        worker.wait_until_ended()
        reader.wait_until_ended()
    assert set(reader.tdb) == {(b'"later"', 20, 40)}, "what is final was not emitted once more"


@pytest.mark.full
def test_a_reader_that_has_not_read_on_keeps_the_output(merge: Merge) -> None:
    group = f"{merge.name}.billing"
    merge.extra["output"]["readers"] = [group]
    merge.write()
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, SHORT, Stable(10)])
        log = worker.wait(
            lambda status: (log := status["tasks"][0]["log"]) and log["held_by"], "the reader"
        )["tasks"][0]["log"]
        time.sleep(1.5)
        assert bounds(merge)[0] == log["begins"] == 0
        assert log["held_by"] in (f"reader {group}", "the older snapshot")
        asyncio.run(commit(merge, group, 2))
        log = wait_until_trimmed(merge, worker, 2)
        assert (log["begins"], log["held_by"]) == (2, f"reader {group}")


async def commit(merge: Merge, group: str, offset: int) -> None:
    tp = TopicPartition(merge.output, 0)
    async with AIOKafkaConsumer(
        bootstrap_servers=merge.bootstrap, group_id=group, enable_auto_commit=False
    ) as consumer:
        consumer.assign([tp])
        await consumer.commit({tp: offset})


@pytest.mark.full
def test_what_a_rebuild_could_not_use_is_not_what_the_output_is_trimmed_by(merge: Merge) -> None:
    """Snapshots of another case are of no use: killed before it has its own, it starts again."""
    keep = merge.extra["output"]
    merge.extra |= {"case": "R1", "output": {"topic": merge.output}}
    merge.write()
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, SHORT, Stable(10)])
        worker.wait(lambda status: status["tasks"][0]["snapshots_taken"] >= 2, "two snapshots")
    merge.extra |= {"case": "R3", "output": keep, "snapshot_seconds": 600}
    merge.write()
    with merge.worker() as worker:
        worker.wait(lambda status: status["tasks"][0]["log"] is not None, "the first look")
        time.sleep(2.5)
        assert worker.status()["tasks"][0]["log"]["needed"] == bounds(merge)[0] == 0
        worker.kill()
    with merge.worker() as worker:
        worker.wait_until_running()


@pytest.mark.full
def test_a_state_is_exported_from_what_is_left(merge: Merge, tmp_path: Path) -> None:
    """As `lmerge state export` and `jumpstart` need it, and a merge in Spark that takes it over."""
    topology, path = load(merge.path), tmp_path / "exported"
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, SHORT, Stable(10)])
        wait_until_trimmed(merge, worker, 3)
        asyncio.run(export_to(path, topology, Cluster(Connection(merge.bootstrap))))
    ((held, _),) = outputs(path)
    assert (set(held), held.stable) == ({(b'"eternal"', 1, INFINITY)}, 10)


@pytest.mark.full
def test_an_output_that_nothing_can_recover_is_refused_in_words(merge: Merge) -> None:
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, SHORT, Stable(10)])
        wait_until_trimmed(merge, worker, 3)
        worker.kill()
    commit_again(merge, replace(last_commit(merge), snapshots=()))
    with merge.worker() as worker:
        assert worker.process.wait(30) == 4
        assert "begins at offset" in worker.text()
        assert "none of 0 snapshots can be used" in worker.text()
        assert "Traceback" not in worker.text()


@pytest.mark.full
def test_what_kafka_deletes_too_early_is_reported_and_snapshots_hurry(merge: Merge) -> None:
    """Here by hand, elsewhere by retention.bytes."""
    merge.extra |= {"snapshot_seconds": 4.0, "output": {"topic": merge.output, "keep": "5s"}}
    merge.write()
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, SHORT, Stable(10)])
        worker.wait(lambda status: status["tasks"][0]["snapshots_taken"] >= 2, "two snapshots")
        merge.publish("a", [Insert(b'"later"', 20, 30)])
        merge.wait_until_committed("a", 4)
        trim(merge, bounds(merge)[1])
        status = worker.wait(lambda s: "retention" in s["reason_kinds"], "the loss to be reported")
        (why,) = [each for each in status["reasons"] if "deleted too early" in each]
        assert "raise the topic's retention.ms or retention.bytes" in why
        worker.wait(lambda s: "retention" not in s["reason_kinds"], "new snapshots")


@pytest.mark.full
def test_an_audit_begins_at_a_snapshot_and_compares_from_its_stable_point_on(merge: Merge) -> None:
    live = [Insert(b'"%d"' % number, number, 100 + number) for number in range(20)]
    decoder = WireDecoder()

    async def audits() -> tuple[Audited, Audited]:
        connection = Connection(merge.bootstrap)
        output = await audit_topic(connection, merge.output, decoder)
        return output, await audit_topic(connection, merge.topics["a"], decoder)

    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [SHORT, *live, Stable(110)])
        wait_until_trimmed(merge, worker, 20)
        verdict = compare(*asyncio.run(audits()))
        assert (verdict.equivalent, verdict.since) == (True, 110)
        assert len(verdict.streams[0].tdb) == 10, "those that end at 110 or later"
        with pytest.raises(ConfigurationError, match="known from 110 on only"):
            compare(*verdict.streams, Audited("behind", TDB([], 50)), clipped=True)
        merge.publish("b", [Insert(b'"wrong"', 120, 130)])
        worker.wait(lambda status: status["output"]["inserts"] == 22, "what a does not have")
        assert compare(*asyncio.run(audits())).differences_total == 1
        trim_topic(merge, merge.topics["a"], 3)
        with pytest.raises(ConfigurationError, match="begins at offset 3 of partition 0, and only"):
            asyncio.run(audits())


def trim_topic(merge: Merge, topic: str, before: int) -> None:
    async def delete() -> None:
        async with Topics(Connection(merge.bootstrap)) as topics:
            await topics.trim({TopicPartition(topic, 0): before})

    asyncio.run(delete())
