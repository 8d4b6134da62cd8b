r"""Records to elements, many at once: the rule of `wire`, at less cost where records are simple.

Theory
    A record is *simple* when it is what would be written of what msgspec reads in it: the text
    made of its values, fields in their order, keys sorted, is the record itself, byte for byte.
    So nothing is given twice (the text gives each thing once), no space and no other spelling is
    in it, and its payload is the payload's canonical text: this is the short cut of `payload`,
    taken for the whole record. A hundred records or so are read in one call, as lines, and
    written in one; one comparison then tells that all of them are simple.

    >>> records = [b'{"op":"insert","payload":{"a":1},"vs":6,"ve":null}', b'{"op":"stable","vc":7}']
    >>> columns = BulkDecoder().decode([*records, b"{}", b'{"vc": 9, "op": "stable"}'])
    >>> columns.op, columns.payload
    (['insert', 'stable', None, 'stable'], [b'{"a":1}', None, None, None])
    >>> columns.ve, columns.vc                   # infinity is a number here
    ([9223372036854775807, None, None, None], [None, 7, None, 9])
    >>> columns.refused
    {2: (<Reason.NOT_AN_ELEMENT: 'not_an_element'>, 'Object missing required field `op`')}

    What is not simple goes to `WireDecoder`, record by record: other writers' order and spaces,
    numbers in another form, and all that is refused. Where lines are mistaken for records (one
    has a line feed in it, or is empty) their numbers differ, and all go the long way.

Invariants
    B1  The columns say of each record what `WireDecoder` says of it, reason and message included.

Cost
    For payloads of 120 bytes 1.4 µs a record where all are simple, 2.7 µs where none is
    (benchmarks/spark.py). A record that msgspec refuses costs its hundred the long way. Where
    hardly any is simple it is hardly ever tried.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from lmerge_service.elements import INFINITY, Adjust, Insert
from lmerge_service.errors import ElementError
from lmerge_service.formats.payload import (
    EQUALITY_VERSION,
    MAX_DEPTH,
    SHALLOW,
    WITH_FRACTIONS,
    WITHOUT_FRACTIONS,
    UncommonNumberError,
    common_number,
)
from lmerge_service.formats.wire import MAX_RECORD_BYTES, Finite, Time, WireDecoder

__all__ = ("BulkDecoder", "Columns", "Rule")

_CHUNK: Final = 128
"""So many values stay in the processor's cache between reading and writing them."""
_RETRY: Final = 16
"""Where few records are simple, one chunk in so many is tried for it."""

_Times: TypeAlias = list[int | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """By which rule records are read; a topology has the same (`nfc`, `limits`)."""

    nfc: bool = False
    max_record_bytes: int = MAX_RECORD_BYTES
    max_depth: int = MAX_DEPTH

    @property
    def version(self) -> str:
        """When two payloads are equal; what is canonical by another version must not be mixed in.

        >>> Rule().version, Rule(nfc=True).version
        ('1', '1-nfc')
        """
        return f"{EQUALITY_VERSION}-nfc" if self.nfc else f"{EQUALITY_VERSION}"

    def decoder(self) -> WireDecoder:
        """One that goes by it."""
        return WireDecoder(
            nfc=self.nfc, max_record_bytes=self.max_record_bytes, max_depth=self.max_depth
        )


@dataclass(slots=True)
class Columns:
    """What records say, field by field; None where the kind of element has no such field."""

    op: list[str | None] = field(default_factory=list)
    payload: list[bytes | None] = field(default_factory=list)
    vs: _Times = field(default_factory=list)
    vold: _Times = field(default_factory=list)
    ve: _Times = field(default_factory=list)
    vc: _Times = field(default_factory=list)
    refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By the place of a record that says no element: reason and message."""

    def blank(self, at: int, error: ElementError) -> None:
        """Takes back what the record at a place says: it is refused."""
        self.refused[at] = error.reason, str(error)
        self.op[at] = self.payload[at] = None
        self.vs[at] = self.vold[at] = self.ve[at] = self.vc[at] = None

    def _append(
        self,
        op: str | None,
        payload: bytes | None,
        vs: int | None,
        vold: int | None,
        ve: int | None,
        vc: int | None,
    ) -> None:
        self.op.append(op)
        self.payload.append(payload)
        self.vs.append(vs)
        self.vold.append(vold)
        self.ve.append(ve)
        self.vc.append(vc)

    def _decode(self, record: bytes | None, decoder: WireDecoder) -> None:
        """Appends what a record says, by the rule itself."""
        try:
            element = decoder.decode(record)
        except ElementError as error:
            self._append(None, None, None, None, None, None)
            self.refused[len(self.op) - 1] = error.reason, str(error)
            return
        if type(element) is Insert:
            self._append("insert", element.payload, element.vs, None, element.ve, None)
        elif type(element) is Adjust:
            self._append("adjust", element.payload, element.vs, element.vold, element.ve, None)
        else:
            self._append("stable", None, None, None, None, element.vc)  # type: ignore[union-attr]


class BulkDecoder:
    """Decodes lists of records; one goes on from list to list. Not for several threads."""

    __slots__ = ("_decoder", "_rule", "_tried", "_worth_it")

    def __init__(self, rule: Rule = Rule()) -> None:
        self._rule = rule
        self._decoder = rule.decoder()
        self._worth_it = True
        self._tried = 0

    def decode(self, records: Sequence[bytes | None]) -> Columns:
        """The columns that the records say, one row for each."""
        columns = Columns()
        for start in range(0, len(records), _CHUNK):
            chunk = records[start : start + _CHUNK]
            lines = self._lines(chunk)
            if lines is None or not self._take(lines, chunk, columns):
                for record in chunk:
                    columns._decode(record, self._decoder)
        return columns

    def _lines(self, records: Sequence[bytes | None]) -> bytes | None:
        """The records as lines, or None where it is no use to look for simple ones."""
        self._tried += 1
        if self._rule.max_depth < SHALLOW or not (self._worth_it or self._tried % _RETRY == 0):
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
        return lines if lines.count(b"\n") == len(records) else None

    def _take(self, lines: bytes, records: Sequence[bytes | None], columns: Columns) -> bool:
        """Appends what the records say, unless msgspec refuses one of them."""
        read = _read(lines)
        if read is None or len(read) != len(records):
            self._worth_it = False
            return False
        text = _write(read)
        self._worth_it = text == lines
        if self._worth_it and _append_legal(read, b"null" in lines, columns):
            return True
        simple = 0
        for record, again, said in zip(records, text.split(b"\n"), read, strict=False):
            if record == again and _append_legal([said], True, columns):
                simple += 1
            else:
                columns._decode(record, self._decoder)
        self._worth_it = 2 * simple > len(records)
        return True


def _append_legal(read: list[Any], nulls: bool, columns: Columns) -> bool:
    """Appends what simple records say, if all of them say elements (E2 of `elements`)."""
    vs = [each.vs for each in read]
    vold = [each.vold for each in read]
    ve = [each.ve for each in read]
    vc = [each.vc for each in read]
    if nulls:  # maybe of a payload
        vold = [each.no_vold if end is None else end for each, end in zip(read, vold, strict=True)]
        ve = [each.no_ve if end is None else end for each, end in zip(read, ve, strict=True)]
        vc = [each.no_vc if end is None else end for each, end in zip(read, vc, strict=True)]
    short = [i for i, (a, b) in enumerate(zip(vs, ve, strict=True)) if a is not None and b <= a]
    if any(ve[i] < vs[i] or vold[i] is None for i in short):
        return False
    if any([end is not None and end <= a for a, end in zip(vs, vold, strict=True)]):  # noqa: C419 (half the time)
        return False
    columns.op += [each.op for each in read]
    payloads: list[bytes | None] = [*_write([each.payload for each in read]).split(b"\n")]
    payloads.pop()
    for i in [i for i, a in enumerate(vs) if a is None]:
        payloads[i] = None
    columns.payload += payloads
    columns.vs += vs
    columns.vold += vold
    columns.ve += ve
    columns.vc += vc
    return True


_Reader: TypeAlias = Callable[[bytes], list[Any]]


def _reader(value: Any, hook: Callable[[str], Any] | None = None) -> _Reader:
    """Reads lines as elements with payloads of a type.

    Fields that an element lacks are None, and what null means in one is its `no_...`.
    """
    end = INFINITY
    insert = {"op": "insert", "vold": None, "vc": None, "no_vold": None, "no_ve": end}
    adjust = {"op": "adjust", "vc": None, "no_vold": end, "no_ve": end}
    stable = {"op": "stable", "payload": None, "vs": None, "vold": None, "ve": None}
    event: list[Any] = [("payload", value), ("vs", Finite)]
    union = (
        _struct("insert", [*event, ("ve", Time)], insert | {"no_vc": None})
        | _struct("adjust", [*event, ("vold", Time), ("ve", Time)], adjust | {"no_vc": None})
        | _struct("stable", [("vc", Time)], stable | {"no_vold": None, "no_ve": None, "no_vc": end})
    )
    return msgspec.json.Decoder(union, float_hook=hook).decode_lines


def _struct(tag: str, fields: list[Any], constants: dict[str, Any]) -> Any:
    return msgspec.defstruct(
        tag,
        fields,
        namespace=constants,
        frozen=True,
        gc=False,
        tag_field="op",
        tag=tag,
        forbid_unknown_fields=True,
    )


_read_without_fractions: Final = _reader(WITHOUT_FRACTIONS)
_read_shallow: Final = _reader(WITH_FRACTIONS)
_read_common_numbers: Final = _reader(Any, common_number)
_write: Final = msgspec.json.Encoder(order="deterministic").encode_lines
"""As `payload` writes: in this order, keys are sorted and fields stay where they are."""


def _read(lines: bytes) -> list[Any] | None:
    """What the lines say, or None where msgspec refuses one, or a number is uncommon."""
    try:
        return _read_without_fractions(lines)
    except msgspec.ValidationError:
        pass  # there may be fractions
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    try:
        _read_shallow(lines)  # refuses what is deeper, and integers beyond int64
        return _read_common_numbers(lines)
    except (msgspec.MsgspecError, UnicodeDecodeError, UncommonNumberError, RecursionError):
        return None
