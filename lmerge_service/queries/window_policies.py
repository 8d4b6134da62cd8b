"""Windows, the rows they emit, and the policies about lifetimes at their edges.

Theory
    Clipping of what a time-sensitive module sees: `none`; `left`, vs := max(vs, window.vs);
    `right`, ve := min(ve, window.ve); `full`, both. Unclipped ends hold the output's stable point
    while an event of a window may still end otherwise: prefer `right`.
    Timestamping of what a stamped module returns: `align` gives every row the window's lifetime
    (the only one for others); `unchanged` requires vs >= window.vs; `clip` cuts the row to the
    window, and drops it if nothing is left. There is none that lets a row begin before its window:
    with it no stable point could ever be announced.
"""

from collections.abc import Hashable
from enum import StrEnum
from typing import NamedTuple

__all__ = ("Clipping", "Row", "Timestamping", "Window", "clipped", "stamped")


class Window(NamedTuple):
    """The window [vs, ve)."""

    vs: int
    ve: int


class Row(NamedTuple):
    """A row that a window emits: an event."""

    payload: Hashable
    vs: int
    ve: int


class Clipping(StrEnum):
    """How lifetimes are clipped to the window before a module sees them."""

    NONE = "none"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"


class Timestamping(StrEnum):
    """What lifetime a row gets that a module returns with one."""

    ALIGN = "align"
    UNCHANGED = "unchanged"
    CLIP = "clip"


def clipped(policy: Clipping, window: Window, vs: int, ve: int) -> tuple[int, int]:
    """The lifetime as a module sees it.

    >>> clipped(Clipping.RIGHT, Window(5, 10), 2, 17)
    (2, 10)
    """
    if policy in (Clipping.LEFT, Clipping.FULL):
        vs = max(vs, window.vs)
    if policy in (Clipping.RIGHT, Clipping.FULL):
        ve = min(ve, window.ve)
    return vs, ve


def stamped(policy: Timestamping, window: Window, vs: int, ve: int) -> tuple[int, int] | None:
    """The lifetime that a row of a module gets; None if nothing of it is left.

    Raises:
        ValueError: it may not begin before its window.

    >>> stamped(Timestamping.CLIP, Window(5, 10), 3, 8)
    (5, 8)
    """
    if policy is Timestamping.ALIGN:
        return window
    if policy is Timestamping.UNCHANGED:
        if vs < window.vs:
            raise ValueError(f"a row [{vs}, {ve}) begins before its window")
        return vs, ve
    vs, ve = max(vs, window.vs), min(ve, window.ve)
    return (vs, ve) if vs < ve else None
