"""`lmerge run`, killed in the middle of one of its steps.

    python -m tests.service.mortal_worker STEP ENTRY WAIT TOPOLOGY …

Theory
    The worker is the one that users run, and the kill is the kernel's, of its whole process. Only
    when it comes is known: in the given entry (1 is the first) of a step, while it waits for
    something for the `WAIT`-th time (0 is the first), which is mostly Kafka, that has its request
    by then or has not; -1 is before the step does anything. A step that waits less often is
    survived by nobody either: then the worker is killed at its end.

        python -m tests.service.mortal_worker trimming 2 0 flights.yaml --http-port 8080
"""

import functools
import inspect
import itertools
import os
import signal
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from lmerge_service.cli import main
from lmerge_service.kafka.sink import Sink
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.recovery import Recovery
from lmerge_service.merge.retention import Retention
from lmerge_service.merge.snapshots import writer as snapshots
from lmerge_service.merge.table.sweep import Sweep
from lmerge_service.merge.table.writer import TableWriter
from lmerge_service.merge.topic_monitor import TopicMonitor
from lmerge_service.service.cutover_readiness import CutoverReadiness
from lmerge_service.service.task import MergeTask
from lmerge_service.service.worker import Worker

__all__ = ("STEPS", "Step")


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the service that may be a worker's last."""

    owner: type
    function: str
    entries: tuple[int, int] = (1, 1)
    """In which entry a worker may be killed."""
    waits: int = 6
    """How often it waits, more or less."""
    needs: str | None = None
    """What has to happen for it to come: `attach` or `cutover`, which are decided, or `no table`,
    whose topic is deleted."""
    follows: bool = False
    """It is a standby's."""
    alone: int | None = None
    """No more entries come to a worker that leads at once: for further ones it stands by first."""


STEPS: Final = {
    "start": Step(Worker, "_prepare", waits=40),
    "following": Step(Recovery, "advanced", (1, 6), follows=True),
    "takeover": Step(Sink, "__aenter__", waits=12),
    "last commit": Step(Recovery, "last_commit", (1, 2), waits=4, alone=1),
    "recovery": Step(Recovery, "recover", waits=12),
    "leading": Step(MergeTask, "lead", waits=50),
    "commit": Step(Sink, "_transaction", (1, 12), waits=8),
    "snapshot taken": Step(snapshots.Snapshots, "start", (1, 3)),
    "snapshot written": Step(snapshots._Taking, "_read", (1, 4), waits=3),
    "snapshot committed": Step(snapshots.Snapshots, "committed", (1, 20)),
    "retention": Step(Retention, "_trim", (1, 3), waits=8),
    "trimming": Step(Topics, "_trim", (1, 2), waits=3),
    "attach": Step(MergeTask, "_carry_out", (2, 2), needs="attach"),
    "attached": Step(TopicMonitor, "act", (1, 40), needs="attach"),
    "cutover": Step(CutoverReadiness, "_write", needs="cutover", waits=3),
    "cutover done": Step(MergeTask, "_carry_out", (3, 3), needs="cutover"),
    "table filled": Step(TableWriter, "gather", (1, 8)),
    "table swept": Step(Sweep, "_clear", waits=5, needs="no table"),
    "table sampled": Step(Sweep, "_sample", (1, 20), waits=2),
    "table expired": Step(Sweep, "_expire", (8, 24), waits=3),
}


@types.coroutine
def _dying(step: Coroutine[Any, Any, Any], wait: int) -> Generator[Any, Any, Any]:
    """Lets a coroutine wait so many times, and never lets it go on after the next."""
    go_on: Callable[[Any], Any] = step.send
    value: Any = None
    for waited in itertools.count():
        try:
            awaited = go_on(value)
        except StopIteration:
            die()
        if waited == wait:
            die()
        try:
            value, go_on = (yield awaited), step.send
        except BaseException as error:
            value, go_on = error, step.throw
    return None


def mortal(function: Callable[..., Any], entry: int, wait: int) -> Callable[..., Any]:
    """A function of which one entry is the last thing that this process does."""
    entries = itertools.count(1)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def entered(*args: Any, **options: Any) -> Any:
            if next(entries) != entry:
                return await function(*args, **options)
            if wait < 0:
                die()
            return await _dying(function(*args, **options), wait)

        return entered

    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        if next(entries) != entry:
            return function(*args, **options)
        if wait >= 0:
            function(*args, **options)
        die()

    return called


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL does not return")


def run(arguments: list[str]) -> None:
    name, entry, wait, *options = arguments
    step = STEPS[name]
    function = getattr(step.owner, step.function)
    setattr(step.owner, step.function, mortal(function, int(entry), int(wait)))
    sys.argv = ["lmerge", "run", *options]
    main()


if __name__ == "__main__":
    run(sys.argv[1:])
