"""`lmerge audit`: the verdict, its exit code, and what is printed about either stream."""

import json
from pathlib import Path

import pytest

from lmerge_service.cli import audit_shown
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.offline.table_audit import TableDivergence, TableVerdict
from tests.cli.conftest import Lmerge
from tests.offline.streams import on_the_wire, write

ENDED: list[Element] = [Insert("A", 6, 20), Adjust("A", 6, 20, 25), Stable(INFINITY)]


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    streams: dict[str, list[Element]] = {
        "one": ENDED,
        "same": [Insert("A", 6, 25), Stable(7), Stable(INFINITY)],
        "prefix": [Insert("A", 6, 25), Stable(7)],
        "silent": [],
        "other": [
            Insert("A", 6, INFINITY),
            Insert("C", 9, 10),
            Insert("C", 9, 12),
            Insert("B", 1, 3),
        ],
        "illegal": [Stable(7), Insert("A", 6, 20)],
    }
    for name, elements in streams.items():
        write(tmp_path / name, map(on_the_wire, elements))


def test_streams_that_mean_the_same_are_equivalent_and_exit_0(lmerge: Lmerge) -> None:
    done = lmerge("audit", "one", "same")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "one: legal, 1 events by 1 inserts, 1 adjusts, 1 stables; complete",
        "same: legal, 1 events by 1 inserts, 0 adjusts, 2 stables; complete",
        "equivalent",
    ]


def test_streams_that_differ_are_not_and_exit_1_and_the_first_differences_are_named(
    lmerge: Lmerge,
) -> None:
    done = lmerge("audit", "one", "other")
    assert (done.code, done.err) == (1, "")
    assert done.out.splitlines()[1:] == [
        "other: legal, 4 events by 4 inserts, 0 adjusts, 0 stables; not ended, stable at -infinity",
        "NOT equivalent: they differ in 3 events",
        '  payload "B" vs 1: no event in one, ve 3 in other',
        '  payload "A" vs 6: ve 25 in one, ve infinity in other',
        '  payload "C" vs 9: no event in one, ve 10, 12 in other',
        "compared as they stand: other has not ended",
    ]


def test_most_limits_how_many_differences_are_named(lmerge: Lmerge) -> None:
    lines = lmerge("audit", "one", "other", "--most", "1").out.splitlines()
    assert lines[3:5] == [
        '  payload "B" vs 1: no event in one, ve 3 in other',
        "  and 2 more (--most shows more)",
    ]


@pytest.mark.parametrize(
    ("left", "right", "reason"),
    [
        ("one", "prefix", "prefix has not ended"),
        ("prefix", "one", "prefix has not ended"),
        ("prefix", "prefix", "neither has ended"),
    ],
)
def test_prefixes_are_compared_as_they_stand_and_this_is_printed(
    left: str, right: str, reason: str, lmerge: Lmerge
) -> None:
    done = lmerge("audit", left, right)
    assert done.code == 0
    assert done.out.splitlines()[2:] == ["equivalent", f"compared as they stand: {reason}"]


def test_more_than_two_are_compared_at_once(lmerge: Lmerge) -> None:
    done = lmerge("audit", "one", "same", "prefix")
    assert (done.code, done.out.splitlines()[3:]) == (
        0,
        ["equivalent", "compared as they stand: prefix has not ended"],
    )
    done = lmerge("audit", "prefix", "prefix", "prefix")
    reason = "compared as they stand: prefix, prefix, prefix have not ended"
    assert done.out.splitlines()[3:] == ["equivalent", reason]
    done = lmerge("audit", "one", "same", "other")
    assert (done.code, done.out.splitlines()[5]) == (
        1,
        '  payload "A" vs 6: ve 25 in one, ve 25 in same, ve infinity in other',
    )
    document = json.loads(lmerge("audit", "one", "same", "other", "--json").out)
    assert document["differences"][1] == {"payload": "A", "vs": 6, "ends": [[25], [25], [None]]}


def test_clipped_what_is_final_in_all_is_compared(tmp_path: Path, lmerge: Lmerge) -> None:
    short: list[Element] = [Insert("A", 6, 21), Stable(9)]
    write(tmp_path / "short", map(on_the_wire, short))
    assert lmerge("audit", "one", "short").code == 1
    done = lmerge("audit", "one", "short", "--clip")
    assert (done.code, done.out.splitlines()[2:]) == (
        0,
        ["equivalent", "compared as far as all are final, before 9"],
    )
    assert json.loads(lmerge("audit", "one", "short", "--clip", "--json").out)["before"] == 9


def test_json_is_the_same_for_programs(lmerge: Lmerge) -> None:
    done = lmerge("audit", "one", "other", "--json", "--most", "2")
    assert (done.code, done.err, done.out.count("\n")) == (1, "", 1)
    document = json.loads(done.out)
    assert document.pop("streams")[1] == {
        "name": "other",
        "events": 4,
        "inserts": 4,
        "adjusts": 0,
        "stables": 0,
        "stable": None,
        "complete": False,
    }
    assert document == {
        "equivalent": False,
        "differences_total": 3,
        "differences": [
            {"payload": "B", "vs": 1, "left": [], "right": [3]},
            {"payload": "A", "vs": 6, "left": [25], "right": [None]},
        ],
    }


@pytest.mark.parametrize("arguments", [("illegal", "one"), ("one", "illegal")])
def test_a_stream_that_is_not_legal_is_named_with_file_and_line_and_exit_2(
    arguments: tuple[str, str], lmerge: Lmerge
) -> None:
    done = lmerge("audit", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.error == (
        "illegal:2: not a legal stream: insert with vs=6 below the stream's own stable(7)"
    )


def test_a_file_that_is_not_of_elements_is_exit_2(lmerge: Lmerge) -> None:
    Path("csv").write_text("a,b\n1,2\n")
    done = lmerge("audit", "one", "csv")
    assert done.code == 2
    assert done.error.startswith("csv:1: not JSON: ")


def test_kafka_that_is_not_there_is_exit_3(lmerge: Lmerge) -> None:
    done = lmerge("audit", "one", "kafka:t", "--bootstrap", "127.0.0.1:1")
    assert (done.code, done.out) == (3, "")
    assert "127.0.0.1:1" in done.error


def test_how_kafka_is_reached_comes_from_a_file_too(lmerge: Lmerge) -> None:
    Path("client.yaml").write_text("kafka:\n  bootstrap: 127.0.0.1:1\n  tls: {ca: none.pem}\n")
    done = lmerge("audit", "one", "kafka:t", "--kafka-config", "client.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.error == (
        "client.yaml:3: kafka.tls.ca: cannot read none.pem: No such file or directory"
    )
    Path("client.yaml").write_text("kafka:\n  bootstrap: 127.0.0.1:1\n")
    done = lmerge("audit", "one", "kafka:t", "--kafka-config", "client.yaml")
    assert (done.code, "127.0.0.1:1" in done.error) == (3, True)


def test_n14_members_that_are_null_meet_ones_that_are_left_out_with_drop_nulls(
    tmp_path: Path, lmerge: Lmerge
) -> None:
    for name, payload in (("written", {"id": 1, "a": None}), ("absent", {"id": 1})):
        line = json.dumps({"op": "insert", "payload": payload, "vs": 1, "ve": 2})
        (tmp_path / name).write_text(line + "\n")
    assert lmerge("audit", "written", "absent").code == 1
    assert lmerge("audit", "written", "absent", "--drop-nulls").code == 0
    assert lmerge("merge", "written", "absent", "-o", "merged", "--drop-nulls").code == 0
    assert lmerge("audit", "merged", "absent").code == 0
    both = (tmp_path / "written").read_text() + (tmp_path / "absent").read_text()
    (tmp_path / "both").write_text(both)
    assert "R3: yes" in lmerge("infer", "both").out
    assert "R3: no" in lmerge("infer", "both", "--drop-nulls").out


def test_strings_that_differ_in_unicode_form_only_meet_with_nfc(
    tmp_path: Path, lmerge: Lmerge
) -> None:
    for name, text in (("composed", "caf\u00e9"), ("decomposed", "cafe\u0301")):
        line = json.dumps({"op": "insert", "payload": text, "vs": 1, "ve": 2})
        (tmp_path / name).write_text(line + "\n")
    assert lmerge("audit", "composed", "decomposed").code == 1
    assert lmerge("audit", "composed", "decomposed", "--nfc").code == 0
    assert lmerge("merge", "composed", "decomposed", "-o", "merged", "--nfc").code == 0
    assert lmerge("audit", "merged", "composed").code == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["one"], "nothing to compare X with: name Y, or give --table"),
        (["one", "--table"], "one: --table needs the output's topic, as kafka:OUTPUT"),
        (["kafka:out", "same", "--table"], "--table compares kafka:OUTPUT with its table"),
        (["one", "same", "--keep", "7d"], "--keep needs --table"),
        (["kafka:out", "--table", "--keep", "7"], "--keep: a duration is a number and a unit"),
    ],
)
def test_what_a_table_is_compared_with_is_its_output_alone(
    lmerge: Lmerge, arguments: list[str], why: str
) -> None:
    done = lmerge("audit", *arguments)
    assert done.code == 2
    assert why in done.err


def test_a_table_is_shown_in_lines_and_as_a_document() -> None:
    wrong = TableDivergence(1, '{"vs":6,"digest":"0"}', 4, "the row is removed, and …")
    found = TableVerdict("kafka:o", "kafka:o.table", 5, 4, 9, 10, [wrong, wrong])
    assert [*audit_shown.table_lines(found, 1)] == [
        "kafka:o.table: whole, 5 rows; 9 records checked by the offsets in their headers",
        "NOT what kafka:o is: 2 divergences",
        '  partition 1 at offset 4, key {"vs":6,"digest":"0"}: the row is removed, and …',
        "  and 1 more (--most shows more)",
        "compared by the events that end at 10 or later",
    ]
    shown = audit_shown.table_document(found, 1)
    assert (shown["matches"], shown["divergences_total"], shown["since"]) == (False, 2, 10)
    assert shown["divergences"] == [
        {"partition": 1, "key": wrong.key, "offset": 4, "why": wrong.why}
    ]
    right = TableVerdict("kafka:o", "kafka:o.table", 5, 4, 9, START, [])
    assert [*audit_shown.table_lines(right, 1)][1:] == [
        "what kafka:o is: all 4 live events, and no other event"
    ]
