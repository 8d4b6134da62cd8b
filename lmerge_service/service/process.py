"""The worker's process: its HTTP side, and its life between start and SIGTERM.

Who owns what
    `run` owns the HTTP server and the worker. The first SIGTERM or SIGINT cancels them; the
    process ends within 15 s even when Kafka is gone, and further signals do not cut that short.
"""

import asyncio

import structlog
from fastapi import Depends

from lmerge_service.config.topology import Topology
from lmerge_service.errors import LMergeError, single_error
from lmerge_service.http.access import Access
from lmerge_service.http.server import serve
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import connection_of
from lmerge_service.kafka.feedback import FeedbackFollower
from lmerge_service.merge.feedback import FeedbackOut, feedback_router
from lmerge_service.merge.tuning import quieten_garbage_collector, return_large_blocks
from lmerge_service.service.application import application
from lmerge_service.service.worker import Worker
from lmerge_service.signals import orderly_end

__all__ = ("run",)

log = structlog.get_logger()


async def run(topology: Topology, *, standby: bool = False) -> None:
    """Merges until SIGTERM or SIGINT, then returns.

    Raises:
        LMergeError: what ended the worker: fenced, a state that cannot be rebuilt, no Kafka.
    """
    structlog.contextvars.bind_contextvars(merge=topology.name)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    with orderly_end(lambda _: loop.call_soon_threadsafe(stop.set)), single_error():
        async with asyncio.TaskGroup() as group:
            worker = group.create_task(_work(topology, standby), name="worker")
            await _first_of(stop, worker)
            worker.cancel()
    if not stop.is_set():
        raise LMergeError("the worker ended without being asked to; start it again")
    log.info("stopped")


async def _first_of(stop: asyncio.Event, worker: asyncio.Task[None]) -> None:
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({stopped, worker}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()


async def _work(topology: Topology, standby: bool) -> None:
    connection, output = connection_of(topology.kafka), topology.output
    return_large_blocks()
    quieten_garbage_collector()

    def heeding() -> list[str]:
        """A replica that is normalised must leave out nothing."""
        attached = [] if worker.control is None else worker.control.ledger.attached()
        return [each.replica.name for each in attached if not each.replica.normalise]

    points = FeedbackOut(
        connection,
        output.topic,
        tasks=output.partitions,
        replicas=heeding,
        every=topology.feedback_seconds,
    )
    cluster = Cluster(connection, native=topology.engine_choice.is_native)
    worker = Worker(topology, cluster, standby_only=standby, feedback=points.update)
    structlog.contextvars.bind_contextvars(worker=worker.name)
    follower = FeedbackFollower(connection, [output.topic])
    access = Access(topology.http)
    app = application(worker, access, points)
    app.include_router(
        feedback_router(follower.board, heeding), dependencies=[Depends(access.reads)]
    )
    async with serve(app, topology.http) as address:
        log.info("serving", address=address)
        async with asyncio.TaskGroup() as group:
            merging = group.create_task(worker.run(), name="worker")
            feedback = group.create_task(_feed_back(worker, points, follower), name="feedback")
            await merging
            feedback.cancel()


async def _feed_back(worker: Worker, points: FeedbackOut, follower: FeedbackFollower) -> None:
    """Publishes points and knows those of all tasks, other workers' too, once there is Kafka."""
    while worker.members is None:  # noqa: ASYNC110 - it is set once, at the start
        await asyncio.sleep(0.1)
    async with follower:
        await points.run()
