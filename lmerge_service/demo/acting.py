"""The common parts of all demos: a monitored worker, a consumer that follows the output, and
waiting for conditions.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live

from lmerge_service.demo.stage import Process, Stage, shipped_topology
from lmerge_service.demo.throughput import Throughput
from lmerge_service.demo.verdict import Finding
from lmerge_service.demo.watch import Follower, StatusClient, plain_line, screen
from lmerge_service.errors import LMergeError, TransportError
from lmerge_service.service.status.document import Status

__all__ = ("Play", "Result", "act", "until_caught_up", "wait")


@dataclass(slots=True, kw_only=True)
class Result:
    """The result of a demo."""

    finding: Finding
    of: str
    """What the events are: flights, facts."""
    count: int
    seconds: float
    news: list[str]
    throughput: Throughput | None = None


@dataclass(slots=True)
class Play:
    """The state of a running demo."""

    stage: Stage
    console: Console
    address: str
    """Of the worker."""
    follower: Follower
    started: float = field(default_factory=time.monotonic)
    patience: float = 60.0
    """For how many seconds the output may stand still while something is waited for."""
    status: Status | None = None
    news: list[str] = field(default_factory=list)

    def report(self, line: str) -> None:
        self.news.append(f"{time.monotonic() - self.started:4.1f} s  {line}")
        if not self.console.is_terminal:
            self.console.print(f"  * {self.news[-1]}", soft_wrap=True, highlight=False)


async def act(
    acting: Play, topology: str, port: int, script: Callable[[], Awaitable[None]]
) -> None:
    """A worker merges a shipped topology while a script is played; until the consumer has seen the
    end.

    Raises:
        LMergeError: the worker has ended by itself, or something stopped moving.
    """
    worker = await acting.stage.lmerge(
        "run", str(shipped_topology(topology)), "--bootstrap", acting.stage.bootstrap,
        "--http-port", str(port), log="worker.log",
    )  # fmt: skip
    async with StatusClient(acting.address) as client, asyncio.TaskGroup() as group:
        await _until_running(acting, client, worker)
        following = group.create_task(acting.follower.run(), name="follower")
        looking = group.create_task(_look(acting, client, worker), name="status")
        viewing = group.create_task(_view(acting), name="view")
        await script()
        await wait(acting, "the consumer to see the end", following.done)
        for task in (looking, viewing):
            task.cancel()
    acting.report("the worker is stopped (SIGTERM)")
    await acting.stage.end(worker)
    if worker.returncode:
        raise LMergeError(f"the worker ended with {worker.returncode}: {_log_of(acting)}")


async def _look(acting: Play, client: StatusClient, worker: Process) -> None:
    """Keeps the status fresh, until cancelled.

    Raises:
        LMergeError: the worker has ended.
    """
    while True:
        acting.status = await client.get()
        if worker.returncode is not None:
            raise LMergeError(f"the worker ended with {worker.returncode}: {_log_of(acting)}")
        await asyncio.sleep(0.25)


async def _view(acting: Play) -> None:
    """Shows how things are, until cancelled."""
    if not acting.console.is_terminal:
        while True:
            elapsed = time.monotonic() - acting.started
            line = plain_line(acting.status, acting.follower, elapsed)
            acting.console.print(line, soft_wrap=True, highlight=False)
            await asyncio.sleep(2)
    with Live(console=acting.console, refresh_per_second=8) as live:
        while True:
            live.update(screen(acting.status, acting.follower, acting.news))
            await asyncio.sleep(0.2)


async def _until_running(acting: Play, client: StatusClient, worker: Process) -> None:
    """Raises TransportError when it takes longer than half a minute."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        acting.status = await client.get()
        if acting.status is not None and acting.status.state == "running":
            return
        if worker.returncode is not None:
            raise LMergeError(f"the worker ended with {worker.returncode}: {_log_of(acting)}")
        await asyncio.sleep(0.05)
    raise TransportError(f"the worker is not ready after 30 s: {_log_of(acting)}")


async def until_caught_up(acting: Play) -> None:
    """The worker has read all that there is."""
    await wait(
        acting,
        "the worker to catch up",
        lambda: (
            acting.status is not None
            and all(each.lag_records == 0 for each in acting.status.replicas)
        ),
    )


async def wait(acting: Play, what: str, condition: Callable[[], bool]) -> None:
    """Waits for a state; fails when the output has not moved for too long meanwhile."""
    seen, since = acting.follower.elements, time.monotonic()
    while not condition():
        if acting.follower.elements != seen:
            seen, since = acting.follower.elements, time.monotonic()
        elif time.monotonic() - since > acting.patience:
            raise TransportError(f"waited for {what}, but nothing moves: {_log_of(acting)}")
        await asyncio.sleep(0.02)


def _log_of(acting: Play) -> str:
    """The end of the worker's log."""
    return acting.stage.log_tail("worker.log")
