"""The next step of a plan: what was decided, and which topics there are, against what is merged.

Theory
    For each replica that is wanted, what is read of its topic is compared with what is there:

    | wanted and | then |
    |---|---|
    | read under this epoch, the same topic | it goes on; a wider topic is told |
    | read under this epoch, made anew or deleted | gone; dropped |
    | not read, and Spark knows nothing of the topic | begun |
    | not read, or under another epoch, and Spark still knows the topic | dropped, and waits |

    What is read and not wanted is dropped. Nothing here asks or changes anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import TopicInfo
from lmerge_service.service.ledger import Ledger, Wanted
from lmerge_service.spark.merge.plan import Begin, Kind, Plan, Step
from lmerge_service.topology import Replica

__all__ = ("Planned", "Seen", "kind_of", "next_step")


@dataclass(frozen=True, slots=True)
class Planned:
    """What the checkpoint tells of batches."""

    next: int
    """The first that was never planned."""
    topics: Mapping[str, Mapping[int, int]]
    """By topic and partition, up to where the last planned one reads: those that Spark knows."""


@dataclass(slots=True)
class Seen:
    """What Kafka tells."""

    topics: Mapping[str, TopicInfo]
    beginnings: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    decisions: Sequence[bytes | None]
    """Those of the control log that no step has; the ledger has folded them."""
    believed: frozenset[str] = frozenset()
    """Topics that have been missing for so long that it is believed."""


@dataclass(slots=True)
class _Next:
    """A step in the making."""

    topics: dict[str, Kind] = field(default_factory=dict)
    begins: dict[str, Begin] = field(default_factory=dict)
    widens: dict[str, Begin] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)


def next_step(plan: Plan, ledger: Ledger, seen: Seen, planned: Planned) -> Step | None:
    """The step that is due; None if there is nothing new."""
    before: Mapping[str, Kind] = plan.steps[-1].topics if plan.steps else {}
    due = _Next()
    for wanted in ledger.attached():
        _compare(wanted, before, seen, planned, due)
    if plan.steps and not seen.decisions and due == _Next(topics=dict(before)):
        return None
    return Step(
        since=planned.next,
        decisions=list(seen.decisions),
        begins=due.begins,
        widens=due.widens,
        gone=due.gone,
        topics=due.topics,
    )


def _compare(
    wanted: Wanted, before: Mapping[str, Kind], seen: Seen, planned: Planned, due: _Next
) -> None:
    replica, name, topic = wanted.replica, wanted.replica.name, wanted.replica.topic
    info, have = seen.topics.get(topic), before.get(topic)
    known = have is not None and (have.replica, have.epoch) == (name, wanted.epoch)
    if known and info is None:
        assert have is not None
        if topic in seen.believed:
            due.gone[name] = "was deleted"
        else:
            due.topics[topic] = have
    elif known and info is not None:
        assert have is not None
        if info.id != have.topic_id:
            due.gone[name] = "was made anew: what it holds is merged from its beginning"
        elif info.partitions > have.width and not replica.co_partitioned:
            due.widens[name] = _begin(topic, info, seen)
            due.topics[topic] = msgspec.structs.replace(have, width=info.partitions)
        else:
            due.topics[topic] = have
    elif info is not None and have is None and topic not in planned.topics:
        due.begins[name] = _begin(topic, info, seen)
        due.topics[topic] = kind_of(replica, wanted.epoch, info)


def kind_of(replica: Replica, epoch: int, info: TopicInfo) -> Kind:
    """How a replica's records reach the buckets."""
    return Kind(
        replica=replica.name,
        epoch=epoch,
        topic_id=info.id,
        width=info.partitions,
        wire=replica.format == "wire",
        co_partitioned=replica.co_partitioned,
    )


def _begin(topic: str, info: TopicInfo, seen: Seen) -> Begin:
    places = [TopicPartition(topic, number) for number in range(info.partitions)]
    return Begin(info.id, [seen.beginnings[tp] for tp in places], [seen.ends[tp] for tp in places])
