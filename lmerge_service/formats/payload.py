r"""When two payloads are equal: canonical JSON text, compared as bytes.

Theory
    Replicas write the same payload in different texts, and the merge must know it for the same
    one. So each payload is rewritten once, in the one form that depends on its value only,
    and from then on payloads are `bytes`: hashed once, compared at memory speed, readable.

    >>> canonical(b'{"fare": 12.50, "to": "K\\u00f6ln", "seats": 2.0}').decode()
    '{"fare":12.5,"seats":2,"to":"Köln"}'
    >>> canonical('{"to":"Köln","seats":2,"fare":1.25e1}'.encode()).decode()
    '{"fare":12.5,"seats":2,"to":"Köln"}'

    The form, and therefore the rule (version `EQUALITY_VERSION`):
    objects   keys sorted by code point, each key once; no space outside strings.
    strings   UTF-8, compared code point by code point; escaped is only what JSON demands:
              quote, backslash and the controls below U+0020 (short where JSON has a short form,
              else lower-case hexadecimal). NFC normalisation, of keys too, is opt-in.
    numbers   equal when they are the same decimal number: 1 = 1.0 = 1e0, -0.0 = 0. A number is
              carried exactly when it is an int64, or when the shortest round-trip text of its
              nearest double is the same decimal number. An int64 is written as an integer,
              another one as Python's `repr(float)`. Rounding in silence would merge payloads
              that differ, so what is not carried is refused: 2**63, 1e400, 1e-400, and decimals
              with more digits than a double keeps.
    nulls     `{"a":null}` and `{}` differ. As an option, members of objects whose value is null are
              left out, at any depth, since some writers leave them out; items of arrays stay.
    refused   besides: what is not JSON (NaN is not), invalid UTF-8, lone surrogates, a key twice
              (also when that shows only after unescaping or NFC), nesting beyond a limit.
              `reasons` has the closed set.

    Most payloads take a short cut: msgspec reads and writes them. It drops all but the last of
    two equal keys, so the short cut must see that nothing was dropped. (a) The text written has
    as many bytes as the one read: no token is ever written longer than it was read (numbers that
    would be are left to the long way), so a dropped one would show. Or (b) both texts have
    equally many quotes, and no quote was read in the disguise of U+0022: every key has two.

Invariants
    P1  canonical(canonical(x)) = canonical(x), and canonical(x) is canonical(y) as bytes exactly
        when x and y have the same value; the short cut and the long way agree on every input.
    P2  Whatever the bytes: a result or an `ElementError`, in time linear in them, at any depth.
    P3  While a cache holds a canonical text, equal payloads get that very object.
    P4  A cache never holds more entries or bytes than its limits.

Cost
    About 1 µs for a first-seen flat payload of 120 bytes, half as much more for spaces and for
    each number with a fraction; 12 µs the long way (exponents, escaped quotes as U+0022, nesting
    beyond 6, refusals); 0.1 µs when the bytes were seen. A cache forgets half of what it holds at
    once, at most every max_entries / 4 new payloads.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from itertools import accumulate
from math import isfinite
from typing import Annotated, Any, Final, Generic, NamedTuple, NoReturn, TypeVar

import msgspec

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ElementError
from lmerge_service.formats.reasons import Reason

__all__ = ("EQUALITY_VERSION", "MAX_DEPTH", "Generation", "PayloadCache", "canonical")

V = TypeVar("V")

EQUALITY_VERSION: Final = 1
"""Snapshots carry it: state made under another rule must not be continued under this one."""

MAX_DEPTH: Final = 64
"""Arrays and objects within each other, unless configured otherwise."""

DEEPEST: Final = 200
"""No limit may be higher: the parsers recurse, and must not meet the interpreter's own limit."""


def canonical(
    raw: bytes, *, nfc: bool = False, drop_nulls: bool = False, max_depth: int = MAX_DEPTH
) -> bytes:
    """The one text of the payload that `raw` holds, a JSON text in UTF-8.

    `drop_nulls` leaves out members that are null; `max_depth` is at most `DEEPEST`.

    >>> canonical(b'{"a":null,"b":[null,{"c":null}]}', drop_nulls=True)
    b'{"b":[null,{}]}'

    Raises:
        ElementError: `raw` is refused; `reason` is a `Reason`.
    """
    common = max_depth >= SHALLOW and (not nfc or (raw.isascii() and b"\\" not in raw))
    text = (_short_cut(raw) if common else None) or _long_way(raw, nfc, max_depth)
    return _without_nulls(text) if drop_nulls and b":null" in text else text


def _short_cut(raw: bytes) -> bytes | None:
    """The canonical text, or None when it takes a closer look to know."""
    try:
        if _POINT in raw:
            _read_shallow(raw)  # refuses what is deeper, and integers beyond int64
            value = _read_common_numbers(raw)
        else:
            value = _read_without_fractions(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, _UncommonNumber):
        return None
    text = _write(value)
    if len(text) == len(raw):
        return raw if text == raw else text
    nothing_dropped = text.count(b'"') == raw.count(b'"') and b"u0022" not in raw
    return text if nothing_dropped else None


class _UncommonNumber(Exception):  # noqa: N818 (a signal, not an error)
    pass


def _common_number(text: str) -> int | float:
    """A number with a fraction or exponent, when its canonical text is no longer than `text`.

    Up to 15 digits the nearest double always is the same decimal number (DBL_DIG). `repr` and
    msgspec write the same text, without exponent, for 1e-4 up to 1e16.
    """
    value = float(text)
    if "e" in text or "E" in text or (len(text) > 16 and repr(value) != text):
        raise _UncommonNumber
    if value.is_integer():
        return int(value)
    if -1e-4 < value < 1e-4:
        raise _UncommonNumber
    return value


_POINT: Final = ord(".")
SHALLOW: Final = 6
"""How deep a value may be nested that takes the short cut."""


def _shallow(scalar: Any) -> Any:
    """The type of JSON values of such scalars, nested at most `SHALLOW` deep."""
    shape: Any = scalar
    for _ in range(SHALLOW):
        shape = scalar | list[shape] | dict[str, shape]
    return shape


_Int64: Any = Annotated[int, msgspec.Meta(ge=START, le=INFINITY)]
WITHOUT_FRACTIONS: Final[Any] = _shallow(_Int64 | str | bool | None)
"""The type of the values that take the short cut as they are read."""
_read_without_fractions: Final = msgspec.json.Decoder(WITHOUT_FRACTIONS).decode
_read_shallow: Final = msgspec.json.Decoder(_shallow(_Int64 | float | str | bool | None)).decode
_read_common_numbers: Final = msgspec.json.Decoder(float_hook=_common_number).decode
_write: Final = msgspec.json.Encoder(order="sorted").encode


def _long_way(raw: bytes, nfc: bool, max_depth: int) -> bytes:
    """By the standard library's parser, whose hooks see every number and every key."""
    text = _decoded(raw)
    _check_depth(text, max_depth)
    try:
        value = _parse(text)
        if nfc:
            value = _normalised(value)
    except json.JSONDecodeError as error:
        what = f"not JSON: {error.msg} (character {error.pos})"
        raise ElementError(Reason.NOT_JSON, what) from None
    try:
        return _print(value).encode()
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise ElementError(Reason.LONE_SURROGATE, f"a lone surrogate, U+{half:04X}") from None


def _without_nulls(text: bytes) -> bytes:
    """A canonical text less the members that are null."""
    return _print(_less_nulls(json.loads(text))).encode()


def _less_nulls(value: object) -> object:
    match value:
        case list():
            return [_less_nulls(item) for item in value]
        case dict():
            return {key: _less_nulls(item) for key, item in value.items() if item is not None}
    return value


def _decoded(raw: bytes) -> str:
    if raw[:1] == b"\0" and len(raw) >= _REGISTRY_BYTES:
        raise ElementError(Reason.NOT_JSON, _of_registry(raw))
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        at = error.start
        if raw[at] == 0xED and 0xA0 <= (raw[at + 1 : at + 2] or b"\0")[0] < 0xC0:
            reason, what = Reason.LONE_SURROGATE, "a surrogate written as if it were a character"
        else:
            reason, what = Reason.NOT_UTF8, f"not UTF-8, {error.reason}"
        raise ElementError(reason, f"{what} (byte {at})") from None


_REGISTRY_BYTES: Final = 5
_JSON_STARTS: Final = b'{["-0123456789tfn'


def _of_registry(raw: bytes) -> str:
    """What is wrong with a text that begins as serializers of a schema registry begin theirs."""
    schema = int.from_bytes(raw[1:_REGISTRY_BYTES], "big")
    behind = raw[_REGISTRY_BYTES:].lstrip()[:1]
    what = "JSON behind them" if behind and behind in _JSON_STARTS else "no JSON behind them"
    return (
        f"not JSON: it begins with the five bytes of a schema registry, schema {schema}, and there "
        f"is {what}: write plain JSON (in Kafka Connect by its JsonConverter)"
    )


_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
"""Always matches from a quote on, so that a scan is linear even when nothing closes it."""


def _check_depth(text: str, max_depth: int) -> None:
    """Before anything recurses; what no parser would reach may count too, but never less."""
    if text.count("[") + text.count("{") <= max_depth:
        return
    steps = ({"[": 1, "{": 1, "]": -1, "}": -1}.get(sign, 0) for sign in _STRING.sub("", text))
    if max(accumulate(steps), default=0) > max_depth:
        raise ElementError(Reason.NESTING, f"nested deeper than {max_depth}")


def _number(text: str) -> int | float:
    """Any JSON number, exactly."""
    number = _decimal(text)
    if number.exponent >= 0 and len(number.digits) + number.exponent <= 19:
        value: int = int(f"{number.sign}{number.digits or 0}") * 10**number.exponent
        if START <= value <= INFINITY:
            return value
    if (
        len(number.digits) <= 17
        and isfinite(double := float(text))
        and _decimal(repr(double)) == number
    ):
        return double
    raise ElementError(Reason.NUMBER, f"no int64 or double carries {_excerpt(text)} exactly")


class _Decimal(NamedTuple):
    """sign digits * 10**exponent, digits without zeros at either end; zero has none and no sign."""

    sign: str
    digits: str
    exponent: int


def _decimal(text: str) -> _Decimal:
    mantissa, _, power = text.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return _Decimal("", "", 0)
    down = power.startswith("-")
    # No record has so many digits that a longer exponent could still be evened out.
    magnitude = int(power.lstrip("+-").lstrip("0")[:18] or 0)
    significant = digits.rstrip("0")
    zeros = len(digits) - len(significant) - len(fraction)
    sign = "-" if text.startswith("-") else ""
    return _Decimal(sign, significant, (-magnitude if down else magnitude) + zeros)


def _no_constant(text: str) -> NoReturn:
    raise ElementError(Reason.NOT_JSON, f"not JSON: {text} is no JSON number")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            raise ElementError(Reason.DUPLICATE_KEY, f"the key {_excerpt(key)!a} is given twice")
        members[key] = value
    return members


def _normalised(value: object) -> object:
    match value:
        case str():
            return unicodedata.normalize("NFC", value)
        case list():
            return [_normalised(item) for item in value]
        case dict():
            return _object(
                [(unicodedata.normalize("NFC", key), _normalised(v)) for key, v in value.items()]
            )
    return value


def _excerpt(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


_parse: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_float=_number,
    parse_int=_number,
    parse_constant=_no_constant,
).decode
_print: Final = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode


_ENTRY_BYTES: Final = 200
"""What an entry takes beside its text: two bytes objects' heads and a slot, growth included."""


class PayloadCache:
    """What recent payloads are in canonical form, shared by the inputs of one merge.

    Two generations of entries: what is looked up moves to the young one, and when that is half
    of the limits it becomes the old one, which is forgotten. Not for several threads.

    >>> cache = PayloadCache()
    >>> cache.young[b'{"a": 1}'] is cache.young[b'{"a":1.0}']
    True
    """

    __slots__ = ("_bytes", "_entries", "_held", "_old", "drop_nulls", "max_depth", "nfc", "young")

    def __init__(
        self,
        *,
        nfc: bool = False,
        drop_nulls: bool = False,
        max_depth: int = MAX_DEPTH,
        max_entries: int = 1 << 15,
        max_bytes: int = 16 << 20,
    ) -> None:
        if not 0 <= max_depth <= DEEPEST:
            raise ValueError(f"max_depth must be between 0 and {DEEPEST}, got {max_depth}")
        self.nfc = nfc
        self.drop_nulls = drop_nulls
        self.max_depth = max_depth
        self._entries = max_entries // 2
        self._bytes = max_bytes // 2
        self._held = 0  # bytes charged to the young generation
        self._old: dict[bytes, bytes] = {}
        self.young = Generation(self.admit)
        """`young[raw]` is the canonical text of `raw`, found or made."""

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def admit(self, raw: bytes) -> bytes:
        """The canonical text of what the young generation does not hold, which it then does."""
        text = self._old.get(raw)
        if text is None:
            text = canonical(
                raw, nfc=self.nfc, drop_nulls=self.drop_nulls, max_depth=self.max_depth
            )
            if text is not raw:
                text = self.young.get(text) or self._old.get(text) or text
        held = self._held + len(raw) + _ENTRY_BYTES
        if text is raw and held <= self._bytes and len(self.young) < self._entries:
            self.young[raw] = raw  # as a rule, and therefore without a call
            self._held = held
        else:
            self._keep(raw, text)
        return text

    def check(self) -> None:
        """Asserts P3 and P4."""
        assert len(self.young) <= self._entries, "the young generation holds too many entries"
        assert len(self._old) <= self._entries, "the old generation holds too many entries"
        assert self._held <= self._bytes, "the young generation holds too many bytes"
        assert self._held == sum(len(key) + _ENTRY_BYTES for key in self.young), (
            "bytes are miscounted"
        )
        both = [*self.young.items(), *self._old.items()]
        objects = {text: text for _, text in both}
        assert all(objects[text] is text for _, text in both), "equal payloads are two objects"

    def _keep(self, raw: bytes, text: bytes) -> None:
        """In the young generation, where `text` always stands for itself too (P3)."""
        most = len(raw) + len(text) + 2 * _ENTRY_BYTES
        if self._held + most > self._bytes or len(self.young) + 2 > self._entries:
            if most > self._bytes or self._entries < 2:
                return
            self._old = self.young
            self.young = Generation(self.admit)
            self._held = 0
        self._put(text, text)
        if raw is not text:
            self._put(raw, text)

    def _put(self, key: bytes, text: bytes) -> None:
        if key not in self.young:
            self.young[key] = text
            self._held += len(key) + _ENTRY_BYTES


class Generation(dict[bytes, V], Generic[V]):
    """Of a cache in two generations: a dict that calls for what it does not hold, so that a hit
    costs no call."""

    __slots__ = ("_look_up",)

    def __init__(self, look_up: Callable[[bytes], V]) -> None:
        super().__init__()
        self._look_up = look_up

    def __missing__(self, key: bytes) -> V:
        return self._look_up(key)
