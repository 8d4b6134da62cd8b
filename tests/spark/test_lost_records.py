"""Records that Kafka has deleted before they were read stop whoever reads them in Spark, with
their place: nothing passes over them."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from pyspark.sql import SparkSession

from lmerge_service.elements import Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.elements import read_elements, stream_elements
from lmerge_service.spark.io.places import ParquetFiles, ReadTopics
from lmerge_service.spark.table.update import update_table

GONE = (
    "these records are not in Kafka any more, and were not read yet: retention has deleted them, "
    "or the topic was recreated"
)


class Until:
    def __init__(self, offset: int) -> None:
        self.before_offset = offset


def send(bootstrap: str, topic: str, start: int, end: int, *, partitions: int = 1) -> None:
    async def sending() -> None:
        async with Topics(Connection(bootstrap)) as topics:
            await topics.ensure(topic, partitions=partitions)
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            for n in range(start, end):
                value = encode(Insert(f'"e{n}"'.encode(), n, n + 1))
                await producer.send_and_wait(topic, value, partition=partitions - 1)
            await producer.send_and_wait(topic, encode(Stable(end)), partition=partitions - 1)

    asyncio.run(sending())


def delete(bootstrap: str, topic: str, before: int) -> None:
    async def deleting() -> None:
        async with Topics(Connection(bootstrap)) as topics:
            await topics._admin.delete_records({TopicPartition(topic, 0): Until(before)})

    asyncio.run(deleting())


def test_n15_a_range_of_a_topic_that_is_gone(
    spark: SparkSession, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    """As an audit, or a step of a table, reads it."""
    topic = topic_name("t")
    send(bootstrap, topic, 0, 9)
    delete(bootstrap, topic, 6)
    part = ReadTopics(
        bootstrap, topic, start=json.dumps({topic: {"0": 3}}), end=json.dumps({topic: {"0": 9}})
    )
    with pytest.raises(StateError) as error, spark_errors("auditing"):
        read_elements(spark, part).collect()
    assert str(error.value) == f"auditing: {topic}-0@3: {GONE}"


@pytest.mark.full
def test_n15_a_stream_whose_next_records_are_gone(
    spark: SparkSession, bootstrap: str, topic_name: Callable[..., str], tmp_path: Path
) -> None:
    """As a query, or a replica, goes on with its checkpoint."""
    topic = topic_name("t")

    def copy() -> None:
        rows = read_elements(spark, ReadTopics(bootstrap, topic), streaming=True)
        sink, checkpoint = ParquetFiles(str(tmp_path / "copy")), str(tmp_path / "checkpoint")
        query = stream_elements(
            rows, sink, order=None, checkpoint=checkpoint, trigger={"availableNow": True}
        )
        with spark_errors("copying"):
            query.awaitTermination()

    send(bootstrap, topic, 0, 5)
    copy()
    send(bootstrap, topic, 5, 9)
    delete(bootstrap, topic, 8)
    with pytest.raises(StateError) as error:
        copy()
    assert str(error.value) == f"copying: {topic}-0@6: {GONE}"


def test_n15_a_table_of_a_stream_whose_beginning_is_gone(
    spark: SparkSession, bootstrap: str, topic_name: Callable[..., str], tmp_path: Path
) -> None:
    topic = topic_name("t")
    send(bootstrap, topic, 0, 9)
    delete(bootstrap, topic, 6)
    with pytest.raises(StateError, match=f"^{topic}-0 begins at offset 6: what was before is gone"):
        update_table(spark, ReadTopics(bootstrap, topic), str(tmp_path / "table"))
