"""The trees of expressions: what a plan holds of its conditions and columns.

Theory
    Trees are values: hashable, comparable, printable, and msgpack carries them, so that plans are.
    A printed tree is the Python that builds it again (`queries.expressions`). Over a schema a tree
    has one kind, inferred from its leaves.

    >>> delay = Binary("+", Name("delay"), Literal(1, Kind.INT))
    >>> print(delay, inferred(delay, Schema.of({"delay": float})))
    col.delay + 1 Kind.FLOAT
"""

from collections.abc import Iterator, Sequence
from keyword import iskeyword
from typing import Any, Final, Union

import msgspec

from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.rows import Kind, Schema

__all__ = (
    "CASTS",
    "COMPARISONS",
    "Binary",
    "Call",
    "Cast",
    "Coalesce",
    "IsNull",
    "Kinds",
    "Literal",
    "Name",
    "Not",
    "Tree",
    "When",
    "children",
    "inferred",
    "reads",
)


class _Node(msgspec.Struct, frozen=True, tag_field="node", forbid_unknown_fields=True):
    def __str__(self) -> str:
        return _printed(self)


class Name(_Node, frozen=True, tag="name"):
    """A column."""

    name: str


class Literal(_Node, frozen=True, tag="literal"):
    """A constant; null has no kind."""

    value: bool | int | float | str | None
    kind: Kind | None


class Binary(_Node, frozen=True, tag="binary"):
    """A comparison, a connective, or arithmetic."""

    op: str
    left: "Tree"
    right: "Tree"


class Not(_Node, frozen=True, tag="not"):
    """The opposite of a condition."""

    of: "Tree"


class IsNull(_Node, frozen=True, tag="is_null"):
    """Whether there is no value; never null itself."""

    of: "Tree"


class Coalesce(_Node, frozen=True, tag="coalesce"):
    """The first that is not null."""

    args: tuple["Tree", ...]


class When(_Node, frozen=True, tag="when"):
    """The value of the first branch whose condition is true."""

    branches: tuple[tuple["Tree", "Tree"], ...]
    otherwise: "Tree"


class Cast(_Node, frozen=True, tag="cast"):
    """Another kind of the same value; null where there is none."""

    of: "Tree"
    kind: Kind


class Call(_Node, frozen=True, tag="call"):
    """A function of the user's, by its importable name `package.module:function`."""

    function: str
    args: tuple["Tree", ...]
    returns: Kind
    null_safe: bool = False
    version: str = ""
    also: tuple[str, ...] = ()
    """Functions that compute the same."""


Tree = Union[Name, Literal, Binary, Not, IsNull, Coalesce, When, Cast, Call]  # noqa: UP007 (recursive)

COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=")


CASTS: Final = frozenset(
    {
        (Kind.INT, Kind.FLOAT),
        (Kind.FLOAT, Kind.INT),
        (Kind.STR, Kind.INT),
        (Kind.STR, Kind.FLOAT),
        (Kind.INT, Kind.STR),
        (Kind.BOOL, Kind.STR),
    }
)
"""From which kind there is a cast to which."""
_FUNCTIONS: Final = ("floor_div", "mod")
"""Binary operators that are written as functions, of ints."""


def children(tree: Tree) -> Iterator[Tree]:
    """The trees that a tree is made of."""
    match tree:
        case Binary(left=left, right=right):
            yield from (left, right)
        case Not(of) | IsNull(of) | Cast(of):
            yield of
        case Coalesce(args) | Call(args=args):
            yield from args
        case When(branches, otherwise):
            for branch in branches:
                yield from branch
            yield otherwise


def reads(tree: Tree) -> frozenset[str]:
    """The columns that a tree looks at."""
    if isinstance(tree, Name):
        return frozenset({tree.name})
    return frozenset().union(*map(reads, children(tree)))


def _printed(tree: Any) -> str:
    match tree:
        case Name(name):
            plain = name.isidentifier() and not iskeyword(name) and not name.startswith("__")
            return f"col.{name}" if plain else f"col[{name!r}]"
        case Literal(value):
            return repr(value)
        case Binary("floor_div" | "mod" as op, left, right):
            return f"{op}({_printed(left)}, {_printed(right)})"
        case Binary(op, left, right):
            # Python turns `1 < col.x` round
            plain = op in COMPARISONS or isinstance(right, Literal)
            first = _outer(left) if plain else _inner(left)
            return f"{first} {op} {_inner(right)}"
        case Not(of):
            return f"~{_outer(of)}"
        case IsNull(of):
            return f"is_null({_printed(of)})"
        case Coalesce(args):
            return f"coalesce({', '.join(map(_printed, args))})"
        case When(branches, otherwise):
            whens = ".".join(f"when({_printed(c)}, {_printed(v)})" for c, v in branches)
            return f"{whens}.otherwise({_printed(otherwise)})"
        case Cast(of, kind):
            return f"{_outer(of)}.cast({kind.value!r})"
        case Call(function, args, returns, null_safe, version, also):
            options = ", null_safe=True" if null_safe else ""
            options += f", version={version!r}" if version else ""
            options += f", also={list(also)!r}" if also else ""
            values = "".join(f", {_printed(arg)}" for arg in args)
            return f"udf({function!r}{values}, returns={returns.value!r}{options})"
    raise AssertionError(tree)


def _outer(tree: Tree) -> str:
    """As the operand that makes Python's operator ours."""
    return f"lit({tree.value!r})" if isinstance(tree, Literal) else _inner(tree)


def _inner(tree: Tree) -> str:
    text = _printed(tree)
    symbol = isinstance(tree, Binary) and tree.op not in _FUNCTIONS
    return f"({text})" if symbol or isinstance(tree, Not) else text


def inferred(tree: Tree, schema: Schema, where: str = "") -> Kind | None:
    """The kind of a tree over rows of a schema; None of null alone.

    Raises:
        ConfigurationError: a column isn't there, or kinds don't fit; the message names `where`,
            which is the tree itself unless given.
    """
    return Kinds(schema, where or tree).of(tree)


class Kinds:
    """The kinds of trees over rows of one schema, each inferred once.

    `where` is named by errors: a text, or the tree that all others are part of.
    """

    __slots__ = ("_found", "schema", "where")

    def __init__(self, schema: Schema, where: "str | Tree" = "") -> None:
        self.schema = schema
        self.where = where
        self._found: dict[int, tuple[Tree, Kind | None]] = {}
        """By identity: to hash a tree takes as long as to look through it."""

    def of(self, tree: Tree) -> Kind | None:
        """The kind of a tree; None of null alone.

        Raises:
            ConfigurationError: a column isn't there, or kinds don't fit.
        """
        found = self._found.get(id(tree))
        if found is None:
            found = self._found[id(tree)] = (tree, self._of(tree))
        return found[1]

    def _of(self, tree: Tree) -> Kind | None:
        match tree:
            case Name(name):
                if name not in self.schema:
                    self.schema.kind(name, str(self.where))
                return self.schema.kind(name)
            case Literal(kind=kind):
                return kind
            case IsNull(of):
                self.of(of)
                return Kind.BOOL
            case Not(of):
                self._want(of, Kind.BOOL)
                return Kind.BOOL
            case Binary():
                return self._binary(tree)
            case Coalesce(args):
                return self._common(args)
            case When(branches, otherwise):
                for condition, _ in branches:
                    self._want(condition, Kind.BOOL)
                return self._common([*(value for _, value in branches), otherwise])
            case Cast(of, kind):
                given = self.of(of)
                if given not in (None, kind) and (given, kind) not in CASTS:
                    self._fail(f"{_kind(given)} has no cast to {kind.value}")
                return kind
            case Call(args=args, returns=returns):
                for arg in args:
                    self.of(arg)
                return returns
        raise AssertionError(tree)

    def _binary(self, tree: Binary) -> Kind:
        if tree.op in ("&", "|"):
            self._want(tree.left, Kind.BOOL)
            self._want(tree.right, Kind.BOOL)
            return Kind.BOOL
        if tree.op in COMPARISONS:
            self._common((tree.left, tree.right))
            return Kind.BOOL
        kind = self._common((tree.left, tree.right)) or Kind.INT
        if not kind.is_number:
            self._fail(f"{tree} is arithmetic on {kind.value}")
        if tree.op in _FUNCTIONS and kind is not Kind.INT:
            self._fail(f"{tree.op} takes ints, {tree} has a float")
        return kind

    def _common(self, trees: Sequence[Tree]) -> Kind | None:
        """The one kind that holds the values of all."""
        common: Kind | None = None
        for tree in trees:
            kind = self.of(tree)
            if common is None or kind is None:
                common = common or kind
            elif common is not kind:
                if not (common.is_number and kind.is_number):
                    texts = " and ".join(f"{each} ({_kind(self.of(each))})" for each in trees)
                    self._fail(f"{texts} are not of one kind")
                common = Kind.FLOAT
        return common

    def _want(self, tree: Tree, kind: Kind) -> None:
        given = self.of(tree)
        if given not in (kind, None):
            self._fail(f"{tree} is {_kind(given)}, not {kind.value}")

    def _fail(self, what: str) -> None:
        raise ConfigurationError(f"{self.where}: {what}")


def _kind(kind: Kind | None) -> str:
    return "null" if kind is None else kind.value
