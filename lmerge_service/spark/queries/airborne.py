r"""Intervals that begin and end by facts of their own, with forecasts: flights in the air.

Theory
    An event is a flight from its actual departure d to its actual arrival a; one that has not
    arrived after `limit` is taken to have ended then. So the TDB is a function of the facts that
    count, whatever their order:

        ⟨flight, [d, a)⟩   for each departed(d), a the least arrived with d < a <= d + limit,
                           else d + limit

    *Early* emits more than that, and retracts it in time: a flight is announced by its schedule,
    which is withdrawn when it departs at another time, is cancelled, or has not departed when the
    watermark passes; the arrival is first what is expected on departure, and the limit once the
    watermark has passed that. *Final* emits a flight when its arrival is final. Since its departure
    lies far back by then, the stable waits for the earliest flight that is still in the air.

        scheduled 8:00–10:00   departed 8:20, expected 10:20   watermark 10:30  arrived 10:40
        insert [8:00, 10:00)   remove it, insert [8:20, 10:20)  adjust to limit  adjust to 10:40

Invariants
    A1  An emitted event that may still change ends at the stable or later; an announcement begins
        there.
    A2  Of final flights nothing is kept.
    A3  The early plan can recover everything it needs about facts below a stable from the output
        up to it: a flight that begins below it has departed, one that begins there is announced,
        and has departed if there is such a fact that is not below.

Cost
    Linear in the flights that are announced or in the air, per batch.
"""

from dataclasses import dataclass
from typing import Any, Self

import msgspec

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.formats.payload import canonical
from lmerge_service.spark.queries.plans import Operator, QueryPlan, Row
from lmerge_service.tdb import TDB

__all__ = ("Airborne",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Airborne:
    """The shape; rows are facts `scheduled`, `cancelled`, `departed` and `arrived` with columns
    `fact`, `departs`, `arrives` and the fields of the payload."""

    fields: tuple[str, ...]
    limit: int

    @property
    def memory(self) -> int:
        return self.limit

    def begin(self, plan: QueryPlan) -> Operator:
        return _Early(self, plan.grid) if plan.early else _Final(self, plan.grid)

    def resume(self, plan: QueryPlan, output: TDB) -> Operator | None:
        return _Early(self, plan.grid).restore(output) if plan.early else None


class _Journey(msgspec.Struct):
    """What is known of a flight that departed, or only of its arrival."""

    departed: bool = False
    expected: int = START
    arrived: int | None = None
    left_out: bool = False
    """For feedback's sake, for good."""


class _Flights:
    """What both have in common: departures and arrivals."""

    def __init__(self, shape: Airborne, grid: int) -> None:
        self.shape = shape
        self.skipped = 0
        self._grid = grid
        self._stable = START
        self._journeys: dict[tuple[bytes, int], _Journey] = {}

    def __len__(self) -> int:
        return len(self._journeys)

    def take(self, time: int, row: Row, point: int) -> None:
        fields = {name: row.get(name) for name in self.shape.fields}
        flight = canonical(msgspec.json.encode(fields))
        if row["fact"] == "departed":
            journey = self._journey(flight, time)
            journey.departed = True
            journey.expected = max(journey.expected, row.get("arrives") or START)
            self._forecast(flight, None)
        elif row["fact"] == "arrived" and (departs := row.get("departs")) is not None:
            if departs < time <= departs + self.shape.limit:
                journey = self._journey(flight, departs)
                known = journey.arrived
                journey.arrived = time if known is None else min(time, known)
        elif row["fact"] == "cancelled":
            self._forecast(flight, None)
        elif row["fact"] == "scheduled":
            self._forecast(flight, row)

    def _journey(self, flight: bytes, departs: int) -> _Journey:
        return self._journeys.setdefault((flight, departs), _Journey())

    def _forecast(self, flight: bytes, row: Row | None) -> None:
        """Takes a schedule, until something else is known; for the early plan."""

    def _end(self, departs: int, journey: _Journey) -> int:
        return departs + self.shape.limit if journey.arrived is None else journey.arrived

    def _target(self, watermark: int) -> int:
        """The stable that the watermark allows."""
        on_grid = (
            watermark if watermark in (START, INFINITY) else watermark // self._grid * self._grid
        )
        return max(on_grid, self._stable)

    def _rise(self, stable: int) -> list[Element]:
        if stable <= self._stable:
            return []
        self._stable = stable
        return [Stable(stable)]

    def _forget_orphans(self, watermark: int) -> None:
        """Arrivals whose departure cannot come any more."""
        for key, journey in list(self._journeys.items()):
            if not journey.departed and key[1] < watermark:
                del self._journeys[key]

    def save(self) -> Any:
        journeys = [
            [flight, departs, journey] for (flight, departs), journey in self._journeys.items()
        ]
        return [self._stable, journeys]

    def load(self, saved: Any) -> None:
        self._stable, journeys = saved
        self._journeys = {
            (flight, departs): msgspec.convert(journey, _Journey)
            for flight, departs, journey in journeys
        }


class _Early(_Flights):
    """Emits what is to be expected, and revises it."""

    def __init__(self, shape: Airborne, grid: int) -> None:
        super().__init__(shape, grid)
        self._announced: dict[bytes, tuple[int, int]] = {}
        self._emitted: dict[tuple[bytes, int], int] = {}

    def restore(self, output: TDB) -> Self:
        """A3. One plan can go on from the output of another: all mean the same."""
        self._stable = output.stable
        for flight, vs, ve in output:
            assert isinstance(flight, bytes)
            if ve < output.stable:
                continue
            self._emitted[flight, vs] = ve
            if vs < output.stable:
                self._journeys[flight, vs] = _Journey(departed=True, expected=ve)
            else:
                self._announced[flight] = vs, ve
        return self

    def __len__(self) -> int:
        return len(self._journeys) + len(self._announced)

    def _forecast(self, flight: bytes, row: Row | None) -> None:
        self._announced.pop(flight, None)
        if row is not None and (vs := row.get("departs")) is not None:
            ve = row.get("arrives") or vs
            self._announced[flight] = vs, ve if ve > vs else vs + self.shape.limit

    def advance(self, watermark: int, point: int) -> list[Element]:
        stable = self._target(watermark)
        desired = self._desired(stable, point)
        elements: list[Element] = []
        for flight, vs in sorted({*desired, *self._emitted}, key=lambda key: (key[1], key[0])):
            old, new = self._emitted.get((flight, vs)), desired.get((flight, vs))
            if old is None and new is not None:
                elements.append(Insert(flight, vs, new))
            elif old is not None and old != new:
                elements.append(Adjust(flight, vs, old, vs if new is None else new))
        self._emitted = desired
        self._forget(stable)
        return elements + self._rise(stable)

    def _desired(self, stable: int, point: int) -> dict[tuple[bytes, int], int]:
        """The events to hold once this batch is emitted; A1 for the new stable."""
        desired = {}
        for (flight, departs), journey in self._journeys.items():
            if not journey.departed or journey.left_out:
                continue
            end = self._end(departs, journey)
            if end < point and (flight, departs) not in self._emitted:
                self.skipped += 1
                journey.left_out = True
                continue
            if journey.arrived is None and departs < journey.expected >= stable:
                end = min(end, journey.expected)
            desired[flight, departs] = end
        in_the_air = {flight for flight, _ in desired}
        for flight, (vs, ve) in list(self._announced.items()):
            if vs < stable or flight in in_the_air:
                del self._announced[flight]
            elif vs + self.shape.limit >= point:
                desired[flight, vs] = max(ve, vs + 1)
        return desired

    def _forget(self, stable: int) -> None:
        for key, journey in list(self._journeys.items()):
            if journey.departed and self._end(key[1], journey) < stable:
                del self._journeys[key]
                self._emitted.pop(key, None)
        self._forget_orphans(stable)

    def save(self) -> Any:
        announced = [[flight, *ends] for flight, ends in self._announced.items()]
        emitted = [[*key, ve] for key, ve in self._emitted.items()]
        return [super().save(), announced, emitted]

    def load(self, saved: Any) -> None:
        common, announced, emitted = saved
        super().load(common)
        self._announced = {flight: (vs, ve) for flight, vs, ve in announced}
        self._emitted = {(flight, vs): ve for flight, vs, ve in emitted}


class _Final(_Flights):
    """Emits what is final."""

    def advance(self, watermark: int, point: int) -> list[Element]:
        elements: list[Insert[Any]] = []
        for (flight, departs), journey in list(self._journeys.items()):
            end = self._end(departs, journey)
            if not journey.departed or end >= watermark:
                continue
            del self._journeys[flight, departs]
            if end < point:
                self.skipped += 1
            else:
                elements.append(Insert(flight, departs, end))
        self._forget_orphans(watermark)
        elements.sort(key=lambda each: (each.vs, each.payload))
        waiting = [departs for (_, departs), each in self._journeys.items() if each.departed]
        return [*elements, *self._rise(min([self._target(watermark), *waiting]))]
