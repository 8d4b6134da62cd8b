"""Synthetic logical streams like those of the paper's evaluation (VI-B).

Theory
    Each event has two fields, an integer of [0, 400] and a random string. Application time goes
    on by a random gap of [0, max_gap] from event to event; lifetimes are such that about
    `active` events are alive at any time. Disorder, revisions and the frequency of stables are
    not properties of the logical stream: `presentation.Variation` adds them.

    >>> [life] = workload(events=1, seed=0, payload_bytes=6)
    >>> life.payload
    b'{"data":"bf975c","key":41}'

Invariants
    G1  (payload, vs) is a key, and with min_gap >= 1 so is vs.
    G2  Lives come in order of vs; payloads are canonical JSON.
    G3  The same arguments give the same lives in any process.

Cost
    Lazy; about 5 us an event, and 4 more per kilobyte of payload.
"""

from collections.abc import Iterator
from random import Random

from lmerge_service.workloads.lifetime import Life

__all__ = ("workload",)


def workload(
    *,
    events: int = 200_000,
    seed: int | str = 0,
    payload_bytes: int = 1000,
    active: int = 10_000,
    min_gap: int = 0,
    max_gap: int = 20_000,
    varied: bool = False,
) -> Iterator[Life]:
    """The paper's workload; its default sizes, times in milliseconds.

    `payload_bytes` is the length of the string. Lifetimes are all the same, as in the paper, or
    if `varied` anything from 1 to twice the mean.
    """
    rng = Random(f"{seed}")
    mean = max(1, active * (min_gap + max_gap) // 2)
    vs, at_vs = 0, set[bytes]()
    for _ in range(events):
        payload = _payload(rng, payload_bytes)
        gap = rng.randint(min_gap, max_gap) or int(payload in at_vs)
        if gap:
            vs += gap
            at_vs.clear()
        at_vs.add(payload)
        yield Life(payload, vs, (vs + (rng.randint(1, 2 * mean) if varied else mean),))


def _payload(rng: Random, size: int) -> bytes:
    data = rng.randbytes((size + 1) // 2).hex()[:size]
    return b'{"data":"%s","key":%d}' % (data.encode(), rng.randint(0, 400))
