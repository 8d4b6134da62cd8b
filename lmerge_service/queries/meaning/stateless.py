"""Select, project, flat_map and union, over whole temporal databases."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from lmerge_service.tdb import TDB

__all__ = ("flat_map", "project", "select", "union")


def select(tdb: TDB, predicate: Callable[[Any], object]) -> TDB:
    """The events whose payload satisfies `predicate`."""
    return TDB(event for event in tdb if predicate(event.payload))


def project(tdb: TDB, function: Callable[[Any], Hashable]) -> TDB:
    """Each event with `function` of its payload."""
    return TDB((function(p), vs, ve) for p, vs, ve in tdb)


def flat_map(tdb: TDB, function: Callable[[Any], Iterable[Hashable]]) -> TDB:
    """Each event once for each payload that `function` returns."""
    return TDB((each, vs, ve) for p, vs, ve in tdb for each in function(p))


def union(*tdbs: TDB) -> TDB:
    """The multiset sum."""
    return TDB(event for tdb in tdbs for event in tdb)
