"""What a worker's tasks ask Kafka about topics: many questions in one request.

Theory
    Each task of a worker asks which topics there are and where they end, most of them the same
    ones. Questions of one kind that come at the same moment share a request, and those that come
    while it is under way share the next one. So an answer is never older than its question:

        task 0  ask ─┐                      ┌─▶ answer
        task 1  ask ─┴─ request ────────────┴─▶ answer
        task 2            ask ──── (waits) ──── request ─────▶ answer

    One that fails is repeated by each for itself, since it may have failed for what another asked.

Who owns what
    `Lookups` owns its clients, and makes others after an error.

What happens on a crash
    Nothing: it only asks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

from lmerge_service.errors import TransportError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import CONNECT_SECONDS
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import TopicInfo, Topics
from lmerge_service.kafka.transactional import retrieve

__all__ = ("Lookups",)

K = TypeVar("K")
V = TypeVar("V")

_REQUEST_SECONDS: Final = 5.0
"""A request that takes longer has failed; who has more time asks again."""
_WAIT_SECONDS: Final = 0.5
"""Nobody waits longer for a request that hangs before the next one is sent."""
_RETRY_SECONDS: Final = 0.2
_FAILURES: Final = 3
"""After so many in a row other clients may do better."""
_RECORD_BYTES: Final = 1 << 20


class _Questions(Generic[K, V]):
    """Questions of one kind."""

    def __init__(self, doing: str, ask: Callable[[Sequence[K]], Awaitable[dict[K, V]]]):
        self._doing, self._ask = doing, ask
        self._wanted: dict[K, None] = {}
        self._next: asyncio.Task[dict[K, V]] | None = None
        self._under_way: asyncio.Task[dict[K, V]] | None = None
        self._asking: dict[asyncio.Task[dict[K, V]], None] = {}
        """All that are not answered."""
        self._ended = False

    async def answer(self, keys: Iterable[K], seconds: float) -> dict[K, V]:
        """Of those that there are.

        Raises:
            TransportError: no answer in time.
        """
        wanted = list(keys)
        try:
            async with asyncio.timeout(seconds):
                found = await self._patiently(wanted)
        except TimeoutError:
            why = f"{self._doing}: no answer from Kafka within {seconds:g} s"
            raise TransportError(why) from None
        return {key: found[key] for key in wanted if key in found}

    async def _patiently(self, wanted: Sequence[K]) -> dict[K, V]:
        while True:
            if self._ended:
                raise self._end_error
            self._wanted |= dict.fromkeys(wanted)
            if self._next is None:
                self._next = asyncio.create_task(self._together(), name=self._doing)
                self._asking[self._next] = None
                self._next.add_done_callback(self._answered)
            asked = self._next
            try:
                return await asyncio.shield(asked)
            except asyncio.CancelledError:
                if asked.cancelled() and not _is_cancelled():
                    raise self._end_error from None
                raise
            except TransportError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)
            # Another's question may be what cannot be answered.
            with suppress(TransportError):
                return await self._ask(wanted)

    async def _together(self) -> dict[K, V]:
        if self._under_way is not None:
            await asyncio.wait({self._under_way}, timeout=_WAIT_SECONDS)
        await asyncio.sleep(0)  # whoever asks at this moment
        wanted, self._wanted = list(self._wanted), {}
        self._under_way, self._next = self._next, None
        return await self._ask(wanted)

    @property
    def _end_error(self) -> TransportError:
        return TransportError(f"{self._doing}: the worker ends")

    def _answered(self, task: asyncio.Task[dict[K, V]]) -> None:
        self._asking.pop(task, None)
        retrieve(task)  # whoever asked may have left

    async def end(self) -> None:
        """Whoever still waits, or asks later, gets a TransportError."""
        self._ended, left = True, [*self._asking]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Lookups:
    """Of one worker; `run` keeps its clients open."""

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._clients: tuple[Topics, Source]
        """While they are open."""
        self.refused: set[str] = set()
        """Topics that were asked for, and that our user may not see."""
        self._open, self._broken = asyncio.Event(), asyncio.Event()
        self._failures = 0
        """How many requests have failed, one after the other."""
        within = _REQUEST_SECONDS
        self._described = _Questions(
            "asking which topics there are",
            lambda names: self._ask(lambda topics, _: topics.describe(names, seconds=within)),
        )
        self._beginnings = _Questions(
            "asking where topics begin",
            lambda places: self._ask(lambda _, source: source.beginnings(places)),
        )
        self._ends = _Questions(
            "asking where topics end",
            lambda places: self._ask(lambda _, source: source.ends(places, seconds=within)),
        )
        self._highs = _Questions(
            "asking where topics end",
            lambda places: self._ask(lambda _, s: s.high_watermarks(places, seconds=within)),
        )

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                with suppress(TransportError):  # who asks finds out
                    await self._serve()
                await asyncio.sleep(_RETRY_SECONDS)
        finally:
            for questions in (self._described, self._ends, self._highs, self._beginnings):
                await questions.end()

    async def _serve(self) -> None:
        async with (
            self._cluster.topics() as topics,
            self._cluster.source(max_record_bytes=_RECORD_BYTES) as source,
        ):
            self._clients, self.refused = (topics, source), topics.refused
            self._broken.clear()
            self._failures = 0
            self._open.set()
            try:
                await self._broken.wait()
            finally:
                self._open.clear()

    async def describe(
        self, names: Iterable[str], *, seconds: float | None = None
    ) -> dict[str, TopicInfo]:
        """See `Topics`."""
        return await self._described.answer(names, CONNECT_SECONDS if seconds is None else seconds)

    async def ends(
        self, partitions: Sequence[TopicPartition], *, seconds: float = CONNECT_SECONDS
    ) -> dict[TopicPartition, int]:
        """See `Source`, also for `high_watermarks`."""
        return await self._ends.answer(partitions, seconds)

    async def high_watermarks(
        self, partitions: Sequence[TopicPartition], *, seconds: float = CONNECT_SECONDS
    ) -> dict[TopicPartition, int]:
        return await self._highs.answer(partitions, seconds)

    async def beginnings(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See `Source`."""
        return await self._beginnings.answer(partitions, CONNECT_SECONDS)

    async def _ask(self, question: Callable[[Topics, Source], Awaitable[dict[K, V]]]) -> dict[K, V]:
        await self._open.wait()
        try:
            answer = await question(*self._clients)
        except TransportError:
            self._failures += 1
            if self._failures >= _FAILURES:
                self._broken.set()
            raise
        self._failures = 0
        return answer
