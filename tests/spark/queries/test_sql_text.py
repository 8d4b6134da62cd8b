"""Expressions as Spark SQL: thousands of drawn ones give in Spark what they give in Python."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.expressions import (
    Expression,
    coalesce,
    col,
    expression,
    floor_div,
    lit,
    mod,
    udf,
    when,
)
from lmerge_service.queries.rows import Kind, Row, Schema
from lmerge_service.queries.sql_text import COLUMN_TYPES, is_sql, quoted, sql_text
from tests.queries.test_expressions import SCHEMA, drawn, drawn_row, same

EDGES = (2**53 + 1, 2**53, -(2**53) - 1, INFINITY, INFINITY - 512, INFINITY - 511, START, 7, 0, -7)
REALS = (2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63), 1e308, -1e308, -0.0, 0.0, 7.0, 6.5, 5e-324)
TEXTS = ("it's", 'a "b"', "back\\slash", "${spark.master}", "$x", "new\nline", "nul\0", "\uffff")
COMPARED: tuple[Callable[[Any, Any], Expression], ...] = (
    lambda one, two: one == two,
    lambda one, two: one != two,
    lambda one, two: one < two,
    lambda one, two: one <= two,
    lambda one, two: one > two,
    lambda one, two: one >= two,
)


def check(
    spark: SparkSession, expressions: list[Expression], rows: list[Row], schema: Schema = SCHEMA
) -> None:
    """Each expression over each row, in as many jobs as keep the generated code small."""
    types = ", ".join(f"{quoted(c.name)} {COLUMN_TYPES[c.kind]}" for c in schema)
    frame = spark.createDataFrame(rows, types).coalesce(2).cache()
    for at in range(0, len(expressions), 25):
        some = [each.on(schema) for each in expressions[at : at + 25]]
        found = frame.selectExpr(
            *map(quoted, schema.names), *(f"{b.sql()} AS `{n}?`" for n, b in enumerate(some))
        ).collect()
        assert len(found) == len(rows)
        for line in found:
            row = tuple(line[: len(schema)])
            for bound, value in zip(some, line[len(schema) :], strict=True):
                wanted = bound.evaluate(row)
                assert same(value, wanted), f"{bound.tree} over {row}: {value!r}, not {wanted!r}"
    frame.unpersist()


def check_drawn(spark: SparkSession, seed: int, expressions: int, rows: int) -> None:
    rng = Random(seed)
    chosen: list[Expression] = []
    while len(chosen) < expressions:
        one = drawn(rng, rng.choice(list(Kind)), rng.randrange(1, 5))
        if is_sql(one.tree):
            chosen.append(one)
            continue
        with pytest.raises(ConfigurationError, match="is a function of Python and has no SQL"):
            one.on(SCHEMA).sql()
    check(spark, chosen, [drawn_row(rng) for _ in range(rows)])


def test_drawn_expressions_give_in_spark_what_they_give_in_python(spark: SparkSession) -> None:
    check_drawn(spark, 1, 40, 60)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 6))
def test_thousands_of_drawn_expressions_too(seed: int, spark: SparkSession) -> None:
    check_drawn(spark, seed, 750, 150)


@pytest.mark.deep
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(6, 16))
def test_ten_thousand_drawn_expressions_at_night(seed: int, spark: SparkSession) -> None:
    check_drawn(spark, seed, 1_000, 200)


def test_the_edges_of_numbers_are_the_same_in_spark(spark: SparkSession) -> None:
    schema = Schema.of({"i": int, "j": int, "f": float})
    rows: list[Row] = [
        (i, j, f) for i in (*EDGES, None) for j in (*EDGES, -1, 1) for f in (*REALS, None)
    ]
    expressions = [compare(col.i, col.f) for compare in COMPARED]
    expressions += [compare(col.f, col.i) for compare in COMPARED]
    expressions += [compare(col.i, lit(6.5)) for compare in COMPARED]
    expressions += [compare(col.f, lit(7)) for compare in COMPARED]
    expressions += [compare(col.i, lit(2.0**53)) for compare in COMPARED]
    expressions += [compare(lit(INFINITY), col.f) for compare in COMPARED]
    expressions += [
        *(floor_div(col.i, col.j), mod(col.i, col.j), col.i + col.j, col.i * col.j, -col.i),
        *(col.f * col.f, col.f + col.f, col.f - col.i, col.f.cast(int), col.i.cast(float)),
        *(lit(START) + col.i, lit(5e-324) * col.f, lit(1.7976931348623157e308) + col.f),
    ]
    check(spark, expressions, rows, schema)


def test_a_sum_of_three_is_null_where_one_of_its_sums_is(spark: SparkSession) -> None:
    """Spark moves the constants of a sum, or product, together, which may pass by an overflow."""
    schema = Schema.of({"i": int, "j": int})
    rows: list[Row] = [(START, 2**53), (INFINITY, -(2**53)), (2**62, 0), (None, 1), (5, 7)]
    expressions = [
        *(col.j + (col.i + -7), (col.i + 7) + col.j, lit(7) + (col.i + col.j)),
        *(col.j * (col.i * 3), (col.i * lit(4)) * col.j, col.j + (col.i * 4)),
    ]
    check(spark, expressions, rows, schema)


def test_texts_are_quoted_and_casts_take_plain_numbers_alone(spark: SparkSession) -> None:
    schema = Schema.of({"it's `odd`": str})
    odd = col["it's `odd`"]
    numbers = ("12", "+7", "-0", " 7", "7 ", "7\n", "1e3", "1_0", "٣", "0" * 30 + "5", "1" * 41)
    reals = ("1.", ".5", ".", "1e400", "-1e400", "NaN", "Infinity", "1d", "0x1p3", "-1.5E-3", "1f")
    rows: list[Row] = [(text,) for text in (*TEXTS, *numbers, *reals, "", None)]
    expressions = [odd == text for text in TEXTS]
    expressions += [odd < "\U0001f600", odd.cast(int), odd.cast(float), coalesce(odd, "$1")]
    check(spark, expressions, rows, schema)


def test_a_call_of_a_users_function_has_no_text() -> None:
    schema = Schema.of({"i": int})
    called = (udf("math:floor", col.i, returns=int) + 1).tree
    assert not is_sql(called)
    with pytest.raises(ConfigurationError, match=r"^udf\('math:floor'.*: math:floor is a function"):
        sql_text(called, schema)


def test_deep_trees_stay_small_in_spark(spark: SparkSession) -> None:
    """What is needed twice is written once, and Spark does not repeat it either."""
    schema = Schema.of({"i": int, "f": float})
    real, whole = expression(col.f), expression(col.i)
    for _ in range(12):
        real = when(col.i > 0, real * 1.5 + 1).otherwise(col.f)
        whole = mod(floor_div(whole, 3) + col.i, 7) * 2
    for one in (real, whole):
        assert len(sql_text(one.tree, schema)) < 40 * len(str(one))
    rows: list[Row] = [(i, f) for i in EDGES for f in REALS]
    check(spark, [real, whole, real > whole], rows, schema)
