"""The service over a Kafka in memory: many schedules, and mistakes that they must show."""

import contextlib
import os
import subprocess
import sys
from typing import Any

import pytest

from chaos.verdicts import Outcome
from lmerge_service.errors import LMergeError, TransportError, single_error
from lmerge_service.kafka.sink import Committed, Outbox
from tests.simulation.clients import MemorySink
from tests.simulation.memory import BrokerError
from tests.simulation.simulate import Run, command, simulate

VALID = Outcome.VALID
SEEDS = range(100)


def assert_good(seed: int) -> Run:
    played = simulate(seed)
    assert played.good, f"{played}\n{played.report}\nagain: {command(seed)}"
    return played


def test_whatever_the_schedule_the_output_is_right_and_comes_to_its_end() -> None:
    played = [assert_good(seed) for seed in SEEDS]
    assert sum(each.seen["kills"] for each in played) > 50
    assert sum(each.seen["overtaken"] for each in played) > 20
    assert max(each.seen["kills"] for each in played) > 2


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


def test_output_that_is_committed_apart_from_its_mark_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Said before it is remembered: after a kill it is said again."""
    commit = MemorySink.commit

    async def in_two_steps(self: MemorySink, outbox: Outbox, *_: Any) -> Committed:
        output = await commit(self, Outbox(outbox.records))
        state = await commit(self, Outbox([], outbox.dead, outbox.state))
        return Committed(output.output, state.state)

    monkeypatch.setattr(MemorySink, "commit", in_two_steps)
    assert found()


def test_a_mark_that_is_committed_ahead_of_its_output_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Remembered before it is said: after a kill it is never said, unless that is noticed."""
    commit = MemorySink.commit

    async def mark_first(self: MemorySink, outbox: Outbox, *_: Any) -> Committed:
        state = await commit(self, Outbox([], [], outbox.state))
        output = await commit(self, Outbox(outbox.records, outbox.dead))
        return Committed(output.output, state.state)

    monkeypatch.setattr(MemorySink, "commit", mark_first)
    assert found()


def test_a_commit_that_is_taken_for_done_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = MemorySink.commit

    async def commit_and_hope(self: MemorySink, outbox: Outbox, *_: Any) -> Committed:
        try:
            return await commit(self, outbox)
        except TransportError:
            with contextlib.suppress(BrokerError):
                self._network.broker.end(self._producer, commit=False)
            return Committed(None, None)

    monkeypatch.setattr(MemorySink, "commit", commit_and_hope)
    assert found()
