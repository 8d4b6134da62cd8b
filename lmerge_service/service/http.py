"""The worker's HTTP side, read-only and on loopback: health, readiness, status, metrics.

Who owns what
    `serve` owns the listening socket, bound before anything else so that an occupied port is
    found at once, and the uvicorn server, which leaves signals alone.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from lmerge_service.errors import EnvironmentMissingError
from lmerge_service.service.metrics import metrics_of
from lmerge_service.service.status import Status, readiness_of, status_of
from lmerge_service.service.worker import Worker
from lmerge_service.topology import Http

__all__ = ("application", "serve")


def application(worker: Worker) -> FastAPI:
    """The routes over a worker; all run on the event loop, where nothing changes under them."""
    app = FastAPI(title="lmerge", docs_url=None, redoc_url=None)
    registry = metrics_of(worker)

    @app.get("/healthz")
    async def healthz() -> dict[str, str | list[str]]:
        """The process lives; `degraded` says that somebody should look, not that it should die."""
        status = status_of(worker)
        return {"health": status.health, "reasons": status.reasons}

    @app.get("/readyz")
    async def readyz(response: Response) -> dict[str, str]:
        """200 while elements are merged, or followed; 503 while the worker starts or recovers,
        or cannot reach Kafka."""
        state = readiness_of(worker)
        response.status_code = 200 if state in ("running", "standby") else 503
        return {"state": state}

    @app.get("/status")
    async def status() -> Status:
        """Everything the worker knows about its replicas and its output."""
        return status_of(worker)

    @app.get("/metrics")
    async def metrics() -> Response:
        """The same for Prometheus."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the worker's."""
        yield


@asynccontextmanager
async def serve(app: FastAPI, where: Http) -> AsyncIterator[str]:
    """Serves until left; yields the address.

    Raises:
        EnvironmentMissingError: the port is taken.
    """
    listener = _listen(where)
    host, port = listener.getsockname()[:2]
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            limit_concurrency=64,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=2,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    try:
        yield f"http://{host}:{port}" if ":" not in host else f"http://[{host}]:{port}"
    finally:
        server.should_exit = True
        await asyncio.wait([serving], timeout=4)
        listener.close()


def _listen(where: Http) -> socket.socket:
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    try:
        with ExitStack() as opened:
            listener = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((where.host, where.port))
            opened.pop_all()
            return listener
    except OSError as error:
        raise EnvironmentMissingError(
            f"cannot serve status on {where.host}:{where.port}: {error.strerror}; "
            "choose another http.port in the topology or with --http-port (0 takes a free one)"
        ) from None
