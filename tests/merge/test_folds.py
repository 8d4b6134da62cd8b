"""Folds: what they carry is what all records before them come to, wherever they are."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.config.topology import Topology
from lmerge_service.errors import ElementError
from lmerge_service.merge.decisions import folds
from lmerge_service.merge.decisions.decided import DecisionRefusal
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.decisions.records import (
    AbortCutover,
    AcceptGap,
    Action,
    BeginCutover,
    Decision,
    Detach,
    Quarantine,
    Release,
    ReportCutover,
    RestartOutput,
    SetPolicy,
    decide,
    encode,
)
from tests.merge.test_ledger import Log, attach, decision_records, topology

OTHER_FILE = topology("z", http={"port": 1}, case="R4", output={"topic": "out", "keep": "1d"})
"""Of another worker: what is in no decision differs."""


def fold_of(ledger: Ledger, offset: int | None = None) -> bytes:
    """The fold that a worker with this ledger writes, by default for the next offset."""
    at = ledger.offset if offset is None else offset
    return folds.encode(folds.fold(ledger.state(), at, "worker-1", 0))


def folded(log: Log) -> int:
    """Has a fold appended; returns its offset."""
    log.raw(fold_of(log.ledger))
    return len(log.records) - 1


def from_fold(log: Log, at: int, file: Topology = OTHER_FILE) -> Ledger:
    """A reader that begins with the fold at an offset."""
    ledger = Ledger(file)
    for offset in range(at, len(log.records)):
        ledger.fold(offset, log.records[offset])
        ledger.check()
    return ledger


def assert_same(one: Ledger, other: Ledger) -> None:
    assert one.state() == other.state()
    assert (one.offset, one.folded, one.disagrees) == (other.offset, other.folded, other.disagrees)
    assert one.topology.replicas == other.topology.replicas
    assert one.topology.resolved_case == other.topology.resolved_case
    assert one.policy == other.policy
    assert one.topology.output.partitions == other.topology.output.partitions


def everything() -> Log:
    """A log in which each kind of decision was made, and some were refused or no decisions."""
    log = Log(
        topology("a", "b", output={"topic": "out", "partitions": 2}, policy={"insert": "leader"})
    )
    log.do(attach("c", joining_at=-(2**63)))
    log.do(Quarantine("b", "a day ahead ☂"), who="guard: skew")
    log.do(AcceptGap("c", 2**63 - 1))
    log.do(Release("b", joining_at=7))
    log.do(SetPolicy("first", "eager", "quorum(2)"), expects=5)
    log.do(Detach("x"))
    log.do(Detach("a"), expects=1)
    log.raw(b"no decision")
    log.raw(None)
    log.append(decide(Detach("a"), "anna", decision_id="twice"))
    log.append(decide(Detach("a"), "anna", decision_id="twice"))
    attached = [r.replica.name for r in log.ledger.replicas.values() if r.state == "attached"]
    log.do(RestartOutput(1, 40, dict.fromkeys(attached, 40), "the disk"))
    log.do(BeginCutover("b", "d", 10, 5, 0, attach={"name": "d", "topic": "D"}))
    began = log.ledger.version
    log.do(ReportCutover(began, began, 0, "ready", 3))
    log.do(ReportCutover(began, began, 1, "ready", 4))
    log.do(ReportCutover(began, began + 2, 1, "ready", 9))
    return log


# What a fold carries


def test_a_reader_of_the_fold_knows_what_a_reader_of_all_records_knows() -> None:
    log = everything()
    assert_same(from_fold(log, folded(log)), log.again())


def test_a_reader_of_the_fold_decides_as_a_reader_of_all_records() -> None:
    log = everything()
    at = folded(log)
    began = log.ledger.version
    assert log.ledger.cutover is not None
    for action in (
        ReportCutover(log.ledger.cutover.began, log.ledger.cutover.since, 0, "ready", 12),
        attach("a"),
        Release("b"),
        Quarantine("c", ""),
        AbortCutover(),
        log.ledger.declaring(topology("a", "e", output={"topic": "out", "partitions": 2})),
    ):
        assert action is not None
        log.do(action)
    log.append(decide(Detach("a"), "anna", decision_id="twice"))
    log.do(Detach("c"), expects=began)
    reader = from_fold(log, at)
    assert_same(reader, log.again())
    assert reader.repeated == 2, "an id from before the fold is known"
    assert reader.cutover is not None
    assert reader.cutover.state == "done"


def test_the_case_that_auto_has_settled_stays_settled() -> None:
    strong = {"ordered": True, "strictly_ordered": True, "revises": False}
    weak = {"ordered": True, "revises": False, "key": True}
    both = [
        {"name": "a", "topic": "A", "properties": strong},
        {"name": "b", "topic": "B", "properties": weak},
    ]
    log = Log(topology(case="auto", replicas=both))
    log.do(Detach("b"))
    at = folded(log)
    log.do(attach("c", properties=weak))
    log.do(attach("d"))
    assert_same(from_fold(log, at), log.again())
    assert from_fold(log, at).topology.resolved_case == "R2"


def test_the_oldest_entry_of_a_full_history_leaves_first_behind_a_fold_too() -> None:
    log = Log(topology("a"))
    for number in range(510):
        log.do(attach(f"r{number}"))
        log.do(Detach(f"r{number}"))
    at = folded(log)
    log.do(attach("b"))
    assert len(log.ledger.history) == 1_000
    assert_same(from_fold(log, at), log.again())


# Where it holds


def test_f1_a_fold_that_comes_late_is_no_fold() -> None:
    log = everything()
    late = fold_of(log.ledger)
    log.do(attach("e"))
    log.raw(late)
    assert log.ledger.folded is None
    assert "e" in log.ledger.replicas
    reader = from_fold(log, len(log.records) - 1)
    assert (reader.folded, reader.version) == (None, 0)


def test_f1_of_two_who_fold_at_once_the_first_holds() -> None:
    log = everything()
    first = second = fold_of(log.ledger)
    at = len(log.records)
    log.raw(first)
    log.raw(second)
    assert log.ledger.folded == at
    assert log.ledger.unreadable == log.again().unreadable == 2, "it is a fold, if of no use"
    assert_same(from_fold(log, at), log.again())


def test_a_fold_that_differs_is_reported_and_changes_nothing() -> None:
    log = everything()
    before = log.ledger.state()
    other = log.again()
    other.version += 1
    log.raw(fold_of(other))
    assert log.ledger.state() == before
    assert log.ledger.folded is None
    assert log.ledger.disagrees is not None
    assert log.ledger.disagrees.startswith(
        f"the fold at offset {len(log.records) - 1}, by worker-1"
    )
    folded(log)
    assert log.ledger.disagrees is None, "this one is right"


def test_what_another_release_words_otherwise_is_no_difference() -> None:
    state = everything().ledger.state()
    assert state.cutover is not None
    refused = [each for each in state.entries if each.refusal is not None]
    worded = [
        replace(each, refusal=each.refusal and DecisionRefusal(each.refusal.kind, "otherwise"))
        for each in state.entries
    ]
    other = msgspec.structs.replace(
        state,
        unreadable=9,
        last_unreadable="otherwise",
        replicas=[replace(each, reason="otherwise") for each in state.replicas],
        cutover=replace(state.cutover, why="otherwise"),
        entries=worded,
    )
    assert len(refused) > 1
    assert folds.agree(state, other)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: {"version": s.version + 1},
        lambda s: {"case": "R4"},
        lambda s: {"policy": s.policy | {"stable": "max"}},
        lambda s: {"policy_decided": False},
        lambda s: {"declared": None},
        lambda s: {"repeated": s.repeated + 1},
        lambda s: {"refused": {}},
        lambda s: {"replicas": s.replicas[1:]},
        lambda s: {"replicas": s.replicas[::-1]},
        lambda s: {"replicas": [replace(s.replicas[0], epoch=0), *s.replicas[1:]]},
        lambda s: {"accepted_gaps": []},
        lambda s: {"cutover": None},
        lambda s: {"cutover": replace(s.cutover, ready={1: 1})},
        lambda s: {"entries": s.entries[1:]},
        lambda s: {"entries": [replace(each, refusal=None) for each in s.entries]},
    ],
)
def test_all_else_is_a_difference(change: Callable[[Any], dict[str, Any]]) -> None:
    state = everything().ledger.state()
    assert not folds.agree(state, msgspec.structs.replace(state, **change(state)))


# Whatever a record holds


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b'{"fold":2,"new":[]}', "a fold of format 2, and this version reads format 1: use the"),
        (b'{"fold":1,"offset":4}', "a damaged fold: Object missing required field `who`"),
        (b'{"fold":"x"}', "a damaged fold: Expected `int`"),
        (b'{"fold":\xff', "a damaged fold: "),
        (b'{"fold":1' + b"[" * 100_000, "a damaged fold: "),
    ],
)
def test_f3_what_cannot_be_read_is_counted_and_needed_by_nobody_who_has_the_records(
    value: bytes, why: str
) -> None:
    log = Log(topology("a", "b"))
    log.raw(value)
    assert log.ledger.last_unreadable is not None
    assert log.ledger.last_unreadable.startswith(f"offset 1: {why}")
    assert (log.ledger.unreadable, log.ledger.folded) == (1, None)
    assert log.do(Detach("a"), expects=1).accepted
    assert_same(from_fold(log, folded(log)), log.again())


def test_f3_a_fold_of_what_cannot_be_is_not_taken_over() -> None:
    log = everything()
    document = json.loads(fold_of(log.ledger))
    for each in document["ledger"]["replicas"]:
        each["replica"]["topic"] = "one for all"
    reader = Ledger(OTHER_FILE)
    reader.fold(document["offset"], json.dumps(document, separators=(",", ":")).encode())
    assert (reader.folded, reader.version, reader.replicas) == (None, 0, {})
    assert reader.last_unreadable is not None
    assert "a damaged fold: 1 faults in a replica" in reader.last_unreadable


def test_what_no_record_has_room_for_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds, "LARGEST_FOLD", 1_000)
    with pytest.raises(ValueError, match="bytes, and a fold has 1,000"):
        fold_of(everything().ledger)


def test_a_fold_that_is_kept_without_its_offset_is_where_it_holds() -> None:
    log = everything()
    at = folded(log)
    log.do(attach("e"))
    reader = Ledger(OTHER_FILE)
    for value in log.records[at:]:
        reader.fold_next(value)
    assert_same(reader, log.again())


def test_a_fold_takes_the_place_of_what_was_deleted_before_it() -> None:
    """A merge in Spark has come to the attach of e when what came after is folded and deleted."""
    log = everything()
    log.do(attach("e"))
    reader = log.again()
    log.do(Detach("e"))
    at = folded(log)
    log.do(attach("f"))
    log.raw(log.records[at])  # written once more, and late: it holds nothing here
    for value in log.records[at:]:
        reader.fold_next(value)
    assert_same(reader, log.again())


def test_a_ledger_begins_with_a_fold_that_is_kept_beside_the_log() -> None:
    log = everything()
    kept = folds.fold(log.ledger.state(), log.ledger.offset, "spark-merge", 1)
    log.do(attach("e"))
    reader = Ledger(OTHER_FILE)
    reader.begin_with(folds.decode(folds.encode(kept)))
    reader.fold(kept.offset, log.records[kept.offset])
    assert_same(reader, log.again())


# Any decisions, any folds

_NAMES = st.sampled_from(["a", "b", "c", "d"])
_SMALL = st.integers(0, 9)
_likely: st.SearchStrategy[Action] = st.one_of(
    st.builds(attach, _NAMES),
    st.builds(Detach, _NAMES),
    st.builds(Quarantine, _NAMES, st.text(max_size=3)),
    st.builds(Release, _NAMES, st.none() | _SMALL),
    st.builds(AcceptGap, _NAMES, _SMALL),
    st.builds(SetPolicy, st.just("first"), st.just("lazy"), st.sampled_from(["max", "quorum(2)"])),
    st.builds(BeginCutover, _NAMES, _NAMES, _SMALL, _SMALL, _SMALL),
    st.builds(
        ReportCutover, _SMALL, _SMALL, st.integers(0, 1),
        st.sampled_from(["ready", "ready", "unready", "diverged"]), _SMALL,
    ),
    st.builds(AbortCutover),
)  # fmt: skip
_ready = st.builds(lambda task: ("ready", task), st.integers(0, 1))
_decision = st.builds(
    lambda action, number, expects: encode(Decision(str(number), action, "x", 0, expects)),
    _likely,
    st.integers(0, 60),
    st.none() | st.none() | _SMALL,
)
_step = st.one_of(
    _decision,
    _decision,
    _decision,
    _ready,
    decision_records,
    st.sampled_from(["fold", "late", "cut"]),
)


def play(steps: Sequence[Any]) -> Log:
    """A log of records, of reports about the cutover that runs, and of folds: right, late or
    damaged ones."""
    log = Log(topology("a", "b", output={"topic": "out", "partitions": 2}))
    for step in steps:
        match step:
            case "fold":
                folded(log)
            case "late":
                log.raw(fold_of(log.ledger, log.ledger.offset - 1))
            case "cut":
                log.raw(fold_of(log.ledger)[:-1])
            case ("ready", task):
                if (now := log.ledger.cutover) is not None:
                    log.do(ReportCutover(now.began, now.since, task, "ready", 1))
            case _:
                log.raw(step)
    return log


def holds(value: bytes, at: int) -> bool:
    with suppress(ElementError):
        return folds.decode(value).offset == at
    return False


@given(st.lists(_step, max_size=40))
def test_f2_from_any_fold_on_a_reader_is_as_one_of_all_records(steps: list[Any]) -> None:
    log = play([*steps, "fold"])
    whole = log.again(OTHER_FILE)
    assert whole.disagrees is None
    held = 0
    for at, value in enumerate(log.records):
        if folds.is_fold(value) and holds(value, at):
            assert_same(from_fold(log, at), whole)
            held += 1
    assert held >= 1 + steps.count("fold")


@given(st.lists(_step, max_size=40))
def test_folds_change_no_verdict(steps: list[Any]) -> None:
    log = play(steps)
    bare = Ledger(log.base)
    for value in log.records:
        if not folds.is_fold(value):
            bare.fold(bare.offset, value)
    assert bare.replicas == log.ledger.replicas
    assert bare.version == log.ledger.version
    assert bare.cutover == log.ledger.cutover
    verdicts = [
        [(each.decision, each.version, each.refusal) for each in ledger.history]
        for ledger in (bare, log.ledger)
    ]
    assert verdicts[0] == verdicts[1]


@given(st.lists(_step, max_size=20))
def test_a_fold_is_read_as_it_was_written(steps: list[Any]) -> None:
    state = play(steps).ledger.state()
    fold = folds.fold(state, 7, "worker-1", 0)
    assert folds.decode(folds.encode(fold)) == fold


@given(st.binary(max_size=40))
def test_f3_nothing_else_is_raised(junk: bytes) -> None:
    with pytest.raises(ElementError):
        folds.decode(b'{"fold":' + junk)
