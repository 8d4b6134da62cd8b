"""A worker's HTTP side without a worker: its real routes for decisions' access, and documents that
a test writes. What is decided is in `asked`."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from lmerge_service.config.http import Http
from lmerge_service.http.server import serve

__all__ = ("TOKEN", "ServedWorker", "served")

TOKEN = "the-token-of-these-tests"


class ServedWorker:
    """What it answers, and what was asked of it."""

    def __init__(self, status: Mapping[str, Any]):
        self.status: Mapping[str, Any] | None = status
        self.token = TOKEN
        """That of who may decide."""
        self.refuses: str | None = None
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.gets: list[str] = []
        self.tokens: list[str | None] = []
        """Which came with requests for decisions."""
        self.address = ""

    def application(self) -> FastAPI:
        app = FastAPI()

        @app.get("/status")
        async def status() -> JSONResponse:
            self.gets.append("/status")
            return JSONResponse(self.status, 200 if self.status else 503)

        @app.get("/metrics")
        async def metrics() -> JSONResponse:
            return JSONResponse("process_resident_memory_bytes 5e+07\n")

        @app.get("/v1/decisions")
        async def decisions() -> dict[str, Any]:
            return {"decisions": []}

        @app.post("/v1/{path:path}")
        async def decide(path: str, request: Request) -> JSONResponse:
            self.tokens.append(request.headers.get("authorization"))
            if self.tokens[-1] != f"Bearer {self.token}":
                return JSONResponse({"detail": "changes need the control token"}, 401)
            body = await request.json()
            if path == "accept-gap" and "input" not in body:
                return JSONResponse({"error": "malformed", "message": "input: missing"}, 422)
            self.asked.append((path, body))
            if self.refuses is not None:
                return JSONResponse({"error": "state", "message": self.refuses}, 409)
            made = {"id": body["id"], "version": 2, "offset": 1, "action": path}
            return JSONResponse(made)

        return app


@contextmanager
def served(worker: ServedWorker) -> Iterator[ServedWorker]:
    """Serves on a free port, on a thread of its own."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    over = asyncio.Event()

    async def run() -> None:
        async with serve(worker.application(), Http(port=0)) as address:
            worker.address = address
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert ready.wait(30)
    yield worker
    loop.call_soon_threadsafe(over.set)
    thread.join(30)
    loop.close()
