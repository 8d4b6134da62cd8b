"""What the real-broker tests share: replicas written to real topics, real workers, the audit.

A `Merge` is one topology with topics of its own on the shared broker. Workers are processes
(`lmerge run`), so that `kill -9` is a real one.
"""

import asyncio
import contextlib
import itertools
import json
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from aiokafka import AIOKafkaProducer, TopicPartition

from lmerge_service.config.topology import load
from lmerge_service.elements import INFINITY, START, Element, Stable
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import Connection, connection_of
from lmerge_service.kafka.log import Log
from lmerge_service.kafka.source import Source
from lmerge_service.kafka.state import last_with_key
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import free_port
from lmerge_service.merge.commit_record import COMMIT_KEY, CommitRecord
from lmerge_service.merge.decisions import records as decisions
from lmerge_service.merge.decisions.records import Action
from lmerge_service.offline.audit import Audited, audit_topic
from lmerge_service.service import worker as service
from lmerge_service.tdb import TDB
from lmerge_service.workloads.generator import workload
from lmerge_service.workloads.lifetime import Life, final_tdb
from lmerge_service.workloads.presentation import Variation, present

Partitioner = Callable[[bytes, int], int]


def crc32(payload: bytes, width: int) -> int:
    return zlib.crc32(payload) % width


def scattered(payload: bytes, width: int) -> int:
    """Looks random, yet keeps an event in one partition."""
    return random.Random(payload).randrange(width)


LMERGE_RUN = ("lmerge_service.cli", "run")
"""The module that a worker process runs, and its first arguments."""

SESSION_SECONDS = 1.0
"""How long a worker may be silent; the local broker allows it."""


class Merge:
    """One topology over the shared broker, and the workers that run it."""

    def __init__(self, bootstrap: str, folder: Path, replicas: Sequence[str] = ("a", "b", "c")):
        self.bootstrap = bootstrap
        self.folder = folder
        self.name = f"t{uuid.uuid4().hex[:10]}"
        self.output = f"{self.name}.out"
        self.dead_letters = f"{self.output}.dead-letters"
        self.topics = {replica: f"{self.name}.{replica}" for replica in replicas}
        self.path = folder / f"{self.name}.yaml"
        self.extra: dict[str, Any] = {}
        self._logs = itertools.count(1)
        self.write()

    def write(self) -> None:
        """The topology; YAML is a superset of JSON."""
        document = {
            "name": self.name,
            "kafka": {"bootstrap": self.bootstrap},
            "output": {"topic": self.output},
            "session_seconds": SESSION_SECONDS,
            "guards": {"patience_seconds": 0.5},
            "replicas": [{"name": n, "topic": topic} for n, topic in self.topics.items()],
            **self.extra,
        }
        self.path.write_text(json.dumps(document))

    @contextlib.contextmanager
    def worker(self, *options: str, program: Sequence[str] = LMERGE_RUN) -> Iterator["Worker"]:
        """A worker process that is gone, one way or the other, when this is left."""
        log = self.folder / f"{self.name}.{next(self._logs)}.log"
        worker = Worker(self.path, log, options=options, program=program)
        try:
            yield worker
        finally:
            worker.kill()

    def audit(self) -> Audited:
        """The output, from its beginning to its end: raises when it is not a legal stream."""
        return asyncio.run(audit_topic(Connection(self.bootstrap), self.output, WireDecoder()))

    def output_is(self, expected: TDB) -> bool:
        """The output has ended and is equivalent."""
        found = self.audit()
        return found.complete and found.tdb == expected

    def publish(
        self,
        replica: str,
        elements: Sequence[Element],
        *,
        partitions: int = 1,
        partitioner: Partitioner = crc32,
        incarnation: int = 0,
        joining_at: int = START,
        transactions_of: int | None = None,
        seq: int | None = None,
    ) -> None:
        """Writes elements; each stable to every partition, as a replica must. `seq` numbers one."""
        headers = incarnation_headers(incarnation, joining_at)
        if seq is not None:
            headers.append(("lmerge-seq", b"%d" % seq))
        asyncio.run(
            self._publish(replica, elements, partitions, partitioner, headers, transactions_of)
        )

    async def _publish(
        self,
        replica: str,
        elements: Sequence[Element],
        partitions: int,
        partitioner: Partitioner,
        headers: list[tuple[str, bytes]],
        transactions_of: int | None,
    ) -> None:
        topic = self.topics[replica]
        async with Topics(Connection(self.bootstrap)) as topics:
            await topics.ensure(topic, partitions=partitions)
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            transactional_id=None if transactions_of is None else f"{topic}.writer",
        )
        async with producer:
            step = transactions_of or len(elements) or 1
            for start in range(0, len(elements), step):
                transaction = producer.transaction() if transactions_of else _nothing()
                async with transaction:
                    sent = []
                    for element in elements[start : start + step]:
                        for target in _targets(element, partitions, partitioner):
                            sent.append(  # noqa: PERF401 - one after the other
                                await producer.send(
                                    topic, encode(element), partition=target, headers=headers
                                )
                            )
                    await asyncio.gather(*sent)

    @contextlib.contextmanager
    def publishing(
        self,
        streams: Mapping[str, Sequence[Element]],
        widths: Mapping[str, int] | None = None,
        *,
        elements: int = 8,
        pause: float = 0.02,
    ) -> Iterator[None]:
        """Replicas that publish all the time, some elements each with pauses of so many seconds;
        when this is left, they have published everything."""
        hurry = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(
                lambda: asyncio.run(
                    self._publish_all(streams, widths or {}, elements, pause, hurry)
                )
            )
            try:
                yield
            finally:
                hurry.set()
            publishing.result(60)

    async def _publish_all(
        self,
        streams: Mapping[str, Sequence[Element]],
        widths: Mapping[str, int],
        count: int,
        pause: float,
        hurry: threading.Event,
    ) -> None:
        async with Topics(Connection(self.bootstrap)) as topics:
            for replica in streams:
                await topics.ensure(self.topics[replica], partitions=widths.get(replica, 1))
        left = {replica: iter(elements) for replica, elements in streams.items()}
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap) as producer:
            while left:
                sent = []
                for replica, elements in list(left.items()):
                    some = list(itertools.islice(elements, count))
                    for element in some:
                        for target in _targets(element, widths.get(replica, 1), crc32):
                            topic, value = self.topics[replica], encode(element)
                            sent.append(await producer.send(topic, value, partition=target))
                    if not some:
                        del left[replica]
                await asyncio.gather(*sent)
                if not hurry.is_set():
                    await asyncio.sleep(pause)

    def last_commit(self, partition: int = 0) -> CommitRecord | None:
        """What the task last committed of where it stands."""

        async def read() -> CommitRecord | None:
            tp = TopicPartition(f"{self.output}.state", partition)
            async with Source(Connection(self.bootstrap)) as source:
                ends = await source.ends([tp])
                record = await last_with_key(source, tp, COMMIT_KEY, end=ends[tp])
            return None if record is None else CommitRecord.of(record.value)

        return asyncio.run(read())

    def wait_until_committed(self, replica: str, offset: int, seconds: float = 20) -> None:
        """A task has committed that everything before `offset` is merged."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            commit = self.last_commit()
            standing = commit and commit.replicas.get(replica)
            if standing and standing.partitions[0].next >= offset:
                return
            time.sleep(0.1)
        raise AssertionError(f"{replica} is not merged up to {offset}: {commit}")

    def send_raw(
        self, topic: str, values: Sequence[bytes | None], key: bytes | None = b"k"
    ) -> None:
        """Writes bytes as they are, in order, to partition 0."""

        async def send() -> None:
            async with Topics(Connection(self.bootstrap)) as topics:
                await topics.ensure(topic, config={"max.message.bytes": str(20 << 20)})
            async with AIOKafkaProducer(
                bootstrap_servers=self.bootstrap, max_request_size=20 << 20
            ) as producer:
                for value in values:
                    batch = producer.create_batch()  # unlike send, takes neither key nor value
                    batch.append(key=key, value=value, timestamp=None)
                    await (await producer.send_batch(batch, topic, partition=0))

        asyncio.run(send())


@contextlib.asynccontextmanager
async def _nothing():  # type: ignore[no-untyped-def]
    yield


def _targets(element: Element, width: int, partitioner: Partitioner) -> Sequence[int]:
    if type(element) is Stable:
        return range(width)
    return [partitioner(element.payload, width)]  # type: ignore[union-attr]


class Worker:
    """`lmerge run`, as a process."""

    def __init__(
        self,
        path: Path,
        log: Path,
        port: int | None = None,
        *,
        options: Sequence[str] = (),
        program: Sequence[str] = LMERGE_RUN,
    ):
        self.log = log
        port = port or free_port()
        self.address = f"http://127.0.0.1:{port}"
        self._client = httpx.Client(base_url=self.address, timeout=2, trust_env=False)
        command = [sys.executable, "-m", *program, str(path), "--json", *options]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, "--http-port", str(port)], stdout=out, stderr=out
            )

    def get(self, path: str) -> httpx.Response | None:
        """An answer, or None while there is none."""
        try:
            return self._client.get(path)
        except httpx.TransportError:
            return None

    def status(self) -> Any:
        answer = self.get("/status")
        return None if answer is None else answer.json()

    def wait(self, reached: Callable[[Any], bool], what: str, seconds: float = 30) -> Any:
        """The first status, of a worker that has tasks, for which `reached` holds."""
        deadline = time.monotonic() + seconds
        status = None
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.text()
            status = self.status()
            if status is not None and status["replicas"] and reached(status):
                return status
            time.sleep(0.03)
        raise AssertionError(f"waited in vain for {what}: {status}\n{self.text()}")

    def wait_until_running(self) -> Any:
        return self.wait(lambda status: status["state"] == "running", "the worker to run")

    def wait_until_it(self, role: str, seconds: float = 30) -> Any:
        """It leads or follows all tasks that it has, and has the state of the last commit."""
        phase = {"leads": "leading", "follows": "following"}[role]
        return self.wait(
            lambda status: (
                {(each["role"], each["phase"]) for each in status["tasks"]} == {(role, phase)}
            ),
            f"the worker to be one that {role}",
            seconds,
        )

    def wait_until_ended(self) -> Any:
        return self.wait(lambda status: status["output"]["ended"], "the output to end")

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._client.close()

    def stop(self) -> None:
        """SIGSTOP: it stands still, until `go_on`."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def terminate(self, seconds: float = 15) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(seconds)

    def text(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text().splitlines()[-lines:])

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The lines of its log about an event."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line[:1] == "{"]
        return [line for line in lines if line["event"] == event]


@contextlib.asynccontextmanager
async def running(merge: Merge) -> AsyncIterator[service.Worker]:
    """A worker in this process, which has tasks."""
    topology = load(merge.path)
    worker = service.Worker(topology, Cluster(connection_of(topology.kafka)))
    task = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(90):
            while not worker.held:
                assert not task.done(), task
                await asyncio.sleep(0.02)
            yield worker
            assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def decided(merge: Merge, *actions: Action) -> None:
    """Decisions, as a person makes them, into the log."""

    async def append() -> None:
        async with Log(Connection(merge.bootstrap), f"{merge.output}.control") as log:
            for action in actions:
                await log.append(decisions.encode(decisions.decide(action, "anna")))

    asyncio.run(append())


async def run_until_ended(merge: Merge) -> int:
    """Runs a worker in this process; returns how often it had to rebuild."""
    async with running(merge) as worker:
        progress = worker.held[0].task.progress
        while progress.committed_stable != INFINITY:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return progress.rebuilds


def logical(events: int = 400, seed: int = 1) -> list[Life]:
    """A logical stream with revisions to come."""
    return list(workload(events=events, seed=seed, payload_bytes=20, active=40, varied=True))


def replica_streams(lives: Sequence[Life], seed: int = 1) -> dict[str, list[Element]]:
    """Three presentations that differ in every way that an honest replica may."""
    span = max(life.vs for life in lives) // len(lives)
    a = Variation(stable_every=20, pace="late")
    b = Variation(
        provisional=0.5, revisions=2, spread=20 * span, phantoms=0.1, reinserted=0.1,
        stable_every=7, pace="eager", lead=5 * span,
    )  # fmt: skip
    c = Variation(
        disorder=0.4, displacement=10 * span, stable_probability=0.05, stable_lag=2 * span
    )
    return {
        name: list(present(lives, variation, f"{seed}/{name}"))
        for name, variation in (("a", a), ("b", b), ("c", c))
    }


def meaning(lives: Sequence[Life]) -> TDB:
    return final_tdb(lives)
