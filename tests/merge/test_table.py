"""The table topic: what elements change in it, how it begins, goes on, and is read."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.drills.records import CommittedRecord
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.topics import TopicInfo
from lmerge_service.merge.table import writer as writing
from lmerge_service.merge.table.sweep import RowsInMind
from lmerge_service.merge.table.writer import kind_of
from tests.merge.table_log import TableLog, table_topology
from tests.table_reader import TableView

A, B, C = b'{"id":"A"}', b'{"id":"B"}', b'{"id":"C"}'


def log_of(case: str = "R3", key: Sequence[str] = ()) -> TableLog:
    """A table that is whole, and empty."""
    log = TableLog(table_topology(case, key))
    log.commit()
    log.settle()
    return log


def rows_of(log: TableLog) -> list[tuple[Any, Any]]:
    """Keys without their digest, and the ends of the values."""
    found = []
    for key, value in log.rows():
        short = {name: each for name, each in json.loads(key).items() if name != "digest"}
        found.append((short, None if value is None else json.loads(value)["ve"]))
    return found


# --- what elements change ------------------------------------------------------------------------


def test_an_element_writes_its_event_as_it_is_then() -> None:
    log = log_of()
    log.commit(Insert(A, 6, 12), Insert(B, 7, INFINITY), Stable(3))
    log.commit(Adjust(A, 6, 12, 15), Adjust(B, 7, INFINITY, 7))
    assert rows_of(log) == [
        ({"vs": 6}, 12),
        ({"vs": 7}, None),
        ({"vs": 6}, 15),
        ({"vs": 7}, None),
    ]
    assert [value is None for _, value in log.rows()] == [False, False, False, True]
    log.check()


def test_rows_have_the_logical_key_where_the_topology_names_one() -> None:
    log = log_of(key=["id"])
    log.commit(Insert(A, 6, 12))
    assert rows_of(log) == [({"key": "A", "vs": 6}, 12)]


def test_the_digest_is_half_of_the_sha256_of_the_payload_in_the_value() -> None:
    log = log_of()
    log.commit(Insert(A, 6, 12))
    ((key, value),) = log.rows()
    assert value is not None
    payload = value[value.index(b'"payload":') + 10 : value.rindex(b',"vs"')]
    assert json.loads(key)["digest"] == hashlib.sha256(payload).hexdigest()[:32]


def test_equal_events_of_a_multiset_are_numbered() -> None:
    log = log_of("R4")
    log.commit(Insert(A, 6, 12), Insert(A, 6, 12), Adjust(A, 6, 12, 15), Adjust(A, 6, 12, 6))
    assert rows_of(log) == [
        ({"vs": 6, "ve": 12, "n": 0}, 12),
        ({"vs": 6, "ve": 12, "n": 1}, 12),
        ({"vs": 6, "ve": 12, "n": 1}, None),
        ({"vs": 6, "ve": 15, "n": 0}, 15),
        ({"vs": 6, "ve": 12, "n": 0}, None),
    ]
    log.check()


def test_a_multiset_remembers_no_counts_that_are_final(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of("R4")
    assert log.writer is not None
    counts: Any = log.writer._rows
    for time in range(1_500):
        log.commit(Insert(A, time, time + 2), Stable(time))
    assert len(counts._counts) < 1_100
    log.check()


# --- beginning, and going on ---------------------------------------------------------------------


def test_headers_have_the_span_of_the_transaction_in_the_output() -> None:
    log = log_of()
    log.commit(Insert(A, 6, 12), Insert(B, 6, 12))
    log.commit(Insert(C, 6, 12))
    spans = [dict(each.headers) for each in log.table]
    assert [each["lmerge-output-from"] for each in spans] == [b"0", b"0", b"3"]
    assert [each["lmerge-output-to"] for each in spans] == [b"2", b"2", b"4"]


def test_a_table_begins_with_what_is_live_and_is_whole_only_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "STEP_ROWS", 2)
    log = TableLog(table_topology("R3"))
    log.restart(table=False)
    log.commit(*[Insert(A, time, time + 9) for time in range(5)], Insert(B, 0, 1), Stable(2))
    log.restart()
    whole = []
    for _ in range(4):
        log.commit()
        log.sweep()
        whole.append(log.view().is_whole)
    assert whole == [False, False, False, True]
    assert log.view().events() == log.live
    assert (B.decode(), 0, 1) not in log.view().events()


def test_who_stops_within_a_transaction_follows_from_its_beginning() -> None:
    """Rows with which a table is filled are not in the output behind any offset, so that none of
    them may be in a transaction that has offsets."""
    log = TableLog(table_topology("R3"))
    log.restart(table=False)
    log.commit(*[Insert(A, time, time + 9) for time in range(5)])
    log.restart()
    log.sweep()
    log.settle()
    log.commit(Insert(B, 3, 9), Adjust(A, 3, 12, 3), Adjust(A, 4, 13, 20))
    stops = 0
    for count in range(len(log.table) + 1):
        view = TableView()
        for each in log.table[:count]:
            view.load(each)
        if view.follow_from is not None:
            stops += 1
            have = view.followed(log.output, start=view.follow_from, keyed=log.keyed)
            assert have == log.events
    assert stops == 4


@pytest.mark.parametrize("case", ["R3", "R4"])
def test_what_is_emitted_while_it_is_filled_is_not_undone_by_that(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "STEP_ROWS", 1)
    log = TableLog(table_topology(case))
    log.restart(table=False)
    log.commit(*[Insert(A, time, 20) for time in range(6)])
    log.restart()
    log.commit()
    for time in range(6):
        log.commit(Adjust(A, time, 20, time if time % 2 else 30))
    log.settle()
    log.check()


def test_a_task_that_goes_on_writes_nothing_again() -> None:
    log = log_of()
    log.commit(Insert(A, 6, 12))
    log.restart()
    log.commit(Insert(B, 7, 12))
    assert log.checkpoint is not None
    assert len(log.rows()) == 2
    log.check()


@pytest.mark.parametrize("case", ["R3", "R4"])
def test_who_has_it_switched_on_again_finds_nothing_stale_and_nothing_missing(case: str) -> None:
    log = log_of(case)
    log.commit(Insert(A, 6, 12), Insert(B, 6, 12), Insert(C, 6, 12))
    log.restart(table=False)
    log.commit(Adjust(A, 6, 12, 15), Adjust(B, 6, 12, 6), Insert(A, 8, 9))
    assert log.checkpoint is None
    log.restart()
    log.commit()
    assert not log.view().is_whole
    log.settle()
    assert log.view().events() == log.live
    tombstones = {key for key, value in log.rows() if value is None}
    assert len(tombstones) == (1 if case == "R3" else 2), "what is live is not removed in between"


def test_a_row_that_is_live_when_it_is_swept_and_removed_later_is_removed() -> None:
    log = log_of()
    log.commit(Insert(A, 6, 12))
    log.restart(table=False)
    log.commit(Insert(B, 6, 12))
    log.restart()
    log.commit()
    log.sweep()
    log.commit(Adjust(A, 6, 12, 6))
    log.settle()
    log.check()


def test_an_empty_table_is_whole_with_a_record_that_shows_it() -> None:
    """What it held was removed by a task that was killed before it was whole."""
    log = log_of()
    log.commit(Insert(A, 6, 12))
    log.restart(table=False)
    log.commit(Adjust(A, 6, 12, 6))
    log.restart()
    log.commit()
    assert log.writer is not None
    log.writer.clear_of(log.table)
    log.commit()  # the tombstone, without offsets: not all was swept yet
    assert not log.view().is_whole
    log.restart()
    log.commit()
    log.settle()
    assert log.view().is_whole
    log.check()


@pytest.mark.parametrize("changed", ["case", "key", "topic"])
def test_a_table_of_another_kind_or_topic_begins(changed: str) -> None:
    log = log_of(key=["id"])
    log.commit(Insert(A, 6, 12))
    if changed == "topic":
        log.topic_id, log.table = "id-1", []
    else:
        before = log
        log = TableLog(
            table_topology("R4" if changed == "case" else "R3", ["id"][changed == "key" :])
        )
        log.output, log.table, log.next = before.output, before.table, before.next
        log.table_next, log.checkpoint = before.table_next, before.checkpoint
        log.state.merge.replay_output([Insert(A, 6, 12)])
    log.restart()
    log.commit()
    assert log.checkpoint is None
    log.settle()
    log.check()
    assert len(log.view().rows) == 1


def test_tables_whose_rows_are_made_otherwise_are_of_another_kind() -> None:
    kinds = [kind_of(table_topology(case, key)) for case in ("R3", "R4") for key in ([], ["id"])]
    assert len(set(kinds)) == 4


def test_a_task_with_missed_elements_begins_a_multiset_again() -> None:
    """The operator counts them as emitted already."""
    log = log_of("R4")
    log.commit(Insert(A, 6, 12))
    log.state.missed = [Insert(A, 6, 12)]
    log.restart()
    assert log.writer is not None
    assert not log.writer.is_whole
    log.state.missed = []


def test_a_topic_that_is_gone_or_another_has_it_begin() -> None:
    log = log_of()
    log.commit(Insert(A, 6, 12))
    assert log.writer is not None
    whole = []
    for found in (TopicInfo("id-0", 1), TopicInfo("id-1", 1), None):
        log.writer.see(found)
        whole.append(log.writer.is_whole)
        if not whole[-1]:
            log.table = []
        log.commit()
        log.settle()
        log.check()
    assert whole == [True, False, False]


def test_a_table_that_cannot_be_written_is_left_out_and_begins_afterwards() -> None:
    log = log_of()
    log.commit(Insert(A, 6, 12))
    assert log.writer is not None
    log.outlets.refuse("out.table", "cannot be written", None)
    log.commit(Insert(B, 6, 12), Adjust(A, 6, 12, 6))
    assert log.checkpoint is None
    assert not log.writer.is_due
    log.now = 100.0
    assert log.outlets.writable_again("out.table")
    log.commit()
    log.settle()
    log.check()
    assert len(log.view().rows) == 1


def test_rows_of_others_are_removed_when_it_begins() -> None:
    log = TableLog(table_topology("R3"))
    lame = b'{"op":"insert","payload":9,"vs":1}'
    for key, value in (
        (b'{"vs":1}', lame),
        (b'{"vs":6}', encode(Insert(A, 6, 12))),
        (b"null", None),
    ):
        log.table.append(CommittedRecord("out.table", 0, len(log.table), 0, value, key, ()))
    log.commit(Insert(A, 6, 12))
    log.settle()
    log.check()
    assert len(log.view().rows) == 1


def test_who_begins_at_an_empty_table_of_a_multiset_counts_equal_events() -> None:
    log = TableLog(table_topology("R4"))
    log.commit(Insert(A, 0, 1))
    log.settle()
    log.commit(Adjust(A, 0, 1, 0))
    view = log.view()
    assert (view.rows, view.is_whole) == ({}, True)
    log.commit(Insert(A, 1, 2), Insert(A, 1, 2))
    assert view.contains_to is not None
    assert view.followed(log.output, start=view.contains_to, keyed=False) == log.live
    log.check([view])


# --- the property --------------------------------------------------------------------------------


class _Emission:
    """A legal output of few payloads and times, drawn step by step."""

    def __init__(self, data: st.DataObject, *, keyed: bool) -> None:
        self._data, self._keyed = data, keyed
        self._stable = START
        self._live: list[tuple[bytes, int, int]] = []

    def some(self) -> list[Element]:
        found = [self._one() for _ in range(self._data.draw(st.integers(0, 5)))]
        return [each for each in found if each is not None]

    def _one(self) -> Element | None:
        draw, stable = self._data.draw, max(self._stable, 0)
        what = draw(st.sampled_from(["insert", "insert", "adjust", "remove", "stable"]))
        if what == "insert":
            vs = draw(st.integers(stable, stable + 3))
            event = (draw(st.sampled_from([A, B])), vs, vs + draw(st.integers(1, 4)))
            if self._keyed and any(each[:2] == event[:2] for each in self._live):
                return None
            self._live.append(event)
            return Insert(*event)
        if what == "stable":
            self._stable = stable + draw(st.integers(1, 3))
            self._live = [each for each in self._live if each[2] >= self._stable]
            return Stable(self._stable)
        if not self._live:
            return None
        payload, vs, ve = event = draw(st.sampled_from(self._live))
        if what == "remove" and vs < self._stable:
            return None
        end = vs if what == "remove" else max(vs + 1, self._stable) + draw(st.integers(0, 4))
        self._live.remove(event)
        if what == "adjust":
            self._live.append((payload, vs, end))
        return Adjust(payload, vs, ve, end)


@pytest.mark.parametrize("case", ["R3", "R4"])
@given(data=st.data())
def test_whatever_happens_the_table_and_who_follows_it_are_right(
    case: str, data: st.DataObject
) -> None:
    """Transactions, restarts with and without a table, sweeps, compaction and readers that load at
    any commit and follow the output from there, in any order."""
    before, writing.STEP_ROWS = writing.STEP_ROWS, data.draw(st.integers(1, 4))
    try:
        _play(TableLog(table_topology(case)), data)
    finally:
        writing.STEP_ROWS = before


def _play(log: TableLog, data: st.DataObject) -> None:
    emission, views = _Emission(data, keyed=log.keyed), list[TableView]()
    steps = ["commit", "commit", "commit", "sweep", "restart", "off", "load", "compact", "gone"]
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(steps)):
            case "sweep":
                log.sweep()
            case "restart":
                log.restart()
            case "off":
                log.restart(table=False)
            case "load":
                views.append(log.view())
            case "compact":
                log.compact()
            case "gone":
                log.topic_id, log.table = f"id-{log.next}", []
                log.restart()
            case _:
                log.commit(*emission.some())
        log.check(views)
    log.restart()
    log.commit()
    log.settle()
    log.check(views)
    assert log.checkpoint is not None


# --- what has been final for long ----------------------------------------------------------------


def record(offset: int, key: bytes, ve: int | None, *, gone: bool = False) -> CommittedRecord:
    value = None if gone else json.dumps({"op": "insert", "payload": 1, "vs": 1, "ve": ve}).encode()
    return CommittedRecord("out.table", 0, offset, 0, value, key, ())


def test_rows_that_a_stable_has_made_final_are_found_by_their_latest_end() -> None:
    rows = RowsInMind(100)
    for offset, (key, ve) in enumerate(
        [(b"a", 9), (b"b", 7), (b"a", 12), (b"c", 40), (b"d", None)]
    ):
        rows.read(record(offset, key, ve))
    rows.read(record(5, b"b", 0, gone=True))
    assert rows.final(12, 10) == []
    assert rows.final(13, 10) == [b"a"]
    assert rows.final(INFINITY, 1) == [b"c"]
    assert rows.final(INFINITY, 10) == [b"d"]
    assert (len(rows), rows.next) == (0, 6)


def test_no_more_keys_are_kept_in_mind_than_are_allowed() -> None:
    rows = RowsInMind(2)
    for offset, key in enumerate([b"a", b"b", b"c", b"a"]):
        rows.read(record(offset, key, 5))
    assert (len(rows), rows.lacks_some) == (2, True)
    assert sorted(rows.final(9, 10)) == [b"a", b"b"]
    rows.begin_again()
    assert (rows.next, rows.lacks_some) == (0, False)


def test_what_is_read_again_and_again_takes_no_more_memory() -> None:
    """Events begin without an end, and get one, while few of them are there at a time."""
    rows, last = RowsInMind(100), 20_000
    for number in range(last):
        key = str(number).encode()
        rows.read(record(2 * number, key, None))
        rows.read(record(2 * number + 1, key, number))
        rows.final(number - 50, 100)
        if number % 500 == 0:
            rows.check()
    rows.check()
    assert len(rows) == 51
    assert len(rows.final(INFINITY, 100)) == 51
