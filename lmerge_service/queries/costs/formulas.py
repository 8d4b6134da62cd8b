"""Characteristics of streams, and what each operator makes of them: the thesis' formulas.

Theory
    A stream is described by three means, in the application's time: the gap d between starts of
    events, so that 1/d is its rate; the lifetime l, so that l/d events are there at an instant; and
    the granule g of which times are multiples. Each operator has a formula for the characteristics
    of its output and one for what it holds (Krämer, "Continuous queries over data streams",
    chapter 22; its numbers are named below). They presume that starts are spread evenly, that
    values do not depend on times, and that all groups are alike.

    >>> stream = Stream(10.0, 100.0)
    >>> print(*(round(each, 2) for each in aggregated(stream)), round(cells(stream), 2))
    5.49 5.49 1 9.56
"""

from collections.abc import Sequence
from math import ceil, exp, gcd, inf
from typing import Final, NamedTuple

__all__ = (
    "Stream",
    "aggregated",
    "cells",
    "clipped",
    "coarsened",
    "covered",
    "distinct",
    "groups_among",
    "in_grid",
    "in_last_rows",
    "joined",
    "joined_state",
    "last_rows_state",
    "panes_state",
    "selected",
    "split",
    "unbroken",
    "united",
    "windowed",
    "windows_state",
)

_LEAST: Final = 1e-9
"""What is less likely counts as this much."""


class Stream(NamedTuple):
    """Characteristics of a stream, in units of the application's time."""

    gap: float
    """d, between starts; infinite if nothing comes."""
    length: float
    """l, from start to end."""
    granule: float = 1
    """g."""

    @property
    def rate(self) -> float:
        """Events in a unit of time."""
        return 1 / self.gap

    @property
    def alive(self) -> float:
        """Events that are there at an instant."""
        return self.length / self.gap if self.gap < inf else 0.0


# One input, event by event


def selected(stream: Stream, selectivity: float) -> Stream:
    """Of which this part is left (22.1)."""
    gap = stream.gap / selectivity if selectivity else inf
    return Stream(gap, stream.length, stream.granule)


def windowed(stream: Stream, width: float) -> Stream:
    """Lifetimes of this length (22.10)."""
    return Stream(stream.gap, width, stream.granule)


def split(stream: Stream, length: float) -> Stream:
    """Events cut to pieces of at most this length (22.8)."""
    if length >= stream.length:
        return stream
    return Stream(stream.gap * length / stream.length, length, stream.granule)


def coarsened(stream: Stream, granule: float) -> Stream:
    """A coarser granularity (22.9): what covers no granule's begin is left out."""
    longest = max(stream.length, granule)
    return Stream(stream.gap * max(1.0, granule / stream.length), longest, granule)


# Several inputs


def united(streams: Sequence[Stream]) -> Stream:
    """The events of all (22.3)."""
    rate = sum(each.rate for each in streams)
    granule = gcd(*(int(each.granule) for each in streams))
    if not rate:
        return Stream(inf, streams[0].length, granule)
    return Stream(1 / rate, sum(each.alive for each in streams) / rate, granule)


def joined(left: Stream, right: Stream, selectivity: float) -> Stream:
    """Pairs that overlap, of which this part is joined (22.4)."""
    both = left.length + right.length
    granule = gcd(int(left.granule), int(right.granule))
    if not selectivity or inf in (left.gap, right.gap):
        return Stream(inf, min(left.length, right.length), granule)
    gap = left.gap * right.gap / (both * selectivity)
    return Stream(gap, left.length * right.length / both, granule)


def joined_state(left: Stream, right: Stream) -> tuple[float, float]:
    """Events that each side of a join holds, which the other side's progress removes (22.18)."""
    if inf in (left.gap, right.gap):
        return left.alive, right.alive
    return (
        left.alive + right.gap / (2 * left.gap),
        right.alive + left.gap / (2 * right.gap),
    )


# Duplicates


def distinct(stream: Stream, values: float) -> Stream:
    """Pieces of which each continues the one before of its value (22.5), where so many values come
    again before they end; with `values * d > l` all events as they are."""
    again = values * stream.gap
    return Stream(stream.gap, min(again, stream.length), stream.granule)


def unbroken(stream: Stream, values: float) -> Stream:
    """The same with pieces that meet as one event, the longest there are: beyond the thesis.

    A value is there from a start until none has come for the length of a lifetime: a queue with as
    many servers as are wanted, which is busy so long.
    """
    if stream.gap == inf:
        return stream
    granule = min(stream.granule, stream.length)
    quiet = exp(-granule / (values * stream.gap))
    uncovered = max(quiet ** (stream.length / granule), _LEAST)
    rate = max(values * (1 - quiet) * uncovered / granule, _LEAST / stream.gap)
    return Stream(1 / rate, values * (1 - uncovered) / rate, stream.granule)


def covered(stream: Stream, values: float) -> float:
    """Which part of the time each of so many values is there."""
    return 1 - exp(-stream.alive / values)


# Aggregates


def _ends_meet(stream: Stream, endpoints: float) -> float:
    """How likely one of so many endpoints within a lifetime falls on an instant: Cardenas."""
    share = min(stream.granule / stream.length, 1.0)
    return float(1 - (1 - share) ** endpoints)


def aggregated(stream: Stream, groups: float = 1) -> Stream:
    """Rows of an aggregate by groups: one between each two endpoints of a group (22.6, 22.7)."""
    own = groups * stream.gap
    if own >= stream.length:
        return stream
    length = stream.granule / _ends_meet(stream, 2 * stream.length / own)
    return Stream(length / groups, length, stream.granule)


def cells(stream: Stream, groups: float = 1) -> float:
    """Pieces of time that an aggregate holds, of all groups (22.30, 22.35)."""
    own = groups * stream.gap
    if own >= stream.length:
        return groups
    return groups * stream.length / stream.granule * _ends_meet(stream, stream.length / own)


# Windows


def groups_among(groups: float, events: float) -> float:
    """How many of the groups so many events have: Cardenas."""
    if groups <= 1:
        return min(1.0, events)
    return float(groups * (1 - (1 - 1 / groups) ** events))


def in_grid(size: float, every: float, groups: float) -> Stream:
    """Rows of windows, of so many groups in each."""
    return Stream(every / groups if groups else inf, size, every)


def windows_state(size: float, every: float, groups: float) -> float:
    """Windows of groups that are open."""
    return groups * ceil(size / every)


def panes_state(size: float, every: float, groups: float) -> float:
    """Panes of so many groups each, of the windows that are open."""
    return groups * size / gcd(int(size), int(every))


def in_last_rows(stream: Stream, count: int, groups: float = 1) -> Stream:
    """Each event until the `count`-th next of its group (22.11, 22.12)."""
    return Stream(stream.gap, count * groups * stream.gap, stream.granule)


def last_rows_state(count: int, groups: float = 1) -> float:
    """Events that are held."""
    return count * groups


def clipped(stream: Stream, ends: Stream, groups: float) -> Stream:
    """Events that end where the next of the other stream's starts, in so many groups: beyond the
    thesis."""
    if ends.gap == inf:
        return stream
    wait = groups * ends.gap
    return Stream(stream.gap, wait * (1 - exp(-stream.length / wait)), stream.granule)
