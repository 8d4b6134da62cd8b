"""The service over a Kafka in memory: many schedules, and mistakes that they must show."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from lmerge_service.core import Input
from lmerge_service.drills.verdicts import Outcome
from lmerge_service.elements import START
from lmerge_service.errors import FencedError, TransportError
from lmerge_service.formats.headers import RecordLike
from lmerge_service.formats.routing import Ownership
from lmerge_service.kafka.sink import Committed, Outbox
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.merge.commit_record import ReplicaCheckpoint, TableCheckpoint
from lmerge_service.merge.decisions import folds
from lmerge_service.merge.decisions.control_log import LoggedControl
from lmerge_service.merge.decisions.folds import Fold, LedgerState
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.decisions.reading import FoundFold
from lmerge_service.merge.liveness import Liveness
from lmerge_service.merge.recovery import JointReplay, Recovery
from lmerge_service.merge.replicas import Replicas, ReplicaState
from lmerge_service.merge.retention import Covered
from lmerge_service.merge.snapshots import beginnings
from lmerge_service.merge.table.rows import Row
from lmerge_service.merge.table.writer import TableWriter
from lmerge_service.merge.task_state import OpenedState, TaskState
from lmerge_service.service.reading.shared_input import SharingTask
from lmerge_service.service.reading.shared_reader import LeadingInput, SharedReader
from lmerge_service.service.task import MergeTask
from lmerge_service.service.worker import Worker
from tests.simulation import adapter
from tests.simulation import simulate as playing
from tests.simulation.clients import MemorySink, MemorySource
from tests.simulation.memory import BrokerError
from tests.simulation.simulate import Run, command, simulate

VALID = Outcome.VALID
SEEDS = range(63)


def assert_good(seed: int) -> Run:
    played = simulate(seed)
    assert played.good, f"{played}\n{played.report}\nagain: {command(seed)}"
    return played


@pytest.mark.full
def test_whatever_the_schedule_the_output_is_right_and_comes_to_its_end() -> None:
    seen = Counter[str]()
    for seed in SEEDS:
        seen += assert_good(seed).seen
    least = {"kills": 25, "overtaken": 15, "snapshot": 60, "restored": 40, "spoilt": 40}
    least |= {"duels": 10, "refused: version": 25, "gap accepted": 1, "turned": 6, "rescues": 1}
    least |= {"pauses": 60, "fenced": 30, "assigned to this worker all the same": 10}
    least |= {"ends early": 5, "lingered": 15, "repeated for ever": 300}
    least |= {"read together": 1_000, "read alone": 1_000}
    least |= {"decisions folded": 20, "decisions trimmed": 10, "decisions taken from a fold": 5}
    least |= {"table judged": 3_000, "table loaded": 150, "table whole": 50, "table forgets": 50}
    least |= {"table deleted": 8, "without table": 10}
    least |= {"deleted by Kafka": 60, "deleted of replicas": 10}
    assert {what: seen[what] for what in least if seen[what] < least[what]} == {}, "it is rare"


@pytest.mark.deep
@pytest.mark.parametrize("block", range(30))
def test_thousands_of_schedules(block: int) -> None:
    for seed in range(1_000 + 100 * block, 1_100 + 100 * block):
        assert_good(seed)


@pytest.mark.full
def test_one_seed_is_one_history_in_any_process() -> None:
    first = simulate(7)
    assert simulate(7).history() == first.history()
    assert simulate(8).history() != first.history()
    for hashing in ("1", "2"):
        ended = subprocess.run(
            [sys.executable, *command(7).split()[1:]],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ended.stdout.splitlines()[0] == str(first)


# Mistakes that the schedules must bring to light.


def found(seeds: Iterable[int] = SEEDS) -> list[str]:
    """The checks that some seed breaks, or what the service itself noticed."""
    for seed in seeds:
        played = simulate(seed)
        if not played.good:
            wrong = [each.check for each in played.report.findings if each.outcome is not VALID]
            return [*wrong, *filter(None, [played.failed])] or ["it does not end"]
    return []


def wrongs(seeds: Iterable[int]) -> list[str]:
    """As `found`, with what is wrong with folds."""
    for seed in seeds:
        played = simulate(seed)
        if not played.good:
            wrong = [each.check for each in played.report.findings if each.outcome is not VALID]
            return [*wrong, *played.folded, *filter(None, [played.failed])]
    return []


def test_output_that_is_committed_apart_from_its_mark_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Emitted before it is recorded: after a kill it is emitted again."""
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
    """Recorded before it is emitted: after a kill it is never emitted, unless that is noticed."""
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


def test_n1_a_worker_that_ends_when_it_is_fenced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another has led while it stood still, and the group gives the task straight back to it."""

    async def wait_and_end(self: Worker, task: MergeTask, error: FencedError, *_: Any) -> None:
        await asyncio.sleep(self.topology.session_seconds + 5)
        raise error

    monkeypatch.setattr(Worker, "_fenced", wait_and_end)
    assert any(each.startswith("FencedError") for each in found())


@pytest.mark.full
def test_n1_a_task_that_a_fenced_worker_keeps_to_itself_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for a change of its assignment, which has none: nobody leads the task."""

    async def wait(self: Worker, task: MergeTask, *_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Worker, "_fenced", wait)
    assert any("has had no leader" in each for each in found())


@pytest.mark.full
def test_n1_a_task_may_be_revoked_before_it_has_begun() -> None:
    played = simulate(10_002, pauses=True)
    assert played.good, f"{played}\n{played.report}"


@pytest.mark.deep
@pytest.mark.parametrize("block", range(20))
def test_n1_pauses_of_any_length_at_any_request(block: int) -> None:
    """Of 2 to 4 workers with 2 to 4 tasks: no worker ends, and the output is right."""
    for seed in range(10_000 + 100 * block, 10_100 + 100 * block):
        played = simulate(seed, pauses=True)
        assert played.good, f"{played}\n{played.report}\nagain: {command(seed)} --pauses"


def test_a_version_that_is_not_looked_at_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of two who decided at once learn that it holds."""
    monkeypatch.setattr(Ledger, "_check_version", lambda *_: None)
    assert found() == ["K9"]


def test_a_snapshot_without_what_came_after_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_input = Recovery._replay_input

    async def nothing(
        self: Recovery,
        state: TaskState,
        standings: Mapping[str, ReplicaCheckpoint],
        joint: JointReplay | None,
        *,
        whole: bool,
    ) -> None:
        if state.restored_from is None:
            await replay_input(self, state, standings, joint, whole=whole)
        for standing in standings.values():
            for number, mark in standing.partitions.items():
                state.replicas.arrive(TopicPartition(standing.topic, number), mark.next)

    monkeypatch.setattr(Recovery, "_replay_input", nothing)
    assert "K1" in found()


def test_a_state_that_is_kept_when_its_commit_has_failed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lead = MergeTask.lead

    async def lead_and_know(self: MergeTask, stack: contextlib.AsyncExitStack) -> None:
        await lead(self, stack)
        self._is_known = True

    monkeypatch.setattr(MergeTask, "lead", lead_and_know)
    assert found()


def test_a_replica_that_stays_though_it_was_detached_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Replicas, "leave", lambda *_: None)
    assert found()


@pytest.mark.deep
def test_a_replica_that_is_merged_on_in_quarantine_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def only_recorded(self: Replicas, name: str, why: str) -> None:
        self.states[name].quarantined = why

    monkeypatch.setattr(Replicas, "quarantine", only_recorded)
    assert {"K1", "K4"} & {*found()}


def test_n2_unread_that_stops_at_the_last_stable_offset_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody ends early, while another's transaction is open for longer than patience lasts."""
    monkeypatch.setattr(MemorySource, "high_watermarks", MemorySource.ends)
    assert "K1" in found((41, 44))


def test_n3_any_record_that_counts_as_progress_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody repeats itself for ever, and is waited for for ever."""
    look = Liveness.look

    def alive(
        self: Liveness,
        source: Input,
        records: Sequence[RecordLike],
        now: float,
        stable: int,
        elsewhere: Callable[[], int] = lambda: START,
    ) -> bool:
        look(self, source, records, now, stable, elsewhere)
        self.at, self.progressed = now, True
        return True

    monkeypatch.setattr(Liveness, "look", alive)
    monkeypatch.setattr(playing, "_HOUR", 300.0)
    assert "it does not end" in found((14, 19))


def test_an_event_that_goes_to_every_partition_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ownership, "select", lambda _, elements: elements)
    assert "K2" in found()


def test_a_task_that_joins_others_where_it_does_not_stand_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It lacks what is between."""

    def join(reader: SharedReader, task: SharingTask, state: ReplicaState) -> LeadingInput | None:
        shared = reader.of(state)
        if shared is None:
            return adapter._join(reader, task, state)
        assert state.step is not None
        state.step.decoder, state.next = shared.decoder, dict(shared.next)
        shared.members.append(task)
        return shared

    monkeypatch.setattr(adapter, "join_where_it_fits", join)
    assert {"K1", "it does not end"} & {*found()}


@pytest.mark.full
def test_a_late_reader_that_reads_again_what_its_snapshot_covers_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def start_of(_: Source, __: TopicPartition, opened: OpenedState, *___: int) -> int:
        return opened.head.output

    monkeypatch.setattr(beginnings, "_behind", start_of)
    assert any("who begins at offset" in each for seed in SEEDS for each in simulate(seed).late)


@pytest.mark.full
def test_an_output_that_is_trimmed_beyond_the_older_snapshot_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the latest one is damaged, neither a worker nor a reader has anything to go on from."""

    def by_the_latest(self: Covered) -> int:
        return self.snapshots[0].output if self.snapshots else self.begins

    monkeypatch.setattr(Covered, "needed", property(by_the_latest))
    assert found()


def test_a_fold_that_lacks_something_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Ledger.state

    def without_entries(self: Ledger) -> LedgerState:
        return msgspec.structs.replace(state(self), entries=[])

    monkeypatch.setattr(Ledger, "state", without_entries)
    monkeypatch.setattr(folds, "agree", lambda *_: True)
    assert "the judge comes to something else without what was deleted" in wrongs(range(20))


@pytest.mark.full
def test_f1_a_fold_that_holds_wherever_it_comes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = adapter._take_fold

    def anywhere(self: Ledger, fold: Fold, offset: int, *, lacks: bool) -> None:
        take(self, msgspec.structs.replace(fold, offset=offset), offset, lacks=lacks)

    monkeypatch.setattr(adapter, "_take_fold", anywhere)
    assert wrongs(SEEDS)


def test_decisions_that_are_deleted_where_no_fold_is_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def anywhere(_: LoggedControl, __: int, before: int) -> FoundFold:
        return FoundFold(before)

    monkeypatch.setattr(LoggedControl, "fold_of", anywhere)
    assert any("where no fold is" in each or "in no fold" in each for each in wrongs(range(30)))


@pytest.mark.full
@pytest.mark.parametrize("mistake", ["goes on", "whole at once", "under way"])
def test_a_table_that_is_not_what_the_output_is_is_found(
    monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    """A task goes on with a table of which it does not know that it is whole; a table passes for
    whole before it is filled; rows for a topic that was deleted are committed to the next one."""
    match mistake:
        case "goes on":
            known = TableCheckpoint("keyed")
            monkeypatch.setattr(TableWriter, "_fill", lambda self: self._go_on(known))
        case "whole at once":
            monkeypatch.setattr(TableWriter, "_not_whole", whole_at_once)
        case _:
            monkeypatch.setattr(Outbox, "require_table", lambda _: None)
    wrong = (each for seed in (101, *range(40)) for each in simulate(seed).late)
    assert any("table of" in each for each in wrong)


def whole_at_once(self: TableWriter, gathered: list[Row]) -> list[Row]:
    self.is_whole = True
    return gathered


@pytest.mark.full
def test_a_gap_that_nobody_has_accepted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = MergeTask._pace

    def go_on(self: MergeTask) -> None:
        pace(self)
        if self.state.merge.gap is not None:
            self._transaction.append(self.state.merge.accept_gap()[1])

    monkeypatch.setattr(MergeTask, "_pace", go_on)
    assert "K1" in found()
