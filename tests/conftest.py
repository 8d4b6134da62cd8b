"""Fixtures and settings that all tests share: a real broker, unique topics, Hypothesis profiles."""

import gc
import os
import signal
import sys
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from lmerge_service.local.broker import SETTINGS, LocalBroker
from lmerge_service.local.jars import KAFKA_VERSION

for name, examples in {"default": 25, "ci": 50, "deep": 2000}.items():
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        derandomize=False,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

MAKES_TOPICS = {"auto.create.topics.enable": "true"}
"""Kafka's default, which `lmerge broker` leaves off: whoever asks for a topic in the usual way has
it made. Nothing of ours may."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "xdist_group(name): known without pytest-xdist too")
    gc.disable()  # until all is collected: next to nothing of that is garbage
    # A shell's background job ignores SIGINT, and so would all that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what uses a broker, and gives it to two workers of xdist, by module: each has a broker
    of its own, and while one waits for what it has started, the other works. What uses Spark is
    for one worker, with one JVM."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "bootstrap" in fixtures:
            item.add_marker("kafka")
        if "spark" in fixtures:
            item.add_marker("spark")
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif item.get_closest_marker("kafka"):
            group = zlib.crc32(item.nodeid.partition("::")[0].encode()) % 2
            item.add_marker(pytest.mark.xdist_group(f"kafka{group}"))


def pytest_collection_finish() -> None:
    """What stays until the end (modules, collected tests) is looked at by no later collection."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)  # within pytest's own look for what could not be raised
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Blames a connection that is left open on the test that has made it, not on a later one."""
    if item.get_closest_marker("kafka"):
        gc.collect()


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a broker: $LMERGE_BOOTSTRAP, else a container's, else a local one's."""
    if given := os.environ.get("LMERGE_BOOTSTRAP"):
        yield given
        return
    if _docker_answers():
        try:
            stop, address = _container()
        except Exception as error:  # an engine without the image, or without the network to get it
            print(f"no Kafka container ({error}): a local broker instead", file=sys.stderr)
        else:
            yield address
            stop()
            return
    with LocalBroker(tmp_path_factory.mktemp("kafka"), settings=MAKES_TOPICS) as broker:
        yield broker.bootstrap


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """Commands that are called in this process set up its log; the next test's is its own."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def topic_name() -> Callable[..., str]:
    """Makes names of topics that no other test has: `topic_name("input")`."""
    return lambda stem="topic": f"{stem}-{uuid.uuid4().hex[:12]}"


def _docker_answers() -> bool:
    if "DOCKER_HOST" not in os.environ and not Path("/var/run/docker.sock").exists():
        return False
    try:
        import docker  # type: ignore[import-untyped]

        client = docker.from_env(timeout=1)
    except Exception:  # docker's own, requests' and urllib3's errors: none of them matters here
        return False
    client.close()  # making it asked the engine for its version
    return True


def _container() -> tuple[Callable[[], object], str]:
    """The same Kafka with the same settings, on a host port that is its own port too."""
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    port = 32_000 - os.getpid() % 10_000
    listeners = f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:9093"
    container = DockerContainer(f"apache/kafka:{KAFKA_VERSION}").with_bind_ports(port, port)
    properties = {
        **SETTINGS,
        **MAKES_TOPICS,
        "listeners": listeners,
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.quorum.voters": "1@127.0.0.1:9093",
    }
    for key, value in properties.items():
        container.with_env(f"KAFKA_{key.replace('.', '_').upper()}", value)
    container.waiting_for(LogMessageWaitStrategy("Kafka Server started"))
    container.start()
    return container.stop, f"127.0.0.1:{port}"
