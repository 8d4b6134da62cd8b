"""The brokers of a drill, and the links by which each party reaches them.

Theory
    Each party (worker or replica) reaches each broker by a listener of its own, and the port that
    the broker advertises to clients of that listener is a proxy's. So each link can be impaired
    separately, and no client can bypass its proxy. Observers use the plain listener. Where links
    between brokers are to be cut, brokers reach each other in the same way (`between`).

Who owns what
    `Brokers` owns the brokers' processes and all proxies; leaving it ends them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeAlias

import psutil

from lmerge_service.drills.between import BROKERS, CONTROLLERS, Between
from lmerge_service.drills.plan import OUTPUT, WORKERS_GROUP, DrillError, DrillPlan
from lmerge_service.drills.proxy import Proxy
from lmerge_service.drills.roles import ROLES, Role, holder
from lmerge_service.errors import TransportError
from lmerge_service.kafka.connection import Connection
from lmerge_service.local.broker import SETTINGS
from lmerge_service.local.nodes import LocalCluster

__all__ = ("Brokers", "Node")

Node: TypeAlias = int | Role | None
"""A broker by its number or by what it does now; None: all."""

_HOST: Final = "127.0.0.1"
_PROTOCOLS: Final = "listener.security.protocol.map"


class Brokers:
    """One broker or several; use as `async with`.

    Those that are asked to do something with a `Node` return which brokers these were, for people.
    """

    def __init__(self, folder: Path, plan: DrillPlan, workers: Sequence[str]):
        self.kills = 0
        """How often one was killed."""
        self._numbers = range(1, plan.nodes + 1)
        self.links = {
            name: Proxy(
                *(partial(self._behind, node, name.upper()) for node in self._numbers),
                traps=name in workers or name in plan.plans,
            )
            for name in (*workers, *plan.replicas)
        }
        """By party."""
        self._between = (
            Between(self._numbers, self._behind, self._process) if plan.broker_links else None
        )
        self._folder = folder / "kafka"
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Proxies first, since brokers advertise their ports."""
        try:
            for link in self.links.values():
                await self._stack.enter_async_context(link)
            if self._between is not None:
                await self._stack.enter_async_context(self._between)
            self._cluster = self._configured()
            await self._stack.enter_async_context(self._cluster)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _configured(self) -> LocalCluster:
        listeners = [name.upper() for name in self.links]
        advertised = {
            node: {name.upper(): link.ports[node - 1] for name, link in self.links.items()}
            for node in self._numbers
        }
        settings, voters = {"num.network.threads": "1"}, dict[int, Mapping[int, int]]()
        if self._between is not None:
            listeners.append(BROKERS)
            settings["inter.broker.listener.name"] = BROKERS
            for node in self._numbers:
                advertised[node][BROKERS] = self._between.door(node)
                voters[node] = self._between.controllers(node)
        protocols = ",".join(f"{name}:PLAINTEXT" for name in listeners)
        return LocalCluster(
            self._folder,
            len(self._numbers),
            settings={_PROTOCOLS: f"{SETTINGS[_PROTOCOLS]},{protocols}", **settings},
            listeners=listeners,
            advertised=advertised,
            voters=voters,
        )

    def _behind(self, node: int, listener: str) -> tuple[str, int]:
        """Where a node's listener really is."""
        if listener == CONTROLLERS:
            return _HOST, self._cluster.controller(node)
        host, _, port = self._cluster.node(node).address(listener).rpartition(":")
        return host, int(port)

    def _process(self, node: int) -> int | None:
        broker = self._cluster.node(node)
        return broker.pid if broker.running else None

    @property
    def bootstrap(self) -> str:
        """Of all nodes, for observers."""
        return self._cluster.bootstrap

    def bootstrap_of(self, party: str) -> str:
        """Of all nodes, by the links of a party."""
        return ",".join(f"{_HOST}:{port}" for port in self.links[party].ports)

    # --- faults --------------------------------------------------------------------------------

    async def kill(self, node: Node = None) -> str:
        """kill -9."""
        nodes = await self._found(node)
        for each in nodes:
            await asyncio.to_thread(self._cluster.node(each).kill)
        self.kills += len(nodes)
        return _named(nodes)

    async def end(self, node: Node = None) -> str:
        """SIGTERM, and its end is waited for."""
        nodes = await self._found(node)
        for each in nodes:
            await self._cluster.astop(each)
        return _named(nodes)

    async def start(self, node: int | None = None) -> None:
        """With the data that it had, or all that are down; returns when they answer."""
        await self._cluster.astart(node)

    async def pause(self, node: Node = None) -> str:
        """SIGSTOP."""
        nodes = await self._found(node)
        for each in nodes:
            self._cluster.node(each).pause()
        return _named(nodes)

    def resume(self) -> None:
        """SIGCONT, to all."""
        for broker in self._cluster.nodes.values():
            broker.resume()

    async def cut(self, node: int | Role) -> str:
        """From the other brokers; clients still reach it."""
        if self._between is None:
            raise DrillError("brokers reach each other without links: `broker_links: true`")
        nodes = await self._found(node)
        for each in nodes:
            self._between.cut(each)
        return _named(nodes)

    def mend(self) -> None:
        """Removes all toxics of all links."""
        for link in self.links.values():
            link.reset()
        if self._between is not None:
            self._between.mend()

    def fill_disk(self) -> None:
        """No file of the brokers can grow any more: their writes fail as on a full disk.

        What a process without rights can do: a limit on the size of files (RLIMIT_FSIZE), so that
        errno is EFBIG and not ENOSPC; Kafka takes any IOException of its log for a broken disk.
        """
        for broker in self._cluster.nodes.values():
            psutil.Process(broker.pid).rlimit(psutil.RLIMIT_FSIZE, (1, 1))

    async def _found(self, node: Node) -> list[int]:
        """
        Raises:
            DrillError: there is no such broker, or Kafka does not answer.
        """
        if node is None:
            return list(self._numbers)
        if isinstance(node, int):
            if node not in self._numbers:
                raise DrillError(f"there is no broker {node}: `nodes` is {len(self._numbers)}")
            return [node]
        if node not in ROLES:
            raise DrillError(f"there is no broker {node!r}: choose from {', '.join(ROLES)}")
        try:
            return [await holder(Connection(self.bootstrap), node, OUTPUT, WORKERS_GROUP)]
        except TransportError as error:
            raise DrillError(f"which broker is the {node}: {error}") from error


def _named(nodes: Sequence[int]) -> str:
    return f"node {', '.join(map(str, nodes))}"
