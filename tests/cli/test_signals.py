"""A process that is asked to end more than once ends in order all the same."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lmerge_service.elements import Element, Insert, Stable
from lmerge_service.local.broker import free_port
from tests.cli.conftest import LMERGE, Lmerge, environment
from tests.leaving import left_behind
from tests.offline.streams import on_the_wire, write
from tests.service.cluster import Merge
from tests.waiting import come_true

LIVE: list[Element] = [*(Insert(f"{n}", n, n + 1_000_000) for n in range(40_000)), Stable(1)]
PAUSES = (0.0, 0.05, 0.1, 0.2)
TWICE = pytest.mark.parametrize("pause", PAUSES)

ENDS = """
import asyncio, signal, sys, time
from lmerge_service.signals import orderly_end

def busy():
    print("ending", flush=True)
    time.sleep(0.4)
    print("ended", flush=True)

def sync():
    came = []
    with orderly_end(came.append):
        print("ready", flush=True)
        while not came:
            time.sleep(0.01)
        busy()

async def work():
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    with orderly_end(lambda _: loop.call_soon_threadsafe(stop.set)):
        print("ready", flush=True)
        await stop.wait()
    busy()

sync() if sys.argv[1] == "sync" else asyncio.run(work())
time.sleep(0.1)
"""


@contextmanager
def _asked_twice(
    process: subprocess.Popen[str], number: signal.Signals, pause: float
) -> Iterator[None]:
    process.send_signal(number)
    time.sleep(pause)  # what is tested is that this does not matter
    process.send_signal(number)
    yield


@pytest.mark.full
@TWICE
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_n10_a_second_signal_does_not_cut_an_orderly_end_short(
    kind: str, number: signal.Signals, pause: float
) -> None:
    command = [sys.executable, "-c", ENDS, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with _asked_twice(process, number, pause):
            rest = process.stdout.read()
        assert (process.wait(), rest) == (0, "ending\nended\n")


@pytest.mark.full
@TWICE
def test_n10_lmerge_read_leaves_its_token_when_it_is_asked_to_end_twice(
    lmerge: Lmerge, bootstrap: str, topic_name: Callable[..., str], pause: float
) -> None:
    """Many live events, so that making the token takes longer than the pause."""
    write(Path("stream"), map(on_the_wire, LIVE))
    topic = topic_name()
    assert lmerge("publish", "stream", topic, "--bootstrap", bootstrap).code == 0
    at = ("--token", "token", "--bootstrap", bootstrap)
    with subprocess.Popen(
        [*LMERGE, "read", topic, "--follow", *at],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        while '"vc":1' not in process.stdout.readline():
            assert process.poll() is None
        with _asked_twice(process, signal.SIGTERM, pause):
            rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, ""), errors
    assert lmerge("read", topic, *at).out == "", "what was written is written again"


@pytest.mark.full
def test_n10_a_worker_that_is_asked_to_end_again_and_again_ends_in_order_with_0(
    bootstrap: str, tmp_path: Path
) -> None:
    merge = Merge(bootstrap, tmp_path, ("a",))
    merge.publish("a", [Insert(b'"e"', 1, 5)])
    with merge.worker() as worker:
        worker.wait_until_running()
        deadline = time.monotonic() + 15
        while worker.process.poll() is None and time.monotonic() < deadline:
            worker.process.send_signal(signal.SIGTERM)
            time.sleep(0.01)
        assert worker.process.returncode == 0, worker.text()
        assert worker.logged("stopped"), "the group is left by then"


@pytest.mark.full
@TWICE
def test_n10_lmerge_watch_that_is_asked_to_end_twice_ends_with_0(
    tmp_path: Path, pause: float
) -> None:
    command = [*LMERGE, "watch", "--at", f"http://127.0.0.1:{free_port()}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env=environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert "is away" in process.stdout.readline()
        with _asked_twice(process, signal.SIGTERM, pause):
            assert process.communicate(timeout=30) == ("", "")
        assert process.returncode == 0


@pytest.mark.deep
@TWICE
def test_n10_a_drill_that_is_asked_to_end_twice_while_it_starts_leaves_nothing(
    tmp_path: Path, pause: float
) -> None:
    with subprocess.Popen(
        [*LMERGE, "drill", "leader-dies"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | {"TMPDIR": str(tmp_path), "LMERGE_HOME": str(tmp_path)},
    ) as process:
        asyncio.run(come_true(lambda: bool(left_behind(tmp_path)), seconds=120))
        with _asked_twice(process, signal.SIGTERM, pause):
            errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert left_behind(tmp_path) == []
