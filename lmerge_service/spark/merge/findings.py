"""What a bucket finds about replicas, for people: counts, and evidence for the events topic.

Theory
    In the service guards judge what replicas do; here there are none, and nothing is held back or
    put into quarantine. What a replica did wrong is counted all the same, and reported as the
    service does: as records of `OUTPUT.events`, with the first offending record where it is known.

    Batches may be run twice, so both are functions of the batches so far: the counts are kept with
    the state (`spark.state`), and each record has an id that is the same whenever it is written. Of
    repeated breaches one record is published whenever their count has reached a power of two,
    looked at once a slice:

        slices with 1, 0, 2, 1, 9 breaches   →   records with the counts 1, 3, 4, 13

Invariants
    F1  What a batch finds is a function of the plan, and of the batches so far.

Cost
    O(replicas) per slice; a record of evidence looks through the slice to find its place.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lmerge_service.config.topology import Topology
from lmerge_service.core import DIVERGENT, Breach, BreachKind, Gap, Input, LMerge
from lmerge_service.merge.decoding import DecodedRecord
from lmerge_service.merge.findings.evidence import (
    Evidence,
    NotificationKind,
    RecordPlace,
    ReportedVersion,
    with_versions,
)
from lmerge_service.merge.guards.verdicts import Action, Guard
from lmerge_service.merge.replicas import ReplicaState
from lmerge_service.spark.state import Counted

__all__ = ("BatchFindings", "BucketFindings")

_REMEDY: Final = (
    "compare the topics (`lmerge audit kafka:A kafka:B`): the liar may be another; "
    'docs/operations.md, "Breaches"'
)


@dataclass(slots=True)
class BatchFindings:
    """What a batch has shown."""

    breaches: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By replica and kind."""
    evidence: list[Evidence] = field(default_factory=list)
    """Without the time, which is added when it is written."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """Records of one partition, about to be merged."""

    replica: ReplicaState
    partition: int
    records: Sequence[DecodedRecord]
    before: Sequence[tuple[Input, Mapping[BreachKind, int]]]
    """Of each input, its breaches by then."""


class BucketFindings:
    """Of one bucket, from its first batch on."""

    def __init__(self, topology: Topology, task: int) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """By kind and replica."""
        self._task = task
        self._transaction = 0
        self._gap: Gap | None = None
        self._found = BatchFindings()

    def begin(self, transaction: int) -> BatchFindings:
        """A batch begins; what it finds is put into what is returned."""
        self._transaction, self._found = transaction, BatchFindings()
        return self._found

    def resume(self, counted: Counted, gap: Gap | None) -> None:
        """Goes on from a snapshot."""
        self.counts = Counter({(kind, replica): count for kind, replica, count in counted})
        self._gap = gap

    def counted(self) -> Counted:
        """What `resume` takes."""
        return [(*key, count) for key, count in self.counts.items()]

    # --- breaches -------------------------------------------------------------------------------

    def before(
        self, merge: LMerge, replica: ReplicaState, partition: int, records: Sequence[DecodedRecord]
    ) -> _Slice:
        """Records of a replica are about to be merged."""
        known = [(source, dict(source.breaches)) for source in merge.inputs.values()]
        return _Slice(replica, partition, records, known)

    def after(self, merge: LMerge, each: _Slice) -> None:
        """They were merged."""
        examples: dict[tuple[str, str], Breach] = {}
        news = _news(merge, each)
        for breach in merge.breaches():
            examples.setdefault((breach.input, breach.kind.value), breach)
            if breach.input not in merge.inputs:  # an input that is gone counts nothing
                news[breach.input, breach.kind.value] += 1
        self._found.breaches += news
        kinds: Counter[tuple[str, str]] = Counter()
        firsts: dict[tuple[str, str], Breach | None] = {}
        for (replica, kind), count in news.items():
            key = Guard.DIVERGENCE.value if kind in DIVERGENT else kind, replica
            kinds[key] += count
            firsts[key] = firsts.get(key) or examples.get((replica, kind))
        for key, count in kinds.items():
            was = self.counts[key]
            self.counts[key] += count
            if self.counts[key].bit_length() > was.bit_length():
                self._put(self._of_breach(merge, *key, firsts[key], each))

    def _of_breach(
        self, merge: LMerge, kind: str, replica: str, breach: Breach | None, each: _Slice
    ) -> Evidence:
        count = self.counts[kind, replica]
        what = f"it broke a rule ({kind})"
        if kind == Guard.DIVERGENCE:
            what = "it contradicts what the output has made final"
        stables = {name: ReportedVersion(source.stable) for name, source in merge.inputs.items()}
        evidence = Evidence(
            kind=kind, at_ms=0, task=self._task, replica=replica, action=Action.REPORT, count=count,
            reason=f"{what}, {count} times", remedy=_REMEDY,
            first=None if breach is None else self._place(breach, each),
            output=ReportedVersion(merge.max_stable),
            replicas={name: version for name, version in stables.items() if name != replica},
        )  # fmt: skip
        if breach is None or breach.kept is None:
            return evidence
        return with_versions(evidence, breach, breach.kept)

    def _place(self, breach: Breach, each: _Slice) -> RecordPlace | None:
        """Of the record by which a rule was broken. Where a record is not its element (a dialect,
        a replica that is normalised): the last of the slice, at which it showed. None: another
        replica's record revealed it."""
        replica = each.replica
        if breach.input != replica.name:
            return None
        shown = each.records[-1]
        if replica.replica.format == "wire":
            shown = next((r for r in each.records if r.element == breach.element), shown)
        return RecordPlace.of(replica.replica.topic, each.partition, shown.offset, shown.text)

    # --- what else ------------------------------------------------------------------------------

    def happened(self, kind: NotificationKind, replica: str, reason: str) -> None:
        """Reports what is no breach."""
        self.counts[kind.value, replica] += 1
        self._put(
            Evidence(
                kind=kind.value, at_ms=0, task=self._task, replica=replica,
                count=self.counts[kind.value, replica], reason=reason,
            )
        )  # fmt: skip

    def end(self, news: Iterable[tuple[NotificationKind, str, str]], gap: Gap | None) -> None:
        """The batch ends: `news` of replicas, and the gap that the output waits at."""
        for kind, name, why in news:
            self.happened(kind, name, why)
        if gap is not None and (self._gap is None or self._gap.input != gap.input):
            why = f"nobody vouches for [{gap.start}, {gap.end}): the output waits for {gap.input}"
            self.happened(NotificationKind.GAP, gap.input, why)
        self._gap = gap

    def _put(self, evidence: Evidence) -> None:
        number = len(self._found.evidence)
        found = f"{self._task}-{self._transaction}-{number}"
        self._found.evidence.append(evidence.identified(found))


def _news(merge: LMerge, each: _Slice) -> Counter[tuple[str, str]]:
    """What was counted since; an input that was attached again has begun to count again."""
    news: Counter[tuple[str, str]] = Counter()
    known = {id(source) for source, _ in each.before}
    fresh: Sequence[tuple[Input, Mapping[BreachKind, int]]]
    fresh = [(source, {}) for source in merge.inputs.values() if id(source) not in known]
    for source, was in [*each.before, *fresh]:
        for kind, count in source.breaches.items():
            if count > was.get(kind, 0):
                news[source.name, kind.value] += count - was.get(kind, 0)
    return news
