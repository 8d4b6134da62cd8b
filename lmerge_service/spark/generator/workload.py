"""The paper's logical stream (VI-B), any part of it without the rest.

Theory
    Event n has a payload of two fields, an integer of [0, 400] and a random string; vs goes on by
    a gap of [0, max_gap] from event to event, and all lifetimes are the same. Payload and gap are
    draws of n. A vs is the sum of all gaps before it: events are cut into blocks, the gaps of
    each block are added up apart, and then a block needs the sum of the blocks before it only.

    >>> small = Workload(events=5, max_gap=10, event_duration=30, payload_bytes=16)
    >>> small.starts(small.added([(0, 3), (3, 5)])).tolist()  # what the blocks start from
    [0, 9, 17]
    >>> small.times(3, 5, 19).tolist()
    [22, 27]
    >>> small.payloads(np.array([3]))[0].as_py()
    '{"data":"3fc6691222efc516","key":212}'

Invariants
    W1  No two events have the same payload: its first 16 digits are one to one with n.
    W2  vs never falls from event to event; payloads are canonical JSON.
    W3  The same workload has the same events, into whatever blocks it is cut.

Cost
    10 ns for a gap, 1.5 to 3 µs for a payload of a kilobyte.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmerge_service.formats.wire import MAX_RECORD_BYTES
from lmerge_service.spark.generator.randomness import Draws, Longs

__all__ = ("DEFAULT_ACTIVE", "LEAST_PAYLOAD", "Workload")

DEFAULT_ACTIVE: Final = 10_000
LEAST_PAYLOAD: Final = 16
MOST_PAYLOAD: Final = MAX_RECORD_BYTES - 256
"""With the rest of a record around it."""
_KEYS: Final = 401
_LATEST: Final = 2**61
_OF_A_BYTE: Final = np.array([f"{byte:02x}" for byte in range(256)], "S2").view(np.uint16)
_DIGITS: Final = _OF_A_BYTE[np.arange(1 << 16, dtype=np.uint16).view(np.uint8)].view(np.uint32)
"""Of two bytes, by the number that they are in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Which logical stream; the paper's sizes, times in milliseconds."""

    events: int = 200_000
    seed: int = 1
    max_gap: int = 20_000
    event_duration: int | None = None
    """Of every event; by default such that about 10,000 are alive at any time."""
    payload_bytes: int = 1000
    """The length of the random string."""

    def __post_init__(self) -> None:
        for name, least in (("events", 1), ("max_gap", 1), ("payload_bytes", LEAST_PAYLOAD)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.payload_bytes > MOST_PAYLOAD:
            raise ValueError(f"payload_bytes must be at most {MOST_PAYLOAD}, or nobody reads them")
        if self.duration < 1:
            raise ValueError(f"event_duration must be at least 1, got {self.event_duration}")
        if self.events * self.max_gap + self.duration > _LATEST:
            raise ValueError("events, max_gap and event_duration lead beyond the times there are")

    @property
    def duration(self) -> int:
        """How long each event lasts."""
        if self.event_duration is not None:
            return self.event_duration
        return max(1, DEFAULT_ACTIVE * self.max_gap // 2)

    def added(self, blocks: Iterable[tuple[int, int]]) -> list[int]:
        """The sum of the gaps of each [first, end) of events."""
        return [int(self._gaps(first, end).sum()) for first, end in blocks]

    @staticmethod
    def starts(sums: Sequence[int]) -> Longs:
        """What the times of each block are added to, by the sums of all; and of one more block."""
        return np.concatenate(([0], np.cumsum(np.array(sums, np.int64))))

    def times(self, first: int, end: int, start: int) -> Longs:
        """The vs of the events [first, end), which `start` is added to."""
        return np.cumsum(self._gaps(first, end)) + start

    def _gaps(self, first: int, end: int) -> Longs:
        return self._draws.below("gap", np.arange(first, end), self.max_gap + 1)

    def payloads(self, numbers: Longs) -> pa.StringArray:
        """The payloads of these events."""
        keys = self._draws.below("key", numbers, _KEYS)
        fields = (self._strings(numbers), '","key":', _ALL_KEYS.take(pa.array(keys)))
        return pc.binary_join_element_wise('{"data":"', *fields, "}", "")

    def _strings(self, numbers: Longs) -> pa.StringArray:
        """Hexadecimal digits; the first sixteen are one to one with the number (R2)."""
        count, size = len(numbers), self.payload_bytes
        width = -(-size // 16)
        words = np.empty((count, width), np.uint64)
        words[:, 0] = self._draws.words("data", numbers)
        if width > 1:
            places = numbers[:, None] * (width - 1) + np.arange(width - 1)
            words[:, 1:] = self._draws.words("more data", places)
        digits = np.take(_DIGITS, words.astype(">u8").view(np.uint16)).view(np.uint8)
        data = np.ascontiguousarray(digits[:, :size])
        ends = np.arange(0, (count + 1) * size, size, dtype=np.int32)
        return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(data))

    @property
    def _draws(self) -> Draws:
        return Draws(f"{self.seed} workload")


_ALL_KEYS: Final = pa.array([str(key) for key in range(_KEYS)])
