"""A transaction that Kafka takes for complete, and whose markers it has never written.

A lone broker leaves one behind when it is killed while it writes them. Here one is made on purpose:
a partition that the coordinator does not know is one that it writes no marker to, and this broker
does not check that it knows it (`transaction.partition.verification.enable`).
"""

import asyncio
import uuid
from collections.abc import Iterator, Sequence

import pytest
from aiokafka import AIOKafkaProducer

from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.sink import Outbox, Sink
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import LocalBroker


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    settings = {"transaction.partition.verification.enable": "false"}
    with LocalBroker(tmp_path_factory.mktemp("lenient") / "kafka", settings=settings) as broker:
        yield Connection(broker.bootstrap)


class Task:
    """A merge task's topics, and its transactional.id."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self.id = f"t{uuid.uuid4().hex[:10]}"
        self.output = TopicPartition(self.id, 0)
        self.state = TopicPartition(f"{self.id}.state", 0)
        self.events = TopicPartition(f"{self.id}.events", 0)

    async def make(self) -> None:
        async with Topics(self.connection) as topics:
            for name in (self.output, self.state, self.events):
                await topics.ensure(name.topic)
            await topics.ensure(f"{self.id}.dead-letters")

    def sink(self) -> Sink:
        return Sink(
            self.connection,
            transactional_id=self.id,
            output=self.output,
            dead_letters=f"{self.id}.dead-letters",
            state=self.state,
            events=self.events.topic,
            max_record_bytes=1 << 20,
        )

    async def leave_unfinished(self, hidden: Sequence[TopicPartition], *, commit: bool) -> None:
        """An owner's transaction with a record in every partition, of which the coordinator does
        not know those that are hidden."""
        async with AIOKafkaProducer(
            **self.connection.arguments, transactional_id=self.id
        ) as producer:
            await producer.begin_transaction()
            producer._txn_manager._txn_partitions.update(hidden)
            for tp in (self.output, self.state, self.events):
                await producer.send_and_wait(tp.topic, b"before", partition=tp.partition)
            await (producer.commit_transaction() if commit else producer.abort_transaction())

    async def readable(self) -> dict[str, list[bytes]]:
        """What a read_committed reader gets of output and state, to their ends."""
        found: dict[str, list[bytes]] = {"output": [], "state": []}
        async with Source(self.connection) as source:
            for name, tp in (("output", self.output), ("state", self.state)):
                ends = await source.high_watermarks([tp])
                async for _, records in source.backlog({tp: 0}, ends):
                    found[name].extend(each.value or b"" for each in records)
        return found


NEXT = Outbox(records=[(None, b"after")], state=[(b"commit", b"after")])


@pytest.mark.full
@pytest.mark.parametrize("hidden", ["output", "state", "output state"])
@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_the_next_owner_ends_it_as_it_was_decided(
    lenient: Connection, hidden: str, commit: bool
) -> None:
    async def run() -> dict[str, list[bytes]]:
        task = Task(lenient)
        await task.make()
        lost = [getattr(task, name) for name in hidden.split()]
        await task.leave_unfinished(lost, commit=commit)
        async with task.sink():
            at_once = await task.readable()
        async with task.sink() as sink:
            await sink.commit(NEXT)
        assert at_once == {name: [b"before"] * commit for name in ("output", "state")}
        return await task.readable()

    expected = [b"before"] * commit + [b"after"]
    assert asyncio.run(run()) == {"output": expected, "state": expected}


def test_an_owner_that_died_before_it_wrote_anything_does_not_hide_the_decision(
    lenient: Connection,
) -> None:
    async def run() -> dict[str, list[bytes]]:
        task = Task(lenient)
        await task.make()
        await task.leave_unfinished([task.output], commit=True)
        async with AIOKafkaProducer(**lenient.arguments, transactional_id=task.id):
            pass  # fences, and nothing else
        async with task.sink() as sink:
            await sink.commit(NEXT)
        return await task.readable()

    expected = [b"before", b"after"]
    assert asyncio.run(run()) == {"output": expected, "state": expected}


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_what_somebody_else_has_open_is_left_to_them(lenient: Connection, commit: bool) -> None:
    async def run() -> dict[str, list[bytes]]:
        task = Task(lenient)
        await task.make()
        async with AIOKafkaProducer(**lenient.arguments, transactional_id=f"{task.id}.x") as other:
            await other.begin_transaction()
            await other.send_and_wait(task.output.topic, b"theirs", partition=0)
            async with task.sink() as sink:
                await sink.commit(NEXT)
            await (other.commit_transaction() if commit else other.abort_transaction())
        return await task.readable()

    assert asyncio.run(run()) == {"output": [b"theirs"] * commit + [b"after"], "state": [b"after"]}
