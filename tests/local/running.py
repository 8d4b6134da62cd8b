"""A topology that is up, as the tests see it: a process, what it shows, and what it has left."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.cli.conftest import LMERGE, environment

__all__ = ("Upped", "lmerge")


def lmerge(
    folder: Path, *arguments: str, bootstrap: str | None = None
) -> subprocess.CompletedProcess[str]:
    """A command whose state is in the folder."""
    return subprocess.run(
        [*LMERGE, *arguments],
        env=_environment(folder, bootstrap),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


_LONGEST: Final = 1 << 20
"""Bytes, more than the latest document has."""


class Upped:
    """`lmerge up FILE --json` in the foreground; use as `with`: it is killed and taken down, if it
    is up still."""

    def __init__(
        self,
        folder: Path,
        topology: Path,
        bootstrap: str | None = None,
        options: Sequence[str] = ("--no-dashboard",),
    ):
        self.folder, self._topology, self._bootstrap = folder, topology, bootstrap
        self._options = options

    def __enter__(self) -> "Upped":
        self._output = self.folder / "output"
        with self._output.open("wb") as out, (self.folder / "errors").open("wb") as err:
            self.process = subprocess.Popen(
                [*LMERGE, "up", str(self._topology), "--json", *self._options],
                env=_environment(self.folder, self._bootstrap),
                stdout=out,
                stderr=err,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        lmerge(self.folder, "down", str(self._topology))

    @property
    def errors(self) -> str:
        return (self.folder / "errors").read_text()

    @property
    def shown(self) -> dict[str, Any]:
        """The latest document; empty before the first."""
        with self._output.open("rb") as output:
            output.seek(max(0, self._output.stat().st_size - _LONGEST))
            *_, before, _ = [b"", *output.read().split(b"\n")]
        return json.loads(before) if before else {}

    def process_of(self, name: str) -> dict[str, Any]:
        """What is shown of a process."""
        return next((each for each in self.shown.get("processes", ()) if each["name"] == name), {})

    def status(self, name: str) -> dict[str, Any]:
        """What is known of a merge by the worker of it that leads."""
        for worker in self.shown.get("workers", ()):
            status = worker["status"] or {}
            if status.get("name") == name and (status.get("output") or {}).get("leader"):
                return dict(status)
        return {}

    def until(self, what: str, holds: Callable[[], object], seconds: float = 60) -> None:
        """Waits for a state that is shown."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None, self.errors
            assert time.monotonic() < deadline, f"{what}: {self.shown}"
            time.sleep(0.05)

    def until_ended(self, name: str, seconds: float = 60) -> None:
        """The merge's output has ended."""
        self.until(
            f"the end of {name}",
            lambda: self.status(name).get("output", {}).get("ended"),
            seconds,
        )

    def end(self, number: signal.Signals) -> int:
        """The exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(60)


def _environment(folder: Path, bootstrap: str | None) -> dict[str, str]:
    given = {"LMERGE_HOME": str(folder / "home")}
    return environment() | given | ({"LMERGE_BOOTSTRAP": bootstrap} if bootstrap else {})
