"""The service over a Kafka in memory: many schedules, and mistakes that they must show."""

import contextlib
import os
import subprocess
import sys
from typing import Any

import pytest

from chaos.verdicts import Outcome
from lmerge_service.errors import LMergeError, TransportError, single_error
from lmerge_service.kafka.sink import Outbox
from lmerge_service.service.task import MergeTask
from tests.simulation.clients import MemorySink
from tests.simulation.simulate import Run, command, simulate

VALID = Outcome.VALID
SEEDS = range(100)


def assert_good(seed: int) -> Run:
    played = simulate(seed)
    assert played.good, f"{played}\n{played.report}\nagain: {command(seed)}"
    return played


def test_whatever_the_schedule_the_output_is_right_and_comes_to_its_end() -> None:
    played = [assert_good(seed) for seed in SEEDS]
    assert sum(each.kills for each in played) > 50
    assert sum(each.overtaken for each in played) > 20
    assert max(each.kills for each in played) > 2


@pytest.mark.deep
@pytest.mark.parametrize("block", range(30))
def test_thousands_of_schedules(block: int) -> None:
    for seed in range(1_000 + 100 * block, 1_100 + 100 * block):
        assert_good(seed)


def test_one_seed_is_one_history_in_any_process() -> None:
    first = simulate(7)
    assert simulate(7).history() == first.history()
    assert simulate(8).history() != first.history()
    for hashing in ("1", "2"):
        told = subprocess.run(
            [sys.executable, *command(7).split()[1:]],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.splitlines()[0] == str(first)


# Mistakes that the schedules must bring to light.


def found() -> list[str]:
    """The checks that some seed breaks, or what the service itself noticed."""
    for seed in SEEDS:
        try:
            with single_error():
                played = simulate(seed)
        except LMergeError as error:
            return [type(error).__name__]
        if not played.good:
            return [each.check for each in played.report.findings if each.outcome is not VALID]
    return []


def test_a_worker_that_forgets_what_it_said_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_nothing(self: MergeTask) -> None: ...

    monkeypatch.setattr(MergeTask, "_load_output", read_nothing)
    assert "K2" in found()


def test_offsets_that_are_committed_ahead_of_the_output_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Remembered before it is said: after a kill it is never said, unless the rebuild notices."""
    commit, replay = MemorySink.commit, MergeTask._replay

    async def offsets_first(self: MemorySink, outbox: Outbox) -> None:
        await commit(self, Outbox([], [], outbox.offsets))
        await commit(self, Outbox(outbox.records, outbox.dead))

    async def notice_nothing(self: MergeTask, committed: Any) -> list[Any]:
        await replay(self, committed)
        return []

    monkeypatch.setattr(MemorySink, "commit", offsets_first)
    monkeypatch.setattr(MergeTask, "_replay", notice_nothing)
    assert "K1" in found()


def test_a_commit_that_is_taken_for_done_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = MemorySink.commit

    async def commit_and_hope(self: MemorySink, outbox: Outbox) -> None:
        with contextlib.suppress(TransportError):
            await commit(self, outbox)

    monkeypatch.setattr(MemorySink, "commit", commit_and_hope)
    assert found()
