"""A real merge for the browser: replicas that publish, as processes, and two workers."""

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import LMERGE, environment
from tests.service.cluster import Merge, Worker

__all__ = ("BEGINNING", "STEP", "TOKEN", "Published", "RealMerge", "write_stream")

TOKEN = "the-token-of-these-tests"
BEGINNING = 1_700_000_000_000
"""Of the streams, in milliseconds since 1970."""
STEP = 1_000
"""From one event to the next."""


def write_stream(path: Path, events: int = 20_000) -> Path:
    """Events of ten steps, each with a stable behind it: two elements a step."""
    with path.open("w") as file:
        for number in range(events):
            vs = BEGINNING + number * STEP
            file.write(
                f'{{"op":"insert","payload":{{"n":{number}}},"vs":{vs},"ve":{vs + 9_000}}}\n'
            )
            file.write(f'{{"op":"stable","vc":{vs}}}\n')
    return path


class Published:
    """`lmerge publish` of a stream to a topic, as a process."""

    def __init__(self, merge: Merge, stream: Path, replica: str, rate: int):
        command = [*LMERGE, "publish", str(stream), merge.topics[replica], "--rate", str(rate)]
        with (merge.folder / f"{merge.topics[replica]}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--bootstrap", merge.bootstrap], stdout=log, stderr=log,
                env=environment(),
            )  # fmt: skip

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()


class RealMerge:
    """A topology with workers that take `TOKEN` for decisions, and publishers."""

    def __init__(self, bootstrap: str, folder: Path, replicas: tuple[str, ...] = ("a", "b", "c")):
        self.merge = Merge(bootstrap, folder, replicas)
        self.merge.extra = {"guards": {"patience_seconds": 0.5, "max_leap": 10**9}}
        self.merge.write()
        self._stream = write_stream(folder / "stream.ndjson")
        self._token = folder / "token"
        self._token.write_text(TOKEN)
        self.workers: list[Worker] = []
        self.published: dict[str, Published] = {}
        self._left = contextlib.ExitStack()

    def __enter__(self) -> "RealMerge":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.published.values():
            each.kill()
        self._left.close()

    @property
    def path(self) -> str:
        return str(self.merge.path)

    def start(self, *replicas: tuple[str, int], workers: int = 2) -> None:
        """Publishers of so many elements a second each, and workers; all tasks are led."""
        self.publish(*replicas)
        for _ in range(workers):
            worker = self.merge.worker("--control-token", str(self._token))
            self.workers.append(self._left.enter_context(worker))
        self.until("a leader", lambda: any(map(leads, self.workers)))

    def publish(self, *replicas: tuple[str, int]) -> None:
        for name, rate in replicas:
            self.published[name] = Published(self.merge, self._stream, name, rate)

    def again(self, number: int) -> Worker:
        """A worker in the place of one that was killed, at the same address."""
        port = int(self.workers[number].address.rpartition(":")[2])
        log = self.merge.folder / f"again{number}.log"
        worker = Worker(self.merge.path, log, port, options=("--control-token", str(self._token)))
        self._left.callback(worker.kill)
        self.workers[number] = worker
        return worker

    @property
    def leading(self) -> int:
        """Which worker leads."""
        return next(at for at, each in enumerate(self.workers) if leads(each))

    @staticmethod
    def until(what: str, holds: Callable[[], object], seconds: float = 200) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, what
            time.sleep(0.1)


def leads(worker: Worker) -> bool:
    """Whether it leads a task of which the output has begun."""
    status = worker.status()
    tasks = (status or {}).get("tasks", ())
    return any(each["role"] == "leads" and each["phase"] == "leading" for each in tasks)
