"""Types by which msgspec reads rows straight out of JSON, column by column.

What a type refuses, and an integer in a column of floats, needs a closer look by `queries.rows`,
which defines what a value of a column is; what it takes is what that takes, with the same value.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from lmerge_service.elements import INFINITY, START
from lmerge_service.queries.rows import Kind, RefusalReason, Row, taken

__all__ = ("TIME", "TYPES", "decoded_lines", "with_floats")

TIME: Final = Annotated[int, msgspec.Meta(ge=START, le=INFINITY)]
TYPES: Final[dict[Kind, Any]] = {
    Kind.BOOL: bool | None,
    Kind.INT: TIME | None,
    Kind.FLOAT: float | int | None,
    Kind.STR: str | None,
}
"""Of each kind of column."""


def decoded_lines(
    decoder: msgspec.json.Decoder[Any] | None, values: Sequence[bytes | None]
) -> list[Any] | None:
    """What a decoder makes of all values at once; None: there is none, or one value needs a closer
    look."""
    if decoder is None:
        return None
    try:
        text = b"\n".join(values)  # type: ignore[arg-type]
        if text.count(b"\n") != len(values) - 1:
            return None
        if not text.isascii():
            text.decode()
        found = decoder.decode_lines(text)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        return None  # a tombstone, or one that is refused, or unusual
    return found if len(found) == len(values) else None


def with_floats(items: Row, columns: Sequence[int]) -> Row | None:
    """The items, with the integers in these columns of floats as floats; None: one is none."""
    changed: list[Any] | None = None
    for at in columns:
        if type(items[at]) is int:
            changed = changed or [*items]
            changed[at] = taken(items[at], Kind.FLOAT)
            if isinstance(changed[at], RefusalReason):
                return None
    return items if changed is None else tuple(changed)
