"""Takes snapshots of a task's state without stopping the merge, and hands them out by the chunk.

Theory
    Writing a large state takes seconds, and it must not change meanwhile. So a forked process
    (`forked_writer`) has the state as it was at that instant, writes it, and ends; the merge goes
    on at once. The chunks go into the task's next transactions, a few in each. A snapshot counts
    when a commit record names it, after all of its chunks are committed.

        commit 7 ── fork        commit 8, chunks 0 1   commit 9, chunk 2   commit 10: snapshot of 7
                     └─ writer: chunk 0, 1, 2, digest ─▶ pipe

    The pipe bounds what is in memory: the writer waits until its chunks are taken. A small state is
    written at once (`written_at_once`), and goes the same way from there.

Who owns what
    `Snapshots` owns the forked writer while one is taken; `close` ends it.

What happens on a crash
    Chunks that no commit record names are overwritten by a later snapshot.
"""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Final

import structlog

from lmerge_service.merge.commit_record import SnapshotPlace, chunk_key
from lmerge_service.merge.snapshots.forked_writer import ForkedWriter
from lmerge_service.merge.snapshots.written_at_once import WrittenAtOnce

__all__ = ("SnapshotTurns", "Snapshots")

log = structlog.get_logger()

_SLOTS: Final = 3
"""Two for snapshots that are whole, and one for the one that is being written."""
_CHUNK_BYTES: Final = 512 * 1024
_CHUNKS_AHEAD: Final = 4
_FIRST: Final = 0.1
"""Of the usual time, how long after a recovery the first snapshot waits."""
_RECORDS: Final = 200_000
"""After so many records the next one is due, however early: to read them again takes seconds."""
_REST: Final = 20
"""After a snapshot, the next one waits this many times as long as it took: it costs 5 % at the
most."""


class SnapshotTurns:
    """Of the tasks of one worker: one snapshot at a time is taken before its time."""

    def __init__(self) -> None:
        self.under_way = 0
        """Snapshots that are being taken."""


class Snapshots:
    """Snapshots of one task, one at a time."""

    def __init__(
        self,
        *,
        every: float,
        clock: Callable[[], float],
        counts: Counter[str],
        turns: SnapshotTurns | None = None,
    ):
        """`every` so many seconds one is due, and earlier where many records were merged and none
        of another task's is under way (`turns`); `counts` is where those are counted that are
        `taken` and `failed`."""
        self._turns = SnapshotTurns() if turns is None else turns
        self._every = every
        self._clock = clock
        self._counts = counts
        self._rested = clock()
        self._due = self._rested + every * _FIRST
        self._merged = 0
        """Records since the last one was begun."""
        self._taking: _Taking | None = None
        self._news = asyncio.Event()
        self.seconds: float | None = None
        """How long the latest took, until it was all committed."""

    def merged(self, records: int) -> None:
        """So many records more are to be read again by who begins with the last one."""
        self._merged += records

    @property
    def is_due(self) -> bool:
        now = self._clock()
        if self._taking is not None or now < self._rested:
            return False
        early = self._merged >= _RECORDS and not self._turns.under_way
        return early or now >= self._due

    @property
    def is_taking(self) -> bool:
        """One is under way."""
        return self._taking is not None

    @property
    def behind(self) -> int:
        """How many records were merged since the last one was begun."""
        return self._merged

    def hasten(self) -> None:
        """The next one is due once the last one has rested."""
        self._due = self._clock()

    def demand(self) -> None:
        """The next one is due now."""
        self._due = self._rested = self._clock()

    def start(
        self,
        transaction: int,
        stream: Iterator[bytes],
        places: tuple[SnapshotPlace, ...],
        output: int,
        records: int,
        *,
        is_small: bool = False,
    ) -> None:
        """Begins one of the state as it is at this instant: `stream` is what makes its bytes, at
        once if they are few (`is_small`). `places` are the snapshots that shall stay; a recovery by
        this one reads the output from the offset `output` on, before which there are so many
        `records`."""
        slot = min(set(range(_SLOTS)) - {place.slot for place in places})
        self._merged = 0
        self._turns.under_way += 1
        began = self._clock()
        writer = WrittenAtOnce(stream) if is_small else ForkedWriter(stream)
        self._taking = _Taking(slot, transaction, writer, output, records, began, self._news)

    async def ready(self) -> None:
        """Returns when there is something to commit."""
        await self._news.wait()

    def needs_transaction(self) -> bool:
        """There are chunks to commit, or one is to bring the snapshot to its end. Gives up one that
        has failed."""
        self._news.clear()
        if self._taking is not None and self._taking.failed:
            self._end("its process failed")
        taking = self._taking
        return taking is not None and (taking.has_chunks or taking.is_stored)

    def chunks(self) -> list[tuple[bytes, bytes]]:
        """What the next transaction is to carry, as keys and values."""
        return [] if self._taking is None else self._taking.chunks()

    def committed(self, count: int, behind: int | None) -> SnapshotPlace | None:
        """`count` chunks are committed, the last just before the commit record, which is just
        before the offset `behind`. Returns the place of the snapshot if that was all of it."""
        taking = self._taking
        if taking is None:
            return None
        if count and behind is None:
            self._end("the broker did not return its offset")
            return None
        if count and behind is not None:
            taking.stored(behind - 1 - count, behind - 2)
        if not taking.is_stored:
            return None
        self.seconds = round(self._clock() - taking.started, 3)
        place = taking.place()
        self._end(None)
        log.info("snapshot", transaction=place.transaction, size=place.size, seconds=self.seconds)
        return place

    def _end(self, why: str | None) -> None:
        taking, self._taking = self._taking, None
        assert taking is not None
        taking.close()
        self._turns.under_way -= 1
        now = self._clock()
        self._due, self._rested = now + self._every, now + _REST * (now - taking.started)
        self._counts["taken" if why is None else "failed"] += 1
        if why is not None:
            log.warning("no snapshot", why=why)

    def close(self) -> None:
        """Gives up the one under way."""
        if self._taking is not None:
            self._taking.close()
            self._taking = None
            self._turns.under_way -= 1


class _Taking:
    """A snapshot under way: its writer, and the chunks that have arrived."""

    def __init__(
        self,
        slot: int,
        transaction: int,
        writer: ForkedWriter | WrittenAtOnce,
        output: int,
        records: int,
        started: float,
        news: asyncio.Event,
    ):
        self.started = started
        self._news = news
        self.failed = False
        self._slot = slot
        self._transaction = transaction
        self._output, self._records = output, records
        self._digest = hashlib.sha256()
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue(_CHUNKS_AHEAD)
        self._count = self._handed_out = self._stored = self._size = 0
        self._whole = False
        self._first = self._last = 0
        self._writer = writer
        self._reading = asyncio.create_task(self._read(), name="snapshot")

    async def _read(self) -> None:
        async with aclosing(self._writer.chunks(_CHUNK_BYTES)) as chunks:
            async for chunk in chunks:
                self._digest.update(chunk)
                self._size += len(chunk)
                self._count += 1
                await self._arrived.put(chunk)
                self._news.set()
        self._whole = await self._writer.is_whole()
        self.failed = not self._whole
        self._news.set()

    @property
    def has_chunks(self) -> bool:
        return not self._arrived.empty()

    def chunks(self) -> list[tuple[bytes, bytes]]:
        found = []
        while not self._arrived.empty():
            found.append((chunk_key(self._slot, self._handed_out), self._arrived.get_nowait()))
            self._handed_out += 1
        return found

    def stored(self, first: int, last: int) -> None:
        if self._stored == 0:
            self._first = first
        self._stored += last - first + 1
        self._last = last

    @property
    def is_stored(self) -> bool:
        """Everything has arrived and is committed."""
        return self._whole and self._stored == self._count

    def place(self) -> SnapshotPlace:
        return SnapshotPlace(
            slot=self._slot,
            transaction=self._transaction,
            first=self._first,
            last=self._last,
            chunks=self._count,
            size=self._size,
            digest=self._digest.hexdigest(),
            taken=int(time.time() * 1000),
            output=self._output,
            records=self._records,
        )

    def close(self) -> None:
        self._reading.cancel()
        self._writer.close()
