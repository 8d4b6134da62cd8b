"""Readings of which sequences have low and high X in turn: each is expensive for one of two plans
of one query (the paper's VI-E3), and the query, which keeps those that came whole.

Theory
    A reading has a number `x` of [0, 400], and `check`, the CRC-32 of its text `data`. `is_whole`
    is the selection: it looks at the payload alone. Some readings are damaged; which, the
    generator knows, so that the query's result is known without running it.

    >>> [reading] = readings(1, damaged=0)
    >>> reading.payload
    b'{"check":799992023,"data":"40f0657a530b","n":0,"x":110}'
    >>> is_whole(reading.payload), is_low(reading.payload), reading.whole
    (True, True, True)

Invariants
    N1  Reading n is the event [n * STEP, (n + 1) * STEP); payloads are canonical JSON.
    N2  A batch has low `x` or high ones; the next has the others. Its size is drawn from `batch`.
    N3  The same arguments give the same readings in any process.
    N4  `is_whole` holds of a reading exactly when it is not a damaged one.

Cost
    Lazy; about 2 µs a reading.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final
from zlib import crc32

import msgspec

from lmerge_service.elements import INFINITY, Insert, Stable

__all__ = ("LOW", "STEP", "Reading", "elements_of", "is_low", "is_whole", "readings")

STEP: Final = 10
LOW: Final = range(201)
"""The small x."""
_HIGH: Final = range(201, 401)


@dataclass(frozen=True, slots=True)
class Reading:
    """An event, and whether the query keeps it."""

    payload: bytes
    vs: int
    whole: bool

    @property
    def ve(self) -> int:
        return self.vs + STEP


def readings(
    count: int,
    *,
    batch: tuple[int, int] = (10_000, 30_000),
    damaged: float = 0.1,
    seed: int | str = 1,
) -> Iterator[Reading]:
    """So many, in order of vs; `batch` is the least and the largest size, `damaged` a share."""
    rng = Random(f"{seed}")
    values, others, left = _HIGH, LOW, 0
    for number in range(count):
        if not left:
            values, others, left = others, values, rng.randint(*batch)
        left -= 1
        data, whole = rng.randbytes(6).hex(), rng.random() >= damaged
        check = crc32(data.encode()) ^ (not whole)
        text = b'{"check":%d,"data":"%s","n":%d,"x":%d}'
        payload = text % (check, data.encode(), number, rng.choice(values))
        yield Reading(payload, number * STEP, whole)


def elements_of(
    given: Iterable[Reading], *, stable_every: int = 25
) -> Iterator[Insert[bytes] | Stable]:
    """The elements of these readings, to the end of the stream."""
    for number, reading in enumerate(given, 1):
        yield Insert(reading.payload, reading.vs, reading.ve)
        if number % stable_every == 0:
            yield Stable(reading.ve)
    yield Stable(INFINITY)


class _Fields(msgspec.Struct):
    check: int
    data: str
    x: int


_fields = msgspec.json.Decoder(_Fields).decode


def is_whole(payload: bytes) -> bool:
    """The selection.

    Raises:
        msgspec.ValidationError: it is no reading.
    """
    fields = _fields(payload)
    return crc32(fields.data.encode()) == fields.check


def is_low(payload: bytes) -> bool:
    """Whether its x is small; raises as `is_whole`."""
    return _fields(payload).x in LOW
