"""Expressions of a statement as expressions of the algebra.

Theory
    What has one meaning in both is taken over. `/` alone has none, since the algebra divides whole
    numbers only, rounded down: `FLOOR(a / b)`. `%` has the sign of the dividend, as in SQL.

    >>> from lmerge_service.queries.expressions import col
    >>> from lmerge_service.queries.sql.parsing import parsed
    >>> column = lambda node: col[node.name] if isinstance(node, exp.Column) else None
    >>> tree = parsed("SELECT CASE WHEN delay BETWEEN 1 AND 15 THEN 'late' END FROM f").selects[0]
    >>> print(scalar(tree, column))
    when((col.delay >= 1) & (col.delay <= 15), 'late').otherwise(None)
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from sqlglot import exp

from lmerge_service.queries.expressions import (
    Expression,
    coalesce,
    floor_div,
    lit,
    mod,
    when,
)
from lmerge_service.queries.rows import Kind
from lmerge_service.queries.sql.parsing import at, refused

__all__ = ("Resolver", "conjunction", "conjuncts", "scalar")

Resolver: TypeAlias = Callable[[exp.Expr], Expression | None]
"""What a column, or an aggregate, is called; None if the expression is neither."""

_KINDS: Final = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), Kind.INT),
    **dict.fromkeys(("FLOAT", "DOUBLE"), Kind.FLOAT),
    **dict.fromkeys(("CHAR", "VARCHAR", "TEXT"), Kind.STR),
    "BOOLEAN": Kind.BOOL,
}
_NEAREST: Final = (
    "comparisons, AND, OR, NOT, IS NULL, BETWEEN, IN of values, + - *, %, FLOOR(a / b), CASE, "
    "COALESCE, NULLIF and CAST are; Python's udf() calls a function of yours"
)


def scalar(node: exp.Expr, resolve: Resolver) -> Expression:
    """The expression of a node.

    Raises:
        SqlError: there is none, or a column is not there.
    """
    with at(node):
        return _scalar(node, resolve)


def conjuncts(node: exp.Expr | None) -> list[exp.Expr]:
    """The conditions that are joined by AND, from left to right."""
    match node:
        case None:
            return []
        case exp.Paren():
            return conjuncts(node.this)
        case exp.And():
            return [*conjuncts(node.this), *conjuncts(node.expression)]
    return [node]


def conjunction(conditions: list[Expression]) -> Expression:
    """All of at least one condition."""
    whole = conditions[0]
    for each in conditions[1:]:
        whole = whole & each
    return whole


def _scalar(node: exp.Expr, resolve: Resolver) -> Expression:
    if (found := resolve(node)) is not None:
        return found
    if (constant := _constant(node)) is not None:
        return constant

    def of(part: exp.Expr) -> Expression:
        return scalar(part, resolve)

    match node:
        case exp.Paren():
            return of(node.this)
        case exp.Not():
            return ~of(node.this)
        case exp.Neg():
            return -of(node.this)
        case exp.Is() if isinstance(node.expression, exp.Null):
            return of(node.this).is_null()
        case exp.Between() if not node.args.get("symmetric"):
            value = of(node.this)
            return (value >= of(node.args["low"])) & (value <= of(node.args["high"]))
        case exp.In() if node.expressions:
            return _among(of(node.this), [of(each) for each in node.expressions])
        case exp.Floor() if isinstance(node.this, exp.Div) and not node.args.get("decimals"):
            return floor_div(of(node.this.this), of(node.this.expression))
        case exp.Coalesce():
            return coalesce(*map(of, (node.this, *node.expressions)))
        case exp.Nullif():
            return when(of(node.this) == of(node.expression), None).otherwise(of(node.this))
        case exp.Case():
            return _case(node, of)
        case exp.Cast():
            return of(node.this).cast(_kind(node))
        case exp.Predicate() if isinstance(node.args.get("expression"), exp.Null):
            raise refused(node, "nothing equals NULL, nor is more or less: use IS NULL")
        case exp.Binary():
            return _binary(node, of(node.this), of(node.expression))
    raise refused(node, f"{_called(node)} is not supported: {_NEAREST}")


def _binary(node: exp.Binary, left: Expression, right: Expression) -> Expression:
    match node:
        case exp.And():
            return left & right
        case exp.Or():
            return left | right
        case exp.EQ():
            return left == right
        case exp.NEQ():
            return left != right
        case exp.LT():
            return left < right
        case exp.LTE():
            return left <= right
        case exp.GT():
            return left > right
        case exp.GTE():
            return left >= right
        case exp.Add():
            return left + right
        case exp.Sub():
            return left - right
        case exp.Mul():
            return left * right
        case exp.Mod():
            return _remainder(left, right)
        case exp.Div():
            raise refused(node, "/ is not supported: FLOOR(a / b) divides ints and rounds down")
    raise refused(node, f"{_called(node)} is not supported: {_NEAREST}")


def _remainder(one: Expression, two: Expression) -> Expression:
    """The remainder with the sign of the dividend; `mod` has the divisor's."""
    floored = mod(one, two)
    turned = (floored != 0) & ((one < 0) != (two < 0))
    return when(turned, floored - two).otherwise(floored)


def _among(value: Expression, values: list[Expression]) -> Expression:
    whole = value == values[0]
    for each in values[1:]:
        whole = whole | (value == each)
    return whole


def _case(node: exp.Case, of: Callable[[exp.Expr], Expression]) -> Expression:
    compared = node.this
    branches = None
    for each in node.args["ifs"]:
        condition = of(each.this) if compared is None else of(compared) == of(each.this)
        value = of(each.args["true"])
        branches = (when if branches is None else branches.when)(condition, value)
    default = node.args.get("default")
    assert branches is not None  # the grammar wants one
    return branches.otherwise(None if default is None else of(default))


def _kind(node: exp.Cast) -> Kind:
    name = node.to.this.name
    if type(node) is not exp.Cast or name not in _KINDS or node.to.expressions:
        raise refused(node, f"{node.sql()} is not supported: CAST to BIGINT, DOUBLE or VARCHAR is")
    return _KINDS[name]


def _constant(node: exp.Expr) -> Expression | None:
    match node:
        case exp.Null():
            return lit(None)
        case exp.Boolean():
            return lit(bool(node.this))
        case exp.Literal() if node.is_string:
            return lit(str(node.this))
        case exp.Literal():
            return lit(_number(node))
        case exp.Neg() if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return lit(-_number(node.this))
    return None


def _number(node: exp.Literal) -> int | float:
    text = str(node.this)
    return int(text) if text.isdecimal() else float(text)


_WORDS: Final[dict[type[exp.Expr], str]] = {
    exp.Between: "BETWEEN SYMMETRIC",
    exp.DPipe: "||",
    exp.IgnoreNulls: "IGNORE NULLS",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
    exp.Window: "OVER",
}
"""What is called otherwise in SQL than in a tree."""


def _called(node: exp.Expr) -> str:
    """What a user calls it."""
    if isinstance(node, exp.Anonymous):
        return f"{node.name.upper()}()"
    if word := _WORDS.get(type(node)):
        return word
    if isinstance(node, exp.AggFunc):
        return f"{node.sql_name()}() within this"
    return f"{node.sql_name()}()" if isinstance(node, exp.Func) else type(node).__name__.upper()
