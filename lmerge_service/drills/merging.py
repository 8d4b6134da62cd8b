"""The merger under test in a drill: `lmerge run`, or another program with the same duties.

Theory
    Another program is started with one more argument, a file with a JSON document (`Post`): where
    Kafka is, which topics to read, where to write. From time to time it reports its state (`Look`)
    in the file `status`, which it replaces atomically, by renaming. SIGTERM ends it. Beyond that,
    its output must pass the judge's checks.

Who owns what
    As `demo.workers`: the stage owns the process.
"""

import asyncio
from pathlib import Path
from typing import Final

import httpx
import msgspec

from lmerge_service.demo.stage import Process, Stage
from lmerge_service.demo.workers import Worker
from lmerge_service.drills.observability_checks import Capture

__all__ = ("LMerge", "Look", "Merger", "Post", "Program")

_SERVES: Final = "running", "standby"
_PATIENCE_SECONDS: Final = 60.0
_EVERY_SECONDS: Final = 0.05


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a program."""

    bootstrap: str
    replicas: dict[str, str]
    """Topics by name."""
    output: str
    """The topic, which is there."""
    partitions: int
    group: str
    """Of consumers; several that are started with it share the work."""
    session_seconds: float
    status: str


class Look(msgspec.Struct, frozen=True):
    """The state of a merger at one moment."""

    state: str
    """`running` when it leads all that it is to lead, `standby`, or something else."""
    leads: tuple[int, ...] = ()
    """Output partitions."""
    leader: str | None = None
    """The replica that leads the output, if this merger writes it."""
    health: str | None = None
    reasons: tuple[str, ...] = ()


class LMerge(Worker):
    """`lmerge run`."""

    async def look(self) -> Look | None:
        """None while it does not answer.

        Raises:
            LMergeError: it has ended.
        """
        status = await self.status()
        if status is None:
            return None
        leads = tuple(task.partition for task in status.tasks if task.role == "leads")
        return Look(
            status.state,
            leads,
            status.output.leader if leads else None,
            status.health,
            tuple(status.reasons),
        )

    async def serving(self) -> None:
        """Waits until it leads or follows."""
        await self.wait(lambda status: status.state in _SERVES, "a task")

    async def shown(self, logs: str) -> Capture | None:
        """Its status and metrics now, and `logs`, those of all workers."""
        async with httpx.AsyncClient(base_url=self.address, timeout=10, trust_env=False) as client:
            status, metrics = await client.get("/status"), await client.get("/metrics")
        return Capture(status.json(), metrics.text, logs)


class Program(Worker):
    """Another program. It takes no decisions, and is not checked for traces of faults."""

    def __init__(self, stage: Stage, name: str, path: Path, command: tuple[str, ...]):
        super().__init__(stage, name, path)
        self._command = command
        self._status = Path(msgspec.json.decode(path.read_bytes(), type=Post).status)

    async def _launch(self, port: int) -> Process:
        module, *arguments = self._command
        return await self._stage.python(module, *arguments, str(self._path), log=self._log)

    async def look(self) -> Look | None:
        """As of a worker."""
        if self.ended is not None:
            raise self._ended()
        if not self._status.exists():
            return None
        return msgspec.json.decode(self._status.read_bytes(), type=Look)

    async def serving(self) -> None:
        """As of a worker; raises TimeoutError after a minute."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while (  # noqa: ASYNC110 - it polls a file
                look := await self.look()
            ) is None or look.state not in _SERVES:
                await asyncio.sleep(_EVERY_SECONDS)

    async def shown(self, logs: str) -> Capture | None:
        """Nothing."""
        return None


Merger = LMerge | Program
