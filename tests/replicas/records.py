"""Records as the client's parser gives them."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

__all__ = ("Read", "facts_of")


class Read(NamedTuple):
    """A record of some partition."""

    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp: int = -1


def facts_of(*facts: object, first: int = 0) -> list[Read]:
    """Records of facts, one after the other."""
    return [Read(first + at, msgspec.json.encode(fact)) for at, fact in enumerate(facts)]
