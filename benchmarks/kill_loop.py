"""Workers and brokers killed and frozen at random, for minutes, with the drills' environment.

Three replicas publish at a steady rate. Again and again a worker or a broker, or one of each, is
killed (kill -9), stopped (SIGTERM) or frozen (SIGSTOP, from a moment to several sessions), and is
there again some seconds later. At most one broker is struck at a time, so with three of them the
output has to go on. After each fault everything must come back: each worker leads or follows, each
task has a leader, the output moves. At the end the replicas publish the rest, and the judge of the
drills holds the output against them.

What is measured
    A task is *without a leader* while no worker reports that it leads it; workers are asked four
    times a second, so shorter times are not seen, and one that has the lead and is not ready yet
    leads. The output *stands still* while a reader of committed records gets nothing from one of
    its partitions.

What fails
    A worker that ends by itself, whatever the fault; something that does not come back in
    a minute; a time without a leader beyond the bound; an output that is not legal, or not what
    the replicas published. Equal seeds give equal faults, though not equal runs.
"""

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from benchmarks.fleet import log_line
from lmerge_service.drills.environment import Environment
from lmerge_service.drills.plan import DrillError, DrillPlan, plan_of
from lmerge_service.drills.report import judge
from lmerge_service.errors import LMergeError

__all__ = ("Fault", "Killing", "Struck", "Verdict", "compose", "kill_loop", "longest_gap")

Way: TypeAlias = Literal["kill -9", "SIGTERM", "SIGSTOP"]
_WAYS: Final[tuple[Way, ...]] = get_args(Way)
_SECONDS: Final[dict[Way, tuple[float, float]]] = {
    "kill -9": (0.0, 6.0),
    "SIGTERM": (0.0, 6.0),
    "SIGSTOP": (0.2, 15.0),
}
"""From the fault to its end: shorter and longer than sessions, workers' (6 s) and brokers' (9)."""
_TWO_AT_ONCE: Final = 0.3
_CALM_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.1
_OPENING_SECONDS: Final = 60.0
"""Until the output moves for the first time, before anything is broken; a tighter bound is for what
comes then."""
_SEEN_SECONDS: Final = 2.0
"""A task has a leader if a worker reported that it leads it, so long ago at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Killing:
    """How long, on what, and what is demanded."""

    minutes: float = 10
    nodes: int = 3
    workers: int = 3
    tasks: int = 4
    rate: int = 100
    """Events a second of the logical stream."""
    session: float = 6
    """Seconds after which a worker that does not answer is taken for dead."""
    seed: int = 1
    bound: float = 60
    """Seconds for which a task may be without a leader, and in which all must be back."""

    @property
    def plan(self) -> DrillPlan:
        """Raises Refused where it cannot be played."""
        return plan_of(
            {
                "nodes": self.nodes, "workers": self.workers, "partitions": self.tasks,
                "rate": self.rate, "within": 0, "session_seconds": self.session,
                "patience": max(self.bound, _OPENING_SECONDS),
            }
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to a worker (`w1`, …) or a broker (1, …), and for how long."""

    way: Way
    victim: str | int
    seconds: float

    def __str__(self) -> str:
        who = f"broker {self.victim}" if isinstance(self.victim, int) else self.victim
        return f"{self.way} {who} for {self.seconds:.1f} s"


class Struck(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, or two at once, and what came of it."""

    at: float
    """Seconds since the beginning."""
    what: str
    without_leader: list[float]
    """Per task, the longest time, in seconds."""
    still: float
    """The longest time without output, of any partition."""
    back: float
    """From the fault until all was well again."""
    trouble: list[str] = []

    def __str__(self) -> str:
        leaders = " ".join(f"{seconds:.1f}" for seconds in self.without_leader)
        trouble = "".join(f"; FAILED: {line}" for line in self.trouble)
        return (
            f"{self.at:6.1f} s  {self.what}: tasks without a leader for {leaders} s, no output "
            f"for {self.still:.1f} s, all well after {self.back:.1f} s{trouble}"
        )


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """All that was done, and how it ended."""

    struck: list[Struck]
    audit: list[str]
    """The judge's findings."""
    trouble: list[str]

    @property
    def good(self) -> bool:
        return not self.trouble


def compose(seed: int, workers: Sequence[str], nodes: int) -> Iterator[list[Fault]]:
    """Faults without end; those of one list are at once, on different victims, of which one at
    most is a broker."""
    chance = random.Random(seed)

    def fault(victims: Sequence[str | int]) -> Fault:
        way = chance.choice(_WAYS)
        return Fault(way, chance.choice(victims), round(chance.uniform(*_SECONDS[way]), 1))

    brokers = range(1, nodes + 1)
    while True:
        first = fault(chance.choice((workers, workers, brokers)))
        both = [first]
        if chance.random() < _TWO_AT_ONCE:
            others = [each for each in (*workers, *brokers) if _may_join(each, first.victim)]
            both.append(fault(others))
        yield both


def _may_join(victim: str | int, first: str | int) -> bool:
    return victim != first and not (isinstance(victim, int) and isinstance(first, int))


def longest_gap(times: Sequence[float], since: float, until: float) -> float:
    """Between any two that follow each other, or an end of the span.

    >>> longest_gap([1.0, 2.0, 6.0], 0.0, 7.0)
    4.0
    """
    return max(b - a for a, b in pairwise([since, *(t for t in times if since < t < until), until]))


async def kill_loop(killing: Killing) -> Verdict:
    """Runs it, and prints its progress on standard error.

    Raises:
        Refused: that cannot be played.
        DrillError, LMergeError: it cannot begin.
    """
    plan = killing.plan
    folder = Path(tempfile.mkdtemp(prefix="lmerge-kill-loop-"))
    async with Environment(folder, plan) as environment:
        loop = _Loop(environment, killing)
        await loop.play()
        verdict = await loop.end()
    if verdict.good:
        shutil.rmtree(folder)
    else:
        log_line(f"the logs are in {folder}")
    return verdict


@dataclass(slots=True)
class _Loop:
    environment: Environment
    killing: Killing
    struck: list[Struck] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    lost: bool = False
    """Something has not come back: further faults would show nothing."""

    async def play(self) -> None:
        """Fault after fault, until the time is over or something does not come back."""
        faults = compose(self.killing.seed, list(self.environment.workers), self.killing.nodes)
        until = time.time() + self.killing.minutes * 60
        while time.time() < until and not self.lost:
            struck = await self._strike(next(faults))
            self.struck.append(struck)
            self.trouble += struck.trouble
            log_line(str(struck))

    async def end(self) -> Verdict:
        """The replicas publish the rest, and the output is judged."""
        try:
            await self.environment.finish(2 * self.killing.bound)
        except (DrillError, LMergeError) as error:
            self.trouble.append(f"at the end: {error}")
        self.trouble += await self._restart_ended()
        judged, _ = await judge(self.environment, None)
        audit = [
            "; ".join((f"{found['check']} is {found['outcome']}", *found["evidence"][:3]))
            for found in judged.findings
        ]
        if judged.outcome != "valid":
            self.trouble.append(f"the output is {judged.outcome}")
        log_line(f"audit: {judged.events:,} events, the output is {judged.outcome}")
        return Verdict(struck=self.struck, audit=audit, trouble=self.trouble)

    async def _strike(self, faults: Sequence[Fault]) -> Struck:
        await asyncio.sleep(_CALM_SECONDS)
        trouble = await self._restart_ended()
        since = time.time()
        trouble += await self._tried(*map(self._carry_out, faults))
        trouble += await self._until_all_well()
        until = time.time()
        without = [self._without_leader(task, since, until) for task in range(self.killing.tasks)]
        trouble += [
            f"task {task} had no leader for {seconds:.1f} s"
            for task, seconds in enumerate(without)
            if seconds > self.killing.bound
        ]
        return Struck(
            at=since - self.began,
            what=" and ".join(map(str, faults)),
            without_leader=without,
            still=self.environment.arrivals.longest_hole(since, until).seconds,
            back=until - since,
            trouble=trouble,
        )

    async def _until_all_well(self) -> list[str]:
        """Each worker leads or follows, each task has a leader, and the output has moved beyond
        this moment; workers that end meanwhile are replaced. What went wrong."""
        goal, trouble = int(time.time() * 1_000), list[str]()
        deadline = time.monotonic() + self.killing.bound
        while missing := self._amiss(goal):
            trouble += await self._restart_ended()
            if time.monotonic() > deadline:
                self.lost = True
                return [*trouble, f"{missing} {self.killing.bound:g} s after the fault"]
            await asyncio.sleep(_LOOK_SECONDS)
        return trouble

    def _amiss(self, goal: int) -> str:
        """What is not well, in words; nothing: all is."""
        if self.environment.arrivals.stable <= goal:
            return "the output does not move"
        if not self.environment.all_serve():
            return "not all workers lead or follow"
        now = time.time()
        alone = [
            task
            for task in range(self.killing.tasks)
            if self._without_leader(task, now - _SEEN_SECONDS, now) >= _SEEN_SECONDS
        ]
        return f"tasks {', '.join(map(str, alone))} have no leader" if alone else ""

    async def _tried(self, *work: Coroutine[Any, Any, None]) -> list[str]:
        """What went wrong, of works that are done at once."""
        done = await asyncio.gather(*map(self._bounded, work), return_exceptions=True)
        failed = [error for error in done if error is not None]
        for error in failed:
            if not isinstance(error, DrillError | LMergeError | TimeoutError):
                raise error
        return [str(error) or "it took too long" for error in failed]

    async def _bounded(self, work: Coroutine[Any, Any, None]) -> None:
        async with asyncio.timeout(2 * self.killing.bound):
            await work

    async def _carry_out(self, fault: Fault) -> None:
        if isinstance(fault.victim, int):
            await self._strike_broker(fault, fault.victim)
        else:
            await self._strike_worker(fault, fault.victim)

    async def _strike_worker(self, fault: Fault, name: str) -> None:
        worker = self.environment.workers[name]
        match fault.way:
            case "SIGSTOP":
                worker.pause()
                await asyncio.sleep(fault.seconds)
                worker.resume()
                return
            case "kill -9":
                await self.environment.kill_worker(name)
            case "SIGTERM":
                await self.environment.end_worker(name)
        await asyncio.sleep(fault.seconds)
        await self.environment.start_worker(name)

    async def _strike_broker(self, fault: Fault, node: int) -> None:
        match fault.way:
            case "SIGSTOP":
                await self.environment.brokers.pause(node)
                await asyncio.sleep(fault.seconds)
                self.environment.brokers.resume()
                return
            case "kill -9":
                await self.environment.brokers.kill(node)
            case "SIGTERM":
                await self.environment.brokers.end(node)
        await asyncio.sleep(fault.seconds)
        await self.environment.brokers.start(node)

    async def _restart_ended(self) -> list[str]:
        """Workers that have ended by themselves, in whose places others are started."""
        found = []
        for name in self.environment.missing_workers():
            if (worker := self.environment.workers.get(name)) is not None:
                found.append(f"{name} ended by itself, with exit code {worker.ended}")
            found += await self._tried(self.environment.start_worker(name))
        return found

    def _without_leader(self, task: int, since: float, until: float) -> float:
        seen = takewhile(
            lambda each: each.at > since, reversed(self.environment.worker_monitor.observations)
        )
        led = sorted(each.at for each in seen if task in each.look.leads)
        return longest_gap(led, since, until)
