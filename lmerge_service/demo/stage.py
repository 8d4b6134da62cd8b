"""The stage: files, broker, worker and publishers, each a process of its own.

Who owns what
    A `Stage` owns every process it starts, and ends each of them, by its id, when it is left: by
    the end of the play, by an error, or by Ctrl-C (children are in sessions of their own, so the
    terminal's signal reaches only the stage). They die with the stage if that is killed. Whatever
    it writes is in one folder.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from lmerge_service.errors import EnvironmentMissingError
from lmerge_service.kafka.broker import LocalBroker
from lmerge_service.kafka.jvm import launcher

__all__ = ("Stage", "shipped_topology")

Process = asyncio.subprocess.Process


class Stage:
    """Starts and ends processes; use as `async with`."""

    def __init__(self, folder: Path, bootstrap: str | None = None):
        self.folder = folder
        self._given = bootstrap
        self.bootstrap = ""
        self._stack = AsyncExitStack()
        self._processes: list[Process] = []

    async def __aenter__(self) -> "Stage":
        try:
            if self._given is None:
                broker = LocalBroker(self.folder / "kafka")
                await self._stack.enter_async_context(broker)
                self.bootstrap = broker.bootstrap
            else:
                self.bootstrap = self._given
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.gather(*map(self.end, self._processes))
        finally:
            await self._stack.aclose()

    async def lmerge(self, *arguments: str, log: str) -> Process:
        """Starts `lmerge ARGUMENTS` with its output in a log file of the stage's folder."""
        return await self.python("lmerge_service.cli", *arguments, log=log)

    async def python(self, module: str, *arguments: str, log: str) -> Process:
        """The same of any module that can be run."""
        with (self.folder / log).open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *launcher(Path.cwd(), dies_with_us=True),
                sys.executable,
                "-m",
                module,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=_environment(),
            )
        self._processes.append(process)
        return process

    async def kill(self, process: Process) -> None:
        """kill -9."""
        if process.returncode is None:
            process.kill()
            await process.wait()

    async def end(self, process: Process, seconds: float = 15) -> None:
        """SIGTERM, and SIGKILL after a grace."""
        if process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            await self.kill(process)

    def said(self, log: str, lines: int = 5) -> str:
        """The end of a log, for an error message."""
        path = self.folder / log
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def _environment() -> Mapping[str, str]:
    """Ours, without what would send the children to another broker."""
    return {name: value for name, value in os.environ.items() if name != "LMERGE_BOOTSTRAP"}


def shipped_topology(name: str) -> Path:
    """A topology that ships with the project, in a checkout or in an installed wheel."""
    package = Path(__file__).parent.parent
    for folder in (package / "topologies", package.parent / "topologies"):
        if (folder / name).is_file():
            return folder / name
    raise EnvironmentMissingError(f"{name} is not beside the package: install lmerge-service anew")
