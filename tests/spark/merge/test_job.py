"""The merge as a Spark job on a real broker: to the end, through stops and kills, with replicas
that come and go, and from the service and back."""

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.config.topology import load
from lmerge_service.core import Case
from lmerge_service.elements import Element
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.headers import seq_of
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import Connection, connection_of
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.decisions.records import Attach, Detach, Quarantine, Release
from lmerge_service.merge.state_file import export_to
from lmerge_service.reader.read_merged import read_merged
from lmerge_service.spark.merge.handover import hand_over, last_batch, states_of
from lmerge_service.spark.merge.job import JobSettings, MergeJob
from lmerge_service.spark.merge.keys import hash_of_int
from lmerge_service.spark.merge.plan import MergePlan
from lmerge_service.tdb import reconstitute
from tests.service.cluster import Merge, decided, logical, meaning, replica_streams, scattered
from tests.spark.records import received

SECONDS = 240


def merge_of(bootstrap: str, folder: Path, *, partitions: int = 2, **extra: Any) -> Merge:
    merge = Merge(bootstrap, folder)
    merge.extra = {"output": {"topic": merge.output, "partitions": partitions}, **extra}
    merge.write()
    return merge


def checkpoint_of(merge: Merge) -> str:
    return str(merge.folder / f"{merge.name}.checkpoint")


def job_of(merge: Merge, **settings: Any) -> MergeJob:
    options = {"available_now": True, **settings}
    return MergeJob(load(merge.path), JobSettings(checkpoint_of(merge), **options))


@contextmanager
def running(spark: SparkSession, job: MergeJob) -> Iterator[list[BaseException]]:
    """A job that goes on by itself; what it ended with."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            job.run(spark)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield failures
    finally:
        job.stop.set()
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert not failures, failures


def come_true(holds: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.5)


def numbers(merge: Merge) -> dict[int, list[int]]:
    """The numbers of the output's records, by partition, as they stand."""
    found: dict[int, list[int]] = {}
    for record in received(merge.bootstrap, merge.output):
        seq = seq_of(record.headers)
        assert seq is not None
        found.setdefault(record.partition, []).append(seq)
    return found


def read_back(merge: Merge, case: Case = Case.R3) -> list[Element]:
    """The output, as a consumer of it alone reads it."""

    async def read() -> list[Element]:
        reading = read_merged(Connection(merge.bootstrap), [merge.output], case=case, follow=False)
        async with reading as reader:
            return [element async for element in reader]

    return asyncio.run(read())


@pytest.mark.full
def test_to_the_end_and_on_with_a_replica_that_comes_and_one_that_goes(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    merge = merge_of(bootstrap, tmp_path)
    lives = logical(300, seed=3)
    streams = replica_streams(lives, seed=3)
    cuts = {name: len(elements) // 2 for name, elements in streams.items()}
    merge.publish("a", streams["a"][: cuts["a"]], partitions=2, partitioner=scattered)
    merge.publish("b", streams["b"][: cuts["b"]])
    merge.send_raw(merge.topics["b"], [b"nonsense"])
    job_of(merge).run(spark)
    early = merge.audit()
    assert early.tdb.stable > 0
    assert not early.complete
    letters = received(bootstrap, merge.dead_letters)
    assert [(each.key, each.value) for each in letters] == [(b"k", b"nonsense")]
    assert dict(letters[0].headers)["lmerge-replica"] == b"b"

    late = {"name": "d", "topic": f"{merge.name}.d"}
    merge.topics["d"] = late["topic"]
    merge.publish("d", streams["c"], partitions=3, partitioner=scattered)
    decided(merge, Detach("a"), Attach(late))
    job_of(merge).run(spark)
    assert merge.output_is(meaning(lives))
    assert reconstitute(read_back(merge)) == meaning(lives)
    for found in numbers(merge).values():
        assert found == list(range(1, len(found) + 1))


@pytest.mark.full
@pytest.mark.parametrize("case", [pytest.param(Case.R3, marks=pytest.mark.deep), Case.R4])
def test_whoever_reads_sees_nothing_twice_however_often_it_is_stopped(
    spark: SparkSession, bootstrap: str, tmp_path: Path, case: Case
) -> None:
    """A job that is stopped in mid-batch runs it again."""
    merge = merge_of(bootstrap, tmp_path, case=str(case))
    lives = logical(600, seed=5)
    for name, elements in replica_streams(lives, seed=5).items():
        merge.publish(name, elements)
    chance = random.Random(5)
    for _ in range(2):
        job = job_of(merge, batch_records=300)
        with running(spark, job):
            time.sleep(chance.uniform(1.5, 4))
    job_of(merge).run(spark)
    assert merge.output_is(meaning(lives))
    assert reconstitute(read_back(merge, case)) == meaning(lives)
    for seqs in numbers(merge).values():
        assert sorted(set(seqs)) == list(range(1, max(seqs) + 1))


@pytest.mark.deep
def test_from_the_service_to_spark_and_back(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    merge = merge_of(bootstrap, tmp_path, snapshot_seconds=1)
    lives = logical(600, seed=7)
    streams = replica_streams(lives, seed=7)
    thirds = {name: len(elements) // 3 for name, elements in streams.items()}

    def publish_third(number: int) -> None:
        for name, elements in streams.items():
            third = thirds[name]
            upto = len(elements) if number == 2 else third * (number + 1)
            merge.publish(name, elements[third * number : upto])

    publish_third(0)
    with merge.worker() as worker:
        for name, third in thirds.items():
            merge.wait_until_committed(name, third)
        assert worker.terminate() == 0
    file, topology = tmp_path / "state", load(merge.path)
    cluster = Cluster(connection_of(topology.kafka))
    found = asyncio.run(export_to(file, topology, cluster))
    records_before = {each.partition: each.commit.output_records for each in found}
    with pytest.raises(ConfigurationError, match="has records"):
        job_of(merge).run(spark)

    publish_third(1)
    job_of(merge, origin=file).run(spark)
    seqs = received(bootstrap, merge.output)
    for partition, before in records_before.items():
        numbered = [seq_of(each.headers) for each in seqs if each.partition == partition]
        assert numbered[:before] == [None] * before
        assert numbered[before:] == list(range(before + 1, len(numbered) + 1))
    with pytest.raises(ConfigurationError, match="has a state already"):
        job_of(merge, origin=file).run(spark)

    # In a process that has run no query.
    back = Process(merge, tmp_path / "back.log", "--hand-over", checkpoint=checkpoint_of(merge))
    try:
        assert back.process.wait(SECONDS) == 0, back.log.read_text()
    finally:
        back.kill()
    assert back.log.read_text() == "handed over: `lmerge run` continues from here\n"
    for settings in ({}, {"origin": file}):
        with pytest.raises(ConfigurationError, match="was handed over to the service"):
            job_of(merge, **settings).open()
    with pytest.raises(ConfigurationError, match="was handed over to the service"):
        last_batch(load(merge.path), checkpoint_of(merge))
    publish_third(2)
    with merge.worker() as worker:
        worker.wait_until_ended()
    assert "snapshot not used" not in worker.log.read_text()
    assert merge.output_is(meaning(lives))
    assert reconstitute(read_back(merge)) == meaning(lives)


@pytest.mark.full
def test_a_state_that_the_service_has_gone_beyond_is_refused(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    merge = merge_of(bootstrap, tmp_path, partitions=1)
    streams = replica_streams(logical(60, seed=9), seed=9)
    merge.publish("a", streams["a"][:50])
    file, topology = tmp_path / "state", load(merge.path)
    cluster = Cluster(connection_of(topology.kafka))
    with merge.worker():
        merge.wait_until_committed("a", 50)
        asyncio.run(export_to(file, topology, cluster))
        merge.publish("a", streams["a"][50:])
        merge.wait_until_committed("a", len(streams["a"]))
    with pytest.raises(StateError, match="is not the latest state"):
        job_of(merge, origin=file).run(spark)
    cut = file.read_bytes()[:-20]
    file.write_bytes(cut)
    with pytest.raises(StateError, match="is damaged: it is cut short"):
        job_of(merge, origin=file).run(spark)


@pytest.mark.deep
def test_a_replica_that_is_released_and_a_topic_that_is_made_anew(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """Spark would go on with either topic where it was; both are merged from their beginning."""
    merge = merge_of(bootstrap, tmp_path, partitions=1)
    lives = logical(200, seed=13)
    streams = replica_streams(lives, seed=13)
    for name, elements in streams.items():
        merge.publish(name, elements[: len(elements) // 2])
    job_of(merge).run(spark)
    assert merge.audit().tdb.stable > 0
    with running(spark, job_of(merge, available_now=False)):
        decided(merge, Quarantine("b", "looks odd"), Release("b"))

        async def make_anew() -> None:
            async with Topics(Connection(bootstrap)) as topics:
                await topics.delete(merge.topics["c"])

        asyncio.run(make_anew())
        merge.publish("b", streams["b"][len(streams["b"]) // 2 :])
        come_true(lambda: "c" in gone(merge), "the job knows that it is gone")
        merge.publish("c", streams["c"])
        come_true(lambda: begun(merge).count("c") == 2, "it is begun again")
        assert begun(merge).count("b") == 2
        come_true(lambda: merge.output_is(meaning(lives)), "the output has ended")
    assert reconstitute(read_back(merge)) == meaning(lives)


def plan_of(merge: Merge) -> MergePlan:
    plan = MergePlan.load(checkpoint_of(merge), load(merge.path))
    assert plan is not None
    return plan


def begun(merge: Merge) -> list[str]:
    return [name for step in plan_of(merge).steps for name in step.begins]


def gone(merge: Merge) -> set[str]:
    return {name for step in plan_of(merge).steps for name in step.gone}


@pytest.mark.full
def test_a_plan_is_folded_when_all_buckets_have_stored_what_its_steps_made(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas come and go, with a job for each decision; the checkpoint goes on, is handed over,
    and a worker ends the merge."""
    monkeypatch.setattr("lmerge_service.spark.merge.job._MOST_STEPS", 2)
    merge, parts, steps = merge_of(bootstrap, tmp_path), 7, []
    lives = logical(300, seed=11)
    streams = replica_streams(lives, seed=11)

    def publish(part: int) -> None:
        for name in "ab":
            size = -(-len(streams[name]) // parts)
            merge.publish(name, streams[name][part * size : (part + 1) * size])

    merge.publish("c", streams["c"][:100])
    for part in range(parts - 1):
        publish(part)
        if part:
            c = {"name": "c", "topic": merge.topics["c"]}
            decided(merge, Detach("c") if part % 2 else Attach(c))
        job_of(merge).run(spark)
        steps.append(len(plan_of(merge).steps))
    plan, topology = plan_of(merge), load(merge.path)
    assert plan.folded_steps >= 3, steps
    assert max(steps) <= 4, steps
    assert plan.count >= parts - 1
    cluster, checkpoint = Cluster(connection_of(topology.kafka)), checkpoint_of(merge)
    asyncio.run(hand_over(topology, cluster, states_of(spark, topology, checkpoint), checkpoint))
    with merge.worker() as worker:
        publish(parts - 1)
        worker.wait_until_ended()
    assert merge.output_is(meaning(lives))


def test_spark_puts_each_bucket_where_it_belongs(spark: SparkSession) -> None:
    numbers = spark.range(500).select(F.hash(F.col("id").cast("int")).alias("hash")).collect()
    assert [row["hash"] for row in numbers] == [hash_of_int(number) for number in range(500)]


# --- processes ----------------------------------------------------------------------------------


def batches_of(log: Path) -> list[dict[str, Any]]:
    """What `--json` has printed about batches that are through."""
    lines = log.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"batch"')]


class Process:
    """`lmerge spark-merge`, as a process."""

    def __init__(
        self, merge: Merge, log: Path, *options: str, checkpoint: str | None = None
    ) -> None:
        checkpoint = checkpoint or str(merge.folder / "checkpoint")
        command = [sys.executable, "-m", "lmerge_service.cli", "spark-merge", str(merge.path)]
        command += ["--checkpoint", checkpoint, "--driver-memory", "700m", "--master", "local[2]"]
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen([*command, "--json", *options], stdout=out, stderr=out)

    def has_merged(self, batches: int) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return len(batches_of(self.log)) >= batches

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", [Case.R3, Case.R4])
def test_kill_9_in_the_middle_of_batches(
    bootstrap: str, spark: SparkSession, tmp_path: Path, case: Case
) -> None:
    merge = merge_of(bootstrap, tmp_path, case=str(case))
    lives = logical(4_000, seed=11)
    streams = replica_streams(lives, seed=11)
    chance = random.Random(11)
    with merge.publishing(streams, elements=30):
        for number in range(3):
            process = Process(merge, tmp_path / f"{number}.log", "--batch-records", "500")
            try:
                come_true(lambda: process.has_merged(3), "batches are through")  # noqa: B023
                time.sleep(chance.uniform(0, 2))
            finally:
                process.kill()
    last = Process(merge, tmp_path / "last.log", "--available-now")
    try:
        assert last.process.wait(SECONDS) == 0, last.log.read_text()
    finally:
        last.kill()
    assert merge.output_is(meaning(lives))
    assert reconstitute(read_back(merge, case)) == meaning(lives)
    for seqs in numbers(merge).values():
        assert sorted(set(seqs)) == list(range(1, max(seqs) + 1))


@pytest.mark.deep
def test_sigterm_to_all_of_its_processes_is_a_good_end(bootstrap: str, tmp_path: Path) -> None:
    """As systemd ends a service: Spark's JVM and Python workers get the signal as well."""
    merge = merge_of(bootstrap, tmp_path)
    process = Process(merge, tmp_path / "log", "--batch-records", "100")
    try:
        with merge.publishing(replica_streams(logical(1_500, seed=5), seed=5)):
            come_true(lambda: process.has_merged(2), "batches are through")
            main = psutil.Process(process.process.pid)
            for each in [main, *main.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):  # it was a child of one that has ended
                    each.terminate()
            assert process.process.wait(60) == 0, process.log.read_text()
    finally:
        process.kill()
    printed = [line for line in process.log.read_text().splitlines() if not line.startswith("{")]
    assert len(printed) == 2, printed
    assert printed[-1].startswith(f"{merge.output}: merged to here")


def test_mistakes_are_one_line(bootstrap: str, tmp_path: Path) -> None:
    merge = merge_of(bootstrap, tmp_path)
    process = Process(merge, tmp_path / "log", "--hand-over", "--available-now")
    assert process.process.wait(60) == 2
    [line] = process.log.read_text().splitlines()
    assert line == "error: --hand-over goes with neither --from nor --available-now"


def test_there_is_nothing_to_hand_over(bootstrap: str, tmp_path: Path) -> None:
    topology = load(merge_of(bootstrap, tmp_path).path)
    with pytest.raises(StateError, match=r"nothing has no state of this merge$"):
        last_batch(topology, str(tmp_path / "nothing"))
