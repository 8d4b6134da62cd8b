"""Where the audit of a topic begins, and from when on what it has is known.

Theory
    A topic whose log has lost its beginning is the output of a merge, which has snapshots: what is
    live in the last whole one takes the place of all that came before, as rows with the places
    just below the offset that is read on from. Each of those events was in a record before it, so
    there are places enough:

        place   0 … 6 ┊ 7 8 9      10 11 12 …
                      ┊ live, stable │ records from offset 10 on

    From then on all is known that ends at its stable point or later, and of an incarnation that
    began since what ends at its joining time or later. Streams are compared by that.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from lmerge_service.config.topology import Kafka
from lmerge_service.elements import START
from lmerge_service.formats.bulk import Rule
from lmerge_service.kafka.connection import connection_of
from lmerge_service.kafka.source import Source
from lmerge_service.kafka.tails import Tail, tails
from lmerge_service.merge.snapshots.beginnings import PartitionStart, latest
from lmerge_service.offline.audit import snapshots_of
from lmerge_service.spark.io.connection import kafka_section

__all__ = ("TopicBeginning", "beginning_of")


@dataclass(frozen=True, slots=True)
class TopicBeginning:
    """What takes the place of records that are gone."""

    since: int = START
    """What ends at this time or later is known; START: everything is."""
    starts: Mapping[int, int] = field(default_factory=dict)
    """By partition, the offset to read on from; empty: from the first record."""
    held: Sequence[PartitionStart] = ()
    """By partition."""

    @property
    def live(self) -> int:
        """How many events are held."""
        return sum(len(each.events) for each in self.held)

    @property
    def points(self) -> int:
        """How many partitions have a stable point."""
        return sum(each.stable > START for each in self.held)

    def rows(self, spark: SparkSession, rule: Rule) -> DataFrame:
        """Of `elements.read_elements`: what an audit needs of them."""
        decoder = rule.decoder()
        found: list[tuple[int, int, int, str, str | None, int | None, int | None, int | None]] = []
        for partition, each in enumerate(self.held):
            inserts, end = each.inserts(decoder), self.starts[partition]
            place, of = end - len(inserts) - 1, (partition, each.incarnation)
            for at, insert in enumerate(inserts, place):
                text = insert.payload.decode()
                found.append((of[0], at, of[1], "insert", text, insert.vs, insert.ve, None))
            if each.stable > START:
                found.append((of[0], end - 1, of[1], "stable", None, None, None, each.stable))
        kinds = "partition int, offset long, incarnation long, op string, payload string"
        return spark.createDataFrame(found, f"{kinds}, vs long, ve long, vc long")


def beginning_of(
    kafka: Kafka | str, topic: str, offsets: Mapping[int, tuple[int, int]]
) -> TopicBeginning:
    """Where to begin; `offsets` has first and last ones by partition.

    Raises:
        ConfigurationError: records are gone, and no snapshot has what they held.
        TransportError: Kafka cannot be reached, or refuses; a transaction is left open.
    """
    with ThreadPoolExecutor(1) as apart:  # the caller may be in an event loop, as in a notebook
        return apart.submit(asyncio.run, _beginning_of(kafka, topic, offsets)).result()


async def _beginning_of(
    kafka: Kafka | str, topic: str, offsets: Mapping[int, tuple[int, int]]
) -> TopicBeginning:
    connection = connection_of(kafka_section(kafka))
    found = await tails(connection, topic, len(offsets))
    last = max(found, key=lambda tail: tail.incarnation, default=None)
    starts = {number: begin for number, (begin, _) in offsets.items()}
    if not any(starts.values()):
        return TopicBeginning(START if last is None else last.joining_at)
    async with Source(connection) as source:
        snapshots = await snapshots_of(source, connection, topic, starts)
    incarnation, since, held = latest(snapshots)
    return TopicBeginning(
        _later(last, incarnation, since),
        {number: each.offset for number, each in enumerate(snapshots)},
        held,
    )


def _later(last: Tail | None, incarnation: int, since: int) -> int:
    """From when on the last incarnation is known, which may have begun behind the snapshots."""
    return since if last is None or last.incarnation <= incarnation else last.joining_at
