"""`kill -9` of updates of a table, wherever they are: what is read is read once."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from lmerge_service.spark.generator.slices import Presentation
from lmerge_service.spark.generator.workload import Workload
from lmerge_service.spark.table.delta import newest
from lmerge_service.spark.table.read import answer
from lmerge_service.tdb import TDB
from lmerge_service.workloads.presentation import Variation
from tests.spark.generated import elements, logical
from tests.spark.histories import EPOCH, Record, store

WORKLOAD = Workload(events=6000, max_gap=10, event_duration=300, payload_bytes=16)
MADE = Presentation(
    WORKLOAD,
    Variation(provisional=0.5, spread=200, phantoms=0.2, disorder=0.3, displacement=400,
              stable_probability=0.02),
)  # fmt: skip


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.deep
@pytest.mark.timeout(900)
def test_an_update_that_is_killed_again_and_again_reads_each_record_once(
    tmp_path: Path,
) -> None:
    source, path = str(tmp_path / "stream"), str(tmp_path / "table")
    stream = elements(MADE)
    store((Record(0, at, EPOCH + at, 0, each) for at, each in enumerate(stream)), Path(source))
    total = len(stream)
    rng, kills = Random(5), 0
    while kills < 4:
        reached, dead = run_and_kill(source, path, rng.uniform(0, 1.5))
        kills += dead
        if not dead:
            break
        assert reached <= total
    assert kills >= 2, "it was too fast to be killed"
    assert run_and_kill(source, path, None) == (total, False)
    rows = [row for batch in answer(path, None)[1] for row in batch.to_pylist()]
    assert TDB((row["payload"], row["vs"], row["ve"]) for row in rows) == logical(WORKLOAD)


def run_and_kill(source: str, path: str, after: float | None) -> tuple[int, bool]:
    """Runs an update, and kills it so many seconds after its first step; returns how far the table
    is, and whether the update was still running."""
    command = ("-m", "lmerge_service.cli", "table", "update", source, path)
    update = subprocess.Popen(
        [sys.executable, *command, "--step", "800", "--driver-memory", "512m"],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert update.stderr is not None
    update.stderr.readline()
    try:
        assert update.wait(after) == 0, update.stderr.read()
    except subprocess.TimeoutExpired:
        update.send_signal(signal.SIGKILL)
        update.wait()
    update.stderr.close()
    table = newest(path)
    reached = sum(each.next for each in table.reached.values()) if table else 0
    return reached, update.returncode == -signal.SIGKILL
