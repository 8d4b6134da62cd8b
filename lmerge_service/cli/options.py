"""Options and progress that several commands share."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from lmerge_service.elements import Element

__all__ = ("Bootstrap", "Json", "reading")

Bootstrap: TypeAlias = Annotated[
    str | None,
    typer.Option(envvar="LMERGE_BOOTSTRAP", help="host:port of Kafka (127.0.0.1:9092)."),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Speak JSON, for programs.")]

Stream: TypeAlias = Iterator[tuple[int, Element]]
Wrap: TypeAlias = Callable[[str, Stream], Stream]

_UPDATE_EVERY = 5_000


@contextmanager
def reading(paths: Sequence[str]) -> Iterator[Wrap]:
    """Progress over the reading of files, on standard error if that is a terminal.

    Yields what wraps each file's iterator; elsewhere it is the identity.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _, items: items
        return
    columns = (TextColumn("{task.description}"), TextColumn("{task.completed:,} elements"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:

        def wrap(path: str, items: Stream) -> Stream:
            size = Path(path).stat().st_size if path != "-" and os.path.exists(path) else 0  # noqa: PTH110
            task = progress.add_task(f"{path} ({size / 1e6:,.1f} MB)")
            for count, item in enumerate(items, 1):
                if count % _UPDATE_EVERY == 0:
                    progress.update(task, completed=count)
                yield item

        yield wrap
