"""A stage for workers, replicas and other processes around one broker: of the demo, drills and
benchmarks.

Who owns what
    A `Stage` owns its broker, unless it was given one, and, as `Processes`, every process it
    starts; all die with the stage if that is killed. Whatever it writes is in one folder.
"""

import os
import sys
from pathlib import Path
from typing import Self

from lmerge_service.errors import EnvironmentMissingError
from lmerge_service.local.broker import LocalBroker
from lmerge_service.local.processes import LMERGE, Child, Processes

__all__ = ("Stage", "shipped_topology")


class Stage(Processes):
    """Starts and ends processes around a broker; use as `async with`."""

    def __init__(self, folder: Path, bootstrap: str | None = None):
        super().__init__(folder, die_with_us=True)
        self._broker = LocalBroker(folder / "kafka") if bootstrap is None else None
        self.bootstrap = bootstrap or ""
        self.environment = {k: v for k, v in os.environ.items() if k != "LMERGE_BOOTSTRAP"}
        """Ours, without the variable that names another broker."""

    async def __aenter__(self) -> Self:
        if self._broker is not None:
            await self._broker.astart()
            self.bootstrap = self._broker.bootstrap
        return self

    async def __aexit__(self, *raised: object) -> None:
        try:
            await super().__aexit__(*raised)
        finally:
            if self._broker is not None:
                await self._broker.astop()

    async def lmerge(self, *arguments: str, log: str) -> Child:
        """Starts `lmerge ARGUMENTS` with its output in a log file of the stage's folder."""
        return await self.start([*LMERGE, *arguments], log, self.environment)

    async def python(self, module: str, *arguments: str, log: str) -> Child:
        """The same of any module that can be run."""
        command = [sys.executable, "-m", module, *arguments]
        return await self.start(command, log, self.environment)


def shipped_topology(name: str) -> Path:
    """A topology that ships with the project, in a checkout or in an installed wheel."""
    package = Path(__file__).parent.parent
    for folder in (package / "topologies", package.parent / "topologies"):
        if (folder / name).is_file():
            return folder / name
    raise EnvironmentMissingError(f"{name} is missing beside the package: reinstall lmerge-service")
