"""The dashboard beside a play: a process of the stage, that ends with it."""

import asyncio
import contextlib
import sys
import webbrowser
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from rich.console import Console

from lmerge_service.local.broker import free_port
from lmerge_service.local.stage import Stage

__all__ = ("DemoPage",)

_PREFERRED: Final = 8320


@dataclass(frozen=True, slots=True)
class DemoPage:
    """How the dashboard is shown."""

    watch: bool = False
    """It is opened in a browser, and stays at the end until somebody presses Enter."""

    async def start(self, stage: Stage, topology: str, worker: str, console: Console) -> str:
        """Starts it over a worker's address; its own address."""
        port = free_port(_PREFERRED)
        address = f"http://127.0.0.1:{port}"
        await stage.lmerge(
            "dashboard", topology, worker, "--port", str(port), "--bootstrap", stage.bootstrap,
            log="dashboard.log",
        )  # fmt: skip
        console.print(f"the dashboard is at {address}", style="bold", highlight=False)
        if self.watch:
            await asyncio.to_thread(webbrowser.open, address)
        return address

    async def stay(self, address: str, console: Console) -> None:
        """Until somebody presses Enter, where anybody can."""
        if not (self.watch and sys.stdin is not None and sys.stdin.isatty()):
            return
        console.print(f"the merge is complete; {address} stays until you press Enter …")
        async with _line_of(sys.stdin.fileno()) as entered:
            await entered.wait()


@contextlib.asynccontextmanager
async def _line_of(keyboard: int) -> AsyncIterator[asyncio.Event]:
    """Set once there is a line to be read: no thread is left that waits for one."""
    loop, entered = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(keyboard, entered.set)
    try:
        yield entered
    finally:
        loop.remove_reader(keyboard)
