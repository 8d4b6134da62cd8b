"""`lmerge table`: what it prints, its exit codes, and its mistakes in one line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.spark.io.elements import write_elements
from lmerge_service.spark.io.places import WrittenTopic
from tests.cli.conftest import Lmerge, lmerge
from tests.offline.streams import on_the_wire, write
from tests.spark.histories import frame
from tests.spark.test_table import one

__all__ = ("lmerge",)

STREAM: list[Element] = [
    Insert("A", 6, 20),
    Insert("B", 8, INFINITY),
    Adjust("A", 6, 20, 12),
    Stable(11),
]


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    place = tmp_path / "s.ndjson"
    write(place, map(on_the_wire, STREAM))
    return place


@pytest.mark.full
@pytest.mark.usefixtures("shared_session")
def test_a_table_is_made_asked_compacted_and_shown(lmerge: Lmerge, stream: Path) -> None:
    done = lmerge("table", "update", "s.ndjson", "t")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("t: 3 versions, read to offset ")
    assert done.err.endswith(" in all, stable at 11\n")
    assert lmerge("table", "update", "s.ndjson", "t").err.startswith("t: nothing new, 3 versions")
    asked = lmerge("table", "at", "t", "--valid", "10")
    assert asked.out.splitlines() == ['[6, 12) "A"', '[8, infinity) "B"']
    assert asked.err == "2 events; final\n"
    asked = lmerge("table", "at", "t", "--valid", "15", "--most", "1")
    assert asked.out.splitlines() == ['[8, infinity) "B"']
    assert asked.err == "1 events; may change, stable at 11\n"
    first = len(stream.read_bytes().splitlines(keepends=True)[0])
    asked = lmerge("table", "at", "t", "--valid", "15", "--known-offset", f"0:{first}")
    assert asked.out.splitlines() == ['[6, 20) "A"', '[8, infinity) "B"']
    document = json.loads(lmerge("table", "at", "t", "--json", "--valid", "15").out)
    [event] = document.pop("events")
    assert document == {"valid": 15, "final": False, "stable": 11}
    assert event == {
        "payload": "B", "vs": 8, "ve": None, "partition": 0, "known_from": first, "known_to": None,
    }  # fmt: skip
    with stream.open("a") as file:
        file.write('{"op":"stable","vc":null}\n')
    document = json.loads(lmerge("table", "update", "s.ndjson", "t", "--json").out)
    assert (document["records"], document["steps"], document["ended"]) == (1, 1, True)
    done = lmerge("table", "compact", "t", "--retain", "0")
    assert done.err.startswith("t: 0 files made into 0, ")
    shown = lmerge("table", "show", "t").out.splitlines()
    assert shown[0].startswith(f"t: a table of {stream}, 3 versions")
    assert shown[1].endswith("stable at infinity")
    assert [line.split(":")[0].strip() for line in shown[2:]] == ["history", "live"]
    assert json.loads(lmerge("table", "show", "t", "--json").out)["history"]["versions"] == 1
    assert lmerge("table", "at", "t", "--most", "1").err == (
        "2 events, 1 of them not shown (--most shows more)\n"
    )


@pytest.mark.deep
@pytest.mark.usefixtures("shared_session")
def test_a_topic_is_asked_by_the_time_of_its_records(
    lmerge: Lmerge, spark: SparkSession, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name("merged")
    rows = frame(spark, one(Insert('"a"', 1, 9))).drop("timestamp")
    write_elements(rows, WrittenTopic(bootstrap, topic), order=["offset"])
    done = lmerge("table", "update", f"kafka:{topic}", "t", "--bootstrap", bootstrap)
    assert (done.code, done.out) == (0, "")
    early = lmerge("table", "at", "t", "--known", "2001-01-01")
    assert early.out == ""
    assert early.err.startswith("0 events; nothing was known yet: the first record is of 20")
    assert lmerge("table", "at", "t", "--known", "2999-01-01T00:00:00Z").out == '[1, 9) "a"\n'
    assert lmerge("table", "at", "t", "--known", f"{2**50}").out == '[1, 9) "a"\n'


@pytest.mark.full
@pytest.mark.usefixtures("shared_session")
def test_a_stream_that_is_not_legal_ends_with_4_and_its_place(
    lmerge: Lmerge, tmp_path: Path
) -> None:
    elements: list[Element] = [Stable(7), Insert("A", 6, 20)]
    write(tmp_path / "bad", map(on_the_wire, elements))
    done = lmerge("table", "update", "bad", "t")
    assert done.code == 4
    assert "bad-0 at offset 23: not a legal stream: insert with vs=6, ve=20" in done.error


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("update", "nowhere", "t"), "there is no file or folder 'nowhere' (kafka:TOPIC?)"),
        (("update", "kafka:a b", "t"), "'a b' is no name of a topic"),
        (("at", "t"), "t: there is no table (lmerge table update makes one)"),
        (("show", "t"), "t: there is no table (lmerge table update makes one)"),
        (("compact", "t"), "t: there is no table (lmerge table update makes one)"),
        (("at", "t", "--known", "5", "--known-offset", "5"), "give --known or --known-offset"),
        (("at", "s3://bucket/t"), "s3://bucket/t: a table lies in a local folder"),
        (("at", "t", "--valid", f"{2**63}"), "Invalid value for '--valid'"),
        (("update", "folder", "t"), "there is no Parquet in the folder folder"),
        (("update", "folder/data/mine", "folder/data/mine"), "mine is a file: a table is a folder"),
        (("update", "folder/data/mine", "folder"), "folder is no table and holds something else"),
        (("update", "folder/data/mine", "old"), "old is a table in the format before Delta Lake"),
        (("at", "old"), "old is a table in the format before Delta Lake"),
    ],
)
def test_a_mistake_is_reported_in_one_line_without_spark(
    lmerge: Lmerge, tmp_path: Path, command: tuple[str, ...], message: str
) -> None:
    (tmp_path / "folder" / "data").mkdir(parents=True)
    (tmp_path / "old" / "manifests").mkdir(parents=True)
    (tmp_path / "folder" / "data" / "mine").touch()
    done = lmerge("table", *command)
    assert (done.code, done.out) == (2, "")
    assert message in done.error


@pytest.mark.full
@pytest.mark.usefixtures("shared_session", "stream")
def test_what_is_asked_wrongly_is_reported_in_one_line(lmerge: Lmerge) -> None:
    lmerge("table", "update", "s.ndjson", "t")
    for asked, message in (
        (("--known", "soon"), "--known takes milliseconds or a date and time"),
        (("--known", "5"), "have no times: ask by offset what was known"),
        (("--known-offset", "x"), "--known-offset takes an offset, or one by partition"),
        (("--known-offset", "7:1"), "--known-offset: there is no partition 7"),
    ):
        done = lmerge("table", "at", "t", *asked)
        assert (done.code, done.out) == (2, ""), asked
        assert message in done.error
