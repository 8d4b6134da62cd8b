"""Processes of our own: each in a session of its own, with its output in a log file.

Who owns what
    A `Processes` owns every process that it starts, and ends each of them, by its id, when it is
    left: in the end, by an error, or by Ctrl-C (the terminal's signal reaches only us). Whatever
    they write is in one folder.

What happens on a crash
    We are killed: they die with us, or go on, by the option `die_with_us`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from lmerge_service.local.jvm import launcher

__all__ = ("END_SECONDS", "LMERGE", "Process", "Processes")

Process = asyncio.subprocess.Process

LMERGE: Final = (sys.executable, "-m", "lmerge_service.cli")
"""This installation."""

END_SECONDS: Final = 16.0
"""From SIGTERM to SIGKILL: a worker takes 15 s at the most."""


class Processes:
    """Starts and ends processes; use as `async with`."""

    def __init__(self, folder: Path, *, die_with_us: bool, directory: Path | None = None):
        self.folder = folder
        self._die_with_us = die_with_us
        self._directory = directory or Path.cwd()
        self._running: list[Process] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*map(self.end, self._running))

    async def start(
        self, command: Sequence[str], log: str, environment: Mapping[str, str] | None = None
    ) -> Process:
        """Starts a command whose output is appended to a log file of the folder; its environment
        is ours unless another is given. The program's path must be absolute."""
        self._running = [each for each in self._running if each.returncode is None]
        with (self.folder / log).open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *launcher(self._directory, dies_with_us=self._die_with_us),
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=os.environ if environment is None else environment,
            )
        self._running.append(process)
        return process

    async def kill(self, process: Process) -> None:
        """kill -9."""
        if process.returncode is None:
            process.kill()
            await process.wait()

    async def end(self, process: Process, seconds: float = END_SECONDS) -> None:
        """SIGTERM, and SIGKILL after a grace."""
        if process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            await self.kill(process)

    def log_tail(self, log: str, lines: int = 5) -> str:
        """The end of a log, for an error message."""
        path = self.folder / log
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
