"""Whole drills, on real processes: one in which something is wrong that must be found; the standard
set in the night."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer

from lmerge_service.drills import actions, probes
from lmerge_service.drills.drills import STANDARD, experiment
from lmerge_service.drills.invariant_monitors import Arrivals, Hole
from lmerge_service.drills.page import page
from lmerge_service.drills.plan import Refused, plan_of
from lmerge_service.drills.replica import DrillStream, ReplicaSettings
from lmerge_service.drills.report import DrillResult, DrillTimeline, JudgedRun, LeaderTimeline
from lmerge_service.drills.variables import planned
from lmerge_service.errors import ConfigurationError
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import LocalBroker, free_port


def drill(*arguments: str) -> tuple[int, Any, str]:
    """Exit code, document, what was printed meanwhile."""
    done = subprocess.run(
        [sys.executable, "-m", "lmerge_service.cli", "drill", *arguments, "--json"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


def step(
    func: str, module: str = "lmerge_service.drills.actions", **arguments: Any
) -> dict[str, Any]:
    provider = {"type": "python", "module": module, "func": func, "arguments": arguments}
    return {"type": "action", "name": f"{func} {arguments}", "provider": provider}


@pytest.mark.full
@pytest.mark.timeout(290)
def test_what_is_wrong_with_an_output_fails_the_drill(tmp_path: Path) -> None:
    wanted = experiment("leader-dies")
    wanted["tags"] = ["doubled"]
    wanted["title"] = "<script>alert(1)</script>"
    wanted["configuration"] = {"workers": 1}
    wanted["method"] = [
        step("pause_replica", replica="a"),
        step("throttle", name="b", share=0.5),
        step("add_toxic", link="leader", kind="latency", latency=20, jitter=5),
        step("resume_replica", replica="a"),
        step("unthrottle", name="b"),
        step("mend_links"),
        step("kill_replica", replica="leader"),
        wanted["method"][-1],  # finish
        step("double", "tests.drills.doubling"),
    ]
    path = tmp_path / "doubled.json"
    path.write_text(json.dumps(wanted))
    code, found, printed = drill(str(path), "--html", str(tmp_path))
    assert code == 1, printed
    outcomes = {each["check"]: each["outcome"] for each in found["judged"]["findings"]}
    assert outcomes["K4"] == "invalid"
    assert not found["passed"]
    assert any(line.startswith("K4 is invalid: out-0") for line in found["why"]), found["why"]
    assert [each["status"] for each in found["steps"]] == ["succeeded"] * 9, found["steps"]
    assert "verdict of K1 to K8: valid" in printed  # before
    assert "verdict of K1 to K8: invalid" in printed
    html = (tmp_path / "doubled.html").read_text()
    assert "<script" not in html
    assert "Not passed" in html


@pytest.mark.deep
@pytest.mark.timeout(290)
def test_what_no_drill_of_the_standard_set_does_can_be_done(tmp_path: Path) -> None:
    """Clocks that are ahead, garbage, pauses, too little memory, a full disk; and the merge lives
    through all of it."""
    wanted = experiment("leader-dies")
    wanted["configuration"] = {"within": 120}
    wanted["steady-state-hypothesis"]["probes"][1]["tolerance"] = [0, 120]
    moving = step("seconds_until_moving", "lmerge_service.drills.probes")
    wanted["method"] = [
        step("deploy_replica", replica="a", skew=1.5),
        step("deploy_replica", replica="b", corrupt=0.1),
        moving,
        step("kill_replica", replica="c"),
        step("start_over", replica="c"),
        moving,
        step("pause_worker", worker="leader"),
        moving,
        step("heal"),
        step("seconds_until_all_serve", "lmerge_service.drills.probes"),
        step("pause_broker"),
        step("resume_broker"),
        moving,
        step("limit_memory", worker="leader", megabytes=1),
        step("fill_disk"),
        step("start_broker") | {"pauses": {"before": 5}},
        step("start_missing_workers"),
        moving,
        wanted["method"][-1],
    ]
    path = tmp_path / "acts.json"
    path.write_text(json.dumps(wanted))
    code, found, printed = drill(str(path))
    assert (code, found["why"]) == (0, []), printed


@pytest.mark.deep
@pytest.mark.timeout(60)
def test_a_replica_that_starts_while_there_is_no_kafka_publishes_when_there_is_one(
    tmp_path: Path,
) -> None:
    port = free_port()
    stream = DrillStream(began=int(time.time() * 1_000), finish=str(tmp_path / "finish"))
    part = ReplicaSettings(bootstrap=f"127.0.0.1:{port}", topic="t", number=0, stream=stream)
    command = [
        sys.executable,
        "-m",
        "lmerge_service.drills.replica",
        msgspec.json.encode(part).decode(),
    ]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE) as replica,
        LocalBroker(tmp_path / "kafka", port=port) as broker,
    ):
        try:
            assert asyncio.run(_first(broker.bootstrap, "t")), "and it lives"
            assert replica.poll() is None
        finally:
            replica.kill()


async def _first(bootstrap: str, topic: str) -> object:
    async with Topics(Connection(bootstrap)) as topics:
        await topics.ensure(topic)
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        return (await consumer.getone()).value


@pytest.mark.deep
@pytest.mark.timeout(290)
@pytest.mark.parametrize("name", STANDARD)
def test_the_standard_set_passes(name: str) -> None:
    code, found, printed = drill(name)
    assert (code, found["why"]) == (0, []), printed


@pytest.mark.parametrize("name", STANDARD)
def test_each_drill_is_an_experiment_that_describes_itself(name: str) -> None:
    found = experiment(name)
    assert found["tags"] == [name]
    assert plan_of(found["configuration"]).replicas
    assert found["description"].strip().endswith(".")


def test_the_page_about_drills_has_each_of_them_and_each_action() -> None:
    text = Path("docs/drills.md").read_text()
    steps = [
        name
        for module in (actions, probes)
        for name, each in vars(module).items()
        if getattr(each, "__module__", None) == module.__name__ and not name.startswith("_")
    ]
    assert {"kill_worker", "standstill", "finish", "verdict"} <= {*steps}
    for name in (*STANDARD, *steps):
        assert f"`{name}`" in text, name


def test_a_name_that_is_no_drill_is_a_mistake() -> None:
    with pytest.raises(ConfigurationError, match="no drill 'nope'"):
        experiment("nope")
    with pytest.raises(ConfigurationError, match=r"no file nope\.yaml"):
        experiment("nope.yaml")


def test_a_file_that_is_no_experiment_is_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("title: x\n")
    with pytest.raises(ConfigurationError, match="is no experiment"):
        experiment(str(path))


def test_a_plan_that_has_what_there_is_not_is_refused() -> None:
    with pytest.raises(Refused, match="wrokers"):
        plan_of({"wrokers": 3})
    with pytest.raises(Refused, match="of 3 workers only 2 would have a task"):
        plan_of({"workers": 3})
    with pytest.raises(Refused, match="lying"):
        plan_of({"replicas": {"a": {"lying": "much"}}})


@pytest.mark.full
@pytest.mark.timeout(290)
def test_n17_a_probe_of_the_method_that_misses_its_tolerance_fails_the_drill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an experiment with variables of its author's."""
    monkeypatch.setenv("TOTAL_CREW", "1")
    wanted = experiment("leader-dies")
    wanted["title"] = "Nothing fails, ${who} leads"
    wanted["configuration"] = {
        "workers": "${crew}",
        "crew": {"type": "env", "key": "TOTAL_CREW"},
        "who": "nobody",
        "expected": "w9",
        "unused": {"type": "env", "key": "NOT_SET", "default": ""},
    }
    met = step("worker_leads", "lmerge_service.drills.probes") | {
        "type": "probe",
        "tolerance": "w1",
    }
    missed = met | {"name": "who leads", "tolerance": "${expected}"}
    wanted["method"] = [met, missed, wanted["method"][-1]]
    path = tmp_path / "crew.json"
    path.write_text(json.dumps(wanted))
    code, found, printed = drill(str(path))
    assert (code, found["title"]) == (1, "Nothing fails, nobody leads"), printed
    assert found["why"] == ["who leads: w1, expected ${expected}"], printed


@pytest.mark.full
@pytest.mark.parametrize(
    ("configuration", "why"),
    [
        ({"wrokers": 3}, "wrokers"),
        ({"wrokers": {"type": "env", "key": "X", "default": 3}}, "wrokers"),
        ({"workers": 3}, "of 3 workers only 2 would have a task"),
        ({"workers": "many"}, "Expected `int`"),
        ({"rate": {"type": "env", "key": "LMERGE_NOT_SET"}}, "LMERGE_NOT_SET"),
        ({"rate": {"type": "env"}}, "key"),
        ([], "list"),
    ],
)
def test_n17_a_mistake_in_a_configuration_is_a_mistake(
    tmp_path: Path, configuration: object, why: str
) -> None:
    wanted = experiment("leader-dies") | {"configuration": configuration}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(wanted))
    code, _, printed = drill(str(path))
    assert code == 2, printed
    assert why in printed
    assert len(printed.splitlines()) == 1


def test_n17_variables_of_an_author_are_no_mistakes(tmp_path: Path) -> None:
    wanted = experiment("leader-dies")
    wanted["configuration"] = {
        "wait": 3, "rate": "${speed}", "speed": "50",
        "late": {"type": "probe", "name": "p", "provider": {"type": "process", "path": "date"}},
    }  # fmt: skip
    wanted["method"][0]["pauses"] = {"before": "${wait}"}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(wanted))
    assert planned(experiment(str(path)), wanted["configuration"]).rate == 50


def test_n17_a_tolerance_that_nothing_can_meet_is_a_mistake(tmp_path: Path) -> None:
    wanted = experiment("leader-dies")
    wanted["method"][1]["tolerance"] = {"type": "rnage", "range": [0, 1]}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(wanted))
    with pytest.raises(ConfigurationError, match="rnage"):
        experiment(str(path))


RESULT = DrillResult(
    name="x",
    title="<b>t</b>",
    description="d & e",
    passed=False,
    why=["K2 is invalid: <i>"],
    unplayed=False,
    judged=JudgedRun(
        outcome="invalid",
        findings=[{"check": "K2", "outcome": "invalid", "evidence": ["<u>"], "total": 1}],
        hole=Hole(101.0, 2.5, 0, 7),
        events=10,
    ),
    timeline=DrillTimeline(
        began=100.0,
        seconds=4.0,
        happened=[(1.0, "<s>kill</s>"), (1.01, "again")],
        leading=[LeaderTimeline("w1", "a", 0.0, 2.0), LeaderTimeline("w2", None, 2.0, 4.0)],
        bin=0.5,
        rate=[10.0] * 8,
        latency=[5.0, None] * 4,
    ),
    reasons=["<em>"],
    steps=[{"name": "n", "type": "action", "status": "failed", "seconds": 1.0, "output": "<o>"}],
)


def test_a_page_holds_what_was_printed_as_text_and_needs_nothing_else() -> None:
    html = page(RESULT)
    for tag in ("<b>", "<i>", "<u>", "<s>", "<em>", "<o>"):
        assert tag not in html
    text = " ".join(html.split())
    assert "2.50 s (from 1.0 s on)" in text
    assert "7 events in that time, of 10 events in all" in text
    assert "src=" not in html
    assert 'href="#' in html or "href=" not in html
    assert page(msgspec.convert(msgspec.to_builtins(RESULT), DrillResult)) == html


def test_the_longest_hole_is_of_any_partition_and_between_the_times() -> None:
    arrivals = Arrivals(Connection("127.0.0.1:1"), "out", 2)
    arrivals.times = [[0.0, 1.0, 2.0, 9.0], [1.0, 1.5, 4.5, 5.0]]
    assert arrivals.longest_hole(1.0, 4.9) == Hole(1.5, 3.0, 1)
    assert arrivals.longest_hole(0.0, 9.0) == Hole(2.0, 7.0, 0)
