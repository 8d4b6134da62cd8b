"""Keeps a plan running: Kafka first, then all processes, each restarted by its policy.

Theory
    Each process has a task that waits until it may begin, starts it, waits until it ends, and
    decides: again after a pause that doubles, or not any more. They depend on each other only by
    `after`. A failing one is given up after so many failures in a row; the others go on, since a
    merge continues with the remaining replicas.

Who owns what
    A `Supervisor` owns Kafka, if the plan has one, and all processes; it ends them when it is left,
    Kafka last, so that workers can finish their commits.

What happens on a crash
    The supervisor is killed: Kafka and the processes go on, unsupervised; `runs.end` ends them.
    Kafka is killed: it is started again, on its port and data; workers wait for it.
"""

import asyncio
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from lmerge_service.config.processes import Restart
from lmerge_service.errors import LMergeError, TransportError
from lmerge_service.kafka.connection import Connection, connection_of
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import LocalBroker, free_port
from lmerge_service.local.processes import Processes, how_it_ended
from lmerge_service.local.up import runs
from lmerge_service.local.up.plan import PlannedProcess, ProcessPlan

__all__ = ("ProcessLife", "ProcessState", "Supervisor")

_KAFKA: Final = "kafka"
_LONGEST_PAUSE_SECONDS: Final = 30.0
_LONG_SECONDS: Final = 60.0
"""A run of this length was no failed start."""
_LOOK_SECONDS: Final = 0.5


class ProcessState(StrEnum):
    """Of a process."""

    WAITING = "waiting"
    RUNNING = "running"
    RESTARTING = "restarting"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(slots=True)
class ProcessLife:
    """What has become of a process so far."""

    name: str
    log: Path
    state: ProcessState = ProcessState.WAITING
    why: str = ""
    """What it waits for, or how it ended."""
    process: runs.KnownProcess | None = None
    restarts: int = 0
    exit_code: int | None = None
    """The last one; negative: the number of a signal."""
    over: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set when it will not run any more."""

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    def begin(self, process: runs.KnownProcess | None) -> None:
        """It runs, or has run so shortly that nobody has seen it."""
        self.state, self.why, self.process = ProcessState.RUNNING, "", process

    def end(self, state: ProcessState, why: str) -> None:
        """It runs no more, for now or for good."""
        self.state, self.why, self.process = state, why, None
        if state is not ProcessState.RESTARTING:
            self.over.set()


class _Row:
    """Restarts in a row, and the pause before the next one."""

    def __init__(self, restart: Restart):
        self._restart = restart
        self._done = 0

    def ran(self, seconds: float) -> None:
        if seconds >= _LONG_SECONDS:
            self._done = 0

    def next_pause(self) -> float | None:
        """Seconds; None: it was restarted often enough."""
        if self._done >= self._restart.most:
            return None
        first = self._restart.backoff_seconds
        pause = min(first * 2.0 ** min(self._done, 30), max(first, _LONGEST_PAUSE_SECONDS))
        self._done += 1
        return pause


class Supervisor:
    """Runs a plan in a folder; use as `async with`."""

    def __init__(self, plan: ProcessPlan, folder: Path):
        self.plan = plan
        self.folder = folder
        self.bootstrap = plan.kafka.bootstrap
        self._broker: LocalBroker | None = None
        if plan.broker is not None:
            preferred = int(plan.kafka.bootstrap.rpartition(":")[2])
            self._broker = runs.broker_of(folder, free_port(preferred))
        names = [each.name for each in plan.members]
        names = [_KAFKA, *names] if self._broker is not None else names
        self.lives = {name: ProcessLife(name, folder / f"{name}.log") for name in names}
        if self._broker is not None:
            self.lives[_KAFKA].log = self._broker.log
        self._first = [each.name for each in plan.members if not (each.topics or each.after)]
        us = runs.KnownProcess.of(os.getpid())
        assert us is not None
        self._run = runs.UpRun(
            id=uuid.uuid4().hex,
            path=str(plan.path),
            name=plan.name,
            supervisor=us,
            broker=self._broker is not None,
            dashboard=plan.dashboard,
            workers={each.topology.name: list(each.workers.values()) for each in plan.merges},
            queries=list(plan.queries),
        )
        self._processes = Processes(folder, die_with_us=False, directory=folder)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Starts Kafka and then all else.

        Raises:
            ConfigurationError: it is up already.
            EnvironmentMissingError: something is not on this machine.
            TransportError: Kafka does not start.
        """
        runs.begin(self.folder, self._run)
        os.environ[runs.MARK] = self._run.id  # for all that is started from here on
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _open(self) -> None:
        for log in self.folder.glob("*.log"):
            if log.name != "up.log":  # which is written while we are
                log.unlink()
        runs.keep_token(self.folder, self.plan.token)
        if self._broker is not None:
            await self._open_broker()
        self._run.bootstrap = self.bootstrap
        environment = {**os.environ, "LMERGE_BOOTSTRAP": self.bootstrap}
        for member in self.plan.members:
            keeping = self._keep(member, self.lives[member.name], environment)
            self._tasks.append(asyncio.create_task(keeping, name=member.name))
        self._note()

    async def _open_broker(self) -> None:
        assert self._broker is not None
        assert self.plan.broker is not None
        if not self.plan.broker.keep:
            await asyncio.to_thread(shutil.rmtree, self._broker.directory, ignore_errors=True)
        await self._broker.astart()
        self.bootstrap = self._broker.bootstrap
        self._kafka_runs()
        self._tasks.append(asyncio.create_task(self._keep_broker(), name=_KAFKA))

    def _kafka_runs(self) -> None:
        assert self._broker is not None
        self.lives[_KAFKA].begin(runs.KnownProcess.of(self._broker.pid))
        self._note()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self._processes.__aexit__()
        finally:
            if self._broker is not None:
                await self._broker.astop()
            await asyncio.to_thread(runs.finish, self.folder, self._run)
            os.environ.pop(runs.MARK, None)

    def _note(self) -> None:
        """Writes down what runs."""
        lives = self.lives.values()
        self._run.processes = {life.name: life.process for life in lives if life.process}
        self._run.ready = all(
            self.lives[name].state is not ProcessState.WAITING for name in self._first
        )
        runs.write(self.folder, self._run)

    @property
    def over(self) -> bool:
        """Whether nothing runs any more but Kafka, nor ever will."""
        working = [each.name for each in self.plan.members if not each.attends]
        return all(self.lives[name].over.is_set() for name in working)

    def check(self) -> None:
        """Raises what ended a task that should not have ended: a bug of ours, or a full disk."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _keep(
        self, member: PlannedProcess, life: ProcessLife, environment: Mapping[str, str]
    ) -> None:
        """Runs it until it is to run no more."""
        if not await self._may_begin(member, life):
            return
        row, environment = _Row(member.restart), {**environment, **member.environment}
        command = member.arguments(environment)
        while True:
            began = time.monotonic()
            process = await self._processes.start(command, life.log.name, environment)
            life.begin(runs.KnownProcess.of(process.pid))
            self._note()
            code = life.exit_code = await process.wait()
            row.ran(time.monotonic() - began)
            if not member.starts_again(code):
                life.end(
                    ProcessState.ENDED if code == 0 else ProcessState.FAILED, how_it_ended(code)
                )
                break
            if (pause := row.next_pause()) is None:
                life.end(
                    ProcessState.FAILED, f"{how_it_ended(code)} after {life.restarts} restarts"
                )
                break
            life.end(ProcessState.RESTARTING, f"{how_it_ended(code)}, begins again in {pause:g} s")
            self._note()
            await asyncio.sleep(pause)
            life.restarts += 1
        self._note()

    async def _may_begin(self, member: PlannedProcess, life: ProcessLife) -> bool:
        """Waits for what it comes after; False: that will not be."""
        for name in member.after:
            life.why = f"comes after {name}"
            other = self.lives[name]
            await other.over.wait()
            if other.state is not ProcessState.ENDED:
                life.end(ProcessState.FAILED, f"comes after {name}, which did not end well")
                return False
        if member.topics:
            life.why = f"waits for the topic {', '.join(member.topics)}"
            await self._until_there(member.topics)
        return True

    async def _until_there(self, topics: tuple[str, ...]) -> None:
        """While Kafka is away, nothing is there."""
        while True:
            with suppress(TransportError):
                async with Topics(self._connection()) as asking:
                    while not set(topics) <= set(await asking.partitions(topics)):  # noqa: ASYNC110
                        await asyncio.sleep(_LOOK_SECONDS)
                    return
            await asyncio.sleep(_LOOK_SECONDS)

    def _connection(self) -> Connection:
        if self._broker is not None:
            return Connection(self.bootstrap)
        return connection_of(self.plan.kafka)

    async def _keep_broker(self) -> None:
        """Starts it again when it ended; the plan's policy is that of a process."""
        assert self._broker is not None
        life, row = self.lives[_KAFKA], _Row(Restart())
        while True:
            began = time.monotonic()
            while self._broker.running:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)
            row.ran(time.monotonic() - began)
            if (pause := row.next_pause()) is None:
                life.end(ProcessState.FAILED, f"ended after {life.restarts} restarts")
                self._note()
                return
            life.end(ProcessState.RESTARTING, f"ended, begins again in {pause:g} s")
            self._note()
            await asyncio.sleep(pause)
            life.restarts += 1
            try:
                await self._broker.astart()
            except LMergeError as error:
                life.why = str(error)
            else:
                self._kafka_runs()
