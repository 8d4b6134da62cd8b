"""How the facts of a plan may be divided, so that each part is a plan of its own.

Theory
    A *cut* is a column of each source such that facts that differ in it never meet: not in a
    group, not as partners, not as equal rows. Divided by the values of one or several cuts, and
    each part run by itself, a plan has the events that it has undivided. A source has a cut by each
    of its columns; an operator that brings rows together keeps those cuts that are columns of its
    key on every side, and a source that feeds two sides must be cut by the same column for both.

    >>> from lmerge_service.queries.expressions import col
    >>> from lmerge_service.queries.plan import count, facts
    >>> flights = facts("flights", time="time", fields={"origin": str, "carrier": str})
    >>> sky = facts("sky", time="time", fields={"station": str, "wind": float})
    >>> windy = flights.join(sky, on={"origin": "station"}).by("origin").aggregate(n=count())
    >>> partition_columns(windy.plan)
    {'flights': ('origin',), 'sky': ('station',)}
    >>> print(partition_columns(flights.aggregate(n=count()).plan))
    None

Invariants
    D1  The union of the meanings of all parts is the meaning of the whole.
    D2  The columns of all sources stand in the same order: facts that belong together have equal
        values in the same places.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from lmerge_service.queries import logical
from lmerge_service.queries.logical import Node
from lmerge_service.queries.properties.keys import renamed

__all__ = ("partition_columns",)


class _Cut(NamedTuple):
    """A column per source, and the columns of a node in which its values are seen."""

    sources: tuple[tuple[str, str], ...]
    """By name."""
    seen: frozenset[str]


def partition_columns(plan: Node) -> dict[str, tuple[str, ...]] | None:
    """By which columns the facts, or elements, of each source may be divided: the most that there
    are. None where all must be in one part."""
    cuts = sorted(_cuts(plan, ()), key=lambda cut: _place(plan, cut.sources))
    if not cuts:
        return None
    return {name: tuple(dict(cut.sources)[name] for cut in cuts) for name in logical.sources(plan)}


def _place(plan: Node, cut: Iterable[tuple[str, str]]) -> list[tuple[str, int]]:
    """Cuts stand in the order of columns, of the first source first."""
    found = logical.sources(plan)
    return [(name, logical.schema_of(found[name]).position(column)) for name, column in cut]


@lru_cache(maxsize=4_096)
def _cuts(node: Node, group: tuple[_Cut, ...]) -> list[_Cut]:
    """`group` are those of what a plan for groups takes in."""
    below = [_cuts(child, group) for child in logical.children(node)]
    match node:
        case logical.Source(name=name, fields=fields) | logical.Elements(name=name, fields=fields):
            return [_Cut(((name, each),), frozenset({each})) for each in fields.names]
        case logical.Group():
            return list(group)
        case logical.Project(columns=columns):
            names = renamed(columns)
            return [
                _seen(cut, {names[each] for each in cut.seen & names.keys()}) for cut in below[0]
            ]
        case logical.FlatMap():
            return [_seen(cut, ()) for cut in below[0]]
        case logical.Union():
            return _merged(below)
        case logical.MultisetOp():
            return _within(_merged(below), logical.schema_of(node).names)
        case logical.Join():
            return _of_join(node, below[0], below[1])
        case logical.SemiJoin(on=on) | logical.Clip(on=on):
            pairs = _paired(below[0], below[1], on)
            return _distinct(_seen(cut, mine) for cut, mine, _ in pairs)
        case (
            logical.Aggregate(by=by)
            | logical.Windows(by=by)
            | logical.SnapshotWindows(by=by)
            | logical.CountWindows(by=by)
        ):
            return [_seen(cut, cut.seen & set(by)) for cut in _within(below[0], by)]
        case logical.LastRows(by=by):
            return _within(below[0], by)
        case logical.GroupApply(by=by, plan=plan):
            return _cuts(plan, tuple(_within(below[0], by)))
    return below[0]


def _seen(cut: _Cut, columns: Iterable[str]) -> _Cut:
    return _Cut(cut.sources, frozenset(columns))


def _within(cuts: Iterable[_Cut], columns: Iterable[str]) -> list[_Cut]:
    """The cuts that are seen in one of these columns."""
    return [cut for cut in cuts if not cut.seen.isdisjoint(columns)]


def _merged(sides: list[list[_Cut]]) -> list[_Cut]:
    """The cuts of rows that may come of any side: by columns that all have."""
    merged = sides[0]
    for side in sides[1:]:
        pairs = [(one, other, one.seen & other.seen) for one, other in product(merged, side)]
        merged = _distinct(_both(one, other, seen) for one, other, seen in pairs if seen)
    return merged


def _paired(
    left: list[_Cut], right: list[_Cut], on: Iterable[tuple[str, str]]
) -> Iterator[tuple[_Cut, frozenset[str], frozenset[str]]]:
    """The cuts by a column of the key: as one, and in which columns each side sees it."""
    for one, other in product(left, right):
        if any(mine in one.seen and theirs in other.seen for mine, theirs in on):
            for cut in _distinct([_both(one, other, ())]):
                yield cut, one.seen, other.seen


def _of_join(node: logical.Join, left: list[_Cut], right: list[_Cut]) -> list[_Cut]:
    """A row that is padded has the values of one side, and of the key."""
    shared = {one for one, other in node.on if one == other}
    found = []
    for cut, mine, theirs in _paired(left, right, node.on):
        match node.outer:
            case "":
                seen = mine | theirs
            case "left":
                seen = mine
            case "right":
                seen = theirs
            case "full":
                seen = mine & theirs & shared
        found.append(_seen(cut, seen))
    return _distinct(found)


def _both(one: _Cut, other: _Cut, seen: Iterable[str]) -> _Cut | None:
    """Two cuts as one; None where a source would be cut by two columns."""
    sources = dict(one.sources)
    if any(sources.setdefault(name, column) != column for name, column in other.sources):
        return None
    return _Cut(tuple(sorted(sources.items())), frozenset(seen))


def _distinct(cuts: Iterable[_Cut | None]) -> list[_Cut]:
    """Each cut once; what is seen of it in any way is."""
    found: dict[tuple[tuple[str, str], ...], frozenset[str]] = {}
    for cut in cuts:
        if cut is not None:
            found[cut.sources] = found.get(cut.sources, frozenset()) | cut.seen
    return [_Cut(sources, seen) for sources, seen in found.items()]
