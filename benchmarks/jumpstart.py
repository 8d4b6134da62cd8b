"""How long a new copy of a query takes to be joined, begun cold and begun with a checkpoint.

A replica publishes in real time: an event each 10 ms, which lasts for the window, a stable each
100 ms. A copy that is started cold has not seen what began before it, so that it is correct only
from the end of the last such event on, a window later. One that begins with a checkpoint, what the
output held a moment ago, is correct from that moment on. Measured is the time until the worker
shows the copy as joined: cold, from the command that attaches it; with a checkpoint, from the
command that reads the output into a file, so that making and writing the checkpoint count as well.
"""

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.fleet import Report, say, staged
from lmerge_service.demo.stage import Stage
from lmerge_service.demo.workers import Worker
from lmerge_service.elements import Element, Insert, Stable
from lmerge_service.errors import LMergeError
from lmerge_service.formats.ndjson import read_elements
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.client import Connection
from lmerge_service.kafka.publish import publish
from lmerge_service.service.status import Status

__all__ = ("run",)

_STEP_MS: Final = 10
_STABLE_EVERY: Final = 10
_TOKEN: Final = "only-for-this-benchmark"  # noqa: S105 - of a worker on a port of its own
_WARM_SECONDS: Final = 2.0


class _Query:
    """What a query says from its event number `first` on; `next` is the number it says next."""

    def __init__(self, first: int, window_ms: int) -> None:
        self.next = first
        self._window = window_ms

    def __iter__(self) -> Iterator[Element]:
        for number in itertools.count(self.next):
            self.next, vs = number + 1, number * _STEP_MS
            yield Insert(b'{"id":%d}' % number, vs, vs + self._window)
            if number % _STABLE_EVERY == 0:
                yield Stable(vs)


async def run(runs: int, window_seconds: float, report: Report) -> None:
    """Measures both, so many times each."""
    window_ms = int(window_seconds * 1_000)
    async with staged() as stage:
        cold = [await _measured(stage, f"cold{n}", window_ms, cold=True) for n in range(runs)]
        seeded = [await _measured(stage, f"seeded{n}", window_ms, cold=False) for n in range(runs)]
    report(f"joined, begun cold, window {window_seconds:g} s", "s", cold)
    report(f"joined, begun with a checkpoint, window {window_seconds:g} s", "s", seeded)


async def _measured(stage: Stage, name: str, window_ms: int, *, cold: bool) -> float:
    say(f"{name}: a replica, and a copy of it")
    worker = Worker(stage, name, _topology(stage, name))
    query = _Query(0, window_ms)
    async with asyncio.TaskGroup() as group:
        speaking = [group.create_task(_speak(stage, f"{name}.a", query))]
        await worker.start()
        await worker.wait(lambda status: (status.output.stable_point or 0) > 0, "output")
        await asyncio.sleep(_WARM_SECONDS)
        started = time.monotonic()
        if cold:
            copy = _Query(query.next, window_ms)
            speaking.append(group.create_task(_speak(stage, f"{name}.d", copy)))
            correct_from = copy.next * _STEP_MS + window_ms
            attaching = ("attach", "d", f"{name}.d", "--joining-at", str(correct_from))
            await _lmerge(stage, worker, *attaching)
        else:
            path = stage.folder / f"{name}.ndjson"
            path.write_bytes(await _lmerge(stage, worker, "read", f"{name}.out"))
            say(f"{name}: the output was read in {time.monotonic() - started:.1f} s")
            await _lmerge(stage, worker, "jumpstart", "d", f"{name}.d", "--from", str(path))
            say(f"{name}: seeded and attached after {time.monotonic() - started:.1f} s")
            copy = _Query(_following(path), window_ms)
            speaking.append(group.create_task(_speak(stage, f"{name}.d", copy)))
        await worker.wait(_joined, "the copy to be joined")
        seconds = time.monotonic() - started
        for each in speaking:
            each.cancel()
    await worker.end()
    return seconds


def _joined(status: Status) -> bool:
    return any((each.name, each.state) == ("d", "joined") for each in status.replicas)


def _following(path: Path) -> int:
    """The number of the first event that the file does not have."""
    said = [each for _, each in read_elements(path, WireDecoder()) if type(each) is Insert]
    return max(each.vs for each in said) // _STEP_MS + 1


async def _speak(stage: Stage, topic: str, query: _Query) -> None:
    per_second = 1_000 / _STEP_MS * (1 + 1 / _STABLE_EVERY)
    await publish(Connection(stage.bootstrap), topic, iter(query), rate=per_second)


async def _lmerge(stage: Stage, worker: Worker, *arguments: str) -> bytes:
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
        "replicas": [{"name": "a", "topic": f"{name}.a"}],
        "http": {"control_token": {"file": str(token)}},
    }
    path.write_text(json.dumps(document))  # YAML is a superset of JSON
    return path
