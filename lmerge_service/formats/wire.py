r"""Elements as JSON records, one each: decoding and encoding.

Theory
    The wire is JSON, and infinity is `null`:

    >>> WireDecoder().decode(b'{"op":"insert","payload":{"id": 1.0},"vs":6,"ve":null}')
    Insert(payload=b'{"id":1}', vs=6, ve=9223372036854775807)
    >>> encode(_)
    b'{"op":"insert","payload":{"id":1},"vs":6,"ve":null}'

    msgspec checks the shape and skips over the payload; the payload's bytes are looked up among
    those seen before, and made canonical when they are new (`payload`).

    What msgspec does not report is a field that was given twice. But every field is needed and no
    other is allowed, so outside its payload an element without duplicates has a known number of
    quotes: two for each key and two for the value of `op`. A duplicate has more. Counting them
    takes a quarter of the time to decode, and lengths mostly save it: a duplicate takes at least
    7 bytes more (`"vs":0,`), and of the bytes outside the payload only the digits of the times
    may vary. So where vs has so many digits that 7 bytes are not left, nothing is there twice.

Invariants
    W1  decode(encode(e)) == e for every element whose payload is canonical.
    W2  Whatever the bytes: an element without defect (`elements.defect`) or an `ElementError`.
    W3  Infinity is `null` or, by rule, 9223372036854775807, which is what a Java writer makes of
        it; it is written as `null`. A vs is never infinite.
    W4  seen[record] gives or raises what decode(record) does, and while a record is kept, the very
        object it gave before. No stable is kept, nor more records or bytes than the limits.

Cost
    For payloads of 120 bytes: decoding about 0.7 µs when the payload was seen (0.25 of them
    msgspec's), with `payload`'s cost on top when not; 0.3 µs more where quotes are counted
    (spaces, negative times); encoding about 0.2 µs (benchmarks/formats.py). Where that decoding
    took 1.05 µs, a record that is kept was found in 0.15, and keeping one cost 0.6: it pays where
    two records of five have occurred before. Memory for what is kept is `kept_bytes` at most,
    beside the payloads.
"""

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable, defect
from lmerge_service.errors import ElementError
from lmerge_service.formats.payload import MAX_DEPTH, Generation, PayloadCache, canonical
from lmerge_service.formats.reasons import Reason

if TYPE_CHECKING:
    from lmerge_engine import Decoder as NativeDecoder

__all__ = ("MAX_RECORD_BYTES", "WireDecoder", "encode")

MAX_RECORD_BYTES: Final = 1 << 20

Finite = Annotated[int, msgspec.Meta(ge=START, le=INFINITY)]
Time = Finite | None


class _Insert(
    msgspec.Struct, frozen=True, gc=False, tag_field="op", tag="insert", forbid_unknown_fields=True
):
    payload: msgspec.Raw
    vs: Finite
    ve: Time


class _Adjust(
    msgspec.Struct, frozen=True, gc=False, tag_field="op", tag="adjust", forbid_unknown_fields=True
):
    payload: msgspec.Raw
    vs: Finite
    vold: Time
    ve: Time


class _Stable(
    msgspec.Struct, frozen=True, gc=False, tag_field="op", tag="stable", forbid_unknown_fields=True
):
    vc: Time


_read: Final = msgspec.json.Decoder(_Insert | _Adjust | _Stable).decode

_INSERT_QUOTES: Final = 10
_ADJUST_QUOTES: Final = 12
_STABLE_QUOTES: Final = 6

_WIDEST: Final = 110
"""So many bytes outside the payload are always worth counting quotes."""


def _enough(outline: str, finite: int) -> tuple[int, ...]:
    """By the bytes outside the payload: from which vs on no field can be there twice.

    `outline` is the element without payload and finite times, of which it has `finite`. As these
    are at least vs >= 0, they have at least its digits each.
    """
    enough = []
    for outside in range(_WIDEST):
        left = outside - len(outline) - len('"vs":0,')
        digits = max(left // finite + 1, 0)  # so many in each time leave less than a duplicate
        enough.append(10 ** (digits - 1) if digits > 1 else 0)
    return tuple(enough)


_CLOSED_INSERT: Final = _enough('{"op":"insert","payload":,"vs":,"ve":}', 2)
_OPEN_INSERT: Final = _enough('{"op":"insert","payload":,"vs":,"ve":null}', 1)
_CLOSED_ADJUST: Final = _enough('{"op":"adjust","payload":,"vs":,"vold":,"ve":}', 3)
_CLOSING_ADJUST: Final = _enough('{"op":"adjust","payload":,"vs":,"vold":null,"ve":}', 2)
_NEVER: Final = (INFINITY + 1,) * _WIDEST


_ENTRY_BYTES: Final = 220
"""What an entry takes beside its record's text: the head of it, an element, and a slot; not the
payload, which the cache of payloads holds as well, as a rule."""

_WINDOW: Final = 1 << 15
"""After so many records it is judged whether keeping them pays."""
_PAYS: Final = 0.6
"""It does not if a larger part of them was new."""
_PAUSE: Final = 8
"""So many windows pass then until it is tried again."""


class WireDecoder:
    """Turns records into elements; several decoders may share one cache of payloads.

    Replicas with the same writer encode an element in the same bytes, so the elements of recent
    records are kept, in two generations as payloads are (`PayloadCache`): a record that another
    replica has sent is looked up, not decoded. Where that hardly ever happens, `keeps` shows the
    caller of `weigh` that `decode` costs less. Not for several threads.

    >>> decoder = WireDecoder()
    >>> record = b'{"op":"insert","payload":"A","vs":6,"ve":9}'
    >>> decoder.seen[record] is decoder.seen[record[:]]
    True
    """

    __slots__ = (
        "_cache",
        "_entries",
        "_held",
        "_kept_bytes",
        "_max_bytes",
        "_missed",
        "_old",
        "_paused",
        "_weighed",
        "keeps",
        "native",
        "seen",
        "unusual",
    )

    def __init__(
        self,
        *,
        nfc: bool = False,
        drop_nulls: bool = False,
        max_record_bytes: int = MAX_RECORD_BYTES,
        max_depth: int = MAX_DEPTH,
        cache: PayloadCache | None = None,
        kept_records: int = 1 << 14,
        kept_bytes: int = 16 << 20,
        native: bool = False,
    ) -> None:
        """`native`: the engine (`core.engine`), which is installed, decodes what it can."""
        if cache is None:
            cache = PayloadCache(nfc=nfc, drop_nulls=drop_nulls, max_depth=max_depth)
        self._cache = cache
        if (cache.nfc, cache.drop_nulls, cache.max_depth) != (nfc, drop_nulls, max_depth):
            raise ValueError("the cache goes by another rule than the decoder")
        self._max_bytes = max_record_bytes
        self._entries, self._kept_bytes = kept_records // 2, kept_bytes // 2
        self._held = 0  # bytes charged to the young generation
        self._old: dict[bytes, Element] = {}
        self.seen = Generation(self._meet)
        """`seen[record]` is `decode(record)`, found or made."""
        self.keeps = True
        """Looking records up pays, as far as is known."""
        self._weighed = self._missed = self._paused = 0
        self.native: NativeDecoder | None = None
        """Decodes many records at once, up to one that is unusual."""
        self.unusual = 0
        """Lines that `ndjson.read_batches` had to decode here."""
        if native:
            import lmerge_engine

            self.native = lmerge_engine.Decoder(nfc, drop_nulls, max_depth, max_record_bytes)

    @property
    def max_record_bytes(self) -> int:
        return self._max_bytes

    @property
    def cache(self) -> PayloadCache:
        """The payloads seen, by which other decoders may share them."""
        return self._cache

    def decode(self, record: bytes | None) -> Element:
        """The element that a record encodes, with its payload in canonical form.

        Raises:
            ElementError: it is none; `reason` is a `Reason`.
        """
        if record is None:
            raise ElementError(Reason.TOMBSTONE, "a record without a value is no element")
        size = len(record)
        if size > self._max_bytes:
            limit = f"larger than the limit of {self._max_bytes} bytes"
            raise ElementError(Reason.TOO_LARGE, limit)
        try:
            wire = _read(record)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _refusal(record, error, self._cache.max_depth) from None
        if type(wire) is _Insert:
            raw = b"" + wire.payload
            vs = wire.vs
            ve = wire.ve
            enough = _CLOSED_INSERT
            if ve is None:
                ve = INFINITY
                enough = _OPEN_INSERT
            outside = size - len(raw)
            if outside >= _WIDEST or not enough[outside] <= vs < ve:
                _check_quotes(record, raw, _INSERT_QUOTES)
                if vs >= ve:
                    raise _defective(Insert(raw, vs, ve))
            return Insert(self._payload(raw), vs, ve)
        if type(wire) is _Adjust:
            raw = b"" + wire.payload
            vs = wire.vs
            vold = wire.vold
            ve = wire.ve
            enough = _CLOSED_ADJUST
            if vold is None:
                vold = INFINITY
                enough = _CLOSING_ADJUST
            if ve is None:
                ve = INFINITY
                enough = _NEVER
            outside = size - len(raw)
            if outside >= _WIDEST or not enough[outside] <= vs < vold or ve < vs:
                _check_quotes(record, raw, _ADJUST_QUOTES)
                if vs >= vold or ve < vs:
                    raise _defective(Adjust(raw, vs, vold, ve))
            return Adjust(self._payload(raw), vs, vold, ve)
        _check_quotes(record, b"", _STABLE_QUOTES)
        return Stable(INFINITY if wire.vc is None else wire.vc)

    def weigh(self, records: int) -> None:
        """So many more were looked up, or read; decides from time to time which of it pays."""
        self._weighed += records
        if self._weighed < _WINDOW:
            return
        if self._paused:
            self._paused -= 1
            self.keeps = not self._paused
        elif self._missed > _PAYS * self._weighed:
            self._paused, self.keeps = _PAUSE, False
            self._old, self.seen, self._held = {}, Generation(self._meet), 0
        self._weighed = self._missed = 0

    def _meet(self, record: bytes) -> Element:
        """The element of what the young generation does not hold, which it then does."""
        element = self._old.get(record)
        if element is None:
            self._missed += 1
            element = self.decode(record)
            if type(element) is Stable:
                return element
        size = len(record) + _ENTRY_BYTES
        if self._held + size > self._kept_bytes or len(self.seen) >= self._entries:
            if size > self._kept_bytes or not self._entries:
                return element
            self._old, self.seen, self._held = self.seen, Generation(self._meet), 0
        self.seen[record] = element
        self._held += size
        return element

    def check(self) -> None:
        """Asserts of W4 what can be checked without decoding."""
        for kept in (self.seen, self._old):
            assert len(kept) <= self._entries, "a generation holds too many records"
            held = sum(len(record) + _ENTRY_BYTES for record in kept)
            assert held <= self._kept_bytes, "a generation holds too many bytes"
            assert all(type(element) is not Stable for element in kept.values()), "a stable is kept"
        held = sum(len(record) + _ENTRY_BYTES for record in self.seen)
        assert self._held == held, "bytes are miscounted"
        both = self.seen.keys() & self._old.keys()
        assert all(self.seen[record] is self._old[record] for record in both), "two objects for one"

    def _payload(self, raw: bytes) -> bytes:
        """The canonical payload, which may be longer than what was read: 1e18 has 19 digits."""
        payload = self._cache.young[raw]
        if len(payload) > self._max_bytes:
            limit = f"in canonical form larger than the limit of {self._max_bytes} bytes"
            raise ElementError(Reason.TOO_LARGE, limit)
        return payload


def _check_quotes(record: bytes, raw: bytes, quotes: int) -> None:
    if record.count(b'"') - raw.count(b'"') != quotes:
        raise ElementError(Reason.DUPLICATE_KEY, "a field of the element is given twice")


def _defective(element: Element) -> ElementError:
    return ElementError(Reason.NOT_AN_ELEMENT, str(defect(element)))


def _refusal(record: bytes, error: Exception, max_depth: int) -> ElementError:
    """The error for a record that msgspec refuses: first whether it is acceptable JSON at all."""
    misshapen = isinstance(error, msgspec.ValidationError)
    try:
        canonical(record, max_depth=max_depth + 1)
    except ElementError as refusal:
        if not misshapen or refusal.reason in _ABOUT_THE_TEXT:
            return refusal
    # The message may quote the record, at any length and with line ends.
    message = repr(str(error)[:200])[1:-1]
    return ElementError(Reason.NOT_AN_ELEMENT if misshapen else Reason.NOT_JSON, message)


_ABOUT_THE_TEXT: Final = frozenset(
    {Reason.NOT_JSON, Reason.NOT_UTF8, Reason.LONE_SURROGATE, Reason.NESTING}
)


def encode(element: Element) -> bytes:
    """The record that encodes `element`, whose payload must be canonical (not checked)."""
    if type(element) is Insert:
        if element.ve == INFINITY:
            return b'{"op":"insert","payload":%b,"vs":%d,"ve":null}' % (element.payload, element.vs)
        return b'{"op":"insert","payload":%b,"vs":%d,"ve":%d}' % (
            element.payload,
            element.vs,
            element.ve,
        )
    if type(element) is Adjust:
        if element.vold == INFINITY or element.ve == INFINITY:
            return b'{"op":"adjust","payload":%b,"vs":%d,"vold":%b,"ve":%b}' % (
                element.payload,
                element.vs,
                _time(element.vold),
                _time(element.ve),
            )
        return b'{"op":"adjust","payload":%b,"vs":%d,"vold":%d,"ve":%d}' % (
            element.payload,
            element.vs,
            element.vold,
            element.ve,
        )
    if type(element) is Stable:
        return b'{"op":"stable","vc":%b}' % _time(element.vc)
    raise ValueError(f"not an element: {element!r}")


def _time(time: int) -> bytes:
    return b"null" if time == INFINITY else b"%d" % time
