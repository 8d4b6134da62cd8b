"""The merge loop of a task that leads: merges what was read, under guards and flow control.

Theory
    Records are merged in chunks. After each the findings of `evaluator` are acted on, before
    anything else is merged:

        hold         the partition is rewound to the stable's record and paused; others go on
        quarantine   the replica is detached at once, and the commit record contains that. For all
                     tasks and workers to follow, `decide` makes a decision: it tries until the
                     decision is in the control log, and again after a restart
        report       nothing

    Then, once a poll, `pace` releases held stables, and pauses and resumes replicas.

Invariants
    V1  A partition is paused iff a guard holds it, or flow control has paused its replica.
    V2  A replica in `state.quarantined` is not merged.

What happens on a crash at each await
    in `decide`: the quarantine is in the last commit record or was never committed. In the first
    case the next owner decides it again, which is the same decision once more if it was made
    against the same version, and refused if it was not; in the second, the records are checked
    again.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import structlog

from lmerge_service.core import DIVERGENT, Breach, BreachKind, Gap
from lmerge_service.elements import Element, Stable
from lmerge_service.errors import TransportError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.sink import Origin
from lmerge_service.kafka.source import Batches, TopicPartition
from lmerge_service.merge.decisions.control_log import Control
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.decisions.records import LONGEST_REASON, Decision, Quarantine
from lmerge_service.merge.decoding import DecodedPiece
from lmerge_service.merge.findings.breach_places import place_of
from lmerge_service.merge.findings.confirmation import Confirmation
from lmerge_service.merge.findings.evidence import NotificationKind
from lmerge_service.merge.findings.leading import Leading
from lmerge_service.merge.findings.losses import Loss, Losses
from lmerge_service.merge.findings.record_range import RecordRange
from lmerge_service.merge.findings.reporting import Reporting
from lmerge_service.merge.guards.evaluator import Finding, GuardEvaluator
from lmerge_service.merge.guards.guards import chunk_of
from lmerge_service.merge.guards.pacing import Pacing
from lmerge_service.merge.guards.verdicts import Action, Ruling, in_words
from lmerge_service.merge.liveness import Liveness
from lmerge_service.merge.replica_states import DesiredState
from lmerge_service.merge.replicas import ReplicaState
from lmerge_service.merge.task_state import TaskState, wire_decoder

__all__ = ("MergeLoop", "MergedBatch", "Pausing")

log = structlog.get_logger()

_RETRY_SECONDS: Final = 1.0
_PACE_SECONDS: Final = 0.9
"""What has changed otherwise than by merging is seen so soon."""


class Pausing(Protocol):
    """What is read can be paused: see `Source`."""

    paused: frozenset[TopicPartition]

    def pause(self, partitions: Collection[TopicPartition]) -> None: ...

    def resume(self, partitions: Collection[TopicPartition]) -> None: ...

    def rewind(self, tp: TopicPartition, offset: int) -> None: ...


@dataclass(slots=True)
class MergedBatch:
    """What came of a batch of records."""

    records: int = 0
    """So many were merged."""
    switches: int = 0
    """How often the leading replica has changed."""
    elements: list[Element] = field(default_factory=list)
    """Emitted."""
    origins: list[Origin] = field(default_factory=list)
    """From which records the elements come."""
    dead: list[DeadLetter] = field(default_factory=list)
    breaches: list[Breach] = field(default_factory=list)
    lost: list[Loss] = field(default_factory=list)


class MergeLoop:
    """Of one task, from taking over to giving up."""

    def __init__(
        self,
        state: TaskState,
        source: Pausing,
        reporting: Reporting,
        *,
        clock: Callable[[], float],
        unix_ns: Callable[[], int],
        living: dict[str, Liveness],
        leading: Leading,
        share: int = 1,
    ) -> None:
        """`living`: see `GuardEvaluator`; `leading` outlives this. `share` is as for `pace`."""
        self.evaluator = GuardEvaluator(
            state.topology, state.merge, clock=clock, unix_ns=unix_ns, living=living
        )
        self.pacing = Pacing(state.topology.limits, state.merge, clock)
        self.withdrew = False
        """A replica was put into quarantine: others are to be assigned."""
        self._leading = leading
        self._state = state
        self._source = source
        self._reporting = reporting
        self._clock = clock
        self._unix_ns = unix_ns
        self._batch = MergedBatch()
        partitions = state.topology.output.partitions
        self._losses = Losses(state.merge, state.begun.correct_from, partitions=partitions)
        self.confirmation = Confirmation(state.merge, clock, share=share)
        self._divergent: dict[str, Breach] = {}
        self._decoder = wire_decoder(state.topology)
        self._gap: Gap | None = None
        self._has_merged = True
        """Something was merged since `pace`."""
        self._paced = clock()
        self._asked = asyncio.Event()

    # --- merging --------------------------------------------------------------------------------

    def take(self, batches: Batches) -> "MergedBatch":
        """Merges what was read, as far as guards allow it."""
        self.begin()
        for tp, records in batches.items():
            self._take(tp, records)
        return self.end()

    def begin(self) -> None:
        """Begins a batch, which comes in chunks."""
        self._has_merged = True
        self.evaluator.begin()
        merge = self._state.merge
        self._batch = MergedBatch(switches=-merge.stats().switches, elements=merge.empty())

    def end(self) -> "MergedBatch":
        """Ends it; returns what came of it."""
        self._look_for_disagreements()
        self._drain()
        self._batch.switches += self._state.merge.stats().switches
        return self._batch

    def goes_on(self, tp: TopicPartition) -> bool:
        """Records of a partition may be merged now."""
        merging = self._state.replicas.merging(tp) is not None
        return merging and tp not in self.evaluator.waiting

    def _take(self, tp: TopicPartition, records: Sequence[Record]) -> None:
        at, batch, size = 0, self._batch, chunk_of(records)
        self.pacing.read(records)
        while at < len(records) and self.goes_on(tp):
            chunk = self._state.replicas.open(
                tp, records[at : at + size], batch.dead, self.evaluator
            )
            had, first = len(batch.elements), at
            at += chunk.take(batch.elements)
            self._see(tp, records, first, at, had)
        batch.records += at

    # A chunk of a partition in pieces, which are decoded elsewhere.

    def open(self, tp: TopicPartition, records: Sequence[Record]) -> int:
        """Begins a chunk, whose pieces are to be offered until `close`; see `MergeStep.open`."""
        self.pacing.read(records[: chunk_of(records)])
        self._tp, self._records, self._had = tp, records, len(self._batch.elements)
        self._chunk = self._state.replicas.open(tp, records, self._batch.dead, self.evaluator)
        return self._chunk.open(self._batch.elements)

    def offer(
        self, piece: DecodedPiece, elements: Sequence[Element], last: Sequence[Element]
    ) -> Ruling:
        """Takes the next piece, see `MergeStep.offer`."""
        return self._chunk.step.offer(piece, elements, last)

    def close(self, letters: Sequence[DeadLetter], elsewhere: Callable[[], int]) -> None:
        """Merges what was offered. `letters` are the dead letters among it, `elsewhere` is as for
        `ReplicaChunk.close`."""
        self._batch.dead += letters
        taken = self._chunk.close(elsewhere)
        self._batch.records += taken
        self._see(self._tp, self._records, 0, taken, self._had)

    def _see(
        self, tp: TopicPartition, records: Sequence[Record], start: int, end: int, had: int
    ) -> None:
        """Looks at what has come of the records from `start` to `end`: the elements of the batch
        from `had` on."""
        first, last = records[start].offset, records[max(end - 1, 0)].offset
        batch, evaluator, place = self._batch, self.evaluator, RecordRange(tp, first, last)
        if breaches := self._drain():
            self._report_breaches(breaches, tp, records[start : max(end, start + 1)])
        if len(batch.elements) > had:
            batch.origins.append(Origin(had, tp, first, last))
            self._see_who_leads(tp, first, last)
            emitted = batch.elements[had:]
            self._losses.emitted(emitted, place)
            self.confirmation.emitted(emitted, place)
        self._compare(place)
        if evaluator.found:
            found, evaluator.found = evaluator.found, []
            for finding in found:
                self._act(finding)

    def _look_for_disagreements(self) -> None:
        for found in self.confirmation.look():
            stable = self._state.merge.inputs[found.replica].stable
            self._state.merge.blame(found.replica, BreachKind.DISAGREEMENT, Stable(stable))
            count = self._reporting.notify(NotificationKind.DISAGREES, found.replica, str(found))
            if count is not None:
                log.warning("disagreement", replica=found.replica, why=str(found), count=count)

    def _compare(self, place: RecordRange) -> None:
        """The elements of these records with those that were emitted."""
        replicas, tp = self._state.replicas, place.tp
        if (state := replicas.merging(tp)) is None or state.step is None:
            return
        slot = state.step.slot(tp.partition)
        self.confirmation.received(state.name, slot, state.step.input.processed, place)
        for loss in self._losses.look(state.name, state.step.late, place):
            replicas.lose(loss.leader, loss.count)
            self._batch.lost.append(loss)
            self._reporting.notify(NotificationKind.LOST, loss.leader, str(loss))
            log.warning(
                "events lost", replica=loss.leader, topic=loss.stable.tp.topic,
                partition=loss.stable.tp.partition, offset=loss.stable.last, why=str(loss),
                count=loss.count,
            )  # fmt: skip

    def _see_who_leads(self, tp: TopicPartition, first: int, last: int) -> None:
        state = self._state
        change = self._leading.look(state.merge, state.replicas, tp, first, last)
        if change is None or change.before is None:
            return
        reason = f"from {change.before}: {change.why}"
        if count := self._reporting.notify(NotificationKind.LEADER, change.leader, reason):
            log.info(
                "leader changed", replica=change.leader, before=change.before, why=change.why,
                count=count,
            )  # fmt: skip

    def _drain(self) -> Sequence[Breach]:
        """Takes what was found since."""
        breaches = self._state.merge.breaches()
        for breach in breaches:
            self._batch.breaches.append(breach)
            if breach.kind in DIVERGENT:
                self._divergent.setdefault(breach.input, breach)
        return breaches

    def _report_breaches(
        self, breaches: Sequence[Breach], tp: TopicPartition, records: Sequence[Record]
    ) -> None:
        """Those that no guard reports by themselves, with the record that shows each."""
        states = self._state.replicas.states
        for breach in breaches:
            if breach.kind in DIVERGENT:
                continue
            state = states.get(breach.input)
            ours = state is not None and state.replica.topic == tp.topic
            self._reporting.broke(
                breach,
                self._state.merge.max_stable,
                partial(place_of, breach, tp, records, self._decoder) if ours else None,
            )

    def _act(self, finding: Finding) -> None:
        verdict, state = finding.verdict, self._state
        breach = self._divergent.pop(verdict.replica, None)
        self._reporting.found(finding, state.merge.max_stable, breach, self._readable())
        if verdict.action is Action.HOLD:
            self._source.rewind(finding.tp, finding.place.offset)
        elif verdict.action is Action.QUARANTINE:
            why = f"{verdict.guard.value}: {verdict.reason}; {verdict.remedy}"
            state.quarantined[verdict.replica] = why
            state.replicas.quarantine(verdict.replica, why)
            self.withdrew = True
            self._asked.set()

    def _readable(self) -> dict[str, dict[TopicPartition, int]]:
        """Of replicas whose topics are in wire format: their positions by partition."""
        return {
            name: each.positions
            for name, each in self._state.replicas.merged.items()
            if each.replica.format == "wire"
        }

    @property
    def is_waiting(self) -> bool:
        """Something is held or paused, so that it matters who has been read to the end."""
        return bool(self.evaluator.waiting or self.pacing.paused)

    @property
    def is_due(self) -> bool:
        """It is time to compare what was merged before, though nothing more has come."""
        return self.confirmation.is_due

    @property
    def must_pace(self) -> bool:
        """Whether `pace` may decide otherwise than it did: something was merged, stands still or
        is to be reported, or a while has passed."""
        if self._has_merged or self.is_waiting or self._state.replicas.news:
            return True
        return self._clock() - self._paced >= _PACE_SECONDS

    def is_at_ease(self, share: int) -> bool:
        """Nothing stands still, was withdrawn or is to be reported, and so little is live that
        flow control pauses nothing; `share` is as for `pace`."""
        if self.is_waiting or self.withdrew or self._state.replicas.news:
            return False
        return self.pacing.is_low(share)

    def held(self, name: str) -> list[Finding]:
        """The stables of a replica that guards hold."""
        waiting = self.evaluator.waiting.values()
        return [each for each in waiting if each.verdict.replica == name]

    def waits_for(self, finding: Finding) -> list[str]:
        """The replicas for which a held stable waits, and why, in words."""
        if finding.verdict.action is not Action.HOLD:
            return []
        states = self._state.replicas.states
        return [
            f"{name}: {self._awaited_why(states[name])}"
            for name in self.evaluator.awaited(finding)
            if name in states
        ]

    def _awaited_why(self, state: ReplicaState) -> str:
        unread = state.unread
        if unread is None:
            return "it is not known yet whether Kafka has unread records of it"
        if unread.open:
            return unread.open[0].words(self._clock())
        if unread.records:
            return f"{unread.records:,} records of it are not read yet"
        progress = state.tally.last_progress
        if progress is None:
            return "it may still publish something"
        return f"it made progress {self._clock() - progress:.0f} s ago"

    # --- once a poll ----------------------------------------------------------------------------

    def pace(self, share: int) -> None:
        """Decides which partitions are read next. `share` is how many tasks the limits are for."""
        evaluator, merged = self.evaluator, self._state.replicas.merged
        self._has_merged, self._paced = False, self._clock()
        self.confirmation.share = share
        evaluator.begin()
        for name, each in merged.items():
            evaluator.know_unread(name, each.unread)
        for finding in evaluator.let_go():
            self._report_let_go(finding)
        held = frozenset(each.verdict.replica for each in evaluator.waiting.values())
        self._flow(merged.values(), held, share)
        paused = set(evaluator.waiting)
        for name in self.pacing.paused:
            paused |= merged[name].positions.keys()
        self._source.pause(paused - self._source.paused)
        self._source.resume(self._source.paused - paused)
        self._report_news()

    def _flow(self, merged: Iterable[ReplicaState], held: frozenset[str], share: int) -> None:
        stuck = self.pacing.stuck
        ordered = self.pacing.order(list(merged), held=held, share=share)
        at = f"{ordered.level:.0%} of the limit on live events, the output is "
        at += in_words(self._state.merge.max_stable)
        for name in sorted(ordered.pause):
            if count := self._reporting.notify(NotificationKind.PAUSED, name, at):
                log.info("replica paused", replica=name, count=count)
        for name in sorted(ordered.resume):
            if count := self._reporting.notify(NotificationKind.RESUMED, name, at):
                log.info("replica resumed", replica=name, count=count)
        if ordered.stuck is not None and stuck is None:
            self._reporting.notify(NotificationKind.STUCK, None, ordered.stuck)
            log.warning("nothing moves the output", why=ordered.stuck)

    def _report_let_go(self, finding: Finding) -> None:
        place, name = finding.place, finding.verdict.replica
        why = f"stable({finding.verdict.vc}) at offset {place.offset} of {place.topic}"
        self._reporting.notify(NotificationKind.LET_GO, name, f"{why}-{place.partition}")
        log.info(
            "held stable let go", replica=name, topic=place.topic, partition=place.partition,
            offset=place.offset,
        )  # fmt: skip

    def _report_news(self) -> None:
        replicas, gap = self._state.replicas, self._state.merge.gap
        news, replicas.news = replicas.news, []
        for kind, name, why in news:
            self._reporting.notify(kind, name, why)
            if name in self._state.quarantined:
                self.withdrew = True
                self._asked.set()
        if gap is not None and (self._gap is None or self._gap.input != gap.input):
            why = f"nobody vouches for [{gap.start}, {gap.end}): the output waits for {gap.input}"
            self._reporting.notify(NotificationKind.GAP, gap.input, why)
        self._gap = gap

    # --- decisions ------------------------------------------------------------------------------

    async def decide(self, control: Control) -> None:
        """Writes the quarantines of this task's guards to the control log, until cancelled."""
        while True:
            self._asked.clear()
            undecided = self._undecided(control.ledger)
            for decision in undecided:
                await self._decide(control, decision)
            if not undecided:
                await self._asked.wait()

    def _undecided(self, ledger: Ledger) -> list[Decision]:
        """Quarantines that are not in the log, made against the version that is known; they do
        not hold for a replica that was attached again since."""
        found = []
        for name, why in self._state.quarantined.items():
            desired, have = ledger.replicas.get(name), self._state.replicas.states.get(name)
            if desired is None or have is None or desired.state is not DesiredState.ATTACHED:
                continue
            if desired.epoch == have.epoch:
                found.append(self._decision(name, why, desired.epoch, ledger.version))
        return found

    def _decision(self, name: str, why: str, epoch: int, version: int) -> Decision:
        """The same by whichever task makes it, however often."""
        return Decision(
            id=f"guard-{name}-{epoch}-{version}",
            action=Quarantine(name, why[:LONGEST_REASON]),
            who=f"guard: {why.partition(':')[0]}",
            made=self._unix_ns() // 1_000_000,
            expects=version,
        )

    async def _decide(self, control: Control, decision: Decision) -> None:
        try:
            entry = await control.decide(decision)
        except TransportError as error:
            why = str(error)
        else:
            if entry.refusal is None:
                return
            why = entry.refusal.reason
        log.warning("quarantine not decided yet", id=decision.id, why=why)
        await asyncio.sleep(_RETRY_SECONDS)
