r"""Trees of expressions as Spark SQL text, which means exactly what the compiled Python means.

Theory
    SQL's logic is three-valued as ours is, and its strings compare by code points. Elsewhere the
    two differ, so that the text is longer than one would write by hand:

    | in Python | in Spark | so the text |
    |---|---|---|
    | a sum beyond int64 is null | is an error | uses `try_add` and its like |
    | each sum within a sum may be null | constants are moved together | keeps it by `(… | 0)` |
    | a sum beyond the floats is null | is infinite | filters what is no number |
    | `//` and `%` round down | `div` and `%` round towards zero | corrects them |
    | ints and floats compare exactly | as floats | compares rounded, then what was rounded |
    | a cast of text wants a plain number | takes more | cuts the number out by a pattern |

    What is needed twice is written once, as the argument of a lambda function: what is repeated
    doubles with each level, as it does where Spark repeats it (`nullif` and `between` in a `CASE`).

    >>> schema = Schema.of({"origin": str, "delay": int})
    >>> late = Binary(">", Name("delay"), Literal(15, Kind.INT))
    >>> sql_text(late, schema)
    '(`delay` > 15L)'
    >>> sql_text(Binary("+", Name("delay"), Literal(1, Kind.INT)), schema)
    'try_add(`delay`, 1L)'

Invariants
    S1  Over rows of the schema, the text's value is that of `compiling.evaluation`.
    S2  Names and constants are quoted, so nothing of a plan is ever run as SQL.

Cost
    The text is as long as the tree. Spark compiles all of it but the lambda functions: `floor_div`,
    `mod`, arithmetic of floats, and comparisons of ints with floats that are no constants.
"""

import re
from collections.abc import Mapping
from typing import Final

from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.rows import Kind, Schema
from lmerge_service.queries.trees import (
    COMPARISONS,
    Binary,
    Call,
    Cast,
    Coalesce,
    IsNull,
    Kinds,
    Literal,
    Name,
    Not,
    Tree,
    When,
    children,
)

__all__ = ("COLUMN_TYPES", "is_sql", "quoted", "sql_text")

COLUMN_TYPES: Final = {
    Kind.BOOL: "BOOLEAN",
    Kind.INT: "BIGINT",
    Kind.FLOAT: "DOUBLE",
    Kind.STR: "STRING",
}
"""What Spark calls the columns of each kind."""


def is_sql(tree: Tree) -> bool:
    """Whether a tree has a text: it calls no function of the user's."""
    return not isinstance(tree, Call) and all(map(is_sql, children(tree)))


def sql_text(tree: Tree, schema: Schema, columns: Mapping[str, str] | None = None) -> str:
    """The text of a tree; columns are called by their names, or as `columns` calls them.

    Raises:
        ConfigurationError: a column isn't there, kinds don't fit, or it calls a user's function.
    """
    return _Writer(schema, tree, columns or {}).text(tree)


def quoted(name: str) -> str:
    """A column's name in a text."""
    return "`" + name.replace("`", "``") + "`"


_ARITHMETIC: Final = {"+": "try_add", "-": "try_subtract", "*": "try_multiply"}
_SYMBOLS: Final = {"==": "=", "!=": "<>"}
_EXACT: Final = 2**53
"""Ints up to here are floats."""
_INT: Final = r"^([+-]?[0-9]{1,40})\z"
_FLOAT: Final = r"^([+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?)\z"
_TWO_TO_63: Final = "9223372036854775808D"
_LARGEST: Final = "1.7976931348623157e308D"

# Of x and y, ints; the remainder's sign is the dividend's, in Python the divisor's.
_REMAINDER: Final = "try_mod(x, y)"
_TURNED: Final = f"({_REMAINDER} <> 0L AND ({_REMAINDER} < 0L) <> (y < 0L))"
_MOD: Final = f"CASE WHEN {_TURNED} THEN {_REMAINDER} + y ELSE {_REMAINDER} END"
_FLOOR_DIV: Final = (
    "CASE WHEN y = 0L THEN NULL WHEN y = -1L THEN try_subtract(0L, x) "
    f"WHEN {_TURNED} THEN x div y - 1L ELSE x div y END"
)
# Of x, an int, and y, a float: -1, 0 or 1. Rounding keeps the order, so only what is equal when
# rounded is compared again, as ints; 2**63 alone is none.
_COMPARED: Final = (
    "CASE WHEN CAST(x AS DOUBLE) < y THEN -1 WHEN CAST(x AS DOUBLE) > y THEN 1 "
    f"WHEN x IS NULL THEN NULL WHEN y = {_TWO_TO_63} THEN -1 WHEN x < CAST(y AS BIGINT) THEN -1 "
    "WHEN x > CAST(y AS BIGINT) THEN 1 WHEN x = CAST(y AS BIGINT) THEN 0 END"
)
_TURNED_ROUND: Final = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _both(one: str, two: str, body: str) -> str:
    """The value of `body`, in which x and y are the two values."""
    return f"get(zip_with(array({one}), array({two}), (x, y) -> {body}), 0)"


class _Writer:
    def __init__(self, schema: Schema, whole: Tree, columns: Mapping[str, str]) -> None:
        self._columns = columns
        self._kinds = Kinds(schema, whole)
        self._whole = whole

    def text(self, tree: Tree) -> str:
        """The value's text, of its own kind."""
        kind = self._kinds.of(tree)
        match tree:
            case Name(name):
                return quoted(self._columns.get(name, name))
            case Literal(value):
                return _literal(value)
            case Not(of):
                return f"(NOT {self._as(of, Kind.BOOL)})"
            case IsNull(of):
                return f"({self._as(of, Kind.BOOL)} IS NULL)"
            case Binary("&" | "|" as op, left, right):
                word = "AND" if op == "&" else "OR"
                return f"({self._as(left, Kind.BOOL)} {word} {self._as(right, Kind.BOOL)})"
            case Binary(op, left, right) if op in COMPARISONS:
                return self._comparison(op, left, right)
            case Binary("floor_div" | "mod" as op, left, right):
                one, two = self._as(left, Kind.INT), self._as(right, Kind.INT)
                return _both(one, two, _FLOOR_DIV if op == "floor_div" else _MOD)
            case Binary(op, left, right):
                if kind is Kind.FLOAT:
                    both = ", ".join(self._as(side, kind) for side in (left, right))
                    return _finite(f"{_ARITHMETIC[op]}({both})")
                both = ", ".join(self._term(op, side) for side in (left, right))
                return f"{_ARITHMETIC[op]}({both})"
            case Coalesce(args):
                return f"coalesce({', '.join(self._as(arg, kind) for arg in args)})"
            case When(branches, otherwise):
                whens = "".join(
                    f" WHEN {self._as(c, Kind.BOOL)} THEN {self._as(v, kind)}" for c, v in branches
                )
                return f"CASE{whens} ELSE {self._as(otherwise, kind)} END"
            case Cast(of, to):
                return self._cast(of, to)
            case Call(function):
                raise ConfigurationError(
                    f"{self._whole}: {function} is a function of Python and has no SQL"
                )
        raise AssertionError(tree)

    def _term(self, op: str, tree: Tree) -> str:
        """A side of whole-number arithmetic, such that Spark computes it first as it stands."""
        text = self._as(tree, Kind.INT)
        return f"({text} | 0L)" if isinstance(tree, Binary) and tree.op == op else text

    def _as(self, tree: Tree, kind: Kind | None) -> str:
        """The text where a value of that kind is wanted: null alone, and an int for a float."""
        given = self._kinds.of(tree)
        if given is None:
            return f"CAST({self.text(tree)} AS {COLUMN_TYPES[kind or Kind.BOOL]})"
        if kind is Kind.FLOAT and given is Kind.INT:
            return _real(self.text(tree), tree)
        return self.text(tree)

    def _comparison(self, op: str, left: Tree, right: Tree) -> str:
        kinds = self._kinds.of(left), self._kinds.of(right)
        if kinds == (Kind.FLOAT, Kind.INT):
            left, right, op = right, left, _TURNED_ROUND[op]
        elif kinds != (Kind.INT, Kind.FLOAT):
            common = kinds[0] or kinds[1]
            return f"({self._as(left, common)} {_symbol(op)} {self._as(right, common)})"
        one, two = self.text(left), self.text(right)
        if _is_small(left) or _is_small(right):
            return f"({_real(one, left)} {_symbol(op)} {two})"
        return f"({_both(one, two, _COMPARED)} {_symbol(op)} 0)"

    def _cast(self, of: Tree, kind: Kind) -> str:
        match self._kinds.of(of), kind:
            case (None, _):
                return self._as(of, kind)
            case (Kind.INT, Kind.FLOAT):
                return _real(self.text(of), of)
            case (Kind.FLOAT, Kind.INT):  # Spark takes 2**63 for the greatest int
                below = f"get(filter(array({self.text(of)}), x -> x < {_TWO_TO_63}), 0)"
                return f"try_cast({below} AS BIGINT)"
            case (Kind.STR, Kind.INT):
                return f"try_cast({_part(self.text(of), _INT)} AS BIGINT)"
            case (Kind.STR, Kind.FLOAT):
                return _finite(f"try_cast({_part(self.text(of), _FLOAT)} AS DOUBLE)")
            case (Kind.INT | Kind.BOOL, Kind.STR):
                return f"CAST({self.text(of)} AS STRING)"
        return self.text(of)


def _symbol(op: str) -> str:
    return _SYMBOLS.get(op, op)


def _is_small(tree: Tree) -> bool:
    """Whether it is a constant beside which rounding an int to a float changes no comparison: all
    ints that change are further from zero."""
    return isinstance(tree, Literal) and tree.value is not None and abs(float(tree.value)) < _EXACT


def _real(text: str, tree: Tree) -> str:
    if isinstance(tree, Literal) and isinstance(tree.value, int):
        return _literal(float(tree.value))
    return f"CAST({text} AS DOUBLE)"


def _finite(text: str) -> str:
    return f"get(filter(array({text}), x -> abs(x) <= {_LARGEST}), 0)"


def _part(text: str, pattern: str) -> str:
    """What the first group of a pattern matches, or the empty text."""
    return f"regexp_extract({text}, {_literal(pattern)}, 1)"


def _literal(value: bool | int | float | str | None) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return f"{value}L" if value >= 0 else f"({value}L)"
        case float():
            return f"{value!r}D" if value >= 0 else f"({value!r}D)"
    return f"'{_special(_escaped, value)}'"


_special: Final = re.compile(r"[\x00-\x1f\x7f\\'\"$]").sub
"""What would end a text, begin an escape, or be taken for a variable."""


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found.group()):04x}"
