"""The examples of docs/spark.md, run one after the other as they stand, but for the broker, the
topics' names, and that the session is that of the tests."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.records import received

BLOCKS = re.findall(
    r"^```python\n(.*?)^```", Path("docs/spark.md").read_text(), re.DOTALL | re.MULTILINE
)


def test_the_examples_do_what_the_page_says(
    spark: SparkSession,
    bootstrap: str,
    topic_name: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @contextmanager
    def shared(**_: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("lmerge_service.spark.session.spark_session", shared)
    prefix = topic_name("flights")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    monkeypatch.chdir(tmp_path)
    for block in BLOCKS:
        code = block.replace("127.0.0.1:9092", bootstrap)
        code = re.sub(r'"flights\.(a|copy|dead-letters)"', rf'"{prefix}.\1"', code)
        exec(compile(code, "docs/spark.md", "exec"), namespace)  # noqa: S102
    shown = capsys.readouterr().out
    assert '{"flight":"UA1545","to":"IAH"}' in shown
    assert "|not_an_element|Expected `int | null`, got `str` - at `$.vc`|" in shown
    assert re.search(r"\|stable\|\s+2\|", shown), "a stable in each partition"
    assert Path("made").is_dir()
    assert len(received(bootstrap, f"{prefix}.copy")) == 4
    [letter] = received(bootstrap, f"{prefix}.dead-letters")
    assert dict(letter.headers)["lmerge-replica"] == b"replica a"
