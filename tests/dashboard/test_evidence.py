"""What the evidence reader makes of records: of dead letters and of events, by replica."""

from dataclasses import dataclass, field

import pytest

from lmerge_service.core import BreachKind
from lmerge_service.dashboard.evidence import Found, _events, _letters, is_about
from lmerge_service.merge.findings.evidence import Evidence, NotificationKind, RecordPlace


@dataclass
class Record:
    value: bytes | None
    timestamp: int = 2_500
    headers: list[tuple[str, bytes]] = field(default_factory=list)


def letter(replica: str, value: bytes | None) -> Record:
    names = {"replica": replica, "topic": "t.a", "partition": "3", "offset": "17",
             "reason": "json", "message": "it is no JSON"}  # fmt: skip
    headers = [(f"lmerge-{name}", text.encode()) for name, text in names.items()]
    return Record(value, headers=headers)


def event(replica: str) -> Record:
    found = Evidence(
        kind="wrong_vold", at_ms=7_000, task=0, replica=replica, count=2, reason="it lies",
        remedy="look", first=RecordPlace.of("t.a", 0, 9, b'{"op":"stable"}'),
    )  # fmt: skip
    return Record(found.to_record()[1])


def test_a_dead_letter_has_its_place_its_reason_and_the_record_as_text() -> None:
    (found,) = _letters([letter("b", b"x"), letter("a", b"\xff" + b"x" * 700)], "a")  # type: ignore[list-item]
    assert (found.at, found.kind, found.place) == (2.5, "dead letter", "t.a 3@17")
    assert found.why == "json: it is no JSON"
    assert (found.what[0], found.what[-1], len(found.what)) == ("�", "…", 601)
    (tombstone,) = _letters([letter("a", None)], "a")  # type: ignore[list-item]
    assert tombstone.what == "(no value)"


def test_an_event_has_its_place_how_often_and_what_to_do() -> None:
    records = [event("b"), Record(b"no event of ours"), Record(None), event("a")]
    (found,) = _events(records, "a")  # type: ignore[arg-type]
    assert (found.at, found.kind, found.place) == (7.0, "wrong_vold", "t.a 0@9")
    assert found.why == "it lies (2 times) What to do: look"
    assert found.what == '{"op":"stable"}'


@pytest.mark.parametrize(
    ("kind", "finding"),
    [
        *((each.value, "breaches") for each in BreachKind),
        ("dead letter", "dead letters"), ("repeats", "repeats"),
        ("numbering", "contradicted numbers"), (NotificationKind.LOST.value, "lost events"),
        (NotificationKind.DISAGREES.value, "contradicts the output"),
    ],
)  # fmt: skip
def test_which_evidence_is_of_which_finding(kind: str, finding: str) -> None:
    found = Found(0.0, kind, "t 0@1", "", "")
    assert is_about(found, finding)
    assert not is_about(found, "open transactions")
