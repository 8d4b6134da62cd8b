"""Records as bytes, instead of objects that are made of each: what we have to do with aiokafka's
parser, and with its builder of batches.

Theory
    Making a `ConsumerRecord` takes longer than decoding the element in it. All that is needed of a
    record is its offset, timestamp, key, value and headers; what topic and partition it is of is
    known from where it was read. The client has no option for either of what a consumer gets
    instead, which is marked by its deserializers:

    `as_it_is`     the records of the client's parser.
    `in_batches`   the engine's `Records`: what was fetched stays bytes, in which the engine finds
                   the records (`engine/src/fetched.rs`); the decoder takes them from there. Where
                   it meets a batch that is unusual, damaged ones among them, the client's parser
                   reads on from that batch, so that its errors are what they are for everybody.
                   The bytes stay in the broker's answer, unless that has much else (`Part`).

    A producer gets batches that the engine has built (`sealed`), byte for byte those of the
    client's builder, but that all records of a batch have one time.

Who owns what
    The names `MemoryRecords` and `PartitionRecords` in aiokafka's fetcher are ours,
    `FetchResult.getall`, and how the bytes of a partition are taken from an answer; consumers that
    are not marked get what they would have got. The client's version is pinned, and
    `tests/kafka/test_records.py`, `tests/engine/test_fetched.py` and `tests/engine/test_encoded.py`
    fail when a new one does any of this in another way.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from io import BytesIO
from operator import attrgetter
from struct import unpack_from
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from aiokafka import codec
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult, PartitionRecords
from aiokafka.protocol import fetch
from aiokafka.protocol.types import Array, Bytes, Int32, Schema
from aiokafka.record.memory_records import MemoryRecords

from lmerge_service.formats.headers import TimedRecord

if TYPE_CHECKING:
    from lmerge_engine import Encoded, EncodedRows, Records

__all__ = (
    "Part",
    "Record",
    "SealedBatch",
    "as_it_is",
    "between",
    "in_batches",
    "sealed",
    "value_bytes",
)


Record: TypeAlias = TimedRecord
"""A record of some partition."""
R = TypeVar("R", bound=Record)

_DECOMPRESS: Final = {
    1: codec.gzip_decode,
    2: codec.snappy_decode,
    3: codec.lz4_decode,
    4: codec.zstd_decode,
}


def as_it_is(data: bytes | None) -> bytes | None:
    """The deserializer that marks a consumer of the client's own records."""
    return data


def in_batches(data: bytes | None) -> bytes | None:
    """The deserializer that marks a consumer of the engine's, which has to be installed."""
    return data


def between(records: list[R], begin: int, end: int) -> list[R]:
    """Those of the records from one offset on up to another (exclusive)."""
    first, last = _place(records, begin), _place(records, end)
    return records if last - first == len(records) else records[first:last]


def _place(records: Sequence[Record], offset: int) -> int:
    """How many of the records are in front of an offset."""
    if not records or records[-1].offset < offset:
        return len(records)
    return bisect_left(records, offset, key=attrgetter("offset"))


def value_bytes(records: Sequence[Record]) -> int:
    """Of all values together."""
    if type(records) is list:
        return sum(len(each.value or b"") for each in records)
    return cast("Records", records).value_bytes


# --- in place of the client's builder -------------------------------------------------------------


def sealed(records: "Encoded | EncodedRows", timestamp: int) -> list["SealedBatch"]:
    """The records in batches for a transactional producer, with a time in ms."""
    sizes = enumerate(records.sizes())
    return [SealedBatch(records, number, *each, timestamp) for number, each in sizes]


class SealedBatch:
    """A batch that takes no more records, as the producer asks a `BatchBuilder` for it."""

    def __init__(
        self,
        records: "Encoded | EncodedRows",
        number: int,
        count: int,
        size: int,
        timestamp: int,
    ) -> None:
        self._records, self._number, self._timestamp = records, number, timestamp
        self._count, self._size = count, size
        self._producer = -1, -1, 0
        self._built: bytes | None = None

    def record_count(self) -> int:
        return self._count

    def size(self) -> int:
        """In bytes."""
        return self._size

    def append(self, **_: Any) -> None:
        """None: it is full."""

    def close(self) -> None: ...

    def closed(self) -> bool:
        return True

    def _set_producer_state(self, producer: int, epoch: int, sequence: int) -> None:
        self._producer, self._built = (producer, epoch, sequence), None

    def _build(self) -> bytes:
        """The same bytes however often it has to be sent."""
        if self._built is None:
            self._built = self._records.sealed(self._number, (self._timestamp, *self._producer))
        return self._built


# --- in place of the client's parser --------------------------------------------------------------


_LONG: Final = 1 << 16
_SHARE: Final = 4
"""What is less than one part in so many of an answer is copied out of it, or all of that would stay
in memory for its sake."""
_LENGTH_AT: Final = 8
_OVERHEAD: Final = 12
"""Where a batch has its length, which counts from here on."""


class Part:
    """What an answer has of one partition: the bytes of it from `begin` to `end`."""

    __slots__ = ("answer", "begin", "end")

    def __init__(self, answer: bytes, begin: int, end: int) -> None:
        self.answer, self.begin, self.end = answer, begin, end

    def __len__(self) -> int:
        return self.end - self.begin

    def __bytes__(self) -> bytes:
        return self.answer[self.begin : self.end]

    @property
    def begins_with_a_batch(self) -> bool:
        """A batch is whole, whatever is in it."""
        if len(self) < _OVERHEAD:
            return False
        (length,) = unpack_from(">i", self.answer, self.begin + _LENGTH_AT)
        return 0 <= int(length) <= len(self) - _OVERHEAD


class _MessageSet(Bytes):  # type: ignore[misc]
    """The field of an answer that has the batches of a partition."""

    @classmethod
    def decode(cls, data: BytesIO) -> bytes | Part | None:
        begin = data.tell() + 4
        length, answer = Int32.decode(data), data.getvalue()  # which is no copy
        end = begin + length
        if length < _LONG or length * _SHARE < len(answer) or end > len(answer):
            data.seek(begin - 4)
            return cast("bytes | None", Bytes.decode(data))
        data.seek(end)
        return Part(answer, begin, end)


def _leave_in_place(schema: Schema) -> None:
    """Has answers of this schema keep what they have of a partition."""
    for field in schema.fields:
        if isinstance(field, Array) and isinstance(field.array_of, Schema):
            _leave_in_place(field.array_of)
    fields = zip(schema.names, schema.fields, strict=True)
    schema.fields = tuple(_MessageSet if name == "message_set" else f for name, f in fields)


class _Memory:
    """Fetched bytes with the client's look at them, which copies them."""

    def __init__(self, data: bytes | Part):
        self.part = data if isinstance(data, Part) else Part(data, 0, len(data))

    @cached_property
    def records(self) -> MemoryRecords:
        """By the client's parser."""
        return MemoryRecords(bytes(self.part))

    def has_next(self) -> bool:
        return self.part.begins_with_a_batch or bool(self.records.has_next())

    def size_in_bytes(self) -> int:
        return len(self.part)


class _Batches:
    """What was fetched of one partition, as the engine reads it."""

    def __init__(self, fetched: Any, tp: Any, part: Part, settings: tuple[Any, ...]):
        self._fetched, self._tp, self._part, self._settings = fetched, tp, part, settings
        self._rest: PartitionRecords | None = None

    @property
    def next_fetch_offset(self) -> int:
        """The offset to go on from."""
        rest = self._rest
        return int(self._fetched.next_offset if rest is None else rest.next_fetch_offset)

    def take(self, most: int | None) -> tuple[list[Any], bool]:
        """The next records, and whether there may be more.

        Raises:
            KafkaError, ValueError: what the client's parser raises for the batch that is next.
        """
        if self._rest is None:
            found = self._fetched.take(most)
            if most is not None and len(found) >= most:
                return found, True
            if self._fetched.fault is None:
                return found, False
            self._rest = self._client_s()
        else:
            found = ()
        listed = list(found)
        for record in self._rest:
            listed.append(record)
            if most is not None and len(listed) >= most:
                return listed, True
        return listed, False

    def _client_s(self) -> PartitionRecords:
        """The client's parser at the batch that is unusual, in the state that it would be in."""
        aborting, coming = self._fetched.aborts()
        memory = MemoryRecords(bytes(self._part))
        for _ in range(self._fetched.fault):
            memory.next_batch()
        found = PartitionRecords(
            self._tp, memory, coming, self._fetched.next_offset, as_it_is, as_it_is,
            *self._settings,
        )  # fmt: skip
        found._aborted_producers.update(aborting)
        return found


def _partition_records(
    tp: Any,
    records: _Memory,
    aborted: Any,
    offset: int,
    key_deserializer: Any,
    value_deserializer: Any,
    check_crcs: bool,
    isolation_level: int,
) -> Any:
    settings = check_crcs, isolation_level
    if value_deserializer is not in_batches or isolation_level != READ_COMMITTED:
        return PartitionRecords(
            tp, records.records, aborted, offset, key_deserializer, value_deserializer, *settings
        )
    from lmerge_engine import Fetched

    part, aborts = records.part, list(aborted or ())
    fetched = Fetched(part.answer, offset, aborts, check_crcs, _decompressed, part.begin, part.end)
    return _Batches(fetched, tp, part, settings)


def _decompressed(number: int, data: bytes) -> bytes | None:
    """None: by no codec, or not at all, which the client's parser will report."""
    try:
        return bytes(_DECOMPRESS[number](data))
    except Exception:  # whatever a codec raises
        return None


_getall = FetchResult.getall


def _taken(self: Any, max_records: int | None = None) -> Any:
    if type(self._partition_records) is not _Batches:
        return _getall(self, max_records)
    if not self.check_assignment(self._topic_partition):
        return []
    batches = self._partition_records
    found, more = batches.take(max_records)
    self._update_position()
    if not more:
        self._partition_records = None
    return found


_consumer_record = PartitionRecords._consumer_record


def _record(self: Any, tp: Any, record: Any) -> Any:
    if self._value_deserializer is as_it_is:
        return record
    return _consumer_record(self, tp, record)


PartitionRecords._consumer_record = _record
FetchResult.getall = _taken
for _response in {each.SCHEMA: None for each in vars(fetch).values() if hasattr(each, "SCHEMA")}:
    _leave_in_place(_response)
fetcher.MemoryRecords = _Memory
fetcher.PartitionRecords = _partition_records
