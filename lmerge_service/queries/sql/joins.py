"""JOIN, and the subqueries of WHERE that are semi-joins: EXISTS, NOT EXISTS and IN.

Theory
    A condition is taken apart at its ANDs. Equalities of a column of each side become the join's
    key; an equality of windows holds for rows that are there at the same time, if both sides are in
    the same windows; what is left is a condition over pairs. EXISTS with such equalities between
    the subquery and what is around it is a semi-join, NOT EXISTS an anti-join.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from sqlglot import exp

from lmerge_service.queries.expressions import Expression
from lmerge_service.queries.plan import Query
from lmerge_service.queries.sql.parsing import at, only, refused
from lmerge_service.queries.sql.relations import Relation, Table, found_name, is_window_column
from lmerge_service.queries.sql.scalars import conjunction, conjuncts, scalar

__all__ = ("exists", "is_in", "join")

_EQUALITY: Final = "ON a.x = b.x, for one column of each side at least"


@dataclass(slots=True)
class _Condition:
    """A condition over two sides, taken apart."""

    keys: dict[str, str] = field(default_factory=dict)
    """Column of the left side → column of the right."""
    left: list[exp.Expr] = field(default_factory=list)
    right: list[exp.Expr] = field(default_factory=list)
    both: list[exp.Expr] = field(default_factory=list)

    def equal(self, node: exp.Expr, left: str, right: str) -> None:
        """Takes an equality of columns as one of the key, unless the left one has another."""
        if self.keys.setdefault(left, right) != right:
            self.both.append(node)


def join(left: Relation, node: exp.Join, right: Relation) -> Relation:
    """Both relations joined, as a JOIN clause has it.

    Raises:
        SqlError: the clause is not one of the algebra's joins.
    """
    only(node, "this", "on", "using", "side", "kind", nearest="JOIN … ON, or USING, is")
    kind = _kind(node)
    if kind not in _JOINS:
        raise refused(
            node.this,
            f"{kind} JOIN is not supported: {', '.join(_JOINS)[2:]} JOIN are, and WHERE "
            "[NOT] EXISTS (SELECT …)",
        )
    left, right = left.placed(node.this), right.placed(node.this)
    if twice := next((alias for alias in right.tables if alias in left.tables), None):
        raise refused(node.this, f"two tables are called {twice}: give one another name by AS")
    condition = _taken_apart(_conditions(node), left, right)
    using = [exp.Column(this=name) for name in node.args.get("using") or ()]
    for column in using:
        condition.keys[left.name(column)] = right.name(column)
    if not condition.keys:
        raise refused(node.this, f"a join needs an equality: {_EQUALITY}")
    with at(node.this):
        return _joined(left, right, condition, kind, [left.name(each) for each in using])


_JOINS: Final = {
    "": Query.join,
    "INNER": Query.join,
    "LEFT": Query.left_join,
    "RIGHT": Query.right_join,
    "FULL": Query.full_join,
}


def _kind(node: exp.Join) -> str:
    """Its words before JOIN, but OUTER: a side, and what a LEFT SEMI JOIN has besides."""
    words = (str(node.args.get(each) or "").upper() for each in ("side", "kind"))
    return " ".join(word for word in words if word and word != "OUTER")


def _conditions(node: exp.Join) -> list[exp.Expr]:
    return conjuncts(node.args.get("on"))


def _joined(
    left: Relation, right: Relation, condition: _Condition, kind: str, using: list[str]
) -> Relation:
    shared = {one for one, other in condition.keys.items() if one == other}
    theirs = _apart(right, left, kept=frozenset(condition.keys.values()), shared=shared)
    both = Relation(left.query, {**left.tables, **theirs.tables})
    rest = [scalar(each, both.column) for each in _rest(condition)]
    query = _JOINS[kind](
        left.query, theirs.query, condition.keys, where=conjunction(rest) if rest else None
    )
    missing = {"": (), "INNER": (), "LEFT": (theirs,), "RIGHT": (left,), "FULL": (left, theirs)}
    tables = dict(both.tables)
    for side in missing[kind]:
        tables |= {alias: _without(table, shared) for alias, table in side.tables.items()}
    if using:  # in SQL a name of USING alone is of neither side, but of the one that is there
        tables |= {"": Table({name: name for name in using})}
    return Relation(query, tables)


def _without(table: Table, shared: set[str]) -> Table:
    """A table without the columns that are null where it has no partner, but the join's are not."""
    kept = {called: name for called, name in table.columns.items() if name not in shared}
    return Table(kept, table.grid, table.unmatched | (table.columns.keys() - kept.keys()))


def _apart(right: Relation, left: Relation, *, kept: frozenset[str], shared: set[str]) -> Relation:
    """The right side, with a prefix to its columns but `kept` if one has a name of the left's."""
    names = right.query.schema.names
    if not (set(left.query.schema.names) & set(names)) - shared:
        return right
    prefix = f"{next(iter(right.tables))}_"
    called = {name: name if name in kept else prefix + name for name in names}
    tables = {
        alias: replace(table, columns={each: called[name] for each, name in table.columns.items()})
        for alias, table in right.tables.items()
    }
    return Relation(right.query.prefix(prefix, *kept), tables)


def _rest(condition: _Condition) -> list[exp.Expr]:
    return [*condition.left, *condition.right, *condition.both]


def _taken_apart(conditions: list[exp.Expr], left: Relation, right: Relation) -> _Condition:
    found = _Condition()
    for each in conditions:
        if (pair := _pair(each, left, right)) is not None:
            one, other = pair
            if not (is_window_column(one) and _same_windows(each, one, other, left, right)):
                found.equal(each, left.name(one), right.name(other))
            continue
        sides = {_side(column, left, right) for column in each.find_all(exp.Column)}
        place = {frozenset({"left"}): found.left, frozenset({"right"}): found.right}
        place.get(frozenset(sides), found.both).append(each)
    return found


def _pair(node: exp.Expr, left: Relation, right: Relation) -> tuple[exp.Column, exp.Column] | None:
    """The columns of an equality of both sides, the left side's first."""
    if (pair := _equal_columns(node)) is None:
        return None
    one, other = pair
    sides = _side(one, left, right), _side(other, left, right)
    if sides == ("left", "right"):
        return one, other
    return (other, one) if sides == ("right", "left") else None


def _equal_columns(node: exp.Expr) -> tuple[exp.Column, exp.Column] | None:
    one, other = node.this, node.args.get("expression")
    if isinstance(node, exp.EQ) and isinstance(one, exp.Column) and isinstance(other, exp.Column):
        return one, other
    return None


def _side(column: exp.Column, left: Relation, right: Relation) -> str:
    """Of which side a column is.

    Raises:
        SqlError: of both or of neither.
    """
    found = [
        side
        for side, relation in (("left", left), ("right", right))
        if relation.search(column) is not None or relation.grid_of(column) is not None
    ]
    if len(found) == 2:
        tables = " or ".join((*left.tables, *right.tables))
        raise refused(column, f"{column.name} is ambiguous: say of which table, {tables}")
    if not found:
        Relation(left.query, {**left.tables, **right.tables}).name(column)
    return found[0]


def _same_windows(
    node: exp.Expr, one: exp.Column, other: exp.Column, left: Relation, right: Relation
) -> bool:
    """Whether an equality is one of windows, which then are the same.

    Raises:
        SqlError: they are not.
    """
    grids = left.grid_of(one), right.grid_of(other)
    if grids == (None, None):
        return False
    if grids[0] != grids[1] or one.name.lower() != other.name.lower():
        raise refused(node, "only rows in the same windows are joined by their windows")
    return True


# Subqueries of WHERE


def exists(outer: Relation, node: exp.Exists, inner: Relation, *, anti: bool) -> Relation:
    """The outer rows for which the subquery has (or has no) row.

    Raises:
        SqlError: no equality connects them.
    """
    select = node.this
    outer, inner = outer.placed(node), inner.placed(node)
    condition = _Condition()
    shadowed = _Shadowed(inner, outer)
    for each in conjuncts(select.args["where"].this if select.args.get("where") else None):
        shadowed.sort(each, condition)
    if not condition.keys:
        raise refused(node, f"a subquery needs an equality with what is around it: {_WITH_OUTER}")
    with at(node):
        if condition.right:
            inner_only = [scalar(each, inner.column) for each in condition.right]
            inner = Relation(inner.query.where(conjunction(inner_only)), inner.tables)
        if condition.both:
            kept = frozenset(condition.keys.values())
            shared = {one for one, other in condition.keys.items() if one == other}
            inner = _apart(inner, outer, kept=kept, shared=shared)
        names = _Shadowed(inner, outer)
        rest = [scalar(each, names.column) for each in condition.both]
        where = conjunction(rest) if rest else None
        made = outer.query.anti_join if anti else outer.query.semi_join
        return _with(outer, made(inner.query, condition.keys, where=where))


_WITH_OUTER: Final = "WHERE inner.x = outer.x"


class _Shadowed:
    """Names within a subquery: its own tables' first, then those around it."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, inner: Relation, outer: Relation) -> None:
        self._inner = inner
        self._outer = outer

    def sort(self, node: exp.Expr, condition: _Condition) -> None:
        """Puts a condition where it belongs."""
        if subquery := node.find(exp.Query):
            raise refused(subquery, "a subquery within a subquery's WHERE is not supported: join")
        if (pair := _equal_columns(node)) and self._own(pair[0]) != self._own(pair[1]):
            mine, theirs = reversed(pair) if self._own(pair[0]) else pair
            if not _same_windows(node, mine, theirs, self._outer, self._inner):
                condition.equal(node, self._outer.name(mine), self._inner.name(theirs))
            return
        own = {self._own(column) for column in node.find_all(exp.Column)}
        (condition.right if own == {True} else condition.both).append(node)

    def column(self, node: exp.Expr) -> Expression | None:
        """The column that a node names, in either."""
        if isinstance(node, exp.Column) and self._own(node):
            return self._inner.column(node)
        return self._outer.column(node)

    def _own(self, node: exp.Column) -> bool:
        if node.table and found_name(node.args["table"], self._inner.tables) is None:
            return False
        return self._inner.search(node) is not None or self._inner.grid_of(node) is not None


def is_in(outer: Relation, node: exp.In, inner: Query) -> Relation:
    """The outer rows whose column is in the one column of a subquery.

    Raises:
        SqlError: the value is no column, or the subquery has several.
    """
    if not isinstance(node.this, exp.Column):
        raise refused(node, "IN a subquery is for a column: compute it in a subquery in FROM")
    if len(inner.schema.names) != 1:
        raise refused(node, f"IN wants a subquery of one column, not {inner.schema}")
    outer = outer.placed(node)
    with at(node):
        key = {outer.name(node.this): inner.schema.names[0]}
        return _with(outer, outer.query.semi_join(inner, key))


def _with(relation: Relation, query: Query) -> Relation:
    return Relation(query, relation.tables, windowed=relation.windowed)
