"""How long a new copy of a query takes to be joined, begun cold and begun with checkpoints.

A replica publishes in real time: an event each 10 ms, which lasts for the window, a stable each
100 ms. A copy that is started cold has not seen what began before it, so that it is correct only
from the end of the last such event on, a window later. One that begins with a checkpoint, what the
output held a moment ago, is correct from that moment on. Measured is the time until the worker
shows the copy as joined: cold, from the command that attaches it; with a checkpoint, from the
command that makes it, so that making and writing it count as well. It is made by

* `lmerge read`, of the whole output, into a file of lines;
* `lmerge state export`;
* `lmerge table update`, of a table that is some seconds behind.

The output may have a long history, of which nothing is live any more (`--before`). There is a
snapshot of what was merged by then, as there is of a merge that has run for a while.
"""

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.fleet import Report, log_line, staged
from lmerge_service.cli.checkpoints import checkpoint_in
from lmerge_service.elements import Element, Insert, Stable
from lmerge_service.errors import LMergeError
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.publish import publish
from lmerge_service.local.stage import Stage
from lmerge_service.local.worker import WorkerProcess
from lmerge_service.service.status.document import Status

__all__ = ("WAYS", "Play", "run")

_STEP_MS: Final = 10
_STABLE_EVERY: Final = 10
_TOKEN: Final = "only-for-this-benchmark"  # noqa: S105 - of a worker on a port of its own
_WARM_SECONDS: Final = 2.0
_SNAPSHOT_SECONDS: Final = 2.0


class _Query:
    """The output of a query from its event number `first` on; `next` is its next number."""

    def __init__(self, first: int, window_ms: int) -> None:
        self.next = first
        self._window = window_ms

    def __iter__(self) -> Iterator[Element]:
        for number in itertools.count(self.next):
            self.next, vs = number + 1, number * _STEP_MS
            yield Insert(b'{"id":%d}' % number, vs, vs + self._window)
            if number % _STABLE_EVERY == 0:
                yield Stable(vs)


WAYS: Final = {
    "cold": "begun cold",
    "lines": "begun with a checkpoint",
    "state": "begun with an exported state",
    "table": "begun with a table",
}
"""How a copy may begin, and what that is called."""


@dataclass(frozen=True, slots=True)
class Play:
    """What is measured."""

    runs: int
    window_seconds: float
    before: int
    """So many events are over before it begins."""
    ways: Sequence[str]

    @property
    def window_ms(self) -> int:
        return int(self.window_seconds * 1_000)


async def run(play: Play, report: Report) -> None:
    """Measures each way, so many times."""
    history = f", {play.before:,} events before" if play.before else ""
    async with staged() as stage:
        for way in play.ways:
            seconds = [await _measured(stage, f"{way}{n}", way, play) for n in range(play.runs)]
            report(f"joined, {WAYS[way]}, window {play.window_seconds:g} s{history}", "s", seconds)


async def _measured(stage: Stage, name: str, way: str, play: Play) -> float:
    log_line(f"{name}: a replica, and a copy of it")
    worker = WorkerProcess(stage, name, _topology(stage, name))
    await _publish_history(stage, f"{name}.a", play.before)
    query = _Query(play.before, play.window_ms)
    async with asyncio.TaskGroup() as group:
        publishing = [group.create_task(_publish(stage, f"{name}.a", query))]
        await worker.start()
        warm = play.before * _STEP_MS
        there = await worker.until(lambda st: (st.output.stable_point or 0) > warm, "output")
        taken = there.tasks[0].snapshots_taken
        await worker.until(lambda status: status.tasks[0].snapshots_taken > taken, "a snapshot")
        await _prepare(stage, worker, name, way)
        await asyncio.sleep(_WARM_SECONDS)
        started = time.monotonic()
        if way == "cold":
            copy = _Query(query.next, play.window_ms)
            publishing.append(group.create_task(_publish(stage, f"{name}.d", copy)))
            correct_from = copy.next * _STEP_MS + play.window_ms
            attaching = ("attach", "d", f"{name}.d", "--joining-at", str(correct_from))
            await _lmerge(stage, worker, *attaching)
        else:
            path = await _checkpoint(stage, worker, name, way)
            log_line(f"{name}: the checkpoint was made in {time.monotonic() - started:.1f} s")
            await _lmerge(stage, worker, "jumpstart", "d", f"{name}.d", "--from", str(path))
            log_line(f"{name}: seeded and attached after {time.monotonic() - started:.1f} s")
            copy = _Query(await asyncio.to_thread(_following, path), play.window_ms)
            publishing.append(group.create_task(_publish(stage, f"{name}.d", copy)))
        await worker.until(_joined, "the copy to be joined")
        seconds = time.monotonic() - started
        for each in publishing:
            each.cancel()
    await worker.end()
    return seconds


async def _publish_history(stage: Stage, topic: str, events: int) -> None:
    """Events that last as long as the next one is away, as fast as it goes."""
    past = itertools.takewhile(lambda each: not _is_beyond(each, events), iter(_Query(0, _STEP_MS)))
    await publish(Connection(stage.bootstrap), topic, past)


def _is_beyond(element: Element, events: int) -> bool:
    return type(element) is Insert and element.vs >= events * _STEP_MS


async def _prepare(stage: Stage, worker: WorkerProcess, name: str, way: str) -> None:
    """What is prepared before a copy is needed: a table is kept up to date all day."""
    if way == "table":
        await _checkpoint(stage, worker, name, way)


async def _checkpoint(stage: Stage, worker: WorkerProcess, name: str, way: str) -> Path:
    path, output = stage.folder / f"{name}.{way}", f"{name}.out"
    match way:
        case "lines":
            path.write_bytes(await _lmerge(stage, worker, "read", output))
        case "state":
            topology = str(stage.folder / f"{name}.yaml")
            await _lmerge(stage, worker, "state", "export", topology, "--to", str(path))
        case _:
            await _lmerge(stage, worker, "table", "update", f"kafka:{output}", str(path))
    return path


def _joined(status: Status) -> bool:
    return any((each.name, each.state) == ("d", "joined") for each in status.replicas)


def _following(path: Path) -> int:
    """The number of the first event that the checkpoint does not have."""
    return max(each.vs for each in checkpoint_in(str(path), nfc=False).events) // _STEP_MS + 1


async def _publish(stage: Stage, topic: str, query: _Query) -> None:
    per_second = 1_000 / _STEP_MS * (1 + 1 / _STABLE_EVERY)
    await publish(Connection(stage.bootstrap), topic, iter(query), rate=per_second)


async def _lmerge(stage: Stage, worker: WorkerProcess, *arguments: str) -> bytes:
    """Runs a command; what it wrote.

    Raises:
        LMergeError: it failed.
    """
    env = {
        **os.environ,
        "LMERGE_BOOTSTRAP": stage.bootstrap,
        "LMERGE_WORKER": worker.address,
        "LMERGE_TOKEN": _TOKEN,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lmerge_service.cli", *arguments),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode:
        raise LMergeError(f"lmerge {' '.join(arguments)}: {err.decode(errors='replace')}")
    return out


def _topology(stage: Stage, name: str) -> Path:
    token, path = stage.folder / "token", stage.folder / f"{name}.yaml"
    token.write_text(_TOKEN)
    document = {
        "name": name,
        "kafka": {"bootstrap": stage.bootstrap},
        "output": {"topic": f"{name}.out"},
        "time_unit": "none",
        "guards": {"max_leap": 0},
        "snapshot_seconds": _SNAPSHOT_SECONDS,
        "replicas": [{"name": "a", "topic": f"{name}.a"}],
        "http": {"control_token": {"file": str(token)}},
    }
    path.write_text(json.dumps(document))  # YAML is a superset of JSON
    return path
