r"""Debezium's change events: rows of a database table, as recorded in its log.

Theory
    Debezium (its documentation: "Data change events" of each connector) writes an envelope per
    change, with the row before and after, keyed by the primary key; with `schemas.enable` it
    stands under "payload", beside its "schema".

    c, u, r    the row is `after` from then on. A read (r) is a row of a snapshot, the first or a
               later one: it gives the state at its time, so a row that is known changes nothing.
    d          the row is gone from then on; the tombstone that follows adds nothing.
    t          truncate: all rows *of the partition in which it arrives* are gone.
    m          a message in the log, no row: ignored.
    heartbeat  {"ts_ms": …}: ignored, unless the rule of the stable counts it.
    transaction  {"status": "BEGIN" or "END", …}: ignored, unless the rule is `transactions`.

    Records of a key come in the order of the log, and that order counts, not the times (`tables`).
    `before` is not used, other than for its key: the row that ends is the one that was
    begun, whatever a connector knows about it (by default it knows the primary key). When fields
    of the row make the key and an update changes them, one row is gone and another comes.

    Where the log has no value of a large column, because it did not change, Debezium writes a
    placeholder (`unavailable`): an update takes the value over from the row before, also where the
    update changes fields of the row that make the key.

    A tombstone of a key that has a row deletes it at an unknown time (its `d` was compacted
    away): it is refused, so that the loss is reported.
"""

from collections.abc import Sequence
from typing import Any

from lmerge_service.elements import START, Element
from lmerge_service.errors import ElementError
from lmerge_service.formats.dialects.decoding import TableDecoder, path_of
from lmerge_service.formats.dialects.options import Debezium, Lateness, Transactions
from lmerge_service.formats.dialects.reading import (
    Fields,
    Reader,
    end,
    fields_of,
    find,
    malformed,
    word,
)
from lmerge_service.formats.dialects.tables import RowChange
from lmerge_service.formats.dialects.unavailable import unavailable
from lmerge_service.formats.headers import TimedRecord
from lmerge_service.formats.reasons import Reason

__all__ = ("DebeziumDecoder",)


class DebeziumDecoder(TableDecoder):
    """The rows of one partition, by key, and the transaction that is under way."""

    name = "debezium"

    def __init__(self, options: Debezium, reader: Reader) -> None:
        super().__init__(options, reader)
        self._key_paths = None if options.key is None else [path_of(each) for each in options.key]
        rule = options.stable
        self._heartbeats = isinstance(rule, Lateness) and rule.heartbeats
        self._by_transaction = isinstance(rule, Transactions)
        self._transaction: bytes | None = None
        self._unavailable = unavailable(options.unavailable_value_placeholder, nfc=reader.nfc)
        self._beat = "ts_ms" if self._lifetime else path_of(self._time)[-1]

    def decode(self, record: TimedRecord) -> Sequence[Element]:
        """The elements of an envelope: op c, r, u or d changes a key, t removes all, m has no row.

        Raises:
            ElementError: it is no such envelope, or its row cannot be had.
        """
        envelope = None if record.value is None else self._unwrapped(record.value)
        if envelope is None:
            return self._tombstone(record)
        op = word(envelope, "op")
        watermark = self._watermark_of(envelope)
        if op in ("c", "r", "u", "d"):
            when = self._when(record, envelope)
            changes = self._changes(record, envelope, op, when)
            return self._changed(changes, envelope, when, watermark)
        if op == "t":
            when = self._when(record, envelope)
            gone = [RowChange(key, None, when) for key in self._table.live()]
            return self._changed(gone, envelope, when, watermark)
        if op == "m" or self._only_watermark(envelope):
            return self._make([], watermark=watermark)
        if "op" not in envelope:
            return self._beside(envelope)
        raise malformed("op must be c, r, u, d, t or m")

    def _unwrapped(self, raw: bytes) -> Fields | None:
        """The envelope, or None for a tombstone that has a schema."""
        text = self._reader.text(raw)
        payload = _payload(text)
        return None if payload == b"null" and payload is not text else fields_of(payload)

    def _tombstone(self, record: TimedRecord) -> Sequence[Element]:
        if self._key_paths is None and self._table.holds(self._record_key(record)) is not None:
            raise ElementError(Reason.TOMBSTONE, "a tombstone deletes a row without a time")
        return []

    def _changes(
        self, record: TimedRecord, envelope: Fields, op: str, when: int
    ) -> list[RowChange]:
        before, after = (envelope.get(name, b"null") for name in ("before", "after"))
        if op != "d" and after == b"null":
            raise malformed(f"op {op} needs the row after")
        old = self._row_key(record, before) if op in ("u", "d") else None
        if op == "d":
            if old is None:
                raise ElementError(Reason.NO_KEY, "the row before, which has the key, is missing")
            return [RowChange(old, None, when)]
        row = self._whole(record, old, after, op)
        key = self._row_key(record, row)
        assert key is not None, "the row after is there"
        moved = [RowChange(old, None, when)] if old is not None and old != key else []
        return [*moved, self._change(key, row, when)]

    def _whole(self, record: TimedRecord, old: bytes | None, after: bytes, op: str) -> bytes:
        """The row after, with what the log did not repeat taken over from the row before."""
        before = self._row_key(record, after) if old is None else old
        assert before is not None, "the row after is there"
        return self._unavailable.whole(after, self._table.holds(before), update=op == "u")

    def _row_key(self, record: TimedRecord, row: bytes) -> bytes | None:
        """What identifies the row; None when the row would, but is missing."""
        if self._key_paths is None:
            return self._record_key(record)
        return None if row == b"null" else self._key_of(row, self._key_paths)

    def _record_key(self, record: TimedRecord) -> bytes:
        if record.key is None:
            raise ElementError(Reason.NO_KEY, "the record has no key: name the row's key fields")
        key = _payload(self._reader.key(record.key))
        if key == b"null":
            raise ElementError(Reason.NO_KEY, "the record's key is null: name the row's key fields")
        return key

    def _changed(
        self, changes: list[RowChange], envelope: Fields, when: int, watermark: int | None
    ) -> list[Element]:
        if not self._by_transaction:
            return self._make(changes, when, watermark)
        transaction = find(envelope, ("transaction", "id"))
        ended = self._transaction not in (None, transaction)
        elements = self._make(changes, when, first=self._horizon.latest if ended else START)
        self._transaction = transaction
        return elements

    def _beside(self, envelope: Fields) -> Sequence[Element]:
        """A heartbeat, or a bound of a transaction."""
        status = word(envelope, "status")
        if status in ("BEGIN", "END") and "id" in envelope:
            if status == "END" and self._by_transaction:
                self._transaction = None
                return self._make([], watermark=self._horizon.latest)
            return []
        if self._beat in envelope:
            beat = end(envelope[self._beat], self._beat)
            return self._beaten(beat) if self._heartbeats else []
        raise malformed("neither a change, nor a heartbeat, nor a bound of a transaction")

    def _beaten(self, beat: int) -> list[Element]:
        elements: list[Element] = [*self._horizon.see(beat)]
        self._table.forget(self._horizon.stable)
        return elements

    def _saved(self) -> Any:
        return self._transaction

    def _load(self, saved: Any) -> None:
        self._transaction = saved


def _payload(text: bytes) -> bytes:
    """What stands beside a schema, or the text itself."""
    if not text.startswith(b'{"payload":'):
        return text
    fields = fields_of(text)
    return fields["payload"] if fields.keys() == {"payload", "schema"} else text
