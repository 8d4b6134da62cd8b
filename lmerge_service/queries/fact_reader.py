"""Facts as events: what a source of a plan takes in.

    >>> from lmerge_service.queries.plan import facts
    >>> flights = facts("flights", time="time", fields={"origin": str, "delay": int})
    >>> reader = FactReader(flights.plan)
    >>> reader.event({"time": 7, "origin": "JFK", "delay": 20})
    Insert(payload=('JFK', 20), vs=7, ve=8)
    >>> reader.event({"time": "noon", "origin": "JFK"})
    Refusal(reason=<RefusalReason.WRONG_TYPE: 'wrong_type'>, column='time', value="'noon'")

Which facts are late, and how far a source has come, is decided where partitions and offsets are
known; here a fact is read by itself.
"""

from collections.abc import Mapping

from lmerge_service.elements import INFINITY, START, Insert
from lmerge_service.queries.compiling import Faults, condition
from lmerge_service.queries.logical import Source
from lmerge_service.queries.rows import (
    Kind,
    Refusal,
    RefusalReason,
    Row,
    Schema,
    described,
    taken,
)

__all__ = ("FactReader",)


class FactReader:
    """Reads the facts of one source.

    `headroom` is how far a plan moves times (`logical.headroom`): facts of times so near to the
    ends of int64 are refused, so that no operator meets a time beyond them.
    """

    __slots__ = ("_beats", "_ends", "_least", "_most", "faults", "source")

    def __init__(self, source: Source, headroom: int = 1) -> None:
        self.source = source
        self.faults = Faults()
        self._least, self._most = START + headroom, INFINITY - headroom
        self._ends, self._beats = [
            None if tree is None else condition(tree, source.fields, self.faults)
            for tree in (source.ends, source.heartbeats)
        ]

    @property
    def schema(self) -> Schema:
        """The columns of its rows."""
        return self.source.fields

    def read(self, fact: object) -> Insert[Row] | Refusal | int:
        """The event of a fact, or why it is none; of one that only moves its partition to a time
        (`heartbeats`, `ends`) that time: INFINITY, if nothing comes after it."""
        row = self.schema.row(fact)
        if isinstance(row, Refusal):
            return row
        if self.ends(row):
            return INFINITY
        assert isinstance(fact, Mapping)
        return self.time(fact) if self.is_heartbeat(row) else self._event(row, fact)

    def event(self, fact: object) -> Insert[Row] | Refusal:
        """The event of a fact, a decoded JSON object; or why it is none."""
        row = self.schema.row(fact)
        if isinstance(row, Refusal):
            return row
        assert isinstance(fact, Mapping)
        return self._event(row, fact)

    def _event(self, row: Row, fact: Mapping[str, object]) -> Insert[Row] | Refusal:
        vs = self._time(fact, self.source.time)
        if isinstance(vs, Refusal):
            return vs
        if self.source.until is None:
            return Insert(row, vs, vs + 1)
        ve = self._time(fact, self.source.until)
        if isinstance(ve, Refusal):
            return ve
        if ve <= vs:
            return Refusal(RefusalReason.NOT_A_FACT, self.source.until, described(ve))
        return Insert(row, vs, ve)

    def ends(self, row: Row) -> bool:
        """Whether the row's fact ends its partition."""
        return self._ends is not None and self._ends(row)

    def is_heartbeat(self, row: Row) -> bool:
        """Whether the row's fact is no event, and only its time counts."""
        return self._beats is not None and self._beats(row)

    def time(self, fact: Mapping[str, object]) -> int | Refusal:
        """The time of a fact, or why it has none."""
        return self._time(fact, self.source.time)

    def _time(self, fact: Mapping[str, object], member: str) -> int | Refusal:
        value = fact.get(member)
        if value is None:
            return Refusal(RefusalReason.NOT_A_FACT, member, described(value))
        time = taken(value, Kind.INT)
        if time is RefusalReason.OVERFLOW or (
            type(time) is int and not self._least <= time <= self._most
        ):
            return Refusal(RefusalReason.TIME_OVERFLOW, member, described(value))
        if isinstance(time, RefusalReason):
            return Refusal(time, member, described(value))
        return int(time)
