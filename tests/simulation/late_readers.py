"""Readers that begin in the middle of a simulated run's output, at whatever moment.

Theory
    Each looks up where it would begin in every partition (`merge.snapshots.beginnings`), while
    workers are killed and the output forgets. When the run is over, what it began with and the
    records that came after that must be a legal stream, and hold what the whole output holds of all
    that ends
    at the reader's stable point or later.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from lmerge_service.config.topology import Topology
from lmerge_service.drills.records import CommittedTopic
from lmerge_service.drills.streams import incarnations
from lmerge_service.errors import IllegalStreamError, StateError, TransportError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.merge.snapshots.beginnings import PartitionStart, beginnings_of
from lmerge_service.tdb import TDB
from tests.simulation.clients import MemorySource
from tests.simulation.memory import Broker, UnknownTopic
from tests.simulation.network import Network, Weather

__all__ = ("LateReaders",)

_MEAN_SECONDS = 15.0


@dataclass(slots=True)
class LateReaders:
    """One after the other; `wrong` judges them when the run is over."""

    topology: Topology
    broker: Broker
    chance: Random
    weather: Weather
    begun: list[tuple[int, PartitionStart]] = field(default_factory=list)
    """Partition, and where one has begun in it."""
    refused: list[str] = field(default_factory=list)
    """Why one could not begin."""
    bears_loss: bool = False
    """All snapshots may be spoilt, and the output have lost its beginning."""

    async def run(self) -> None:
        """Until cancelled."""
        output, network = self.topology.output, Network(self.broker, self.chance, self.weather)
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / _MEAN_SECONDS))
            source = MemorySource(network)
            try:
                found = await beginnings_of(source, output.topic, output.partitions)  # type: ignore[arg-type]
            except (TransportError, UnknownTopic):  # the weather; or there is no output yet
                continue
            except StateError as error:
                if not self.bears_loss:
                    self.refused.append(str(error))
            else:
                self.begun += enumerate(found)

    def wrong(self, output: CommittedTopic) -> Iterator[str]:
        """What is wrong with them, given all that the output has ever held."""
        yield from self.refused
        topics = {each.incarnation: each.topic for each in incarnations(output)}
        for partition, beginning in self.begun:
            if (of := topics.get(beginning.incarnation)) is None:
                continue  # nothing of it was published
            try:
                ever = _read(TDB(), of, partition, 0)
                late = TDB(beginning.events, beginning.stable)
                _read(late, of, partition, beginning.offset)
            except IllegalStreamError as error:
                yield f"who begins at offset {beginning.offset} of {partition}: {error}"
                continue
            stable = beginning.stable
            if {e for e in ever if e.ve >= stable} != {e for e in late if e.ve >= stable}:
                yield f"who begins at offset {beginning.offset} of {partition} ends elsewhere"


def _read(tdb: TDB, output: CommittedTopic, partition: int, start: int) -> TDB:
    decode = WireDecoder().decode
    for record in output.records:
        if record.partition == partition and record.offset >= start:
            tdb.apply(decode(record.value))
    return tdb
