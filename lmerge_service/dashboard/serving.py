"""The dashboard as a process: it asks workers, keeps what they answer, and serves the page.

Who owns what
    `run` owns the tasks that ask workers, and the HTTP server; both end with it. The page has its
    own state for each browser that looks, which is forgotten when that leaves.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from lmerge_service.config.http import Http
from lmerge_service.dashboard.installed import MISSING, is_installed
from lmerge_service.dashboard.watching import Watched
from lmerge_service.errors import EnvironmentMissingError
from lmerge_service.http.server import serve
from lmerge_service.signals import orderly_end

__all__ = ("run",)

_SERVER: Final[Mapping[str, Any]] = {
    "lifespan": "on",
    "http": "h11",
    "ws": "websockets-sansio",
    "headers": [],
    "limit_concurrency": None,
    "timeout_keep_alive": 30,
    "ws_max_size": 1 << 20,
}


async def run(
    watched: Watched, where: Http, started: Callable[[str], Awaitable[None] | None]
) -> None:
    """Serves until SIGTERM or SIGINT; `started` is called with the address.

    Raises:
        EnvironmentMissingError: the extra `dashboard` is missing, or the port is taken.
    """
    if not is_installed():
        raise EnvironmentMissingError(MISSING)
    from lmerge_service.dashboard.page import application

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    app = application(watched, where)
    with orderly_end(lambda _: loop.call_soon_threadsafe(stop.set)):
        keeping = asyncio.create_task(watched.keep_up(), name="keeping up")
        try:
            async with serve(app, where, _SERVER) as address:
                if (later := started(address)) is not None:
                    await later
                stopped = asyncio.create_task(stop.wait())
                await asyncio.wait({stopped, keeping}, return_when=asyncio.FIRST_COMPLETED)
                stopped.cancel()
        finally:
            if keeping.done():
                keeping.result()
            keeping.cancel()
