"""The examples of docs/table.md and docs/generator.md, run one after the other as they stand, but
that the session is that of the tests."""

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("shared_session")


def run(page: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    text = Path(page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    monkeypatch.chdir(folder)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)  # noqa: S102


def test_the_page_of_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("docs/table.md", monkeypatch, tmp_path)
    shown = capsys.readouterr().out
    assert shown.startswith("4 840\n2 900\n")
    assert re.findall(r"^\|(.*)\|$", shown, re.MULTILINE)[1:] == ['"UA1714"|533|870']


def test_the_page_of_generated_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("docs/generator.md", monkeypatch, tmp_path)
    assert re.search(r"\|insert\|10000\|", capsys.readouterr().out)
