"""A merge on a bench: replicas' records in, the output's records out, and the judge over both.

For replays that are about the merging itself. Replicas publish bytes, as to a topic; time is the
bench's own and advances by ten milliseconds a record. `kill` forgets the operator and rebuilds it
from what was published and emitted, as the service does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmerge_service.core import BreachKind, LMerge, Policy, lmerge
from lmerge_service.drills.history import History, Interval, ReplicaHistory, check
from lmerge_service.drills.records import CommittedRecord, CommittedTopic
from lmerge_service.drills.verdicts import HistoryReport, Outcome
from lmerge_service.elements import START, Element, Stable
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.merge.step import MergeStep
from lmerge_service.tdb import TDB, reconstitute

STEP_MS = 10


@dataclass(slots=True)
class _Standing:
    """A replica on the bench."""

    partitions: int
    step: MergeStep | None = None
    incarnation: int = 0
    joining_at: int = START
    published: list[CommittedRecord] = field(default_factory=list)
    lengths: Counter[int] = field(default_factory=Counter)
    """Records of each partition."""
    begins: int = 0
    """From which of its records on it is merged since it was attached."""
    since: int = 0
    attached: list[Interval] = field(default_factory=list)


class Bench:
    """Some replicas, one operator, one output."""

    def __init__(
        self, *names: str, case: str = "R3", policy: Policy = Policy(), partitions: int = 1
    ):
        self._case, self._policy = case, policy
        self.now = 0
        self.kills = 0
        self.emitted: list[CommittedRecord] = []
        self.dead: list[DeadLetter] = []
        self.merge: LMerge = lmerge(case, policy)
        self._decoder = WireDecoder()
        self._standings = {name: _Standing(partitions) for name in names}
        for name in names:
            self._attach(name)

    # --- replicas -------------------------------------------------------------------------------

    def publish(self, name: str, *elements: Element, partition: int = 0) -> list[Element]:
        """What the output emits for elements of a replica; a stable goes to every partition."""
        out = []
        for element in elements:
            everywhere = range(self._standings[name].partitions)
            for number in everywhere if type(element) is Stable else (partition,):
                out += self.publish_bytes(name, encode(element), partition=number)
        self.merge.check()
        return out

    def publish_bytes(self, name: str, value: bytes | None, *, partition: int = 0) -> list[Element]:
        """What the output emits for one record."""
        standing = self._standings[name]
        self.now += STEP_MS
        headers = tuple(incarnation_headers(standing.incarnation, standing.joining_at))
        offset = standing.lengths[partition]
        standing.lengths[partition] += 1
        record = CommittedRecord(name, partition, offset, self.now, value, None, headers)
        standing.published.append(record)
        out: list[Element] = []
        if standing.step is not None:
            standing.step.take(partition, [record], out, self.dead)
        self._emit(out)
        return out

    def detach(self, name: str) -> None:
        standing = self._standings[name]
        standing.step = None
        standing.attached.append(Interval(standing.since, self.now))
        self._emit(self.merge.detach(name))

    def attach(self, name: str, joining_at: int = START) -> None:
        """A new incarnation, of a replica that was detached or not."""
        standing = self._standings[name]
        if standing.step is not None:
            standing.attached.append(Interval(standing.since, self.now))
        standing.incarnation += 1
        standing.joining_at, standing.since = joining_at, self.now + 1
        standing.begins = len(standing.published)
        self._attach(name)

    def kill(self) -> None:
        """`kill -9` and a restart: nothing is left but the topics."""
        self.kills += 1
        self.merge = lmerge(self._case, self._policy)
        self.merge.replay_output([self._decoder.decode(record.value) for record in self.emitted])
        for name, standing in self._standings.items():
            if standing.step is not None:
                self._attach(name)
        for standing in self._standings.values():
            if standing.step is not None:
                missed: list[Element] = []
                for number in range(standing.partitions):
                    records = [
                        record
                        for record in standing.published[standing.begins :]
                        if record.partition == number
                    ]
                    standing.step.take(number, records, missed, [], replay_input=True)
                assert missed == [], "the output is what it was"
        self.merge.check()

    def output(self) -> TDB:
        return reconstitute(self._decoder.decode(record.value) for record in self.emitted)

    def breaches(self, name: str) -> Mapping[BreachKind, int]:
        return self.merge.inputs[name].breaches

    def _attach(self, name: str) -> None:
        standing = self._standings[name]
        standing.step = MergeStep(
            self.merge,
            name,
            self._decoder,
            topic=name,
            partitions=standing.partitions,
            joining_at=standing.joining_at,
            incarnation=standing.incarnation,
        )

    def _emit(self, elements: Sequence[Element]) -> None:
        self.now += bool(elements)
        start = len(self.emitted)
        self.emitted += [
            CommittedRecord("out", 0, start + number, self.now, encode(element))
            for number, element in enumerate(elements)
        ]

    # --- the judge ------------------------------------------------------------------------------

    def history(self, *, liars: Sequence[str] = (), **more: Any) -> History:
        """What happened; `liars` are the replicas that need not be believed."""
        return History(
            output=CommittedTopic("out", tuple(self.emitted)),
            replicas={
                name: ReplicaHistory(
                    CommittedTopic(name, tuple(standing.published), standing.partitions),
                    honest=name not in liars,
                    attached=self._attached(standing),
                )
                for name, standing in self._standings.items()
            },
            keyed=self._case in {"R0", "R2", "R3"},
            kills=self.kills,
            skew_ms=0,
            **more,
        )

    def _attached(self, standing: _Standing) -> list[Interval]:
        now = [] if standing.step is None else [Interval(standing.since, self.now)]
        return standing.attached + now

    def report(self, *, liars: Sequence[str] = (), **more: Any) -> HistoryReport:
        return check(self.history(liars=liars, **more))


def assert_valid(report: HistoryReport) -> None:
    """Every check that was asked for is valid."""
    assert report.outcome is Outcome.VALID, str(report)
