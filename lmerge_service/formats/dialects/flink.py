r"""Flink's changelog rows: +I, -U, +U and -D, in the forms in which its formats write them.

Theory
    rowkind        {"op":"+U","id":1,"n":5}: the row, and its kind in a field (as Apache Paimon's
                   `rowkind.field`), which is no part of the row, nor are time and watermark.
    debezium-json  {"before":null,"after":{…},"op":"c"}: Flink's debezium-json writes -U and -D
                   as "d", +I and +U as "c"; "u" and "r" are read too.
    canal-json     {"data":[{…}],"type":"INSERT"}: Flink's canal-json writes -U and -D as
                   "DELETE"; "UPDATE" with "old", as Canal itself writes, is read too.

    (Flink's upsert-kafka is the dialect `upserts`.) Flink has no record for a watermark. A column
    with `CURRENT_WATERMARK(…)`, cast to a number, carries it; that watermark means that nothing at
    or before it is to come, and is read as "nothing before it".

    With `time` a row is valid from the change that brings it to the one that takes it away. The
    time must be the change's, as a Kafka timestamp is, and not a column of the row: a -U repeats
    the old row with its old columns. With `key` a rowkind -U is ignored, since the +U that must
    follow is enough; else each row is its own key.
    With `lifetime` (a window's start and end) each row is an event of its own: -U and -D remove
    it as if it had never been. Nothing is kept, and a row given twice is there twice.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from lmerge_service.elements import Element
from lmerge_service.errors import ElementError
from lmerge_service.formats.dialects.decoding import TableDecoder, path_of
from lmerge_service.formats.dialects.options import TIMESTAMP, Flink
from lmerge_service.formats.dialects.reading import (
    Fields,
    Path,
    Reader,
    fields_of,
    malformed,
    merged,
    without,
    word,
)
from lmerge_service.formats.dialects.tables import Facts, RowChange
from lmerge_service.formats.headers import TimedRecord
from lmerge_service.formats.reasons import Reason

__all__ = ("FlinkDecoder",)

_KINDS: Final = {"+I": True, "+U": True, "-U": False, "-D": False}
_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Row(NamedTuple):
    comes: bool
    text: bytes


class FlinkDecoder(TableDecoder):
    """The rows of one partition."""

    name = "flink"

    def __init__(self, options: Flink, reader: Reader) -> None:
        super().__init__(options, reader, None if options.lifetime is None else Facts())
        self._key_paths = None if options.key is None else [path_of(each) for each in options.key]
        self.keyed = options.key is not None
        self._kind = options.kind
        self._rows = {
            "rowkind": self._of_kind,
            "debezium-json": _of_debezium,
            "canal-json": _of_canal,
        }[options.encoding]
        named = () if options.time == TIMESTAMP or options.lifetime else (path_of(options.time),)
        marked = () if self._watermark is None else (self._watermark,)
        self._apart: tuple[Path, ...] = ((options.kind,), *named, *marked)

    def decode(self, record: TimedRecord) -> Sequence[Element]:
        """The elements of a record in one of the forms of the module's text.

        Raises:
            ElementError: it is no such record.
        """
        if record.value is None:
            raise ElementError(Reason.TOMBSTONE, "a record without a value is no change")
        fields = self._reader.fields(record.value)
        watermark = self._watermark_of(fields)
        rows = [] if self._only_watermark(fields) else self._rows(fields)
        if not rows:
            return self._make([], watermark=watermark)
        when = self._when(record, fields)
        return self._make([self._changed(row, when) for row in rows], when, watermark)

    def _changed(self, row: _Row, when: int) -> RowChange:
        payload, vs, ve = self._living(row.text, when)
        if self._lifetime is not None:
            return RowChange(b"+" if row.comes else b"-", payload, vs, ve)
        key = payload if self._key_paths is None else self._key_of(row.text, self._key_paths)
        return RowChange(key, payload if row.comes else None, when)

    def _of_kind(self, fields: Fields) -> list[_Row]:
        kind = word(fields, self._kind)
        if kind not in _KINDS:
            raise malformed(f"{self._kind} must be +I, -U, +U or -D")
        if kind == "-U" and self._key_paths is not None:
            return []
        return [_Row(_KINDS[kind], without(merged(fields), self._apart))]


def _of_debezium(fields: Fields) -> list[_Row]:
    op = word(fields, "op")
    images = {"c": ("after",), "r": ("after",), "u": ("before", "after"), "d": ("before",)}.get(op)
    if images is None:
        raise malformed("op must be c, r, u or d")
    return [_Row(name == "after", _row(fields.get(name), name)) for name in images]


def _of_canal(fields: Fields) -> list[_Row]:
    kind = word(fields, "type")
    if kind not in ("INSERT", "UPDATE", "DELETE"):
        raise malformed("type must be INSERT, UPDATE or DELETE")
    rows = _list(fields, "data")
    if kind != "UPDATE":
        return [_Row(kind == "INSERT", row) for row in rows]
    olds = _list(fields, "old")
    if len(olds) != len(rows):
        raise malformed("an update needs an old row for each row of data")
    # "old" holds what has changed only
    return [
        each
        for row, old in zip(rows, olds, strict=True)
        for each in (_Row(False, merged(fields_of(row) | fields_of(old))), _Row(True, row))
    ]


def _list(fields: Fields, name: str) -> list[bytes]:
    text = fields.get(name, b"")
    if not text.startswith(b"["):
        raise malformed(f"{name} must be an array of rows")
    return [_row(bytes(raw), name) for raw in _array(text)]


def _row(text: bytes | None, name: str) -> bytes:
    if text is None or not text.startswith(b"{"):
        raise malformed(f"{name} must be a row")
    return text
