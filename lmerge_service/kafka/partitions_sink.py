"""Writes all partitions of an output topic, dead letters and state in one Kafka transaction.

Who owns what
    A `PartitionsSink` owns one transactional producer, whose transactional.id is the output topic:
    entering fences every earlier writer of it.

What happens on a crash at each await
    As for `kafka.sink`: the next owner finds out by entering whether a commit took place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.kafka.connection import Connection, bounded
from lmerge_service.kafka.transactional import COMMIT_SECONDS, TransactionalWriter, end_of

__all__ = ("PartitionsCommitted", "PartitionsOutbox", "PartitionsSink")


@dataclass(slots=True)
class PartitionsOutbox:
    """What one transaction carries; keys and values of records, in order."""

    records: dict[int, list[tuple[bytes | None, bytes]]] = field(default_factory=dict)
    """For the output, by partition."""
    dead: list[DeadLetter] = field(default_factory=list)
    state: list[tuple[bytes | None, bytes]] = field(default_factory=list)
    size: int = 0
    """Bytes of records and dead letters, more or less."""
    headers: Sequence[tuple[str, bytes]] = ()
    """Of each of `records`."""


@dataclass(frozen=True, slots=True)
class PartitionsCommitted:
    """Where a transaction's records went: offsets behind the last record, where there was one and
    the broker returned it."""

    output: Mapping[int, int]
    state: int | None


class PartitionsSink(TransactionalWriter):
    """A transactional producer for one topic; use as `async with`."""

    def __init__(
        self,
        connection: Connection,
        *,
        output: str,
        partitions: int,
        dead_letters: str,
        state: str,
        max_record_bytes: int,
    ):
        self._output = [TopicPartition(output, number) for number in range(partitions)]
        self._dead_letters, self._state = TopicPartition(dead_letters, 0), TopicPartition(state, 0)
        vital = (*self._output, self._state)
        super().__init__(
            connection,
            transactional_id=output,
            partitions=(*vital, self._dead_letters),
            vital=vital,
            doing=f"taking over {output} at",
            max_record_bytes=max_record_bytes,
        )

    async def commit(self, outbox: PartitionsOutbox) -> PartitionsCommitted:
        """Publishes all of it, or nothing.

        Raises:
            FencedError: another instance has taken over.
            UnwritableError: a topic refuses its part: nothing is published.
            TransportError: the outcome may be unknown: close this sink and start again.
        """
        return await bounded(self._transaction(outbox), "committing", COMMIT_SECONDS, "Write")

    async def _transaction(self, outbox: PartitionsOutbox) -> PartitionsCommitted:
        await self._producer.begin_transaction()
        output = {
            number: await self._send_all(self._output[number], records, outbox.headers)
            for number, records in outbox.records.items()
        }
        dead = await self._send_letters(self._dead_letters, outbox.dead)
        state = await self._send_all(self._state, outbox.state)
        await self._acknowledged(
            [*(each for sent in output.values() for each in sent), *dead, *state]
        )
        await self._producer.commit_transaction()
        ends = {number: await end_of(sent) for number, sent in output.items()}
        return PartitionsCommitted(
            {number: end for number, end in ends.items() if end is not None}, await end_of(state)
        )
