"""When a replica sends: at a steady rate, or as one that stands still now and then.

Theory
    Elements come from the source at a constant rate and queue up while the replica stands still;
    what has queued goes out at once when it goes on (the paper's VI-E). Element k is due at

        due(k) = max(k / rate, due(k - 1)) + pause(k)

    `stalls` is the share of elements before which it stands still, for a time of the truncated
    normal distribution with mean 20 and standard deviation 5 ms (VI-E1). While it is `congested`
    each element takes a time of that kind with mean 1 and standard deviation 0.25 ms (VI-E2): a
    thousand a second get through, whatever the rate.
"""

from collections.abc import Iterator, Sequence
from random import Random

__all__ = ("due",)

_STALL = 0.020, 0.005
_CONGESTION = 0.001, 0.000_25


def due(
    rate: float,
    *,
    stalls: float = 0.0,
    congested: Sequence[tuple[float, float]] = (),
    seed: int | str = 1,
) -> Iterator[float]:
    """For each element, the seconds from the start at which it is to be sent; endless.

    `rate` is elements a second; `congested` are times from and until, in seconds. Equal seeds
    give equal times.

    >>> [next(times) for times in [due(4.0)] for _ in range(3)]
    [0.0, 0.25, 0.5]
    """
    rng, at, number = Random(seed), 0.0, 0
    while True:
        at = max(at, number / rate)
        if any(begin <= at < end for begin, end in congested):
            at += _pause(rng, *_CONGESTION)
        if stalls and rng.random() < stalls:
            at += _pause(rng, *_STALL)
        yield at
        number += 1


def _pause(rng: Random, mean: float, deviation: float) -> float:
    """Seconds; what would be below 0 is drawn again."""
    while (seconds := rng.gauss(mean, deviation)) < 0:
        pass
    return seconds
