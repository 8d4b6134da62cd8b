"""Group keys by which Spark spreads the buckets evenly over its shuffle partitions.

Theory
    Spark hashes a group's key to find its partition (Murmur3, x86, 32 bits, seed 42; an int is one
    word). With the buckets' numbers for keys two of them may share a task, while another task
    has none: 0 to 3 go to partitions 3, 3, 2, 3 of 4. So each bucket gets the least number left
    that falls into the partition of its own number, counted round. The hash is as old as Spark's
    data and cannot change under a checkpoint; a query to Spark itself would cost a job at each
    start.

    >>> bucket_keys(4, 4), bucket_keys(6, 2)
    ((12, 6, 2, 0), (2, 0, 4, 1, 5, 3))
"""

from itertools import count
from typing import Final

__all__ = ("bucket_keys", "hash_of_int")

_SEED: Final = 42
_WORD: Final = 0xFFFFFFFF


def bucket_keys(buckets: int, tasks: int) -> tuple[int, ...]:
    """By bucket, its key, where so many shuffle partitions share the buckets."""
    found: dict[int, int] = {}
    following = list(range(tasks))  # of each partition, the next bucket
    for key in count():
        place = hash_of_int(key) % tasks
        if following[place] < buckets:
            found[following[place]] = key
            following[place] += tasks
        if len(found) == buckets:
            return tuple(found[bucket] for bucket in range(buckets))
    raise AssertionError


def hash_of_int(value: int) -> int:
    """Spark's hash of an int from 0 on, as the signed number that it is."""
    k = _left(value * 0xCC9E2D51, 15) * 0x1B873593 & _WORD
    h = _left(_SEED ^ k, 13) * 5 + 0xE6546B64 & _WORD
    h ^= 4  # bytes
    h = (h ^ h >> 16) * 0x85EBCA6B & _WORD
    h = (h ^ h >> 13) * 0xC2B2AE35 & _WORD
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def _left(word: int, by: int) -> int:
    word &= _WORD
    return (word << by | word >> 32 - by) & _WORD
