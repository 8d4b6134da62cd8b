"""Reading n topics as one, on a real broker: losses, restarts, tokens, two levels of merges."""

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from lmerge_service.core import Breach, Policy, quorum
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, StateError, TransportError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import Batches, Source
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import LocalBroker, free_port
from lmerge_service.reader.inlets import TopicStatus
from lmerge_service.reader.read_merged import MergedReader, read_merged
from lmerge_service.tdb import TDB, reconstitute
from tests.service.cluster import Merge, crc32, logical, meaning, replica_streams, scattered
from tests.waiting import come_true, vanish

SECONDS = 60.0


def in_time(work: Coroutine[Any, Any, None], seconds: float = 2 * SECONDS) -> None:
    asyncio.run(asyncio.wait_for(work, seconds))


class Topic(Merge):
    """Topics of one test, without a worker: `publish(name, elements)` makes them."""

    def __init__(self, bootstrap: str, folder: Path):
        super().__init__(bootstrap, folder)
        self.connection = Connection(bootstrap)

    def reader(self, names: str = "abc", **options: Any) -> MergedReader:
        return read_merged(self.connection, [self.topics[name] for name in names], **options)


@pytest.fixture
def written(bootstrap: str, tmp_path: Path) -> Topic:
    return Topic(bootstrap, tmp_path)


def insert(payload: str, vs: int, ve: int) -> Insert[bytes]:
    return Insert(b'"%s"' % payload.encode(), vs, ve)


async def next_of(reader: MergedReader, seconds: float = SECONDS) -> Element:
    return await asyncio.wait_for(anext(reader), seconds)


async def take(reader: MergedReader, count: int) -> list[Element]:
    return [await next_of(reader) for _ in range(count)]


async def all_of(reader: MergedReader) -> list[Element]:
    return [element async for element in reader]


async def up_to(reader: MergedReader, *awaited: Element) -> list[Element]:
    """Everything up to where all of these have been received; which topic is first is chance."""
    received: list[Element] = []
    while not all(element in received for element in awaited):
        received += await take(reader, 1)
    return received


def of(reader: MergedReader, name: str) -> TopicStatus:
    (found,) = [each for each in reader.status().topics if each.topic.endswith(f".{name}")]
    return found


async def until(reader: MergedReader, reached: Callable[[], bool], seconds: float = 30) -> None:
    """Waits for elements, of which none are expected, until something is seen."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, reader.status()
        with contextlib.suppress(TimeoutError):
            raise AssertionError(f"unexpected: {await next_of(reader, 0.3)}")


# --- one stream from several topics --------------------------------------------------------------


def test_several_topics_of_any_width_are_read_as_one(written: Topic) -> None:
    lives = logical(300)
    streams = replica_streams(lives)
    written.publish("a", streams["a"])
    written.publish("b", streams["b"], partitions=3, partitioner=crc32)
    written.publish("c", streams["c"], partitions=5, partitioner=scattered, transactions_of=40)

    async def play() -> None:
        breaches: list[Breach] = []
        async with written.reader(on_breach=breaches.append) as reader:
            received = await all_of(reader)
            status = reader.status()
        assert reconstitute(received) == meaning(lives)
        assert received[-1] == Stable(INFINITY)
        assert breaches == []
        assert status.live_events == 0
        assert [each.partitions for each in status.topics] == [1, 3, 5]
        assert sum(each.first for each in status.topics) == sum(type(e) is Insert for e in received)

    in_time(play())


def test_batches_contain_the_same(written: Topic) -> None:
    lives = logical(200, seed=2)
    streams = replica_streams(lives, seed=2)
    for name in "ab":
        written.publish(name, streams[name])

    async def play() -> None:
        async with written.reader("ab", batch_records=50) as reader:
            first = await next_of(reader)
            batches = [batch async for batch in reader.batches()]
        assert all(batches)
        assert len(batches) > 3
        received = [first, *(element for batch in batches for element in batch)]
        assert reconstitute(received) == meaning(lives)

    in_time(play())


def test_a_topic_is_as_far_as_its_slowest_partition(written: Topic) -> None:
    """The other one is empty: its stables are the only ones there."""
    written.publish("a", [insert("x", 1, 5), Stable(3)], partitioner=lambda *_: 0, partitions=2)

    async def play() -> None:
        async with written.reader("a", follow=False) as reader:
            assert await all_of(reader) == [insert("x", 1, 5), Stable(3)]
            assert of(reader, "a").stable == 3

    in_time(play())

    async def silent() -> None:
        topic = written.topics["b"]
        async with Topics(written.connection) as topics:
            await topics.ensure(topic, partitions=2)
        written_to_one: list[Element] = [insert("x", 1, 5), Stable(3)]
        await written._publish("b", written_to_one, 1, crc32, [], None)
        async with written.reader("b", follow=False) as reader:
            assert await all_of(reader) == [insert("x", 1, 5)]
            assert of(reader, "b").stable == START

    in_time(silent())


def test_without_follow_the_stream_ends_where_the_topics_did(written: Topic) -> None:
    written.publish("a", [insert("x", 1, 5), Stable(3)], transactions_of=2)

    async def play() -> None:
        async with written.reader(follow=False) as reader:
            await written._publish("a", [insert("late", 7, 8)], 1, crc32, [], None)
            received = await all_of(reader)
            assert received[:2] == [insert("x", 1, 5), Stable(3)]
            assert of(reader, "b").state == "missing"
            assert of(reader, "b").why == f"topic {written.topics['b']} does not exist yet"

    in_time(play())


@pytest.mark.full
def test_a_wait_that_is_cancelled_loses_nothing(written: Topic) -> None:
    lives = logical(200, seed=3)
    stream = replica_streams(lives, seed=3)["b"]

    async def play() -> None:
        received: list[Element] = []
        async with written.reader("b", batch_records=7) as reader, asyncio.TaskGroup() as group:
            group.create_task(written._publish("b", stream, 2, crc32, [], None))
            while not received or received[-1] != Stable(INFINITY):
                with contextlib.suppress(TimeoutError):
                    received.append(await next_of(reader, random.choice((0.0005, 0.002, 0.05))))
        assert reconstitute(received) == meaning(lives)

    in_time(play())


# --- topics that come, go, end, lie and start over ------------------------------------------------


@pytest.mark.full
def test_a_topic_that_does_not_exist_is_waited_for_while_the_others_flow(written: Topic) -> None:
    written.publish("a", [insert("x", 1, 5), Stable(3)])

    async def play() -> None:
        async with written.reader("ab") as reader:
            assert await take(reader, 2) == [insert("x", 1, 5), Stable(3)]
            assert of(reader, "b").state == "missing"
            await written._publish("b", [insert("x", 1, 5), Stable(4)], 1, crc32, [], None)
            assert await next_of(reader) == Stable(4)
            assert of(reader, "b").state == "reading"
            assert of(reader, "b").why is None

    in_time(play())


@pytest.mark.full
def test_a_reader_that_finds_no_topic_at_all_waits_for_the_first(written: Topic) -> None:
    async def play() -> None:
        async with written.reader() as reader:
            await until(reader, lambda: True)
            with contextlib.suppress(TimeoutError):
                await next_of(reader, 0.1)
            await written._publish("c", [Stable(4)], 1, crc32, [], None)
            assert await next_of(reader) == Stable(4)

    in_time(play())


@pytest.mark.full
def test_a_topic_that_is_deleted_is_let_go_and_made_anew_is_read_again(written: Topic) -> None:
    written.publish("a", [insert("x", 1, 9), Stable(3)])
    written.publish("b", [insert("x", 1, 9), insert("phantom", 5, 8), Stable(2)])

    async def play() -> None:
        topic = written.topics["b"]
        async with written.reader("ab") as reader, Topics(written.connection) as topics:
            received = await up_to(reader, insert("phantom", 5, 8), Stable(3))
            await topics.delete(topic)
            await until(reader, lambda: of(reader, "b").why == f"topic {topic} was deleted")
            await written._publish("b", [insert("x", 1, 9), Stable(7)], 1, crc32, [], None)
            received += await take(reader, 2)
            assert received[-2:] == [Adjust(b'"phantom"', 5, 8, 5), Stable(7)]
            assert of(reader, "b").stable == 7
            assert of(reader, "b").breaches == {}
        assert reconstitute(received) == TDB([(b'"x"', 1, 9)])

    in_time(play())


def test_a_topic_whose_beginning_is_gone_needs_a_time_from_which_it_is_correct(
    written: Topic,
) -> None:
    written.publish("a", [insert("x", 1, 9), Stable(3)])
    written.publish("b", [insert("x", 1, 9), insert("y", 6, 9), Stable(8)])

    async def play() -> None:
        topic = written.topics["b"]
        async with Topics(written.connection) as topics:
            await _delete_up_to(topics, topic, 1)
        async with written.reader("ab") as reader:
            assert await take(reader, 2) == [insert("x", 1, 9), Stable(3)]
            assert of(reader, "b").state == "left out"
            assert "begins at offset 1" in str(of(reader, "b").why)
        async with written.reader("ab", joining_at={topic: 5}) as reader:
            received = await take(reader, 3)
            assert reconstitute(received) == TDB([(b'"x"', 1, 9), (b'"y"', 6, 9)])
            assert of(reader, "b").state == "joining"
            await written._publish("a", [Stable(5)], 1, crc32, [], None)
            assert await take(reader, 2) == [Stable(5), Stable(8)]
            assert of(reader, "b").state == "reading"

    in_time(play())


async def _delete_up_to(topics: Topics, topic: str, offset: int) -> None:
    from aiokafka import TopicPartition
    from aiokafka.admin.records_to_delete import RecordsToDelete

    tp = TopicPartition(topic, 0)
    await topics._admin.delete_records({tp: RecordsToDelete(before_offset=offset)})


def test_a_topic_that_ends_lags_or_lies_stops_nobody(written: Topic) -> None:
    written.publish("a", [insert("x", 1, 9), Stable(3)])
    written.publish("b", [insert("y", 2, 4), Stable(6), insert("late", 1, 2), Stable(5)])
    written.publish("c", [insert("x", 1, 9)])

    async def play() -> None:
        breaches: list[Breach] = []
        async with written.reader(on_breach=breaches.append, follow=False) as reader:
            received = await all_of(reader)
            kinds = sorted(of(reader, "b").breaches)
        assert kinds[-2:] == ["half_frozen_missing", "stable_regression"] or kinds == [
            "broke_own_stable",
            "stable_regression",
        ]
        assert {breach.input for breach in breaches} == {written.topics["b"]}
        assert reconstitute(received).stable == 6

    in_time(play())


def test_a_topic_that_starts_over_is_known_by_its_headers(written: Topic) -> None:
    written.publish("a", [insert("x", 1, 9), insert("wrong", 4, 9), Stable(3)])
    written.publish("a", [insert("x", 1, 9), Stable(6)], incarnation=1)

    async def play() -> None:
        async with written.reader("a", follow=False) as reader:
            received = await all_of(reader)
            assert of(reader, "a").incarnation == 1
            assert reconstitute(received) == TDB([(b'"x"', 1, 9)])

    in_time(play())


def test_what_is_no_element_is_counted_and_offered_and_the_topic_goes_on(written: Topic) -> None:
    written.send_raw(written.topics["a"], [b"nonsense", None, b'{"op":"stable","vc":4}'])

    async def play() -> None:
        dead: list[DeadLetter] = []
        async with written.reader("a", on_dead=dead.append) as reader:
            assert await next_of(reader) == Stable(4)
            assert of(reader, "a").dead == 2
        assert [(each.offset, each.reason) for each in dead] == [(0, "not_json"), (1, "tombstone")]
        assert {each.replica for each in dead} == {written.topics["a"]}

    in_time(play())


def test_an_ordered_case_leaves_out_a_topic_of_several_partitions(written: Topic) -> None:
    written.publish("a", [insert("x", 1, 9), Stable(3)])
    written.publish("b", [insert("x", 1, 9), Stable(8)], partitions=2)

    async def play() -> None:
        async with written.reader("ab", case="R2", follow=False) as reader:
            assert await all_of(reader) == [insert("x", 1, 9), Stable(3)]
            assert "which give no order together" in str(of(reader, "b").why)

    in_time(play())


# --- tokens --------------------------------------------------------------------------------------


def test_going_on_from_tokens_is_as_good_as_not_having_stopped(written: Topic) -> None:
    """Twenty-five interruptions at random elements, in the middle of batches too."""
    chance = random.Random(f"{uuid.uuid4()}")
    lives = logical(400, seed=5)
    streams = replica_streams(lives, seed=5)
    written.publish("a", streams["a"])
    written.publish("b", streams["b"], partitions=3)

    async def play() -> None:
        received: list[Element] = []
        token, sizes, mid = None, [], 0
        for _ in range(25):
            options = {
                "token": token,
                "batch_records": chance.randrange(1, 60),
                "engine": chance.choice(("auto", "python")),
            }
            async with written.reader("ab", **options) as reader:
                received += await take(reader, chance.randrange(1, 25))
                token = reader.token()
                mid += bool(reader._waiting)
                sizes.append(len(token))
        async with written.reader("ab", token=token) as reader:
            received += await all_of(reader)
        assert reconstitute(received) == meaning(lives)  # legal, and nothing lost or doubled
        assert mid > 3, "tokens were taken in the middle of batches"
        assert max(sizes) < 60_000

    in_time(play())


def test_of_one_topic_the_very_elements_go_on(written: Topic) -> None:
    lives = logical(100, seed=6)
    written.publish("c", replica_streams(lives, seed=6)["c"])

    async def play() -> None:
        async with written.reader("c") as reader:
            whole = await all_of(reader)
        for stop in (1, 2, len(whole) // 2, len(whole) - 1, len(whole)):
            for one, other in (("auto", "auto"), ("auto", "python"), ("python", "auto")):
                async with written.reader("c", engine=one) as reader:
                    begun = await take(reader, stop)
                    token = reader.token()
                async with written.reader("c", engine=other, token=token) as reader:
                    assert begun + await all_of(reader) == whole

    in_time(play())


def test_a_token_goes_on_with_other_topics_and_with_ones_made_anew(written: Topic) -> None:
    written.publish("a", [insert("x", 1, 9), Stable(3)])
    written.publish("b", [insert("x", 1, 9), insert("phantom", 5, 8), Stable(2)])

    async def play() -> None:
        async with written.reader("ab") as reader:
            received = await up_to(reader, insert("phantom", 5, 8), Stable(3))
            token = reader.token()
        async with Topics(written.connection) as topics:
            topic = written.topics["b"]
            await vanish(topics, topic)
        # More records than the position that the token has: its id shows that it is new.
        anew: list[Element] = [
            Stable(1),
            insert("x", 1, 9),
            insert("y", 6, 9),
            insert("z", 6, 9),
            Stable(7),
        ]
        await written._publish("b", anew, 1, crc32, [], None)
        await written._publish("c", [insert("w", 4, 9)], 1, crc32, [], None)
        async with written.reader("bc", token=token, follow=False) as reader:
            received += await all_of(reader)
            assert of(reader, "b").breaches == {}
        expected = [("x", 1, 9), ("y", 6, 9), ("z", 6, 9)]
        found = {event for event in reconstitute(received) if event.vs >= 6 or event.vs < 4}
        assert found == {(b'"%s"' % name.encode(), vs, ve) for name, vs, ve in expected}

    in_time(play())


def test_a_token_is_refused_where_it_does_not_fit(written: Topic) -> None:
    written.publish("a", [insert("x", 1, 9), Stable(3)])

    async def play() -> None:
        async with written.reader("a", follow=False) as reader:
            await take(reader, 1)
            token = reader.token()
        for options, what in (
            ({"case": "R4"}, "case R3, not R4"),
            ({"policy": Policy(adjust="eager")}, "policy"),
            ({"nfc": True}, "nfc False, not True"),
            ({"drop_nulls": True}, "drop_nulls False, not True"),
        ):
            with pytest.raises(ConfigurationError, match=what):
                written.reader("a", token=token, **options)
        for damaged in (b"", token[:-1], token[:40] + b"\0" + token[41:]):
            with pytest.raises(StateError, match="token is damaged"):
                written.reader("a", token=damaged)

    in_time(play())


@pytest.mark.parametrize(
    ("topics", "policy", "message"),
    [
        ([], Policy(), "at least one"),
        (["a", "a"], Policy(), "each once"),
        (["a"], Policy(stable=quorum(2)), "never reached"),
    ],
)
def test_what_cannot_be_read_is_refused_before_kafka_is_asked(
    topics: Sequence[str], policy: Policy, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_merged(Connection("nowhere:1"), topics, policy=policy)


# --- Kafka goes away ------------------------------------------------------------------------------


def test_without_kafka_the_reader_fails_at_once() -> None:
    async def play() -> None:
        nowhere = Connection(f"127.0.0.1:{free_port()}")
        with pytest.raises(TransportError, match="cannot be reached"):
            async with read_merged(nowhere, ["a"]):
                pass

    in_time(play())


@pytest.mark.full
def test_polls_that_fail_are_borne_for_as_long_as_the_patience_lasts(
    written: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even while everything else about Kafka is well."""
    written.publish("a", [insert("x", 1, 9), Stable(3)])
    poll, failures = Source.poll, 2

    async def poll_or_fail(self: Source, seconds: float, most: int | None = None) -> Batches:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise TransportError("reading: a broker that is not well")
        return await poll(self, seconds, most)

    monkeypatch.setattr(Source, "poll", poll_or_fail)

    async def play() -> None:
        nonlocal failures
        async with written.reader("a", patience=2.5) as reader:
            assert await next_of(reader) == insert("x", 1, 9)
            await next_of(reader)
            failures = 1_000
            with pytest.raises(TransportError, match=r"for 2\.5 s: reading: a broker that"):
                await next_of(reader)
            failures = 0
            await written._publish("a", [Stable(5)], 1, crc32, [], None)
            assert await next_of(reader) == Stable(5)

    in_time(play())


@pytest.mark.full
@pytest.mark.kafka
def test_a_reader_waits_for_a_broker_that_goes_away_but_not_for_ever(tmp_path: Path) -> None:
    port = free_port()

    async def play() -> None:
        broker = LocalBroker(tmp_path / "data", port=port)
        await asyncio.to_thread(broker.__enter__)
        try:
            written = Topic(broker.bootstrap, tmp_path)
            await written._publish("a", [insert("x", 1, 9), Stable(3)], 1, crc32, [], None)
            async with written.reader("a", patience=3.0) as reader:
                await take(reader, 2)
                token = reader.token()
                await asyncio.to_thread(broker.stop)
                await until(reader, lambda: reader.status().unreachable is not None)
                with pytest.raises(TransportError, match="not answered for 3 s"):
                    await next_of(reader)
            broker = LocalBroker(tmp_path / "data", port=port)
            await asyncio.to_thread(broker.__enter__)
            await written._publish("a", [Stable(5)], 1, crc32, [], None)
            async with written.reader("a", token=token) as reader:
                assert await next_of(reader) == Stable(5)
        finally:
            await asyncio.to_thread(broker.stop)

    in_time(play())


# --- over workers ---------------------------------------------------------------------------------


def over(bootstrap: str, folder: Path, topics: dict[str, str]) -> Merge:
    """A topology of its own whose replicas are these topics."""
    merge = Merge(bootstrap, folder, list(topics))
    merge.topics = topics
    merge.write()
    return merge


async def publish_slowly(merge: Merge, name: str, stream: Sequence[Element], pieces: int) -> None:
    step = len(stream) // pieces + 1
    for start in range(0, len(stream), step):
        await merge._publish(name, stream[start : start + step], 1, crc32, [], None)
        await asyncio.sleep(0.1)


@pytest.mark.full
def test_a_consumer_of_two_services_lives_through_kill_9_of_either(
    bootstrap: str, tmp_path: Path
) -> None:
    lives = logical(600, seed=7)
    streams = replica_streams(lives, seed=7)
    one = over(bootstrap, tmp_path, {n: f"{uuid.uuid4().hex[:8]}.{n}" for n in "ab"})
    two = over(bootstrap, tmp_path, one.topics)

    async def play() -> None:
        read = TDB()
        elements = 0

        async def consume() -> None:
            nonlocal elements
            async with read_merged(Connection(bootstrap), [one.output, two.output]) as reader:
                async for element in reader:
                    read.apply(element)  # raises where the stream is not legal
                    elements += 1
                assert reader.status().topics[0].breaches == {}
                assert reader.status().topics[1].breaches == {}

        async def come_further(count: int) -> None:
            aim = elements + count
            await come_true(lambda: elements >= aim or read.stable == INFINITY)

        async with asyncio.TaskGroup() as group:
            consuming = group.create_task(consume())
            with one.worker() as first, two.worker() as second:
                await asyncio.to_thread(first.wait_until_running)
                await asyncio.to_thread(second.wait_until_running)
                for name in "ab":
                    group.create_task(publish_slowly(one, name, streams[name], 25))
                await come_further(100)
                first.kill()
                await come_further(100)
                with one.worker() as again:
                    await asyncio.to_thread(again.wait_until_running)
                    second.kill()
                    await come_further(1)
                    await asyncio.wait_for(consuming, SECONDS)
        assert read == meaning(lives)
        assert read.stable == INFINITY

    in_time(play())


@pytest.mark.full
def test_merges_of_merges_live_through_a_loss_at_each_level(bootstrap: str, tmp_path: Path) -> None:
    """A query in two fragments, each replicated (II-1): the merges of the first are replicas of
    the second. One replica of the first dies, and one of the services that are replicas of the
    second."""
    lives = logical(400, seed=8)
    streams = replica_streams(lives, seed=8)
    fragments = [
        over(bootstrap, tmp_path, {n: f"{uuid.uuid4().hex[:8]}.{n}" for n in names})
        for names in ("ab", "bc")
    ]
    top = over(bootstrap, tmp_path, {"left": fragments[0].output, "right": fragments[1].output})

    async def play() -> None:
        read = TDB()

        async def consume() -> None:
            async with read_merged(Connection(bootstrap), [top.output]) as reader:
                async for element in reader:
                    read.apply(element)

        with fragments[0].worker() as left, fragments[1].worker(), top.worker() as above:
            async with asyncio.TaskGroup() as group:
                group.create_task(consume())
                await asyncio.to_thread(above.wait_until_running)
                dying = streams["a"][: len(streams["a"]) // 3]  # a's query dies on the way
                group.create_task(publish_slowly(fragments[0], "a", dying, 4))
                group.create_task(publish_slowly(fragments[0], "b", streams["b"], 12))
                group.create_task(publish_slowly(fragments[1], "b", streams["b"], 12))
                group.create_task(publish_slowly(fragments[1], "c", streams["c"], 12))
                await come_true(lambda: len(read) >= 80)
                left.kill()
        assert read == meaning(lives)
        assert left.process.returncode == -9

    in_time(play())
