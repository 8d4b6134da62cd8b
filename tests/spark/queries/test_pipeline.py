"""Plans in Spark: stages and the native plan over files as streams, stopped and gone on with."""

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import Adjust, Element
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.queries.expressions import col, udf
from lmerge_service.queries.physical import PhysicalPlan, physical
from lmerge_service.queries.plan import Query, average, count, hopping, sum_
from lmerge_service.queries.properties import check_native
from lmerge_service.spark.queries.compiling import StagesQuery, records
from lmerge_service.spark.queries.native import native_records
from tests.spark.queries.stage_runs import (
    QUERIES,
    Batch,
    batches_of,
    departed,
    events_of,
    flights,
    hourly,
    meant,
    query_of,
    random_topics,
    refused,
)

RAW = "partition int, offset long, value binary"
STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Files:
    """Batches of facts as files, of which a micro-batch takes one of each source."""

    def __init__(self, spark: SparkSession, folder: Path, names: Sequence[str], native: bool):
        self.folder, self.names = folder, names
        self.spark = spark.newSession()
        for name, value in {
            "spark.sql.streaming.stateStore.providerClass": STORE,
            "spark.sql.streaming.noDataMicroBatches.enabled": str(native).lower(),
            "spark.sql.shuffle.partitions": "2",
        }.items():
            self.spark.conf.set(name, value)

    def write(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            for name in self.names:
                frame = self.spark.createDataFrame(batch[name], RAW).coalesce(1)
                frame.write.mode("append").parquet(str(self.folder / name))
            time.sleep(0.02)  # files are taken in the order of their times

    def run(self, query: StagesQuery, native: bool) -> None:
        """Until all files are taken."""
        facts = {name: self._stream(name) for name in self.names}
        output = (native_records if native else records)(query, facts)
        writer = output.writeStream.format("parquet").option("path", str(self.folder / "out"))
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        trigger: dict[str, Any] = {"availableNow": True}
        writer.trigger(**trigger).start().awaitTermination()

    def _stream(self, name: str) -> DataFrame:
        reader = self.spark.readStream.schema(RAW).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / name)).select(
            "*",
            F.lit(None).cast("binary").alias("key"),
            F.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"),
        )

    def streams(self, partitions: int) -> list[list[Element]]:
        """What is written, each partition's records in the order of their numbers, without gaps."""
        decoder = WireDecoder()
        written = self.spark.read.parquet(str(self.folder / "out"))
        rows = written.where("letter IS NULL").orderBy("seq").collect()
        found: list[list[Element]] = [[] for _ in range(partitions)]
        for row in rows:
            found[row["partition"]].append(decoder.decode(bytes(row["value"])))
            assert row["seq"] == len(found[row["partition"]])
        return found

    def dead(self) -> list[bytes]:
        """The values of the dead letters."""
        written = self.spark.read.parquet(str(self.folder / "out"))
        rows = written.where("letter IS NOT NULL").collect()
        return sorted(bytes(row["value"]) for row in rows)


def check(
    spark: SparkSession,
    folder: Path,
    query: Query,
    plan: PhysicalPlan,
    native: bool = False,
    most: int = 30,
) -> list[list[Element]]:
    """The output of a plan that is stopped midway, in batches of at most so many facts of each
    partition, against what the query means."""
    drawn = (random_topics(Random(seed), query, 50) for seed in itertools.count(3))
    topics = next(each for each in drawn if meant(query, each))
    batches = batches_of(topics, Random(5), most)
    files = Files(spark, folder, [*topics], native)
    staged = query_of(plan, topics, 2, str(folder), tasks=2)
    half = len(batches) // 2
    for some in filter(None, (batches[:half], batches[half:])):
        files.write(some)
        files.run(staged, native)
    streams = files.streams(2)
    assert events_of(streams) == meant(query, topics)
    assert files.dead() == refused(query, topics)
    return streams


@pytest.mark.full
def test_two_stages_in_spark_emit_what_the_query_means(spark: SparkSession, tmp_path: Path) -> None:
    query = QUERIES["windows over windows"]
    check(spark, tmp_path, query, physical(query))


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        *("two branches", "two sources", "a diamond", "an aggregate of all"),
        *("no duplicates", "facts and elements"),
    ],
)
def test_other_plans_in_spark_too(name: str, spark: SparkSession, tmp_path: Path) -> None:
    check(spark, tmp_path, QUERIES[name], physical(QUERIES[name], emit="on_close"))


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_native_plan_emits_what_the_query_means(spark: SparkSession, tmp_path: Path) -> None:
    streams = check(spark, tmp_path, hourly, physical(hourly), native=True)
    assert not any(isinstance(each, Adjust) for stream in streams for each in stream)
    assert all(len(stream) > 3 for stream in streams)


UNFIT = {
    "ends with the aggregates": departed,
    "its windows leave gaps": departed.windows(hopping(5, every=9)).aggregate(n=count()),
    "mean is no count": departed.windows(hopping(9, every=3)).aggregate(mean=average("delay")),
    "adds floats": departed.windows(hopping(9, every=3)).aggregate(fares=sum_("fare")),
    "calls a function of Python": flights.where(udf("math:isfinite", col.fare, returns=bool))
    .windows(hopping(9, every=3))
    .aggregate(n=count()),
    "more than selected columns": departed.window(5)
    .windows(hopping(9, every=3))
    .aggregate(n=count()),
}


@pytest.mark.parametrize("why", UNFIT)
def test_a_plan_that_spark_cannot_compute_is_refused_in_one_line(why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^--native: .*{why}.*: leave it out to run "):
        check_native(UNFIT[why].plan)
