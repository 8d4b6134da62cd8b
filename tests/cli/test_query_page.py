"""The commands of docs/queries.md, run on the files that it shows, print what it shows."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmerge_service.queries.costs.units import KINDS, UNITS, UnitCosts, write_units
from tests.cli.conftest import Lmerge, environment

PAGE = Path("docs/queries.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def steps(blocks: list[str], folder: Path) -> Iterator[tuple[list[str], str]]:
    """Each command with what the page shows of it; files are written, and nothing that they load
    stays."""
    path, modules = list(sys.path), list[str]()
    try:
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", "".join(blocks), re.M):
            words = command.split()
            if words[0] == "cat":
                (folder / words[1]).write_text(shown)
                modules.append(words[1].removesuffix(".py"))
            else:
                yield words, shown
    finally:
        sys.path[:] = path
        for name in modules:
            sys.modules.pop(name, None)


def test_what_the_page_shows_is_printed(lmerge: Lmerge, tmp_path: Path) -> None:
    commands = 0
    for (name, *arguments), shown in steps(BLOCKS, tmp_path):
        assert name == "lmerge"
        done = lmerge(*arguments)
        assert (done.out, done.err) == (shown, ""), arguments
        commands += 1
    assert commands >= 3


COSTS = re.findall(r"^```text\n(\$ .*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def masked(text: str) -> list[str]:
    """Lines without what depends on the machine, times and bytes."""
    text = re.sub(r"\s+[\d.,]+ µs", " µs", re.sub(r" \([\d.,]+ k?B\)", "", text))
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.full
def test_what_the_page_shows_of_costs_is_printed(
    lmerge: Lmerge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a longer output a part, and of costs what does not depend on the machine; which plans are
    chosen does."""
    monkeypatch.setenv("LMERGE_HOME", str(tmp_path))
    even = UnitCosts(dict.fromkeys(UNITS, 100.0), dict.fromkeys(KINDS, 200.0))
    write_units(tmp_path / "calibration.json", even)
    commands = 0
    for (name, *arguments), shown in steps(COSTS, tmp_path):
        if name == "python":
            file, _, to = arguments
            with (tmp_path / to).open("w") as lines:
                subprocess.run([sys.executable, file], stdout=lines, check=True, env=environment())
            continue
        done = lmerge(*arguments)
        assert (done.code, done.err) == (0, ""), arguments
        commands += 1
        if arguments[1] == "explain":
            printed = iter(masked(done.out))
            missing = [line for line in masked(shown) if line not in printed]
            assert not missing, arguments
    assert commands >= 3


@pytest.mark.parametrize("word", ["required_history", "joining_at", "partition_columns", "--every"])
def test_the_page_has_what_there_is(word: str) -> None:
    assert word in PAGE
