"""The SELECT list, without aggregates: columns, and what is computed of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from lmerge_service.queries.expressions import Expression
from lmerge_service.queries.logical import Grid, Project
from lmerge_service.queries.plan import Query
from lmerge_service.queries.sql.parsing import at, refused
from lmerge_service.queries.sql.relations import Relation, is_window_column
from lmerge_service.queries.sql.scalars import scalar
from lmerge_service.queries.trees import Name

__all__ = ("Selected", "called", "projected", "selected")


@dataclass(frozen=True, slots=True)
class Selected:
    """The query of a statement, and in which windows its rows are, if one may refer to them."""

    query: Query
    grid: Grid | None = None


def selected(node: exp.Select, relation: Relation) -> Selected:
    """The columns that a statement without groups selects.

    Raises:
        SqlError: a column is not there, or has no name.
    """
    columns, grid = list[tuple[str, Expression]](), None
    for each in node.expressions:
        if (all_of := _star(each, relation)) is not None:
            columns += all_of
            grid = grid or relation.grid
        elif is_window_column(each) and (found := relation.grid_of(each)) is not None:
            grid = found
        else:
            columns.append((called(each), scalar(each.unalias(), relation.column)))
    return Selected(projected(node, relation.query, columns), grid)


def projected(node: exp.Select, query: Query, columns: Sequence[tuple[str, Expression]]) -> Query:
    """The query with these columns: itself if it has them.

    Raises:
        SqlError: there are none, or two of one name.
    """
    names = [name for name, _ in columns]
    if not names:
        raise refused(node, "select a column: the times of windows are no columns")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise refused(node, f"two columns are called {twice}: give one another name by AS")
    trees = tuple((name, value.tree) for name, value in columns)
    if trees == tuple((name, Name(name)) for name in query.schema.names):
        return query
    with at(node):
        return Query(Project(query.plan, trees))


def called(node: exp.Expr) -> str:
    """The name of a column of the result.

    Raises:
        SqlError: it has none, or it is one of the windows' times with another name.
    """
    inner = node.unalias()
    if isinstance(node, exp.Alias) and is_window_column(inner):
        raise refused(node, _NO_COLUMN.format(name=inner.name))
    if not (name := node.alias_or_name) or (isinstance(inner, exp.Func) and not node.alias):
        raise refused(node, f"give {node.sql()} a name: {node.sql()} AS name")
    return name


_NO_COLUMN: Final = (
    "{name} has no other name: it is the beginning or the end of each row's lifetime, not a column"
)


def _star(node: exp.Expr, relation: Relation) -> list[tuple[str, Expression]] | None:
    """The columns that * or t.* stands for."""
    if isinstance(node, exp.Star):
        if any(node.args.values()):
            raise refused(node, "EXCEPT and REPLACE behind * are not supported: name the columns")
        return [(name, _column(name)) for name in relation.query.schema.names]
    if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
        if node.table not in relation.tables:
            there = ", ".join(relation.tables)
            raise refused(node, f"there is no table {node.table}; there is {there}")
        columns = relation.tables[node.table].columns
        return [(name, _column(found)) for name, found in columns.items()]
    return None


def _column(name: str) -> Expression:
    return Expression(Name(name))
