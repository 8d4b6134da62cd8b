"""Clip and last_rows, over whole temporal databases: ends that are set by later starts."""

from collections.abc import Callable, Hashable
from typing import Any

from lmerge_service.elements import INFINITY
from lmerge_service.tdb import TDB

__all__ = ("clip", "last_rows")

Key = Callable[[Any], Hashable]


def clip(left: TDB, right: TDB, left_key: Key, right_key: Key) -> TDB:
    """Each left event, ended by the next start of a right event of equal key, none of it null."""
    found = []
    for payload, vs, ve in left:
        key = left_key(payload)
        starts = [
            begin
            for other, begin, _ in right
            if key is not None
            and not (isinstance(key, tuple) and None in key)
            and right_key(other) == key
            and begin > vs
        ]
        found.append((payload, vs, min([ve, *starts])))
    return TDB(found)


def last_rows(tdb: TDB, n: int, by: Key | None = None) -> TDB:
    """Each event, ended by the n-th next distinct start of its partition, or never."""
    found = []
    for payload, vs, _ in tdb:
        later = sorted(
            {
                begin
                for other, begin, _ in tdb
                if begin > vs and (by is None or by(other) == by(payload))
            }
        )
        found.append((payload, vs, later[n - 1] if len(later) >= n else INFINITY))
    return TDB(found)
