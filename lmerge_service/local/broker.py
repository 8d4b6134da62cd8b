"""A real Apache Kafka on this machine: a KRaft node, run as a child process.

Who owns what
    `LocalBroker` owns one directory and the JVM that serves it. The directory holds Kafka's data,
    its properties, its log (`kafka.log`) and `broker.json`, the record of the process that serves
    it. The directory alone suffices to find, signal or stop that process; there is no other state.

What happens on a crash
    The starter is killed: the JVM dies with it, unless it was started detached; then it goes on.
    The JVM is killed: the next start recovers the data, on the port that it had.
    While formatting: `data.new` is formatted and then renamed, so `data` is whole or absent.
    Two starters at once: `lock` lets one through; a lock dies with its process.
"""

import asyncio
import base64
import itertools
import os
import random
import shutil
import socket
import subprocess
import uuid
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiokafka.errors import KafkaError

from lmerge_service.errors import (
    ConfigurationError,
    EnvironmentMissingError,
    StateError,
    TransportError,
)
from lmerge_service.kafka.clients import Client
from lmerge_service.local import jvm
from lmerge_service.local.jars import (
    EXTRA_MISSING,
    Java,
    class_flags,
    find_java,
    kafka_jars,
    keep_classes,
    left_classes,
    locked,
    user_folder,
)
from lmerge_service.local.runnable import Runnable

if TYPE_CHECKING:
    import psutil  # an extra

__all__ = (
    "SETTINGS",
    "LocalBroker",
    "Membership",
    "default_directory",
    "free_port",
    "is_free",
    "members_seen",
    "new_cluster_id",
)

_DEFAULT_PORT: Final = 9092
"""What a detached broker takes if it is free, so that examples can be copied."""

SETTINGS: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "message.max.bytes": str(20 * 1024 * 1024),
    # Topics are replayed from their start, however old they are.
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    # One node, unless a `LocalCluster` sets otherwise; 4 partitions instead of 50 make the first
    # transaction and the first group 0.25 s faster each.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    # A killed producer's transaction is aborted when its time is over, not up to 10 s later.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # After kill -9 the old session must end before the broker is let in again: 6 s instead of 12.
    # A broker that stood still for longer, on a busy machine, is fenced and refuses writes.
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "250",
    # Creating a topic: 25 ms instead of 50.
    "controller.quorum.append.linger.ms": "0",
    # 135 MB less resident: the cleaner's buffer is allocated, and zeroed, at the start.
    "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
}
"""What every local broker is configured with, less listeners and directories."""

_HOST: Final = "127.0.0.1"
_PORTS: Final = range(20_000, 32_000)
"""Below the ephemeral ports that systems give to client connections: else, while a broker is down,
a client that tries to reconnect can be given its port, connect to itself, and keep it."""

_POLL_SECONDS: Final = 0.05

_QUIET: Final = (
    "-Xlog:disable",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
)
_HEAP_MB: Final = 512
_JVM: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # half the CPU of a start, and of moving records too (2 cores)
    "-XX:+ExitOnOutOfMemoryError",
    *_QUIET,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Which node of which cluster a broker is."""

    cluster: str
    """The id with which the data of all nodes are formatted."""
    node: int
    """From 1 on."""
    controller: int
    """The port on which this node's controller listens."""
    voters: Mapping[int, int]
    """Ports at which this node reaches each node's controller, by node."""
    heap_mb: int


class LocalBroker(Runnable):
    """A Kafka broker in `directory`; `async with`, `with`, or `start` and `stop`.

    It listens on 127.0.0.1 only: on `port`, or on the port that the directory had before, or on a
    free one. Data from before are served again. `detached`, it outlives its starter, and starting
    it while it runs is no error; else it dies with the starter (on Linux, with the thread that
    started it), and leaving the context stops it. `settings` go over `SETTINGS`; with `listeners`
    it has more than the one in the clear, each by its name in the settings and on a free port of
    its own (`address`); `advertised` has other ports to advertise to clients, of listeners
    behind a proxy. `formatting` goes to Kafka's storage tool, for users to begin with. With a
    `membership` it is one of several nodes (`local.nodes`), else a cluster of its own.

    A broker that was killed or stopped can be started again, with the same port and data.
    """

    def __init__(
        self,
        directory: Path | str,
        port: int = 0,
        *,
        detached: bool = False,
        settings: Mapping[str, str] | None = None,
        listeners: Sequence[str] = (),
        advertised: Mapping[str, int] | None = None,
        formatting: Sequence[str] = (),
        membership: Membership | None = None,
        timeout: float = 60.0,
    ):
        if find_spec("psutil") is None:
            raise EnvironmentMissingError(EXTRA_MISSING)
        self.directory = Path(directory).absolute()
        self.detached = detached
        self._port = port
        self._settings = {**SETTINGS, **(settings or {})}
        self._listeners: dict[str, int] = dict.fromkeys(listeners, 0)
        self._advertised = dict(advertised or {})
        self._formatting = formatting
        self._membership = membership
        self._node = membership.node if membership else 1
        self._timeout = timeout
        self._log_start = 0
        self._own: jvm.ServerRecord | None = None

    @property
    def running(self) -> bool:
        """Whether a process serves the directory, started here or elsewhere; paused counts."""
        return self._process() is not None

    @property
    def paused(self) -> bool:
        """Whether it runs and is stopped by `pause`."""
        import psutil

        process = self._process()
        return process is not None and process.status() == psutil.STATUS_STOPPED

    @property
    def started(self) -> bool:
        """Whether the directory was ever served, so that its port is known."""
        return self._record() is not None

    @property
    def pid(self) -> int:
        return self._known().pid

    @property
    def port(self) -> int:
        return self._known().port

    @property
    def bootstrap(self) -> str:
        """host:port, for clients."""
        return f"{_HOST}:{self.port}"

    def address(self, listener: str) -> str:
        """host:port of one of the further listeners."""
        return f"{_HOST}:{self._listeners[listener]}"

    @property
    def java(self) -> str:
        """Which Java runs it, in words."""
        return self._known().java

    @property
    def log(self) -> Path:
        return self.directory / "kafka.log"

    def start(self) -> None:
        """Starts it and waits until it answers; for callers without an event loop."""
        asyncio.run(self.astart())

    async def astart(self, *, wait: bool = True) -> None:
        """Starts it and waits until it answers; what did not become ready is killed. Without
        `wait` it is only launched: a node answers when most nodes of its cluster run.

        Raises:
            ConfigurationError: the directory is served already, and not as a detached broker.
            EnvironmentMissingError: no Java, no JARs, or the port is taken.
            StateError: the directory holds topics but not whose they are.
            TransportError: it ended or did not answer in time; the message quotes its log.
        """
        with await asyncio.to_thread(locked, self.directory / "lock"):
            if self.running:
                if self.detached:
                    return
                raise ConfigurationError(
                    f"a broker (process {self.pid}) serves {self.directory} already: "
                    f"use it at {self.bootstrap}, or another directory"
                )
            self._launch(*await asyncio.to_thread(self._prepare))
            if not wait:
                return
            try:
                await self._ready()
            except BaseException:
                self.kill()
                raise

    def stop(self, grace: float = 20.0) -> None:
        """Ends it in order: SIGTERM, then SIGKILL after `grace` seconds. Paused or down is fine."""
        process = self._process()
        if process is not None and jvm.end(process, grace):
            keep_classes(self.directory)

    async def astop(self, grace: float = 20.0) -> None:
        """`stop` without blocking the event loop."""
        await asyncio.to_thread(self.stop, grace)

    def kill(self) -> None:
        """kill -9, and waits until it is gone."""
        if (process := self._process()) is not None:
            jvm.end(process, grace=0)

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        if (process := self._process()) is not None:
            process.suspend()

    def resume(self) -> None:
        """SIGCONT."""
        if (process := self._process()) is not None:
            process.resume()

    def clean(self) -> None:
        """Removes the data and all else that a broker keeps; other files there stay.

        Raises:
            ConfigurationError: it runs.
        """
        if not self.directory.is_dir():
            return
        with locked(self.directory / "lock"):
            if self.running:
                raise ConfigurationError(
                    f"a broker (process {self.pid}) serves {self.directory}: stop it first"
                )
            for name in ("data", "data.new"):
                shutil.rmtree(self.directory / name, ignore_errors=True)
            ours = (self._record_file, self._properties, self.log)
            for path in (*ours, *left_classes(self.directory)):
                path.unlink(missing_ok=True)

    @property
    def _record_file(self) -> Path:
        return self.directory / "broker.json"

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _record(self) -> jvm.ServerRecord | None:
        """Who serves or last served the directory."""
        return jvm.read(self._record_file) or self._own

    def _known(self) -> jvm.ServerRecord:
        record = self._record()
        assert record is not None, "the broker has been started"
        return record

    def _process(self) -> "psutil.Process | None":
        """The process that serves the directory: the very one, not another of the same id."""
        record = self._record()
        return jvm.find(record) if record else None

    def _prepare(self) -> tuple[list[str], int, Java]:
        """Everything before the JVM: its command, its port, and which Java it is."""
        java = find_java()
        jars = kafka_jars()
        port, controller = self._ports()
        self._format(java, jars)
        taken = {port, controller}
        for name, at in self._listeners.items():
            self._listeners[name] = at or free_port(but=taken)
            taken.add(self._listeners[name])
        self._write_properties("data", port, controller)
        for stale in left_classes(self.directory):
            stale.unlink()
        flags = class_flags(java, self.directory)
        heap = self._membership.heap_mb if self._membership else _HEAP_MB
        command = [*_kafka(java, jars, f"-Xmx{heap}m", *_JVM, *flags), "kafka.Kafka"]
        command.append(str(self._properties))
        return command, port, java

    def _ports(self) -> tuple[int, int]:
        """The broker's and the controller's; the latter may differ from start to start, unless
        other nodes know it."""
        member = self._membership
        for taken in (self._port, member.controller if member else 0):
            if taken and not is_free(taken):
                raise EnvironmentMissingError(
                    f"port {taken} of {_HOST} is taken by another program: "
                    "end that one or choose another port"
                )
        record = self._record()
        default = _DEFAULT_PORT + self._node - 1
        preferred = [record.port] if record else [default] if self.detached else []
        port = self._port or free_port(*preferred, but={*member.voters.values()} if member else ())
        return port, member.controller if member else free_port(but={port})

    def _format(self, java: Java, jars: list[Path]) -> None:
        data, fresh = self.directory / "data", self.directory / "data.new"
        if (data / "meta.properties").is_file():
            return
        if data.is_dir() and any(entry.is_dir() for entry in data.iterdir()):
            raise StateError(f"{data} holds topics but no meta.properties: move it away to go on")
        for path in (data, fresh):
            shutil.rmtree(path, ignore_errors=True)
        self._write_properties(fresh.name, 1, 2)
        cluster = self._membership.cluster if self._membership else new_cluster_id()
        command = [*_kafka(java, jars, "-Xmx64m", "-XX:TieredStopAtLevel=1", *_QUIET)]
        command += ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}"]
        command += ["--config", str(self._properties), *self._formatting]
        done = subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, check=False
        )
        if done.returncode:
            reason = jvm.gist(done.stderr + done.stdout)
            raise TransportError(f"Kafka cannot format {data}: {reason}", retriable=False)
        fresh.rename(data)

    def _write_properties(self, data: str, port: int, controller: int) -> None:
        """`data` is relative (the JVM runs in the directory): no path needs Java's escapes."""
        names = {"PLAINTEXT": port, **self._listeners}
        listeners = _listed(names)
        voters = self._membership.voters if self._membership else {self._node: controller}
        properties = {
            **self._settings,
            "node.id": str(self._node),
            "log.dirs": data,
            "listeners": f"{listeners},CONTROLLER://{_HOST}:{controller}",
            "advertised.listeners": _listed(names | self._advertised),
            "controller.quorum.voters": ",".join(
                f"{node}@{_HOST}:{port}" for node, port in voters.items()
            ),
        }
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in properties.items()))

    def _launch(self, command: list[str], port: int, java: Java) -> None:
        """Runs on the thread that awaits: on Linux the JVM's life hangs on that thread's."""
        self.log.touch()
        self._log_start = self.log.stat().st_size
        pid, created = jvm.spawn(command, self.directory, self.log, dies_with_us=not self.detached)
        self._port = port
        self._own = jvm.ServerRecord(pid, created, port, str(java))
        jvm.write(self._record_file, self._own)

    async def _ready(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                # Of two that start at once on one port, one ends, and the other answers for it. Who
                # listens is asked last: it takes 10 ms of a core.
                while not (self._node in await members_seen(self.port) and self._listens()):
                    if not self.running:
                        raise TransportError(f"Kafka ended while it started: {self._tail()}")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise TransportError(
                f"Kafka did not answer at {self.bootstrap} in {self._timeout:g} s: {self._tail()}"
            ) from None

    def _listens(self) -> bool:
        process = self._process()
        return process is not None and self.port in jvm.listened(process)

    def _tail(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode(errors="replace")
        return f"{jvm.gist(text)} (log: {self.log})"


def default_directory(name: str = "broker") -> Path:
    """Where `lmerge broker` keeps its broker, and other commands what outlives them: below
    $LMERGE_HOME, else in the state folder."""
    home = os.environ.get("LMERGE_HOME")
    return (Path(home) if home else user_folder("XDG_STATE_HOME", ".local/state")) / name


def is_free(port: int) -> bool:
    """Whether a port of this machine is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Kafka itself binds
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
        return True


def free_port(*preferred: int, but: Container[int] = ()) -> int:
    """The first preferred port that is free, else any free port of `_PORTS`; never one of `but`."""
    chances = (random.choice(_PORTS) for _ in range(1000))
    for port in itertools.chain(preferred, chances):
        if port not in but and is_free(port):
            return port
    raise EnvironmentMissingError(f"no free port on {_HOST} in {_PORTS.start}-{_PORTS.stop}")


def new_cluster_id() -> str:
    """As Kafka's storage tool wants it."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


async def members_seen(port: int) -> set[int]:
    """The nodes of the cluster that the broker there names in its metadata; none: no answer."""
    try:
        _, writer = await asyncio.open_connection(_HOST, port)
    except OSError:
        return set()  # asked first, since the client would log what is normal here
    writer.close()
    client = Client(bootstrap_servers=f"{_HOST}:{port}")
    try:
        await client.bootstrap()
        return {broker.nodeId for broker in client.cluster.brokers()}
    except KafkaError:
        return set()
    finally:
        await client.close()


def _listed(ports: Mapping[str, int]) -> str:
    """Listeners by name, as Kafka is configured with them."""
    return ",".join(f"{name}://{_HOST}:{port}" for name, port in ports.items())


def _kafka(java: Java, jars: list[Path], *flags: str) -> list[str]:
    return [str(java.path), *flags, "-cp", os.pathsep.join(map(str, jars))]
