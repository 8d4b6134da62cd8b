"""The common parts of all demos: a stage with a monitored worker, a consumer that follows the
output, waiting for conditions, and the verdict at the end.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live

from lmerge_service.config import topology as topologies
from lmerge_service.demo.page import DemoPage
from lmerge_service.demo.throughput import Throughput
from lmerge_service.demo.verdict import DemoVerdict, find
from lmerge_service.demo.watch import plain_line, screen
from lmerge_service.errors import TransportError
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.follower import Follower
from lmerge_service.local.processes import Child
from lmerge_service.local.stage import Stage, shipped_topology
from lmerge_service.local.worker import WorkerProcess
from lmerge_service.service.status.document import Status
from lmerge_service.tdb import TDB

__all__ = ("DemoResult", "Play", "act", "judged", "staged", "until_done", "wait")


@dataclass(slots=True, kw_only=True)
class DemoResult:
    """The result of a demo."""

    finding: DemoVerdict
    of: str
    """What the events are: flights, facts."""
    count: int
    seconds: float
    news: list[str]
    throughput: Throughput | None = None


class Play:
    """The state of a running demo, in which a worker merges a topology that ships with the
    project."""

    def __init__(self, stage: Stage, console: Console, topology: str, patience: float = 60.0):
        """`patience`: for how many seconds the output may stand still while something is waited
        for."""
        path = shipped_topology(topology)
        self.stage, self.console, self.patience = stage, console, patience
        self.path = path
        self.connection = Connection(stage.bootstrap)
        self.merging = topologies.load(path, bootstrap=stage.bootstrap)
        self.worker = WorkerProcess(stage, "worker", path, ("--bootstrap", stage.bootstrap))
        self.follower = Follower(self.connection, self.merging.output.topic)
        self.started = time.monotonic()
        self.status: Status | None = None
        self.news: list[str] = []

    @property
    def topics(self) -> list[str]:
        """The replicas'."""
        return [replica.topic for replica in self.merging.replicas]

    def report(self, line: str) -> None:
        self.news.append(f"{time.monotonic() - self.started:4.1f} s  {line}")
        if not self.console.is_terminal:
            self.console.print(f"  * {self.news[-1]}", soft_wrap=True, highlight=False)


@asynccontextmanager
async def staged(folder: Path, bootstrap: str | None, console: Console) -> AsyncIterator[Stage]:
    """A stage around a Kafka of its own, or around the given one."""
    console.print("starting Apache Kafka …" if bootstrap is None else f"using Kafka at {bootstrap}")
    async with Stage(folder, bootstrap) as stage:
        yield stage


async def act(
    acting: Play, script: Callable[[], Awaitable[None]], page: DemoPage | None = None
) -> None:
    """The worker merges while a script is played; until the consumer has seen the end. With a
    `page`, a dashboard shows it.

    Raises:
        LMergeError: the worker has ended by itself, or something stopped moving.
    """
    async with Topics(acting.connection) as topics:
        for topic in acting.topics:
            await topics.ensure(topic)
    await acting.worker.start()
    acting.status = await acting.worker.running(seconds=30)
    address = ""
    if page is not None:
        path, at = str(acting.path), acting.worker.address
        address = await page.start(acting.stage, path, at, acting.console)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(acting.follower.run(), name="follower")
        looking = group.create_task(_look(acting), name="status")
        viewing = group.create_task(_view(acting), name="view")
        await script()
        await wait(acting, "the consumer to see the end", following.done)
        for task in (looking, viewing):
            task.cancel()
    if page is not None:
        await page.stay(address, acting.console)
    acting.report("the worker is stopped (SIGTERM)")
    await acting.worker.end()
    acting.worker.check()
    acting.console.print("reading everything back …")


async def judged(acting: Play, reference: TDB) -> DemoVerdict:
    """The verdict on what the topics hold."""
    output = acting.merging.output.topic
    return await find(acting.connection, reference, output, acting.topics, acting.follower.first)


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
