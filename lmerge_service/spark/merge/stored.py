"""A bucket's variables, read out of a checkpoint while no query runs."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.places import located
from lmerge_service.spark.state import steps_of

__all__ = ("StoredVariables", "carried_steps")


def carried_steps(spark: SparkSession, checkpoint: str) -> dict[int, int]:
    """By key of a bucket that has a snapshot, how many of the plan's steps that has carried out, as
    of the last complete batch; one must be complete.

    Raises:
        StateError: the state is damaged, or of another version.
    """
    _ = spark.streams  # starts what reads state, in a session that has run no query yet
    path = located(checkpoint)
    with spark_errors(f"reading {path}"):
        heads = spark.read.format("statestore").option("stateVarName", "head").load(path)
        rows = heads.select("key.bucket", "value.data").collect()
    return {row["bucket"]: steps_of(bytes(row["data"])) for row in rows}


class StoredVariables:
    """Of `store`, as of the last complete batch."""

    def __init__(self, spark: SparkSession, checkpoint: str, key: int) -> None:
        self._spark, self._path, self._key = spark, located(checkpoint), key
        self._known: dict[str, dict[int, bytes]] = {}

    def _frame(self, variable: str) -> Any:
        reader = self._spark.read.format("statestore").option("stateVarName", variable)
        return reader.load(self._path).where(F.col("key.bucket") == self._key)

    def head(self) -> bytes | None:
        with spark_errors(f"reading {self._path}"):
            rows = self._frame("head").select("value.data").collect()
        return bytes(rows[0]["data"]) if rows else None

    def _map(self, variable: str) -> Mapping[int, bytes]:
        if variable not in self._known:
            with spark_errors(f"reading {self._path}"):
                rows = self._frame(variable).select(
                    F.col("user_map_key.number").alias("number"),
                    F.col("user_map_value.data").alias("data"),
                )
                found = {row["number"]: bytes(row["data"]) for row in rows.collect()}
            self._known[variable] = found
        return self._known[variable]

    def entry(self, number: int) -> bytes | None:
        return self._map("log").get(number)

    def page(self, number: int) -> bytes | None:
        return self._map("pages").get(number)
