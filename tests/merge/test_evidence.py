"""Evidence: what a record of the events topic holds, and that nothing is left out silently."""

import json

import msgspec
import pytest

from lmerge_service.elements import INFINITY
from lmerge_service.merge.findings.evidence import (
    MAX_RECORD_BYTES,
    Evidence,
    NotificationKind,
    NotificationTally,
    RecordPlace,
    ReportedVersion,
    found,
)
from lmerge_service.merge.guards.verdicts import Action, Guard, Verdict


def test_the_evidence_of_a_verdict_contains_who_what_where_and_what_the_others_published() -> None:
    verdict = Verdict(
        Guard.LEAP, Action.HOLD, "a", "it leaps", "wait", 2, 7, 9_000, {"b": 50, "c": INFINITY}
    )
    first = RecordPlace.of("in.a", 2, 7, b'{"op":"stable","vc":9000}')
    reported = {"b": ReportedVersion(50, (60, 70), RecordPlace("in.b", 0, 3))}
    evidence = found(
        verdict, count=4, at_ms=1, task=0, output_stable=51, first=first, ends=reported
    )
    key, value = evidence.to_record()
    assert key == b"a"
    assert json.loads(value) == {
        "kind": "leap",
        "at_ms": 1,
        "task": 0,
        "replica": "a",
        "action": "hold",
        "count": 4,
        "reason": "it leaps",
        "remedy": "wait",
        "first": {
            "topic": "in.a",
            "partition": 2,
            "offset": 7,
            "record": '{"op":"stable","vc":9000}',
            "record_size": 25,
        },
        "output": {"stable": 51},
        "replicas": {
            "b": {
                "stable": 50,
                "ends": [60, 70],
                "place": {"topic": "in.b", "partition": 0, "offset": 3},
            },
            "c": {"stable": INFINITY},
        },
    }
    assert Evidence.of_record(value) == evidence


def test_what_concerns_no_replica_has_no_key() -> None:
    key, value = Evidence(kind=NotificationKind.REBUILD.value, at_ms=1, task=3).to_record()
    assert key is None
    assert Evidence.of_record(value).kind == "rebuild"
    with pytest.raises(msgspec.MsgspecError):
        Evidence.of_record(b"{}")


@pytest.mark.parametrize(
    ("value", "record", "size"),
    [
        (None, "", 0),
        (b"\xff{", "\\xff{", 2),
        (b"x" * 10_000, "x" * MAX_RECORD_BYTES, 10_000),
    ],
)
def test_a_foreign_record_is_cut_and_escaped(value: bytes | None, record: str, size: int) -> None:
    place = RecordPlace.of("in.a", 0, 1, value)
    assert (place.record, place.record_size) == (record, size)


def test_the_first_of_each_kind_and_replica_is_reported_and_then_ever_fewer() -> None:
    tally = NotificationTally()
    admitted = [tally.admit(Guard.DIVERGENCE, "a") for _ in range(9)]
    assert admitted == [1, 2, None, 4, None, None, None, 8, None]
    assert tally.admit(Guard.DIVERGENCE, "b") == 1
    assert tally.admit(NotificationKind.GAP, None) == 1
    assert tally.counts == {("divergence", "a"): 9, ("divergence", "b"): 1, ("gap", None): 1}


def test_each_gap_that_is_accepted_is_reported_since_each_has_a_range_of_its_own() -> None:
    tally = NotificationTally()
    assert [tally.admit(NotificationKind.ACCEPTED_GAP, "a") for _ in range(3)] == [1, 2, 3]
