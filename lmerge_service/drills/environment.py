"""The environment of a drill: brokers, replicas and workers, each a process behind its own link.

Who owns what
    An environment owns all processes, links and monitors, and one folder; leaving it ends them
    all, by their ids. Everything runs on one event loop.

What happens on a crash
    The processes die with the thread that runs the loop.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from lmerge_service.drills import equal_events
from lmerge_service.drills.brokers import Brokers
from lmerge_service.drills.control_log_check import Answer
from lmerge_service.drills.feed import PARTITIONS, FeedSettings
from lmerge_service.drills.invariant_monitors import Arrivals, WorkerMonitor
from lmerge_service.drills.merging import LMergeProgram, Merger, Post, Program
from lmerge_service.drills.plan import NAME, OUTPUT, DrillError, DrillPlan
from lmerge_service.drills.replica import DrillStream, ReplicaSettings
from lmerge_service.errors import LMergeError
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.processes import Child
from lmerge_service.local.stage import Stage
from lmerge_service.workloads.lifetime import Life

__all__ = ("Environment", "ReplicaSlot")

_AHEAD_MS: Final = 2_000
"""The stream ends so long after that was decided; replicas have looked no further ahead."""
_EVERY_SECONDS: Final = 0.05
_START_SECONDS: Final = 180.0
_QUERY: Final = f"{equal_events.__name__}:present"
_SNAPSHOT_SECONDS: Final = 2.0


@dataclass(slots=True)
class ReplicaSlot:
    """A replica's place: its topic outlives its processes."""

    name: str
    part: ReplicaSettings
    plan: int | None = None
    """By which plan it runs the query; None: it publishes the stream itself."""
    process: Child | None = None
    bad_since: int | None = None
    """Milliseconds since the epoch: from then on it is not trusted."""

    @property
    def running(self) -> Child:
        """
        Raises:
            DrillError: no process is in this place.
        """
        if self.process is None or self.process.ended is not None:
            raise DrillError(f"replica {self.name} does not run")
        return self.process


class Environment:
    """The processes of one drill; use as `async with`."""

    def __init__(self, folder: Path, plan: DrillPlan):
        self.folder, self.plan = folder, plan
        self.slots: dict[str, ReplicaSlot] = {}
        self.workers: dict[str, Merger] = {}
        self.logs: dict[str, list[Path]] = {}
        self.done: list[tuple[float, str]] = []
        """When which fault began or ended, in seconds of the wall clock."""
        self.worker_monitor = WorkerMonitor()
        self.opened = 0.0
        """When all was well for the first time."""
        self.finished: int | None = None
        """Before this time the last event begins."""
        self.answers: list[Answer] = []
        """The answers to decisions."""
        self.token = secrets.token_hex(16)
        """Who has it may decide."""
        self.token_file = folder / "control-token"
        self._names = [f"w{n}" for n in range(1, plan.workers + 1)]
        self.brokers = Brokers(folder, plan, self._names)
        self._feed: Child | None = None
        self._worker_kills = 0
        self._throttles: dict[str, asyncio.Task[None]] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self._throttles):
            self.unthrottle(name)
        await self._stack.aclose()

    async def _open(self) -> None:
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(self.token)
        await self._stack.enter_async_context(self.brokers)
        bootstrap = self.brokers.bootstrap
        self.stage = await self._stack.enter_async_context(Stage(self.folder, bootstrap))
        self.connection = Connection(bootstrap)
        await self._open_topics()
        await asyncio.gather(*map(self.start_worker, self._names))
        await self.until(lambda: bool(self.leaders()), "a worker to lead")
        self.arrivals = Arrivals(self.connection, OUTPUT, self.plan.partitions)
        await self._run(self.arrivals.run())
        self._stream = DrillStream(
            began=int(time.time() * 1_000) + 500,
            finish=str(self.folder / "finish"),
            rate=self.plan.rate,
            live=self.plan.rate,
        )
        for number, (name, manner) in enumerate(self.plan.replicas.items()):
            part = ReplicaSettings(
                bootstrap=self.brokers.bootstrap_of(name), topic=self.topic(name),
                number=number, stream=self._stream, manner=manner,
            )  # fmt: skip
            self.slots[name] = ReplicaSlot(name, part, self.plan.plans.get(name))
            await self.start_replica(name)
        if self.plan.plans:
            await self._start_feed()
        await self.until_moving()
        self.opened = time.time()

    async def _open_topics(self) -> None:
        async with Topics(self.connection) as topics:
            for name in self.plan.replicas:
                await topics.ensure(self.topic(name))
            if self.plan.plans:
                await topics.ensure(equal_events.FACTS, partitions=PARTITIONS)
            if self.plan.merger:
                await topics.ensure(OUTPUT, partitions=self.plan.partitions)

    async def _run(self, work: Awaitable[None]) -> None:
        """Until the environment is left."""
        task = asyncio.ensure_future(work)

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._stack.push_async_callback(end)

    @staticmethod
    def topic(replica: str) -> str:
        return f"in.{replica}"

    @property
    def skew(self) -> float:
        """How many seconds the clock is ahead that is furthest."""
        return max((slot.part.manner.skew for slot in self.slots.values()), default=0.0)

    @property
    def kills(self) -> int:
        """How often a worker was killed, or a broker was."""
        return self._worker_kills + self.brokers.kills

    # --- waiting -------------------------------------------------------------------------------

    async def until(
        self, holds: Callable[[], bool], what: str, seconds: float | None = None
    ) -> None:
        """Raises DrillError on a timeout, by default the plan's `patience`."""

        async def held() -> bool:
            return holds()

        await self.until_it(held, what, seconds)

    async def until_it(
        self, holds: Callable[[], Awaitable[bool]], what: str, seconds: float | None = None
    ) -> None:
        """The same with an asynchronous condition."""
        seconds = self.plan.patience if seconds is None else seconds
        deadline = time.monotonic() + seconds
        while not await holds():
            self.check()
            if time.monotonic() > deadline:
                raise DrillError(f"waited {seconds:g} s for {what}")
            await asyncio.sleep(_EVERY_SECONDS)

    def check(self) -> None:
        """Raises LMergeError if a replica, or the feed of facts, has failed by itself."""
        if self._feed is not None:
            self._feed.check()
        for slot in self.slots.values():
            if slot.process is not None:
                slot.process.check()

    async def until_moving(self, seconds: float | None = None) -> None:
        """Waits until the output's stable point is above where it, and all replicas, are now."""
        goal = max(int((time.time() + self.skew) * 1_000), self.arrivals.stable)
        await self.until(
            lambda: self.arrivals.stable > goal, "the output to reach this moment", seconds
        )

    # --- workers -------------------------------------------------------------------------------

    def leaders(self) -> list[str]:
        """Workers that lead a task, by their last status; the one of the lowest task first."""
        return self.worker_monitor.leaders(self.workers)

    def worker(self, name: str) -> Merger:
        """By its name, or `leader` or `standby`.

        Raises:
            DrillError: there is no such worker now.
        """
        return self.workers[self.name_of(name)]

    def name_of(self, name: str) -> str:
        """The worker that is `leader` or `standby` now; raises as `worker`."""
        leaders = self.leaders()
        if name == "leader" and leaders:
            return leaders[0]
        if name == "standby":
            name = next((each for each in self.workers if each not in leaders), name)
        if name not in self.workers:
            raise DrillError(f"there is no worker {name!r} now: {', '.join(self.workers)}")
        return name

    def decider(self, name: str = "leader") -> LMergeProgram:
        """A worker that takes decisions.

        Raises:
            DrillError: there is no such worker now, or it is another program.
        """
        worker = self.worker(name)
        if not isinstance(worker, LMergeProgram):
            raise DrillError("another program than `lmerge run` takes no decisions")
        return worker

    async def start_worker(self, name: str) -> None:
        """Returns when it leads or follows."""
        if name in self.workers and self.workers[name].ended is None:
            raise DrillError(f"worker {name} runs")
        logs = self.logs.setdefault(name, [])
        worker = self._merger(name, f"{name}-{len(logs) + 1}")
        await worker.start()
        logs.append(worker.log)
        self.workers[name] = worker
        await self._run(self.worker_monitor.watch(name, worker))

        def serves() -> bool:
            if worker.ended is not None:
                raise worker.failure()
            return self.worker_monitor.all_serve([name])

        await self.until(serves, f"worker {name} to lead or follow", _START_SECONDS)

    def _merger(self, name: str, run: str) -> Merger:
        path = self.folder / f"{run}.yaml"
        if not self.plan.merger:
            path.write_text(json.dumps(self._topology(name)))
            return LMergeProgram(self.stage, run, path)
        path.write_bytes(msgspec.json.encode(self._post(name, run)))
        return Program(self.stage, run, path, self.plan.merger)

    def missing_workers(self) -> list[str]:
        """The places of workers in which none runs."""
        return [
            name
            for name in self._names
            if name not in self.workers or self.workers[name].ended is not None
        ]

    def all_serve(self) -> bool:
        """Whether each worker leads or follows."""
        return not self.missing_workers() and self.worker_monitor.all_serve(self.workers)

    def _topology(self, name: str) -> dict[str, Any]:
        return {
            "name": NAME,
            "kafka": {"bootstrap": self.brokers.bootstrap_of(name)},
            "output": {"topic": OUTPUT, "partitions": self.plan.partitions},
            "replicas": [{"name": n, "topic": self.topic(n)} for n in self.plan.replicas],
            "session_seconds": self.plan.session_seconds,
            "snapshot_seconds": 5,
            "guards": {"patience_seconds": 3, **self.plan.guards},
            "http": {"control_token": {"file": str(self.token_file)}},
            **({"case": "R4"} if self.plan.plans else {}),
            **({"policy": self.plan.policy} if self.plan.policy else {}),
        }

    def _post(self, name: str, run: str) -> Post:
        return Post(
            bootstrap=self.brokers.bootstrap_of(name),
            replicas={each: self.topic(each) for each in self.plan.replicas},
            output=OUTPUT,
            partitions=self.plan.partitions,
            group=NAME,
            session_seconds=self.plan.session_seconds,
            status=str(self.folder / f"{run}.status"),
        )

    async def kill_worker(self, name: str) -> str:
        """kill -9."""
        name = self.name_of(name)
        self.unthrottle(name)
        self.worker_monitor.gone(name)
        await self.workers.pop(name).kill()
        self._worker_kills += 1
        return name

    async def end_worker(self, name: str) -> str:
        """SIGTERM."""
        name = self.name_of(name)
        self.worker_monitor.gone(name)
        await self.workers.pop(name).end()
        return name

    # --- replicas ------------------------------------------------------------------------------

    def replica(self, name: str) -> ReplicaSlot:
        """By its name, or `leader`: the one whose stable the output followed last.

        Raises:
            DrillError: there is no such replica now.
        """
        if name == "leader":
            name = self.worker_monitor.leading_replica(self.workers) or name
        if name not in self.slots:
            raise DrillError(f"there is no replica {name!r} now: {', '.join(self.slots)}")
        return self.slots[name]

    async def kill_replica(self, name: str) -> str:
        """kill -9; it stays away until it is started."""
        slot = self.replica(name)
        self.unthrottle(slot.name)
        if slot.process is not None:
            await slot.process.kill()
        return slot.name

    async def start_replica(self, name: str, **changes: Any) -> str:
        """Again, where it stood; `changes` are of its part, or of a query's replica the plan.

        Raises:
            DrillError: there is no such replica now, or a query cannot be changed so.
        """
        slot = self.replica(name)
        await self.kill_replica(slot.name)
        plan = changes.pop("plan", None)
        if slot.plan is not None:
            slot.plan = plan or slot.plan
            return await self._run_query(slot, changes)
        if plan is not None:
            raise DrillError(f"replica {slot.name} runs no query, so that it has no plans")
        slot.part = msgspec.structs.replace(slot.part, **{"repeat": 0, **changes})
        part = msgspec.json.encode(slot.part).decode()
        log = f"replica-{slot.name}.log"
        slot.process = await self.stage.python("lmerge_service.drills.replica", part, log=log)
        return slot.name

    async def _run_query(self, slot: ReplicaSlot, changes: dict[str, Any]) -> str:
        """It goes on where its last commit ended, or begins another incarnation."""
        if strange := {*changes} - {"incarnation", "joining_at"}:
            what = ", ".join(sorted(strange))
            raise DrillError(f"replica {slot.name} runs a query, which has no {what}")
        slot.part = msgspec.structs.replace(slot.part, **changes)
        slot.process = await self.stage.lmerge(
            "query", "run", _QUERY, "--plan", str(slot.plan), "--to", slot.part.topic,
            "--bootstrap", slot.part.bootstrap, "--snapshot-seconds", str(_SNAPSHOT_SECONDS),
            *(["--rejoin"] if "incarnation" in changes else []),
            log=f"replica-{slot.name}.log",
        )  # fmt: skip
        return slot.name

    async def _start_feed(self) -> None:
        settings = FeedSettings(bootstrap=self.brokers.bootstrap, stream=self._stream)
        encoded = msgspec.json.encode(settings).decode()
        self._feed = await self.stage.python("lmerge_service.drills.feed", encoded, log="feed.log")

    # --- slow ----------------------------------------------------------------------------------

    async def throttle(self, name: str, share: float) -> str:
        """A worker or replica has the processor for this share of the time only (by SIGSTOP and
        SIGCONT, ten times a second)."""
        process: Child
        if name in self.slots:
            process = self.slots[name].running
        else:
            name = self.name_of(name)
            process = self.workers[name]
        self.unthrottle(name)
        self._throttles[name] = asyncio.create_task(_slow(process, share))
        return name

    def unthrottle(self, name: str) -> None:
        """As fast as before."""
        if (throttle := self._throttles.pop(name, None)) is not None:
            throttle.cancel()

    # --- the end -------------------------------------------------------------------------------

    async def finish(self, seconds: float | None = None) -> None:
        """The running replicas publish the rest, and end; returns when the output has ended.

        Raises:
            DrillError: that takes longer.
        """
        self.finished = int((time.time() + self.skew) * 1_000) + _AHEAD_MS
        partial = self.folder / "finish.partial"
        partial.write_text(str(self.finished))
        partial.rename(self._stream.finish)
        await self.until(lambda: self.arrivals.ended, "the output to end", seconds)

    def lives(self) -> Iterable[Life]:
        """The logical stream: to its end, or as far as anybody may be."""
        until = self.finished or int(time.time() * 1_000) + 60_000
        stream = self._stream.lives(until)
        return equal_events.lives(stream) if self.plan.plans else stream


async def _slow(process: Child, share: float) -> None:
    """Until cancelled, or until the process is gone."""
    with suppress(LMergeError):
        try:
            while True:
                process.pause()
                await asyncio.sleep(0.1 * (1 - share))
                process.resume()
                await asyncio.sleep(0.1 * share)
        finally:
            process.resume()
