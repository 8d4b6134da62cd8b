"""The same flights through the service and through Spark: two outputs that mean the same, and what
the replicas mean."""

from itertools import islice
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lmerge_service.spark.audit.report import audit
from lmerge_service.spark.io.places import ReadTopics
from lmerge_service.workloads.flights import VARIATIONS, flights
from lmerge_service.workloads.presentation import present
from tests.service.cluster import Merge, meaning
from tests.spark.merge.test_job import job_of, merge_of

FLIGHTS = 5_000


@pytest.mark.deep
def test_the_service_and_spark_emit_the_same_for_the_same_flights(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    service = merge_of(bootstrap, tmp_path)
    lives = list(islice(flights([1]), FLIGHTS))
    for name, width in (("a", 1), ("b", 2), ("c", 3)):
        elements = list(present(lives, VARIATIONS[name.upper()], name))
        service.publish(name, elements, partitions=width)
    spark_merge = merge_with_the_topics_of(service)
    job_of(spark_merge).run(spark)
    with service.worker() as worker:
        worker.wait_until_ended()

    assert service.output_is(meaning(lives))
    streams = [service.output, spark_merge.output, *service.topics.values()]
    found = audit(spark, [(each, ReadTopics(bootstrap, each)) for each in streams], keyed=True)
    assert found.findings.equivalent, found.findings
    assert not found.findings.faults
    of_service, of_spark, *replicas = found.findings.streams
    assert of_service.complete == of_spark.complete is True
    assert all(each.inserts >= FLIGHTS for each in (of_service, of_spark, *replicas))


def merge_with_the_topics_of(other: Merge) -> Merge:
    merge = merge_of(other.bootstrap, other.folder)
    merge.topics = other.topics
    merge.write()
    return merge
