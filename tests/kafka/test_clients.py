"""Clients as we use them, on a real broker that makes topics by being asked for them."""

import ast
import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest

import lmerge_service
from lmerge_service.errors import TransportError
from lmerge_service.formats.feedback import feedback_topic
from lmerge_service.kafka import clients
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.feedback import FeedbackFollower
from lmerge_service.kafka.log import Log
from lmerge_service.kafka.members import Members
from lmerge_service.kafka.notices import Notices
from lmerge_service.kafka.sink import Outbox, Sink
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.kafka.writing import TopicWriter
from lmerge_service.local.broker import free_port
from lmerge_service.reader.read_merged import read_merged

T = TypeVar("T")
USE = Callable[[Connection, str, AsyncExitStack], Awaitable[object]]


def run(work: Awaitable[T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(bounded())


def open_clients() -> list[AIOKafkaClient]:
    """All that this process has open."""
    running = asyncio.get_running_loop()
    found = [each for each in gc.get_objects() if isinstance(each, AIOKafkaClient)]
    return [each for each in found if each._sync_task is not None and each._loop is running]


# --- N9: topics that were deleted stay deleted ----------------------------------------------------


async def reads(connection: Connection, topic: str, stack: AsyncExitStack) -> None:
    source = await stack.enter_async_context(Source(connection))
    await source.ends([TopicPartition(topic, 0)])
    source.assign({TopicPartition(topic, 0): 0})
    await source.poll(0.1)


async def merges(connection: Connection, topic: str, stack: AsyncExitStack) -> None:
    reader = await stack.enter_async_context(read_merged(connection, [topic]))
    assert reader.positions


async def writes(connection: Connection, topic: str, stack: AsyncExitStack) -> None:
    writer = await stack.enter_async_context(TopicWriter(connection, topic))
    await writer.write([(0, None, b"x")])


async def notifies(connection: Connection, topic: str, stack: AsyncExitStack) -> None:
    await (await stack.enter_async_context(Notices(connection, topic))).send(b"k", b"v")


async def logs(connection: Connection, topic: str, stack: AsyncExitStack) -> None:
    log = await stack.enter_async_context(Log(connection, topic))
    await log.append(b"x")
    records = log.follow()
    stack.push_async_callback(records.aclose)
    assert (await anext(records)).value == b"x"


async def commits(connection: Connection, topic: str, stack: AsyncExitStack) -> None:
    sink = Sink(
        connection,
        transactional_id=topic,
        output=TopicPartition(topic, 0),
        dead_letters=topic,
        state=TopicPartition(topic, 0),
        events=topic,
        max_record_bytes=1000,
    )
    await stack.enter_async_context(sink)
    await sink.commit(Outbox(records=[(None, b"x")]))


async def belongs(connection: Connection, topic: str, stack: AsyncExitStack) -> None:
    members = Members(connection, topic, topic, output=topic, worker="w", warm=dict)
    await stack.enter_async_context(members)
    running = asyncio.ensure_future(members.run())
    stack.callback(running.cancel)
    async for assignment in members.changes():
        assert assignment.active == {0}
        return


async def receives_feedback(connection: Connection, topic: str, stack: AsyncExitStack) -> None:
    output = topic.removesuffix(".feedback")
    assert feedback_topic(output) == topic
    await stack.enter_async_context(FeedbackFollower(connection, [output]))


@asynccontextmanager
async def topic_of(connection: Connection, name: str) -> AsyncIterator[Topics]:
    async with Topics(connection) as topics:
        await topics.ensure(name, config={"retention.ms": "-1", "retention.bytes": "-1"})
        yield topics


async def gone(topics: Topics, name: str) -> None:
    await topics.delete(name)
    while await topics.width(name) is not None:  # a request each: the broker sets the pace
        pass


@pytest.mark.full
@pytest.mark.parametrize(
    "used",
    [reads, merges, writes, notifies, logs, commits, belongs, receives_feedback],
    ids=lambda f: f.__name__,
)
def test_n9_no_client_makes_a_topic_that_was_deleted_under_it(
    bootstrap: str, topic_name: Callable[..., str], used: USE
) -> None:
    async def deleted_under_it() -> int | None:
        connection, name = Connection(bootstrap), topic_name() + ".feedback"
        async with topic_of(connection, name) as topics, AsyncExitStack() as stack:
            await used(connection, name, stack)
            await gone(topics, name)
            known = open_clients()
            assert len(known) > 1
            for client in known:
                client.add_topic(name)  # as whoever still uses it
            for _ in range(3):
                await asyncio.gather(*(client.force_metadata_update() for client in known))
            return await topics.width(name)

    assert run(deleted_under_it()) is None


def test_n9_the_broker_of_these_tests_makes_topics_for_those_who_ask_as_usual(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    """Else the tests above prove nothing."""

    async def asked_as_usual() -> int | None:
        name = topic_name()
        client = AIOKafkaClient(bootstrap_servers=bootstrap)
        await client.bootstrap()
        try:
            async with Topics(Connection(bootstrap)) as topics:
                client.add_topic(name)
                await client.force_metadata_update()
                while (width := await topics.width(name)) is None:
                    await client.force_metadata_update()
                return width
        finally:
            await client.close()

    assert run(asked_as_usual()) == 1


def test_n9_every_client_of_ours_is_made_in_one_place() -> None:
    """Whoever makes one elsewhere makes one that makes topics; a probe that names none may, and the
    drills, which use nothing of the service."""
    found = set()
    for path in Path(lmerge_service.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            made = node.func if isinstance(node, ast.Call) else None
            if isinstance(made, ast.Name) and made.id.startswith("AIOKafka"):
                found.add(f"{path.parent.name}/{path.name}")
    assert {path for path in found if not path.startswith("drills/")} <= {
        "kafka/clients.py", "local/broker.py",
    }  # fmt: skip


@pytest.mark.full
def test_a_log_whose_topic_is_deleted_reports_it(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    async def followed() -> None:
        connection, name = Connection(bootstrap), topic_name()
        begun = asyncio.Event()
        async with Topics(connection) as topics, Log(connection, name) as log:
            following = asyncio.ensure_future(anext(log.follow(begun=begun.set)))
            await begun.wait()
            await gone(topics, name)
            await following

    with pytest.raises(TransportError, match="does not exist: was it deleted"):
        run(followed())


# --- N11: metadata of the topics that are used ----------------------------------------------------


def test_n11_a_client_asks_for_no_topics_but_its_own(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    async def known() -> list[set[str]]:
        connection, others, own = Connection(bootstrap), topic_name("other"), topic_name("own")
        async with AsyncExitStack() as stack:
            topics = await stack.enter_async_context(topic_of(connection, others))
            await topics.ensure(own)
            await belongs(connection, own, stack)
            await reads(connection, own, stack)
            await writes(connection, own, stack)
            found = open_clients()
            assert len(found) == 4
            await asyncio.gather(*(client.force_metadata_update() for client in found))
            return [client.cluster.topics() - {own} for client in found]

    assert run(known()) == [set()] * 4


# --- N18: brokers that are down -------------------------------------------------------------------


@contextmanager
def deaf() -> Iterator[int]:
    """A port that takes connections and never answers, as of a process that stands still."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def test_n18_any_address_that_answers_will_do(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    async def made() -> int:
        with deaf() as port:
            addresses = f"127.0.0.1:{free_port()},127.0.0.1:{port},{bootstrap}"
            async with Topics(Connection(addresses)) as topics:
                return await topics.ensure(topic_name(), partitions=3)

    assert run(made()) == 3


def test_n18_what_one_broker_does_not_answer_another_is_asked(
    bootstrap: str, topic_name: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that are in the metadata and down, or deaf, as those that were killed just now."""
    monkeypatch.setattr(clients, "NODE_SECONDS", 0.3)

    async def asked() -> int:
        async with Topics(Connection(bootstrap)) as topics:
            cluster = topics._client.cluster
            (alive,) = cluster.brokers()
            dead = {
                90: alive._replace(nodeId=90, port=free_port()),
                91: alive._replace(nodeId=91, port=silent),
            }
            for _ in range(8):  # whichever comes first by chance
                cluster._brokers = dead | {alive.nodeId: alive}
                topics._client._failed.clear()
                assert await topics.width(name) is None
            cluster.controller = dead[91]
            width = await topics.ensure(name, partitions=2)
            topics._client._failed.pop(alive.nodeId, None)  # 0.3 s may be too little for it, too
            assert topics._client.get_random_node() == alive.nodeId
        return width

    name = topic_name()
    with deaf() as silent:
        assert run(asked()) == 2


def test_n18_a_connection_to_a_broker_that_stands_still_is_given_up_soon(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a producer, which waits 40 s for an answer: by then another broker leads for long."""
    monkeypatch.setattr(clients, "NODE_SECONDS", 0.3)

    async def connected() -> float:
        loop = asyncio.get_running_loop()
        async with clients.producer(Connection(bootstrap)) as producer:
            cluster, client = producer.client.cluster, producer.client
            (alive,) = cluster.brokers()
            cluster._brokers = {91: alive._replace(nodeId=91, port=silent)} | cluster._brokers
            began = loop.time()
            assert not await client.ready(91)
            return loop.time() - began

    with deaf() as silent:
        assert run(connected()) < 5


def test_a_client_that_is_cancelled_while_it_starts_leaves_no_connection_open(
    bootstrap: str,
) -> None:
    """At whatever moment; one that is left open is a ResourceWarning, and so an error here."""

    async def cancelled(after: float) -> None:
        async with asyncio.timeout(after), Topics(Connection(bootstrap)):
            await asyncio.sleep(5)

    async def play() -> None:
        for step in range(40):
            with suppress(TimeoutError):
                await cancelled(step / 2_000)

    asyncio.run(play())
    gc.collect()


def test_a_client_that_is_cancelled_before_its_first_answer_closes_its_connection(
    bootstrap: str,
) -> None:
    """A broker that stands still after it has let a client in; a second is too short for it."""
    ended = asyncio.Event()

    async def one_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = bootstrap.rpartition(":")
        answers, questions = await asyncio.open_connection(host, int(port))
        questions.write(await reader.read(1 << 16))
        writer.write(await answers.read(1 << 16))
        while await reader.read(1 << 16):
            pass
        ended.set()
        for each in (questions, writer):
            each.close()
            await each.wait_closed()

    async def play() -> None:
        async with await asyncio.start_server(one_answer, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            starting = asyncio.create_task(
                clients.Client(bootstrap_servers=f"{host}:{port}").bootstrap()
            )
            await asyncio.sleep(0.5)
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            async with asyncio.timeout(5):
                await ended.wait()

    run(play())


def test_a_source_whose_own_task_is_cancelled_while_it_closes_closes_its_connections(
    bootstrap: str,
) -> None:
    """As while the broker is away: the cancellation comes out of aiokafka's `stop`."""

    async def play() -> None:
        async with Source(Connection(bootstrap)) as source:
            await source.ends([])
            client = source._consumer._client
            assert await client.ready(client.nodes()[0])
            connections = list(client._conns.values())
            never_begun = asyncio.create_task(asyncio.sleep(60))
            source._consumer._fetcher._pending_tasks.add(never_begun)
        assert connections
        assert not any(each.connected() for each in connections)

    run(play())


def test_n18_where_no_address_answers_that_is_reported() -> None:
    async def asked() -> Topics:
        addresses = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
        async with Topics(Connection(addresses)) as topics:
            return topics

    with pytest.raises(TransportError, match="cannot be reached there; is it running"):
        run(asked())


def test_answers_are_read_without_a_pause(bootstrap: str, topic_name: Callable[..., str]) -> None:
    async def limits() -> set[int]:
        async with topic_of(Connection(bootstrap), topic_name()) as topics:
            conns = topics._client._conns.values()
            return {each._reader._limit for each in conns}

    assert run(limits()) == {4 << 20}


# --- N11: a consumer that has nothing to read -----------------------------------------------------


def test_n11_an_idle_source_lets_the_broker_hold_its_fetches(
    bootstrap: str, topic_name: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(clients, "_QUIET_WAIT_MS", 400)

    async def fetches() -> int:
        connection, name, sent = Connection(bootstrap), topic_name(), 0
        async with topic_of(connection, name), Source(connection) as source:
            client = source._consumer._client
            send = client.send

            async def counted(node: int, request: object, **how: Any) -> Any:
                nonlocal sent
                sent += isinstance(request, FetchRequest)
                return await send(node, request, **how)

            monkeypatch.setattr(client, "send", counted)
            source.assign({TopicPartition(name, 0): 0})
            for _ in range(4):
                assert await source.poll(0.25) == {}
            return sent

    assert 1 <= run(fetches()) <= 5, "a short one takes 10 ms"


def test_n11_while_anything_moves_fetches_are_short(
    bootstrap: str, topic_name: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a partition whose records were just taken does not wait for the others."""
    monkeypatch.setattr(clients, "_QUIET_SECONDS", 1e9)

    async def waits() -> list[int]:
        connection, name = Connection(bootstrap), topic_name()
        async with topic_of(connection, name), Source(connection, fetch_wait_ms=7) as source:
            tp, fetches = TopicPartition(name, 0), source._fetches
            source.assign({tp: 0})
            found = [fetches._fetch_max_wait_ms]
            fetches.moved = -1e10
            found.append(fetches._fetch_max_wait_ms)
            async with AsyncExitStack() as stack:
                await writes(connection, name, stack)
                while not fetches._records:  # noqa: ASYNC110 - it was fetched, nobody has taken it
                    await asyncio.sleep(0.01)
            found.append(fetches._fetch_max_wait_ms)
            assert await source.poll(1.0)
            found.append(fetches._fetch_max_wait_ms)
            stirring: list[Callable[[], None]] = [
                partial(source.assign, {tp: 1}),
                partial(source.rewind, tp, 1),
                partial(source.resume, [tp]),
            ]
            for stir in stirring:
                fetches.moved = -1e10
                stir()
                found.append(fetches._fetch_max_wait_ms)
            return found

    quiet = clients._QUIET_WAIT_MS + clients._PARTITION_WAIT_MS
    assert run(waits()) == [7, quiet, 7, 7, 7, 7, 7]
