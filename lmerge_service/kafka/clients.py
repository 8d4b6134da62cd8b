"""aiokafka's clients as we use them: the one place that changes what they do inside.

Theory
    A producer, a consumer and an admin client of aiokafka each own an `AIOKafkaClient`, which has
    the connections and the metadata. Ours are of the class `Client`, which differs in this:

    It makes no topics. aiokafka asks for metadata and for missing topics to be created, and a
    broker with auto.create.topics.enable (Kafka's default) does so: a topic that is deleted under
    an open client is back within a second, with the broker's defaults.

    It asks for the topics that it uses. aiokafka takes "none" for "all": 2.7 MiB at 3,000
    partitions, by each client, at its start and every five minutes.

    It asks another broker. aiokafka sends a question that any broker could answer to one that is
    picked by chance, though that one be down, and waits for a broker that stands still for as long
    as a whole request may take. Here the brokers take turns, those that did not answer lately last,
    and each has `NODE_SECONDS`.

    It connects to a broker within `NODE_SECONDS`. aiokafka waits for one that stands still for as
    long as a whole request may take, and lets no other connection be made meanwhile.

    It lets a broker hold a fetch for long when nothing has come for a while (`Fetches`). aiokafka
    has one wait for all fetches: a short one is a hundred requests a second for nothing, a long one
    delays partitions whose records were just taken, which are not in the fetch that is under way.

    It closes what it connected to first, also when it is cancelled before it has an answer.

    It reads an answer without a pause. aiokafka has a connection stop at 128 KiB until somebody
    takes them, and whoever waits for a fetch of a megabyte has it go on, eight times.

    It waits between two updates of metadata that lack a topic or a leader. aiokafka's consumer
    repeats them as fast as the broker answers, for as long as a topic is gone.

Who owns what
    `Client` owns nothing more than aiokafka's. `adopted` changes the class of a client that
    aiokafka has made for itself; `tests/kafka/test_clients.py` fails when a new aiokafka makes it
    in another way, or when one of the methods that are replaced here has changed.
"""

import asyncio
import random
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, conn
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import AIOKafkaConnection, collect_hosts, create_conn
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError, for_code
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.metadata import MetadataRequest

from lmerge_service.kafka import (
    frames,  # noqa: F401 - long answers are read in place
    requests,  # noqa: F401 - batches are put into requests by one copy
)
from lmerge_service.kafka.connection import Connection

__all__ = (
    "NODE_SECONDS",
    "REQUEST_MS",
    "Client",
    "Fetches",
    "admin",
    "adopted",
    "consumer",
    "producer",
)

NODE_SECONDS: Final = 5.0
"""How long one broker may take to answer what any other could answer as well."""

REQUEST_MS: Final = 10_000
"""How long a broker may take to answer a fetch or a write that only it can answer. aiokafka waits
40 seconds; for so long a partition would stand still whose leader is frozen, though another has
been elected."""

_STAGGER_SECONDS: Final = 0.3
"""The next address is tried beside those before it when they take longer."""

_REPEAT_SECONDS: Final = 0.05
"""Between two updates of metadata, while something is missing in it."""

_QUIET_SECONDS: Final = 1.0
_QUIET_WAIT_MS: Final = 250
"""Other requests to the broker wait behind a fetch that it holds."""
_PARTITION_WAIT_MS, _MOST_WAIT_MS = 3, 750
"""A fetch names each of its partitions, and costs by their number."""

_BOOTSTRAP: Final = "bootstrap"
"""aiokafka's name for a broker that it knows by its address only."""


conn.READER_LIMIT = 4 << 20  # it stops at twice that


class Client(AIOKafkaClient):  # type: ignore[misc]
    """Makes no topics, asks for few, and goes past brokers that do not answer."""

    _failed: dict[Any, float]
    """When each broker last did not answer; those that have since are not in it."""
    _first: tuple[str, int] | None = None
    """The address that answered first."""
    _incomplete: float | None = None
    """When metadata last lacked a topic or a leader."""
    _sync_task: asyncio.Task[None] | None
    """aiokafka's, which updates metadata."""

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self._failed = {}

    # --- starting -----------------------------------------------------------------------------

    @property
    def hosts(self) -> list[tuple[str, int, Any]]:
        """The addresses, in the order in which they are tried."""
        found = collect_hosts(self._bootstrap_servers)
        return sorted(found, key=lambda each: each[:2] != self._first)

    async def bootstrap(self) -> None:
        """Connects by whichever of the addresses answers first.

        Raises:
            KafkaConnectionError: none of them does.
        """
        if len(self.hosts) > 1:
            self._first = await self._first_answer()
        for host, port, _ in self.hosts:
            with suppress(OSError, KafkaError, TimeoutError):  # the next one may answer
                await self._ask_first(host, port)
                break
        else:
            raise KafkaConnectionError(f"none of {self._bootstrap_servers} answers")
        if self._sync_task is None:
            self._sync_task = asyncio.create_task(self._md_synchronizer())

    async def _ask_first(self, host: str, port: int) -> None:
        """Asks a broker that is known by its address only; aiokafka leaves the connection open when
        it is cancelled meanwhile."""
        asked = await self._connected(
            host,
            port,
            on_close=self._on_connection_closed,
            max_idle_ms=self._connections_max_idle_ms,
        )
        try:
            self.cluster.update_metadata(await asked.send(MetadataRequest([])))
        except BaseException:
            asked.close()
            raise
        if self.cluster.brokers():
            asked.close()
        else:  # kept until the cluster has a topic, and so names its brokers
            self._conns[_BOOTSTRAP, ConnectionGroup.DEFAULT] = asked

    async def _first_answer(self) -> tuple[str, int] | None:
        tasks = [
            asyncio.ensure_future(self._try(host, port, place * _STAGGER_SECONDS))
            for place, (host, port, _) in enumerate(self.hosts)
        ]
        try:
            for answer in asyncio.as_completed(tasks):
                with suppress(OSError, KafkaError, TimeoutError):  # bootstrap raises if all do
                    return await answer
            return None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _try(self, host: str, port: int, wait: float) -> tuple[str, int]:
        await asyncio.sleep(wait)
        tried = await self._connected(host, port)
        await tried.close()
        return host, port

    async def _connected(self, host: str, port: int, **more: Any) -> AIOKafkaConnection:
        return await create_conn(
            host,
            port,
            client_id=self._client_id,
            request_timeout_ms=self._request_timeout_ms,
            ssl_context=self._ssl_context,
            security_protocol=self._security_protocol,
            sasl_mechanism=self._sasl_mechanism,
            sasl_plain_username=self._sasl_plain_username,
            sasl_plain_password=self._sasl_plain_password,
            **more,
        )

    # --- what any broker can answer -----------------------------------------------------------

    def nodes(self) -> list[int]:
        """The brokers, in the order in which to ask them: those that have not failed, and then
        those that failed longest ago."""
        nodes = [broker.nodeId for broker in self.cluster.brokers()]
        random.shuffle(nodes)
        return sorted(nodes, key=self._doubt)

    def _doubt(self, node: Any) -> float:
        broker = self.cluster.broker_metadata(node)
        if (failed := self._failed.get(node)) is not None:
            return failed
        return -1.0 if broker is not None and (broker.host, broker.port) == self._first else 0.0

    def get_random_node(self) -> int | None:
        """As aiokafka asks for a broker, any broker; None: none is known."""
        return next(iter(self.nodes()), None)

    async def ask(self, request: Any, *, of: Sequence[int] = ()) -> Any:
        """The answer to a request that any broker can answer; those of `of` are asked first.

        Raises:
            NodeNotReadyError: none of them answers; its cause is the error of the last one.
            KafkaError: one that another broker would return as well.
        """
        last: BaseException | None = None
        for node in dict.fromkeys([*of, *self.nodes()]):
            try:
                return await self._asked(node, request)
            except KafkaError as error:
                if not error.retriable:
                    raise
                last = error
            except TimeoutError as error:
                last = error
        raise NodeNotReadyError("no broker answers") from last

    async def _asked(self, node: Any, request: Any) -> Any:
        try:
            async with asyncio.timeout(NODE_SECONDS):
                answer = await self.send(node, request)
        except BaseException:  # cancelled as well: whoever asks may be less patient than we are
            self._failed[node] = self._loop.time()
            raise
        self._failed.pop(node, None)
        return answer

    async def _get_conn(self, node_id: Any, **how: Any) -> AIOKafkaConnection | None:
        try:
            async with asyncio.timeout(NODE_SECONDS):
                found = await super()._get_conn(node_id, **how)
        except TimeoutError:
            self.force_metadata_update()  # another may lead by now
            found = None
        if found is None:
            self._failed[node_id] = self._loop.time()
        return found

    async def coordinator_lookup(self, coordinator_type: int, coordinator_key: str) -> int:
        """Which broker coordinates a group or a transactional.id."""
        answer = await self.ask(FindCoordinatorRequest(coordinator_key, coordinator_type))
        if answer.error_code:
            raise for_code(answer.error_code)
        return int(answer.coordinator_id)

    # --- metadata -----------------------------------------------------------------------------

    async def _metadata_update(
        self, cluster_metadata: ClusterMetadata, topics: set[str] | None
    ) -> bool:
        """Of these topics, and of all for None; False: no broker answers."""
        await self._pause()
        request = MetadataRequest(
            None if topics is None else list(topics), allow_auto_topic_creation=False
        )
        named = [_BOOTSTRAP] if (_BOOTSTRAP, ConnectionGroup.DEFAULT) in self._conns else []
        for node in [*self.nodes(), *named]:
            with suppress(KafkaError, TimeoutError):  # the next one may answer
                metadata = await self._asked(node, request)
                if not metadata.brokers:
                    return False
                cluster_metadata.update_metadata(metadata)
                self._note(cluster_metadata, topics)
                if named and self.cluster.brokers():  # it is known by more than its address now
                    self._conns.pop((_BOOTSTRAP, ConnectionGroup.DEFAULT)).close()
                return True
        cluster_metadata.failed_update(None)
        return False

    def set_topics(self, topics: Collection[str]) -> Any:
        """Asks for these from now on, and for those that are known already: a consumer that reads
        now this topic and now that would ask again each time."""
        known = {topic for topic in self._topics if self.cluster.partitions_for_topic(topic)}
        return super().set_topics(known.union(topics))

    async def _pause(self) -> None:
        if self._incomplete is not None:
            since = self._loop.time() - self._incomplete
            await asyncio.sleep(max(0.0, _REPEAT_SECONDS - since))

    def _note(self, metadata: ClusterMetadata, topics: set[str] | None) -> None:
        known = [metadata._partitions.get(topic) for topic in topics or ()]
        complete = all(
            found and all(each.leader != -1 for each in found.values()) for found in known
        )
        self._incomplete = None if complete else self._loop.time()


class Fetches(Fetcher):  # type: ignore[misc]
    """Of a consumer that has started: short waits while records come, long ones when all is quiet.

    What a fetch is asked to wait is decided when it is sent. While some records are not taken yet,
    their partitions are not in it, so that it must not last.
    """

    moved: float
    """When records were taken last, or others were assigned."""
    short_ms: int

    @classmethod
    def of(cls, consumer: AIOKafkaConsumer) -> "Fetches":
        """The consumer's own, which becomes one of these."""
        fetcher = consumer._fetcher
        fetcher.short_ms = fetcher._fetch_max_wait_ms
        fetcher.__class__ = cls
        assert isinstance(fetcher, cls)
        fetcher.stir()
        return fetcher

    def stir(self) -> None:
        """Something has come, or is to come."""
        self.moved = self._loop.time()

    @property
    def _fetch_max_wait_ms(self) -> int:
        quiet = not self._records and self._loop.time() - self.moved > _QUIET_SECONDS
        if not quiet:
            return self.short_ms
        partitions = len(self._subscriptions.assigned_partitions())
        wait = _QUIET_WAIT_MS + min(_PARTITION_WAIT_MS * partitions, _MOST_WAIT_MS)
        return max(self.short_ms, wait)


def adopted(client: Any) -> Client:
    """Makes one of ours of an `AIOKafkaClient` that has not started."""
    client.__class__ = Client
    assert isinstance(client, Client)
    client._failed = {}
    return client


def producer(connection: Connection, **arguments: Any) -> AIOKafkaProducer:
    """A producer, not started; `arguments` are aiokafka's."""
    made = AIOKafkaProducer(**connection.arguments, **arguments)
    adopted(made.client)
    return made


def consumer(connection: Connection, **arguments: Any) -> AIOKafkaConsumer:
    """A consumer, not started; `arguments` are aiokafka's."""
    made = AIOKafkaConsumer(**connection.arguments, **arguments)
    adopted(made._client)
    return made


def admin(connection: Connection) -> AIOKafkaAdminClient:
    """An admin client, not started."""
    made = AIOKafkaAdminClient(**connection.arguments)
    adopted(made._client)
    return made
