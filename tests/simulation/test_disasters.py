"""A state that is lost, in simulated runs: the output starts over, and mistakes that show then."""

from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from msgspec.structs import replace

from lmerge_service.drills.verdicts import Outcome
from lmerge_service.elements import START
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.kafka.sink import Committed, Outbox
from lmerge_service.merge import transaction
from lmerge_service.merge.commit_record import CommitRecord, OutputBeginning
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.decisions.records import RestartOutput
from lmerge_service.merge.operator_input import OperatorInput
from lmerge_service.merge.task_state import TaskState
from lmerge_service.service.task import MergeTask
from tests.simulation import simulate as playing
from tests.simulation.clients import MemorySink
from tests.simulation.simulate import Run, command, simulate

SEEDS = range(2)


def assert_good(seed: int) -> Run:
    played = simulate(seed, loses=True)
    assert played.good, f"{played}\n{played.report}\nagain: {command(seed, loses=True)}"
    return played


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_lost_each_incarnation_is_right_and_the_output_comes_to_its_end(
    seed: int,
) -> None:
    assert_good(seed)


@pytest.mark.full
def test_who_was_correct_before_the_incarnation_is_is_not_blamed_for_it() -> None:
    """It came back later than the one that leads, which lacks what ends before."""
    assert_good(20_058)


@pytest.mark.full
def test_many_schedules_of_losses() -> None:
    seen = Counter[str]()
    for seed in range(100, 160):
        seen += assert_good(seed).seen
    least = {"disasters": 60, "incarnations": 40, "output lost": 50, "restarts decided": 10}
    least |= {"output restarted": 60, "kills": 200, "restored": 100}
    assert {what: seen[what] for what in least if seen[what] < least[what]} == {}, "it is rare"


@pytest.mark.deep
@pytest.mark.parametrize("block", range(30))
def test_thousands_of_schedules_of_losses(block: int) -> None:
    for seed in range(20_000 + 100 * block, 20_100 + 100 * block):
        assert_good(seed)


# Mistakes that the schedules must bring to light.


def found() -> list[str]:
    """What is wrong in some seed."""
    for seed in SEEDS:
        played = simulate(seed, loses=True)
        if not played.good:
            findings = played.report.findings
            wrong = [each.check for each in findings if each.outcome is not Outcome.VALID]
            return [*wrong, *played.late, *filter(None, [played.failed])] or ["it does not end"]
    return []


def test_records_without_headers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "incarnation_headers", lambda *_: [])
    assert found()


def test_headers_on_the_first_transaction_only_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = MemorySink.commit

    async def forgetful(self: MemorySink, outbox: Outbox, *rest: Any) -> Committed:
        mark = CommitRecord.of(outbox.state[-1][1])
        if mark.output_records > mark.output.records + len(outbox.records):
            outbox.headers = []
        return await commit(self, outbox, *rest)

    monkeypatch.setattr(MemorySink, "commit", forgetful)
    assert found()


@pytest.mark.full
def test_a_time_that_is_not_the_decisions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_the_beginning(incarnation: int, _: int) -> list[tuple[str, bytes]]:
        return incarnation_headers(incarnation, START)

    monkeypatch.setattr(transaction, "incarnation_headers", from_the_beginning)
    assert found()


@pytest.mark.full
def test_an_incarnation_that_forgets_where_it_begins_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who recovers reads what the one before has published."""
    monkeypatch.setattr(
        TaskState, "begin", _beginning(lambda begun: OutputBeginning(begun.incarnation))
    )
    assert found()


def _beginning(
    changed: Callable[[OutputBeginning], OutputBeginning],
) -> Callable[[TaskState, OutputBeginning], None]:
    begin = TaskState.begin

    def begun(self: TaskState, output: OutputBeginning) -> None:
        begin(self, changed(output))

    return begun


@pytest.mark.full
def test_a_task_that_takes_no_part_since_its_state_is_not_lost_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who reads all partitions ignores what it publishes: the topic never ends."""
    lead = MergeTask.lead

    async def alone(self: MergeTask, stack: AsyncExitStack) -> None:
        if self.partition == 0:
            monkeypatch.setattr(self, "_starts_over", lambda _: False)
        await lead(self, stack)

    monkeypatch.setattr(MergeTask, "lead", alone)
    monkeypatch.setattr(playing, "_HOUR", 300.0)
    assert found() == ["it does not end"]


@pytest.mark.full
def test_an_input_that_waits_for_what_the_incarnation_does_not_promise_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attach = OperatorInput._attach

    def by_the_letter(self: OperatorInput, *rest: Any, **how: Any) -> None:
        self._suffices_from = START
        attach(self, *rest, **how)

    monkeypatch.setattr(OperatorInput, "_attach", by_the_letter)
    monkeypatch.setattr(playing, "_HOUR", 300.0)
    assert found() == ["it does not end"]


@pytest.mark.full
def test_a_decision_that_is_made_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks that have both lost their state: each would begin an incarnation of its own."""
    restart = Ledger._restart_output

    def the_next_one(self: Ledger, action: RestartOutput, who: str) -> None:
        restart(self, replace(action, incarnation=self.output.number + 1), who)

    monkeypatch.setattr(Ledger, "_check_version", lambda *_: None)
    monkeypatch.setattr(Ledger, "_restart_output", the_next_one)
    assert found()
