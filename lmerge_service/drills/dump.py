"""Reads topics from a real broker, with a consumer of its own, independent of the service.

Who owns what
    `dump` owns one consumer for as long as it runs. It reads committed records only, from the
    first offset that is left to the end there was when it began.

What happens on a crash
    Nothing: nothing is written.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from lmerge_service.drills.records import CommittedRecord, CommittedTopic

__all__ = ("Unreadable", "dump")

_STALL_SECONDS = 20.0


class Unreadable(Exception):  # noqa: N818 (an outcome, to be shown)
    """A topic cannot be read; the message is for people."""


@dataclass(slots=True)
class _Reading:
    width: int
    beginning_lost: bool = False
    records: list[CommittedRecord] = field(default_factory=list)


async def dump(bootstrap: str, names: Sequence[str]) -> dict[str, CommittedTopic]:
    """Every committed record of some topics, by topic.

    Raises:
        Unreadable: Kafka or a topic cannot be reached, or the end is hidden by a transaction
            that was left open.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_partition_fetch_bytes=32 << 20,
    )
    try:
        async with asyncio.timeout(_STALL_SECONDS):
            await consumer.start()
        return await _dump(consumer, names)
    except (KafkaError, TimeoutError) as error:
        raise Unreadable(f"{bootstrap}: {error!r}") from error
    finally:
        await consumer.stop()


async def _dump(consumer: AIOKafkaConsumer, names: Sequence[str]) -> dict[str, CommittedTopic]:
    existing = await consumer.topics()
    if missing := sorted(set(names) - existing):
        raise Unreadable(f"there is no topic {', '.join(missing)}")
    readings: dict[str, _Reading] = {}
    partitions: list[TopicPartition] = []
    for name in names:
        numbers = sorted(consumer.partitions_for_topic(name) or await _numbers(consumer, name))
        readings[name] = _Reading(len(numbers))
        partitions += [TopicPartition(name, number) for number in numbers]
    starts = await consumer.beginning_offsets(partitions)
    ends = await consumer.end_offsets(partitions)
    consumer.assign(partitions)
    for tp in partitions:
        consumer.seek(tp, starts[tp])
        readings[tp.topic].beginning_lost |= starts[tp] > 0
    await _read(consumer, ends, readings)
    return {
        name: CommittedTopic(name, tuple(reading.records), reading.width, reading.beginning_lost)
        for name, reading in readings.items()
    }


async def _numbers(consumer: AIOKafkaConsumer, name: str) -> set[int]:
    """The partitions of a topic that the consumer has not asked about before."""
    found = (await consumer._client.fetch_all_metadata()).partitions_for_topic(name)
    if not found:
        raise Unreadable(f"topic {name} has no partition that answers")
    return set(found)


async def _read(
    consumer: AIOKafkaConsumer, ends: dict[TopicPartition, int], readings: dict[str, _Reading]
) -> None:
    remaining = set(ends)
    clock = asyncio.get_running_loop().time
    progress = clock()
    while remaining := {tp for tp in remaining if await consumer.position(tp) < ends[tp]}:
        for tp, records in (await consumer.getmany(timeout_ms=200)).items():
            readings[tp.topic].records += [
                _plain(record) for record in records if record.offset < ends[tp]
            ]
            progress = clock()
        if clock() - progress > _STALL_SECONDS:
            raise Unreadable(f"no end in sight of {sorted(remaining)}: an open transaction?")


def _plain(record: ConsumerRecord) -> CommittedRecord:
    return CommittedRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        value=record.value,
        key=record.key,
        headers=tuple(record.headers),
    )
