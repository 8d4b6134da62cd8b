"""The examples of docs/table.md and docs/generator.md, run one after the other as they stand, but
that the session is that of the tests."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession


def run(page: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    @contextmanager
    def shared(**_: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("lmerge_service.spark.session.spark_session", shared)
    text = Path(page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    monkeypatch.chdir(folder)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)  # noqa: S102


def test_the_page_of_tables(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("docs/table.md", spark, monkeypatch, tmp_path)
    shown = capsys.readouterr().out
    assert shown.startswith("4 840\n2 900\n")
    assert re.findall(r"^\|(.*)\|$", shown, re.MULTILINE)[1:] == ['"UA1714"|533|870']


def test_the_page_of_generated_streams(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("docs/generator.md", spark, monkeypatch, tmp_path)
    assert re.search(r"\|insert\|10000\|", capsys.readouterr().out)
