"""The worker: the merge tasks that it is given, led or followed.

Theory
    Workers of one merge share its tasks, one per output partition. Each task is led by one worker
    and followed by another where there are enough; the group assigns the roles (`kafka.members`).
    Correctness does not depend on the assignment: Kafka's fencing decides who leads, and a worker
    that leads without being entitled to is found out at its next commit. It asks the group then,
    and follows the current assignment: `task_phases` has the table.

Who owns what
    `Worker.run` owns everything: the membership, the control log, and, in one TaskGroup, a subtask
    for each task. When it is cancelled, commits in flight are finished, bounded by a few seconds,
    and the group is left, so that others take over at once.

What happens when Kafka goes away
    At the very start: `run` ends. Later: tasks are closed and reopened, with growing pauses,
    until it succeeds.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog
import tenacity

from lmerge_service.config.topology import Topology
from lmerge_service.errors import (
    FencedError,
    LostOutputError,
    OtherMergeError,
    RefusedError,
    StateError,
    TransportError,
    single_error,
)
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.lookups import Lookups
from lmerge_service.kafka.members import Members
from lmerge_service.merge.commit_turns import CommitTurns, at_once
from lmerge_service.merge.decisions.control_log import LoggedControl
from lmerge_service.merge.decisions.folding import Folding
from lmerge_service.merge.decisions.records import decide
from lmerge_service.merge.internal_topics import TopicWatch, prepare
from lmerge_service.merge.outlets import Outlets
from lmerge_service.merge.output_restart import plan_restart
from lmerge_service.merge.retention import Retention
from lmerge_service.merge.snapshots.writer import SnapshotTurns
from lmerge_service.merge.transaction import FeedbackSink
from lmerge_service.service.reading.shared_reader import SharedReader
from lmerge_service.service.reading.shared_replay import SharedReplay
from lmerge_service.service.task import MergeTask
from lmerge_service.service.task_phases import PhaseEvent, Role

__all__ = ("RunningTask", "Worker")

log = structlog.get_logger()

_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
_PATIENCE = 10
_CLAIM_SECONDS = 0.2
_START_SECONDS = 20.0
"""How long a worker that starts waits for Kafka."""
_RETRY_SECONDS = 0.5
_WARM_SECONDS = 5
"""A task that is promised to this worker is claimed when it lags less."""
_LOST_SECONDS = 1.0
_FENCED_PAUSES = (0.0, 0.2, 0.5, 1.0, 2.0)
"""Before a task is led again that was fenced, by how often that was so without a commit between."""


@dataclass(slots=True)
class RunningTask:
    """A merge task that this worker has, and the asyncio task that runs it."""

    task: MergeTask
    role: Role
    running: asyncio.Task[None]
    given_up: bool = False
    """`running` was cancelled."""


class Worker:
    """Leads and follows the tasks that the group gives it."""

    def __init__(
        self,
        topology: Topology,
        cluster: Cluster,
        *,
        standby_only: bool = False,
        feedback: FeedbackSink = lambda *_: None,
        unix_ns: Callable[[], int] = time.time_ns,
    ):
        """`feedback` receives the feedback points of each commit (`transaction.FeedbackSink`);
        `unix_ns` returns the wall clock in nanoseconds, used by guards and for timestamps."""
        self.topology = topology
        self.held: dict[int, RunningTask] = {}
        """By output partition."""
        self.members: Members | None = None
        """None until Kafka has been reached."""
        self.control: LoggedControl | None = None
        self.stopping = False
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        """For people."""
        self.outlets = Outlets(topology, _clock)
        """Which topics of the merge cannot be written."""
        self.topic_watch = TopicWatch(cluster, topology, self.outlets)
        self.retention = Retention(cluster, topology, self._leading, unix_ns=unix_ns)
        """What there is of the output, and what is needed of it."""
        self.folding = Folding(cluster, topology, lambda: 0 in self._leading(), unix_ns=unix_ns)
        """What there is of the control log, and what has become of what there was."""
        self._feedback = feedback
        self._unix_ns = unix_ns
        self._cluster = cluster
        self._standby_only = standby_only
        self._shared = SharedReader(cluster, topology, _clock)
        self._replay = SharedReplay(cluster, topology, _clock)
        self._lookups = Lookups(cluster)
        self._turns = CommitTurns(lambda: at_once(behind=self._shared.is_behind))
        self._snapshot_turns = SnapshotTurns()
        self._sweep_turns = asyncio.Lock()
        self._tasks: dict[int, MergeTask] = {}
        """Those that this worker has ever had: what they have counted must not fall."""

    async def run(self) -> None:
        """Works until cancelled.

        Raises:
            LMergeError: what ended it.
        """
        async with AsyncExitStack() as stack:
            await self._prepare()
            topology = self.topology
            decisions = self._cluster.log(topology.output.control_topic)
            control = LoggedControl(topology, decisions)
            self.control = await stack.enter_async_context(control)
            self.members = await stack.enter_async_context(
                self._cluster.members(
                    f"lmerge.{topology.name}.workers",
                    topology.output.state_topic,
                    output=topology.output.topic,
                    worker=self.name,
                    warm=self._warm,
                    standby_only=self._standby_only,
                    standbys=topology.standbys,
                    session_timeout_ms=int(topology.session_seconds * 1000),
                )
            )
            await self._work(self.control, self.members)

    async def _prepare(self) -> None:
        """Makes the topics of the merge; waits for a Kafka that is away for a moment, as where it
        restarts together with this worker.

        Raises:
            TransportError: it is away for longer, or refuses.
        """
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_may_pass),
            stop=tenacity.stop_after_delay(_START_SECONDS),
            wait=tenacity.wait_fixed(_RETRY_SECONDS),
            before_sleep=_note_retry,
            reraise=True,
        ):
            with attempt:
                async with self._cluster.topics() as topics:
                    await prepare(topics, self.topology)

    async def _work(self, control: LoggedControl, members: Members) -> None:
        with single_error():
            # The last commits ask for topics, so that look-ups end after the tasks.
            async with asyncio.TaskGroup() as serving:
                lookups = serving.create_task(self._lookups.run(), name="lookups")
                try:
                    await self._run_tasks(control, members)
                finally:
                    lookups.cancel()

    async def _run_tasks(self, control: LoggedControl, members: Members) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(control.run(), name="control")
            group.create_task(members.run(), name="members")
            group.create_task(self.topic_watch.run(), name="topics")
            group.create_task(self.retention.run(), name="retention")
            group.create_task(self.folding.run(control, self.name), name="folding")
            group.create_task(self._shared.run(), name="reader")
            group.create_task(self._replay.run(), name="replay")
            group.create_task(self._claim(members), name="claim")
            try:
                async for assignment in members.changes():
                    if assignment.generation < 0:
                        # The group took us for dead, as after a pause. Whoever has our tasks
                        # by now fences us; until that shows, we go on.
                        continue
                    roles: dict[int, Role] = dict.fromkeys(assignment.standby, "follows")
                    roles |= dict.fromkeys(assignment.active, "leads")
                    await self._assume(group, roles)
            finally:  # what follows is the end of everything
                self.stopping = True

    def _leading(self) -> dict[int, MergeTask]:
        return {p: held.task for p, held in self.held.items() if held.role == "leads"}

    def _warm(self) -> dict[int, int]:
        """The tasks that could be led from here soon, and how many seconds they lag."""
        return {
            p: held.task.lag_seconds for p, held in self.held.items() if held.task.lifecycle.is_warm
        }

    async def _claim(self, members: Members) -> None:
        """Has the group share again when a task that is promised to us has become warm."""
        claimed: tuple[int, frozenset[int]] | None = None
        while True:
            given = members.assignment
            warm = {p for p, lag in self._warm().items() if lag <= _WARM_SECONDS}
            ready = given.promised & warm
            if ready and claimed != (given.generation, ready):
                claimed = (given.generation, ready)
                members.rebalance()
            await asyncio.sleep(_CLAIM_SECONDS)

    async def _assume(self, group: asyncio.TaskGroup, roles: Mapping[int, Role]) -> None:
        """Ends what is another's now, and begins what is ours; a task that was followed is led
        with the state that it has."""
        ending = {p: held for p, held in self.held.items() if roles.get(p) != held.role}
        for held in ending.values():
            held.given_up = True
            held.running.cancel()
        if ending:
            await asyncio.wait([held.running for held in ending.values()])
        for partition, held in ending.items():
            log.info("task given up", task=partition, role=held.role)
            del self.held[partition]
            if partition not in roles:
                held.task.forget()
        share = sum(role == "leads" for role in roles.values())
        for partition, role in roles.items():
            task = self._task(partition)
            task.share = share
            if partition in self.held:
                # Of several assignments the last is seen: another may have led in between.
                task.verify()
            else:
                if role == "leads":
                    self._shared.expect(partition)
                running = group.create_task(self._hold(task, role), name=f"{role} {partition}")
                self.held[partition] = RunningTask(task, role, running)

    def _task(self, partition: int) -> MergeTask:
        assert self.control is not None
        if partition not in self._tasks:
            ledger = self.control.ledger
            self._tasks[partition] = MergeTask(
                self.topology,
                ledger,
                self._cluster,
                partition,
                shared=self._shared,
                replay=self._replay,
                lookups=self._lookups,
                turns=self._turns,
                snapshot_turns=self._snapshot_turns,
                sweep_turns=self._sweep_turns,
                outlets=self.outlets,
                feedback=self._feedback,
                unix_ns=self._unix_ns,
            )
        return self._tasks[partition]

    async def _hold(self, task: MergeTask, role: Role) -> None:
        """Leads or follows a task, however often Kafka is away meanwhile.

        A task group forgets that it was cancelled when one of its tasks fails, as the last
        commit does once the next owner has fenced us: an error of a task that was given up is the
        end of it.
        """
        held = self.held[task.partition]
        structlog.contextvars.bind_contextvars(task=task.partition)  # in all that is logged here
        once = self._lead if role == "leads" else self._follow
        failures = refusals = committed = 0
        fences = led = 0
        while True:
            try:
                await once(task)
            except TransportError as error:
                if held.given_up or self.stopping:
                    return
                # Whatever made a commit fail may heal by a rebuild; being refused again and
                # again will not, nor a right that it never had. That Kafka is away is no refusal.
                never = isinstance(error, RefusedError) and not task.progress.transactions
                if never or (not error.retriable and refusals >= _PATIENCE):
                    raise
                task.lifecycle.move(PhaseEvent.FAILED)
                task.progress.rebuilds += 1
                pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
                log.warning("recovering", error=str(error), pause_seconds=pause)
                await asyncio.sleep(pause)
                if task.progress.transactions != committed:
                    failures = refusals = 0
                failures, refusals = failures + 1, refusals + (not error.retriable)
                committed = task.progress.transactions
            except FencedError as error:
                if held.given_up or self.stopping:
                    return
                if isinstance(error, OtherMergeError):
                    raise
                fences = fences + 1 if task.progress.transactions == led else 0
                led = task.progress.transactions
                await self._fenced(task, error, _FENCED_PAUSES[min(fences, 4)])
            except LostOutputError as error:
                if held.given_up or self.stopping:
                    return
                if role == "leads" and self.topology.output.on_lost_state == "stop":
                    raise
                await self._lost_output(task, role, error)

    async def _lead(self, task: MergeTask) -> None:
        assert self.control is not None
        control = self.control
        async with AsyncExitStack() as stack:
            stack.callback(self._shared.arrived, task.partition)
            await task.lead(stack)
            log.info(
                "running",
                case=task.state.merge.case.value,
                policy=str(task.state.merge.policy),
                engine=task.state.engine.engine.value,
                why=task.state.engine.why,
                recovery_seconds=task.progress.recovery_seconds,
            )
            with single_error():
                async with asyncio.TaskGroup() as group:
                    group.create_task(task.run(), name="merge")
                    group.create_task(task.watch(), name="watch")
                    group.create_task(task.search(), name="search")
                    group.create_task(task.decide(control), name="decide")
                    group.create_task(task.report_readiness(control), name="readiness")
                    group.create_task(task.sweep(), name="sweep")

    async def _follow(self, task: MergeTask) -> None:
        log.info("following")
        await task.follow()

    async def _lost_output(self, task: MergeTask, role: Role, error: LostOutputError) -> None:
        """Decides that the output starts over, where the topology allows that without a person.
        Who follows waits, whatever the topology allows: the leading task may have in memory what is
        lost here, and takes snapshots of it.

        Raises:
            StateError: too little is known of the replicas.
        """
        task.lifecycle.move(PhaseEvent.FAILED)
        log.warning("output lost", role=role, error=str(error))
        try:
            if role == "leads":
                await self._restart_output(str(error))
        except TransportError as unknown:
            log.warning("recovering", error=str(unknown), pause_seconds=_LOST_SECONDS)
        except StateError as why:
            raise StateError(f"{error}; {why}") from why
        await asyncio.sleep(_LOST_SECONDS)

    async def _restart_output(self, why: str) -> None:
        """A decision that is refused was made by another task, or by whom it has to be planned
        again."""
        assert self.control is not None
        plan = await plan_restart(self.topology, self._cluster, self.control.ledger)
        action = plan.action(why)
        entry = await self.control.decide(decide(action, "on_lost_state", expects=plan.version))
        if entry.refusal is not None and entry.refusal.kind == "invalid":
            raise StateError(f"the output cannot start over: {entry.refusal.reason}")

    async def _fenced(self, task: MergeTask, error: FencedError, pause: float) -> None:
        """Another producer leads this task, or did. Returns when the group has acknowledged since
        that the task is to be led from here; if it is another's, this is cancelled meanwhile.

        Whose the fence was need not be known: a worker that was taken for dead, one that has died
        since, the broker, which ends transactions that stay open. That another *merge* has the
        output shows in its commit records (`MergeTask.lead`).
        """
        assert self.members is not None
        task.lifecycle.move(PhaseEvent.FENCED)
        task.progress.fences += 1
        log.warning("fenced", error=str(error))
        await asyncio.sleep(pause)
        while task.partition not in (await self.members.confirmed()).active:
            pass  # the next acknowledgement, until the change of role arrives and cancels this
        task.lifecycle.move(PhaseEvent.CONFIRMED)
        log.info("assigned to this worker all the same")


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, TransportError) and error.retriable


def _note_retry(state: tenacity.RetryCallState) -> None:
    assert state.outcome is not None
    log.warning("Kafka cannot be reached yet", error=str(state.outcome.exception()))


def _clock() -> float:
    return asyncio.get_running_loop().time()
