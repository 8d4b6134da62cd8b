"""The table of a stream: every answer is the oracle's, whatever was killed, compacted, repeated."""

import asyncio
import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.bulk import Rule
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.spark.io.elements import write_elements
from lmerge_service.spark.io.places import JsonFiles, ParquetFiles, ReadTopics, WrittenTopic
from lmerge_service.spark.table import compact, known_at, true_at, update_table
from lmerge_service.spark.table.delta import created, existing, newest, writing
from lmerge_service.spark.table.progress import Progress
from lmerge_service.spark.table.read import Known, answer
from lmerge_service.spark.table.versions import HISTORY, LIVE
from lmerge_service.tdb import TDB, Event
from tests.spark.histories import (
    EPOCH,
    Record,
    frame,
    history,
    known_by_offset,
    known_by_time,
    store,
    true_of,
)
from tests.spark.records import Sent, make_topic, send

A_FEW = max(1, settings().max_examples // 50)
"""Each makes a table of thirty streams in several updates."""


class Killed(BaseException):
    """Stands for the end of the process: nothing in the product catches it."""


def tdb_of(batches: Any) -> TDB:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return TDB((row["payload"], row["vs"], row["ve"]) for row in rows)


def by_arrow(path: str, valid: int | None, known: Known = None) -> TDB:
    return tdb_of(answer(path, valid, known)[1])


def by_spark(rows: DataFrame) -> TDB:
    return TDB((row.payload, row.vs, row.ve) for row in rows.collect())


class Stored:
    """A stream in Parquet, which grows, and its table."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.source = ParquetFiles(str(folder / "stream"))
        self.path = str(folder / "table")
        self.records: list[Record] = []

    def add(self, records: list[Record]) -> None:
        self.records += records
        store(records, Path(self.source.path))

    def grow(self, steps: int) -> None:
        """In each an event, which the next one finds final."""
        for turn in range(steps):
            event = Insert(f'"{turn}"', 10 * turn, 10 * turn + 5)
            self.add(one(event, Stable(10 * turn + 10), since=2 * turn))
            self.update()

    def update(self, step: int = 10**6) -> Any:
        return update_table(self.spark, self.source, self.path, step=step)


@pytest.fixture
def stored(spark: SparkSession, tmp_path: Path) -> Stored:
    return Stored(spark, tmp_path)


def one(
    *elements: Element, partition: int = 0, incarnation: int = 0, since: int = 0
) -> list[Record]:
    return [
        Record(partition, since + at, EPOCH + since + at, incarnation, each)
        for at, each in enumerate(elements)
    ]


# Answers


def moments(rng: Random, records: list[Record]) -> list[tuple[Known, TDB]]:
    """Questions about what was known, with their answers."""
    ends: dict[int, int] = {}
    for each in records:
        ends[each.partition] = each.offset
    asked: list[tuple[Known, TDB]] = [(None, known_by_offset(records, ends))]
    for _ in range(10):
        offsets = {at: rng.randint(-1, end + 1) for at, end in ends.items() if rng.random() < 0.9}
        if offsets:
            asked.append((offsets, known_by_offset(records, offsets)))
        time = EPOCH + rng.randint(-3, 80)
        asked.append((time, known_by_time(records, time)))
    return asked


def check_answers(rng: Random, stored: Stored) -> None:
    for known, tdb in moments(rng, stored.records):
        for valid in (None, rng.randint(-8, 50), rng.randint(0, 30)):
            found = by_arrow(stored.path, valid, known)
            assert found == true_of(tdb, valid), (valid, known)


@pytest.mark.full
@settings(max_examples=A_FEW)
@given(st.integers(0, 2**32), st.booleans())
def test_every_answer_is_that_of_the_prefix_after_kills_and_compactions(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int, restarting: bool
) -> None:
    """A1, V1, C1, D1, wherever it is killed."""
    rng = Random(seed)
    stored = Stored(spark, tmp_path_factory.mktemp("table"))
    records = history(seed, 30, restarting=restarting)
    cuts = {each.partition: rng.randint(0, 40) for each in records}
    stored.add([each for each in records if each.offset < cuts[each.partition]] or records[:1])
    with killed_once(rng):
        stored.update()
    stored.update()
    check_answers(rng, stored)
    there = set(stored.records)
    stored.add([each for each in records if each not in there] or one(partition=99))
    with killed_once(rng):
        stored.update(step=rng.choice((100, 10**6)))
    stored.update()
    check_answers(rng, stored)
    with killed_once(rng):
        compact(spark, stored.path, retain=0)
    compact(spark, stored.path, retain=0)
    check_answers(rng, stored)
    known, tdb = rng.choice(moments(rng, stored.records))
    assert by_spark(known_at(spark, stored.path, known)) == tdb
    assert by_spark(true_at(spark, stored.path, 12, known)) == true_of(tdb, 12)


class killed_once:  # noqa: N801 (as a function)
    """What runs within ends before or after its next step is committed, or ends of itself."""

    def __init__(self, rng: Random, when: str | None = None) -> None:
        self._when = when or rng.choice(("before", "after", "never"))
        self._save = DataFrameWriter.save

    def __enter__(self) -> None:
        def save(writer: DataFrameWriter, path: str) -> None:
            if self._when == "before":
                self._save(writer.format("parquet").mode("append"), path)  # no commit names them
                raise Killed
            self._save(writer, path)
            if self._when == "after":
                raise Killed

        DataFrameWriter.save = save  # type: ignore[assignment, method-assign]

    def __exit__(self, kind: Any, *_: object) -> bool:
        DataFrameWriter.save = self._save  # type: ignore[method-assign]
        return kind is Killed


@pytest.mark.full
def test_what_is_true_before_the_stable_point_stays_true(stored: Stored) -> None:
    """A2: the same events, whose ends may move behind it; per partition."""

    def true() -> list[set[Any]]:
        return [{each[:2] for each in by_arrow(stored.path, t)} for t in range(3)]

    a, b = '"a"', '"b"'
    stored.add(one(Insert(a, 1, 9), Stable(5)) + one(Insert(b, 2, 4), partition=1))
    assert stored.update().table.stable < 0
    stored.add(one(Stable(3), partition=1, since=1))
    assert stored.update().table.stable == 3
    before = true()
    stored.add(one(Adjust(a, 1, 9, 5), Insert(a, 6, 7), since=2))
    stored.add(one(Insert(b, 3, 8), Stable(INFINITY), partition=1, since=2))
    assert stored.update().table.stable == 5
    assert true() == before == [set(), {(a, 1)}, {(a, 1), (b, 2)}]
    stored.add(one(Stable(INFINITY), since=4))
    assert stored.update().table.stable == INFINITY


@pytest.mark.full
def test_what_is_final_becomes_history_and_is_not_read_again(stored: Stored) -> None:
    """V2: live are what may still be adjusted, and what the last step has declared final."""
    stored.add(one(*(Insert(f'"{n}"', n, n + 1) for n in range(100)), Stable(90)))
    assert stored.update().table.size(LIVE).versions == 100
    stored.add(one(Stable(91), since=101))
    table = stored.update().table
    assert table.size(HISTORY).versions == 89  # ve < 90
    assert table.size(LIVE).versions == 11


# Who writes and who reads


@pytest.mark.full
def test_a_reader_keeps_what_it_has_begun_to_read(stored: Stored, spark: SparkSession) -> None:
    """A3, C2."""
    stored.grow(3)
    rows = known_at(spark, stored.path)
    assert compact(spark, stored.path).rewritten == 2
    stored.add(one(Insert('"x"', 30, 40), since=6))
    stored.update()
    assert len(by_spark(rows)) == 3
    assert len(by_arrow(stored.path, None)) == 4


@pytest.mark.full
def test_an_earlier_version_that_is_restored_has_its_progress(
    stored: Stored, spark: SparkSession
) -> None:
    """D1, with what Delta Lake itself offers: time travel, RESTORE."""
    stored.grow(1)
    version = existing(stored.path).version
    stored.add(one(Insert('"x"', 10, 15), Stable(20), since=2))
    stored.update()
    before = by_arrow(stored.path, None)
    earlier = spark.read.format("delta").option("versionAsOf", version).load(stored.path)
    assert earlier.where("state != 'progress'").count() == 1
    spark.sql(f"RESTORE delta.`{stored.path}` TO VERSION AS OF {version}")
    assert len(by_arrow(stored.path, None)) == 1
    assert stored.update().records == 2
    assert by_arrow(stored.path, None) == before


@pytest.mark.full
def test_spark_and_deltalake_read_a_table_with_nothing_of_ours(
    stored: Stored, spark: SparkSession
) -> None:
    stored.add(one(Insert('"a"', 7, 40), Insert('"b"', 8, 12), Stable(10)))
    stored.update()
    plain = spark.read.format("delta").load(stored.path)
    now = plain.where(f"vs <= 12 AND ve > 12 AND known_to = {INFINITY}")
    assert [row.payload for row in now.collect()] == ['"a"']
    rows = DeltaTable(stored.path).to_pyarrow_table(
        filters=[("vs", "<=", 12), ("ve", ">", 12), ("known_to", "=", INFINITY)],
        columns=["payload"],
    )
    assert rows.column("payload").to_pylist() == ['"a"']


@pytest.mark.full
def test_a_second_writer_ends_with_an_error_and_changes_nothing(stored: Stored) -> None:
    path = stored.path
    created(path, "t", None, "1")
    fresh = multiprocessing.get_context("spawn")
    entered, ended = fresh.Event(), fresh.Event()
    writer = fresh.Process(target=hold, args=(path, entered, ended))
    writer.start()
    entered.wait()
    stored.add(one(Insert('"a"', 1, 9)))
    for act in (stored.update, lambda: compact(stored.spark, path)):
        with pytest.raises(StateError, match=r"^\S+table: another process is writing to the table"):
            act()
    ended.set()
    writer.join()
    assert existing(path).version == 0
    with writing(path):
        pass


def hold(path: str, entered: Any, ended: Any) -> None:
    with writing(path):
        entered.set()
        ended.wait()


@pytest.mark.full
def test_after_a_compaction_few_rows_are_read_for_an_answer(
    stored: Stored, spark: SparkSession
) -> None:
    """An event without end in every step makes all files candidates before, one after."""
    for turn in range(4):
        events = [Insert(f'"{n}"', n, n + 2) for n in range(100 * turn, 100 * turn + 100)]
        forever = Insert(f'"forever {turn}"', 100 * turn, INFINITY)
        more = (forever, Adjust(forever.payload, forever.vs, INFINITY, 10**6))
        stored.add(one(*events, *more, Stable(100 * turn + 100), since=1000 * turn))
        stored.update()
    before = by_arrow(stored.path, 350)
    assert compact(spark, stored.path, retain=0).made == 1
    assert by_arrow(stored.path, 350) == before


@pytest.mark.full
def test_what_a_dead_writer_left_is_removed_and_nothing_else(
    stored: Stored, spark: SparkSession
) -> None:
    stored.add(one(Insert('"a"', 1, 9), Stable(5)))
    with killed_once(Random(0), "before"):
        stored.update()
    orphans = set(Path(stored.path).rglob("*.parquet"))
    assert orphans
    stored.update()
    compact(spark, stored.path)
    assert orphans <= set(Path(stored.path).rglob("*.parquet")), "it may belong to a living one"
    compact(spark, stored.path, retain=0)
    assert not orphans & set(Path(stored.path).rglob("*.parquet"))
    assert len(by_arrow(stored.path, None)) == 1


# What a table is not made of


@pytest.mark.full
@pytest.mark.parametrize(
    ("published", "message"),
    [
        (
            [Stable(7), Insert('"a"', 6, 9)],
            (
                r"t-0 at offset 1: not a legal stream: insert with vs=6, ve=9 below the stream's "
                r"own stable\(7\)"
            ),
        ),
        (
            [Insert('"a"', 6, 9), Stable(7), Stable(8), Adjust('"a"', 6, 9, 7)],
            (
                r"t-0 at offset 3: not a legal stream: adjust with vs=6, vold=9, ve=7 below the "
                r"stream's own stable\(8\)"
            ),
        ),
        (
            [Insert('"a"', 6, 9), Adjust('"a"', 6, 10, 9)],
            (
                r"t-0 at offset 1: not a legal stream: adjust of an event that the stream does not "
                r"hold, vs=6, vold=10"
            ),
        ),
        (
            [
                Insert('"a"', 6, 9),
                Adjust('"a"', 6, 9, 10),
                Adjust('"a"', 6, 9, 8),
                Insert('"a"', 6, 9),
            ],
            (
                r"t-0 at offset 2: not a legal stream: adjust of an event that the stream does not "
                r"hold, vs=6, vold=9"
            ),
        ),
    ],
)
def test_a_stream_that_is_not_legal_is_refused_with_its_place(
    stored: Stored, published: list[Element], message: str
) -> None:
    stored.add(one(*published))
    message = message.replace("t-0", r"\S+stream-0")
    with pytest.raises(StateError, match=rf"^updating \S+table: {message}$"):
        stored.update()
    assert existing(stored.path).progress == ()


@pytest.mark.full
def test_a_record_that_is_no_element_is_refused_with_its_place(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "s.ndjson").write_bytes(b'{"op":"stable","vc":1}\npoison\n')
    with pytest.raises(StateError, match=r"s\.ndjson-0 at offset 23: .*not JSON"):
        update_table(spark, JsonFiles(str(tmp_path / "s.ndjson")), str(tmp_path / "table"))


@pytest.mark.full
def test_a_table_is_of_one_stream_by_one_rule(
    stored: Stored, spark: SparkSession, tmp_path: Path
) -> None:
    stored.add(one(Insert('"a"', 1, 9)))
    stored.update()
    other = ParquetFiles(str(tmp_path / "other"))
    write_elements(frame(spark, one(Stable(1))), other, order=None)
    with pytest.raises(ConfigurationError, match=r"^\S+table is a table of \S+stream, not of"):
        update_table(spark, other, stored.path)
    both = frame(spark, one(Stable(1)))
    write_elements(both.replace("t", "u", ["source"]), other, order=None, mode="append")
    with pytest.raises(ConfigurationError, match=r"a table is made of one stream, not of several$"):
        update_table(spark, other, str(tmp_path / "new"))
    with pytest.raises(ConfigurationError, match=r"^a,b: a table is made of one topic$"):
        update_table(spark, ReadTopics("127.0.0.1:1", ["a", "b"]), str(tmp_path / "new"))
    with pytest.raises(ConfigurationError, match=r"by rule 1, not 1-nfc \(nfc, drop_nulls\)$"):
        update_table(spark, stored.source, stored.path, rule=Rule(nfc=True))
    with pytest.raises(ConfigurationError, match=r"by rule 1, not 1-no-nulls \(nfc, drop_nulls\)$"):
        update_table(spark, stored.source, stored.path, rule=Rule(drop_nulls=True))


@pytest.mark.full
def test_without_record_times_only_offsets_are_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "s.ndjson").write_bytes(b'{"op":"insert","payload":1,"vs":1,"ve":2}\n')
    path = str(tmp_path / "table")
    update_table(spark, JsonFiles(str(tmp_path / "s.ndjson")), path)
    assert len(by_arrow(path, 1, {0: 0})) == 1
    with pytest.raises(ConfigurationError, match="have no times: ask by offset"):
        by_arrow(path, 1, EPOCH)


@pytest.mark.full
def test_a_log_that_is_damaged_is_not_used(stored: Stored) -> None:
    with pytest.raises(ConfigurationError, match=r"table: there is no table \(lmerge table update"):
        by_arrow(stored.path, None)
    stored.add(one(Insert('"a"', 1, 9)))
    stored.update()
    log = Path(stored.path, "_delta_log")
    for number in (0, 1):
        place = log / f"{number:020}.json"
        whole = place.read_bytes()
        for damaged in (whole[: len(whole) // 2], b"{}x"):
            place.write_bytes(damaged)
            with pytest.raises(StateError, match=r"^reading \S+table: [^\n]*$"):
                by_arrow(stored.path, None)
        place.write_bytes(whole)
    assert len(by_arrow(stored.path, None)) == 1


def test_what_is_no_table_of_ours_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "old" / "manifests").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"^\S+old is a table in the format before Delta"):
        newest(str(tmp_path / "old"))
    write_deltalake(tmp_path / "other", pa.table({"a": [1]}))
    with pytest.raises(ConfigurationError, match=r"^\S+other is a Delta table that lmerge table"):
        newest(str(tmp_path / "other"))
    with pytest.raises(ConfigurationError, match=r"a%20b: a table's path is without '%'$"):
        newest(str(tmp_path / "a%20b"))


# A topic


@pytest.mark.full
def test_a_topic_is_read_once_and_followed(
    spark: SparkSession,
    bootstrap: str,
    topic_name: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic, path = topic_name("merged"), str(tmp_path / "table")
    source = ReadTopics(bootstrap, topic)
    make_topic(bootstrap, topic, 2)
    assert update_table(spark, source, path).steps == 0
    assert len(by_arrow(path, None)) == 0
    stream = [
        element
        for n in range(50)
        for element in (Insert(f'"{n}"', n, n + 9), Adjust(f'"{n}"', n, n + 9, n + 5), Stable(n))
    ]
    records = one(*stream)
    rows = frame(spark, records).withColumnRenamed("offset", "seq")
    write_elements(rows.where("seq < 75"), WrittenTopic(bootstrap, topic), order=["seq"])
    first = update_table(spark, source, path, step=40)
    assert first.steps == 3
    assert first.records == 50 + 2 * 25
    middle = {at: each.next - 1 for at, each in first.table.reached.items()}
    write_elements(rows.where("seq >= 75"), WrittenTopic(bootstrap, topic), order=["seq"])
    assert update_table(spark, source, path).table.stable == 49
    assert update_table(spark, source, path).steps == 0
    assert by_arrow(path, None) == known_by_offset(records, {0: 149})
    assert by_arrow(path, None, middle) == known_by_offset(records, {0: 74})
    times = [each.time for each in first.table.reached.values()]
    assert by_arrow(path, 20, max(times)) == true_of(known_by_offset(records, {0: 74}), 20)


@pytest.mark.full
def test_a_topic_that_forgets_is_followed_as_long_as_nothing_is_missing(
    spark: SparkSession, bootstrap: str, topic_name: Callable[..., str], tmp_path: Path
) -> None:
    """What was read may go; a table never skips what it has not read, nor begins in the middle."""
    topic, path = topic_name("merged"), str(tmp_path / "table")
    source, events = ReadTopics(bootstrap, topic), [Insert(b'"%d"' % n, n, n + 9) for n in range(9)]
    make_topic(bootstrap, topic)
    send_elements(bootstrap, topic, events[:3])
    update_table(spark, source, path)
    trim(bootstrap, topic, 3)
    send_elements(bootstrap, topic, events[3:6])
    assert update_table(spark, source, path).table.reached[0].next == 6
    assert by_arrow(path, None) == TDB(Event(e.payload.decode(), e.vs, e.ve) for e in events[:6])
    send_elements(bootstrap, topic, events[6:])
    trim(bootstrap, topic, 7)
    begins = f"^{topic}-0 begins at offset 7"
    with pytest.raises(StateError, match=f"{begins}, and was read up to 6: what lay between is"):
        update_table(spark, source, path)
    with pytest.raises(StateError, match=f"{begins}: what was before is gone, and a table needs"):
        update_table(spark, source, str(tmp_path / "another"))


def send_elements(bootstrap: str, topic: str, elements: Sequence[Element]) -> None:
    send(bootstrap, topic, [Sent(encode(each)) for each in elements])


def trim(bootstrap: str, topic: str, before: int) -> None:
    async def delete() -> None:
        async with Topics(Connection(bootstrap)) as topics:
            await topics.trim({TopicPartition(topic, 0): before})

    asyncio.run(delete())


def test_a_topic_that_was_made_anew_is_not_taken_for_the_one_it_was(
    spark: SparkSession,
    bootstrap: str,
    topic_name: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic, path = topic_name("merged"), str(tmp_path / "table")
    source = ReadTopics(bootstrap, topic)
    with pytest.raises(ConfigurationError, match=f"^kafka:{topic}: there is no such topic at"):
        update_table(spark, source, path)
    make_topic(bootstrap, topic)
    found = update_table(spark, source, path).table.source_id
    for name, id_, message in (
        ("a", "another", f"^{topic} was deleted and recreated since it was read"),
        ("b", found, f"^{topic}-0 ends at offset 0, and was read up to 7"),
    ):
        path = str(tmp_path / name)
        table = created(path, topic, id_, "1")
        row = {
            **dict.fromkeys(table.delta.schema().to_arrow().names),
            "state": "progress",
            "payload": msgspec.json.encode(Progress(0, next=7)).decode(),
        }
        schema = pa.schema(table.delta.schema().to_arrow())
        write_deltalake(path, pa.Table.from_pylist([row], schema), mode="append")
        with pytest.raises(StateError, match=message):
            update_table(spark, source, path)
