"""The examples of docs/table.md and docs/generator.md do what the pages show."""

import re
from pathlib import Path

import pytest

from tests.spark.pages import run_page

pytestmark = pytest.mark.usefixtures("shared_session")


@pytest.mark.full
def test_the_page_of_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("docs/table.md")
    shown = capsys.readouterr().out
    assert shown.startswith("4 840\n2 900\n")
    assert re.findall(r"^\|(.*)\|$", shown, re.MULTILINE)[1:] == ['"UA1714"|533|870']


def test_the_page_of_generated_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("docs/generator.md")
    assert re.search(r"\|insert\|10000\|", capsys.readouterr().out)
