"""Batches of the engine: sequences of elements, and of records, that exist in native code alone
until somebody looks at them. What is on the hot path takes them as what they are, by the functions
here; whatever else takes a sequence need not know.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from lmerge_service.elements import Element

if TYPE_CHECKING:
    from lmerge_engine import Batch, Encoded, EncodedRows, Rows

__all__ = (
    "as_batch",
    "as_encoded",
    "as_sealable",
    "encoded_of",
    "encoded_rows",
    "is_for_the_engine",
    "removals_among",
    "rows_by_the_engine",
)

Row: TypeAlias = tuple[bytes, bytes | None]
"""A row's key, and its value; None: there is no row any more."""

_engine: Any
try:
    import lmerge_engine as _engine
except ImportError:
    _engine = None


def as_batch(elements: Iterable[Element]) -> "Batch | None":
    """The elements themselves, if they are a batch of the engine's."""
    if _engine is None or type(elements) is not _engine.Batch:
        return None
    return cast("Batch", elements)


def as_encoded(records: Iterable[Any]) -> "Encoded | None":
    """The records of an output themselves, if the engine has encoded them."""
    if _engine is None or type(records) is not _engine.Encoded:
        return None
    return cast("Encoded", records)


def as_sealable(records: Iterable[Any]) -> "Encoded | EncodedRows | None":
    """Records themselves, if the engine makes their batches."""
    if _engine is None or type(records) not in (_engine.Encoded, _engine.EncodedRows):
        return None
    return cast("Encoded | EncodedRows", records)


def encoded_of(
    records: Iterable[tuple[bytes | None, bytes]],
    headers: Sequence[tuple[str, bytes]],
    batch_bytes: int,
) -> "Encoded":
    """The same records by the engine, which has to be there, with the headers that each of them is
    to have, in batches of up to so many bytes."""
    encoded = cast("Encoded", _engine.Encoded(headers, batch_bytes))
    encoded += records
    return encoded


def rows_by_the_engine(rows: list[Row]) -> "Rows":
    """The same rows by the engine, which has to be there; it makes those of a batch by itself."""
    if type(rows) is _engine.Rows:
        return cast("Rows", rows)
    return cast("Rows", _engine.Rows(rows))


def encoded_rows(
    rows: Sequence[Any], headers: Sequence[tuple[str, bytes]], batch_bytes: int
) -> Sequence[Any]:
    """Rows with the headers that each is to have, as records of the engine if they are its own."""
    if _engine is None or type(rows) is not _engine.Rows:
        return rows
    return cast("Sequence[Any]", _engine.EncodedRows(rows, headers, batch_bytes))


def removals_among(rows: Sequence[Row]) -> int:
    """How many rows are removed."""
    if _engine is not None and type(rows) is _engine.Rows:
        return cast("Rows", rows).removals
    return sum(value is None for _, value in rows)


def is_for_the_engine(records: Sequence[Any]) -> bool:
    """Whether the engine's decoder takes these records: its own, and lists of any."""
    if _engine is None:
        return type(records) is list
    return type(records) in (list, _engine.Records, _engine.Decoded)
