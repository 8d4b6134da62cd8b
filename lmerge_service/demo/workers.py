"""A worker as a process on a stage: started, asked, waited for, stopped, killed.

Who owns what
    The stage owns the process and ends it; a worker owns its log file, from which the times of
    what it did are taken.
"""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil

from lmerge_service.demo.stage import Process, Stage
from lmerge_service.demo.watch import StatusClient
from lmerge_service.errors import LMergeError
from lmerge_service.local.broker import free_port
from lmerge_service.service.status.document import Status

__all__ = ("Worker",)

T = TypeVar("T")

_PATIENCE_SECONDS: Final = 1_800.0


class Worker:
    """`lmerge run`, as a process."""

    def __init__(self, stage: Stage, name: str, path: Path):
        self.name = name
        self.started = time.time()
        self.address = ""
        """Of its HTTP side, once it is started."""
        self.peak = 0
        """The most resident memory seen while waiting, in bytes."""
        self._stage = stage
        self._path = path
        self._log = f"{name}.log"
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self._client = await self._stack.enter_async_context(StatusClient(self.address))
        self._process = await self._launch(port)
        self._usage = psutil.Process(self._process.pid)

    async def _launch(self, port: int) -> Process:
        return await self._stage.lmerge(
            "run", str(self._path), "--json", "--http-port", str(port), log=self._log
        )

    async def status(self) -> Status | None:
        """None while it does not answer.

        Raises:
            LMergeError: it has ended.
        """
        if self._process.returncode is not None:
            raise self._ended()
        return await self._client.get()

    async def wait(
        self, reached: Callable[[Status], bool], what: str, *, every: float = 0.02
    ) -> Status:
        """The first status for which `reached` holds, asked for every so many seconds.

        Raises:
            LMergeError: it has ended, or that takes over half an hour.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            status = await self.status()
            self.peak = max(self.peak, self.resident)
            if status is not None and status.tasks and reached(status):
                return status
            await asyncio.sleep(every)
        tail = self._stage.log_tail(self._log)
        raise LMergeError(f"worker {self.name}: waited too long for {what}: {tail}")

    async def running(self) -> Status:
        """Waits until it leads all that it is to lead."""
        return await self.wait(lambda status: status.state == "running", "it to run")

    @property
    def resident(self) -> int:
        """Bytes.

        Raises:
            LMergeError: it has ended.
        """
        return int(self._asked(self._usage.memory_info).rss)

    @property
    def descriptors(self) -> int:
        """How many are open; raises as `resident`."""
        return self._asked(self._usage.num_fds)

    def _asked(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except psutil.NoSuchProcess:
            raise self._ended() from None

    def _ended(self) -> LMergeError:
        return LMergeError(f"worker {self.name} ended: {self._stage.log_tail(self._log)}")

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Its log entries of this kind; `at` is their time, in seconds of the wall clock."""
        found = []
        for line in (self._stage.folder / self._log).read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                entry = json.loads(line)
                if entry.get("event") == event:
                    entry["at"] = datetime.fromisoformat(entry["timestamp"]).timestamp()
                    found.append(entry)
        return found

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._process.returncode

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        self._usage.suspend()

    def resume(self) -> None:
        """SIGCONT."""
        self._usage.resume()

    async def kill(self) -> None:
        """kill -9."""
        await self._stack.aclose()
        await self._stage.kill(self._process)

    async def end(self) -> None:
        """SIGTERM, and waits for the end."""
        await self._stack.aclose()
        await self._stage.end(self._process)
