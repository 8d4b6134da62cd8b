"""Checks of replicas, by what the last records of their topics hold."""

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from lmerge_service.config.topology import Replica, Topology
from lmerge_service.elements import INFINITY, Element, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.routing import Router
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import TopicDetails
from lmerge_service.merge.doctor.diagnosis import Diagnosis, counted, fine, warned, wrong
from lmerge_service.merge.task_state import wire_decoder
from lmerge_service.text import NANOSECONDS, moment, span

__all__ = ("Sample", "sampled", "samples_of")

_RECORDS: Final = 500
"""So many offsets of a partition are looked at, the last ones."""
_SKEW_MS: Final = 5_000
_YEARS_MS: Final = 30 * 366 * 86_400_000
"""A stable that is further from now than this is hardly in the unit that is declared."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The end of one partition."""

    place: TopicPartition
    begins: int
    """The partition's first offset."""
    ends: int
    records: Sequence[Record]


async def sampled(source: Source, places: Sequence[TopicPartition]) -> list[Sample]:
    """What can be read at the end of each partition.

    Raises:
        TransportError: Kafka cannot be reached, or refuses.
    """
    begins, ends = await source.beginnings(places), await source.ends(places)
    starts = {tp: max(begins[tp], ends[tp] - _RECORDS) for tp in places}
    found: dict[TopicPartition, list[Record]] = {tp: [] for tp in places}
    async with aclosing(source.backlog(starts, ends)) as backlog:
        async for tp, records in backlog:
            found[tp] += records
    return [Sample(tp, begins[tp], ends[tp], found[tp]) for tp in places]


def samples_of(
    topology: Topology,
    replica: Replica,
    details: TopicDetails | None,
    samples: Sequence[Sample],
    *,
    unix_ms: int,
) -> Iterator[Diagnosis]:
    """What is wrong with a replica; one line that all is well if nothing is."""
    subject = f"replica {replica.name}"
    if details is None:
        yield warned(
            subject, f"topic {replica.topic} does not exist", "it is waited for: start the replica"
        )
        return
    found = [*_topic(topology, replica, details, samples)]
    if replica.format == "wire":
        found += _records(topology, replica, samples, unix_ms)
    yield from found
    if not found:
        looked = sum(len(each.records) for each in samples)
        yield fine(subject, f"topic {replica.topic}, the last {looked:,} records are well")


def _topic(
    topology: Topology, replica: Replica, details: TopicDetails, samples: Sequence[Sample]
) -> Iterator[Diagnosis]:
    subject, width = f"replica {replica.name}", topology.output.partitions
    if details.leaderless:
        listed = ", ".join(map(str, details.leaderless))
        yield wrong(subject, f"partition {listed} has no leader", "start its brokers")
    if details.rights is not None and (lacking := {"Read", "Describe"} - details.rights):
        named = ", ".join(sorted(lacking))
        yield wrong(subject, f"our user lacks {named} on {replica.topic}", "add these ACLs")
    has = counted(details.partitions, "partition")
    if replica.co_partitioned and details.partitions != width:
        yield wrong(
            subject,
            f"it is declared co_partitioned, has {has}, and the output {width}",
            "take co_partitioned away, or give it as many",
        )
    short = [each for each in samples if each.begins > 0]
    if short and replica.joining_at is None:
        first = short[0]
        yield warned(
            subject,
            f"{replica.topic}-{first.place.partition} begins at offset {first.begins}: a merge "
            "that has not merged it yet leaves it out",
            "declare from when on it is correct (joining_at), or let its topic keep everything",
        )


def _records(
    topology: Topology, replica: Replica, samples: Sequence[Sample], unix_ms: int
) -> Iterator[Diagnosis]:
    decoder, subject = wire_decoder(topology), f"replica {replica.name}"
    stables: list[int] = []
    for sample in samples:
        where = f"{sample.place.topic}-{sample.place.partition}"
        elements, fault = _decoded(decoder, sample)
        if fault is not None:
            yield wrong(subject, f"{where} {fault}", "it goes to the dead letters: mend its writer")
        found = [each.vc for _, each in elements if type(each) is Stable]
        stables += found
        if elements and not found:
            yield warned(
                subject,
                f"{where}: no stable among the last {counted(len(elements), 'record')}",
                "a partition without stables holds the replica back: each stable goes to all",
            )
        yield from _misplaced(topology, replica, sample, elements)
        if sample.records and sample.records[-1].timestamp > unix_ms + _SKEW_MS:
            ahead = span(sample.records[-1].timestamp - unix_ms, "ms")
            yield warned(
                subject,
                f"{where}: its last record is from {ahead} after now",
                "the clock of its writer, or of this machine, is wrong: use NTP",
            )
    yield from _unit(topology, subject, [each for each in stables if each < INFINITY], unix_ms)


def _decoded(
    decoder: WireDecoder, sample: Sample
) -> tuple[list[tuple[Record, Element]], str | None]:
    """The elements, and the first record that is none, in words."""
    found, fault = [], None
    for record in sample.records:
        try:
            found.append((record, decoder.decode(record.value)))
        except ElementError as error:
            fault = fault or f"at offset {record.offset} is no element: {error}"
    return found, fault


def _misplaced(
    topology: Topology,
    replica: Replica,
    sample: Sample,
    elements: Sequence[tuple[Record, Element]],
) -> Iterator[Diagnosis]:
    if not replica.co_partitioned:
        return
    router = Router(topology.output.partitions, topology.key)
    for record, element in elements:
        if type(element) is Stable:
            continue
        of = router.partition_of(element.payload)  # type: ignore[union-attr]
        if of != sample.place.partition:
            yield wrong(
                f"replica {replica.name}",
                f"it is declared co_partitioned, and the record at offset {record.offset} of "
                f"{sample.place.topic}-{sample.place.partition} belongs to partition {of}",
                "write by the murmur2 of the logical key, or take co_partitioned away",
            )
            return


def _unit(
    topology: Topology, subject: str, stables: Sequence[int], unix_ms: int
) -> Iterator[Diagnosis]:
    """Whether stables are times of these years in the unit that is declared."""
    if topology.unit_nanoseconds is None or not stables:
        return
    latest = max(stables)
    plausible = [unit for unit in NANOSECONDS if _is_near(latest, unit, unix_ms)]
    if topology.time_unit not in plausible:
        guess = f", and {moment(latest, plausible[0])} in {plausible[0]}" if plausible else ""
        shown = moment(latest, topology.time_unit)
        yield warned(
            subject,
            f"its latest stable, {latest}, is {shown} in time_unit {topology.time_unit}{guess}",
            "set time_unit to what vs, ve and vc count, or to none",
        )


def _is_near(time: int, unit: str, unix_ms: int) -> bool:
    return abs(time * NANOSECONDS[unit] // 10**6 - unix_ms) < _YEARS_MS
