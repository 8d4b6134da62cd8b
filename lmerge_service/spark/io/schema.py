r"""The wire as a DataFrame: one row a record: its element and its origin.

Theory
    A row is an element, or a record that is refused:

    | column | type | |
    |---|---|---|
    | source | string | the topic, or the path of the file |
    | partition | int | of the topic; 0 for files |
    | offset | long | in the partition; for a line, of its first byte in the file |
    | timestamp | timestamp | the record's own time; null for files |
    | key | binary | of the record; kept for refused records, or as requested (`keys`) |
    | incarnation | long | of the replica, by its header; 0 without |
    | joining_at | long | the time from which the incarnation is correct; -2**63 without |
    | op | string | insert, adjust or stable; null: refused |
    | payload | string | canonical JSON; null for a stable |
    | vs, vold, ve, vc | long | null where the op has none; infinity is 2**63-1 |
    | reason | string | why it is refused, a `Reason`; null for an element |
    | message | string | the same for people |
    | value | binary | the record; for refused ones only |

    The payload is a string, not bytes: Spark compares and hashes its strings byte by byte, so it
    is equal exactly when the canonical text is, and SQL's JSON functions and people can read it.
    Canonical text is always UTF-8, so nothing is lost. Infinity is a number and not null, so that
    `ve > t`, `least` and `max` mean what they should; beware of sums (ANSI mode refuses overflow).

    Rows have no order. Within one (source, partition), offsets give the stream's; files of one
    folder follow each other by name. `ORDER` is both.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as all the world calls it)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lmerge_service.elements import START

__all__ = (
    "ELEMENT",
    "ORDER",
    "ORIGIN",
    "RECORDS",
    "elements_of",
    "is_element",
    "refused_of",
    "whole_columns",
)


def _fields(**types: DataType) -> list[StructField]:
    return [StructField(name, kind) for name, kind in types.items()]


_TEXT, _BYTES, _LONG = StringType(), BinaryType(), LongType()

ORIGIN: Final = StructType(
    _fields(
        source=_TEXT,
        partition=IntegerType(),
        offset=_LONG,
        timestamp=TimestampType(),
        key=_BYTES,
        incarnation=_LONG,
        joining_at=_LONG,
    )
)
"""Where a record came from."""

ELEMENT: Final = StructType(
    _fields(op=_TEXT, payload=_TEXT, vs=_LONG, vold=_LONG, ve=_LONG, vc=_LONG)
)
"""The element."""

RECORDS: Final = StructType(
    [*ORIGIN.fields, *ELEMENT.fields, *_fields(reason=_TEXT, message=_TEXT, value=_BYTES)]
)
"""Elements and refused records, as they are read."""

ORDER: Final = ("source", "partition", "offset")
"""The order of a stream's rows, within each partition."""


def elements_of(records: DataFrame) -> DataFrame:
    """The rows that are elements, with the columns of `ORIGIN` and `ELEMENT`."""
    return records.where(F.col("op").isNotNull()).drop("reason", "message", "value")


def refused_of(records: DataFrame) -> DataFrame:
    """The rows that are none, with the columns of `ORIGIN`, reason, message and value."""
    return records.where(F.col("reason").isNotNull()).drop(*ELEMENT.names)


def whole_columns(frame: DataFrame) -> list[Column]:
    """Every column of `ORIGIN` and `ELEMENT`, in order, of a frame of elements.

    What it lacks of its origin is null, but 0 and -2**63 for incarnation and joining_at.
    """
    absent = {"incarnation": F.lit(0), "joining_at": F.lit(START)}

    def column(field: StructField) -> Column:
        if field.name in frame.columns or field in ELEMENT.fields:
            return F.col(field.name)
        return absent.get(field.name, F.lit(None))

    fields = [*ORIGIN.fields, *ELEMENT.fields]
    return [column(each).cast(each.dataType).alias(each.name) for each in fields]


def is_element() -> Column:
    """Whether a row's columns are an element (E2 of `elements`); false, never null, if not."""
    op, payload, vs, vold, ve, vc = (F.col(name) for name in ELEMENT.names)
    insert = (op == "insert") & payload.isNotNull() & (vs < ve) & vold.isNull() & vc.isNull()
    adjust = (op == "adjust") & payload.isNotNull() & (vs < vold) & (vs <= ve) & vc.isNull()
    stable = (op == "stable") & vc.isNotNull() & payload.isNull()
    stable &= F.coalesce(vs, vold, ve).isNull()
    return F.coalesce(insert | adjust | stable, F.lit(False))
