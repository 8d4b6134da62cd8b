"""The next step of a plan: what was decided, and which topics there are, against what is merged.

Theory
    For each desired replica, what is read of its topic is compared with what is there:

    | desired and | then |
    |---|---|
    | read under this epoch, the same topic | it goes on; a wider topic is recorded |
    | read under this epoch, recreated or deleted | gone; dropped |
    | to be read, and what is next of it is gone | lost; dropped, and not begun under this epoch |
    | not read, and Spark does not have the topic | begun |
    | not read, or under another epoch, and Spark still has the topic | dropped, and waits |

    What is read and not desired is dropped. These functions have no side effects.

    Next of a partition is where the last planned batch ends; of one that no batch has read, where
    it was begun; of one that the topic has got since, 0. It is gone if the log begins behind it or
    ends before it. A gap between the offsets of records is no loss: transactions leave some.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from lmerge_service.config.topology import Replica
from lmerge_service.kafka.sightings import TopicChange, change_of, is_another
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import TopicInfo
from lmerge_service.merge.decisions.ledger import DesiredReplica, Ledger
from lmerge_service.spark.merge.plan import Begin, Lost, MergePlan, PlanStep, TopicKind

__all__ = ("KafkaView", "Planned", "kind_of", "next_step", "unreadable")


@dataclass(frozen=True, slots=True)
class Planned:
    """The batches that are in the checkpoint."""

    next: int
    """The first that was never planned."""
    topics: Mapping[str, Mapping[int, int]]
    """By topic and partition, up to where the last planned one reads: those that Spark has."""


@dataclass(slots=True)
class KafkaView:
    """What Kafka reports."""

    topics: Mapping[str, TopicInfo]
    beginnings: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    decisions: Sequence[bytes | None]
    """Those of the control log that no step has; the ledger has folded them."""
    deleted: frozenset[str] = frozenset()
    """Topics that were missing several times in a row."""
    read: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """By topic and partition, up to where batches that were planned by then read: what `ends` may
    be compared with, as a query that runs goes on meanwhile."""


@dataclass(slots=True)
class _Next:
    """A step in the making."""

    topics: dict[str, TopicKind] = field(default_factory=dict)
    begins: dict[str, Begin] = field(default_factory=dict)
    widens: dict[str, Begin] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)
    lost: dict[str, Lost] = field(default_factory=dict)


def next_step(
    plan: MergePlan, ledger: Ledger, seen: KafkaView, planned: Planned
) -> PlanStep | None:
    """The step that is due; None if there is nothing new."""
    before, due = plan.topics, _Next()
    for desired in ledger.attached():
        _compare(desired, plan, seen, planned, due)
    if plan.steps and not seen.decisions and due == _Next(topics=dict(before)):
        return None
    return PlanStep(
        since=planned.next,
        decisions=list(seen.decisions),
        begins=due.begins,
        widens=due.widens,
        gone=due.gone,
        topics=due.topics,
        lost=due.lost,
    )


def unreadable(plan: MergePlan, seen: KafkaView, done: Planned, planned: Planned) -> str | None:
    """Why the batch that was planned behind the last complete one can never be run; None: it can,
    or there is none."""
    if planned.next == done.next:
        return None
    for topic in done.topics.keys() - planned.topics.keys():
        return f"topic {topic} was deleted"
    for topic, kind in plan.topics_at(done.next).items():
        since = _next_of(plan, done, topic)
        read = {n: (since.get(n, 0), end) for n, end in planned.topics.get(topic, {}).items()}
        read = {number: (start, end) for number, (start, end) in read.items() if start < end}
        if not read:
            continue
        info = seen.topics.get(topic)
        change = change_of(kind.topic_id, kind.width, info, deleted=topic in seen.deleted)
        if change in (TopicChange.DELETED, TopicChange.RECREATED):
            why: str | None = f"was {change.value}"
        else:
            why = None if info is None else _loss(topic, seen, read)
        if why is not None:
            return f"topic {topic} {why}"
    return None


def _next_of(plan: MergePlan, planned: Planned, topic: str) -> Mapping[int, int]:
    """By partition, from where a topic is read next."""
    begun = plan.starts().get(topic, []) if plan.steps else []
    return {**dict(enumerate(begun)), **planned.topics.get(topic, {})}


def _loss(topic: str, seen: KafkaView, needed: Mapping[int, tuple[int, int]]) -> str | None:
    """Why a topic lacks records; `needed` gives by partition the offset of the first
    one that is needed, and the one behind the last that is known to have been there."""
    for number, (position, known) in sorted(needed.items()):
        begins = seen.beginnings.get(TopicPartition(topic, number), 0)
        ends = seen.ends.get(TopicPartition(topic, number), known)
        if begins > position:
            return (
                f"partition {number} begins at offset {begins}, and {position} is the next to "
                "merge: what is between is gone; state from when the replica is correct "
                "(joining_at, in the topology or with `lmerge attach`), or give it a new topic"
            )
        if ends < known:
            return (
                f"partition {number} ends at offset {ends}, and was read up to {known}: it has "
                "lost records, after an unclean election for instance; give the replica a new topic"
            )
    return None


def _compare(
    desired: DesiredReplica, plan: MergePlan, seen: KafkaView, planned: Planned, due: _Next
) -> None:
    replica, name, topic = desired.replica, desired.replica.name, desired.replica.topic
    info, have = seen.topics.get(topic), plan.topics.get(topic)
    known = have is not None and (have.replica, have.epoch) == (name, desired.epoch)
    lost = plan.lost().get(name)
    if lost is not None and lost.epoch == desired.epoch:
        if info is None or not is_another(lost.topic_id, info.id):
            return
        have, known = None, False
    if known:
        assert have is not None
        change = change_of(have.topic_id, have.width, info, deleted=topic in seen.deleted)
        if change is TopicChange.DELETED:
            due.gone[name] = "was deleted"
        elif change is TopicChange.RECREATED:
            due.gone[name] = "was recreated: what it holds is merged from its beginning"
        elif info is None:
            due.topics[topic] = have
        elif (why := _lacks(plan, planned, topic, info, seen)) is not None:
            due.lost[name] = Lost(desired.epoch, info.id, why)
        elif change is TopicChange.WIDER and not replica.co_partitioned:
            due.widens[name] = _begin(topic, info, seen)
            due.topics[topic] = msgspec.structs.replace(have, width=info.partitions)
        else:
            due.topics[topic] = have
    elif info is not None and have is None and topic not in planned.topics:
        if not plan.steps and (why := _lacks(plan, planned, topic, info, seen)) is not None:
            due.lost[name] = Lost(desired.epoch, info.id, why)  # since the state was exported
            return
        due.begins[name] = _begin(topic, info, seen)
        due.topics[topic] = kind_of(replica, desired.epoch, info)


def _lacks(
    plan: MergePlan, planned: Planned, topic: str, info: TopicInfo, seen: KafkaView
) -> str | None:
    """Why the next records of a topic that is merged are not there."""
    if plan.steps:
        since = _next_of(plan, planned, topic)
    elif plan.adopted is not None and topic in plan.adopted.starts:
        since = dict(enumerate(plan.adopted.starts[topic]))
    else:
        return None
    read = seen.read.get(topic, {})
    needed = {n: (since.get(n, 0), read.get(n, 0)) for n in range(info.partitions)}
    return _loss(topic, seen, {n: at for n, at in needed.items() if at[0] >= 0})


def kind_of(replica: Replica, epoch: int, info: TopicInfo) -> TopicKind:
    """How a replica's records reach the buckets."""
    return TopicKind(
        replica=replica.name,
        epoch=epoch,
        topic_id=info.id,
        width=info.partitions,
        wire=replica.format == "wire",
        co_partitioned=replica.co_partitioned,
    )


def _begin(topic: str, info: TopicInfo, seen: KafkaView) -> Begin:
    places = [TopicPartition(topic, number) for number in range(info.partitions)]
    return Begin(info.id, [seen.beginnings[tp] for tp in places], [seen.ends[tp] for tp in places])
