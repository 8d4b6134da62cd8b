"""A worker as a process on a stage: started, asked, waited for, stopped, killed.

Who owns what
    The stage owns the process and ends it; a worker owns its log file, from which the times of
    what it did are taken, and the connection by which it is asked for its status.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx

from lmerge_service.errors import TransportError
from lmerge_service.local.broker import free_port
from lmerge_service.local.processes import END_SECONDS, LMERGE, Child
from lmerge_service.local.stage import Stage
from lmerge_service.service.status.document import Status

__all__ = ("WorkerProcess",)

_PATIENCE_SECONDS: Final = 1_800.0


class WorkerProcess(Child):
    """`lmerge run`, as a process."""

    def __init__(
        self, stage: Stage, name: str, topology: Path, options: Sequence[str] = ("--json",)
    ):
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        """Of its HTTP side."""
        self.started = time.time()
        self.peak = 0
        """The most resident memory seen while waiting, in bytes."""
        self.client = httpx.AsyncClient(base_url=self.address, timeout=2, trust_env=False)
        command = (*LMERGE, "run", str(topology), "--http-port", f"{port}", *options)
        super().__init__(stage, command, f"{name}.log", stage.environment)

    async def status(self) -> Status | None:
        """None while it does not answer.

        Raises:
            LMergeError: it has ended.
        """
        if self.ended is not None:
            raise self.failure()
        try:
            answer = await self.client.get("/status")
        except httpx.TransportError:
            return None
        return Status.model_validate_json(answer.content)

    async def until(
        self,
        reached: Callable[[Status], bool],
        what: str,
        *,
        every: float = 0.02,
        seconds: float = _PATIENCE_SECONDS,
    ) -> Status:
        """The first status for which `reached` holds, asked for every so many seconds.

        Raises:
            LMergeError: it has ended.
            TransportError: that takes longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            status = await self.status()
            self.peak = max(self.peak, self.resident)
            if status is not None and status.tasks and reached(status):
                return status
            await asyncio.sleep(every)
        raise TransportError(f"{self.name}: waited {seconds:g} s for {what}: {self.log_tail()}")

    async def running(self, seconds: float = _PATIENCE_SECONDS) -> Status:
        """Waits until it leads all that it is to lead."""
        return await self.until(
            lambda status: status.state == "running", "it to run", seconds=seconds
        )

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Its log entries of this kind; `at` is their time, in seconds of the wall clock."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                entry = json.loads(line)
                if entry.get("event") == event:
                    entry["at"] = datetime.fromisoformat(entry["timestamp"]).timestamp()
                    found.append(entry)
        return found

    async def kill(self) -> None:
        """kill -9."""
        await self.client.aclose()
        await super().kill()

    async def end(self, seconds: float = END_SECONDS) -> None:
        """SIGTERM, and waits for the end."""
        await self.client.aclose()
        await super().end(seconds)
