"""The process around a replica: its HTTP side, and its life between start and SIGTERM."""

import asyncio

import structlog
from fastapi import Depends, FastAPI

from lmerge_service.http.access import Access
from lmerge_service.http.server import observed, serve
from lmerge_service.replicas.metrics import metrics_of
from lmerge_service.replicas.request import ReplicaRequest
from lmerge_service.replicas.running import QueryPhase, QueryReplica
from lmerge_service.replicas.status import QueryStatus, reasons_of, status_of
from lmerge_service.signals import orderly_end

__all__ = ("application", "run_replica")

log = structlog.get_logger()


def application(replica: QueryReplica, access: Access) -> FastAPI:
    """The routes over a replica; all run on the event loop, where nothing changes under them."""

    def readiness() -> str:
        ready = replica.phase in (QueryPhase.RUNNING, QueryPhase.ENDED)
        return "running" if ready else replica.phase

    app = observed(
        access, metrics_of(replica), reasons=lambda: reasons_of(replica), state=readiness
    )

    @app.get("/status", dependencies=[Depends(access.reads)])
    async def status() -> QueryStatus:
        """Everything the replica knows about its inputs, its plan and its output."""
        return status_of(replica)

    return app


async def run_replica(request: ReplicaRequest) -> bool:
    """Runs a replica until its facts end, or SIGTERM or SIGINT. True: they have ended.

    Raises:
        LMergeError: what ended it (`QueryReplica.run`).
        EnvironmentMissingError: its HTTP port is taken.
    """
    structlog.contextvars.bind_contextvars(to=request.to)
    replica, stop = QueryReplica(request), asyncio.Event()
    loop = asyncio.get_running_loop()
    with orderly_end(lambda _: loop.call_soon_threadsafe(stop.set)):
        async with serve(application(replica, Access(request.http)), request.http) as address:
            log.info("serving", address=address)
            ended = await _run(replica, stop)
    log.info("ended" if ended else "stopped")
    return ended


async def _run(replica: QueryReplica, stop: asyncio.Event) -> bool:
    """Until it ends, or is to stop: what it has begun is committed, a recovery is given up."""
    running = asyncio.create_task(replica.run(stop.is_set), name="replica")
    stopped = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not running.done() and replica.phase is not QueryPhase.RUNNING:
        running.cancel()
    try:
        return await running
    except asyncio.CancelledError:
        if not running.cancelled():  # it is us who are
            raise
        return False
