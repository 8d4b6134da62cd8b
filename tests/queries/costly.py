"""Conditions that take so much of a clock that only they move: costs without chance."""

__all__ = ("COST", "accepts_left", "accepts_right", "now")

COST = 1_000
"""Ticks of a call."""
_spent = [0]


def now() -> int:
    """The clock."""
    return _spent[0]


def accepts_left(value: int) -> bool:
    """Whether the value is even."""
    _spent[0] += COST
    return value % 2 == 0


def accepts_right(value: int) -> bool:
    """The same, of another column."""
    _spent[0] += COST
    return value % 2 == 0
