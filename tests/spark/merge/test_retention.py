"""Records that Kafka has deleted before they were merged: the replica is excluded, by name and
offset, and the others carry the output."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import NewPartitions
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from lmerge_service.elements import Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.spark.merge.job import MergeJob
from lmerge_service.tdb import reconstitute
from tests.service.cluster import Merge, scattered
from tests.spark.merge.test_job import (
    checkpoint_of,
    come_true,
    job_of,
    numbers,
    plan_of,
    read_back,
    running,
)

EARLY: list[Element] = [*(Insert(f'"e{n}"'.encode(), n, n + 1) for n in range(1, 6)), Stable(6)]
LATE: list[Element] = [*(Insert(f'"e{n}"'.encode(), n, n + 1) for n in range(6, 12)), Stable(12)]


class Until:
    def __init__(self, offset: int) -> None:
        self.before_offset = offset


def delete(merge: Merge, replica: str, before: int, partition: int = 0) -> None:
    """As retention does."""
    asyncio.run(deletion(merge, replica, before, partition))


async def deletion(merge: Merge, replica: str, before: int, partition: int = 0) -> None:
    async with Topics(Connection(merge.bootstrap)) as topics:
        place = TopicPartition(merge.topics[replica], partition)
        await topics._admin.delete_records({place: Until(before)})


def two_replicas(bootstrap: str, folder: Path, **extra: Any) -> Merge:
    merge = Merge(bootstrap, folder, ("a", "b"))
    merge.extra = {"output": {"topic": merge.output, "partitions": 1}, **extra}
    merge.write()
    return merge


def output_is(merge: Merge, elements: Sequence[Element]) -> bool:
    return reconstitute(read_back(merge)) == reconstitute(elements)


def why_excluded(merge: Merge, replica: str = "a") -> str:
    return plan_of(merge).lost()[replica].why


@pytest.mark.full
def test_n15_records_that_were_deleted_between_two_runs(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    merge = two_replicas(bootstrap, tmp_path)
    for name in "ab":
        merge.publish(name, EARLY)
    job_of(merge).run(spark)
    for name in "ab":
        merge.publish(name, LATE)
    delete(merge, "a", 9)
    job = job_of(merge)
    with capture_logs() as logs:
        job.run(spark)
    assert output_is(merge, [*EARLY, *LATE])
    [log] = [each for each in logs if each["event"] == "replica excluded"]
    why = "partition 0 begins at offset 9, and 6 is the next to merge: what is between is gone"
    assert (log["replica"], log["topic"]) == ("a", merge.topics["a"])
    assert log["why"].startswith(why)
    assert job.excluded["a"].startswith(f"topic {merge.topics['a']} {why}")

    more: list[Element] = [Insert(b'"e12"', 12, 13), Stable(13)]
    for name in "ab":
        merge.publish(name, more)
    again = job_of(merge)
    again.run(spark)
    assert output_is(merge, [*EARLY, *LATE, *more]), "it stays excluded, and b is merged on"
    assert again.excluded == job.excluded


def twice(merge: Merge, elements: Sequence[Element]) -> None:
    for name in "ab":
        merge.publish(name, elements)


def looking_first(job: MergeJob, then: Callable[[], Coroutine[Any, Any, None]]) -> MergeJob:
    """Something happens when the job has looked at the topics, and goes by what it has seen."""
    look = job._look
    done: list[Any] = []

    async def looked() -> Any:
        seen = await look()
        if not done:
            done.append(seen)
            await then()
        return seen

    job._look = looked  # type: ignore[method-assign]
    return job


@pytest.mark.full
def test_n15_records_that_are_deleted_while_a_batch_is_read(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """Spark itself finds them gone; nothing of the batch was written, so it is planned again."""
    merge = two_replicas(bootstrap, tmp_path)
    twice(merge, EARLY)
    job_of(merge).run(spark)
    twice(merge, LATE)
    job = looking_first(job_of(merge), lambda: deletion(merge, "a", 9))
    with capture_logs() as logs:
        job.run(spark)
    assert output_is(merge, [*EARLY, *LATE])
    assert [each["event"] for each in logs] == ["batch planned again", "replica excluded"]
    assert logs[0]["why"].startswith(f"topic {merge.topics['a']} partition 0 begins at offset 9")
    assert numbers(merge) == {0: [*range(1, 14)]}


@pytest.mark.deep
def test_n15_records_that_are_deleted_before_a_new_topic_is_read(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """Of the first batch, whose beginning the plan has."""
    merge = two_replicas(bootstrap, tmp_path)
    twice(merge, [*EARLY, *LATE])
    looking_first(job_of(merge), lambda: deletion(merge, "a", 3)).run(spark)
    assert output_is(merge, [*EARLY, *LATE])
    assert why_excluded(merge).startswith("partition 0 begins at offset 3, and 0 is the next")


def offsets_of(merge: Merge, batch: int) -> Path:
    return Path(checkpoint_of(merge)) / "offsets" / str(batch)


def uncommit(merge: Merge, batch: int) -> None:
    """As a job leaves it that is killed before the batch is complete."""
    for name in (str(batch), f".{batch}.crc"):
        (Path(checkpoint_of(merge)) / "commits" / name).unlink(missing_ok=True)


@pytest.mark.deep
def test_n15_records_of_a_batch_that_was_planned_when_the_job_was_killed(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    merge = two_replicas(bootstrap, tmp_path)
    twice(merge, EARLY)
    job_of(merge).run(spark)
    twice(merge, LATE)
    version, metadata, offsets = offsets_of(merge, 0).read_text().splitlines()
    read = json.loads(offsets)
    for topic in merge.topics.values():
        assert read[topic] == {"0": 6}
        read[topic] = {"0": 13}
    offsets_of(merge, 1).write_text("\n".join([version, metadata, json.dumps(read)]))
    delete(merge, "a", 9)
    job_of(merge).run(spark)
    assert output_is(merge, [*EARLY, *LATE])
    assert why_excluded(merge).startswith("partition 0 begins at offset 9, and 6 is the next")
    assert numbers(merge) == {0: [*range(1, 14)]}


@pytest.mark.deep
def test_n15_a_batch_that_was_partly_written_and_whose_records_are_gone_stops_the_job(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """It would be numbered like what the output has of it, and be another record."""
    merge = two_replicas(bootstrap, tmp_path)
    twice(merge, EARLY)
    job_of(merge).run(spark)
    twice(merge, LATE)
    job_of(merge).run(spark)
    uncommit(merge, 1)
    delete(merge, "a", 9)
    gone = f"topic {merge.topics['a']} partition 0 begins at offset 9, and 6 is the next"
    has = f"{merge.output}-0 has records 7 to 13 of a batch that was not complete"
    with pytest.raises(StateError, match=f"{re.escape(has)}.*{re.escape(gone)}"):
        job_of(merge).run(spark)
    assert numbers(merge) == {0: [*range(1, 14)]}


@pytest.mark.deep
def test_n15_a_partition_that_is_new_and_has_lost_its_beginning(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    merge = two_replicas(bootstrap, tmp_path)
    twice(merge, EARLY)
    with running(spark, job_of(merge, available_now=False)):
        come_true(lambda: output_is(merge, EARLY), "the beginning is merged")
    asyncio.run(widen(merge, "a", 2))
    merge.publish("a", LATE, partitions=2, partitioner=scattered)
    merge.publish("b", LATE)
    delete(merge, "a", 1, partition=1)
    job_of(merge).run(spark)
    assert output_is(merge, [*EARLY, *LATE])
    assert why_excluded(merge).startswith("partition 1 begins at offset 1, and 0 is the next")


async def widen(merge: Merge, replica: str, partitions: int) -> None:
    async with Topics(Connection(merge.bootstrap)) as topics:
        wider = {merge.topics[replica]: NewPartitions(partitions)}
        await topics._admin.create_partitions(wider)
