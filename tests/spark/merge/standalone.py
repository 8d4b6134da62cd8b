"""Spark's own cluster manager on this machine: a master and workers, each a process."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from lmerge_service.local.broker import free_port
from lmerge_service.local.jars import find_java
from lmerge_service.spark.session import java_home

__all__ = ("Standalone", "end", "standalone")

_SPARK = Path(pyspark.__path__[0])
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_DAEMON = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True)
class Standalone:
    """A cluster that runs."""

    url: str
    folder: Path
    environment: dict[str, str]
    workers: list[psutil.Popen] = field(default_factory=list)

    def submit(self, log: Path, *arguments: str) -> psutil.Popen:
        """`spark-submit`, to this cluster."""
        command = [str(_SPARK / "bin" / "spark-submit"), "--master", self.url, *arguments]
        with log.open("wb") as out:
            return psutil.Popen(
                command, env=self.environment, cwd=self.folder, stdout=out, stderr=out
            )

    def executors(self) -> list[psutil.Process]:
        """Those that run, whichever worker they are of."""
        started = [child for each in self.workers for child in started_by(each)]
        return [each for each in started if _EXECUTOR in command_of(each)]


def started_by(process: psutil.Process) -> list[psutil.Process]:
    """All that a process has started, and they in turn; none when it has ended."""
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def command_of(process: psutil.Process) -> list[str]:
    """Nothing when it has ended."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


@contextmanager
def standalone(folder: Path, *, workers: int, executor_megabytes: int) -> Iterator[Standalone]:
    """A master and workers of one core each, ended with all that they started."""
    port = free_port()
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home(find_java("spark"), folder)),
        "SPARK_HOME": str(_SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _DAEMON,
    }
    cluster = Standalone(f"spark://127.0.0.1:{port}", folder, environment)
    own = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as stack:
        stack.enter_context(
            _daemon(cluster, "master.Master", "I have been elected", "--port", str(port), *own)
        )
        for number in range(workers):
            size = ("--cores", "1", "--memory", f"{executor_megabytes}m", "--port", "0")
            arguments = (*own, *size, "--work-dir", str(folder / f"work{number}"), cluster.url)
            worker = _daemon(
                cluster, "worker.Worker", "Successfully registered", *arguments, number=number
            )
            cluster.workers.append(stack.enter_context(worker))
        yield cluster


@contextmanager
def _daemon(
    cluster: Standalone, name: str, ready: str, *arguments: str, number: int = 0
) -> Iterator[psutil.Popen]:
    log = cluster.folder / f"{name}.{number}.log"
    command = [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as out:
        process = psutil.Popen(command, env=cluster.environment, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 60
        while ready not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield process
    finally:
        end(process)


def end(process: psutil.Popen) -> None:
    """Kills a process and all that it started."""
    for each in [process, *started_by(process)]:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()
