"""Replays of what is there and cannot be read yet: open transactions of replicas' writers."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiokafka import AIOKafkaProducer

from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.errors import TransportError
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.tails import next_incarnation, tails
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.decisions.cutover import CutoverState
from lmerge_service.merge.decisions.records import BeginCutover
from lmerge_service.offline.audit import audit_topic
from lmerge_service.reader.read_merged import read_merged
from lmerge_service.service.status.build import status_of
from tests.service.cluster import Merge, running
from tests.service.test_merge_loop import configured, decided, of, publish, until
from tests.service.test_metrics import registry_of

END = Stable(INFINITY)


@pytest.fixture
def two(bootstrap: str, tmp_path: Path) -> Merge:
    return Merge(bootstrap, tmp_path, replicas=("r1", "r2"))


def events(first: int, last: int) -> list[Element]:
    return [Insert(b'"e%d"' % k, k, k + 5) for k in range(first, last + 1)]


async def make(bootstrap: str, *names: str) -> None:
    async with Topics(Connection(bootstrap)) as topics:
        for name in names:
            await topics.ensure(name)


@asynccontextmanager
async def writer(bootstrap: str, name: str, seconds: int = 120) -> AsyncIterator[AIOKafkaProducer]:
    """A transactional producer, whose transactions the broker aborts after so long."""
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        transactional_id=name,
        transaction_timeout_ms=seconds * 1_000,
    ) as producer:
        yield producer


async def send(
    producer: AIOKafkaProducer,
    topic: str,
    elements: Sequence[Element],
    headers: Sequence[tuple[str, bytes]] = (),
) -> None:
    for element in elements:
        await producer.send(topic, encode(element), partition=0, headers=list(headers))
    await producer.flush()


@asynccontextmanager
async def in_open_transaction(
    bootstrap: str,
    topic: str,
    elements: Sequence[Element],
    headers: Sequence[tuple[str, bytes]] = (),
) -> AsyncIterator[AIOKafkaProducer]:
    """A producer that has sent these to a new topic and has not committed them."""
    async with writer(bootstrap, f"{topic}.writer") as producer:
        await make(bootstrap, topic)
        await producer.begin_transaction()
        await send(producer, topic, elements, headers)
        yield producer


@pytest.mark.full
def test_n2_records_behind_an_open_transaction_are_unread(two: Merge) -> None:
    """R1 has an abandoned open transaction at offset 2, and 39 records behind it."""
    configured(two, guards={"patience_seconds": 5, "open_transaction_seconds": 1})
    topic = two.topics["r1"]

    async def play() -> None:
        await publish(two, "r1", *events(1, 1), Stable(1))
        await publish(two, "r2", *events(1, 1), Stable(1))
        async with running(two) as worker, writer(two.bootstrap, f"{topic}.abandoned") as producer:
            await until(worker, lambda s: s.output.stable_point == 1)
            await producer.begin_transaction()
            await send(producer, topic, events(2, 2))
            await publish(two, "r1", *events(3, 40), Stable(40))
            status = await until(worker, lambda s: of(s, "r1").lag_records == 40)
            (found,) = of(status, "r1").open_transactions
            assert (found.partition, found.offset, found.records) == (0, 2, 40)
            status = await until(worker, lambda s: "open_transaction" in s.reason_kinds)
            (reason,) = [each for each in status.reasons if "transaction" in each]
            assert "replica r1: a transaction is open at partition 0, offset 2 for" in reason
            labels = {"replica": "r1", "partition": "0"}
            name = "lmerge_replica_open_transaction_seconds"
            assert (registry_of(worker).get_sample_value(name, labels) or 0) >= 1
            labels["replica"] = "r2"
            assert registry_of(worker).get_sample_value(name, labels) == 0
            assert (of(status, "r2").lag_records, of(status, "r2").open_transactions) == (0, [])
            await until(worker, lambda _: bool(logged("replica has left a transaction open")))
            await producer.abort_transaction()
            status = await until(worker, lambda s: of(s, "r1").lag_records == 0)
            assert status.output.stable_point == 40, "markers and aborted records are passed"
            assert of(status, "r1").open_transactions == []
            await until(worker, lambda s: "open_transaction" not in s.reason_kinds)

    def logged(event: str) -> list[MutableMapping[str, Any]]:
        return [each for each in logs if each["event"] == event]

    with structlog.testing.capture_logs() as logs:
        asyncio.run(play())
    (left,) = logged("replica has left a transaction open")
    assert (left["replica"], left["topic"], left["partition"], left["offset"]) == (
        "r1", topic, 0, 2,
    )  # fmt: skip
    assert left["open_seconds"] >= 1
    assert [each["offset"] for each in logged("open transaction is over")] == [2]


@pytest.mark.full
@pytest.mark.parametrize("has_published", [True, False], ids=["r1 has published", "r1 is new"])
def test_n2_an_early_end_waits_for_what_is_in_an_open_transaction(
    two: Merge, has_published: bool
) -> None:
    """Patience is long over when R1 commits; 30 of 40 events were lost."""
    configured(two, guards={"patience_seconds": 1})
    topic, first = two.topics["r1"], 10 if has_published else 0

    async def play() -> None:
        await make(two.bootstrap, *two.topics.values())
        async with running(two) as worker, writer(two.bootstrap, f"{topic}.writer") as producer:
            if has_published:
                await publish(two, "r1", *events(1, 10), Stable(5))
                await until(worker, lambda s: of(s, "r1").stable_point == 5)
            await until(worker, lambda s: of(s, "r1").lag_records == 0)
            await producer.begin_transaction()
            await send(producer, topic, [*events(first + 1, 40), END])
            await publish(two, "r2", *events(1, 10), END)  # at once: no look has seen it yet
            status = await until(
                worker, lambda s: any(each.seconds > 4 for each in of(s, "r2").held)
            )
            (held,) = of(status, "r2").held
            (awaited,) = held.waits_for
            assert awaited.startswith(
                f"r1: a transaction is open at offset {11 if has_published else 0}"
            )
            await until(
                worker, lambda s: any(f"it waits for {awaited[:30]}" in r for r in s.reasons)
            )
            assert not status_of(worker).output.ended
            await producer.commit_transaction()
            await until(worker, lambda s: s.output.ended)

    asyncio.run(play())
    assert {payload for payload, *_ in two.audit().tdb} == {b'"e%d"' % k for k in range(1, 41)}


@pytest.mark.full
def test_n2_a_writer_whose_transaction_was_aborted_may_write_again(two: Merge) -> None:
    """It was open for longer than patience: that was no silence."""
    configured(two, guards={"patience_seconds": 4})
    topic = two.topics["r1"]

    async def play() -> None:
        await make(two.bootstrap, *two.topics.values())
        async with running(two) as worker, writer(two.bootstrap, f"{topic}.writer") as producer:
            await producer.begin_transaction()
            await send(producer, topic, [*events(1, 40), END])
            await publish(two, "r2", *events(1, 10), END)
            await until(worker, lambda s: any(each.seconds > 5 for each in of(s, "r2").held))
            await producer.abort_transaction()
            await producer.begin_transaction()
            await send(producer, topic, [*events(1, 40), END])
            await producer.commit_transaction()
            await until(worker, lambda s: s.output.ended)

    asyncio.run(play())
    assert len(two.audit().tdb) == 40


@pytest.mark.full
def test_n2_an_aborted_transaction_holds_an_end_no_longer_than_patience(two: Merge) -> None:
    configured(two, guards={"patience_seconds": 1})
    topic = two.topics["r1"]

    async def play() -> None:
        await make(two.bootstrap, *two.topics.values())
        async with running(two) as worker, writer(two.bootstrap, f"{topic}.writer") as producer:
            await producer.begin_transaction()
            await send(producer, topic, events(1, 40))
            await publish(two, "r2", *events(1, 10), END)
            await until(worker, lambda s: any(each.seconds > 3 for each in of(s, "r2").held))
            await producer.abort_transaction()
            await until(worker, lambda s: s.output.ended, 15)

    asyncio.run(play())
    assert len(two.audit().tdb) == 10


@pytest.mark.full
def test_n2_a_replica_with_an_open_transaction_is_not_ready_to_take_anothers_place(
    two: Merge,
) -> None:
    """Both stand at 5, and nobody knows how far the coming one is."""
    topic = two.topics["r2"]

    async def play() -> None:
        await publish(two, "r1", *events(1, 5), Stable(5))
        await publish(two, "r2", *events(1, 5), Stable(5))
        async with running(two) as worker, writer(two.bootstrap, f"{topic}.writer") as producer:
            await producer.begin_transaction()
            await send(producer, topic, events(6, 9))
            await until(
                worker, lambda s: any(each.seconds > 0.1 for each in of(s, "r2").open_transactions)
            )
            begun = BeginCutover("r1", "r2", watch=0, max_behind=0, max_divergences=0)
            await decided(worker, begun)
            status = await until(worker, lambda s: "is open" in (s.tasks[0].cutover or ""))
            assert "r2: a transaction is open at offset 6 of" in (status.tasks[0].cutover or "")
            await producer.commit_transaction()
            done = CutoverState.DONE
            await until(worker, lambda s: s.cutover is not None and s.cutover.state is done)

    asyncio.run(play())


# --- who reads topics to their ends ---------------------------------------------------------------


def test_n2_an_audit_waits_for_what_is_in_an_open_transaction(bootstrap: str, two: Merge) -> None:
    """It would call the half of a stream the whole."""
    topic = two.topics["r1"]

    async def play() -> None:
        async with in_open_transaction(bootstrap, topic, [*events(1, 9), END]) as producer:
            auditing = asyncio.create_task(audit_topic(Connection(bootstrap), topic, WireDecoder()))
            async with Source(Connection(bootstrap)) as source:
                tp = TopicPartition(topic, 0)
                assert await source.high_watermarks([tp]) == {tp: 10}
                assert await source.ends([tp]) == {tp: 0}
            done, _ = await asyncio.wait({auditing}, timeout=1)
            assert not done
            await producer.commit_transaction()
            found = await asyncio.wait_for(auditing, 20)
        assert found.complete
        assert len(found.tdb) == 9

    asyncio.run(play())


def test_n2_the_next_incarnation_is_above_one_in_an_open_transaction(
    bootstrap: str, two: Merge
) -> None:
    topic = two.topics["r1"]

    async def play() -> None:
        async with in_open_transaction(
            bootstrap, topic, [Stable(1)], [("lmerge-incarnation", b"7")]
        ) as producer:
            asked = asyncio.create_task(tails(Connection(bootstrap), topic, 1))
            done, _ = await asyncio.wait({asked}, timeout=1)
            assert not done
            await producer.commit_transaction()
            assert next_incarnation(await asyncio.wait_for(asked, 20)) == 8

    asyncio.run(play())


def test_n2_a_reader_to_the_end_reads_what_was_in_an_open_transaction(
    bootstrap: str, two: Merge
) -> None:
    topic = two.topics["r1"]

    async def play() -> None:
        async with in_open_transaction(bootstrap, topic, [*events(1, 9), Stable(9)]) as producer:
            connection = Connection(bootstrap)
            async with read_merged(connection, [topic], follow=False, patience=20) as reader:
                (found,) = reader.status().topics
                assert found.lag == 10
                assert [(each.partition, each.offset, each.records) for each in found.open] == [
                    (0, 0, 10)
                ]
                reading = asyncio.create_task(_all(reader))
                done, _ = await asyncio.wait({reading}, timeout=1)
                assert not done
                await producer.commit_transaction()
                assert await asyncio.wait_for(reading, 20) == [*events(1, 9), Stable(9)]

    asyncio.run(play())


def test_n2_a_reader_to_the_end_reports_a_transaction_that_is_left_open(
    bootstrap: str, two: Merge
) -> None:
    topic = two.topics["r1"]

    async def play() -> None:
        async with writer(bootstrap, f"{topic}.writer") as producer:
            await publish(two, "r1", *events(1, 2), Stable(2))
            await producer.begin_transaction()
            await send(producer, topic, events(3, 9))
            connection = Connection(bootstrap)
            async with read_merged(connection, [topic], follow=False, patience=1) as reader:
                with pytest.raises(TransportError, match=f"open at offset 3 of {topic}-0"):
                    await _all(reader)
            await producer.abort_transaction()

    asyncio.run(play())


async def _all(reader: AsyncIterator[Element]) -> list[Element]:
    return [element async for element in reader]
