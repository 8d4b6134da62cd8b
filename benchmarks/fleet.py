"""The measured side of the benchmarks of the service: merges on a stage, and worker processes.

Who owns what
    The stage owns every process and ends it; a merge owns the names of its topics, a worker its
    log file, from which the times of what it did are taken. Statuses are asked for seldom where
    the rate is what is measured, since answering takes a worker some milliseconds.
"""

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

import psutil

from lmerge_service.demo.stage import Stage
from lmerge_service.demo.watch import StatusClient
from lmerge_service.errors import LMergeError
from lmerge_service.kafka.broker import LocalBroker, free_port
from lmerge_service.kafka.client import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.service.status import Status

__all__ = ("NEVER", "TOPICS", "Merge", "Report", "Worker", "by_topic", "say", "staged")

T = TypeVar("T")

NEVER: Final = 86_400.0
"""For `snapshot_seconds`: longer than any measurement."""
TOPICS: Final = MappingProxyType({name: f"in.{name}" for name in "abc"})
"""Of three replicas, by name."""
_PATIENCE_SECONDS: Final = 1_800.0
_STARTED: Final = time.monotonic()

Report: TypeAlias = Callable[[str, str, list[float]], None]
"""Takes a name, a unit and the value of each run."""


def say(line: str) -> None:
    """Progress, on standard error."""
    print(f"{time.monotonic() - _STARTED:7.1f} s  {line}", file=sys.stderr, flush=True)


def by_topic(streams: Sequence[T]) -> dict[str, T]:
    """A stream for each of the three topics."""
    return dict(zip(TOPICS.values(), streams, strict=True))


@asynccontextmanager
async def staged(**settings: str) -> AsyncIterator[Stage]:
    """A stage with a folder and a broker of its own; the broker's settings have _ for dots."""
    with tempfile.TemporaryDirectory(prefix="lmerge-bench-") as name:
        folder = Path(name)
        dotted = {key.replace("_", "."): value for key, value in settings.items()}
        async with (
            LocalBroker(folder / "kafka", settings=dotted) as broker,
            Stage(folder, broker.bootstrap) as stage,
        ):
            try:
                yield stage
            except BaseException:
                _keep_logs(folder)
                raise


def _keep_logs(folder: Path) -> None:
    """What went wrong can be read after the folder is gone."""
    kept = Path(tempfile.mkdtemp(prefix="lmerge-bench-logs-"))
    for log in folder.glob("*.log"):
        shutil.copy(log, kept)
    say(f"the logs are in {kept}")


class Merge:
    """A topology on a stage, with an output of its own over the three replica topics."""

    def __init__(self, stage: Stage, name: str, **settings: Any):
        """`settings` are further fields of the topology, and the output's `partitions`."""
        self.stage = stage
        self.name = name
        self.output = f"{name}.out"
        self.connection = Connection(stage.bootstrap)
        self._partitions = settings.pop("partitions", 1)
        self._settings = settings
        self._workers = 0

    async def topics(self) -> None:
        """Makes the replica topics that are missing."""
        async with Topics(self.connection) as topics:
            for topic in TOPICS.values():
                await topics.ensure(topic)

    async def worker(self, **settings: Any) -> "Worker":
        """Starts a worker; `settings` go over those of the merge for it alone."""
        self._workers += 1
        name = f"{self.name}-{self._workers}"
        path = self.stage.folder / f"{name}.yaml"
        path.write_text(json.dumps(self._document(settings)))  # YAML is a superset of JSON
        worker = Worker(self.stage, name, path)
        await worker.start()
        return worker

    def _document(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "name": self.name,
            "kafka": {"bootstrap": self.stage.bootstrap},
            "output": {"topic": self.output, "partitions": self._partitions},
            "replicas": [{"name": n, "topic": topic} for n, topic in TOPICS.items()],
            **self._settings,
            **settings,
        }


class Worker:
    """`lmerge run`, as a process."""

    def __init__(self, stage: Stage, name: str, path: Path):
        self.name = name
        self.started = time.time()
        self.peak = 0
        """The most resident memory seen while waiting, in bytes."""
        self._stage = stage
        self._path = path
        self._log = f"{name}.log"
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self._client = await self._stack.enter_async_context(StatusClient(self.address))
        self._process = await self._stage.lmerge(
            "run", str(self._path), "--json", "--http-port", str(port), log=self._log
        )
        self._usage = psutil.Process(self._process.pid)

    async def status(self) -> Status | None:
        """None while it does not answer.

        Raises:
            LMergeError: it has ended.
        """
        if self._process.returncode is not None:
            raise self._ended()
        return await self._client.get()

    async def wait(
        self, reached: Callable[[Status], bool], what: str, *, every: float = 0.02
    ) -> Status:
        """The first status for which `reached` holds, asked for every so many seconds.

        Raises:
            LMergeError: it has ended, or that takes over half an hour.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            status = await self.status()
            self.peak = max(self.peak, self.resident)
            if status is not None and status.tasks and reached(status):
                return status
            await asyncio.sleep(every)
        said = self._stage.said(self._log)
        raise LMergeError(f"worker {self.name}: waited in vain for {what}: {said}")

    async def running(self) -> Status:
        """Waits until it leads all that it is to lead."""
        return await self.wait(lambda status: status.state == "running", "it to run")

    @property
    def resident(self) -> int:
        """Bytes.

        Raises:
            LMergeError: it has ended.
        """
        return int(self._asked(self._usage.memory_info).rss)

    @property
    def descriptors(self) -> int:
        """How many are open; raises as `resident`."""
        return self._asked(self._usage.num_fds)

    def _asked(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except psutil.NoSuchProcess:
            raise self._ended() from None

    def _ended(self) -> LMergeError:
        return LMergeError(f"worker {self.name} ended: {self._stage.said(self._log)}")

    def said(self, event: str) -> list[dict[str, Any]]:
        """What it has logged of this kind; `at` is when, in seconds of the wall clock."""
        found = []
        for line in (self._stage.folder / self._log).read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                entry = json.loads(line)
                if entry.get("event") == event:
                    entry["at"] = datetime.fromisoformat(entry["timestamp"]).timestamp()
                    found.append(entry)
        return found

    async def kill(self) -> None:
        """kill -9."""
        await self._stack.aclose()
        await self._stage.kill(self._process)

    async def end(self) -> None:
        """SIGTERM, and waits for the end."""
        await self._stack.aclose()
        await self._stage.end(self._process)
