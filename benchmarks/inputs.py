"""The workload of the benchmarks: three presentations of one logical stream.

Payloads of about 120 bytes, 10,000 events active, 20 % of the elements disordered, a stable every
1,000, a fifth of the events revised.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lmerge_service.elements import Element
from lmerge_service.workloads.generator import workload
from lmerge_service.workloads.presentation import Variation, present

__all__ = ("interleaved", "lazily", "ordered", "replicas")

_SECOND = 1_000
_ACTIVE = 10_000


def replicas(
    events: int, n: int = 3, payload_bytes: int = 95, *, revised: float = 0.2
) -> list[list[Element]]:
    """n seeded presentations of a workload of so many events, that share of them revised."""
    lives = list(workload(events=events, payload_bytes=payload_bytes, active=_ACTIVE))
    return [list(present(lives, _varied(revised), number)) for number in range(n)]


def lazily(
    events: int,
    n: int = 3,
    payload_bytes: int = 95,
    *,
    active: int = _ACTIVE,
    closed: bool = True,
    revised: float = 0.2,
) -> list[Iterator[Element]]:
    """The same in little memory, each with payload objects of its own; `active` events are live at
    a time. What is not `closed` ends without stable(infinity)."""
    variation = replace(_varied(revised), closed=closed)
    return [
        present(
            workload(events=events, payload_bytes=payload_bytes, active=active), variation, number
        )
        for number in range(n)
    ]


def _varied(revised: float) -> Variation:
    return Variation(
        provisional=revised,
        spread=60 * _SECOND,
        disorder=0.2,
        displacement=60 * _SECOND,
        stable_every=1_000,
    )


def ordered(events: int, n: int = 3) -> list[list[Element]]:
    """n copies of a stream with strictly rising vs and no adjusts, for case R0 and all others."""
    lives = list(workload(events=events, payload_bytes=95, active=10_000, min_gap=1))
    return [list(present(lives, Variation(stable_every=1_000), number)) for number in range(n)]


def interleaved(
    streams: Sequence[Sequence[Element]], chunk: int
) -> list[tuple[int, Sequence[Element]]]:
    """Batches of so many elements, one input after the other, as polls give them."""
    longest = max(map(len, streams))
    return [
        (number, stream[start : start + chunk])
        for start in range(0, longest, chunk)
        for number, stream in enumerate(streams)
        if start < len(stream)
    ]
