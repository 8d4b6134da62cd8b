"""The service for a long time: workers that are restarted, a replica that is killed, and bounds.

Two workers share two tasks and stand by for each other. One of them, the *witness*, is never
touched: its memory and its descriptors show leaks. The other is restarted five times, by kill -9
and by SIGTERM in turn. Three replicas publish at a steady rate, with revisions; a third of the way
one of them is killed, and comes back half way as another incarnation. At the end everything has
been published, and the output is compared with the logical stream.

What is judged
    Memory by the slope of a line through what was resident, descriptors by the fewest that were
    open at the end against those at the beginning; both after a warm-up of a quarter of the time.
    A slope over less than two minutes is not significant and is not judged.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import linear_regression
from typing import Final, TypeAlias

from benchmarks.fleet import Merge, staged
from benchmarks.load import Load, has_a_task, has_ended
from lmerge_service.local.stage import Stage
from lmerge_service.local.worker import WorkerProcess
from lmerge_service.service.status.document import Status, TaskStatus

__all__ = ("Bounds", "Sample", "Soaking", "grown", "soak")

_Step: TypeAlias = Callable[[], Awaitable[None]]

_RESTARTS: Final = 5
_WARM_UP: Final = 0.25
_JUDGED_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 1.0
_SNAPSHOT_SECONDS: Final = 10.0
_KILLED: Final = 1
"""Which of the replicas is killed."""
_MB: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Soaking:
    """How long, and how much."""

    minutes: float = 10
    rate: float = 800
    """Events a second, of each of three replicas; some 1.2 to 1.7 elements each."""
    live: int = 2_000
    """Events live at a time."""
    every: float = 60
    """Seconds between lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the witness may not exceed."""

    megabytes_a_minute: float = 1.0
    descriptors: int = 8
    """More open at the end than after the warm-up."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A look at a worker."""

    at: float
    """Seconds."""
    resident: int
    """Bytes."""
    descriptors: int


def grown(samples: Sequence[Sample], bounds: Bounds) -> list[str]:
    """What has grown beyond its bound, in words."""
    warm, found = _warm(samples), []
    if not warm:
        return ["nothing was seen of the worker"]
    slope = _slope(warm)
    if warm[-1].at - warm[0].at >= _JUDGED_SECONDS and slope > bounds.megabytes_a_minute:
        found.append(f"memory grows by {slope:.2f} MB/min, over {bounds.megabytes_a_minute:g}")
    third = max(1, len(warm) // 3)
    before, after = (min(s.descriptors for s in part) for part in (warm[:third], warm[-third:]))
    if after - before > bounds.descriptors:
        found.append(f"descriptors grow from {before} to {after}")
    return found


def _warm(samples: Sequence[Sample]) -> Sequence[Sample]:
    return samples[int(len(samples) * _WARM_UP) :]


def _slope(samples: Sequence[Sample]) -> float:
    """MB a minute."""
    if len(samples) < 2:
        return 0.0
    times, sizes = [s.at / 60 for s in samples], [s.resident / _MB for s in samples]
    return linear_regression(times, sizes).slope


async def soak(soaking: Soaking, bounds: Bounds) -> bool:
    """Runs it, prints its progress, and returns whether all was well.

    Raises:
        LMergeError: a process could not be started, ended, or stopped moving.
    """
    async with staged() as stage:
        run = _Soak(stage, soaking)
        await run.play()
        faults = grown(run.samples, bounds)
        equivalent = await run.load.audit()
    for fault in faults:
        print(f"the witness: {fault}")
    print("well" if equivalent and not faults else "NOT WELL")
    return equivalent and not faults


@dataclass(slots=True)
class _Seen:
    """Sums of counts that each worker has of each task, over all its leaders."""

    last: dict[tuple[str, int], Counter[str]] = field(default_factory=dict)
    sums: Counter[str] = field(default_factory=Counter)

    def take(self, worker: str, tasks: Sequence[TaskStatus]) -> None:
        for task in tasks:
            key, now = (worker, task.partition), _counts(task)
            self.sums += now - self.last.get(key, Counter())
            self.last[key] = now


def _counts(task: TaskStatus) -> Counter[str]:
    out = task.output
    return Counter(
        {
            "in": sum(each.inserts + each.adjusts for each in task.replicas),
            "out": out.inserts + out.adjusts,
            "switches": out.leader_switches,
        }
    )


class _Soak:
    """One run: the processes, and what was seen of them."""

    def __init__(self, stage: Stage, soaking: Soaking):
        self.samples: list[Sample] = []
        """Of the witness."""
        self._stage = stage
        self._soaking = soaking
        self._merge = Merge(
            stage, "soak", partitions=2, time_unit="us", snapshot_seconds=_SNAPSHOT_SECONDS
        )
        self._seconds = soaking.minutes * 60
        self.load = Load(
            stage, self._merge, rate=soaking.rate, live=soaking.live, seconds=self._seconds
        )
        self._reported = time.time()
        self._seen, self._sums = _Seen(), Counter[str]()
        self._workers: list[WorkerProcess] = []
        """The witness, and the other."""
        self._news: list[str] = []

    async def play(self) -> None:
        await self._merge.topics()
        for _ in range(2):
            self._workers.append(await self._merge.worker())
            await self._workers[-1].until(has_a_task, "a task")
        self._reported = time.time()
        await self.load.start()
        for due, step in self._steps():
            await self._look_until(due)
            await step()
        for worker in self._workers:
            await worker.until(has_ended, "the output to end", every=0.5)
            await worker.end()

    def _steps(self) -> Iterator[tuple[float, _Step]]:
        """What is done when, in seconds since the beginning, in order."""
        steps: list[tuple[float, _Step]] = [
            (self._seconds * (n + 0.7) / _RESTARTS, partial(self._restart, kill=n % 2 == 0))
            for n in range(_RESTARTS)
        ]
        steps.append((self._seconds / 3, self._silence))
        steps.append((self._seconds / 2, self._start_over))
        steps.append((self._seconds, self._report_progress))
        return iter(sorted(steps, key=lambda step: step[0]))

    # --- what is done -------------------------------------------------------------------------

    async def _silence(self) -> None:
        self._news.append(f"replica {await self.load.silence(_KILLED)} killed")

    async def _start_over(self) -> None:
        self._news.append(f"replica {await self.load.start_over(_KILLED)} starts over")

    async def _restart(self, *, kill: bool) -> None:
        """Of the other worker."""
        other = self._workers.pop()
        await (other.kill() if kill else other.end())
        self._workers.append(await self._merge.worker())
        self._news.append(f"{other.name} {'killed' if kill else 'stopped'}, another started")

    # --- what is seen -------------------------------------------------------------------------

    async def _look_until(self, due: float) -> None:
        while (left := self.load.began + due - time.time()) > 0:
            await asyncio.sleep(min(_LOOK_SECONDS, left))
            await self._look()
            if time.time() - self._reported >= self._soaking.every:
                await self._report_progress()

    async def _look(self) -> list[Status]:
        """Takes a sample; returns the status of the workers that answer."""
        self.load.check()
        statuses = []
        for worker in self._workers:
            if (status := await worker.status()) is not None:
                self._seen.take(worker.name, status.tasks)
                statuses.append(status)
        witness = self._workers[0]
        now = time.time() - self.load.began
        self.samples.append(Sample(now, witness.resident, witness.descriptors))
        return statuses

    async def _report_progress(self) -> None:
        """A line about the time since the last one."""
        statuses = await self._look()
        leads = [task for s in statuses for task in s.tasks if task.role == "leads"]
        sums, passed = self._seen.sums, time.time() - self._reported
        lags = [each.lag_records for task in leads for each in task.replicas]
        rates = {what: (sums[what] - self._sums[what]) / passed for what in ("in", "out")}
        sizes = [task.snapshot.size for task in leads if task.snapshot is not None]
        memory = ", ".join(f"{w.resident / _MB:.1f} MB {w.descriptors} fds" for w in self._workers)
        print(
            f"{(time.time() - self.load.began) / 60:5.1f} min  in {rates['in']:,.0f}/s  "
            f"out {rates['out']:,.0f}/s  "
            f"witness {memory} (other)  slope {_slope(_warm(self.samples)):+.2f} MB/min  "
            f"live {sum(task.output.live_events for task in leads):,}  "
            f"snapshots {sum(sizes) / _MB:.2f} MB  "
            f"lag {max((lag for lag in lags if lag is not None), default=0):,}  "
            f"switches {sums['switches']:,}  {'; '.join(self._news)}",
            flush=True,
        )
        self._sums, self._reported, self._news = Counter(sums), time.time(), []
