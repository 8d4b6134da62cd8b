"""The merge task: consume, merge, publish, for one output partition, exactly once.

Theory
    A transaction carries merged elements, dead letters and a mark: up to where the inputs are
    merged with it. While one commits, the next batch is merged; nothing of a batch counts as said
    before its commit.

        poll → decode → merge → outbox ──commit──▶ output, dead letters, state topic
                  ▲               │ (merging goes on meanwhile)
                  └─── operator ──┘

    A task either *leads*, which is that, or *follows*: it goes on from mark to mark of the task
    that leads, without publishing. One that has followed leads at once.

Recovery
    `lead` fences the owner before and goes on from the last mark (`recovery`). After a failed
    commit the state is thrown away and the task is opened anew: the same path as after `kill -9`.

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
from lmerge_service.core.operator import Gap
from lmerge_service.elements import Element
from lmerge_service.errors import (
    FencedError,
    LMergeError,
    OtherMergeError,
    StateError,
    TransportError,
)
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.source import Batches, TopicPartition
from lmerge_service.merge.commit_record import CommitRecord
from lmerge_service.merge.counting import Accounts, Tally
from lmerge_service.merge.decisions.control_log import Control
from lmerge_service.merge.decisions.ledger import AcceptedGap, DesiredReplica, Ledger
from lmerge_service.merge.decisions.reconcile import is_of_kind, reconcile
from lmerge_service.merge.findings.evidence import NotificationKind
from lmerge_service.merge.findings.leading import Leading
from lmerge_service.merge.findings.reporting import Reporting
from lmerge_service.merge.internal_topics import largest_record
from lmerge_service.merge.liveness import Liveness
from lmerge_service.merge.outlets import Outlets
from lmerge_service.merge.progress import Progress
from lmerge_service.merge.recovery import Recovery
from lmerge_service.merge.replica_states import DesiredState
from lmerge_service.merge.replicas import ReplicaState
from lmerge_service.merge.snapshots.writer import Snapshots
from lmerge_service.merge.task_state import TaskState
from lmerge_service.merge.topic_monitor import WATCH_SECONDS, Lookout
from lmerge_service.merge.transaction import FeedbackSink, Transaction
from lmerge_service.service.cutover_readiness import CutoverReadiness
from lmerge_service.service.merge_loop import MergeLoop
from lmerge_service.service.task_phases import Event, Lifecycle, Phase

__all__ = ("MergeTask",)

log = structlog.get_logger()

_IDLE_POLL_SECONDS = 1.0
_AT_ONCE = 4_000
"""Records of a poll: more would leave the processor's caches between one step and the next, and let
replicas drift apart, so that they are no more found among what was seen lately."""
_FOLLOW_SECONDS = 0.25
_TIDY_STEPS = 100
"""After so many steps the garbage is collected that each leaves, in cycles that hold what was
fetched: too little for the collector to begin by itself."""
_REBUILD_SECONDS = 5.0
"""Who cannot follow yet rebuilds this often."""
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
        outlets: Outlets | None = None,
        feedback: FeedbackSink = lambda *_: None,
        unix_ns: Callable[[], int] = time.time_ns,
    ):
        """`ledger` is read only: what is decided about the replicas. `outlets` tells which topics
        cannot be written, as whoever watches them knows. `feedback` is told the
        partition, and after each commit the points of its inputs and its stable point. `unix_ns`
        is the wall clock: nanoseconds since the epoch."""
        self.topology = topology
        self.partition = partition
        self.progress = Progress()
        self.lifecycle = Lifecycle()
        self.share = 1
        """How many tasks this worker leads, among which its limits are divided."""
        self.reporting = Reporting(partition, unix_ns=unix_ns)
        self.outlets = Outlets(topology, _clock) if outlets is None else outlets
        self.leading = Leading(unix_ns)
        self.oversight: MergeLoop | None = None
        """While it leads."""
        self.vouching: CutoverReadiness | None = None
        """While it leads."""
        self._unix_ns = unix_ns
        self._living: dict[str, Liveness] = {}
        self._accounts = Accounts()
        self._ledger = ledger
        self._feedback = feedback
        self._cluster = cluster
        output = topology.output
        self._output = TopicPartition(output.topic, partition)
        self._state_topic = TopicPartition(output.state_topic, partition)
        self.state = self._fresh()
        """Never None: what is known so far."""
        self._is_known = False
        """The state is that of some mark, and nothing since."""
        self._is_ours = False
        """A mark of this merge has been seen or written: another merge's later one is a second
        owner of the output, and not the one before us."""

    def _fresh(self) -> TaskState:
        topology = self._ledger.topology
        return TaskState(topology, self.partition, tallies=self._accounts.tallies, clock=_clock)

    def forget(self) -> None:
        """Lets go of the state: the group has revoked the task."""
        self._replace(self._fresh())
        self._settle(None)
        self._is_known = False
        self.lifecycle.move(Event.REVOKED)
        self.oversight = self.vouching = None
        self.progress.caught_up = None

    def _settle(self, mark: CommitRecord | None) -> None:
        """What was merged behind the last mark is forgotten: it is merged again, if by us."""
        self.reporting.settle(took_place=self._accounts.settle(mark))

    def _replace(self, state: TaskState) -> None:
        """The state before, if it was in use, is large and in cycles of references."""
        before, self.state = self.state.transaction, state
        if before:
            gc.collect()

    @property
    def phase(self) -> Phase:
        """What the task is on this worker."""
        return self.lifecycle.phase

    @property
    def elements_in(self) -> int:
        """Records that were merged and committed."""
        return self._accounts.merged.committed["elements"]

    @property
    def switches(self) -> int:
        """How often the leading replica changed."""
        return self._accounts.merged.committed["switches"]

    @property
    def replicas(self) -> list[ReplicaState]:
        """Those that are wanted, in the order of the decisions; while the state is rebuilt, what
        was counted of them is all that is known."""
        states = self.state.replicas.states
        return [
            states.get(name)
            or ReplicaState(each.replica, self._accounts.tallies.get(name, Tally()))
            for name, each in self._ledger.replicas.items()
            if each.wish is not DesiredState.DETACHED
        ]

    # --- opening ------------------------------------------------------------------------------

    async def lead(self, stack: AsyncExitStack) -> None:
        """Takes the output partition over and stands ready to go on.

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
            )
        )
        await self._catch_up(fenced=True)
        self._is_known = False  # from now on it is ahead of its marks
        stack.callback(self._stop_leading)
        self._snapshots = Snapshots(
            every=self.topology.snapshot_seconds, clock=_clock, counts=self.progress.snapshots
        )
        stack.callback(self._snapshots.close)
        self._lookout = Lookout(
            self.state,
            self._source,
            self._topics,
            clock=_clock,
            detached=self._detached,
            unheeded=self.progress.unheeded,
        )
        self._outgoing = Transaction(
            self.state,
            sink,
            self._lookout,
            self._snapshots,
            self.reporting,
            self.progress,
            self._accounts,
            self.outlets,
            feedback=self._feedback,
            clock=_clock,
        )
        await self._know_decisions()
        self._outgoing.say(self.state.missed)
        self._carry_out()
        self.oversight = MergeLoop(
            self.state,
            self._source,
            self.reporting,
            clock=_clock,
            unix_ns=self._unix_ns,
            living=self._living,
            leading=self.leading,
        )
        self.vouching = CutoverReadiness(
            self.state,
            self._ledger,
            self._outgoing,
            self.oversight,
            clock=_clock,
            unix_ns=self._unix_ns,
        )
        self._reassign()
        await self._lookout.look()
        if await self._lookout.act():
            self._reassign()
        self._tell_of_recovery()
        self.progress.committed_stable = self.state.merge.max_stable
        self.progress.unreachable = None
        self.progress.recovery_seconds = round(_clock() - started, 3)
        self.progress.takeovers += 1
        self._is_ours = True  # the first commit, at once, is a mark of ours
        self.lifecycle.move(Event.TOOK_OVER)

    def _stop_leading(self) -> None:
        """Lets go of whatever refers to the state, which is replaced by another one."""
        self.oversight = self.vouching = None
        for name in ("_snapshots", "_lookout", "_outgoing"):
            self.__dict__.pop(name, None)

    def _tell_of_recovery(self) -> None:
        if self.state.transaction:
            why = f"from transaction {self.state.transaction}, with {len(self.state.merge)} events"
            self.reporting.happened(NotificationKind.REBUILD, None, why)

    async def follow(self) -> None:
        """Keeps the state that the task which leads has committed, until cancelled.

        Raises:
            OtherMergeError: a merge of another name has published since this one did.
            TransportError: Kafka cannot be reached, or refuses.
            StateError: the output is not what this merge has written.
        """
        self.oversight = self.vouching = None
        self._begin()
        async with AsyncExitStack() as stack:
            await self._connect(stack)
            for steps in itertools.count(1):
                asked = _clock()
                await _whole(self._catch_up(fenced=False))
                self.progress.caught_up, self.progress.unreachable = asked, None
                self.progress.committed_stable = self.state.merge.max_stable
                self.lifecycle.move(Event.CAUGHT_UP if self._is_known else Event.FAILED)
                if steps % _TIDY_STEPS == 0:
                    gc.collect(1)
                await asyncio.sleep(_FOLLOW_SECONDS if self._is_known else _REBUILD_SECONDS)

    def _begin(self) -> None:
        """In another role than before; after a failure or a fence it recovers already."""
        if self.phase is not Phase.RECOVERING:
            self.lifecycle.move(Event.ASSIGNED)

    async def _connect(self, stack: AsyncExitStack) -> None:
        self._topics = await stack.enter_async_context(self._cluster.topics())
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
        )

    async def _catch_up(self, *, fenced: bool) -> None:
        """To the last mark, from where we are if that is possible."""
        mark = await self._recovery.last_mark(fenced=fenced)
        self._require_ours(mark)
        if fenced:
            self._settle(mark)
        known, self._is_known = self._is_known, False
        if known and is_of_kind(self.state, self._ledger):
            try:
                await self._recovery.follow(self.state, mark, fenced=fenced)
            except StateError as error:
                log.warning("state not followed", error=str(error))
            else:
                self._is_known = True
                return
        self._replace(await self._recovered(mark, fenced=fenced))
        # What was missed, as under another policy, is for who leads to say, in whatever order.
        self._is_known = fenced or not self.state.missed
        log.info(
            "rebuilt",
            output_stable=self.state.merge.max_stable,
            live_events=len(self.state.merge),
            transaction=self.state.transaction,
            from_snapshot_of=self.state.restored_from,
            missed=len(self.state.missed),
        )

    def _require_ours(self, mark: CommitRecord | None) -> None:
        """A newcomer may take an output over, under another name than the one before; the merge
        that it takes it from ends, instead of the two fencing each other for ever."""
        if mark is None:
            return
        if mark.merge in ("", self.topology.name):  # marks of older versions bear no name
            self._is_ours = True
        elif self._is_ours:
            raise OtherMergeError(
                f"{self._output.topic}-{self.partition}: merge {mark.merge!r} publishes to this "
                f"output too, since transaction {mark.transaction}; only one may: give one of the "
                "topologies another output, or stop its workers"
            )

    async def _recovered(self, mark: CommitRecord | None, *, fenced: bool) -> TaskState:
        try:
            return await self._recovery.recover(mark, fenced=fenced)
        except StateError as error:
            if fenced and await self._recovery.last_mark(fenced=True) != mark:
                # What did not fit is what the next owner has written meanwhile.
                raise FencedError(
                    f"another worker leads by now, and has written: {error}"
                ) from error
            raise

    # --- what is decided --------------------------------------------------------------------------

    def _detached(self) -> dict[str, str]:
        """The topics of those that are detached, by name."""
        wanted = self._ledger.replicas.items()
        return {n: each.replica.topic for n, each in wanted if each.wish is DesiredState.DETACHED}

    def _attached(self) -> dict[str, Replica]:
        return {each.replica.name: each.replica for each in self._ledger.attached()}

    async def _know_decisions(self) -> None:
        """Waits until what the last mark rests on is known here.

        Raises:
            StateError: it is not in the control log any more.
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
        known, wanted = self._ledger.version, self.state.decided
        control = TopicPartition(self.topology.output.control_topic, 0)
        if self._ledger.offset < (await self._source.ends([control]))[control]:
            return TransportError(
                f"{control.topic} is not read to its end yet: of {wanted} decisions {known} known"
            )
        return StateError(
            f"{control.topic} has {known} decisions, and {wanted} were carried out: it was "
            "deleted; to go on by the topology file alone, delete "
            f"{self._state_topic.topic} as well"
        )

    def _carry_out(self) -> None:
        """Makes what is decided about the replicas so, as far as it is not.

        Raises:
            TransportError: case or policy are other ones; the operator is rebuilt.
        """
        if not is_of_kind(self.state, self._ledger):
            raise TransportError("another case or policy was decided: the merge is rebuilt")
        before, cutover = self.state.decided, self._ledger.cutover
        reconcile(self.state, self._ledger, tell=self._tell_of_decision, accepted=self._tell_of_gap)
        if cutover is not None and cutover.since > before:
            why = "" if cutover.why is None else f": {cutover.why}"
            said = f"from {cutover.leaving}, by {cutover.who}, {cutover.state}{why}"
            self.reporting.happened(NotificationKind.CUTOVER, cutover.coming, said)

    def _tell_of_decision(self, wanted: DesiredReplica) -> None:
        name, told = wanted.replica.name, self.reporting.happened
        if wanted.wish is DesiredState.QUARANTINED:
            told(NotificationKind.QUARANTINED, name, f"by {wanted.who}: {wanted.reason or ''}")
        elif wanted.wish is DesiredState.ATTACHED and wanted.released:
            told(NotificationKind.RELEASED, name, f"by {wanted.who}")

    def _tell_of_gap(self, accepted: AcceptedGap, gap: Gap, out: list[Element]) -> None:
        self._outgoing.say(out)
        why = f"by {accepted.who}: [{gap.start}, {gap.end}) is lost"
        self.reporting.happened(NotificationKind.ACCEPTED_GAP, gap.input, why)
        log.warning("gap accepted", replica=gap.input, start=gap.start, end=gap.end)

    # --- running ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Merges until cancelled; a commit in flight is finished first (bounded).

        Raises:
            FencedError: another instance has taken over.
            TransportError: a commit failed or Kafka went away; open anew.
        """
        poll: asyncio.Task[Batches] | None = None
        ready: asyncio.Task[None] | None = None
        try:
            while True:
                poll = poll or asyncio.create_task(self._poll(), name="poll")
                ready = ready or asyncio.create_task(self._snapshots.ready(), name="ready")
                waiting: set[asyncio.Task[Any]] = {poll, ready}
                if self._outgoing.committing is not None:
                    waiting.add(self._outgoing.committing)
                    waiting.discard(ready)
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if poll.done():
                    batches, poll = poll.result(), None
                    self._merge_batches(batches)
                    if self._ledger.version != self.state.decided:
                        self._carry_out()
                        self._reassign()
                    if await self._lookout.act():
                        self._reassign()
                    self._pace()
                await self._outgoing.publish()
                if ready.done():
                    ready = None
        finally:
            for each in (poll, ready):
                if each is not None:
                    each.cancel()
                    await asyncio.gather(each, return_exceptions=True)
            await self._outgoing.finish()

    async def _poll(self) -> Batches:
        return await self._source.poll(_IDLE_POLL_SECONDS, min(self._outgoing.room, _AT_ONCE))

    @property
    def settled(self) -> bool:
        """All that was merged and has something to say is committed."""
        return self._outgoing.settled

    def verify(self) -> None:
        """Has the next commit come at once, even with nothing to publish: a worker that was away
        finds out whether another has led since."""
        if self.oversight is not None:  # it leads
            self._outgoing.hasten()

    def reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Every one of these offsets has been read."""
        return all((self._source.position(tp) or 0) >= end for tp, end in ends.items())

    def _merge_batches(self, batches: Batches) -> None:
        out: list[Element] = []
        dead: list[DeadLetter] = []
        merge, outgoing = self.state.merge, self._outgoing
        switches = merge.stats().switches
        outgoing.begin_batch()
        assert self.oversight is not None
        assert self.vouching is not None
        taken, breaches = self.oversight.take(batches, out, dead)
        self.vouching.count(breaches)
        lost, self.oversight.lost = self.oversight.lost, []
        if lost:
            self.progress.loss, self.progress.lost_at = str(lost[-1]), _clock()
        switched = merge.stats().switches - switches
        self._accounts.merged.add({"elements": taken, "switches": switched})
        outgoing.move(taken)
        outgoing.say(out, self.oversight.origins)
        outgoing.bury(dead)
        self._report(dead, breaches)

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
        """Decides what is read on."""
        assert self.oversight is not None
        if self.oversight.withdrew:
            self.oversight.withdrew = False
            self._reassign()
        if self.oversight.is_waiting:
            self._lookout.measure()
        self.oversight.pace(self.share)

    async def decide(self, control: Control) -> None:
        """See `MergeLoop.decide`; while it leads."""
        assert self.oversight is not None
        await self.oversight.decide(control)

    async def vouch(self, control: Control) -> None:
        """See `CutoverReadiness.run`; while it leads."""
        assert self.vouching is not None
        await self.vouching.run(control)

    async def search(self) -> None:
        """Looks up what divergences are about; while it leads."""
        limits = self.topology.limits
        decoder = WireDecoder(
            nfc=self.topology.nfc,
            drop_nulls=self.topology.drop_nulls,
            max_record_bytes=limits.max_record_bytes,
            max_depth=limits.max_nesting,
        )
        await self.reporting.run(partial(self._cluster.find_event, decoder=decoder))

    def _reassign(self) -> None:
        """Reads what is to be merged, from where it stands."""
        self._outgoing.move()
        self._source.assign(self.state.replicas.positions())

    async def watch(self) -> None:
        """Measures lag from the topics' ends and looks for topics that come and go; gives a commit
        up that waits for a topic which the output can do without.

        Raises:
            UnwritableError: one does; open anew.
        """
        while True:
            self._outgoing.give_up()
            try:
                await self._lookout.look()
                if self.progress.unreachable is not None:
                    log.info("the topics can be seen again")
                self.progress.unreachable = None
            except TransportError as error:
                if self.progress.unreachable is None:
                    log.warning("cannot see the topics", error=str(error))
                self.progress.unreachable = str(error)
                for state in self.state.replicas.states.values():
                    state.unread = None
            await asyncio.sleep(WATCH_SECONDS)


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


def _clock() -> float:
    return asyncio.get_running_loop().time()
