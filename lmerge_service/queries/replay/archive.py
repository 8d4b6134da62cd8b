"""An archive of a stream: buckets of its events, by time and by sequence.

Theory
    A replay asks for the events of a range of time, or of sequence numbers (of a topic's partition:
    its offsets), and for little else; a stream comes in the order of its numbers, and nearly in
    that of its times. So events are written once, many together, as *buckets*, and a table has of
    each the least and the greatest time and number. A range is answered by the buckets that overlap
    it; inside there is no index, as the buckets of one range are read as a whole anyway.

        bucket   times    numbers                     asked for times 5 to 8: the 2nd and the 3rd
        1        1 … 3    0 … 2
        2        4 … 6    3 … 5
        3        7 … 9    6 … 8
        open     10       9        not written yet

    A revision is archived as it comes: the event that it takes away, once less (`times` is -1), and
    the one that takes its place, under the number of the old one. What is asked for is netted.

    Buckets are in a store: files, or the memory, where packed bytes take a fifth of what objects
    do. A bucket's name is its row of the table, so that opening an archive reads names alone. A
    file is written under a partial name and renamed: after a crash each bucket is there or not, and
    what was not written yet is appended once more, from the number `next` on.

    What is older than the bounds allow goes bucket by bucket, oldest first, and only when a replay
    is about to run: then the *horizon* moves. A replay that needs what is gone fails as a whole.

Invariants
    A1  A scan has exactly the events of its range that were appended and have not expired.
    A2  Of the events with ve > `horizon` all are there.
    A3  A bucket is in the store as it was written, or not at all.

Cost
    Appending packs k events in one call, about 1 µs an event; a scan unpacks the buckets that
    overlap, about 1 µs an event.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from lmerge_service.core.snapshots import sealed, unsealed
from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ReplayError, StateError

__all__ = (
    "Archive",
    "Archived",
    "Bounds",
    "Bucket",
    "BucketArchive",
    "FolderStore",
    "MemoryStore",
    "Store",
    "events_of",
)

_PARTIAL: Final = ".partial"
_SUFFIX: Final = ".bucket"
_HORIZON: Final = "horizon"
_NUMBER: Final = attrgetter("sequence")


class Archived(NamedTuple):
    """An event of a stream, by its number there; `times` -1 takes it away again."""

    sequence: int
    payload: tuple[Any, ...]
    vs: int
    ve: int
    times: int = 1


def events_of(entries: Iterable[Archived]) -> Counter[tuple[Any, int, int]]:
    """The multiset of events (payload, vs, ve) that entries come to."""
    events: Counter[tuple[Any, int, int]] = Counter()
    for _, payload, vs, ve, times in entries:
        events[payload, vs, ve] += times
    return +events


class Archive(Protocol):
    """What a replay asks of an archive."""

    read: int
    """How many buckets have been read."""

    @property
    def horizon(self) -> int:
        """Of the events that end later, none is missing."""

    def scan(self, since: int = START, before: int = INFINITY) -> list[Archived]:
        """The entries with ve >= `since` and vs < `before`, in order of their numbers.

        Raises:
            ReplayError: some may be missing.
        """

    def numbered(self, first: int, last: int) -> list[Archived]:
        """The entries with these numbers, both included, in order.

        Raises:
            ReplayError: some are missing.
        """


class Bucket(NamedTuple):
    """A row of the table: what a bucket holds."""

    serial: int
    first: int
    """The least number …"""
    last: int
    """… and the greatest."""
    start: int
    """The least vs …"""
    end: int
    """… and the greatest ve."""
    entries: int

    @property
    def name(self) -> str:
        """Its name in a store."""
        return "_".join(map(str, self)) + _SUFFIX

    @classmethod
    def named(cls, name: str) -> "Bucket":
        """The row that a name is; ValueError or TypeError: it is none."""
        return cls(*map(int, name.removesuffix(_SUFFIX).split("_")))


class Store(Protocol):
    """Where buckets are, by name; a name is written whole or not at all."""

    def names(self) -> Iterable[str]:
        """What is there."""

    def write(self, name: str, data: bytes) -> None:
        """Puts it there, in the place of what has the name."""

    def read(self, name: str) -> bytes:
        """What is there by that name."""

    def remove(self, name: str) -> None:
        """Takes it away."""

    def size(self, name: str) -> int:
        """Its bytes."""


class MemoryStore(dict[str, bytes]):
    """Buckets in memory, packed."""

    def names(self) -> Iterable[str]:
        return list(self)

    def write(self, name: str, data: bytes) -> None:
        self[name] = data

    def read(self, name: str) -> bytes:
        return self[name]

    def remove(self, name: str) -> None:
        del self[name]

    def size(self, name: str) -> int:
        return len(self[name])


class FolderStore:
    """Buckets as files of a folder, which is made; what a crash has left half written goes.

    Raises:
        StateError: the folder cannot be read or written; so does every method.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for partial in folder.glob(f"*{_PARTIAL}"):
                partial.unlink()
        except OSError as error:
            raise self._unusable(error) from error

    def names(self) -> Iterable[str]:
        return [each.name for each in self.folder.iterdir()]

    def write(self, name: str, data: bytes) -> None:
        partial = self.folder / f"{name}{_PARTIAL}"
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.folder / name)
        except OSError as error:
            raise self._unusable(error) from error

    def read(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise self._unusable(error) from error

    def remove(self, name: str) -> None:
        try:
            (self.folder / name).unlink()
        except OSError as error:
            raise self._unusable(error) from error

    def size(self, name: str) -> int:
        return (self.folder / name).stat().st_size

    def _unusable(self, error: OSError) -> StateError:
        return StateError(f"the archive in {self.folder} cannot be used: {error}")


class Bounds(msgspec.Struct, frozen=True):
    """How much an archive keeps at least, of the newest; INFINITY: all. A bucket goes once each of
    its events is beyond any of them."""

    count: int = INFINITY
    """Events."""
    age: int = INFINITY
    """Time before the greatest end, in the unit of the times."""
    bytes: int = INFINITY
    """Of written buckets."""


_Rows = list[tuple[int, tuple[Any, ...], int, int, int]]


class BucketArchive:
    """An archive of buckets of `size` events in a store; it goes on with what is there.

    Raises:
        StateError: something there is no bucket.
    """

    def __init__(self, store: Store, size: int = 50_000, bounds: Bounds = Bounds()) -> None:  # noqa: B008 (a value)
        if size < 1:
            raise ValueError("a bucket has at least one event")
        self.size = size
        self.bounds = bounds
        self.read = 0
        self.written = 0
        """How many buckets have been written."""
        self._store = store
        self._open: list[Archived] = []
        self._horizon, self._gone = START, -1
        self.buckets: list[Bucket] = []
        """The table, oldest first."""
        for name in store.names():
            if name == _HORIZON:
                self._horizon, self._gone = self._decoded(name, tuple[int, int])
                continue
            try:
                self.buckets.append(Bucket.named(name))
            except (ValueError, TypeError) as error:
                raise StateError(f"{name!r} is no bucket of an archive") from error
        self.buckets.sort()

    def __len__(self) -> int:
        """How many entries are held. Complexity: O(buckets)."""
        return sum(bucket.entries for bucket in self.buckets) + len(self._open)

    @property
    def horizon(self) -> int:
        """Of the events that end later, none is missing."""
        return self._horizon

    @property
    def unwritten(self) -> tuple[Archived, ...]:
        """What is in no bucket yet."""
        return tuple(self._open)

    @property
    def next(self) -> int:
        """The number behind all that a crash would leave: from there on events are to be appended
        once more; 0 if there is none."""
        return max((bucket.last for bucket in self.buckets), default=self._gone) + 1

    def append(self, entries: Iterable[Archived]) -> None:
        """Takes the next events; full buckets are written."""
        self._open.extend(entries)
        if len(self._open) >= self.size:
            whole = len(self._open) // self.size * self.size
            full, self._open = self._open[:whole], self._open[whole:]
            for at in range(0, whole, self.size):
                self._write(full[at : at + self.size])

    def flush(self) -> None:
        """Writes what is not written yet, as a bucket of its own: a crash would lose it."""
        if self._open:
            rows, self._open = self._open, []
            self._write(rows)

    def _write(self, rows: Sequence[Archived]) -> None:
        numbers = [row.sequence for row in rows]
        bucket = Bucket(
            self.buckets[-1].serial + 1 if self.buckets else 0,
            min(numbers),
            max(numbers),
            min(row.vs for row in rows),
            max(row.ve for row in rows),
            len(rows),
        )
        self._store.write(bucket.name, sealed([msgspec.msgpack.encode(rows)]))
        self.buckets.append(bucket)
        self.written += 1

    def scan(self, since: int = START, before: int = INFINITY) -> list[Archived]:
        """As `Archive.scan`; it reads the buckets that overlap the range, and no others."""
        if since <= self._horizon and self._horizon > START:
            raise ReplayError("it rests on all events that end at", since, self._horizon)
        wanted = [b for b in self.buckets if b.end >= since and b.start < before]
        found = [row for row in self._rows(wanted) if row.ve >= since and row.vs < before]
        found.sort(key=_NUMBER)
        return found

    def numbered(self, first: int, last: int) -> list[Archived]:
        """As `Archive.numbered`."""
        if first <= self._gone:
            raise ReplayError("it rests on the events of number", first, self._gone)
        wanted = [b for b in self.buckets if b.last >= first and b.first <= last]
        found = [row for row in self._rows(wanted) if first <= row.sequence <= last]
        found.sort(key=_NUMBER)
        return found

    def _rows(self, buckets: Iterable[Bucket]) -> Iterator[Archived]:
        for bucket in buckets:
            self.read += 1
            yield from map(Archived._make, self._decoded(bucket.name, _Rows))
        yield from self._open

    def _decoded(self, name: str, kind: Any) -> Any:
        try:
            (data,) = unsealed(self._store.read(name))
            return msgspec.msgpack.decode(data, type=kind)
        except (StateError, ValueError, msgspec.MsgspecError) as error:
            raise StateError(f"{name!r} of an archive cannot be read: {error}") from error

    # --- what goes ------------------------------------------------------------------------------

    def expire(self) -> None:
        """Removes the buckets that are wholly beyond the bounds; call it before a replay."""
        bounds, gone = self.bounds, 0
        count = len(self)
        newest = max([START, *(b.end for b in self.buckets), *(row.ve for row in self._open)])
        sizes = [self._store.size(b.name) for b in self.buckets] if bounds.bytes < INFINITY else []
        size = sum(sizes)
        for at, bucket in enumerate(self.buckets):
            count -= bucket.entries
            size -= sizes[at] if sizes else 0
            old = bounds.age < INFINITY and bucket.end <= newest - bounds.age
            if not (count >= bounds.count or old or size >= bounds.bytes):
                break
            gone = at + 1
        self._remove(gone)

    def forget(self, before: int) -> None:
        """Removes the oldest buckets, as far as all their events end before a time."""
        gone = 0
        while gone < len(self.buckets) and self.buckets[gone].end < before:
            gone += 1
        self._remove(gone)

    def _remove(self, gone: int) -> None:
        """The first so many; the horizon is moved before."""
        if not gone:
            return
        removed, self.buckets = self.buckets[:gone], self.buckets[gone:]
        self._horizon = max([self._horizon, *(bucket.end for bucket in removed)])
        self._gone = max([self._gone, *(bucket.last for bucket in removed)])
        horizon = msgspec.msgpack.encode((self._horizon, self._gone))
        self._store.write(_HORIZON, sealed([horizon]))
        for bucket in removed:
            self._store.remove(bucket.name)

    def clear(self) -> None:
        """Removes everything."""
        self._open = []
        self._remove(len(self.buckets))
