r"""Elements to records: values, keys and partitions, as the service writes them.

Theory
    With a canonical payload a record is text put together, which Spark does itself; so are a key
    that is the whole payload, and the headers. A key of some of the payload's fields is cut out
    by the service's own `Router`, in Python. A record's partition is left to the producer, which
    takes Kafka's hash of the key as the router does; a stable goes to every partition, without
    key.

    In what order records are written is only known within a Spark task. So where elements must
    follow each other, an order brings all that goes to one partition into one task, in order.

Invariants
    E1  The value of a row is `wire.encode` of its element; a row that is no element fails the job
        (refused records are left out before).
    E2  Key, partition and headers are the service's (`Router`, `incarnation_headers`).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from lmerge_service.elements import INFINITY, START
from lmerge_service.formats.bulk import Rule
from lmerge_service.formats.headers import INCARNATION_HEADER, JOINING_AT_HEADER
from lmerge_service.formats.payload import canonical
from lmerge_service.formats.routing import Router
from lmerge_service.spark.io.schema import elements_of, is_element, whole_columns

__all__ = ("canonical_payload", "placement", "record_value", "to_records")

_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_PLACE: Final = StructType(
    [StructField("key", BinaryType()), StructField("partition", IntegerType())]
)


def record_value() -> Column:
    """The record of a row's element (E1)."""

    def event(op: str, *times: Column) -> Column:
        parts = [F.lit(f'{{"op":"{op}","payload":'), F.col("payload"), F.lit(',"vs":'), F.col("vs")]
        return F.concat(*parts, *times, F.lit("}"))

    vold, ve, vc = _end("vold"), _end("ve"), _end("vc")
    op = F.col("op")
    row = F.to_json(F.struct("op", "payload", "vs", "vold", "ve", "vc"))
    return (
        F.when(~is_element(), F.raise_error(F.concat(F.lit("a row is no element: "), row)))
        .when(op == "insert", event("insert", F.lit(',"ve":'), ve))
        .when(op == "adjust", event("adjust", F.lit(',"vold":'), vold, F.lit(',"ve":'), ve))
        .otherwise(F.concat(F.lit('{"op":"stable","vc":'), vc, F.lit("}")))
    )


def _end(name: str) -> Column:
    return F.when(F.col(name) == INFINITY, "null").otherwise(F.col(name).cast("string"))


def _headers() -> Column:
    """As `incarnation_headers`; null for none."""

    def header(name: str, absent: int) -> Column:
        value = F.col(name).cast("string").cast("binary")
        full = {"incarnation": INCARNATION_HEADER, "joining_at": JOINING_AT_HEADER}[name]
        some = F.array(F.struct(F.lit(full).alias("key"), value.alias("value")))
        return F.when(F.col(name) == absent, F.array().cast(_HEADERS_TYPE)).otherwise(some)

    both = F.concat(header("incarnation", 0), header("joining_at", START))
    none = (F.col("incarnation") == 0) & (F.col("joining_at") == START)
    return F.when(none, F.lit(None).cast(_HEADERS_TYPE)).otherwise(both)


def placement(partitions: int, key: Sequence[str] = ()) -> Column:
    """The struct (key, partition) of a row's payload, by the service's router; null without one.

    With it other operators can be grouped as an output topic is.
    """
    fields = tuple(key)

    def place(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        router = _router(partitions, fields)
        for batch in batches:
            payloads = batch.cast(pa.binary()).to_pylist()
            keys = [each and router.key_of(each) for each in payloads]
            found = iter(router.partitions_of([each for each in payloads if each is not None]))
            routes = [None if each is None else next(found) for each in payloads]
            arrays = [pa.array(keys, pa.binary()), pa.array(routes, pa.int32())]
            yield pa.StructArray.from_arrays(arrays, names=["key", "partition"])

    udf: Any = F.arrow_udf(_typed(place), _PLACE)  # type: ignore[attr-defined]
    placed: Column = udf(F.col("payload"))
    return placed


@lru_cache(maxsize=4)
def _router(partitions: int, key: tuple[str, ...]) -> Router:
    return Router(partitions, key)


def canonical_payload(text: Column, rule: Rule = Rule()) -> Column:  # noqa: B008 (immutable)
    """The canonical payload of a column of JSON text, for queries that make elements.

    Text that the rule refuses fails the job: a query must not lose its results.
    """

    def rewrite(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for batch in batches:
            texts = batch.cast(pa.binary()).to_pylist()
            payloads = [
                each
                if each is None
                else canonical(
                    each, nfc=rule.nfc, drop_nulls=rule.drop_nulls, max_depth=rule.max_depth
                )
                for each in texts
            ]
            yield pa.array(payloads, pa.binary()).view(pa.string())

    udf: Any = F.arrow_udf(_typed(rewrite), "string")  # type: ignore[attr-defined]
    rewritten: Column = udf(text)
    return rewritten


def _typed(function: Any) -> Any:
    """Spark finds the kind of a UDF by its annotations, which must be evaluated."""
    function.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    return function


def to_records(
    elements: DataFrame,
    partitions: int,
    key: Sequence[str] = (),
    *,
    order: Sequence[str] | None = None,
) -> DataFrame:
    """(key, value, partition, headers) for Spark's Kafka sink; a partition may be null.

    `partitions` are the topic's: a stable becomes one record for each. Rows stay where they are;
    with `order`, names of columns, what goes to one partition is in one task and sorted by them.
    """
    rows = elements_of(elements) if "reason" in elements.columns else elements
    sorting = [F.col(name).alias(f"order{at}") for at, name in enumerate(order or ())]
    full = rows.select(*sorting, *whole_columns(rows))
    route, keyed = _route(full, partitions, key, placing=order is not None)
    stable = F.col("op") == "stable"
    everywhere = F.sequence(F.lit(0), F.lit(partitions - 1))
    records = route.select(
        *(f"order{at}" for at in range(len(sorting))),
        F.when(~stable, keyed["key"]).alias("key"),
        record_value().alias("value"),
        F.explode(F.when(stable, everywhere).otherwise(F.array(keyed["partition"]))).alias("to"),
        _headers().alias("headers"),
    )
    if order is not None:
        records = records.repartitionById(partitions, "to")
        records = records.sortWithinPartitions(*(f"order{at}" for at in range(len(sorting))))
    return records.select("key", "value", F.col("to").alias("partition"), "headers")


def _route(
    rows: DataFrame, partitions: int, key: Sequence[str], *, placing: bool
) -> tuple[DataFrame, dict[str, Column]]:
    """The rows, and their key and partition; only what the producer cannot find is computed."""
    if key or (placing and partitions > 1):
        placed = rows.withColumn("place", placement(partitions, key))
        return placed, {name: F.col("place")[name] for name in _PLACE.names}
    partition = F.lit(0 if partitions == 1 else None).cast("int")
    return rows, {"key": F.col("payload").cast("binary"), "partition": partition}
