"""What the demo proves at its end, from the topics alone: equivalence, bounds, latency."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmerge_service.elements import Insert
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.offline.audit import Audited, EquivalenceVerdict, audit_topic, compare
from lmerge_service.tdb import TDB

__all__ = ("DemoVerdict", "InputCounts", "find", "read_inputs")


@dataclass(slots=True)
class InputCounts:
    """What the replicas have published, repeats after restarts included."""

    inserts: int = 0
    adjusts: int = 0
    stables: int = 0

    @property
    def total(self) -> int:
        return self.inserts + self.adjusts + self.stables


@dataclass(frozen=True, slots=True)
class DemoVerdict:
    """The verdict and its numbers; latencies in milliseconds."""

    verdict: EquivalenceVerdict
    counts: InputCounts
    latencies: Sequence[float]

    @property
    def output(self) -> Audited:
        return self.verdict.streams[1]

    @property
    def broken_bounds(self) -> list[str]:
        """Bounds on chattiness (docs/semantics.md, promise 3) that the output breaks."""
        out, into = self.output, self.counts
        bounds = (
            ("inserts", out.inserts, into.inserts),
            ("adjusts", out.adjusts, into.inserts + into.adjusts),
            ("stables", out.stables, into.stables),
        )
        return [f"{what}: {found:,} > {most:,}" for what, found, most in bounds if found > most]

    @property
    def good(self) -> bool:
        complete = self.output.complete
        return self.verdict.equivalent and complete and not self.broken_bounds

    def latency(self, q: float) -> float | None:
        """The q-quantile of the added latency."""
        if not self.latencies:
            return None
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


async def find(
    connection: Connection,
    reference: TDB,
    output: str,
    replicas: Sequence[str],
    arrived: Mapping[tuple[bytes, int], float],
) -> DemoVerdict:
    """Reads everything back and judges it.

    Added latency of an event: from the time at which the first replica's record of it was
    produced to the time at which a read_committed consumer of the output received it.
    """
    found = await audit_topic(connection, output, WireDecoder())
    counts, produced = await read_inputs(connection, replicas)
    latencies = [(arrived[key] - at) * 1000 for key, at in produced.items() if key in arrived]
    return DemoVerdict(compare(Audited("the reference", reference), found), counts, latencies)


async def read_inputs(
    connection: Connection, topics: Sequence[str]
) -> tuple[InputCounts, dict[tuple[bytes, int], float]]:
    """Counts of all replicas' elements, and when each event was first produced (seconds)."""
    counts, produced, decoder = InputCounts(), dict[tuple[bytes, int], float](), WireDecoder()
    partitions = [TopicPartition(topic, 0) for topic in topics]
    async with Source(connection) as source:
        starts = await source.beginnings(partitions)
        async for _, records in source.backlog(starts, await source.ends(partitions)):
            for record in records:
                element = decoder.decode(record.value)
                if type(element) is Insert:
                    counts.inserts += 1
                    key, at = (element.payload, element.vs), record.timestamp / 1000
                    produced[key] = min(at, produced.get(key, at))
                elif hasattr(element, "vold"):
                    counts.adjusts += 1
                else:
                    counts.stables += 1
    return counts, produced
