"""Processes of our own: each in a session of its own, with its output in a log file.

Who owns what
    A `Processes` owns every `Child` that is started in it, and ends each of them, by its id, when
    it is left: in the end, by an error, or by Ctrl-C (the terminal's signal reaches only us).
    Whatever they write is in one folder.

What happens on a crash
    We are killed: they die with us, or go on, by the option `die_with_us`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from lmerge_service.errors import LMergeError
from lmerge_service.local.jvm import launcher

if TYPE_CHECKING:
    import psutil

__all__ = ("END_SECONDS", "LMERGE", "Child", "Processes", "how_it_ended")

T = TypeVar("T")

LMERGE: Final = (sys.executable, "-m", "lmerge_service.cli")
"""This installation."""

END_SECONDS: Final = 16.0
"""From SIGTERM to SIGKILL: a worker takes 15 s at the most."""

_SIGNALS: Final = {each.value: each.name for each in signal.Signals}


def how_it_ended(code: int) -> str:
    """In words.

    >>> how_it_ended(0), how_it_ended(1), how_it_ended(-9)
    ('ended', 'failed with 1', 'killed by SIGKILL')
    """
    if code < 0:
        return f"killed by {_SIGNALS.get(-code, f'signal {-code}')}"
    return f"failed with {code}" if code else "ended"


class Processes:
    """Starts and ends processes; use as `async with`."""

    def __init__(self, folder: Path, *, die_with_us: bool, directory: Path | None = None):
        self.folder = folder
        self._die_with_us = die_with_us
        self._directory = directory or Path.cwd()
        self._children: list[Child] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(child.end() for child in self._children))

    async def start(
        self, command: Sequence[str], log: str, environment: Mapping[str, str] | None = None
    ) -> "Child":
        """Starts a command whose output is appended to a log file of the folder; its environment
        is ours unless another is given. The program's path must be absolute."""
        child = Child(self, command, log, environment)
        await child.start()
        return child

    async def launch(self, child: "Child") -> asyncio.subprocess.Process:
        """The process of a child, which is ended with all others."""
        self._children = [*(each for each in self._children if each.ended is None), child]
        with child.log.open("ab") as out:
            return await asyncio.create_subprocess_exec(
                *launcher(self._directory, dies_with_us=self._die_with_us),
                *child.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=child.environment,
            )


class Child:
    """One process, which is started once, and its log."""

    def __init__(
        self,
        processes: Processes,
        command: Sequence[str],
        log: str,
        environment: Mapping[str, str] | None = None,
    ):
        self.name = Path(log).stem
        self.log = processes.folder / log
        self.command = command
        self.environment = os.environ if environment is None else environment
        self._processes = processes
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False

    async def start(self) -> None:
        self._process = await self._processes.launch(self)

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """Its exit code, if it has ended."""
        return None if self._process is None else self._process.returncode

    async def wait(self) -> int:
        """Its exit code, when it has ended."""
        assert self._process is not None, "it was started"
        return await self._process.wait()

    def check(self) -> None:
        """
        Raises:
            LMergeError: it has failed by itself.
        """
        if self.ended and not self._killed:
            raise self.failure()

    def failure(self) -> LMergeError:
        """That it has ended, with the end of its log."""
        return LMergeError(f"{self.name} {how_it_ended(self.ended or 0)}: {self.log_tail()}")

    def log_tail(self, lines: int = 5) -> str:
        """The end of its log, for a message."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    @property
    def resident(self) -> int:
        """Bytes.

        Raises:
            LMergeError: it has ended.
        """
        return int(self._asked(lambda process: process.memory_info().rss))

    @property
    def cpu_seconds(self) -> float:
        """Processor time that it has taken, without its children's; raises as `resident`."""
        times = self._asked(lambda process: process.cpu_times())
        return float(times.user + times.system)

    @property
    def descriptors(self) -> int:
        """How many are open; raises as `resident`."""
        return self._asked(lambda process: process.num_fds())

    def _asked(self, question: "Callable[[psutil.Process], T]") -> T:
        import psutil  # an extra

        if self.ended is not None:
            raise self.failure()
        try:
            return question(psutil.Process(self.pid))
        except psutil.NoSuchProcess:
            raise self.failure() from None

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing.

        Raises:
            LMergeError: it has ended.
        """
        if not self._signal(signal.SIGSTOP):
            raise self.failure()

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    async def kill(self) -> None:
        """kill -9."""
        self._killed = self._killed or self.ended is None
        await self._kill()

    async def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    async def end(self, seconds: float = END_SECONDS) -> None:
        """SIGTERM, to a paused one too, and SIGKILL after a grace."""
        if not self._signal(signal.SIGTERM):
            return
        self.resume()
        try:
            async with asyncio.timeout(seconds):
                await self.wait()
        except TimeoutError:  # it hangs, which is a failure of its own
            await self._kill()

    def _signal(self, number: int) -> bool:
        """Whether it has not ended yet."""
        if self._process is None or self._process.returncode is not None:
            return False
        self._process.send_signal(number)
        return True
