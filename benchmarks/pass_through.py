"""The pass-through that a user would write: aiokafka's own batches, in transactions.

Theory
    Ratios are to an expert's use of the client: `getmany`, batches of up to
    256 KiB that are built directly, transactions of up to 20,000 records that carry the consumer's
    offsets, a garbage collector that is left in peace.
    `lmerge_service.demo.throughput` has a faster one, with the merge's own source and sink, which
    makes no `ConsumerRecord`.

    As a process it copies until it is ended, committing whatever has come at once, with the client
    tuned for that as the service's is:

        python -m benchmarks.pass_through BOOTSTRAP OUTPUT TOPIC …
"""

import asyncio
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.producer.message_accumulator import BatchBuilder

from lmerge_service.kafka import sink  # noqa: F401 - tunes the client
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.tuning import quieten_garbage_collector

__all__ = ("plain_pass_through",)

_AT_ONCE = 20_000
_FOR_EVER = 1 << 62


async def plain_pass_through(connection: Connection, topics: Sequence[str], to: str) -> float:
    """Copies partition 0 of the topics into one; records a second.

    Raises:
        KafkaError: Kafka refuses.
    """
    return await _pass_through(connection, topics, to, lasting=False)


async def _pass_through(
    connection: Connection, topics: Sequence[str], to: str, *, lasting: bool
) -> float:
    async with Topics(connection) as admin:
        await admin.ensure(to)
    consumer = AIOKafkaConsumer(
        **connection.arguments,
        group_id=None,
        enable_auto_commit=False,
        isolation_level="read_committed",
        fetch_max_wait_ms=10,
    )
    producer = AIOKafkaProducer(
        **connection.arguments, transactional_id=to, max_batch_size=1 << 18, retry_backoff_ms=5
    )
    async with AsyncExitStack() as stack:
        for client in (consumer, producer):
            await client.start()
            stack.push_async_callback(client.stop)
        partitions = [TopicPartition(topic, 0) for topic in topics]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        if lasting:
            ends = dict.fromkeys(partitions, _FOR_EVER)
        return await _copy(consumer, producer, to, ends)


async def _copy(
    consumer: AIOKafkaConsumer,
    producer: AIOKafkaProducer,
    to: str,
    ends: dict[TopicPartition, int],
) -> float:
    offsets: dict[TopicPartition, int] = {}
    copied, started = 0, time.perf_counter()
    while any(offsets.get(tp, 0) < end for tp, end in ends.items()):
        read = await consumer.getmany(timeout_ms=500, max_records=_AT_ONCE)
        if not read:
            continue
        async with producer.transaction():
            for records in read.values():
                for batch in _batches(producer, records):
                    await producer.send_batch(batch, to, partition=0)
                copied += len(records)
            offsets |= {tp: records[-1].offset + 1 for tp, records in read.items()}
            await producer.send_offsets_to_transaction(offsets, to)
    return copied / (time.perf_counter() - started)


def _batches(
    producer: AIOKafkaProducer, records: Iterable[ConsumerRecord]
) -> Iterator[BatchBuilder]:
    batch = producer.create_batch()
    for record in records:
        if batch.append(key=record.key, value=record.value, timestamp=None) is None:
            yield batch
            batch = producer.create_batch()
            batch.append(key=record.key, value=record.value, timestamp=None)
    yield batch


if __name__ == "__main__":
    _bootstrap, _to, *_topics = sys.argv[1:]
    quieten_garbage_collector()
    asyncio.run(_pass_through(Connection(_bootstrap), _topics, _to, lasting=True))
