"""The worker's process: its HTTP side, and its life between start and SIGTERM.

Who owns what
    `run` owns the HTTP server and the worker. SIGTERM and SIGINT cancel them; the process ends
    within 15 s even when Kafka is gone.
"""

import asyncio
import signal

import structlog

from lmerge_service.errors import LMergeError, single_error
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.service.connection import connection_of
from lmerge_service.service.http import application, serve
from lmerge_service.service.worker import Worker
from lmerge_service.topology import Topology

__all__ = ("run",)

log = structlog.get_logger()


async def run(topology: Topology, *, standby: bool = False) -> None:
    """Merges until SIGTERM or SIGINT, then returns.

    Raises:
        LMergeError: what ended the worker: fenced, a state that cannot be rebuilt, no Kafka.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        with single_error():
            async with asyncio.TaskGroup() as group:
                worker = group.create_task(_work(topology, standby), name="worker")
                await _first_of(stop, worker)
                worker.cancel()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    if not stop.is_set():
        raise LMergeError("the worker ended without being told to; start it again")
    log.info("stopped")


async def _first_of(stop: asyncio.Event, worker: asyncio.Task[None]) -> None:
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({stopped, worker}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()


async def _work(topology: Topology, standby: bool) -> None:
    cluster = Cluster(connection_of(topology.kafka))
    worker = Worker(topology, cluster, standby_only=standby)
    async with serve(application(worker), topology.http) as address:
        log.info("serving", address=address)
        await worker.run()
