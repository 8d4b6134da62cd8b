"""The merger under test in a drill: `lmerge run`, or another program with the same duties.

Theory
    Another program is started with one more argument, a file with a JSON document (`Post`): where
    Kafka is, which topics to read, where to write. From time to time it reports its state (`Look`)
    in the file `status`, which it replaces atomically, by renaming. SIGTERM ends it. Beyond that,
    its output must pass the judge's checks.

Who owns what
    As `local.worker`: the stage owns the process.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from lmerge_service.drills.observability_checks import Capture
from lmerge_service.drills.plan import DrillError
from lmerge_service.local.processes import Child
from lmerge_service.local.stage import Stage
from lmerge_service.local.worker import WorkerProcess
from lmerge_service.service.status.document import Status

__all__ = ("NO_ANSWER", "LMergeProgram", "Look", "Merger", "Post", "Program")

_CAPTURE_SECONDS: Final = 10.0
_REQUEST_SECONDS: Final = 30.0


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

    state: str | None = None
    """`running` when it leads all that it is to lead, `standby`, or something else; None: there is
    no answer."""
    leads: tuple[int, ...] = ()
    """Output partitions."""
    leader: str | None = None
    """The replica that leads the output, if this merger writes it."""
    health: str | None = None
    reasons: tuple[str, ...] = ()


NO_ANSWER: Final = Look()


class LMergeProgram(WorkerProcess):
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

    async def capture(self, logs: str) -> Capture | None:
        """Its status and metrics now, and `logs`, those of all workers."""
        status = await self.client.get("/status", timeout=_CAPTURE_SECONDS)
        metrics = await self.client.get("/metrics", timeout=_CAPTURE_SECONDS)
        return Capture(status.json(), metrics.text, logs)

    async def status_now(self) -> Status:
        """Its status, as soon as it has a task."""
        return await self.until(lambda _: True, "its status")

    async def attached(self) -> dict[str, str]:
        """The replicas that are attached, and their states."""
        return {each.name: each.state for each in (await self.status_now()).replicas}

    async def request(
        self, what: str, document: Mapping[str, Any], token: str, refused: int = 200
    ) -> dict[str, Any]:
        """Requests a decision; returns the answer.

        Raises:
            DrillError: there is none, or its code is neither 200 nor that of a refusal.
        """
        headers = {"authorization": f"Bearer {token}"}
        try:
            response = await self.client.post(
                f"/v1/{what}", json=document, headers=headers, timeout=_REQUEST_SECONDS
            )
        except httpx.TransportError as error:
            raise DrillError(f"worker {self.name} does not answer: {error!r}") from error
        answer: dict[str, Any] = response.json()
        if response.status_code not in (200, refused):
            raise DrillError(f"worker {self.name} answers {response.status_code}: {answer}")
        return answer


class Program(Child):
    """Another program. It takes no decisions, and is not checked for traces of faults."""

    def __init__(self, stage: Stage, name: str, path: Path, command: Sequence[str]):
        arguments = (sys.executable, "-m", *command, str(path))
        super().__init__(stage, arguments, f"{name}.log", stage.environment)
        self._status = Path(msgspec.json.decode(path.read_bytes(), type=Post).status)

    async def look(self) -> Look | None:
        """As of a worker."""
        if self.ended is not None:
            raise self.failure()
        if not self._status.exists():
            return None
        return msgspec.json.decode(self._status.read_bytes(), type=Look)

    async def capture(self, logs: str) -> Capture | None:
        """Nothing."""
        return None


Merger = LMergeProgram | Program
