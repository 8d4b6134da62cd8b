"""Examines a cluster: asks Kafka for what the checks need, and changes nothing.

Who owns what
    Its clients, while it runs.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Final

from lmerge_service.config.topology import Replica, Topology
from lmerge_service.errors import ConfigurationError, LMergeError, RefusedError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import TopicDetails, Topics
from lmerge_service.merge.commit_record import CommitRecord
from lmerge_service.merge.doctor.diagnosis import Diagnosis, counted, fine, warned, wrong
from lmerge_service.merge.doctor.own_topics import CONFIG_KEYS, own_topic
from lmerge_service.merge.doctor.samples import Sample, sampled, samples_of
from lmerge_service.merge.inspection import Inspected, inspect
from lmerge_service.merge.retention import Covered

__all__ = ("examine",)

_ENOUGH_BROKERS: Final = 3
_MOST_PARTITIONS: Final = 16
"""So many partitions of a replica are sampled at the most."""


async def examine(
    topology: Topology, cluster: Cluster, *, unix_ms: int
) -> AsyncIterator[Diagnosis]:
    """All checks, in the order in which they are worth reading. `unix_ms` is this machine's time.

    Raises:
        TransportError: Kafka cannot be reached.
    """
    async with cluster.topics() as topics:
        brokers = len(await topics.brokers())
        for each in _of_kafka(topology, brokers, has_ids=await topics.return_ids()):
            yield each
        yield _of_engine(topology)
        own = list(topology.output.own_topics)
        replicas = [each.topic for each in topology.replicas]
        details = await topics.details([*own, *replicas])
        for name in own:
            for each in await _own(topology, topics, name, details.get(name), brokers):
                yield each
        async for each in _state(topology, cluster, details):
            yield each
        async with cluster.source(max_record_bytes=topology.limits.max_record_bytes) as source:
            for replica in topology.replicas:
                refused = replica.topic in topics.refused
                found = details.get(replica.topic)
                for each in await _replica(topology, source, replica, found, unix_ms, refused):
                    yield each


async def _replica(
    topology: Topology,
    source: Source,
    replica: Replica,
    details: TopicDetails | None,
    unix_ms: int,
    refused: bool,
) -> list[Diagnosis]:
    subject = f"replica {replica.name}"
    if refused:
        return [wrong(subject, f"our user may not see topic {replica.topic}", "allow it Read")]
    samples: list[Sample] = []
    found: list[Diagnosis] = []
    if details is not None and (details.rights is None or "Read" in details.rights):
        places = [
            TopicPartition(replica.topic, each)
            for each in range(min(details.partitions, _MOST_PARTITIONS))
            if each not in details.leaderless
        ]
        try:
            samples = await sampled(source, places)
        except LMergeError as error:
            found.append(wrong(subject, str(error), "its records cannot be merged before"))
    return [*samples_of(topology, replica, details, samples, unix_ms=unix_ms), *found]


def _of_kafka(topology: Topology, brokers: int, *, has_ids: bool) -> Iterator[Diagnosis]:
    subject = f"Kafka at {topology.kafka.bootstrap}"
    if not has_ids:
        yield warned(
            subject,
            "a broker is older than Kafka 2.8, and returns no topic ids",
            "upgrade it: a topic that is deleted and recreated may be taken for the one it was",
        )
    if brokers < _ENOUGH_BROKERS:
        yield warned(
            subject,
            counted(brokers, "broker"),
            "the loss of one stops the merge; three, with replication 3 and min.insync.replicas 2, "
            "live through it",
        )
    elif has_ids:
        yield fine(subject, counted(brokers, "broker"))


def _of_engine(topology: Topology) -> Diagnosis:
    try:
        choice = topology.engine_choice
    except ConfigurationError as error:
        return wrong("engine", str(error), "no worker starts before")
    if choice.is_native or topology.engine == "python":
        return fine("engine", f"{choice.engine}: {choice.why}")
    return fine("engine", f"{choice.engine}, which is slower: {choice.why}")


async def _own(
    topology: Topology, topics: Topics, name: str, details: TopicDetails | None, brokers: int
) -> list[Diagnosis]:
    if details is None:
        if name in topics.refused:
            subject = f"topic {name}"
            return [wrong(subject, "our user may not see it", "allow it Describe, Read and Write")]
        return [fine(f"topic {name}", "is not there yet: the first worker makes it")]
    try:
        config = await topics.configs(name, CONFIG_KEYS)
    except RefusedError as error:
        return [wrong(f"topic {name}", str(error), "allow our user DescribeConfigs on it")]
    return list(own_topic(topology, name, details, config, brokers=brokers))


async def _state(
    topology: Topology, cluster: Cluster, details: dict[str, TopicDetails]
) -> AsyncIterator[Diagnosis]:
    """What the tasks have committed, and whether a start goes on from it."""
    if topology.output.state_topic not in details:
        return
    try:
        found = [each async for each in inspect(topology, cluster, verify=False)]
        begins = await _beginnings(topology, cluster, details)
        if any(_rests_on_snapshots(each, begins) for each in found):
            found = [each async for each in inspect(topology, cluster, verify=True)]
    except LMergeError as error:
        remedy = "a worker would end: see docs/operations/recovery.md"
        yield wrong(f"topic {topology.output.state_topic}", str(error), remedy)
        return
    for task in found:
        for each in _of_task(topology, task, begins):
            yield each


async def _beginnings(
    topology: Topology, cluster: Cluster, details: dict[str, TopicDetails]
) -> dict[int, int]:
    """The first offset of each partition of the output."""
    output = topology.output
    if output.topic not in details:
        return {}
    places = [
        TopicPartition(output.topic, each) for each in range(details[output.topic].partitions)
    ]
    async with cluster.source(max_record_bytes=topology.limits.max_record_bytes) as source:
        begins = await source.beginnings(places)
    return {tp.partition: at for tp, at in begins.items()}


def _rests_on_snapshots(task: Inspected, begins: Mapping[int, int]) -> bool:
    """Its output has lost what a recovery without a snapshot needs."""
    commit = task.commit or CommitRecord()
    published = commit.output_records > commit.output.records
    return published and begins.get(task.partition, 0) > commit.output.offset


def _is_short(commit: CommitRecord, begins: int) -> bool:
    """Part of what the older of two snapshots needs is gone."""
    covered = Covered(commit.snapshots, commit.output_records, commit.output.offset)
    return len(commit.snapshots) > 1 and covered.is_short(begins)


def _of_task(topology: Topology, task: Inspected, begins: Mapping[int, int]) -> Iterator[Diagnosis]:
    subject, commit = f"task {task.partition}", task.commit
    if commit is None:
        yield fine(subject, "has committed nothing yet")
    elif commit.merge not in ("", topology.name):
        yield wrong(
            subject,
            f"merge {commit.merge!r} publishes to this output, and this one is {topology.name!r}",
            "stop its workers, or use another output topic",
        )
    elif _rests_on_snapshots(task, begins) and all(e.damage is not None for e in task.snapshots):
        yield wrong(
            subject,
            f"the output begins at offset {begins[task.partition]}, and none of "
            f"{len(task.snapshots)} snapshots can be used",
            "a worker that starts now ends with 4; `lmerge restart-output` shows how to go on",
        )
    elif _is_short(commit, begins.get(task.partition, 0)):
        yield warned(
            subject,
            f"the output begins at offset {begins[task.partition]}, and the older of its two "
            f"snapshots needs it from {commit.snapshots[1].output} on",
            "the latest one alone recovers: raise the topic's retention.ms or retention.bytes",
        )
    else:
        of = f" of incarnation {commit.output.incarnation}" if commit.output.incarnation else ""
        yield fine(
            subject,
            f"published records {commit.output_records:,}, snapshots {len(commit.snapshots)}{of}",
        )
