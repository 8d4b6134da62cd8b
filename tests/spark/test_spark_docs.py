"""The examples of docs/spark.md do what the page shows."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.pages import run_page
from tests.spark.records import received


@pytest.mark.full
@pytest.mark.usefixtures("shared_session")
def test_the_examples_do_what_the_page_shows(
    bootstrap: str,
    topic_name: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prefix = topic_name("example")

    def rename(code: str) -> str:
        return re.sub(r'"example\.(a|copy|dead-letters)"', rf'"{prefix}.\1"', code)

    monkeypatch.chdir(tmp_path)
    run_page("docs/spark.md", rename, bootstrap)
    shown = capsys.readouterr().out
    assert '{"flight":"UA1545","to":"IAH"}' in shown
    assert "|not_an_element|Expected `int | null`, got `str` - at `$.vc`|" in shown
    assert re.search(r"\|stable\|\s+2\|", shown), "a stable in each partition"
    assert Path("made").is_dir()
    assert len(received(bootstrap, f"{prefix}.copy")) == 4
    [letter] = received(bootstrap, f"{prefix}.dead-letters")
    assert dict(letter.headers)["lmerge-replica"] == b"replica a"
