"""Generated streams by Spark: the same ones, whatever it is made of; and the command."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.spark.generator.job import generated
from lmerge_service.spark.generator.slices import Presentation
from lmerge_service.spark.generator.stored import presented
from lmerge_service.spark.generator.workload import Workload
from lmerge_service.spark.io.elements import read_elements, write_elements
from lmerge_service.spark.io.places import JsonFiles, ParquetFiles, ReadTopics, WrittenTopic
from lmerge_service.spark.io.schema import ELEMENT
from lmerge_service.tdb import TDB, reconstitute
from lmerge_service.workloads.presentation import Variation
from tests.cli.conftest import Lmerge, lmerge
from tests.offline.streams import write
from tests.spark.generated import check_stables, elements, logical, variations
from tests.spark.test_elements import A_FEW, element, elements_in

__all__ = ("lmerge",)

WORKLOAD = Workload(events=4000, max_gap=10, event_duration=300, payload_bytes=40)
MUCH = Variation(
    provisional=0.3,
    spread=200,
    phantoms=0.1,
    disorder=0.3,
    displacement=400,
    stable_probability=0.02,
)
MADE = Presentation(WORKLOAD, MUCH, "1", block=300)


def as_payload_bytes(stream: list[Any]) -> list[Any]:
    """As `elements_in` has them."""
    return [
        each if isinstance(each, Stable) else type(each)(each.payload.encode(), *_times(each))
        for each in stream
    ]


def _times(each: Any) -> tuple[int, ...]:
    return tuple(getattr(each, name) for name in ("vs", "vold", "ve") if hasattr(each, name))


@pytest.mark.full
def test_the_stream_is_the_same_in_any_number_of_tasks(spark: SparkSession) -> None:
    """J1, byte by byte; and what is made without Spark."""
    wanted = as_payload_bytes(elements(MADE))
    for tasks in (1, 2, 7, 16):
        rows = generated(spark, MADE, tasks=tasks)
        assert set(rows.columns) == {"source", "partition", "offset", *ELEMENT.names}
        found = sorted(rows.collect(), key=lambda row: row.offset)
        assert [row.offset for row in found] == list(range(len(wanted)))
        assert [element(row) for row in found] == wanted


@pytest.mark.full
def test_files_are_in_order_as_they_are_written(spark: SparkSession, tmp_path: Path) -> None:
    wanted = as_payload_bytes(elements(MADE))
    rows = generated(spark, MADE, tasks=5)
    lines, parquet = JsonFiles(str(tmp_path / "lines")), ParquetFiles(str(tmp_path / "parquet"))
    write_elements(rows, lines, order=None)
    assert len([*Path(lines.path).glob("part-*")]) == 5
    assert elements_in(read_elements(spark, lines)) == wanted
    write_elements(rows, parquet, order=None)
    assert elements_in(read_elements(spark, parquet)) == wanted


@pytest.mark.deep
def test_every_partition_of_a_topic_is_a_legal_stream(
    spark: SparkSession, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name("generated")
    sink = WrittenTopic(bootstrap, topic, key=["key"], partitions=3)
    write_elements(generated(spark, MADE, tasks=4), sink, order=["offset"])
    rows = read_elements(spark, ReadTopics(bootstrap, topic))
    events: list[Any] = []
    for partition in range(3):
        stream = reconstitute(elements_in(rows.where(f"partition = {partition}"), "offset"))
        assert len(stream) > 1000
        events += [(each.payload.decode(), each.vs, each.ve) for each in stream]  # type: ignore[attr-defined]
    assert TDB(events) == logical(WORKLOAD)


# Stored streams


def stored(spark: SparkSession, events: Iterable[tuple[Any, int, int]], tasks: int) -> DataFrame:
    schema = "payload string, vs long, ve long"
    return spark.createDataFrame(list(events), schema).repartition(tasks)


def stored_streams() -> st.SearchStrategy[list[tuple[str, int, int]]]:
    """A multiset of events, some of them without end."""
    event = st.tuples(
        st.sampled_from(('"a"', '"b"', '"c"')), st.integers(-20, 20), st.integers(1, 30)
    ).map(lambda drawn: (drawn[0], drawn[1], drawn[1] + drawn[2] if drawn[2] > 3 else INFINITY))
    return st.lists(event, max_size=40)


@pytest.mark.full
@settings(max_examples=A_FEW - 1)
@given(stored_streams(), variations(), st.integers(1, 5))
def test_a_stored_stream_is_presented_legally_and_means_the_same(
    spark: SparkSession, events: list[tuple[str, int, int]], variation: Variation, tasks: int
) -> None:
    """D1 and D2, and the floors of P2."""
    one = presented(stored(spark, events, 3), variation, "s", tasks=tasks)
    stream = elements_in(one, "offset")
    tdb = reconstitute(stream)
    assert TDB((event.payload.decode(), event.vs, event.ve) for event in tdb) == TDB(events)  # type: ignore[attr-defined]
    assert (tdb.stable == INFINITY) == variation.closed
    other = presented(stored(spark, reversed(events), 1), variation, "s", tasks=7 - tasks)
    assert elements_in(other, "offset") == stream
    offsets = [row.offset for row in one.select("offset").orderBy("offset").collect()]
    assert offsets == list(range(len(stream)))
    check_stables(stream, variation)


@pytest.mark.deep
def test_a_stored_stream_of_many_pieces_is_read_in_the_order_of_its_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = [(event.payload, event.vs, event.ve) for event in logical(WORKLOAD)]
    place = JsonFiles(str(tmp_path / "lines"))
    write_elements(presented(stored(spark, events, 2), MUCH, "s", tasks=9), place, order=None)
    stream = elements_in(read_elements(spark, place))
    tdb = reconstitute(stream)
    assert TDB((event.payload.decode(), event.vs, event.ve) for event in tdb) == TDB(events)  # type: ignore[attr-defined]
    assert 50 < sum(isinstance(each, Stable) for each in stream) < 200


# The command


@pytest.mark.full
@pytest.mark.usefixtures("shared_session")
def test_two_presentations_of_the_command_are_equivalent_by_the_audit(
    lmerge: Lmerge, tmp_path: Path
) -> None:
    few = ("--events", "500", "--payload-bytes", "16", "--seed", "3", "--format", "ndjson")
    much = ("--provisional", "0.5", "--phantoms", "0.2", "--stable-freq", "0.1")
    assert lmerge("generate", *few, "--logical", "-o", "logical").code == 0
    for number in ("0", "1"):
        done = lmerge("generate", *few, *much, "--presentation", number, "-o", number)
        assert (done.code, done.out) == (0, "")
        assert done.err == f"{number}: written\n"
    for name in ("logical", "0", "1"):
        parts = sorted(Path(tmp_path, name).glob("part-*"))
        Path(tmp_path, f"{name}.ndjson").write_bytes(b"".join(p.read_bytes() for p in parts))
    for number in ("0", "1"):
        assert lmerge("audit", "logical.ndjson", f"{number}.ndjson").code == 0
    assert Path(tmp_path, "0.ndjson").read_bytes() != Path(tmp_path, "1.ndjson").read_bytes()


@pytest.mark.deep
@pytest.mark.usefixtures("shared_session")
def test_the_command_presents_what_is_stored(lmerge: Lmerge, tmp_path: Path) -> None:
    events: list[Element] = [Insert(b'"a"', 6, INFINITY), Insert(b'"b"', 2, 9), Stable(INFINITY)]
    write(tmp_path / "logical", events)
    much = ("--provisional", "1", "--spread", "3", "--format", "ndjson")
    assert lmerge("generate", "--of", "logical", *much, "-o", "out").err == "out: written\n"
    parts = sorted(Path(tmp_path, "out").glob("part-*"))
    Path(tmp_path, "presented").write_bytes(b"".join(part.read_bytes() for part in parts))
    assert lmerge("audit", "logical", "presented").out.endswith("equivalent\n")
    write(tmp_path / "revised", [Insert(b'"a"', 6, 9), Adjust(b'"a"', 6, 9, 8)])
    done = lmerge("generate", "--of", "revised", "-o", "other")
    assert done.code == 4
    assert done.error.endswith(
        "revised at 44: an adjust, but a logical stream consists of inserts alone"
    )
    assert not Path(tmp_path, "other").exists(), "what was not finished is left"


@pytest.mark.deep
@pytest.mark.usefixtures("shared_session")
def test_the_command_writes_topics(
    lmerge: Lmerge, spark: SparkSession, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name("generated")
    few = ("--events", "200", "--payload-bytes", "16", "--bootstrap", bootstrap)
    assert lmerge("generate", *few, "-o", f"kafka:{topic}").code == 0
    stream = elements_in(read_elements(spark, ReadTopics(bootstrap, topic)))
    assert len(reconstitute(stream)) == 200
    again = lmerge("generate", *few, "-o", f"kafka:{topic}")
    assert (again.code, again.error) == (
        2,
        f"kafka:{topic} holds records already: choose another topic",
    )


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (("--payload-bytes", "3"), "--payload-bytes must be at least 16, got 3"),
        (("--max-gap", "0"), "Invalid value for '--max-gap'"),
        (("--disorder", "1.5"), "Invalid value for '--disorder'"),
        (
            ("--events", "99999999", "--provisional", "1", "--max-gap", "1",
             "--event-duration", "9999999"),
            "events would be under way at once",
        ),
        (("--of", "nowhere"), "there is no file or folder 'nowhere' (kafka:TOPIC?)"),
        (("--payload-bytes", "9999999"), "--payload-bytes must be at most 1048320"),
        (("--partitions", "1001"), "Invalid value for '--partitions'"),
        (("-o", "there"), "there is there already: choose another folder"),
        (("-o", "cut"), "cut is there already and was not finished: remove it, or choose another"),
        (("-o", "file/made"), "file is no folder"),
        (("-o", ""), "the name of a folder is empty"),
        (("-o", "kafka:a b"), "'a b' is no name of a topic"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_in_one_line_before_spark_starts(
    lmerge: Lmerge, tmp_path: Path, wrong: tuple[str, ...], text: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "cut" / "_temporary").mkdir(parents=True)
    (tmp_path / "file").touch()
    done = lmerge("generate", "-o", "new", *wrong)
    assert done.code == 2
    assert text in done.error
