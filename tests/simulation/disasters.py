"""What a merge cannot recover from: all snapshots gone bad, and an output without its beginning.

Theory
    A disaster takes some partitions of the output, spoils every snapshot of theirs, deletes records
    of the output that a recovery from nothing would need, and kills all workers. Who leads next
    finds that nothing is left to go on from. Under `on_lost_state: restart` it decides by itself
    that the output starts over; otherwise workers end with that error, and a person decides it as
    `lmerge restart-output` does, while others start workers again and again.

    Afterwards each incarnation of the output is judged by itself, and so is an upper merge that
    has read the output as a replica, whatever the order in which it met the partitions' records.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import cast

from lmerge_service.config.topology import Topology
from lmerge_service.core import LMerge, lmerge
from lmerge_service.drills.records import CommittedTopic
from lmerge_service.elements import Element
from lmerge_service.errors import IllegalStreamError, StateError, TransportError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.commit_record import COMMIT_KEY, CommitRecord
from lmerge_service.merge.decisions.records import decide
from lmerge_service.merge.inspection import decided
from lmerge_service.merge.output_restart import decide_in_log, lost_partitions, plan_restart
from lmerge_service.merge.step import MergeStep
from lmerge_service.tdb import TDB
from tests.simulation.clients import MemoryCluster
from tests.simulation.memory import Broker, UnknownTopic
from tests.simulation.network import Network, Weather

__all__ = ("Disasters", "Restarter", "wrong_in_upper_merge")


@dataclass(slots=True)
class Disasters:
    """So many of them, at any moment."""

    topology: Topology
    broker: Broker
    chance: Random
    networks: Callable[[], Sequence[Network]]
    """Those of the workers that run."""
    seen: Counter[str]
    count: int = 2

    async def run(self) -> None:
        """Until all of them have come."""
        while self.count > 0:
            await asyncio.sleep(self.chance.expovariate(1 / 12))
            self.count -= self._strike()

    def _strike(self) -> bool:
        output, broker = self.topology.output, self.broker
        if broker.describe(output.state_topic) is None or broker.describe(output.topic) is None:
            return False
        drawn = [p for p in range(output.partitions) if self.chance.random() < 0.6]
        struck = [partition for partition in drawn if self._spoil(partition)]
        if not struck:
            return False
        for network in self.networks():
            network.killed.set()
        self.seen["disasters"] += 1
        return True

    def _spoil(self, partition: int) -> bool:
        """Of a partition that has published something since its incarnation began."""
        output, broker = self.topology.output, self.broker
        mark = broker.last(TopicPartition(output.state_topic, partition), COMMIT_KEY)
        if mark is None:
            return False
        begun = CommitRecord.of(mark.value).output.offset
        end = broker.last_stable(tp := TopicPartition(output.topic, partition))
        if end <= begun + 1:
            return False
        broker.truncate(tp, self.chance.randint(begun + 1, end))
        for record in broker.topic(output.state_topic).records:
            is_chunk = record.key is not None and record.key.startswith(b"snapshot/")
            if record.partition == partition and is_chunk and record.value:
                place = TopicPartition(output.state_topic, partition)
                broker.spoil(place, record.offset, record.value[:-1])
        return True


@dataclass(slots=True)
class Restarter:
    """A person who restarts the output when workers end because its state is lost."""

    topology: Topology
    broker: Broker
    chance: Random
    weather: Weather
    ended: Callable[[], int]
    """How many workers have ended for that."""
    seen: Counter[str]

    async def run(self) -> None:
        """Until cancelled."""
        known = 0
        while True:
            await asyncio.sleep(self.chance.uniform(1, 10))
            if self.ended() == known:
                continue
            known = self.ended()
            network = Network(self.broker, Random(self.chance.random()), self.weather, name="carol")
            deciding = asyncio.create_task(self._restart(cast(Cluster, MemoryCluster(network))))
            await asyncio.wait({deciding}, timeout=self.chance.choice([0.05, 60]))
            deciding.cancel()
            try:
                await deciding
            except (TransportError, UnknownTopic, asyncio.CancelledError):
                known = -1  # once more

    async def _restart(self, cluster: Cluster) -> None:
        plan = await plan_restart(self.topology, cluster, await decided(self.topology, cluster))
        lost = {partition async for partition, _ in lost_partitions(self.topology, cluster)}
        if plan.is_decided_for(lost):
            return
        try:
            action = plan.action("a disaster")
        except StateError:
            self.seen["no restart"] += 1
            return
        decision = decide(action, "carol", expects=plan.version)
        entry = await decide_in_log(self.topology, cluster, decision)
        self.seen["restarts decided" if entry.accepted else "restarts refused"] += 1


def wrong_in_upper_merge(
    output: CommittedTopic, right: TDB, lost: Sequence[tuple[int, int]], chance: Random
) -> Iterator[str]:
    """What is wrong with a merge that has the output as its only replica, and accepts each gap that
    it sees; `lost` are the ranges that the output itself has reported as lost."""
    merge = lmerge("R3")
    tdb, gaps = TDB(), list(lost)
    try:
        for element in _upper(merge, output, gaps, chance):
            tdb.apply(element)
    except IllegalStreamError as error:
        yield f"the upper merge: {error}"
        return
    c = merge.max_stable
    keys = {(e.payload, e.vs) for e in right if any(a <= e.ve < b for a, b in gaps)}
    found, needed = (
        Counter((e.payload, e.vs, min(e.ve, c)) for e in of if e.vs < c and e[:2] not in keys)
        for of in (tdb, right)
    )
    if found != needed:
        lacks, has = sorted((needed - found).elements()), sorted((found - needed).elements())
        yield f"the upper merge at {c} lacks {lacks}, and has {has}, gaps {gaps}"


def _upper(
    merge: LMerge, output: CommittedTopic, gaps: list[tuple[int, int]], chance: Random
) -> Iterator[Element]:
    step = MergeStep(merge, "out", WireDecoder(), topic=output.name, partitions=output.partitions)
    left = {p: output.of(p) for p in range(output.partitions)}
    while any(left.values()):
        partition = chance.choice([p for p, records in left.items() if records])
        count = chance.randint(1, 20)
        some, left[partition] = left[partition][:count], left[partition][count:]
        out: list[Element] = []
        step.take(partition, some, out, [])
        while merge.gap is not None:
            gap, more = merge.accept_gap()
            gaps.append((gap.start, gap.end))
            out += more
        yield from out
