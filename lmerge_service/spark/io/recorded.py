"""A recorded stream in files of Parquet, read in order without Spark: no JVM has to start.

Theory
    Files of elements (`elements.write_elements`) have all elements of each partition, in no
    order; their offsets give it. Only the latest incarnation counts, and it is correct from its
    `joining_at` on. A file that is missing from a folder cannot be seen: offsets of a topic have
    gaps.

Cost
    The columns of one partition at a time are in memory, in Arrow.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.bulk import Rule
from lmerge_service.spark.io.arrow import CHECKED, arrow_errors

__all__ = ("RecordedPartition", "recorded")

_ORIGIN: Final = {
    "source": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "incarnation": pa.int64(),
    "joining_at": pa.int64(),
}
_ELEMENT: Final = {
    "op": pa.string(),
    "payload": pa.string(),
    **dict.fromkeys(("vs", "vold", "ve", "vc"), pa.int64()),
    "rule": pa.string(),
}
_COLUMNS: Final = pa.schema(list({**_ORIGIN, **_ELEMENT}.items()))
_GIVEN: Final = {
    "insert": (True, True, False, True, False),
    "adjust": (True, True, True, True, False),
    "stable": (False, False, False, False, True),
}
"""Which of payload, vs, vold, ve and vc an element has."""


@dataclass(frozen=True, slots=True)
class RecordedPartition:
    """The elements of one partition."""

    partition: int
    joining_at: int
    """It is correct from then on."""
    elements: Iterator[tuple[int, Element]]
    """With their offsets; to be taken once."""


def recorded(path: str, rule: Rule) -> list[RecordedPartition]:
    """The partitions of the stream in a file, or in the files of a folder.

    Raises:
        ConfigurationError: there is no such file; it is not what `write_elements` writes; or it has
            several streams, or one without order. What is found only when a partition is read is
            raised then.
        StateError: a file is damaged; likewise.
    """
    with arrow_errors(f"reading {path}"):
        rows = _dataset(path)
        origins = rows.to_table(columns=list(_ORIGIN)).group_by(
            ["source", "partition", "incarnation"]
        )
        groups = origins.aggregate([("offset", "count"), ("joining_at", "max")]).to_pylist()
        counted = rows.count_rows()
    if len({each["source"] for each in groups}) > 1:
        raise ConfigurationError(f"{path} has several streams, not one")
    if sum(each["offset_count"] for each in groups) < counted or any(
        each["partition"] is None or each["incarnation"] is None for each in groups
    ):
        raise ConfigurationError(f"{path} has rows without partition, offset or incarnation")
    latest = max((each["incarnation"] for each in groups), default=0)
    joining_at = max(
        (each["joining_at_max"] or START for each in groups if each["incarnation"] == latest),
        default=START,
    )
    return [
        RecordedPartition(number, joining_at, _elements(path, rows, rule, number, latest))
        for number in sorted({each["partition"] for each in groups})
    ]


def _dataset(path: str) -> ds.Dataset:
    place = Path(path)
    if (place / "_spark_metadata").exists():
        raise ConfigurationError(
            f"{path} was written by a streaming query, and only Spark knows which of its files "
            "count: copy it with read_elements and write_elements first"
        )
    files = [place] if place.is_file() else sorted(place.glob("[!_.]*.parquet"))
    if not files:
        raise ConfigurationError(f"there is no Parquet at {path}")
    for each in files:
        with arrow_errors(f"reading {each}"):
            _check(each, ds.dataset(each, format=CHECKED).schema)
    return ds.dataset(files, schema=_COLUMNS, format=CHECKED)


def _check(path: Path, found: pa.Schema) -> None:
    for field in _COLUMNS:
        if field.name not in found.names:
            fault = f"has no column {field.name}"
        elif found.field(field.name).type != field.type:
            fault = f"has {field.name} as {found.field(field.name).type} and not {field.type}"
        else:
            continue
        raise ConfigurationError(f"{path} {fault}, so it was not written by write_elements")


def _elements(
    path: str, rows: ds.Dataset, rule: Rule, partition: int, incarnation: int
) -> Iterator[tuple[int, Element]]:
    mine = (pc.field("partition") == partition) & (pc.field("incarnation") == incarnation)
    with arrow_errors(f"reading {path}"):
        table = rows.to_table(columns=["offset", *_ELEMENT], filter=mine).sort_by("offset")
        last = None
        for batch in table.to_batches(max_chunksize=10_000):
            for offset, *row in zip(*(each.to_pylist() for each in batch.columns), strict=True):
                if offset == last:
                    raise ConfigurationError(
                        f"{path}: offset {offset} of partition {partition} is there twice"
                    )
                if (element := _element(rule, *row)) is None:
                    raise ConfigurationError(
                        f"{path}: the row at offset {offset} of partition {partition} is no "
                        f"element by rule {rule.version}"
                    )
                yield offset, element
                last = offset


def _element(rule: Rule, op: str | None, *row: Any) -> Element | None:
    *fields, version = row
    given = tuple(each is not None for each in fields)
    if version != rule.version or _GIVEN.get(op or "") != given:
        return None
    payload, vs, vold, ve, vc = fields
    match op:
        case "insert":
            return Insert(payload.encode(), vs, ve)
        case "adjust":
            return Adjust(payload.encode(), vs, vold, ve)
        case _:
            return Stable(vc)
