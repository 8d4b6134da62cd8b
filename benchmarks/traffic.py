"""What goes into replica topics, and what a consumer of the output sees of it.

Who owns what
    A `Sender` owns a producer, an `Arrivals` while it runs a consumer. Whoever cancels either loses
    what was not acknowledged; nothing of the measured side is in this process.

Cost
    Records are appended to batches directly, 3 µs each; so one process can send some 100,000
    elements a second and generate them; written beforehand, they cost less. Times are the wall
    clock's, so that they can be compared with those of records and logs.
"""

import asyncio
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import chain, islice, pairwise
from typing import Any, Final, Protocol, Self

from aiokafka import AIOKafkaProducer
from aiokafka.producer.message_accumulator import BatchBuilder

from lmerge_service.demo.verdict import read_inputs
from lmerge_service.elements import START, Element, Insert, Stable
from lmerge_service.formats.dialects import Written
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.routing import Router
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.closing import stop
from lmerge_service.kafka.connection import Connection, kafka_errors
from lmerge_service.kafka.publish import on_the_wire
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.starting import started
from lmerge_service.kafka.topics import Topics

__all__ = ("Arrivals", "Receipts", "Replicas", "Sender", "following", "quantile", "waits")

_AT_ONCE: Final = 2_000
_TICK_SECONDS: Final = 0.01
_UNACKNOWLEDGED: Final = 64


class Sender:
    """The sending end of a replica; use as `async with`. A payload has its partition, and each
    stable goes to all of them."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        *,
        partitions: int = 1,
        incarnation: int = 0,
        joining_at: int = START,
        written: Callable[[Any], Sequence[Written]] = on_the_wire,
    ):
        """`written` gives the records of whatever is sent as an element."""
        self.topic = topic
        self._written = written
        self.records = [0] * partitions
        """Sent to each partition."""
        self._router = Router(partitions)
        self._connection = connection
        self._headers = incarnation_headers(incarnation, joining_at)
        self._pending: list[Awaitable[object]] = []

    async def __aenter__(self) -> Self:
        async with Topics(self._connection) as topics:
            await topics.ensure(self.topic, partitions=self._router.partitions)
        self._producer = AIOKafkaProducer(
            **self._connection.arguments, enable_idempotence=True, max_batch_size=1 << 18
        )
        await started(self._producer.start(), partial(stop, self._producer), self._connection)
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop(self._producer)

    async def send(self, elements: Iterable[Element], rate: float | None = None) -> int:
        """Sends them in order, `rate` a second (None: as fast as it goes), and waits until they
        are there; returns how many.

        Raises:
            TransportError: Kafka refuses.
        """
        began, sent = time.monotonic(), 0
        elements = iter(elements)
        while some := list(islice(elements, await _due(began, sent, rate))):
            await self.put(some)
            sent += len(some)
        await self.flush()
        return sent

    async def put(self, elements: Sequence[Element]) -> None:
        """Hands them over to the producer; waits when much is not acknowledged."""
        with kafka_errors(f"sending to {self.topic}", "Write"):
            for partition, part in self._parts(elements):
                self.records[partition] += len(part)
                for batch in self._batches(part):
                    future = await self._producer.send_batch(batch, self.topic, partition=partition)
                    self._pending.append(future)
        if len(self._pending) >= _UNACKNOWLEDGED:
            await self.flush()

    async def flush(self) -> None:
        """Waits until all is acknowledged."""
        pending, self._pending = self._pending, []
        with kafka_errors(f"sending to {self.topic}", "Write"):
            await asyncio.gather(*pending)

    def _parts(self, elements: Sequence[Element]) -> Iterator[tuple[int, Sequence[Element]]]:
        """What goes to each partition."""
        if self._router.partitions == 1:
            yield 0, elements
            return
        of = [
            None if isinstance(each, Stable) else self._router.partition_of(each.payload)
            for each in elements
        ]
        for number in range(self._router.partitions):
            yield number, [e for e, at in zip(elements, of, strict=True) if at in (None, number)]

    def _batches(self, elements: Sequence[Element]) -> Iterator[BatchBuilder]:
        batch, headers = self._producer.create_batch(), self._headers
        for record in chain.from_iterable(map(self._written, elements)):
            key, value = record.key, record.value
            if batch.append(key=key, value=value, timestamp=None, headers=headers) is None:
                yield batch
                batch = self._producer.create_batch()
                batch.append(key=key, value=value, timestamp=None, headers=headers)
        yield batch


async def _due(began: float, sent: int, rate: float | None) -> int:
    """How many elements to send now; waits until there are some."""
    if rate is None:
        return _AT_ONCE
    if time.monotonic() < began + (sent + _AT_ONCE) / rate:
        # One batch a tick: what falls due while a batch is sent waits for the next one.
        early = began + sent / rate - time.monotonic()
        await asyncio.sleep(max(early, _TICK_SECONDS))
    late = int((time.monotonic() - began) * rate) - sent
    return min(max(late, 1), _AT_ONCE)


class Replicas:
    """Replicas that go on, each in its topic, for as long as they are asked to; use as
    `async with`."""

    def __init__(
        self,
        connection: Connection,
        streams: Mapping[str, Iterable[Any]],
        *,
        partitions: int = 1,
        written: Callable[[Any], Sequence[Written]] = on_the_wire,
    ):
        """`streams` are by topic, each of so many partitions; they may be lazy, and longer than
        what will be published. `written` gives the records of each of their elements."""
        self._senders = [
            Sender(connection, topic, partitions=partitions, written=written) for topic in streams
        ]
        self._streams = [iter(stream) for stream in streams.values()]

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for sender in self._senders:
                await stack.enter_async_context(sender)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def records(self) -> list[int]:
        """Sent to each partition number, over all topics."""
        return [sum(each) for each in zip(*(s.records for s in self._senders), strict=True)]

    async def publish(self, count: int | None = None, rate: float | None = None) -> int:
        """So many elements each (None: all there are), `rate` a second each; how many in all.

        Raises:
            TransportError: Kafka refuses.
        """
        both = zip(self._senders, self._streams, strict=True)
        return sum(await asyncio.gather(*(s.send(islice(e, count), rate) for s, e in both)))

    @asynccontextmanager
    async def publishing(self, rate: int) -> AsyncIterator[None]:
        """They continue at this rate meanwhile."""
        stop = asyncio.Event()
        going_on = asyncio.create_task(self._keep_publishing(rate, stop))
        try:
            yield
        finally:
            stop.set()  # a cancellation would lose elements
            await going_on

    async def _keep_publishing(self, rate: int, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.publish(max(1, rate // 5), rate)


class _Runs(Protocol):
    async def run(self) -> None: ...


@asynccontextmanager
async def following(consumer: _Runs) -> AsyncIterator[None]:
    """A consumer runs meanwhile."""
    running = asyncio.create_task(consumer.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Receipts:
    """A read_committed consumer of one partition of a topic, from its beginning, who keeps what
    came and when. It is looked into afterwards: meanwhile the processor is for the measured."""

    def __init__(self, connection: Connection, topic: str):
        self._connection = connection
        self._tp = TopicPartition(topic, 0)
        self.came: list[tuple[float, list[bytes | None]]] = []
        """Values of records, by the wall-clock seconds at which they came."""

    async def run(self) -> None:
        """Follows until cancelled."""
        async with Source(self._connection) as source:
            source.assign({self._tp: 0})
            while True:
                for records in (await source.poll(0.2)).values():
                    self.came.append((time.time(), [record.value for record in records]))

    def inserts(self) -> dict[tuple[bytes, int], float]:
        """(payload, vs) → wall-clock seconds at which the event's first insert came."""
        decoder, arrived = WireDecoder(), dict[tuple[bytes, int], float]()
        for at, values in self.came:
            for element in map(decoder.decode, values):
                if type(element) is Insert:
                    arrived.setdefault((element.payload, element.vs), at)
        return arrived


class Arrivals:
    """A read_committed consumer of one partition of a topic, who notes when something came."""

    def __init__(self, connection: Connection, topic: str, partition: int = 0):
        self._connection = connection
        self._tp = TopicPartition(topic, partition)
        self.times: list[float] = []
        """Seconds of the wall clock."""

    async def run(self) -> None:
        """Follows from the present end until cancelled."""
        async with Source(self._connection) as source:
            source.assign(await source.ends([self._tp]))
            while True:
                if await source.poll(0.2):
                    self.times.append(time.time())

    def longest_gap(self, start: float, end: float) -> float:
        """The longest time without an arrival, in seconds, of those that touch [start, end]."""
        gaps = [b - a for a, b in pairwise(self.times) if b >= start and a <= end]
        return max(gaps, default=end - start)


async def waits(
    connection: Connection,
    topics: Sequence[str],
    arrived: Mapping[tuple[bytes, int], float],
    since: float = 0.0,
) -> list[float]:
    """Milliseconds from when an event was first produced to when it arrived, ascending; of events
    that were first produced at `since` (seconds of the wall clock) or later."""
    _, produced = await read_inputs(connection, topics)
    return sorted(
        (arrived[key] - at) * 1000 for key, at in produced.items() if at >= since and key in arrived
    )


def quantile(ascending: Sequence[float], q: float) -> float:
    """
    >>> quantile([1, 2, 3, 4], 0.5)
    3
    """
    return ascending[min(len(ascending) - 1, int(q * len(ascending)))]
