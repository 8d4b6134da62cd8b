"""Processes of a stage: their logs, how they end, and that none outlives it."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from lmerge_service.errors import LMergeError
from lmerge_service.local.processes import Child, Processes

SLEEPS = (sys.executable, "-u", "-c", "import time; print('up'); time.sleep(60)")
FAILS = (sys.executable, "-c", "import sys; sys.exit('it cannot be done')")


def on(folder: Path, test: Callable[[Processes], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Processes(folder, die_with_us=True) as processes, asyncio.timeout(30):
            await test(processes)

    asyncio.run(run())


async def up(child: Child) -> None:
    while child.log_tail() != "up":  # noqa: ASYNC110 - a file
        await asyncio.sleep(0.02)


def test_one_that_fails_is_found_out_with_the_end_of_its_log(tmp_path: Path) -> None:
    async def test(processes: Processes) -> None:
        child = await processes.start(FAILS, "worker.log")
        assert await child.wait() == 1
        with pytest.raises(LMergeError, match="worker failed with 1: it cannot be done"):
            child.check()
        with pytest.raises(LMergeError, match="it cannot be done"):
            child.pause()
        child.resume()
        await child.end()

    on(tmp_path, test)


def test_one_that_was_killed_has_not_failed_by_itself(tmp_path: Path) -> None:
    async def test(processes: Processes) -> None:
        child = await processes.start(SLEEPS, "a.log")
        await child.kill()
        assert child.ended == -9
        child.check()

    on(tmp_path, test)


def test_one_that_is_paused_ends_at_once(tmp_path: Path) -> None:
    async def test(processes: Processes) -> None:
        child = await processes.start(SLEEPS, "a.log")
        await up(child)
        child.pause()
        stopped = psutil.STATUS_STOPPED
        while psutil.Process(child.pid).status() != stopped:  # noqa: ASYNC110 - it is polled
            await asyncio.sleep(0.02)
        async with asyncio.timeout(5):
            await child.end()
        assert child.ended == -15

    on(tmp_path, test)


def test_none_outlives_the_folder_that_it_writes_to(tmp_path: Path) -> None:
    children: list[Child] = []

    async def test(processes: Processes) -> None:
        children.extend([await processes.start(SLEEPS, f"{name}.log") for name in "ab"])
        children[0].pause()

    on(tmp_path, test)
    assert [child.ended for child in children] == [-15, -15]


def test_psutil_is_an_extra() -> None:
    """`lmerge up`, `down` and `demo` are imported without it, to report that it is missing."""
    rooms = (
        "local.processes",
        "local.up.plan",
        "local.up.runs",
        "demo.acting",
        "cli.up",
        "cli.demo",
    )
    imports = "; ".join(f"import lmerge_service.{room}" for room in rooms)
    code = f"import sys; sys.modules['psutil'] = None; {imports}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
