"""The audit of a table topic: what it finds, and where. That it finds nothing else is checked by
`tests/merge/table_log.py`, after whatever happens to a table."""

import json
from dataclasses import replace

import pytest

from lmerge_service.drills.records import CommittedRecord
from lmerge_service.elements import INFINITY, Adjust, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.table import offset_headers
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.merge.snapshots.beginnings import PartitionStart
from lmerge_service.merge.table import writer as writing
from lmerge_service.offline.table_audit import PartitionAudit
from lmerge_service.tdb import Event
from tests.merge.table_log import TableLog, table_topology

A, B, C = b'{"id":"A"}', b'{"id":"B"}', b'{"id":"C"}'


def log_of(case: str = "R3") -> TableLog:
    """A is revised, B is final, C is removed; offsets 0 to 2, 4 to 7."""
    log = TableLog(table_topology(case))
    log.commit()
    log.settle()
    log.commit(Insert(A, 6, 12), Insert(B, 7, 8), Insert(C, 9, 20))
    log.commit(Adjust(A, 6, 12, 15), Adjust(C, 9, 20, 9), Stable(10))
    return log


def found(log: TableLog) -> list[tuple[int | None, str]]:
    return [(each.offset, each.why) for each in log.audited().divergences]


def test_a_table_that_is_what_its_output_is_has_no_divergence() -> None:
    audit = log_of().audited()
    assert (audit.divergences, audit.rows, audit.live, audit.checked) == ([], 2, 1, 5)


@pytest.mark.parametrize("case", ["R3", "R4"])
def test_a_row_that_is_missing_is_found(case: str) -> None:
    log = log_of(case)
    log.table = [each for each in log.table if each.value is None or b'"A"' not in each.value]
    assert found(log) == [
        (
            None,
            "there is no row, and the output has the event since offset 4, up to 15, live",
        )
    ]


def test_a_row_of_an_event_that_the_output_does_not_have_is_found() -> None:
    log = log_of()
    log.table = [each for each in log.table if each.value is not None]  # without the tombstone
    (at, why), = found(log)  # fmt: skip
    assert at == 2
    assert why == "the row is up to 20, and the output has no such event"


def test_another_end_is_found_where_it_stands_and_in_what_a_consumer_has() -> None:
    log = log_of()
    at = next(n for n, each in enumerate(log.table) if b'"ve":15' in (each.value or b""))
    log.table[at] = replace(log.table[at], value=encode(Insert(A, 6, 14)))
    offset = log.table[at].offset
    assert found(log) == [
        (offset, "the row is up to 14, and the output has it up to 15 before offset 7"),
        (None, "there is no row, and the output has the event since offset 4, up to 15, live"),
        (offset, "the row is up to 14, and the output has it up to 15 since offset 4"),
    ]


def test_offsets_that_are_not_those_of_the_transaction_are_found() -> None:
    log = log_of()
    at = next(n for n, each in enumerate(log.table) if b'"ve":15' in (each.value or b""))
    log.table[at] = replace(log.table[at], headers=tuple(offset_headers(5, 7)))
    assert found(log) == [
        (log.table[at].offset, "the output's record about it is at offset 4, not in [5, 7)")
    ]


def test_the_transaction_that_makes_it_whole_has_rows_of_events_from_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last step of filling it is part of a transaction that publishes something else."""
    monkeypatch.setattr(writing, "STEP_ROWS", 3)
    log = TableLog(table_topology("R3"))
    log.sweep()
    log.commit(Insert(A, 0, 1), Adjust(A, 0, 1, 2))
    log.commit(Stable(1))
    assert [each.headers for each in log.table] == [(), (), tuple(offset_headers(3, 4))]
    assert found(log) == []


def test_offsets_that_fall_are_found() -> None:
    log = log_of()
    log.table[-1] = replace(log.table[-1], headers=tuple(offset_headers(0, 2)))
    assert "its offsets are [0, 2) behind [4, 7): they fell" in [why for _, why in found(log)]


def test_an_event_that_is_removed_while_it_is_live_is_found() -> None:
    log = log_of()
    key = next(each.key for each in log.table if b'"ve":15' in (each.value or b""))
    headers = tuple(offset_headers(7, 7))
    log.table.append(CommittedRecord("out.table", 0, log.table_next, 0, None, key, headers))
    assert found(log)[0] == (
        log.table_next,
        "the row is removed, and the output has it up to 15, live, before offset 7",
    )


def test_a_key_that_is_not_its_events_is_found() -> None:
    log = log_of()
    at = next(n for n, each in enumerate(log.table) if b'"ve":15' in (each.value or b""))
    wrong = json.dumps({"vs": 6, "digest": "0" * 32}, separators=(",", ":")).encode()
    log.table[at] = replace(log.table[at], key=wrong)
    assert any(why.startswith("the key of its event is ") for _, why in found(log))


def test_a_table_that_is_not_whole_is_no_matter_for_an_audit() -> None:
    log = log_of()
    log.table.append(replace(log.table[0], offset=log.table_next, headers=()))
    with pytest.raises(ConfigurationError, match="partition 0 is not whole"):
        log.audited()


def test_what_has_not_been_final_for_long_must_be_there_if_it_is_known_how_long() -> None:
    log = log_of()
    log.output = [replace(each, timestamp=1_000) for each in log.output]
    log.table = [each for each in log.table if each.value is None or b'"B"' not in each.value]

    def whys(keep: int | None, now: int) -> list[str]:
        audit = PartitionAudit(0, "out.table", WireDecoder(), keep)
        audit.load(log.table)
        audit.loaded()
        audit.take(log.output)
        audit.finish(now)
        return [each.why for each in audit.divergences]

    assert whys(None, 2_000) == []
    assert whys(60, 61_000) == []
    (why,) = whys(60, 60_999)
    assert why.endswith("since offset 1, up to 8, final for less than 60 s")


def test_of_an_output_that_begins_at_a_snapshot_what_ends_later_is_compared() -> None:
    log = log_of()
    log.commit(Insert(B, 30, INFINITY))
    audit = PartitionAudit(0, "out.table", WireDecoder(), None)
    audit.load(log.table)
    audit.loaded()
    audit.begin(PartitionStart([Event(A, 6, 15)], 10, 7), 0)
    audit.take(each for each in log.output if each.offset >= 7)
    audit.finish(0)
    assert (audit.divergences, audit.live, audit.since) == ([], 2, 10)
