r"""Open and close elements (Example 3 of the paper): a start, and an end that may be revised.

Theory
    {"op":"open","payload":…,"vs":1}           the event ⟨payload, [1, ∞)⟩
    {"op":"close","payload":…,"vs":1,"ve":4}   ends at 4; a later close revises the earlier one
    {"op":"stable","vc":7}

    An end that is null opens the event again, one that is vs removes it. Where `vs` is left out,
    as in the paper, a close is about the event of its payload that was opened last. An open of an
    event that is open, or has its end already, changes nothing: so a repeated record, or a repeated
    run of them, does no harm. Where stable follows the latest time seen, opens alone count: an
    end may lie ahead.

Invariants
    O1  Kept is per payload the end of each event with ve >= stable. An event goes with the first
        stable beyond its end, or when it is removed.
"""

import heapq
from collections.abc import Sequence
from typing import Final

import msgspec

from lmerge_service.elements import INFINITY, Adjust, Element, Insert
from lmerge_service.errors import ElementError, StateError
from lmerge_service.formats.dialects.horizon import Horizon
from lmerge_service.formats.dialects.options import OpenClose
from lmerge_service.formats.dialects.reading import Fields, Reader, end, malformed, time, word
from lmerge_service.formats.dialects.tables import RowChange
from lmerge_service.formats.headers import TimedRecord
from lmerge_service.formats.reasons import Reason

__all__ = ("OpenCloseDecoder",)

_VERSION: Final = 1
_FIELDS: Final = {
    "open": {"op", "payload", "vs"},
    "close": {"op", "payload", "vs", "ve"},
    "stable": {"op", "vc"},
}


class OpenCloseDecoder:
    """Events by payload, each with its present end."""

    name = "openclose"

    def __init__(self, options: OpenClose, reader: Reader) -> None:
        self._reader = reader
        self._horizon = Horizon(options.stable)
        self._ends: dict[bytes, dict[int, int]] = {}
        """payload -> vs -> ve, in the order in which events were opened."""
        self._due: list[tuple[int, bytes, int]] = []
        """A heap of (ve, payload, vs) of events that have an end."""
        self.changes: Sequence[RowChange] = ()
        """Always none: equal payloads may be several events."""

    @property
    def stable(self) -> int:
        """The own stable."""
        return self._horizon.stable

    @property
    def latest(self) -> int:
        """The latest time seen."""
        return self._horizon.latest

    def holds(self, key: bytes) -> bool:
        """There are no keys."""
        return False

    def decode(self, record: TimedRecord) -> Sequence[Element]:
        """The elements of an open, close or stable, in the form of the paper's Example 3.

        Raises:
            ElementError: it is no such record, or closes what is not open.
        """
        if record.value is None:
            raise ElementError(Reason.TOMBSTONE, "a record without a value is no element")
        fields = self._reader.fields(record.value)
        op = word(fields, "op")
        if op not in _FIELDS:
            raise malformed("op must be open, close or stable")
        if unknown := fields.keys() - _FIELDS[op]:
            raise malformed(f"{op} has no field {min(unknown)[:100]!a}")
        if op == "stable":
            return self._moved(self._horizon.reach(end(fields.get("vc"), "vc")))
        if "payload" not in fields:
            raise malformed("payload is missing")
        payload = self._reader.row(fields["payload"])
        return self._open(payload, fields) if op == "open" else self._close(payload, fields)

    def _open(self, payload: bytes, fields: Fields) -> Sequence[Element]:
        vs = time(fields.get("vs"), "vs")
        if vs in self._ends.get(payload, ()):
            return []
        self._horizon.admit(vs)
        self._ends.setdefault(payload, {})[vs] = INFINITY
        return self._moved([Insert(payload, vs, INFINITY), *self._horizon.see(vs)])

    def _close(self, payload: bytes, fields: Fields) -> Sequence[Element]:
        ve = end(fields.get("ve"), "ve")
        ends = self._ends.get(payload, {})
        vs = time(fields["vs"], "vs") if "vs" in fields else next(reversed(ends), None)
        if vs is None or vs not in ends:
            raise ElementError(Reason.UNKNOWN_EVENT, "no such event is open, or it is final")
        if ve < vs:
            raise malformed(f"an event cannot end before it begins, got vs={vs}, ve={ve}")
        if ve == (vold := ends[vs]):
            return []
        self._horizon.admit(min(vold, ve))
        self._end(payload, vs, ve)
        return self._moved([Adjust(payload, vs, vold, ve)])

    def _end(self, payload: bytes, vs: int, ve: int) -> None:
        if ve > vs:
            self._ends[payload][vs] = ve
            heapq.heappush(self._due, (ve, payload, vs))
        else:
            self._drop(payload, vs)

    def _drop(self, payload: bytes, vs: int) -> None:
        ends = self._ends[payload]
        del ends[vs]
        if not ends:
            del self._ends[payload]

    def _moved(self, elements: Sequence[Element]) -> Sequence[Element]:
        c = self._horizon.stable
        while self._due and self._due[0][0] < c:
            ve, payload, vs = heapq.heappop(self._due)
            if self._ends.get(payload, {}).get(vs) == ve:
                self._drop(payload, vs)
        if c == INFINITY:
            self._ends.clear()
            self._due.clear()
        return elements

    def snapshot(self) -> bytes:
        """The state as msgpack, with the dialect's name and a version."""
        ends = [(payload, list(ends.items())) for payload, ends in self._ends.items()]
        state = self._horizon.stable, self._horizon.latest, ends
        return msgspec.msgpack.encode((_VERSION, self.name, state))

    def restore(self, saved: bytes) -> None:
        """Reads what `snapshot` wrote.

        Raises:
            StateError: it is damaged, or of another dialect or version.
        """
        try:
            version, name, state = msgspec.msgpack.decode(saved)
            if (version, name) != (_VERSION, self.name):
                raise StateError(f"not a snapshot of dialect {self.name}, version {_VERSION}")
            self._horizon.stable, self._horizon.latest, ends = state
            self._ends = {payload: dict(pairs) for payload, pairs in ends}
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise StateError(f"the snapshot of dialect {self.name} is damaged: {error}") from error
        self._due = [
            (ve, payload, vs)
            for payload, pairs in self._ends.items()
            for vs, ve in pairs.items()
            if ve < INFINITY
        ]
        heapq.heapify(self._due)

    def check(self) -> None:
        """Asserts the invariants of the module's text."""
        due = set(self._due)
        for payload, ends in self._ends.items():
            assert ends, "O1: a payload is kept without events"
            for vs, ve in ends.items():
                assert vs < ve, "an event is never valid"
                assert ve >= self._horizon.stable, "O1: a final event is kept"
                assert ve == INFINITY or (ve, payload, vs) in due, "O1: no stable will visit it"
