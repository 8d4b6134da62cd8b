"""Restarting the output: whether, from when on, and as which incarnation it can go on.

Theory
    Where what the output held is known no more (`LostOutputError`), the merge can still do what a
    replica does that has lost its state: begin a new incarnation of its stream, merged from what
    the replicas' topics have, and correct from some time on:

        output   i i a s(40) i │ incarnation 1, correct from 40: i i s(7) i a s(41) …
        reader   all of it      as the start-over of a replica: what was final stays, the rest
                                counts as the new incarnation has it

    *From when on.* A replica is correct from its `joining_at` on, and lacks what it has left out by
    feedback, which never went beyond where all of the output was stable; one that is normalised
    must heed none. A topic that has lost records since they were merged shows nothing of what is
    missing: an event that began in them may end at any time. Of such a replica a person may know
    it; otherwise it is left out. The output is correct from the earliest of these times on, or,
    where k inputs decide about a stable, from the k-th. What ends between the stable point of a
    partition and that time is lost: the *gap*, which consumers see by the time in the header.

    An incarnation is of the whole topic, so all partitions begin one, whichever of them has lost
    what it held: a reader ignores what is of an older incarnation than it has seen anywhere.

    It is one decision in the control log (`RestartOutput`), and each task carries it out with a
    transaction of its own: the first one whose commit record has the new incarnation. Whoever dies
    before has done nothing; whoever comes after goes on from there.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from lmerge_service.config.topology import Replica, Topology
from lmerge_service.elements import INFINITY, START, Stable
from lmerge_service.errors import ConfigurationError, ElementError, StateError, TransportError
from lmerge_service.formats.headers import incarnation_of
from lmerge_service.formats.payload import DEEPEST
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.sightings import is_another
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import TopicInfo
from lmerge_service.merge.commit_record import CommitRecord
from lmerge_service.merge.decisions.ledger import DesiredReplica, Entry, Ledger
from lmerge_service.merge.decisions.records import Decision, RestartOutput, encode
from lmerge_service.merge.inspection import decided, recoveries

__all__ = (
    "FormerPartition",
    "ReplicaReach",
    "RestartPlan",
    "decide_in_log",
    "lost_partitions",
    "plan_restart",
    "restart_words",
)


@dataclass(frozen=True, slots=True)
class FormerPartition:
    """A partition of the output as it is."""

    partition: int
    incarnation: int
    stable: int | None
    """How far it is final; None: nothing is left that shows it."""
    begins: int
    ends: int
    """Offsets."""


@dataclass(frozen=True, slots=True)
class ReplicaReach:
    """From when on a replica is correct by what its topic has; None: nothing shows it."""

    replica: str
    correct_from: int | None
    why: str


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """What a restart would be, as of some version of the decisions."""

    version: int
    incarnation: int
    correct_from: int | None
    """None: there are not enough replicas of which it is known."""
    needed: int
    """How many replicas decide about a stable."""
    replicas: tuple[ReplicaReach, ...]
    partitions: tuple[FormerPartition, ...]
    decided: int
    """The incarnation that was decided last; partitions may not have begun it yet."""

    def action(self, reason: str) -> RestartOutput:
        """The decision.

        Raises:
            StateError: too little is known of the replicas.
        """
        if self.correct_from is None:
            unknown = [f"{e.replica}: {e.why}" for e in self.replicas if e.correct_from is None]
            why = "; ".join(unknown) or "nothing shows how far it was stable"
            raise StateError(
                f"the output cannot start over: of {len(self.replicas)} attached replicas "
                f"{self.needed} must be known to be correct from some time on ({why}); `lmerge "
                "restart-output` takes that as --correct-from REPLICA=TIME"
            )
        replicas = {each.replica: each.correct_from for each in self.replicas}
        return RestartOutput(self.incarnation, self.correct_from, replicas, reason[:2_000])

    def is_decided_for(self, lost: Collection[int]) -> bool:
        """All partitions that have lost their state will begin an incarnation that was decided."""
        return bool(lost) and all(self.partitions[p].incarnation < self.decided for p in lost)

    def gap(self, former: FormerPartition) -> tuple[int, int] | None:
        """The times, without the end, of which events are lost; None: of none."""
        stable = START if former.stable is None else former.stable
        if self.correct_from is None or self.correct_from <= stable:
            return None
        return stable, self.correct_from


def restart_words(incarnation: int, correct_from: int, former_stable: int) -> str:
    """What a restart means, in a line.

    >>> restart_words(1, 50, 40)
    'incarnation 1, correct from 50 on; the one before was stable to 40: [40, 50) is lost'
    >>> restart_words(2, START, 40)
    'incarnation 2, correct from the beginning; the one before was stable to 40'
    """
    since = "the beginning" if correct_from == START else f"{correct_from} on"
    before = "nowhere" if former_stable == START else f"to {former_stable}"
    start = "the beginning" if former_stable == START else former_stable
    lost = f": [{start}, {correct_from}) is lost" if former_stable < correct_from else ""
    return (
        f"incarnation {incarnation}, correct from {since}; the one before was stable {before}{lost}"
    )


async def plan_restart(
    topology: Topology, cluster: Cluster, ledger: Ledger, *, stated: Mapping[str, int] = {}
) -> RestartPlan:
    """What a restart would be now; `stated` is from when on replicas are correct by who decides.

    Raises:
        ConfigurationError: something is stated of who is no attached replica.
        StateError: there is no state topic, or a commit record is of another version.
        TransportError: Kafka cannot be reached, or refuses.
    """
    attached = {each.replica.name: each for each in ledger.attached()}
    if unknown := stated.keys() - attached.keys():
        raise ConfigurationError(
            f"no replica {min(unknown)} is attached; there are: {', '.join(attached)}"
        )
    commits: list[CommitRecord | None] = []
    async with aclosing(recoveries(topology, cluster)) as found:
        async for _, recovery in found:
            commits.append(await recovery.last_commit(fenced=False))
    async with (
        cluster.source(max_record_bytes=topology.limits.max_record_bytes) as source,
        cluster.topics() as topics,
    ):
        former = [
            await _former(source, TopicPartition(topology.output.topic, number), commit)
            for number, commit in enumerate(commits)
        ]
        infos = await topics.describe([each.replica.topic for each in attached.values()])
        stable = _final(former)
        reaches = [
            ReplicaReach(name, stated[name], "as stated")
            if name in stated
            else await _reach(source, each, infos.get(each.replica.topic), commits, stable)
            for name, each in attached.items()
        ]
    needed = ledger.policy.policy().voters
    return RestartPlan(
        ledger.version,
        max(ledger.output.number, *(each.incarnation for each in former)) + 1,
        _from_when([each.correct_from for each in reaches], needed, stable),
        needed,
        tuple(reaches),
        tuple(former),
        ledger.output.number,
    )


def _from_when(reaches: Sequence[int | None], needed: int, stable: int | None) -> int | None:
    """`stable` is how far all of the output was final. Where fewer replicas are attached than
    decide about a stable, the others join by the rules of who joins late.

    >>> [_from_when([50, None, 40], needed, 40) for needed in (1, 2, 3)]
    [40, 50, None]
    >>> _from_when([50], 2, 40), _from_when([], 1, 40)
    (50, 40)
    """
    if not reaches:
        return None if stable == INFINITY else stable
    known = sorted(each for each in reaches if each is not None)
    if len(known) < min(needed, len(reaches)):
        return None
    return known[min(needed, len(known)) - 1]


def _final(former: Sequence[FormerPartition]) -> int | None:
    """How far all of the output was final: no replica has left out what ends later."""
    points = [each.stable for each in former]
    return None if None in points else min(point for point in points if point is not None)


async def _former(
    source: Source, tp: TopicPartition, commit: CommitRecord | None
) -> FormerPartition:
    begins, ends = (await source.beginnings([tp]))[tp], (await source.ends([tp]))[tp]
    if commit is not None:
        number = commit.output.incarnation
        return FormerPartition(tp.partition, number, commit.stable, begins, ends)
    incarnation, left = await _left(source, tp, begins, ends)
    stable = START if left is None and not begins else left
    return FormerPartition(tp.partition, incarnation, stable, begins, ends)


async def _left(
    source: Source, tp: TopicPartition, begins: int, ends: int
) -> tuple[int, int | None]:
    """The last incarnation, and its highest stable, by the records that are left."""
    decoder = WireDecoder(max_record_bytes=1 << 30, max_depth=DEEPEST)
    incarnation, stable = 0, None
    async with aclosing(source.backlog({tp: begins}, {tp: ends})) as backlog:
        async for _, records in backlog:
            for record in records:
                try:
                    number, element = (
                        incarnation_of(record.headers)[0],
                        decoder.decode(record.value),
                    )
                except ElementError:
                    continue  # something else has written it
                if number > incarnation:
                    incarnation, stable = number, None
                if number == incarnation and type(element) is Stable:
                    stable = max(element.vc, START if stable is None else stable)
    return incarnation, stable


async def _reach(
    source: Source,
    desired: DesiredReplica,
    info: TopicInfo | None,
    commits: Sequence[CommitRecord | None],
    stable: int | None,
) -> ReplicaReach:
    replica = desired.replica
    if info is None:
        return ReplicaReach(replica.name, None, f"there is no topic {replica.topic}")
    places = [TopicPartition(replica.topic, number) for number in range(info.partitions)]
    begins = {tp.partition: at for tp, at in (await source.beginnings(places)).items()}
    had = _merged_from(replica, info, commits)
    allowed = replica.joining_at is not None and not had
    for number, begin in begins.items():
        if begin > had.get(number, begin if allowed else 0):
            why = f"{replica.topic}-{number} begins at offset {begin}, what was before is gone"
            return ReplicaReach(replica.name, None, why)
    since = START if replica.joining_at is None else replica.joining_at
    if replica.normalise:
        return ReplicaReach(replica.name, since, "its topic is whole")
    if stable is None or stable == INFINITY:
        cause = "no stable of the output is left" if stable is None else "the output has ended"
        why = f"what it has left out by feedback is not known: {cause}"
        return ReplicaReach(replica.name, None, why)
    if since >= stable:
        return ReplicaReach(replica.name, since, "its joining_at")
    return ReplicaReach(replica.name, stable, "what ended before it may have left out by feedback")


def _merged_from(
    replica: Replica, info: TopicInfo, commits: Sequence[CommitRecord | None]
) -> dict[int, int]:
    """The offsets from which a replica's partitions were merged, by all tasks, or began when its
    joining time was stated; none where it was not, or its topic is another one by now."""
    found: dict[int, int] = {}
    for commit in filter(None, commits):
        standing, stated = commit.replicas.get(replica.name), commit.stated.get(replica.name)
        begins = dict[int, int]()
        if standing is not None and not is_another(standing.topic_id, info.id):
            begins = {number: each.begins for number, each in standing.partitions.items()}
        elif stated is not None and not is_another(stated.topic_id, info.id):
            begins = stated.begins if stated.joining_at == replica.joining_at else {}
        for number, begin in begins.items():
            found[number] = min(begin, found.get(number, begin))
    return found


async def lost_partitions(topology: Topology, cluster: Cluster) -> AsyncIterator[tuple[int, str]]:
    """The partitions that no worker could go on from, with the reason; all of them are recovered
    to find out.

    Raises:
        TransportError: Kafka cannot be reached, or refuses.
    """
    async with aclosing(recoveries(topology, cluster)) as found:
        async for partition, recovery in found:
            try:
                await recovery.recover(await recovery.last_commit(fenced=False), fenced=False)
            except StateError as error:
                yield partition, str(error)


async def decide_in_log(topology: Topology, cluster: Cluster, decision: Decision) -> Entry:
    """Makes a decision where no worker need run; returns the verdict.

    Raises:
        TransportError: it is not known whether it was made; the message has its id.
    """
    async with cluster.log(topology.output.control_topic) as log:
        try:
            await log.append(encode(decision))
        except TransportError as error:
            raise TransportError(f"decision {decision.id}: {error}") from error
    entry = (await decided(topology, cluster)).entry(decision.id)
    if entry is None:
        raise TransportError(f"decision {decision.id} is not in the control log yet")
    return entry
