"""Arithmetic on application times: int64, with INFINITY and START as the ends of the line.

Invariants
    A1  INFINITY + d = INFINITY and START + d = START, for either sign of d.
    A2  What leaves the finite range is an `OverflowError`, never wrapped and never silently
        infinite: the source that meets one rejects the fact (`time_overflow`).

    >>> moved(5, 3), moved(INFINITY, -1), floored(-7, 5), ceiled(-7, 5), floored(START, 5)
    (8, 9223372036854775807, -10, -5, -9223372036854775808)
"""

from lmerge_service.elements import INFINITY, START

__all__ = ("ceiled", "finite", "floored", "moved")


def finite(t: int) -> int:
    """`t` itself.

    Raises:
        OverflowError: it is not a finite time.
    """
    if START < t < INFINITY:
        return t
    raise OverflowError(f"the time {t} is beyond int64")


def moved(t: int, by: int) -> int:
    """`t` + `by`.

    Raises:
        OverflowError: the sum of a finite time is beyond int64.
    """
    if t in (INFINITY, START):
        return t
    return finite(t + by)


def floored(t: int, grid: int, origin: int = 0) -> int:
    """The greatest point of the grid that is at most `t`; the infinities stay.

    Raises:
        OverflowError: there is none within int64.
    """
    if t in (INFINITY, START):
        return t
    return finite(t - (t - origin) % grid)


def ceiled(t: int, grid: int, origin: int = 0) -> int:
    """The least point of the grid that is at least `t`; the infinities stay.

    Raises:
        OverflowError: there is none within int64.
    """
    if t in (INFINITY, START):
        return t
    return finite(t + (origin - t) % grid)
