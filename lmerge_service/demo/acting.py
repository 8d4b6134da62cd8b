"""The common parts of all demos: a monitored worker, a consumer that follows the output, and
waiting for conditions.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live

from lmerge_service.demo.throughput import Throughput
from lmerge_service.demo.verdict import Finding
from lmerge_service.demo.watch import Follower, plain_line, screen
from lmerge_service.errors import TransportError
from lmerge_service.local.processes import Child
from lmerge_service.local.stage import Stage
from lmerge_service.local.worker import Worker
from lmerge_service.service.status.document import Status

__all__ = ("Play", "Result", "act", "until_done", "wait")


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
    worker: Worker
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


async def act(acting: Play, script: Callable[[], Awaitable[None]]) -> None:
    """The worker merges while a script is played; until the consumer has seen the end.

    Raises:
        LMergeError: the worker has ended by itself, or something stopped moving.
    """
    await acting.worker.start()
    acting.status = await acting.worker.running(seconds=30)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(acting.follower.run(), name="follower")
        looking = group.create_task(_look(acting), name="status")
        viewing = group.create_task(_view(acting), name="view")
        await script()
        await wait(acting, "the consumer to see the end", following.done)
        for task in (looking, viewing):
            task.cancel()
    acting.report("the worker is stopped (SIGTERM)")
    await acting.worker.end()
    acting.worker.check()


async def _look(acting: Play) -> None:
    """Keeps the status fresh, until cancelled; raises LMergeError when the worker has ended."""
    while True:
        acting.status = await acting.worker.status()
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


async def until_done(acting: Play, replicas: Collection[Child]) -> None:
    """The replicas that still live have published everything, and the worker has read it.

    Raises:
        LMergeError: one has failed.
    """
    await wait(
        acting,
        "the replicas to finish",
        lambda: all(replica.ended is not None for replica in replicas),
    )
    for replica in replicas:
        replica.check()
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
            raise TransportError(
                f"waited for {what}, but nothing moves: {acting.worker.log_tail()}"
            )
        await asyncio.sleep(0.02)
