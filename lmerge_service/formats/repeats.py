"""Records that their writer had written before, distinguished from those that only claim to be.

Theory
    A writer that delivers at least once numbers its records (`lmerge-seq`, `headers`), and writes
    the same again after a crash: a number that is not above all before it is of a *repeat*, which
    counts no more. That is exact where the writer makes the same records again, in the same order,
    even when two of its attempts write at the same time: of any mixture of `1 2 3 …` with
    `1 2 3 …` the first time that each number is met is in order.

    A writer that counts again and writes something else, or a second writer, uses the same numbers.
    Dropped as a repeat, its data would be lost in silence. So a repeat is compared with what it
    repeats:

        number    known content    then it is
        > last    —                new
        ≤ last    the same         a repeat: left out
        ≤ last    another          a contradiction: another writer, or one that counts again
        ≤ last    never received   a contradiction
        ≤ last    forgotten        taken for a repeat; the `FLIGHT` + 1st in a row: a contradiction

    A *contradiction* is not left out: it is read as what an unannounced restart publishes, and the
    numbers go on from it. What is known of numbers above it is forgotten.

        1a 2b 3c   1a 2b 3c 4d          → 1a 2b 3c 4d           a repeat
        1a 2b 3c   1x 2y 3z 4d          → 1a 2b 3c 1x 2y 3z 4d  a contradiction at 1x

    Of contents a checksum is kept: of the first `_FIRST` numbers and of the latest `FLIGHT` each,
    and further back of every 64th and 4,096th. So a writer that counts again from 1 is detected at
    the first record that differs, one that goes back by less than `FLIGHT` as well, and one that
    goes back further at the next number that is known.

Invariants
    R1  All of it is a function of the records read, in order.
    R2  The last number is that of the last record that was not left out.

Cost
    A record: a checksum of its bytes and an append. A partition: 12 bytes a number that is known,
    some 400 KB at the most; nothing for writers that don't number.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final
from zlib import crc32

import msgspec

from lmerge_service.errors import StateError
from lmerge_service.formats.headers import RecordLike, seq_of

__all__ = ("FLIGHT", "Numbers", "RecordReading", "Repeats", "content_of")

FLIGHT: Final = 4_096
"""The latest numbers whose contents are all known, and how many unknown ones are taken on trust."""
_FIRST: Final = 256
_TIERS: Final = ((1, FLIGHT), (64, 4_096), (4_096, 8_192))
"""Of which numbers contents are kept, the multiples of a stride, and how many of them."""
_SLACK: Final = 2
"""A tier is cut back when it holds so many times what it keeps."""


class RecordReading(Enum):
    """What a record is to a reader of its topic."""

    NEW = "new"
    REPEAT = "repeat"
    CONTRADICTION = "contradiction"


class _Tier:
    """Contents by number, of the multiples of a stride; numbers rise."""

    __slots__ = ("_contents", "_kept", "_numbers", "stride")

    def __init__(self, stride: int, kept: int) -> None:
        self.stride, self._kept = stride, kept
        self._numbers, self._contents = array("q"), array("I")

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def span(self) -> tuple[int, int] | None:
        """The lowest and the highest number that is known."""
        return (self._numbers[0], self._numbers[-1]) if self._numbers else None

    def add(self, number: int, content: int) -> None:
        self._numbers.append(number)
        self._contents.append(content)
        if len(self._numbers) >= _SLACK * self._kept:
            del self._numbers[: -self._kept], self._contents[: -self._kept]

    def get(self, number: int) -> int | None:
        at = bisect_left(self._numbers, number)
        found = at < len(self._numbers) and self._numbers[at] == number
        return self._contents[at] if found else None

    def cut(self, number: int) -> tuple["array[int]", "array[int]"]:
        """Forgets this number and those above; returns what that was."""
        at = bisect_left(self._numbers, number)
        gone = self._numbers[at:], self._contents[at:]
        del self._numbers[at:], self._contents[at:]
        return gone

    def put_back(self, gone: tuple["array[int]", "array[int]"]) -> None:
        self._numbers.extend(gone[0])
        self._contents.extend(gone[1])

    def saved(self) -> tuple[bytes, bytes]:
        return self._numbers.tobytes(), self._contents.tobytes()

    def restore(self, saved: tuple[bytes, bytes]) -> None:
        self._numbers.frombytes(saved[0])
        self._contents.frombytes(saved[1])
        if len(self._numbers) != len(self._contents):
            raise ValueError("numbers and contents are not as many")


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    last: int
    trusted: int
    tiers: list[tuple[bytes, bytes]]


class Numbers:
    """The numbers of one partition of one incarnation, and what was read under them."""

    __slots__ = ("_first", "_tiers", "_undo", "last", "trusted")

    def __init__(self) -> None:
        self.last = 0
        """The number of the last record that was not left out."""
        self.trusted = 0
        """How many records in a row, up to now, were taken for repeats without being known."""
        self._first = _Tier(1, _FIRST)
        self._tiers = tuple(_Tier(*each) for each in _TIERS)
        self._undo: tuple[int, int, int, list[tuple[array[int], array[int]]]] | None = None

    def read(self, number: int, content: int) -> RecordReading:
        """The next record; what it is goes with all that was read before."""
        if number <= self.last:
            if self._is_repeat(number, content):
                return RecordReading.REPEAT
            reading = RecordReading.CONTRADICTION
            gone = [tier.cut(number) for tier in (self._first, *self._tiers)]
        else:
            reading, gone = RecordReading.NEW, []
        self._undo = number, self.last, self.trusted, gone
        self.last, self.trusted = number, 0
        self._add(number, content)
        return reading

    def take_back(self) -> None:
        """The record just read, which was not left out, will be read again."""
        assert self._undo is not None
        number, self.last, self.trusted, gone = self._undo
        self._undo = None
        for tier in (self._first, *self._tiers):
            tier.cut(number)
        for tier, each in zip((self._first, *self._tiers), gone, strict=False):
            tier.put_back(each)

    def known(self, number: int) -> int | None:
        """The content that was read under a number, as far as it is known."""
        for tier in (self._first, *self._tiers):
            if (found := tier.get(number)) is not None:
                return found
        return None

    def _is_repeat(self, number: int, content: int) -> bool:
        if (known := self.known(number)) is not None:
            if known != content:
                return False
            self.trusted = 0
            return True
        if self._is_remembered(number) or self.trusted >= FLIGHT:
            return False
        self.trusted += 1
        return True

    def _is_remembered(self, number: int) -> bool:
        """Had it been read, it would be known."""
        first, latest = self._first.span, self._tiers[0].span
        assert first is not None, "the last number is known"
        assert latest is not None, "the last number is known"
        return number <= first[1] or number >= latest[0] or len(self._first) < _FIRST

    def _add(self, number: int, content: int) -> None:
        if len(self._first) < _FIRST:
            self._first.add(number, content)
        for tier in self._tiers:
            if number % tier.stride:
                return  # each stride is a multiple of the one before
            tier.add(number, content)

    def saved(self) -> bytes:
        """The state as msgpack, which `restored` reads."""
        tiers = [tier.saved() for tier in (self._first, *self._tiers)]
        return msgspec.msgpack.encode(_Saved(self.last, self.trusted, tiers))

    @classmethod
    def restored(cls, saved: bytes) -> "Numbers":
        """Reads what `saved` wrote; raises ValueError or MsgspecError if something else did."""
        found, numbers = msgspec.msgpack.decode(saved, type=_Saved), cls()
        numbers.last, numbers.trusted = found.last, found.trusted
        for tier, each in zip((numbers._first, *numbers._tiers), found.tiers, strict=True):
            tier.restore(each)
        return numbers


class Repeats:
    """Classifies the records of one incarnation of a replica, by their numbers.

    >>> from lmerge_service.formats.headers import SEQ_HEADER
    >>> repeats = Repeats()
    >>> sent = [(1, b"a"), (2, b"b"), (1, b"a"), (2, b"b"), (3, b"c"), (1, b"x"), (2, b"y")]
    >>> for number, value in sent:
    ...     print(number, repeats.read(0, [(SEQ_HEADER, b"%d" % number)], value).value)
    1 new
    2 new
    1 repeat
    2 repeat
    3 new
    1 contradiction
    2 new
    """

    __slots__ = ("_numbers",)

    def __init__(self, saved: Mapping[int, bytes] = MappingProxyType({})) -> None:
        """`saved`: as `Repeats.saved` gave it."""
        self._numbers: dict[int, Numbers] = {}
        for partition, each in saved.items():
            self.restore(partition, each)

    def read(
        self,
        partition: int,
        headers: Sequence[tuple[str, bytes]],
        value: bytes | None,
    ) -> RecordReading:
        """What the next record of a partition is, in the wire format.

        Raises:
            ElementError: as `seq_of`.
        """
        number = seq_of(headers)
        if number is None:
            return RecordReading.NEW
        return self.of(partition).read(number, content_of(value))

    def is_repeat(self, partition: int, record: RecordLike) -> bool:
        """Whether the next record counts no more; else as `read`."""
        return self.read(partition, record.headers, record.value) is RecordReading.REPEAT

    def of(self, partition: int) -> Numbers:
        """The numbers of a partition."""
        if (found := self._numbers.get(partition)) is None:
            found = self._numbers[partition] = Numbers()
        return found

    def restore(self, partition: int, saved: bytes) -> None:
        """Takes one of `saved`.

        Raises:
            StateError: it is damaged.
        """
        try:
            self._numbers[partition] = Numbers.restored(saved)
        except (msgspec.MsgspecError, ValueError) as error:
            raise StateError(f"what was read under which number is damaged: {error}") from error

    def saved(self) -> dict[int, bytes]:
        """By partition, what to go on from; nothing of partitions whose writers don't number."""
        return {partition: each.saved() for partition, each in self._numbers.items()}


def content_of(value: bytes | None, key: bytes | None = None) -> int:
    """A checksum of what a record holds; a value that is null is not an empty one. The key counts
    in dialects only: in the wire format it carries nothing of its own."""
    return crc32(value or b"", crc32(key or b"", value is None))
