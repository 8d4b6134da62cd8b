"""`lmerge publish` and `lmerge audit kafka:TOPIC`, through a real broker."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.formats.dialects import WRITTEN, build_decoder
from lmerge_service.formats.payload import PayloadCache
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.tdb import reconstitute
from tests.cli.conftest import Lmerge
from tests.offline.streams import on_the_wire, write

STREAM: list[Element] = [
    *(Insert(f"{n}", n, n + 9) for n in range(50)),
    Adjust("49", 49, 58, 60),
    Stable(40),
    Stable(INFINITY),
]


@pytest.mark.full
def test_a_published_stream_means_what_its_file_means(
    lmerge: Lmerge, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    at, topic = ("--bootstrap", bootstrap), topic_name()
    write(Path("stream"), map(on_the_wire, STREAM))
    write(Path("other"), map(on_the_wire, STREAM[1:]))
    published = lmerge("publish", "stream", topic, "--partitions", "2", *at)
    assert (published.code, published.out) == (0, "")
    assert published.err == f"53 elements of stream are in {topic}\n"
    same = lmerge("audit", f"kafka:{topic}", "stream", *at)
    assert (same.code, same.err) == (0, "")
    assert same.out.splitlines()[0] == (
        f"kafka:{topic}: legal, 50 events by 50 inserts, 1 adjusts, 4 stables; complete"
    )
    other = lmerge("audit", "other", f"kafka:{topic}", *at)
    assert other.code == 1
    assert f'payload "0" vs 0: no event in other, ve 9 in kafka:{topic}' in other.out


@pytest.mark.parametrize("name", ["debezium", "flink", "upserts", "openclose"])
def test_a_stream_is_published_in_a_dialect(
    lmerge: Lmerge, bootstrap: str, topic_name: Callable[..., str], name: str
) -> None:
    topic = topic_name(name)
    rows = [Insert(b'{"id":%d,"n":%d}' % (t % 2, t), t, t + 2) for t in range(20)]
    stream: list[Element] = [*rows, Stable(15), Stable(INFINITY)]
    write(Path("stream"), stream)
    key = [] if name == "openclose" else ["--key", "id"]
    options = ("--format", name, *key, "--partitions", "2", "--bootstrap", bootstrap)
    published = lmerge("publish", "stream", topic, *options)
    assert (published.code, published.err) == (0, f"22 elements of stream are in {topic}\n")
    records = asyncio.run(_records(bootstrap, topic))
    decoders = {
        partition: build_decoder(WRITTEN[name], PayloadCache(), 1000) for partition in range(2)
    }
    sent = [each for partition, record in records for each in decoders[partition].decode(record)]
    parts = [each for each in sent if type(each) is not Stable]
    assert reconstitute(parts) == reconstitute(rows)
    assert sent.count(Stable(INFINITY)) == 2, "each partition has ended"


async def _records(bootstrap: str, topic: str) -> list[tuple[int, Any]]:
    async with Source(Connection(bootstrap), max_record_bytes=1 << 20) as source:
        partitions = [TopicPartition(topic, number) for number in range(2)]
        starts = await source.beginnings(partitions)
        ends = await source.high_watermarks(partitions)
        batches = source.backlog(starts, ends)
        return [(tp.partition, each) async for tp, records in batches for each in records]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--format", "maxwell"), "Invalid value for '--format': 'maxwell' is not one of 'wire', "),
        (("--key", "id"), "--key is for rows, of which --format wire has none"),
        (("--format", "flink", "--key", "a..b"), "--key names a field"),
        (("--stalls", "0.1"), "--stalls and --congested disturb a --rate: give one"),
        (("--rate", "9", "--congested", "7-5"), "--congested takes seconds from the start, as in"),
    ],
)
def test_an_option_that_makes_no_sense_is_reported_before_anything_is_sent(
    lmerge: Lmerge, options: tuple[str, ...], message: str
) -> None:
    write(Path("stream"), [Stable(1)])
    done = lmerge("publish", "stream", "topic", *options, "--bootstrap", "127.0.0.1:1")
    assert (done.code, done.out) == (2, "")
    assert done.error.startswith(message)


def test_what_a_dialect_cannot_express_is_one_line(
    lmerge: Lmerge, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    write(Path("stream"), [Insert(b"1", 3, 9), Stable(5)])
    options = ("--format", "flink", "--bootstrap", bootstrap)
    done = lmerge("publish", "stream", topic_name(), *options)
    assert done.code == 2
    assert done.error == "payload 1 is no row: an object is needed"


def test_a_topic_that_is_not_there_is_named(
    lmerge: Lmerge, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name()
    done = lmerge("audit", f"kafka:{topic}", "kafka:x", "--bootstrap", bootstrap)
    assert (done.code, done.out) == (2, "")
    assert done.error == f"kafka:{topic}: there is no such topic at {bootstrap}"
