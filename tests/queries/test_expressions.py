"""Expressions: thousands of drawn ones against a slow interpreter by the definition."""

import math
import operator
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ConfigurationError, ModuleError
from lmerge_service.queries import expressions
from lmerge_service.queries.compiling import Faults, condition, projection
from lmerge_service.queries.expressions import (
    Expression,
    coalesce,
    col,
    expression,
    floor_div,
    is_null,
    lit,
    mod,
    udf,
    when,
)
from lmerge_service.queries.rows import Kind, Row, Schema
from lmerge_service.queries.trees import (
    Binary,
    Call,
    Cast,
    Coalesce,
    IsNull,
    Literal,
    Name,
    Not,
    Tree,
    When,
    inferred,
)
from tests.seeds import seeds

SCHEMA = Schema.of(
    {"a": bool, "b": bool, "i": int, "j": int, "f": float, "g": float, "s": str, "t": str}
)
VALUES: dict[Kind, tuple[Any, ...]] = {
    Kind.BOOL: (True, False, None),
    Kind.INT: (0, 1, -1, 2, 3, -7, INFINITY, START, 2**53 + 1, None),
    Kind.FLOAT: (0.0, 1.0, -1.5, 2.5, 1e308, -1e308, 2.0**53, 1e19, 5e-324, None),
    Kind.STR: ("", "a", "b", "12", "-3.5", "1e400", " 7", "99999999999999999999", "\uffff", "😀"),
}


# The slow interpreter


def meant(tree: Tree, row: Row) -> Any:
    """The value of a tree, by the definition case by case."""
    match tree:
        case Name(name):
            return row[SCHEMA.position(name)]
        case Literal(value):
            return value
        case Not(of):
            value = meant(of, row)
            return None if value is None else not value
        case IsNull(of):
            return meant(of, row) is None
        case Coalesce(args):
            for arg in args:
                if (value := meant(arg, row)) is not None:
                    return as_kind(value, inferred(tree, SCHEMA))
            return None
        case When(branches, otherwise):
            for decides, chosen in branches:
                if meant(decides, row) is True:
                    return as_kind(meant(chosen, row), inferred(tree, SCHEMA))
            return as_kind(meant(otherwise, row), inferred(tree, SCHEMA))
        case Cast(of, kind):
            return cast(meant(of, row), kind)
        case Binary(op, left, right):
            return combined(op, meant(left, row), meant(right, row))
        case Call(args=args, null_safe=null_safe):
            values = [meant(arg, row) for arg in args]
            return None if None in values and not null_safe else twice(*values)
    raise AssertionError(tree)


def combined(op: str, one: Any, two: Any) -> Any:
    if op in "&|":
        decides = op == "|"
        if decides in (one, two):
            return decides
        return None if None in (one, two) else not decides
    if one is None or two is None:
        return None
    comparison: Callable[[Any, Any], bool] | None = {
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }.get(op)
    if comparison:
        return comparison(one, two)
    if op in ("floor_div", "mod") and two == 0:
        return None
    result = {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "floor_div": operator.floordiv,
        "mod": operator.mod,
    }[op](one, two)
    if isinstance(result, int):
        return result if START <= result <= INFINITY else None
    return result if math.isfinite(result) else None


def as_kind(value: Any, kind: Kind | None) -> Any:
    return float(value) if kind is Kind.FLOAT and type(value) is int else value


def cast(value: Any, kind: Kind) -> Any:
    if value is None or type(value).__name__ == kind.value:
        return value
    if kind is Kind.STR:
        return str(value).lower()
    if isinstance(value, str) and (value != value.strip() or "_" in value):
        return None
    try:
        number = float(value) if kind is Kind.FLOAT else int(value)
    except ValueError:
        return None
    if isinstance(number, float):
        return number if math.isfinite(number) else None
    return number if START <= number <= INFINITY else None


def twice(value: int | None = None) -> int | None:
    """A function of a user's; of null it makes 1."""
    return 1 if value is None else value if abs(value) > 2**60 else 2 * value


def broken(value: int) -> object:
    return {1: "a text", 2: math.inf, 3: 2**63}.get(value, value) if value else [][value]


Arithmetic = Callable[[Expression, Expression], Expression]
TWICE = f"{__name__}:twice"
BROKEN = f"{__name__}:broken"


# Drawn expressions


def drawn(rng: Random, kind: Kind, depth: int) -> Expression:
    """A random expression of that kind."""
    if depth == 0 or rng.random() < 0.1:
        return leaf(rng, kind)

    def inner(of: Kind) -> Expression:
        return drawn(rng, of, depth - 1)

    general: list[Callable[[], Expression]] = [
        lambda: coalesce(inner(kind), *(inner(kind) for _ in range(rng.randrange(3)))),
        lambda: when(inner(Kind.BOOL), inner(kind)).otherwise(inner(kind)),
        lambda: (
            when(inner(Kind.BOOL), inner(kind))
            .when(inner(Kind.BOOL), lit(None))
            .otherwise(inner(kind))
        ),
        lambda: inner(kind).cast(kind),
    ]
    return rng.choice([*general, *special(rng, kind, inner)])()


def leaf(rng: Random, kind: Kind) -> Expression:
    if rng.random() < 0.7:
        return col[rng.choice([c.name for c in SCHEMA if c.kind is kind])]
    value = rng.choice(VALUES[kind])
    return lit(value) if value is not None else lit(None).cast(kind)


def special(
    rng: Random, kind: Kind, inner: Callable[[Kind], Expression]
) -> list[Callable[[], Expression]]:
    def number() -> Expression:
        return inner(rng.choice((Kind.INT, Kind.FLOAT)))

    basic: Arithmetic
    match kind:
        case Kind.BOOL:
            compare: Arithmetic = rng.choice(
                (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
            )
            return [
                lambda: inner(kind) & inner(kind),
                lambda: inner(kind) | inner(kind),
                lambda: ~inner(kind),
                lambda: is_null(inner(rng.choice(list(Kind)))),
                lambda: compare(number(), number()),
                lambda: compare(inner(Kind.STR), inner(Kind.STR)),
                lambda: compare(inner(Kind.BOOL), inner(Kind.BOOL)),
            ]
        case Kind.INT:
            basic = rng.choice((operator.add, operator.sub, operator.mul, floor_div, mod))
            return [
                lambda: basic(inner(kind), inner(kind)),
                lambda: basic(inner(kind), inner(kind)),
                lambda: inner(Kind.FLOAT).cast(int),
                lambda: inner(Kind.STR).cast(int),
                lambda: -inner(kind),
                lambda: udf(TWICE, inner(kind), returns=int, null_safe=rng.random() < 0.5),
            ]
        case Kind.FLOAT:
            basic = rng.choice((operator.add, operator.sub, operator.mul))
            return [
                lambda: basic(inner(kind), number()),
                lambda: basic(number(), inner(kind)),
                lambda: inner(Kind.INT).cast(float),
                lambda: inner(Kind.STR).cast(float),
                lambda: coalesce(inner(Kind.INT), inner(kind)),
                lambda: when(inner(Kind.BOOL), inner(Kind.INT)).otherwise(inner(kind)),
            ]
        case Kind.STR:
            return [lambda: inner(Kind.INT).cast(str), lambda: inner(Kind.BOOL).cast(str)]


def drawn_row(rng: Random) -> Row:
    return tuple(rng.choice((*VALUES[column.kind], None)) for column in SCHEMA)


def same(one: Any, two: Any) -> bool:
    return type(one) is type(two) and one == two


@seeds(400)
def test_compiled_expressions_give_what_they_mean(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        kind = rng.choice(list(Kind))
        drawn_one = drawn(rng, kind, rng.randrange(5))
        bound = drawn_one.on(SCHEMA)
        assert bound.kind is kind
        assert bound.reads <= set(SCHEMA.names)
        row_of = projection([drawn_one.tree, Name("s"), drawn_one.tree], SCHEMA, Faults())
        keeps = condition(drawn_one.tree, SCHEMA, Faults()) if kind is Kind.BOOL else None
        drops = condition(Not(drawn_one.tree), SCHEMA, Faults()) if kind is Kind.BOOL else None
        for _ in range(12):
            row = drawn_row(rng)
            wanted = meant(drawn_one.tree, row)
            assert same(bound.evaluate(row), wanted), (str(drawn_one), row)
            assert row_of(row) == (wanted, row[6], wanted)
            if keeps and drops:
                assert keeps(row) is (wanted is True), (str(drawn_one), row)
                assert drops(row) is (wanted is False), (str(drawn_one), row)


@seeds(200)
def test_what_is_printed_is_the_python_that_builds_it(seeds: range) -> None:
    names = {name: getattr(expressions, name) for name in expressions.__all__}
    for seed in seeds:
        rng = Random(seed)
        tree = drawn(rng, rng.choice(list(Kind)), 4).tree
        again = expression(eval(str(tree), names))  # noqa: S307
        assert again.tree == tree
        assert hash(again.tree) == hash(tree)
        packed = msgspec.msgpack.encode(tree)
        assert msgspec.msgpack.decode(packed, type=Tree) == tree
        changed = drawn(rng, Kind.INT, 2).tree
        assert (changed == tree) is (str(changed) == str(tree))


def test_columns_of_any_name() -> None:
    assert str(col["a b"] + col["from"] + col.x + col["__y"]) == (
        "((col['a b'] + col['from']) + col.x) + col['__y']"
    )
    assert (1 + col.x).reads == {"x"}
    assert str(2 - col.x * 3) == "2 - (col.x * 3)"
    assert str(True & col.a | False) == "(True & col.a) | False"
    assert lit(1).tree != lit(True).tree
    assert lit(1).tree != lit(1.0).tree
    with pytest.raises(AttributeError):
        _ = col.__wrapped__


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "unknown": (lambda: (col.x + 1).on(SCHEMA), r"no column 'x'; there is a, b, i, j, f, g, s, t"),
    "kinds": (lambda: (col.i == col.s).on(SCHEMA), r"col.i \(int\) and col.s \(str\) are not of"),
    "bool": (lambda: (col.a == 1).on(SCHEMA), r"col.a \(bool\) and 1 \(int\) are not of one kind"),
    "logic": (lambda: (col.a & col.i).on(SCHEMA), r"col.i is int, not bool"),
    "not": (lambda: (~col.s).on(SCHEMA), r"col.s is str, not bool"),
    "arithmetic": (lambda: (col.s + col.t).on(SCHEMA), r"arithmetic on str"),
    "sum of bool": (lambda: (col.a + col.a).on(SCHEMA), r"arithmetic on bool"),
    "floor_div": (lambda: floor_div(col.f, 2).on(SCHEMA), r"floor_div takes ints"),
    "mod": (lambda: mod(2, col.f).on(SCHEMA), r"mod takes ints"),
    "when": (lambda: when(col.i, 1).otherwise(2).on(SCHEMA), r"col.i is int, not bool"),
    "branches": (lambda: when(col.a, 1).otherwise("x").on(SCHEMA), r"not of one kind"),
    "coalesce": (lambda: coalesce(col.a, col.f).on(SCHEMA), r"not of one kind"),
    "no value": (coalesce, r"needs a value"),
    "cast": (lambda: col.f.cast(str).on(SCHEMA), r"float has no cast to str"),
    "null": (lambda: col.a == None, r"is_null\(\) asks"),  # noqa: E711
    "constant": (lambda: lit(2**63), r"\(overflow\)"),
    "nan": (lambda: col.f + math.nan, r"\(nan\)"),
    "object": (lambda: col.f + b"", r"no column can hold"),
    "condition": (lambda: condition(Name("i"), SCHEMA, Faults()), r"col.i is no condition"),
    "no module": (lambda: udf("nowhere:f", returns=int).on(SCHEMA), r"no function 'nowhere:f'"),
    "no name": (lambda: udf("math:nothing", returns=int).on(SCHEMA), r"no function"),
    "no call": (lambda: udf("math:pi", returns=int).on(SCHEMA), r"is no function"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_found_when_it_is_built(name: str) -> None:
    build, message = WRONG[name]
    with pytest.raises(ConfigurationError, match=message):
        build()


def test_a_condition_is_no_truth_value_of_python() -> None:
    with pytest.raises(TypeError, match="in parentheses"):
        bool(col.a and col.b)


def test_what_gives_null_is_counted() -> None:
    faults = Faults()
    every = (col.i + 1, floor_div(1, col.j), mod(1, col.j), col.f * 2, col.s.cast(int))
    row_of = projection([each.tree for each in every], SCHEMA, faults)
    assert row_of((None, None, INFINITY, 0, 1e308, None, "x", None)) == (None,) * 5
    assert faults == Faults(overflow=2, division_by_zero=2, failed_cast=1)
    assert row_of((None, None, None, None, None, None, None, None)) == (None,) * 5
    assert faults == Faults(overflow=2, division_by_zero=2, failed_cast=1)
    assert floor_div(col.i, col.j).on(SCHEMA, faults).evaluate((0, 0, START, -1)) is None
    assert faults.overflow == 3


def test_a_function_that_raises_or_returns_another_kind_is_an_error_of_its_module() -> None:
    evaluate = udf(BROKEN, col.i, returns=int).on(SCHEMA).evaluate
    assert evaluate((None, None, 4)) == 4
    assert evaluate((None, None, None)) is None
    for value, message in ((0, "raised IndexError"), (1, "a text"), (2, "nan"), (3, "overflow")):
        with pytest.raises(ModuleError, match=message):
            evaluate((None, None, value))


def test_trees_of_any_depth_compile() -> None:
    """Python takes 200 parentheses within each other."""
    total, every = col.i, col.a
    for _ in range(200):
        total = total + 1
        every = every & (col.i < total) if _ < 60 else ~every
    row = (True, None, 5)
    assert total.on(SCHEMA).evaluate(row) == 205
    assert every.on(SCHEMA).evaluate(row) is True
    assert condition(every.tree, SCHEMA, Faults())(row) is True
