"""What was true at a time, and what was known of it at another.

Theory
    *Valid time* t is the stream's own: an event is true from vs until before ve. *System time* s
    is the stream's progress: a version is known from the element that opened it until before the
    one that closed it. s is an offset, or one for each partition, or a time of records in
    milliseconds since the epoch: the same question asked of a prefix. Only the last incarnation
    that has begun by then counts.

    One condition serves Spark and Arrow, which both have columns that compare. A file is
    left unread if its statistics in Delta Lake's log rule it out.

Invariants
    A1  Without t, what is known at s is the TDB of the prefix up to and including s.
    A2  Which events were true at a time before the table's stable point is final; their ends
        may move, to the stable point or behind it.
    A3  A frame reads one version of the table, however long it lives and whatever is written
        meanwhile.

Cost
    Only files that may hold an answer are read, and in them only row groups whose statistics
    allow it. Without Spark no JVM has to start for an answer.
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.bulk import Rule
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.session import require_delta
from lmerge_service.spark.table.delta import Snapshot, existing
from lmerge_service.spark.table.versions import COLUMNS, SCHEMA
from lmerge_service.tdb import TDB

__all__ = ("Known", "answer", "held", "known_at", "read_versions", "true_at")

Known: TypeAlias = int | Mapping[int, int] | None
"""At a record time, in milliseconds; at an offset of each partition, that one included; now."""

_Condition: TypeAlias = Any  # a column of Spark's, or an expression of Arrow's


def true_at(spark: SparkSession, path: str, valid: int, known: Known = None) -> DataFrame:
    """The events that are true at `valid`, as they were known at `known`.

    Rows are versions, with the columns of `versions.SCHEMA`.

    Raises:
        ConfigurationError: there is no table, or it has no record times and is asked for one.
    """
    return _frame(spark, path, valid, known)


def known_at(spark: SparkSession, path: str, known: Known = None) -> DataFrame:
    """All events that were known at `known`: the TDB of that prefix; otherwise as `true_at`."""
    return _frame(spark, path, None, known)


def answer(
    path: str, valid: int | None, known: Known = None
) -> tuple[Snapshot, Iterator[pa.RecordBatch]]:
    """The same without Spark, in batches; and the version of the table that they are of.

    Raises:
        ConfigurationError: as `true_at`.
        StateError: a file is missing or damaged; raised when it is read.
    """
    table = existing(path)
    condition = _matching(pc.field, table, valid, known)
    return table, iter(()) if condition is None else table.batches(condition)


def held(path: str, rule: Rule) -> TDB:
    """What the table's stream holds by now, less what has ended below its stable point.

    Raises:
        ConfigurationError: there is no table, or it is one by another rule, or of a replica that
            has started over: from when on it is correct is not in a table.
        StateError: a file is damaged.
    """
    table, batches = answer(path, None)
    if table.rule != rule.version:
        raise ConfigurationError(
            f"{path} has payloads by rule {table.rule}, not {rule.version} (nfc, drop_nulls)"
        )
    if table.incarnation > 0:
        raise ConfigurationError(
            f"{path} is of a replica that has started over, and a table does not state from when "
            "on it is correct: take a table of the merged stream"
        )
    live = (batch.filter(pc.field("ve") >= table.stable) for batch in batches)
    rows = (row for batch in live for row in zip(*_columns(batch), strict=True))
    return TDB(((payload.encode(), vs, ve) for payload, vs, ve in rows), table.stable)


def _columns(batch: pa.RecordBatch) -> list[list[Any]]:
    return [batch.column(name).to_pylist() for name in ("payload", "vs", "ve")]


def read_versions(spark: SparkSession, table: Snapshot) -> DataFrame:
    """The rows of a table, also when it has got another version since."""
    reader = spark.read.format("delta").option("versionAsOf", table.version)
    return reader.load(table.path)


def _matching(column: Any, table: Snapshot, valid: int | None, known: Known) -> _Condition | None:
    """The condition that an answer meets, of columns that `column` gives by name; None: none
    does."""
    _check(table, known)
    incarnation = _incarnation(table, known)
    if incarnation is None:
        return None
    condition = column("incarnation") == incarnation
    match known:
        case None:
            condition &= column("known_to") == INFINITY
        case int():
            condition &= (column("from_time") <= known) & (column("to_time") > known)
        case _:
            held = (
                (column("partition") == at)
                & (column("known_from") <= offset)
                & (column("known_to") > offset)
                for at, offset in known.items()
            )
            condition &= reduce(or_, held)
    if valid is not None:
        condition &= (column("vs") <= valid) & (column("ve") > valid)
    return condition


def _frame(spark: SparkSession, path: str, valid: int | None, known: Known) -> DataFrame:
    require_delta(spark)
    table = existing(path)
    condition = _matching(F.col, table, valid, known)
    if condition is None:
        return spark.createDataFrame([], SCHEMA)
    with spark_errors(f"reading {table.path}"):
        return read_versions(spark, table).where(condition).select(*COLUMNS)


def _check(table: Snapshot, known: Known) -> None:
    timed = any(each.time > START for each in table.progress)
    if isinstance(known, int) and table.incarnation >= 0 and not timed:
        raise ConfigurationError(
            f"the records of {table.source} have no times: ask by offset what was known"
        )


def _incarnation(table: Snapshot, known: Known) -> int | None:
    """The last that had begun; None: none had."""
    begun = (
        each.incarnation
        for each in table.progress
        if each.begun_offset >= 0
        and (
            known is None
            or (
                each.begun_time <= known
                if isinstance(known, int)
                else each.begun_offset <= known.get(each.partition, -1)
            )
        )
    )
    return max(begun, default=None)
