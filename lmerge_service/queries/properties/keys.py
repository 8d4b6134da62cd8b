"""Keys: which columns distinguish the events of a node, from one another or at one instant.

Theory
    `once`     no two events of the whole stream have the same values in these columns
    `unique`   no two events that are there at the same instant have
    `start`    no two events that start at the same time have
    Each implies the next. They hold whatever the level at which operators emit, since the output is
    netted (`queries.netting`) and is part of the operator's meaning: `start` in every prefix, the
    others whenever a batch has been emitted (within one, `ordered` goes by time). No columns at all
    mean that there is one event at most.

    `start` is what case R3 asks for: (payload, vs) is a key. `unique` keeps it through joins and
    semi-joins, whose rows begin where either side does; `once` through lifetimes that move several
    starts to one. It is declared of facts, by `key=`.

    >>> from lmerge_service.queries.plan import count, facts, hopping, tumbling
    >>> flights = facts("flights", time="time", fields={"origin": str, "delay": int})
    >>> per_hour = flights.windows(tumbling(60)).by("origin").aggregate(n=count())
    >>> print(keys(flights.plan), keys(per_hour.plan), keys(per_hour.select("n").plan), sep="\\n")
    no key
    origin at one instant
    no key
    >>> moving = flights.windows(hopping(60, every=20)).by("origin").aggregate(n=count())
    >>> print(keys(moving.plan))
    origin from one start

Invariants
    K1  No plan claims columns that ever fail to distinguish its events.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from lmerge_service.queries import logical, modules
from lmerge_service.queries.logical import Aggregation, Apply, Node, Top
from lmerge_service.queries.trees import Name

__all__ = ("Columns", "Keys", "keys", "renamed")

Columns: TypeAlias = frozenset[str]


class Keys(NamedTuple):
    """Columns by which events differ; None where none are known."""

    once: Columns | None = None
    """Of all events."""
    unique: Columns | None = None
    """Of those that are there at one instant."""
    start: Columns | None = None
    """Of those that start at one time."""

    def __str__(self) -> str:
        for columns, of in zip(self, ("", " at one instant", " from one start"), strict=True):
            if columns is not None:
                return (", ".join(sorted(columns)) or "one event") + of
        return "no key"


_NONE = Keys()
_WITHIN = frozenset({"at_most", "shorten", "starts", "last", "shift", "ends"})
"""Lifetimes that leave events apart that are: they move all alike, or lie within the event; ends
of events that are apart are."""


def keys(node: Node) -> Keys:
    """The keys of a node's events."""
    return _keys(node, _NONE)


@lru_cache(maxsize=4_096)
def _keys(node: Node, group: Keys) -> Keys:
    """`group` are those of what a plan for groups takes in."""
    below = [_keys(child, group) for child in logical.children(node)]
    match node:
        case logical.Source(key=key):
            return _once(frozenset(key)) if key else _NONE
        case logical.Group():
            return group
        case logical.Select():
            return below[0]
        case logical.Project(columns=columns):
            return _mapped(below[0], renamed(columns))
        case logical.Lifetime():
            return _of_lifetime(node, below[0])
        case logical.Join():
            return _of_join(node, below[0], below[1])
        case logical.MultisetOp():
            return _of_multiset(node, below)
        case logical.SemiJoin():
            return _apart(below[0].unique)
        case logical.Clip():
            return below[0]
        case logical.Aggregate(by=by, results=results):
            return _apart(_of_results(by, results))
        case logical.Windows(by=by, grid=grid, results=results):
            found = _of_results(by, results)
            return _apart(found) if grid.every >= grid.size else Keys(start=found)
        case logical.SnapshotWindows(by=by, results=results):
            return _apart(_of_results(by, results))
        case logical.CountWindows(by=by, count=count, results=results):
            found = _of_results(by, results)
            return _apart(found) if count == 1 else Keys(start=found)
        case logical.LastRows(by=by, count=count):
            return _of_last_rows(below[0], by, count)
    return _NONE


def renamed(columns: tuple[tuple[str, object], ...]) -> dict[str, str]:
    """Each column that a projection keeps as it is: its name before, and one that it has now."""
    names: dict[str, str] = {}
    for name, tree in columns:
        if isinstance(tree, Name):
            names.setdefault(tree.name, name)
    return names


def _once(columns: Columns) -> Keys:
    return Keys(columns, columns, columns)


def _apart(columns: Columns | None) -> Keys:
    return Keys(None, columns, columns)


def _mapped(found: Keys, names: Mapping[str, str]) -> Keys:
    """Under new names; None where a column has none."""

    def mapped(columns: Columns | None) -> Columns | None:
        if columns is None or not columns <= names.keys():
            return None
        return frozenset(names[column] for column in columns)

    return Keys(*map(mapped, found))


def _of_lifetime(node: logical.Lifetime, below: Keys) -> Keys:
    unique = below.once
    if node.function in _WITHIN:
        unique = below.unique
    start = unique
    if logical.lifetime_of(node).keeps_starts:
        start = below.start
    elif node.function == "deletes":  # what is apart ends apart
        start = below.unique
    return Keys(below.once, unique, start)


def _of_join(node: logical.Join, left: Keys, right: Keys) -> Keys:
    """A row is of one left and one right event, or padded: then of the one, without the other."""
    if node.outer == "full":  # a left and a right event may be padded to the same row
        return _NONE
    mine, theirs = ({side[at] for side in node.on} for at in (0, 1))

    def both(one: Columns | None, other: Columns | None) -> Columns | None:
        if one is None or other is None:
            return None
        if other <= theirs and node.outer != "right":
            return one  # the left event has one partner
        if one <= mine and node.outer != "left":
            return other
        return one | other

    once = None if node.outer else both(left.once, right.once)
    unique = both(left.unique, right.unique)
    return Keys(once, unique, unique)


def _of_multiset(node: logical.MultisetOp, below: list[Keys]) -> Keys:
    """The canonical events of a payload that is there once at most are apart."""
    everything = frozenset(logical.schema_of(node).names)
    uniques = [each.unique for each in below]
    match node.function:
        case "coalesce":
            return _apart(uniques[0]) if below[0].once is None else below[0]
        case "distinct":
            return _apart(_first(uniques[0], everything)) if below[0].once is None else below[0]
        case "except" | "intersect":
            one = _first(uniques[0], uniques[1] if node.function == "intersect" else None)
            return _apart(_first(one, everything))
        case "except_all":
            return _apart(uniques[0])
        case "intersect_all":
            return _apart(_first(*uniques))
    return _apart(None if None in uniques else everything)


def _first(one: Columns | None, other: Columns | None) -> Columns | None:
    return other if one is None else one


def _of_results(by: tuple[str, ...], results: logical.Results) -> Columns | None:
    """The columns that distinguish the rows of windows that begin together."""
    match results:
        case Top(columns=columns, by=score, rank=rank):
            if rank is not None:
                return frozenset((*by, rank))
            return frozenset((*by, *columns)) if isinstance(score, Aggregation) else None
        case Apply(module=name):
            return None if modules.module(name).rows else frozenset(by)
    return frozenset(by)


def _of_last_rows(below: Keys, by: tuple[str, ...], count: int) -> Keys:
    """Of one row of a group at a time, events that start together differ."""
    latest = below.start | frozenset(by) if below.start is not None and count == 1 else None
    return Keys(below.once, _first(below.once, latest), below.start)
