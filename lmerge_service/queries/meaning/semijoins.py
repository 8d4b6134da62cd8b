"""Semi-join and anti-join, over whole temporal databases, instant by instant between endpoints."""

from collections.abc import Callable, Hashable
from typing import Any

from lmerge_service.tdb import TDB, Event

__all__ = ("anti_join", "semi_join")

Key = Callable[[Any], Hashable]
Residual = Callable[[Any, Any], object]


def semi_join(
    left: TDB, right: TDB, left_key: Key, right_key: Key, residual: Residual | None = None
) -> TDB:
    """Of each left event the maximal intervals in which a right event is its partner: one of equal
    key, none of it null, and for which `residual(left payload, right payload)` holds."""
    return _fragments(left, right, left_key, right_key, residual, True)


def anti_join(
    left: TDB, right: TDB, left_key: Key, right_key: Key, residual: Residual | None = None
) -> TDB:
    """Of each left event the maximal intervals in which no right event is its partner."""
    return _fragments(left, right, left_key, right_key, residual, False)


def _fragments(
    left: TDB, right: TDB, left_key: Key, right_key: Key, residual: Residual | None, wanted: bool
) -> TDB:
    found: list[tuple[Hashable, int, int]] = []
    for payload, vs, ve in left:
        key = left_key(payload)
        partners = [
            each
            for each in right
            if not _null(key)
            and right_key(each.payload) == key
            and (residual is None or residual(payload, each.payload))
        ]
        begun: int | None = None
        for t in [*_between(vs, ve, partners), ve]:
            valid = any(each.vs <= t < each.ve for each in partners) == wanted and t < ve
            if valid and begun is None:
                begun = t
            elif not valid and begun is not None:
                found.append((payload, begun, t))
                begun = None
    return TDB(found)


def _null(key: Hashable) -> bool:
    return key is None or (isinstance(key, tuple) and None in key)


def _between(vs: int, ve: int, events: list[Event]) -> list[int]:
    """vs, and the endpoints between it and ve, in order."""
    return sorted({vs, *(t for event in events for t in event[1:] if vs < t < ve)})
