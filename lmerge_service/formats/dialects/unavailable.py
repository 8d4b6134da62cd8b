r"""The placeholder that Debezium writes for an unchanged value that the log does not repeat.

Theory
    PostgreSQL leaves unchanged large values (TOAST) out of its log, and Oracle its LOBs. Debezium
    must write something that fits the column's type, so it derives one form per type from one
    setting, the connector's `unavailable.value.placeholder`: P as text, B as bytes.

    | column | form |
    |---|---|
    | text, json, xml, clob, hex or base64 of bytea | "P" |
    | bytes: bytea, blob | base64 of B; url-safe base64 or hex by `binary.handling.mode` |
    | hstore | {"P":"P"}, or that object as a text |
    | text[], varchar[], json[], date[] as text | ["P"] |
    | bytea[], uuid[] | [base64 of B], [the UUID made of B by name] |
    | int2[], int4[], int8[], float[], date[], timestamp[], vector | each byte of B as a number |
    | numeric(p,s)[] | each byte of B, unscaled: as base64, or as a number with s decimals |
    | numeric[] | {"scale":0,"value":"base64"} of each byte of B |
    | bool[] | true for each byte of B that is not 0 |

    The last one is no placeholder by itself: an array of so many `true` may be data. It counts as
    one in an update if the row before is unknown, or has a longer array there: what the log leaves
    out is large.

    >>> find = Unavailable(PLACEHOLDER)
    >>> find.whole(b'{"a":["__debezium_unavailable_value"],"b":2}', b'{"a":[5],"b":1}', update=True)
    b'{"a":[5],"b":2}'

Cost
    A few searches in the row's text. Only where one of them finds something, or where the row has
    an array that is long enough, it is taken apart.
"""

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from hashlib import md5
from typing import Any, Final
from uuid import UUID

import msgspec

from lmerge_service.errors import ElementError
from lmerge_service.formats.dialects.reading import fields_of, merged
from lmerge_service.formats.payload import canonical
from lmerge_service.formats.reasons import Reason

__all__ = ("PLACEHOLDER", "Unavailable", "octets", "unavailable")

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""Debezium's default."""

_HEX: Final = "hex:"


def octets(placeholder: str) -> bytes:
    """The bytes that a connector makes of its setting: UTF-8, or what follows `hex:`.

    >>> octets("?"), octets("hex:00ff")
    (b'?', b'\\x00\\xff')

    Raises:
        ValueError: what follows `hex:` is not hexadecimal.
    """
    if not placeholder.startswith(_HEX):
        return placeholder.encode()
    return bytes.fromhex(placeholder.removeprefix(_HEX))


class Unavailable:
    """Finds the forms of one placeholder in rows."""

    __slots__ = ("_forms", "_needles", "_octets", "_truths")

    def __init__(self, placeholder: str, *, nfc: bool = False) -> None:
        """`nfc`: rows are in that form."""
        whole = octets(placeholder)
        self._octets = [each - 256 if each > 127 else each for each in whole]
        self._forms = frozenset(
            canonical(msgspec.json.encode(form), nfc=nfc) for form in _forms(whole, self._octets)
        )
        scalars = {form[1:-1] for form in self._forms if form.startswith(b'"')}
        self._needles = (*scalars, str(_named(whole)).encode())
        self._truths = msgspec.json.encode([each != 0 for each in whole])

    def whole(self, row: bytes, before: bytes | None, *, update: bool) -> bytes:
        """A canonical row, with what it leaves out taken over from the row before.

        `update`: the row replaces the one before; the first row of a key has nothing to repeat.

        Raises:
            ElementError: it leaves out what no row before has.
        """
        if not row.startswith(b"{") or not self._may_be_in(row):
            return row
        fields = fields_of(row)
        known = fields_of(before) if update and before and before.startswith(b"{") else {}
        marked = [
            name
            for name, text in fields.items()
            if text in self._forms
            or (text == self._truths and update and _is_left_out(text, known.get(name)))
            or self._is_scaled(text)
        ]
        if not marked:
            return row
        for name in marked:
            if name not in known:
                raise ElementError(Reason.UNAVAILABLE, _unknown(name))
            fields[name] = known[name]
        return merged(fields)

    def _may_be_in(self, row: bytes) -> bool:
        """Every form but those of arrays of numbers has a needle in it."""
        if b"[" in row and row.count(b",") >= len(self._octets) - 1:
            return True
        return any(needle in row for needle in self._needles)

    def _is_scaled(self, text: bytes) -> bool:
        """Numbers that are the octets times one power of ten."""
        if not text.startswith(b"[") or text.count(b",") != len(self._octets) - 1:
            return False
        try:
            numbers = [Decimal(each) for each in text[1:-1].decode().split(",")]
        except InvalidOperation:
            return False
        pairs = [(n, each) for n, each in zip(numbers, self._octets, strict=True) if n or each]
        if not pairs or not all(n and each for n, each in pairs):
            return False
        factor = (pairs[0][0] / pairs[0][1]).normalize()
        return factor.as_tuple().digits == (1,) and all(n == each * factor for n, each in pairs)


unavailable = lru_cache(maxsize=16)(Unavailable)
"""One for all partitions."""


def _forms(whole: bytes, numbers: list[int]) -> Iterator[Any]:
    text = whole.decode(errors="replace")
    single = [b64encode(bytes([each])).decode() for each in whole]
    encoded = [b64encode(whole).decode(), urlsafe_b64encode(whole).decode(), whole.hex()]
    pair = {text: text}
    scalars = [text, *encoded, whole.hex().upper()]
    yield from scalars
    yield from ([each] for each in scalars)
    yield from (pair, msgspec.json.encode(pair).decode())
    yield [str(_named(whole))]
    yield numbers
    yield single
    yield [{"scale": 0, "value": each} for each in single]


def _named(whole: bytes) -> UUID:
    """As Java's UUID.nameUUIDFromBytes: version 3, without a name space."""
    return UUID(bytes=md5(whole, usedforsecurity=False).digest(), version=3)


def _is_left_out(text: bytes, known: bytes | None) -> bool:
    """So many `true` stand for an array that is too large to be repeated."""
    return known is None or (known.startswith(b"[") and len(known) > len(text))


def _unknown(name: str) -> str:
    return (
        f"the value of {name[:100]!a} is unavailable: the log did not repeat it, and no row before "
        "has it (write whole rows, as REPLICA IDENTITY FULL does, or leave the column out)"
    )
