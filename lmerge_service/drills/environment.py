"""The environment of a drill: brokers, replicas, workers, each a process behind its own link.

Theory
    Each party (worker or replica) reaches each broker by a listener of its own, and the port that
    the broker advertises to clients of that listener is a proxy's. So each link can be impaired
    separately, and no client can bypass its proxy. Observers use the plain listener. Where links
    between brokers are to be cut, brokers reach each other in the same way (`between`).

Who owns what
    An environment owns all processes, proxies and monitors, and one folder; leaving it ends them
    all, by their ids. Everything runs on one event loop.

What happens on a crash
    The processes die with the thread that runs the loop.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final, Self

import httpx
import msgspec
import psutil

from lmerge_service.demo.stage import Process, Stage
from lmerge_service.drills.between import BROKERS, CONTROLLERS, Between
from lmerge_service.drills.control_log_check import Answer
from lmerge_service.drills.invariant_monitors import Arrivals, WorkerMonitor
from lmerge_service.drills.merging import LMerge, Merger, Post, Program
from lmerge_service.drills.plan import Plan
from lmerge_service.drills.proxy import Moment, Proxy, Trap
from lmerge_service.drills.replica import FaultProfile, Part, Stream
from lmerge_service.drills.roles import ROLES, Role, holder
from lmerge_service.errors import TransportError
from lmerge_service.kafka.client import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import SETTINGS
from lmerge_service.local.nodes import LocalCluster
from lmerge_service.service.status.document import Status

__all__ = ("CONTROL", "OUTPUT", "DrillError", "Environment", "ReplicaSlot", "TimelineEvent")

OUTPUT: Final = "out"
CONTROL: Final = f"{OUTPUT}.control"
NAME: Final = "drill"
GROUP: Final = f"lmerge.{NAME}.workers"
_HOST: Final = "127.0.0.1"
_AHEAD_MS: Final = 2_000
"""The stream ends so long after that was decided; replicas have looked no further ahead."""
_EVERY_SECONDS: Final = 0.05


class DrillError(Exception):
    """A drill could not be run as it is written, so that it proves nothing."""


@dataclass(slots=True)
class ReplicaSlot:
    """A replica's place: its topic outlives its processes."""

    name: str
    part: Part
    process: Process | None = None
    paused: bool = False
    expected: bool = True
    """It is to run, or to end by itself when it has published everything."""
    bad_since: int | None = None
    """Milliseconds since the epoch: from then on it is not trusted."""


@dataclass(slots=True)
class TimelineEvent:
    """A fault, or its end, in the timeline."""

    at: float
    text: str


@dataclass(slots=True)
class _Throttle:
    task: asyncio.Task[None]
    resume: Callable[[], None]


class Environment:
    """The processes of one drill; use as `async with`."""

    def __init__(self, folder: Path, plan: Plan):
        self.folder, self.plan = folder, plan
        self.proxies: dict[str, Proxy] = {}
        self.slots: dict[str, ReplicaSlot] = {}
        self.workers: dict[str, Merger] = {}
        self.logs: dict[str, list[Path]] = {}
        self.timeline_events: list[TimelineEvent] = []
        self.kills = 0
        """How often a worker was killed, or the broker was."""
        self.worker_monitor = WorkerMonitor()
        self.opened = 0.0
        """When all was well for the first time."""
        self.finished: int | None = None
        """Before this time the last event begins."""
        self.answers: list[Answer] = []
        """The answers to decisions."""
        self._token = secrets.token_hex(16)
        self._token_file = folder / "control-token"
        self._names = [f"w{n}" for n in range(1, plan.workers + 1)]
        self._throttles: dict[str, _Throttle] = {}
        self._stack = AsyncExitStack()
        self._sprung = asyncio.Event()
        self._between: Between | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self._throttles):
            self.unthrottle(name)
        for slot in self.slots.values():
            if slot.paused:
                self.resume_replica(slot.name)
        await self._stack.aclose()

    async def _open(self) -> None:
        self._token_file.touch(mode=0o600)
        self._token_file.write_text(self._token)
        await self._open_brokers()
        self.stage = await self._stack.enter_async_context(
            Stage(self.folder, self.broker.bootstrap)
        )
        self.connection = Connection(self.broker.bootstrap)
        await self._open_topics()
        await asyncio.gather(*map(self.start_worker, self._names))
        await self._until(lambda: bool(self.leaders()), "a worker to lead")
        self.arrivals = Arrivals(self.connection, OUTPUT, self.plan.partitions)
        await self._run(self.arrivals.run())
        self._stream = Stream(
            began=int(time.time() * 1_000) + 500,
            finish=str(self.folder / "finish"),
            rate=self.plan.rate,
            live=self.plan.rate,
        )
        for number, (name, manner) in enumerate(self.plan.replicas.items()):
            part = Part(
                bootstrap=self._bootstrap(name), topic=self.topic(name),
                number=number, stream=self._stream, manner=manner,
            )  # fmt: skip
            self.slots[name] = ReplicaSlot(name, part)
            await self._start_process(name)
        await self.until_moving()
        self.opened = time.time()

    async def _open_brokers(self) -> None:
        """Proxies first, since brokers advertise their ports."""
        parties = [*self._names, *self.plan.replicas]
        nodes = range(1, self.plan.nodes + 1)
        for name in parties:
            targets = [partial(self._behind, node, name.upper()) for node in nodes]
            proxy = Proxy(*targets, traps=name in self._names)
            self.proxies[name] = await self._stack.enter_async_context(proxy)
        listeners = [name.upper() for name in parties]
        advertised = {
            node: {name.upper(): proxy.ports[node - 1] for name, proxy in self.proxies.items()}
            for node in nodes
        }
        settings, voters = {"num.network.threads": "1"}, dict[int, Mapping[int, int]]()
        if self.plan.broker_links:
            self._between = Between(nodes, self._behind, self._process)
            await self._stack.enter_async_context(self._between)
            listeners.append(BROKERS)
            settings["inter.broker.listener.name"] = BROKERS
            for node in nodes:
                advertised[node][BROKERS] = self._between.door(node)
                voters[node] = self._between.controllers(node)
        protocols = ",".join(f"{name}:PLAINTEXT" for name in listeners)
        key = "listener.security.protocol.map"
        self.broker = LocalCluster(
            self.folder / "kafka",
            self.plan.nodes,
            settings={key: f"{SETTINGS[key]},{protocols}", **settings},
            listeners=listeners,
            advertised=advertised,
            voters=voters,
        )
        await self._stack.enter_async_context(self.broker)

    def _behind(self, node: int, listener: str) -> tuple[str, int]:
        """Where a node's listener really is."""
        if listener == CONTROLLERS:
            return _HOST, self.broker.controller(node)
        host, _, port = self.broker.node(node).address(listener).rpartition(":")
        return host, int(port)

    def _process(self, node: int) -> int | None:
        broker = self.broker.node(node)
        return broker.pid if broker.running else None

    def _bootstrap(self, party: str) -> str:
        """Of all nodes, by the links of a party."""
        return ",".join(f"{_HOST}:{port}" for port in self.proxies[party].ports)

    async def _open_topics(self) -> None:
        async with Topics(self.connection) as topics:
            for name in self.plan.replicas:
                await topics.ensure(self.topic(name))
            if self.plan.merger:
                await topics.ensure(OUTPUT, partitions=self.plan.partitions)

    async def _run(self, work: Awaitable[None]) -> None:
        """Until the environment is left."""
        task = asyncio.ensure_future(work)

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._stack.push_async_callback(end)

    @staticmethod
    def topic(replica: str) -> str:
        return f"in.{replica}"

    def add_to_timeline(self, text: str, at: float) -> None:
        """`at` is in seconds of the wall clock."""
        self.timeline_events.append(TimelineEvent(at, text))

    @property
    def skew(self) -> float:
        """How many seconds the clock is ahead that is furthest."""
        return max((slot.part.manner.skew for slot in self.slots.values()), default=0.0)

    # --- waiting -------------------------------------------------------------------------------

    async def _until(
        self, holds: Callable[[], bool], what: str, seconds: float | None = None
    ) -> None:
        """Raises DrillError on a timeout, by default the plan's `patience`."""

        async def held() -> bool:
            return holds()

        await self._until_async(held, what, seconds)

    async def _until_async(
        self, holds: Callable[[], Awaitable[bool]], what: str, seconds: float | None = None
    ) -> None:
        """The same with an asynchronous condition."""
        seconds = self.plan.patience if seconds is None else seconds
        deadline = time.monotonic() + seconds
        while not await holds():
            self.check()
            if time.monotonic() > deadline:
                raise DrillError(f"waited {seconds:g} s for {what}")
            await asyncio.sleep(_EVERY_SECONDS)

    def check(self) -> None:
        """Raises DrillError if a replica has ended that should not have."""
        for slot in self.slots.values():
            if slot.expected and slot.process is not None and slot.process.returncode:
                raise DrillError(f"replica {slot.name} ended: {self.stage.log_tail(_log(slot))}")

    async def until_moving(self, seconds: float | None = None) -> None:
        """Waits until the output's stable point is above where it, and all replicas, are now."""
        goal = max(int((time.time() + self.skew) * 1_000), self.arrivals.stable)
        await self._until(
            lambda: self.arrivals.stable > goal, "the output to reach this moment", seconds
        )

    async def until_sprung(self, seconds: float | None = None) -> None:
        """Waits until the trap has struck."""
        await self._until(self._sprung.is_set, "the trap to be sprung", seconds)

    # --- workers -------------------------------------------------------------------------------

    def leaders(self) -> list[str]:
        """Workers that lead a task, by their last status; the one of the lowest task first."""
        return self.worker_monitor.leaders(self.workers)

    def worker(self, name: str) -> Merger:
        """By its name, or `leader` or `standby`.

        Raises:
            DrillError: there is no such worker now.
        """
        return self.workers[self.name_of(name)]

    def name_of(self, name: str) -> str:
        leaders = self.leaders()
        if name == "leader" and leaders:
            return leaders[0]
        if name == "standby":
            name = next((each for each in self.workers if each not in leaders), name)
        if name not in self.workers:
            raise DrillError(f"there is no worker {name!r} now: {', '.join(self.workers)}")
        return name

    async def start_worker(self, name: str) -> None:
        """Returns when it leads or follows."""
        if name in self.workers and self.workers[name].ended is None:
            raise DrillError(f"worker {name} runs")
        logs = self.logs.setdefault(name, [])
        run = f"{name}-{len(logs) + 1}"
        worker = self._merger(name, run)
        await worker.start()
        logs.append(self.folder / f"{run}.log")
        self.workers[name] = worker
        await self._run(self.worker_monitor.watch(name, worker))
        await worker.serving()

    def _merger(self, name: str, run: str) -> Merger:
        path = self.folder / f"{run}.yaml"
        if not self.plan.merger:
            path.write_text(json.dumps(self._topology(name)))
            return LMerge(self.stage, run, path)
        path.write_bytes(msgspec.json.encode(self._post(name, run)))
        return Program(self.stage, run, path, tuple(self.plan.merger))

    def missing_workers(self) -> list[str]:
        """The places of workers in which none runs."""
        return [
            name
            for name in self._names
            if name not in self.workers or self.workers[name].ended is not None
        ]

    async def until_all_serve(self, seconds: float | None = None) -> None:
        """Waits until each worker leads or follows."""
        await self._until(
            lambda: not self.missing_workers() and self.worker_monitor.all_serve(self.workers),
            "all workers to lead or follow",
            seconds,
        )

    async def until_logged(self, event: str, seconds: float | None = None) -> str:
        """Waits until a worker has logged an event; gives the worker's name."""
        found: list[str] = []

        def logged() -> bool:
            found[:] = [n for n, logs in self.logs.items() if _logged(event, logs)]
            return bool(found)

        await self._until(logged, f"a worker to log {event!r}", seconds)
        return found[0]

    def _topology(self, name: str) -> dict[str, Any]:
        return {
            "name": NAME,
            "kafka": {"bootstrap": self._bootstrap(name)},
            "output": {"topic": OUTPUT, "partitions": self.plan.partitions},
            "replicas": [{"name": n, "topic": self.topic(n)} for n in self.plan.replicas],
            "session_seconds": self.plan.session_seconds,
            "snapshot_seconds": 5,
            "guards": {"patience_seconds": 3, **self.plan.guards},
            "http": {"control_token": {"file": str(self._token_file)}},
            **({"policy": self.plan.policy} if self.plan.policy else {}),
        }

    def _post(self, name: str, run: str) -> Post:
        return Post(
            bootstrap=self._bootstrap(name),
            replicas={each: self.topic(each) for each in self.plan.replicas},
            output=OUTPUT,
            partitions=self.plan.partitions,
            group=NAME,
            session_seconds=self.plan.session_seconds,
            status=str(self.folder / f"{run}.status"),
        )

    async def kill_worker(self, name: str) -> str:
        """kill -9."""
        name = self.name_of(name)
        self.unthrottle(name)
        self.worker_monitor.gone(name)
        await self.workers.pop(name).kill()
        self.kills += 1
        return name

    async def end_worker(self, name: str) -> str:
        """SIGTERM."""
        name = self.name_of(name)
        self.worker_monitor.gone(name)
        await self.workers.pop(name).end()
        return name

    def limit_memory(self, name: str, megabytes: int) -> str:
        """No more address space than so many megabytes above what it has."""
        name = self.name_of(name)
        process = psutil.Process(self.workers[name].pid)
        most = process.memory_info().vms + (megabytes << 20)
        process.rlimit(psutil.RLIMIT_AS, (most, most))
        return name

    def set_trap(
        self, name: str, api_key: int, moment: Moment, sprung: Callable[[], Awaitable[None]]
    ) -> str:
        """At the next such request of a worker, whose connection it ends."""
        name = self.name_of(name)
        self._sprung.clear()

        async def spring() -> bool:
            await sprung()
            self._sprung.set()
            return False

        self.proxies[name].trap = Trap(api_key, moment, spring)
        return name

    # --- decisions -----------------------------------------------------------------------------

    async def decide_at_once(self) -> list[str]:
        """Requests another adjust policy from each worker, at the same time and against the same
                version; returns each answer: `holds`, or why it was refused.

                Raises:
        DrillError: a worker does not answer, or not with a decision.
        """
        version = (await self._leader().running()).version
        requests = zip(self.workers, cycle(("eager", "lazy")), strict=False)
        answers = [await each for each in asyncio.as_completed(
            [self._decide(name, adjust, version) for name, adjust in requests]
        )]  # fmt: skip
        self.answers += answers
        return sorted(answer.refused or "holds" for answer in answers)

    async def _decide(self, name: str, adjust: str, version: int) -> Answer:
        document = {
            "insert": "first", "adjust": adjust, "stable": self.plan.policy.get("stable", "max"),
            "expects": version, "who": name,
        }  # fmt: skip
        answer = await self._ask(name, "policy", document, refused=409)
        return Answer(answer["id"], answer["version"], answer.get("error"))

    async def begin_cutover(self, leaving: str, coming: str, watch: int) -> None:
        """Asks the leader; `watch` is in milliseconds of the streams' time."""
        document = {"leaving": leaving, "coming": coming, "watch": watch}
        await self._ask(self.name_of("leader"), "cutover/begin", document)

    async def abort_cutover(self) -> None:
        await self._ask(self.name_of("leader"), "cutover/abort", {})

    async def until_cutover(self, state: str, seconds: float | None = None) -> None:
        """Waits until the latest cutover is in this state, by the leader's status."""

        async def holds() -> bool:
            cutover = (await self._shown()).cutover
            return cutover is not None and cutover.state == state

        await self._until_async(holds, f"the cutover to be {state}", seconds)

    async def until_joined(self, replica: str, seconds: float | None = None) -> None:
        """Waits until a replica has a vote, by the leader's status."""

        async def holds() -> bool:
            return (await self.attached()).get(replica) == "joined"

        await self._until_async(holds, f"replica {replica} to be joined", seconds)

    async def record(self, file: str) -> int:
        """`lmerge read` of the output, to its current end, into a file of the folder; returns the
        file's size in bytes."""
        reading = await self.stage.lmerge(
            "read", OUTPUT, "--bootstrap", self.broker.bootstrap, log=f"{file}.raw"
        )
        if await reading.wait():
            raise DrillError(f"the output cannot be recorded: {self.stage.log_tail(f'{file}.raw')}")
        lines = (self.folder / f"{file}.raw").read_bytes().splitlines(keepends=True)
        # The command's messages are in the same log, as lines that are no elements.
        recorded = b"".join(line for line in lines if line.startswith(b'{"op"'))
        return (self.folder / file).write_bytes(recorded)

    async def jumpstart(self, replica: str, file: str) -> tuple[int, str]:
        """`lmerge jumpstart` from a file of the folder, in a topic of the replica's own; returns
        its exit code and its output."""
        log = f"jumpstart-{file}.log"
        process = await self.stage.lmerge(
            "jumpstart", replica, self.topic(replica), "--from", str(self.folder / file),
            "--bootstrap", self.broker.bootstrap, "--at", self._leader().address,
            "--token-file", str(self._token_file), log=log,
        )  # fmt: skip
        return await process.wait(), self.stage.log_tail(log)

    async def attached(self) -> dict[str, str]:
        """The replicas that are attached, by the leader's status, and their states."""
        return {each.name: each.state for each in (await self._shown()).replicas}

    async def _shown(self) -> Status:
        """The leader's status."""
        return await self._leader().wait(lambda _: True, "its status")

    def _leader(self) -> LMerge:
        leader = self.worker("leader")
        if not isinstance(leader, LMerge):
            raise DrillError("another program than `lmerge run` takes no decisions")
        return leader

    async def _ask(
        self, name: str, what: str, document: Mapping[str, Any], refused: int = 200
    ) -> dict[str, Any]:
        """Requests a decision from a worker; returns its answer. Raises DrillError unless the code
        is 200 or that of a refusal."""
        headers = {"authorization": f"Bearer {self._token}"}
        async with httpx.AsyncClient(timeout=30, trust_env=False, headers=headers) as client:
            try:
                url = f"{self.workers[name].address}/v1/{what}"
                response = await client.post(url, json=document)
            except httpx.TransportError as error:
                raise DrillError(f"worker {name} does not answer: {error!r}") from error
        answer: dict[str, Any] = response.json()
        if response.status_code not in (200, refused):
            raise DrillError(f"worker {name} answers {response.status_code}: {answer}")
        return answer

    # --- replicas ------------------------------------------------------------------------------

    def replica(self, name: str) -> ReplicaSlot:
        """By its name, or `leader`: the one whose stable the output followed last.

        Raises:
            DrillError: there is no such replica now.
        """
        if name == "leader":
            name = self.worker_monitor.leading_replica(self.workers) or name
        if name not in self.slots:
            raise DrillError(f"there is no replica {name!r} now: {', '.join(self.slots)}")
        return self.slots[name]

    async def kill_replica(self, name: str) -> str:
        """kill -9; it stays away until it is started."""
        slot = self.replica(name)
        self.unthrottle(slot.name)
        slot.expected = False
        if slot.process is not None:
            await self.stage.kill(slot.process)
        slot.process, slot.paused = None, False
        return slot.name

    async def start_replica(self, name: str, **changes: Any) -> str:
        """Again, where it stood; `changes` are of its part."""
        slot = self.replica(name)
        if slot.process is not None and slot.process.returncode is None:
            await self.kill_replica(slot.name)
        slot.part = msgspec.structs.replace(slot.part, repeat=0)
        slot.part = msgspec.structs.replace(slot.part, **changes)
        await self._start_process(slot.name)
        return slot.name

    async def start_over(self, name: str) -> str:
        """As another incarnation, without the events that have ended before."""
        part = self.replica(name).part
        now = int(time.time() * 1_000)
        return await self.start_replica(name, incarnation=part.incarnation + 1, joining_at=now)

    async def deploy(self, name: str, manner: Mapping[str, float]) -> str:
        """Another version of it, with these faults; from now on it is not trusted, unless only its
        delay or its clock is wrong."""
        slot = self.replica(name)
        profile = FaultProfile(**manner)
        if profile.lying or profile.leap:
            slot.bad_since = int(time.time() * 1_000)
        return await self.start_replica(slot.name, manner=profile)

    async def _start_process(self, name: str) -> None:
        slot = self.slots[name]
        text = msgspec.json.encode(slot.part).decode()
        slot.process = await self.stage.python(
            "lmerge_service.drills.replica", text, log=_log(slot)
        )
        slot.expected = True

    def pause_replica(self, name: str) -> str:
        """SIGSTOP."""
        slot = self.replica(name)
        _usage(slot).suspend()
        slot.paused = True
        return slot.name

    def resume_replica(self, name: str) -> str:
        """SIGCONT."""
        slot = self.replica(name)
        if slot.paused:
            _usage(slot).resume()
        slot.paused = False
        return slot.name

    # --- slow ----------------------------------------------------------------------------------

    async def throttle(self, name: str, share: float) -> str:
        """A worker or replica has the processor for this share of the time only (by SIGSTOP and
        SIGCONT, ten times a second)."""
        slot = self.slots.get(name)
        process = (
            psutil.Process(self.worker(name).pid) if slot is None else _usage(self.replica(name))
        )
        name = self.name_of(name) if slot is None else name
        self.unthrottle(name)
        self._throttles[name] = _Throttle(
            asyncio.create_task(_slow(process, share)), process.resume
        )
        return name

    def unthrottle(self, name: str) -> None:
        if (throttle := self._throttles.pop(name, None)) is not None:
            throttle.task.cancel()
            with suppress(psutil.NoSuchProcess):  # it may have been killed meanwhile
                throttle.resume()

    # --- links and topics ---------------------------------------------------------------------

    async def mend_links(self) -> None:
        for proxy in self.proxies.values():
            await proxy.reset()
        if self._between is not None:
            await self._between.mend()

    async def delete_topic(self, topic: str) -> None:
        async with Topics(self.connection) as topics:
            await topics.delete(topic)

    # --- the broker ----------------------------------------------------------------------------

    async def nodes_of(self, node: int | Role | None) -> list[int]:
        """A broker by its number, or by what it does now; None: all.

                Raises:
        DrillError: there is no such broker, or Kafka does not answer.
        """
        if node is None:
            return list(self.broker.nodes)
        if isinstance(node, int):
            if node not in self.broker.nodes:
                raise DrillError(f"there is no broker {node}: `nodes` is {self.plan.nodes}")
            return [node]
        if node not in ROLES:
            raise DrillError(f"there is no broker {node!r}: choose from {', '.join(ROLES)}")
        try:
            return [await holder(self.connection, node, OUTPUT, GROUP)]
        except TransportError as error:
            raise DrillError(f"which broker is the {node}: {error}") from error

    async def kill_broker(self, node: int | Role | None = None) -> list[int]:
        """kill -9."""
        nodes = await self.nodes_of(node)
        for each in nodes:
            await asyncio.to_thread(self.broker.node(each).kill)
            self.kills += 1
        return nodes

    async def end_broker(self, node: int | Role | None = None) -> list[int]:
        """SIGTERM, and its end is waited for."""
        nodes = await self.nodes_of(node)
        for each in nodes:
            await self.broker.astop(each)
        return nodes

    async def start_broker(self, node: int | None = None) -> None:
        await self.broker.astart(node)

    async def pause_broker(self, node: int | Role | None = None) -> list[int]:
        """SIGSTOP."""
        nodes = await self.nodes_of(node)
        for each in nodes:
            self.broker.node(each).pause()
        return nodes

    def resume_brokers(self) -> None:
        """SIGCONT to all."""
        for broker in self.broker.nodes.values():
            broker.resume()

    async def cut_broker(self, node: int | Role) -> list[int]:
        """From the other brokers; clients still reach it."""
        if self._between is None:
            raise DrillError("brokers reach each other without links: `broker_links: true`")
        nodes = await self.nodes_of(node)
        for each in nodes:
            self._between.cut(each)
        return nodes

    def fill_disk(self) -> None:
        """No file of the brokers can grow any more: their writes fail as on a full disk.

        What a process without rights can do: a limit on the size of files (RLIMIT_FSIZE), so that
        errno is EFBIG and not ENOSPC; Kafka takes any IOException of its log for a broken disk.
        """
        for broker in self.broker.nodes.values():
            psutil.Process(broker.pid).rlimit(psutil.RLIMIT_FSIZE, (1, 1))

    # --- the end -------------------------------------------------------------------------------

    async def finish(self, seconds: float | None = None) -> None:
        """The running replicas publish the rest, and end; returns when the output has ended.

        Raises:
            DrillError: that takes longer.
        """
        self.finished = int((time.time() + self.skew) * 1_000) + _AHEAD_MS
        partial = self.folder / "finish.partial"
        partial.write_text(str(self.finished))
        partial.rename(self._stream.finish)
        await self._until(lambda: self.arrivals.ended, "the output to end", seconds)

    def lives(self) -> Any:
        """The logical stream: to its end, or as far as anybody may be."""
        until = self.finished or int(time.time() * 1_000) + 60_000
        return self._stream.lives(until)


def _log(slot: ReplicaSlot) -> str:
    return f"replica-{slot.name}.log"


def _usage(slot: ReplicaSlot) -> psutil.Process:
    if slot.process is None or slot.process.returncode is not None:
        raise DrillError(f"replica {slot.name} does not run")
    return psutil.Process(slot.process.pid)


def _logged(event: str, logs: Iterable[Path]) -> bool:
    lines = (line for log in logs for line in log.read_text(errors="replace").splitlines())
    return any(f'"event": "{event}"' in line for line in lines)


async def _slow(process: psutil.Process, share: float) -> None:
    """Until cancelled, or until the process is gone."""
    try:
        while True:
            process.suspend()
            await asyncio.sleep(0.1 * (1 - share))
            process.resume()
            await asyncio.sleep(0.1 * share)
    except psutil.NoSuchProcess:
        return
