r"""Records of a table topic: an event's row key, its value, and the offsets in the headers.

Theory
    A table topic has, in the partition of the same number as the output, the latest state of each
    event, by a key that is its own. The value is the element that would insert the event as it is
    now, so that whoever reads the wire format reads the table, and no value is the removal:

    >>> keys = RowKeys(multiset=False, keyed=False)
    >>> keys.of(None, b'{"id":1}', 6, 12)
    b'{"vs":6,"digest":"037c9214eef74cc3887f3a4f085b4e17"}'

    The digest is the first half of the SHA-256 of the canonical payload, in hexadecimal. Where the
    topology names key fields, the logical key comes first, as JSON. In a multiset (case R4) events
    that are equal have a number each, from 0 on, so that a change of an end is a removal and an
    insert:

    >>> RowKeys(multiset=True, keyed=True).of(b'"UA1"', b'{"id":1}', 6, INFINITY, 1)
    b'{"key":"UA1","vs":6,"digest":"037c9214eef74cc3887f3a4f085b4e17","ve":null,"n":1}'

    Two headers have offsets of the output's partition: `lmerge-output-from`, from where the
    output is to be followed, and `lmerge-output-to`, before which all is in this record. Records
    without them belong to a table that is not whole yet.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import msgspec

from lmerge_service.elements import INFINITY, Insert
from lmerge_service.errors import ElementError
from lmerge_service.formats.reasons import Reason

__all__ = (
    "OUTPUT_FROM_HEADER",
    "OUTPUT_TO_HEADER",
    "RowKeys",
    "number_of",
    "offset_headers",
    "offsets_of",
)

OUTPUT_FROM_HEADER: Final = "lmerge-output-from"
OUTPUT_TO_HEADER: Final = "lmerge-output-to"

_DIGITS: Final = 32


class _PlainKey(msgspec.Struct, gc=False):
    vs: int
    digest: str


_encoded: Final = msgspec.json.Encoder().encode


class RowKeys:
    """How row keys are made of one output."""

    def __init__(self, *, multiset: bool, keyed: bool) -> None:
        """`multiset`: the case is R4; `keyed`: the topology names key fields."""
        self.multiset = multiset
        self.keyed = keyed

    def of(self, logical: bytes | None, payload: bytes, vs: int, ve: int, number: int = 0) -> bytes:
        """The key of an event's row. `logical` is its logical key, `number` counts equal events."""
        digest = sha256(payload).hexdigest()[:_DIGITS]
        if not (self.multiset or self.keyed):
            return _encoded(_PlainKey(vs, digest))
        begin = b'"key":%b,' % (logical or b"null") if self.keyed else b""
        if not self.multiset:
            return b'{%b"vs":%d,"digest":"%b"}' % (begin, vs, digest.encode())
        end = b"null" if ve == INFINITY else b"%d" % ve
        event = (vs, digest.encode(), end, number)
        return b'{%b"vs":%d,"digest":"%b","ve":%b,"n":%d}' % (begin, *event)

    def is_of(self, key: bytes, logical: bytes | None, event: Insert[bytes]) -> bool:
        """Whether a row has the key that its event has here."""
        number = number_of(key) if self.multiset else 0
        mine = (event.payload, event.vs, event.ve, number or 0)
        return number is not None and key == self.of(logical, *mine)


class _Numbered(msgspec.Struct):
    n: int


def number_of(key: bytes) -> int | None:
    """Which of equal events a row key of a multiset is of; None: it is none."""
    try:
        return msgspec.json.decode(key, type=_Numbered).n
    except (msgspec.MsgspecError, ValueError):
        return None


def offset_headers(start: int, end: int) -> list[tuple[str, bytes]]:
    """The headers of a transaction's rows whose output has the offsets from `start` to `end`.

    >>> offset_headers(40, 44)
    [('lmerge-output-from', b'40'), ('lmerge-output-to', b'44')]
    """
    return [(OUTPUT_FROM_HEADER, b"%d" % start), (OUTPUT_TO_HEADER, b"%d" % end)]


def offsets_of(headers: Iterable[tuple[str, bytes]]) -> tuple[int, int] | None:
    """What `offset_headers` wrote; None: the table was not whole.

    >>> offsets_of(offset_headers(40, 44))
    (40, 44)

    Raises:
        ElementError: they are no offsets.
    """
    found = dict(headers)
    start, end = found.get(OUTPUT_FROM_HEADER), found.get(OUTPUT_TO_HEADER)
    if start is None or end is None:
        return None
    if not (start.isdigit() and end.isdigit()):
        raise ElementError(
            Reason.HEADER,
            f"{OUTPUT_FROM_HEADER} is {start!r}, {OUTPUT_TO_HEADER} {end!r}: no offsets",
        )
    return int(start), int(end)
