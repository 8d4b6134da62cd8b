"""Topics and their ids, by a real broker."""

import asyncio
from collections.abc import Awaitable, Callable
from io import BytesIO
from typing import TypeVar

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.protocol.metadata import MetadataRequest_v5

from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.metadata import TopicsRequest, Uuid
from lmerge_service.kafka.topics import TopicInfo, Topics

T = TypeVar("T")


def run(work: Awaitable[T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(bounded())


async def fill(bootstrap: str, topic: str, records: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(records):
            await producer.send_and_wait(topic, b"%d" % number)


async def recreated(topics: Topics, topic: str) -> None:
    await topics.delete(topic)
    while topic in await topics.describe([topic]):  # a request each: the broker sets the pace
        pass
    await topics.ensure(topic)


@pytest.mark.parametrize("again", [1, 9])
def test_a_topic_that_is_deleted_and_made_anew_has_another_id_whatever_it_holds(
    bootstrap: str, topic_name: Callable[..., str], again: int
) -> None:
    async def ids() -> list[str | None]:
        topic = topic_name()
        found = []
        async with Topics(Connection(bootstrap)) as topics:
            await topics.ensure(topic)
            await fill(bootstrap, topic, 5)
            found += [(await topics.describe([topic]))[topic].id for _ in range(2)]
            await recreated(topics, topic)
            await fill(bootstrap, topic, again)
            found.append((await topics.describe([topic]))[topic].id)
        return found

    first, still, after = run(ids())
    assert first is not None
    assert len(first) == 22
    assert first == still
    assert after not in {first, None}


def test_ids_and_widths_of_many_topics_come_together_and_missing_ones_are_left_out(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    async def described() -> dict[str, TopicInfo]:
        async with Topics(Connection(bootstrap)) as topics:
            await topics.ensure(narrow)
            await topics.ensure(wide, partitions=12)
            assert await topics.partitions([wide, missing]) == {wide: 12}
            assert await topics.return_ids()
            return await topics.describe([narrow, wide, missing])

    narrow, wide, missing = (topic_name(stem) for stem in ("narrow", "wide", "missing"))
    found = run(described())
    assert {name: topic.partitions for name, topic in found.items()} == {narrow: 1, wide: 12}
    assert found[narrow].id != found[wide].id


def test_a_broker_without_topic_ids_is_asked_in_the_older_way() -> None:
    request = TopicsRequest(["a"])
    old = request.prepare({3: (0, 9)})
    assert isinstance(old, MetadataRequest_v5)
    assert old.to_object() == {"topics": ["a"], "allow_auto_topic_creation": False}
    assert request.prepare({3: (0, 13)}).API_VERSION == 10


def test_without_ids_the_widths_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a broker before Kafka 2.8: the answer is of version 5."""

    async def described() -> dict[str, TopicInfo]:
        topics = Topics(Connection("127.0.0.1:1"))

        async def answer(_: TopicsRequest) -> object:
            partition: tuple[object, ...] = (0, 0, 1, [1], [1], [])
            old = MetadataRequest_v5.RESPONSE_TYPE
            return old(0, [], "c", 1, [(0, "a", False, [partition]), (3, "b", False, [])])

        monkeypatch.setattr(topics._admin._client, "ask", answer)
        assert not await topics.return_ids()
        return await topics.describe(["a", "b"])

    assert run(described()) == {"a": TopicInfo(None, 1)}


def test_the_request_is_the_bytes_that_kafka_writes_down() -> None:
    request = TopicsRequest(["ab"]).prepare({3: (0, 10)})
    topic = bytes(16) + b"\x03ab" + b"\0"
    assert request.encode() == b"\x02" + topic + b"\0\0\0" + b"\0"


@pytest.mark.parametrize("raw", [bytes(15) + b"\1", b"\xff" * 16, bytes(range(16))])
def test_an_id_is_the_same_in_text(raw: bytes) -> None:
    text = Uuid.decode(BytesIO(raw))
    assert text is not None
    assert Uuid.encode(text) == raw


def test_no_id_is_zero() -> None:
    assert Uuid.decode(BytesIO(bytes(16))) is None
    assert Uuid.encode(None) == bytes(16)
    with pytest.raises(ValueError, match="16"):
        Uuid.decode(BytesIO(bytes(15)))
