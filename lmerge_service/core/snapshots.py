"""The bytes that state is kept in: parts that are small each, and a whole behind its digest.

Theory
    State may be large, so it is taken and given back in parts. The first, the *head*, describes it
    and gives the number of items that follow; each of the others holds some items, in order.
    Every part is a msgpack document of its own, and all but the head begin with its tag and their
    number, so that parts of two states do not mix, and none is missed:

        {"kind": "operator", "version": 3, "items": 3, ...}    head
        [tag, 0, 2, body]  [tag, 1, 1, body]                    two items, and one

    A body is what the class of the state packs its items into: the indexes column by column, which
    makes few objects on the way.

    A snapshot is a SHA-256 digest and a msgpack array of the parts. Payloads must be values that
    msgpack gives back: None, bool, int, float, str, bytes, and tuples of these.

Invariants
    S1  Bytes that are not exactly those of a snapshot of this version are refused.
    S2  Parts that are not all those of one state, in order, are refused. That each is as it was
        written is left to the store that keeps them.
    S3  Parts alias nothing: they are bytes.

Cost
    Beside the bytes of one part nothing is held.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import islice
from typing import Any, TypeVar

import msgspec

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.case import Case
from lmerge_service.core.inputs import Input
from lmerge_service.core.stats import Stats
from lmerge_service.elements import START
from lmerge_service.errors import StateError

__all__ = (
    "Head",
    "Items",
    "NormaliserHead",
    "SavedInput",
    "hashable",
    "headed",
    "normaliser_headed",
    "opened",
    "parted",
    "portable",
    "sealed",
    "some",
    "unsealed",
)

_VERSION = 3
_DIGEST_BYTES = 32
_TAG_BYTES = 8
_LARGEST = 2**64 - 1
_PORTABLE = frozenset({type(None), bool, float, str, bytes})


class SavedInput(msgspec.Struct, array_like=True):
    """An `Input`, field by field."""

    name: str
    incarnation: int
    joining_at: int
    joined: bool
    gap_until: int
    stables: list[int]
    front: tuple[int | None, int]
    counts: tuple[int, int, int, int, int]
    breaches: dict[BreachKind, int]

    @classmethod
    def of(cls, source: Input) -> "SavedInput":
        """What is kept of an input. It shares the list of stables: encode it at once."""
        counts = (source.inserts, source.adjusts, source.stables_in, source.first, source.late)
        return cls(
            source.name,
            source.incarnation,
            source.joining_at,
            source.joined,
            source.gap_until,
            source.stables,
            (source.front if source.front >= START else None, source.at_front),
            counts,
            dict(source.breaches),
        )

    def to_input(self) -> Input:
        """The input as it was, a new object.

        Raises:
            ValueError: it has no partition, so the bytes are damaged.
        """
        source = Input(self.name, self.incarnation, self.joining_at, len(self.stables))
        source.joined = self.joined
        source.gap_until = self.gap_until
        source.stables = self.stables
        source.stable = min(self.stables)
        front, source.at_front = self.front
        source.front = START - 1 if front is None else front
        source.inserts, source.adjusts, source.stables_in, source.first, source.late = self.counts
        source.breaches.update(self.breaches)
        return source


class Head(msgspec.Struct, tag_field="kind", tag="operator"):
    """The head of an operator: what every case has."""

    version: int
    items: int
    case: Case
    policy: tuple[str, str, str]
    max_stable: int
    incarnations: dict[str, int]
    stats: Stats
    inputs: list[SavedInput]


class NormaliserHead(msgspec.Struct, tag_field="kind", tag="normaliser"):
    """The head of a normaliser."""

    version: int
    items: int
    stable: int


class _Version(msgspec.Struct):
    version: int


H = TypeVar("H", Head, NormaliserHead)
Item = TypeVar("Item")


def headed(**fields: Any) -> bytes:
    """The head of an operator with these fields."""
    return msgspec.msgpack.encode(Head(version=_VERSION, **fields))


def normaliser_headed(items: int, stable: int) -> bytes:
    """The head of a normaliser with these fields."""
    return msgspec.msgpack.encode(NormaliserHead(_VERSION, items, stable))


def opened(head: bytes, kind: type[H]) -> H:
    """The decoded head.

    Raises:
        StateError: it is no head of this kind, damaged, or of another version.
    """
    try:
        version = msgspec.msgpack.decode(head, type=_Version).version
        if version != _VERSION:
            raise StateError(f"the snapshot is of version {version}, this is version {_VERSION}")
        return msgspec.msgpack.decode(head, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise _damaged(error) from error


def parted(
    head: bytes, items: Iterable[Item], most: int, packed: Callable[[list[Item]], Any]
) -> Iterator[bytes]:
    """The head, then parts of at most so many items each, packed.

    Raises:
        ValueError: `most` is less than 1.
    """
    if most < 1:
        raise ValueError(f"a part has at least one item, got {most}")
    encode, tag, number = msgspec.msgpack.Encoder().encode, _tag(head), 0
    yield head
    left = iter(items)
    while some := list(islice(left, most)):
        yield encode((tag, number, len(some), packed(some)))
        number += 1


class Items:
    """Takes the parts after a head, one at a time."""

    def __init__(self, head: bytes, count: int, body: Any) -> None:
        self._tag = _tag(head)
        self._left = count
        self._next = 0
        self._decoder = msgspec.msgpack.Decoder(tuple[bytes, int, int, body])

    def take(self, part: bytes) -> Any:
        """The body of the next part.

        Raises:
            StateError: it is damaged, or not the next part of this state.
        """
        try:
            tag, number, count, body = self._decoder.decode(part)
        except (msgspec.DecodeError, ValueError) as error:
            raise _damaged(error) from error
        if (tag, number) != (self._tag, self._next):
            raise StateError(f"part {number} of a snapshot is not part {self._next} of this one")
        self._next += 1
        self._left -= count
        return body

    def finish(self) -> None:
        """Checks that no parts are missing.

        Raises:
            StateError: there must be.
        """
        if self._left:
            raise StateError(f"the snapshot is damaged: it lacks {self._left} items")


def _tag(head: bytes) -> bytes:
    return sha256(head).digest()[:_TAG_BYTES]


def sealed(parts: Iterable[bytes]) -> bytes:
    """All parts in one."""
    body = msgspec.msgpack.encode(list(parts))
    return sha256(body).digest() + body


def unsealed(saved: bytes) -> list[bytes]:
    """The parts in the bytes.

    Raises:
        StateError: they are damaged, or of another version.
    """
    digest, body = saved[:_DIGEST_BYTES], memoryview(saved)[_DIGEST_BYTES:]
    if sha256(body).digest() != digest:
        raise StateError("the snapshot is damaged: its digest does not match")
    try:
        return msgspec.msgpack.decode(body, type=list[bytes])
    except (msgspec.DecodeError, ValueError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> StateError:
    return StateError(f"the snapshot is damaged: {error!r}")


def some(sources: Iterable[Input], numbers: Mapping[Input, int]) -> list[int]:
    """The numbers of some inputs, in order."""
    return sorted(numbers[source] for source in sources)


def portable(payload: Hashable) -> Hashable:
    """The payload, if a snapshot gives it back as it was: equal, and with the same hash.

    Raises:
        StateError: it would not.
    """
    kind = type(payload)
    if kind is bytes:
        return payload  # as a rule
    if kind is tuple:
        for part in payload:  # type: ignore[attr-defined]
            portable(part)
    elif kind is int:
        if not START <= payload <= _LARGEST:  # type: ignore[operator]
            raise StateError(f"a snapshot cannot hold the payload {payload!r}: too large")
    elif kind not in _PORTABLE:
        raise StateError(
            f"a snapshot cannot hold the payload {payload!r}: it is a {kind.__name__}, and not "
            "None, a bool, int, float, str, bytes, or a tuple of these"
        )
    return payload


def hashable(payload: Any) -> Hashable:
    """A payload as it was: msgpack gives a tuple back as a list."""
    if type(payload) is list:
        payload = tuple(payload)
    try:
        hash(payload)
    except TypeError:
        if type(payload) is not tuple:
            raise
        return tuple([hashable(part) for part in payload])
    return payload  # type: ignore[no-any-return]
