"""The merge in Spark: its rate beside Spark's own deduplication of the same topics, and what a
small batch takes with few and with many live events.

Topics have three presentations of one stream (`inputs`), two partitions each; the broker is on the
same machine, Spark on `local[2]`, and before it on `local[1]`. Rates are of all micro-batches but
the first two of a query, which warm up, and go by the query's own clock; so both ways write all
that they write to Kafka. Beside them stands what a record took of the processors meanwhile, as in
`spark`. The same for more buckets shows what those cost.
The baseline is what a user of Spark would write: `from_json`, a watermark, and
`dropDuplicatesWithinWatermark` by payload and vs, which knows neither revisions nor stables.
"""

import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from benchmarks.inputs import lazily
from benchmarks.spark import busy_seconds
from lmerge_service.config.topology import Topology
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import LocalBroker

__all__ = ("run",)

Report = Callable[[str, str, Sequence[float]], None]

_WIDTH = 2
_BUCKETS = (4, 16, 64)
_BATCH = 200_000
_BATCHES = 8
_WARM_UP = 2
_SMALL = 100
_WIRE = "op string, payload string, vs long, ve long"


def run(events: int, live: Sequence[int], report: Report) -> None:
    """Merges three replicas of so many events; then small batches beside so many live events."""
    from lmerge_service.spark.session import spark_session

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalBroker(Path(folder) / "kafka") as broker,
    ):
        for name, stream in zip("abc", lazily(events), strict=True):
            asyncio.run(_publish(broker.bootstrap, f"rate.{name}", stream))
        batch = 3 * events // _BATCHES
        with spark_session("benchmark", master="local[1]") as spark:
            alone = _Bench(spark, broker.bootstrap, Path(folder), report).merged(1, batch)
        with spark_session("benchmark", master="local[2]") as spark:
            bench = _Bench(spark, broker.bootstrap, Path(folder), report)
            both = bench.merged(2, batch)
            report("merge: two cores / one", "x", [both.rate / alone.rate])
            few, *more = [bench.merged(2, batch, buckets) for buckets in _BUCKETS]
            for buckets, way in zip(_BUCKETS[1:], more, strict=True):
                name = f"merge: {buckets} buckets / {_BUCKETS[0]}, processors"
                report(name, "x", [way.work / few.work])
            bench.deduplicated(batch, both)
            for count in live:
                bench.small_batches(count)


@dataclass(frozen=True, slots=True)
class _Step:
    """A micro-batch, and what Spark's processes had taken of the processors when it was through."""

    records: int
    seconds: float
    busy: float


@dataclass(frozen=True, slots=True)
class _Way:
    """How a query went once it was warm."""

    rate: float
    """The median of its batches, in records a second."""
    work: float
    """Seconds of the processors a record."""


@dataclass(frozen=True, slots=True)
class _Bench:
    spark: Any
    bootstrap: str
    folder: Path
    report: Report

    # --- rates ----------------------------------------------------------------------------------

    def merged(self, cores: int, batch: int, buckets: int = _WIDTH) -> _Way:
        """The merge of three replicas by so many cores."""
        from lmerge_service.spark.merge.job import BatchProgress, JobSettings, MergeJob

        found: list[_Step] = []

        def report(progress: BatchProgress) -> None:
            found.append(_Step(progress.records, progress.seconds, busy_seconds()))

        name = f"{cores}x{buckets}"
        topology = _topology(self.bootstrap, "rate", "abc", buckets, output=f"rate.out{name}")
        checkpoint = str(self.folder / f"rate{name}")
        settings = JobSettings(checkpoint, available_now=True, batch_records=batch)
        MergeJob(topology, settings, report=report).run(self.spark)
        return self._rate_of(f"merge, {buckets} buckets, local[{cores}]", found, batch)

    def deduplicated(self, batch: int, merged: _Way) -> None:
        """The baseline, and how the merge compares."""
        baseline = self._rate_of("dropDuplicatesWithinWatermark", self._deduplicated(batch), batch)
        self.report("merge / deduplication: rate", "x", [merged.rate / baseline.rate])
        self.report("merge / deduplication: processors", "x", [merged.work / baseline.work])

    def _rate_of(self, name: str, steps: Sequence[_Step], batch: int) -> _Way:
        full = [each for each in steps[_WARM_UP:] if each.records > batch // 2]
        rates = [each.records / each.seconds for each in full]
        work = (full[-1].busy - steps[_WARM_UP - 1].busy) / sum(each.records for each in full)
        self.report(name, "k/s", [each / 1e3 for each in rates])
        self.report(f"{name}: processors", "µs", [work * 1e6])
        return _Way(statistics.median(rates), work)

    def _deduplicated(self, batch: int) -> list["_Step"]:
        from pyspark.sql import functions as F  # noqa: N812

        from lmerge_service.spark.io.elements import kafka_records
        from lmerge_service.spark.io.places import ReadTopics as Read

        source = Read(
            self.bootstrap,
            [f"rate.{name}" for name in "abc"],
            options={"maxOffsetsPerTrigger": str(batch), "kafka.fetch.max.wait.ms": "20"},
        )
        published = F.from_json(F.col("value").cast("string"), _WIRE)
        records = kafka_records(self.spark, source, streaming=True)
        events = records.select("value", published.alias("e")).where("e.op = 'insert'")
        once = (
            events.select(
                "value",
                F.col("e.payload").alias("payload"),
                F.col("e.vs").alias("vs"),
                F.timestamp_millis("e.vs").alias("at"),
            )
            .withWatermark("at", "10 minutes")
            .dropDuplicatesWithinWatermark(["payload", "vs"])
        )
        asyncio.run(_make(self.bootstrap, "rate.once"))
        store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        self.spark.conf.set("spark.sql.streaming.stateStore.providerClass", store)
        query = (
            once.select("value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("topic", "rate.once")
            .option("checkpointLocation", str(self.folder / "once"))
            .trigger(availableNow=True)
            .start()
        )
        found: list[_Step] = []
        ended: bool | None = False
        while not ended:
            ended = query.awaitTermination(1)
            for each in query.recentProgress[len(found) :]:
                seconds = each["durationMs"]["triggerExecution"] / 1e3
                found.append(_Step(each["numInputRows"], seconds, busy_seconds()))
        return found

    # --- small batches --------------------------------------------------------------------------

    def small_batches(self, live: int) -> None:
        """So many events are live in one bucket; then some are published, batch by batch."""
        from lmerge_service.spark.merge.job import BatchProgress, JobSettings, MergeJob

        name = f"small{live}"
        many = (Insert(b'{"event":%d}' % n, n, INFINITY) for n in range(live))
        asyncio.run(_publish(self.bootstrap, f"{name}.a", many, width=1))
        found: list[BatchProgress] = []
        settings = JobSettings(str(self.folder / name), batch_records=_BATCH)
        topology = _topology(self.bootstrap, name, "a", buckets=1)
        job = MergeJob(topology, settings, report=found.append)
        thread = threading.Thread(target=job.run, args=(self.spark,))
        thread.start()
        try:
            published = live
            _wait(lambda: sum(each.records for each in found) >= live)
            before = len(found)
            for _ in range(20):
                some = [
                    Insert(b'{"event":%d}' % (published + n), published + n, INFINITY)
                    for n in range(_SMALL)
                ]
                asyncio.run(_publish(self.bootstrap, f"{name}.a", [*some, Stable(0)], width=1))
                published += _SMALL
                seen = len(found)
                _wait(lambda: len(found) > seen)  # noqa: B023
            spent = [each.seconds for each in found[before:]]
        finally:
            job.stop.set()
            thread.join()
        self.report(f"a batch of {_SMALL}, {live:,} live events", "s", spent)


def _wait(holds: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def _topology(
    bootstrap: str, name: str, replicas: str, buckets: int = _WIDTH, *, output: str | None = None
) -> Topology:
    return Topology.model_validate(
        {
            "name": name,
            "kafka": {"bootstrap": bootstrap},
            "output": {"topic": output or f"{name}.out", "partitions": buckets},
            "replicas": [{"name": each, "topic": f"{name}.{each}"} for each in replicas],
        }
    )


async def _make(bootstrap: str, topic: str, width: int = _WIDTH) -> None:
    async with Topics(Connection(bootstrap)) as topics:
        await topics.ensure(topic, partitions=width)


async def _publish(
    bootstrap: str, topic: str, elements: Iterable[Element], width: int = _WIDTH
) -> None:
    """An event is in the partition of its payload; stables are in each."""
    await _make(bootstrap, topic, width)
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, linger_ms=20, max_batch_size=1 << 18
    ) as producer:
        for element in elements:
            value = encode(element)
            if isinstance(element, Stable):
                for partition in range(width):
                    await producer.send(topic, value, partition=partition)
            else:
                await producer.send(topic, value, partition=sum(element.payload) % width)
        await producer.flush()
