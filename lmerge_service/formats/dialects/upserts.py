r"""Upserts and tombstones: the record key identifies the row, the value is its state from now on.

Theory
    So write Spark's update mode, Kafka Streams' KTable changelogs, Flink's upsert-kafka, and
    other writers of compacted topics. A value is the key's row, no value its deletion; the bytes of
    the key are its identity, as compaction has it.

    The payloads of two keys must differ, or their events would be one: rows that don't hold
    their key get it with `key_into`. An object gets it as a member of that name, and a key that
    is an object as its own members; any other value becomes {"NAME": key, "value": value}.

    With `time` a row is valid from one upsert to the next; a tombstone has no time but its
    record's timestamp. With `lifetime` a row carries the interval in which it is valid, an upsert
    replaces row and interval of its key (so the key must name the window), and a tombstone takes
    them back.

    Where a value holds Debezium's placeholder for one that did not change (`unavailable`;
    Debezium's rows without their envelope are upserts), it is taken over from the key's row
    before.

    A record without a key, in which only a watermark stands, moves the stable alone. The *text*
    null is no row and no tombstone: it is refused.
"""

from collections.abc import Sequence

import msgspec

from lmerge_service.elements import Element
from lmerge_service.errors import ElementError
from lmerge_service.formats.dialects.decoding import TableDecoder, path_of
from lmerge_service.formats.dialects.options import TIMESTAMP, Upserts
from lmerge_service.formats.dialects.reading import (
    Fields,
    Path,
    Reader,
    fields_of,
    malformed,
    merged,
    timestamp,
    without,
)
from lmerge_service.formats.dialects.tables import RowChange
from lmerge_service.formats.dialects.unavailable import unavailable
from lmerge_service.formats.headers import TimedRecord
from lmerge_service.formats.reasons import Reason

__all__ = ("UpsertsDecoder",)


class UpsertsDecoder(TableDecoder):
    """The rows of one partition, by record key."""

    name = "upserts"

    def __init__(self, options: Upserts, reader: Reader) -> None:
        super().__init__(options, reader)
        self._into = options.key_into
        self._unavailable = unavailable(options.unavailable_value_placeholder, nfc=reader.nfc)
        self._as_text = options.key_encoding == "text"
        named = () if options.time == TIMESTAMP or options.lifetime else (path_of(options.time),)
        marked = () if self._watermark is None else (self._watermark,)
        self._apart: tuple[Path, ...] = (*named, *marked)

    def decode(self, record: TimedRecord) -> Sequence[Element]:
        """The elements of a key's new row, or of its removal where the value is null.

        Raises:
            ElementError: the record has no key, or its value is no row.
        """
        key, value = record.key, record.value
        if value is None:
            if key is None:
                raise _no_key()
            when = 0 if self._lifetime is not None else timestamp(record)
            return self._make([RowChange(self._checked(key), None, when)], when)
        text = self._reader.text(value)
        fields = fields_of(text) if text.startswith(b"{") else {}
        watermark = self._watermark_of(fields)
        row = without(text, self._apart)
        if key is None:
            if watermark is None or row != b"{}":
                raise _no_key()
            return self._make([], watermark=watermark)
        if text == b"null":
            raise malformed("the text null is no row; a deletion is a record without a value")
        when = self._when(record, fields)
        before = self._table.holds(self._checked(key))
        row = self._unavailable.whole(row, before, update=before is not None)
        change = self._change(key, self._with_key(key, row), when)
        return self._make([change], when, watermark)

    def _checked(self, key: bytes) -> bytes:
        try:
            self._reader.check_size(key)
        except ElementError as error:
            raise ElementError(error.reason, f"the record's key: {error}") from None
        return key

    def _with_key(self, key: bytes, row: bytes) -> bytes:
        if self._into is None:
            return row
        text = self._reader.key(_quoted(key) if self._as_text else key)
        own = fields_of(text) if text.startswith(b"{") else {self._into: text}
        if not row.startswith(b"{"):
            return merged({**own, "value": row})
        return merged(_agreeing(own, fields_of(row)))


def _agreeing(own: Fields, fields: Fields) -> Fields:
    for name, value in own.items():
        if fields.setdefault(name, value) != value:
            raise malformed(f"key and row disagree about {name[:100]!a}")
    return fields


def _quoted(key: bytes) -> bytes:
    try:
        return msgspec.json.encode(key.decode())
    except UnicodeDecodeError as error:
        raise ElementError(
            Reason.NOT_UTF8, f"the record's key: not UTF-8, {error.reason}"
        ) from None


def _no_key() -> ElementError:
    return ElementError(Reason.NO_KEY, "the record has no key, so it is about no row")
