"""Statements as queries: SELECT, and several of them by UNION, INTERSECT and EXCEPT.

Theory
    A statement is translated clause by clause, in the order in which SQL evaluates them, into the
    calls of the fluent API (`queries.plan`) that a person would write; so both have one
    fingerprint. What has no such call is refused, with its place and the nearest that has one. A
    table is what is valid at a time: a fact is, for the instant of its time. Joins, subqueries and
    GROUP BY without windows therefore relate rows that are valid at the same time.

    >>> from lmerge_service.queries.expressions import col
    >>> from lmerge_service.queries.plan import count, facts, tumbling
    >>> flights = facts("flights", time="time", fields={"origin": str, "delay": int})
    >>> found = sql('''
    ...     SELECT origin, COUNT(*) AS late
    ...     FROM TABLE(TUMBLE(TABLE flights, DESCRIPTOR(time), INTERVAL '1' HOUR))
    ...     WHERE delay > 15
    ...     GROUP BY window_start, window_end, origin
    ... ''', flights=flights)
    >>> print(found)
    windows tumbling(3600000) by origin: late=count()
    └─ where col.delay > 15
       └─ facts flights (origin: str, delay: int)
    >>> fluent = flights.where(col.delay > 15).windows(tumbling(3_600_000)).by("origin")
    >>> found == fluent.aggregate(late=count())
    True
    >>> sql("SELECT orign FROM flights", flights=flights)
    Traceback (most recent call last):
    lmerge_service.queries.sql.parsing.SqlError: SQL, line 1, column 8: there is no column orign; \
there is origin, delay
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from sqlglot import exp

from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.plan import Query
from lmerge_service.queries.sql.aggregates import aggregations_in
from lmerge_service.queries.sql.grouping import grouped
from lmerge_service.queries.sql.joins import exists, is_in, join
from lmerge_service.queries.sql.parsing import at, only, parsed, refused
from lmerge_service.queries.sql.relations import Relation, Table, found_name
from lmerge_service.queries.sql.scalars import conjunction, conjuncts, scalar
from lmerge_service.queries.sql.selecting import Selected, selected
from lmerge_service.queries.sql.windows import UNITS, window_table

__all__ = ("query_over", "sql")


def sql(text: str, /, *, unit: str = "ms", **tables: Query) -> Query:
    """The query that a statement means over tables, which are queries by their names.

    `unit` is that of the facts' times, for INTERVAL: `s`, `ms`, `us` or `ns`.

    Raises:
        ConfigurationError: the statement is not supported, or not right; the message has the place
            in the text, and the nearest that is.
    """
    return query_over(text, tables, unit=unit)


def query_over(text: str, tables: Mapping[str, Query], *, unit: str = "ms") -> Query:
    """As `sql`, over tables of any names."""
    if unit not in UNITS:
        raise ConfigurationError(f"there is no unit of time {unit!r}; there is {', '.join(UNITS)}")
    known = {name: Selected(query) for name, query in tables.items()}
    return _Statement(unit).translated(parsed(text), known).query


Tables: TypeAlias = Mapping[str, Selected]

_SELECT: Final = "SELECT … FROM … WHERE … GROUP BY … HAVING is"
_SET_OPERATIONS: Final = {
    (exp.Union, False): lambda one, two: one.union(two),
    (exp.Union, True): lambda one, two: one.union(two).distinct(),
    (exp.Except, False): Query.except_all,
    (exp.Except, True): Query.except_,
    (exp.Intersect, False): Query.intersect_all,
    (exp.Intersect, True): Query.intersect,
}


@dataclass(frozen=True, slots=True)
class _Statement:
    unit: str

    def translated(self, node: exp.Expr, tables: Tables) -> Selected:
        """A statement, or a subquery, over tables."""
        match node:
            case exp.Subquery():
                only(node, "this", "alias", nearest="a subquery in parentheses is")
                return self.translated(node.this, tables)
            case exp.SetOperation():
                return self._set_operation(node, tables)
            case exp.Select():
                return self._select(node, tables)
        raise refused(node, f"{node.sql()} is no query: {_SELECT}")

    def _set_operation(self, node: exp.SetOperation, tables: Tables) -> Selected:
        only(node, "this", "expression", "distinct", "with_", nearest="UNION [ALL] of SELECTs is")
        tables = self._with(node, tables)
        one = self.translated(node.this, tables).query
        two = self.translated(node.expression, tables).query
        names, others = one.schema.names, two.schema.names
        if len(names) != len(others):
            raise refused(node.expression, f"{two.schema} are not as many columns as {one.schema}")
        with at(node.expression):
            if names != others:
                two = two.rename(**dict(zip(names, others, strict=True)))
            return Selected(_SET_OPERATIONS[type(node), bool(node.args.get("distinct"))](one, two))

    def _with(self, node: exp.Query, tables: Tables) -> Tables:
        """The tables, and those that WITH names."""
        if (clause := node.args.get("with_")) is None:
            return tables
        only(clause, "expressions", nearest="WITH name AS (SELECT …) is")
        found = dict(tables)
        for each in clause.expressions:
            if each.args["alias"].columns:
                raise refused(each, "columns behind a name of WITH are not supported: use AS")
            found[each.alias] = self.translated(each.this, found)
        return found

    def _select(self, node: exp.Select, tables: Tables) -> Selected:
        only(
            node,
            *("expressions", "from_", "joins", "where", "group", "having", "distinct", "with_"),
            nearest=f"{_SELECT}; Python's top() finds the best rows",
        )
        tables = self._with(node, tables)
        relation = self._where(node, self._from(node, tables), tables)
        having = node.args.get("having")
        if node.args.get("group") or having or any(map(aggregations_in, node.expressions)):
            found = grouped(node, relation)
        else:
            found = selected(node, relation.placed(node))
        if distinct := node.args.get("distinct"):
            only(distinct, nearest="SELECT DISTINCT, without ON, is")
            return Selected(found.query.distinct(), found.grid)
        return found

    def _from(self, node: exp.Select, tables: Tables) -> Relation:
        if (clause := node.args.get("from_")) is None:
            raise refused(node, "name a table: SELECT … FROM table")
        relation = self._table(clause.this, tables)
        for each in node.args.get("joins") or ():
            relation = join(relation, each, self._table(each.this, tables))
        return relation

    def _table(self, node: exp.Expr, tables: Tables) -> Relation:
        """What one table behind FROM or JOIN is."""
        if (alias := node.args.get("alias")) and alias.args.get("columns"):
            raise refused(node, "columns behind a table's name are not supported: use AS in SELECT")
        if isinstance(node, exp.Subquery):
            found = self.translated(node, tables)
            return Relation.of(found.query, node.alias or "", found.grid)
        only(node, "this", "alias", nearest="a table's name, TUMBLE, HOP or a subquery is")
        if (call := window_table(node.this, self.unit)) is None:
            found = self._named(node.this, tables)
            return Relation.of(found.query, node.alias or node.name, found.grid)
        query = call.checked(self._named(call.table.this, tables).query)
        alias = node.alias or call.table.name
        columns = {name: name for name in query.schema.names}
        return Relation(query, {alias: Table(columns, call.grid)}, windowed=True)

    @staticmethod
    def _named(identifier: exp.Expr, tables: Tables) -> Selected:
        if (name := found_name(identifier, tables)) is None:
            there = ", ".join(tables) or "none"
            raise refused(identifier, f"there is no table {identifier.name}; there is {there}")
        return tables[name]

    def _where(self, node: exp.Select, relation: Relation, tables: Tables) -> Relation:
        clause = node.args.get("where")
        conditions = conjuncts(None if clause is None else clause.this)
        plain = [each for each in conditions if not _subquery(each)]
        if plain:
            with at(clause or node):
                found = conjunction([scalar(each, relation.column) for each in plain])
                query = relation.query.where(found)
                relation = Relation(query, relation.tables, windowed=relation.windowed)
        for each in conditions:
            if _subquery(each):
                relation = self._related(each, relation, tables)
        return relation

    def _related(self, node: exp.Expr, relation: Relation, tables: Tables) -> Relation:
        """The rows for which a condition with a subquery is true."""
        anti = isinstance(node, exp.Not)
        inner = node.this if anti else node
        while isinstance(inner, exp.Paren):
            inner = inner.this
        if isinstance(inner, exp.Exists) and isinstance(inner.this, exp.Select):
            only(
                inner.this,
                *("expressions", "from_", "joins", "where"),
                nearest="EXISTS (SELECT … FROM … WHERE …) is",
            )
            return exists(relation, inner, self._from(inner.this, tables), anti=anti)
        if isinstance(inner, exp.In) and inner.args.get("query") and not anti:
            return is_in(relation, inner, self.translated(inner.args["query"], tables).query)
        raise refused(
            node,
            "this subquery is not supported: EXISTS, NOT EXISTS and IN are, joined to other "
            "conditions by AND (NOT IN is never true when the subquery has a null: use NOT EXISTS)",
        )


def _subquery(node: exp.Expr) -> bool:
    return node.find(exp.Query) is not None
