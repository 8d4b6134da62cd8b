"""Writes records to given partitions of one topic, in order, and waits until they are there.

Who owns what
    A `TopicWriter` owns one idempotent producer: within its life no record is doubled or overtaken.

What happens on a crash
    What was sent may be there or not.
"""

import asyncio
from collections.abc import Iterable
from functools import partial

from lmerge_service.kafka.clients import producer
from lmerge_service.kafka.closing import stop
from lmerge_service.kafka.connection import Connection, kafka_errors
from lmerge_service.kafka.starting import started

__all__ = ("TopicWriter",)


class TopicWriter:
    """Use as `async with`; every record has the same headers."""

    def __init__(
        self, connection: Connection, topic: str, headers: Iterable[tuple[str, bytes]] = ()
    ):
        self._connection = connection
        self._topic = topic
        self._headers = list(headers)
        self._producer = producer(
            connection, enable_idempotence=True, linger_ms=2, max_batch_size=1 << 18
        )

    async def __aenter__(self) -> "TopicWriter":
        await started(self._producer.start(), partial(stop, self._producer), self._connection)
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop(self._producer)

    async def write(self, records: Iterable[tuple[int, bytes | None, bytes]]) -> None:
        """Each is (partition, key, value).

        Raises:
            TransportError: Kafka cannot be reached, or refuses.
        """
        with kafka_errors(f"writing to {self._topic}", "Write"):
            sent = [
                await self._producer.send(
                    self._topic, value, key=key, partition=partition, headers=self._headers
                )
                for partition, key, value in records
            ]
            await asyncio.gather(*sent)
