"""What the judge makes of decisions: the fold, who counts when, what is lost, what was answered."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lmerge_service.drills.control_log_check import Answer, ControlHistory, decided, k9, lost
from lmerge_service.drills.history import Interval, ReplicaHistory, check
from lmerge_service.drills.records import CommittedRecord, CommittedTopic
from lmerge_service.drills.verdicts import Outcome
from lmerge_service.elements import INFINITY, START, Insert, Stable
from lmerge_service.tdb import TDB
from tests.drills.histories import A, B, emitting, good, records, topic
from tests.drills.test_history import failing, lost_by_a_leader

VALID, INVALID = Outcome.VALID, Outcome.INVALID

DECLARED: Mapping[str, Any] = {
    "do": "declare",
    "replicas": [{"name": "a", "topic": "in.a"}, {"name": "b", "topic": "in.b"}],
    "policy": {},
}


def log(*decisions: tuple[Mapping[str, Any], int | None]) -> CommittedTopic:
    """A control topic with a decision each second, the first at 0."""
    values = [
        json.dumps({"id": f"d{n}", "action": action, "expects": expects}).encode()
        for n, (action, expects) in enumerate(decisions)
    ]
    return CommittedTopic(
        "control",
        tuple(CommittedRecord("control", 0, n, 1_000 * n, v) for n, v in enumerate(values)),
    )


def detach(name: str) -> Mapping[str, Any]:
    return {"do": "detach", "replica": name}


def attach(name: str, topic: str) -> Mapping[str, Any]:
    return {"do": "attach", "replica": {"name": name, "topic": topic}}


def restart(incarnation: int, *replicas: str) -> Mapping[str, Any]:
    since = dict.fromkeys(replicas, 7)
    document = {"incarnation": incarnation, "correct_from": 7, "replicas": since}
    return {"do": "restart_output", **document}


def refusals(right: ControlHistory) -> list[str | None]:
    return [verdict.refused for verdict in right.verdicts.values()]


# --- the fold -------------------------------------------------------------------------------------


def test_of_two_decisions_against_one_version_the_first_one_holds() -> None:
    right = decided(log((DECLARED, None), (detach("a"), 1), (detach("b"), 1), (detach("b"), 2)))
    assert refusals(right) == [None, None, "version", "invalid"]
    assert right.version == 2


@pytest.mark.parametrize(
    ("action", "refused"),
    [
        (DECLARED, "state"),
        (attach("a", "in.a"), "state"),
        (attach("c", "in.a"), "invalid"),
        (attach("c", "in.c"), None),
        (detach("c"), "unknown"),
        ({"do": "release", "replica": "a"}, "state"),
        ({"do": "quarantine", "replica": "a", "reason": ""}, None),
        ({"do": "accept_gap", "replica": "a", "until": 5}, None),
        ({"do": "policy", "insert": "first", "adjust": "lazy", "stable": "quorum(2)"}, None),
        ({"do": "policy", "insert": "first", "adjust": "lazy", "stable": "quorum(3)"}, "invalid"),
        (restart(1, "a", "b"), None),
        (restart(0, "a", "b"), "state"),
        (restart(1, "a"), "state"),
        ({"do": "policy", "insert": "quorum(3)", "adjust": "lazy", "stable": "max"}, "invalid"),
    ],
)
def test_what_makes_no_sense_is_refused(action: Mapping[str, Any], refused: str | None) -> None:
    assert refusals(decided(log((DECLARED, None), (action, None)))) == [None, refused]


def cutover(leaving: str, coming: str, topic: str | None = None) -> Mapping[str, Any]:
    attach = None if topic is None else {"name": coming, "topic": topic}
    return {"do": "cutover", "leaving": leaving, "coming": coming, "attach": attach}


def reported(since: int, readiness: str = "ready", task: int = 0) -> Mapping[str, Any]:
    """Of the cutover of version 2, by a task."""
    return {
        "do": "cutover_report",
        "cutover": 2,
        "since": since,
        "task": task,
        "readiness": readiness,
    }


def test_a_cutover_goes_on_by_what_tasks_report_and_then_detaches() -> None:
    right = decided(
        log(
            (DECLARED, None), (cutover("a", "c", "in.c"), None), (reported(2, task=1), None),
            (reported(2), None), (reported(2), None), (reported(3), None), (detach("a"), None),
        )
    )  # fmt: skip
    assert refusals(right) == [None, None, "invalid", None, "state", None, "state"]
    assert right.cutover is not None
    assert right.cutover.state == "done"
    assert right.spans["a", "in.a"] == [(START, 5_000)]
    assert right.spans["c", "in.c"] == [(1_000, INFINITY)]


@pytest.mark.parametrize(
    ("action", "state"),
    [
        (detach("b"), "aborted"),
        (detach("a"), "aborted"),
        (reported(3, "diverged"), "aborted"),
        ({"do": "cutover_abort", "reason": ""}, "aborted"),
        ({"do": "quarantine", "replica": "a", "reason": ""}, "aborted"),
        ({"do": "policy", "insert": "first", "adjust": "lazy", "stable": "quorum(2)"}, "aborted"),
        ({"do": "policy", "insert": "first", "adjust": "eager", "stable": "max"}, "joining"),
        (attach("c", "in.c"), "watching"),
    ],
)
def test_what_is_decided_meanwhile_moves_a_cutover(action: Mapping[str, Any], state: str) -> None:
    right = decided(
        log((DECLARED, None), (cutover("a", "b"), None), (reported(2), None), (action, None))
    )
    assert refusals(right) == [None] * 4
    assert right.cutover is not None
    assert right.cutover.state == state
    again = decided(
        log(
            (DECLARED, None),
            (cutover("a", "b"), None),
            (reported(2), None),
            (cutover("b", "a"), None),
        )
    )
    assert refusals(again)[-1] == "state"


def test_nothing_is_decided_before_a_topology_is_declared() -> None:
    assert refusals(decided(log((detach("a"), None), (DECLARED, None)))) == ["state", None]


def test_a_quorum_keeps_as_many_as_it_needs() -> None:
    policy = {"do": "policy", "insert": "first", "adjust": "lazy", "stable": "quorum(2)"}
    assert refusals(decided(log((DECLARED, None), (policy, None), (detach("a"), None)))) == [
        None,
        None,
        "invalid",
    ]


def test_a_record_that_is_no_decision_or_is_there_again_changes_nothing() -> None:
    control = log((DECLARED, None), (detach("a"), None))
    odd = CommittedRecord("control", 0, 2, 2_000, b"?")
    again = replace(control.records[1], offset=3, timestamp=3_000)
    right = decided(replace(control, records=(*control.records, odd, again)))
    assert (right.version, len(right.verdicts)) == (2, 2)
    assert right.spans["a", "in.a"] == [(START, 1_000)]


def test_who_was_attached_when() -> None:
    right = decided(
        log(
            (DECLARED, None),
            (detach("a"), None),
            ({"do": "quarantine", "replica": "b", "reason": ""}, None),
            (attach("a", "in.a2"), None),
            ({"do": "release", "replica": "b"}, None),
            (detach("a"), None),
            (attach("a", "in.a"), None),
        )
    )
    assert right.spans == {
        ("a", "in.a"): [(START, 1_000), (6_000, INFINITY)],
        ("a", "in.a2"): [(3_000, 5_000)],
        ("b", "in.b"): [(START, 2_000), (4_000, INFINITY)],
    }


# --- K9 -------------------------------------------------------------------------------------------


def test_k9_who_decided_got_the_answer_of_the_log() -> None:
    right = decided(log((DECLARED, None), (detach("a"), 1), (detach("b"), 1)))
    assert k9(right, [Answer("d1", 2, None), Answer("d2", 2, "version")]).outcome is VALID
    for wrong in (
        Answer("d2", 3, None),  # both hold
        Answer("d2", 2, "state"),  # refused, and without the reason
        Answer("d1", 1, None),
        Answer("d9", 2, None),  # nobody can read it
    ):
        assert k9(right, [wrong]).outcome is INVALID
    answered = replace(good(), decided=right, answers=[Answer("d2", 3, None)])
    assert failing(answered) == ["K9"]


# --- what decisions mean for the others -----------------------------------------------------------


def events(*reasons: str) -> CommittedTopic:
    values = [json.dumps({"kind": "accepted_gap", "reason": why}).encode() for why in reasons]
    values.append(json.dumps({"kind": "gap", "reason": "[1, 2) is lost"}).encode())
    return CommittedTopic(
        "events", tuple(CommittedRecord("events", 0, n, n, value) for n, value in enumerate(values))
    )


def test_what_is_lost_is_what_the_events_contain() -> None:
    assert lost(events("by anna: [-9, 30) is lost", "by ben: [3, 4) is lost")) == [(-9, 30), (3, 4)]


def test_k1_and_k3_what_was_given_up_may_be_missing_and_nothing_else() -> None:
    history = replace(lost_by_a_leader(), reference=TDB([(A, 1, 9), (B, 3, 20)]))
    assert failing(history) == ["K1", "K3"]
    assert failing(replace(history, lost=[(10, 21)])) == []
    assert failing(replace(history, lost=[(10, 20)])) == ["K1", "K3"]
    assert failing(replace(history, lost=[(10, 15), (21, 30)])) == ["K1", "K3"]


def test_k1_what_was_given_up_may_be_there_with_any_end_but_nothing_may_be_made_up() -> None:
    reference = TDB([(A, 1, 9), (B, 3, 20)])
    long = emitting(Insert(A, 1, 9), Insert(B, 3, 90), Stable(10))
    ended = replace(long, reference=reference, lost=[(10, 21)])
    assert check(ended)["K1"].outcome is VALID
    made_up = emitting(Insert(A, 1, 9), Insert(b'"X"', 3, 20), Stable(10))
    wrong = check(replace(made_up, reference=reference, lost=[(10, 21)]))["K1"]
    assert wrong.evidence == ('OUT has "X" [3, 10), cut at 10, which is not in the reference',)


def test_k4_what_a_replica_publishes_once_it_is_withdrawn_leads_nobody() -> None:
    runaway = topic("c", [Stable(99)])  # at 0
    history = emitting(Insert(A, 1, 9), Insert(B, 3, 20), Stable(99), at=50)

    def merged(*spans: Interval) -> Outcome:
        gone = ReplicaHistory(runaway, honest=False, merged=spans)
        replicas = {**good().replicas, "c": gone}
        return check(replace(history, replicas=replicas, skew_ms=0))["K4"].outcome

    assert merged(Interval(-10, 0)) is VALID
    assert merged(Interval(-10, -1)) is INVALID
    assert merged() is INVALID
    assert merged(Interval(-10, -1), Interval(60)) is VALID  # attached again, and read again
    assert merged(Interval(-10, -1), Interval(80)) is INVALID  # not as late as that


def test_k4_a_co_partitioned_replica_leads_by_each_partition_alone() -> None:
    first = records("a", [Insert(A, 1, 9), Stable(10)])
    both = CommittedTopic("a", tuple(first), partitions=2)  # the other one is silent
    emitted = records("out", [Insert(A, 1, 9), Stable(10)], at=50)
    history = replace(
        good(),
        output=CommittedTopic("out", tuple(emitted), partitions=2),
        replicas={"a": ReplicaHistory(both, co_partitioned=True)},
    )
    assert check(history)["K4"].outcome is VALID
    wide = {"a": ReplicaHistory(both)}
    assert check(replace(history, replicas=wide))["K4"].outcome is INVALID
    other = [replace(record, partition=1) for record in emitted]
    apart = replace(history, output=CommittedTopic("out", tuple(other), partitions=2))
    assert check(apart)["K4"].outcome is INVALID


# --- folds ----------------------------------------------------------------------------------------

ABOUT_A = {"id": "d1", "action": {"do": "detach", "replica": "a"}, "made": 700, "expects": None}
FOLD: Mapping[str, Any] = {
    "fold": 1,
    "offset": 2,
    "ledger": {
        "version": 2,
        "declared": DECLARED,
        "policy": {"stable": "max"},
        "output": {"number": 0, "correct_from": START},
        "replicas": [
            {
                "replica": {"name": "a", "topic": "in.a"},
                "state": "detached",
                "since": 2,
                "epoch": 1,
            },
            {
                "replica": {"name": "b", "topic": "in.b"},
                "state": "attached",
                "since": 1,
                "epoch": 1,
            },
        ],
        "entries": [
            {
                "decision": {"id": "d0", "action": DECLARED, "made": 0},
                "version": 1,
                "refusal": None,
            },
            {"decision": ABOUT_A, "version": 2, "refusal": None},
        ],
        "cutover": None,
    },
}


def with_fold(fold: Mapping[str, Any], start: int = 0) -> CommittedTopic:
    """Two decisions, their fold, and a third decision; from an offset on."""
    records = list(log((DECLARED, None), (detach("a"), 1), (detach("b"), 2)).records)
    records[2] = replace(records[2], offset=3)
    value = json.dumps(fold).encode()
    records.insert(2, CommittedRecord("control", 0, 2, 1_500, value))
    return CommittedTopic("control", tuple(records[start:]))


def test_a_fold_is_no_decision_and_agrees_with_those_before_it() -> None:
    right = decided(with_fold(FOLD))
    assert refusals(right) == [None, None, "invalid"]
    assert k9(right, []).outcome is VALID


def test_from_a_fold_on_all_is_as_if_nothing_had_been_deleted() -> None:
    whole, rest = decided(with_fold(FOLD)), decided(with_fold(FOLD, 2))
    assert (rest.version, refusals(rest)) == (whole.version, refusals(whole))
    assert rest.replicas == whole.replicas
    assert rest.spans == {
        ("a", "in.a"): [(START, 700)],
        ("b", "in.b"): [(START, INFINITY)],
    }
    assert k9(rest, [Answer("d1", 2, None)]).outcome is VALID


@pytest.mark.parametrize(
    ("change", "evidence"),
    [
        ({"version": 3}, "the fold at offset 2 has version 3, not 2"),
        ({"output": {"number": 1, "correct_from": 7}}, "has output (1, 7), not"),
        ({"entries": [{"decision": ABOUT_A, "version": 2, "refusal": {"kind": "state"}}]}, "d1"),
        ({"entries": [{"decision": {"id": "x"}, "version": 2, "refusal": None}]}, "verdict on x"),
        ({"replicas": FOLD["ledger"]["replicas"][:1]}, "replica b as None"),
        ({"replicas": [
            {"replica": {"name": "a", "topic": "in.a"}, "state": "attached"},
            FOLD["ledger"]["replicas"][1],
        ]}, "replica a as ('in.a', 'attached')"),
    ],
)  # fmt: skip
def test_a_fold_that_differs_is_found(change: Mapping[str, Any], evidence: str) -> None:
    found = k9(decided(with_fold({**FOLD, "ledger": {**FOLD["ledger"], **change}})), [])
    assert found.outcome is INVALID
    assert any(evidence in each for each in found.evidence)


def test_a_fold_that_was_made_for_another_offset_is_nothing() -> None:
    late = {**FOLD, "offset": 1, "ledger": {**FOLD["ledger"], "version": 9}}
    right = decided(with_fold(late))
    assert (right.version, right.wrong_folds) == (2, [])
