"""Commands that need Spark and a topic that is not there fail at once, before a JVM starts."""

import pytest

from tests.cli.conftest import Lmerge, lmerge

__all__ = ("lmerge",)

COMMANDS = pytest.mark.parametrize(
    "command",
    [
        ("generate", "--of", "kafka:nowhere", "-o", "new"),
        ("table", "update", "kafka:nowhere", "new"),
        ("audit", "kafka:nowhere", "kafka:nowhere", "--engine", "spark"),
    ],
    ids=lambda command: command[0],
)


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("lmerge_service.spark.session.spark_session", started)


@COMMANDS
def test_a_topic_that_is_missing(lmerge: Lmerge, bootstrap: str, command: tuple[str, ...]) -> None:
    done = lmerge(*command, "--bootstrap", bootstrap)
    assert (done.code, done.out) == (2, "")
    assert done.error == f"kafka:nowhere: there is no such topic at {bootstrap}"


@COMMANDS
def test_nobody_answers(lmerge: Lmerge, command: tuple[str, ...]) -> None:
    done = lmerge(*command, "--bootstrap", "127.0.0.1:1")
    assert (done.code, done.out) == (3, "")
    assert done.error.startswith("connecting to 127.0.0.1:1: Kafka cannot be reached there")
