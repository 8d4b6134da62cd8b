"""The example of docs/audit.md: its files, what the command prints about them, and the program."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Lmerge, lmerge

__all__ = ("lmerge",)

PAGE = Path("docs/audit.md").read_text()
FILES, PROGRAM = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
[CONSOLE] = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.full
@pytest.mark.usefixtures("shared_session")
def test_the_examples_print_what_the_page_shows(
    lmerge: Lmerge,
    capsys: pytest.CaptureFixture[str],
) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(FILES, "docs/audit.md", "exec"), namespace)  # noqa: S102
    command, *lines = CONSOLE.splitlines()
    done = lmerge(*command.split()[2:])
    assert (done.code, done.out.splitlines()) == (1, lines)
    capsys.readouterr()
    exec(compile(PROGRAM, "docs/audit.md", "exec"), namespace)  # noqa: S102
    difference, places = capsys.readouterr().out.splitlines()
    assert difference == """b'{"flight":"UA1545"}' ((830,), (831,))"""
    assert "merged.ndjson at byte 129" in places
    assert Path("audit.html").read_text().startswith("<!doctype html>")
