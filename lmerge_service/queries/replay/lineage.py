"""Lineage: which of the input each event of the output is made of.

Theory
    The *lineage* of an output is the set of input tuples that it is computed of, and the minimal
    replay sequence of a revision is the union of the lineages of what it changes
    (`minimal_sequence`, the definition).

    A set per event would cost as much as the input. So an interval is kept per source: the least
    and the greatest number of those tuples. It is computed by the query itself: each fact gets its
    number as a column, and the plan is rewritten so that its rows carry, for each source, the least
    and the greatest (`with_lineage`): what looks at one row hands them on, a join has both sides',
    and windows aggregate them by min and max. So the rows of the output archive are those of a
    query like any other, by the same operators:

        rows            archived output          revision of number 12
        AAPL 7.5        AAPL 7.5   10 … 14  ◀──  replay 10 … 19
        AAPL 7.7        AAPL 7.7   12 … 19  ◀──

    An interval has more numbers than the set has members: a replay by intervals is not minimal.

    `distinct`, aggregates without windows and others put rows together or take them apart by what
    they hold, so that a number as a column would change the result. Plans with them have no lineage
    (None).

Invariants
    L1  Without the columns of the lineage, the rewritten plan has the TDB of the plan.
    L2  The interval of an event holds all of its lineage.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from lmerge_service.queries import logical
from lmerge_service.queries.logical import Aggregation, Node
from lmerge_service.queries.replay.archive import Archived
from lmerge_service.queries.rows import Column, Kind, Schema
from lmerge_service.queries.trees import (
    Binary,
    Cast,
    Coalesce,
    IsNull,
    Literal,
    Name,
    Tree,
    When,
    reads,
)

__all__ = (
    "NUMBER",
    "Interval",
    "composed",
    "intervals_of",
    "minimal_sequence",
    "numbered",
    "placing_columns",
    "rows_with",
    "spans",
    "with_lineage",
)

NUMBER = "lineage number"
"""The column that each source of a rewritten plan has last: a tuple's number."""

_In = TypeVar("_In", bound=Hashable)
_Out = TypeVar("_Out", bound=Hashable)


def minimal_sequence(
    before: Mapping[_Out, frozenset[_In]], after: Mapping[_Out, frozenset[_In]], revised: _In
) -> set[_In]:
    """The minimal replay sequence of a revised tuple: of each output the lineage `before` the
    revision and `after` it. Changed is what has the tuple in its lineage, and what has another
    lineage than before, as all windows of rows behind an insertion or a deletion have.

    >>> pairs = {"o1": frozenset({1, 2}), "o2": frozenset({3, 4})}
    >>> sorted(minimal_sequence(pairs, pairs, 3))
    [3, 4]
    """
    kept = set(before.values()) & set(after.values())
    lineages = {*before.values(), *after.values()}
    return {t for lineage in lineages if revised in lineage or lineage not in kept for t in lineage}


def composed(
    outer: Mapping[_Out, frozenset[_In]], inner: Mapping[_In, frozenset[Any]]
) -> dict[_Out, frozenset[Any]]:
    """The lineage of what is made of outputs that have a lineage themselves."""
    return {
        output: frozenset(t for each in lineage for t in inner[each])
        for output, lineage in outer.items()
    }


class Interval(NamedTuple):
    """Numbers of tuples, both included."""

    first: int
    last: int


def rows_with(
    rows: Iterable[tuple[Any, Mapping[str, Interval]]], source: str, number: int
) -> list[tuple[Any, Mapping[str, Interval]]]:
    """The rows of an output archive, each with its intervals by source, whose interval of a source
    holds a number."""
    found = []
    for row, intervals in rows:
        of_source = intervals.get(source)
        if of_source is not None and of_source.first <= number <= of_source.last:
            found.append((row, intervals))
    return found


def spans(intervals: Iterable[Mapping[str, Interval]]) -> dict[str, Interval]:
    """By source the interval from the least number of all to the greatest."""
    found: dict[str, Interval] = {}
    for each in intervals:
        for source, (first, last) in each.items():
            known = found.get(source, Interval(first, last))
            found[source] = Interval(min(known.first, first), max(known.last, last))
    return found


def intervals_of(row: tuple[Any, ...], sources: Iterable[str], width: int) -> dict[str, Interval]:
    """The intervals that a row of a rewritten plan carries behind `width` columns of its own; a
    source that it does not rest on has none."""
    ends = row[width:]
    pairs = zip(sources, zip(ends[::2], ends[1::2], strict=True), strict=True)
    return {name: Interval(*pair) for name, pair in pairs if pair[0] is not None}


def numbered(entries: Iterable[Archived]) -> Iterable[Archived]:
    """Entries of a source with their numbers as last column, as a rewritten plan takes them."""
    return (e._replace(payload=(*e.payload, e.sequence)) for e in entries)


def with_lineage(plan: Node) -> Node | None:
    """The plan whose rows carry, behind their own columns, the least and the greatest number of
    each of its sources, in the order of `logical.sources`; its sources have `NUMBER` as last
    column. None: it has no lineage."""
    names = list(logical.sources(plan))
    made = _rewritten(plan, names)
    if made is None:
        return None
    ends = [column for name in names for column in _columns(name)]
    own = logical.schema_of(plan).names
    return logical.Project(made, tuple((name, Name(name)) for name in (*own, *ends)))


def _columns(source: str, side: str = "") -> tuple[str, str]:
    return f"lineage first {source}{side}", f"lineage last {source}{side}"


def _rewritten(node: Node, names: list[str]) -> Node | None:
    below = [_rewritten(child, names) for child in logical.children(node)]
    if any(child is None for child in below):
        return None
    of = [child for child in below if child is not None]
    ends = [column for name in names for column in _columns(name)]
    match node:
        case logical.Source(name=name) | logical.Elements(name=name):
            return _numbered_source(node, name, names)
        case logical.Select() | logical.Lifetime():
            return _replaced(node, of=of[0])
        case logical.Project(columns=columns):
            return logical.Project(of[0], (*columns, *((each, Name(each)) for each in ends)))
        case logical.Union():
            own = logical.schema_of(node).names
            alike = [_selected(each, (*own, *ends)) for each in of]
            return logical.Union(tuple(alike))
        case logical.Join(outer=""):
            return _joined(node, of[0], of[1], names)
        case logical.Windows(results=results) if isinstance(results, tuple):
            hull = tuple(
                (column, Aggregation(function, Name(column)))
                for name in names
                for column, function in zip(_columns(name), ("min", "max"), strict=True)
            )
            return _replaced(node, of=of[0], results=(*results, *hull))
    return None


def _replaced(node: Node, **changes: Any) -> Node:
    fields = {name: getattr(node, name) for name in node.__struct_fields__}
    made: Node = type(node)(**{**fields, **changes})
    return made


def _selected(node: Node, columns: Iterable[str]) -> Node:
    return logical.Project(node, tuple((name, Name(name)) for name in columns))


def _numbered_source(node: logical.Source | logical.Elements, name: str, names: list[str]) -> Node:
    fields = Schema((*node.fields, Column(NUMBER, Kind.INT)))
    numbered = _replaced(node, fields=fields)
    nothing = Cast(Literal(None, None), Kind.INT)
    ends = tuple(
        (column, Name(NUMBER) if each == name else nothing)
        for each in names
        for column in _columns(each)
    )
    own = tuple((column, Name(column)) for column in node.fields.names)
    return logical.Project(numbered, (*own, *ends))


def _joined(node: logical.Join, left: Node, right: Node, names: list[str]) -> Node:
    """Both sides have the columns of the lineage: those of the right are renamed, and joined rows
    have the lesser and the greater of the two."""
    sides = [logical.schema_of(child).names for child in (node.left, node.right)]
    moved = tuple(
        (_columns(name, " right")[at], Name(_columns(name)[at])) for name in names for at in (0, 1)
    )
    right = logical.Project(right, (*((each, Name(each)) for each in sides[1]), *moved))
    join = logical.Join(left, right, node.on, node.where)
    hull = tuple(
        (_columns(name)[at], _either(op, _columns(name)[at], _columns(name, " right")[at]))
        for name in names
        for at, op in ((0, "<="), (1, ">="))
    )
    own = logical.schema_of(node).names
    return logical.Project(join, (*((name, Name(name)) for name in own), *hull))


def _either(op: str, one: str, other: str) -> Tree:
    """The one of two columns that compares so with the other, or that is there."""
    first, second = Name(one), Name(other)
    both = When(((Binary(op, first, second), first),), second)
    return Coalesce((When(((IsNull(second), first),), both), second))


def placing_columns(plan: Node) -> dict[str, set[str]]:
    """The columns of each source that decide which results a row goes into: those that conditions,
    keys and groups read, directly or by what is made of them."""
    found: dict[str, set[str]] = {name: set() for name in logical.sources(plan)}

    def visit(node: Node, wanted: set[str]) -> None:
        match node:
            case logical.Source(name=name) | logical.Elements(name=name):
                found[name] |= wanted
            case logical.Select(of, where):
                visit(of, wanted | set(reads(where)))
            case logical.Project(of, columns):
                visit(
                    of, {each for name, tree in columns if name in wanted for each in reads(tree)}
                )
            case logical.Join(left, right, on, where):
                both = wanted | (set() if where is None else set(reads(where)))
                for side, child in enumerate((left, right)):
                    keys = {pair[side] for pair in on}
                    visit(child, keys | both & set(logical.schema_of(child).names))
            case logical.Windows(of, by, _, results) if isinstance(results, tuple):
                values = [each.of for name, each in results if name in wanted and each.of]
                visit(of, {*by, *(name for tree in values for name in reads(tree))})
            case _:
                for child in logical.children(node):
                    visit(child, wanted)

    visit(plan, set())
    return found
