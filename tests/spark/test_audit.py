"""`lmerge audit --engine spark`: files, folders, Parquet and topics, its report, its refusals."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import encode
from lmerge_service.spark.audit.counting import progress_of
from lmerge_service.spark.audit.findings import Freshness, StreamSummary
from lmerge_service.spark.audit.freshness import freshness_of
from lmerge_service.spark.audit.scanning import scanned
from lmerge_service.spark.audit.screening import delays_of, pieces_of, screened
from lmerge_service.spark.io.elements import read_elements, write_elements
from lmerge_service.spark.io.places import JsonFiles, ParquetFiles, ReadTopics, WrittenTopic
from lmerge_service.spark.io.schema import ORDER
from tests.cli.conftest import LMERGE, Lmerge, Run, lmerge, run
from tests.offline.streams import on_the_wire, write
from tests.service.cluster import Merge
from tests.spark.records import Sent, make_topic, send

__all__ = ("lmerge", "run")

ENDED: list[Element] = [
    Insert("A", 6, 20),
    Insert("B", 7, 9),
    Adjust("A", 6, 20, 25),
    Stable(8),
    Adjust("B", 7, 9, 12),
    Stable(INFINITY),
]
SAME: list[Element] = [Insert("B", 7, 12), Insert("A", 6, 25), Stable(INFINITY)]
OTHER: list[Element] = [
    Insert("B", 7, 12),
    Insert("A", 6, 30),
    Insert("C", 6, 7),
    Insert("D", 11, 12),
    Stable(10),
]
ILLEGAL: list[Element] = [Insert("A", 6, 20), Stable(7), Insert("B", 6, 20), Stable(1)]


@pytest.fixture(autouse=True)
def _shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands take the session of the tests for theirs."""

    @contextmanager
    def shared(*_: Any, **__: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("lmerge_service.spark.session.spark_session", shared)


@pytest.fixture
def audit(lmerge: Lmerge, tmp_path: Path) -> Lmerge:
    for name, elements in {
        "one": ENDED,
        "same": SAME,
        "other": OTHER,
        "illegal": ILLEGAL,
    }.items():
        write(tmp_path / name, map(on_the_wire, elements))
    return lambda *arguments: lmerge("audit", *arguments, "--engine", "spark")


def lines_of(out: str) -> list[str]:
    """The lines, but for the last one, which shows how long it took."""
    *lines, last = out.splitlines()
    assert " elements in " in last
    return lines


def line(path: Path, number: int) -> str:
    """Where a line of a file is, counted from 0."""
    before = path.read_bytes().splitlines(keepends=True)[:number]
    return f"{path} at byte {sum(map(len, before))}"


# Verdicts


@pytest.mark.full
def test_streams_that_mean_the_same_are_equivalent_and_exit_0(audit: Lmerge) -> None:
    done = audit("one", "same", "--html", "page.html")
    assert (done.code, done.err) == (0, "")
    assert lines_of(done.out) == [
        "one: legal, 2 events by 2 inserts, 2 adjusts, 2 stables; complete",
        "same: legal, 2 events by 2 inserts, 0 adjusts, 1 stables; complete",
        (
            "one beside the others in total: 2 inserts of 2, 2 adjusts of 0, 0 removals of 0, "
            "2 stables of 1"
        ),
        "equivalent",
    ]
    assert "Legal and equivalent: 2 streams" in Path("page.html").read_text()


@pytest.mark.full
def test_differences_are_named_with_ends_and_with_who_published_them_where(
    audit: Lmerge, tmp_path: Path
) -> None:
    done = audit("one", "same", "other", "--most", "2")
    assert (done.code, done.err) == (1, "")
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    assert lines_of(done.out)[4:] == [
        "NOT equivalent: they differ in 3 events",
        '  payload "A" vs 6: ve 25 in one, ve 25 in same, ve 30 in other',
        '  payload "C" vs 6: no event in one, no event in same, ve 7 in other',
        "  and 1 more (--most shows more)",
        "compared as they stand: other has not ended",
        f'  "A" vs 6 was last published by one in {line(one, 2)}',
        f'  "A" vs 6 was last published by same in {line(same, 1)}',
        f'  "A" vs 6 was last published by other in {line(other, 1)}',
        f'  "C" vs 6 was last published by other in {line(other, 2)}',
    ]


@pytest.mark.deep
def test_clipped_what_is_final_in_all_is_compared(audit: Lmerge, tmp_path: Path) -> None:
    write(tmp_path / "prefix", map(on_the_wire, ENDED[:4]))
    done = audit("one", "prefix", "--clip")
    assert done.code == 0
    assert lines_of(done.out)[3:] == ["equivalent", "compared as far as all are final, before 8"]


@pytest.mark.deep
def test_json_is_the_same_for_programs(audit: Lmerge, tmp_path: Path) -> None:
    done = audit("one", "other", "--json", "--clip")
    assert (done.code, done.err, done.out.count("\n")) == (1, "", 1)
    document = json.loads(done.out)
    assert document.pop("seconds") > 0
    assert document.pop("streams")[1] == {
        "name": "other",
        "events": 4,
        "inserts": 4,
        "adjusts": 0,
        "stables": 1,
        "stable": 10,
        "complete": False,
        "removals": 0,
        "doubled": 0,
        "refused": 0,
        "left_out": 0,
    }
    assert document == {
        "equivalent": False,
        "legal": True,
        "before": 10,
        "faults": [],
        "differences_total": 1,
        "differences": [
            {
                "payload": "C",
                "vs": 6,
                "left": [],
                "right": [7],
                "where": [[], [line(tmp_path / "other", 2)]],
            },
        ],
    }


@pytest.mark.deep
def test_by_key_an_event_that_is_inserted_again_is_the_same_event(
    audit: Lmerge, tmp_path: Path
) -> None:
    write(tmp_path / "repeated", map(on_the_wire, [*SAME[:2], *SAME[:2], Stable(INFINITY)]))
    done = audit("same", "repeated", "--case", "R3")
    assert done.code == 0
    assert "repeated: legal, 2 events by 4 inserts" in done.out
    assert "  2 of its inserts are of events that it held already" in done.out


# What is not legal


@pytest.mark.full
def test_what_is_not_legal_is_named_and_exit_2(audit: Lmerge, tmp_path: Path) -> None:
    """Each stream's, and a broken chain though the last word is right."""
    broken: list[Element] = [Insert("A", 6, 20), Adjust("A", 6, 21, 25), *SAME[:1], SAME[2]]
    write(tmp_path / "broken", map(on_the_wire, broken))
    done = audit("one", "illegal", "broken")
    assert done.code == 2
    illegal, chain = (line(tmp_path / "illegal", 2), line(tmp_path / "broken", 1))
    assert done.err.splitlines() == [
        f"error: illegal: {illegal}: insert with vs=6 below the stream's own stable(7)",
        f"error: broken: {chain}: adjust of an event [6, 21) that the stream does not hold",
    ]
    assert "one: legal, 2 events" in done.out
    assert "illegal: NOT legal, 2 events" in done.out
    assert lines_of(f"{done.out}0 elements in 0 s")[-1].startswith("not compared")


@pytest.mark.full
def test_a_record_that_is_no_element_is_named_and_exit_2(audit: Lmerge, tmp_path: Path) -> None:
    with Path("one").open("a") as file:
        file.write("junk\n")
    done = audit("same", "one", "--json")
    assert done.code == 2
    where = line(tmp_path / "one", 6)
    assert done.error.startswith(f"one: {where}: not JSON")
    document = json.loads(done.out)
    assert (document["legal"], document["equivalent"]) == (False, None)
    assert document["streams"][1]["refused"] == 1
    [fault] = document["faults"]
    assert (fault["stream"], fault["where"], fault["payload"]) == (1, where, None)


# Other places


@pytest.mark.deep
def test_the_files_of_a_folder_are_one_stream_in_the_order_of_their_names(
    audit: Lmerge, tmp_path: Path
) -> None:
    Path("folder").mkdir()
    write(Path("folder/b"), map(on_the_wire, ENDED[3:]))
    write(Path("folder/a"), map(on_the_wire, ENDED[:3]))
    assert audit("one", "folder").code == 0
    Path("folder/a").rename("folder/c")
    done = audit("one", "folder")
    assert done.code == 2
    where = line(tmp_path / "folder/b", 1)
    assert done.error.startswith(f"folder: {where}: adjust of an event [7, 9)")


@pytest.mark.full
def test_parquet_is_read_as_it_was_written(
    audit: Lmerge, spark: SparkSession, tmp_path: Path, lmerge: Lmerge
) -> None:
    rows = read_elements(spark, JsonFiles(str(tmp_path / "one")))
    write_elements(rows, ParquetFiles(str(tmp_path / "one.parquet")), order=None)
    done = audit("same", "one.parquet")
    assert done.code == 0, done.err
    assert "one.parquet: legal, 2 events by 2 inserts, 2 adjusts, 2 stables" in done.out
    part = next(Path("one.parquet").glob("*.parquet"))
    for parquet in ("one.parquet", str(part)):
        done = lmerge("audit", "one", parquet)
        assert done.code == 2
        assert done.error == f"{parquet} is Parquet, which --engine spark reads"


@pytest.mark.full
def test_rows_without_an_order_are_refused(
    audit: Lmerge, spark: SparkSession, tmp_path: Path
) -> None:
    rows = read_elements(spark, JsonFiles(str(tmp_path / "one"))).drop("offset")
    write_elements(rows, ParquetFiles(str(tmp_path / "loose")), order=None)
    done = audit("one", "loose")
    assert (done.code, done.out) == (2, "")
    assert done.error.startswith("6 rows have no offset, so that their order is unknown")


@pytest.mark.deep
def test_rows_that_are_there_twice_are_refused(
    audit: Lmerge, spark: SparkSession, tmp_path: Path
) -> None:
    rows = read_elements(spark, JsonFiles(str(tmp_path / "one")))
    for _ in range(2):
        write_elements(rows, ParquetFiles(str(tmp_path / "twice")), order=None, mode="append")
    done = audit("one", "twice")
    assert (done.code, done.out) == (2, "")
    assert "they are there twice" in done.error


@pytest.mark.deep
@pytest.mark.parametrize("wrong", ["'2' AS rule", "case when op = 'stable' then 7L end AS vs"])
def test_a_row_of_parquet_that_is_no_element_is_reported(
    wrong: str, audit: Lmerge, spark: SparkSession, tmp_path: Path
) -> None:
    rows = read_elements(spark, JsonFiles(str(tmp_path / "one")))
    write_elements(rows, ParquetFiles(str(tmp_path / "good")), order=None)
    good = spark.read.parquet(str(tmp_path / "good"))
    columns = [wrong if each == wrong.split()[-1] else each for each in good.columns]
    good.selectExpr(*columns).write.parquet(str(tmp_path / "bad"))
    done = audit("one", "bad")
    assert (done.code, done.out) == (4, "")
    assert "has a row that is no element" in done.error


# Topics


def sent(elements: Sequence[Element], **options: Any) -> Iterator[Sent]:
    for each in elements:
        yield Sent(encode(on_the_wire(each)), **options)


@pytest.mark.full
def test_topics_of_any_width_are_compared_with_files(
    audit: Lmerge,
    bootstrap: str,
    topic_name: Callable[..., str],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    wide, narrow = topic_name("wide"), topic_name("narrow")
    rows = read_elements(spark, JsonFiles(str(tmp_path / "one")))
    write_elements(rows, WrittenTopic(bootstrap, wide, partitions=3), order=ORDER)
    make_topic(bootstrap, narrow)
    send(bootstrap, narrow, sent([Insert("A", 1, 2), Stable(9)]))
    headers = incarnation_headers(1)
    send(bootstrap, narrow, sent(SAME, headers=headers))
    done = audit(f"kafka:{wide}", f"kafka:{narrow}", "one", "--bootstrap", bootstrap)
    assert (done.code, done.err) == (0, "")
    lines = lines_of(done.out)
    assert lines[0].startswith(f"kafka:{wide}: legal, 2 events by 2 inserts, 2 adjusts, 6 stables")
    assert lines[2] == "  2 records of older incarnations are left out"
    assert any(each.startswith(f"kafka:{wide} had 2 events later than the first") for each in lines)


@pytest.mark.full
def test_a_topic_that_is_correct_from_some_time_on_only_is_compared_from_then_on(
    audit: Lmerge, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    """It lacks what ended before, which is no difference."""
    late = topic_name("late")
    make_topic(bootstrap, late)
    send(bootstrap, late, sent([Insert("A", 1, 2), Stable(9)]))
    now: list[Element] = [Insert("A", 6, 25), Insert("Z", 1, 19), Stable(22)]
    send(bootstrap, late, sent(now, headers=incarnation_headers(1, 20)))
    done = audit(f"kafka:{late}", "one", "--clip", "--bootstrap", bootstrap, "--json")
    found = json.loads(done.out)
    assert (done.code, found["since"], found["before"]) == (0, 20, 22)
    done = audit(f"kafka:{late}", "other", "--bootstrap", bootstrap)
    assert done.code == 1
    assert '  payload "A" vs 6: ve 25 in kafka:' in done.out
    assert "compared by the events that end at 20 or later" in done.out
    done = audit(f"kafka:{late}", "other", "--clip", "--bootstrap", bootstrap)
    assert (done.code, done.err) == (
        2,
        "error: nothing can be compared: all are known from 20 on only, and final before 10 only\n",
    )


def _all_trimmed(status: Any) -> bool:
    logs = [each["log"] for each in status["tasks"]]
    return len(logs) == 2 and all(each is not None and each["begins"] > 5 for each in logs)


@pytest.mark.full
@pytest.mark.timeout(900)  # a worker, and two audits
def test_an_output_that_has_lost_its_beginning_is_audited_from_a_snapshot_on(
    audit: Lmerge, run: Run, bootstrap: str, tmp_path: Path
) -> None:
    """As an audit without Spark does it, from the same time on."""
    merge = Merge(bootstrap, tmp_path)
    output = {"topic": merge.output, "partitions": 2, "keep": "1s"}
    merge.extra = {"snapshot_seconds": 0.2, "output": output}
    merge.write()
    live = [Insert(b'"%d"' % number, number, 100 + number) for number in range(20)]
    names = [f"kafka:{topic}" for topic in (merge.output, merge.topics["a"])]
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [*live, Adjust(b'"3"', 3, 103, 3), Stable(110)])
        worker.wait(_all_trimmed, "both partitions to forget")
        merge.publish("a", [Insert(b'"new"', 111, 140)])
        merge.publish("b", [Insert(b'"wrong"', 120, 130)])
        worker.wait(lambda status: status["output"]["inserts"] == 22, "what is new and wrong")
        assert worker.terminate() == 0  # it would go on to forget what is read
    with_spark = audit(*names, "--bootstrap", bootstrap)
    assert (with_spark.code, with_spark.err) == (1, "")
    assert re.search(r"it begins with 1[012] live events of a snapshot", with_spark.out)
    for line in (  # the two that came last are in the snapshot or behind it
        f"{names[0]}: legal, 12 events by ",
        "NOT equivalent: they differ in 1 events",
        "compared by the events that end at 110 or later",
        f'  payload "wrong" vs 120: ve 130 in {names[0]}',
    ):
        assert line in with_spark.out
    assert with_spark.out.count(": ve ") == 1
    plain = run("audit", *names, "--bootstrap", bootstrap, "--json")
    found = json.loads(plain.stdout)
    assert (plain.returncode, found["since"], found["differences_total"]) == (1, 110, 1)


@pytest.mark.deep
def test_what_is_not_legal_in_a_topic_is_named_by_its_offset(
    audit: Lmerge, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name()
    make_topic(bootstrap, topic)
    send(bootstrap, topic, sent([*SAME, Insert("A", 1, 2)]))
    done = audit("one", f"kafka:{topic}", "--bootstrap", bootstrap)
    assert done.code == 2
    assert done.error.startswith(f"kafka:{topic}: {topic}-0 at offset 3: insert with vs=1 below")


@pytest.mark.deep
def test_a_partition_without_records_holds_its_topic_back(
    audit: Lmerge, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name()
    make_topic(bootstrap, topic, 2)
    send(bootstrap, topic, sent(SAME))
    done = audit("same", f"kafka:{topic}", "--bootstrap", bootstrap)
    assert "1 stables; not ended, stable at -infinity" in done.out
    assert done.code == 0


@pytest.mark.deep
def test_parquet_of_several_topics_is_no_stream(
    audit: Lmerge,
    bootstrap: str,
    topic_name: Callable[..., str],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    topics = [topic_name(), topic_name()]
    for topic in topics:
        make_topic(bootstrap, topic)
        send(bootstrap, topic, sent(SAME))
    both = read_elements(spark, ReadTopics(bootstrap, topics))
    write_elements(both, ParquetFiles(str(tmp_path / "both")), order=None)
    done = audit("same", "both")
    assert (done.code, done.out) == (2, "")
    assert done.error.startswith("both: holds several streams (")


# Mistakes


def test_mistakes_end_in_one_line(
    audit: Lmerge,
    lmerge: Lmerge,
    bootstrap: str,
    topic_name: Callable[..., str],
    tmp_path: Path,
) -> None:
    missing = f"kafka:{topic_name()}"
    (tmp_path / "empty").mkdir()
    for arguments, code, error in (
        (("one", "nowhere"), 2, "cannot read nowhere: No such file or directory"),
        (("one", "-"), 2, "standard input is for --engine python: Spark reads files"),
        (("one", "empty"), 2, "there is no file in the folder empty"),
        (
            ("one", missing, "--bootstrap", bootstrap),
            2,
            f"{missing}: there is no such topic at {bootstrap}",
        ),
        (("one", "same", "--html", "no/page"), 2, "cannot write no/page: there is no folder no"),
    ):
        done = audit(*arguments)
        assert (done.code, done.out, done.error) == (code, "", error)
    for option in (("--html", "page"), ("--case", "R3")):
        done = lmerge("audit", "one", "same", *option)
        assert done.code == 2
        assert done.error.endswith("needs --engine spark")


def test_kafka_that_is_not_there_is_exit_3(audit: Lmerge) -> None:
    done = audit("one", "kafka:t", "--bootstrap", "127.0.0.1:1")
    assert (done.code, done.out) == (3, "")
    assert "127.0.0.1:1" in done.error


@pytest.mark.deep
def test_as_a_process_with_a_session_of_its_own(run: Run, tmp_path: Path) -> None:
    for name, elements in {"one": ENDED, "same": SAME}.items():
        write(tmp_path / name, map(on_the_wire, elements))
    arguments = ("audit", "one", "same", "--engine", "spark", "--html", "page.html")
    lenient = ("env", "-u", "PYTHONWARNINGS", *LMERGE)  # PySpark's own processes leave files open
    done = run(*arguments, "--driver-memory", "512m", command=lenient)
    assert (done.returncode, done.stderr) == (0, "")
    assert "equivalent" in done.stdout
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


# What is measured


def rows_of(spark: SparkSession, rows: Sequence[tuple[Any, ...]]) -> Any:
    return spark.createDataFrame(
        rows,
        "stream int, partition int, place long, ms long, op string, payload string, vs long, "
        "vold long, ve long, vc long",
    ).selectExpr("*", "timestamp_millis(ms) AS timestamp", "0L AS incarnation", "place AS slice")


def screen_of(spark: SparkSession, rows: Sequence[tuple[Any, ...]], streams: int) -> Any:
    return screened(scanned(rows_of(spark, rows), ()), streams, pieces=2)


@pytest.mark.full
def test_freshness_is_from_the_first_of_the_others_to_the_first_of_the_output(
    spark: SparkSession,
) -> None:
    def insert(stream: int, payload: str, ms: int, vs: int = 1) -> tuple[Any, ...]:
        return (stream, 0, ms, ms, "insert", payload, vs, None, 9, None)

    rows = [
        insert(0, "a", 1_040),
        insert(1, "a", 1_000),
        insert(2, "a", 1_020),
        insert(0, "a", 9_000),  # again
        insert(0, "b", 2_000),
        insert(1, "b", 2_003),
        insert(0, "c", 100_000, vs=2),
        insert(2, "c", 26_088, vs=2),
        insert(1, "d", 500),
        insert(0, "e", 500),
        (1, 0, 1, 1, "adjust", "b", 1, 9, 8, None),
    ]
    fresh = freshness_of(delays_of(screen_of(spark, rows, 3)))
    assert fresh == Freshness([(-3, 1), (40, 1), (73_900, 1)], alone=1)
    assert [fresh.quantile(q) for q in (0.1, 0.5, 0.99, 1.0)] == [-3, 40, 73_900, 73_900]


@pytest.mark.full
def test_progress_is_the_lowest_stable_of_the_partitions_over_time(spark: SparkSession) -> None:
    rows = [
        (0, 0, 1, 10, "insert", "a", 1, None, 9, None),
        (0, 0, 2, 20, "stable", None, None, None, None, 5),
        (0, 1, 1, 30, "stable", None, None, None, None, 3),
        (0, 1, 2, 40, "insert", "b", 4, None, 9, None),
    ]
    [first, none] = progress_of(pieces_of(screen_of(spark, rows, 2)), 2)
    assert first.timed
    assert list(first.at) == [10, 20, 30, 40]
    assert list(first.elements) == [1, 2, 3, 4]
    assert list(first.stables)[2:] == [3, 3]
    assert not none.at


def test_what_a_key_publishes_twice_is_one_event_in_r3() -> None:
    assert StreamSummary(inserts=5, removals=1, doubled=2).events == 4
    assert StreamSummary(inserts=5, removals=1, doubled=2, keyed=True).events == 2
