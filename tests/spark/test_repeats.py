"""Records that were written twice are one, for a query as for a reader."""

from collections.abc import Callable

from pyspark.sql import SparkSession

from lmerge_service.formats.repeats import RecordReading, Repeats
from lmerge_service.spark.io.elements import kafka_records, read_elements
from lmerge_service.spark.io.places import ReadTopics
from lmerge_service.spark.io.repeats import once
from tests.spark.records import Sent, make_topic, send


def header(number: int) -> list[tuple[str, bytes]]:
    return [("lmerge-seq", b"%d" % number)]


def test_a_query_keeps_what_a_reader_keeps(
    spark: SparkSession, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic, repeats = topic_name(), Repeats()
    make_topic(bootstrap, topic, 2)
    numbers = [(0, 1), (0, 2), (1, 1), (0, 1), (0, 2), (0, 3), (1, 2), (1, 2), (0, 4), (0, 3)]
    sent = [
        Sent(b'{"op":"stable","vc":%d}' % (10 * partition + seq), None, partition, header(seq))
        for partition, seq in numbers
    ]
    sent.append(Sent(b'{"op":"stable","vc":50}', None, 0, header(1)))  # n4: another writer's
    sent += [Sent(b'{"op":"stable","vc":%d}' % (100 + at), None) for at in range(3)]
    send(bootstrap, topic, sent)
    kept = [
        each.value
        for each in sent
        if repeats.read(each.partition, each.headers, each.value) is not RecordReading.REPEAT
    ]
    source = ReadTopics(bootstrap, topic)
    found = once(kafka_records(spark, source)).select("value").collect()
    assert sorted(bytes(row["value"]) for row in found) == sorted(filter(None, kept))
    assert sorted(row["vc"] for row in read_elements(spark, source).select("vc").collect()) == [
        *(1, 2, 3, 4, 11, 12, 50, 100, 101, 102)
    ]
    split = ReadTopics(bootstrap, topic, options={"minPartitions": "8"})
    assert read_elements(spark, split).count() == len(sent)
