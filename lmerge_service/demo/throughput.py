"""How fast the merge goes from Kafka to Kafka, beside a pass-through of the same bytes.

Both run in this process, on the same broker, over the same topics, one after the other, with the
same source, the same transactional sink and transactions of the same size; the pass-through
copies records, the merge decodes, merges, encodes, and publishes its output.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from lmerge_service.config.topology import Topology
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import Connection, connection_of
from lmerge_service.kafka.sink import Committed, Outbox, Sink
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.decisions.ledger import undisputed
from lmerge_service.merge.internal_topics import prepare
from lmerge_service.merge.tuning import quieten_garbage_collector
from lmerge_service.service.task import MergeTask

__all__ = ("Throughput", "measure", "merge_all", "pass_through")


@dataclass(frozen=True, slots=True)
class Throughput:
    """Input elements a second."""

    merge: float
    pass_through: float
    engine: str
    """What merged: native or python."""

    @property
    def ratio(self) -> float:
        return self.merge / self.pass_through


async def measure(topology: Topology, tag: str = "") -> Throughput:
    """Runs both once, over whatever the replica topics hold, into topics of their own.

    Raises:
        TransportError: Kafka refuses.
    """
    quieten_garbage_collector()
    topics = [replica.topic for replica in topology.replicas]
    passed = await pass_through(connection_of(topology.kafka), topics, f"bench{tag}.passed")
    merged = await merge_all(topology, f"bench{tag}.merged")
    return Throughput(merged, passed, topology.engine_choice.engine.value)


async def pass_through(connection: Connection, topics: Sequence[str], to: str) -> float:
    """Copies the topics into one, in transactions with their offsets; records a second."""
    async with Topics(connection) as admin:
        await admin.ensure(to)
        await admin.ensure(f"{to}.dead-letters")
        await admin.ensure(f"{to}.state")
        widths = await admin.partitions(topics)
    partitions = [TopicPartition(topic, p) for topic in topics for p in range(widths[topic])]
    sink = Sink(
        connection,
        transactional_id=to,
        output=TopicPartition(to, 0),
        dead_letters=f"{to}.dead-letters",
        state=TopicPartition(f"{to}.state", 0),
        events=f"{to}.events",
        max_record_bytes=1 << 20,
    )
    async with Source(connection) as source, sink:
        ends = await source.ends(partitions)
        starts = await source.beginnings(partitions)
        source.assign(starts)
        copied, outbox, offsets = 0, Outbox(), dict(starts)
        commit: asyncio.Task[Committed] | None = None
        started = time.perf_counter()
        while any((source.position(tp) or 0) < end for tp, end in ends.items()):
            for tp, records in (await source.poll(0.5, 20_000)).items():
                outbox.records += [(record.key, record.value or b"") for record in records]
                offsets[tp] = records[-1].offset + 1
                copied += len(records)
            if commit is not None:
                await commit
            outbox.state.append((b"offsets", str(offsets).encode()))
            commit = asyncio.create_task(sink.commit(outbox))
            outbox = Outbox()
        if commit is not None:
            await commit
        return copied / (time.perf_counter() - started)


async def merge_all(topology: Topology, to: str) -> float:
    """Merges the topics from their beginnings into a fresh one; input elements a second."""
    output = topology.output.model_copy(update={"topic": to, "dead_letters": None})
    topology = topology.model_copy(update={"name": to, "output": output})
    native = topology.engine_choice.is_native
    cluster = Cluster(connection_of(topology.kafka), native=native)
    async with cluster.topics() as topics:
        await prepare(topics, topology)
    task = MergeTask(topology, undisputed(topology), cluster)
    ends = await _ends(topology)
    async with AsyncExitStack() as stack:
        await task.lead(stack)
        started = time.perf_counter()
        merging = asyncio.create_task(task.run())
        try:
            while not (merging.done() or (task.reached(ends) and task.flushed)):  # noqa: ASYNC110
                await asyncio.sleep(0.002)  # short beside what is measured
            seconds = time.perf_counter() - started
        finally:
            merging.cancel()
            await asyncio.gather(merging, return_exceptions=True)
        return task.elements_in / seconds


async def _ends(topology: Topology) -> dict[TopicPartition, int]:
    connection = connection_of(topology.kafka)
    async with Topics(connection) as admin, Source(connection) as source:
        widths = await admin.partitions([replica.topic for replica in topology.replicas])
        return await source.ends(
            [TopicPartition(t, p) for t, n in widths.items() for p in range(n)]
        )
