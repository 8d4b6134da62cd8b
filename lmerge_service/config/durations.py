"""Durations as people write them in configuration: 90s, 30m, 12h, 7d."""

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

__all__ = ("Seconds", "seconds_of")

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_LONGEST: Final = 100 * 366 * 86_400


def seconds_of(text: Any) -> Any:
    """The seconds of a duration; whatever is no text is left as it is.

    >>> seconds_of("90s"), seconds_of("7d"), seconds_of(60)
    (90, 604800, 60)

    Raises:
        ValueError: it is none.
    """
    if not isinstance(text, str):
        return text
    if (match := re.fullmatch(r"(\d{1,12})([smhd])", text.strip())) is None:
        raise ValueError(f"a duration is a number and a unit, as 90s, 30m, 12h or 7d, not {text!r}")
    return int(match[1]) * _UNITS[match[2]]


Seconds = Annotated[int, BeforeValidator(seconds_of), Field(ge=1, le=_LONGEST)]
"""A duration in seconds, of which the file may also have the text."""
