"""Costs of plans on the command line: from streams or a sample, with the costs of a machine and
without, within what there is."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmerge_service.queries.costs import calibrating
from lmerge_service.queries.costs.units import UNITS, write_units
from tests.cli.conftest import Lmerge
from tests.queries.costs.machine import MACHINE

FILE = """
from lmerge_service.queries.expressions import col, udf
from lmerge_service.queries.plan import count, facts, tumbling

departed = facts("flights", time="time", fields={"origin": str, "delay": int})
hourly = departed.windows(tumbling(3_600_000)).by("origin").aggregate(n=count())
odd = departed.where(udf("tests.queries.costly:accepts_left", col.delay, returns=bool))
sky = facts("sky", time="time", fields={"origin": str})
both = departed.extend(9).join(sky.extend(9), on="origin")
"""
FACTS = [{"time": at * 600_000, "origin": "JFK", "delay": at % 40} for at in range(200)]


@pytest.fixture(autouse=True)
def costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a machine's costs are; nothing is there yet."""
    monkeypatch.setenv("LMERGE_HOME", str(tmp_path / "home"))
    path = list(sys.path)
    (tmp_path / "costs_of_a_test.py").write_text(FILE)
    (tmp_path / "facts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in FACTS))
    yield tmp_path / "home" / "calibration.json"
    sys.path[:] = path
    sys.modules.pop("costs_of_a_test", None)


@pytest.fixture
def calibration(costs: Path) -> Path:
    write_units(costs, MACHINE)
    return costs


HOURLY = "costs_of_a_test.py:hourly"


def test_streams_are_described_and_costs_estimated_without_time(lmerge: Lmerge) -> None:
    done = lmerge("query", "explain", HOURLY, "--plans", "2", "--stream", "600000")
    assert (done.code, done.err) == (0, "")
    assert "\nplan 2: 1.00 elements an event, " in done.out
    assert "stable 3,600,000 behind\n" in done.out
    assert "µs" not in done.out
    assert done.out.endswith("run `lmerge query calibrate` once on this machine\n")


def test_with_the_costs_of_the_machine_each_node_has_its_time(
    lmerge: Lmerge, calibration: Path
) -> None:
    explained = ("query", "explain", HOURLY, "--plans", "1", "--stream", "flights=600000,1")
    lines = lmerge(*explained).out.splitlines()
    assert re.fullmatch(
        r"plan 1: .* \(\d+ k?B\), stable 3,600,000 behind, \d+\.\d\d µs an event", lines[-3]
    )
    assert re.search(r"^  windows .* out .* ρ .* held 3,600,000 behind .* µs$", lines[-1])
    (found,) = json.loads(lmerge(*explained, "--json").out)["estimated"]
    assert found["nanoseconds"] > 0 < found["bytes"]
    assert [each["node"].split()[0] for each in found["nodes"]] == ["facts", "windows"]


def test_a_plan_that_takes_more_than_there_is_is_warned_of_and_not_chosen(
    lmerge: Lmerge, calibration: Path
) -> None:
    """A fact each 10 µs is 100,000 a second, each of several µs."""
    asked = (HOURLY, "--stream", "10", "--unit", "us", "--cores", "0.01")
    done = lmerge("query", "explain", *asked)
    assert re.search(r"too much: it needs \d+% of the processor; at most 80%", done.out)
    done = lmerge("query", "choose", *asked)
    assert done.code == 2
    assert re.fullmatch(
        r"no plan fits; plan 1: needs \d+% of the processor; at most 80%", done.error
    )
    done = lmerge("query", "explain", HOURLY, "--stream", "10", "--memory", "1")
    assert "too much" not in done.out


def test_a_sample_is_measured_beside_the_estimate(lmerge: Lmerge, calibration: Path) -> None:
    done = lmerge("query", "explain", HOURLY, "--plans", "1", "--sample", "facts.jsonl")
    measured, estimated = done.out.split("\nestimated; ")
    assert "\nplan 1: 34 events by " in measured
    assert "\nplan 1: " in estimated
    done = lmerge("query", "explain", HOURLY, "--sample", "facts.jsonl", "--stream", "9")
    assert done.error == "--sample and --stream both say how facts come: give one"


def test_plans_are_chosen_by_a_sample_or_by_streams(lmerge: Lmerge, calibration: Path) -> None:
    for how in (["facts.jsonl"], ["--stream", "600000"]):
        asked = ("query", "choose", HOURLY, *how, "--slack", "1000", "-n", "2")
        done = lmerge(*asked)
        assert (done.code, done.err) == (0, "")
        assert re.search(r"^plan \d+ .*: the cheapest\n  \d+\.\d\d µs an event, ", done.out)
        assert "\nmerged: R" in done.out
        shown = json.loads(lmerge(*asked, "--json").out)
        assert len({each["number"] for each in shown["plans"]}) == 2
    done = lmerge("query", "choose", HOURLY, "facts.jsonl", "--max-lag", "0")
    assert (done.code, done.error) == (2, "no plan fits; plan 1: 3,600,000 behind")
    done = lmerge("query", "choose", HOURLY, "facts.jsonl", "--slack", "1", "-n", "16")
    assert done.code == 1


def test_plans_are_chosen_for_several_engines(lmerge: Lmerge, calibration: Path) -> None:
    asked = ("query", "choose", HOURLY, "facts.jsonl", "--slack", "1000")
    engines = ("--engine", "python", "--engine", "spark", "--engine", "native")
    done = lmerge(*asked, *engines)
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^plan \d+ \(.*\): the cheapest$", done.out, re.M)
    assert re.search(
        r"^plan \d+ on Spark .*\n  .* µs an event and what Spark takes, ", done.out, re.M
    )
    assert re.search(
        r"^Spark's own aggregation \(--native\): .*\n  not estimated; ", done.out, re.M
    )
    plans = json.loads(lmerge(*asked, *engines, "--json").out)["plans"]
    assert [each["engine"] for each in plans] == ["python", "spark", "native"]
    assert plans[2]["number"] is plans[2]["nanoseconds"] is None
    (one,) = json.loads(lmerge(*asked, "--engine", "native", "-n", "1", "--json").out)["plans"]
    assert (one["engine"], one["why"]) == ("native", "the only one")
    done = lmerge("query", "choose", "costs_of_a_test.py:both", "x", "--engine", "native")
    assert done.error.startswith("--native: a native plan ends with the aggregates of windows")


def test_functions_need_a_sample(lmerge: Lmerge, calibration: Path) -> None:
    asked = ("query", "choose", "costs_of_a_test.py:odd")
    assert lmerge(*asked, "facts.jsonl", "--slack", "1000").out.startswith("plan ")
    assert lmerge(*asked, "--stream", "9").error.startswith(
        "only a sample shows how long functions take: where udf("
    )
    done = lmerge("query", "explain", "costs_of_a_test.py:odd", "--stream", "9")
    assert done.out.endswith("how long functions take, only a sample shows: give --sample\n")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            ("--stream", "x"),
            "--stream x: give the time between events, and how long they last, as in 20,1",
        ),
        (
            ("--stream", "0"),
            "--stream 0: give the time between events, and how long they last, as in 20,1",
        ),
        (("--stream", "sea=9"), "--stream sea=9: name a source, as flights=9; there is flights"),
        ((), "give FACTS, or how they come by --stream"),
        (("facts.jsonl", "--stream", "9"), "give FACTS, or how they come by --stream"),
    ],
)
def test_each_mistake_is_one_line(
    options: tuple[str, ...], why: str, lmerge: Lmerge, calibration: Path
) -> None:
    done = lmerge("query", "choose", HOURLY, *options)
    assert (done.code, done.error) == (2, why)


def test_each_source_is_described(lmerge: Lmerge, calibration: Path) -> None:
    done = lmerge("query", "choose", "costs_of_a_test.py:both", "--stream", "sky=9")
    assert done.error == "--stream says nothing of flights: give flights=GAP"


def test_without_the_costs_of_the_machine_nothing_is_chosen(lmerge: Lmerge, costs: Path) -> None:
    done = lmerge("query", "choose", HOURLY, "facts.jsonl")
    assert (done.code, done.error) == (2, f"there is no {costs}: run `lmerge query calibrate`")
    costs.parent.mkdir()
    costs.write_text("{}")
    assert "is no calibration" in lmerge("query", "choose", HOURLY, "facts.jsonl").error


@pytest.mark.full
def test_the_machine_is_measured_into_a_file(
    lmerge: Lmerge, costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few plans: `tests/queries/costs` measures with all."""
    few = [each for at, each in enumerate(calibrating.trials()) if at % 9 == 0]
    monkeypatch.setattr(calibrating, "trials", lambda: iter(few))
    monkeypatch.setattr(calibrating, "_EVENTS", 200)
    done = lmerge("query", "calibrate")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{costs}: the costs of {len(UNITS)} units of work, ")
    shown = json.loads(costs.read_text())
    assert max(shown["nanoseconds"].values()) > 0 < min(shown["bytes"].values())
    assert lmerge("query", "choose", HOURLY, "facts.jsonl").code in (0, 1)
