r"""Records of facts to events, many at once.

Theory
    `queries.fact_reader` defines which event a fact is, or why it is none. It takes a decoded JSON
    object, and reading that column by column costs more than all that most plans do with it. So a
    type is made for the source, and msgspec reads the members that are needed straight into it, a
    batch in one call. What this refuses, and what is no common case (a number with another form,
    an integer in a column of floats), is read by itself, in the defined way: the fast way never
    decides against a fact.

    >>> from lmerge_service.queries.plan import facts
    >>> flights = facts("flights", time="time", fields={"origin": str, "delay": int})
    >>> decoder = FactDecoder(flights.plan)
    >>> for fact in decoder.decode([b'{"time":7,"origin":"JFK","delay":20}', b'{"time":7.5}']):
    ...     print(fact)
    Insert(payload=('JFK', 20), vs=7, ve=8)
    Refusal(reason=<RefusalReason.WRONG_TYPE: 'wrong_type'>, column='time', value='7.5')

Invariants
    D1  Of each record: what `FactReader` makes of `json.loads` of it (NaN and all), or `END` if the
        fact ends its partition, or a `Heartbeat`; a record that is no JSON object is `not_a_fact`.
    D2  It does not depend on which records are decoded together.

Cost
    About 1.2 µs a fact of 100 bytes and three columns.
"""

import json
from collections.abc import Callable, Sequence
from enum import Enum
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from lmerge_service.elements import INFINITY, START, Insert
from lmerge_service.queries.fact_reader import FactReader
from lmerge_service.queries.logical import Source
from lmerge_service.queries.rows import Kind, Refusal, RefusalReason, Row, described
from lmerge_service.replicas.encoding import is_plain
from lmerge_service.replicas.typed_rows import TIME, TYPES, decoded_lines, with_floats

__all__ = ("END", "Fact", "FactDecoder", "Heartbeat")


class _End(Enum):
    END = "end"


END: Final = _End.END
"""A fact behind which its partition has none."""


class Heartbeat(NamedTuple):
    """A fact that is no event, and moves its partition to its time."""

    vs: int


Fact: TypeAlias = Insert[Row] | Refusal | Heartbeat | Literal[_End.END]


class FactDecoder:
    """Of the records of one source. `headroom` is as for `FactReader`."""

    def __init__(self, source: Source, headroom: int = 1) -> None:
        self._reader = FactReader(source, headroom)
        self._least, self._most = START + headroom, INFINITY - headroom
        columns = list(source.fields)
        members = [*source.fields.names]
        fields: list[tuple[str, Any, Any]] = [
            (f"c{at}", TYPES[column.kind], None) for at, column in enumerate(columns)
        ]
        for time in (source.time, source.until):
            if time is not None and time not in members:
                fields.append((f"c{len(members)}", TIME | None, None))
                members.append(time)
        self._decoder: msgspec.json.Decoder[Any] | None = None
        if all(map(is_plain, members)):
            rename = {f"c{at}": name for at, name in enumerate(members)}
            made = msgspec.defstruct("Fact", fields, rename=rename, gc=False)
            self._decoder = msgspec.json.Decoder(made)
        self._width = len(columns)
        self._is_wider = len(members) > self._width
        self._vs = itemgetter(members.index(source.time))
        self._ve = None if source.until is None else itemgetter(members.index(source.until))
        self._floats = [at for at, column in enumerate(columns) if column.kind is Kind.FLOAT]
        self._ends: Callable[[Row], bool] | None = self._reader.ends if source.ends else None
        beats = self._reader.is_heartbeat if source.heartbeats else None
        self._beats: Callable[[Row], bool] | None = beats

    def decode(self, values: Sequence[bytes | None]) -> list[Fact]:
        """What each record's value is."""
        found = decoded_lines(self._decoder, values)
        if found is None:
            return [self._by_itself(value) for value in values]
        return [
            self._event(msgspec.structs.astuple(each)) or self._defined(value)
            for each, value in zip(found, values, strict=True)
        ]

    def _by_itself(self, value: bytes | None) -> Fact:
        if self._decoder is None:
            return self._defined(value)
        try:
            if value is not None and (value.isascii() or value.decode()):
                each = self._decoder.decode(value)
                return self._event(msgspec.structs.astuple(each)) or self._defined(value)
        except (ValueError, msgspec.MsgspecError, RecursionError):
            pass  # it is read in the defined way, which has the reason
        return self._defined(value)

    def _event(self, items: Row) -> Fact | None:
        """The event of a fact in the common form; None: it needs a closer look."""
        if self._floats:
            floated = with_floats(items, self._floats)
            if floated is None:
                return None
            items = floated
        row = items[: self._width] if self._is_wider else items
        if self._ends is not None and self._ends(row):
            return END
        vs = self._vs(items)
        if vs is None or not self._least <= vs <= self._most:
            return None
        if self._beats is not None and self._beats(row):
            return Heartbeat(vs)
        if self._ve is None:
            return Insert(row, vs, vs + 1)
        ve = self._ve(items)
        if ve is None or not vs < ve <= self._most:
            return None
        return Insert(row, vs, ve)

    def _defined(self, value: bytes | None) -> Fact:
        """What a fact is by definition."""
        try:
            fact = json.loads((value or b"").decode())
        except (ValueError, RecursionError):
            return Refusal(RefusalReason.NOT_A_FACT, None, described(value))
        found = self._reader.read(fact)
        if isinstance(found, int):
            return END if found == INFINITY else Heartbeat(found)
        return found
