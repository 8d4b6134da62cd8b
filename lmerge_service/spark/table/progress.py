"""How far a table has read its stream: a few rows in the table itself.

Theory
    Each incarnation of each partition has a row: where it begins, up to which offset it was read,
    what it has declared stable. Rows are joined field by field, so a step need not know what it
    will find: it writes the rows of the step before again, those of the records that it passes,
    and one for each partition that shows up to where it read.

    Progress is data of the table and not of its log: whoever restores an earlier version of the
    table, or clones it, has the progress that belongs to the data.

Invariants
    P1  Joining is associative and commutative.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from itertools import groupby

import msgspec

from lmerge_service.elements import START

__all__ = ("Progress", "by_partition", "joined")


class Progress(
    msgspec.Struct, frozen=True, order=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How far an incarnation has come in a partition; written as the payload of a row."""

    partition: int
    incarnation: int = -1
    """-1: the partition has no element yet."""
    next: int = 0
    """The offset to go on from."""
    stable: int = START
    """What it has declared final."""
    time: int = START
    """The latest record time so far; START: records have none."""
    begun_offset: int = -1
    """Of its first record; -1: unknown here, another row has it."""
    begun_time: int = START
    records: int = 0


def joined(rows: Iterable[Progress]) -> tuple[Progress, ...]:
    """The same progress in one row for each incarnation of each partition."""
    return tuple(
        reduce(_join, same)
        for _, same in groupby(sorted(rows), lambda each: (each.partition, each.incarnation))
    )


def by_partition(rows: Iterable[Progress]) -> Mapping[int, Progress]:
    """Of each partition the last incarnation, with how far the partition was read."""
    return {
        number: reduce(_continue, same)
        for number, same in groupby(joined(rows), lambda each: each.partition)
    }


def _join(one: Progress, other: Progress) -> Progress:
    return Progress(
        one.partition,
        one.incarnation,
        max(one.next, other.next),
        max(one.stable, other.stable),
        max(one.time, other.time),
        max(one.begun_offset, other.begun_offset),
        max(one.begun_time, other.begun_time),
        one.records + other.records,
    )


def _continue(before: Progress, later: Progress) -> Progress:
    """The later incarnation, in the same partition."""
    return msgspec.structs.replace(
        later, next=max(before.next, later.next), time=max(before.time, later.time)
    )
