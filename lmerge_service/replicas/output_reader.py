"""Records of a replica's output to elements over rows: what it wrote itself, or a checkpoint.

Theory
    `WireDecoder` and `Schema.row` define what a record is. Reading payloads twice, as canonical
    text and as rows, takes most of a restart, and nearly all records are as `RowEncoder` writes
    them. So msgspec reads many of them straight into rows. Its types want each member of element
    and payload, and no other; then a member is there once if the record has as many quotation marks
    as these members and the strings need. What does not fit, or has an escape, is read as defined.

    >>> reader = OutputReader(Schema.of({"origin": str, "n": int}))
    >>> reader.at_once([b'{"op":"insert","payload":{"n":2,"origin":"JFK"},"vs":0,"ve":60}',
    ...                 b'{"op":"stable","vc":7}'])
    [Insert(payload=('JFK', 2), vs=0, ve=60), Stable(vc=7)]

Invariants
    O1  What `at_once` finds is `element` of each.

Cost
    About 1.5 µs a record that is as usual, six times as much for another.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import IllegalStreamError
from lmerge_service.formats.wire import Finite, Time, WireDecoder
from lmerge_service.queries.rows import Kind, Refusal, Row, Schema
from lmerge_service.replicas.encoding import is_plain
from lmerge_service.replicas.typed_rows import TYPES, decoded_lines, with_floats

__all__ = ("OutputReader",)

_QUOTES: Final = {"insert": 10, "adjust": 12, "stable": 6}
"""Quotation marks of an element, without its payload's."""


class OutputReader:
    """Reads the output of a query whose rows have this schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._decoder = WireDecoder()
        self._floats = [at for at, each in enumerate(schema) if each.kind is Kind.FLOAT]
        self._strings = [at for at, each in enumerate(schema) if each.kind is Kind.STR]
        self._typed = _typed(schema) if all(map(is_plain, schema.names)) else None

    def at_once(self, values: Sequence[bytes | None]) -> list[Element | None]:
        """The elements of records in the usual form; None for one that needs a closer look, by
        `element`."""
        typed = decoded_lines(self._typed, values)
        if typed is None:
            return [None] * len(values)
        return [*map(self._usual, typed, values)]  # type: ignore[arg-type]  # none is None

    def element(self, value: bytes | None) -> Element:
        """The element of a record.

        Raises:
            ElementError: it is none.
            IllegalStreamError: its payload is no row of this query.
        """
        element = self._decoder.decode(value)
        if isinstance(element, Stable):
            return element
        row = self._row(element.payload)
        if isinstance(element, Insert):
            return Insert(row, element.vs, element.ve)
        assert isinstance(element, Adjust)
        return Adjust(row, element.vs, element.vold, element.ve)

    def _row(self, payload: bytes) -> Row:
        row = self._schema.row(msgspec.json.decode(payload))
        if isinstance(row, Refusal):
            raise IllegalStreamError(
                f"{payload.decode()} is no row {self._schema} of this query (column {row.column})"
            )
        return row

    def _usual(self, typed: Any, value: bytes) -> Element | None:
        kind = typed.__struct_config__.tag
        quotes = _QUOTES[kind]
        if b"\\" in value:
            return None
        if kind == "stable":
            vc = INFINITY if typed.vc is None else typed.vc
            return Stable(vc) if value.count(b'"') == quotes else None
        row = msgspec.structs.astuple(typed.payload)
        quotes += 2 * len(row)
        for at in self._strings:
            if row[at] is not None:
                quotes += 2
        if value.count(b'"') != quotes:
            return None
        if self._floats:
            floated = with_floats(row, self._floats)
            if floated is None:
                return None
            row = floated
        vs, ve = typed.vs, INFINITY if typed.ve is None else typed.ve
        if kind == "insert":
            return Insert(row, vs, ve) if vs < ve else None
        vold = INFINITY if typed.vold is None else typed.vold
        return Adjust(row, vs, vold, ve) if vs < vold and vs <= ve else None


def _typed(schema: Schema) -> msgspec.json.Decoder[Any]:
    """A decoder of elements whose payloads have the members of the schema, all of them and no
    others."""
    rename = {f"c{at}": name for at, name in enumerate(schema.names)}
    columns = [(f"c{at}", TYPES[column.kind]) for at, column in enumerate(schema)]
    row = msgspec.defstruct("Row", columns, rename=rename, gc=False, forbid_unknown_fields=True)
    members: dict[str, list[tuple[str, Any]]] = {
        "insert": [("payload", row), ("vs", Finite), ("ve", Time)],
        "adjust": [("payload", row), ("vs", Finite), ("vold", Time), ("ve", Time)],
        "stable": [("vc", Time)],
    }
    kinds: Any = None
    for tag, fields in members.items():
        kind = msgspec.defstruct(
            tag, fields, tag=tag, tag_field="op", gc=False, forbid_unknown_fields=True
        )
        kinds = kind if kinds is None else kinds | kind
    return msgspec.json.Decoder(kinds)
