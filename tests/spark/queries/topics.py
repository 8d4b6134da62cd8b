"""Facts into a topic and elements out of one, by other clients than Spark's."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from lmerge_service.elements import Element
from lmerge_service.kafka.connection import Connection
from lmerge_service.reader.read_merged import read_merged
from tests.spark.records import Sent, make_topic, received, send

__all__ = ("facts_in", "merge_of", "publish_facts")


def publish_facts(bootstrap: str, topic: str, facts: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Partition by partition, as they are."""
    make_topic(bootstrap, topic, len(facts))
    records = [
        Sent(json.dumps(fact).encode(), None, partition)
        for partition, its in enumerate(facts)
        for fact in its
    ]
    send(bootstrap, topic, records, linger_ms=5)


def facts_in(bootstrap: str, topic: str, partitions: int) -> list[list[dict[str, Any]]]:
    """What `lmerge query feed` put there."""
    found: list[list[dict[str, Any]]] = [[] for _ in range(partitions)]
    for record in received(bootstrap, topic):
        found[record.partition].append(json.loads(record.value))
    return found


def merge_of(bootstrap: str, topics: Sequence[str]) -> list[Element]:
    """What a consumer sees that merges these replicas: incarnations, repeats and all."""

    async def read() -> list[Element]:
        async with read_merged(Connection(bootstrap), topics, follow=False) as reader:
            return [element async for element in reader]

    return asyncio.run(read())
