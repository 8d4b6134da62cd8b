"""Record headers by which a replica declares that it has started over, or that it repeats itself.

`lmerge-incarnation` is a decimal integer (absent means 0) on every record of that incarnation;
`lmerge-joining-at`, beside it, is the time from which the incarnation is correct (absent means
from the beginning of time).

`lmerge-seq` is for a writer that delivers at least once, and writes the same again after a crash:
a decimal integer from 1 on that rises, from record to record of one partition and one
incarnation. What a number that does not rise means is `repeats`'.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ElementError

__all__ = (
    "INCARNATION_HEADER",
    "JOINING_AT_HEADER",
    "SEQ_HEADER",
    "RecordLike",
    "TimedRecord",
    "incarnation_headers",
    "incarnation_of",
    "seq_of",
)

INCARNATION_HEADER: Final = "lmerge-incarnation"
JOINING_AT_HEADER: Final = "lmerge-joining-at"
SEQ_HEADER: Final = "lmerge-seq"

_MAX_INCARNATION = 2**63 - 1


class RecordLike(Protocol):
    """What is needed of a Kafka record."""

    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


class TimedRecord(RecordLike, Protocol):
    """One whose own time counts too."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch; -1 where there is none."""


def incarnation_headers(incarnation: int, joining_at: int = START) -> list[tuple[str, bytes]]:
    """The headers for every record of an incarnation; none for the first, correct throughout.

    >>> incarnation_headers(1, 100)
    [('lmerge-incarnation', b'1'), ('lmerge-joining-at', b'100')]
    """
    headers = []
    if incarnation:
        headers.append((INCARNATION_HEADER, b"%d" % incarnation))
    if joining_at != START:
        headers.append((JOINING_AT_HEADER, b"%d" % joining_at))
    return headers


def incarnation_of(headers: Sequence[tuple[str, bytes]]) -> tuple[int, int]:
    """(incarnation, joining_at) of a record, by its headers.

    Raises:
        ElementError: a header is there but is not a decimal integer in range.
    """
    incarnation, joining_at = 0, START
    for name, value in headers:
        if name == INCARNATION_HEADER:
            incarnation = _decimal(name, value, 0, _MAX_INCARNATION)
        elif name == JOINING_AT_HEADER:
            joining_at = _decimal(name, value, START, INFINITY - 1)
    if joining_at != START and incarnation == 0:
        # Taken for correct from the beginning, it would make the output lose what it lacks.
        raise ElementError("header", f"{JOINING_AT_HEADER} needs {INCARNATION_HEADER} beside it")
    return incarnation, joining_at


def seq_of(headers: Sequence[tuple[str, bytes]]) -> int | None:
    """The number of a record whose writer numbers them.

    Raises:
        ElementError: the header is there but is not a decimal integer from 1 on.
    """
    for name, value in headers:
        if name == SEQ_HEADER:
            return _decimal(name, value, 1, _MAX_INCARNATION)
    return None


def _decimal(name: str, value: bytes | None, low: int, high: int) -> int:
    text = value or b""
    digits = text.removeprefix(b"-")
    if not (digits.isdigit() and len(digits) <= 19 and low <= int(text) <= high):
        raise ElementError("header", f"header {name} is not an integer from {low} on: {value!r}")
    return int(text)
