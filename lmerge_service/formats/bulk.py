r"""Which of many records are simple, so that their elements can be cut out of their text.

Theory
    A record is *simple* when it is what would be written of what msgspec reads in it: the text
    made of its values, fields in their order, keys sorted, is the record itself, byte for byte.
    So nothing is given twice (the text gives each thing once), no space and no other spelling is
    in it, and its payload is the payload's canonical text: the short cut of `payload`, taken for
    the whole record. A hundred records or so are read in one call, as lines, and written in one;
    one comparison then shows that all of them are simple.

    >>> records = [b'{"op":"insert","payload":{"a":1},"vs":6,"ve":null}', b'{"op":"stable","vc":7}']
    >>> list(Recogniser().recognise([*records, b'{"vc": 9, "op": "stable"}']))
    [1, 1, 0]

    A record that msgspec refuses leaves none of its hundred simple. Where lines are mistaken for
    records (one has a line feed in it, or is empty) their numbers differ, and none is taken for
    simple. Nor is one whose payload has a number with a fraction: to see that such a number is in
    its one form takes as long as decoding.

Invariants
    B1  A simple record has one of three forms: `{"op":"insert","payload":P,"vs":N,"ve":E}`,
        `{"op":"adjust","payload":P,"vs":N,"vold":E,"ve":E}`, `{"op":"stable","vc":E}`, where P is
        canonical by the rule and within its limits, N an int64, and E one or null. Unless its
        times are in an order that no element has (E2 of `elements`), `WireDecoder` decodes it
        to the element of these fields. Other records are left open: they may be elements too.

Cost
    1.1 µs a record for payloads of 120 bytes, two thirds of what decoding takes where half of the
    payloads are new. Where hardly any record is simple it is hardly ever tried.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from lmerge_service.formats.payload import (
    EQUALITY_VERSION,
    MAX_DEPTH,
    SHALLOW,
    WITHOUT_FRACTIONS,
)
from lmerge_service.formats.wire import MAX_RECORD_BYTES, Finite, Time, WireDecoder

__all__ = ("Recogniser", "Rule")

_CHUNK: Final = 128
"""So many values stay in the processor's cache between reading and writing them."""
_RETRY: Final = 16
"""Where few records are simple, one chunk in so many is looked at."""


@dataclass(frozen=True, slots=True)
class Rule:
    """By which rule records are read; a topology has the same (`nfc`, `drop_nulls`, `limits`)."""

    nfc: bool = False
    drop_nulls: bool = False
    max_record_bytes: int = MAX_RECORD_BYTES
    max_depth: int = MAX_DEPTH

    @property
    def version(self) -> str:
        """When two payloads are equal; what is canonical by another version must not be mixed in.

        >>> Rule().version, Rule(nfc=True).version, Rule(nfc=True, drop_nulls=True).version
        ('1', '1-nfc', '1-nfc-no-nulls')
        """
        nfc, nulls = "-nfc" * self.nfc, "-no-nulls" * self.drop_nulls
        return f"{EQUALITY_VERSION}{nfc}{nulls}"

    def decoder(self, *, native: bool = False) -> WireDecoder:
        """One that goes by it, `native`: which has the engine as well."""
        return WireDecoder(
            nfc=self.nfc,
            drop_nulls=self.drop_nulls,
            max_record_bytes=self.max_record_bytes,
            max_depth=self.max_depth,
            native=native,
        )


class Recogniser:
    """Looks at lists of records; one goes on from list to list."""

    __slots__ = ("_looked", "_rule", "_worth_it")

    def __init__(self, rule: Rule = Rule()) -> None:
        self._rule = rule
        self._worth_it = True
        self._looked = 0

    def recognise(self, records: Sequence[bytes | None]) -> bytearray:
        """1 for each record that is simple, 0 for the others."""
        found = bytearray()
        for start in range(0, len(records), _CHUNK):
            chunk = records[start : start + _CHUNK]
            lines = self._lines(chunk)
            found += bytes(len(chunk)) if lines is None else self._look(lines, chunk)
        return found

    def _lines(self, records: Sequence[bytes | None]) -> bytes | None:
        """The records as lines, or None where it is no use to look."""
        self._looked += 1
        if self._rule.max_depth < SHALLOW or not (self._worth_it or self._looked % _RETRY == 0):
            return None
        try:
            lines = b"\n".join(records) + b"\n"  # type: ignore[arg-type]
        except TypeError:  # a tombstone
            return None
        limit = self._rule.max_record_bytes
        if len(lines) > limit and max(map(len, records)) > limit:  # type: ignore[arg-type]
            return None
        if self._rule.nfc and not (lines.isascii() and b"\\" not in lines):
            return None
        if self._rule.drop_nulls and lines.count(b":null") > lines.count(b',"ve":null}\n'):
            return None
        return lines if lines.count(b"\n") == len(records) else None

    def _look(self, lines: bytes, records: Sequence[bytes | None]) -> bytes:
        try:
            read = _read(lines)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            read = []
        if len(read) != len(records):
            self._worth_it = False
            return bytes(len(records))
        written = _write(read)
        if written == lines:
            self._worth_it = True
            return b"\1" * len(records)
        again = written.split(b"\n")
        simple = bytes(map(bytes.__eq__, records, again))  # type: ignore[arg-type]
        self._worth_it = 2 * sum(simple) > len(records)
        return simple


def _struct(tag: str, *fields: tuple[str, Any]) -> Any:
    return msgspec.defstruct(
        tag, fields, frozen=True, gc=False, tag_field="op", tag=tag, forbid_unknown_fields=True
    )


_EVENT: Final[list[tuple[str, Any]]] = [("payload", WITHOUT_FRACTIONS), ("vs", Finite)]
_Simple: Any = (
    _struct("insert", *_EVENT, ("ve", Time))
    | _struct("adjust", *_EVENT, ("vold", Time), ("ve", Time))
    | _struct("stable", ("vc", Time))
)
_read: Final = msgspec.json.Decoder(_Simple).decode_lines
_write: Final = msgspec.json.Encoder(order="deterministic").encode_lines
"""As `payload` writes: in this order, keys are sorted and fields stay where they are."""
