"""The one session of a test run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lmerge_service.errors import EnvironmentMissingError
from lmerge_service.spark.session import spark_session

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that ends before a better compiler would pay."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark on two threads; without a Java the tests are skipped, unless $LMERGE_REQUIRE_SPARK."""
    context = spark_session(
        "tests",
        master="local[2]",
        driver_memory="1g",
        delta=True,
        settings={"spark.driver.defaultJavaOptions": SHORT_LIVED},
    )
    try:
        session = context.__enter__()
    except EnvironmentMissingError as missing:
        if os.environ.get("LMERGE_REQUIRE_SPARK"):
            raise
        pytest.skip(f"Spark is not tested: {missing}")
    try:
        yield session
    finally:
        context.__exit__(None, None, None)


@pytest.fixture
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, and examples of pages, use the session of the tests."""

    @contextmanager
    def shared(*_: Any, **__: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("lmerge_service.spark.session.spark_session", shared)
