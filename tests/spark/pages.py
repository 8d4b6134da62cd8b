"""The Python examples of a page, run one after the other as they stand, but for the broker and the
topics' names; use the fixture `shared_session`, which gives them the session of the tests."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ("run_page",)

REPOSITORY = Path.cwd()


def run_page(
    page: str,
    rename: Callable[[str], str] = lambda code: code,
    bootstrap: str = "127.0.0.1:9092",
) -> dict[str, Any]:
    """Gives what the examples have made."""
    text = (REPOSITORY / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        code = rename(block.replace("127.0.0.1:9092", bootstrap))
        exec(compile(code, page, "exec"), namespace)  # noqa: S102
    return namespace
