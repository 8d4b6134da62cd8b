"""Small keyed records, each sent by itself and outside of any transaction.

Who owns what
    `Notices` owns one idempotent producer for partition 0 of one topic.

What happens on a crash at each await
    in `send`: the record is there or not. Either must be good enough for the sender.
"""

from functools import partial

from lmerge_service.kafka.clients import producer
from lmerge_service.kafka.closing import stop
from lmerge_service.kafka.connection import Connection, bounded
from lmerge_service.kafka.starting import started

__all__ = ("Notices",)


class Notices:
    """Use as `async with`."""

    def __init__(self, connection: Connection, topic: str):
        self._connection = connection
        self._topic = topic
        self._producer = producer(connection, enable_idempotence=True, retry_backoff_ms=50)

    async def __aenter__(self) -> "Notices":
        await started(self._producer.start(), partial(stop, self._producer), self._connection)
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop(self._producer)

    async def send(self, key: bytes, value: bytes) -> None:
        """Returns when all copies have it.

        Raises:
            TransportError: Kafka cannot be reached, or refuses; it may be there all the same.
        """
        sending = self._producer.send_and_wait(self._topic, value, key=key, partition=0)
        await bounded(sending, f"sending to {self._topic}")
