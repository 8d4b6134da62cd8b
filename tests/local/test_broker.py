"""The local broker: a real Kafka that starts, serves, survives and ends as it promises."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from typer.testing import CliRunner, Result

from lmerge_service.cli.broker import app
from lmerge_service.errors import (
    ConfigurationError,
    EnvironmentMissingError,
    StateError,
    TransportError,
)
from lmerge_service.local import jars, jvm
from lmerge_service.local.broker import LocalBroker, default_directory, free_port

pytestmark = pytest.mark.kafka

T = TypeVar("T")


def run(work: Awaitable[T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(30):
            return await work

    return asyncio.run(bounded())


async def create(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()


async def produce(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    limit = 18 * 1024 * 1024
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=limit) as producer:
        for value in values:
            await producer.send_and_wait(topic, value)


async def consume(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    partition = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed"
    ) as consumer:
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        return [(await consumer.getone()).value for _ in range(count)]


def until(reached: Callable[[], bool], seconds: float = 5) -> None:
    """Waits for a state: a signal takes effect when the process is next scheduled."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def ended(pid: int) -> bool:
    """Whether the process ends in time; one that nobody reaps has ended too."""
    try:
        psutil.Process(pid).wait(10)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is nobody's broker."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.full
def test_it_serves_what_it_was_given_even_records_of_15_mb(
    broker: LocalBroker, topic_name: Callable[..., str]
) -> None:
    topic, values = topic_name(), [b"small", os.urandom(15 * 1024 * 1024)]
    run(create(broker.bootstrap, topic))
    run(produce(broker.bootstrap, topic, values))
    assert run(consume(broker.bootstrap, topic, 2)) == values


def test_readers_of_committed_records_see_no_aborted_transaction(
    broker: LocalBroker, topic_name: Callable[..., str]
) -> None:
    topic = topic_name()

    async def transact() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap, transactional_id=topic
        ) as producer:
            for value, commit in ((b"a", True), (b"b", False), (b"c", True)):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, value)
                await (producer.commit_transaction if commit else producer.abort_transaction)()

    run(create(broker.bootstrap, topic))
    run(transact())
    assert run(consume(broker.bootstrap, topic, 2)) == [b"a", b"c"]


@pytest.mark.full
def test_after_kill_9_it_starts_with_the_same_data_on_the_same_port(
    broker: LocalBroker, topic_name: Callable[..., str]
) -> None:
    topic, bootstrap, pid = topic_name(), broker.bootstrap, broker.pid
    run(create(bootstrap, topic))
    run(produce(bootstrap, topic, [b"kept"]))
    broker.kill()
    assert not broker.running
    run(broker.astart())
    assert (broker.bootstrap, broker.pid == pid) == (bootstrap, False)
    assert run(consume(bootstrap, topic, 1)) == [b"kept"]


def test_a_directory_is_served_once(broker: LocalBroker) -> None:
    with pytest.raises(ConfigurationError, match=f"process {broker.pid}.*already"):
        LocalBroker(broker.directory).start()
    assert broker.running


def test_topics_are_not_made_by_using_them(
    broker: LocalBroker, topic_name: Callable[..., str]
) -> None:
    async def partitions() -> set[int] | None:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            await producer.client.fetch_all_metadata()
            return producer.client.cluster.partitions_for_topic(topic)  # type: ignore[no-any-return]

    topic = topic_name()
    assert run(partitions()) is None


@pytest.mark.full
def test_a_paused_broker_runs_and_can_be_stopped(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        pid = broker.pid
        broker.pause()
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        assert broker.running
        broker.resume()
        until(lambda: psutil.Process(pid).status() != psutil.STATUS_STOPPED)
        broker.pause()
        broker.stop()
        assert not psutil.pid_exists(pid)
        broker.stop()  # once more is fine


@pytest.mark.full
def test_it_dies_when_its_starter_is_killed(tmp_path: Path) -> None:
    script = f"""
from lmerge_service.local.broker import LocalBroker
with LocalBroker({str(tmp_path)!r}) as broker:
    print(broker.pid, flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert psutil.pid_exists(pid)
        starter.kill()
    assert ended(pid)


@pytest.mark.parametrize("platform", ["'linux'", "'elsewhere'"])
@pytest.mark.parametrize("dies", [True, False])
def test_a_child_dies_with_its_parent_if_asked_to(
    tmp_path: Path, platform: str, *, dies: bool
) -> None:
    script = f"""
from pathlib import Path
from lmerge_service.local import jvm
jvm._LAUNCHER = jvm._LAUNCHER.replace('"linux"', {platform!r})
here = Path({str(tmp_path)!r})
print(*jvm.spawn(["/bin/sleep", "60"], here, here / "log", dies_with_us={dies}), flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid, created = parent.stdout.readline().split()
        record = jvm.ServerRecord(int(pid), float(created), 0, "")
        child = jvm.find(record)
        assert child is not None
        parent.kill()
    if dies:
        assert ended(child.pid)
    else:
        child.kill()


def test_listeners_that_are_given_ports_have_each_their_own() -> None:
    wish = free_port()
    assert free_port(wish) == wish
    assert free_port(wish, but={wish}) != wish


def test_a_port_that_is_taken_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EnvironmentMissingError, match=rf"^port {port} .* is taken.*$"):
            LocalBroker(tmp_path, port).start()


@pytest.mark.full
def test_another_broker_that_was_quicker_does_not_answer_for_it(
    broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that start at once find the same port free."""
    monkeypatch.setattr("lmerge_service.local.broker.is_free", lambda _port: True)
    late = LocalBroker(tmp_path, broker.port)
    with pytest.raises(TransportError, match="Address already in use"):
        late.start()
    assert not late.running
    assert broker.running


def test_why_it_did_not_start_is_quoted_from_its_log(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path, settings={"num.io.threads": "many"})
    with pytest.raises(TransportError, match=r"Invalid value many for .*io.threads") as refused:
        broker.start()
    assert "\n" not in str(refused.value)
    assert not broker.running


def test_a_broker_that_is_not_ready_in_time_is_ended(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path, timeout=0.2)
    with pytest.raises(TransportError, match=r"did not answer .* in 0.2 s"):
        broker.start()
    assert not broker.running


@pytest.mark.full
def test_a_half_formatted_directory_is_formatted_anew(tmp_path: Path) -> None:
    for name in ("data", "data.new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bootstrap.checkpoint").write_bytes(b"half")
    with LocalBroker(tmp_path) as broker:
        assert broker.running


def test_topics_without_their_meta_properties_are_not_removed(tmp_path: Path) -> None:
    topic = tmp_path / "data" / "topic-0"
    topic.mkdir(parents=True)
    with pytest.raises(StateError, match=r"no meta\.properties"):
        LocalBroker(tmp_path).start()
    assert topic.is_dir()


@pytest.mark.parametrize("age", [0, 3600])
def test_a_process_that_was_given_the_id_again_is_left_alone(
    tmp_path: Path, stranger: subprocess.Popen[bytes], age: int
) -> None:
    created = psutil.Process(stranger.pid).create_time() - 60 - age
    jvm.write(tmp_path / "broker.json", jvm.ServerRecord(stranger.pid, created, 9092, "Java"))
    broker = LocalBroker(tmp_path)
    assert not broker.running
    for signalled in (broker.pause, broker.stop, broker.kill):
        signalled()
    assert psutil.Process(stranger.pid).status() != psutil.STATUS_STOPPED
    assert stranger.poll() is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"pid": "x"}', b"\xff\x00"])
def test_a_damaged_record_names_nobody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broker.json").write_bytes(content)
    broker = LocalBroker(tmp_path)
    assert not broker.running
    broker.stop()


@pytest.mark.parametrize("missing", ["jgo", "psutil"])
def test_without_the_extra_one_line_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(EnvironmentMissingError, match=r"^.*pip install 'lmerge-service\[demo\]'$"):
        LocalBroker(tmp_path / "broker").start()


def test_jars_that_are_not_the_expected_ones_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(_: object, repository: Path, report: Callable[[str], None]) -> Iterator[Path]:
        repository.mkdir()
        (repository / "kafka.jar").write_bytes(b"evil")
        yield repository / "kafka.jar"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jars, "_resolve", resolve)
    with pytest.raises(EnvironmentMissingError, match="not the ones"):
        jars.kafka_jars()
    assert not list(tmp_path.rglob("*.jar"))


def test_a_download_that_fails_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(_: object, repository: Path, report: Callable[[str], None]) -> Iterator[Path]:
        raise ConnectionError("no route to host\nmore\nof it")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jars, "_resolve", resolve)
    with pytest.raises(
        EnvironmentMissingError, match=r"^[^\n]*not be downloaded: no route to host$"
    ):
        jars.kafka_jars()


def test_a_java_that_is_too_old_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert jars.find_java().path != java


def lmerge_broker(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.mark.full
def test_the_commands_start_show_stop_and_clean(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "broker"))
    assert lmerge_broker("status", *data).exit_code == 1
    assert lmerge_broker("stop", *data).exit_code == 0
    try:
        port = str(free_port())  # 0 would be the one that commands ask, if it is free
        started = lmerge_broker("start", "--json", "--port", port, *data)
        assert started.exit_code == 0, started.output
        facts = json.loads(started.stdout)
        again = lmerge_broker("start", *data)
        assert again.exit_code == 0
        assert f"is running already at {facts['bootstrap']}" in again.output
        assert again.output.endswith(f"export LMERGE_BOOTSTRAP={facts['bootstrap']}\n")
        status = lmerge_broker("status", "--json", *data)
        assert (status.exit_code, json.loads(status.stdout)) == (0, facts)
        assert isinstance(lmerge_broker("clean", "--yes", *data).exception, ConfigurationError)
        assert lmerge_broker("stop", *data).exit_code == 0
        assert ended(facts["pid"])
    finally:
        LocalBroker(tmp_path / "broker").kill()
    assert lmerge_broker("clean", *data).exit_code == 1  # asked, and had no answer
    assert (tmp_path / "broker" / "data").is_dir()
    assert lmerge_broker("clean", "--yes", *data).exit_code == 0
    assert not (tmp_path / "broker" / "data").exists()


@pytest.mark.full
def test_the_broker_of_a_command_outlives_the_command(tmp_path: Path) -> None:
    environment = {**os.environ, "LMERGE_HOME": str(tmp_path)}
    command = "from lmerge_service.cli.broker import app; app(['start', '--json'])"
    try:
        done = subprocess.run(
            [sys.executable, "-c", command], env=environment, capture_output=True, check=True
        )
        facts = json.loads(done.stdout)
        assert facts["data"] == str(tmp_path / "broker")
        assert LocalBroker(tmp_path / "broker").pid == facts["pid"]
        run(create(facts["bootstrap"], "topic"))
    finally:
        LocalBroker(tmp_path / "broker").kill()


def test_the_default_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LMERGE_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_directory() == Path("/state/lmerge/broker")
    monkeypatch.setenv("LMERGE_HOME", "/home")
    assert default_directory() == Path("/home/broker")
