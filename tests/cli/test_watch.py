"""`lmerge watch`: on a terminal of its own, and where there is none."""

import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lmerge_service.cli.watch import WorkerView, changes
from lmerge_service.dashboard.rates import Rates
from tests.cli.conftest import LMERGE, Lmerge, environment
from tests.cli.test_control import STATUS, Served


class Screen:
    """`lmerge watch` on a pseudo-terminal, and all that it has drawn."""

    def __init__(self, process: "subprocess.Popen[bytes]", terminal: int, before: list[Any]):
        self.process, self.terminal, self.before = process, terminal, before
        self.drawn = ""

    def wait(self, reached: Callable[[str], bool], what: str) -> None:
        """Until what was drawn since the last call is as it should be."""
        deadline = time.monotonic() + 20
        while not reached(self.drawn):
            assert time.monotonic() < deadline, (
                f"waited in vain for {what}: {self.drawn[-3_000:]!r}"
            )
            ready, _, _ = select.select([self.terminal], [], [], 0.2)
            if ready:
                try:
                    self.drawn += os.read(self.terminal, 1 << 16).decode(errors="replace")
                except OSError:  # the other side is closed
                    assert reached(self.drawn), f"ended before {what}: {self.drawn[-3_000:]!r}"
        self.drawn = ""

    def press(self, keys: bytes) -> None:
        os.write(self.terminal, keys)

    def ends(self) -> int:
        """The exit code; the terminal is as it was."""
        deadline = time.monotonic() + 10
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "does not end"
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.drawn += os.read(self.terminal, 1 << 16).decode(errors="replace")
        assert termios.tcgetattr(self.terminal) == self.before
        return self.process.returncode


@contextmanager
def watching(tmp_path: Path, *arguments: str) -> Iterator[Screen]:
    terminal, side = pty.openpty()
    before = termios.tcgetattr(terminal)
    process = subprocess.Popen(
        [*LMERGE, "watch", *arguments],
        stdin=side, stdout=side, stderr=side, cwd=tmp_path, start_new_session=True,
        env={**environment(), "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )  # fmt: skip
    try:
        yield Screen(process, terminal, before)
    finally:
        process.kill()
        process.wait()
        os.close(side)
        os.close(terminal)


@pytest.mark.full
def test_a_terminal_shows_who_leads_how_fast_and_what_is_wrong(tmp_path: Path) -> None:
    one, other = Served(tmp_path), Served(tmp_path)
    other.status = {**STATUS, "name": "standby"}
    addresses = ("--at", one.address, "--at", other.address)
    with one.up(), other.up(), watching(tmp_path, *addresses) as screen:
        screen.wait(
            lambda drawn: all(
                each in drawn
                for each in (
                    one.address, other.address, "flights: running", "standby: running", "degraded",
                    "led by a", "a #2 ◀", "excluded", "? elements/s in", "q ends this",
                )
            ),
            "both workers",
        )  # fmt: skip
        one.status = {**STATUS, "elements_in": 1_000_000_000}
        screen.wait(lambda drawn: re.search(r"\d,\d{3} elements/s in", drawn) is not None, "a rate")
        screen.press(b"q")
        assert screen.ends() == 0


@pytest.mark.full
def test_a_worker_that_goes_away_is_shown_as_away_until_it_is_back(tmp_path: Path) -> None:
    served = Served(tmp_path)
    with watching(tmp_path, "--at", served.address) as screen:
        screen.wait(lambda drawn: "away: " in drawn, "a worker that is not there")
        with served.up():
            screen.wait(lambda drawn: "led by a" in drawn, "the worker")
        screen.wait(lambda drawn: "away: " in drawn, "the worker to be away")
        with served.up():
            screen.wait(lambda drawn: "led by a" in drawn, "the worker to be back")
            screen.process.send_signal(signal.SIGINT)
            assert screen.ends() == 0


def test_what_is_no_worker_is_shown_as_away(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.status = "not a document"  # type: ignore[assignment]
    with served.up(), watching(tmp_path, "--at", served.address) as screen:
        screen.wait(lambda drawn: "away: is no worker that we understand" in drawn, "that")
        screen.process.terminate()
        assert screen.ends() == 0


@pytest.mark.full
def test_without_a_terminal_there_is_a_line_for_each_change(tmp_path: Path) -> None:
    served = Served(tmp_path)
    process = subprocess.Popen(
        [*LMERGE, "watch", "--at", served.address],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        lines = []
        lines.append(process.stdout.readline())
        with served.up():
            lines.append(process.stdout.readline())
            served.status = {**STATUS, "elements_in": 400}
            served.status = {**STATUS, "health": "ok", "reasons": []}
            lines.append(process.stdout.readline())
        lines.append(process.stdout.readline())
        process.terminate()
        out, err = process.communicate(timeout=10)
    finally:
        process.kill()
    printed = [line.split(" ", 2)[2].rstrip() for line in lines]
    replicas = "a joined, b joining, c excluded"
    assert printed == [
        "is away",
        f"running, degraded; led by a; {replicas}: {STATUS['reasons'][0]}",
        f"running, ok; led by a; {replicas}",
        "is away",
    ]
    assert all(served.address in line for line in lines)
    assert (process.returncode, out, err) == (0, "", "")


def test_mistakes_are_found_before_anything_is_drawn(lmerge: Lmerge) -> None:
    assert lmerge("watch", "--at", "here").code == 2
    assert lmerge("watch", "--token-file", "nowhere").error.startswith("cannot read nowhere")


def test_rates_are_those_of_the_last_few_snapshots() -> None:
    rates = Rates()
    assert rates.of("a") is None
    for second in range(10):
        rates.take(float(second), {"a": second * 10 if second < 5 else second * 100})
    assert rates.of("a") == 100
    assert rates.of("b") is None
    rates.take(10.0, {"a": 3})
    assert rates.of("a") is None
    rates.take(12.0, {"a": 5})
    assert rates.of("a") == 1


@pytest.mark.parametrize("status", [{}, {"replicas": []}, {"output": None, "reasons": ["x\n"]}])
def test_a_document_with_little_in_it_is_shown_all_the_same(status: dict[str, Any]) -> None:
    seen = WorkerView("http://w")
    seen.take(1.0, status, None)
    known: dict[str, str] = {}
    (line,) = changes([seen], known)
    assert line.isprintable()
    assert list(changes([seen], known)) == []
