"""The process around a replica: its HTTP side, and its life between start and SIGTERM."""

import asyncio

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from lmerge_service.http.access import Access
from lmerge_service.http.observed import observed, observing
from lmerge_service.http.server import serve
from lmerge_service.replicas.metrics import metrics_of
from lmerge_service.replicas.request import ReplicaRequest
from lmerge_service.replicas.running import QueryPhase, QueryReplica
from lmerge_service.replicas.status import reasons_of, status_of
from lmerge_service.signals import orderly_end

__all__ = ("application", "run_replica")

log = structlog.get_logger()


def application(replica: QueryReplica, access: Access) -> Starlette:
    """The routes over a replica; all run on the event loop, where nothing changes under them."""

    def readiness() -> str:
        ready = replica.phase in (QueryPhase.RUNNING, QueryPhase.ENDED)
        return "running" if ready else replica.phase

    async def status(request: Request) -> Response:
        """Everything the replica knows about its inputs, its plan and its output."""
        await access.reads(request)
        return Response(status_of(replica).model_dump_json(), media_type="application/json")

    common = observing(
        access, metrics_of(replica), reasons=lambda: reasons_of(replica), state=readiness
    )
    return observed(access, {**common, "/status": status})


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
