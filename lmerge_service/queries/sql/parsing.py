"""SQL text to a syntax tree, by sqlglot; what is refused, with its place in the text.

Theory
    The dialect is RisingWave's, which is Postgres' with the windows TUMBLE and HOP; besides,
    identifiers may stand in backticks, and `TABLE` before a table, as Flink has them.

    >>> parsed("SELECT origin FROM flights").sql()
    'SELECT origin FROM flights'
    >>> parsed("SELECT origin FORM flights")
    Traceback (most recent call last):
    lmerge_service.queries.sql.parsing.SqlError: SQL, line 1, column 20: 'flights' is not expected \
here
    >>> parsed("DELETE FROM flights")
    Traceback (most recent call last):
    lmerge_service.queries.sql.parsing.SqlError: SQL, line 1, column 1: a query is one SELECT, or \
several by UNION, INTERSECT and EXCEPT
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

from sqlglot import ErrorLevel, exp
from sqlglot.dialects.risingwave import RisingWave
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from lmerge_service.errors import ConfigurationError

__all__ = ("SqlError", "at", "only", "parsed", "refused")

_STATEMENT: Final = "a query is one SELECT, or several by UNION, INTERSECT and EXCEPT"
_NO_QUERY: Final = f"SQL, line 1, column 1: {_STATEMENT}"
_LONGEST: Final = 100_000
"""Characters of a statement; nobody writes more, and parsing recurses."""


class SqlError(ConfigurationError):
    """A statement, or a part of it, that means no query; the message has its place."""


class _Streaming(RisingWave):
    class Tokenizer(RisingWave.Tokenizer):
        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ['"', "`"]


def parsed(text: str) -> exp.Query:
    """The tree of a statement.

    Raises:
        SqlError: it is none, or not a query.
    """
    if len(text) > _LONGEST:
        raise SqlError(f"SQL: the statement has {len(text):,} characters, over {_LONGEST:,}")
    dialect = _Streaming()
    try:
        tokens = list(_without_table(dialect.tokenize(text)))
        if not tokens or tokens[0].token_type not in _BEGINNINGS:
            raise SqlError(_NO_QUERY)
        trees = dialect.parser(error_level=ErrorLevel.IMMEDIATE).parse(tokens, text)
    except TokenError as error:
        raise SqlError(f"{_unclosed(text, error)}: a quote or a comment is not closed") from None
    except ParseError as error:
        raise _unexpected(error) from None
    except RecursionError:
        raise SqlError("SQL: the statement is nested too deeply") from None
    found = [tree for tree in trees if tree is not None]
    for each in found[1:]:
        raise refused(each, f"another statement: {_STATEMENT}")
    if not found or not isinstance(found[0], exp.Query):
        raise SqlError(_NO_QUERY)
    return found[0]


_BEGINNINGS: Final = (TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN)


def _without_table(tokens: list[Token]) -> Iterator[Token]:
    """All tokens but the TABLE before a table's name, which adds nothing."""
    for number, token in enumerate(tokens, 1):
        called = number < len(tokens) and tokens[number].token_type is TokenType.L_PAREN
        if token.token_type is not TokenType.TABLE or called:
            yield token


def _unclosed(text: str, error: TokenError) -> str:
    """Where a quote opens that is not closed, or the last comment."""
    opened = re.search(r"Missing .* from \d+:(\d+)$", str(error.__cause__), re.DOTALL)
    at = int(opened[1]) if opened else max(text.rfind("/*"), 0)
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    return f"SQL, line {line}, column {column}"


def _unexpected(error: ParseError) -> SqlError:
    first = error.errors[0]
    found = str(first.get("highlight") or "")
    line, end = int(first.get("line") or 1), int(first.get("col") or 1)
    missing = str(first.get("description")).startswith(("Expected table name", "Required keyword"))
    ended = not found or missing
    what = "the statement ends too early" if ended else f"{found!r} is not expected here"
    return SqlError(f"SQL, line {line}, column {max(1, end - len(found) + 1)}: {what}")


def refused(node: exp.Expr, why: str) -> SqlError:
    """The error about a part of a statement."""
    return SqlError(f"{_place(node)}: {why}")


@contextmanager
def at(node: exp.Expr) -> Iterator[None]:
    """Whatever is found wrong with a plan meanwhile gets the place of its part of the text."""
    try:
        yield
    except SqlError:
        raise
    except ConfigurationError as error:
        raise refused(node, str(error)) from None


def only(node: exp.Expr, *parts: str, nearest: str) -> None:
    """Refuses all parts of a clause but those that mean something here."""
    for name, value in node.args.items():
        if value and name not in parts:
            part = value[0] if isinstance(value, list) else value
            place = part if isinstance(part, exp.Expr) else node
            clause = value if isinstance(value, str) else _CLAUSES.get(name, name.strip("_"))
            raise refused(place, f"{clause.upper()} is not supported: {nearest}")


_CLAUSES: Final = {
    "by_name": "by name",
    "locks": "for update",
    "pivots": "pivot",
    "sample": "tablesample",
    "version": "a table of another time",
    "windows": "window",
}
"""What is called otherwise in SQL than in a tree."""


def _place(node: exp.Expr) -> str:
    """Where the first thing below a node stands that has a place."""
    places = [each.meta for each in node.walk() if "start" in each.meta]
    if not places:
        text = node.sql(dialect=_Streaming, unsupported_level=ErrorLevel.IGNORE)
        return f"SQL, at {text}" if text or node.parent is None else _place(node.parent)
    first = min(places, key=lambda meta: int(meta["start"]))
    column = first["col"] - (first["end"] - first["start"])
    return f"SQL, line {first['line']}, column {column}"
