"""The sweep of a table topic: removes what it held before, and what has been final for `keep`.

Theory
    A task remembers no rows. It reads its partition of the topic again, in the background:

    *What it held before.* Of a table that begins, each row that is there is judged by what is live
    now (`TableWriter.clear_of`).

    *What has been final for `keep`.* Now and then a sample is taken: at this time the output was
    stable to t, and the partition ended at offset e. Once a sample is `keep` old, the rows before e
    with ve < t are of events that have been final for as long, and no record behind e changes them
    any more: what would have, was committed before the stable. So the partition is read up to e,
    as in the picture, and those rows are removed:

        partition   A,9   B,7   A,12   C,40   stable(20) at 10:00    D,60 …      10:00 + keep
                    └────── before e ───────┘                                    B and A are removed

    What was read and is not removed is kept in mind until it is: the keys of what was live at the
    time of the sample. There are at most about 17 samples, and commit records carry them, so that
    they outlive the worker; the next one reads the partition from its beginning.

Invariants
    P1  A row is removed only if it was the latest of its key before the sample's offset.
    P2  No more than `most` keys are kept in mind; for the rest it begins again.

What happens on a crash at each await
    Nothing: what was removed is removed by a transaction, and everything else is read again.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from itertools import islice
from typing import Final

import msgspec
import structlog

from lmerge_service.core.expiry import Expiry
from lmerge_service.elements import INFINITY
from lmerge_service.errors import StateError, TransportError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.merge.commit_record import StableSample
from lmerge_service.merge.table.writer import STEP_ROWS, TableWriter

__all__ = ("RowsInMind", "Sweep")

log = structlog.get_logger()

_LOOK_SECONDS: Final = (0.25, 30.0)
"""Between two looks; a short `keep` is looked after more often."""
_SAMPLES: Final = 16
"""So many samples are taken in the time that final events are kept."""
_RETRY_SECONDS: Final = 1.0
_PAUSE: Final = 0.01
_SHARE: Final = 10
"""Reading takes one part of so many of the worker's time."""
_CHUNK: Final = 500
"""Records that are looked at without a pause."""
_RECORD_BYTES: Final = 1 << 20


class _Row(msgspec.Struct):
    ve: int | None


_read: Final = msgspec.json.Decoder(_Row).decode


class RowsInMind:
    """Which rows have been final for long enough, of what was read of a partition."""

    def __init__(self, most: int) -> None:
        """It keeps no more than `most` keys in mind."""
        self.next = 0
        """The offset to read on from."""
        self.lacks_some = False
        """There were more, so that what was read has to be read once more."""
        self._most = most
        self._expiry: Expiry[bytes] = Expiry()
        """Of rows that were read and not removed the keys, each due at its end; at the last
        instant, if it has none: what is due at INFINITY never comes out."""

    def __len__(self) -> int:
        return len(self._expiry)

    def read(self, record: Record) -> None:
        """Takes the next record of the partition."""
        self.next = record.offset + 1
        key, value = record.key, record.value
        if key is None:
            return
        if value is None:
            self._expiry.cancel(key)
            return
        if self._expiry.due(key) == INFINITY and len(self) >= self._most:
            self.lacks_some = True
            return
        try:
            ve = _read(value).ve
        except (msgspec.MsgspecError, ValueError):  # none of ours
            return
        self._expiry.cancel(key)  # it may end later by now
        self._expiry.schedule(key, min(INFINITY if ve is None else ve, INFINITY - 1))

    def final(self, stable: int, most: int) -> list[bytes]:
        """Keys of rows that a stable has made final, up to so many; they are kept in mind no more.
        All that was committed before the stable was read."""
        return list(islice(self._expiry.before(stable), most))

    def begin_again(self) -> None:
        """From the partition's first record."""
        self.next, self.lacks_some = 0, False
        self._expiry.clear()

    def check(self) -> None:
        """Asserts P2."""
        self._expiry.check()
        assert len(self) <= self._most, "P2: too many are kept in mind"


class Sweep:
    """Of a task that leads; `run` it meanwhile."""

    def __init__(
        self,
        writer: TableWriter,
        cluster: Cluster,
        tp: TopicPartition,
        *,
        stable: Callable[[], int],
        turns: asyncio.Lock,
        unix_ns: Callable[[], int],
        most: int,
    ) -> None:
        """`stable` returns the output's stable point as of the last commit; `turns` are shared by
        the tasks of a worker, of which one reads at a time. `most`: see `RowsInMind`."""
        self._writer = writer
        self._cluster = cluster
        self._tp = tp
        self._stable = stable
        self._turns = turns
        self._unix_ns = unix_ns
        self._in_mind = RowsInMind(most)
        keep, (least, longest) = writer.keep, _LOOK_SECONDS
        self._seconds = longest if keep is None else max(least, min(longest, keep / _SAMPLES))

    async def run(self) -> None:
        """Sweeps until cancelled."""
        while True:
            try:
                async with AsyncExitStack() as stack:
                    source = self._cluster.source(max_record_bytes=_RECORD_BYTES)
                    await stack.enter_async_context(source)
                    while True:
                        await self.look(source)
                        await self._pause()
            except (TransportError, StateError) as error:  # it was recreated, or is away
                log.debug("cannot read the table", topic=self._tp.topic, error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _pause(self) -> None:
        """Until the next look; what begins is swept soon."""
        step = min(self._seconds, _RETRY_SECONDS)
        for _ in range(math.ceil(self._seconds / step)):
            await asyncio.sleep(step)
            if not self._writer.is_swept:
                return

    async def look(self, source: Source) -> None:
        """Sweeps once.

        Raises:
            TransportError: Kafka does not answer.
            StateError: the partition cannot be read.
        """
        writer = self._writer
        if not writer.is_begun:
            return
        if not writer.is_swept:
            self._in_mind.begin_again()
            await self._clear(source)
        elif writer.keep is not None and writer.is_whole:
            await self._sample(source)
            await self._expire(source, writer.keep)

    async def _clear(self, source: Source) -> None:
        """Removes what the topic held before."""
        writer, beginnings = self._writer, self._writer.beginnings
        end = (await source.high_watermarks([self._tp]))[self._tp]
        async with aclosing(self._chunks(source, 0, end)) as chunks:
            async for records in chunks:
                await self._until_taken()
                if writer.beginnings != beginnings:
                    return
                writer.clear_of(records)
        if writer.beginnings == beginnings:
            writer.swept()

    async def _sample(self, source: Source) -> None:
        writer, now = self._writer, self._unix_ns() // 1_000_000
        assert writer.keep is not None
        latest = writer.samples[-1].at if writer.samples else None
        if latest is not None and now - latest < writer.keep * 1_000 / _SAMPLES:
            return
        stable, beginnings = self._stable(), writer.beginnings
        end = (await source.high_watermarks([self._tp]))[self._tp]
        if writer.beginnings == beginnings:
            writer.sample(StableSample(now, stable, end))

    async def _expire(self, source: Source, keep: int) -> None:
        writer, in_mind, beginnings = self._writer, self._in_mind, self._writer.beginnings
        old = self._unix_ns() // 1_000_000 - keep * 1_000
        sample = next((each for each in reversed(writer.samples) if each.at <= old), None)
        if sample is None:
            return
        async with aclosing(self._chunks(source, in_mind.next, sample.end)) as chunks:
            async for records in chunks:
                for record in records:
                    in_mind.read(record)
        while writer.beginnings == beginnings:
            if not (keys := in_mind.final(sample.stable, STEP_ROWS)):
                writer.forget_samples(sample)
                break
            writer.remove(keys)
            await self._until_taken()
        in_mind.next = max(in_mind.next, sample.end)
        if in_mind.lacks_some:
            in_mind.begin_again()

    async def _chunks(
        self, source: Source, start: int, end: int
    ) -> AsyncGenerator[list[Record], None]:
        """The partition's records between two offsets, in turn with other tasks, and slowly."""
        start = max(start, (await source.beginnings([self._tp]))[self._tp])
        if start >= end:
            return
        clock = asyncio.get_running_loop().time
        async with (
            self._turns,
            aclosing(source.backlog({self._tp: start}, {self._tp: end})) as all_,
        ):
            async for _, records in all_:
                for at in range(0, len(records), _CHUNK):
                    began = clock()
                    yield records[at : at + _CHUNK]
                    await asyncio.sleep((clock() - began) * _SHARE)

    async def _until_taken(self) -> None:
        """A transaction has taken most of what was removed."""
        while self._writer.waiting > STEP_ROWS:  # noqa: ASYNC110 - no event
            await asyncio.sleep(_PAUSE)
