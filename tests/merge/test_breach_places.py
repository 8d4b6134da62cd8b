"""The record that shows a breach."""

from dataclasses import dataclass

from lmerge_service.core import Breach, BreachKind
from lmerge_service.elements import Insert
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.findings.breach_places import place_of
from lmerge_service.merge.findings.evidence import RecordPlace

X = Insert(b'"x"', 3, 5)
TP = TopicPartition("t.a", 2)
BREACH = Breach("a", 0, BreachKind.BROKE_OWN_STABLE, X)


@dataclass
class Record:
    value: bytes | None
    offset: int


def test_it_is_the_latest_one_that_is_the_element() -> None:
    spaced = encode(X).replace(b",", b", ")
    records = [Record(encode(X), 7), Record(spaced, 8), Record(encode(Insert(b'"y"', 3, 5)), 9)]
    assert place_of(BREACH, TP, records, WireDecoder()) == RecordPlace.of("t.a", 2, 8, spaced)  # type: ignore[arg-type]


def test_it_is_the_last_one_where_records_are_no_elements() -> None:
    records = [Record(b"{", 7), Record(None, 8), Record(b'{"after": 1}', 9)]
    found = place_of(BREACH, TP, records, WireDecoder())  # type: ignore[arg-type]
    assert found == RecordPlace.of("t.a", 2, 9, b'{"after": 1}')
