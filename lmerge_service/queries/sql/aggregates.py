"""Aggregates of a statement as aggregations of the algebra.

    >>> from lmerge_service.queries.expressions import col
    >>> from lmerge_service.queries.sql.parsing import parsed
    >>> column = lambda node: col[node.name] if isinstance(node, exp.Column) else None
    >>> for each in parsed("SELECT COUNT(*), SUM(x) FILTER (WHERE y > 1) FROM t").selects:
    ...     print(aggregation(each, column))
    Aggregation(function='count', of=None, part='')
    Aggregation(function='sum', of=When(branches=((Binary(op='>', left=Name(name='y'), \
right=Literal(value=1, kind=<Kind.INT: 'int'>)), Name(name='x')),), otherwise=Literal(value=None, \
kind=None)), part='')
"""

from typing import Final

from sqlglot import exp

from lmerge_service.queries import plan
from lmerge_service.queries.expressions import Expression, when
from lmerge_service.queries.logical import Aggregation
from lmerge_service.queries.sql.parsing import refused
from lmerge_service.queries.sql.scalars import Resolver, scalar

__all__ = ("aggregation", "aggregations_in")

_OF_A_VALUE: Final = {
    exp.Sum: plan.sum_,
    exp.Avg: plan.average,
    exp.Min: plan.min_,
    exp.Max: plan.max_,
    exp.Median: plan.median,
    exp.FirstValue: plan.first,
    exp.LastValue: plan.last,
}
_NEAREST: Final = (
    "COUNT, COUNT(DISTINCT x), SUM, AVG, MIN, MAX, MEDIAN, FIRST_VALUE, LAST_VALUE and "
    "PERCENTILE_CONT are"
)


def aggregation(node: exp.Expr, resolve: Resolver) -> Aggregation | None:
    """The aggregation that a node is; None if it is none.

    Raises:
        SqlError: there is no such aggregation.
    """
    match node:
        case exp.Filter():
            return _of(node.this, resolve, scalar(node.expression.this, resolve))
        case exp.AggFunc() | exp.WithinGroup():
            return _of(node, resolve, None)
    return None


def aggregations_in(node: exp.Expr) -> list[exp.Expr]:
    """The outermost aggregates below a node, and itself."""
    if isinstance(node, exp.AggFunc | exp.Filter | exp.WithinGroup):
        return [node]
    if isinstance(node, exp.Query):
        return []
    return [found for child in node.iter_expressions() for found in aggregations_in(child)]


def _of(node: exp.Expr, resolve: Resolver, where: Expression | None) -> Aggregation:
    def value(of: exp.Expr) -> Expression:
        found = scalar(of, resolve)
        return found if where is None else when(where, found).otherwise(None)

    match node:
        case exp.Count() if isinstance(node.this, exp.Star):
            if where is None:
                return plan.count()
            return plan.count(when(where, 1).otherwise(None))
        case exp.Count() if isinstance(node.this, exp.Distinct):
            if len(node.this.expressions) == 1:
                return plan.distinct_count(value(node.this.expressions[0]))
        case exp.Count() if node.this is not None and not node.expressions:
            return plan.count(value(node.this))
        case exp.WithinGroup(this=exp.PercentileCont() as called, expression=exp.Order() as order):
            ordered, *others = order.expressions
            descends = others or ordered.args.get("desc")
            if not descends and isinstance(called.this, exp.Literal):
                return plan.percentile(value(ordered.this), str(called.this.this))
        case exp.AggFunc() if type(node) in _OF_A_VALUE and _has_one_value(node):
            return _OF_A_VALUE[type(node)](value(node.this))
    raise refused(node, f"{node.sql()} is not supported: {_NEAREST}")


def _has_one_value(node: exp.AggFunc) -> bool:
    """Whether it is of one expression, as it stands: not of DISTINCT ones, nor MAX(a, b)."""
    return not isinstance(node.this, exp.Distinct) and not node.expressions
