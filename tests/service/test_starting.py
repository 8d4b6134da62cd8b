"""A worker that starts while Kafka is away waits for it a little."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lmerge_service.config.topology import load
from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.errors import TransportError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import connection_of
from lmerge_service.service import worker as service
from lmerge_service.service.status.build import status_of
from tests.service.cluster import Merge, running

pytestmark = pytest.mark.kafka


class Door:
    """Stands before a broker as a load balancer does: it accepts connections, and while the broker
    is down it ends them."""

    def __init__(self, bootstrap: str) -> None:
        self.host, _, port = bootstrap.partition(":")
        self.port = int(port)
        self.open = False
        self.refused = 0

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.open:
            self.refused += 1
            writer.close()
            return
        inside, outside = await asyncio.open_connection(self.host, self.port)
        await asyncio.gather(_copied(reader, outside), _copied(inside, writer))


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def behind(door: Door, merge: Merge) -> AsyncIterator[None]:
    """The merge reaches its broker by this door."""
    server = await asyncio.start_server(door.meet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        merge.extra = {"kafka": {"bootstrap": f"127.0.0.1:{port}"}}
        merge.write()
        yield


def test_n18_a_worker_that_starts_while_its_broker_restarts_waits_for_it(
    bootstrap: str, tmp_path: Path
) -> None:
    """Found by the kill loop: broker and worker were killed at once, and the worker came first."""
    merge, door = Merge(bootstrap, tmp_path, ("a",)), Door(bootstrap)
    merge.publish("a", [Insert(b"1", 1, 5), Stable(INFINITY)])

    async def open_it() -> None:
        while door.refused < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        door.open = True

    async def run() -> None:
        async with behind(door, merge), asyncio.timeout(60):
            opening = asyncio.create_task(open_it())
            async with running(merge) as worker:
                while not status_of(worker).output.ended:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await opening

    asyncio.run(run())


def test_n18_it_does_not_wait_for_ever(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_START_SECONDS", 1.0)
    merge, door = Merge(bootstrap, tmp_path, ("a",)), Door(bootstrap)

    async def run() -> None:
        async with behind(door, merge):
            topology = load(merge.path)
            await service.Worker(topology, Cluster(connection_of(topology.kafka))).run()

    with pytest.raises(TransportError, match="ends the connection: it is down, or PLAINTEXT"):
        asyncio.run(run())
    assert door.refused >= 3
