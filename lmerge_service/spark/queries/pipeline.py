r"""A query as a Structured Streaming job: from the topic of facts to records of elements.

Theory
    One stateful operator, `transformWithState`, keyed by the output's partition; it is given three
    kinds of row (`bucket.InputRow`):

        facts ──┬─▶ SQL of the query ─▶ rows, each to the partition of its key ──────┐
                └─▶ offsets and times ─▶ pieces, each to every partition ────────────┼─▶ bucket
        feedback of the merge ─────────▶ points, each to every partition ────────────┘

    So every partition of the output is called in every batch, also one that gets no rows, and all
    decide alike. Neither watermarks nor timers of Spark are used. The output of a batch leaves the
    operator in order, and Kafka's sink writes it from the same task: data, then the stable.

    The facts are read twice, since the SQL may leave out what the pieces must count.

Who owns what
    The state, one value per output partition, is Spark's: it is kept with the checkpoint, and
    taken and replaced as a whole in each batch. It is as large as what is not final. What a job
    begins with that resumes (`resuming`) goes to the workers with the operator, and counts until
    there is a state.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StructField, StructType

from lmerge_service.elements import INFINITY, START, Element, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.routing import Router
from lmerge_service.formats.wire import encode
from lmerge_service.replicas.lateness import FURTHEST, RowReader
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.elements import kafka_records
from lmerge_service.spark.io.encoding import canonical_payload, placement
from lmerge_service.spark.io.places import ReadTopics
from lmerge_service.spark.queries.bucket import BatchResult, InputRow, QueryBucket, QuerySettings
from lmerge_service.spark.queries.chosen import Chosen
from lmerge_service.spark.queries.plans import FactsSource, Query
from lmerge_service.spark.silence import silence_stdout

__all__ = ("BucketProcessor", "QueryJob", "given", "records")

silence_stdout()

_SAVED: Final = StructType([StructField("saved", BinaryType())])
_PIECES: Final = "partition int, offset long, data string, rows long, refused long"
_COUNTS: Final = {
    "rows": "rows",
    "late": "late",
    "skipped": "skipped",
    "mark": "watermark",
    "point": "point",
    "kept": "kept",
}
"""Columns, by what they are called in a `BatchResult`."""
_OUTPUT: Final = "partition int, key binary, value binary, " + ", ".join(
    f"{name} long" for name in _COUNTS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryJob:
    """All that a job is made of."""

    query: Query
    facts: ReadTopics
    settings: QuerySettings
    partitions: int
    """Of the output."""
    feedback: ReadTopics | None = None
    saved: Sequence[bytes] = ()
    """The buckets to begin with, by output partition; none: empty ones."""


def records(spark: SparkSession, job: QueryJob) -> DataFrame:
    """(partition, key, value) of the output's records, and what each batch came to: rows without a
    value, which `_COUNTS` are of. The session gets a view `facts`.

    Raises:
        ConfigurationError: the query's SQL is not what it must be.
    """
    with spark_errors(f"query {job.query.name}"):
        facts = kafka_records(spark, job.facts, streaming=True)
        points = None
        if job.feedback is not None:
            points = kafka_records(spark, job.feedback, streaming=True)
        processor = BucketProcessor(job.settings, job.partitions, job.query.key, job.saved)
        grouped = given(spark, job, facts, points).groupBy("bucket")
        return grouped.transformWithStateInPandas(processor, _OUTPUT, "Append", "None")


def given(
    spark: SparkSession, job: QueryJob, facts: DataFrame, feedback: DataFrame | None = None
) -> DataFrame:
    """(bucket, kind, partition, offset, time, data) of raw records: what the buckets are given."""
    read = _timed(facts, job.query.source)
    pieces = _to_all(_pieces(read, job.settings.lateness), "piece", job.partitions)
    rows = _rows(spark, read, job.query, job.partitions).unionByName(pieces)
    if feedback is None:
        return rows
    text = feedback.select("partition", "offset", F.col("value").cast("string").alias("data"))
    points = text.where(F.col("data").isNotNull())
    return rows.unionByName(_to_all(points, "point", job.partitions))


def _timed(raw: DataFrame, source: FactsSource) -> DataFrame:
    """The facts with `at`: partition, offset and time; START where there is none, INFINITY at the
    end."""
    fact = F.from_json(F.col("value").cast("string"), source.schema)
    read = raw.select("partition", "offset", fact.alias("fact"))
    read = read.select(F.struct("partition", "offset").alias("at"), "fact.*")
    found = F.expr(source.time).cast("long")
    time = (
        F.when(F.expr(source.ends), F.lit(INFINITY))
        .when((found > -FURTHEST) & (found < FURTHEST), found)
        .otherwise(F.lit(START))
    )
    return read.withColumn("at", F.struct("at.partition", "at.offset", time.alias("time")))


def _rows(spark: SparkSession, read: DataFrame, query: Query, partitions: int) -> DataFrame:
    facts = read.where((F.col("at.time") > START) & (F.col("at.time") < INFINITY))
    if callable(query.rows):
        chosen = query.rows(facts)
    else:
        facts.createOrReplaceTempView("facts")
        chosen = spark.sql(query.rows.sql if isinstance(query.rows, Chosen) else query.rows)
    for name in ("at", *query.key):
        if name not in chosen.columns:
            raise ConfigurationError(f"query {query.name}: its rows lack the column {name}")
    columns = [name for name in chosen.columns if name != "at"]
    data = F.to_json(F.struct(*columns)).alias("data")
    rows = chosen.select("at", *columns, data)
    if partitions == 1:
        bucket = F.lit(0)
    else:
        key = canonical_payload(F.to_json(F.struct(*query.key)))
        rows = rows.withColumn("payload", key)
        bucket = placement(partitions, query.key)["partition"]
    return rows.select(bucket.alias("bucket"), F.lit("row").alias("kind"), "at.*", "data")


def _pieces(read: DataFrame, lateness: int) -> DataFrame:
    pieces = read.select("at.*").mapInArrow(_reading(lateness), _PIECES)
    counted = pieces.observe(
        "facts", F.sum("rows").alias("rows"), F.sum("refused").alias("refused")
    )
    return counted.drop("rows", "refused")


def _reading(lateness: int) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """For `mapInArrow`: from (partition, offset, time) of a task to its pieces."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        readings: dict[int, RowReader] = {}
        for batch in batches:
            partitions, offsets, times = (
                batch.column(name).to_numpy(zero_copy_only=False)
                for name in ("partition", "offset", "time")
            )
            for partition in np.unique(partitions).tolist():
                its = partitions == partition
                reading = readings.setdefault(partition, RowReader(lateness))
                reading.take(offsets[its], times[its])
        found = [(number, each.piece()) for number, each in readings.items()]
        pieces = [(number, piece) for number, piece in found if piece is not None]
        yield pa.RecordBatch.from_pydict(
            {
                "partition": pa.array([number for number, _ in pieces], pa.int32()),
                "offset": pa.array([piece.first for _, piece in pieces], pa.int64()),
                "data": pa.array([msgspec.json.encode(piece).decode() for _, piece in pieces]),
                "rows": pa.array([piece.rows for _, piece in pieces], pa.int64()),
                "refused": pa.array([piece.refused for _, piece in pieces], pa.int64()),
            }
        )

    return read


def _to_all(frame: DataFrame, kind: str, partitions: int) -> DataFrame:
    everywhere = F.explode(F.sequence(F.lit(0), F.lit(partitions - 1)))
    return frame.select(
        everywhere.alias("bucket"),
        F.lit(kind).alias("kind"),
        "partition",
        "offset",
        F.lit(0).cast("long").alias("time"),
        "data",
    )


class BucketProcessor(StatefulProcessor):
    """A `QueryBucket` in Spark: its state is one value, its output are records."""

    def __init__(
        self,
        settings: QuerySettings,
        partitions: int,
        key: tuple[str, ...],
        saved: Sequence[bytes] = (),
    ) -> None:
        self._settings = settings
        self._partitions = partitions
        self._key = key
        self._saved = saved

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Takes the handle of Spark's state store. Called by Spark before anything else."""
        self._state = handle.getValueState("bucket", _SAVED)
        self._router = Router(self._partitions, self._key)

    def handleInputRows(  # noqa: N802 (Spark's name)
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Any]:
        """Runs a batch of bucket `key[0]`; yields one frame: its records, then a row of counts."""
        number = int(key[0])
        bucket = QueryBucket(self._settings, self._of(number))
        result = bucket.batch(_given(rows))
        self._state.update((bucket.save(),))
        yield self._records(number, result)

    def _of(self, number: int) -> bytes | None:
        if (kept := self._state.get()) is not None:
            return bytes(kept[0])
        return self._saved[number] if self._saved else None

    def close(self) -> None:
        pass

    def _records(self, number: int, result: BatchResult) -> pd.DataFrame:
        """The last row has the counts of the batch."""
        elements = result.elements
        columns: dict[str, Any] = {
            "partition": np.full(len(elements) + 1, number, np.int32),
            "key": [*map(self._key_of, elements), None],
            "value": [*map(encode, elements), None],
        }
        for name, attribute in _COUNTS.items():
            counts = np.zeros(len(elements) + 1, np.int64)
            counts[-1] = getattr(result, attribute)
            columns[name] = counts
        return pd.DataFrame(columns)

    def _key_of(self, element: Element) -> bytes | None:
        if isinstance(element, Stable):
            return None
        assert isinstance(element.payload, bytes)
        return self._router.key_of(element.payload)


def _given(frames: Iterator[pd.DataFrame]) -> Iterator[InputRow]:
    names = ("kind", "partition", "offset", "time", "data")
    for frame in frames:
        yield from map(InputRow, *(frame[name].tolist() for name in names))
