"""The measured side of the benchmarks of the service: merges on a stage.

Who owns what
    The stage owns every process and ends it; a merge owns the names of its topics. Statuses are
    asked for seldom where the rate is what is measured, since answering takes a worker some
    milliseconds.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import LocalBroker
from lmerge_service.local.stage import Stage
from lmerge_service.local.worker import WorkerProcess

__all__ = ("NEVER", "TOPICS", "Merge", "Report", "by_topic", "log_line", "staged")

T = TypeVar("T")

NEVER: Final = 86_400.0
"""For `snapshot_seconds`: longer than any measurement."""
TOPICS: Final = MappingProxyType({name: f"in.{name}" for name in "abc"})
"""Of three replicas, by name."""
_STARTED: Final = time.monotonic()

Report: TypeAlias = Callable[[str, str, list[float]], None]
"""Takes a name, a unit and the value of each run."""


def log_line(line: str) -> None:
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
    log_line(f"the logs are in {kept}")


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

    async def worker(self, **settings: Any) -> WorkerProcess:
        """Starts a worker; `settings` go over those of the merge for it alone."""
        self._workers += 1
        name = f"{self.name}-{self._workers}"
        path = self.stage.folder / f"{name}.yaml"
        path.write_text(json.dumps(self._document(settings)))  # YAML is a superset of JSON
        worker = WorkerProcess(self.stage, name, path)
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
