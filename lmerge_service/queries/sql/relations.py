"""What stands behind FROM: a query, and what its columns are called in the statement.

Theory
    A table is a query: rows with lifetimes. Columns are reached by name, or by table and name.
    Where both sides of a join have a column of one name, the right side's get the prefix `alias_`;
    the columns of an equality of one name are one.

    TUMBLE and HOP put a table into windows, which have no columns of their own: the window of a row
    is its lifetime, [window_start, window_end). GROUP BY window_start makes `windows(…)` of it. A
    table in tumbling windows that is not grouped is quantised: each row is there during its window,
    so that two tables in the same windows are joined window by window.

    Names are looked up as they stand, then without regard to case unless they are quoted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from lmerge_service.queries.expressions import Expression, col
from lmerge_service.queries.logical import Grid
from lmerge_service.queries.plan import Query
from lmerge_service.queries.sql.parsing import refused

__all__ = ("WINDOW_COLUMNS", "Relation", "Table", "found_name", "is_window_column")

WINDOW_COLUMNS = ("window_start", "window_end")


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of one table behind FROM: what the statement calls each → what the query does."""

    columns: Mapping[str, str]
    grid: Grid | None = None
    """The windows that its rows are in."""
    unmatched: frozenset[str] = frozenset()
    """What else the statement calls its columns: keys of an outer join, which are null where it has
    no partner, but the query's are not."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A query, and its tables by their aliases."""

    query: Query
    tables: Mapping[str, Table] = field(default_factory=dict)
    windowed: bool = False
    """Whether the rows still have to be put into the windows of the grid."""

    @classmethod
    def of(cls, query: Query, alias: str, grid: Grid | None = None) -> "Relation":
        """One table, whose columns are those of the query."""
        return cls(query, {alias: Table({name: name for name in query.schema.names}, grid)})

    @property
    def grid(self) -> Grid | None:
        """The windows of all tables that are in some; of different windows, none."""
        grids = {table.grid for table in self.tables.values() if table.grid is not None}
        return next(iter(grids)) if len(grids) == 1 else None

    def placed(self, node: exp.Expr) -> "Relation":
        """With rows that are there during their windows.

        Raises:
            SqlError: a row may be in several windows.
        """
        if not self.windowed or (grid := self.grid) is None:
            return self
        if grid.size != grid.every or grid.origin:
            raise refused(
                node,
                "rows in hopping windows, or in windows with an offset, have to be grouped: GROUP "
                "BY window_start, window_end",
            )
        return replace(self, query=self.query.quantise(grid.size), windowed=False)

    def column(self, node: exp.Expr) -> Expression | None:
        """The column that a node names; None if it is no column.

        Raises:
            SqlError: there is none, or several.
        """
        if not isinstance(node, exp.Column):
            return None
        return col[self.name(node)]

    def name(self, node: exp.Column) -> str:
        """What the query calls a column."""
        found = self.search(node)
        if found is not None:
            return found
        if is_window_column(node):
            raise refused(
                node,
                f"{node.name} is the beginning or the end of each row's lifetime, not a column: "
                "select it as it is, group by it, or join two tables in the same windows by it",
            )
        meant = self._meant(node)
        if not meant:
            there = ", ".join(filter(None, self.tables))
            raise refused(node, f"no table is called {node.table} here; there is {there}")
        if any(found_name(node.this, dict.fromkeys(table.unmatched)) for table in meant):
            other = self.search(exp.Column(this=node.this)) is not None
            instead = "select the other side's, or join USING it" if other else "join USING it"
            raise refused(
                node,
                f"{node.sql()} is null in an outer join where its table has no partner, and the "
                f"join keeps the key once: {instead}",
            )
        there = ", ".join(dict.fromkeys(name for table in meant for name in table.columns))
        raise refused(node, f"there is no column {node.sql()}; there is {there}")

    def search(self, node: exp.Column) -> str | None:
        """What the query calls a column, or None where it is not there.

        Raises:
            SqlError: several tables have it.
        """
        found = {
            table.columns[name]
            for table in self._meant(node)
            if (name := found_name(node.this, table.columns)) is not None
        }
        if len(found) > 1:
            tables = " and ".join(self.tables)
            raise refused(node, f"{node.name} is ambiguous: say of which table, {tables}")
        return next(iter(found), None)

    def grid_of(self, node: exp.Column) -> Grid | None:
        """The windows whose beginning or end a column is, if it is one of these."""
        if not is_window_column(node) or self.search(node) is not None:
            return None
        return next((table.grid for table in self._meant(node) if table.grid is not None), None)

    def _meant(self, node: exp.Column) -> list[Table]:
        """The tables that a column may be of: none if it names one that is not here."""
        if not node.table:
            return list(self.tables.values())
        alias = found_name(node.args["table"], self.tables)
        return [] if alias is None else [self.tables[alias]]


def found_name(identifier: exp.Expr, names: Mapping[str, object]) -> str | None:
    """The name that an identifier means."""
    wanted = identifier.name
    if wanted in names or identifier.args.get("quoted"):
        return wanted if wanted in names else None
    alike = [name for name in names if name.casefold() == wanted.casefold()]
    return alike[0] if len(alike) == 1 else None


def is_window_column(node: exp.Expr) -> bool:
    """Whether a node names the beginning or the end of a window."""
    return isinstance(node, exp.Column) and node.name.lower() in WINDOW_COLUMNS
