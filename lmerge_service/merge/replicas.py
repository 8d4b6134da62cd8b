"""The replicas of a merge task: which are merged, from where, with what counts, and why not.

Theory
    A replica is *merged* from some offset of each of its partitions on, in order. The operator
    holds its elements since then, and nothing else. It stops being merged when it is detached or
    put into quarantine, or when the order breaks: its topic is deleted or recreated, or the next
    records are gone. It is then *excluded*, with the reason in words, and the others go on. The
    commit record of every transaction has the position of each (`commit_record`).

    Where rows or intervals are known by partition (a dialect, `normalise`), a topic that gets
    wider, and a key that is in two partitions, break the order for good. Such a replica is put into
    quarantine, since nothing but a person can give it a topic that can be read.

    Being merged again always starts at the beginning of what its topic holds, since what the
    operator held of it is gone. Stables that it had sent before the release from a quarantine do
    not count then: they are what it may have lied about.

    Counts are of this process: an operator that is rebuilt, or an input that is attached again,
    starts from nothing, and what is shown must not fall.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec
import structlog

from lmerge_service.config.topology import Replica
from lmerge_service.core import Input, LMerge
from lmerge_service.elements import START, Element
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.dialects import decoders_of
from lmerge_service.formats.headers import TimedRecord
from lmerge_service.formats.reasons import Reason
from lmerge_service.formats.routing import Ownership, Router
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.sightings import is_another
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import TopicInfo
from lmerge_service.kafka.unread import Unread
from lmerge_service.merge.commit_record import PartitionCheckpoint, ReplicaCheckpoint, Statement
from lmerge_service.merge.counting import ReplicaTally
from lmerge_service.merge.decoding import WHOLE, Outdated, ReplicaDecoder
from lmerge_service.merge.findings.evidence import NotificationKind
from lmerge_service.merge.guards.evaluator import GuardEvaluator
from lmerge_service.merge.step import MergeStep

__all__ = ("ReplicaAttachment", "ReplicaChunk", "ReplicaState", "Replicas")

log = structlog.get_logger()

_COUNTED = {
    "inserts": "inserts",
    "adjusts": "adjusts",
    "stables": "stables_in",
    "first": "first",
    "late": "late",
}


@dataclass(frozen=True, slots=True)
class ReplicaAttachment:
    """How a replica is read: where these are equal, so is what its records decode to."""

    replica: Replica
    topic_id: str | None
    width: int
    """Partitions of its topic."""
    begins: tuple[tuple[int, int], ...]
    """By partition, from which offset on."""


@dataclass(slots=True)
class ReplicaState:
    """What the task knows about one replica; None where it does not know."""

    replica: Replica
    tally: ReplicaTally
    epoch: int = 0
    """How often it was attached or released by decisions."""
    released: bool = False
    """It comes out of a quarantine: stables that its topic holds by then do not count."""
    step: MergeStep | None = None
    """There while it is merged."""
    excluded: str | None = None
    """Why the replica is not merged, in words."""
    lost: bool = False
    """Excluded until its topic is recreated, or a person releases it."""
    quarantined: str | None = None
    """Why it is in quarantine, in words."""
    topic_id: str | None = None
    width: int = 0
    """Partitions of its topic."""
    since: int = 0
    """The first transaction that it was merged with."""
    partitions: dict[int, PartitionCheckpoint] = field(default_factory=dict)
    """By number, those that this task reads, as they stood when merging began."""
    next: dict[int, int] = field(default_factory=dict)
    """Of each of them, the offset to go on from."""
    unread: Unread | None = None
    """What its topic holds that was not read; None: unknown."""

    @property
    def lag(self) -> int | None:
        """Records and markers in its topic that have not been read."""
        return None if self.unread is None else self.unread.records

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """By partition that this task reads, the offset to go on from."""
        topic = self.replica.topic
        return {TopicPartition(topic, number): offset for number, offset in self.next.items()}

    @property
    def attachment(self) -> ReplicaAttachment:
        """Of a replica that is merged."""
        begins = tuple(sorted((number, each.begins) for number, each in self.partitions.items()))
        return ReplicaAttachment(self.replica, self.topic_id, self.width, begins)

    def is_attached_as(self, attachment: ReplicaAttachment) -> bool:
        """Whether it still is as it was then, as long as its decoder is the same."""
        return (self.topic_id, self.width) == (attachment.topic_id, attachment.width)

    @property
    def standing(self) -> ReplicaCheckpoint:
        """As in the next commit record; of a replica that is merged."""
        assert self.step is not None
        decoder = self.step.decoder
        return ReplicaCheckpoint(
            topic=self.replica.topic,
            topic_id=self.topic_id,
            epoch=self.epoch,
            incarnation=decoder.incarnation,
            joining_at=decoder.joining_at,
            gap_accepted=self.step.gap_accepted,
            since=self.since,
            partitions={
                number: PartitionCheckpoint(
                    each.begins, self.next[number], each.ignore_stables_before
                )
                for number, each in self.partitions.items()
            },
        )


class Replicas:
    """The replicas of one task, over its operator."""

    def __init__(
        self,
        merge: LMerge,
        decoder: WireDecoder,
        *,
        partition: int,
        router: Router,
        tallies: dict[str, ReplicaTally],
        clock: Callable[[], float],
        distrusted: Callable[[str, str], object],
        correct_from: int = START,
        stated: dict[str, Statement] | None = None,
    ):
        """`partition` is the task's, of those of the output; `router` selects what belongs there;
        `tallies` outlive this, by name; `distrusted` is called with each replica that is put into
        quarantine here, and why. `correct_from`: the output promises nothing of what ends before
        that time. `stated` is the task's, of all replicas that it has begun."""
        self.states: dict[str, ReplicaState] = {}
        """By name."""
        self._by_topic: dict[str, ReplicaState] = {}
        self.left: dict[str, dict[int, int]] = {}
        """Of replicas that were detached: up to where each partition was merged."""
        self.news: list[tuple[NotificationKind, str, str]] = []
        """Changes of replicas that nobody decided, with reasons; the reporter clears the list."""
        self.merge = merge
        self.decoder = decoder
        self._partition = partition
        self._router = router
        self._tallies = tallies
        self.clock = clock
        self._distrusted = distrusted
        self._correct_from = correct_from
        self._stated = {} if stated is None else stated
        self.owned = Ownership(router, partition)

    # --- who there is ---------------------------------------------------------------------------

    def expect(self, replica: Replica, *, epoch: int = 0, released: bool = False) -> None:
        """There shall be this replica: it will be merged when its topic is found."""
        if (before := self.states.get(replica.name)) is not None:
            self._stop_merging(before)
        tally = self._tallies.setdefault(replica.name, ReplicaTally())
        state = ReplicaState(replica, tally, epoch, released)
        self.states[replica.name] = self._by_topic[replica.topic] = state

    def leave(self, name: str) -> None:
        """The replica is detached."""
        state = self.states.pop(name)
        if self._by_topic.get(state.replica.topic) is state:
            del self._by_topic[state.replica.topic]
        self.left[name] = dict(state.next)
        self._stop_merging(state)

    def quarantine(self, name: str, why: str) -> None:
        """It is not merged until it is released."""
        state = self.states[name]
        self._stop_merging(state)
        state.quarantined = why

    def distrust(self, name: str, why: str, remedy: str = WHOLE) -> None:
        """Puts a replica into quarantine whose topic cannot be read as one table any more."""
        state = self.states[name]
        why = f"partitions: topic {state.replica.topic} {why}; {remedy}"
        self.quarantine(name, why)
        self._distrusted(name, why)
        self.news.append((NotificationKind.EXCLUDED, name, why))
        log.warning("replica excluded", replica=name, topic=state.replica.topic, why=why)

    def exclude(self, name: str, why: str, *, lost: bool = False, recreated: bool = False) -> None:
        """Stops merging a replica; if its topic was `recreated`, until merging of that begins."""
        state = self.states[name]
        self._stop_merging(state)
        state.excluded, state.lost = f"topic {state.replica.topic} {why}", lost
        kind = NotificationKind.RECREATED if recreated else NotificationKind.EXCLUDED
        self.news.append((kind, name, state.excluded))
        log.warning(
            "topic recreated" if recreated else "replica excluded",
            replica=name,
            topic=state.replica.topic,
            why=state.excluded,
        )

    def _stop_merging(self, state: ReplicaState) -> None:
        state.unread = None
        state.tally.open_since.clear()
        if state.step is not None:
            state.step = None
            state.partitions, state.next = {}, {}
            self.merge.detach(state.name)

    @property
    def merged(self) -> dict[str, ReplicaState]:
        return {name: state for name, state in self.states.items() if state.step is not None}

    def positions(self) -> dict[TopicPartition, int]:
        """From where to read on, of every replica that is merged."""
        return {
            tp: offset for state in self.merged.values() for tp, offset in state.positions.items()
        }

    def merging(self, tp: TopicPartition) -> ReplicaState | None:
        """The replica that is merged from this partition."""
        state = self._by_topic.get(tp.topic)
        if state is None or state.step is None or tp.partition not in state.next:
            return None
        return state

    # --- beginning to merge ---------------------------------------------------------------------

    def needed(self, name: str, width: int) -> list[TopicPartition]:
        """The partitions of a replica's topic that this task reads."""
        replica = self.states[name].replica
        numbers = [self._partition] if replica.co_partitioned else range(width)
        return [TopicPartition(replica.topic, number) for number in numbers if number < width]

    def begin(
        self,
        name: str,
        info: TopicInfo,
        beginnings: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        *,
        since: int,
    ) -> None:
        """Merges a replica from the beginning of its topic on, or excludes it; `since` is the
        next transaction."""
        state = self.states[name]
        replica, state.topic_id = state.replica, info.id
        if (why := self._unfit(replica, info)) is not None:
            self.exclude(name, why, lost=True)
            return
        reads = self.needed(name, info.partitions)
        begins = {tp.partition: beginnings[tp] for tp in reads}
        if (why := self._unknown_beginning(replica, info, begins)) is not None:
            self.exclude(name, why, lost=True)
            return
        if replica.joining_at is None:
            self._stated.pop(name, None)
        else:
            self._stated[name] = Statement(replica.joining_at, begins, info.id)
        standing = ReplicaCheckpoint(
            topic=replica.topic,
            topic_id=info.id,
            epoch=state.epoch,
            since=since,
            joining_at=START if replica.joining_at is None else replica.joining_at,
            partitions={
                tp.partition: PartitionCheckpoint(
                    beginnings[tp], beginnings[tp], ends[tp] if state.released else 0
                )
                for tp in reads
            },
        )
        self._merge_from(state, standing, info.partitions)

    def _unknown_beginning(
        self, replica: Replica, info: TopicInfo, begins: Mapping[int, int]
    ) -> str | None:
        """Why nobody knows from when on a replica is correct by what its topic has, in words."""
        cut, before = max(begins.values()), self._stated.get(replica.name)
        if not cut:
            return None
        if replica.joining_at is None:
            return (
                f"begins at offset {cut}: what was before is gone; state from when the replica is "
                "correct (joining_at, in the topology or with `lmerge release`), or give it a new "
                "topic"
            )
        if before is None or before.joining_at != replica.joining_at:
            return None
        if is_another(before.topic_id, info.id):
            return None
        for number, begin in begins.items():
            if begin > (known := before.begins.get(number, 0)):
                return (
                    f"begins at offset {begin} of partition {number}, and began at {known} when it "
                    f"was stated to be correct from {replica.joining_at} on: what was between is "
                    "gone; state from which later time on it is correct (`lmerge release "
                    "--joining-at`), or give it a new topic"
                )
        return None

    def resume(self, name: str, standing: ReplicaCheckpoint, width: int) -> None:
        """Merges a replica from a checkpoint; its records from `begins` on are to be replayed."""
        begun = {
            number: PartitionCheckpoint(each.begins, each.begins, each.ignore_stables_before)
            for number, each in standing.partitions.items()
        }
        standing = msgspec.structs.replace(standing, partitions=begun)
        self._merge_from(self.states[name], standing, width)

    def adopt(self, name: str, standing: ReplicaCheckpoint, width: int) -> MergeStep:
        """A replica that stands so in an operator that was restored from a snapshot."""
        state = self.states[name]
        self._merge_from(state, standing, width, attached=True)
        assert state.step is not None
        return state.step

    def _merge_from(
        self,
        state: ReplicaState,
        standing: ReplicaCheckpoint,
        width: int,
        *,
        attached: bool = False,
    ) -> None:
        self._stop_merging(state)
        state.excluded, state.lost, state.released = None, False, False
        state.topic_id, state.epoch, state.width = standing.topic_id, standing.epoch, width
        state.since = standing.since
        state.partitions = dict(standing.partitions)
        state.next = {number: each.next for number, each in standing.partitions.items()}
        state.step = MergeStep(
            self.merge,
            state.name,
            self.decoder,
            topic=state.replica.topic,
            partitions=1 if state.replica.co_partitioned else width,
            joining_at=standing.joining_at,
            cut=() if attached else [n for n, each in standing.partitions.items() if each.begins],
            incarnation=standing.incarnation,
            gap_accepted=standing.gap_accepted,
            suffices_from=self._correct_from,
            normalise=state.replica.normalise,
            co_partitioned=state.replica.co_partitioned,
            ignore_stables_before={
                number: each.ignore_stables_before
                for number, each in standing.partitions.items()
                if each.ignore_stables_before
            },
            owned=self.owned if self._reads_all(state.replica) else None,
            dialect=decoders_of(state.replica.format, self.decoder),
            routes=self._router.partition_of if self._must_be_placed(state.replica) else None,
            attached=attached,
        )

    def _reads_all(self, replica: Replica) -> bool:
        """The task reads what is for other tasks as well."""
        return self._router.partitions > 1 and not replica.co_partitioned

    def _must_be_placed(self, replica: Replica) -> bool:
        """Each task reads one partition of it, and relies on what is in the others."""
        return self._router.partitions > 1 and replica.co_partitioned

    def _unfit(self, replica: Replica, info: TopicInfo) -> str | None:
        """Why a replica's topic cannot be merged, in words."""
        if replica.co_partitioned:
            if info.partitions == self._router.partitions:
                return None
            return (
                f"has {info.partitions} partitions, but a co-partitioned replica has as many as "
                f"the output, {self._router.partitions}"
            )
        if info.partitions > 1 and not self.merge.any_partitions:
            return (
                f"has {info.partitions} partitions, which give no order together; case "
                f"{self.merge.case} needs one: use one partition, or case R3 or R4"
            )
        return None

    def widen(self, name: str, info: TopicInfo, beginnings: Mapping[TopicPartition, int]) -> None:
        """The topic of a replica that is merged has got more partitions."""
        state = self.states[name]
        if (why := self._unfit(state.replica, info)) is not None:
            self.exclude(name, why, lost=True)
            return
        if state.replica.is_known_by_partition:
            what = "intervals" if state.replica.format == "wire" else "rows"
            self.distrust(
                name,
                f"got {info.partitions} partitions, {state.width} before, and its {what} are "
                "known by partition: a key that moves leaves what it had behind",
            )
            return
        assert state.step is not None
        fresh = self.needed(name, info.partitions)[state.width :]
        state.step.widen(info.partitions, [tp.partition for tp in fresh if beginnings[tp]])
        for tp in fresh:
            state.partitions[tp.partition] = PartitionCheckpoint(beginnings[tp], beginnings[tp])
            state.next[tp.partition] = beginnings[tp]
        state.width = info.partitions

    # --- records --------------------------------------------------------------------------------

    def replay_input(self, tp: TopicPartition, records: Sequence[TimedRecord]) -> list[Element]:
        """Replays records that were merged before; returns what the output lacks of them."""
        state = self.merging(tp)
        assert state is not None
        assert state.step is not None
        out: list[Element] = []
        state.step.take(tp.partition, records, out, [], replay_input=True)
        assert state.step.decoder.torn is None
        return out

    def is_reported_elsewhere(self, state: ReplicaState, tp: TopicPartition) -> bool:
        """All tasks find the same dead letters; those of a partition are reported by one task."""
        number: int = tp.partition
        if not self._reads_all(state.replica):
            return False
        return number % self._router.partitions != self._partition

    def lose(self, name: str, count: int) -> None:
        """Its stables have made the output lose events; it may be gone by now."""
        self._tallies.setdefault(name, ReplicaTally()).counts.add({"lost": count})

    def arrive(self, tp: TopicPartition, offset: int) -> None:
        """Everything before the offset is recalled."""
        if (state := self.merging(tp)) is not None:
            state.next[tp.partition] = offset

    def open(
        self,
        tp: TopicPartition,
        records: Sequence[TimedRecord],
        dead: list[DeadLetter],
        evaluator: GuardEvaluator,
    ) -> "ReplicaChunk":
        """Begins a chunk of new records of a replica that is merged; `dead` is where their dead
        letters will go."""
        state = self.merging(tp)
        assert state is not None
        return ReplicaChunk(self, state, tp, records, dead, evaluator)


class ReplicaChunk:
    """Records of one partition on their way through a replica's step, and what that changes."""

    def __init__(
        self,
        replicas: Replicas,
        state: ReplicaState,
        tp: TopicPartition,
        records: Sequence[TimedRecord],
        dead: list[DeadLetter],
        evaluator: GuardEvaluator,
    ):
        assert state.step is not None
        self.state, self.step = state, state.step
        self._replicas, self._tp, self._records = replicas, tp, records
        self._dead, self._evaluator = dead, evaluator
        decoder = state.step.decoder
        self._had, self._stale, self._repeated = len(dead), decoder.stale, decoder.repeated
        self._contradicted, self._unusual = decoder.contradicted, decoder.unusual
        self._older = decoder.outdated.get(tp.partition)
        self._source = replicas.merge.inputs[state.name]
        self._was = _of_input(self._source)

    def take(self, out: list[Element]) -> int:
        """Decodes the records here, and merges them as far as guards allow; returns how many."""
        owned = self._replicas.owned
        owned.elsewhere = START
        following = self.step.take(
            self._tp.partition, self._records, out, self._dead, guards=self._evaluator
        )
        return self._settle(following, lambda: owned.elsewhere)

    def open(self, out: list[Element]) -> int:
        """Begins to merge pieces, see `MergeStep.open`."""
        return self.step.open(self._tp.partition, out, guards=self._evaluator, routed=True)

    def close(self, elsewhere: Callable[[], int]) -> int:
        """Merges what was offered to the step; returns of how many of the records that is.
        `elsewhere` is as for `Liveness.look`."""
        return self._settle(self.step.close(), elsewhere)

    def _settle(self, following: int, elsewhere: Callable[[], int]) -> int:
        replicas, state, step = self._replicas, self.state, self.step
        tp, records, dead, evaluator = self._tp, self._records, self._dead, self._evaluator
        decoder, had = step.decoder, self._had
        taken = len(records)
        if following <= records[-1].offset:
            taken = bisect_left(records, following, key=attrgetter("offset"))
        # A source that delivers at least once is late with all that it repeats, and no liar.
        wrong = sum(letter.reason != Reason.LATE for letter in dead[had:])
        progress = evaluator.after(
            state.name, step.slot(tp.partition), tp, records, taken, wrong, elsewhere
        )
        older = _grown(decoder, tp.partition, self._older)
        # Of a chunk that is merged in parts the decoder has those of the parts before as well.
        fresh = decoder.contradicted - self._contradicted
        contradictions = decoder.contradictions[len(decoder.contradictions) - fresh :]
        evaluator.noted(tp, records, decoder, contradictions, older)
        if replicas.is_reported_elsewhere(state, tp):
            del dead[had:]
        self._count(taken, len(dead) - had)
        state.next[tp.partition] = following
        tally = state.tally
        tally.last_record = replicas.clock()
        if progress or tally.last_progress is None:
            tally.last_progress = tally.last_record
        if decoder.repeated > self._repeated:
            tally.repeated_at = f"{tp.topic}-{tp.partition}", decoder.repeated_at
        if contradictions:
            tally.contradicted_at = f"{tp.topic}-{tp.partition}", contradictions[-1].offset
        if len(dead) > had or contradictions:
            tally.troubled = tally.last_record
        if decoder.torn is not None:
            replicas.distrust(state.name, decoder.torn, decoder.remedy)
        return taken

    def _count(self, taken: int, dead: int) -> None:
        replicas, state, decoder = self._replicas, self.state, self.step.decoder
        counts, was, after = state.tally.counts, self._was, replicas.merge.inputs[state.name]
        if after is not self._source:  # a new incarnation counts from nothing
            was = dict.fromkeys(was, 0)
            kind = NotificationKind.INCARNATION
            replicas.news.append((kind, state.name, _of_incarnation(decoder)))
        counts.add({what: now - was[what] for what, now in _of_input(after).items()})
        counts.add(
            {
                "stale": decoder.stale - self._stale,
                "repeated": decoder.repeated - self._repeated,
                "unusual": decoder.unusual - self._unusual,
                "contradicted": decoder.contradicted - self._contradicted,
                "records": taken,
                "dead": dead,
            }
        )


def _grown(decoder: ReplicaDecoder, partition: int, before: Outdated | None) -> Outdated | None:
    """The run of records of an older incarnation, when it has just begun or doubled."""
    run = decoder.outdated.get(partition)
    if run is None:
        return None
    had = before.records if before is not None and before.first == run.first else 0
    return run if run.records.bit_length() > had.bit_length() else None


def _of_incarnation(decoder: ReplicaDecoder) -> str:
    since = "" if decoder.joining_at == START else f", correct from {decoder.joining_at} on"
    return f"it has started over: incarnation {decoder.incarnation}{since}"


def _of_input(source: Input) -> dict[str, int]:
    return {name: getattr(source, attribute) for name, attribute in _COUNTED.items()}
