"""What a whole plan means: the meanings of its nodes, composed, over the TDBs of its sources.

Values of aggregates are computed here from all rows at once, by their definitions.
"""

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from math import ceil, floor
from typing import Any

from lmerge_service.elements import INFINITY, START
from lmerge_service.queries import logical, modules, window_policies
from lmerge_service.queries.compiling import Faults, condition, evaluation, resolve
from lmerge_service.queries.logical import Aggregation, Apply, Node, Top
from lmerge_service.queries.meaning import (
    joins,
    lifetimes,
    multisets,
    rows,
    semijoins,
    stateless,
    windows,
)
from lmerge_service.queries.order import payload_order
from lmerge_service.queries.rows import Row, Schema
from lmerge_service.queries.trees import Tree
from lmerge_service.tdb import TDB, Event

__all__ = ("meaning",)

Span = tuple[int, int]


def meaning(plan: Node, given: Mapping[str, TDB], group: TDB | None = None) -> TDB:
    """The TDB of a plan's result; `given` has the TDB of each source, by name."""
    below = [meaning(child, given, group) for child in logical.children(plan)]
    schemas = [logical.schema_of(child) for child in logical.children(plan)]
    match plan:
        case logical.Source(name=name) | logical.Elements(name=name):
            return given[name]
        case logical.Group():
            assert group is not None, "a group stands outside a plan for groups"
            return group
        case logical.Select(where=where):
            return stateless.select(below[0], condition(where, schemas[0], Faults()))
        case logical.Project(columns=columns):
            values = [evaluation(tree, schemas[0], Faults()) for _, tree in columns]
            return stateless.project(below[0], lambda row: tuple(value(row) for value in values))
        case logical.FlatMap(function=function):
            mapped = resolve(function)
            return stateless.flat_map(below[0], lambda row: [tuple(each) for each in mapped(row)])
        case logical.Lifetime(function=function, arguments=arguments):
            altered: Callable[..., TDB] = getattr(lifetimes, function)
            return altered(below[0], *arguments)
        case logical.Union():
            return stateless.union(*below)
        case logical.MultisetOp(function=function):
            return multisets.combined(function, *below)
        case logical.Join():
            return _join(plan, below, schemas)
        case logical.SemiJoin():
            return _semi_join(plan, below, schemas)
        case logical.Clip(on=on):
            return rows.clip(below[0], below[1], *_keys(schemas, on))
        case logical.LastRows(by=by, count=count):
            return rows.last_rows(below[0], count, _columns(schemas[0], by))
        case logical.Aggregate(by=by):
            return _per_group(below[0], schemas[0], by, _aggregate(plan, schemas[0]))
        case logical.Windows(by=by, grid=grid, results=results):
            until = max((e.ve for e in below[0] if e.ve != INFINITY), default=START)
            until = max([until, *(event.vs for event in below[0])])
            made = _rows(results, schemas[0])
            return _per_group(
                below[0],
                schemas[0],
                by,
                lambda key, tdb: windows.windowed(
                    windows.grid_windows(tdb, grid.size, grid.every, grid.origin, until), made, key
                ),
            )
        case logical.SnapshotWindows(by=by, results=results):
            made = _rows(results, schemas[0])
            return _per_group(
                below[0],
                schemas[0],
                by,
                lambda key, tdb: windows.windowed(windows.snapshot_windows(tdb), made, key),
            )
        case logical.CountWindows(by=by, count=count, ends=ends, results=results):
            made, points = _rows(results, schemas[0]), "end" if ends else "start"
            return _per_group(
                below[0],
                schemas[0],
                by,
                lambda key, tdb: windows.windowed(
                    windows.count_windows(tdb, count, points), made, key
                ),
            )
        case logical.GroupApply():
            return _group_apply(plan, below[0], given)
    raise AssertionError(plan)


def _join(plan: logical.Join, below: list[TDB], schemas: list[Schema]) -> TDB:
    left, right = schemas
    shared = {one for one, other in plan.on if one == other}
    names = logical.schema_of(plan).names

    def combine(p: Row | None, q: Row | None) -> Row:
        """The columns of both; what is missing is null, but for those of the key."""
        known = {} if q is None else dict(zip(right.names, q, strict=True))
        mine = {} if p is None else dict(zip(left.names, p, strict=True))
        if p is not None:
            known = {name: item for name, item in known.items() if name not in shared}
        else:
            known = {n: item for n, item in known.items() if n in shared or n not in left}
        return tuple((known | mine).get(name) for name in names)

    residual = None
    if plan.where is not None:
        holds = condition(plan.where, logical.schema_of(plan), Faults())
        residual = lambda p, q: holds(combine(p, q))  # noqa: E731
    return joins.outer_join(
        below[0],
        below[1],
        *_keys(schemas, plan.on),
        residual,
        combine,
        (lambda p: combine(p, None)) if plan.outer in ("left", "full") else None,
        (lambda q: combine(None, q)) if plan.outer in ("right", "full") else None,
    )


def _semi_join(plan: logical.SemiJoin, below: list[TDB], schemas: list[Schema]) -> TDB:
    left, right = schemas
    residual = None
    if plan.where is not None:
        both = logical.semi_schema(plan)
        holds = condition(plan.where, both, Faults())
        residual = lambda p, q: holds(  # noqa: E731
            tuple((right.fact(q) | left.fact(p))[name] for name in both.names)
        )
    join = semijoins.anti_join if plan.anti else semijoins.semi_join
    return join(below[0], below[1], *_keys(schemas, plan.on), residual)


def _group_apply(plan: logical.GroupApply, below: TDB, given: Mapping[str, TDB]) -> TDB:
    groups = _groups(below, logical.schema_of(plan.of), plan.by)
    return stateless.union(*(meaning(plan.plan, given, tdb) for _, tdb in groups))


# Groups


def _columns(schema: Schema, names: Iterable[str]) -> Callable[[Row], Row]:
    places = [schema.position(name) for name in names]
    return lambda row: tuple(row[at] for at in places)


def _keys(
    schemas: list[Schema], on: tuple[tuple[str, str], ...]
) -> tuple[Callable[[Row], Row], Callable[[Row], Row]]:
    left, right = schemas
    return _columns(left, (one for one, _ in on)), _columns(right, (other for _, other in on))


def _rows_of(tdb: TDB) -> Iterable[tuple[Row, int, int]]:
    """The events of a TDB whose payloads are rows."""
    return tdb  # type: ignore[return-value]


def _groups(tdb: TDB, schema: Schema, by: Iterable[str]) -> list[tuple[Row, TDB]]:
    key = _columns(schema, by)
    found: dict[Row, list[Event]] = {}
    for row, vs, ve in _rows_of(tdb):
        found.setdefault(key(row), []).append(Event(row, vs, ve))
    return [(group, TDB(events)) for group, events in found.items()]


def _per_group(tdb: TDB, schema: Schema, by: Iterable[str], made: Callable[[Row, TDB], TDB]) -> TDB:
    """What is made of each group, with the group's columns in front."""
    return TDB(
        ((*group, *payload), vs, ve)
        for group, events in _groups(tdb, schema, by)
        for payload, vs, ve in _rows_of(made(group, events))
    )


# Values


def _rows(
    results: logical.Results, schema: Schema
) -> Callable[[Span, Any, list[Event]], list[tuple[Row, int, int]]]:
    """The events that a window with these members emits, without the group's columns."""
    match results:
        case Apply():
            return _module(results, schema)
        case Top():
            return lambda window, _, members: [
                (row, *window) for row in _top(results, schema, members)
            ]
    return lambda window, _, members: [
        (tuple(_value(each, schema, members) for _, each in results), *window)
    ]


def _aggregate(plan: logical.Aggregate, schema: Schema) -> Callable[[Row, TDB], TDB]:
    rows = _rows(plan.results, schema)

    def made(group: Row, tdb: TDB) -> TDB:
        snapshots = TDB(
            row
            for window, members in windows.snapshot_windows(tdb)
            if members or plan.gap
            for row in rows(window, group, members)
        )
        return snapshots if plan.cut else multisets.combined("coalesce", snapshots)

    return made


def _value(aggregation: Aggregation, schema: Schema, members: list[Event]) -> Any:
    """The value of an aggregation over these events."""
    if aggregation.of is None:
        return len(members)
    of = _evaluated(aggregation.of, schema)
    known = [value for event in members if (value := of(event.payload)) is not None]
    match aggregation.function:
        case "count_of":
            return len(known)
        case "distinct_count":
            return len(set(known))
        case "first" | "last" as function:
            in_order = sorted(members, key=lambda e: (e.vs, payload_order(e.payload)))
            return of(in_order[0 if function == "first" else -1].payload) if members else None
    if not known:
        return None
    total = sum(map(Fraction, known)) if not isinstance(known[0], str) else Fraction()
    match aggregation.function:
        case "min":
            return min(known)
        case "max":
            return max(known)
        case "average":
            return float(total / len(known))
        case "sum" if isinstance(known[0], float):
            try:
                return float(total)
            except OverflowError:
                return None
        case "sum":
            return int(total) if START <= total <= INFINITY else None
        case "median":
            return _percentile(sorted(known), Fraction(1, 2))
        case "percentile":
            return _percentile(sorted(known), Fraction(aggregation.part))
    raise AssertionError(aggregation)


def _percentile(values: list[Any], part: Fraction) -> float:
    at = part * (len(values) - 1)
    low, high = Fraction(values[floor(at)]), Fraction(values[ceil(at)])
    return float(low + (high - low) * (at - floor(at)))


def _top(top: Top, schema: Schema, members: list[Event]) -> list[Row]:
    columns = _columns(schema, top.columns)
    if isinstance(top.by, Aggregation):
        groups: dict[Row, list[Event]] = {}
        for event in members:
            groups.setdefault(columns(_row(event)), []).append(event)
        scored = [(row, _value(top.by, schema, group)) for row, group in groups.items()]
    else:
        score = _evaluated(top.by, schema)
        scored = [(columns(_row(event)), score(_row(event))) for event in members]
    scored.sort(key=lambda each: payload_order(each[0]))
    scored.sort(key=lambda each: payload_order(each[1]), reverse=True)
    return [
        row + (() if top.score is None else (score,)) + (() if top.rank is None else (rank,))
        for rank, (row, score) in enumerate(scored[: top.k], 1)
    ]


def _row(event: Event) -> Row:
    assert isinstance(event.payload, tuple)
    return event.payload


def _evaluated(tree: Tree, schema: Schema) -> Callable[[Any], Any]:
    return evaluation(tree, schema, Faults())


def _module(
    results: Apply, schema: Schema
) -> Callable[[Span, Any, list[Event]], list[tuple[Row, int, int]]]:
    module = modules.module(results.module)
    of = _evaluated(results.of, schema)

    def rows(window: Span, _: Any, members: list[Event]) -> list[tuple[Row, int, int]]:
        items: list[Any] = []
        for event in members:
            value, vs, ve = windows.clip(results.clipping, window, event)
            items.append((of(value), vs, ve) if module.time_sensitive else of(value))
        seen = (window_policies.Window(*window),) if module.time_sensitive else ()
        if module.incremental:
            made = module.implementation(*results.parameters)
            state = made.empty()
            for item in items:
                state = made.add(state, *(item if module.time_sensitive else (item,)))
            found = made.compute(*seen, state)
        else:
            items.sort(key=payload_order)
            found = module.implementation(*seen, items, *results.parameters)
        found = list(found) if module.rows else [found]
        if not module.stamped:
            found = [(each, *window) for each in found]
        return [
            (row if module.rows and isinstance(row, tuple) else (row,), vs, ve)
            for each in found
            for row, vs, ve in windows.stamp(results.timestamping, window, Event(*each))
        ]

    return rows
