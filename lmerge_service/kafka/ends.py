"""Where partitions end: behind their last committed record, or behind their last record of all.

Theory
    Records of an open transaction are there, and cannot be read yet, nor can anything behind them.
    So a partition has two ends:

        offset   0 insert   1 insert   2 insert (open)   3 insert   4 insert
                                       ▲ last stable offset: 2      ▲ high watermark: 5

    The first bounds what can be read. The second shows whether a producer has written anything
    that was not read: all of its unread records may lie between the two.

    A client of aiokafka asks for one of them, by its isolation level; here either is asked for
    with any client.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import LeaderNotAvailableError, NoError, for_code
from aiokafka.protocol.offset import OffsetRequest, OffsetResetStrategy

__all__ = ("high_watermarks", "last_stable_offsets")

_UNCOMMITTED, _COMMITTED = 0, 1


async def high_watermarks(
    client: AIOKafkaClient, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offsets behind the last records of all, asked once; the client's own errors are raised,
    retriable ones too."""
    return await _ends(client, partitions, _UNCOMMITTED)


async def last_stable_offsets(
    client: AIOKafkaClient, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """The same up to where no transaction is open."""
    return await _ends(client, partitions, _COMMITTED)


async def _ends(
    client: AIOKafkaClient, partitions: Collection[TopicPartition], isolation: int
) -> dict[TopicPartition, int]:
    by_leader: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for tp in dict.fromkeys(partitions):  # brokers refuse a request that names one twice
        leader = client.cluster.leader_for_partition(tp)
        if leader is None or leader < 0:
            client.force_metadata_update()
            raise LeaderNotAvailableError(tp)
        by_leader[leader][tp.topic].append(tp.partition)
    asking = (_of_leader(client, node, topics, isolation) for node, topics in by_leader.items())
    answers = await asyncio.gather(*asking)
    return {tp: offset for answer in answers for tp, offset in answer.items()}


async def _of_leader(
    client: AIOKafkaClient, node: int, topics: dict[str, list[int]], isolation: int
) -> dict[TopicPartition, int]:
    latest = OffsetResetStrategy.LATEST
    asked = [(topic, [(number, latest) for number in numbers]) for topic, numbers in topics.items()]
    response = await client.send(node, OffsetRequest(-1, isolation, asked))
    found = {}
    for topic, parts in response.topics:
        for number, code, _, offset in parts:
            if (error := for_code(code)) is not NoError:
                if error.invalid_metadata:
                    client.force_metadata_update()
                raise error(TopicPartition(topic, number))
            found[TopicPartition(topic, number)] = int(offset)
    return found
