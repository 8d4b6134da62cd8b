"""The stage: files, broker, worker and publishers, each a process of its own.

Who owns what
    A `Stage` owns its broker and, as `Processes`, every process it starts; all die with the stage
    if that is killed. Whatever it writes is in one folder.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from lmerge_service.errors import EnvironmentMissingError
from lmerge_service.local.broker import LocalBroker
from lmerge_service.local.up.processes import LMERGE, Process, Processes

__all__ = ("Process", "Stage", "shipped_topology")


class Stage(Processes):
    """Starts and ends processes around a broker; use as `async with`."""

    def __init__(self, folder: Path, bootstrap: str | None = None):
        super().__init__(folder, die_with_us=True)
        self._given = bootstrap
        self.bootstrap = ""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            if self._given is None:
                broker = LocalBroker(self.folder / "kafka")
                await self._stack.enter_async_context(broker)
                self.bootstrap = broker.bootstrap
            else:
                self.bootstrap = self._given
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *raised: object) -> None:
        try:
            await super().__aexit__(*raised)
        finally:
            await self._stack.aclose()

    async def lmerge(self, *arguments: str, log: str) -> Process:
        """Starts `lmerge ARGUMENTS` with its output in a log file of the stage's folder."""
        return await self.start([*LMERGE, *arguments], log, _environment())

    async def python(self, module: str, *arguments: str, log: str) -> Process:
        """The same of any module that can be run."""
        return await self.start([sys.executable, "-m", module, *arguments], log, _environment())


def _environment() -> Mapping[str, str]:
    """Our environment, without the variable that names another broker."""
    return {name: value for name, value in os.environ.items() if name != "LMERGE_BOOTSTRAP"}


def shipped_topology(name: str) -> Path:
    """A topology that ships with the project, in a checkout or in an installed wheel."""
    package = Path(__file__).parent.parent
    for folder in (package / "topologies", package.parent / "topologies"):
        if (folder / name).is_file():
            return folder / name
    raise EnvironmentMissingError(f"{name} is missing beside the package: reinstall lmerge-service")
