"""The crate by its own tools: its format, its lints, its tests."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CRATE = Path(__file__).parents[2] / "engine"


def has_cargo() -> bool:
    """A rustup without a toolchain is none."""
    found = shutil.which("cargo")
    return (
        found is not None
        and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0
    )


pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not has_cargo(), reason="there is no cargo that works"),
]


@pytest.mark.parametrize(
    "command",
    [["fmt", "--check"], ["clippy", "--locked", "--", "-D", "warnings"], ["test", "--locked"]],
    ids=lambda command: command[0],
)
@pytest.mark.xdist_group("cargo")
def test_cargo(command: list[str]) -> None:
    ended = subprocess.run(
        ["cargo", *command],
        cwd=CRATE,
        env={**os.environ, "PYO3_PYTHON": shutil.which("python3") or "python3"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "is not installed" in ended.stderr:  # a toolchain with less than the default profile has
        pytest.skip(ended.stderr.strip().splitlines()[0])
    assert ended.returncode == 0, ended.stdout + ended.stderr
