"""The query of the demo of fast-forward: readings that came whole, by either of two functions, of
which each is dear for half of the values (the paper's VI-E3).

Theory
    Both functions compute the same, so that a plan may call either. What they take is a wait: it
    stands for work that is done elsewhere, a function that has half of what it needs at hand and
    must request the other half. Whoever runs the query waits, unless it gives a `Ledger` that the
    waits are entered in instead (`entered_in`), and waits for them itself.

    >>> ledger = Ledger()
    >>> with entered_in(ledger):
    ...     is_whole_0(799992023, "40f0657a530b", 110), is_whole_1(1, "40f0657a530b", 110)
    (True, False)
    >>> ledger.expensive, ledger.cheap, round(ledger.seconds, 4)
    (1, 1, 0.0016)
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from zlib import crc32

from lmerge_service.queries.expressions import col, udf
from lmerge_service.queries.plan import elements
from lmerge_service.workloads.readings import LOW

__all__ = ("Costs", "Ledger", "entered_in", "is_whole_0", "is_whole_1", "readings", "whole")

_HERE = "lmerge_service.demo.whole_readings"

readings = elements("readings", {"check": int, "data": str, "n": int, "x": int})
whole = readings.where(
    udf(
        f"{_HERE}:is_whole_0",
        *(col.check, col.data, col.x),
        returns=bool,
        also=[f"{_HERE}:is_whole_1"],
    )
)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that a reading takes: 200,000, half of them expensive, take 160."""

    cheap: float = 0.000_1
    expensive: float = 0.001_5


@dataclass(slots=True)
class Ledger:
    """How many readings were cheap, how many expensive, and what they took."""

    costs: Costs = field(default_factory=Costs)
    cheap: int = 0
    expensive: int = 0
    seconds: float = 0.0

    def nanoseconds(self) -> int:
        """What they took: a clock that only moves while a function works."""
        return round(self.seconds * 1e9)


_ledger: ContextVar[Ledger | None] = ContextVar("ledger", default=None)


@contextmanager
def entered_in(ledger: Ledger) -> Iterator[None]:
    """Waits are entered in it meanwhile, and not waited for."""
    token = _ledger.set(ledger)
    try:
        yield
    finally:
        _ledger.reset(token)


def is_whole_0(check: int, data: str, x: int) -> bool:
    """Whether a reading came whole; takes long for small x."""
    _work(expensive=x in LOW)
    return crc32(data.encode()) == check


def is_whole_1(check: int, data: str, x: int) -> bool:
    """The same; takes long for large x."""
    _work(expensive=x not in LOW)
    return crc32(data.encode()) == check


def _work(*, expensive: bool) -> None:
    ledger = _ledger.get()
    costs = Costs() if ledger is None else ledger.costs
    seconds = costs.expensive if expensive else costs.cheap
    if ledger is None:
        time.sleep(seconds)
        return
    ledger.seconds += seconds
    if expensive:
        ledger.expensive += 1
    else:
        ledger.cheap += 1
