"""A broker that asks who we are, and nobody who looks on learns what Spark answers."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lmerge_service.config.credentials import ClientTls, Sasl, Secret
from lmerge_service.config.topology import Kafka
from lmerge_service.elements import Element, Insert, Stable
from lmerge_service.errors import TransportError
from lmerge_service.spark.io.elements import read_elements, stream_elements, write_elements
from lmerge_service.spark.io.places import ReadTopics, WrittenTopic
from lmerge_service.spark.io.schema import ORDER
from tests.kafka.secured import PASSWORD, Secured, secured
from tests.spark.test_elements import ONCE, elements_in, finish, frame

pytestmark = pytest.mark.kafka
STREAM: list[Element] = [Insert(b'"x"', 1, 5), Stable(6)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    (folder / "password").write_text(PASSWORD + "\n")
    (folder / "wrong").write_text("wrong-horse")
    with secured(folder, ("plain",)) as running:
        yield running


def by_certificate(kafka: Secured) -> Kafka:
    tls = ClientTls(
        ca=kafka.authority.certificate, certificate=kafka.client.certificate, key=kafka.client.key
    )
    return Kafka(bootstrap=kafka.broker.address("MUTUAL"), tls=tls)


def by_password(kafka: Secured, file: str = "password") -> Kafka:
    secret = Secret(file=kafka.folder / file)
    sasl = Sasl(mechanism="SCRAM-SHA-256", username="scram", password=secret)
    tls = ClientTls(ca=kafka.authority.certificate)
    return Kafka(bootstrap=kafka.broker.address("SASL"), tls=tls, sasl=sasl)


@pytest.mark.full
@pytest.mark.parametrize(
    "known", [pytest.param(by_certificate, marks=pytest.mark.deep), by_password]
)
def test_spark_is_let_in_and_shows_no_secret(
    spark: SparkSession,
    kafka: Secured,
    known: Callable[[Secured], Kafka],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    section, topic = known(kafka), known.__name__
    write_elements(frame(spark, STREAM), WrittenTopic(section, topic), order=["seq"])
    rows = read_elements(spark, ReadTopics(section, topic))
    assert elements_in(rows) == STREAM
    growing = read_elements(spark, ReadTopics(section, topic), streaming=True)
    copy, place = WrittenTopic(section, f"{topic}.copy"), str(tmp_path / "checkpoint")
    query = stream_elements(growing, copy, order=ORDER, checkpoint=place, trigger=ONCE)
    finish(query)
    assert elements_in(read_elements(spark, ReadTopics(section, copy.name))) == STREAM

    rows.explain(extended=True)
    printed = capfd.readouterr()
    shown = [printed.out, printed.err, str(query.lastProgress), repr(ReadTopics(section, topic))]
    shown += [path.read_text(errors="replace") for path in Path(place).rglob("*") if path.is_file()]
    shown += plans(spark)
    assert any("SaveIntoDataSourceCommand" in plan for plan in shown), "the plans have options"
    key = kafka.client.key.read_text().splitlines()[1]
    assert not [text for text in shown if PASSWORD in text or key in text]


def plans(spark: SparkSession) -> list[str]:
    """What Spark's web page would show of every query so far."""
    done = spark._jsparkSession.sharedState().statusStore().executionsList()
    return [done.apply(at).physicalPlanDescription() for at in range(done.size())]


@pytest.mark.full
def test_a_wrong_password_is_reported_in_one_line_without_it(
    spark: SparkSession, kafka: Secured
) -> None:
    with pytest.raises(TransportError, match=r"^[^\n]*$") as refused:
        write_elements(
            frame(spark, STREAM), WrittenTopic(by_password(kafka, "wrong"), "t"), order=["seq"]
        )
    assert "wrong-horse" not in str(refused.value)
