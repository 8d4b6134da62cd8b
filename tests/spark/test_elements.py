"""Elements in and out of Spark: by the same rule as the merge, and the same at the other end."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, ElementError, StateError, TransportError
from lmerge_service.formats.bulk import Rule
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.payload import canonical
from lmerge_service.formats.routing import Router
from lmerge_service.formats.wire import encode
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.dead_letters import stream_dead_letters, write_dead_letters
from lmerge_service.spark.io.elements import (
    decode_records,
    read_elements,
    stream_elements,
    write_elements,
)
from lmerge_service.spark.io.encoding import canonical_payload, placement, record_value
from lmerge_service.spark.io.places import (
    JsonFiles,
    ParquetFiles,
    ReadTopics,
    Sink,
    Source,
    WrittenTopic,
)
from lmerge_service.spark.io.schema import ELEMENT, ORDER, RECORDS, elements_of, refused_of
from lmerge_service.tdb import reconstitute
from tests.formats import test_payload, test_wire
from tests.formats.strategies import elements, json_texts
from tests.spark.records import Sent, make_topic, received, send
from tests.spark.test_decoding import ANY_RECORD, expected

ONCE = {"availableNow": True}
A_FEW = max(3, settings().max_examples // 25)
"""Each is a job or two of Spark; without a JVM there are many more (test_decoding)."""
STREAM: list[Element] = [
    Insert(b'{"a":1}', START, 9),
    Insert('"é😀\\" ,\\"vs\\":1"'.encode(), 1, INFINITY),
    Insert(b"null", 2, 3),
    Adjust(b'{"a":1}', START, 9, 12),
    Stable(0),
    Adjust('"é😀\\" ,\\"vs\\":1"'.encode(), 1, INFINITY, 7),
    Adjust(b"null", 2, 3, 2),
    Insert(b"[0.5,1e-07]", 5, 2**53 + 1),
    Stable(6),
    Stable(INFINITY),
]
POISON = (
    b"",
    b"\xff\x00",
    b'{"op":"stable"}',
    b'{"op":"insert","payload":{"a":1,"a":2},"vs":1,"ve":2}',
)


def elements_in(rows: DataFrame, *order: str) -> list[Element]:
    return [element(row) for row in elements_of(rows).orderBy(*(order or ORDER)).collect()]


def element(row: Any) -> Element:
    if row.op == "stable":
        return Stable(row.vc)
    payload = row.payload.encode()
    if row.op == "insert":
        return Insert(payload, row.vs, row.ve)
    return Adjust(payload, row.vs, row.vold, row.ve)


def frame(spark: SparkSession, stream: list[Element], tasks: int = 1) -> DataFrame:
    """Elements with `seq`, their place in the stream."""
    rows: list[tuple[Any, ...]] = []
    for seq, each in enumerate(stream):
        match each:
            case Insert(payload, vs, ve):
                rows.append((seq, "insert", payload.decode(), vs, None, ve, None))
            case Adjust(payload, vs, vold, ve):
                rows.append((seq, "adjust", payload.decode(), vs, vold, ve, None))
            case Stable(vc):
                rows.append((seq, "stable", None, None, None, None, vc))
    schema = "seq long, op string, payload string, vs long, vold long, ve long, vc long"
    return spark.createDataFrame(rows, schema).repartition(tasks)


@pytest.fixture
def place(
    bootstrap: str, topic_name: Callable[..., str], tmp_path: Path
) -> Callable[[str], tuple[Sink, Source]]:
    """A fresh sink of a kind, and the same as a source."""

    def make(kind: str) -> tuple[Sink, Source]:
        if kind == "kafka":
            topic = topic_name()
            return WrittenTopic(bootstrap, topic), ReadTopics(bootstrap, topic)
        path = str(tmp_path / topic_name(kind))
        either: JsonFiles | ParquetFiles = (JsonFiles if kind == "json" else ParquetFiles)(path)
        return either, either

    return make


# By the same rule


def cases() -> Iterator[bytes | None]:
    """Those of the tests of the wire and of payloads, these as payloads."""
    wire_tests: tuple[tuple[Any, int | None], ...] = (
        (test_wire.test_every_poison_pill_has_its_reason, 0),
        (test_wire.test_a_record_is_an_element_in_any_order_and_spacing, 0),
        (test_wire.test_an_element_is_written_compactly_with_null_for_infinity, 1),
        (test_wire.test_times_in_an_order_that_no_element_has_are_refused, None),
        (test_wire.test_json_that_is_no_element_is_refused, None),
    )
    for test, column in wire_tests:
        for case in parameters(test, "record"):
            yield case if column is None else case[column]
    payload_tests: tuple[Any, ...] = (
        test_payload.test_one_is_one_however_it_is_written,
        test_payload.test_a_key_given_twice_is_refused_at_any_depth_and_however_it_is_written,
        test_payload.test_a_number_that_would_have_to_be_rounded_is_refused,
        test_payload.test_a_lone_surrogate_is_refused_as_key_as_value_and_as_bytes,
        test_payload.test_what_is_not_utf_8_is_refused,
        test_payload.test_what_is_not_one_json_text_is_refused,
        test_payload.test_common_payloads_take_the_short_cut,
    )
    for test in payload_tests:
        for raw in parameters(test, "raw"):
            yield b'{"op":"insert","payload":%b,"vs":1,"ve":9}' % raw
    for raw, *_ in parameters(
        test_payload.test_a_number_has_the_form_of_an_int64_or_of_repr, "raw"
    ):
        yield b'{"op":"insert","payload":[".",%b],"vs":1,"ve":9}' % raw.encode()


def parameters(test: Any, name: str) -> list[Any]:
    [mark] = [
        mark
        for mark in test.pytestmark
        if mark.name == "parametrize" and (mark.args[0] == name or name in mark.args[0])
    ]
    return list(mark.args[1])


def through_spark(spark: SparkSession, values: list[bytes | None]) -> list[dict[str, Any]]:
    rows = [("t", at, at + 7, b"%d" % at, record) for at, record in enumerate(values)]
    raw = spark.createDataFrame(
        rows, "source string, partition int, offset long, key binary, value binary"
    )
    return [row.asDict() for row in decode_records(raw).orderBy("offset").collect()]


def test_each_case_of_the_wire_and_of_payloads_is_decoded_as_in_the_merge(
    spark: SparkSession,
) -> None:
    values = [record for record in cases() if record is None or len(record) < 1 << 19]
    assert len(values) > 150
    assert through_spark(spark, values) == [
        expected(at, record, Rule()) for at, record in enumerate(values)
    ]


@settings(max_examples=A_FEW)
@given(st.lists(ANY_RECORD, min_size=20, max_size=60))
def test_any_record_is_decoded_as_in_the_merge(
    spark: SparkSession, values: list[bytes | None]
) -> None:
    assert through_spark(spark, values) == [
        expected(at, record, Rule()) for at, record in enumerate(values)
    ]


@pytest.mark.full
@settings(max_examples=A_FEW)
@given(st.lists(elements(), min_size=10, max_size=40))
def test_records_are_written_as_the_service_writes_them(
    spark: SparkSession, stream: list[Element]
) -> None:
    """E1 and E2 of `encoding`; keys of one field and of several, and routes."""
    rows = frame(spark, stream)
    both = rows.orderBy("seq").select(
        record_value().alias("value"),
        placement(5).alias("whole"),
        placement(3, ["a", "b.c"]).alias("fields"),
        "payload",
    )
    for row, each in zip(both.collect(), stream, strict=True):
        assert row.value.encode() == encode(each)
        for placed, router in ((row.whole, Router(5)), (row.fields, Router(3, ["a", "b.c"]))):
            payload = None if isinstance(each, Stable) else each.payload
            route = payload and (router.key_of(payload), router.partition_of(payload))
            assert (placed.key, placed.partition) == (route or (None, None))


@settings(max_examples=A_FEW)
@given(st.lists(json_texts(), min_size=5, max_size=30))
def test_a_query_makes_its_payloads_canonical(spark: SparkSession, texts: list[bytes]) -> None:
    good = []
    for text in texts:
        try:
            good.append((text.decode(), canonical(text).decode()))
        except (ElementError, UnicodeDecodeError):
            continue
    if good:
        made = spark.createDataFrame(good, "text string, payload string")
        wrong = made.where(canonical_payload(F.col("text")) != F.col("payload"))
        assert wrong.collect() == []


def test_a_payload_that_the_rule_refuses_fails_the_query(spark: SparkSession) -> None:
    made = spark.createDataFrame([('{"a":NaN}',)], "text string")
    refused = pytest.raises(StateError, match=r"^making payloads: not JSON: NaN[^\n]*$")
    with refused, spark_errors("making payloads"):
        made.select(canonical_payload(F.col("text"))).collect()


# There and back


@pytest.mark.full
@pytest.mark.parametrize("kind", ["kafka", "json", "parquet"])
def test_what_is_written_is_read_back(
    spark: SparkSession, place: Callable[[str], tuple[Sink, Source]], kind: str
) -> None:
    sink, source = place(kind)
    rows = frame(spark, STREAM, tasks=3)
    by_seq = rows.withColumn("offset", F.col("seq")).withColumn("partition", F.lit(0))
    write_elements(by_seq, sink, order=["seq"])
    read = read_elements(spark, source)
    assert read.schema == RECORDS
    assert elements_in(read) == STREAM
    assert refused_of(read).count() == 0


@pytest.mark.full
@pytest.mark.parametrize(
    "kind",
    [
        "kafka",
        pytest.param("json", marks=pytest.mark.deep),
        pytest.param("parquet", marks=pytest.mark.deep),
    ],
)
def test_a_stream_is_written_and_read_as_it_grows(
    spark: SparkSession, place: Callable[[str], tuple[Sink, Source]], kind: str, tmp_path: Path
) -> None:
    """From files that appear, through each format and back, in two goes."""
    sink, source = place(kind)
    last = place("parquet")[0]
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for go, part in enumerate((STREAM[:4], STREAM[4:])):
        (inbox / f"{go}.ndjson.partial").write_bytes(b"not yet")
        (inbox / f"{go}.ndjson").write_bytes(b"".join(encode(each) + b"\n" for each in part))
        arriving = read_elements(spark, JsonFiles(str(inbox)), streaming=True)
        order = ORDER if kind == "kafka" else None
        finish(
            stream_elements(
                arriving, sink, order=order, trigger=ONCE, checkpoint=str(tmp_path / "a")
            )
        )
        leaving = read_elements(spark, source, streaming=True)
        finish(
            stream_elements(leaving, last, order=None, trigger=ONCE, checkpoint=str(tmp_path / "b"))
        )
        assert isinstance(last, ParquetFiles)
        so_far = elements_in(read_elements(spark, last))
        wanted = STREAM[: 4 if go == 0 else None]
        assert sorted(map(repr, so_far)) == sorted(map(repr, wanted))
        if kind == "kafka":
            assert so_far == wanted


def finish(query: Any) -> None:
    assert query.awaitTermination(60)
    assert query.exception() is None


@pytest.mark.deep
def test_every_partition_of_a_topic_is_a_legal_stream_with_all_stables(
    spark: SparkSession, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name()
    stream: list[Element] = [
        each
        for vs in range(0, 400, 4)
        for each in (
            Insert(b'{"k":%d,"v":%d}' % (vs % 7, vs), vs, INFINITY),
            Adjust(b'{"k":%d,"v":%d}' % (vs % 7, vs), vs, INFINITY, vs + 3),
            Stable(vs),
        )
    ]
    sink = WrittenTopic(bootstrap, topic, key=["k"], partitions=3)
    write_elements(frame(spark, stream, tasks=4), sink, order=["seq"])
    router = Router(3, ["k"])
    for number in range(3):
        mine = [
            each
            for each in stream
            if isinstance(each, Stable) or router.partition_of(each.payload) == number
        ]
        found = [record for record in received(bootstrap, topic) if record.partition == number]
        assert [record.value for record in found] == [encode(each) for each in mine]
        assert [record.key for record in found] == [
            None if isinstance(each, Stable) else router.key_of(each.payload) for each in mine
        ]
        alone = read_elements(spark, ReadTopics(bootstrap, topic)).where(
            F.col("partition") == number
        )
        assert elements_in(alone) == mine
        reconstitute(mine)  # which refuses what is not legal


def test_rows_that_stand_in_order_are_routed_by_the_producer_as_by_the_service(
    spark: SparkSession, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name()
    stream: list[Element] = [Insert(b'"%d"' % vs, vs, vs + 1) for vs in range(50)]
    write_elements(
        frame(spark, [*stream, Stable(9)]), WrittenTopic(bootstrap, topic, partitions=4), order=None
    )
    router = Router(4)
    found = received(bootstrap, topic)
    assert len(found) == 54
    assert all(
        each.key is None or router.partition_of(each.key) == each.partition for each in found
    )


@pytest.mark.full
def test_a_row_that_is_no_element_fails_the_query_and_writes_no_tombstone(
    spark: SparkSession, place: Callable[[str], tuple[Sink, Source]]
) -> None:
    bad = frame(spark, STREAM).withColumn("vs", F.lit(None).cast("long"))
    for kind in ("json", "parquet", "kafka"):
        sink, _ = place(kind)
        with pytest.raises(StateError, match=r"^writing [^\n]*: a row is no element: [^\n]*$"):
            write_elements(bad, sink, order=None)


# What is not an element


@pytest.mark.full
def test_poison_goes_to_the_dead_letters_as_the_service_writes_them(
    spark: SparkSession, bootstrap: str, topic_name: Callable[..., str], tmp_path: Path
) -> None:
    topic, batch, streamed = topic_name(), topic_name("batch"), topic_name("streamed")
    make_topic(bootstrap, topic, 3)
    good = encode(Stable(1))
    sent = [
        Sent(good),
        *(Sent(value, b"key", partition) for partition, value in enumerate(POISON[:3])),
        Sent(None, b"deleted", 1),
        Sent(POISON[3], None, 2),
        Sent(good, None, 2, [("lmerge-incarnation", b"one")]),
        Sent(b"x" * 70_000, b"y" * 70_000, 2),
        Sent(good, None, 2, [("lmerge-incarnation", b"3"), ("lmerge-joining-at", b"-9")]),
    ]
    send(bootstrap, topic, sent)
    source, names = ReadTopics(bootstrap, topic), {topic: "replica a"}
    rows = read_elements(spark, source, rule=Rule(max_record_bytes=60_000))
    assert rows.count() == len(sent)
    assert elements_in(rows) == [Stable(1), Stable(1)]
    started_over = rows.where("incarnation = 3").collect()
    assert [row.joining_at for row in started_over] == [-9]

    write_dead_letters(rows, WrittenTopic(bootstrap, batch), names)
    growing = read_elements(spark, source, streaming=True, rule=Rule(max_record_bytes=60_000))
    finish(
        stream_dead_letters(
            growing,
            WrittenTopic(bootstrap, streamed),
            names,
            trigger=ONCE,
            checkpoint=str(tmp_path / "c"),
        )
    )
    wanted = []
    for row in refused_of(rows).collect():
        message = row.message
        letter = DeadLetter(
            "replica a", topic, row.partition, row.offset, row.reason, message, row.key, row.value
        )
        wanted.append(letter.to_record())
    assert len(wanted) == 7
    reasons = {dict(headers)["lmerge-reason"] for _, _, headers in wanted}
    assert {b"tombstone", b"header", b"too_large", b"duplicate_key", b"not_utf8"} <= reasons
    for letters in (batch, streamed):
        found = [
            (each.key, each.value, list(each.headers)) for each in received(bootstrap, letters)
        ]
        assert sorted(found, key=repr) == sorted(wanted, key=repr)


@pytest.mark.full
def test_only_what_is_committed_is_read(
    spark: SparkSession, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name()
    make_topic(bootstrap, topic)

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
        await producer.start()
        try:
            for vc, commit in ((1, True), (2, False), (3, True), (4, False)):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, encode(Stable(vc)))
                await (producer.commit_transaction if commit else producer.abort_transaction)()
            await producer.begin_transaction()
            await producer.send_and_wait(topic, encode(Stable(5)))
            await asyncio.to_thread(look)
            await producer.abort_transaction()
        finally:
            await producer.stop()

    def look() -> None:
        """While a transaction is open."""
        assert elements_in(read_elements(spark, ReadTopics(bootstrap, topic))) == [
            Stable(1),
            Stable(3),
        ]

    asyncio.run(run())
    look()


@pytest.mark.full
@pytest.mark.parametrize(
    "codec",
    [
        pytest.param("gzip", marks=pytest.mark.deep),
        pytest.param("snappy", marks=pytest.mark.deep),
        pytest.param("lz4", marks=pytest.mark.deep),
        "zstd",
    ],
)
def test_compressed_topics_are_read(
    spark: SparkSession, bootstrap: str, topic_name: Callable[..., str], codec: str
) -> None:
    """Of four partitions three are empty."""
    topic = topic_name()
    make_topic(bootstrap, topic, 4)
    send(bootstrap, topic, [Sent(encode(each), None, 2) for each in STREAM], compression_type=codec)
    read = read_elements(spark, ReadTopics(bootstrap, topic))
    assert elements_in(read) == STREAM
    assert {row.partition for row in read.collect()} == {2}


@pytest.mark.full
def test_an_incarnation_is_written_in_the_headers_that_the_service_reads(
    spark: SparkSession, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name()
    rows = frame(spark, STREAM[:3])
    origins = rows.withColumns(
        {"incarnation": F.col("seq"), "joining_at": F.lit(5) * F.col("seq") - 5}
    )
    write_elements(origins, WrittenTopic(bootstrap, topic), order=["seq"])
    found = [list(record.headers) for record in received(bootstrap, topic)]
    assert found == [
        incarnation_headers(0, -5),
        incarnation_headers(1, 0),
        incarnation_headers(2, 5),
    ]
    back = (
        read_elements(spark, ReadTopics(bootstrap, topic), keys="all").orderBy("offset").collect()
    )
    bare = read_elements(spark, ReadTopics(bootstrap, topic), keys="none")
    assert bare.where("key IS NOT NULL").count() == 0
    assert [row.reason for row in back] == ["header", None, None], "joining needs an incarnation"
    assert [(row.incarnation, row.joining_at) for row in back[1:]] == [(1, 0), (2, 5)]
    assert [row.key for row in back] == [each.payload for each in STREAM[:3]]  # type: ignore[union-attr]


# Files that are not what they should be


@pytest.mark.full
def test_parquet_of_another_shape_is_reported_in_one_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    good = ParquetFiles(str(tmp_path / "good"))
    write_elements(frame(spark, STREAM), good, order=None)
    with pytest.raises(ConfigurationError, match=r"PATH_ALREADY_EXISTS|already exists"):
        write_elements(frame(spark, STREAM), good, order=None)
    there = spark.read.parquet(good.path)
    for name, drifted, fault in (
        ("lacks", there.drop("ve"), "has no column ve"),
        (
            "kind",
            there.withColumn("vs", F.col("vs").cast("string")),
            "has vs as string and not bigint",
        ),
    ):
        path = str(tmp_path / name)
        drifted.write.parquet(path)
        with pytest.raises(ConfigurationError, match=rf"^reading [^\n]*: it {fault}[^\n]*$"):
            read_elements(spark, ParquetFiles(path))
    with pytest.raises(ConfigurationError, match=r"^reading [^\n]*$"):
        read_elements(spark, ParquetFiles(str(tmp_path / "nowhere")))


@pytest.mark.full
@pytest.mark.parametrize(
    "drift",
    [
        lambda rows: rows.drop("ve"),
        lambda rows: rows.drop("rule"),
        lambda rows: rows.withColumn("rule", F.lit("0")),
        lambda rows: rows.withColumn("ve", F.col("vs")),
    ],
    ids=["a column lost", "no rule", "another rule", "no element"],
)
def test_a_file_among_others_that_is_not_like_them_fails_the_query(
    spark: SparkSession, tmp_path: Path, drift: Callable[[DataFrame], DataFrame]
) -> None:
    """Parquet gives null for what a file lacks: an insert that never ends, if nobody looks."""
    place = ParquetFiles(str(tmp_path / "some"))
    write_elements(frame(spark, STREAM), place, order=None)
    drift(spark.read.parquet(place.path)).write.mode("append").parquet(place.path)
    # It depends on the file that Spark asks for the columns who notices.
    one_line = (
        r"^(auditing: [^\n]* no element by rule 1: |auditing: [^\n]* is by rule 0, and not by 1: |"
        r"reading [^\n]* no column )[^\n]*$"
    )
    refused = pytest.raises((StateError, ConfigurationError), match=one_line)
    with refused, spark_errors("auditing"):
        elements_in(read_elements(spark, place))


def test_a_file_that_was_cut_off_is_reported_in_one_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Java raises it by a class of which PySpark makes none of its own."""
    place = ParquetFiles(str(tmp_path / "cut"))
    write_elements(frame(spark, STREAM), place, order=None)
    for file in tmp_path.rglob("*.parquet"):
        file.write_bytes(file.read_bytes()[:100])
    refused = pytest.raises(
        StateError, match=r"^reading \S+cut: [^\n]*Could not read footer[^\n]*$"
    )
    with refused, spark_errors("auditing"):
        elements_in(read_elements(spark, place))


def test_parquet_is_not_decoded_again(spark: SparkSession, tmp_path: Path) -> None:
    place = ParquetFiles(str(tmp_path / "p"))
    write_elements(frame(spark, STREAM), place, order=None)
    plan = read_elements(spark, place)._jdf.queryExecution().toString()
    assert "InArrow" not in plan
    assert "Python" not in plan


def test_nobody_answers(spark: SparkSession) -> None:
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:1"):
        write_elements(frame(spark, STREAM), WrittenTopic("127.0.0.1:1", "t"), order=None)


def test_elements_are_no_more_than_their_columns(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(encode(Stable(1)) + b"\n\npoison")
    rows = read_elements(spark, JsonFiles(str(tmp_path / "x")))
    assert elements_of(rows).columns == RECORDS.names[:-3]
    assert refused_of(rows).columns == [n for n in RECORDS.names if n not in ELEMENT.names]
    assert [(row.offset, row.value) for row in refused_of(rows).orderBy("offset").collect()] == [
        (23, b""),
        (24, b"poison"),
    ]


def test_headers_of_any_kind_are_read_as_the_merge_reads_them(spark: SparkSession) -> None:
    many: list[Any] = [
        None,
        [],
        [("other", b"x")],
        [("other", None), ("lmerge-incarnation", b"2")],
        [("lmerge-incarnation", b"2"), ("lmerge-joining-at", b"-5"), ("other,=-", b",=")],
        [("lmerge-incarnation", b"2"), ("lmerge-incarnation", b"3")],
        [("lmerge-incarnation", b"x"), ("lmerge-incarnation", b"3")],
        [("lmerge-joining-at", b"5")],
        [("lmerge-incarnation", None)],
        [("lmerge-incarnation", b"")],
        [("lmerge-incarnation", b"=,\xff")],
    ]
    good = encode(Stable(1))
    rows = [("t", at, at + 7, b"%d" % at, good, each) for at, each in enumerate(many)]
    raw = spark.createDataFrame(
        rows,
        "source string, partition int, offset long, key binary, value binary, "
        "headers array<struct<key:string,value:binary>>",
    )
    found = [row.asDict() for row in decode_records(raw).orderBy("offset").collect()]
    assert found == [expected(at, good, Rule(), each) for at, each in enumerate(many)]
