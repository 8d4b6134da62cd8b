"""Writes merged output, dead letters and a task's state in one Kafka transaction.

Who owns what
    A `Sink` owns one transactional producer. Its transactional.id names the merge task: entering
    fences every earlier owner and ends what it left open, or what Kafka did (`unfinished`), so
    that afterwards the committed state and the committed output belong together.

What happens on a crash at each await
    before commit returns: Kafka aborts, or has committed; the next owner finds out which by
    entering, and goes on from what is committed. After: nothing is lost.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aiokafka import TopicPartition

from lmerge_service.core.batches import encoded_rows
from lmerge_service.errors import TransportError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.table import offset_headers
from lmerge_service.kafka.connection import Connection, bounded
from lmerge_service.kafka.transactional import (
    BATCH_BYTES,
    COMMIT_SECONDS,
    Sent,
    TransactionalWriter,
    end_of,
)

__all__ = ("Committed", "Condition", "Origin", "Outbox", "Sink")

Condition: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Origin:
    """Records of an input, and the first of an outbox's records that came of them."""

    index: int
    tp: TopicPartition
    first: int
    last: int
    """Offsets."""


@dataclass(slots=True)
class Outbox:
    """What one transaction carries; keys and values of records, in order."""

    records: list[tuple[bytes | None, bytes]] = field(default_factory=list)
    """For the output partition; the engine's `Encoded`, where that has made them, whose headers are
    those below."""
    dead: list[DeadLetter] = field(default_factory=list)
    state: list[tuple[bytes | None, bytes]] = field(default_factory=list)
    """For the task's partition of the state topic."""
    events: list[tuple[bytes | None, bytes]] = field(default_factory=list)
    """For the events topic."""
    rows: Sequence[tuple[bytes, bytes | None]] = ()
    """For the output's table: what the records change, or with what it is filled or swept."""
    has_offsets: bool = False
    """The rows have the output's offsets in their headers."""
    begins: int = 0
    """The offset behind the output's last record before these."""
    lapsed: Callable[[], bool] | None = None
    """Whether the topic that the rows are for has been deleted since they were gathered."""
    origins: list["Origin"] = field(default_factory=list)
    """Which of the inputs' records had `records` published, in order."""
    size: int = 0
    """Bytes of records and dead letters, more or less."""
    headers: Sequence[tuple[str, bytes]] = ()
    """Of each of `records`."""

    def require_table(self) -> None:
        """What was written to the table went to the topic that it was for.

        Raises:
            TransportError: it may be in one that has been made since.
        """
        if self.rows and self.lapsed is not None and self.lapsed():
            raise TransportError("committing: the table's topic was deleted meanwhile")


@dataclass(frozen=True, slots=True)
class Committed:
    """Where a transaction's records went: the offset behind the last record, and None where
    there was none or where the broker did not return it."""

    output: int | None
    state: int | None


class Sink(TransactionalWriter):
    """A transactional producer for one task; use as `async with`."""

    def __init__(
        self,
        connection: Connection,
        *,
        transactional_id: str,
        output: TopicPartition,
        dead_letters: str,
        state: TopicPartition,
        events: str,
        max_record_bytes: int,
        table: str | None = None,
    ):
        """`table` is the output's table topic, if it has one."""
        self._output = output
        self._dead_letters = TopicPartition(dead_letters, 0)
        self._state = state
        self._events = TopicPartition(events, 0)
        self._table = None if table is None else TopicPartition(table, output.partition)
        ours = (output, state, self._dead_letters, self._events)
        super().__init__(
            connection,
            transactional_id=transactional_id,
            partitions=ours if self._table is None else (*ours, self._table),
            vital=(output, state),
            doing=f"taking over {output.topic}-{output.partition} at",
            max_record_bytes=max_record_bytes,
        )

    async def commit(self, outbox: Outbox, provided: Condition | None = None) -> Committed:
        """Publishes all of it, or nothing; nothing if `provided` raises, which runs meanwhile.

        Raises:
            FencedError: another instance has taken over.
            UnwritableError: a topic refuses its part: nothing is published.
            TransportError: the outcome may be unknown: close this sink and rebuild.
        """
        return await bounded(self._commit(outbox, provided), "committing", COMMIT_SECONDS, "Write")

    async def _commit(self, outbox: Outbox, provided: Condition | None) -> Committed:
        condition = None if provided is None else asyncio.ensure_future(provided())
        try:
            return await self._transaction(outbox, condition)
        finally:
            if condition is not None:
                condition.cancel()

    async def _transaction(
        self, outbox: Outbox, condition: asyncio.Future[None] | None
    ) -> Committed:
        await self._producer.begin_transaction()
        output = await self._send_all(self._output, outbox.records, outbox.headers)
        dead = await self._send_letters(self._dead_letters, outbox.dead)
        events = await self._send_all(self._events, outbox.events)
        state = await self._send_all(self._state, outbox.state)
        # What was refused must not pass for committed.
        await self._acknowledged([*output, *dead, *events, *state])
        await self._acknowledged(await self._send_rows(outbox, output))
        outbox.require_table()
        if condition is not None:
            await condition
        await self._producer.commit_transaction()
        return Committed(await end_of(output), await end_of(state))

    async def _send_rows(self, outbox: Outbox, output: Sequence[Sent]) -> list[Sent]:
        """Sends rows of the table; the output's records are written, so that offsets are known."""
        if self._table is None:
            return []
        span = await _span_of(output, outbox.begins)
        headers = offset_headers(*span) if outbox.has_offsets else []
        headers = [*outbox.headers, *headers]
        rows = encoded_rows(outbox.rows, headers, BATCH_BYTES)
        return await self._send_all(self._table, rows, headers)


async def _span_of(output: Sequence[Sent], begins: int) -> tuple[int, int]:
    """From where to where the output has records of batches that were acknowledged; with none, from
    and to where it ended before.

    Raises:
        TransportError: the broker returned no offset, as for a batch that it had before.
    """
    if not output:
        return begins, begins
    first, end = int((await output[0]).offset), await end_of(output)
    if first < 0 or end is None:
        raise TransportError("committing: the broker returned no offset of the output's records")
    return first, end
