"""The demo as a user runs it: the verdict, and that nothing it started outlives it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lmerge_service.demo.verdict import DemoVerdict, InputCounts
from lmerge_service.offline.audit import Audited, compare
from lmerge_service.tdb import TDB
from tests.leaving import left_behind

pytestmark = pytest.mark.xdist_group("demo")


def command(folder: Path, *more: str) -> list[str]:
    program = [sys.executable, "-m", "lmerge_service.cli", "demo", "--keep", str(folder)]
    return [*program, "--month", "2", "--pace", "4", *more]


@pytest.mark.full
def test_the_demo_proves_the_merged_stream_equivalent(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--json"), capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["equivalent"]
    assert found["good"]
    assert found["flights"] == 24_951
    assert found["bounds_broken"] == []
    assert found["out"]["inserts"] <= found["in"]["inserts"]
    assert found["latency_ms"]["p50"] > 0
    assert found["throughput"]["pass_through"] > 0
    assert found["throughput"]["engine"] in ("native", "python")
    news = " ".join(found["news"])
    assert "kill -9 of replica c" in news
    assert "it never comes back" in news
    assert "starts over (incarnation 1)" in news
    assert left_behind(tmp_path) == []


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_five_plans_of_one_query_are_proved_equivalent(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    program = [sys.executable, "-m", "lmerge_service.cli", "demo", "--spark", "--json"]
    done = subprocess.run(
        [*program, "--keep", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["good"]
    assert found["facts"] == 82_717
    assert found["events"] > 5_000
    news = " ".join(found["news"])
    assert "kill -9 of replica early" in news
    assert "goes on from its checkpoint" in news
    assert "goes on where its last commit ended" in news
    assert left_behind(tmp_path) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 130, marks=pytest.mark.deep),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.deep),
    ],
)
def test_whatever_ends_the_demo_nothing_is_left(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with (tmp_path / "printed").open("wb") as printed:
        demo = subprocess.Popen(command(tmp_path), stdout=printed, stderr=printed)
    deadline = time.monotonic() + 60
    while len(left_behind(tmp_path)) < 5 and time.monotonic() < deadline:
        assert demo.poll() is None, (tmp_path / "printed").read_text()
        time.sleep(0.1)
    demo.send_signal(number)
    assert demo.wait(30) == code
    text = (tmp_path / "printed").read_text()
    assert "Traceback" not in text, text
    deadline = time.monotonic() + 10  # what dies by the kernel's hand may take a moment
    while left_behind(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_behind(tmp_path) == []


def finding(output: TDB, *, inserts: int = 1, inserts_emitted: int = 1) -> DemoVerdict:
    reference = Audited("reference", TDB([("A", 1, 5)]))
    found = Audited("output", output, inserts_emitted)
    return DemoVerdict(compare(reference, found), InputCounts(inserts), [3.0, 1.0, 2.0])


def test_the_verdict_can_be_negative() -> None:
    end = 2**63 - 1
    assert finding(TDB([("A", 1, 5)], end)).good
    assert not finding(TDB([("A", 1, 6)], end)).good, "another end"
    assert not finding(TDB([], end)).good, "an event is missing"
    assert not finding(TDB([("A", 1, 5), ("B", 1, 5)], end)).good, "an event too many"
    assert not finding(TDB([("A", 1, 5)], 7)).good, "the output has not ended"
    chatty = finding(TDB([("A", 1, 5)], end), inserts_emitted=2)
    assert chatty.broken_bounds == ["inserts: 2 > 1"]
    assert not chatty.good


def test_quantiles_are_of_the_sorted_waits() -> None:
    found = finding(TDB())
    assert found.latency(0.5) == 2.0
    assert found.latency(0.99) == 3.0
