"""Publishes the facts that queries are about: a topic in which each record's time is the fact's.

A fact contains its key and its time; facts of one flight go to one partition. At the end each
partition receives an end marker. Facts that are sent after it have no effect, and if time restarted
all of them would be late: so the topic must be new.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.dialects import Written
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.publish import publish
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics

__all__ = ("FactLike", "feed")


class FactLike(Protocol):
    """A fact: encodes to the JSON of its record."""

    @property
    def key(self) -> bytes | None:
        """Facts of one key go to one partition; those of None are spread."""

    @property
    def time(self) -> int | None:
        """Milliseconds since the epoch, the record's timestamp; None: the time of publishing."""


class _End(msgspec.Struct):
    fact: str = "end"
    key: None = None
    time: None = None


async def feed(
    connection: Connection,
    topic: str,
    facts: Iterable[FactLike],
    *,
    rate: float | None = None,
    partitions: int = 1,
    ended: bool = True,
) -> int:
    """Sends the facts in order, `rate` a second (None: as fast as it goes); returns how many.

    Raises:
        ConfigurationError: the topic holds something already.
        TransportError: Kafka cannot be reached, or refuses.
    """
    async with Topics(connection) as topics:
        width = await topics.width(topic)
    if width is not None:
        async with Source(connection) as source:
            places = [TopicPartition(topic, number) for number in range(width)]
            if any((await source.high_watermarks(places)).values()):
                raise ConfigurationError(f"{topic} holds records already: facts need a new topic")
    sent = await publish(
        connection, topic, _and_end(facts, ended), rate=rate, partitions=partitions, written=_record
    )
    return sent - ended


def _and_end(facts: Iterable[FactLike], ended: bool) -> Iterator[FactLike]:
    yield from facts
    if ended:
        yield _End()


def _record(fact: FactLike) -> Sequence[Written]:
    if isinstance(fact, _End):
        return [Written(None, b'{"fact":"end"}', everywhere=True)]
    return [Written(fact.key, msgspec.json.encode(fact), fact.time)]
