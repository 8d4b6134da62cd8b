"""The flights of 2013 as one logical stream: literal rows, then the data themselves."""

import json
import zipfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lmerge_service.elements import Adjust, Insert, Stable, defect
from lmerge_service.errors import EnvironmentMissingError
from lmerge_service.tdb import reconstitute
from lmerge_service.workloads import flights as module
from lmerge_service.workloads.flights import MINUTE, VARIATIONS, flights
from lmerge_service.workloads.lifetime import Life, final_tdb
from lmerge_service.workloads.presentation import present

pytestmark = pytest.mark.xdist_group("flights")  # the year is made once, not by each worker

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,"
    "flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)
AIRPORTS = """faa,name,lat,lon,alt,tz,dst,tzone
IAH,George Bush Intercontinental,29.98,-95.34,97,-6,A,America/Chicago
LAX,Los Angeles Intl,33.94,-118.40,126,-8,A,America/Los_Angeles
BOS,General Edward Lawrence Logan Intl,42.36,-71.00,19,-5,A,America/New_York
"""


def read(folder: Path, *rows: str, months: tuple[int, ...] = (1, 3, 11)) -> list[Life]:
    """The lives that `flights` makes of these rows."""
    (folder / "airports.csv").write_text(AIRPORTS)
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join((HEADER, *rows)))
    return list(flights(months, folder))


def flight_number(life: Life) -> int:
    assert isinstance(life.payload, bytes)
    return int(json.loads(life.payload)["flight"])


def clocks(life: Life) -> list[str]:
    """vs and the ends as day and time, UTC."""
    return [f"{datetime.fromtimestamp(t / 1000, UTC):%d %H:%M}" for t in (life.vs, *life.ends)]


@pytest.mark.parametrize(
    ("what", "row", "expected"),
    [
        (
            "schedule, delayed departure, arrival; the destination's clock is an hour behind",
            "2013,1,1,517,515,2,830,819,11,UA,1,N1,EWR,IAH,227,1400,5,15,",
            ["01 10:15", "01 14:19", "01 14:21", "01 14:30"],
        ),
        (
            "over midnight, to an airport that airports.csv lacks",
            "2013,1,1,2358,2359,-1,340,345,-5,B6,1,N1,JFK,BQN,195,1576,23,59,",
            ["02 04:59", "02 07:45", "02 07:44", "02 07:40"],
        ),
        (
            "over midnight in UTC only",
            "2013,1,1,2100,2100,0,2359,2359,0,B6,1,N1,JFK,LAX,330,2475,21,0,",
            ["02 02:00", "02 07:59", "02 07:59", "02 07:59"],
        ),
        (
            "cancelled",
            "2013,1,1,NA,600,NA,NA,815,NA,UA,1,NA,EWR,IAH,NA,1400,6,0,",
            ["01 11:00", "01 14:15", "01 11:00"],
        ),
        (
            "diverted, arrived the next morning",
            "2013,1,1,2200,2200,0,130,2300,NA,UA,1,N1,EWR,BOS,NA,200,22,0,",
            ["02 03:00", "02 04:00", "02 04:00", "02 06:30"],
        ),
        (
            "left so late that the first time on the clock is that of the next day",
            "2013,1,1,1000,600,240,830,700,NA,UA,1,N1,EWR,BOS,NA,200,6,0,",
            ["01 11:00", "01 12:00", "01 16:00", "02 13:30"],
        ),
        (
            "diverted, not known to have arrived",
            "2013,1,1,610,600,10,NA,700,NA,UA,1,N1,EWR,BOS,NA,200,6,0,",
            ["01 11:00", "01 12:00", "01 12:10", "01 12:10"],
        ),
        (
            "arrival at 2400",
            "2013,1,1,2200,2200,0,2400,2300,NA,UA,1,N1,EWR,BOS,NA,200,22,0,",
            ["02 03:00", "02 04:00", "02 04:00", "02 05:00"],
        ),
        (
            "through the night in which summer time begins",
            "2013,3,9,2359,2359,0,359,359,0,UA,1,N1,EWR,BOS,NA,200,23,59,",
            ["10 04:59", "10 07:59", "10 07:59", "10 07:59"],
        ),
        (
            "through the night in which it ends",
            "2013,11,2,2359,2359,0,259,259,0,UA,1,N1,EWR,BOS,NA,200,23,59,",
            ["03 03:59", "03 07:59", "03 07:59", "03 07:59"],
        ),
    ],
)
def test_a_row_becomes_a_life_in_utc(
    tmp_path: Path, what: str, row: str, expected: list[str]
) -> None:
    [life] = read(tmp_path, row)
    assert clocks(life) == expected


def test_the_payload_is_canonical_json_and_an_unknown_tail_is_null(tmp_path: Path) -> None:
    [life] = read(tmp_path, "2013,1,1,NA,600,NA,NA,815,NA,UA,12,NA,EWR,IAH,NA,1400,6,0,")
    assert life.payload == (
        b'{"carrier":"UA","date":"2013-01-01","dest":"IAH","flight":12,"origin":"EWR","tail":null}'
    )


def test_lives_come_in_order_and_only_of_the_months_asked_for(tmp_path: Path) -> None:
    row = "2013,{},{},610,600,10,700,700,10,UA,{},N1,EWR,BOS,NA,200,6,0,"
    rows = [row.format(*of) for of in ((11, 1, 1), (1, 2, 3), (1, 1, 5), (1, 1, 4), (3, 1, 6))]
    lives = read(tmp_path, *rows, months=(1, 11))
    assert [flight_number(life) for life in lives] == [4, 5, 3, 1]


def test_a_month_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="months"):
        flights((0,))


def test_without_the_package_the_remedy_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentMissingError, match=r"pip install 'lmerge-service\[demo\]'$"):
        flights((1,))


# The data themselves


@pytest.fixture(scope="module")
def year() -> list[Life]:
    return list(flights())


@pytest.fixture(scope="module")
def week(year: list[Life]) -> list[Life]:
    return [life for life in year if life.vs < year[0].vs + 7 * 24 * 60 * MINUTE]


@pytest.mark.full
def test_the_year_is_whole(year: list[Life]) -> None:
    assert len(year) == 336_776
    assert sum(not life.is_event for life in year) == 8_255


@pytest.mark.full
def test_payload_and_vs_are_a_key_over_the_year_and_payloads_alone_are(year: list[Life]) -> None:
    assert len({life.payload for life in year}) == len(year)


def test_the_year_is_in_order_of_departure_and_payload(year: list[Life]) -> None:
    keys = [(life.vs, str(life.payload)) for life in year]
    assert keys == sorted(keys)


@pytest.mark.full
def test_every_flight_takes_a_time_that_a_flight_can_take(year: list[Life]) -> None:
    scheduled = [(life.ends[0] - life.vs) // MINUTE for life in year]
    assert (min(scheduled), max(scheduled)) == (50, 700)
    final = [(life.ve - life.vs) // MINUTE for life in year if life.is_event]
    assert (min(final), max(final) < 40 * 60) == (18, True)


@pytest.mark.parametrize("name", VARIATIONS)
def test_each_replica_of_the_demo_is_legal_and_equivalent(week: list[Life], name: str) -> None:
    elements = list(present(week, VARIATIONS[name], 1))
    assert not any(map(defect, elements))
    assert reconstitute(elements) == final_tdb(week)


def test_the_replicas_differ_as_they_are_meant_to(week: list[Life]) -> None:
    streams = {name: list(present(week, each, 1)) for name, each in VARIATIONS.items()}
    counts = {name: Counter(map(type, elements)) for name, elements in streams.items()}
    vs = {name: [e.vs for e in elements if type(e) is Insert] for name, elements in streams.items()}
    assert vs["A"] == sorted(vs["A"])
    assert vs["C"] != sorted(vs["C"])
    assert counts["B"][Insert] > len(week) == counts["A"][Insert] == counts["C"][Insert]
    assert counts["B"][Adjust] > 2 * counts["A"][Adjust]
    assert counts["B"][Stable] > counts["A"][Stable] > counts["C"][Stable] > 10
