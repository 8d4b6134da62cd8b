"""The topics that belong to a merge: made when they are missing, refused when they forget, and
watched while the merge runs.

Theory
    Topics are deleted, lose their leaders or our rights, while a merge writes them, and the client
    only waits. So each worker looks at all of them every second, by one request:

        dead letters, evidence,  deleted: created again, as they were made at first
        table
        output, state, control   deleted, or another topic of that name: the merge's state is gone.
                                 The worker ends, with an error that names the topic
        any of them              without a leader, or not ours to write: noted (`outlets`)

    The table is not created again at once: every task has to miss it before, so that none writes
    into the new one as if that were the old (`table.writer`).

    A topic that is not seen is believed to be deleted when it is missed several times in a row: a
    broker that has just started knows few topics. To create one that is there after all does
    nothing.

What happens on a crash at each await
    Nothing: what is created is created, and what was seen is seen again.
"""

import asyncio
from collections import Counter
from functools import partial
from typing import Final

import structlog

from lmerge_service.config.topology import Topology
from lmerge_service.errors import ConfigurationError, LMergeError, StateError, TransportError
from lmerge_service.formats import dead_letters
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import lacking
from lmerge_service.kafka.sightings import Sightings, is_another
from lmerge_service.kafka.topics import TopicInfo, Topics
from lmerge_service.kafka.transactional import BATCH_BYTES
from lmerge_service.merge.outlets import Outlets

__all__ = (
    "LARGEST_STATE_RECORD",
    "TABLE_CONFIG",
    "TopicWatch",
    "largest_record",
    "least_batch_bytes",
    "prepare",
)

log = structlog.get_logger()

LARGEST_STATE_RECORD = 1 << 20

_OVERHEAD_BYTES = 4096
_LARGEST_SIDE_BATCH: Final = max(2 * dead_letters.MAX_BYTES, BATCH_BYTES) + _OVERHEAD_BYTES
"""Dead letters and evidence are bounded, whatever the limits on records are."""

_LOOK_SECONDS: Final = 1.0
_BELIEVED: Final = 5
_CONFIG_LOOKS: Final = 5
"""A topic that took no larger batches is asked for its limit once in so many looks."""
_KEPT = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
_SEGMENTS = {"segment.bytes": str(64 << 20)}
"""Kafka frees whole segments of what is deleted, and never the one that is written."""
_FOR_PEOPLE = {
    "retention.ms": str(30 * 24 * 3_600_000),
    "retention.bytes": str(1 << 30),
    "cleanup.policy": "delete",
    "segment.ms": str(24 * 3_600_000),
    **_SEGMENTS,
}
"""Evidence and dead letters are for people, who look at them or do not: bounded in time and size. A
dead letter is in its replica's topic as well, at the place that its headers name."""
TABLE_CONFIG: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "min.compaction.lag.ms": "3600000",
    "delete.retention.ms": "86400000",
    "segment.ms": "3600000",
    **_SEGMENTS,
}
"""Who reads it from its beginning has an hour to come to the end that it had then, before what that
has superseded may be gone, and a day before removals are."""


def largest_record(topology: Topology) -> int:
    """Bytes of the largest batch of output records: of one record, whose payload is in its key and
    in its value, or of many."""
    return max(2 * topology.limits.max_record_bytes, BATCH_BYTES) + _OVERHEAD_BYTES


async def prepare(topics: Topics, topology: Topology) -> None:
    """Makes and checks the topics.

    Raises:
        ConfigurationError: one is there already, and set up in a way that loses what it holds.
        TransportError: Kafka cannot be reached, or refuses.
    """
    output, largest = topology.output, str(largest_record(topology))
    made = _KEPT | {"max.message.bytes": largest}
    if output.keep is not None:
        made |= _SEGMENTS
    await _ensure(topics, output.topic, output.partitions, made)
    side = _side_topics(topology)
    for name, (partitions, config) in side.items():
        await _ensure(topics, name, partitions, config)
    compacted = {
        "cleanup.policy": "compact",
        "max.message.bytes": str(2 * LARGEST_STATE_RECORD),
        "min.cleanable.dirty.ratio": "0.1",
        "segment.ms": "600000",
        **_SEGMENTS,
    }
    await _ensure(topics, output.state_topic, output.partitions, compacted)
    why = "must be delete: its records are changes, of which none may be left out"
    await topics.require(output.topic, "cleanup.policy", "delete".__eq__, why)
    await topics.require(
        output.state_topic,
        "cleanup.policy",
        "compact".__eq__,
        "must be compact: its last commit record and snapshots are the state",
    )
    if output.table:
        await topics.require(
            output.table_topic,
            "cleanup.policy",
            "compact".__eq__,
            "must be compact, to keep the latest record of each event: kafka-configs.sh --alter "
            f"--entity-type topics --entity-name {output.table_topic} --add-config "
            "cleanup.policy=compact",
        )
    for name, needed in least_batch_bytes(topology).items():
        large = (output.topic, output.table_topic)
        hint = ", or limits.max_record_bytes lower" if name in large else ""
        must = f"must be {needed} at least{hint}"
        await topics.require(name, "max.message.bytes", partial(_has_room, needed), must)


def _side_topics(topology: Topology) -> dict[str, tuple[int | None, dict[str, str]]]:
    """What the output can do without, and how each is made: with how many partitions (None: with
    one, if it is not there), and how configured."""
    room = {"max.message.bytes": str(_LARGEST_SIDE_BATCH)}
    output, largest = topology.output, str(largest_record(topology))
    side: dict[str, tuple[int | None, dict[str, str]]] = {
        output.dead_letter_topic: (None, _FOR_PEOPLE | room),
        output.events_topic: (None, _FOR_PEOPLE | room),
    }
    if output.table:
        made = TABLE_CONFIG | {"max.message.bytes": largest}
        side[output.table_topic] = (output.partitions, made)
    return side


def least_batch_bytes(topology: Topology) -> dict[str, int]:
    """The least `max.message.bytes` of each topic that our batches go to."""
    output = topology.output
    least = dict.fromkeys(_side_topics(topology), _LARGEST_SIDE_BATCH)
    as_large = (output.topic, output.table_topic) if output.table else (output.topic,)
    return {
        **least,
        output.state_topic: LARGEST_STATE_RECORD + _OVERHEAD_BYTES,
        **dict.fromkeys(as_large, largest_record(topology)),
    }


def _has_room(needed: int, value: str) -> bool:
    return int(value) >= needed


async def _ensure(
    topics: Topics, name: str, partitions: int | None, config: dict[str, str]
) -> None:
    width = await topics.ensure(name, partitions=partitions or 1, config=config)
    if partitions is not None and width != partitions:
        raise ConfigurationError(
            f"topic {name} has {width} partitions, and output.partitions is {partitions}: what is "
            "in it was routed by its number; use a new output topic, or that number"
        )


class TopicWatch:
    """Of one worker; `run` it while its tasks run."""

    def __init__(self, cluster: Cluster, topology: Topology, outlets: Outlets) -> None:
        output = topology.output
        self.recreated: Counter[str] = Counter()
        """How often this worker has created a side topic again, by topic."""
        self._cluster = cluster
        self._outlets = outlets
        self._control = output.control_topic
        self._table = output.table_topic
        self._side = _side_topics(topology)
        self._remedies = {
            output.topic: "what it held is gone: stop all workers, and use a new output topic",
            output.state_topic: (
                f"stop all workers and start them: the state is rebuilt from {output.topic} and "
                f"the replicas; if {output.topic} has lost its beginning, use a new output topic"
            ),
            output.control_topic: (
                "decisions are gone: to go on by the topology file alone, stop all workers, delete "
                f"{output.state_topic} as well, and start them"
            ),
        }
        """What to do when one of these is lost."""
        self._ids: dict[str, str | None] = {}
        self._sightings = Sightings(_BELIEVED)
        self._looks = 0

    async def run(self) -> None:
        """Looks until cancelled.

        Raises:
            StateError: a topic that the merge rests on is gone.
        """
        while True:
            try:
                async with self._cluster.topics() as topics:
                    while True:
                        await self.look(topics)
                        await asyncio.sleep(_LOOK_SECONDS)
            except TransportError as error:  # others report that Kafka is away
                log.debug("cannot look at the merge's topics", error=str(error))
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self, topics: Topics) -> None:
        """Looks once.

        Raises:
            StateError: a topic that the merge rests on is gone.
            TransportError: Kafka does not answer.
        """
        self._looks += 1
        names = [*self._remedies, *self._side]
        found = await topics.describe(names, rights=True)
        self._sightings.note(names, found.keys() | topics.refused)
        for name in names:
            if (info := found.get(name)) is None:
                await self._miss(topics, name)
            else:
                await self._see(topics, name, info)

    async def _miss(self, topics: Topics, name: str) -> None:
        if name in topics.refused:
            self._note(name, f"cannot be seen: {lacking('Write', f'topic {name}')}")
            return
        if name in self._side and name != self._table:
            await self._create(topics, name)
            return
        self._note(name, "was deleted")
        if self._sightings.is_deleted(name) and name == self._table:
            await self._create(topics, name)
        elif self._sightings.is_deleted(name) and name != self._control:  # what was decided holds
            raise StateError(f"topic {name} was deleted: {self._remedies[name]}")

    async def _create(self, topics: Topics, name: str) -> None:
        partitions, config = self._side[name]
        try:
            await topics.ensure(name, partitions=partitions or 1, config=config)
        except LMergeError as error:
            self._note(name, f"was deleted, and is not created again: {error}")
            return
        self._ids[name] = None  # it is another one, whichever
        self.recreated[name] += 1
        log.warning("topic created again", topic=name, count=self.recreated[name])

    async def _see(self, topics: Topics, name: str, info: TopicInfo) -> None:
        known = self._ids.get(name)
        self._ids[name] = info.id or known
        if is_another(known, info.id):
            if name in self._remedies:
                raise StateError(
                    f"topic {name} was deleted and created again by something else: "
                    f"{self._remedies[name]}"
                )
            log.warning("another topic of this name", topic=name, before=known, now=info.id)
        if not info.writable:
            self._note(name, f"cannot be written: {lacking('Write', f'topic {name}')}")
        elif info.leaderless:
            listed = ", ".join(map(str, info.leaderless))
            self._note(name, f"has no leader for partition {listed}: its brokers are down")
        elif await self._has_room(topics, name) and self._outlets.writable_again(name):
            log.info("the topic can be written again", topic=name)

    async def _has_room(self, topics: Topics, name: str) -> bool:
        """It takes the batch that it refused, if it refused one for its size."""
        fault = self._outlets.faults.get(name)
        if fault is None or fault.needs_bytes is None:
            return True
        if self._looks % _CONFIG_LOOKS:
            return False
        room = await topics.config(name, "max.message.bytes")
        return room is not None and int(room) >= fault.needs_bytes

    def _note(self, name: str, why: str) -> None:
        if self._outlets.note(name, why):
            log.warning("a topic of the merge cannot be written", topic=name, why=why)
