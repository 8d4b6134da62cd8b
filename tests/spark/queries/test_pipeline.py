"""What Spark does around the buckets: the SQL, the pieces, the routes, the state, the records."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pandas as pd  # type: ignore[import-untyped]
import pytest
from hypothesis import given as any_of
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.tws_tester import TwsTester

from lmerge_service.elements import INFINITY, Element, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.feedback import FeedbackRecord
from lmerge_service.formats.routing import Router
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.spark.io.places import ReadTopics
from lmerge_service.spark.queries.bucket import InputRow, QueryBucket, QuerySettings
from lmerge_service.spark.queries.catalogue import QUERIES
from lmerge_service.spark.queries.pipeline import BucketProcessor, QueryJob, given
from lmerge_service.spark.queries.plans import Query
from tests.spark.queries.reference import MINUTE
from tests.spark.queries.simulate import Fact, batches_of, given_of, random_facts

LATENESS = 30 * MINUTE
NIGHTLY = ("delays", "in-air", "top-carriers")
BY_NAME = pytest.mark.parametrize(
    "name", ["weather", *(pytest.param(name, marks=pytest.mark.deep) for name in NIGHTLY)]
)


def job(query: Query, plan: str = "speculative", width: int = 2, partitions: int = 3) -> QueryJob:
    settings = QuerySettings(
        shape=query.shape, plan=query.plans[plan], lateness=LATENESS, partitions=width
    )
    return QueryJob(query=query, facts=ReadTopics("", ""), settings=settings, partitions=partitions)


def raw(spark: SparkSession, topic: Sequence[Sequence[Fact]]) -> DataFrame:
    """As Spark reads a topic, by several tasks."""
    rows = [
        (partition, offset, json.dumps(fact).encode())
        for partition, facts in enumerate(topic)
        for offset, fact in enumerate(facts)
    ]
    frame = spark.createDataFrame(rows, "partition int, offset long, value binary")
    return frame.coalesce(2)


@pytest.mark.full
@BY_NAME
def test_the_buckets_are_given_what_the_simulation_gives_them(
    name: str, spark: SparkSession
) -> None:
    topic = random_facts(Random(name), 80, 2)
    topic[0].insert(5, {"fact": "departed", "origin": "JFK"})
    asked = job(QUERIES[name])
    point = FeedbackRecord("a", 0, 1, 5, 5).value()
    feedback = spark.createDataFrame(
        [(0, 7, point), (0, 8, None)], "partition int, offset long, value binary"
    )
    found = given(spark, asked, raw(spark, topic), feedback).collect()
    whole = {number: list(enumerate(facts)) for number, facts in enumerate(topic)}
    expected = given_of(asked.query, whole, Random(1), 3, LATENESS)

    def rows(every: Sequence[tuple[int, InputRow]]) -> Counter[Any]:
        return Counter(
            (bucket, each.partition, each.offset, each.time, _plain(each.data))
            for bucket, each in every
            if each.kind == "row"
        )

    written = [(row.bucket, InputRow(*row[1:])) for row in found]
    assert rows(written) == rows(
        [(at, each) for at, those in enumerate(expected) for each in those]
    )
    for bucket in range(3):
        pieces = [
            msgspec.json.decode(each.data)
            for at, each in written
            if (at, each.kind) == (bucket, "piece")
        ]
        assert sum(each["rows"] for each in pieces) == sum(map(len, topic))
        assert sum(each["refused"] for each in pieces) >= 1
        assert max(each["high"] for each in pieces) == INFINITY
        points = [each for at, each in written if (at, each.kind) == (bucket, "point")]
        assert points == [InputRow("point", 0, 7, 0, point.decode())]


def _plain(data: str) -> str:
    return json.dumps(json.loads(data), sort_keys=True)


@any_of(seed=st.integers(0, 2**32))
def test_the_processor_keeps_its_bucket_and_writes_what_it_emits(seed: int) -> None:
    rng = Random(seed)
    query = QUERIES[rng.choice(sorted(QUERIES))]
    topic = random_facts(rng, 20, 2)
    asked = job(query, rng.choice(["conservative", "speculative"]))
    tester = TwsTester(BucketProcessor(asked.settings, 3, query.key))
    buckets = [QueryBucket(asked.settings) for _ in range(3)]
    router, decoder = Router(3, query.key), WireDecoder()
    for batch in batches_of(topic, rng, 20):
        for number, those in enumerate(given_of(query, batch, rng, 3, LATENESS)):
            if not those:
                continue
            result = buckets[number].batch(those)
            frame: Any = tester.testInPandas(number, pd.DataFrame(those))
            assert set(frame["partition"]) == {number}
            elements: list[Element] = [decoder.decode(value) for value in frame["value"][:-1]]
            assert elements == result.elements
            for key, element in zip(frame["key"], elements, strict=False):
                if isinstance(element, Stable):
                    assert key is None
                else:
                    assert isinstance(element.payload, bytes)
                    assert key == router.key_of(element.payload)
                    assert router.partition_of(element.payload) == number
            last = frame.iloc[-1]
            assert last["value"] is None
            assert (last["late"], last["mark"], last["kept"]) == (
                result.late,
                result.watermark,
                result.kept,
            )
            assert frame["late"][:-1].sum() == 0


def test_a_query_whose_rows_lack_what_they_need_is_refused(spark: SparkSession) -> None:
    query = replace(QUERIES["delays"], rows="SELECT at, delay FROM facts")
    with pytest.raises(ConfigurationError, match="query delays: its rows lack the column origin"):
        given(spark, job(query), raw(spark, [[]]))
