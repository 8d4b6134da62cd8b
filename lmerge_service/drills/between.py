"""The links between brokers: one for each ordered pair, so that a node can be cut off from others.

Theory
    A node reaches the controller of another at a port that it is configured with: the link of that
    pair. But each broker gives all others one port at which it is reached as a broker, and nothing
    in Kafka's protocol names who connects. So a *door* stands on that port, which finds out
    which node's process has the other end of a connection, and hands it to the link of that pair.
    Clients go other ways.

Who owns what
    `Between` owns its doors and links; leaving it closes them all.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from itertools import product
from typing import Final, Self

import psutil

from lmerge_service.drills.proxy import Proxy, Target

__all__ = ("BROKERS", "CONTROLLERS", "Between")

BROKERS: Final = "BETWEEN"
CONTROLLERS: Final = "CONTROLLER"
_HOST: Final = "127.0.0.1"


class Between:
    """The doors and links of all nodes; use as `async with`."""

    def __init__(
        self,
        nodes: Iterable[int],
        behind: Callable[[int, str], tuple[str, int]],
        process: Callable[[int], int | None],
    ):
        """`behind` is where a node's listener really is, `process` the id of the process that is
        the node, if it runs."""
        self._nodes = list(nodes)
        self._behind, self._process = behind, process
        self._links = {
            (source, node): Proxy(partial(behind, node, CONTROLLERS))
            for source, node in product(self._nodes, repeat=2)
        }
        self._doors: dict[int, asyncio.Server] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for node in self._nodes:
            let_in = partial(self._let_in, node, partial(self._behind, node, BROKERS))
            door = self._doors[node] = await asyncio.start_server(let_in, _HOST, 0)
            self._stack.push_async_callback(door.wait_closed)
            self._stack.callback(door.close)
        for link in self._links.values():
            await self._stack.enter_async_context(link)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def door(self, node: int) -> int:
        """The port at which all others reach a node as a broker."""
        return int(self._doors[node].sockets[0].getsockname()[1])

    def controllers(self, source: int) -> Mapping[int, int]:
        """The ports at which a node reaches the controllers of the others, by node."""
        return {
            node: link.port
            for (of, node), link in self._links.items()
            if of == source and node != source
        }

    def cut(self, node: int) -> None:
        """From all others: bytes are dropped silently in both directions."""
        for pair, link in self._links.items():
            if node in pair and len({*pair}) == 2:  # what it sends to itself goes by a door, too
                link.cut()

    def mend(self) -> None:
        for link in self._links.values():
            link.reset()

    async def _let_in(
        self, node: int, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        port = writer.get_extra_info("peername")[1]
        source = await asyncio.to_thread(self._whose, port)
        if source is None:
            writer.transport.abort()  # it is gone already, or is not one of our nodes
            return
        await self._links[source, node].serve(target, reader, writer)

    def _whose(self, port: int) -> int | None:
        """The node that has a connection from this port."""
        for node in self._nodes:
            if (pid := self._process(node)) is None:
                continue
            try:
                connections = psutil.Process(pid).net_connections("tcp")
            except psutil.NoSuchProcess:
                continue
            if any(each.laddr.port == port and each.raddr for each in connections):
                return node
        return None
