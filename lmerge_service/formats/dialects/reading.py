"""Records as JSON: what all dialects need to find rows and times in them.

Theory
    A record's text is made canonical as a whole first, which refuses what the wire refuses (NaN,
    keys given twice, lone surrogates, numbers that are not carried, too deep, too large). Every
    part of a canonical text is canonical, so a row can be cut out as it stands:

    >>> reader = Reader(PayloadCache(), 1000)
    >>> fields = reader.fields(b'{"op": "c", "after": {"b": 1.0, "a": null}}')
    >>> fields["after"]
    b'{"a":null,"b":1}'
    >>> find(fields, ("after", "b"))
    b'1'

Cost
    That of `payload.canonical` for the whole record, plus about 1 µs.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ElementError
from lmerge_service.formats.headers import TimedRecord
from lmerge_service.formats.payload import DEEPEST, PayloadCache, canonical
from lmerge_service.formats.reasons import Reason

__all__ = (
    "Fields",
    "Reader",
    "end",
    "fields_of",
    "find",
    "malformed",
    "merged",
    "time",
    "timestamp",
    "without",
    "word",
)

Fields = dict[str, bytes]
Path = tuple[str, ...]

_ENVELOPE: Final = 4
"""How much deeper than its row a record may nest: {"payload": {"data": [{…}]}}, and one more."""

_read: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_write: Final = msgspec.json.Encoder().encode


class Reader:
    """Reads texts under the limits that the wire has; payloads are shared by way of the cache."""

    __slots__ = ("_cache", "_max_bytes")

    def __init__(self, cache: PayloadCache, max_record_bytes: int) -> None:
        self._cache = cache
        self._max_bytes = max_record_bytes

    @property
    def nfc(self) -> bool:
        """Strings of all texts are in this form."""
        return self._cache.nfc

    def text(self, raw: bytes) -> bytes:
        """The canonical text of a record's value or key.

        Raises:
            ElementError: it is refused as the wire would refuse it.
        """
        self.check_size(raw)
        cache = self._cache
        # Nulls stay until a row is cut out: in an envelope they mean something.
        return canonical(raw, nfc=cache.nfc, max_depth=min(cache.max_depth + _ENVELOPE, DEEPEST))

    def key(self, raw: bytes) -> bytes:
        """The canonical text of a record's key.

        Raises:
            ElementError: it is refused; the message names the key.
        """
        try:
            return self.text(raw)
        except ElementError as error:
            raise ElementError(error.reason, f"the record's key: {error}") from None

    def fields(self, raw: bytes) -> Fields:
        """The members of a record that is an object, as canonical texts."""
        return fields_of(self.text(raw))

    def row(self, text: bytes) -> bytes:
        """A canonical text as a payload: within the limits, and one object for equal ones."""
        self.check_size(text)
        return self._cache.young[text]

    def check_size(self, raw: bytes) -> None:
        """Raises ElementError (`Reason.TOO_LARGE`) for more bytes than the limit."""
        if len(raw) > self._max_bytes:
            limit = f"larger than the limit of {self._max_bytes} bytes"
            raise ElementError(Reason.TOO_LARGE, limit)


def malformed(what: str) -> ElementError:
    """JSON, but not of the dialect's form."""
    return ElementError(Reason.NOT_AN_ELEMENT, what)


def fields_of(text: bytes) -> Fields:
    """The members of a canonical object; their order is the canonical one."""
    if not text.startswith(b"{"):
        raise malformed(f"an object is needed, got {_excerpt(text)}")
    return {name: bytes(raw) for name, raw in _read(text).items()}


def find(fields: Mapping[str, bytes], path: Path) -> bytes | None:
    """The text at a path, or None when there is none (null is a text)."""
    name, *rest = path
    text = fields.get(name)
    for name in rest:
        if text is None or not text.startswith(b"{"):
            return None
        text = fields_of(text).get(name)
    return text


def merged(fields: Mapping[str, bytes]) -> bytes:
    """The canonical object of these members."""
    members = (_write(name) + b":" + fields[name] for name in sorted(fields))
    return b"{" + b",".join(members) + b"}"


def without(text: bytes, paths: Iterable[Path]) -> bytes:
    """A canonical object less what stands at the paths, and less what is empty then.

    >>> without(b'{"id":1,"window":{"end":9,"start":5}}', [("window", "start"), ("window", "end")])
    b'{"id":1}'
    """
    for path in paths:
        text = _less(text, path)
    return text


def _less(text: bytes, path: Path) -> bytes:
    name, *rest = path
    if not text.startswith(b"{") or name not in (fields := fields_of(text)):
        return text
    inner = _less(fields[name], tuple(rest)) if rest else b"{}"
    if rest and inner == fields[name]:
        return text
    if inner == b"{}":
        del fields[name]
    else:
        fields[name] = inner
    return merged(fields)


def word(fields: Mapping[str, bytes], name: str) -> str:
    """The string under a name; "" when there is none, or anything else."""
    text = fields.get(name, b"")
    return msgspec.json.decode(text, type=str) if text.startswith(b'"') else ""


def time(text: bytes | None, name: str) -> int:
    """A time, which must be a finite int64.

    Raises:
        ElementError: it is missing, or no such number.
    """
    value = end(text, name)
    if value == INFINITY:
        raise malformed(f"{name} must be a finite time")
    return value


def end(text: bytes | None, name: str) -> int:
    """A time that may also be infinite, written as null or as the largest int64."""
    if text is None:
        raise malformed(f"{name} is missing")
    if text == b"null":
        return INFINITY
    if text.removeprefix(b"-").isdigit() and START <= (value := int(text)) <= INFINITY:
        return value
    raise malformed(f"{name} must be an int64, got {_excerpt(text)}")


def timestamp(record: TimedRecord) -> int:
    """The Kafka record's own time, in milliseconds."""
    if record.timestamp < 0:
        raise malformed("the record has no timestamp")
    return record.timestamp


def _excerpt(text: bytes) -> str:
    shown = text[:40].decode(errors="replace")
    return shown if len(text) <= 40 else shown + "..."
