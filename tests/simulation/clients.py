"""Every client of `lmerge_service.kafka` that the service uses, over the Kafka in memory.

They keep to the same words: same methods, same errors, same meaning of positions. The suite in
`test_contract` runs against these and against a real broker.
"""

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any

from lmerge_service.drills.records import CommittedRecord
from lmerge_service.elements import Stable
from lmerge_service.errors import (
    ConfigurationError,
    ElementError,
    StateError,
    TransportError,
    TrimmedError,
)
from lmerge_service.formats.table import offset_headers
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.assignor import Member
from lmerge_service.kafka.find import FoundRecord
from lmerge_service.kafka.members import KEPT_OUT_SECONDS, Assignment, GroupKind
from lmerge_service.kafka.sink import Committed, Outbox
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import TopicInfo
from lmerge_service.tdb import Event
from tests.simulation.groups import Given, KeptOut
from tests.simulation.loop import BEGAN
from tests.simulation.memory import Message, OutOfRange, Producer, UnknownTopic
from tests.simulation.network import Network

__all__ = (
    "MemoryCluster",
    "MemoryLog",
    "MemoryMembers",
    "MemorySink",
    "MemorySource",
    "MemoryTopics",
)

_STALL_SECONDS = 120.0
_COMMIT_SECONDS = 60.0


class MemoryTopics:
    """As `kafka.topics.Topics`."""

    def __init__(self, network: Network):
        self._network = network
        self.refused: set[str] = set()

    async def __aenter__(self) -> "MemoryTopics":
        await self._network.request(lambda: None, "connecting")
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def describe(
        self, names: Iterable[str], *, seconds: float = 15, rights: bool = False
    ) -> dict[str, TopicInfo]:
        broker, wanted = self._network.broker, list(names)
        found = await self._network.request(
            lambda: {name: broker.describe(name) for name in wanted},
            "asking which topics there are",
        )
        return {
            name: TopicInfo(*info, leaderless=(0,) if name in broker.leaderless else ())
            for name, info in found.items()
            if info is not None
        }

    async def partitions(self, names: Iterable[str], *, seconds: float = 15) -> dict[str, int]:
        return {name: info.partitions for name, info in (await self.describe(names)).items()}

    async def ensure(
        self, name: str, *, partitions: int = 1, config: dict[str, str] | None = None
    ) -> int:
        broker = self._network.broker
        await self._network.request(
            lambda: broker.create(name, partitions, config), f"making topic {name}"
        )
        width = (await self.partitions([name])).get(name)
        if width is None:  # somebody has deleted it meanwhile
            raise TransportError(f"waiting for topic {name}: no answer from Kafka in time")
        return width

    async def trim(self, before: Mapping[TopicPartition, int]) -> None:
        for tp, offset in before.items():
            await self._network.request(
                lambda tp=tp, at=offset: self._network.broker.truncate(tp, at),  # type: ignore[misc]
                "deleting records",
            )

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        offsets = self._network.broker.offsets
        found = await self._network.request(lambda: dict(offsets.get(group, {})), "asking")
        return {tp: at for tp, at in found.items() if tp in partitions}

    async def delete(self, *names: str) -> None:
        for name in names:
            await self._network.request(lambda n=name: self._network.broker.delete(n), "deleting")  # type: ignore[misc]

    async def require(self, name: str, key: str, holds: Callable[[str], bool], must: str) -> None:
        value = await self.config(name, key)
        if value is not None and not holds(value):
            raise ConfigurationError(f"topic {name} has {key}={value}; it {must}")

    async def config(self, name: str, key: str) -> str | None:
        broker = self._network.broker
        return (await self._network.request(lambda: broker.config(name), "asking")).get(key)


class MemorySource:
    """As `kafka.source.Source`."""

    def __init__(self, network: Network):
        self._network = network
        self._positions: dict[TopicPartition, int] = {}
        self.paused: frozenset[TopicPartition] = frozenset()
        self.lost: dict[TopicPartition, str] = {}

    async def __aenter__(self) -> "MemorySource":
        await self._network.request(lambda: None, "connecting")
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def beginnings(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._ask(self._network.broker.beginning, partitions)

    async def ends(
        self, partitions: Sequence[TopicPartition], *, seconds: float = 15
    ) -> dict[TopicPartition, int]:
        return await self._ask(self._network.broker.last_stable, partitions)

    async def high_watermarks(
        self, partitions: Sequence[TopicPartition], *, seconds: float = 15
    ) -> dict[TopicPartition, int]:
        return await self._ask(self._network.broker.high_watermark, partitions)

    async def since(
        self, partitions: Sequence[TopicPartition], time: int
    ) -> dict[TopicPartition, int]:
        began = int(BEGAN * 1_000)
        return await self._ask(lambda tp: self._network.broker.since(tp, time - began), partitions)

    async def _ask(
        self, of: Callable[[TopicPartition], int], partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return await self._network.request(
            lambda: {tp: of(tp) for tp in partitions}, "asking where topics begin or end"
        )

    async def require_readable(self, tp: TopicPartition, offset: int) -> None:
        await self._network.request(lambda: None, "reading")

    def position(self, tp: TopicPartition) -> int | None:
        return self._positions.get(tp)

    @property
    def readable(self) -> int:
        broker, left = self._network.broker, 0
        for tp, position in self._positions.items():
            if tp not in self.lost and tp not in self.paused:
                with contextlib.suppress(UnknownTopic):
                    left += max(0, broker.last_stable(tp) - position)
        return left

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._positions = dict(positions)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self.paused |= frozenset(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self.paused -= frozenset(partitions)

    def rewind(self, tp: TopicPartition, offset: int) -> None:
        if tp in self._positions:
            self._positions[tp] = offset

    async def poll(
        self, seconds: float, max_records: int | None = None
    ) -> dict[TopicPartition, list[CommittedRecord]]:
        """Some of what is there: which partitions answer first is chance."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while True:
            news = self._network.news
            found = self._taken(
                await self._network.request(lambda: self._fetch(max_records), "reading")
            )
            if found or self.lost or clock() >= until:
                return found
            try:
                async with asyncio.timeout(until - clock()):
                    await news.wait()
            except TimeoutError:
                return {}

    def _taken(
        self, answer: Sequence[tuple[TopicPartition, int, int, list[CommittedRecord]]]
    ) -> dict[TopicPartition, list[CommittedRecord]]:
        """What has arrived, but for partitions that are read from elsewhere by now."""
        found = {}
        for tp, asked, position, records in answer:
            if self._positions.get(tp) == asked:
                self._positions[tp] = position
                if records:
                    found[tp] = records
        return found

    def _fetch(
        self, most: int | None
    ) -> list[tuple[TopicPartition, int, int, list[CommittedRecord]]]:
        """Of each partition that answers: from where to where, and its records."""
        found: list[tuple[TopicPartition, int, int, list[CommittedRecord]]] = []
        room = 1_000_000 if most is None else most
        for tp in self._network.chance.sample(list(self._positions), len(self._positions)):
            if tp in self.lost or tp in self.paused or room <= 0:
                continue
            if found and self._network.chance.random() < 0.3:
                continue  # its answer comes later
            try:
                records, position = self._network.broker.fetch(tp, self._positions[tp], room)
            except UnknownTopic:
                continue
            except OutOfRange:
                self.lost[tp] = "the broker no longer has the offset to go on from"
                continue
            room -= len(records)
            found.append((tp, self._positions[tp], position, records))
        return found

    async def backlog(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> AsyncGenerator[tuple[TopicPartition, list[CommittedRecord]], None]:
        for tp in starts:
            self.lost.pop(tp, None)
        self.assign({tp: offset for tp, offset in starts.items() if offset < ends[tp]})
        clock = asyncio.get_running_loop().time
        progress = clock()
        while self._positions:
            for tp, records in (await self.poll(0.2)).items():
                if inside := [record for record in records if record.offset < ends[tp]]:
                    yield tp, inside
                progress = clock()
            for tp in self._positions.keys() & self.lost.keys():
                raise StateError(f"{tp.topic}-{tp.partition} {self.lost[tp]}")
            self._positions = {tp: at for tp, at in self._positions.items() if at < ends[tp]}
            if clock() - progress > _STALL_SECONDS:
                raise TransportError(f"reading stalled ({self._positions})")


class MemorySink:
    """As `kafka.sink.Sink`."""

    def __init__(
        self,
        network: Network,
        *,
        transactional_id: str,
        output: TopicPartition,
        dead_letters: str,
        state: TopicPartition,
        events: str,
        max_record_bytes: int,
        table: str | None = None,
    ):
        self._network = network
        self._transactional_id = transactional_id
        self._output = output
        self._dead_letters = TopicPartition(dead_letters, 0)
        self._state = state
        self._events = TopicPartition(events, 0)
        self._table = None if table is None else TopicPartition(table, output.partition)
        self._producer: Producer

    async def __aenter__(self) -> "MemorySink":
        broker, name = self._network.broker, self._transactional_id
        self._producer = await self._network.request(
            lambda: broker.init_producer(name), "taking over the output"
        )
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def commit(
        self, outbox: Outbox, provided: Callable[[], Awaitable[None]] | None = None
    ) -> Committed:
        """In several requests: what comes between them is in the logs, and open."""
        headers = outbox.headers
        output = await self._produce(self._output, [(k, v, headers) for k, v in outbox.records])
        await self._produce(self._dead_letters, [each.to_record() for each in outbox.dead])
        await self._produce(self._events, [(k, v, ()) for k, v in outbox.events])
        state = await self._produce(self._state, [(k, v, ()) for k, v in outbox.state])
        if self._table is not None and outbox.rows:
            span = (outbox.begins, outbox.begins) if output is None else (output[0], output[1])
            offsets = offset_headers(*span) if outbox.has_offsets else []
            all_of_them = [*headers, *offsets]
            await self._produce(self._table, [(k, v, all_of_them) for k, v in outbox.rows])
            outbox.require_table()
        if provided is not None:
            await provided()
        broker, producer = self._network.broker, self._producer
        await self._network.request(lambda: broker.end(producer, commit=True), "committing")
        return Committed(_end_of(output), _end_of(state))

    async def _produce(
        self, tp: TopicPartition, messages: Sequence[Message]
    ) -> tuple[int, int] | None:
        """From which offset to which they are; None if there are none."""
        begin: int | None = None
        end = 0
        if messages:
            await self._until_writable(tp.topic)
        for start in range(0, len(messages), 16):
            part = messages[start : start + 16]
            end = await self._network.request(
                lambda part=part: self._network.broker.produce(tp, part, self._producer),  # type: ignore[misc]
                "committing",
            )
            begin = end - len(part) if begin is None else begin
        return None if begin is None else (begin, end)

    async def _until_writable(self, topic: str) -> None:
        """As the client does, it waits for a topic that is not there, or that nobody leads."""
        try:
            async with asyncio.timeout(_COMMIT_SECONDS):
                while not self._network.broker.is_writable(topic):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise TransportError("committing: no answer from Kafka in time") from None


def _end_of(span: tuple[int, int] | None) -> int | None:
    return None if span is None else span[1]


class MemoryLog:
    """As `kafka.log.Log`."""

    def __init__(self, network: Network, topic: str):
        self.topic = topic
        self._network = network
        self._tp = TopicPartition(topic, 0)

    async def __aenter__(self) -> "MemoryLog":
        broker = self._network.broker
        await self._network.request(lambda: broker.create(self.topic), "making the log")
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def append(self, value: bytes, *, seconds: float = 10.0) -> int:
        broker, message = self._network.broker, (None, value, ())
        work = self._network.request(lambda: broker.produce(self._tp, [message]), "deciding")
        try:
            async with asyncio.timeout(seconds):
                return await work - 1
        except TimeoutError:
            raise TransportError(f"writing to {self.topic}: no answer in time") from None

    async def bounds(self) -> tuple[int, int]:
        broker, tp = self._network.broker, self._tp
        return await self._network.request(
            lambda: (broker.beginning(tp), broker.last_stable(tp)), "asking"
        )

    async def read(
        self, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[CommittedRecord, None]:
        source = MemorySource(self._network)
        if end is None:
            _, end = await self.bounds()
        at = start
        try:
            async for _, records in source.backlog({self._tp: start}, {self._tp: end}):
                for record in records:
                    yield record
                    at = record.offset + 1
        except StateError:
            self._refuse_trimmed(at)
            raise

    async def follow(
        self, start: int = 0, *, begun: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[CommittedRecord, None]:
        source = MemorySource(self._network)
        source.assign({self._tp: start})
        begun()
        while True:
            for record in (await source.poll(1.0)).get(self._tp, ()):
                yield record
                start = record.offset + 1
            if self._tp in source.lost:
                self._refuse_trimmed(start)
                raise StateError(f"{self.topic} {source.lost[self._tp]}")

    def _refuse_trimmed(self, at: int) -> None:
        begins = self._network.broker.beginning(self._tp)
        if begins > at:
            raise TrimmedError(f"{self.topic} begins at offset {begins} by now")


class MemoryMembers:
    """As `kafka.members.Members`; a member beats once a second, which returns its assignment."""

    def __init__(
        self,
        network: Network,
        group: str,
        topic: str,
        *,
        output: str,
        warm: Callable[[], Mapping[int, int]],
        standby_only: bool,
        standbys: int,
        session_timeout_ms: int,
    ):
        self.assignment = Assignment()
        self.unreachable: str | None = None
        self._network = network
        self._group = network.broker.group(group)
        self._topic = topic
        self._output = output
        self._kept_out_since: float | None = None
        self._warm = warm
        self._standby_only = standby_only
        self._standbys = standbys
        self._session = session_timeout_ms / 1_000
        self._changed = asyncio.Event()
        self._again = asyncio.Event()
        self._sent = self._acknowledged = 0
        self._acknowledgement = asyncio.Event()

    async def __aenter__(self) -> "MemoryMembers":
        broker = self._network.broker
        found = await self._network.request(lambda: broker.describe(self._topic), "asking")
        assert found is not None
        self._kind = GroupKind(self._output, found[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        """A process that is killed leaves nothing: its session ends."""
        if not self._network.killed.is_set():
            self._group.leave(self._network.name)

    async def changes(self) -> AsyncIterator[Assignment]:
        seen = Assignment()
        while True:
            changed = self._changed
            if self.assignment != seen:
                seen = self.assignment
                yield seen
            else:
                await changed.wait()

    def rebalance(self) -> None:
        self._again.set()

    async def confirmed(self) -> Assignment:
        since = self._sent
        while self._acknowledged <= since or self.assignment.generation < 0:
            await self._acknowledgement.wait()
        return self.assignment

    async def run(self) -> None:
        while True:
            again = self._again.is_set()
            self._again.clear()
            self._sent += 1
            try:
                given = await self._network.request(partial(self._beat, again=again), "beating")
            except TransportError as error:
                self.unreachable = str(error)
                if again:
                    self._again.set()
                await asyncio.sleep(1.0)
                continue
            self.unreachable = None
            if isinstance(given, KeptOut):
                self._outwait(given)
            else:
                self._kept_out_since = None
                self._assign(Assignment() if given is None else _assignment(given))
                self._acknowledged = self._sent
                self._acknowledgement.set()
                self._acknowledgement = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._again.wait()

    def _outwait(self, others: KeptOut) -> None:
        now = asyncio.get_running_loop().time()
        since = self._kept_out_since = now if self._kept_out_since is None else self._kept_out_since
        if now - since > self._session + KEPT_OUT_SECONDS:
            raise self._kind.refusal("the group", others.kind, others.workers)

    def _beat(self, *, again: bool) -> Given | KeptOut | None:
        now = self.assignment
        member = Member(
            self._network.name,
            self._standby_only,
            now.generation,
            set(now.active),
            set(now.standby),
            set(now.promised),
            dict(self._warm()),
        )
        return self._group.beat(
            member, self._kind, session=self._session, standbys=self._standbys, again=again
        )

    def _assign(self, assignment: Assignment) -> None:
        if assignment != self.assignment:
            self.assignment = assignment
            self._changed.set()
            self._changed = asyncio.Event()


def _assignment(given: Given) -> Assignment:
    mine = given.share
    return Assignment(
        frozenset(mine.active),
        frozenset(mine.standby),
        frozenset(mine.promised),
        given.owners,
        given.generation,
    )


class MemoryCluster:
    """As `kafka.cluster.Cluster`, for one process."""

    is_native = False
    """Records are in lists, whichever engine merges."""

    def __init__(self, network: Network):
        self._network = network

    def topics(self) -> MemoryTopics:
        return MemoryTopics(self._network)

    def source(self, *, max_record_bytes: int) -> MemorySource:
        return MemorySource(self._network)

    def sink(self, **names: Any) -> MemorySink:
        return MemorySink(self._network, **names)

    async def find_event(
        self, before: Mapping[TopicPartition, int], event: Event, decoder: WireDecoder
    ) -> FoundRecord | None:
        """Reads all there is before these offsets."""
        found = None
        source = MemorySource(self._network)
        beginnings = await source.beginnings(list(before))
        async for tp, records in source.backlog(beginnings, before):
            for record in records:
                with contextlib.suppress(ElementError):
                    element = decoder.decode(record.value)
                    if type(element) is not Stable and event[:2] == (element.payload, element.vs):  # type: ignore[union-attr]
                        place = tp.topic, tp.partition, record.offset
                        found = FoundRecord(*place, element, record.value)
        return found

    def log(self, topic: str) -> MemoryLog:
        return MemoryLog(self._network, topic)

    def members(self, group: str, topic: str, *, worker: str, **how: Any) -> MemoryMembers:
        return MemoryMembers(self._network, group, topic, **how)
