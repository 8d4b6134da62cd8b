"""The merge task: consume, merge, publish, for one output partition, exactly once.

Theory
    A transaction carries merged elements, dead letters and a commit record: up to which offsets
    the inputs are merged. While one commits, the next batch is merged; no element of a batch
    counts as emitted before its commit.

        poll → decode → merge → outbox ──commit──▶ output, dead letters, state topic
                  ▲               │ (merging goes on meanwhile)
                  └─── operator ──┘

    A task either *leads*, which is that, or *follows*: it advances from commit record to commit
    record of the leading task, without publishing. A task that has followed can lead at once.

Recovery
    `lead` fences the previous owner and continues from the last commit record (`recovery`). After
    a failed commit the state is discarded and the task is reopened: the same path as after
    `kill -9`.

What happens on a crash at each await
    in open: nothing has been written. In a poll: uncommitted merging is forgotten. In a commit:
    the next open finds out whether it took place (`kafka.sink`).
"""

import asyncio
import gc
import itertools
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import structlog

from lmerge_service.config.topology import Replica, Topology
from lmerge_service.core import Breach
from lmerge_service.core.base import Gap
from lmerge_service.elements import START, Element
from lmerge_service.errors import (
    FencedError,
    LMergeError,
    OtherMergeError,
    StateError,
    TransportError,
)
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.lookups import Lookups
from lmerge_service.kafka.source import Batches, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.commit_record import CommitRecord
from lmerge_service.merge.commit_turns import CommitTurns
from lmerge_service.merge.counting import Accounts, ReplicaTally
from lmerge_service.merge.decisions.control_log import Control
from lmerge_service.merge.decisions.ledger import AcceptedGap, DesiredReplica, Ledger
from lmerge_service.merge.decisions.reconcile import is_of_kind, reconcile
from lmerge_service.merge.findings.evidence import NotificationKind
from lmerge_service.merge.findings.leading import Leading
from lmerge_service.merge.findings.reporting import Reporting
from lmerge_service.merge.internal_topics import largest_record
from lmerge_service.merge.liveness import Liveness
from lmerge_service.merge.outlets import Outlets
from lmerge_service.merge.output_restart import restart_words
from lmerge_service.merge.progress import TaskProgress
from lmerge_service.merge.recovery import Recovery
from lmerge_service.merge.replica_states import DesiredState
from lmerge_service.merge.replicas import ReplicaState
from lmerge_service.merge.retention import Covered
from lmerge_service.merge.snapshots.writer import Snapshots, SnapshotTurns
from lmerge_service.merge.table.sweep import Sweep
from lmerge_service.merge.table.writer import TableWriter
from lmerge_service.merge.task_state import TaskState, wire_decoder
from lmerge_service.merge.topic_monitor import WATCH_SECONDS, TopicMonitor
from lmerge_service.merge.transaction import OUTBOX_BYTES, FeedbackSink, Transaction
from lmerge_service.service.cutover_readiness import CutoverReadiness
from lmerge_service.service.merge_loop import MergedBatch, MergeLoop
from lmerge_service.service.reading.shared_reader import SharedReader
from lmerge_service.service.reading.shared_replay import SharedReplay
from lmerge_service.service.reading.task_source import TaskSource
from lmerge_service.service.task_phases import Lifecycle, Phase, PhaseEvent

__all__ = ("MergeTask",)

log = structlog.get_logger()

_FOLLOW_SECONDS = 0.25
_TIDY_STEPS = 100
"""After so many steps the garbage is collected that each leaves, in cycles that hold what was
fetched: too little for the collector to begin by itself."""
_RECOVERIES = 5
"""A task that follows tries so many of the leading task's commit records, each a later one."""
_REBUILD_SECONDS = 5.0
"""A task that cannot follow yet rebuilds this often."""
_STEP_SECONDS = 1.0
_DECISIONS_SECONDS = 10.0


class MergeTask:
    """One output partition's merge: `lead`, then `run` until cancelled; or `follow`."""

    def __init__(
        self,
        topology: Topology,
        ledger: Ledger,
        cluster: Cluster,
        partition: int = 0,
        *,
        shared: SharedReader | None = None,
        replay: SharedReplay | None = None,
        lookups: Lookups | None = None,
        turns: CommitTurns | None = None,
        snapshot_turns: SnapshotTurns | None = None,
        sweep_turns: asyncio.Lock | None = None,
        outlets: Outlets | None = None,
        feedback: FeedbackSink = lambda *_: None,
        unix_ns: Callable[[], int] = time.time_ns,
    ):
        """`ledger`, which is only read here, has the decisions about the replicas. Through `shared`
        the task reads together with others, through `replay` it follows with others, through
        `lookups` it asks together with them; without these, alone. `turns`, `snapshot_turns` and
        `sweep_turns` are the worker's. `outlets` knows which topics cannot be written. `feedback`
        receives, after each commit, the partition, the points of its inputs and its stable point.
        `unix_ns` is the wall clock: nanoseconds since the epoch."""
        self.topology = topology
        self.partition = partition
        self.progress = TaskProgress()
        self.lifecycle = Lifecycle()
        self.share = 1
        """How many tasks this worker leads, among which its limits are divided."""
        self.reporting = Reporting(partition, unix_ns=unix_ns)
        self.outlets = Outlets(topology, _clock) if outlets is None else outlets
        self.leading = Leading(unix_ns)
        self.merge_loop: MergeLoop | None = None
        """While it leads."""
        self.cutover_readiness: CutoverReadiness | None = None
        """While it leads."""
        self.table: TableWriter | None = None
        """While it leads, of an output that has a table."""
        self._unix_ns = unix_ns
        self._living: dict[str, Liveness] = {}
        self._accounts = Accounts()
        self._ledger = ledger
        self._feedback = feedback
        self._cluster = cluster
        self._shared, self._replay, self._lookups = shared, replay, lookups
        self._turns = CommitTurns() if turns is None else turns
        self._snapshot_turns = snapshot_turns
        self._sweep_turns = asyncio.Lock() if sweep_turns is None else sweep_turns
        output = topology.output
        self._output = TopicPartition(output.topic, partition)
        self._state_topic = TopicPartition(output.state_topic, partition)
        self.state = self._fresh()
        """Never None: what is known so far."""
        self._is_known = False
        """The state is that of some commit record, once `Recovery.follow` has replayed the input up
        to it."""
        self._is_ours = False
        """A commit record of this merge has been seen or written: a later one of another merge
        shows a second owner of the output, and not a previous one."""

    def _fresh(self) -> TaskState:
        topology = self._ledger.topology
        return TaskState(topology, self.partition, tallies=self._accounts.tallies, clock=_clock)

    def forget(self) -> None:
        """Lets go of the state: the group has revoked the task."""
        self._replace(self._fresh())
        self._settle(None)
        self._is_known = False
        self.lifecycle.move(PhaseEvent.REVOKED)
        self.merge_loop = self.cutover_readiness = None
        self.progress.caught_up = None

    def _settle(self, last: CommitRecord | None) -> None:
        """Forgets what was merged after the last commit record: it will be merged again."""
        self.reporting.settle(took_place=self._accounts.settle(last))

    def _replace(self, state: TaskState) -> None:
        """The state before, if it was in use, is large and in cycles of references."""
        before, self.state = self.state, state
        if self._replay is not None:
            self._replay.leave(before)
        if before.transaction:
            del before
            gc.collect()

    def _stop_replaying(self) -> None:
        if self._replay is not None and not self._replay.leave(self.state):
            self._is_known = False

    @property
    def phase(self) -> Phase:
        """What the task is on this worker."""
        return self.lifecycle.phase

    @property
    def lag_seconds(self) -> int:
        """How old the state is that this worker could lead from, where it follows."""
        caught_up = self.progress.caught_up
        return 0 if caught_up is None else int(_clock() - caught_up)

    @property
    def elements_in(self) -> int:
        """Records that were merged and committed."""
        return self._accounts.merged.committed["elements"]

    @property
    def unusual(self) -> int:
        """Of these, so many were decoded in Python, where the engine merges."""
        tallies = self._accounts.tallies.values()
        return sum(each.counts.committed["unusual"] for each in tallies)

    @property
    def switches(self) -> int:
        """How often the leading replica changed."""
        return self._accounts.merged.committed["switches"]

    @property
    def replicas(self) -> list[ReplicaState]:
        """The desired ones, in the order of the decisions; while the state is rebuilt, only their
        counters are known."""
        states = self.state.replicas.states
        return [
            states.get(name)
            or ReplicaState(each.replica, self._accounts.tallies.get(name, ReplicaTally()))
            for name, each in self._ledger.replicas.items()
            if each.state is not DesiredState.DETACHED
        ]

    # --- opening ------------------------------------------------------------------------------

    async def lead(self, stack: AsyncExitStack) -> None:
        """Takes the output partition over, and is ready to merge.

        Raises:
            FencedError: another instance has taken over before it was ready.
            OtherMergeError: a merge of another name has published since this one did.
            TransportError: Kafka cannot be reached, or refuses.
            StateError: the output is not what this merge has written.
        """
        started = _clock()
        self._begin()
        await self._connect(stack)
        largest = largest_record(self.topology)
        sink = await stack.enter_async_context(
            self._cluster.sink(
                transactional_id=f"lmerge.{self._output.topic}.{self.partition}",
                output=self._output,
                dead_letters=self.topology.output.dead_letter_topic,
                state=self._state_topic,
                events=self.topology.output.events_topic,
                max_record_bytes=largest,
                table=self.topology.output.table_topic if self.topology.output.table else None,
            )
        )
        await self._catch_up(fenced=True)
        self._is_known = False  # from now on it is ahead of its commit records
        stack.callback(self._stop_leading)
        self._snapshots = Snapshots(
            every=self.topology.snapshot_seconds,
            clock=_clock,
            counts=self.progress.snapshots,
            turns=self._snapshot_turns,
        )
        stack.callback(self._snapshots.close)
        self._reading = TaskSource(self, self.state, self._source, self._shared, self._lookups)
        stack.push_async_callback(self._reading.aclose)
        self._topic_monitor = TopicMonitor(
            self.state,
            self._reading,
            self._topics,
            clock=_clock,
            detached=self._detached,
            unheeded=self.progress.unheeded,
        )
        self.table = await self._opened_table()
        self._transaction = Transaction(
            self.state,
            sink,
            self._topic_monitor,
            self._snapshots,
            self.reporting,
            self.progress,
            self._accounts,
            self.outlets,
            table=self.table,
            turns=self._turns,
            feedback=self._feedback,
            clock=_clock,
            apart=self._commit_seconds,
            enough=self._commit_bytes,
        )
        await self._know_decisions()
        self._transaction.append(self.state.missed)
        self._carry_out()
        self.merge_loop = MergeLoop(
            self.state,
            self._reading,
            self.reporting,
            clock=_clock,
            unix_ns=self._unix_ns,
            living=self._living,
            leading=self.leading,
            share=self.share,
        )
        self.cutover_readiness = CutoverReadiness(
            self.state,
            self._ledger,
            self._transaction,
            self.merge_loop,
            clock=_clock,
            unix_ns=self._unix_ns,
        )
        self._reassign()
        await self._topic_monitor.look()
        if await self._topic_monitor.act():
            self._reassign()
        self._report_recovery()
        self.progress.committed_stable = self.state.merge.max_stable
        self.progress.unreachable = None
        self.progress.recovery_seconds = round(_clock() - started, 3)
        self.progress.takeovers += 1
        self._is_ours = True  # the first commit, at once, writes a commit record of ours
        self.lifecycle.move(PhaseEvent.TOOK_OVER)

    def _commit_seconds(self) -> float:
        return 0.0 if self._shared is None else self._shared.commit_seconds

    def _commit_bytes(self) -> int:
        return OUTBOX_BYTES if self._shared is None else self._shared.commit_bytes

    def _stop_leading(self) -> None:
        """Lets go of whatever refers to the state, which is replaced by another one."""
        self.merge_loop = self.cutover_readiness = self.table = None
        for name in ("_reading", "_snapshots", "_topic_monitor", "_transaction"):
            self.__dict__.pop(name, None)

    async def _opened_table(self) -> TableWriter | None:
        output = self.topology.output
        if not output.table:
            return None
        found = (await self._topics.describe([output.table_topic])).get(output.table_topic)
        topic_id = None if found is None else found.id
        table = TableWriter(self.state, self.outlets, topic_id, keep=output.keep)
        self.progress.table_whole = table.is_whole
        return table

    def _report_recovery(self) -> None:
        if self.state.transaction:
            why = f"from transaction {self.state.transaction}, with {len(self.state.merge)} events"
            self.reporting.notify(NotificationKind.REBUILD, None, why)

    async def follow(self) -> None:
        """Keeps the state that the task which leads has committed, until cancelled.

        Raises:
            OtherMergeError: a merge of another name has published since this one did.
            TransportError: Kafka cannot be reached, or refuses.
            StateError: the output is not what this merge has written.
        """
        self.merge_loop = self.cutover_readiness = None
        self._begin()
        async with AsyncExitStack() as stack:
            await self._connect(stack)
            stack.callback(self._stop_replaying)
            for steps in itertools.count(1):
                asked = _clock()
                await _whole(self._catch_up(fenced=False))
                self.progress.caught_up, self.progress.unreachable = asked, None
                self.progress.committed_stable = self.state.merge.max_stable
                self.lifecycle.move(PhaseEvent.CAUGHT_UP if self._is_known else PhaseEvent.FAILED)
                if steps % _TIDY_STEPS == 0:
                    gc.collect(1)
                await _until_next(_FOLLOW_SECONDS if self._is_known else _REBUILD_SECONDS)
                await self._until_there_is_time()

    async def _until_there_is_time(self) -> None:
        """What the worker leads comes first: a task that is not followed for a while begins with a
        snapshot afterwards, whoever leads it then."""
        while self._shared is not None and self._shared.is_behind:  # noqa: ASYNC110 - no event
            await asyncio.sleep(_FOLLOW_SECONDS)

    def _begin(self) -> None:
        """In another role than before; after a failure or a fence it recovers already."""
        if self.phase is not Phase.RECOVERING:
            self.lifecycle.move(PhaseEvent.ASSIGNED)

    async def _connect(self, stack: AsyncExitStack) -> None:
        self._topics: Topics | Lookups
        if self._lookups is None:
            self._topics = await stack.enter_async_context(self._cluster.topics())
        else:
            self._topics = self._lookups
        self._source = await stack.enter_async_context(
            self._cluster.source(max_record_bytes=self.topology.limits.max_record_bytes)
        )
        self._recovery = Recovery(
            self._source,
            self._topics,
            output=self._output,
            state=self._state_topic,
            fresh=self._fresh,
            replicas=self._attached,
            joint=self._replay,
            lookups=self._lookups,
        )

    async def _catch_up(self, *, fenced: bool) -> None:
        """Advances to the last commit record, from the current state if that is possible."""
        last = await self._recovery.last_commit(fenced=fenced)
        self._require_ours(last)
        if fenced:
            self._settle(last)
        known, self._is_known = self._is_known, False
        if self._starts_over(last):
            await self._start_over(last, fenced=fenced)
            return
        if known and is_of_kind(self.state, self._ledger):
            try:
                state = await self._recovery.advanced(self.state, last, fenced=fenced)
            except StateError as error:
                log.warning("state not followed", error=str(error))
            else:
                if state is not self.state:
                    self._replace(state)
                self._is_known = fenced or not state.missed
                return
        self._replace(await self._recovered(last, fenced=fenced))
        # Missed output, as under another policy, is emitted by the leading task, in any order.
        self._is_known = fenced or not self.state.missed
        log.info(
            "rebuilt",
            output_stable=self.state.merge.max_stable,
            live_events=len(self.state.merge),
            transaction=self.state.transaction,
            from_snapshot_of=self.state.restored_from,
            missed=len(self.state.missed),
        )

    def _starts_over(self, last: CommitRecord | None) -> bool:
        """A new incarnation of the output was decided, and is not in it yet."""
        number = 0 if last is None else last.output.incarnation
        return self._ledger.output.number > number

    async def _start_over(self, last: CommitRecord | None, *, fenced: bool) -> None:
        """Who follows has nothing to follow before the leading task's first commit."""
        self._replace(await self._recovery.started_over(last, self._ledger.output, fenced=fenced))
        if not fenced:
            return
        begun, former = self.state.begun, START if last is None else last.stable
        why = restart_words(begun.incarnation, begun.correct_from, former)
        self.reporting.notify(NotificationKind.RESTARTED, None, why)
        log.warning(
            "output restarted",
            incarnation=begun.incarnation,
            correct_from=begun.correct_from,
            former_stable=former,
            topic=self._output.topic,
            offset=begun.offset,
        )

    def _require_ours(self, last: CommitRecord | None) -> None:
        """A new merge may take an output over, under another name than the previous one; the merge
        that loses it ends, instead of the two fencing each other for ever."""
        if last is None:
            return
        if last.merge in ("", self.topology.name):  # older versions wrote no name
            self._is_ours = True
        elif self._is_ours:
            raise OtherMergeError(
                f"{self._output.topic}-{self.partition}: merge {last.merge!r} publishes to this "
                f"output too, since transaction {last.transaction}; only one may: give one of the "
                "topologies another output, or stop its workers"
            )

    async def _recovered(self, last: CommitRecord | None, *, fenced: bool) -> TaskState:
        for tries in itertools.count(1):
            try:
                return await self._recovery.recover(last, fenced=fenced)
            except StateError as error:
                newer = await self._recovery.last_commit(fenced=fenced)
                if newer == last or tries == _RECOVERIES:
                    raise
                if fenced:  # the mismatch is what the next owner has written meanwhile
                    raise FencedError(
                        f"another worker leads by now, and has written: {error}"
                    ) from error
                last = newer  # its snapshots have taken the place of those that were looked for
        raise AssertionError("it has returned, or raised")

    # --- decisions ----------------------------------------------------------------------------

    def _detached(self) -> dict[str, str]:
        """The topics of those that are detached, by name."""
        desired = self._ledger.replicas.items()
        return {n: each.replica.topic for n, each in desired if each.state is DesiredState.DETACHED}

    def _attached(self) -> dict[str, Replica]:
        return {each.replica.name: each.replica for each in self._ledger.attached()}

    async def _know_decisions(self) -> None:
        """Waits until the decisions that the last commit record depends on are known here.

        Raises:
            StateError: they are not in the control log any more.
            TransportError: reading that log takes long.
        """
        try:
            async with asyncio.timeout(_DECISIONS_SECONDS):
                while self._ledger.version < self.state.decided:  # noqa: ASYNC110 - a log is read
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise await self._unknown_decisions() from None

    async def _unknown_decisions(self) -> LMergeError:
        """A log that was deleted ends the worker; one that is slow does not."""
        known, needed = self._ledger.version, self.state.decided
        control = TopicPartition(self.topology.output.control_topic, 0)
        if self._ledger.offset < (await self._source.ends([control]))[control]:
            return TransportError(
                f"{control.topic} is not read to its end yet: of {needed} decisions {known} known"
            )
        return StateError(
            f"{control.topic} has {known} decisions, and {needed} were carried out: it was "
            "deleted; to go on by the topology file alone, delete "
            f"{self._state_topic.topic} as well"
        )

    def _carry_out(self) -> None:
        """Carries out the decisions about the replicas that are not carried out yet.

        Raises:
            TransportError: case or policy are other ones, or the output is to start over; the
                operator is rebuilt.
        """
        if not is_of_kind(self.state, self._ledger):
            raise TransportError("another case or policy was decided: the merge is rebuilt")
        if self._ledger.output.number > self.state.begun.incarnation:
            raise TransportError("a restart of the output was decided: it begins once more")
        before, cutover = self.state.decided, self._ledger.cutover
        reconcile(self.state, self._ledger, report=self._report_decision, accepted=self._accept_gap)
        if cutover is not None and cutover.since > before:
            why = "" if cutover.why is None else f": {cutover.why}"
            text = f"from {cutover.leaving}, by {cutover.who}, {cutover.state}{why}"
            self.reporting.notify(NotificationKind.CUTOVER, cutover.coming, text)

    def _report_decision(self, desired: DesiredReplica) -> None:
        name, notify = desired.replica.name, self.reporting.notify
        if desired.state is DesiredState.QUARANTINED:
            notify(NotificationKind.QUARANTINED, name, f"by {desired.who}: {desired.reason or ''}")
        elif desired.state is DesiredState.ATTACHED and desired.released:
            notify(NotificationKind.RELEASED, name, f"by {desired.who}")

    def _accept_gap(self, accepted: AcceptedGap, gap: Gap, out: list[Element]) -> None:
        self._transaction.append(out)
        why = f"by {accepted.who}: [{gap.start}, {gap.end}) is lost"
        self.reporting.notify(NotificationKind.ACCEPTED_GAP, gap.input, why)
        log.warning("gap accepted", replica=gap.input, start=gap.start, end=gap.end)

    # --- running ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Merges until cancelled; a commit in flight is finished first (bounded).

        Raises:
            FencedError: another instance has taken over.
            TransportError: a commit failed or Kafka went away; reopen the task.
        """
        ready: asyncio.Task[None] | None = None
        try:
            while True:
                await self._reading.settle()
                self._reading.settled()
                ready = ready or asyncio.create_task(self._snapshots.ready(), name="ready")
                await self._reading.wait(self._transaction.awaited or ready)
                self._merge_what_is_read()
                if self._ledger.version != self.state.decided:
                    self._carry_out()
                    self._reassign()
                if await self._topic_monitor.act():
                    self._reassign()
                self._pace()
                await self._transaction.publish()
                if ready.done():
                    ready = None
        finally:
            if ready is not None:
                ready.cancel()
                await asyncio.gather(ready, return_exceptions=True)
            await self._transaction.finish()

    def _merge_what_is_read(self) -> None:
        """What is read together was merged already."""
        assert self.merge_loop is not None
        if (polled := self._reading.polled()) or self.merge_loop.is_due:
            self._merge(polled)
        if nearly := self._reading.nearly_there():
            self._merge(nearly)
        self._reading.join()

    def _merge(self, batches: Batches) -> None:
        """Also of nothing something may come: what was merged before is compared in time."""
        assert self.merge_loop is not None
        self.begin_batch()
        self.take_in(self.merge_loop.take(batches))

    @property
    def covered(self) -> Covered | None:
        """What its snapshots cover of the output; None before its first commit, and while it does
        not lead."""
        if self.merge_loop is None or self._transaction.view is None:
            return None
        record = self._transaction.view.record
        return Covered(record.snapshots, record.output_records, record.output.offset)

    def hasten_snapshot(self) -> None:
        """Has the next snapshot taken soon; while it leads."""
        if self.merge_loop is not None:
            self._snapshots.hasten()

    @property
    def flushed(self) -> bool:
        """All emitted elements are committed."""
        return self._transaction.flushed

    def reads_alone(self, name: str) -> bool | None:
        """Whether a replica is read for this task only; None while it does not lead, or does not
        merge it."""
        if self.merge_loop is None or name not in self.state.replicas.merged:
            return None
        return not self._reading.is_together(name)

    def verify(self) -> None:
        """Makes the next commit due at once, even with nothing to publish: a worker that was away
        finds out whether another has led since."""
        if self.merge_loop is not None:  # it leads
            self._transaction.hasten()

    def reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Every one of these offsets has been read."""
        return all((self._reading.position(tp) or 0) >= end for tp, end in ends.items())

    @property
    def capacity(self) -> int:
        """How many records may be merged until the transaction is full."""
        return self._transaction.capacity

    @property
    def is_at_ease(self) -> bool:
        """What was merged leaves nothing to be done now but to merge more."""
        assert self.merge_loop is not None
        if self._ledger.version != self.state.decided or not self._transaction.is_at_ease:
            return False
        return self.merge_loop.is_at_ease(self.share)

    def begin_batch(self) -> None:
        """Records were fetched, and are merged now."""
        self._transaction.begin_batch()

    def take_in(self, batch: MergedBatch) -> None:
        """Publishes and counts what came of a batch."""
        assert self.cutover_readiness is not None
        transaction = self._transaction
        self.cutover_readiness.count(batch.breaches)
        if batch.lost:
            self.progress.loss, self.progress.lost_at = str(batch.lost[-1]), _clock()
        self._accounts.merged.add({"elements": batch.records, "switches": batch.switches})
        transaction.merged(batch.records)
        transaction.append(batch.elements, batch.origins)
        transaction.append_dead_letters(batch.dead)
        self._report(batch.dead, batch.breaches)

    def _report(self, dead: Sequence[DeadLetter], breaches: Iterable[Breach]) -> None:
        states, left = self.state.replicas.states, Counter(letter.replica for letter in dead)
        for letter in dead:
            left[letter.replica] -= 1
            count = states[letter.replica].tally.counts.total("dead") - left[letter.replica]
            if count.bit_count() == 1:  # the 1st, 2nd, 4th, 8th, …
                log.warning(
                    "not an element", replica=letter.replica, topic=letter.topic,
                    partition=letter.partition, offset=letter.offset, reason=letter.reason,
                    count=count,
                )  # fmt: skip
        for breach in breaches:
            tally = states[breach.input].tally
            tally.troubled = _clock()
            tally.breaches.add({breach.kind.value: 1})
            if (count := tally.breaches.total(breach.kind.value)).bit_count() == 1:
                log.warning(
                    "breach", replica=breach.input, incarnation=breach.incarnation,
                    kind=breach.kind.value, element=repr(breach.element), kept=breach.kept,
                    count=count,
                )  # fmt: skip

    def _pace(self) -> None:
        """Decides which partitions are read next."""
        assert self.merge_loop is not None
        if self.merge_loop.withdrew:
            self.merge_loop.withdrew = False
            self._reassign()
        if self.merge_loop.is_waiting:
            self._topic_monitor.measure()
        if self.merge_loop.must_pace:
            self.merge_loop.pace(self.share)

    async def decide(self, control: Control) -> None:
        """See `MergeLoop.decide`; while it leads."""
        assert self.merge_loop is not None
        await self.merge_loop.decide(control)

    async def report_readiness(self, control: Control) -> None:
        """See `CutoverReadiness.run`; while it leads."""
        assert self.cutover_readiness is not None
        await self.cutover_readiness.run(control)

    async def search(self) -> None:
        """Looks up the records behind divergences; while it leads."""
        decoder = wire_decoder(self.topology)
        await self.reporting.run(partial(self._cluster.find_event, decoder=decoder))

    async def sweep(self) -> None:
        """See `Sweep.run`; while it leads."""
        if self.table is None:
            return
        sweep = Sweep(
            self.table,
            self._cluster,
            TopicPartition(self.table.topic, self.partition),
            stable=lambda: self.progress.committed_stable,
            turns=self._sweep_turns,
            unix_ns=self._unix_ns,
            most=2 * self.topology.limits.max_live_events,
        )
        await sweep.run()

    async def _see_table(self) -> None:
        """A table topic that was deleted is another one now."""
        if self.table is not None:
            found = await self._topics.describe([self.table.topic])
            if self.table is not None:  # it still leads
                self.table.see(found.get(self.table.topic))

    def _reassign(self) -> None:
        """Reads the partitions to be merged, from their positions."""
        self._transaction.move()
        self._reading.reassign()

    async def watch(self) -> None:
        """Measures lag from the topics' ends and looks for topics that come and go; gives up a
        commit that waits for a topic which the output does not need.

        Raises:
            UnwritableError: one does; reopen the task.
        """
        while True:
            self._transaction.give_up()
            try:
                await self._topic_monitor.look()
                await self._see_table()
                if self.progress.unreachable is not None:
                    log.info("the topics can be seen again")
                self.progress.unreachable = None
            except TransportError as error:
                if self.progress.unreachable is None:
                    log.warning("cannot see the topics", error=str(error))
                self.progress.unreachable = str(error)
                for state in self.state.replicas.states.values():
                    state.unread = None
            await _until_next(WATCH_SECONDS)


async def _whole(step: Coroutine[Any, Any, None]) -> None:
    """Does a step to its end even when it is cancelled meanwhile, unless it takes long: a state
    that is left in mid-step is of no use."""
    task = asyncio.ensure_future(step)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=_STEP_SECONDS)
        finally:  # also when it is cancelled once more
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        raise


async def _until_next(seconds: float) -> None:
    """Until the next multiple of so many seconds: what all tasks ask then is one request."""
    await asyncio.sleep(seconds - _clock() % seconds)


def _clock() -> float:
    return asyncio.get_running_loop().time()
