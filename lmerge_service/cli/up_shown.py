"""What `lmerge up` shows: a live screen on a terminal, lines of what changed elsewhere, or JSON."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import typer

from lmerge_service.cli.watch import WorkerView, changed, changes, seen_now
from lmerge_service.cli.words import fields_of, print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lmerge_service.local.up.supervisor import ProcessLife, Supervisor

__all__ = ("view",)

Show: TypeAlias = Callable[[Sequence[WorkerView]], None]

_PROGRESS_SECONDS: Final = 5.0
_STYLES: Final = {
    "running": "green",
    "waiting": "cyan",
    "restarting": "bold yellow",
    "failed": "bold red",
    "ended": "dim",
}


@contextmanager
def view(supervisor: "Supervisor", *, as_json: bool) -> Iterator[Show]:
    """What shows a state of the workers, and with it that of the processes."""
    if as_json:
        yield _Documents(supervisor).show
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _Lines(supervisor).show
        return
    from rich.live import Live

    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda workers: live.update(_screen(supervisor, workers), refresh=True)


def _screen(supervisor: "Supervisor", workers: Sequence[WorkerView]) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    from lmerge_service.service.status.shown import borderless

    table = borderless("process", "state", "pid", "restarts", "why", right=("pid", "restarts"))
    for life in supervisor.lives.values():
        table.add_row(
            life.name,
            Text(life.state, style=_STYLES[life.state]),
            "" if life.pid is None else str(life.pid),
            str(life.restarts or ""),
            Text(life.why),
        )
    head = Text(f"{supervisor.plan.name}, on Kafka at {supervisor.bootstrap}", style="bold")
    if supervisor.plan.dashboard is not None:
        head.append(f"\nthe dashboard is at {supervisor.plan.dashboard}", style="cyan")
    foot = Text(
        f"Ctrl-C ends all of it; logs, and the token for commands that decide, are in "
        f"{supervisor.folder}",
        style="dim",
    )
    return Group(head, Text(), table, Text(), *seen_now(workers), foot)


class _Lines:
    """A line for each change, and how far each output is, every few seconds while it moves."""

    def __init__(self, supervisor: "Supervisor"):
        self._supervisor = supervisor
        self._lives: dict[str, str] = {}
        self._workers: dict[str, str] = {}
        self._progress: dict[str, str] = {}
        self._next = 0.0
        if supervisor.plan.dashboard is not None:
            typer.echo(f"the dashboard is at {supervisor.plan.dashboard}")

    def show(self, workers: Sequence[WorkerView]) -> None:
        for line in [*self._changed(), *changes(workers, self._workers), *self._moved(workers)]:
            typer.echo(f"{time.strftime('%H:%M:%S')} {line}")
        sys.stdout.flush()

    def _changed(self) -> Iterator[str]:
        for life in self._supervisor.lives.values():
            yield from changed(self._lives, life.name, _words(life))

    def _moved(self, workers: Sequence[WorkerView]) -> Iterator[str]:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PROGRESS_SECONDS
        from lmerge_service.service.status.shown import progress

        for seen in workers:
            if seen.status is not None and seen.status.get("replicas"):
                yield from changed(self._progress, seen.address, progress(seen.status))


def _words(life: "ProcessLife") -> str:
    text: str = life.state
    if life.pid is not None:
        text += f", process {life.pid}"
    if life.restarts:
        text += f", restarts: {life.restarts}"
    return f"{text}: {life.why}" if life.why else text


class _Documents:
    """One JSON document a line, whenever it has changed."""

    def __init__(self, supervisor: "Supervisor"):
        self._supervisor = supervisor
        self._last: object = None

    def show(self, workers: Sequence[WorkerView]) -> None:
        document = {
            "name": self._supervisor.plan.name,
            "bootstrap": self._supervisor.bootstrap,
            "folder": str(self._supervisor.folder),
            "dashboard": self._supervisor.plan.dashboard,
            "processes": [_document(life) for life in self._supervisor.lives.values()],
            "workers": [
                {"at": seen.address, "status": seen.status, "away": seen.away} for seen in workers
            ],
        }
        if document != self._last:
            self._last = document
            print_json(document)
            sys.stdout.flush()


def _document(life: "ProcessLife") -> dict[str, Any]:
    known = fields_of(life, "name", "state", "pid", "restarts", "exit_code")
    return {**known, "why": life.why or None, "log": str(life.log)}
