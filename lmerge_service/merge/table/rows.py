"""What elements of the output change in its table: rows, and removals of rows.

Theory
    Where (payload, vs) is a key (case R3), an element by itself determines its row: it has the
    new end. So nothing is remembered:

        insert(A,6,12)      row A,6 = [6,12)
        adjust(A,6,12→15)   row A,6 = [6,15)
        adjust(A,6,15→6)    no row A,6

    In a multiset (case R4) rows of equal events are numbered, so that it has to be known how many
    there are. They are counted here, and counts that no element can change any more are dropped:

        insert(A,6,12)      row A,6,12,0
        insert(A,6,12)      row A,6,12,1
        adjust(A,6,12→15)   no row A,6,12,1;  row A,6,15,0

    A table that begins is filled with what is live, in steps (`fill`, `step`). What an element
    changes meanwhile is written before its turn.

Invariants
    T1  Rows are in the order in which they are to be written: the last one of a key holds.
    T2  Once `filling` is false, the rows that were written are those of all live events.

Cost
    R3: 1.3 µs for an insert, whose record is the row's value as well, 0.5 more for an adjust; 0.2
    where the engine makes the rows, which are no objects then; no memory. R4: 3 µs, and some 300
    bytes for each live (payload, vs).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lmerge_service.core.batches import Row, rows_by_the_engine
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.formats.table import RowKeys
from lmerge_service.formats.wire import encode
from lmerge_service.tdb import Event

if TYPE_CHECKING:
    from lmerge_engine import Batch, Encoded

__all__ = ("KeyedRows", "MultisetRows", "Row", "Rows", "rows_of")

_Key: TypeAlias = tuple[bytes, int]
"""Payload and vs."""
_LogicalKey: TypeAlias = Callable[[bytes], bytes]

_SLACK: Final = 1_000
"""Counts are looked through for final ones when there are twice as many as the last time, and so
many more."""


class Rows(ABC):
    """Of one task."""

    def __init__(self, keys: RowKeys, logical_key: _LogicalKey) -> None:
        self.rows: list[Row] = []
        """To be written; whoever takes them, clears them."""
        self._key_of, self._keyed = keys.of, keys.keyed
        self._logical_key = logical_key
        self._missing: dict[_Key, Any] = {}
        """Events whose rows are missing."""

    @property
    def filling(self) -> bool:
        """Not all events have their rows yet."""
        return bool(self._missing)

    @abstractmethod
    def load(self, events: Iterable[Event]) -> None:
        """Begins with a table that has these events, which are all that are live."""

    @abstractmethod
    def take(self, elements: Sequence[Element], records: list[tuple[bytes | None, bytes]]) -> None:
        """Appends what elements change; `records` has their logical keys and their encoding."""

    def take_batch(self, batch: "Batch", records: "Encoded", begins: int) -> None:
        """The same of a batch of the engine, whose elements' records begin at that one."""
        self.take([*batch], records[begins:])

    @abstractmethod
    def fill(self, events: Iterable[Event]) -> None:
        """Begins with an empty table, which is to have these events."""

    @abstractmethod
    def step(self, count: int, size: int) -> None:
        """Appends rows that are missing: up to so many, of so many bytes more or less."""


def rows_of(keys: RowKeys, logical_key: _LogicalKey) -> Rows:
    """For a table of that kind; `logical_key` is that of a payload."""
    return MultisetRows(keys, logical_key) if keys.multiset else KeyedRows(keys, logical_key)


class KeyedRows(Rows):
    """Where (payload, vs) is a key; missing rows have their ends."""

    def load(self, events: Iterable[Event]) -> None:
        """See `Rows`: an element changes its row, whatever that is."""

    def take(self, elements: Sequence[Element], records: list[tuple[bytes | None, bytes]]) -> None:
        """See `Rows`."""
        rows, key_of, missing = self.rows, self._key_of, self._missing
        for element, (logical, record) in zip(elements, records, strict=True):
            if type(element) is Stable:
                continue
            payload, vs, ve = element.payload, element.vs, element.ve  # type: ignore[union-attr]
            value: bytes | None = record
            if type(element) is Adjust:
                value = None if ve == vs else encode(Insert(payload, vs, ve))
                if missing:
                    missing.pop((payload, vs), None)
            rows.append((key_of(logical, payload, vs, ve), value))

    def take_batch(self, batch: "Batch", records: "Encoded", begins: int) -> None:
        """See `Rows`. The engine makes the rows, unless some of them may be missing."""
        if self._missing:
            super().take_batch(batch, records, begins)
            return
        self.rows = rows = rows_by_the_engine(self.rows)
        rows.extend(batch, records, begins, self._keyed)

    def fill(self, events: Iterable[Event]) -> None:
        """See `Rows`."""
        self._missing = {(event.payload, event.vs): event.ve for event in events}  # type: ignore[misc]

    def step(self, count: int, size: int) -> None:
        """See `Rows`."""
        missing = self._missing
        while missing and count > 0 and size > 0:
            (payload, vs), ve = missing.popitem()
            value = encode(Insert(payload, vs, ve))
            self.rows.append((self._key_of(self._logical_key(payload), payload, vs, ve), value))
            count, size = count - 1, size - len(value)


class MultisetRows(Rows):
    """Where equal events are several."""

    def __init__(self, keys: RowKeys, logical_key: _LogicalKey) -> None:
        super().__init__(keys, logical_key)
        self._counts: dict[_Key, dict[int, int]] = {}
        """How many events end when, of those that are live; of others as well for a while."""
        self._stable = START
        self._kept = 0
        """How many counts were kept when they were looked through last."""

    def load(self, events: Iterable[Event]) -> None:
        """See `Rows`."""
        counts: dict[_Key, dict[int, int]] = {}
        for event in events:
            ends = counts.setdefault((event.payload, event.vs), {})  # type: ignore[arg-type]
            ends[event.ve] = ends.get(event.ve, 0) + 1
        self._counts, self._missing, self._kept = counts, {}, len(counts)

    def take(self, elements: Sequence[Element], records: list[tuple[bytes | None, bytes]]) -> None:
        """See `Rows`."""
        for element, (logical, record) in zip(elements, records, strict=True):
            if type(element) is Stable:
                self._stable = max(self._stable, element.vc)
                continue
            key: _Key = (element.payload, element.vs)  # type: ignore[union-attr]
            if key in self._missing:
                self._write(key)
            if type(element) is Insert:
                self._add(key, element.ve, logical, record)
            elif type(element) is Adjust:
                self._remove(key, element.vold, logical)
                if element.ve != element.vs:
                    value = encode(Insert(*key, element.ve))
                    self._add(key, element.ve, logical, value)
        if len(self._counts) > 2 * self._kept + _SLACK:
            self._drop_final()

    def _add(self, key: _Key, ve: int, logical: bytes | None, value: bytes) -> None:
        ends = self._counts.setdefault(key, {})
        number = ends.get(ve, 0)
        ends[ve] = number + 1
        self.rows.append((self._key_of(logical, *key, ve, number), value))

    def _remove(self, key: _Key, ve: int, logical: bytes | None) -> None:
        ends = self._counts[key]
        ends[ve] = number = ends[ve] - 1
        if not number:
            del ends[ve]
            if not ends:
                del self._counts[key]
        self.rows.append((self._key_of(logical, *key, ve, number), None))

    def _drop_final(self) -> None:
        stable, missing = self._stable, self._missing
        self._counts = {
            key: ends
            for key, ends in self._counts.items()
            if key in missing or (stable != INFINITY and max(ends) >= stable)
        }
        self._kept = len(self._counts)

    def fill(self, events: Iterable[Event]) -> None:
        """See `Rows`."""
        self.load(events)
        self._missing = dict.fromkeys(self._counts)

    def step(self, count: int, size: int) -> None:
        """See `Rows`."""
        while self._missing and count > 0 and size > 0:
            (payload, vs), _ = self._missing.popitem()
            written = self._write((payload, vs))
            count, size = count - written, size - written * len(payload)

    def _write(self, key: _Key) -> int:
        """The rows that an event's counts are; how many."""
        self._missing.pop(key, None)
        logical, written = self._logical_key(key[0]), 0
        for ve, events in self._counts.get(key, {}).items():
            value = encode(Insert(*key, ve))
            for number in range(events):
                self.rows.append((self._key_of(logical, *key, ve, number), value))
            written += events
        return written
