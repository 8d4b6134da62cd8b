"""Presentations of a logical stream that is stored somewhere, of any size.

Theory
    The elements of an event depend on the event and the variation alone (`emission`), so they are
    made where the event is read, its number being a hash of payload and vs. Then all elements are
    sorted by send time, and what the sort leaves in one partition is a piece (`pieces`). Three
    passes over the sorted elements: the least deadline of each piece, its summary, its rows.

Invariants
    D1  The stream is legal and means the stored events, whatever variation and seed are.
    D2  It does not depend on how the events lie, nor on the number of tasks.

Cost
    One sort of all elements, kept on disk until the session ends or the frame is unpersisted;
    in memory a piece, about 250,000 elements.
"""

from collections.abc import Callable, Iterator
from dataclasses import astuple
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ConfigurationError
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.generator.emission import Emitted, Events, emit
from lmerge_service.spark.generator.pieces import StreamPiece, Summary, ending, places
from lmerge_service.spark.generator.randomness import Draws
from lmerge_service.spark.generator.slices import check_variation
from lmerge_service.spark.io.schema import ELEMENT
from lmerge_service.workloads.presentation import Variation

__all__ = ("inserts_of", "mean_length", "presented")

_EMITTED: Final = "send long, serial long, payload string, vs long, vold long, ve long, limit long"
_ROWS: Final = "offset long, op string, payload string, vs long, vold long, ve long, vc long"
_SORT: Final = ("send", "serial", "payload", "vs", "ve", "vold")
_NUMBERS: Final = 1 << 54  # times the steps of an event they are still int64
_PIECE_ROWS: Final = 250_000
_BATCH_ROWS: Final = 1 << 12
_EMPTY: Final = astuple(Summary(0, 0, START, START))


def presented(
    events: DataFrame, variation: Variation, seed: str = "0", *, tasks: int | None = None
) -> DataFrame:
    """The elements of a presentation of events, with the columns of `ELEMENT`, source, partition
    and offset; otherwise as `job.generated`.

    `events` has the columns payload, vs, ve; (payload, vs) need not be a key.

    Raises:
        ConfigurationError: an event lies too far in the past to be sent earlier.
        StateError: they cannot be read.
    """
    check_variation(variation)
    spark, draws = events.sparkSession, Draws(f"{seed} stored presentation")
    with spark_errors("presenting"):
        tasks = tasks or _tasks(events, variation)
        emitted = _emitted(events, variation, draws).repartitionByRange(tasks, *_SORT)
        emitted = emitted.sortWithinPartitions(*_SORT).persist(StorageLevel.DISK_ONLY)
        coming = _coming(emitted, tasks)
        counted = _answers(emitted, "serial", "limit", reduce=_summary(coming, variation, draws))
        summaries = (Summary(*counted.get(number, _EMPTY)) for number in range(tasks))
        place = places(summaries)

    def rows(number: int, table: pa.Table) -> Iterator[pa.RecordBatch]:
        payloads = table.column("payload").combine_chunks()
        piece = StreamPiece(_columns(table), coming[number], variation, draws)
        return piece.rows(place[number], lambda at: payloads.take(pa.array(at)), _BATCH_ROWS)

    made = emitted.mapInArrow(_of_piece(rows), _ROWS)
    if variation.closed:
        end = spark.range(0, 1, 1, 1).mapInArrow(lambda _: iter([ending(place[-1])]), _ROWS)
        made = made.union(end)
    origin = (F.lit(f"presented-{seed}").alias("source"), F.lit(0).alias("partition"), "offset")
    return made.select(*origin, *ELEMENT.names)


def _tasks(events: DataFrame, variation: Variation) -> int:
    """So many that a piece fits into memory."""
    found = events.agg(F.count("*").alias("count"), F.min("vs").alias("first")).first()
    assert found is not None
    if found["count"] and found["first"] < START // 2:
        raise ConfigurationError(f"an event begins at {found['first']}, below {START // 2}")
    most = 2 + (variation.revisions if variation.provisional else 0)
    parallel: int = events.sparkSession.sparkContext.defaultParallelism
    return max(2 * parallel, int(found["count"]) * most // _PIECE_ROWS)


def inserts_of(records: DataFrame) -> DataFrame:
    """The events of a stream that consists of inserts alone; stables are ignored.

    An adjust, or a record that is no element, fails the query.
    """
    place = F.concat_ws(" ", "source", F.lit("at"), "offset")
    adjust = F.concat(place, F.lit(": an adjust, but a logical stream consists of inserts alone"))
    refused = F.concat(place, F.lit(": "), F.col("message"))
    vs = F.when(F.col("op") == "insert", F.col("vs")).otherwise(
        F.raise_error(F.when(F.col("op") == "adjust", adjust).otherwise(refused))
    )
    events = records.where(F.col("op").isNull() | (F.col("op") != "stable"))
    return events.select("payload", vs.alias("vs"), "ve")


def mean_length(events: DataFrame) -> int:
    """Of the events that end; the usual displacement and spread."""
    length = (F.col("ve").cast("decimal(20)") - F.col("vs").cast("decimal(20)")).alias("length")
    with spark_errors("presenting"):
        found = (
            events.where(F.col("ve") < INFINITY)
            .select(length)
            .agg(F.sum("length").alias("sum"), F.count("*").alias("count"))
            .first()
        )
    assert found is not None
    return max(1, int(found["sum"]) // found["count"]) if found["count"] else 1


def _emitted(events: DataFrame, variation: Variation, draws: Draws) -> DataFrame:
    number = F.pmod(F.xxhash64("payload", "vs"), F.lit(_NUMBERS)).alias("number")

    def emitted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers, vs, ve = (batch.column(name).to_numpy() for name in ("number", "vs", "ve"))
            elements = emit(Events(numbers, vs, ve, np.arange(len(numbers))), variation, draws)
            yield pa.RecordBatch.from_pydict(
                {
                    "send": elements.send,
                    "serial": elements.serial,
                    "payload": batch.column("payload").take(pa.array(elements.event)),
                    **{name: getattr(elements, name) for name in ("vs", "vold", "ve", "limit")},
                }
            )

    return events.select("payload", "vs", "ve", number).mapInArrow(emitted, _EMITTED)


def _coming(emitted: DataFrame, tasks: int) -> list[int]:
    """The least deadline of what follows each piece."""

    def least(_: int, table: pa.Table) -> tuple[int, ...]:
        return (int(_longs(table, "limit").min()),)

    found = _answers(emitted, "limit", reduce=least)
    limits = [found.get(number, (INFINITY,))[0] for number in range(tasks)]
    return list(accumulate(reversed(limits[1:]), min, initial=INFINITY))[::-1]


def _summary(
    coming: list[int], variation: Variation, draws: Draws
) -> Callable[[int, pa.Table], tuple[int, ...]]:
    def summary(number: int, table: pa.Table) -> tuple[int, ...]:
        return astuple(StreamPiece(_columns(table), coming[number], variation, draws).summary())

    return summary


def _answers(
    emitted: DataFrame, *columns: str, reduce: Callable[[int, pa.Table], tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    """What `reduce` returns for each piece that is not empty, by its number."""

    def row(number: int, table: pa.Table) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"number": [number], "answer": [reduce(number, table)]})

    answers = emitted.select(*columns).mapInArrow(_of_piece(row), "number long, answer array<long>")
    return {each["number"]: tuple(each["answer"]) for each in answers.collect()}


def _of_piece(
    made: Callable[[int, pa.Table], Iterator[pa.RecordBatch]],
) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """For `mapInArrow`: a piece as a whole, and its number."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        held = list(batches)
        if held:
            yield from made(context.partitionId(), pa.Table.from_batches(held))

    return rows


def _columns(table: pa.Table) -> Emitted:
    """Rows as elements, each of an event of its own, which is its row."""
    rows = np.arange(len(table))
    absent = np.zeros(len(table), np.int64)

    def column(name: str) -> Any:
        return _longs(table, name) if name in table.column_names else absent

    names = Emitted.__dataclass_fields__
    return Emitted(*(rows if name == "event" else column(name) for name in names))


def _longs(table: pa.Table, name: str) -> Any:
    return table.column(name).to_numpy()
