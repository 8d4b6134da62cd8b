r"""Routing: which output partition an element belongs to, by its logical key.

Theory
    Replicas may be partitioned differently, or by other hashes, so the number of an input's
    partition is no route. What the same event has in common everywhere is its payload: the route
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

    Many keys of one length are hashed at once: a Python integer is as wide as one likes, so word i
    of all of them is multiplied, shifted and masked in one operation each, in lanes of 64 bits that
    no product of two 32-bit words leaves.

Invariants
    T1  A route is `toPositive(murmur2(key)) % partitions`, as Java's client computes it.
    T2  Equal payloads have equal keys; a key is canonical JSON.
    T3  The routes that are kept never hold more than `max_entries` payloads or `max_bytes` bytes.

Cost
    Hashing takes 1.3, 3 and 8 µs for 10, 40 and 120 bytes, which is too much for the hot path; for
    64 keys of one length at once 0.2, 0.4 and 1.1 µs each. So routes are kept by payload: one that
    is known costs a look-up, and `learn` finds those of a batch at once. Cutting a field out takes
    0.4 µs. Half of what is kept is forgotten at once when a limit is reached. One partition costs
    nothing.
"""

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lmerge_service.core.batches import as_batch
from lmerge_service.elements import START, Element, Stable

if TYPE_CHECKING:
    from lmerge_engine import Batch

__all__ = ("Ownership", "Router", "murmur2", "murmur2_of_each")

_NULL: Final = b"null"
_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_FEW: Final = 4  # so many keys of one length are hashed as fast one by one
_ENTRY_BYTES: Final = 150  # what an entry takes beside the payload's own text


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, as an unsigned 32-bit number (Java's is the same, signed).

    Source: `org.apache.kafka.common.utils.Utils.murmur2`, after Austin Appleby's MurmurHash2.
    """
    size = len(data)
    h = _SEED ^ size
    for k in struct.unpack_from(f"<{size >> 2}I", data):
        k = k * _M & 0xFFFFFFFF  # noqa: PLW2901 (no name more on the hot path)
        h = (h * _M ^ (k ^ k >> 24) * _M) & 0xFFFFFFFF
    if rest := size & 3:
        h = (h ^ int.from_bytes(data[-rest:], "little")) * _M & 0xFFFFFFFF
    h = (h ^ h >> 13) * _M & 0xFFFFFFFF
    return h ^ h >> 15


def murmur2_of_each(keys: Sequence[bytes]) -> list[int]:
    """`murmur2` of each of many keys; those of one length at once."""
    hashes = [0] * len(keys)
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[len(key)].append(place)
    for size, same in places.items():
        group = [keys[place] for place in same]
        found = _in_lanes(group, size) if len(same) > _FEW else map(murmur2, group)
        for place, found_hash in zip(same, found, strict=True):
            hashes[place] = found_hash
    return hashes


def _in_lanes(keys: list[bytes], size: int) -> Iterable[int]:
    """The hashes of keys of `size` bytes each.

    Word i of all keys, side by side, is one integer of 32-bit places. Every other place is a lane
    of `even`, the rest are lanes of `odd`.
    """
    words, lanes = size + 3 >> 2, len(keys) + 1 >> 1
    padding = bytes(4 * words - size)
    filling = bytes(4 * words * (len(keys) & 1))  # a last key without a neighbour
    text = memoryview(padding.join(keys) + padding + filling).cast("I")
    low = _lanes_of(lanes, 32)
    even = odd = (_SEED ^ size) * _lanes_of(lanes, 1)
    for place in range(size >> 2):
        word = int.from_bytes(text[place::words].tobytes(), "little")
        even = even * _M & low ^ _mixed(word & low, lanes)
        odd = odd * _M & low ^ _mixed(word >> 32 & low, lanes)
    if size & 3:
        word = int.from_bytes(text[size >> 2 :: words].tobytes(), "little")
        even = (even ^ word & low) * _M & low
        odd = (odd ^ word >> 32 & low) * _M & low
    hashes = _ended(even, lanes) | _ended(odd, lanes) << 32
    return struct.unpack(f"<{2 * lanes}I", hashes.to_bytes(8 * lanes, "little"))[: len(keys)]


def _mixed(k: int, lanes: int) -> int:
    low = _lanes_of(lanes, 32)
    k = k * _M & low
    return (k ^ k >> 24 & _lanes_of(lanes, 8)) * _M & low


def _ended(h: int, lanes: int) -> int:
    h = (h ^ h >> 13 & _lanes_of(lanes, 19)) * _M & _lanes_of(lanes, 32)
    return h ^ h >> 15 & _lanes_of(lanes, 17)


@lru_cache(maxsize=1024)
def _lanes_of(lanes: int, bits: int) -> int:
    """The lowest `bits` of each lane."""
    return int.from_bytes(((1 << bits) - 1).to_bytes(8, "little") * lanes, "little")


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
        max_entries: int = 1 << 15,
        max_bytes: int = 16 << 20,
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

    @property
    def keyed_by_payload(self) -> bool:
        """The whole payload is the key."""
        return not self._fields

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

    def partitions_of(self, payloads: Sequence[bytes]) -> list[int]:
        """`partition_of` each of many payloads, hashed together."""
        if self.partitions == 1:
            return [0] * len(payloads)
        known = self._young.get
        routes = [known(payload) for payload in payloads]
        if None in routes:
            unknown = (p for p, route in zip(payloads, routes, strict=True) if route is None)
            found = self._found(dict.fromkeys(unknown))
            return [
                found[payload] if route is None else route
                for payload, route in zip(payloads, routes, strict=True)
            ]
        return routes  # type: ignore[return-value]

    def routes_of(self, batch: "Batch") -> list[int]:
        """`partition_of` each payload of a batch of the engine's."""
        if self._fields:
            return self.partitions_of(batch.payloads())
        return batch.routes(self.partitions)

    def divided(self, batch: "Batch") -> Sequence["Batch"]:
        """By partition the elements of a batch of the engine's that belong to it, and all
        stables."""
        if self._fields:
            return batch.divided(self.routes_of(batch), self.partitions)
        return batch.parted(self.partitions)

    def _found(self, payloads: Iterable[bytes]) -> dict[bytes, int]:
        """The routes of payloads, each once, that the young generation does not hold."""
        old = self._old.get
        routes = {payload: old(payload) for payload in payloads}
        unknown = [payload for payload, route in routes.items() if route is None]
        hashes = murmur2_of_each(list(map(self.key_of, unknown)))
        routes |= zip(unknown, map(self._route, hashes), strict=True)
        for payload, route in routes.items():
            assert route is not None
            self._keep(payload, route)
        return routes  # type: ignore[return-value]

    def check(self) -> None:
        """Asserts T1 and T3."""
        for kept in (self._young, self._old):
            assert len(kept) <= self._entries, "too many routes are kept"
            assert sum(map(_charge, kept)) <= self._bytes, "the routes kept hold too many bytes"
            assert all(
                route == self._route(murmur2(self.key_of(payload)))
                for payload, route in kept.items()
            ), "a route is wrong"
        assert self._held == sum(map(_charge, self._young)), "bytes are miscounted"

    def _route(self, hashed: int) -> int:
        return (hashed & 0x7FFFFFFF) % self.partitions

    def _admit(self, payload: bytes) -> int:
        route = self._old.get(payload)
        if route is None:
            route = self._route(murmur2(self.key_of(payload)))
        self._keep(payload, route)
        return route

    def _keep(self, payload: bytes, route: int) -> None:
        size = _charge(payload)
        if self._held + size > self._bytes or len(self._young) >= self._entries:
            if size > self._bytes or self._entries < 1:
                return
            self._old, self._young, self._held = self._young, {}, 0
        self._young[payload] = route
        self._held += size


class Ownership:
    """Selects the elements that belong to one of the output's partitions; stables are for all."""

    def __init__(self, router: Router, partition: int) -> None:
        self.elsewhere = START
        """The latest start of other partitions' elements, since somebody has set it."""
        self._router, self._partition = router, partition

    def select(self, elements: Sequence[Element]) -> Sequence[Element]:
        """Those of the partition, in order."""
        if (batch := as_batch(elements)) is not None:
            owned, latest = batch.owned(self._router.routes_of(batch), self._partition)
            self.elsewhere = self.elsewhere if latest is None else max(self.elsewhere, latest)
            return owned
        payloads = [e.payload for e in elements if type(e) is not Stable]  # type: ignore[union-attr]
        routes, kept = iter(self._router.partitions_of(payloads)), list[Element]()
        for e in elements:
            if type(e) is Stable or next(routes) == self._partition:
                kept.append(e)
            elif e.vs > self.elsewhere:  # type: ignore[union-attr]
                self.elsewhere = e.vs  # type: ignore[union-attr]
        return kept


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
