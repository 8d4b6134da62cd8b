"""A log on a real broker: one order for all, whatever the broker does meanwhile."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from lmerge_service.errors import ConfigurationError, StateError, TransportError
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.log import Log
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import LocalBroker

pytestmark = pytest.mark.kafka


async def everything(log: Log, start: int = 0) -> list[bytes | None]:
    async with asyncio.timeout(30), aclosing(log.read(start)) as records:
        return [record.value async for record in records]


async def followed(log: Log, count: int, start: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with asyncio.timeout(60), aclosing(log.follow(start)) as records:
        async for record in records:
            found.append(record.value)
            if len(found) == count:
                return found
    raise AssertionError("a log never ends")


def test_what_is_appended_is_read_from_any_offset_on(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    async def play() -> None:
        async with Log(Connection(bootstrap), topic_name("log")) as log:
            assert await everything(log) == []
            assert [await log.append(b"%d" % n) for n in range(5)] == [0, 1, 2, 3, 4]
            assert await everything(log, 3) == [b"3", b"4"]
            assert await followed(log, 2, 2) == [b"2", b"3"]
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(followed(log, 3, 4))
                await log.append(b"5")
                await log.append(b"6")
            assert waiting.result() == [b"4", b"5", b"6"]

    asyncio.run(play())


def test_all_who_append_at_once_come_into_one_order(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name("log")

    async def play() -> None:
        async with (
            Log(Connection(bootstrap), topic) as one,
            Log(Connection(bootstrap), topic) as other,
        ):
            offsets = await asyncio.gather(
                *(log.append(b"%d" % n) for n in range(50) for log in (one, other))
            )
            assert sorted(offsets) == list(range(100))
            read = await everything(one)
            assert await followed(other, 100) == read
            assert Counter(read) == {b"%d" % n: 2 for n in range(50)}

    asyncio.run(play())


def test_its_topic_keeps_everything_and_one_that_forgets_is_refused(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    short, wide, made = topic_name("short"), topic_name("wide"), topic_name("made")

    async def play() -> None:
        async with Topics(Connection(bootstrap)) as topics:
            await topics.ensure(short, config={"retention.ms": "1000"})
            await topics.ensure(wide, partitions=3)
            with pytest.raises(ConfigurationError, match=r"has retention.ms=1000; it must be -1"):
                await Log(Connection(bootstrap), short).__aenter__()
            with pytest.raises(ConfigurationError, match="has 3 partitions; a log has one"):
                await Log(Connection(bootstrap), wide).__aenter__()
            async with Log(Connection(bootstrap), made):
                for key, value in (("retention.ms", "-1"), ("cleanup.policy", "delete")):
                    await topics.require(made, key, value.__eq__, "")

    asyncio.run(play())


def test_a_log_that_was_made_anew_is_not_read_on(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    async def play() -> None:
        async with Log(Connection(bootstrap), topic_name("log")) as log:
            await log.append(b"0")
            with pytest.raises(StateError, match="ends at offset 1, but has been read up to 7"):
                await everything(log, 7)
            with pytest.raises(StateError, match="ends at offset 1, but has been read up to 7"):
                await followed(log, 1, 7)

    asyncio.run(play())


def test_a_record_that_the_broker_refuses_was_not_written(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    async def play() -> None:
        topic, forever = topic_name("log"), {"retention.ms": "-1", "retention.bytes": "-1"}
        async with Topics(Connection(bootstrap)) as topics:
            await topics.ensure(topic, config=forever | {"max.message.bytes": "100000"})
        async with Log(Connection(bootstrap), topic) as log:
            with pytest.raises(TransportError) as refused:
                await log.append(os.urandom(200_000))  # that cannot be compressed
            assert not refused.value.retriable
            with pytest.raises(TransportError) as refused:
                await log.append(b"x" * (9 << 20))  # that the client refuses
            assert not refused.value.retriable
            await log.append(b"x" * 200_000)
            await log.append(b"1")
            assert await everything(log) == [b"x" * 200_000, b"1"]

    asyncio.run(play())


@pytest.mark.full
def test_a_broker_that_restarts_is_waited_for_and_nothing_is_written_behind_ones_back(
    tmp_path: Path,
) -> None:
    broker = LocalBroker(tmp_path / "kafka")

    async def play() -> None:
        await asyncio.to_thread(broker.start)
        async with Log(Connection(broker.bootstrap), "log") as log, asyncio.TaskGroup() as group:
            await log.append(b"before")
            following = group.create_task(followed(log, 2))
            await asyncio.to_thread(broker.stop)
            with pytest.raises(TransportError) as unknown:
                await log.append(b"while it is away", seconds=1)
            assert unknown.value.retriable
            assert str(unknown.value) == "writing to log: no answer from Kafka in time"
            await asyncio.to_thread(broker.start)
            assert await log.append(b"after", seconds=30) == 1
            assert await following == [b"before", b"after"]

    try:
        asyncio.run(play())
    finally:
        broker.stop()
