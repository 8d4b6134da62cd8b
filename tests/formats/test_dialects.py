"""Each dialect, record by record: what it decodes, what it refuses, what it keeps."""

from typing import Any

import pytest

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError, StateError
from lmerge_service.formats.dialects import build_decoder
from lmerge_service.formats.payload import PayloadCache
from tests.formats.dialects import Record, decoded, decoder, options, refusal, value

A, B = b'{"id":1,"n":"A"}', b'{"id":1,"n":"B"}'
ONE, TWO = b'{"id":1}', b'{"id":2}'
a, b = {"id": 1, "n": "A"}, {"id": 1, "n": "B"}


def opens(row: bytes, t: int) -> Insert[bytes]:
    return Insert(row, t, INFINITY)


def ends(row: bytes, vs: int, t: int) -> Adjust[bytes]:
    return Adjust(row, vs, INFINITY, t)


# Open and close


def openclose(*texts: str) -> list[Element]:
    return decoded(decoder(dialect="openclose"), *(Record(text.encode()) for text in texts))


def test_a_close_without_a_start_is_about_the_event_opened_last() -> None:
    """W[6] of the paper's Example 3: the second close of B revises the first."""
    emitted = openclose(
        '{"op":"open","payload":"B","vs":2}',
        '{"op":"close","payload":"B","ve":6}',
        '{"op":"open","payload":"A","vs":1}',
        '{"op":"close","payload":"A","ve":4}',
        '{"op":"close","payload":"B","vs":2,"ve":5}',
        '{"op":"stable","vc":7}',
    )
    assert emitted == [
        opens(b'"B"', 2), ends(b'"B"', 2, 6), opens(b'"A"', 1), ends(b'"A"', 1, 4),
        Adjust(b'"B"', 2, 6, 5), Stable(7),
    ]  # fmt: skip


def test_an_event_may_be_closed_again_reopened_and_removed() -> None:
    emitted = openclose(
        '{"op":"open","payload":1,"vs":2}',
        '{"op":"close","payload":1.0,"vs":2,"ve":6}',
        '{"op":"close","payload":1,"vs":2,"ve":6}',
        '{"op":"open","payload":1,"vs":2}',
        '{"op":"close","payload":1,"vs":2,"ve":null}',
        '{"op":"close","payload":1,"vs":2,"ve":2}',
    )
    assert emitted == [
        opens(b"1", 2),
        ends(b"1", 2, 6),
        Adjust(b"1", 2, 6, INFINITY),
        ends(b"1", 2, 2),
    ]


def test_openclose_refuses_what_is_late_and_what_is_unknown() -> None:
    one = decoder(dialect="openclose")
    emitted = decoded(
        one,
        Record(b'{"op":"open","payload":"A","vs":2}'),
        Record(b'{"op":"close","payload":"A","ve":6}'),
        Record(b'{"op":"open","payload":"B","vs":3}'),
        Record(b'{"op":"stable","vc":7}'),
    )
    assert emitted[-1] == Stable(7)
    for text, reason in (
        ('{"op":"open","payload":"C","vs":6}', "late"),
        ('{"op":"close","payload":"B","ve":6}', "late"),
        ('{"op":"close","payload":"A","vs":2,"ve":9}', "unknown_event"),
        ('{"op":"close","payload":"A","ve":9}', "unknown_event"),
        ('{"op":"close","payload":"B","vs":3,"ve":2}', "not_an_element"),
        ('{"op":"open","payload":"C","vs":9,"ve":12}', "not_an_element"),
        ('{"op":"open","payload":"C","vs":9.5}', "not_an_element"),
        ('{"op":"open","payload":"C","vs":null}', "not_an_element"),
        ('{"op":"open","vs":9}', "not_an_element"),
        ('{"op":"insert","payload":"C","vs":9,"ve":12}', "not_an_element"),
        ("[]", "not_an_element"),
    ):
        assert refusal(one, Record(text.encode())) == reason, text
    assert decoded(one, Record(b'{"op":"close","payload":"B","ve":7}')) == [ends(b'"B"', 3, 7)]
    assert refusal(one, Record(None)) == "tombstone"


def test_openclose_with_lateness_follows_the_opens() -> None:
    one = decoder(dialect="openclose", stable={"lateness": 5})
    emitted = decoded(
        one,
        Record(b'{"op":"open","payload":"A","vs":20}'),
        Record(b'{"op":"close","payload":"A","ve":900}'),
        Record(b'{"op":"open","payload":"B","vs":15}'),
    )
    assert emitted == [opens(b'"A"', 20), Stable(15), ends(b'"A"', 20, 900), opens(b'"B"', 15)]
    assert refusal(one, Record(b'{"op":"open","payload":"C","vs":14}')) == "late"


# Debezium


def change(
    op: str, t: int, before: Any = None, after: Any = None, key: bytes | None = ONE, **more: Any
) -> Record:
    source = {"ts_ms": t, "connector": "postgresql"}
    return Record(value(op=op, before=before, after=after, source=source, ts_ms=99, **more), key)


def debezium(lateness: int = 100, **fields: Any) -> Any:
    return decoder(dialect="debezium", **{"stable": {"lateness": lateness}, **fields})


def changes(emitted: list[Element]) -> list[Element]:
    return [element for element in emitted if type(element) is not Stable]


def test_a_row_is_valid_from_the_change_that_brings_it_to_the_one_that_takes_it_away() -> None:
    emitted = decoded(
        debezium(),
        change("c", 103, None, a),
        change("u", 107, a, b),
        change("d", 109, b, None),
        Record(None, ONE),
    )
    assert emitted == [
        opens(A, 103), Stable(3), ends(A, 103, 107), opens(B, 107), Stable(7),
        ends(B, 107, 109), Stable(9),
    ]  # fmt: skip


def test_records_with_a_schema_mean_the_same() -> None:
    schema = {"type": "struct", "fields": [{"field": "id"}]}
    plain = change("c", 103, None, a)
    wrapped = Record(
        b'{"schema":%b,"payload":%b}' % (value(**schema), plain.value or b""),
        b'{"schema":%b,"payload":%b}' % (value(**schema), ONE),
    )
    one = debezium()
    assert changes(decoded(one, wrapped)) == [opens(A, 103)]
    assert decoded(one, plain) == [], "also the key is the same"
    tombstone = Record(b'{"schema":null,"payload":null}', TWO)
    assert decoded(one, tombstone) == []


def test_what_is_so_already_gives_no_element() -> None:
    """Repeats, a second snapshot (materialize#14211), updates and deletions without effect."""
    one = debezium()
    decoded(one, change("r", 103, None, a))
    for again in (
        change("c", 103, None, a), change("r", 103, None, a), change("u", 103, None, a),
        change("d", 103, a, None, key=TWO), Record(None, TWO),
    ):  # fmt: skip
        assert decoded(one, again) == []
    assert changes(decoded(one, change("r", 150, None, a))) == []
    assert changes(decoded(one, change("r", 160, None, b))) == [ends(A, 103, 160), opens(B, 160)]


def test_a_repeated_run_of_records_ends_where_it_was() -> None:
    run = [change("c", 103, None, a), change("u", 105, a, b), change("u", 107, b, a)]
    one = debezium()
    decoded(one, *run)
    again = decoded(one, *run)
    assert again == [
        ends(A, 107, 107), Adjust(B, 105, 107, INFINITY), ends(B, 105, 107), opens(A, 107),
    ]  # fmt: skip


def test_the_last_of_several_changes_at_one_instant_counts() -> None:
    """drasi-core#814: updates with equal timestamps are lost."""
    emitted = decoded(debezium(), change("c", 5, None, a), change("u", 5, a, b))
    assert changes(emitted) == [opens(A, 5), ends(A, 5, 5), opens(B, 5)]
    emitted = decoded(debezium(), change("c", 5, None, a), change("d", 5, a, None))
    assert changes(emitted) == [opens(A, 5), ends(A, 5, 5)]


def test_a_row_that_goes_and_comes_back_at_one_instant_has_not_been_away() -> None:
    emitted = decoded(
        debezium(), change("c", 3, None, a), change("d", 5, a, None), change("c", 5, None, a)
    )
    assert changes(emitted) == [opens(A, 3), ends(A, 3, 5), Adjust(A, 3, 5, INFINITY)]


def test_the_order_of_a_key_counts_and_not_the_clock() -> None:
    emitted = decoded(debezium(), change("c", 7, None, a), change("u", 5, a, b))
    assert changes(emitted) == [opens(A, 7), ends(A, 7, 7), opens(B, 7)]
    emitted = decoded(
        debezium(), change("c", 3, None, a), change("d", 7, a, None), change("c", 5, None, b)
    )
    assert changes(emitted) == [opens(A, 3), ends(A, 3, 7), opens(B, 7)]


def test_before_is_not_believed() -> None:
    emitted = decoded(debezium(), change("c", 3, None, a), change("u", 5, {"id": 1, "n": "?"}, b))
    assert changes(emitted) == [opens(A, 3), ends(A, 3, 5), opens(B, 5)]


def test_a_change_of_the_key_is_a_deletion_and_an_insertion() -> None:
    moved = {"id": 2, "n": "A"}
    by_record = decoded(
        debezium(),
        change("c", 3, None, a),
        change("d", 5, a, None),
        Record(None, ONE),
        change("c", 5, None, moved, key=TWO),
    )
    by_fields = decoded(
        debezium(key=["id"]), change("c", 3, None, a, key=None), change("u", 5, a, moved, key=None)
    )
    assert changes(by_record) == changes(by_fields)
    assert changes(by_fields) == [opens(A, 3), ends(A, 3, 5), opens(b'{"id":2,"n":"A"}', 5)]


def test_late_changes_are_refused_and_the_own_stable_is_kept() -> None:
    one = debezium(lateness=10)
    decoded(one, change("c", 100, None, a))
    assert refusal(one, change("c", 89, None, {"id": 2}, key=TWO)) == "late"
    assert changes(decoded(one, change("c", 90, None, {"id": 2}, key=TWO))) == [opens(TWO, 90)]
    assert changes(decoded(one, change("d", 80, a, None))) == [ends(A, 100, 100)], (
        "in the order of its key it is at 100"
    )


def test_debezium_refuses_what_it_cannot_read() -> None:
    one = debezium()
    decoded(one, change("c", 3, None, a))
    for record, reason in (
        (change("c", 4, None, None), "not_an_element"),
        (change("x", 4, None, b), "not_an_element"),
        (Record(value(op="u", after=b, source={})), "not_an_element"),
        (Record(value(op="u", after=b, source={"ts_ms": "4"}), ONE), "not_an_element"),
        (Record(value(op="u", after=b, source={"ts_ms": INFINITY}), ONE), "not_an_element"),
        (change("c", 4, None, b, key=None), "no_key"),
        (change("c", 4, None, b, key=b"null"), "no_key"),
        (change("c", 4, None, b, key=b"{"), "not_json"),
        (Record(None, ONE), "tombstone"),
        (Record(None, None), "no_key"),
        (Record(b"{}", ONE), "not_an_element"),
        (Record(value(databaseName="d", ddl="CREATE"), ONE), "not_an_element"),
    ):
        assert refusal(one, record) == reason, record
    by_field = debezium(key=["id"])
    assert refusal(by_field, change("d", 4, None, None)) == "no_key"
    assert refusal(by_field, change("c", 4, None, {"n": 1})) == "no_key"
    assert refusal(by_field, change("c", 4, None, {"id": None})) == "no_key"


REGISTRY = b"\0\0\0\0\7"


@pytest.mark.parametrize(
    ("key", "what"),
    [
        (b"k1", "the record's key: not JSON"),
        (b"\xff", "the record's key: not UTF-8"),
        (REGISTRY + ONE, "the record's key: not JSON: .*schema registry, schema 7"),
        (b'"' + b"k" * 2000 + b'"', "the record's key: larger than"),
    ],
)
def test_n14_a_key_that_is_refused_is_what_is_blamed(key: bytes, what: str) -> None:
    by_key = decoder(
        dialect="upserts", max_record_bytes=1000, key_into="key", stable={"lateness": 1}
    )
    one = decoder(dialect="debezium", max_record_bytes=1000, stable={"lateness": 1})
    for each, record in (
        (one, change("c", 4, None, b, key=key)),
        (one, Record(None, key)),
        (by_key, Record(value(n=1), key, 4)),
    ):
        with pytest.raises(ElementError, match=what):
            each.decode(record)
    text = decoder(dialect="upserts", key_into="k", key_encoding="text", stable={"lateness": 1})
    with pytest.raises(ElementError, match="the record's key: not UTF-8"):
        text.decode(Record(value(n=1), b"\xff", 4))


def test_n14_a_value_of_a_schema_registry_is_reported_in_each_dialect() -> None:
    behind = value(op="c", after=b, source={"ts_ms": 4})
    forms: tuple[Any, ...] = (
        {"dialect": "debezium", "stable": {"lateness": 1}},
        {"dialect": "upserts", "stable": {"lateness": 1}},
        {"dialect": "flink", "encoding": "rowkind", "stable": {"lateness": 1}},
        {"dialect": "openclose"},
    )
    for form in forms:
        with pytest.raises(ElementError, match=r"^not JSON: .*schema 7, and there is JSON behind"):
            decoder(**form).decode(Record(REGISTRY + behind, ONE, 4))


def test_n14_nulls_of_a_row_are_dropped_and_those_of_its_envelope_are_not() -> None:
    def dropping(**fields: Any) -> Any:
        return build_decoder(options(**fields), PayloadCache(drop_nulls=True), 1 << 20)

    one = dropping(dialect="debezium", stable={"lateness": 100})
    emitted = decoded(
        one, change("c", 3, None, {"id": 1, "n": None}), change("u", 5, None, {"id": 1})
    )
    assert changes(emitted) == [opens(b'{"id":1}', 3)], "the update changes nothing"
    assert changes(decoded(one, change("d", 9))) == [ends(b'{"id":1}', 3, 9)]
    pairs = decoded(
        dropping(dialect="openclose"),
        Record(b'{"op":"open","payload":{"a":null},"vs":1}'),
        Record(b'{"op":"close","payload":{},"vs":1,"ve":4}'),
        Record(b'{"op":"close","payload":{},"vs":1,"ve":null}'),
    )
    assert pairs == [opens(b"{}", 1), ends(b"{}", 1, 4), Adjust(b"{}", 1, 4, INFINITY)]


def test_a_truncated_table_has_no_rows() -> None:
    other = {"id": 2}
    emitted = decoded(
        debezium(),
        change("c", 3, None, a),
        change("c", 4, None, other, key=TWO),
        change("t", 6, key=None),
        change("c", 7, None, other, key=TWO),
    )
    assert changes(emitted)[2:] == [ends(A, 3, 6), ends(TWO, 4, 6), opens(TWO, 7)]


def test_a_value_that_the_log_does_not_repeat_is_taken_over() -> None:
    one = debezium()
    decoded(one, change("c", 3, None, {"id": 1, "big": [1, 2], "n": 1}))
    wrong = change("u", 5, None, {"id": 1, "big": "__debezium_unavailable_value", "n": 2})
    assert changes(decoded(one, wrong))[1] == opens(b'{"big":[1,2],"id":1,"n":2}', 5)
    assert refusal(debezium(), wrong) == "unavailable"


def test_heartbeats_count_when_they_are_to() -> None:
    beat = Record(value(ts_ms=500), b'{"serverName":"x"}')
    assert decoded(debezium(), beat) == []
    counting = debezium(stable={"lateness": 20, "heartbeats": True})
    assert decoded(counting, beat) == [Stable(480)]


def test_transactions_make_stable_what_they_leave() -> None:
    one = debezium(stable={"transactions": True})
    first: Any = {"transaction": {"id": "1"}}
    second: Any = {"transaction": {"id": "2"}}
    emitted = decoded(
        one,
        Record(value(status="BEGIN", id="1", ts_ms=1)),
        change("c", 5, None, a, **first),
        change("c", 4, None, {"id": 2}, key=TWO, **first),
        change("u", 6, a, b, **second),
        Record(value(status="END", id="2", ts_ms=99)),
    )
    assert emitted == [
        opens(A, 5), opens(TWO, 4), Stable(5), ends(A, 5, 6), opens(B, 6), Stable(6),
    ]  # fmt: skip
    assert refusal(one, change("d", 5, key=TWO, **second)) == "late"
    assert decoded(one, change("d", 6, key=TWO, **second)) == [ends(TWO, 4, 6)]
    assert refusal(one, change("c", 5, None, a, key=b"9", transaction={"id": "3"})) == "late"


def test_messages_and_bounds_of_transactions_give_no_element() -> None:
    assert decoded(
        debezium(),
        Record(value(op="m", message={"prefix": "x"}, source={"ts_ms": 9})),
        Record(value(status="BEGIN", id="1", event_count=None, ts_ms=1)),
        Record(value(status="END", id="1", event_count=0, ts_ms=1)),
    ) == []  # fmt: skip


def test_a_bound_of_no_transaction_is_malformed() -> None:
    for status in ("BEGIN", "END"):
        assert refusal(debezium(), Record(value(status=status))) == "not_an_element"


def test_rows_may_contain_their_own_lifetimes() -> None:
    one = debezium(lifetime={"vs": "valid.from", "ve": "valid.to"}, stable={"lateness": 50})
    row = {"id": 1, "valid": {"from": 10, "to": None}}
    emitted = decoded(
        one,
        change("c", 0, None, row),
        change("u", 0, None, {"id": 1, "valid": {"from": 10, "to": 20}}),
        change("u", 0, None, {"id": 1, "valid": {"from": 11, "to": 20}}),
        change("d", 0, row, None),
    )
    assert changes(emitted) == [
        opens(ONE, 10), ends(ONE, 10, 20), Adjust(ONE, 10, 20, 10), Insert(ONE, 11, 20),
        Adjust(ONE, 11, 20, 11),
    ]  # fmt: skip
    assert refusal(one, change("c", 0, None, {"id": 1, "valid": {"from": 5, "to": 5}})) == (
        "not_an_element"
    )


# Flink


def flink(encoding: str = "rowkind", **fields: Any) -> Any:
    return decoder(dialect="flink", encoding=encoding, **{"stable": {"watermark": "w"}, **fields})


def test_the_three_encodings_of_an_update_mean_the_same() -> None:
    expected = [opens(A, 3), ends(A, 3, 5), opens(B, 5)]
    by_kind = [("+I", 3, a), ("-U", 5, a), ("+U", 5, b)]
    records = [Record(value(op=kind, **row), timestamp=t) for kind, t, row in by_kind]
    assert decoded(flink(), *records) == expected
    assert decoded(flink(key=["id"]), *records) == expected
    ops = [("c", 3, None, a), ("d", 5, a, None), ("c", 5, None, b)]
    records = [Record(value(op=op, before=x, after=y), timestamp=t) for op, t, x, y in ops]
    assert decoded(flink("debezium-json"), *records) == expected
    assert decoded(flink("debezium-json", key=["id"]), *records) == expected
    kinds = [("INSERT", 3, a), ("DELETE", 5, a), ("INSERT", 5, b)]
    records = [Record(value(type=kind, data=[row]), timestamp=t) for kind, t, row in kinds]
    assert decoded(flink("canal-json"), *records) == expected
    update = Record(value(type="UPDATE", data=[b], old=[{"n": "A"}]), timestamp=5)
    assert decoded(flink("canal-json"), records[0], update) == expected
    changed = Record(value(op="u", before=a, after=b), timestamp=5)
    first = Record(value(op="c", before=None, after=a), timestamp=3)
    assert decoded(flink("debezium-json"), first, changed) == expected


def test_an_update_before_that_carries_the_old_row_s_time_does_no_harm_with_a_key() -> None:
    one = flink(key=["id"], time="t")
    emitted = decoded(
        one,
        Record(value(op="+I", t=3, **a)),
        Record(value(op="-U", t=3, **a)),
        Record(value(op="+U", t=5, **b)),
    )
    assert emitted == [opens(A, 3), ends(A, 3, 5), opens(B, 5)]


def test_a_watermark_follows_the_row_that_carries_it() -> None:
    one = flink()
    emitted = decoded(
        one,
        Record(value(op="+I", w=None, **a), timestamp=3),
        Record(value(op="-D", w=9, **a), timestamp=5),
        Record(value(w=8)),
        Record(value(w=INFINITY)),
    )
    assert emitted == [opens(A, 3), ends(A, 3, 5), Stable(9), Stable(INFINITY)]
    assert refusal(one, Record(value(op="+I", **a), timestamp=10**12)) == "late"


def test_windows_are_events_of_their_own_and_nothing_is_kept() -> None:
    one = flink(lifetime={"vs": "window_start", "ve": "window_end"})
    emitted = decoded(
        one,
        Record(value(op="+I", id=1, window_start=0, window_end=10)),
        Record(value(op="-U", id=1, window_start=0, window_end=10)),
        Record(value(op="+U", id=2, window_start=0, window_end=10)),
    )
    assert emitted == [Insert(ONE, 0, 10), Adjust(ONE, 0, 10, 0), Insert(TWO, 0, 10)]
    size = len(one.snapshot())
    decoded(one, Record(value(op="+I", id=3, window_start=5, window_end=9)))
    assert len(one.snapshot()) == size
    decoded(one, Record(value(w=1)))
    late = Record(value(op="-D", id=2, window_start=0, window_end=10))
    assert refusal(one, late) == "late"


@pytest.mark.parametrize(
    ("encoding", "record", "reason"),
    [
        ("rowkind", value(op="+X", id=1), "not_an_element"),
        ("rowkind", value(id=1, w=5), "not_an_element"),
        ("rowkind", b"3", "not_an_element"),
        ("debezium-json", value(op="c", before=None, after=None), "not_an_element"),
        ("debezium-json", value(op="d", before=None, after=None), "not_an_element"),
        ("debezium-json", value(op="t"), "not_an_element"),
        ("canal-json", value(type="INSERT", data=None), "not_an_element"),
        ("canal-json", value(type="INSERT", data=[1]), "not_an_element"),
        ("canal-json", value(type="CREATE", data=None), "not_an_element"),
        ("canal-json", value(type="UPDATE", data=[a], old=[]), "not_an_element"),
    ],
)
def test_flink_refuses_what_it_cannot_read(encoding: str, record: bytes, reason: str) -> None:
    assert refusal(flink(encoding), Record(record, timestamp=5)) == reason


def test_a_record_of_several_rows_is_taken_whole_or_refused_whole() -> None:
    one = flink("canal-json", key=["id"])
    rows = [{"id": 1}, {"id": 2}]
    both = Record(value(type="INSERT", data=rows, w=9), timestamp=5)
    assert decoded(one, both) == [opens(ONE, 5), opens(TWO, 5), Stable(9)]
    assert refusal(one, Record(value(type="DELETE", data=[*rows, {}]), timestamp=9)) == "no_key"
    assert refusal(one, Record(value(type="DELETE", data=rows), timestamp=8)) == "late"


def test_flink_needs_a_time_and_a_value() -> None:
    assert refusal(flink(), Record(value(op="+I", id=1), timestamp=-1)) == "not_an_element"
    assert refusal(flink(), Record(None, b"k", 5)) == "tombstone"


# Upserts


def upserts(**fields: Any) -> Any:
    return decoder(dialect="upserts", **{"stable": {"watermark": "w"}, **fields})


def test_upserts_and_tombstones() -> None:
    emitted = decoded(
        upserts(),
        Record(A, b"1", 3),
        Record(A, b"1", 4),
        Record(value(w=2, **b), b"1", 5),
        Record(None, b"1", 8),
        Record(None, b"1", 9),
        Record(None, b"2", 9),
        Record(value(w=20)),
    )
    assert emitted == [
        opens(A, 3), ends(A, 3, 5), opens(B, 5), Stable(2), ends(B, 5, 8), Stable(20),
    ]  # fmt: skip


def test_a_row_may_have_its_time_and_get_its_key() -> None:
    one = upserts(time="t", key_into="id")
    assert decoded(one, Record(value(n="A", t=3), b"1")) == [opens(A, 3)]
    assert decoded(one, Record(value(n="B", t=5), b'{"id": 1.0}')) == [opens(B, 5)], "other bytes"
    assert refusal(one, Record(value(id=2, n="A", t=9), b"1")) == "not_an_element"
    text = upserts(key_into="word", key_encoding="text")
    assert decoded(text, Record(b"5", b"k\xc3\xb6ln", 7)) == [
        opens('{"value":5,"word":"köln"}'.encode(), 7)
    ]
    assert refusal(text, Record(b"5", b"\xff", 7)) == "not_utf8"


def test_upserts_refuse_what_is_no_row() -> None:
    one = upserts()
    for record, reason in (
        (Record(b"null", b"1", 5), "not_an_element"),
        (Record(b"", b"1", 5), "not_json"),
        (Record(A, b"1", -1), "not_an_element"),
        (Record(None, b"1", -1), "not_an_element"),
        (Record(A, None, 5), "no_key"),
        (Record(None, None, 5), "no_key"),
        (Record(b"{}", None, 5), "no_key"),
        (Record(value(w=9, id=1), None, 5), "no_key"),
        (Record(value(w="9"), None, 5), "not_an_element"),
    ):
        assert refusal(one, record) == reason, record


def test_an_upsert_of_a_window_replaces_it() -> None:
    one = upserts(lifetime={"vs": "window.start", "ve": "window.end"})
    window = {"start": 0, "end": 10}
    emitted = decoded(
        one,
        Record(value(id=1, window=window), b"k"),
        Record(value(id=2, window=window), b"k"),
        Record(None, b"k"),
        Record(value(id=2, window=window, w=11), b"k"),
    )
    assert emitted == [
        Insert(ONE, 0, 10), Adjust(ONE, 0, 10, 0), Insert(TWO, 0, 10), Adjust(TWO, 0, 10, 0),
        Insert(TWO, 0, 10), Stable(11),
    ]  # fmt: skip
    assert decoded(one, Record(None, b"k")) == [], "it is final, and forgotten"
    assert refusal(one, Record(value(id=2, window=window), b"k")) == "late"


# All


EVERY: dict[str, tuple[Any, Any]] = {
    "openclose": (
        {"dialect": "openclose", "stable": {"lateness": 3}},
        lambda row, t: Record(b'{"op":"open","payload":%b,"vs":%d}' % (row, t)),
    ),
    "debezium": (
        {"dialect": "debezium", "stable": {"lateness": 3}},
        lambda row, t: Record(b'{"op":"c","after":%b,"source":{"ts_ms":%d}}' % (row, t), ONE),
    ),
    "flink": (
        {"dialect": "flink", "encoding": "debezium-json", "stable": {"lateness": 3}},
        lambda row, t: Record(b'{"op":"c","after":%b}' % row, timestamp=t),
    ),
    "upserts": (
        {"dialect": "upserts", "stable": {"lateness": 3}},
        lambda row, t: Record(row, b"k", t),
    ),
}
every = pytest.mark.parametrize(("fields", "record"), EVERY.values(), ids=EVERY)


@every
@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b'{"x":NaN}', "not_json"),
        (b'{"x":1e400}', "number"),
        (b'{"x":9223372036854775808}', "number"),
        (b'{"x":1,"x":2}', "duplicate_key"),
        (b'{"x":"\\ud800"}', "lone_surrogate"),
        (b'{"x":"\xff"}', "not_utf8"),
        (b'{"x":' + b"[" * 64 + b"]" * 64 + b"}", "nesting"),
        (b'{"x":' + b"[" * 10_000, "nesting"),
        (b'{"x":"' + b"x" * (1 << 20) + b'"}', "too_large"),
        (b'{"x":1', "not_json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rows_are_refused_as_payloads_of_the_wire_are(
    fields: Any, record: Any, row: bytes, reason: str
) -> None:
    one = decoder(**fields)
    assert refusal(one, record(row, 5)) == reason
    assert decoded(one, record(b'{"x": 1.0}', 5)) == [opens(b'{"x":1}', 5), Stable(2)]


@every
def test_equal_payloads_are_one_object(fields: Any, record: Any) -> None:
    one = decoder(**fields)
    first, _ = decoded(one, record(b'{"x": 1.0}', 5))
    twice = decoded(decoder(**fields), record(b'{"x":1}', 5))
    assert first == twice[0]


@every
def test_a_snapshot_is_refused_by_others_and_when_it_is_damaged(fields: Any, record: Any) -> None:
    one = decoder(**fields)
    decoded(one, record(b'{"x":1}', 5))
    saved = one.snapshot()
    other = decoder(**EVERY["flink" if fields["dialect"] != "flink" else "upserts"][0])
    with pytest.raises(StateError, match="not a snapshot of dialect"):
        other.restore(saved)
    for damaged in (b"", saved[:-1], b"\xc0", saved + b"x"):
        with pytest.raises(StateError, match="damaged"):
            decoder(**fields).restore(damaged)


@every
def test_stables_may_come_in_steps(fields: Any, record: Any) -> None:
    one = decoder(**{**fields, "stable": {"lateness": 3, "step": 10}})
    emitted = decoded(one, *(record(b'{"x":%d}' % t, t) for t in range(0, 40, 4)))
    assert [each.vc for each in emitted if type(each) is Stable] == [-10, 0, 10, 20, 30]


def test_state_is_bounded_by_live_rows_and_what_is_not_stable() -> None:
    one = upserts(stable={"lateness": 10})
    sizes = []
    for n in range(3000):
        decoded(one, Record(A, b"%d" % n, n), Record(None, b"%d" % n, n + 1))
        if n in (1500, 2999):
            sizes.append(len(one.snapshot()))
    assert abs(sizes[0] - sizes[1]) < 50
