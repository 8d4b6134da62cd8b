"""The bytes of `snapshot` and `restore`: whatever the case, the state behind its digest.

Theory
    A snapshot is a SHA-256 digest and a msgpack document: what every operator has (`Snapshot`),
    and in it a body that only the operator's own class understands. Payloads must be values that
    msgpack gives back: None, bool, int, float, str, bytes, and tuples of these.

Invariants
    S1  Bytes that are not exactly those of a snapshot of this version are refused.
    S2  A snapshot aliases nothing: it is bytes.
"""

from collections.abc import Hashable
from hashlib import sha256
from typing import Any

import msgspec

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.case import Case
from lmerge_service.core.inputs import Input
from lmerge_service.core.stats import Stats
from lmerge_service.elements import START
from lmerge_service.errors import StateError

__all__ = ("SavedInput", "Snapshot", "hashable", "portable", "sealed", "unsealed")

_VERSION = 2
_DIGEST_BYTES = 32
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


class Snapshot(msgspec.Struct):
    """What every operator has; `body` is what its class adds."""

    version: int
    case: Case
    policy: tuple[str, str, str]
    max_stable: int
    incarnations: dict[str, int]
    stats: Stats
    inputs: list[SavedInput]
    body: Any


def sealed(**fields: Any) -> bytes:
    """The bytes of a `Snapshot` with these fields."""
    body = msgspec.msgpack.encode(Snapshot(version=_VERSION, **fields))
    return sha256(body).digest() + body


def unsealed(saved: bytes) -> Snapshot:
    """The snapshot in the bytes.

    Raises:
        StateError: they are damaged, or of another version.
    """
    digest, body = saved[:_DIGEST_BYTES], saved[_DIGEST_BYTES:]
    if sha256(body).digest() != digest:
        raise StateError("the snapshot is damaged: its digest does not match")
    try:
        version = msgspec.msgpack.decode(body, type=_Version).version
        if version != _VERSION:
            raise StateError(f"the snapshot is of version {version}, this is version {_VERSION}")
        return msgspec.msgpack.decode(body, type=Snapshot)
    except (msgspec.DecodeError, ValueError) as error:
        raise StateError(f"the snapshot is damaged: {error}") from error


class _Version(msgspec.Struct):
    version: int


def portable(payload: Hashable) -> Hashable:
    """The payload, if a snapshot gives it back as it was: equal, and with the same hash.

    Raises:
        StateError: it would not.
    """
    kind = type(payload)
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
    if isinstance(payload, list):
        return tuple(hashable(part) for part in payload)
    hash(payload)
    return payload  # type: ignore[no-any-return]
