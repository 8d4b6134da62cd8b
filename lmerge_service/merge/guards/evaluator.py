"""The evaluation of the guards of one task, over the replicas as its operator has them.

Theory
    `Guards` know neither operator nor topics. Here they are updated with the attached replicas, by
    comparing the operator's inputs with those they know: an input that is another object is a
    replica that was attached, released or started over, and one that is gone cannot confirm any
    other. So whatever changes the operator, guards follow.

    A stable that is held stops its partition at its record. The task reads that partition on from
    there once `let_go` names it.

Invariants
    J1  `waiting` has what guards hold and have not let go, and nothing else.

Cost
    O(replicas) per batch; a stable as in `guards`.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from lmerge_service.config.topology import Topology
from lmerge_service.core import Input, LMerge
from lmerge_service.formats.headers import TimedRecord
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.unread import Unread
from lmerge_service.merge.decoding import Contradiction, Outdated, ReplicaDecoder
from lmerge_service.merge.findings.evidence import RecordPlace
from lmerge_service.merge.guards.guards import Guards, Now
from lmerge_service.merge.guards.verdicts import Action, Ruling, Verdict
from lmerge_service.merge.liveness import Liveness

__all__ = ("Finding", "GuardEvaluator")


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict, and the record that it is about; of conduct, the one at which it showed."""

    verdict: Verdict
    tp: TopicPartition
    place: RecordPlace
    at: float
    """When, in the clock's seconds."""


class GuardEvaluator:
    """Judges what is about to be merged into an operator; `begin` before each batch."""

    def __init__(
        self,
        topology: Topology,
        merge: LMerge,
        *,
        clock: Callable[[], float],
        unix_ns: Callable[[], int],
        living: dict[str, Liveness],
    ) -> None:
        """`living` outlives this, by replica; so that rebuilds, however many, neither wear
        patience out nor restart it."""
        self.waiting: dict[TopicPartition, Finding] = {}
        """The stables that are held."""
        self.found: list[Finding] = []
        """Whoever acts on them clears the list."""
        self._guards = Guards(topology, merge.max_stable)
        self._merge = merge
        self._clock, self._unix_ns = clock, unix_ns
        self._living = living
        self._inputs: dict[str, Input] = {}
        self._verdicts: list[Verdict] = []
        self.begin()

    def begin(self) -> None:
        """Reads the clocks, and follows who is attached."""
        self._now = Now(self._unix_ns(), self._clock())
        inputs = self._merge.inputs
        for name in self._inputs.keys() - inputs.keys():
            self._guards.detach(name)
            del self._inputs[name], self._living[name]
        for name, source in inputs.items():
            if (known := self._inputs.get(name)) is not source:
                self._meet(name, source, known is not None)
            else:
                self._guards.widen(name, len(source.stables))
        if self.waiting:
            held = {(each.replica, each.partition, each.offset) for each in self._guards.held()}
            self.waiting = {
                tp: finding
                for tp, finding in self.waiting.items()
                if (finding.verdict.replica, finding.verdict.partition, finding.verdict.offset)
                in held
            }

    def _meet(self, replica: str, source: Input, decided: bool) -> None:
        """A replica that is new here, or that was attached again by a decision."""
        living = self._living.setdefault(replica, Liveness(self._now.seconds))
        if decided:
            living.begin_anew(source)
        else:
            living.follow(source)
        self._attach(replica, source)

    def started_over(self, replica: str, incarnation: int) -> None:
        """A new incarnation of the replica was attached: nothing of the old one counts any more."""
        source = self._merge.inputs[replica]
        self._living[replica].start_over(source, incarnation)
        self._attach(replica, source)

    def _attach(self, replica: str, source: Input) -> None:
        self._inputs[replica] = source
        self._guards.attach(
            replica, source.stables, self._now, source.breaches, self._living[replica]
        )

    def know_unread(self, replica: str, unread: Unread | None) -> None:
        """What of its topic was not read; None: unknown."""
        self._guards.know_unread(replica, unread, self._now)

    def awaited(self, finding: Finding) -> tuple[str, ...]:
        """The replicas for which a held stable waits."""
        return self._guards.awaited(finding.verdict.replica, finding.at)

    def stable(self, replica: str, partition: int, vc: int, offset: int) -> Ruling:
        """Judges a stable in the record at an offset; `partition` is the operator's."""
        verdict = self._guards.stable(replica, partition, vc, offset, self._now)
        if verdict is not None:
            self._verdicts.append(verdict)
            return Ruling.WAIT
        stop = self._guards.watches(replica, partition)
        return Ruling.MERGE_AND_STOP if stop else Ruling.MERGE

    def calm(self, replica: str, partition: int) -> int:
        """See `Guards.calm`; `partition` is the operator's."""
        return self._guards.calm(replica, partition, self._now)

    def passed(self, replica: str, partition: int, stables: Sequence[int]) -> None:
        """See `Guards.passed`; `partition` is the operator's."""
        self._guards.passed(replica, partition, stables)

    def after(
        self,
        replica: str,
        partition: int,
        tp: TopicPartition,
        records: Sequence[TimedRecord],
        taken: int,
        dead: int,
        elsewhere: Callable[[], int],
    ) -> bool:
        """Looks at what a chunk has shown of which so many records were taken, `dead` letters
        among them; whether it was progress. `elsewhere` is as for `Liveness.look`, `partition` is
        the operator's."""
        guards, now, source = self._guards, self._now, self._merge.inputs[replica]
        progress = self._living[replica].look(
            source,
            records if taken == len(records) else records[:taken],
            now.seconds,
            self._merge.max_stable,
            elsewhere,
        )
        verdicts = guards.after(replica, partition, taken, source.breaches, dead, now)
        if not verdicts and not self._verdicts:
            return progress
        verdicts, self._verdicts = (*self._verdicts, *verdicts), []
        shown = records[min(taken, len(records) - 1)]
        place = RecordPlace.of(tp.topic, tp.partition, shown.offset, shown.value)
        for verdict in verdicts:
            finding = Finding(verdict, tp, place, now.seconds)
            self.found.append(finding)
            if verdict.action is Action.HOLD:
                self.waiting[tp] = finding
        return progress

    def noted(
        self,
        tp: TopicPartition,
        records: Sequence[TimedRecord],
        decoder: ReplicaDecoder,
        contradictions: Sequence[Contradiction],
        outdated: Outdated | None,
    ) -> None:
        """Looks at what a chunk has shown of numbers (its `contradictions`, the decoder's latest)
        and incarnations; `outdated` is the run of records of an older one in the partition, where
        that is to be reported."""
        guards, now, replica = self._guards, self._now, decoder.name
        before = decoder.contradicted - len(contradictions)
        for count, each in enumerate(contradictions, before + 1):
            for verdict in guards.contradicted(replica, tp.partition, each, count, now):
                self._find(verdict, tp, records, each.offset)
        if outdated is not None:
            for verdict in guards.outdated(replica, tp.partition, outdated, decoder.incarnation):
                self._find(verdict, tp, records, max(outdated.first, records[0].offset))

    def _find(
        self, verdict: Verdict, tp: TopicPartition, records: Sequence[TimedRecord], offset: int
    ) -> None:
        shown = records[bisect_left(records, offset, key=attrgetter("offset"))]
        place = RecordPlace.of(tp.topic, tp.partition, shown.offset, shown.value)
        self.found.append(Finding(verdict, tp, place, self._now.seconds))

    def let_go(self) -> list[Finding]:
        """Held stables that may be merged now: their partitions are to be read on."""
        gone = []
        for held in self._guards.let_go() if self.waiting else ():
            for tp, finding in list(self.waiting.items()):
                verdict = finding.verdict
                if (verdict.replica, verdict.partition) == (held.replica, held.partition):
                    gone.append(self.waiting.pop(tp))
        return gone
