"""A rolling restart under load: as many workers as tasks, stopped and started one after the other.

Three replicas publish at a steady rate, with revisions. Meanwhile the worker that has run
the longest is stopped by SIGTERM, another is started in its place, and so on, for minutes. A
consumer of each output partition records how long nothing came. At the end everything has been
published, and the output is compared with the logical stream.
"""

import asyncio
import time
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.fleet import Merge, Report, log_line, staged
from benchmarks.load import Load, has_a_task, has_ended
from benchmarks.traffic import Arrivals, following
from lmerge_service.local.stage import Stage
from lmerge_service.local.worker import WorkerProcess

__all__ = ("Rolling", "roll")

_MS: Final = 1_000
_SETTLE_SECONDS: Final = 3.0
"""After a start, before the next stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolling:
    """How long, and how much."""

    minutes: float = 10
    workers: int = 3
    rate: float = 500
    """Events a second, of each of three replicas; some 1.2 to 1.7 elements each."""
    live: int = 2_000
    """Events live at a time."""


async def roll(rolling: Rolling, report: Report) -> bool:
    """Runs it, prints its progress, and returns whether the output is correct.

    Raises:
        LMergeError: a process could not be started, ended, or stopped moving.
    """
    async with staged() as stage:
        run = _Run(stage, rolling)
        await run.play()
        run.report(report)
        return await run.load.audit(log_line)


class _Run:
    def __init__(self, stage: Stage, rolling: Rolling):
        self._rolling = rolling
        self._seconds = rolling.minutes * 60
        self._merge = Merge(stage, "rolling", partitions=rolling.workers, time_unit="us")
        self.load = Load(
            stage, self._merge, rate=rolling.rate, live=rolling.live, seconds=self._seconds
        )
        self._workers: deque[WorkerProcess] = deque()
        self._silences: list[float] = []
        self._stops: list[float] = []
        self._undisturbed: list[float] = []
        self._arrivals: list[Arrivals] = []

    async def play(self) -> None:
        await self._merge.topics()
        for _ in range(self._rolling.workers):
            self._workers.append(await self._merge.worker())
        for worker in self._workers:
            await worker.until(has_a_task, "a task")
        partitions = range(self._rolling.workers)
        self._arrivals = [
            Arrivals(self._merge.connection, self._merge.output, p) for p in partitions
        ]
        async with AsyncExitStack() as stack:
            for arrivals in self._arrivals:
                await stack.enter_async_context(following(arrivals))
            await self.load.start()
            await asyncio.sleep(_SETTLE_SECONDS)
            while time.time() + _SETTLE_SECONDS < self.load.began + self._seconds:
                await self._restart()
            for worker in self._workers:
                await worker.until(has_ended, "the output to end", every=0.5)
        for worker in self._workers:
            await worker.end()

    async def _restart(self) -> None:
        """Of the worker that has run the longest."""
        quiet_since = time.time() - _SETTLE_SECONDS
        self._undisturbed.append(self._silence(quiet_since, time.time()))
        worker = self._workers.popleft()
        stopped = time.time()
        await worker.end()
        self._stops.append(time.time() - stopped)
        started = await self._merge.worker()
        await started.until(has_a_task, "a task or a standby's place")
        self._workers.append(started)
        self.load.check()
        await asyncio.sleep(_SETTLE_SECONDS)
        self._silences.append(self._silence(stopped, time.time()))
        log_line(
            f"restart {len(self._stops)}: {worker.name} ended in {self._stops[-1]:.2f} s, longest "
            f"time without output {self._silences[-1]:.2f} s"
        )

    def _silence(self, start: float, end: float) -> float:
        """The longest of any partition, in seconds."""
        return max(each.longest_gap(start, end) for each in self._arrivals)

    def report(self, report: Report) -> None:
        report("restarts", "", [len(self._stops)])
        for what, seconds in (
            ("longest time without output, a worker restarted", self._silences),
            ("longest time without output, nothing done", self._undisturbed),
            ("from SIGTERM to the end of the process", self._stops),
        ):
            report(what, "ms", [s * _MS for s in seconds])
        log_line(f"median silence {median(self._silences):.2f} s")
