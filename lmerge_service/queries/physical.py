"""Physical plans: which operators compute a logical plan, and when they emit.

Theory
    A logical plan has one meaning. What may differ from replica to replica is chosen here, node by
    node: the level at which aggregates and windows emit, whether a part of the plan waits (`align`)
    so that it emits fewer revisions, and which of several algorithms runs. Every choice gives the
    same TDB in the end. `PhysicalPlan` is the settings, a value; `begin` makes the operators, which
    have the state.

    >>> from lmerge_service.elements import Insert, Stable
    >>> from lmerge_service.queries.plan import count, facts, tumbling
    >>> flights = facts("flights", time="time", fields={"origin": str, "delay": int})
    >>> hourly = flights.windows(tumbling(60)).by("origin").aggregate(n=count())
    >>> for emit in ("on_update", "on_close"):
    ...     network = build(hourly, emit=emit)
    ...     for element in network.process_batch("flights", [Insert(("JFK", 5), 7, 8)]):
    ...         print(emit, element)
    ...     for element in network.process_batch("flights", [Stable(61)]):
    ...         print(emit, element)
    on_update Insert(payload=('JFK', 1), vs=0, ve=60)
    on_update Stable(vc=60)
    on_close Insert(payload=('JFK', 1), vs=0, ve=60)
    on_close Stable(vc=60)

Levels (`emit`)
    on_update     all that follows from what is known, revised as more is
    ordered       snapshot aggregates only: up to the greatest start known, the last row open
    on_watermark  what ends by the greatest start known
    on_close      what can change no more: inserts only
    A node that has not the level that is asked for emits on update.

Invariants
    B1  Equal nodes of a plan are one operator.
    B2  The network's fingerprint is that of the plan and all choices: state of another is refused.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeAlias, get_args
from typing import Literal as OneOf

import msgspec

from lmerge_service.elements import INFINITY
from lmerge_service.errors import ConfigurationError, ModuleError
from lmerge_service.queries import aggregates, logical, modules
from lmerge_service.queries.compiling import (
    Faults,
    combination,
    condition,
    evaluation,
    projection,
    resolve,
)
from lmerge_service.queries.explaining import described as described_node
from lmerge_service.queries.logical import Aggregation, Apply, Node, Top
from lmerge_service.queries.network import Network, Part
from lmerge_service.queries.operators import grids
from lmerge_service.queries.operators.align import Align
from lmerge_service.queries.operators.clipping import Clip
from lmerge_service.queries.operators.count_windows import CountWindows
from lmerge_service.queries.operators.groups import GroupApply
from lmerge_service.queries.operators.joins import Join
from lmerge_service.queries.operators.last_rows import LastRows
from lmerge_service.queries.operators.lifetimes import AlterLifetime
from lmerge_service.queries.operators.multisets import MultisetOps
from lmerge_service.queries.operators.outer_joins import OuterJoin
from lmerge_service.queries.operators.panes import PaneWindows, expanded
from lmerge_service.queries.operators.protocol import Operator
from lmerge_service.queries.operators.semijoins import AntiJoin, SemiJoin
from lmerge_service.queries.operators.snapshot_windows import SnapshotWindows
from lmerge_service.queries.operators.snapshots import Snapshots
from lmerge_service.queries.operators.sources import Elements
from lmerge_service.queries.operators.stateless import FlatMap, Project, Select
from lmerge_service.queries.operators.union import Union
from lmerge_service.queries.plan import Query
from lmerge_service.queries.ranking import TopGroups
from lmerge_service.queries.replay.replayed_windows import ReplayedWindows
from lmerge_service.queries.rows import Kind, RefusalReason, Row, Schema, described, taken
from lmerge_service.queries.trees import Name, Tree, inferred

__all__ = (
    "Choice",
    "Emit",
    "PhysicalPlan",
    "WindowPlan",
    "build",
    "levels",
    "physical",
    "replayed",
    "window_plans",
)

Emit: TypeAlias = OneOf["on_update", "ordered", "on_watermark", "on_close"]
"""When an operator emits."""


WindowPlan: TypeAlias = OneOf["grid", "panes", "expand", "replay"]
"""How windows of a grid aggregate: each by itself; facts into panes, which are merged into windows
when these are computed: cheaper where many windows overlap and emit on close; an event for each
window of each event, and a snapshot aggregate of these; or with no state but the facts, packed,
from which each batch computes its windows anew: little memory for more work."""


class Choice(msgspec.Struct, frozen=True):
    """How one node of a plan is computed."""

    emit: Emit | None = None
    """When it emits; None: as the plan does."""
    align: int | None = None
    """Hold its output back, in order, until it is so far behind; None: pass it on at once."""
    windows: WindowPlan = "grid"
    """How windows of a grid aggregate."""


_WindowsEmit: TypeAlias = OneOf["on_update", "on_watermark", "on_close"]
_AS_THE_PLAN: Final = Choice()
_NO_PLAN: Final = "there are no windows {0.windows!r}; there is grid, panes, expand, replay"
_NO_WINDOWS: Final = {
    "panes": "panes are for aggregates in windows over events of length 1, not for {1}",
    "expand": "expand is for aggregates in windows over events that end, not for {1}",
    "replay": "replay is for aggregates in windows over events of length 1, not for {1}",
}
_GROUP: Final = "group"
"""The source of a plan that is applied to each group."""


class PhysicalPlan(msgspec.Struct, frozen=True):
    """A logical plan and what was chosen for its nodes."""

    plan: Node
    emit: Emit = "on_update"
    choices: tuple[tuple[Node, Choice], ...] = ()

    @property
    def fingerprint(self) -> str:
        """What distinguishes it from all others, the same in every process."""
        return f"{logical.fingerprint(self.plan)}-{logical.digest(self)[:8]}"

    def begin(self, clock: Callable[[], int] | None = None) -> Network:
        """A network of operators, without state; `clock` gives nanoseconds, to count the time of
        each.

        Raises:
            ConfigurationError: a function or module is not there, or does not fit.
        """
        return _Builder(self).network(clock)


def physical(
    query: Query | Node,
    *,
    emit: Emit = "on_update",
    choices: Mapping[Query, Choice] | None = None,
    align: int | None = None,
) -> PhysicalPlan:
    """The physical plan of a query: all nodes emit at level `emit`, but for those of `choices`, by
    the query that ends with them; `align` holds the whole output back.

    Raises:
        ConfigurationError: a choice is about what is no part of the query, or out of range.
    """
    plan = query.plan if isinstance(query, Query) else query
    chosen = {part.plan: choice for part, choice in (choices or {}).items()}
    if align is not None:
        chosen[plan] = msgspec.structs.replace(chosen.get(plan, _AS_THE_PLAN), align=align)
    for node in chosen.keys() - set(logical.nodes(plan)):
        raise ConfigurationError(
            f"a choice is about what is no part of the query: {described_node(node)}"
        )
    for each in [emit, *(choice.emit for choice in chosen.values())]:
        if each not in (None, *get_args(Emit)):
            raise ConfigurationError(f"there is no level {each!r} to emit at")
    for node, choice in chosen.items():
        if choice.windows not in window_plans(node):
            raise ConfigurationError(
                _NO_WINDOWS.get(choice.windows, _NO_PLAN).format(choice, described_node(node))
            )
        if choice.align is not None and choice.align < 0:
            raise ConfigurationError(f"align is at least 0, not {choice.align}")
    in_order = [(node, chosen[node]) for node in logical.nodes(plan) if node in chosen]
    return PhysicalPlan(plan, emit, tuple(in_order))


def window_plans(node: Node) -> tuple[WindowPlan, ...]:
    """How a node can compute windows; "grid" alone, which is the default, of other nodes too."""
    if not isinstance(node, logical.Windows) or isinstance(node.results, Apply):
        return ("grid",)
    match logical.longest(node.of):
        case 1:
            return ("grid", "panes", "expand", "replay")
        case endless if endless == INFINITY:
            return ("grid",)
    return ("grid", "expand")


def replayed(plan: PhysicalPlan) -> PhysicalPlan:
    """The plan, but with windows that keep nothing but their facts wherever they can.

    Raises:
        ConfigurationError: it has no such windows.
    """
    chosen = dict(plan.choices)
    windowed = [node for node in logical.nodes(plan.plan) if "replay" in window_plans(node)]
    if not windowed:
        raise ConfigurationError(
            "there is nothing to replay: that is for aggregates in windows over events of length 1"
        )
    for node in windowed:
        choice = chosen.get(node, _AS_THE_PLAN)
        chosen[node] = msgspec.structs.replace(choice, windows="replay")
    in_order = [(node, chosen[node]) for node in logical.nodes(plan.plan) if node in chosen]
    return PhysicalPlan(plan.plan, plan.emit, tuple(in_order))


def levels(node: Node) -> tuple[Emit, ...]:
    """At which levels a node can emit; none where it always emits on update."""
    match node:
        case logical.Aggregate():
            return ("on_update", "ordered", "on_watermark", "on_close")
        case logical.Windows() | logical.SnapshotWindows() | logical.CountWindows():
            return ("on_update", "on_watermark", "on_close")
        case logical.GroupApply(plan=plan):
            found = [each for inner in logical.nodes(plan) for each in levels(inner)]
            return tuple(each for each in get_args(Emit) if each in found)
    return ()


def build(
    query: Query | Node,
    *,
    emit: Emit = "on_update",
    choices: Mapping[Query, Choice] | None = None,
    align: int | None = None,
    clock: Callable[[], int] | None = None,
) -> Network:
    """The network that runs a query; its sources are those of the plan, by name, and take
    elements whose payloads are rows. The arguments are those of `physical`, and of `begin`.

    Raises:
        ConfigurationError: as these do.
    """
    return physical(query, emit=emit, choices=choices, align=align).begin(clock)


class _Builder:
    """Makes the operators of a plan, each node once."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self._plan = plan
        self._choices = dict(plan.choices)
        self._parts: list[Part] = []
        self._feeds: dict[Node, str | int] = {}
        self._unrevised: list[str] = []
        self._number = 0
        """Of the node whose operators are made, in the order of `logical.nodes`."""
        self._faults = Faults()

    def network(self, clock: Callable[[], int] | None) -> Network:
        """The operators, fed by each other and by the sources."""
        plan = self._plan.plan
        logical.schema_of(plan)
        for number, node in enumerate(logical.nodes(plan)):
            self._number = number
            self._feeds[node] = self._feed(node, is_top=node == plan)
        return Network(self._parts, self._plan.fingerprint, clock, self._unrevised)

    def _feed(self, node: Node, is_top: bool) -> str | int:
        """What the output of a node is: a source, or the position of an operator."""
        feed: str | int
        choice = self._choices.get(node, _AS_THE_PLAN)
        match node:
            # Facts are events made by us, each once: nothing is to be checked of them.
            case logical.Group() if not is_top:
                feed = _GROUP
            case logical.Group():
                feed = self._add(Union(1), [_GROUP])
            case logical.Source(name=name) if not is_top or choice.align is not None:
                feed = name
                self._unrevised.append(name)
            case logical.Source(name=name) | logical.Elements(name=name):
                feed = self._add(Elements(), [name])
            case _:
                feeds = [self._feeds[child] for child in logical.children(node)]
                for operator in self._operators(node, choice):
                    feeds = [self._add(operator, feeds)]
                (feed,) = feeds
        return feed if choice.align is None else self._add(Align(choice.align), [feed])

    def _add(self, operator: Operator, feeds: Sequence[str | int]) -> int:
        self._parts.append(Part(operator, feeds, self._number))
        return len(self._parts) - 1

    def _operators(self, node: Node, choice: Choice) -> Sequence[Operator]:
        """What computes a node: one operator, or a chain."""
        emit = choice.emit or self._plan.emit
        if isinstance(node, logical.Windows):
            return self._windows(node, _of_windows(emit), choice.windows)
        return (self._operator(node, emit),)

    def _operator(self, node: Node, emit: Emit) -> Operator:
        match node:
            case logical.Select(of, where):
                return Select(condition(where, logical.schema_of(of), self._faults))
            case logical.Project(of, columns):
                trees = [tree for _, tree in columns]
                return Project(projection(trees, logical.schema_of(of), self._faults))
            case logical.FlatMap(of, function, fields):
                return FlatMap(_rows_of(function, fields))
            case logical.Lifetime():
                return AlterLifetime(logical.lifetime_of(node))
            case logical.Union(of):
                return Union(len(of))
            case logical.Join():
                return self._join(node)
            case logical.SemiJoin():
                return self._semi_join(node)
            case logical.MultisetOp(function=function):
                return MultisetOps(function)
            case logical.Aggregate():
                return self._snapshots(node, emit)
            case logical.Clip(left, right, on):
                keys = _join_keys(logical.schema_of(left), logical.schema_of(right), on)
                return Clip(*keys)
            case logical.LastRows(of, by, count):
                return LastRows(count, _key(logical.schema_of(of), by))
            case logical.GroupApply(of, by, plan):
                inner = PhysicalPlan(plan, emit)
                return GroupApply(_key(logical.schema_of(of), by) or _alone, inner.begin)
            case logical.SnapshotWindows(of, by, results):
                return SnapshotWindows(
                    self._application(results, logical.schema_of(of), by),
                    key=_key(logical.schema_of(of), by),
                    emit=_of_windows(emit),
                )
            case logical.CountWindows(of, by, count, results, ends):
                return CountWindows(
                    count,
                    self._application(results, logical.schema_of(of), by),
                    by="end" if ends else "start",
                    key=_key(logical.schema_of(of), by),
                    emit=_of_windows(emit),
                )
        raise AssertionError(node)

    def _join(self, node: logical.Join) -> Operator:
        left, right = logical.schema_of(node.left), logical.schema_of(node.right)
        names = logical.schema_of(node).names
        shared = {one for one, other in node.on if one == other}
        theirs = [at for at, name in enumerate(right.names) if name not in shared]
        mine = [(0, at) for at in range(len(left))]
        combine = combination([*mine, *((1, at) for at in theirs)])
        residual = self._residual(node.where, logical.schema_of(node), combine)
        keys = _join_keys(left, right, node.on)
        if not node.outer:
            return Join(*keys, residual, combine)
        left_only = combination([*mine, *(None for _ in theirs)])
        right_only = combination(
            [
                (0, right.position(name)) if name in shared or at >= len(left) else None
                for at, name in enumerate(names)
            ]
        )
        return OuterJoin(
            *keys,
            residual,
            combine,
            (lambda p: left_only(p, ())) if node.outer in ("left", "full") else None,
            (lambda q: right_only(q, ())) if node.outer in ("right", "full") else None,
        )

    def _semi_join(self, node: logical.SemiJoin) -> Operator:
        left, right = logical.schema_of(node.left), logical.schema_of(node.right)
        both = logical.semi_schema(node)
        combine = combination(
            [(0, left.position(n)) if n in left else (1, right.position(n)) for n in both.names]
        )
        residual = self._residual(node.where, both, combine)
        kind = AntiJoin if node.anti else SemiJoin
        return kind(*_join_keys(left, right, node.on), residual)

    def _residual(
        self, where: Tree | None, schema: Schema, combine: Callable[[Row, Row], Row]
    ) -> Callable[[Row, Row], object] | None:
        if where is None:
            return None
        holds = condition(where, schema, self._faults)
        return lambda p, q: holds(combine(p, q))

    # Aggregates

    def _snapshots(self, node: logical.Aggregate, emit: Emit) -> Operator:
        function = self._function(node.of, node.by, node.results)
        assert isinstance(function, aggregates.Aggregate)
        gap = function.results(function.empty())[0] if node.gap else None
        return Snapshots(
            function,
            _key(logical.schema_of(node.of), node.by),
            _row(node.by),
            emit=emit,
            cut=node.cut,
            gap=gap,
        )

    def _windows(
        self, node: logical.Windows, emit: _WindowsEmit, windows: WindowPlan
    ) -> Sequence[Operator]:
        schema, grid = logical.schema_of(node.of), node.grid
        function = self._function(node.of, node.by, node.results)
        cells = grids.Grid(grid.size, grid.every, grid.origin)
        key, row = _key(schema, node.by), _row(node.by)
        if windows == "grid":
            return (grids.GridWindows(cells, function, key=key, row=row, emit=emit),)
        assert isinstance(function, aggregates.Aggregate)
        if windows == "panes":
            return (PaneWindows(cells, function, key=key, row=row, emit=emit),)
        if windows == "replay":
            of = PaneWindows if cells.hop < cells.size and function.mergeable else grids.GridWindows
            begin = partial(of, cells, function, key=key, row=row, emit="on_close")
            return (ReplayedWindows(cells, begin, emit=emit),)
        return expanded(cells, function, key=key, row=row, emit=emit)

    def _function(
        self, of: Node, by: tuple[str, ...], results: logical.Results
    ) -> aggregates.Aggregate | modules.Application:
        schema = logical.schema_of(of)
        match results:
            case Apply():
                return self._application(results, schema, by)
            case Top():
                return self._top(results, schema)
        parts = {name: self._aggregate(each, schema) for name, each in results}
        return next(iter(parts.values())) if len(parts) == 1 else aggregates.Composite(parts)

    def _aggregate(self, aggregation: Aggregation, schema: Schema) -> aggregates.Aggregate:
        if aggregation.of is None:
            return aggregates.Count()
        column = self._value(aggregation.of, schema)
        match aggregation.function:
            case "sum" | "average" as function:
                made = aggregates.Sum if function == "sum" else aggregates.Average
                return made(column, real=inferred(aggregation.of, schema) is Kind.FLOAT)
            case "percentile":
                return aggregates.Percentile(column, aggregation.part)
            case function:
                return _AGGREGATES[function](column)

    def _top(self, top: Top, schema: Schema) -> aggregates.Aggregate:
        names: list[Tree] = [Name(name) for name in top.columns]
        ranked, scored = top.rank is not None, top.score is not None
        if isinstance(top.by, Aggregation):
            columns = projection(names, schema, self._faults)
            inner, width = self._aggregate(top.by, schema), len(names)
            return TopGroups(top.k, columns, inner, width=width, scored=scored, ranked=ranked)
        if scored:
            names.append(top.by)
        columns = projection(names, schema, self._faults)
        score = self._value(top.by, schema)
        return aggregates.TopK(top.k, score, columns, width=len(names), ranked=ranked)

    def _application(
        self, results: Apply, schema: Schema, by: tuple[str, ...]
    ) -> modules.Application:
        module = modules.module(results.module, results.version or None)
        kinds = [column.kind for column in results.fields]

        def row(group: Any, result: Any) -> Row:
            items = result if module.rows and isinstance(result, tuple) else (result,)
            return behind(group, _fitting(results.module, items, kinds))

        behind = _row(by)
        return modules.Application(
            module.bind(*results.parameters),
            clipping=results.clipping,
            timestamping=results.timestamping,
            value=self._value(results.of, schema),
            row=row,
        )

    def _value(self, tree: Tree, schema: Schema) -> Callable[[Row], Any]:
        if isinstance(tree, Name):
            return itemgetter(schema.position(tree.name))
        return evaluation(tree, schema, self._faults)


_AGGREGATES: Final[dict[str, Callable[[aggregates.Column], aggregates.Aggregate]]] = {
    "count_of": aggregates.CountOf,
    "distinct_count": aggregates.DistinctCount,
    "min": aggregates.Min,
    "max": aggregates.Max,
    "first": aggregates.First,
    "last": aggregates.Last,
    "median": aggregates.Median,
}


def _of_windows(emit: Emit) -> _WindowsEmit:
    return "on_update" if emit == "ordered" else emit


def _key(schema: Schema, by: tuple[str, ...]) -> Callable[[Row], Hashable] | None:
    """The group of a row: the value of its column, or the tuple of several."""
    return itemgetter(*map(schema.position, by)) if by else None


def _alone(_: Row) -> Hashable:
    """The one group of all rows."""
    return ()


def _row(by: tuple[str, ...]) -> Callable[[Any, Row], Row]:
    """The row of a group and its results."""
    match len(by):
        case 0:
            return lambda _, values: values
        case 1:
            return lambda group, values: (group, *values)
    return lambda group, values: group + values


def _join_keys(
    left: Schema, right: Schema, on: tuple[tuple[str, str], ...]
) -> tuple[Callable[[Row], Hashable], Callable[[Row], Hashable]]:
    return (
        itemgetter(*(left.position(one) for one, _ in on)),
        itemgetter(*(right.position(other) for _, other in on)),
    )


def _rows_of(name: str, fields: Schema) -> Callable[[Row], list[Row]]:
    """The rows that a user's function makes of one, of the declared kinds."""
    function, kinds = resolve(name), [column.kind for column in fields]

    def rows(row: Row) -> list[Row]:
        try:
            found = list(function(row))
        except Exception as error:
            raise ModuleError(f"{name}{row} raised {error!r}") from error
        return [_fitting(name, each, kinds) for each in found]

    return rows


def _fitting(name: str, items: Any, kinds: Sequence[Kind]) -> Row:
    """A row that user code has made, if it is one."""
    if not isinstance(items, tuple | list) or len(items) != len(kinds):
        raise ModuleError(f"{name} returned {described(items)}, not a row of {len(kinds)} columns")
    row = [taken(item, kind) for item, kind in zip(items, kinds, strict=True)]
    for item, held in zip(items, row, strict=True):
        if isinstance(held, RefusalReason):
            raise ModuleError(f"{name} returned {described(item)} ({held})")
    return tuple(row)
