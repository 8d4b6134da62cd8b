"""A saved state is a checkpoint of the output: what a cold reader of the output would have."""

import io
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.cli.checkpoints import checkpoint_in
from lmerge_service.core import Case, LMerge, Policy, lag, lmerge, quorum
from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.merge.commit_record import PartitionCheckpoint, ReplicaCheckpoint
from lmerge_service.merge.state_file import Saving, is_state, merge_of, outputs
from lmerge_service.merge.task_state import TaskState
from lmerge_service.offline.checkpoint import checkpoint
from lmerge_service.tdb import TDB, reconstitute
from tests.merge.test_snapshots import REPLICAS, TOPOLOGY, fresh
from tests.merge.test_state_file import OF, written
from tests.strategies import interleavings, logical_streams, lying_presentations, presentations

POLICIES = [
    Policy(*each)
    for each in product(("first", "half_frozen"), ("lazy", "eager"), ("max", lag(3), quorum(2)))
]


def task(merge: LMerge) -> TaskState:
    """The state of a task that merges `a` and `b` with this operator."""
    made = fresh()
    made.use(merge)
    for name in "ab":
        made.replicas.expect(REPLICAS[name])
        made.replicas.resume(
            name, ReplicaCheckpoint(f"t.{name}", {0: PartitionCheckpoint(0, 0)}, "id"), 1
        )
    return made


def saved(path: Path, tasks: list[tuple[TaskState, list[Element]]]) -> None:
    """Their state, as `export_to` writes it; what each output has emitted is beside it."""
    file = io.BytesIO()
    saving = Saving(file, merge_of(TOPOLOGY), len(tasks))
    for number, (state, emitted) in enumerate(tasks):
        state.partition, output = number, None
        if state.merge.live_output() is None:
            output = lmerge(Case.R4)
            output.replay_output(emitted)
        saving.add(state, output)
    saving.finish()
    path.write_bytes(file.getvalue())


@st.composite
def cut_short(draw: st.DrawFn, case: Case) -> tuple[TaskState, list[Element]]:
    """A merge at any moment, of inputs that may lie, and what its output has emitted."""
    keyed = case not in (Case.R1, Case.R4)
    logical = draw(logical_streams(unique_keys=keyed, unique_vs=case is Case.R0))
    closed = draw(st.booleans())
    streams = draw(
        presentations(logical, 2, case, closed=closed) | lying_presentations(logical, 2, case)
    )
    state, emitted = task(lmerge(case, draw(st.sampled_from(POLICIES)))), list[Element]()
    arriving = draw(interleavings(streams))
    for number, element in arriving[: draw(st.integers(0, len(arriving)))]:
        emitted += state.merge.process("ab"[number], element)
    return state, emitted


@pytest.mark.full
@pytest.mark.parametrize("case", Case)
@given(data=st.data())
def test_it_is_what_a_cold_reader_of_the_output_has(
    case: Case, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "state"
    tasks = data.draw(st.lists(cut_short(case), min_size=1, max_size=3))
    saved(path, tasks)
    read = [reconstitute(emitted) for _, emitted in tasks]
    stables = [tdb.stable for tdb in read]
    if min(stables) == START or max(stables) == INFINITY:
        with pytest.raises(ConfigurationError, match=r"has no stable|has ended"):
            checkpoint_in(str(path), nfc=False)
        return
    found, whole = checkpoint_in(str(path), nfc=False), TDB(event for tdb in read for event in tdb)
    assert (found.stable, found.correct_from) == (min(stables), max(stables))
    begun = reconstitute(found.beginning())
    assert from_on(begun, found.correct_from) == from_on(whole, found.correct_from)
    for tdb in read:  # and before that time, as far as the task had not let go of it
        assert from_on(begun, tdb.stable)._events >= from_on(tdb, tdb.stable)._events
    assert begun._events <= whole._events
    if len(tasks) == 1:
        [(_, emitted)] = tasks
        assert begun == reconstitute(checkpoint("f", enumerate(emitted)).beginning())


def from_on(tdb: TDB, time: int) -> TDB:
    """The events that end at a time or later."""
    return TDB(event for event in tdb if event.ve >= time)


def test_an_event_that_only_a_replica_has_is_not_in_it(tmp_path: Path) -> None:
    """Held back by the policy, it was not emitted; what was emitted and is final has gone."""
    state = task(lmerge(Case.R3, Policy(insert="half_frozen")))
    published: list[Element] = [
        Insert(b'"p"', 1, 5),
        Insert(b'"q"', 2, 9),
        Insert(b'"r"', 8, 12),
        Stable(7),
    ]
    emitted = state.merge.process_batch("a", published)
    saved(tmp_path / "f", [(state, emitted)])
    assert list(checkpoint_in(str(tmp_path / "f"), nfc=False).beginning()) == [
        Insert(b'"q"', 2, 9),
        Stable(7),
    ]


def test_a_state_without_what_the_output_holds_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "f"
    state = task(lmerge(Case.R1))
    state.merge.process_batch("a", [Insert(b'"p"', 1, 5), Stable(1)])
    with path.open("wb") as file:
        saving = Saving(file, merge_of(TOPOLOGY), 1)
        saving.add(state)
        saving.finish()
    with pytest.raises(StateError, match="it lacks what the output holds"):
        outputs(path)


def test_a_file_that_is_cut_or_changed_anywhere_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "f"
    written(path, 2, 1)
    whole = path.read_bytes()
    assert is_state(path)
    name = range(at := whole.index(OF.encode()), at + len(OF))  # of the merge: not looked at
    for at in set(range(0, len(whole), 7)).difference(name):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(StateError, match=str(path)):
                outputs(path)
    path.write_bytes(b'{"op":"stable","vc":7}\n')
    assert not is_state(path)
