"""What a dialect's decoder is, and what those of changing tables share.

Theory
    A decoder turns the records of one partition, in order, into elements. It reads a record into
    changes first, then checks whether all of them come in time, and only then makes them: a record
    is taken whole or refused whole, and a refused one changes nothing.

Invariants
    X1  What it decodes to is a legal stream: it never breaks its own stable.
    X2  Its state is a function of the records decoded; `snapshot` is all of it. A decoder that
        is restored goes on as one that has read the whole prefix.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Protocol

import msgspec

from lmerge_service.elements import INFINITY, START, Element
from lmerge_service.errors import ElementError, StateError
from lmerge_service.formats.dialects.horizon import Horizon
from lmerge_service.formats.dialects.options import TIMESTAMP, RowLifetime, Watermark
from lmerge_service.formats.dialects.reading import (
    Fields,
    Path,
    Reader,
    end,
    fields_of,
    find,
    malformed,
    merged,
    time,
    timestamp,
    without,
)
from lmerge_service.formats.dialects.tables import Intervals, RowChange, Table, Versions
from lmerge_service.formats.headers import TimedRecord
from lmerge_service.formats.reasons import Reason

__all__ = ("Decoder", "TableDecoder", "path_of")

_VERSION: Final = 1


class Decoder(Protocol):
    """One partition of a replica that publishes in a dialect, in one incarnation."""

    changes: Sequence[RowChange]
    """Those that the last record made, of keys that only this partition may have; the reader that
    compares partitions takes them away."""

    @property
    def stable(self) -> int:
        """The own stable."""

    @property
    def latest(self) -> int:
        """The latest time seen."""

    def holds(self, key: bytes) -> bool:
        """It has a row of this key."""

    def decode(self, record: TimedRecord) -> Sequence[Element]:
        """The elements that a record decodes to, often none or two.

        Raises:
            ElementError: it is refused; `reason` is a `Reason`, and nothing has changed.
        """

    def snapshot(self) -> bytes:
        """The state; equal states give equal bytes."""

    def restore(self, saved: bytes) -> None:
        """Takes the place of a decoder of the same options that gave this snapshot.

        Raises:
            StateError: it is not such a snapshot.
        """

    def check(self) -> None:
        """Asserts every invariant, in words."""


def path_of(text: str) -> Path:
    """The names in a dotted path."""
    return tuple(text.split("."))


class TableDecoder:
    """A table, a horizon, and how rows, keys and times are found."""

    name: ClassVar[str]
    keyed = True
    """A key is in one partition only."""

    def __init__(self, options: Any, reader: Reader, table: Table | None = None) -> None:
        self._reader = reader
        self._horizon = Horizon(options.stable)
        self._lifetime: RowLifetime | None = options.lifetime
        default: Table = Versions() if self._lifetime is None else Intervals()
        self._table = default if table is None else table
        self._time = options.time
        marked = isinstance(options.stable, Watermark)
        self._watermark = path_of(options.stable.watermark) if marked else None
        self.changes: Sequence[RowChange] = ()

    @property
    def stable(self) -> int:
        """The own stable."""
        return self._horizon.stable

    @property
    def latest(self) -> int:
        """The latest time seen."""
        return self._horizon.latest

    def holds(self, key: bytes) -> bool:
        """The table has a row of this key."""
        return self._table.holds(key) is not None

    def _when(self, record: TimedRecord, fields: Fields) -> int:
        """The time of a change; with lifetimes there is none to look for."""
        if self._lifetime is not None:
            return 0
        if self._time == TIMESTAMP:
            return timestamp(record)
        return time(find(fields, path_of(self._time)), self._time)

    def _change(self, key: bytes, row: bytes, when: int) -> RowChange:
        """The change that brings a row, a canonical text."""
        payload, vs, ve = self._living(row, when)
        return RowChange(key, payload, vs, ve)

    def _living(self, row: bytes, when: int) -> tuple[bytes, int, int]:
        """(payload, vs, ve) of a row."""
        lifetime = self._lifetime
        if lifetime is None:
            return self._reader.row(row), when, INFINITY
        fields, paths = fields_of(row), (path_of(lifetime.vs), path_of(lifetime.ve))
        vs, ve = time(find(fields, paths[0]), lifetime.vs), end(find(fields, paths[1]), lifetime.ve)
        if vs >= ve:
            raise malformed(f"a row needs {lifetime.vs} < {lifetime.ve}, got {vs} and {ve}")
        return self._reader.row(without(row, paths)), vs, ve

    def _key_of(self, row: bytes, paths: Sequence[Path]) -> bytes:
        """The fields that identify a row, as one text."""
        fields = fields_of(row)
        values = [find(fields, path) for path in paths]
        for path, value in zip(paths, values, strict=True):
            if value is None or value == b"null":
                raise ElementError(Reason.NO_KEY, f"the row has no {'.'.join(path)}")
        return b"[" + b",".join(value for value in values if value is not None) + b"]"

    def _watermark_of(self, fields: Fields) -> int | None:
        """The watermark that a record carries; null is none yet."""
        text = find(fields, self._watermark) if self._watermark is not None else None
        if text is None or text == b"null":
            return None
        return end(text, ".".join(self._watermark or ()))

    def _only_watermark(self, fields: Fields) -> bool:
        """A record that carries a watermark, and nothing else."""
        return (
            self._watermark is not None
            and bool(fields)
            and (without(merged(fields), [self._watermark]) == b"{}")
        )

    def _make(
        self,
        changes: Sequence[RowChange],
        when: int | None = None,
        watermark: int | None = None,
        *,
        first: int = START,
    ) -> list[Element]:
        """Moves the horizon to `first`, makes the changes if all are in time, and moves it on."""
        for change in changes:
            if (touched := self._table.touches(change)) is not None:
                self._horizon.admit(touched, first)
        elements: list[Element] = [*self._horizon.reach(first)]
        for change in changes:
            elements += self._table.apply(change)
        for t in self._seen(changes, when):
            elements += self._horizon.see(t)
        if watermark is not None:
            elements += self._horizon.reach(watermark)
        self._table.forget(self._horizon.stable)
        self.changes = changes if self.keyed else ()
        return elements

    def _seen(self, changes: Sequence[RowChange], when: int | None) -> list[int]:
        """The times that a record is about."""
        if self._lifetime is None:
            return [] if when is None else [when]
        return [change.vs for change in changes if change.row is not None]

    def snapshot(self) -> bytes:
        """The state as msgpack, with the dialect's name and a version."""
        horizon = self._horizon
        state = (horizon.stable, horizon.latest, self._table.saved(), self._saved())
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
            self._horizon.stable, self._horizon.latest, table, own = state
            self._table.load(table)
            self._load(own)
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise StateError(f"the snapshot of dialect {self.name} is damaged: {error}") from error

    def _saved(self) -> Any:
        """What a dialect keeps besides."""
        return None

    def _load(self, saved: Any) -> None:
        pass

    def check(self) -> None:
        """Asserts the table's invariants at the stable point."""
        self._table.check(self._horizon.stable)
