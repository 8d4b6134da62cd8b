"""`lmerge replica`: what it shows, and mistakes in one line."""

import json

import pytest

from tests.cli.conftest import Lmerge

pytest.importorskip("pyspark")

RUN = "replica run delays --plan speculative --facts f --to t"


def test_the_list_names_queries_and_plans(lmerge: Lmerge) -> None:
    shown = lmerge("replica", "list").out
    assert shown.startswith("delays: per origin and hopping hour")
    assert "  speculative   announces by the schedule" in shown
    document = json.loads(lmerge("replica", "list", "--json").out)
    assert set(document) == {"delays", "in-air", "top-carriers", "weather"}
    assert document["in-air"]["key"] == ["origin", "dest"]
    assert all(set(each["plans"]) == {"conservative", "speculative"} for each in document.values())


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        (RUN.replace("delays", "delay"), 2, "no query 'delay': choose one of delays, in-air, "),
        (RUN.replace("speculative", "eager"), 2, "delays has no plan 'eager': choose one of cons"),
        (RUN.replace("--to t", "--to t/u"), 2, "'t/u' is no name of a topic"),
        (RUN + " --plain --feedback f", 2, "--feedback needs Spark, and --plain is without"),
        (RUN + " --rejoin --since 7", 2, "--since and --rejoin are two ways to start over: give"),
        (
            RUN + " --plain --rejoin --resume",
            2,
            "--resume continues, --since and --rejoin start",
        ),
        (RUN + " --plain --resume", 2, "delays by this plan cannot resume, since its state cannot"),
        (RUN + " --plain --bootstrap 127.0.0.1:1", 3, "connecting to 127.0.0.1:1: Kafka cannot"),
        (RUN + " --driver-memory 1x", 2, "Spark's heap is a number with m or g, of 512m at least"),
        ("replica feed t --flights 13", 2, "--flights takes months from 1 to 12"),
        ("replica feed t --bootstrap 127.0.0.1:1", 3, "connecting to 127.0.0.1:1: Kafka cannot"),
    ],
)
def test_a_mistake_is_one_line(command: str, code: int, error: str, lmerge: Lmerge) -> None:
    outcome = lmerge(*command.split())
    assert (outcome.code, outcome.out) == (code, "")
    assert outcome.error.startswith(error)
