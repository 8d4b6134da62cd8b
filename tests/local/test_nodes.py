"""Several local brokers as one cluster: what is replicated, what goes on without a node, and what
the commands report of each."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from typer.testing import CliRunner, Result

from lmerge_service.cli.broker import app
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import LocalBroker, free_port, members_seen
from lmerge_service.local.nodes import LocalCluster, is_cluster

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("nodes"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture
def whole(cluster: LocalCluster) -> LocalCluster:
    """All nodes run, whatever the test before has left."""
    for node in cluster.nodes.values():
        node.resume()
    cluster.start()
    return cluster


def write(bootstrap: str, topic: str, value: bytes) -> int:
    """The offset, when two replicas have it."""

    async def written() -> int:
        async with (
            asyncio.timeout(60),
            AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer,
        ):
            return int((await producer.send_and_wait(topic, value, partition=0)).offset)

    return asyncio.run(written())


def ensure(bootstrap: str, topic: str) -> None:
    async def ensured() -> None:
        async with Topics(Connection(bootstrap)) as topics:
            await topics.ensure(topic)

    asyncio.run(ensured())


def replicas(bootstrap: str, topic: str) -> list[list[int]]:
    async def asked() -> list[list[int]]:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            [found] = await admin.describe_topics([topic])
        finally:
            await admin.close()
        return [sorted(each["replicas"]) for each in found["partitions"]]

    return asyncio.run(asked())


def until(reached: Callable[[], bool], seconds: float = 30) -> None:
    """Waits for a state."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def seen(cluster: LocalCluster, number: int) -> set[int]:
    return asyncio.run(members_seen(cluster.node(number).port))


@pytest.mark.full
def test_n18_three_nodes_are_one_cluster_with_everything_on_each(whole: LocalCluster) -> None:
    assert [seen(whole, number) for number in (1, 2, 3)] == [{1, 2, 3}] * 3
    ensure(whole.bootstrap, "replicated")
    assert replicas(whole.bootstrap, "replicated") == [[1, 2, 3]]

    async def transact() -> None:
        async with (
            AIOKafkaProducer(bootstrap_servers=whole.bootstrap, transactional_id="t") as producer,
            producer.transaction(),
        ):
            await producer.send("replicated", b"x")

    asyncio.run(transact())
    assert replicas(whole.bootstrap, "__transaction_state") == [[1, 2, 3]] * 4


@pytest.mark.deep
def test_n18_a_topic_that_is_made_while_a_node_is_down_is_replicated_to_it_too(
    whole: LocalCluster,
) -> None:
    whole.node(2).kill()
    until(lambda: seen(whole, 1) == seen(whole, 3) == {1, 3})
    ensure(f"{whole.node(1).bootstrap},{whole.node(3).bootstrap}", "made-of-two")
    assert replicas(whole.node(1).bootstrap, "made-of-two") == [[1, 2, 3]]


@pytest.mark.deep
def test_n18_with_one_node_down_writes_go_on_and_with_two_they_wait(whole: LocalCluster) -> None:
    bootstrap = whole.bootstrap
    ensure(bootstrap, "written")
    whole.stop(3)
    assert whole.running == [1, 2]
    assert write(bootstrap, "written", b"with two nodes") == 0
    whole.node(2).kill()

    async def wait_and_go_on() -> int:
        async with AIOKafkaProducer(
            bootstrap_servers=whole.node(1).bootstrap, enable_idempotence=True
        ) as producer:
            sent = await producer.send("written", b"with one node", partition=0)
            _, pending = await asyncio.wait([sent], timeout=1)
            assert pending, "one replica is not enough"
            assert await whole.astart(2)
            return int((await asyncio.wait_for(sent, 60)).offset)

    assert asyncio.run(wait_and_go_on()) == 1


@pytest.mark.deep
def test_n18_one_node_that_has_no_quorum_is_not_waited_for(whole: LocalCluster) -> None:
    whole.kill()
    assert whole.start(1) is False
    assert whole.running == [1]
    assert whole.start(2) is True
    assert {1, 2} <= seen(whole, 1)


@pytest.mark.deep
def test_a_directory_is_of_as_many_nodes_as_it_was_first(
    whole: LocalCluster, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="has 3 nodes, not 1"):
        LocalCluster(whole.directory, 1)
    with pytest.raises(ConfigurationError, match=r"there is no node 4: .* has 1, 2, 3"):
        whole.node(4)
    with pytest.raises(ConfigurationError, match="nodes 1, 2, 3 run"):
        whole.clean()
    (tmp_path / "data").mkdir()
    with pytest.raises(ConfigurationError, match="holds a broker of one node"):
        LocalCluster(tmp_path)


def test_a_damaged_description_of_a_cluster_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"cluster": 1')
    with pytest.raises(StateError, match=r"^.*cluster\.json cannot be read: [^\n]*$"):
        LocalCluster(tmp_path)


@pytest.mark.deep
def test_all_nodes_die_when_their_starter_is_killed(tmp_path: Path) -> None:
    script = f"""
from lmerge_service.local.nodes import LocalCluster
with LocalCluster({str(tmp_path)!r}) as cluster:
    print(*(node.pid for node in cluster.nodes.values()), flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        nodes = [psutil.Process(int(pid)) for pid in starter.stdout.readline().split()]
        assert len(nodes) == 3
        starter.kill()
    gone, alive = psutil.wait_procs(nodes, 10)
    assert all(each.status() == psutil.STATUS_ZOMBIE for each in alive), (gone, alive)


def lmerge_broker(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def answered(*arguments: str) -> tuple[int, Any]:
    found = lmerge_broker(*arguments, "--json")
    return found.exit_code, json.loads(found.stdout)


@pytest.mark.deep
def test_n18_the_commands_start_show_stop_and_clean_each_node(tmp_path: Path) -> None:
    directory = tmp_path / "broker"
    data = ("--data", str(directory))
    port = free_port()
    try:
        code, facts = answered("start", "--nodes", "3", "--port", str(port), *data)
        assert (code, facts["running"]) == (0, True)
        assert facts["bootstrap"] == ",".join(f"127.0.0.1:{port + n}" for n in range(3))
        assert answered("status", *data) == (0, facts)
        assert "stopped (process" in lmerge_broker("stop", "--node", "2", *data).output
        code, partly = answered("status", *data)
        assert (code, partly["running"]) == (1, False)
        assert [each["running"] for each in partly["nodes"]] == [True, False, True]
        assert "node 2 is down" in lmerge_broker("status", *data).output
        assert answered("status", "--node", "2", *data)[0] == 1
        assert answered("status", "--node", "1", *data)[0] == 0
        assert "no broker runs" in lmerge_broker("stop", "--node", "2", *data).output
        assert answered("start", "--node", "2", *data)[1]["nodes"][0]["running"]
        assert answered("status", *data)[0] == 0
        assert "is running already" in lmerge_broker("start", *data).output
        wrong = lmerge_broker("stop", "--node", "4", *data).exception
        assert isinstance(wrong, ConfigurationError)
        assert isinstance(lmerge_broker("clean", "--yes", *data).exception, ConfigurationError)
        assert "stopped (processes" in lmerge_broker("stop", *data).output
        assert LocalCluster(directory).running == []
    finally:
        LocalCluster(directory).kill()
    assert lmerge_broker("clean", "--yes", *data).exit_code == 0
    assert not is_cluster(directory)
    assert not (directory / "node-1").exists()


def test_n18_what_cannot_be_asked_of_nodes_is_reported_in_one_line(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path))
    two = lmerge_broker("start", "--nodes", "2", *data).exception
    assert isinstance(two, ConfigurationError)
    assert str(two) == "--nodes 2: a local Kafka has 1 node or 3"
    none = lmerge_broker("stop", "--node", "2", *data).exception
    assert isinstance(none, ConfigurationError)
    assert "has no nodes" in str(none)
    ports = lmerge_broker("start", "--nodes", "3", "--port", "65534", *data).exception
    assert isinstance(ports, ConfigurationError)
    (tmp_path / "data").mkdir()
    single = lmerge_broker("start", "--nodes", "3", *data).exception
    assert isinstance(single, ConfigurationError)
    assert not LocalBroker(tmp_path).running
