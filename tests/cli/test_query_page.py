"""The commands of docs/queries.md, run on the files that it shows, print what it shows."""

import re
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Lmerge

PAGE = Path("docs/queries.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_what_the_page_shows_is_printed(lmerge: Lmerge, tmp_path: Path) -> None:
    path, commands = list(sys.path), 0
    try:
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", "".join(BLOCKS), re.M):
            name, *arguments = command.split()
            if name == "cat":
                (tmp_path / arguments[0]).write_text(shown)
                continue
            assert name == "lmerge"
            done = lmerge(*arguments)
            assert (done.out, done.err) == (shown, ""), command
            commands += 1
    finally:
        sys.path[:] = path
        sys.modules.pop("flights", None)
    assert commands >= 3


@pytest.mark.parametrize("word", ["required_history", "joining_at", "partition_columns", "--every"])
def test_the_page_has_what_there_is(word: str) -> None:
    assert word in PAGE
