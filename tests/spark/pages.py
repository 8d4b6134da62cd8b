"""The Python examples of a page, run one after the other as they stand, but for the broker, the
topics' names, and that the session is that of the tests."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

__all__ = ("run_page",)

REPOSITORY = Path.cwd()


def run_page(
    page: str,
    rename: Callable[[str], str],
    spark: SparkSession,
    bootstrap: str,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Any]:
    """Gives what the examples have made."""

    @contextmanager
    def shared(**_: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("lmerge_service.spark.session.spark_session", shared)
    text = (REPOSITORY / page).read_text()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        code = rename(block.replace("127.0.0.1:9092", bootstrap))
        exec(compile(code, page, "exec"), namespace)  # noqa: S102
    return namespace
