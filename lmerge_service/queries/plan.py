"""The fluent API: queries over facts and elements, written as they are read.

Theory
    A `Query` is a logical plan (`logical`) with methods that extend it. Each step is checked when
    it is written: an error names the column, and what there is instead.

    >>> from lmerge_service.queries.expressions import col
    >>> HOUR = 3_600
    >>> flights = facts("flights", time="time", fields={"origin": str, "delay": int})
    >>> delays = (flights.where(col.delay > 0).windows(hopping(HOUR, every=1_200)).by("origin")
    ...           .aggregate(flights=count(), delay=sum_("delay")))
    >>> print(delays)
    windows hopping(3600, every=1200) by origin: flights=count(), delay=sum(col.delay)
    └─ where col.delay > 0
       └─ facts flights (origin: str, delay: int)
    >>> print(delays.schema)
    (origin: str, flights: int, delay: int)
    >>> flights.where(col.dealy > 0)
    Traceback (most recent call last):
    lmerge_service.errors.ConfigurationError: where col.dealy > 0: there is no column 'dealy'; \
there is origin, delay

    `physical.build` makes a network of operators of it:

    >>> from lmerge_service.queries.physical import build
    >>> from lmerge_service.elements import Insert
    >>> late = build(flights.where(col.delay > 15).select("origin"))
    >>> late.process_batch("flights", [Insert(("JFK", 20), 7, 8), Insert(("EWR", 3), 9, 10)])
    [Insert(payload=('JFK',), vs=7, ve=8)]

Where an event of the result is a row over time, remember what makes lifetimes: a fact of time t is
[t, t + 1). `window`, `extend` and `at_most` set how long it counts; `clip` ends it when another
event comes; `windows` put it into the windows of a grid; joins and aggregates without windows go by
which events are there at the same instant.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmerge_service.errors import ConfigurationError
from lmerge_service.queries import explaining, logical
from lmerge_service.queries.expressions import Expression, tree_of
from lmerge_service.queries.logical import Aggregation, Apply, Grid, Node
from lmerge_service.queries.modules import Module
from lmerge_service.queries.rows import Kind, Schema
from lmerge_service.queries.trees import Name, Tree

__all__ = (
    "Counting",
    "Grouped",
    "Query",
    "Snapshots",
    "Windowed",
    "apply",
    "average",
    "count",
    "counting",
    "distinct_count",
    "elements",
    "facts",
    "first",
    "hopping",
    "last",
    "max_",
    "median",
    "min_",
    "percentile",
    "snapshots",
    "sum_",
    "tumbling",
)

Fields = Mapping[str, Kind | type | str]
On = str | Sequence[str] | Mapping[str, str]
"""Columns that are equal on both sides: their names, or left name → right name."""
Of = str | Expression
"""A column's name, or an expression."""


# Sources


def facts(
    name: str,
    *,
    time: str,
    fields: Fields,
    until: str | None = None,
    ends: Expression | None = None,
    lateness: int = 0,
    key: str | Sequence[str] = (),
    heartbeats: Expression | None = None,
) -> "Query":
    """Facts of a topic: JSON objects, of which `fields` are the columns.

    `time` is the member that has a fact's time, in any unit; it need not be a column. A fact of
    time t is the event [t, t + 1), or, with `until`, [t, the time in that member). `ends` gives the
    facts after which their partition has no more; `lateness` is how far below the highest time of
    its partition a fact still counts; facts with equal `key` columns are one. `heartbeats` gives
    those that are no events, but say by their times how far their partition is, when nothing else
    does.

    Raises:
        ConfigurationError: a column is not there, or of no kind.
    """
    end = None if ends is None else tree_of(ends)
    beats = None if heartbeats is None else tree_of(heartbeats)
    schema, columns = Schema.of(fields), _names(key)
    return Query(logical.Source(name, schema, time, until, end, lateness, columns, beats))


def elements(name: str, fields: Fields) -> "Query":
    """The elements of a topic that a merge or another query publishes.

    Raises:
        ConfigurationError: a column is of no kind.
    """
    return Query(logical.Elements(name, Schema.of(fields)))


# Windows


def hopping(size: int, *, every: int, origin: int = 0) -> Grid:
    """The windows [l, l + size) for each l = origin + k · every."""
    return Grid(size, every, origin)


def tumbling(size: int, *, origin: int = 0) -> Grid:
    """The windows [l, l + size), one after the other."""
    return Grid(size, size, origin)


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The windows between neighbouring endpoints of events."""


@dataclass(frozen=True, slots=True)
class Counting:
    """The windows over so many neighbouring starts, or ends, of events."""

    count: int
    ends: bool = False


def snapshots() -> Snapshots:
    """A window for each time in which the same events are there."""
    return Snapshots()


def counting(count: int, *, ends: bool = False) -> Counting:
    """A window for each `count` neighbouring starts (or `ends`) of events: from the first of them
    to the tick after the last."""
    return Counting(count, ends)


# Aggregations


def count(of: Of | None = None) -> Aggregation:
    """How many rows; of a column, in how many it is not null."""
    return Aggregation("count") if of is None else Aggregation("count_of", _tree(of))


def distinct_count(of: Of) -> Aggregation:
    """How many different values, null not among them."""
    return Aggregation("distinct_count", _tree(of))


def sum_(of: Of) -> Aggregation:
    """The sum; exact for floats too, whatever the order. Beyond int64, null."""
    return Aggregation("sum", _tree(of))


def average(of: Of) -> Aggregation:
    """The mean, a float: the exact sum, divided and rounded once."""
    return Aggregation("average", _tree(of))


def min_(of: Of) -> Aggregation:
    """The least value."""
    return Aggregation("min", _tree(of))


def max_(of: Of) -> Aggregation:
    """The greatest value."""
    return Aggregation("max", _tree(of))


def first(of: Of) -> Aggregation:
    """The value in the row that began first; of several, in the least of them."""
    return Aggregation("first", _tree(of))


def last(of: Of) -> Aggregation:
    """The value in the row that began last; of several, in the greatest of them."""
    return Aggregation("last", _tree(of))


def percentile(of: Of, part: float | str) -> Aggregation:
    """The value below which that part of the values lies, interpolated; `part` from 0 to 1."""
    return Aggregation("percentile", _tree(of), str(part))


def median(of: Of) -> Aggregation:
    """The middle value, or the mean of the middle two."""
    return Aggregation("median", _tree(of))


def apply(
    module: Module | type[Any] | str,
    of: Of,
    fields: Fields,
    *,
    parameters: Sequence[int | float | str | bool] = (),
    clipping: str = "none",
    timestamping: str = "align",
) -> Apply:
    """A module of the user's, over what `of` is in each row; `fields` are the columns that it
    returns (`modules`)."""
    name, version, bound = (module, "", ()) if isinstance(module, str) else _of_module(module)
    return Apply(
        name,
        _tree(of),
        Schema.of(fields),
        (*bound, *parameters),
        clipping,
        timestamping,
        version,
    )


# Queries


@dataclass(frozen=True, slots=True)
class Query:
    """A logical plan, and how to extend it. Equal plans are equal queries.

    Raises:
        ConfigurationError: the plan is not well-formed; the message names what there is instead.
    """

    plan: Node

    def __post_init__(self) -> None:
        logical.schema_of(self.plan)
        logical.sources(self.plan)

    def __str__(self) -> str:
        """The nodes of the plan as a tree."""
        return "\n".join(explaining.tree(self.plan))

    @property
    def schema(self) -> Schema:
        """The columns of the result."""
        return logical.schema_of(self.plan)

    @property
    def fingerprint(self) -> str:
        """What distinguishes the query from all others, the same in every process."""
        return logical.fingerprint(self.plan)

    # Rows

    def where(self, *conditions: Expression) -> "Query":
        """The events of which all conditions are true: neither false nor null."""
        query = self
        for each in conditions:
            query = Query(logical.Select(query.plan, tree_of(each)))
        return query

    def select(self, *names: str, **columns: object) -> "Query":
        """These columns alone, then those computed: `select("origin", late=col.delay > 15)`."""
        named = [(name, Name(name)) for name in names]
        computed = [(name, tree_of(value)) for name, value in columns.items()]
        return Query(logical.Project(self.plan, (*named, *computed)))

    def with_columns(self, **columns: object) -> "Query":
        """All columns, and those computed behind them."""
        return self.select(*self.schema.names, **columns)

    def rename(self, **names: str) -> "Query":
        """All columns, with new names: `rename(airport="origin")`."""
        turned = {old: new for new, old in names.items()}
        self.schema.only(list(turned), "rename")
        columns = [(turned.get(name, name), Name(name)) for name in self.schema.names]
        return Query(logical.Project(self.plan, tuple(columns)))

    def prefix(self, prefix: str, *but: str) -> "Query":
        """All columns, with a prefix to the name of each but these."""
        names = {prefix + name: name for name in self.schema.names if name not in but}
        return self.rename(**names)

    def flat_map(self, function: str, fields: Fields, *, version: str = "") -> "Query":
        """Each event once for each row that `package.module:function` returns for its row."""
        return Query(logical.FlatMap(self.plan, function, Schema.of(fields), version))

    # Lifetimes

    def window(self, width: int) -> "Query":
        """[vs, vs + width): a moving window, what began within the last `width`."""
        return self._lifetime("window", width)

    def shift(self, by: int) -> "Query":
        """[vs + by, ve + by)."""
        return self._lifetime("shift", by)

    def extend(self, by: int) -> "Query":
        """[vs, ve + by)."""
        return self._lifetime("extend", by)

    def shorten(self, by: int) -> "Query":
        """[vs, ve - by); nothing of an event that is no longer than that."""
        return self._lifetime("shorten", by)

    def at_most(self, length: int) -> "Query":
        """[vs, min(ve, vs + length))."""
        return self._lifetime("at_most", length)

    def hop(self, every: int, width: int) -> "Query":
        """[⌊vs / every⌋ · every, that + width): counts from the grid on, and is in one place."""
        return self._lifetime("hop", every, width)

    def quantise(self, grid: int) -> "Query":
        """All of the grid that the event touches."""
        return self._lifetime("quantise", grid)

    def inserts(self) -> "Query":
        """[vs, without end): what has begun."""
        return self._lifetime("inserts")

    def starts(self) -> "Query":
        """[vs, vs + 1)."""
        return self._lifetime("starts")

    def ends(self) -> "Query":
        """[ve, ve + 1)."""
        return self._lifetime("ends")

    def deletes(self) -> "Query":
        """[ve, without end): what has ended."""
        return self._lifetime("deletes")

    def last(self) -> "Query":
        """[ve - 1, ve)."""
        return self._lifetime("last")

    def _lifetime(self, function: str, *arguments: int) -> "Query":
        return Query(logical.Lifetime(self.plan, function, arguments))

    # With other queries

    def union(self, *others: "Query") -> "Query":
        """The events of all, which have the same columns."""
        return Query(logical.Union((self.plan, *(other.plan for other in others))))

    def join(
        self, other: "Query", on: On, *, where: Expression | None = None, prefix: str = ""
    ) -> "Query":
        """Pairs of events that overlap, with equal `on` columns and a true condition over the
        columns of both; as long as both are there. Columns of `on` that have one name are one;
        `prefix` is put before the names of the other columns of the right side."""
        return self._join(other, on, where, prefix, "")

    def left_join(
        self, other: "Query", on: On, *, where: Expression | None = None, prefix: str = ""
    ) -> "Query":
        """The same, and of each left event the times without a partner, with nulls."""
        return self._join(other, on, where, prefix, "left")

    def right_join(
        self, other: "Query", on: On, *, where: Expression | None = None, prefix: str = ""
    ) -> "Query":
        """The join, and of each right event the times without a partner, with nulls."""
        return self._join(other, on, where, prefix, "right")

    def full_join(
        self, other: "Query", on: On, *, where: Expression | None = None, prefix: str = ""
    ) -> "Query":
        """The join, and of each event the times without a partner, with nulls."""
        return self._join(other, on, where, prefix, "full")

    def _join(
        self, other: "Query", on: On, where: Expression | None, prefix: str, outer: Any
    ) -> "Query":
        pairs = _pairs(on)
        right = other.prefix(prefix, *(name for _, name in pairs)) if prefix else other
        condition = None if where is None else tree_of(where)
        return Query(logical.Join(self.plan, right.plan, pairs, condition, outer))

    def semi_join(self, other: "Query", on: On, *, where: Expression | None = None) -> "Query":
        """The parts of events in which an event of the other has their `on` columns."""
        condition = None if where is None else tree_of(where)
        return Query(logical.SemiJoin(self.plan, other.plan, _pairs(on), condition))

    def anti_join(self, other: "Query", on: On, *, where: Expression | None = None) -> "Query":
        """The parts of events in which no event of the other has their `on` columns."""
        condition = None if where is None else tree_of(where)
        return Query(logical.SemiJoin(self.plan, other.plan, _pairs(on), condition, anti=True))

    def clip(self, other: "Query", on: On) -> "Query":
        """Each event until the next event of the other with its `on` columns starts."""
        return Query(logical.Clip(self.plan, other.plan, _pairs(on)))

    def coalesce(self) -> "Query":
        """Equal payloads joined where they meet: the fewest, longest events."""
        return self._multiset("coalesce")

    def distinct(self) -> "Query":
        """Each payload once at each instant, in the longest events."""
        return self._multiset("distinct")

    def except_(self, other: "Query") -> "Query":
        """Each payload while the other does not have it, once."""
        return self._multiset("except", other)

    def except_all(self, other: "Query") -> "Query":
        """Each payload as often as it is there more often than in the other."""
        return self._multiset("except_all", other)

    def intersect(self, other: "Query") -> "Query":
        """Each payload while both have it, once."""
        return self._multiset("intersect", other)

    def intersect_all(self, other: "Query") -> "Query":
        """Each payload as often as both have it."""
        return self._multiset("intersect_all", other)

    def union_max(self, other: "Query") -> "Query":
        """Each payload as often as the one has it that has it more often."""
        return self._multiset("union_max", other)

    def _multiset(self, function: str, *others: "Query") -> "Query":
        inputs = (self.plan, *(other.plan for other in others))
        return Query(logical.MultisetOp(inputs, function))

    # Groups and windows

    def by(self, *names: str) -> "Grouped":
        """Per group of equal columns; null equals null here."""
        return Grouped(self, names)

    def aggregate(self, *, cut: bool = False, gap: bool = False, **results: Aggregation) -> "Query":
        """What the events that are there at an instant are together, as it changes. `cut` gives a
        row for each time in which the same events are there, also if its values stay; `gap` gives
        rows for the times between events, too."""
        found = tuple(results.items())
        return Query(logical.Aggregate(self.plan, (), found, cut, gap))

    def top(
        self,
        k: int,
        *names: str,
        by: Of | Aggregation,
        rank: str | None = "rank",
        score: str | None = None,
    ) -> "Query":
        """The `k` rows of these columns with the greatest score `by`, at each instant; if that is
        an aggregation, the k combinations of these columns for which it is greatest. `rank` and
        `score` name the columns that have them."""
        return Grouped(self, ()).top(k, *names, by=by, rank=rank, score=score)

    def windows(self, windows: Grid | Snapshots | Counting) -> "Windowed":
        """In windows, each of which the events are in that overlap it."""
        return Windowed(self, windows, ())

    def last_rows(self, count: int) -> "Query":
        """Each event until the `count`-th next start."""
        return Grouped(self, ()).last_rows(count)


@dataclass(frozen=True, slots=True)
class Grouped:
    """A query by groups of equal columns."""

    query: Query
    names: tuple[str, ...]

    def aggregate(self, *, cut: bool = False, **results: Aggregation) -> Query:
        """As `Query.aggregate`, per group."""
        found = tuple(results.items())
        return Query(logical.Aggregate(self.query.plan, self.names, found, cut))

    def top(
        self,
        k: int,
        *names: str,
        by: Of | Aggregation,
        rank: str | None = "rank",
        score: str | None = None,
    ) -> Query:
        """As `Query.top`, per group."""
        top = logical.Top(k, names, _score(by), rank, score)
        return Query(logical.Aggregate(self.query.plan, self.names, top))

    def windows(self, windows: Grid | Snapshots | Counting) -> "Windowed":
        """As `Query.windows`, per group."""
        return Windowed(self.query, windows, self.names)

    def last_rows(self, count: int) -> Query:
        """Each event until the `count`-th next start in its group."""
        return Query(logical.LastRows(self.query.plan, self.names, count))

    def apply(self, plan: Callable[[Query], Query]) -> Query:
        """A query over each group by itself. Its result has the columns that the query selects, the
        group's only if it keeps them. Aggregates, windows and last_rows have groups of their own,
        and are much faster."""
        group = Query(logical.Group(self.query.schema))
        return Query(logical.GroupApply(self.query.plan, self.names, plan(group).plan))


@dataclass(frozen=True, slots=True)
class Windowed:
    """A query in windows."""

    query: Query
    windows: Grid | Snapshots | Counting
    names: tuple[str, ...]

    def by(self, *names: str) -> "Windowed":
        """Per group of equal columns."""
        return Windowed(self.query, self.windows, (*self.names, *names))

    def aggregate(self, **results: Aggregation) -> Query:
        """What the events of each window of a grid are together, as an event of that window."""
        return Query(self._grid(tuple(results.items())))

    def top(
        self,
        k: int,
        *names: str,
        by: Of | Aggregation,
        rank: str | None = "rank",
        score: str | None = None,
    ) -> Query:
        """As `Query.top`, in each window of a grid."""
        return Query(self._grid(logical.Top(k, names, _score(by), rank, score)))

    def apply(self, results: Apply) -> Query:
        """What a module makes of the events of each window."""
        of, windows = self.query.plan, self.windows
        match windows:
            case Grid():
                return Query(logical.Windows(of, self.names, windows, results))
            case Snapshots():
                return Query(logical.SnapshotWindows(of, self.names, results))
            case Counting(count, ends):
                return Query(logical.CountWindows(of, self.names, count, results, ends))

    def _grid(self, results: logical.Results) -> Node:
        if not isinstance(self.windows, Grid):
            raise ConfigurationError(
                "snapshots and count windows take a module, by apply(); for values at each instant "
                "leave out windows()"
            )
        return logical.Windows(self.query.plan, self.names, self.windows, results)


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _pairs(on: On) -> tuple[tuple[str, str], ...]:
    if isinstance(on, Mapping):
        return tuple(on.items())
    return tuple((name, name) for name in _names(on))


def _tree(of: Of) -> Tree:
    return Name(of) if isinstance(of, str) else tree_of(of)


def _score(by: Of | Aggregation) -> Tree | Aggregation:
    return by if isinstance(by, Aggregation) else _tree(by)


def _of_module(module: object) -> tuple[str, str, tuple[Any, ...]]:
    if not isinstance(module, Module):  # as a type checker sees a class that has become one
        raise ConfigurationError(f"{module!r} is not a module: decorate it with uda or udo")
    return module.name, module.version, module.parameters
