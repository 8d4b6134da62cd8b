"""Inner and outer joins, over whole temporal databases."""

from collections.abc import Callable, Hashable
from typing import Any

from lmerge_service.queries.meaning.semijoins import anti_join
from lmerge_service.queries.meaning.stateless import project, union
from lmerge_service.tdb import TDB

__all__ = ("join", "outer_join")

Key = Callable[[Any], Hashable]
Residual = Callable[[Any, Any], object]
Combine = Callable[[Any, Any], Hashable]
Pad = Callable[[Any], Hashable]


def join(
    left: TDB,
    right: TDB,
    left_key: Key,
    right_key: Key,
    residual: Residual | None = None,
    combine: Combine = lambda p, q: (p, q),
) -> TDB:
    """Each pair of events whose keys are equal, no part of them null, whose payloads satisfy
    `residual` and whose lifetimes overlap, as one event with the overlap as its lifetime."""
    pairs = ((one, other) for one in left for other in right)
    return TDB(
        (combine(p, q), max(one_vs, other_vs), min(one_ve, other_ve))
        for (p, one_vs, one_ve), (q, other_vs, other_ve) in pairs
        if max(one_vs, other_vs) < min(one_ve, other_ve)
        and _equal(left_key(p), right_key(q))
        and (residual is None or residual(p, q))
    )


def outer_join(
    left: TDB,
    right: TDB,
    left_key: Key,
    right_key: Key,
    residual: Residual | None = None,
    combine: Combine = lambda p, q: (p, q),
    left_only: Pad | None = None,
    right_only: Pad | None = None,
) -> TDB:
    """The inner join, and of each left event the parts that have no partner, with `left_only` of
    its payload; of right events likewise. A side that has no such function is not padded."""
    found = join(left, right, left_key, right_key, residual, combine)
    if left_only is not None:
        alone = anti_join(left, right, left_key, right_key, residual)
        found = union(found, project(alone, left_only))
    if right_only is not None:
        turned = None if residual is None else lambda q, p: residual(p, q)
        alone = anti_join(right, left, right_key, left_key, turned)
        found = union(found, project(alone, right_only))
    return found


def _equal(one: Hashable, other: Hashable) -> bool:
    parts = one if isinstance(one, tuple) else (one,)
    return one == other and None not in parts
