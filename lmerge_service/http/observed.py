"""The routes of every process: health, readiness, and metrics.

A process that has no more than these, and some of its own, is served without FastAPI, which takes a
tenth of its start to import: it reads no bodies, and has no schema.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lmerge_service.http.access import Access, AccessMiddleware
from lmerge_service.http.exposition import exposed

__all__ = ("Handler", "behind_access", "observed", "observing")

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

_READY: Final = ("running", "standby")


def observed(access: Access, handlers: Mapping[str, Handler]) -> Starlette:
    """An application of nothing but these, by path."""
    app = Starlette(
        routes=[Route(path, handler) for path, handler in handlers.items()],
        exception_handlers={HTTPException: _refused},
    )
    behind_access(app, access)
    return app


def observing(
    access: Access,
    registry: CollectorRegistry,
    *,
    reasons: Callable[[], list[str]],
    state: Callable[[], str],
) -> dict[str, Handler]:
    """What answers, by path.

    Health and readiness are open to everybody, since probes hold no secrets; the reasons, like
    everything else, only to those who may read.
    """

    async def healthz(request: Request) -> Response:
        """The process lives; `degraded` means that somebody should look, not that it should die."""
        found = reasons()
        shown = found if access.may_read(request) else []
        return JSONResponse({"health": "degraded" if found else "ok", "reasons": shown})

    async def readyz(_: Request) -> Response:
        """200 while elements are merged, followed or emitted; 503 while the process starts or
        recovers, or cannot reach Kafka."""
        found = state()
        return JSONResponse({"state": found}, 200 if found in _READY else 503)

    async def metrics(request: Request) -> Response:
        """The same for Prometheus, in the format that its Accept header prefers."""
        await access.reads(request)
        text, content_type = exposed(registry, request.headers.getlist("accept"))
        return Response(text, headers={"Content-Type": content_type, "Vary": "Accept"})

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}


def behind_access(app: Starlette, access: Access) -> None:
    """Has an application see only what it may be asked, and HEAD as GET."""
    app.add_middleware(_Heads)
    app.add_middleware(AccessMiddleware, access=access)  # the outermost


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


class _Heads:
    """ASGI middleware: HEAD is answered as GET is; the server leaves out the body."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
