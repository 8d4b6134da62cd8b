"""What a stream of elements is like: in order, free of revisions, closed up to a time.

Theory
    The *sync time* of an element is the first instant that it affects: vs of an
    insert, the lesser end of an adjust, vc of a stable. An insert or adjust is *out of order* if a
    later one has a smaller sync time (it is the earlier of the two that is marked). A stream is
    ordered if none is, and perfect if it is ordered and never revises. The definitions are those of
    Goldstein and Hong's work on speculative operators, which takes the new end of a retraction: the
    same where ends only shrink. A stable puts nothing out of order: it may trail the data.

    >>> stream = [Insert("a", 1, 9), Adjust("a", 1, 9, 6), Insert("b", 5, 8), Stable(4)]
    >>> [sync(element) for element in stream], out_of_order(stream)
    ([1, 6, 5, 4], [1])
    >>> is_ordered(stream), is_perfect(stream[:1]), closed_up_to(stream)
    (False, True, 4)

Cost
    O(n) each.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB

__all__ = (
    "closed_up_to",
    "is_ordered",
    "is_perfect",
    "is_valid_shrinking",
    "out_of_order",
    "sync",
    "up_to",
)


def sync(element: Element) -> int:
    """The first instant that an element affects; a legal one behind stable(c) has
    none before c."""
    match element:
        case Insert(vs=vs):
            return vs
        case Adjust(vold=vold, ve=ve):
            return min(vold, ve)
        case Stable(vc=vc):
            return vc
    assert_never(element)


def out_of_order(stream: Sequence[Element]) -> list[int]:
    """The positions of inserts and adjusts that have one of a smaller sync time behind them."""
    found, least = [], INFINITY
    for position in reversed(range(len(stream))):
        element = stream[position]
        if type(element) is not Stable:
            if sync(element) > least:
                found.append(position)
            least = min(least, sync(element))
    return found[::-1]


def is_ordered(stream: Sequence[Element]) -> bool:
    """Whether no element is out of order."""
    return not out_of_order(stream)


def is_perfect(stream: Sequence[Element]) -> bool:
    """Whether a stream is ordered and revises nothing."""
    return is_ordered(stream) and not any(type(element) is Adjust for element in stream)


def closed_up_to(stream: Iterable[Element]) -> int:
    """The greatest stable point; START if there is none."""
    return max((e.vc for e in stream if type(e) is Stable), default=START)


def up_to(stream: Iterable[Element], t: int) -> list[Element]:
    """The elements with a sync time before `t`."""
    return [element for element in stream if sync(element) < t]


def is_valid_shrinking(stream: Iterable[Element]) -> bool:
    """Whether a stream is legal and all its adjusts shorten: the validity of the works that know
    retractions only."""
    tdb = TDB()
    for element in stream:
        if tdb.violation(element) or (type(element) is Adjust and element.ve >= element.vold):
            return False
        tdb.apply(element)
    return True
