"""Parquet as a checkpoint, read without Spark: what the oracle has, from its time on, or a line."""

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lmerge_service.cli.checkpoints import checkpoint_in
from lmerge_service.elements import INFINITY, START, Adjust, Insert, Stable
from lmerge_service.errors import ConfigurationError, LMergeError
from lmerge_service.formats.bulk import Rule
from lmerge_service.offline.checkpoint import Checkpoint
from lmerge_service.spark.io.elements import write_elements
from lmerge_service.spark.io.places import ParquetFiles
from lmerge_service.spark.io.recorded import recorded
from lmerge_service.spark.table import update_table
from lmerge_service.tdb import TDB, reconstitute
from tests.spark.histories import PARQUET, Record, frame, history, rows_of, store

STREAM = [
    Record(0, 0, 0, 0, Insert('"p"', 1, 5)), Record(1, 0, 0, 0, Insert('"s"', 3, 6)),
    Record(0, 3, 0, 0, Insert('"q"', 2, 9)), Record(1, 1, 0, 0, Stable(4)),
    Record(0, 4, 0, 0, Stable(7)), Record(0, 9, 0, 0, Adjust('"q"', 2, 9, 8)),
]  # fmt: skip
BEGUN = [Insert(b'"p"', 1, 5), Insert(b'"q"', 2, 8), Insert(b'"s"', 3, 6), Stable(4)]


def checkpoint_of(path: Path) -> Checkpoint:
    return checkpoint_in(str(path), nfc=False)


def changed(path: Path, **columns: object) -> None:
    """A file of STREAM in which columns are others: of each row, or its values."""
    rows = pa.Table.from_pylist(rows_of(STREAM), PARQUET)
    for name, values in columns.items():
        at, kind = rows.schema.get_field_index(name), rows.schema.field(name).type
        same = [values] * len(rows)
        column = values if isinstance(values, pa.Array) else pa.array(same, kind)
        rows = rows.set_column(at, name, column)
    pq.write_table(rows, path)


@pytest.mark.parametrize("seed", range(30))
def test_it_is_what_the_oracle_has_of_the_same_prefix(seed: int, tmp_path: Path) -> None:
    """Of several partitions, in files of any order, of a replica that may have started over."""
    random = Random(seed)
    records = history(seed, random.randint(1, 3), restarting=seed % 3 == 0)
    kept = {each: random.randint(1, 60) for each in {record.partition for record in records}}
    records = [each for each in records if each.offset <= kept[each.partition]]
    latest = max((each.incarnation for each in records), default=0)
    streams = {
        number: reconstitute(
            each.element
            for each in records
            if (each.partition, each.incarnation) == (number, latest)
        )
        for number in {each.partition for each in records}
    }
    random.shuffle(records)
    for at in range(0, len(records), 40):
        store(records[at : at + 40], tmp_path / "f")
    stable = min((each.stable for each in streams.values()), default=START)
    if stable in (START, INFINITY):
        with pytest.raises(ConfigurationError, match=r"has no stable|has ended|no Parquet|cannot"):
            checkpoint_of(tmp_path / "f")
        return
    found = checkpoint_of(tmp_path / "f")
    assert (found.stable, found.correct_from) == (stable, stable)
    whole = TDB(event for each in streams.values() for event in each)
    held = [(each.payload.decode(), each.vs, each.ve) for each in found.events]  # type: ignore[attr-defined]
    assert TDB(held) == TDB(each for each in whole if each.ve >= stable)


def test_a_replica_that_started_over_is_correct_from_its_time_on(tmp_path: Path) -> None:
    changed(tmp_path / "f", joining_at=6)
    found = checkpoint_of(tmp_path / "f")
    assert (found.stable, found.correct_from, len(found.events)) == (4, 6, 3)


@pytest.mark.full
@pytest.mark.usefixtures("shared_session")
def test_what_spark_has_written_and_its_table_are_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream, table = tmp_path / "f", tmp_path / "t"
    write_elements(frame(spark, STREAM), ParquetFiles(str(stream)), order=None)
    update_table(spark, ParquetFiles(str(stream)), str(table))
    for place in (stream, table):
        found = checkpoint_of(place)
        assert (list(found.beginning()), found.correct_from) == (BEGUN, 4)
        with pytest.raises(ConfigurationError, match="1-nfc"):
            checkpoint_in(str(place), nfc=True)
        for file in (*place.glob("*.parquet"), *place.glob("state=live/*.parquet")):
            damaged_anywhere_is_refused(file, place)
    last = max(table.glob("_delta_log/*.json"))
    last.write_bytes(last.read_bytes()[:-9])
    with pytest.raises(ConfigurationError, match=r"^reading \S+: [^\n]*$"):
        checkpoint_of(table)


def damaged_anywhere_is_refused(file: Path, place: Path) -> None:
    """Or is without effect: of what is not looked at there is no checksum."""
    whole, was = file.read_bytes(), list(checkpoint_of(place).beginning())
    tried = refused = unnoticed = 0
    for at in range(0, len(whole), len(whole) // 20):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :]):
            file.write_bytes(damaged)
            try:
                found = checkpoint_of(place)
            except LMergeError as error:
                refused += (error.exit_code, str(error).count("\n")) == (2, 0)
            else:
                unnoticed += list(found.beginning()) != was
            tried += 1
    assert (unnoticed, refused > tried / 2) == (0, True)
    file.write_bytes(whole)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"op": "upsert"}, "the row at offset 0 of partition 0 is no element by rule 1"),
        (
            {"payload": pa.nulls(6)},
            "f has payload as null and not string, so it was not written by",
        ),
        ({"vc": 7}, "the row at offset 0 of partition 0 is no element by rule 1"),
        ({"rule": "1-nfc"}, "the row at offset 0 of partition 0 is no element by rule 1"),
        ({"offset": 3}, "offset 3 of partition 0 is there twice"),
        ({"offset": pa.nulls(6, pa.int64())}, "f has rows without partition, offset or inc"),
        ({"source": pa.array([*"tttttu"])}, "f has several streams, not one"),
        ({"ve": pa.array([5, 6, 2, None, None, 8])}, "partition 0 at offset 3: an insert needs"),
        ({"vold": pa.array([None] * 5 + [11])}, "partition 0 at offset 9: adjust of an event"),
    ],
)
def test_what_is_no_stream_is_refused_with_its_place(
    columns: dict[str, object], why: str, tmp_path: Path
) -> None:
    changed(tmp_path / "f", **columns)
    with pytest.raises(LMergeError, match=why) as raised:
        checkpoint_of(tmp_path / "f")
    assert raised.value.exit_code == 2


def test_other_parquet_and_other_folders_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "f.parquet")
    with pytest.raises(ConfigurationError, match="has no column source, so it was not written"):
        checkpoint_of(tmp_path / "f.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="it is a folder, not an element file"):
        checkpoint_of(tmp_path / "empty")
    store(STREAM, tmp_path / "streamed")
    (tmp_path / "streamed" / "_spark_metadata").mkdir()
    with pytest.raises(ConfigurationError, match="written by a streaming query"):
        recorded(str(tmp_path / "streamed"), Rule())
