"""Records as the client's parser gives them, instead of a `ConsumerRecord` made of each.

Theory
    Making a `ConsumerRecord` takes longer than decoding the element in it. The parser's own record
    has all that is needed of it: offset, timestamp, key, value and headers; what topic and
    partition it is of is known from where it was read. The client has no option for this, so one
    private method of it is taken the place of, for those consumers only that are marked by having
    `as_it_is` for their deserializers. The client's version is pinned; without that method, a
    marked consumer yields `ConsumerRecord`s, which have these fields as well.
"""

from typing import Any, TypeAlias

from aiokafka.consumer.fetcher import PartitionRecords

from lmerge_service.formats.headers import TimedRecord

__all__ = ("Record", "as_it_is")


Record: TypeAlias = TimedRecord
"""A record of some partition."""


def as_it_is(data: bytes | None) -> bytes | None:
    """The deserializer that marks a consumer."""
    return data


_consumer_record = getattr(PartitionRecords, "_consumer_record", None)


def _record(self: Any, tp: Any, record: Any) -> Any:
    if self._value_deserializer is as_it_is:
        return record
    assert _consumer_record is not None
    return _consumer_record(self, tp, record)


if _consumer_record is not None:
    PartitionRecords._consumer_record = _record
