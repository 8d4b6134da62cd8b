"""What a consumer gets by the engine is what it gets by the client's parser, on a real broker. A
client that does something of it in another way fails here."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import DefaultRecord

from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.sink import Outbox, Sink
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.kafka.transactional import BATCH_BYTES
from lmerge_service.local.broker import LocalBroker

lmerge_engine = pytest.importorskip("lmerge_engine", reason="the engine is not installed")

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
HEADERS = [("lmerge-incarnation", b"1"), ("é", b""), ("none", None)]
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": "0",
}

Read: TypeAlias = tuple[list[tuple[Any, ...]], int | None, str | None]
"""The records of a partition, the position behind them, and why it cannot be read on."""


async def written(connection: Connection, topic: str, codec: str | None) -> None:
    """Batches of one codec: keys, headers, times, null and empty values."""
    async with AIOKafkaProducer(
        **connection.arguments, compression_type=codec, max_batch_size=600
    ) as producer:
        for n in range(60):
            key, value = (None, b"k%d" % n)[n % 2], (b"v" * n, None, b"")[0 if n % 5 else n % 3]
            await producer.send(
                topic, value, key or b"", partition=0, timestamp_ms=1_000 + n,
                headers=HEADERS[: n % 4],
            )  # fmt: skip
        await producer.flush()


async def in_transactions(connection: Connection, topic: str, codec: str | None) -> None:
    """Two writers whose transactions are under way at once, and of which some are aborted."""
    writers = [
        AIOKafkaProducer(**connection.arguments, transactional_id=f"{topic}.{n}",
                         compression_type=codec)
        for n in range(2)
    ]  # fmt: skip
    for writer in writers:
        await writer.start()
    for n in range(6):
        for writer in writers:
            await writer.begin_transaction()
        for m in range(3):
            for number, writer in enumerate(writers):
                await writer.send_and_wait(topic, b"%d.%d.%d" % (n, m, number), partition=0)
        for number, writer in enumerate(writers):
            aborts = (n + number) % 3 == 0
            await (writer.abort_transaction() if aborts else writer.commit_transaction())
    for writer in writers:
        await writer.stop()


async def read(
    connection: Connection, parts: Sequence[TopicPartition], *, native: bool, most: int | None
) -> dict[TopicPartition, Read]:
    found: dict[TopicPartition, list[tuple[Any, ...]]] = {tp: [] for tp in parts}
    async with Source(connection, native=native) as source:
        ends = await source.ends(parts)
        source.assign(await source.beginnings(parts))
        while any(
            (source.position(tp) or 0) < ends[tp] for tp in found.keys() - source.lost.keys()
        ):
            for tp, records in (await source.poll(1.0, most)).items():
                assert type(records) is (lmerge_engine.Records if native else list)
                assert native or type(records[0]) is DefaultRecord
                found[tp] += [
                    (r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in records
                ]
        return {tp: (found[tp], source.position(tp), source.lost.get(tp)) for tp in parts}


async def same(connection: Connection, parts: Sequence[TopicPartition]) -> dict[Any, Read]:
    """What both read, so many records at a time."""
    for most in (1, 7, None):
        wanted = await read(connection, parts, native=False, most=most)
        assert await read(connection, parts, native=True, most=most) == wanted
    return wanted


async def topics(connection: Connection, names: Sequence[str], **config: str) -> None:
    async with Topics(connection) as admin:
        for name in names:
            await admin.ensure(name, config=config)


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await work

    asyncio.run(bounded())


def test_all_codecs_transactions_and_what_records_have(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    async def play() -> None:
        connection = Connection(bootstrap)
        names = {topic_name(codec or "none"): codec for codec in CODECS}
        await topics(connection, [*names])
        for name, codec in names.items():
            await written(connection, name, codec)
            await in_transactions(connection, name, codec)
        found = await same(connection, [TopicPartition(name, 0) for name in names])
        for rows, position, lost in found.values():
            assert lost is None
            assert len(rows) == 60 + 24, "a third of the transactions is aborted"
            assert position == 60 + 6 * 2 * (3 + 1)
            assert sum(bool(row[4]) for row in rows) == 45

    run(play())


def test_batches_that_the_engine_has_built_are_published(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    """Several of them in one transaction, and in the next."""
    rows = [(b"k%d" % n if n % 3 else None, b"v" * n) for n in range(1_500)]
    headers = [("lmerge-incarnation", b"1")]

    async def play() -> None:
        connection, name = Connection(bootstrap), topic_name()
        out, state = TopicPartition(name, 0), TopicPartition(f"{name}.state", 0)
        await topics(connection, [name, state.topic])
        async with Sink(
            connection, transactional_id=name, output=out, dead_letters=f"{name}.dead",
            state=state, events=f"{name}.events", max_record_bytes=1 << 20,
        ) as sink:  # fmt: skip
            for number in range(2):
                encoded = lmerge_engine.Encoded(headers, BATCH_BYTES)
                encoded += rows
                assert len(encoded.sizes()) == 5
                committed = await sink.commit(Outbox(encoded, headers=headers))
                assert committed.output == number * (len(rows) + 1) + len(rows)
        found, _, _ = (await same(connection, [out]))[out]
        assert [(key, value) for _, _, key, value, _ in found] == 2 * rows
        assert all(each[4] == headers for each in found)
        assert all(abs(each[1] / 1000 - time.time()) < 60 for each in found)

    run(play())


async def compacted(connection: Connection, name: str) -> None:
    """Rewrites keys until the cleaner has made gaps, and one batch that is empty."""
    async with AIOKafkaProducer(**connection.arguments, enable_idempotence=True) as producer:
        for n in range(20):
            for key in (b"a", b"b", b"%d" % n):
                await producer.send(name, b"x%d" % n, key, partition=0)
            await producer.flush()
        tp = TopicPartition(name, 0)
        while True:
            await producer.send_and_wait(name, b"x", b"last", partition=0)
            await asyncio.sleep(0.3)
            rows, position, _ = (await read(connection, [tp], native=False, most=None))[tp]
            if len(rows) < 45:
                assert rows[-1][0] - rows[0][0] > len(rows), position
                return


def damage(folder: Path, topic: str, at: int) -> None:
    """Flips a bit of what the broker has of a topic, which it does not look at."""
    (log,) = folder.glob(f"**/{topic}-0/*.log")
    with log.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.full
def test_compacted_gaps_and_damaged_bytes(tmp_path: Path) -> None:
    settings = {"log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "100"}
    with LocalBroker(tmp_path / "kafka", settings=settings) as broker:

        async def play() -> None:
            connection = Connection(broker.bootstrap)
            await topics(connection, ["compacted"], **COMPACTED)
            await topics(connection, [f"damaged.{codec}" for codec in CODECS])
            await compacted(connection, "compacted")
            await same(connection, [TopicPartition("compacted", 0)])
            for codec in CODECS:
                name = f"damaged.{codec}"
                await written(connection, name, codec)
                damage(tmp_path, name, 700)
            for codec in CODECS:  # each alone: what is read before depends on the others' fetches
                tp = TopicPartition(f"damaged.{codec}", 0)
                _, _, lost = (await same(connection, [tp]))[tp]
                assert lost is not None
                assert "Invalid CRC" in lost

        run(play())
