"""Generated streams as DataFrames: the slices of a presentation, made by Spark's tasks.

Theory
    Three passes over numbers of blocks, none of which moves a row: the gaps of each block are
    added up, the slices are counted, and then each makes its rows. The first two bring a few
    numbers for each block to the driver. A task makes slices that follow each other, and tasks
    follow each other too, so files that are written task by task are in order as they are.

Invariants
    J1  The frame's rows are the same whatever the session, its cores and `tasks` are; `offset`
        counts them from 0, without gaps, in the stream's order.

Cost
    Of a payload of a kilobyte making it takes most of the time, then handing it over. A Python
    worker has one slice in memory, and the payloads of 4 MB of rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.generator.pieces import Summary, ending, places
from lmerge_service.spark.generator.randomness import Longs
from lmerge_service.spark.generator.slices import Presentation
from lmerge_service.spark.io.schema import ELEMENT

__all__ = ("generated",)

_ROWS: Final = "offset long, op string, payload string, vs long, vold long, ve long, vc long"
_TASK_BYTES: Final = 256 << 20

Numbers = tuple[int, ...]


def generated(
    spark: SparkSession, presentation: Presentation, *, tasks: int | None = None
) -> DataFrame:
    """The elements of a presentation, with the columns of `ELEMENT`, source, partition, offset.

    `write_elements` keeps their order in files with `order=None`, in topics with
    `order=["offset"]`. `tasks` are by default such that each makes 256 MB of payloads at the most.
    """
    workload, blocks = presentation.workload, presentation.blocks
    if tasks is None:
        each = max(1, _TASK_BYTES // (presentation.block * workload.payload_bytes))
        tasks = max(2 * spark.sparkContext.defaultParallelism, -(-blocks // each))
    with spark_errors("generating"):
        starts = workload.starts(_sums(spark, presentation, tasks))
        found = places(_summaries(spark, presentation, starts, tasks))

    def rows(number: int) -> Iterator[pa.RecordBatch]:
        if number < blocks:
            yield from presentation.rows(number, starts, found[number])
        else:
            yield ending(found[number])

    count = blocks + presentation.variation.closed
    made = _numbers(spark, count, tasks).mapInArrow(_each(rows), _ROWS)
    name = f"generated-{workload.seed}-{presentation.seed}"
    origin = (F.lit(name).alias("source"), F.lit(0).alias("partition"), "offset")
    return made.select(*origin, *ELEMENT.names)


def _sums(spark: SparkSession, presentation: Presentation, tasks: int) -> list[int]:
    def added(number: int) -> Numbers:
        return tuple(presentation.workload.added([presentation.bounds(number)]))

    return [sum_ for (sum_,) in _answers(spark, presentation.blocks, tasks, added)]


def _summaries(
    spark: SparkSession, presentation: Presentation, starts: Longs, tasks: int
) -> list[Summary]:
    def counted(number: int) -> Numbers:
        return astuple(presentation.summary(number, starts))

    return [Summary(*each) for each in _answers(spark, presentation.blocks, tasks, counted)]


def _answers(
    spark: SparkSession, count: int, tasks: int, answer: Callable[[int], Numbers]
) -> list[Numbers]:
    """What `answer` returns for each number, in their order."""

    def row(number: int) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"number": [number], "answer": [answer(number)]})

    answers = _numbers(spark, count, tasks).mapInArrow(
        _each(row), "number long, answer array<long>"
    )
    return [tuple(each["answer"]) for each in sorted(answers.collect())]


def _numbers(spark: SparkSession, count: int, tasks: int) -> DataFrame:
    return spark.range(0, count, 1, min(count, tasks))


def _each(made: Callable[[int], Iterator[pa.RecordBatch]]) -> Callable[..., Any]:
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from made(number)

    return rows
