"""Topics read from a real broker, and the command that judges them."""

import asyncio
import json
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner

from lmerge_service.drills.__main__ import app
from lmerge_service.drills.dump import Unreadable, dump
from lmerge_service.elements import Element, Insert, Stable
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics

Names = Callable[..., str]


async def write(bootstrap: str, topic: str, elements: list[Element], partitions: int = 1) -> None:
    """Two transactions around one that is aborted; everything goes to partition 0."""
    async with Topics(Connection(bootstrap)) as topics:
        await topics.ensure(topic, partitions=partitions)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}.writer")
    async with producer:
        for element in [*elements[:1], None, *elements[1:]]:
            await producer.begin_transaction()
            await producer.send_and_wait(
                topic, encode(element or Stable(99)), partition=0, headers=[("h", b"1")]
            )
            await (producer.commit_transaction() if element else producer.abort_transaction())


def test_a_dump_has_what_is_committed_with_its_places(bootstrap: str, topic_name: Names) -> None:
    name = topic_name("dumped")
    elements: list[Element] = [Insert(b'"A"', 1, 5), Stable(9)]
    asyncio.run(write(bootstrap, name, elements, partitions=3))
    topic = asyncio.run(dump(bootstrap, [name]))[name]
    assert [record.value for record in topic.records] == [encode(each) for each in elements]
    assert [record.offset for record in topic.records] == [0, 4]  # markers take places
    assert topic.records[0].headers == (("h", b"1"),)
    assert topic.records[0].timestamp > 1_000_000_000_000
    assert (topic.partitions, topic.beginning_lost) == (3, False)


def test_a_topic_that_is_not_there_is_reported_in_one_line(
    bootstrap: str, topic_name: Names
) -> None:
    name = topic_name("nowhere")
    with pytest.raises(Unreadable, match=name):
        asyncio.run(dump(bootstrap, [name]))
    asked = ["check", "--bootstrap", bootstrap, "--output", name, "--replica", name]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 3
    assert f"there is no topic {name}" in result.output


def test_the_command_distinguishes_valid_from_invalid(bootstrap: str, topic_name: Names) -> None:
    replica, good, bad = topic_name("replica"), topic_name("good"), topic_name("bad")
    elements: list[Element] = [Insert(b'"A"', 1, 5), Stable(9)]
    asyncio.run(write(bootstrap, replica, elements))
    asyncio.run(write(bootstrap, good, elements))
    asyncio.run(write(bootstrap, bad, elements[1:]))
    run = CliRunner().invoke
    common = ["check", "--bootstrap", bootstrap, "--replica", replica]
    right = run(app, [*common, "--output", good, "--within", "30"])
    assert right.exit_code == 0, right.output
    assert right.output.startswith("valid\n")
    wrong = run(app, [*common, "--output", bad, "--json"])
    assert wrong.exit_code == 1
    document = json.loads(wrong.output)
    assert document["outcome"] == "invalid"
    assert [f["outcome"] for f in document["findings"]] == ["invalid", "valid", "invalid", "valid"]
    stranger = run(app, [*common, "--output", good, "--liar", "x"])
    assert stranger.exit_code == 2
    assert "is no --replica" in stranger.output
