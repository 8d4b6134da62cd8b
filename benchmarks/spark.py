"""Reading and writing elements with Spark: by place, beside Spark's own reading of the same bytes.

Every figure is of one query that reads everything and keeps nothing (Spark's `noop` sink), with
the payloads of `formats`, on `local[2]` with the broker on the same machine. The first run of each
warms up and is not counted. Beside the rate stands what it took of the processors, of JVM and
Python workers together: on a busy machine that is the figure to go by (two cores that do nothing
else give 2,000 / it).
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from benchmarks.formats import flight
from lmerge_service.elements import Adjust, Insert, Stable
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import LocalBroker

__all__ = ("busy_seconds", "run", "spent")

Report = Callable[[str, str, Sequence[float]], None]
_PARTITIONS = 4
_WIRE = "op string, payload string, vs long, vold long, ve long, vc long"


def run(runs: int, count: int, report: Report) -> None:
    """Makes `count` elements, puts them into each place, and reads each."""
    from lmerge_service.spark.session import spark_session

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalBroker(Path(folder) / "kafka") as broker,
        spark_session("benchmark", master="local[2]") as spark,
    ):
        _measure(spark, broker.bootstrap, Path(folder), runs, count, report)


def _measure(
    spark: Any, bootstrap: str, folder: Path, runs: int, count: int, report: Report
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from lmerge_service.spark.io.elements import (
        decode_records,
        kafka_records,
        read_elements,
        write_elements,
    )
    from lmerge_service.spark.io.places import JsonFiles, ParquetFiles, ReadTopics, WrittenTopic

    made = spark.range(count, numPartitions=_PARTITIONS).mapInArrow(
        _records, "offset long, key binary, value binary"
    )
    raw_path, spaced_path = str(folder / "raw"), str(folder / "spaced")
    made.write.parquet(raw_path)
    raw = spark.read.parquet(raw_path)
    spaced = F.expr("cast(replace(cast(value as string), ',', ', ') as binary)")
    raw.withColumn("value", spaced).write.parquet(spaced_path)
    asyncio.run(_make(bootstrap, "bench"))
    sender = raw.select("key", "value").write.format("kafka").option("topic", "bench")
    sender.option("kafka.bootstrap.servers", bootstrap).save()
    topics, parquet = ReadTopics(bootstrap, "bench"), ParquetFiles(str(folder / "parquet"))
    json = JsonFiles(str(folder / "json"))
    elements = decode_records(raw)
    write_elements(elements, parquet, order=None)
    write_elements(elements, json, order=None)
    natively = F.from_json(F.col("value").cast("string"), _WIRE)

    def timed(name: str, work: Callable[[], object]) -> None:
        took = [spent(work) for _ in range(runs + 1)][1:]
        report(name, "k/s", [count / clock / 1e3 for clock, _ in took])
        report(f"{name}: processors", "µs", [busy / count * 1e6 for _, busy in took])

    def reads(name: str, make: Callable[[], Any]) -> None:
        timed(name, lambda: make().write.format("noop").mode("overwrite").save())

    reads("Kafka: records as they are", lambda: kafka_records(spark, topics))
    reads("Kafka: elements", lambda: read_elements(spark, topics))
    reads("Kafka: elements, no keys", lambda: read_elements(spark, topics, keys="none"))
    reads(
        "Kafka: from_json, payloads not canonical",
        lambda: kafka_records(spark, topics).select(natively.alias("e")).select("e.*"),
    )
    reads("raw records in Parquet: as they are", lambda: spark.read.parquet(raw_path))
    reads("raw records in Parquet: elements", lambda: decode_records(spark.read.parquet(raw_path)))
    reads(
        "raw records in Parquet: elements, spaced",
        lambda: decode_records(spark.read.parquet(spaced_path)),
    )
    reads(
        "raw records in Parquet: from_json, payloads not canonical",
        lambda: raw.select(natively.alias("e")).select("e.*"),
    )
    reads("JSON lines: elements", lambda: read_elements(spark, json))
    reads("Parquet: elements", lambda: read_elements(spark, parquet))
    ends = read_elements(spark, parquet).groupBy("payload", "vs").agg(F.max_by("ve", "offset"))
    reads("Parquet: elements, last end of each event", lambda: ends)
    ends = (
        read_elements(spark, topics, keys="none")
        .groupBy("payload", "vs")
        .agg(F.max_by("ve", "offset"))
    )
    reads("Kafka: elements, last end of each event", lambda: ends)
    sinks = iter(range(runs + 1))

    def write() -> None:
        sink = WrittenTopic(bootstrap, f"bench.{next(sinks)}", partitions=_PARTITIONS)
        write_elements(read_elements(spark, parquet), sink, order=["offset"])

    timed("Parquet to Kafka, in order", write)


def _records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """An insert and its adjust for each event, and a stable after every 50 of them."""
    for batch in batches:
        numbers = batch.column(0).to_pylist()
        keys: list[bytes | None] = []
        values = []
        for number in numbers:
            payload, vs = flight(number // 2), 1_700_000_000_000 + 10 * (number // 2)
            if number % 100 == 99:
                element: Any = Stable(vs)
            elif number % 2:
                element = Adjust(payload, vs, vs + 60_000, vs + 50_000)
            else:
                element = Insert(payload, vs, vs + 60_000)
            keys.append(None if type(element) is Stable else payload)
            values.append(encode(element))
        arrays = [pa.array(numbers), pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
        yield pa.RecordBatch.from_arrays(arrays, ["offset", "key", "value"])


def spent(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of processors."""
    before, started = busy_seconds(), time.perf_counter()
    work()
    return time.perf_counter() - started, busy_seconds() - before


def busy_seconds() -> float:
    """Of the processors: Spark's processes, which are our children but for the broker."""
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "kafka.Kafka" not in child.cmdline():
                total += sum(child.cpu_times()[:4])
    return total


async def _make(bootstrap: str, topic: str) -> None:
    async with Topics(Connection(bootstrap)) as topics:
        await topics.ensure(topic, partitions=_PARTITIONS)
