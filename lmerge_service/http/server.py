"""The server of a process's HTTP side; `access` decides who may ask.

Who owns what
    `serve` owns the listening socket, bound before anything else so that an occupied port is
    found at once, and the uvicorn server, which leaves signals alone.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from lmerge_service.config.http import Http
from lmerge_service.errors import EnvironmentMissingError
from lmerge_service.http.access import HEADER_BYTES
from lmerge_service.http.listener import CONNECTIONS, RequestTimeoutProtocol

__all__ = ("serve",)

_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
]


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
