"""How times and untrusted text are shown to people."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ("NANOSECONDS", "moment", "printable", "shortened", "span")

NANOSECONDS: Final[Mapping[str, int]] = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
"""Of the units that times may count."""
_LONGEST: Final = 200


def moment(time: int, unit: str | None) -> str:
    """A time to the second, in UTC; the number where its unit is not known, or no calendar has it.

    >>> moment(1_357_020_000_500, "ms"), moment(120, "none"), moment(10**18, "s")
    ('2013-01-01 06:00:00', '120', '1000000000000000000')
    """
    if unit is None or unit not in NANOSECONDS:
        return str(time)
    try:
        found = datetime.fromtimestamp(time * NANOSECONDS[unit] // 10**9, UTC)
    except (OverflowError, ValueError, OSError):
        return str(time)
    return found.strftime("%Y-%m-%d %H:%M:%S")


def span(amount: int, unit: str | None) -> str:
    """How long something takes; the number where its unit is not known.

    >>> span(2_500, "ms"), span(-90, "s"), span(180_061, "s"), span(1_200, None), span(5, "us")
    ('2.5 s', '-0:01:30', '2d 2:01:01', '1,200', '<1 ms')
    """
    if unit is None or unit not in NANOSECONDS:
        return f"{amount:,}"
    seconds, sign = abs(amount) * NANOSECONDS[unit] / 10**9, "-" if amount < 0 else ""
    if 0 < seconds < 0.001:
        return f"{sign}<1 ms"
    if seconds < 59.95:
        return f"{sign}{seconds:.3g} s"
    days, rest = divmod(round(seconds), 86_400)
    return f"{sign}{f'{days:,}d ' if days else ''}{timedelta(seconds=rest)}"


def printable(text: str) -> str:
    r"""Untrusted text, escaped so that it cannot control the terminal.

    >>> printable("a\tday\x1b[2J ahead")
    'a\\tday\\x1b[2J ahead'
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def shortened(text: str) -> str:
    """At most a few lines of it: a payload may be a megabyte."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
