"""`lmerge up` and `down` on real processes: they are started, restarted, ended, and only they."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from lmerge_service.local.broker import free_port
from tests.leaving import left_behind
from tests.local.running import Upped, lmerge

TopicName = Callable[..., str]


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """A stream of 300 events, presented twice."""
    elements = [f'{{"op":"insert","payload":{n},"vs":{n},"ve":{n + 9}}}\n' for n in range(300)]
    (tmp_path / "stream").write_text("".join(elements) + '{"op":"stable","vc":null}\n')
    done = lmerge(tmp_path, "present", str(tmp_path / "stream"), "-n", "2", "-o", str(tmp_path))
    assert done.returncode == 0, done.stderr
    return tmp_path / "stream"


def write(
    folder: Path, name: str, *processes: str, head: str = "", bootstrap: str | None = None
) -> Path:
    """A topology of two replicas, with these processes."""
    path = folder / f"{name}.yaml"
    at = bootstrap or f"127.0.0.1:{free_port()}"
    path.write_text(
        f"name: {name}\nkafka: {{bootstrap: '{at}'}}\noutput: {{topic: {name}.out}}\n"
        f"replicas:\n  - {{name: a, topic: {name}.a}}\n  - {{name: b, topic: {name}.b}}\n"
        "time_unit: none\nhttp: {port: 0}\n"
        f"up:\n  restart: {{backoff_seconds: 0.2}}\n{head}  processes:\n"
        + "".join(f"    - {each}\n" for each in processes)
    )
    return path


def publishing(path: str, topic: str, rate: int) -> str:
    name = topic[-1]
    return f"{{name: {name}, command: [lmerge, publish, {path}, {topic}, --rate, {rate}]}}"


def sleeping(name: str = "sleeper", more: str = "") -> str:
    return f"{{name: {name}, command: [sleep, 600]{more}}}"


@pytest.fixture
def bystander(tmp_path: Path) -> Iterator[int]:
    """A process that nobody who is tested here has started; it must live on."""
    process = subprocess.Popen([sys.executable, "-c", "input()", tmp_path], stdin=subprocess.PIPE)
    yield process.pid
    assert process.poll() is None, "it was ended"
    process.communicate(b"\n")


@pytest.mark.full
def test_a_killed_replica_is_started_again_and_ctrl_c_ends_all_of_it(
    tmp_path: Path, stream: Path
) -> None:
    topology = write(
        tmp_path, "t",
        publishing(str(tmp_path / "0.ndjson"), "t.a", 30),
        publishing(str(tmp_path / "1.ndjson"), "t.b", 40),
        head="  broker: {}\n",
    )  # fmt: skip
    with Upped(tmp_path, topology) as up:
        up.until("a to be merged", lambda: up.status("t").get("replicas", [{}])[0].get("inserts"))
        before = up.process_of("a")["pid"]
        os.kill(before, signal.SIGKILL)
        up.until("a to run again", lambda: up.process_of("a")["pid"] not in {None, before})
        assert up.process_of("a")["restarts"] == 1
        assert up.process_of("a")["exit_code"] == -9
        up.until_ended("t")
        at = ("--bootstrap", up.shown["bootstrap"])
        audit = lmerge(tmp_path, "audit", str(stream), "kafka:t.out", *at)
        assert audit.returncode == 0, audit.stdout + audit.stderr
        assert up.end(signal.SIGINT) == 0
    assert "Traceback" not in up.errors
    assert "t is down" in up.errors
    assert left_behind(tmp_path) == []


@pytest.mark.full
def test_what_goes_on_after_up_was_killed_is_ended_by_down(
    tmp_path: Path, bootstrap: str, topic_name: TopicName, bystander: int
) -> None:
    name = topic_name("t")
    topology = write(tmp_path, name, sleeping(), bootstrap=bootstrap)
    with Upped(tmp_path, topology) as up:
        up.until("the worker", lambda: up.shown and up.shown["workers"][0]["status"])
        pids = {each["pid"] for each in up.shown["processes"]}
        up.end(signal.SIGKILL)
        assert all(map(psutil.pid_exists, pids)), "they go on without it"
        again = lmerge(tmp_path, "up", str(topology))
        assert again.returncode == 2
        assert f"`lmerge down {topology}` ends them" in again.stderr
        topology.write_text("")  # what became of the file does not matter
        down = lmerge(tmp_path, "down", str(topology), "--json")
        assert json.loads(down.stdout) == {
            "was_up": True, "name": name, "left_by_supervisor": len(pids),
        }  # fmt: skip
    assert not any(map(psutil.pid_exists, pids))
    assert lmerge(tmp_path, "down", str(topology)).stdout == f"nothing of {topology} is up\n"


@pytest.mark.full
def test_in_the_background_it_is_ended_by_down_and_is_up_only_once(
    tmp_path: Path, bootstrap: str, topic_name: TopicName, bystander: int
) -> None:
    topology = write(
        tmp_path, topic_name("t"), sleeping(), head="  workers: 0\n", bootstrap=bootstrap
    )
    up = lmerge(tmp_path, "up", str(topology), "--detach", "--json")
    assert up.returncode == 0, up.stderr
    found = json.loads(up.stdout)
    assert list(found["processes"]) == ["sleeper"]
    again = lmerge(tmp_path, "up", str(topology), "--detach")
    assert again.returncode == 2
    assert "is up already" in again.stderr
    assert len(again.stderr.splitlines()) == 1
    down = lmerge(tmp_path, "down", str(topology))
    assert down.returncode == 0, down.stderr
    pids = [found["supervisor"]["pid"], found["processes"]["sleeper"]["pid"]]
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.full
def test_what_fails_again_and_again_is_given_up_and_what_waits_for_it_never_begins(
    tmp_path: Path, bootstrap: str, topic_name: TopicName
) -> None:
    topology = write(
        tmp_path, topic_name("t"),
        "{name: bad, command: [sh, -c, 'echo once; exit 7'], "
        "restart: {most: 2, backoff_seconds: 0}}",
        "{name: next, command: [sleep, 600], after: [bad]}",
        "{name: good, command: [sh, -c, 'echo $GIVEN $LMERGE_BOOTSTRAP'], environment: {GIVEN: 5}}",
        "{name: then, command: [sh, -c, 'echo then'], after: [good]}",
        head="  workers: 0\n", bootstrap=bootstrap,
    )  # fmt: skip
    with Upped(tmp_path, topology, bootstrap) as up:
        assert up.process.wait(30) == 1
    assert "bad, next failed, and nothing runs any more" in up.errors
    bad, waiting = up.process_of("bad"), up.process_of("next")
    assert (bad["state"], bad["restarts"]) == ("failed", 2)
    assert bad["why"] == "failed with 7 after 2 restarts"
    assert Path(bad["log"]).read_text() == "once\n" * 3
    assert waiting["why"] == "comes after bad, which did not end well"
    assert Path(up.process_of("good")["log"]).read_text() == f"5 {bootstrap}\n"
    assert Path(up.process_of("then")["log"]).read_text() == "then\n"


@pytest.mark.full
def test_a_process_may_decide_and_so_may_who_reads_the_token(
    tmp_path: Path, bootstrap: str, topic_name: TopicName
) -> None:
    name, topic = topic_name("t"), topic_name("c")
    attach = "{name: add, command: [lmerge, attach, c, $(TOPIC)], environment: {TOPIC: %s}}"
    where = "{name: echo, command: [echo, $(LMERGE_TOPOLOGY) is on $(LMERGE_BOOTSTRAP)]}"
    topology = write(tmp_path, name, attach % topic, where, bootstrap=bootstrap)
    with Upped(tmp_path, topology) as up:
        up.until("add to have ended", lambda: up.process_of("add").get("state") == "ended")
        assert Path(up.process_of("echo")["log"]).read_text() == f"{topology} is on {bootstrap}\n"
        token = Path(up.shown["folder"]) / "token"
        assert token.stat().st_mode & 0o777 == 0o600
        at = ("--at", up.shown["workers"][0]["at"])
        refused = lmerge(tmp_path, "detach", "c", *at)
        assert (refused.returncode, "LMERGE_TOKEN" in refused.stderr) == (2, True), refused.stderr
        done = lmerge(tmp_path, "detach", "c", *at, "--token-file", str(token))
        assert done.returncode == 0, done.stderr
        assert up.end(signal.SIGINT) == 0
    assert not token.exists()


@pytest.mark.deep
def test_a_process_begins_when_its_topics_exist(
    tmp_path: Path, bootstrap: str, topic_name: TopicName
) -> None:
    name, topic = topic_name("t"), topic_name("late")
    topology = write(
        tmp_path, name, sleeping(more=f", topics: [{topic}]"), head="  workers: 0\n",
        bootstrap=bootstrap,
    )  # fmt: skip
    (tmp_path / "one").write_text('{"op":"stable","vc":null}\n')
    with Upped(tmp_path, topology) as up:
        waits = f"waits for the topic {topic}"
        up.until("it to wait", lambda: up.process_of("sleeper").get("why") == waits)
        assert up.process_of("sleeper")["state"] == "waiting"
        lmerge(tmp_path, "publish", str(tmp_path / "one"), topic, "--bootstrap", bootstrap)
        up.until("it to run", lambda: up.process_of("sleeper")["state"] == "running")
        assert up.end(signal.SIGTERM) == 0


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_n10_what_is_up_is_ended_in_order_when_that_is_asked_for_twice(
    tmp_path: Path, bootstrap: str, topic_name: TopicName, number: signal.Signals
) -> None:
    script = "trap 'sleep 0.5; echo in order; exit 0' TERM; echo ready; "
    script += "while :; do sleep 0.05; done"
    topology = write(
        tmp_path, topic_name("t"), f'{{name: slow, command: [sh, -c, "{script}"]}}',
        head="  workers: 0\n", bootstrap=bootstrap,
    )  # fmt: skip
    with Upped(tmp_path, topology) as up:
        up.until("it to run", lambda: up.process_of("slow").get("state") == "running")
        log = Path(up.process_of("slow")["log"])
        up.until("it to be ready", lambda: log.read_text() == "ready\n")
        up.process.send_signal(number)
        time.sleep(0.1)  # what is tested is that a second one then does not matter
        assert up.end(number) == 0
    assert log.read_text() == "ready\nin order\n"
    assert left_behind(tmp_path) == []


@pytest.mark.deep
def test_a_killed_kafka_is_started_again_and_down_ends_it_after_up_was_killed(
    tmp_path: Path, stream: Path
) -> None:
    topology = write(
        tmp_path, "t", publishing(str(tmp_path / "0.ndjson"), "t.a", 20), head="  broker: {}\n"
    )
    with Upped(tmp_path, topology) as up:
        up.until("a to be merged", lambda: up.status("t").get("replicas", [{}])[0].get("inserts"))
        before = up.process_of("kafka")["pid"]
        os.kill(before, signal.SIGKILL)
        up.until("Kafka", lambda: up.process_of("kafka")["pid"] not in {None, before})
        up.until_ended("t")
        at = ("--bootstrap", up.shown["bootstrap"])
        audit = lmerge(tmp_path, "audit", str(stream), "kafka:t.out", *at)
        assert audit.returncode == 0, audit.stdout + audit.stderr
        up.end(signal.SIGKILL)
        assert lmerge(tmp_path, "down", str(topology)).returncode == 0
    assert left_behind(tmp_path) == []


@pytest.mark.deep
def test_what_a_process_started_in_turn_is_ended_too(
    tmp_path: Path, bootstrap: str, topic_name: TopicName
) -> None:
    """Also what left its session, and lost its parent."""
    script = "setsid sleep 601 & echo $! ; exit 0"
    topology = write(
        tmp_path, topic_name("t"), f"{{name: maker, command: [sh, -c, '{script}']}}", sleeping(),
        head="  workers: 0\n", bootstrap=bootstrap,
    )  # fmt: skip
    with Upped(tmp_path, topology) as up:
        up.until("the child", lambda: up.process_of("maker").get("state") == "ended")
        child = int(Path(up.process_of("maker")["log"]).read_text())
        assert psutil.pid_exists(child)
        assert up.end(signal.SIGINT) == 0
    deadline = time.monotonic() + 5  # whoever inherited it has to wait for it
    while psutil.pid_exists(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(child)
