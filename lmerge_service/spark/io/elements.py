"""Elements in and out of Spark: topics, JSON lines and Parquet, in batches and in streams.

Theory
    Whatever is read is decoded by the rule of the merge (`decoding`) and comes as rows of
    `schema.RECORDS`, refused records among them; `elements_of` and `refused_of` separate them.
    Parquet that was written here is not decoded again: each row has the version of the rule by
    which its payload is canonical, and a row of another version, or one that is no element, fails
    the query.

    Of a topic only what is committed is read. What is written to one is at least once, as Spark's
    sink is; files are written exactly once, also in streaming.

Who owns what
    A query is Spark's: it is started here and stopped by the caller, and goes on from its
    checkpoint. A topic that is missing is made, and is the caller's.

What happens on a crash
    A batch of a streaming query that had not ended is run again. What it had written to a topic
    is there twice then; to files, it never counts.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal, TypeAlias, TypeVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StringType, StructField, StructType

from lmerge_service.config.topology import Kafka
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.bulk import Rule
from lmerge_service.kafka.connection import connection_of
from lmerge_service.kafka.source import Source as Consumer
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.connection import kafka_options, kafka_section
from lmerge_service.spark.io.decoding import HEADERS, Keys, decoding
from lmerge_service.spark.io.encoding import record_value, to_records
from lmerge_service.spark.io.lines import RANGE_BYTES, line_reading
from lmerge_service.spark.io.places import (
    JsonFiles,
    ParquetFiles,
    ReadTopics,
    Sink,
    Source,
    WrittenTopic,
    located,
)
from lmerge_service.spark.io.schema import (
    ELEMENT,
    ORIGIN,
    RECORDS,
    elements_of,
    is_element,
    whole_columns,
)

__all__ = (
    "Mode",
    "decode_records",
    "existing_offsets",
    "headers_of_text",
    "headers_text",
    "kafka_records",
    "kafka_sink",
    "raw_records",
    "read_elements",
    "stream_elements",
    "topic_width",
    "write_elements",
)

T = TypeVar("T")
Mode: TypeAlias = Literal["error", "append", "overwrite"]
"""What becomes of files that are there."""

_PARQUET: Final = StructType([*ORIGIN.fields, *ELEMENT.fields, StructField("rule", StringType())])
_LISTED: Final = "path string, modificationTime timestamp, length long, content binary"
_ANYTHING: Final = Rule()
_SPLIT: Final = {"minPartitions", "maxRecordsPerPartition"}
"""Options by which several tasks share a partition's records."""


def read_elements(
    spark: SparkSession,
    source: Source,
    *,
    streaming: bool = False,
    rule: Rule = _ANYTHING,
    keys: Keys = "refused",
) -> DataFrame:
    """Rows of `schema.RECORDS`: the elements of a source, and the records that are refused.

    `keys` selects the records whose keys are kept: dead letters need those of refused records, and
    most elements have theirs in the payload; where none are needed, reading saves 1 µs a record.
    What the writer of a topic had written before (`lmerge-seq`) is left out, in batches whose
    options split no partition; else `repeats.once` does it.

    Raises:
        ConfigurationError: there is no such file, or Parquet is not what is written here.
    """
    match source:
        case ReadTopics():
            records = kafka_records(spark, source, streaming)
            # In batches a task has all of a partition, in order, unless options split them.
            once = not streaming and not _SPLIT & source.options.keys()
            return decode_records(records, rule=rule, keys=keys, once=once)
        case JsonFiles():
            return _json_lines(spark, source, streaming, rule)
        case ParquetFiles():
            return _parquet(spark, source, streaming, rule)


def kafka_records(spark: SparkSession, source: ReadTopics, streaming: bool = False) -> DataFrame:
    """The records of topics as they are: the columns that `decode_records` takes."""
    options = {
        "subscribe": source.subscribed,
        "startingOffsets": source.start,
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        "kafka.allow.auto.create.topics": "false",  # else one that was deleted is back
        **({} if streaming else {"endingOffsets": source.end}),
        **kafka_options(source.kafka),
        **source.options,
    }
    reader: Any = spark.readStream if streaming else spark.read
    with spark_errors(f"reading {source.subscribed}"):
        loaded: DataFrame = reader.format("kafka").options(**options).load()
        return loaded.withColumnRenamed("topic", "source")


def decode_records(
    records: DataFrame,
    *,
    rule: Rule = _ANYTHING,
    keys: Keys = "refused",
    once: bool = False,
) -> DataFrame:
    """Rows of `schema.RECORDS` of raw records, wherever they were kept.

    `value` must be there; source, partition, offset, timestamp, key and headers may be. `once`
    leaves out what a writer had written before (`lmerge-seq`); it is for frames whose tasks have
    all of a partition's records each, in order.
    """
    return raw_records(records, keys=keys).mapInArrow(decoding(rule, keys=keys, once=once), RECORDS)


def raw_records(records: DataFrame, *, keys: Keys = "refused") -> DataFrame:
    """Of raw records what `decoding` takes."""

    def column(name: str, kind: str) -> Column:
        given = F.col(name) if name in records.columns else F.lit(None)
        return given.cast(kind).alias(name)

    return records.select(
        *(column(each.name, each.dataType.simpleString()) for each in ORIGIN.fields[:4]),
        (F.lit(None).cast("binary") if keys == "none" else column("key", "binary")).alias("key"),
        headers_text(column("headers", "array<struct<key:string,value:binary>>")).alias("headers"),
        column("value", "binary"),
    )


def headers_text(headers: Column, names: Sequence[str] = HEADERS) -> Column:
    """The headers of these names, as a string; null for none, which is most often so.

    An array would take Spark 14 µs a record to hand over, be it null.
    """
    looked_at = F.filter(headers, lambda each: each["key"].isin(*names))
    texts = F.transform(
        looked_at,
        lambda each: F.concat(
            each["key"], F.lit("="), F.coalesce(F.hex(each["value"]), F.lit("-"))
        ),
    )
    return F.when(F.size(headers) > 0, F.nullif(F.array_join(texts, ","), F.lit("")))


def headers_of_text(text: Column) -> Column:
    """Headers out of the string by which they are handed over."""
    return F.transform(
        F.split(text, ","),
        lambda each: F.struct(
            F.substring_index(each, "=", 1).alias("key"),
            F.unhex(F.substring_index(each, "=", -1)).alias("value"),
        ),
    )


def _json_lines(spark: SparkSession, source: JsonFiles, streaming: bool, rule: Rule) -> DataFrame:
    reader: Any = spark.readStream if streaming else spark.read
    tasks = 2 * spark.sparkContext.defaultParallelism
    with spark_errors(f"reading {source.path}"):
        files = reader.format("binaryFile").schema(_LISTED).options(**source.options)
        listed: DataFrame = files.load(located(source.path)).where(
            ~F.col("path").endswith(".partial")
        )
        starts = F.sequence(F.lit(0), F.greatest(F.col("length") - 1, F.lit(0)), F.lit(RANGE_BYTES))
        ranges = listed.select("path", F.explode(starts).alias("start"))
        spread: DataFrame = ranges.repartition(tasks)
        return spread.mapInArrow(line_reading(rule), RECORDS)


def _parquet(spark: SparkSession, source: ParquetFiles, streaming: bool, rule: Rule) -> DataFrame:
    reader: Any = spark.readStream if streaming else spark.read
    doing = f"reading {source.path}"
    with spark_errors(doing):
        if not streaming:
            found = spark.read.options(**source.options).parquet(located(source.path)).schema
            _check_schema(found, doing)
        rows: DataFrame = (
            reader.schema(_PARQUET).options(**source.options).parquet(located(source.path))
        )
    sound = (F.coalesce(F.col("rule"), F.lit("")) == rule.version) & is_element()
    row = F.to_json(F.struct("rule", "source", "partition", "offset", *ELEMENT.names))
    fault = F.when(
        F.col("rule") != rule.version,
        F.concat(F.lit("is by rule "), "rule", F.lit(f", and not by {rule.version}: "), row),
    ).otherwise(F.concat(F.lit(f"is no element by rule {rule.version}: "), row))
    wrong = F.concat(F.lit(f"{source.path} has a row that "), fault)
    op = F.when(sound, F.col("op")).otherwise(F.raise_error(wrong))
    nothing = [F.lit(None).cast(each.dataType).alias(each.name) for each in RECORDS.fields[-3:]]
    return rows.select(*ORIGIN.names, op.alias("op"), *ELEMENT.names[1:], *nothing)


def _check_schema(found: StructType, doing: str) -> None:
    there = {each.name: each.dataType for each in found.fields}
    for field in _PARQUET.fields:
        if field.name not in there:
            fault = f"has no column {field.name}"
        elif there[field.name] != field.dataType:
            kind = there[field.name].simpleString()
            fault = f"has {field.name} as {kind} and not {field.dataType.simpleString()}"
        else:
            continue
        raise ConfigurationError(f"{doing}: it {fault}, so it was not written by write_elements")


def write_elements(
    elements: DataFrame,
    sink: Sink,
    *,
    order: Sequence[str] | None,
    mode: Mode = "error",
    rule: Rule = _ANYTHING,
) -> None:
    """Writes elements, less the refused records among them.

    `order` names the columns that put the whole stream in order: each partition of a topic, and
    the files of a folder, are written in it. None: rows are written as they stand in their tasks,
    and nothing is promised of those of different tasks. Parquet keeps `ORIGIN`, and needs none.

    Raises:
        ConfigurationError: there are such files already (`mode` of files), or the frame lacks
            columns.
        TransportError: Kafka cannot be reached, or refuses.
        StateError: a row is no element.
    """
    with spark_errors(f"writing {_name(sink)}"):
        match sink:
            case WrittenTopic():
                records = to_records(elements, topic_width(sink), sink.key, order=order)
                records.write.format("kafka").options(**kafka_sink(sink)).save()
            case JsonFiles():
                ordered = elements if order is None else elements.orderBy(*order)
                writer = _lines(ordered).write.mode(mode).options(**sink.options)
                writer.text(located(sink.path))
            case ParquetFiles():
                writer = _parquet_rows(elements, rule).write.mode(mode).options(**sink.options)
                writer.parquet(located(sink.path))


def stream_elements(
    elements: DataFrame,
    sink: Sink,
    *,
    order: Sequence[str] | None,
    checkpoint: str,
    trigger: Mapping[str, Any] | None = None,
    rule: Rule = _ANYTHING,
) -> StreamingQuery:
    """Starts a query that goes on writing a streaming frame; otherwise as `write_elements`.

    An `order` holds within each micro-batch, and only for topics: files have none. `trigger` is
    Spark's: {"availableNow": True}, {"processingTime": "1 second"}.

    Raises:
        ConfigurationError: Spark refuses the query.
        TransportError: Kafka cannot be reached.
    """
    with spark_errors(f"writing {_name(sink)}"):
        writer = _streaming(elements, sink, order, rule)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        return writer.option("checkpointLocation", located(checkpoint)).start()


def _streaming(
    elements: DataFrame, sink: Sink, order: Sequence[str] | None, rule: Rule
) -> DataStreamWriter:
    if isinstance(sink, WrittenTopic):
        width, key = topic_width(sink), sink.key
        if order is None:
            records = to_records(elements, width, key)
            return records.writeStream.format("kafka").options(**kafka_sink(sink))

        def write(batch: DataFrame, _: int) -> None:
            records = to_records(batch, width, key, order=order)
            records.write.format("kafka").options(**kafka_sink(sink)).save()

        return elements.writeStream.foreachBatch(write)
    if order is not None:
        raise ConfigurationError(f"writing {sink.path}: files of a streaming query have no order")
    if isinstance(sink, JsonFiles):
        rows, kind = _lines(elements), "text"
    else:
        rows, kind = _parquet_rows(elements, rule), "parquet"
    return rows.writeStream.format(kind).options(**sink.options).option("path", located(sink.path))


def _name(sink: Sink) -> str:
    return sink.name if isinstance(sink, WrittenTopic) else sink.path


def kafka_sink(sink: WrittenTopic) -> dict[str, str]:
    """Options for Spark's `kafka` format by which a topic is written."""
    # A retry must not overtake what was written after it.
    safe = {"kafka.acks": "all", "kafka.enable.idempotence": "true"}
    return {"topic": sink.name, **safe, **kafka_options(sink.kafka), **sink.options}


def _lines(elements: DataFrame) -> DataFrame:
    return _good(elements).select(record_value().alias("value"))


def _parquet_rows(elements: DataFrame, rule: Rule) -> DataFrame:
    good = _good(elements)
    sound = F.when(is_element(), F.col("op")).otherwise(
        F.raise_error(F.concat(F.lit("a row is no element: "), F.to_json(F.struct(*ELEMENT.names))))
    )
    rows = good.select(*whole_columns(good)).withColumn("op", sound)
    return rows.withColumn("rule", F.lit(rule.version))


def _good(frame: DataFrame) -> DataFrame:
    return elements_of(frame) if "reason" in frame.columns else frame


def topic_width(sink: WrittenTopic) -> int:
    """How many partitions a topic has, which is made if it is missing.

    Raises:
        TransportError: Kafka cannot be reached, or refuses.
    """

    async def width() -> int:
        async with Topics(connection_of(kafka_section(sink.kafka))) as topics:
            return await topics.ensure(sink.name, partitions=sink.partitions)

    return _run(width())


def existing_offsets(
    kafka: Kafka | str, name: str, *, settled: bool = False
) -> dict[int, tuple[int, int]] | None:
    """By partition of a topic, its first offset and the one behind its last record; None if there
    is no such topic. `settled`: once no transaction is open before that, so that all can be read.

    Raises:
        TransportError: Kafka cannot be reached, or refuses; a transaction is left open.
    """

    async def offsets() -> dict[int, tuple[int, int]] | None:
        connection = connection_of(kafka_section(kafka))
        async with Topics(connection) as topics:
            width = await topics.width(name)
        if width is None:
            return None
        partitions = [TopicPartition(name, number) for number in range(width)]
        async with Consumer(connection) as consumer:
            begin = await consumer.beginnings(partitions)
            end = await (consumer.settled if settled else consumer.high_watermarks)(partitions)
        return {each.partition: (begin[each], end[each]) for each in partitions}

    return _run(offsets())


def _run(call: Coroutine[Any, Any, T]) -> T:
    with ThreadPoolExecutor(1) as apart:  # the caller may be in an event loop, as in a notebook
        return apart.submit(asyncio.run, call).result()
