r"""Routing: which output partition an element belongs to, by its logical key.

Theory
    Replicas may be partitioned differently, or by other hashes, so the number of an input's
    partition says nothing. What the same event has in common everywhere is its payload: the route
    is a function of that alone. It is the one that Kafka's own producers would take for the same
    key, so that others who partition by it find the output co-partitioned.

    The key is the whole canonical payload, or the fields that the topology names: one field is its
    canonical JSON, several are the JSON array of theirs. A dot goes into an object.

    >>> router = Router(3, ["to.city"])
    >>> router.key_of(b'{"from":1,"to":{"city":"Oslo"}}')
    b'"Oslo"'
    >>> Router(3, ["from", "to.city"]).key_of(b'{"from":1,"to":{"city":"Oslo"}}')
    b'[1,"Oslo"]'

    A field that is not there is null: an element must not be lost for its route, and payloads that
    are equal have the same fields.

    >>> Router(3, ["to.country"]).key_of(b'{"to":{"city":"Oslo"}}')
    b'null'

Invariants
    T1  A route is `toPositive(murmur2(key)) % partitions`, as Java's client computes it.
    T2  Equal payloads have equal keys; a key is canonical JSON.
    T3  The routes that are kept never hold more than `max_entries` payloads or `max_bytes` bytes.

Cost
    murmur2 costs 0.3 µs and 0.1 µs for each 4 bytes, which is too much for the hot path; so routes
    are kept by payload, and one that is known costs a look-up. A key field adds 0.4 µs to the rest.
    Half of what is kept is forgotten at once when a limit is reached. One partition costs nothing.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

__all__ = ("Router", "murmur2")

_NULL: Final = b"null"
_ENTRY_BYTES: Final = 150  # what an entry takes beside the payload's own text


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, as an unsigned 32-bit number (Java's is the same, signed).

    Source: `org.apache.kafka.common.utils.Utils.murmur2`, after Austin Appleby's MurmurHash2.
    """
    size = len(data)
    h = 0x9747B28C ^ size
    for k in struct.unpack_from(f"<{size >> 2}I", data):
        k = k * 0x5BD1E995 & 0xFFFFFFFF  # noqa: PLW2901 (no name more on the hot path)
        h = (h * 0x5BD1E995 ^ (k ^ k >> 24) * 0x5BD1E995) & 0xFFFFFFFF
    if rest := size & 3:
        h = (h ^ int.from_bytes(data[-rest:], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return h ^ h >> 15


class Router:
    """Routes canonical payloads to `partitions` partitions; `key_fields` are dotted paths.

    Not for several threads.
    """

    __slots__ = ("_bytes", "_entries", "_fields", "_held", "_old", "_young", "partitions")

    def __init__(
        self,
        partitions: int,
        key_fields: Sequence[str] = (),
        *,
        max_entries: int = 1 << 16,
        max_bytes: int = 32 << 20,
    ):
        if partitions < 1:
            raise ValueError(f"partitions must be at least 1, got {partitions}")
        self.partitions = partitions
        self._fields = [_field(path) for path in key_fields]
        self._entries = max_entries // 2
        self._bytes = max_bytes // 2
        self._held = 0  # bytes charged to the young generation
        self._old: dict[bytes, int] = {}
        self._young: dict[bytes, int] = {}

    def key_of(self, payload: bytes) -> bytes:
        """The logical key of a canonical payload, as the output's records carry it."""
        if not self._fields:
            return payload
        if len(self._fields) == 1:
            return self._fields[0](payload)
        return b"[%b]" % b",".join([field(payload) for field in self._fields])

    def partition_of(self, payload: bytes) -> int:
        """The partition, from 0, that elements of a canonical payload belong to."""
        if self.partitions == 1:
            return 0
        known = self._young.get(payload)
        return self._admit(payload) if known is None else known

    def check(self) -> None:
        """Asserts T1 and T3."""
        for kept in (self._young, self._old):
            assert len(kept) <= self._entries, "too many routes are kept"
            assert sum(map(_charge, kept)) <= self._bytes, "the routes kept hold too many bytes"
            assert all(kept[each] == self._route(each) for each in kept), "a route is wrong"
        assert self._held == sum(map(_charge, self._young)), "bytes are miscounted"

    def _route(self, payload: bytes) -> int:
        return (murmur2(self.key_of(payload)) & 0x7FFFFFFF) % self.partitions

    def _admit(self, payload: bytes) -> int:
        route = self._old.get(payload)
        if route is None:
            route = self._route(payload)
        size = _charge(payload)
        if self._held + size > self._bytes or len(self._young) >= self._entries:
            if size > self._bytes or self._entries < 1:
                return route
            self._old, self._young, self._held = self._young, {}, 0
        self._young[payload] = route
        self._held += size
        return route


def _charge(payload: bytes) -> int:
    return len(payload) + _ENTRY_BYTES


def _field(path: str) -> Callable[[bytes], bytes]:
    """Cuts the text of one field out of a canonical payload, which is canonical as it stands."""
    steps = [_step(name) for name in path.split(".")]

    def cut(payload: bytes) -> bytes:
        text: Any = payload
        try:
            for step in steps:
                text = step(text).value
        except msgspec.ValidationError:  # not an object
            return _NULL
        return bytes(text)

    return cut


def _step(name: str) -> Callable[[Any], Any]:
    """A decoder that keeps the text of one field and skips the others."""
    if not name:
        raise ValueError("a key field has an empty name")
    value = ("value", msgspec.Raw, msgspec.Raw(_NULL))
    return msgspec.json.Decoder(msgspec.defstruct("Field", [value], rename={"value": name})).decode
