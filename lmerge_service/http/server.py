"""The worker's HTTP side: health, readiness, status, metrics; `access` decides who may ask.

Who owns what
    `serve` owns the listening socket, bound before anything else so that an occupied port is
    found at once, and the uvicorn server, which leaves signals alone.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import Depends, FastAPI, Request, Response
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Receive, Scope, Send

from lmerge_service.config.topology import Http
from lmerge_service.errors import EnvironmentMissingError
from lmerge_service.http.access import HEADER_BYTES, Access, AccessMiddleware
from lmerge_service.http.exposition import exposed
from lmerge_service.http.listener import CONNECTIONS, RequestTimeoutProtocol

if TYPE_CHECKING:
    from lmerge_service.merge.decisions.control_log import Control

__all__ = ("guarded", "observed", "serve")

_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
]


def guarded(
    access: Access,
    registry: CollectorRegistry,
    control: "Callable[[], Control | None]",
    *,
    reasons: Callable[[], list[str]],
    state: Callable[[], str],
) -> FastAPI:
    """The routes of every merging process: those of `observed`, and decisions."""
    from lmerge_service.http.api import routes  # slow to import, and queries decide nothing

    app = observed(access, registry, reasons=reasons, state=state)
    reads, controls = [Depends(access.reads)], [Depends(access.controls)]
    app.include_router(routes(control, reads=reads, controls=controls))
    return app


def observed(
    access: Access,
    registry: CollectorRegistry,
    *,
    reasons: Callable[[], list[str]],
    state: Callable[[], str],
) -> FastAPI:
    """The routes of every process: health, readiness, and metrics.

    Health and readiness are open to everybody, since probes hold no secrets; the reasons, like
    everything else, only to those who may read.
    """
    app = FastAPI(title="lmerge", docs_url=None, redoc_url=None)
    app.add_middleware(_Heads)
    app.add_middleware(AccessMiddleware, access=access)  # the outermost

    @app.get("/healthz")
    async def healthz(request: Request) -> dict[str, str | list[str]]:
        """The process lives; `degraded` means that somebody should look, not that it should die."""
        found = reasons()
        shown = found if access.may_read(request) else []
        return {"health": "degraded" if found else "ok", "reasons": shown}

    @app.get("/readyz")
    async def readyz(response: Response) -> dict[str, str]:
        """200 while elements are merged, followed or emitted; 503 while the process starts or
        recovers, or cannot reach Kafka."""
        found = state()
        response.status_code = 200 if found in ("running", "standby") else 503
        return {"state": found}

    @app.get("/metrics", dependencies=[Depends(access.reads)])
    async def metrics(request: Request) -> Response:
        """The same for Prometheus, in the format that its Accept header prefers."""
        text, content_type = exposed(registry, request.headers.getlist("accept"))
        return Response(text, headers={"Content-Type": content_type, "Vary": "Accept"})

    return app


class _Heads:
    """ASGI middleware: HEAD is answered as GET is; the server leaves out the body."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the worker's."""
        yield


@asynccontextmanager
async def serve(
    app: ASGIApp, where: Http, settings: Mapping[str, Any] | None = None
) -> AsyncIterator[str]:
    """Serves until left; yields the address. `settings` are uvicorn's, over those of a worker.

    Raises:
        EnvironmentMissingError: the port is taken, or a certificate cannot be read any more.
    """
    listener, tls = _listen(where), _tls(where)
    host, port = listener.getsockname()[:2]
    own: dict[str, Any] = {
        "lifespan": "off",
        "http": RequestTimeoutProtocol,
        "ws": "none",
        "headers": _HEADERS,
        "limit_concurrency": CONNECTIONS // 2,
        "timeout_keep_alive": 5,
    }
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=CONNECTIONS,
            h11_max_incomplete_event_size=HEADER_BYTES,
            timeout_graceful_shutdown=2,
            ssl_context_factory=None if tls is None else lambda *_: tls,
            **{**own, **(settings or {})},
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    try:
        scheme = "http" if tls is None else "https"
        yield f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        server.should_exit = True
        await asyncio.wait([serving], timeout=4)
        listener.close()


def _tls(where: Http) -> ssl.SSLContext | None:
    try:
        return None if where.tls is None else where.tls.context()
    except ValueError as error:
        raise EnvironmentMissingError(f"TLS of the HTTP API: {error}") from None


def _listen(where: Http) -> socket.socket:
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    try:
        with ExitStack() as opened:
            listener = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((where.host, where.port))
            listener.listen(CONNECTIONS)  # whoever gets the address is not refused
            opened.pop_all()
            return listener
    except OSError as error:
        raise EnvironmentMissingError(
            f"cannot serve status on {where.host}:{where.port}: {error.strerror}; "
            "choose another http.port in the topology or with --http-port (0 takes a free one)"
        ) from None
