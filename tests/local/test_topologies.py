"""The shipped topologies as their pages state: brought up, maimed, and audited.

Faster than there: the facts of a month take a minute.
"""

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from lmerge_service.local.broker import free_port
from tests.leaving import left_behind
from tests.local.running import Upped, lmerge

pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]

SHIPPED = Path("topologies")
_SECONDS = 600


def faster(folder: Path, *names: str, rate: int = 1500) -> Path:
    """The first of these topologies, beside the others, with a Kafka on a free port and so many
    facts a second."""
    port = free_port()
    for name in names:
        text = (SHIPPED / f"{name}.yaml").read_text()
        text = text.replace("127.0.0.1:9092", f"127.0.0.1:{port}").replace(
            "--rate, 400", f"--rate, {rate}"
        )
        (folder / f"{name}.yaml").write_text(text)
    shutil.copy(SHIPPED / "flights.py", folder)
    return folder / f"{names[0]}.yaml"


def kill(up: Upped, *names: str) -> None:
    for name in names:
        os.kill(up.process_of(name)["pid"], signal.SIGKILL)


def states(up: Upped, merge: str) -> dict[str, tuple[str, int]]:
    """Of each replica: what it is, and which incarnation."""
    replicas = up.status(merge).get("replicas", ())
    return {each["name"]: (each["state"], each["incarnation"]) for each in replicas}


def publishing(up: Upped, merge: str) -> set[str]:
    """The replicas that have declared something stable."""
    replicas = up.status(merge).get("replicas", ())
    return {each["name"] for each in replicas if each["stable_point"] is not None}


def stable(up: Upped, merge: str) -> int:
    return int(up.status(merge).get("output", {}).get("stable_point") or 0)


def leading(up: Upped, merge: str) -> str:
    """The process that leads the merge."""
    for worker in up.shown["workers"]:
        status = worker["status"] or {}
        if status.get("name") == merge and status["output"]["leader"]:
            port = worker["at"].rpartition(":")[2]
            break
    return next(
        str(each["name"])
        for each in up.shown["processes"]
        if each["pid"] and port in Path(f"/proc/{each['pid']}/cmdline").read_text().split("\0")
    )


def audited(
    up: Upped,
    topic: str,
    output: str,
    query: str = "delays",
    source: str = "flights.facts",
    plan: int = 3,
) -> None:
    """One more copy of the query, that has seen everything, and the output mean the same."""
    at, to = ("--bootstrap", up.shown["bootstrap"]), f"check.{query}"
    what = (f"{SHIPPED.absolute()}/flights.py:{query}", "--plan", str(plan))
    copy = lmerge(up.folder, "query", "run", *what, "--topic", f"{source}={topic}", "--to", to, *at)
    assert copy.returncode == 0, copy.stderr
    audit = lmerge(up.folder, "audit", f"kafka:{to}", f"kafka:{output}", *at)
    assert audit.returncode == 0, audit.stdout + audit.stderr


@pytest.mark.parametrize(
    "name",
    [
        "high-availability-plain",
        pytest.param("high-availability", marks=pytest.mark.xdist_group("spark")),
    ],
)
def test_two_of_three_die_and_are_merged_again_by_themselves(tmp_path: Path, name: str) -> None:
    if name == "high-availability":
        pytest.importorskip("pyspark")
    rate = 1500 if name.endswith("plain") else 400  # Spark is to be there before the facts end
    with Upped(tmp_path, faster(tmp_path, name, rate=rate)) as up:
        up.until("all to publish", lambda: publishing(up, name) == set("abc"), _SECONDS)
        kill(up, "a", "b")
        at = stable(up, name)
        up.until("the output to go on", lambda: stable(up, name) > at, _SECONDS)
        killed = inserts_of(up, name, "a"), inserts_of(up, name, "b")
        up.until(
            "both to go on",
            lambda: inserts_of(up, name, "a") > killed[0] and inserts_of(up, name, "b") > killed[1],
            _SECONDS,
        )
        assert states(up, name) == dict.fromkeys("abc", ("joined", 0))
        assert all(up.process_of(each)["restarts"] == 1 for each in "ab")
        kill(up, leading(up, name))
        up.until_ended(name, _SECONDS)
        audited(up, "ha.facts", "ha.merged")
        assert up.end(signal.SIGINT) == 0
    assert left_behind(tmp_path) == []


def test_a_query_over_a_merge_of_queries_goes_on_though_all_are_killed(tmp_path: Path) -> None:
    """The plan that revises, the query over the merge, and the worker, one after the other."""
    name = "queries"
    with Upped(tmp_path, faster(tmp_path, name)) as up:
        up.until("both to publish", lambda: publishing(up, name) == {"early", "firm"}, _SECONDS)
        kill(up, "early", "busy")
        killed = inserts_of(up, name, "early")
        up.until("it to go on", lambda: inserts_of(up, name, "early") > killed, _SECONDS)
        kill(up, leading(up, name))
        up.until_ended(name, _SECONDS)
        up.until(
            "all to have ended",
            lambda: all(
                up.process_of(each)["exit_code"] == 0 for each in ("early", "firm", "busy")
            ),
            _SECONDS,
        )
        assert states(up, name) == dict.fromkeys(("early", "firm"), ("joined", 0))
        assert all(not each["breaches"] for each in up.status(name)["replicas"])
        audited(up, "flights.facts", "delays.merged")
        audited(up, "delays.merged", "busy", "busy", source="delays.merged", plan=1)
        assert up.end(signal.SIGINT) == 0
    assert left_behind(tmp_path) == []


def test_a_loss_at_a_site_stays_there(tmp_path: Path) -> None:
    topology = faster(tmp_path, "hierarchy", "hierarchy-east", "hierarchy-west")
    with Upped(tmp_path, topology) as up:
        up.until(
            "the sites to publish",
            lambda: publishing(up, "hierarchy") == {"east", "west"},
            _SECONDS,
        )
        up.until(
            "its copy to publish", lambda: "early" in publishing(up, "hierarchy-east"), _SECONDS
        )
        kill(up, "hierarchy-east.early", "hierarchy-west.worker-1")
        killed = inserts_of(up, "hierarchy-east", "early")
        up.until(
            "the copy to go on",
            lambda: inserts_of(up, "hierarchy-east", "early") > killed,
            _SECONDS,
        )
        up.until_ended("hierarchy", _SECONDS)
        audited(up, "hierarchy.facts", "hierarchy.merged")
        assert up.process_of("hierarchy-west.worker-1")["restarts"] == 1
        assert up.end(signal.SIGINT) == 0
    assert left_behind(tmp_path) == []


def test_a_new_plan_takes_the_place_of_the_old_one_though_the_worker_is_killed(
    tmp_path: Path,
) -> None:
    """Compared first, by a process that the cutover waits for; then the old one is ended."""
    name = "cutover"
    with Upped(tmp_path, faster(tmp_path, name, rate=600)) as up:
        up.until("both to be watched", lambda: cut(up) == "watching", _SECONDS)
        folder = Path(up.shown["folder"])
        assert "nothing would differ" in (folder / "compare.log").read_text()
        kill(up, leading(up, name))
        up.until("the cutover to be done", lambda: cut(up) == "done", _SECONDS)
        up.until("it to have ended", lambda: up.process_of("cutover")["state"] == "ended")
        kill(up, "old")
        at = stable(up, name)
        up.until("the output to go on", lambda: stable(up, name) > at, _SECONDS)
        known = {"old": "detached", "new": "joined"}
        assert {each: what for each, (what, _) in states(up, name).items()}.items() <= known.items()
        up.until_ended(name, _SECONDS)
        audited(up, "cutover.facts", "cutover.merged")
        assert up.end(signal.SIGINT) == 0
    assert left_behind(tmp_path) == []


def cut(up: Upped) -> str | None:
    """The state of the cutover."""
    return (up.status("cutover").get("cutover") or {}).get("state")


def test_a_copy_that_begins_with_a_checkpoint_joins_before_one_that_begins_cold(
    tmp_path: Path,
) -> None:
    """And goes on from its own words when it is killed. The cold one begins with the facts of two
    days later than there, so that days of seconds are long enough."""
    name, topology = "jumpstart", faster(tmp_path, "jumpstart")
    text, now = topology.read_text(), 1_357_160_400_000
    for old, new in (
        ("--rate, 100", "--rate, 400"), ("sleep, 40", "sleep, 10"),
        (str(now), str(now + 2 * 86_400_000)),
    ):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    topology.write_text(text)
    with Upped(tmp_path, topology) as up:
        up.until("d to be there", lambda: "d" in states(up, name), _SECONDS)
        up.until("c to be joined", lambda: states(up, name).get("c") == ("joined", 0), _SECONDS)
        assert states(up, name)["d"][0] != "joined"
        up.until("c to publish", lambda: inserts_of(up, name, "c") > 300, _SECONDS)
        kill(up, "c")
        up.until("d to be joined", lambda: states(up, name)["d"] == ("joined", 1), _SECONDS)
        up.until_ended(name, _SECONDS)
        up.until(
            "all to have ended",
            lambda: all(up.process_of(each)["exit_code"] == 0 for each in "acd"),
        )
        assert states(up, name)["c"] == ("joined", 0)
        log = Path(up.shown["folder"], "c.log").read_text()
        assert log.count("resumes by what the topic holds") == 1
        assert all(not each["breaches"] for each in up.status(name)["replicas"])
        audited(up, "jumpstart.facts", "jumpstart.merged", "in_air")
        assert up.end(signal.SIGINT) == 0
    assert left_behind(tmp_path) == []


def inserts_of(up: Upped, merge: str, name: str) -> int:
    """Inserts of a replica."""
    replicas = up.status(merge).get("replicas", ())
    return next((int(each["inserts"]) for each in replicas if each["name"] == name), 0)


def test_what_follows_whoever_is_ahead_is_what_they_all_publish(tmp_path: Path) -> None:
    topology = faster(tmp_path, "fast-availability")
    topology.write_text(topology.read_text().replace('"1,2,3,4,5"', '"1"'))
    with Upped(tmp_path, topology) as up:
        up.until_ended("fast-availability", _SECONDS)
        up.until(
            "all to have published all",
            lambda: all(up.process_of(each)["exit_code"] == 0 for each in "abcd"),
        )
        streams = Path(up.shown["folder"]) / "streams"
        at = ("--bootstrap", up.shown["bootstrap"])
        audit = lmerge(tmp_path, "audit", str(streams / "0.ndjson"), "kafka:fast.merged", *at)
        assert audit.returncode == 0, audit.stdout + audit.stderr
        assert up.end(signal.SIGINT) == 0
    assert left_behind(tmp_path) == []


def test_two_plans_that_use_feedback_publish_the_answer_though_one_is_killed(
    tmp_path: Path,
) -> None:
    """A fifth of the readings. A plan that begins anew leaves out all that is final meanwhile."""
    topology = faster(tmp_path, "fast-forward")
    fewer = "--count, 40000, --batch, 2000-6000"
    topology.write_text(topology.read_text().replace("--count, 200000", fewer))
    assert fewer in topology.read_text()
    with Upped(tmp_path, topology) as up:
        name, plans = "fast-forward", ("udf0", "udf1")
        up.until("both to publish", lambda: publishing(up, name) == set(plans), _SECONDS)
        kill(up, "udf0")
        up.until_ended(name, _SECONDS)
        up.until(
            "both to have ended",
            lambda: all(up.process_of(each)["exit_code"] == 0 for each in plans),
        )
        assert states(up, name) == {"udf0": ("joined", 1), "udf1": ("joined", 0)}
        assert all(not each["breaches"] for each in up.status(name)["replicas"])
        log = Path(up.shown["folder"], "udf0.log").read_text()
        assert "incarnation 1, uses feedback of forward.merged" in log
        assert left_out(log.rpartition("incarnation 1")[2]) > 0
        at = ("--bootstrap", up.shown["bootstrap"])
        query = ("--readings", "forward.readings", "--to", "check", "--cheap", "0", "--dear", "0")
        check = lmerge(tmp_path, "query", "select", "--plan", "5", *query, *at)
        assert check.returncode == 0, check.stderr
        audit = lmerge(tmp_path, "audit", "kafka:check", "kafka:forward.merged", *at)
        assert audit.returncode == 0, audit.stdout + audit.stderr
        assert up.end(signal.SIGINT) == 0
    assert left_behind(tmp_path) == []


def left_out(log: str) -> int:
    """Readings, by the last line that has them."""
    return int(re.findall(r"([0-9,]+) left out;", log)[-1].replace(",", ""))
