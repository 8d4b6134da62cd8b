"""Which record a replica broke a rule with, for the evidence of it.

Cost
    Linear in the records that were merged at once, some thousands, for each breach that is looked
    up: these are the 1st, 2nd, 4th, 8th … of a kind.
"""

from collections.abc import Sequence

from lmerge_service.core import Breach
from lmerge_service.errors import ElementError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.findings.evidence import RecordPlace

__all__ = ("place_of",)


def place_of(
    breach: Breach, tp: TopicPartition, records: Sequence[Record], decoder: WireDecoder
) -> RecordPlace:
    """The latest of these records that is the element; where none is, because it is in a dialect,
    the last one, at which it showed. There is at least one."""
    shown = records[-1]
    for record in reversed(records):
        try:
            if decoder.decode(record.value) == breach.element:
                shown = record
                break
        except ElementError:
            continue
    return RecordPlace.of(tp.topic, tp.partition, shown.offset, shown.value)
