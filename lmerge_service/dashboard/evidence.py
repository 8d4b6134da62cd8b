"""The evidence of a finding: the latest dead letters and events about a replica, from Kafka.

Read on demand from the ends of OUTPUT.dead-letters and OUTPUT.events: where the record is (topic,
partition, offset), why it was found, and the element or record itself. Of what a worker only counts
(repeats, contradicted numbers) it reports where the last one is: that record is read from the
replica's topic. Needs the topology, which has where Kafka is.

Cost
    At most `_RECORDS` records of each partition are read for one look, and one for each place.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from lmerge_service.config.topology import Topology
from lmerge_service.core import BreachKind
from lmerge_service.errors import LMergeError
from lmerge_service.formats.headers import TimedRecord
from lmerge_service.kafka.connection import connection_of
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.findings.evidence import Evidence, NotificationKind
from lmerge_service.merge.guards.verdicts import Guard

__all__ = ("DEAD_LETTER", "Found", "Place", "evidence_of", "is_about")

DEAD_LETTER: Final = "dead letter"

_RECORDS: Final = 500
_SHOWN: Final = 50
_SECONDS: Final = 20.0
_LONGEST: Final = 600


@dataclass(frozen=True, slots=True)
class Found:
    """One record of evidence."""

    at: float
    """Unix time in seconds."""
    kind: str
    place: str
    """Topic, partition and offset of what was found."""
    why: str
    what: str
    """The element or record, as text, shortened."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker has found something last."""

    kind: str
    why: str
    at: str
    """As it reports: `TOPIC-PARTITION at offset OFFSET`."""


_BREACHES: Final = frozenset(
    {each.value for each in BreachKind} | {Guard.BREACH_RATE.value, Guard.DIVERGENCE.value}
)
_KINDS: Final[Mapping[str, frozenset[str]]] = {
    "breaches": _BREACHES,
    "dead letters": frozenset({DEAD_LETTER}),
    "repeats": frozenset({"repeats"}),
    "contradicted numbers": frozenset({"contradicted numbers", Guard.NUMBERING.value}),
    "lost events": frozenset({NotificationKind.LOST.value}),
    "contradicts the output": frozenset({NotificationKind.DISAGREES.value, Guard.DIVERGENCE.value}),
}
"""Kinds of evidence by finding, as the page names these."""


def is_about(found: Found, finding: str) -> bool:
    """Whether a record is evidence of a finding, as the page names it.

    >>> is_about(Found(0.0, "dead letter", "t 0@1", "", ""), "dead letters")
    True
    """
    return found.kind in _KINDS.get(finding, ())


async def evidence_of(
    topology: Topology, replica: str, places: Sequence[Place] = ()
) -> list[Found]:
    """The latest evidence about a replica, the newest first, with the records at these places.

    Raises:
        LMergeError: Kafka cannot be reached, or refuses.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            letters = await _latest(topology, topology.output.dead_letter_topic)
            events = await _latest(topology, topology.output.events_topic)
            there = [await _at(topology, each) for each in places]
    except TimeoutError:
        raise LMergeError("Kafka does not answer in time") from None
    found = [*_letters(letters, replica), *_events(events, replica), *there]
    return sorted(found, key=lambda each: each.at, reverse=True)[:_SHOWN]


async def _latest(topology: Topology, topic: str) -> list[TimedRecord]:
    connection = connection_of(topology.kafka)
    async with Topics(connection) as topics:
        partitions = await topics.width(topic)
    if not partitions:
        return []
    places = [TopicPartition(topic, number) for number in range(partitions)]
    found: list[TimedRecord] = []
    async with Source(connection) as source:
        beginnings, ends = await source.beginnings(places), await source.settled(places)
        for place in places:
            start = max(beginnings[place], ends[place] - _RECORDS)
            async for _, records in source.backlog({place: start}, {place: ends[place]}):
                found.extend(records)
    return found


async def _at(topology: Topology, place: Place) -> Found:
    """With the record, if it is there still."""
    found = re.fullmatch(r"(.+)-(\d+) at offset (\d+)", place.at)
    if found is None:
        return Found(0.0, place.kind, place.at, place.why, "")
    tp, offset = TopicPartition(found[1], int(found[2])), int(found[3])
    async with Source(connection_of(topology.kafka)) as source:
        begins, ends = await source.beginnings([tp]), await source.settled([tp])
        start = max(offset, begins[tp])
        at, what = 0.0, "(the record is not there any more)"
        async for _, records in source.backlog({tp: start}, {tp: min(offset + 1, ends[tp])}):
            for record in records:
                at, what = record.timestamp / 1000, _text(record.value)
    return Found(at, place.kind, f"{tp.topic} {tp.partition}@{offset}", place.why, what)


def _letters(records: Sequence[TimedRecord], replica: str) -> Iterator[Found]:
    for record in records:
        headers = {name: value.decode("utf-8", "replace") for name, value in record.headers}
        if headers.get("lmerge-replica") != replica:
            continue
        place = _place(headers, ("lmerge-topic", "lmerge-partition", "lmerge-offset"))
        why = f"{headers.get('lmerge-reason', '?')}: {headers.get('lmerge-message', '')}"
        yield Found(record.timestamp / 1000, DEAD_LETTER, place, why, _text(record.value))


def _events(records: Sequence[TimedRecord], replica: str) -> Iterator[Found]:
    for record in records:
        try:
            each = Evidence.of_record(record.value or b"")
        except msgspec.MsgspecError:
            continue  # what others have written there is not ours to show
        if each.replica != replica:
            continue
        first = each.first
        place = "" if first is None else f"{first.topic} {first.partition}@{first.offset}"
        what = each.payload or ("" if first is None else first.record or "")
        remedy = f" What to do: {each.remedy}" if each.remedy else ""
        counted = f" ({each.count} times)" if each.count > 1 else ""
        yield Found(each.at_ms / 1000, each.kind, place, each.reason + counted + remedy, what)


def _place(headers: Mapping[str, str], names: Sequence[str]) -> str:
    topic, partition, offset = (headers.get(name, "?") for name in names)
    return f"{topic} {partition}@{offset}"


def _text(value: bytes | None) -> str:
    if value is None:
        return "(no value)"
    text = value[: _LONGEST + 1].decode("utf-8", "replace")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
