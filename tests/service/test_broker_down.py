"""What is started while one of three brokers is down, and has been for no time at all."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.formats.wire import encode
from lmerge_service.local.nodes import LocalCluster
from lmerge_service.tdb import TDB
from tests.service.cluster import Merge

pytestmark = pytest.mark.kafka

EVENTS = [Insert(b"%d" % number, number, number + 5) for number in range(50)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(
        tmp_path_factory.mktemp("nodes"), settings={"auto.create.topics.enable": "true"}
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


def lmerge(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lmerge_service.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.full
@pytest.mark.parametrize(
    ("victim", "how"),
    [
        (2, "kill"),
        pytest.param(1, "kill", marks=pytest.mark.deep),
        pytest.param(3, "kill", marks=pytest.mark.deep),
        pytest.param(1, "pause", marks=pytest.mark.deep),
        pytest.param(2, "pause", marks=pytest.mark.deep),
        pytest.param(3, "pause", marks=pytest.mark.deep),
    ],
)
def test_n18_every_command_comes_through_while_a_broker_is_down_at_its_start(
    cluster: LocalCluster, tmp_path: Path, victim: int, how: str
) -> None:
    merge = Merge(cluster.bootstrap, tmp_path, replicas=("a", "b"))
    stream: list[Element] = [*EVENTS, Stable(INFINITY)]
    file = tmp_path / "stream.ndjson"
    file.write_bytes(b"".join(encode(each) + b"\n" for each in stream))
    merge.publish("a", stream[:25])  # a topic from before; the other one is new
    getattr(cluster.node(victim), how)()
    try:
        with merge.worker() as worker:
            publishing = [
                lmerge("publish", str(file), merge.topics[name], "--bootstrap", cluster.bootstrap)
                for name in ("a", "b")
            ]
            reading = lmerge(
                "read", *merge.topics.values(), "--follow", "--bootstrap", cluster.bootstrap
            )
            for each in [*publishing, reading]:
                out, errors = each.communicate(timeout=90)
                assert (each.returncode, "error" in errors) == (0, False), errors
            assert out.count("insert") == len(EVENTS)
            worker.wait(lambda status: status["output"]["ended"], "the output to end", 90)
    finally:
        cluster.node(victim).resume()
        cluster.start()
    assert merge.output_is(TDB((each.payload, each.vs, each.ve) for each in EVENTS))
