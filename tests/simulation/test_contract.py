"""One suite for two Kafkas: what the simulation has in memory behaves as a real broker does."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Coroutine, Sequence
from random import Random
from typing import Any, Protocol

import pytest
from aiokafka import AIOKafkaProducer

from lmerge_service.errors import (
    ConfigurationError,
    FencedError,
    StateError,
    TransportError,
    TrimmedError,
)
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.log import Log
from lmerge_service.kafka.sink import Committed, Outbox, Sink
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from tests.simulation import loop
from tests.simulation.clients import MemoryLog, MemorySink, MemorySource, MemoryTopics
from tests.simulation.memory import Broker
from tests.simulation.network import Network


class Kafka(Protocol):
    """What the suite needs of either."""

    def topics(self) -> Any: ...
    def source(self) -> Any: ...
    def log(self, topic: str) -> Any: ...
    def sink(self, name: str, topic: str) -> Any: ...
    def play(self, main: Coroutine[Any, Any, None]) -> None: ...
    async def write(self, topic: str, values: Sequence[bytes]) -> None: ...
    async def abort(self, topic: str, values: Sequence[bytes]) -> None: ...
    def left_open(
        self, topic: str, values: Sequence[bytes]
    ) -> contextlib.AbstractAsyncContextManager[None]: ...
    async def truncate(self, tp: TopicPartition, before: int) -> None: ...


def sinking(name: str, topic: str) -> dict[str, Any]:
    """What either maker's sink is made of."""
    return {
        "transactional_id": name,
        "output": TopicPartition(topic, 0),
        "dead_letters": f"{topic}.dead",
        "state": TopicPartition(f"{topic}.state", 0),
        "events": f"{topic}.events",
        "max_record_bytes": 1 << 20,
        "table": f"{topic}.table",
    }


class InMemory:
    """The simulation's."""

    def __init__(self) -> None:
        self._now = 0.0

    def play(self, main: Coroutine[Any, Any, None]) -> None:
        async def begun() -> None:
            clock = asyncio.get_running_loop().time
            self._broker = Broker(clock)
            self._network = Network(self._broker, Random(1))
            await main

        loop.run(begun())

    def topics(self) -> MemoryTopics:
        return MemoryTopics(self._network)

    def source(self) -> MemorySource:
        return MemorySource(self._network)

    def log(self, topic: str) -> MemoryLog:
        return MemoryLog(self._network, topic)

    def sink(self, name: str, topic: str) -> MemorySink:
        return MemorySink(self._network, **sinking(name, topic))

    async def write(self, topic: str, values: Sequence[bytes]) -> None:
        self._broker.produce(TopicPartition(topic, 0), [(None, value, ()) for value in values])

    async def abort(self, topic: str, values: Sequence[bytes]) -> None:
        async with self.left_open(topic, values):
            pass

    @contextlib.asynccontextmanager
    async def left_open(self, topic: str, values: Sequence[bytes]) -> AsyncIterator[None]:
        producer = self._broker.init_producer(f"{topic}.stranger")
        messages = [(None, value, ()) for value in values]
        self._broker.produce(TopicPartition(topic, 0), messages, producer)
        yield
        self._broker.end(producer, commit=False)

    async def truncate(self, tp: TopicPartition, before: int) -> None:
        self._broker.truncate(tp, before)


class Real:
    """A broker's, by the service's own clients."""

    def __init__(self, bootstrap: str) -> None:
        self._connection = Connection(bootstrap)

    def play(self, main: Coroutine[Any, Any, None]) -> None:
        asyncio.run(main)

    def topics(self) -> Topics:
        return Topics(self._connection)

    def source(self) -> Source:
        return Source(self._connection, fetch_wait_ms=10)

    def log(self, topic: str) -> Log:
        return Log(self._connection, topic)

    def sink(self, name: str, topic: str) -> Sink:
        return Sink(self._connection, **sinking(name, topic))

    async def write(self, topic: str, values: Sequence[bytes]) -> None:
        async with AIOKafkaProducer(**self._connection.arguments) as producer:
            for value in values:
                await producer.send_and_wait(topic, value, partition=0)

    async def abort(self, topic: str, values: Sequence[bytes]) -> None:
        async with self.left_open(topic, values):
            pass

    @contextlib.asynccontextmanager
    async def left_open(self, topic: str, values: Sequence[bytes]) -> AsyncIterator[None]:
        async with AIOKafkaProducer(
            **self._connection.arguments, transactional_id=f"{topic}.stranger"
        ) as producer:
            await producer.begin_transaction()
            for value in values:
                await producer.send_and_wait(topic, value, partition=0)
            yield
            await producer.abort_transaction()
        async with Source(self._connection) as source:  # the marker comes behind the answer
            await source.settled([TopicPartition(topic, 0)])

    async def truncate(self, tp: TopicPartition, before: int) -> None:
        class Before:
            before_offset = before

        async with Topics(self._connection) as topics:
            await topics._admin.delete_records({tp: Before()})


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.kafka)])
def kafka(request: pytest.FixtureRequest) -> Kafka:
    if request.param == "memory":
        return InMemory()
    return Real(request.getfixturevalue("bootstrap"))


@pytest.fixture
def topic() -> str:
    return f"contract-{uuid.uuid4().hex[:10]}"


def outbox(*values: bytes, **more: Any) -> Outbox:
    return Outbox([(b"k", value) for value in values], **more)


async def settled(source: Any, tp: TopicPartition, count: int) -> list[tuple[int, bytes]]:
    """(offset, value) of so many records, from wherever the source is."""
    found: list[tuple[int, bytes]] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            for records in (await source.poll(0.2)).values():
                found += [(record.offset, record.value) for record in records]
    return found


def test_topics_are_made_once_and_known_by_an_id(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        async with kafka.topics() as topics:
            assert await topics.describe([topic]) == {}
            assert await topics.ensure(topic, partitions=3) == 3
            assert await topics.ensure(topic, partitions=5) == 3
            assert await topics.partitions([topic, f"{topic}.not"]) == {topic: 3}
            first = (await topics.describe([topic]))[topic].id
            await topics.delete(topic)
            async with asyncio.timeout(20):
                while await topics.describe([topic]):  # noqa: ASYNC110 (it is asked)
                    await asyncio.sleep(0.05)
            await topics.ensure(topic)
            assert (await topics.describe([topic]))[topic].id != first

    kafka.play(main())


def test_a_configuration_that_does_not_hold_is_refused(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        async with kafka.topics() as topics:
            await topics.ensure(topic, config={"retention.ms": "-1"})
            await topics.require(topic, "retention.ms", "-1".__eq__, "must be -1")
            await topics.require(topic, "cleanup.policy", "delete".__eq__, "must be delete")
            with pytest.raises(ConfigurationError, match=r"retention.ms=-1; it must be 5"):
                await topics.require(topic, "retention.ms", "5".__eq__, "must be 5")

    kafka.play(main())


def test_a_commit_is_there_whole_and_its_marker_takes_an_offset(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        tp, dead = TopicPartition(topic, 0), TopicPartition(f"{topic}.dead", 0)
        letter = DeadLetter("a", "in", 0, 7, "tombstone", "no value", None, None)
        async with kafka.topics() as topics:
            await topics.ensure(topic)
            await topics.ensure(dead.topic)
        async with kafka.sink(topic, topic) as sink, kafka.source() as source:
            source.assign({tp: 0, dead: 0})
            await sink.commit(outbox(b"1", b"2", dead=[letter]))
            await sink.commit(outbox(b"3"))
            found = await settled(source, tp, 4)
            assert sorted(found, key=str) == [(0, None), (0, b"1"), (1, b"2"), (3, b"3")]
            assert (await source.ends([tp, dead])) == {tp: 5, dead: 2}
            assert (await source.high_watermarks([tp])) == {tp: 5}
            assert (await source.beginnings([tp])) == {tp: 0}

    kafka.play(main())


def test_a_commit_returns_where_its_records_end(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        async with kafka.topics() as topics:
            for name in (topic, f"{topic}.dead", f"{topic}.state"):
                await topics.ensure(name)
        async with kafka.sink(topic, topic) as sink:
            first = await sink.commit(outbox(b"1", b"2", state=[(b"commit", b"m")]))
            assert (first.output, first.state) == (2, 1)
            assert await sink.commit(outbox(state=[(b"commit", b"n")])) == Committed(None, 3)
            assert await sink.commit(outbox(b"3")) == Committed(4, None)

    kafka.play(main())


def test_what_was_aborted_is_passed_over(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        tp = TopicPartition(topic, 0)
        async with kafka.topics() as topics:
            await topics.ensure(topic)
        await kafka.write(topic, [b"1"])
        await kafka.abort(topic, [b"no", b"nor"])
        await kafka.write(topic, [b"2"])
        async with kafka.source() as source:
            source.assign({tp: 0})
            assert await settled(source, tp, 2) == [(0, b"1"), (4, b"2")]
            assert source.position(tp) == 5

    kafka.play(main())


def test_an_open_transaction_hides_what_is_behind_it(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        tp = TopicPartition(topic, 0)
        async with kafka.topics() as topics:
            await topics.ensure(topic)
        await kafka.write(topic, [b"1"])
        async with kafka.source() as source:
            async with kafka.left_open(topic, [b"open"]):
                await kafka.write(topic, [b"2"])
                assert await source.ends([tp]) == {tp: 1}
                assert await source.high_watermarks([tp]) == {tp: 3}
                source.assign({tp: 0})
                assert await settled(source, tp, 1) == [(0, b"1")]
                assert await source.poll(0.3) == {}
                assert source.position(tp) == 1
            assert await settled(source, tp, 1) == [(2, b"2")]

    kafka.play(main())


def test_a_second_owner_fences_the_first_and_keeps_what_it_had_committed(
    kafka: Kafka, topic: str
) -> None:
    async def main() -> None:
        tp = TopicPartition(topic, 0)
        async with kafka.topics() as topics:
            await topics.ensure(topic)
            await topics.ensure(f"{topic}.dead")
            async with kafka.sink(topic, topic) as first:
                await first.commit(outbox(b"1"))
                async with kafka.sink(topic, topic) as second:
                    with pytest.raises(FencedError, match="over"):
                        await first.commit(outbox(b"no"))
                    await second.commit(outbox(b"2"))
        async with kafka.source() as source:
            source.assign({tp: 0})
            assert [value for _, value in await settled(source, tp, 2)] == [b"1", b"2"]

    kafka.play(main())


def test_a_paused_partition_stays_paused_over_an_assignment_and_goes_on_where_it_was(
    kafka: Kafka, topic: str
) -> None:
    async def main() -> None:
        held, read = TopicPartition(topic, 0), TopicPartition(f"{topic}.b", 0)
        async with kafka.topics() as topics:
            await topics.ensure(held.topic)
            await topics.ensure(read.topic)
        await kafka.write(held.topic, [b"1", b"2", b"3"])
        async with kafka.source() as source:
            source.assign({held: 0, read: 0})
            assert await settled(source, held, 3) == [(0, b"1"), (1, b"2"), (2, b"3")]
            source.rewind(held, 1)
            source.pause([held])
            assert source.position(held) == 1
            await kafka.write(read.topic, [b"4"])
            assert await settled(source, read, 1) == [(0, b"4")]
            source.assign({held: 1, read: 1})
            await kafka.write(read.topic, [b"5"])
            assert await settled(source, read, 1) == [(1, b"5")]
            assert source.paused == {held}
            source.resume([held])
            assert await settled(source, held, 2) == [(1, b"2"), (2, b"3")]

    kafka.play(main())


def test_events_are_committed_with_the_output_or_not_at_all(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        events = TopicPartition(f"{topic}.events", 0)
        async with kafka.topics() as topics:
            await topics.ensure(topic)
            await topics.ensure(events.topic)
        async with kafka.sink(topic, topic) as sink, kafka.source() as source:
            source.assign({events: 0})
            await sink.commit(outbox(b"1", events=[(b"a", b"held")]))
            assert await settled(source, events, 1) == [(0, b"held")]

            async def refused() -> None:
                raise TransportError("a topic was recreated")

            with pytest.raises(TransportError):
                await sink.commit(outbox(b"2", events=[(b"a", b"never")]), refused)
        async with kafka.sink(topic, topic) as sink, kafka.source() as source:
            source.assign({events: 1})
            await sink.commit(outbox(b"3", events=[(None, b"again")]))
            assert [value for _, value in await settled(source, events, 1)] == [b"again"]

    kafka.play(main())


def test_rows_have_the_output_s_offsets_and_are_committed_with_it(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        table = TopicPartition(f"{topic}.table", 0)
        async with kafka.topics() as topics:
            await topics.ensure(topic)
            await topics.ensure(table.topic)
        async with kafka.sink(topic, topic) as sink, kafka.source() as source:
            row = [(b"k", b"row")]
            await sink.commit(outbox(b"1", b"2", rows=row))
            await sink.commit(outbox(b"3", rows=row, has_offsets=True))
            with pytest.raises(TransportError, match="was deleted meanwhile"):
                await sink.commit(outbox(b"4", rows=[(b"k", b"never")], lapsed=lambda: True))
        async with kafka.sink(topic, topic) as sink, kafka.source() as source:
            ended = await source.high_watermarks([TopicPartition(topic, 0)])
            begins = ended[TopicPartition(topic, 0)]
            await sink.commit(Outbox(rows=[(b"k", None)], has_offsets=True, begins=begins))
            found = []
            ends = await source.high_watermarks([table])
            async for _, records in source.backlog({table: 0}, ends):
                found += [(each.value, dict(each.headers)) for each in records]
        spans = [(b"3", b"4"), (b"%d" % begins, b"%d" % begins)]
        named = [{"lmerge-output-from": a, "lmerge-output-to": b} for a, b in spans]
        assert found == [(b"row", {}), (b"row", named[0]), (None, named[1])]

    kafka.play(main())


def test_a_backlog_ends_at_a_marker_too(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        tp = TopicPartition(topic, 0)
        async with kafka.topics() as topics:
            await topics.ensure(topic)
        await kafka.write(topic, [b"1"])
        await kafka.abort(topic, [b"no"])
        async with kafka.source() as source:
            ends = await source.ends([tp])
            assert ends == {tp: 3}
            await kafka.write(topic, [b"later"])
            found = [r.value async for _, rs in source.backlog({tp: 0}, ends) for r in rs]
            assert found == [b"1"]
            assert [1 async for _ in source.backlog({tp: 3}, ends)] == []

    kafka.play(main())


def test_what_was_truncated_is_lost_and_reported(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        tp = TopicPartition(topic, 0)
        async with kafka.topics() as topics:
            await topics.ensure(topic)
        await kafka.write(topic, [b"1", b"2", b"3"])
        await kafka.truncate(tp, 2)
        async with kafka.source() as source:
            assert await source.beginnings([tp]) == {tp: 2}
            source.assign({tp: 0})
            async with asyncio.timeout(20):
                while not source.lost:
                    assert await source.poll(0.2) == {}
            assert source.lost == {tp: "the broker no longer has the offset to go on from"}
        async with kafka.source() as source:
            with pytest.raises(StateError, match="no longer has the offset"):
                async for _ in source.backlog({tp: 0}, {tp: 3}):
                    pass
            found = [r.value async for _, rs in source.backlog({tp: 2}, {tp: 3}) for r in rs]
            assert found == [b"3"], "the same source reads it from where it begins"
        async with kafka.source() as source:
            source.assign({tp: 2})
            assert await settled(source, tp, 1) == [(2, b"3")]

    kafka.play(main())


def test_a_log_that_begins_later_is_read_from_there_and_refused_from_before(
    kafka: Kafka, topic: str
) -> None:
    async def main() -> None:
        async with kafka.log(topic) as log, kafka.topics() as topics:
            for value in (b"1", b"2", b"3", b"4"):
                await log.append(value)
            assert await log.bounds() == (0, 4)
            assert [r.value async for r in log.read(1, 3)] == [b"2", b"3"]
            await topics.trim({TopicPartition(topic, 0): 2})
            assert await log.bounds() == (2, 4)
            assert [r.value async for r in log.read(2)] == [b"3", b"4"]
            for reading in (log.read(1), log.follow(1)):
                with pytest.raises(TrimmedError, match="begins at offset 2 by now"):
                    async for _ in reading:
                        pass

    kafka.play(main())


def test_what_is_trimmed_is_gone_and_groups_show_what_they_have_read(
    kafka: Kafka, topic: str
) -> None:
    async def main() -> None:
        tp = TopicPartition(topic, 0)
        async with kafka.topics() as topics:
            await topics.ensure(topic)
            await kafka.write(topic, [b"1", b"2", b"3"])
            assert await topics.committed(f"{topic}.group", [tp]) == {}
            async with kafka.source() as source:
                assert await source.since([tp], 0) == {tp: 0}
                await topics.trim({tp: 2})
                await topics.trim({tp: 1})
                assert await source.beginnings([tp]) == {tp: 2}
                assert await source.since([tp], 0) == {tp: 2}
                assert await source.since([tp], 1 << 42) == {tp: 3}

    kafka.play(main())


def test_a_topic_made_anew_has_nothing_of_the_old_one(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        tp = TopicPartition(topic, 0)
        async with kafka.topics() as topics:
            await topics.ensure(topic)
            await kafka.write(topic, [b"1", b"2"])
            await topics.delete(topic)
            async with asyncio.timeout(20):
                while await topics.describe([topic]):  # noqa: ASYNC110 (it is asked)
                    await asyncio.sleep(0.05)
            await topics.ensure(topic)
        async with kafka.source() as source:
            assert await source.ends([tp]) == {tp: 0}

    kafka.play(main())
