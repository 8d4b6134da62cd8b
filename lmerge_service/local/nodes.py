"""A local Kafka of several nodes: brokers that replicate to each other, each stoppable by itself.

Theory
    Each node is broker and controller. With three of them every topic is replicated three times
    and written when two replicas have it, Kafka's internal topics too; the quorum of controllers is
    two. So with one node down everything goes on; with two down writes wait, and go on when the
    second is back.

Who owns what
    `LocalCluster` owns a directory. In it `cluster.json` has what all nodes must agree on (the id
    of the cluster and the ports of the controllers), and `node-N` is the directory of a
    `LocalBroker`, whose documentation lists what it owns.

What happens on a crash
    As for `LocalBroker`, of each node. The first start writes `cluster.json` before any node is
    formatted, so nodes are never formatted with different ids.
"""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from lmerge_service.errors import ConfigurationError, StateError, TransportError
from lmerge_service.local.broker import (
    LocalBroker,
    Membership,
    free_port,
    is_free,
    members_seen,
    new_cluster_id,
)
from lmerge_service.local.jars import locked
from lmerge_service.local.runnable import Runnable

__all__ = ("NODES", "LocalCluster", "is_cluster")

NODES: Final = 3
"""The fewest with which one may be down and two still have everything."""

_FILE: Final = "cluster.json"
_HEAP_MB: Final = 320
_LAST_PORT: Final = 65_535
_POLL_SECONDS: Final = 0.1
_LAST_GRACE_SECONDS: Final = 3.0
"""Of a node that finds no quorum any more: it would wait for one before it ends."""


class _Agreed(msgspec.Struct, frozen=True):
    """What all nodes must agree on."""

    cluster: str
    controllers: dict[int, int]
    """Ports, by node."""


def is_cluster(directory: Path) -> bool:
    """Whether a directory is one of several nodes."""
    return (directory / _FILE).is_file()


class LocalCluster(Runnable):
    """Several brokers in `directory`, as one cluster; `async with`, or `start` and `stop`.

    Nodes are numbered from 1. `port` is the first node's, and the others have those that follow;
    without it each has the one that it had, or a free one. `detached`, `settings` and `listeners`
    are as of a `LocalBroker`, for each node; `advertised` is by node. `voters` are, by node, the
    ports at which it reaches the controllers of others, if that is not directly.

    Raises:
        ConfigurationError: the directory belongs to a broker of one node, or to another number of
            nodes; or there are not so many ports.
        StateError: `cluster.json` cannot be read.
    """

    def __init__(
        self,
        directory: Path | str,
        nodes: int | None = None,
        port: int = 0,
        *,
        detached: bool = False,
        settings: Mapping[str, str] | None = None,
        listeners: Sequence[str] = (),
        advertised: Mapping[int, Mapping[str, int]] | None = None,
        voters: Mapping[int, Mapping[int, int]] | None = None,
        timeout: float = 120.0,
    ):
        self.directory = Path(directory).absolute()
        self._port = port
        self._detached = detached
        self._settings = settings or {}
        self._listeners = listeners
        self._advertised = advertised or {}
        self._voters = voters or {}
        self._timeout = timeout
        self._requested = nodes
        agreed = self._written() or _agreed(range(1, (nodes or NODES) + 1))
        if port + len(agreed.controllers) - 1 > _LAST_PORT:
            raise ConfigurationError(
                f"port {port}: {len(agreed.controllers)} nodes need as many ports from there on"
            )
        self._agree(agreed)

    # --- what there is -------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[int, LocalBroker]:
        """All nodes, whether they run or not."""
        return self._nodes

    def node(self, number: int) -> LocalBroker:
        """
        Raises:
            ConfigurationError: there is no such node.
        """
        if number not in self._nodes:
            there = ", ".join(map(str, self._nodes))
            raise ConfigurationError(f"there is no node {number}: {self.directory} has {there}")
        return self._nodes[number]

    @property
    def running(self) -> list[int]:
        """The nodes that run; paused counts."""
        return [number for number, node in self._nodes.items() if node.running]

    @property
    def bootstrap(self) -> str:
        """host:port of each node that was ever started, for clients; whether it runs or not."""
        return ",".join(node.bootstrap for node in self._nodes.values() if node.started)

    def controller(self, number: int) -> int:
        """The port on which a node's controller listens."""
        return self._agreed.controllers[number]

    # --- starting ------------------------------------------------------------------------------

    def start(self, number: int | None = None) -> bool:
        """As `astart`, for callers without an event loop."""
        return asyncio.run(self.astart(number))

    async def astart(self, number: int | None = None) -> bool:
        """Starts one node, or all that do not run; whether they answer.

        It waits until each that runs knows of all others that do. With one node that has no
        quorum, since most others are down, there is nothing to wait for.

        Raises:
            ConfigurationError, EnvironmentMissingError, StateError, TransportError: as
                `LocalBroker.astart`; nodes that were started here are killed then.
        """
        with await asyncio.to_thread(locked, self.directory / "lock"):
            self._settle()
            numbers = [number] if number is not None else list(self._nodes)
            fresh = [each for each in numbers if not self.node(each).running]
            quorum = 2 * len({*self.running, *fresh}) > len(self._nodes)
            try:
                await _all(self._nodes[each].astart(wait=quorum) for each in fresh)
                if quorum:
                    await self._until_they_know_each_other()
            except BaseException:
                for each in fresh:
                    self._nodes[each].kill()
                raise
            return quorum

    async def _until_they_know_each_other(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                while not await self._know_each_other():  # noqa: ASYNC110 - brokers are asked
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise TransportError(
                f"the nodes in {self.directory} did not find each other in {self._timeout:g} s; "
                f"their logs are node-N/kafka.log there"
            ) from None

    async def _know_each_other(self) -> bool:
        """Whether each node that runs, and is not paused, names all of these in its metadata."""
        up = {number: node for number, node in self._nodes.items() if node.running}
        able = {number: node for number, node in up.items() if not node.paused}
        return all([able.keys() <= await members_seen(node.port) for node in able.values()])

    # --- stopping ------------------------------------------------------------------------------

    def stop(self, number: int | None = None, grace: float = 20.0) -> None:
        """Ends one node, or all, in order: SIGTERM, then SIGKILL after `grace` seconds."""
        for each in [number] if number is not None else sorted(self._nodes, reverse=True):
            node = self.node(each)
            quorum = 2 * len({*self.running, each}) > len(self._nodes)
            node.stop(grace if quorum else _LAST_GRACE_SECONDS)

    async def astop(self, number: int | None = None, grace: float = 20.0) -> None:
        """`stop` without blocking the event loop."""
        await asyncio.to_thread(self.stop, number, grace)

    def kill(self) -> None:
        """kill -9 of all nodes."""
        for node in self._nodes.values():
            node.kill()

    def clean(self) -> None:
        """Removes the data of all nodes, and what makes them a cluster.

        Raises:
            ConfigurationError: one runs.
        """
        if not self.directory.is_dir():
            return
        with locked(self.directory / "lock"):
            if running := self.running:
                raise ConfigurationError(
                    f"nodes {', '.join(map(str, running))} run in {self.directory}: stop them first"
                )
            for node in self._nodes.values():
                node.clean()
                with suppress(OSError):  # other files there stay
                    (node.directory / "lock").unlink()
                    node.directory.rmdir()
            (self.directory / _FILE).unlink(missing_ok=True)

    # --- what nodes agree on -------------------------------------------------------------------

    def _written(self) -> _Agreed | None:
        try:
            content = (self.directory / _FILE).read_bytes()
        except FileNotFoundError:
            if (self.directory / "data").is_dir():
                raise ConfigurationError(
                    f"{self.directory} holds a broker of one node: `lmerge broker clean` removes "
                    "it, or use another directory"
                ) from None
            return None
        try:
            found = msgspec.json.decode(content, type=_Agreed)
        except msgspec.MsgspecError as error:
            raise StateError(f"{self.directory / _FILE} cannot be read: {error}") from None
        if self._requested not in (None, len(found.controllers)):
            raise ConfigurationError(
                f"{self.directory} has {len(found.controllers)} nodes, not {self._requested}: "
                "`lmerge broker clean` removes them, or use another directory"
            )
        return found

    def _settle(self) -> None:
        """With the lock: what was written stays, but for controllers' ports that another program
        has taken since, if no node runs that knows them."""
        agreed = self._written() or self._agreed
        if not any(node.running for node in self._nodes.values()):
            ports = agreed.controllers
            lost = [node for node, port in ports.items() if not is_free(port)]
            agreed = msgspec.structs.replace(
                agreed, controllers={**ports, **_agreed(lost, but=ports.values()).controllers}
            )
        if agreed != self._written():
            fresh = self.directory / f"{_FILE}.new"
            fresh.write_bytes(msgspec.json.encode(agreed))
            fresh.replace(self.directory / _FILE)
        if agreed != self._agreed:
            self._agree(agreed)

    def _agree(self, agreed: _Agreed) -> None:
        self._agreed = agreed
        self._nodes = {number: self._make(number) for number in agreed.controllers}

    def _make(self, number: int) -> LocalBroker:
        ports = self._agreed.controllers
        return LocalBroker(
            self.directory / f"node-{number}",
            self._port and self._port + number - 1,
            detached=self._detached,
            settings=_settings(len(ports)) | dict(self._settings),
            listeners=self._listeners,
            advertised=self._advertised.get(number),
            membership=Membership(
                cluster=self._agreed.cluster,
                node=number,
                controller=ports[number],
                voters={**ports, **self._voters.get(number, {})},
                heap_mb=_HEAP_MB,
            ),
            timeout=self._timeout,
        )


def _agreed(nodes: Iterable[int], but: Collection[int] = ()) -> _Agreed:
    """A new cluster, with free ports for the controllers of these nodes."""
    taken, controllers = set(but), dict[int, int]()
    for number in nodes:
        controllers[number] = free_port(but=taken)
        taken.add(controllers[number])
    return _Agreed(new_cluster_id(), controllers)


def _settings(nodes: int) -> dict[str, str]:
    """How often everything is replicated, and how many replicas must have what was written."""
    copies, least = str(min(nodes, 3)), str(min(nodes, 2))
    return {
        # All start at once, and a busy machine is slow: else a node ends when it was not let in for
        # a minute.
        "initial.broker.registration.timeout.ms": "120000",
        # Kafka's own session, and twice its patience with a controller: nodes that share two busy
        # cores take each other for dead too easily.
        "broker.session.timeout.ms": "9000",
        "broker.heartbeat.interval.ms": "1000",
        "controller.quorum.fetch.timeout.ms": "4000",
        "controller.quorum.request.timeout.ms": "4000",
        "default.replication.factor": copies,
        "min.insync.replicas": least,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": least,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": least,
    }


async def _all(starting: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All at once; when one fails the others end first, and then its error is raised."""
    tasks = [asyncio.ensure_future(each) for each in starting]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
