"""The topics of a merge that go away under a running worker: side topics are created again, the
others are reported by name, and nothing is counted that is not committed."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from tests.service.cluster import Merge, Worker

BAD = b'{"op":"nothing"}'


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    return Merge(bootstrap, tmp_path, replicas=("a", "b"))


def ins(number: int) -> Insert[bytes]:
    return Insert(b"%d" % number, number, number + 5)


def delete(merge: Merge, topic: str) -> None:
    async def work() -> None:
        async with Topics(Connection(merge.bootstrap)) as topics:
            await topics.delete(topic)

    asyncio.run(work())


def configure(merge: Merge, topic: str, **config: str) -> None:
    async def work() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=merge.bootstrap)
        await admin.start()
        named = {key.replace("_", "."): value for key, value in config.items()}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, named)])
        await admin.close()

    asyncio.run(work())


def records_of(merge: Merge, topic: str) -> int:
    """How many committed records a topic of one partition holds."""

    async def work() -> int:
        tp = TopicPartition(topic, 0)
        async with Source(Connection(merge.bootstrap)) as source:
            ends = await source.ends([tp])
            reading = source.backlog({tp: 0}, ends)
            return sum([len(records) async for _, records in reading])

    return asyncio.run(work())


def config_of(merge: Merge, topic: str, key: str) -> str | None:
    async def work() -> str | None:
        async with Topics(Connection(merge.bootstrap)) as topics:
            return await topics.config(topic, key)

    return asyncio.run(work())


def started(
    merge: Merge, worker: Worker, elements: Sequence[Element] = (ins(1), Stable(1))
) -> None:
    merge.publish("a", elements)
    merge.publish("b", [])
    worker.wait(lambda status: status["output"]["stable_point"] == 1, "the first stable")


@pytest.mark.full
@pytest.mark.parametrize("side", ["dead-letters", "events"])
def test_n5_a_side_topic_that_is_deleted_is_created_again_and_one_record_counts_once(
    merge: Merge, side: str
) -> None:
    topic = f"{merge.output}.{side}"
    with merge.worker() as worker:
        started(merge, worker)
        before = config_of(merge, topic, "retention.ms")
        delete(merge, topic)
        merge.send_raw(merge.topics["a"], [BAD])
        merge.publish("a", [ins(2), Stable(2)], incarnation=1)  # which is an event of its own
        begun = time.monotonic()
        status = worker.wait(
            lambda status: (
                status["output"]["stable_point"] == 2 and status["recreated"].get(topic) == 1
            ),
            "the output to go on",
            20,
        )
        assert time.monotonic() - begun < 15
        assert status["replicas"][0]["dead_letters"] == 1
        assert status["rebuilds"] == 0
        assert status["tasks"][0]["unwritten"] == {"dead_letters": 0, "events": 0}
        merge.send_raw(merge.topics["b"], [BAD])
        worker.wait(lambda status: status["replicas"][1]["dead_letters"] == 1, "the second")
        assert worker.terminate() == 0
    (line,) = worker.logged("topic created again")
    assert line["topic"] == topic
    assert config_of(merge, topic, "retention.ms") == before
    assert records_of(merge, f"{merge.output}.dead-letters") == 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("which", "remedy"),
    [
        ("", "use a new output topic"),
        (".state", "stop all workers and start them"),
    ],
)
def test_n5_what_the_merge_rests_on_is_reported_by_name_and_ends_it(
    merge: Merge, which: str, remedy: str
) -> None:
    topic = f"{merge.output}{which}"
    with merge.worker() as worker:
        started(merge, worker)
        delete(merge, topic)
        merge.publish("a", [ins(2), Stable(2)])
        status = worker.wait(lambda status: topic in status["unwritable"], "the report", 10)
        assert f"topic {topic} of the merge was deleted" in status["reasons"]
        assert "unwritable_topic" in status["reason_kinds"]
        assert worker.process.wait(20) == 4
    assert f"error: topic {topic} was deleted: " in worker.text(2)
    assert remedy in worker.text(2)


@pytest.mark.full
def test_n5_without_a_control_log_what_was_decided_holds_and_its_loss_is_reported(
    merge: Merge,
) -> None:
    topic = f"{merge.output}.control"
    with merge.worker() as worker:
        started(merge, worker)
        delete(merge, topic)
        status = worker.wait(lambda status: topic in status["unwritable"], "the report", 10)
        assert f"topic {topic} of the merge was deleted" in status["reasons"]
        for number in range(2, 10):  # longer than the others' loss is borne
            merge.publish("a", [ins(number), Stable(number)])
            worker.wait(
                lambda status, n=number: status["output"]["stable_point"] == n,  # type: ignore[misc]
                "the output to go on",
            )
            time.sleep(1)
        assert topic in worker.status()["unwritable"]
        assert worker.terminate() == 0


@pytest.mark.full
def test_n5_an_output_that_something_else_created_again_is_not_written_on(merge: Merge) -> None:
    with merge.worker() as worker:
        started(merge, worker)
        worker.stop()
        delete(merge, merge.output)

        async def create() -> None:
            async with Topics(Connection(merge.bootstrap)) as topics:
                while await topics.width(merge.output) is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await topics.ensure(merge.output)

        asyncio.run(create())
        worker.go_on()
        assert worker.process.wait(20) == 4
    assert f"{merge.output} was deleted and created again by something else" in worker.text(2)


@pytest.mark.full
def test_n5_a_side_topic_that_takes_no_batch_of_ours_is_left_out_and_counted(merge: Merge) -> None:
    topic = merge.dead_letters
    with merge.worker() as worker:
        started(merge, worker)
        configure(merge, topic, max_message_bytes="300")
        merge.send_raw(merge.topics["a"], [BAD + b" " * 1_000])
        merge.publish("a", [ins(2), Stable(2)])
        status = worker.wait(
            lambda status: status["output"]["stable_point"] == 2, "the output to go on", 20
        )
        assert status["replicas"][0]["dead_letters"] == 1
        assert status["tasks"][0]["unwritten"] == {"dead_letters": 1, "events": 0}
        assert {"unwritable_topic", "not_written"} <= set(status["reason_kinds"])
        assert "raise its max.message.bytes" in status["unwritable"][topic]
        metrics = worker.get("/metrics")
        assert metrics is not None
        assert 'lmerge_unwritten_records_total{partition="0",what="dead_letters"} 1.0' in (
            metrics.text
        )
        configure(merge, topic, max_message_bytes="1000000")
        worker.wait(lambda status: topic not in status["unwritable"], "it to be written again")
        merge.send_raw(merge.topics["a"], [BAD])
        worker.wait(lambda status: status["replicas"][0]["dead_letters"] == 2, "the second")
        assert records_of(merge, topic) == 1
    (line,) = worker.logged("not written")
    assert line["topic"] == topic


@pytest.mark.full
def test_n5_limits_on_records_are_no_limits_on_batches(merge: Merge) -> None:
    """Many small records make a batch that is larger than the largest of them, and a dead letter
    may be larger than an element."""
    merge.extra = {"limits": {"max_record_bytes": 1_000}}
    merge.write()
    elements = [ins(number) for number in range(1, 3_000)]
    merge.publish("a", [*elements, Stable(INFINITY)])
    merge.publish("b", [Stable(INFINITY)])
    merge.send_raw(merge.topics["b"], [b" " * 50_000])
    with merge.worker() as worker:
        status = worker.wait_until_ended()
        assert status["rebuilds"] == 0
        assert worker.terminate() == 0
    assert merge.audit().inserts == len(elements)
    assert records_of(merge, merge.dead_letters) == 1


@pytest.mark.full
def test_n5_an_output_that_takes_no_batch_of_ours_is_named_with_its_size(merge: Merge) -> None:
    with merge.worker() as worker:
        started(merge, worker)
        configure(merge, merge.output, max_message_bytes="300")
        merge.publish("a", [Insert(b'"%s"' % (b"x" * 1_000), 2, 9), Stable(2)])
        status = worker.wait(lambda status: merge.output in status["unwritable"], "the report", 10)
        why = status["unwritable"][merge.output]
        assert "refuses a batch of " in why
        assert "raise its max.message.bytes" in why
        place = f"{merge.topics['a']}-0, offsets 2 to 3"
        assert f"came of replica a with {place}" in why
        answer = worker.get("/readyz")
        assert isinstance(answer, httpx.Response)
        assert answer.status_code == 503
        configure(merge, merge.output, max_message_bytes="1000000")
        worker.wait(lambda status: status["output"]["stable_point"] == 2, "it to be published")
        merge.publish("a", [Stable(INFINITY)])
        merge.publish("b", [Stable(INFINITY)])
        worker.wait_until_ended()
    assert merge.audit().inserts == 2
