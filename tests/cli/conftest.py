"""The command line as the tests use it: in this process, or as a process of its own."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from lmerge_service.cli import main

__all__ = ("LMERGE", "Lmerge", "Outcome", "Run", "environment")


@dataclass(frozen=True)
class Outcome:
    """What a command left behind: exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that reports a mistake, without its prefix."""
        (line,) = self.err.splitlines()
        assert line.startswith("error: "), self.err
        return line.removeprefix("error: ")


LMERGE = (sys.executable, "-m", "lmerge_service.cli")

Lmerge: TypeAlias = Callable[..., Outcome]
Run: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def lmerge(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Lmerge:
    """`lmerge ARGUMENT...` in an empty directory, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("LMERGE_BOOTSTRAP", raising=False)

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, out, err)

    return run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The same as a process in that directory; or another command, or a pipeline of the shell in
    which `lmerge` is the command."""

    def run(
        *arguments: str,
        command: Sequence[str] = LMERGE,
        pipeline: str | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        if pipeline is not None:
            command = ["bash", "-c", f'lmerge() {{ {shlex.join(LMERGE)} "$@"; }}\n{pipeline}']
        return subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **options,
        )

    return run


def environment() -> dict[str, str]:
    """Warnings are errors in processes too, and the package is found from any directory."""
    root = str(Path(__file__).parents[2])
    return {
        **{key: value for key, value in os.environ.items() if key != "LMERGE_BOOTSTRAP"},
        "PYTHONPATH": root,
        "PYTHONWARNINGS": "error",
        "COLUMNS": "80",
    }
