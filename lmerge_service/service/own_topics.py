"""The topics that belong to a merge: made when they are missing, refused when they forget."""

from lmerge_service.errors import ConfigurationError
from lmerge_service.kafka.topics import Topics
from lmerge_service.topology import Topology

__all__ = ("LARGEST_STATE_RECORD", "largest_record", "prepare")

LARGEST_STATE_RECORD = 1 << 20

_OVERHEAD_BYTES = 4096
_KEPT = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
_EVENTS = {"retention.ms": str(30 * 24 * 3_600_000), "cleanup.policy": "delete"}
"""Evidence is for people, who look at it or do not."""


def largest_record(topology: Topology) -> int:
    """Bytes of the largest output record: the payload is in its key and in its value."""
    return 2 * topology.limits.max_record_bytes + _OVERHEAD_BYTES


async def prepare(topics: Topics, topology: Topology) -> None:
    """Makes and checks the topics.

    Raises:
        ConfigurationError: one is there already, and set up in a way that loses what it holds.
        TransportError: Kafka cannot be reached, or refuses.
    """
    output, largest = topology.output, str(largest_record(topology))
    kept = _KEPT | {"max.message.bytes": largest}
    await _ensure(topics, output.topic, output.partitions, kept)
    await topics.ensure(output.dead_letter_topic, config=kept)
    compacted = {
        "cleanup.policy": "compact",
        "max.message.bytes": str(2 * LARGEST_STATE_RECORD),
        "min.cleanable.dirty.ratio": "0.1",
        "segment.bytes": str(64 << 20),
        "segment.ms": "600000",
    }
    await _ensure(topics, output.state_topic, output.partitions, compacted)
    await topics.ensure(output.events_topic, config=_EVENTS)
    for key, must in _KEPT.items():
        why = f"must be {must}: without a snapshot, the merge is rebuilt from every record of it"
        await topics.require(output.topic, key, must.__eq__, why)
    await topics.require(
        output.state_topic,
        "cleanup.policy",
        "compact".__eq__,
        "must be compact: its last mark and snapshots are the state",
    )
    room = f"must be {largest} at least, or limits.max_record_bytes lower"
    for topic in (output.topic, output.dead_letter_topic):
        await topics.require(
            topic, "max.message.bytes", lambda value: int(value) >= int(largest), room
        )


async def _ensure(topics: Topics, name: str, partitions: int, config: dict[str, str]) -> None:
    width = await topics.ensure(name, partitions=partitions, config=config)
    if width != partitions:
        raise ConfigurationError(
            f"topic {name} has {width} partitions, and output.partitions is {partitions}: what is "
            "in it was routed by its number; use a new output topic, or that number"
        )
