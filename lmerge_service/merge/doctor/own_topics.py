"""Checks of the topics that a merge writes."""

from collections.abc import Iterator, Mapping
from typing import Final

from lmerge_service.config.topology import Topology
from lmerge_service.kafka.topics import TopicDetails
from lmerge_service.merge.doctor.diagnosis import Diagnosis, counted, fine, warned, wrong
from lmerge_service.merge.internal_topics import TABLE_CONFIG, least_batch_bytes
from lmerge_service.text import span

__all__ = ("CONFIG_KEYS", "own_topic")

CONFIG_KEYS: Final = (
    "cleanup.policy",
    "delete.retention.ms",
    "max.message.bytes",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "unclean.leader.election.enable",
)
"""What the checks need of a topic's configuration."""
_LARGE_SEGMENT: Final = 256 << 20
_READERS_MS: Final = {
    key: int(TABLE_CONFIG[key]) for key in ("min.compaction.lag.ms", "delete.retention.ms")
}
"""For so long a table topic keeps what a reader that loads it may not have read yet."""


def own_topic(
    topology: Topology,
    name: str,
    details: TopicDetails,
    config: Mapping[str, str],
    *,
    brokers: int,
) -> Iterator[Diagnosis]:
    """What is wrong with a topic that is there; one line that all is well if nothing is."""
    found = [
        *_shape(topology, name, details),
        *_kept(topology, name, config),
        *_safe(name, details, config, brokers),
    ]
    yield from found
    if not found:
        width = counted(details.partitions, "partition")
        yield fine(f"topic {name}", f"{width}, replication {details.replication}")


def _shape(topology: Topology, name: str, details: TopicDetails) -> Iterator[Diagnosis]:
    output, subject = topology.output, f"topic {name}"
    width = counted(details.partitions, "partition")
    routed = name in (output.topic, output.state_topic, output.table_topic)
    if routed and details.partitions != output.partitions:
        yield wrong(
            subject,
            f"{width}, and output.partitions is {output.partitions}",
            "use a new output topic, or that number",
        )
    if name == output.control_topic and details.partitions != 1:
        yield wrong(subject, width, "decisions need one order: one")
    if details.leaderless:
        listed = ", ".join(map(str, details.leaderless))
        yield wrong(subject, f"partition {listed} has no leader", "start its brokers")
    reads = routed or name == output.control_topic
    needed = {"Read", "Write", "Describe"} if reads else {"Write", "Describe"}
    trimmed = name in (output.topic, output.control_topic)
    needed |= {"Delete"} if trimmed and output.keep is not None else set()
    if details.rights is not None and (lacking := needed - details.rights):
        yield wrong(subject, f"our user lacks {', '.join(sorted(lacking))}", "add these ACLs")


def _kept(topology: Topology, name: str, config: Mapping[str, str]) -> Iterator[Diagnosis]:
    output, subject, policy = topology.output, f"topic {name}", config.get("cleanup.policy", "")
    must = {
        output.topic: "delete",
        output.control_topic: "delete",
        output.state_topic: "compact",
        output.table_topic: "compact",
    }.get(name)
    if must is not None and policy != must:
        yield wrong(subject, f"cleanup.policy is {policy}", f"it must be {must}")
    least = least_batch_bytes(topology).get(name, 0)
    if int(config.get("max.message.bytes", least)) < least:
        size = config["max.message.bytes"]
        yield wrong(subject, f"max.message.bytes is {size}", f"it must be {least} at least")
    lifetime = int(config.get("retention.ms", "-1"))
    for key in ("retention.ms", "retention.bytes") if name == output.control_topic else ():
        if config.get(key, "-1") != "-1":
            yield wrong(
                subject, f"{key} is {config[key]}", "it must be -1: workers delete what is folded"
            )
    bounds = [config.get(key, "-1") for key in ("retention.ms", "retention.bytes")]
    for_people = name in (output.events_topic, output.dead_letter_topic)
    if for_people and policy == "delete" and bounds == ["-1", "-1"]:
        yield warned(
            subject,
            "retention.ms and retention.bytes are -1: it grows for ever",
            "set retention.ms; 2592000000 is 30 days",
        )
    segment = int(config.get("segment.bytes", "0"))
    if name == output.topic and output.keep is not None and segment > _LARGE_SEGMENT:
        yield warned(
            subject,
            f"segment.bytes is {segment}",
            "what is deleted frees whole segments, and never the last one: set 67108864",
        )
    for key, least_ms in _READERS_MS.items() if name == output.table_topic else ():
        if int(config.get(key, least_ms)) < least_ms:
            yield warned(
                subject,
                f"{key} is {config[key]}",
                f"who takes longer to load the table may lack what was superseded or removed "
                f"meanwhile: set {least_ms}",
            )
    needed = round(output.longest_outage + 2 * topology.snapshot_seconds)
    if name == output.topic and 0 <= lifetime < needed * 1_000:
        yield warned(
            subject,
            f"keeps records for {span(lifetime, 'ms')}, and a recovery after the longest outage "
            f"needs {span(needed, 's')}",
            "raise retention.ms, or lower output.longest_outage or snapshot_seconds",
        )


def _safe(
    name: str, details: TopicDetails, config: Mapping[str, str], brokers: int
) -> Iterator[Diagnosis]:
    subject, least = f"topic {name}", int(config.get("min.insync.replicas", "1"))
    if brokers < 2:
        pass  # of a single broker the line about Kafka has it
    elif details.replication < 2:
        yield warned(
            subject,
            f"replication is {details.replication}",
            "the loss of its broker loses it; reassign it to three brokers",
        )
    elif least < 2:
        yield warned(
            subject,
            f"min.insync.replicas is {least} of {details.replication}",
            "what one broker has acknowledged alone is lost with it: set 2",
        )
    elif least >= details.replication:
        yield warned(
            subject,
            f"min.insync.replicas is {least} of {details.replication}",
            "the loss of any broker stops the merge: set one less",
        )
    if config.get("unclean.leader.election.enable") == "true":
        yield warned(
            subject,
            "unclean.leader.election.enable is true",
            "committed records can be lost: set it to false",
        )
