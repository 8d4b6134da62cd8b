"""Aggregates over whole multisets, and snapshot aggregates over whole temporal databases.

A *member* is what an aggregate looks at of an event: (payload, vs).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, TypeAlias

from lmerge_service.queries.order import payload_order
from lmerge_service.tdb import TDB

__all__ = (
    "average",
    "count",
    "count_of",
    "distinct_count",
    "first",
    "greatest",
    "last",
    "least",
    "percentile",
    "snapshots",
    "top_k",
    "total",
)

Member: TypeAlias = tuple[Any, int]
Column: TypeAlias = Callable[[Any], Any]
Rows: TypeAlias = Callable[[Any, list[Member]], Sequence[Hashable]]
"""The payloads of a group's key and its members."""


def snapshots(
    tdb: TDB,
    rows: Rows,
    by: Callable[[Any], Hashable] = lambda payload: None,
    *,
    cut: bool = False,
    gap: Hashable | None = None,
) -> TDB:
    """Per group and snapshot between its endpoints the rows of its members: each snapshot's own
    with `cut`, else the maximal intervals of each payload. `gap` is the payload of snapshots
    without members."""
    events: list[tuple[Hashable, int, int]] = []
    for key in {by(event.payload) for event in tdb}:
        group = [event for event in tdb if by(event.payload) == key]
        pieces: list[tuple[Hashable, int, int]] = []
        for start, end in pairwise(sorted({t for event in group for t in event[1:]})):
            members = [(e.payload, e.vs) for e in group if e.vs <= start < e.ve]
            here = rows(key, members) if members else [] if gap is None else [gap]
            pieces += [(payload, start, end) for payload in here]
        events += pieces if cut else _layers(pieces)
    return TDB(events)


def _layers(pieces: list[tuple[Hashable, int, int]]) -> list[tuple[Hashable, int, int]]:
    """Per payload and k the maximal intervals where it is there k times, or more often."""
    times = sorted({t for piece in pieces for t in piece[1:]})
    found: list[tuple[Hashable, int, int]] = []
    for payload in {piece[0] for piece in pieces}:
        often = {t: sum(p == payload and s <= t < e for p, s, e in pieces) for t in times}
        for k in range(1, max(often.values()) + 1):
            covered = [t for t in times if often[t] >= k]
            starts = [t for t in covered if t == times[0] or often[times[times.index(t) - 1]] < k]
            found += [
                (payload, s, next(t for t in times if t > s and often[t] < k)) for s in starts
            ]
    return found


def _values(members: list[Member], column: Column) -> list[Any]:
    """The column's values but null, in order."""
    found = [column(payload) for payload, _ in members]
    return sorted((value for value in found if value is not None), key=payload_order)


def count(members: list[Member]) -> int:
    return len(members)


def count_of(members: list[Member], column: Column) -> int:
    return len(_values(members, column))


def total(members: list[Member], column: Column, real: bool = False) -> int | float | None:
    """The exact sum; null beyond int64, or beyond the floats."""
    values = _values(members, column)
    whole = sum(map(Fraction, values), Fraction())
    if not values or (not real and not -(2**63) <= whole < 2**63):
        return None
    try:
        return float(whole) if real else int(whole)
    except OverflowError:
        return None


def average(members: list[Member], column: Column) -> float | None:
    values = _values(members, column)
    return float(sum(map(Fraction, values), Fraction()) / len(values)) if values else None


def least(members: list[Member], column: Column) -> Any:
    return next(iter(_values(members, column)), None)


def greatest(members: list[Member], column: Column) -> Any:
    return next(reversed(_values(members, column)), None)


def distinct_count(members: list[Member], column: Column) -> int:
    return len(Counter(_values(members, column)))


def percentile(
    members: list[Member], column: Column, part: Fraction, discrete: bool = False
) -> Any:
    """Discrete: the least value that at least `part` of all do not exceed. Else the value at
    part * (n - 1), on the line through its neighbours."""
    values = _values(members, column)
    if not values:
        return None
    if discrete:
        return next(v for i, v in enumerate(values) if Fraction(i + 1, len(values)) >= part)
    at = part * (len(values) - 1)
    weights = [max(Fraction(0), 1 - abs(at - i)) for i in range(len(values))]
    return float(sum((w * Fraction(v) for w, v in zip(weights, values, strict=True)), Fraction()))


def first(members: list[Member], column: Column) -> Any:
    payload, _ = min(members, key=lambda m: (m[1], payload_order(m[0])))
    return column(payload)


def last(members: list[Member], column: Column) -> Any:
    payload, _ = max(members, key=lambda m: (m[1], payload_order(m[0])))
    return column(payload)


def top_k(members: list[Member], k: int, score: Column) -> list[Any]:
    """The k payloads with the greatest scores, the least payloads first among equal ones."""
    ordered = sorted((payload for payload, _ in members), key=payload_order)
    return sorted(ordered, key=lambda payload: payload_order(score(payload)), reverse=True)[:k]
