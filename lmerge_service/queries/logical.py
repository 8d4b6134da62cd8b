"""Logical plans: the nodes of the algebra, as values.

Theory
    A plan is a tree of nodes; its leaves are sources. Each node has a schema, inferred from those
    below, and a meaning (`meaning.plans`); which operators compute it, and when they emit, is a
    physical choice (`physical`). Nodes are values: hashable, comparable, and msgpack carries them,
    so that two processes know that they run the same query by its `fingerprint`. Equal nodes within
    a plan are one: they run once.

    `queries.plan` builds plans with less writing.

    >>> from lmerge_service.queries.trees import Binary, Literal, Name
    >>> flights = Source("flights", Schema.of({"origin": str, "delay": int}), time="time")
    >>> late = Select(flights, Binary(">", Name("delay"), Literal(15, Kind.INT)))
    >>> print(schema_of(late), fingerprint(late) == fingerprint(msgspec.msgpack.decode(
    ...     msgspec.msgpack.encode(late), type=Node)))
    (origin: str, delay: int) True
    >>> schema_of(Project(late, (("where", Name("orign")),)))
    Traceback (most recent call last):
    lmerge_service.errors.ConfigurationError: select where=col.orign: there is no column 'orign'; \
there is origin, delay

Invariants
    N1  `schema_of` is defined for every plan that can run: it raises for unknown and ambiguous
        columns, kinds that don't fit, names bound twice, sizes out of range, and operators whose
        memory or progress would have no bound.
    N2  Equal fingerprints are equal plans, and the same in every process.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from typing import Final, TypeAlias
from typing import Literal as OneOf

import msgspec

from lmerge_service.elements import INFINITY
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries import modules
from lmerge_service.queries.compiling import resolve
from lmerge_service.queries.operators import lifetimes
from lmerge_service.queries.rows import Column, Kind, Schema
from lmerge_service.queries.trees import Tree, inferred, reads

__all__ = (
    "AGGREGATIONS",
    "LIFETIMES",
    "MULTISETS",
    "Aggregate",
    "Aggregation",
    "Apply",
    "Clip",
    "CountWindows",
    "Elements",
    "FlatMap",
    "Grid",
    "Group",
    "GroupApply",
    "Join",
    "LastRows",
    "Lifetime",
    "MultisetOp",
    "Node",
    "Project",
    "Select",
    "SemiJoin",
    "SnapshotWindows",
    "Source",
    "Top",
    "Union",
    "Windows",
    "children",
    "digest",
    "fingerprint",
    "headroom",
    "lifetime_of",
    "longest",
    "nodes",
    "schema_of",
    "semi_schema",
    "sources",
)


class _Node(msgspec.Struct, frozen=True, tag_field="node", forbid_unknown_fields=True):
    pass


# Sources


class Source(_Node, frozen=True, tag="facts"):
    """Facts: JSON objects with a time. One of time t is the event [t, t + 1), or, with `until`,
    [t, the time in that member)."""

    name: str
    fields: Schema
    time: str
    until: str | None = None
    ends: Tree | None = None
    """Of which facts nothing comes after in their partition."""
    lateness: int = 0
    """How far below the highest time of its partition a fact still counts."""
    key: tuple[str, ...] = ()
    """Columns of which no two facts have the same values."""
    heartbeats: Tree | None = None
    """Which facts are no events: their times say how far their partition is."""


class Elements(_Node, frozen=True, tag="elements"):
    """A stream of elements, as a merge or another query publishes it."""

    name: str
    fields: Schema


class Group(_Node, frozen=True, tag="group"):
    """What a plan that is applied to each group by itself takes in."""

    fields: Schema


# One input, row by row


class Select(_Node, frozen=True, tag="select"):
    """The events of which a condition is true."""

    of: "Node"
    where: Tree


class Project(_Node, frozen=True, tag="project"):
    """Each event with other columns."""

    of: "Node"
    columns: tuple[tuple[str, Tree], ...]


class FlatMap(_Node, frozen=True, tag="flat_map"):
    """Each event once for each row that a function `package.module:name` makes of its row."""

    of: "Node"
    function: str
    fields: Schema
    version: str = ""


class Lifetime(_Node, frozen=True, tag="lifetime"):
    """Each event with another lifetime (`operators.lifetimes`), by a function of `LIFETIMES`."""

    of: "Node"
    function: str
    arguments: tuple[int, ...] = ()


LIFETIMES: Final[dict[str, tuple[tuple[str, int | None], ...]]] = {
    "window": (("width", 1),),
    "shift": (("by", None),),
    "extend": (("by", 0),),
    "shorten": (("by", 0),),
    "at_most": (("length", 1),),
    "hop": (("every", 1), ("width", 1)),
    "quantise": (("grid", 1),),
    "inserts": (),
    "starts": (),
    "ends": (),
    "deletes": (),
    "last": (),
}
"""Each function of lifetimes: its arguments, and the least that each may be."""


# Several inputs


class Union(_Node, frozen=True, tag="union"):
    """The events of all inputs, which have the same columns."""

    of: tuple["Node", ...]


class Join(_Node, frozen=True, tag="join"):
    """Pairs of events that overlap, with equal key columns; `outer` sides keep what has no partner.
    Key columns of one name on both sides become one column."""

    left: "Node"
    right: "Node"
    on: tuple[tuple[str, str], ...]
    where: Tree | None = None
    """A condition over the columns of both."""
    outer: OneOf["", "left", "right", "full"] = ""


class MultisetOp(_Node, frozen=True, tag="multiset"):
    """A function of how often a payload is there on each side, one of `MULTISETS`."""

    of: tuple["Node", ...]
    function: str


MULTISETS: Final = {
    "coalesce": 1,
    "distinct": 1,
    "except_all": 2,
    "except": 2,
    "intersect_all": 2,
    "intersect": 2,
    "union_max": 2,
}
"""Each function of multiplicities, and how many inputs it has."""


class SemiJoin(_Node, frozen=True, tag="semi_join"):
    """The parts of left events in which a right event has their key, or with `anti` none has."""

    left: "Node"
    right: "Node"
    on: tuple[tuple[str, str], ...]
    where: Tree | None = None
    """A condition over the columns of both; a name on both sides is the left's."""
    anti: bool = False


class Clip(_Node, frozen=True, tag="clip"):
    """Left events, each until the next right event of its key starts."""

    left: "Node"
    right: "Node"
    on: tuple[tuple[str, str], ...]


# Aggregates and windows


class Aggregation(msgspec.Struct, frozen=True, tag_field="node", tag="aggregation"):
    """One value of many rows, by a function of `AGGREGATIONS`; `of` is what it reads of a row."""

    function: str
    of: Tree | None = None
    part: str = ""
    """Of a percentile: the part of the values below it, a decimal."""


AGGREGATIONS: Final = frozenset(
    {
        *("count", "count_of", "distinct_count", "sum", "average", "min", "max", "first", "last"),
        *("percentile", "median"),
    }
)


class Top(msgspec.Struct, frozen=True, tag_field="node", tag="top"):
    """The `k` rows with the greatest scores, or, where the score is an aggregation, the `k`
    combinations of columns for which it is greatest."""

    k: int
    columns: tuple[str, ...]
    by: Tree | Aggregation
    rank: str | None = "rank"
    """The column that has the rank, from 1."""
    score: str | None = None
    """The column that has the score."""


class Apply(msgspec.Struct, frozen=True, tag_field="node", tag="apply"):
    """A user's module over the rows of a window (`modules`)."""

    module: str
    of: Tree
    """What the module sees of a row."""
    fields: Schema
    """The columns that it returns: of each row, or the one value."""
    parameters: tuple[int | float | str | bool, ...] = ()
    clipping: str = "none"
    timestamping: str = "align"
    version: str = ""


Results: TypeAlias = tuple[tuple[str, Aggregation], ...] | Top | Apply


class Aggregate(_Node, frozen=True, tag="aggregate"):
    """Per group, and for each time in which the same events are there, what they are together."""

    of: "Node"
    by: tuple[str, ...]
    results: tuple[tuple[str, Aggregation], ...] | Top
    cut: bool = False
    """One row per snapshot, not per longest time in which the values stay."""
    gap: bool = False
    """Rows between the first and the last event, where there is none, too; without `by` only."""


class Grid(msgspec.Struct, frozen=True, tag_field="node", tag="grid"):
    """The windows [l, l + size), l = origin + k · every."""

    size: int
    every: int
    origin: int = 0


class Windows(_Node, frozen=True, tag="windows"):
    """Per group and window of a grid, what the events that overlap it are together."""

    of: "Node"
    by: tuple[str, ...]
    grid: Grid
    results: tuple[tuple[str, Aggregation], ...] | Top | Apply


class SnapshotWindows(_Node, frozen=True, tag="snapshot_windows"):
    """A module over the events of each snapshot: between two neighbouring endpoints."""

    of: "Node"
    by: tuple[str, ...]
    results: Apply


class CountWindows(_Node, frozen=True, tag="count_windows"):
    """A module over the events that start (or end) within `count` neighbouring starts (ends)."""

    of: "Node"
    by: tuple[str, ...]
    count: int
    results: Apply
    ends: bool = False


class LastRows(_Node, frozen=True, tag="last_rows"):
    """Each event until the `count`-th next start of its group."""

    of: "Node"
    by: tuple[str, ...]
    count: int


class GroupApply(_Node, frozen=True, tag="group_apply"):
    """A plan over each group by itself; its `Group` stands for the group's events."""

    of: "Node"
    by: tuple[str, ...]
    plan: "Node"


Node: TypeAlias = (
    Source
    | Elements
    | Group
    | Select
    | Project
    | FlatMap
    | Lifetime
    | Union
    | Join
    | MultisetOp
    | SemiJoin
    | Clip
    | Aggregate
    | Windows
    | SnapshotWindows
    | CountWindows
    | LastRows
    | GroupApply
)


# Reading plans


def children(node: Node) -> tuple[Node, ...]:
    """The nodes that feed a node, by port."""
    match node:
        case Source() | Elements() | Group():
            return ()
        case Union(of) | MultisetOp(of):
            return of
        case Join(left, right) | SemiJoin(left, right) | Clip(left, right):
            return (left, right)
    return (node.of,)


def nodes(node: Node) -> Iterator[Node]:
    """All nodes of a plan once, each behind those that feed it."""
    seen: set[Node] = set()

    def below(each: Node) -> Iterator[Node]:
        if each not in seen:
            for child in children(each):
                yield from below(child)
            seen.add(each)
            yield each

    return below(node)


def sources(node: Node) -> dict[str, Source | Elements]:
    """The sources of a plan by name.

    Raises:
        ConfigurationError: two that differ have one name.
    """
    found: dict[str, Source | Elements] = {}
    for each in nodes(node):
        if isinstance(each, Source | Elements) and found.setdefault(each.name, each) != each:
            raise ConfigurationError(f"the source {each.name!r} is bound twice, differently")
    return found


def fingerprint(node: Node) -> str:
    """What distinguishes a plan from all others, the same in every process."""
    return digest(node)[:32]


def digest(value: object) -> str:
    """A digest of a value that msgpack carries."""
    return sha256(msgspec.msgpack.encode(value)).hexdigest()


def longest(node: Node) -> int:
    """An upper bound of ve - vs of the events of a node; INFINITY if none is known."""
    match node:
        case Source(until=None):
            return 1
        case Source() | Elements() | Group() | MultisetOp() | LastRows() | CountWindows():
            return INFINITY
        case Lifetime(of):
            return lifetime_of(node).longest(longest(of))
        case Union(of):
            return max(map(longest, of))
        case Join(left, right, outer=outer):
            sides = (longest(left), longest(right))
            return {"": min(sides), "left": sides[0], "right": sides[1], "full": max(sides)}[outer]
        case Aggregate(of, cut=cut, gap=gap):
            return longest(of) if cut and not gap else INFINITY
        case Windows(results=Apply(timestamping="unchanged")):
            return INFINITY
        case SnapshotWindows(results=Apply(timestamping="unchanged")):
            return INFINITY
        case Windows(grid=grid):
            return grid.size
        case GroupApply(plan=plan):
            return longest(plan)
    return longest(children(node)[0])


def headroom(node: Node) -> int:
    """How far any time that a plan makes can be from the times of its sources."""
    below = max(map(headroom, children(node)), default=0)
    match node:
        case Source() | CountWindows():
            return below + 1
        case Lifetime(arguments=arguments):
            return below + 1 + sum(map(abs, arguments))
        case Windows(grid=grid):
            return below + grid.size + grid.every
        case GroupApply(plan=plan):
            return below + headroom(plan)
    return below


def lifetime_of(node: Lifetime) -> lifetimes.Lifetime:
    """The function of lifetimes that a node names, with its arguments.

    Raises:
        ConfigurationError: there is none, or an argument is out of range.
    """
    wanted = LIFETIMES.get(node.function)
    if wanted is None or len(wanted) != len(node.arguments):
        raise ConfigurationError(
            f"there is no function of lifetimes {node.function!r} of {len(node.arguments)} "
            f"arguments; there is {', '.join(LIFETIMES)}"
        )
    for (name, least), value in zip(wanted, node.arguments, strict=True):
        if type(value) is not int or (least is not None and value < least):
            bound = "" if least is None else f" of at least {least}"
            raise ConfigurationError(f"{node.function}: {name} is an int{bound}, not {value!r}")
    made = "".join(word.capitalize() for word in node.function.split("_"))
    function: lifetimes.Lifetime = getattr(lifetimes, made)(*node.arguments)
    return function


# Schemas, and all that is checked with them


@lru_cache(maxsize=4_096)
def schema_of(node: Node) -> Schema:
    """The columns of a node's events; with it, that the node is well-formed (N1).

    Raises:
        ConfigurationError: it is not; the message names the node, the column, and what there is.
    """
    match node:
        case Source():
            return _of_source(node)
        case Elements(fields=fields) | Group(fields=fields):
            return fields
        case Select(of, where):
            _condition(where, schema_of(of), f"where {where}")
            return schema_of(of)
        case Project(of, columns):
            below = schema_of(of)
            return Schema(tuple(Column(n, _kind(t, below, f"select {n}={t}")) for n, t in columns))
        case FlatMap(of, function, fields):
            schema_of(of)
            resolve(function)
            return fields
        case Lifetime(of):
            lifetime_of(node)
            return schema_of(of)
        case Union(of):
            return _alike("union", of)
        case MultisetOp(of, function):
            if MULTISETS.get(function) != len(of):
                raise ConfigurationError(f"there is no {function!r} of {len(of)} inputs")
            return _alike(function, of)
        case Join():
            return _of_join(node)
        case SemiJoin() | Clip():
            return _of_left(node)
        case Aggregate():
            return _of_aggregate(node)
        case Windows():
            return _of_windows(node)
        case SnapshotWindows(of, by, results):
            _bounded_for(results, of)
            return _grouped(of, by, results)
        case CountWindows(of, by, count, results):
            _at_least(1, "a count window", count)
            _bounded_for(results, of)
            return _grouped(of, by, results)
        case LastRows(of, by, count):
            _at_least(1, "last_rows", count)
            schema_of(of).only(by, "by")
            return schema_of(of)
        case GroupApply():
            return _of_group_apply(node)


def _of_source(node: Source) -> Schema:
    where = f"facts {node.name!r}"
    for time in (node.time, node.until):
        if time in node.fields and node.fields.kind(str(time)) is not Kind.INT:
            raise ConfigurationError(f"{where}: the time {time!r} is an int, not {node.fields}")
    if node.ends is not None:
        _condition(node.ends, node.fields, f"{where}, ends={node.ends}")
    if (beats := node.heartbeats) is not None:
        _condition(beats, node.fields, f"{where}, heartbeats={beats}")
    _at_least(0, f"{where}: lateness", node.lateness)
    node.fields.only(node.key, f"{where}, key")
    return node.fields


def _of_join(node: Join) -> Schema:
    both = _joined(node.left, node.right, node.on, "join")
    if node.where is not None:
        _condition(node.where, both, f"join where {node.where}")
    for side, child in (("left", node.left), ("right", node.right)):
        if _endless(child):
            raise ConfigurationError(
                f"an event of the join's {side} side may never end, so the join would hold all: "
                "put at_most(d) or window(w) below it"
            )
    return both


def _joined(left: Node, right: Node, on: Iterable[tuple[str, str]], what: str) -> Schema:
    """The columns of both sides, those of the key once."""
    _keys(left, right, on, what)
    shared = {one for one, other in on if one == other}
    mine = schema_of(left)
    theirs = [column for column in schema_of(right) if column.name not in shared]
    if twice := [column.name for column in theirs if column.name in mine]:
        raise ConfigurationError(
            f"{what}: the column {twice[0]!r} is ambiguous, both sides have it: {mine} and "
            f"{schema_of(right)}; rename one, or prefix the right side's by prefix="
        )
    return Schema((*mine, *theirs))


def _keys(left: Node, right: Node, on: Iterable[tuple[str, str]], what: str) -> None:
    if not on:
        raise ConfigurationError(f"{what}: name the columns that are equal, by on=")
    for one, other in on:
        mine = schema_of(left).kind(one, f"{what}, left side")
        theirs = schema_of(right).kind(other, f"{what}, right side")
        if mine is not theirs:
            raise ConfigurationError(
                f"{what}: {one!r} is {mine.value}, {other!r} is {theirs.value}: cast one"
            )


def _of_left(node: SemiJoin | Clip) -> Schema:
    mine, what = schema_of(node.left), "clip" if isinstance(node, Clip) else "semi-join"
    _keys(node.left, node.right, node.on, what)
    if isinstance(node, SemiJoin) and node.where is not None:
        _condition(node.where, semi_schema(node), f"{what} where {node.where}")
    sides = (node.left,) if isinstance(node, Clip) else (node.left, node.right)
    if any(map(_endless, sides)) and not isinstance(node, Clip):
        raise ConfigurationError(
            "an event of the semi-join may never end, so it would hold all: put at_most(d) or "
            "window(w) below it"
        )
    return mine


def semi_schema(node: SemiJoin) -> Schema:
    """The columns that the condition of a semi-join may read: those of both sides.

    Raises:
        ConfigurationError: it reads one that both sides have, though not as their key.
    """
    mine, theirs = schema_of(node.left), schema_of(node.right)
    read = frozenset() if node.where is None else reads(node.where)
    for column in theirs:
        if column.name in mine and column.name in read and (column.name,) * 2 not in node.on:
            raise ConfigurationError(
                f"semi-join where {node.where}: the column {column.name!r} is ambiguous, both "
                f"sides have it: {mine} and {theirs}; rename one"
            )
    return Schema((*mine, *(column for column in theirs if column.name not in mine)))


def _of_aggregate(node: Aggregate) -> Schema:
    if node.gap and node.by:
        raise ConfigurationError(
            f"gap=True is for all rows together, not by {', '.join(node.by)}: a quiet group would "
            "hold the progress of all"
        )
    if node.gap and isinstance(node.results, Top):
        raise ConfigurationError("gap=True: the top of no rows has no row")
    return _grouped(node.of, node.by, node.results)


def _of_windows(node: Windows) -> Schema:
    _at_least(1, "windows: size", node.grid.size)
    _at_least(1, "windows: every", node.grid.every)
    if _endless(node.of):
        raise ConfigurationError(
            "an event below the windows may never end, so it would be in all that follow: put "
            "at_most(d) or window(w) below them"
        )
    if isinstance(node.results, Apply):
        _bounded_for(node.results, node.of)
    return _grouped(node.of, node.by, node.results)


def _of_group_apply(node: GroupApply) -> Schema:
    taken = [each for each in nodes(node.plan) if not children(each)]
    if taken != [Group(schema_of(node.of))]:
        raise ConfigurationError("the plan of each group takes in that group, and nothing else")
    schema_of(node.of).only(node.by, "by")
    return schema_of(node.plan)


def _grouped(of: Node, by: tuple[str, ...], results: Results) -> Schema:
    """Group columns, then those of the results."""
    below = schema_of(of)
    keys = below.only(by, "by")
    match results:
        case Top():
            return Schema((*keys, *_of_top(results, below)))
        case Apply(fields=fields):
            _loaded(results)
            _kind(results.of, below, f"apply {results.module} to {results.of}")
            return Schema((*keys, *fields))
    if not results:
        raise ConfigurationError("aggregate: name a result, as n=count()")
    return Schema((*keys, *(Column(n, _aggregated(a, below, n)) for n, a in results)))


def _of_top(top: Top, below: Schema) -> Iterator[Column]:
    _at_least(1, "top", top.k)
    if not top.columns:
        raise ConfigurationError("top: name the columns of its rows")
    yield from below.only(top.columns, "top")
    if isinstance(top.by, Aggregation):
        score = _aggregated(top.by, below, "top by")
    else:
        score = _kind(top.by, below, f"top by {top.by}")
    if top.score is not None:
        yield Column(top.score, score)
    if top.rank is not None:
        yield Column(top.rank, Kind.INT)


def _aggregated(aggregation: Aggregation, below: Schema, name: str) -> Kind:
    """The kind of an aggregation's result."""
    function, of = aggregation.function, aggregation.of
    where = f"{name}={function}({'' if of is None else of})"
    if function not in AGGREGATIONS:
        raise ConfigurationError(f"{where}: there is {', '.join(sorted(AGGREGATIONS))}")
    if (of is None) != (function == "count"):
        raise ConfigurationError(f"{where}: {function} takes {'no' if of else 'a'} column")
    kind = Kind.INT if of is None else _kind(of, below, where)
    if function in ("count", "count_of", "distinct_count"):
        return Kind.INT
    if function in ("sum", "average", "percentile", "median") and not kind.is_number:
        raise ConfigurationError(f"{where}: {of} is {kind.value}, not a number")
    if function == "percentile" and not 0 <= _part(aggregation.part, where) <= 1:
        raise ConfigurationError(f"{where}: the part is between 0 and 1, not {aggregation.part}")
    return Kind.FLOAT if function in ("average", "percentile", "median") else kind


def _part(text: str, where: str) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ConfigurationError(f"{where}: the part is a decimal, not {text!r}") from None


def _loaded(results: Apply) -> modules.Module:
    """The module, with its parameters.

    Raises:
        ConfigurationError: there is none, or the policies don't fit it.
    """
    found = modules.module(results.module, results.version or None).bind(*results.parameters)
    modules.Application(found, clipping=results.clipping, timestamping=results.timestamping)
    if not found.rows and len(results.fields) != 1:
        raise ConfigurationError(f"{results.module} returns one value, not {results.fields}")
    return found


def _bounded_for(results: Apply, of: Node) -> None:
    """A module that sees ends which may never come would hold the output's stable for ever."""
    found = _loaded(results)
    unclipped = results.clipping in ("none", "left")
    if found.time_sensitive and unclipped and longest(of) == INFINITY:
        raise ConfigurationError(
            f"{results.module} sees ends that may never come, so its results would never be final: "
            "apply it with clipping='right', or put at_most(d) below it"
        )


def _endless(node: Node) -> bool:
    """Whether a plan makes events that never end, one by one, and nothing ends them."""
    match node:
        case Lifetime(of, function):
            if function in ("inserts", "deletes"):
                return True
            return function in ("shift", "extend", "shorten", "quantise") and _endless(of)
        case Select() | Project() | FlatMap() | Union() | Join() | SemiJoin():
            return any(map(_endless, children(node)))
    return False


def _alike(what: str, of: tuple[Node, ...]) -> Schema:
    """The columns that all inputs have."""
    if not of:
        raise ConfigurationError(f"{what} of no input")
    first = schema_of(of[0])
    for other in of[1:]:
        if schema_of(other) != first:
            raise ConfigurationError(
                f"{what}: {schema_of(other)} are not the columns {first}: select the same, in the "
                "same order"
            )
    return first


def _condition(tree: Tree, schema: Schema, where: str) -> None:
    if (kind := inferred(tree, schema, where)) not in (Kind.BOOL, None):
        raise ConfigurationError(f"{where}: a condition is bool, not {kind.value if kind else ''}")


def _kind(tree: Tree, schema: Schema, where: str) -> Kind:
    kind = inferred(tree, schema, where)
    if kind is None:
        raise ConfigurationError(f"{where}: null alone is of no kind; cast it")
    return kind


def _at_least(least: int, what: str, value: object) -> None:
    if type(value) is not int or value < least:
        raise ConfigurationError(f"{what} is an int of at least {least}, not {value!r}")
