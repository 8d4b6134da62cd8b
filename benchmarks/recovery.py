"""How long a task is away: recoveries with and without a snapshot, and takeovers by a standby.

Recovery
    A worker merges a backlog and is killed. While its membership runs out, the replicas go on; then
    a worker is started. What counts is the time from there to its first commit: all runs first
    without a snapshot, by a full replay of history, then all with one. While a snapshot is taken,
    elements go on coming, and what a consumer waits at the longest is what the merge stood still.

Takeover
    Two workers; the one that leads is killed, or stopped, while elements come at a steady
    rate; what counts is how long a read_committed consumer sees nothing. Then another standby is
    started, for the next run.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.fleet import NEVER, Merge, Report, by_topic, log_line, staged
from benchmarks.inputs import lazily
from benchmarks.sizes import Sizes
from benchmarks.traffic import Arrivals, Replicas, following
from lmerge_service.elements import Insert
from lmerge_service.errors import LMergeError
from lmerge_service.kafka.connection import Connection
from lmerge_service.local.stage import Stage
from lmerge_service.local.worker import WorkerProcess
from lmerge_service.service.status.document import Status

__all__ = ("by_history", "by_live_events", "takeover")

_ENDLESS: Final = 10**9
"""Events; they are made when they are asked for."""
_SESSION_SECONDS: Final = 1.0
_MORE: Final = 1_000
"""Elements of each replica between a kill and the start of the next worker."""
_STEADY: Final = 200
"""Elements a second of each replica while a snapshot is taken, or a standby takes over."""
_ELEMENTS_PER_EVENT: Final = 1.2
_AFTER_SECONDS: Final = 1.0
_MB: Final = 1e6


def _replicas(stage: Stage, payload_bytes: int, active: int) -> Replicas:
    streams = lazily(_ENDLESS, payload_bytes=payload_bytes, active=active, closed=False)
    return Replicas(Connection(stage.bootstrap), by_topic(streams))


async def by_live_events(runs: int, sizes: Sizes, report: Report) -> None:
    """The more a task holds, the longer a recovery takes, and the larger a snapshot is."""
    for live in sizes.live:
        found = await _recoveries(live, 1, runs, sizes.payload_bytes)
        found.report(f"{live:,} live", report)


async def by_history(runs: int, sizes: Sizes, report: Report) -> None:
    """With a snapshot, a recovery must not take longer because there is more history."""
    for times in (1, sizes.longer):
        found = await _recoveries(sizes.history_live, times, runs, sizes.payload_bytes)
        found.report_times(f"{sizes.history_live:,} live, history × {times}", report)


@dataclass(slots=True)
class _Recoveries:
    """What was found of one size; each list has an entry for each run."""

    live: int
    held: int
    """Bytes of the payloads that are live."""
    resident: float
    """Bytes, of the worker that has merged it all."""
    replays: list[tuple[float, Status]]
    """Seconds from the start of the process to the first commit, and the status after it."""
    restores: list[tuple[float, Status]]
    snapshots: list["_Snapshot"]

    def report(self, what: str, report: Report) -> None:
        self.report_times(what, report)
        report(f"{what}: live events", "", [self.live])
        taken = self.snapshots
        report(f"{what}: a snapshot's size", "MB", [each.size / _MB for each in taken])
        report(f"{what}: taking one took", "s", [each.seconds for each in taken])
        report(f"{what}: longest pause meanwhile", "ms", [each.pause * 1000 for each in taken])
        report(f"{what}: longest pause after it", "ms", [each.usual * 1000 for each in taken])
        report(f"{what}: resident", "MB", [self.resident / _MB])
        report(f"{what}: resident per byte of payload held", "", [self.resident / self.held])

    def report_times(self, what: str, report: Report) -> None:
        for how, found in (("full replay", self.replays), ("with a snapshot", self.restores)):
            report(f"{what}: {how}, to first commit", "s", [each for each, _ in found])
            seconds = [status.recovery_seconds or 0.0 for _, status in found]
            report(f"{what}: {how}, recovery in that", "s", seconds)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    size: int
    seconds: float
    pause: float
    """The longest time without output while it was taken."""
    usual: float
    """The same just after it."""


async def _recoveries(live: int, times: int, runs: int, payload_bytes: int) -> _Recoveries:
    """Merges `times` as many events as are live at the end, and recovers again and again."""
    count = int(_ELEMENTS_PER_EVENT * live * times)
    limits = {"max_live_events": 4 * live + 100_000, "max_live_bytes": 1 << 36}
    async with staged() as stage, _replicas(stage, payload_bytes, live) as replicas:
        total = await replicas.publish(count)
        log_line(f"{total:,} elements in 3 topics")
        merge = Merge(
            stage, "recovery", limits=limits,
            session_seconds=_SESSION_SECONDS, snapshot_seconds=NEVER,
        )  # fmt: skip
        worker = await merge.worker()
        status = await worker.until(
            lambda status: status.elements_in >= total, "all to be merged", every=0.1
        )
        resident = worker.resident
        replays, restores, snapshots = [], [], []
        for _ in range(runs):
            worker, seconds = await _restarted(merge, worker, replicas)
            if seconds[1].tasks[0].snapshot is not None:
                raise LMergeError("there was a snapshot")
            replays.append(seconds)
            log_line(f"recovered by a full replay in {seconds[0]:.2f} s")
        for _ in range(runs):
            worker, taken = await _with_snapshot(merge, worker, replicas)
            snapshots.append(taken)
            log_line(f"a snapshot of {taken.size:,} bytes in {taken.seconds:.2f} s")
            worker, seconds = await _restarted(merge, worker, replicas)
            if seconds[1].tasks[0].snapshot is None or worker.logged("snapshot not used"):
                raise LMergeError("the snapshot was not used")
            restores.append(seconds)
            log_line(f"recovered with it in {seconds[0]:.2f} s")
        await worker.kill()
    held = status.output.live_events * _payload_length(payload_bytes)
    return _Recoveries(status.output.live_events, held, resident, replays, restores, snapshots)


def _payload_length(payload_bytes: int) -> int:
    first = next(each for each in lazily(10, 1, payload_bytes)[0] if type(each) is Insert)
    return len(first.payload)


async def _restarted(
    merge: Merge, worker: WorkerProcess, replicas: Replicas, snapshot_seconds: float = NEVER
) -> tuple[WorkerProcess, tuple[float, Status]]:
    """Kills it and starts another, when the group has forgotten the one; seconds from the start
    to the first commit."""
    await worker.kill()
    await replicas.publish(_MORE)
    await asyncio.sleep(_SESSION_SECONDS + 0.5)
    worker = await merge.worker(snapshot_seconds=snapshot_seconds)
    status = await worker.until(_commits, "the first commit")
    return worker, (time.time() - worker.started, status)


def _commits(status: Status) -> bool:
    return any(task.role == "leads" and task.output.transactions > 0 for task in status.tasks)


async def _with_snapshot(
    merge: Merge, worker: WorkerProcess, replicas: Replicas
) -> tuple[WorkerProcess, _Snapshot]:
    """Another worker in its place, which has taken a snapshot."""
    arrivals = Arrivals(merge.connection, merge.output)
    async with following(arrivals):
        worker, _ = await _restarted(merge, worker, replicas, snapshot_seconds=1)
        async with replicas.publishing(_STEADY):
            await worker.until(lambda _: bool(worker.logged("snapshot")), "a snapshot", every=0.1)
            (taken, *_) = worker.logged("snapshot")
            length = max(_AFTER_SECONDS, min(taken["seconds"], 10))
            await asyncio.sleep(length)
    end, seconds = taken["at"], taken["seconds"]
    pause = arrivals.longest_gap(end - seconds, end)
    return worker, _Snapshot(taken["size"], seconds, pause, arrivals.longest_gap(end, end + length))


# --- takeover -------------------------------------------------------------------------------------


async def takeover(runs: int, sizes: Sizes, report: Report) -> None:
    """How long the output is silent when the worker that leads is gone."""
    session = 6.0
    found: Mapping[str, list[float]] = {"kill -9": [], "SIGTERM": []}
    async with staged() as stage, _replicas(stage, 95, 10_000) as replicas:
        merge = Merge(stage, "takeover", session_seconds=session)
        await replicas.publish(sizes.events // 10)
        leads = await merge.worker()
        await leads.running()
        arrivals = Arrivals(merge.connection, merge.output)
        async with following(arrivals), replicas.publishing(_STEADY):
            for _ in range(runs):
                for how, silences in found.items():
                    leads, silence = await _taken_over(merge, leads, how, arrivals)
                    silences.append(silence)
                    log_line(f"taken over after {how}: {silence:.2f} s")
        await leads.end()
    for how, silences in found.items():
        unless = f", session of {session:g} s" if how == "kill -9" else ""
        report(f"takeover by a standby after {how}{unless}", "s of silence", silences)


async def _taken_over(
    merge: Merge, leads: WorkerProcess, how: str, arrivals: Arrivals
) -> tuple[WorkerProcess, float]:
    """The worker that leads afterwards, and for how long nothing came."""
    standby = await merge.worker()
    await standby.until(lambda status: status.state == "standby", "a standby")
    await asyncio.sleep(_AFTER_SECONDS)  # what starting it disturbed is over
    at = time.time()
    await (leads.kill() if how == "kill -9" else leads.end())
    await standby.until(_commits, "the standby to lead")
    await asyncio.sleep(_AFTER_SECONDS)
    return standby, arrivals.longest_gap(at, time.time())
