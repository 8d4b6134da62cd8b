"""Batches of records to batches of rows, in Spark's Python workers: Arrow in, Arrow out.

Theory
    Whole records come in and rows go out (`schema.RECORDS`), decoded by the one decoder there is
    (`formats.bulk`), so the rule cannot differ from the merge's. Columns that only say where a
    record came from are passed on as they are.

Invariants
    D1  One row for each record, in order: nothing is lost, and no record fails the job.
    D2  What a row says depends on its record alone.

Cost
    Per record 0.5 µs besides `formats.bulk`, and what Spark takes to send it and fetch the row.
    A worker keeps one decoder per rule for all its tasks, and with it the payloads of late.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from lmerge_service.elements import START
from lmerge_service.errors import ElementError
from lmerge_service.formats.bulk import BulkDecoder, Columns, Rule
from lmerge_service.formats.headers import INCARNATION_HEADER, JOINING_AT_HEADER, incarnation_of

__all__ = ("HEADERS", "decoding", "rows_of")

HEADERS: Final = (INCARNATION_HEADER, JOINING_AT_HEADER)
"""Those that are looked at."""

_Refused = dict[int, tuple[str, str]]


def decoding(rule: Rule, *, keys: bool) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """For `mapInArrow`: from (source, partition, offset, timestamp, key, headers, value)."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield rows_of(
                batch.column("value").to_pylist(),
                rule,
                source=batch.column("source"),
                partition=batch.column("partition"),
                offset=batch.column("offset"),
                timestamp=batch.column("timestamp"),
                key=batch.column("key"),
                headers=batch.column("headers"),
                keys=keys,
            )

    return decode


def rows_of(
    records: Sequence[bytes | None],
    rule: Rule,
    *,
    source: pa.Array,
    partition: pa.Array,
    offset: pa.Array,
    timestamp: pa.Array,
    key: pa.BinaryArray | None = None,
    headers: pa.ListArray | None = None,
    keys: bool = False,
) -> pa.RecordBatch:
    """The rows of `schema.RECORDS` that records say."""
    columns = _decoder(rule).decode(records)
    incarnation, joining_at = _started_over(headers, len(records), columns)
    refused = columns.refused
    return pa.RecordBatch.from_pydict(
        {
            "source": source,
            "partition": partition,
            "offset": offset,
            "timestamp": timestamp,
            "key": key if keys and key is not None else _of_refused(key, refused, len(records)),
            "incarnation": incarnation,
            "joining_at": joining_at,
            "op": pa.array(columns.op, pa.string()),
            # Canonical text is UTF-8: no need to look again.
            "payload": pa.array(columns.payload, pa.binary()).view(pa.string()),
            "vs": pa.array(columns.vs, pa.int64()),
            "vold": pa.array(columns.vold, pa.int64()),
            "ve": pa.array(columns.ve, pa.int64()),
            "vc": pa.array(columns.vc, pa.int64()),
            "reason": _placed({at: str(reason) for at, (reason, _) in refused.items()}, records),
            "message": _placed({at: _text(said) for at, (_, said) in refused.items()}, records),
            "value": _of_refused(records, refused, len(records)),
        }
    )


@lru_cache(maxsize=4)
def _decoder(rule: Rule) -> BulkDecoder:
    """A worker process runs one task at a time."""
    return BulkDecoder(rule)


def _started_over(
    headers: pa.ListArray | None, count: int, columns: Columns
) -> tuple[pa.Array, pa.Array]:
    """What the headers say; a record whose headers are wrong is refused for that, as in `ingest`,
    which reads them first."""
    incarnation, joining_at = [0] * count, [START] * count
    if headers is not None and headers.null_count < count:
        for at, given in enumerate(headers.to_pylist()):
            if not given:
                continue
            try:
                incarnation[at], joining_at[at] = _said(
                    tuple((each["key"], each["value"]) for each in given)
                )
            except ElementError as error:
                columns.blank(at, error)
    return pa.array(incarnation, pa.int64()), pa.array(joining_at, pa.int64())


@lru_cache(maxsize=1024)
def _said(headers: Sequence[tuple[str, bytes]]) -> tuple[int, int]:
    return incarnation_of(headers)


def _placed(some: dict[int, str], records: Sequence[object]) -> pa.StringArray:
    if not some:
        return pa.nulls(len(records), pa.string())
    return pa.array([some.get(at) for at in range(len(records))], pa.string())


def _of_refused(values: Any, refused: _Refused, count: int) -> pa.BinaryArray:
    if not refused or values is None:
        return pa.nulls(count, pa.binary())
    kept: list[bytes | None] = [None] * count
    for at in refused:
        value = values[at]
        kept[at] = value.as_py() if isinstance(value, pa.Scalar) else value
    return pa.array(kept, pa.binary())


def _text(message: str) -> str:
    """A message may quote half of a character, which Arrow would not take."""
    return message.encode(errors="backslashreplace").decode()
