"""Progress of what takes long: on standard error, where that is a terminal of its own."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

__all__ = ("bars", "is_shown")


def is_shown(output: str | None = None) -> bool:
    """Whether progress is shown while `output` is written; - is standard output."""
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return output != "-" or sys.stdout is None or not sys.stdout.isatty()


@contextmanager
def bars(*columns: "ProgressColumn") -> Iterator["Progress"]:
    """Lines with a description, these columns and a clock; they go when the context is left."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    description = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True)
    with Progress(
        description, *columns, TimeElapsedColumn(), console=console, transient=True
    ) as progress:
        yield progress
