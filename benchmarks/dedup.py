"""The usual solution without LMerge: a transactional consumer that passes each event on once.

    python -m benchmarks.dedup first POST.json

Theory
    It reads all replicas, and what it writes commits with its offsets in one transaction. It is
    written with care, as far as that goes without an account of each replica:

    *Inserts*: the first occurrence of (payload, vs) is passed on, each further one is dropped.
    *Adjusts*: the latest one wins, from any replica: the end that was passed on becomes that end.
    *Stables*: `first`: as far as any replica is, since the others are there so that the output
    goes on when one is not. `all`: as far as every replica is, since only then is everything
    published.
    Whatever would contradict what was declared stable is dropped. So is what is final from memory.

    Of replicas it knows only how far each is: not which of them an event is from, and so not which
    one to trust. It ignores headers.

Who owns what
    Members of one consumer group share partitions by range, so that one member has all replicas of
    a partition number; it writes with one transactional id, by which the next one fences it.

What happens on a crash at each await
    What is not committed is aborted. The next member reads the output from its beginning, by which
    it knows what has been passed on, and the replicas from the offsets of the last commit. Errors
    of Kafka end in the same: all is closed, and reopened a second later.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final, Literal

import msgspec
from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    ConsumerRecord,
    TopicPartition,
)
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError, ProducerFenced

from lmerge_service.drills.merging import Look, Post
from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.routing import Router
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.connection import close_bounded

__all__ = ("Passed", "Stables")

_POLL_MS: Final = 100
_PAUSE_SECONDS: Final = 1.0
_STATUS_SECONDS: Final = 0.2
_TRANSACTION_SECONDS: Final = 10.0
"""The client would retry for longer than a broker is down."""

Stables = Literal["first", "all"]


class Passed:
    """What the output holds, and what an element of a replica adds to it; never awaits."""

    def __init__(self, replicas: Iterable[str], stables: Stables):
        self.stable = START
        self._ends: dict[tuple[Hashable, int], int] = {}
        self._reached = dict.fromkeys(replicas, START)
        self._stables = stables

    @property
    def furthest(self) -> str:
        """The replica that is."""
        return max(self._reached, key=lambda name: self._reached[name])

    def take(self, replica: str, element: Element) -> Iterator[Element]:
        """What is passed on."""
        match element:
            case Insert(payload, vs):
                emitted = self._insert(element) if (payload, vs) not in self._ends else None
            case Adjust():
                emitted = self._adjust(element)
            case Stable(vc):
                self._reached[replica] = max(vc, self._reached[replica])
                reached = self._reached.values()
                emitted = self._pass(max(reached) if self._stables == "first" else min(reached))
        if emitted is not None:
            yield emitted

    def load(self, element: Element) -> None:
        """What the output has, of its beginning on."""
        match element:
            case Insert():
                self._insert(element)
            case Adjust():
                self._adjust(element)
            case Stable(vc):
                self._pass(vc)

    def _insert(self, element: Insert[Hashable]) -> Element | None:
        if element.vs < self.stable:
            return None
        self._ends[element.payload, element.vs] = element.ve
        return element

    def _adjust(self, element: Adjust[Hashable]) -> Element | None:
        key, ve = (element.payload, element.vs), element.ve
        held = self._ends.get(key)
        if held is None or held == ve or min(held, ve) < self.stable:
            return None
        if ve == element.vs:
            del self._ends[key]
        else:
            self._ends[key] = ve
        return Adjust(element.payload, element.vs, held, ve)

    def _pass(self, vc: int) -> Element | None:
        if vc <= self.stable:
            return None
        self.stable = vc
        self._ends = {key: ve for key, ve in self._ends.items() if ve >= vc}
        return Stable(vc)


class _Dedup(ConsumerRebalanceListener):  # type: ignore[misc]
    """One member of the group, from its start to an error."""

    def __init__(self, post: Post, stables: Stables):
        self.post = post
        self.passed: Passed | None = None
        """None: another member has the replicas."""
        self._stables = stables
        self._names = {topic: name for name, topic in post.replicas.items()}
        self._router = Router(post.partitions)
        self._decode = WireDecoder().decode
        self._leading = AsyncExitStack()
        self._shared: frozenset[TopicPartition] = frozenset()

    async def run(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.post.bootstrap,
            group_id=self.post.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=int(self.post.session_seconds * 1_000),
            heartbeat_interval_ms=int(self.post.session_seconds * 250),
            retry_backoff_ms=50,
        )
        try:
            await consumer.start()
            consumer.subscribe(list(self._names), listener=self)
            held = self._shared
            while True:
                if held is not self._shared:  # what was read meanwhile is read again
                    held = self._shared
                    await self._take_over(consumer, held)
                batches = await consumer.getmany(timeout_ms=_POLL_MS)
                if batches and held is self._shared and self.passed is not None:
                    async with asyncio.timeout(_TRANSACTION_SECONDS):
                        await self._pass_on(self.passed, batches)
        finally:
            await self._leading.aclose()
            await close_bounded(consumer.stop())

    async def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """All of them, at each rebalance of the group."""

    async def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """The consumer goes on reading; whoever processes what it reads finds out by this."""
        self._shared = frozenset(assigned)

    async def _take_over(self, consumer: AIOKafkaConsumer, held: frozenset[TopicPartition]) -> None:
        """Fences whoever wrote before, which settles what that has committed: what it has passed
        on, and up to where it has read."""
        self.passed = None
        await self._leading.aclose()
        if not held:
            return
        self._producer = producer = AIOKafkaProducer(
            bootstrap_servers=self.post.bootstrap,
            transactional_id=f"dedup.{self.post.output}",
            retry_backoff_ms=50,
        )
        self._leading.push_async_callback(lambda: close_bounded(producer.stop()))
        await producer.start()
        passed = await self._loaded()
        for tp in held:
            consumer.seek(tp, await consumer.committed(tp) or 0)
        self.passed = passed

    async def _loaded(self) -> Passed:
        """By the output; its stables are in every partition, so that those of one will do."""
        passed = Passed(self.post.replicas, self._stables)
        reader = AIOKafkaConsumer(
            bootstrap_servers=self.post.bootstrap,
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        await reader.start()
        try:
            parts = [TopicPartition(self.post.output, n) for n in range(self.post.partitions)]
            ends = await reader.end_offsets(parts)
            stable = START
            for tp in parts:
                reader.assign([tp])
                reader.seek(tp, 0)
                while await reader.position(tp) < ends[tp]:
                    for record in (await reader.getmany(timeout_ms=_POLL_MS)).get(tp, ()):
                        element = self._decode(record.value)
                        if isinstance(element, Stable):
                            stable = max(stable, element.vc)
                        else:
                            passed.load(element)
            passed.load(Stable(stable))
            return passed
        finally:
            await reader.stop()

    async def _pass_on(
        self, passed: Passed, batches: Mapping[TopicPartition, Sequence[ConsumerRecord]]
    ) -> None:
        offsets = {tp: records[-1].offset + 1 for tp, records in batches.items()}
        async with self._producer.transaction():
            for tp, records in batches.items():
                for record in records:
                    with suppress(ElementError):  # what is no element is skipped
                        element = self._decode(record.value)
                        for emitted in passed.take(self._names[tp.topic], element):
                            await self._send(emitted)
            await self._producer.send_offsets_to_transaction(offsets, self.post.group)

    async def _send(self, emitted: Element) -> None:
        if isinstance(emitted, Stable):
            key, numbers = None, range(self.post.partitions)
        else:
            key = emitted.payload
            assert isinstance(key, bytes)
            numbers = range(at := self._router.partition_of(key), at + 1)
        for number in numbers:
            await self._producer.send(self.post.output, encode(emitted), key=key, partition=number)


async def _main(stables: Stables, post: Post) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    members: list[_Dedup] = []
    work = [
        asyncio.create_task(_again_and_again(post, stables, members)),
        asyncio.create_task(_report_status(post, members)),
    ]
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([*work, stopped], return_when=asyncio.FIRST_COMPLETED)
    for task in work:
        task.cancel()
    for ended in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended


async def _again_and_again(post: Post, stables: Stables, members: list[_Dedup]) -> None:
    while True:
        members[:] = [_Dedup(post, stables)]
        try:
            await members[0].run()
        except (KafkaError, TimeoutError) as error:
            _log("fenced" if isinstance(error, ProducerFenced) else "kafka", error=repr(error))
        await asyncio.sleep(_PAUSE_SECONDS)


async def _report_status(post: Post, members: Sequence[_Dedup]) -> None:
    """Writes the status for monitors."""
    path = Path(post.status)
    while True:
        passed = members[0].passed if members else None
        look = Look("standby")
        if passed is not None:
            look = Look("running", tuple(range(post.partitions)), passed.furthest)
        partial = path.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(look))
        partial.rename(path)
        await asyncio.sleep(_STATUS_SECONDS)


def _log(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, "at": time.time(), **fields}), file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(
        _main(
            msgspec.convert(sys.argv[1], Stables),
            msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=Post),
        )
    )
