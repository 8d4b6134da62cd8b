"""One output partition's merge as a function of batches; needs neither Spark nor Kafka.

Theory
    A bucket is what a merge task is in the service: the same state (`TaskState`: operator,
    replicas with their steps, ledger), fed by the same code. What differs is where
    records come from, and when decisions apply: a batch begins with the steps of the plan that
    count from it on, and then takes its records in an order that depends on them alone (`chunks`).

        apply(7, chunks)  →  elements, dead letters              the same whenever it is run

    What replicas do wrong is counted and reported on the way (`findings`).

    The records that it emits are numbered, as the service's are; `TaskState.output_records` is
    the number of the last one. So readers skip what is written twice.

Guards
    The service holds a suspicious stable back and reads it again later. Spark reads on, so there
    are no guards here: where a replica may lie, `stable: quorum(k)` is the protection.

Invariants
    U1  The result of `apply` is a function of the plan, and of the batches so far.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from lmerge_service.config.topology import Topology
from lmerge_service.core import Gap
from lmerge_service.elements import Element
from lmerge_service.errors import StateError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import TopicInfo
from lmerge_service.merge.decisions.ledger import AcceptedGap
from lmerge_service.merge.decisions.reconcile import is_of_kind, reconcile
from lmerge_service.merge.decoding import DecodedRecord
from lmerge_service.merge.findings.evidence import NotificationKind
from lmerge_service.merge.replicas import ReplicaState
from lmerge_service.merge.task_state import RestoringState, TaskState
from lmerge_service.spark.merge.chunks import Chunk, NativeChunk, slices, unpacked
from lmerge_service.spark.merge.findings import BatchFindings, BucketFindings
from lmerge_service.spark.merge.plan import Begin, MergePlan, PlanStep
from lmerge_service.spark.state import Counted

__all__ = ("Bucket", "BucketResult")


@dataclass(slots=True)
class BucketResult:
    """What a batch emits."""

    first: int
    """The number of the first element."""
    elements: list[Element] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    found: BatchFindings = field(default_factory=BatchFindings)


class Bucket:
    """The merge of one output partition; see the module's text."""

    def __init__(self, topology: Topology, plan: MergePlan, number: int) -> None:
        self.plan = plan
        """May be replaced by one with more steps."""
        self.number = number
        self.steps = max(1, plan.folded_steps)
        """How many of the plan's are carried out."""
        self.ledger = plan.ledger(topology, self.steps)
        self.findings = BucketFindings(topology, number)
        self.state = self._fresh()
        self._lacks_state = plan.folded is not None
        """It cannot be made of the plan alone."""
        if not self._lacks_state:
            self._begin(plan.steps[0], [])

    def _fresh(self) -> TaskState:
        return TaskState(self.ledger.topology, self.number, tallies={}, clock=_no_clock)

    @property
    def transaction(self) -> int:
        return self.state.transaction

    @property
    def emitted(self) -> int:
        """The number of the last record that it has emitted."""
        return self.state.output_records

    # --- batches --------------------------------------------------------------------------------

    def take(self, batch: int, chunks: Iterable[bytes]) -> BucketResult:
        """Merges a batch of packed chunks, as `apply`."""
        native = self.state.engine.is_native
        return self.apply(batch, (unpacked(each, native=native) for each in chunks))

    def apply(self, batch: int, chunks: Iterable[Chunk | NativeChunk]) -> BucketResult:
        """Merges a batch.

        Raises:
            StateError: what was decided cannot be carried out here; or the bucket's state, which
                steps that are folded have made, is not there.
        """
        if self._lacks_state:
            raise StateError(
                f"the checkpoint is damaged: it has no state of bucket {self.number}, and the plan "
                f"begins at step {self.plan.folded_steps}"
            )
        found = self.findings.begin(self.state.transaction + 1)
        empty = self.state.merge.empty()
        result = BucketResult(self.state.output_records + 1, empty, found=found)
        for step in self.plan.behind(self.steps):
            if step.since > batch:
                break
            self.steps += 1
            self._fold(step)
            self._begin(step, result.elements)
        names = {each.replica.topic: each for each in self.state.replicas.states.values()}
        for topic, partition, records in slices(chunks):
            if (replica := names.get(topic)) is not None and replica.step is not None:
                self._feed(replica, partition, records, result)
        news, self.state.replicas.news = self.state.replicas.news, []
        self.findings.end(news, self.state.merge.gap)
        self.state.transaction += 1
        self.state.output_records += len(result.elements)
        return result

    def _feed(
        self,
        replica: ReplicaState,
        partition: int,
        records: Sequence[DecodedRecord],
        result: BucketResult,
    ) -> None:
        if partition >= replica.width and not replica.replica.co_partitioned:
            self._widen(replica, partition + 1, records[0].offset)
        if (start := replica.next.get(partition)) is None:
            return  # of a co-partitioned replica another bucket's
        if records[0].offset < start:  # merged before this job began
            records = records[bisect_left(records, start, key=attrgetter("offset")) :]
        if not records or replica.step is None:
            return
        had, merge = len(result.dead), self.state.merge
        merged = self.findings.before(merge, replica, partition, records)
        replica.step.take(partition, records, result.elements, result.dead)
        self.findings.after(merge, merged)
        if partition % self.ledger.topology.output.partitions != self.number:
            del result.dead[had:]  # another bucket writes them
        if (torn := replica.step.decoder.torn) is not None:
            self.state.replicas.distrust(replica.name, torn)
            return
        replica.next[partition] = records[-1].offset + 1

    def _widen(self, replica: ReplicaState, width: int, offset: int) -> None:
        """Records come from a partition that was not there when the replica was begun."""
        beginnings = {
            TopicPartition(replica.replica.topic, number): 0 if number < width - 1 else offset
            for number in range(replica.width, width)
        }
        info = TopicInfo(replica.topic_id, width)
        self.state.replicas.widen(replica.name, info, beginnings)

    # --- steps ----------------------------------------------------------------------------------

    def _fold(self, step: PlanStep) -> None:
        for value in step.decisions:
            self.ledger.fold_next(value)

    def _begin(self, step: PlanStep, out: list[Element]) -> None:
        state, replicas = self.state, self.state.replicas
        if not is_of_kind(state, self.ledger):
            raise StateError(
                "another case or policy was decided, which this job cannot go on with: the service "
                "can (docs/spark-merge.md)"
            )

        if self.ledger.output.number:
            raise StateError(
                "a restart of the output was decided, which a merge in Spark cannot begin: the "
                "service can (docs/spark-merge.md)"
            )

        def accepted(each: AcceptedGap, gap: Gap, elements: list[Element]) -> None:
            nonlocal out
            out += elements
            why = f"by {each.who}: [{gap.start}, {gap.end}) is lost"
            self.findings.happened(NotificationKind.ACCEPTED_GAP, gap.input, why)

        reconcile(state, self.ledger, accepted=accepted)
        for name, why in step.gone.items():
            if name in replicas.states:
                replicas.exclude(name, why)
        for name, lost in step.lost.items():
            if name in replicas.states:
                replicas.exclude(name, lost.why, lost=True)
        for name, begin in step.begins.items():
            have = replicas.states.get(name)
            if have is not None and have.step is None and have.quarantined is None:
                replicas.begin(name, *_found(have, begin), since=state.transaction + 1)
        for name, begin in step.widens.items():
            have = replicas.states.get(name)
            if have is not None and have.step is not None and have.width < len(begin.beginnings):
                info, beginnings, _ = _found(have, begin)
                replicas.widen(name, info, beginnings)

    # --- state ----------------------------------------------------------------------------------

    def pages(self) -> Iterator[bytes]:
        """The state as a snapshot's chunks."""
        return self.state.stream(self.state.commit_record())

    def carried(self) -> tuple[int, Counted]:
        """The steps that are carried out, and what was counted, which the pages lack."""
        return self.steps, self.findings.counted()

    def load(self, pages: Iterable[bytes], steps: int, counted: Counted) -> None:
        """Takes over what pages are of, and what they lack."""
        self.adopt(pages, steps, counted=counted)

    def adopt(
        self,
        chunks: Iterable[bytes],
        steps: int,
        *,
        counted: Counted = (),
        foreign: bool = False,
    ) -> None:
        """Takes the state that a snapshot's chunks are, at which so many steps were carried out,
        and what was counted by then; a `foreign` one was the service's, which has no
        steps.

        Raises:
            StateError: it is damaged, or of another merge.
        """
        for step in self.plan.behind(self.steps)[: steps - self.steps]:
            self._fold(step)
        self.plan.behind(steps)
        self.steps, self._lacks_state = steps, False
        restoring = RestoringState(self._fresh())
        for chunk in chunks:
            restoring.take(chunk)
        attached = {each.replica.name: each.replica for each in self.ledger.attached()}
        self.state = restoring.finished(attached)
        self.findings.resume(counted, self.state.merge.gap)
        if foreign:
            self._begin(self.plan.steps[0], [])
        else:  # desired replicas that are not merged are expected again
            reconcile(self.state, self.ledger, accepted=_nothing)


def _nothing(*_: object) -> None:
    """What was accepted before is not news."""


def _found(
    state: ReplicaState, begin: Begin
) -> tuple[TopicInfo, Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
    topic = state.replica.topic
    places = [TopicPartition(topic, number) for number in range(len(begin.beginnings))]
    return (
        TopicInfo(begin.topic_id, len(places)),
        dict(zip(places, begin.beginnings, strict=True)),
        dict(zip(places, begin.ends, strict=True)),
    )


def _no_clock() -> float:
    return 0.0
