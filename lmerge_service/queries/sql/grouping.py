"""GROUP BY, HAVING and aggregates.

Theory
    Over a table in windows, GROUP BY window_start (or window_end, or both) and columns makes
    `windows(grid).by(columns).aggregate(…)`; over others, GROUP BY columns makes
    `by(columns).aggregate(…)`, what the rows that are valid at a time are together. An aggregate
    has the name that the SELECT list gives it. One that only HAVING, or a larger expression, reads
    gets a name of its own, and is no column of the result.
"""

from dataclasses import dataclass, field

from sqlglot import exp

from lmerge_service.queries.expressions import Expression, col
from lmerge_service.queries.logical import Aggregate, Aggregation, Grid, Windows
from lmerge_service.queries.plan import Query
from lmerge_service.queries.sql.aggregates import aggregation, aggregations_in
from lmerge_service.queries.sql.parsing import at, only, refused
from lmerge_service.queries.sql.relations import Relation, is_window_column
from lmerge_service.queries.sql.scalars import scalar
from lmerge_service.queries.sql.selecting import Selected, called, projected

__all__ = ("grouped",)


def grouped(node: exp.Select, relation: Relation) -> Selected:
    """The query of a statement with groups or aggregates.

    Raises:
        SqlError: it selects what is neither grouped nor aggregated, or groups what is not there.
    """
    keys, grid = _keys(node, relation)
    groups = _Groups(relation, keys)
    columns = [each for each in node.expressions if not is_window_column(each)]
    for each in columns:
        groups.add(each)
    if having := node.args.get("having"):
        groups.add(having.this)
    if not groups.results:
        raise refused(node, "GROUP BY without an aggregate is not supported: SELECT DISTINCT is")
    with at(node):
        query = groups.aggregated(grid)
        if having:
            query = query.where(scalar(having.this, groups.column))
    chosen = [(called(each), scalar(each.unalias(), groups.column)) for each in columns]
    shown = grid if len(columns) < len(node.expressions) and _is_tumbling(grid) else None
    return Selected(projected(node, query, chosen), shown)


def _is_tumbling(grid: Grid | None) -> bool:
    """Whether each row is in one window, which its lifetime then is."""
    return grid is not None and grid.size == grid.every


def _keys(node: exp.Select, relation: Relation) -> tuple[list[str], Grid | None]:
    """The columns by which it is grouped, and the windows."""
    clause, keys, grid = node.args.get("group"), list[str](), None
    if clause is not None:
        only(clause, "expressions", nearest="GROUP BY of columns is")
    for each in clause.expressions if clause is not None else ():
        if not isinstance(each, exp.Column):
            raise refused(
                each,
                f"GROUP BY {each.sql()} is not supported: name a column, and compute it in a "
                "subquery; TUMBLE and HOP stand behind FROM",
            )
        if (found := relation.grid_of(each)) is not None:
            grid = found
        elif (name := relation.name(each)) not in keys:
            keys.append(name)
    if relation.windowed and grid is None:
        raise refused(node, "a table in windows is grouped by them: GROUP BY window_start, …")
    return keys, grid


@dataclass(slots=True)
class _Groups:
    """The aggregates of a statement by name, in the order in which they are met."""

    relation: Relation
    keys: list[str]
    results: dict[str, Aggregation] = field(default_factory=dict)

    def add(self, node: exp.Expr) -> None:
        """The aggregates of a column, or of a condition."""
        whole = node.unalias()
        for each in aggregations_in(node):
            found = aggregation(each, self.relation.column)
            assert found is not None
            if each is whole and isinstance(node, exp.Alias):
                self._bind(node, node.alias, found)
            elif found not in self.results.values():
                self.results[self._free()] = found

    def _bind(self, node: exp.Expr, name: str, found: Aggregation) -> None:
        if name in self.keys or name in self.results:
            raise refused(node, f"two columns are called {name}: give one another name")
        self.results[name] = found

    def _free(self) -> str:
        numbers = range(1, len(self.results) + len(self.keys) + 2)
        taken = {*self.keys, *self.results, *self.relation.query.schema.names}
        return next(name for n in numbers if (name := f"aggregate_{n}") not in taken)

    def aggregated(self, grid: Grid | None) -> Query:
        """The query with a row per group."""
        of, by, results = self.relation.query.plan, tuple(self.keys), tuple(self.results.items())
        if grid is not None:
            return Query(Windows(of, by, grid, results))
        return Query(Aggregate(of, by, results))

    def column(self, node: exp.Expr) -> Expression | None:
        """A column of a group: one by which it is grouped, or an aggregate."""
        if isinstance(node, exp.Column):
            return col[self._grouped(node)]
        if isinstance(node, exp.AggFunc | exp.Filter | exp.WithinGroup):
            found = aggregation(node, self.relation.column)
            return col[next(name for name, each in self.results.items() if each == found)]
        return None

    def _grouped(self, node: exp.Column) -> str:
        if not node.table and node.name in self.results:
            return node.name
        if (name := self.relation.name(node)) not in self.keys:
            raise refused(node, f"{node.sql()} is not aggregated: add it to GROUP BY")
        return name
