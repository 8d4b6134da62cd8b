"""What a table consists of at one moment: a manifest, replaced as a whole.

Theory
    Files of a table are written once and never changed. Which of them count is said by the
    manifest with the highest number; beside them it says how far the stream has been read, so
    that data and offsets change together or not at all:

        TABLE/manifests/00000000000000000007.json
        TABLE/data/3f0c…/state=history/part-00000-….parquet

    A writer makes its files, then the next manifest under a name of its own, and links it to the
    next number, which fails if somebody else was first. A reader takes the newest manifest and
    sees that state as long as it likes: what a compaction replaces is removed much later.

Invariants
    M1  A manifest is there whole or not at all, and names files that are there whole.
    M2  Manifest n + 1 was made of manifest n.

Who owns what
    Files belong to whoever wrote them until a manifest names them, then to the table. What no
    manifest names after `retain` seconds is left by a writer that died, and removed.

What happens on a crash
    Before the link: nothing happened, some files lie about. After it: all of it happened.
"""

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ConfigurationError, StateError

__all__ = ("Begun", "File", "Manifest", "OvertakenError", "Reached", "Table", "described")

FORMAT: Final = 1
_DIGITS: Final = 20
_FOLDER: Final = re.compile(r"[0-9a-f]{32}")
"""Of data, by `Table.new_folder`."""


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of versions, and within which bounds they all lie."""

    path: str
    """From the table's folder on."""
    rows: int
    bytes: int
    min_vs: int
    max_vs: int
    max_ve: int
    min_time: int
    """The first became known then."""
    max_time: int
    """The last ceased to be held then; INFINITY: some still is."""


class Reached(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a partition has been read."""

    next: int
    """The offset to go on from."""
    time: int = START
    """The latest record time so far; START: records have none."""
    incarnation: int = -1
    """The last that spoke; -1: none did."""
    stable: int = START
    """What it has declared final."""


class Begun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where an incarnation begins in a partition."""

    incarnation: int
    partition: int
    offset: int
    time: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state of the table."""

    number: int
    source: str
    """What is read, by name."""
    source_id: str | None
    """Another one when a topic was recreated."""
    rule: str
    """By which version of the rule payloads are canonical."""
    reached: dict[int, Reached]
    begun: tuple[Begun, ...] = ()
    history: tuple[File, ...] = ()
    """Versions that nothing will change any more."""
    live: tuple[File, ...] = ()
    """Versions that are held and may yet be adjusted; recreated by each update."""
    format: int = FORMAT

    @property
    def incarnation(self) -> int:
        """The one that counts; -1: nothing has been said."""
        return max((each.incarnation for each in self.reached.values()), default=-1)

    @property
    def stable(self) -> int:
        """What was true before it is final."""
        counted = self.incarnation
        return min(
            (
                each.stable if each.incarnation == counted else START
                for each in self.reached.values()
            ),
            default=START,
        )

    @property
    def files(self) -> tuple[File, ...]:
        return self.history + self.live


class OvertakenError(StateError):
    """Another writer has changed the table meanwhile."""


class Table:
    """A folder with a table in it, or without one yet."""

    def __init__(self, path: str | Path) -> None:
        if ":/" in str(path):
            raise ConfigurationError(f"{path}: a table lies in a local folder")
        self.path = Path(path).absolute()
        self._manifests = self.path / "manifests"

    def newest(self) -> Manifest | None:
        """The state of the table now; None if there is no table.

        Raises:
            StateError: the manifest is damaged, or of another version.
        """
        while numbers := self._numbers():
            try:
                return self._read(max(numbers))
            except FileNotFoundError:  # replaced since, and removed at once
                continue
        return None

    def existing(self) -> Manifest:
        """The state of a table that must be there.

        Raises:
            ConfigurationError: there is none.
        """
        if (found := self.newest()) is None:
            raise ConfigurationError(
                f"{self.path}: there is no table (lmerge table update makes one)"
            )
        return found

    def check_place(self) -> None:
        """A table has a folder of its own: a compaction removes what the table does not name.

        Raises:
            ConfigurationError: something else is there.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigurationError(f"{self.path} is a file: a table is a folder")
        if self.newest() is None and (others := sorted(map(str, self._others()))):
            raise ConfigurationError(
                f"{self.path} is no table and holds something else ({others[0]}): choose another "
                "folder"
            )

    def _others(self) -> Iterator[Path]:
        """What no writer of a table's first manifest has left here."""
        for each in self.path.glob("*"):
            if each.name == "data":
                yield from (of for of in each.glob("*") if not _FOLDER.fullmatch(of.name))
            elif each.name != "manifests":
                yield each

    def new_folder(self) -> Path:
        """A name for a folder of data that nobody else has."""
        return self.path / "data" / uuid.uuid4().hex

    def commit(self, manifest: Manifest) -> None:
        """Makes this the state of the table.

        Raises:
            OvertakenError: there is a manifest of this number already.
        """
        self._manifests.mkdir(parents=True, exist_ok=True)
        partial = self._manifests / f"{uuid.uuid4().hex}.partial"
        with partial.open("xb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, self._place(manifest.number))
        except FileExistsError:
            raise OvertakenError(f"{self.path}: another writer has changed the table") from None
        finally:
            partial.unlink()
        _sync(self._manifests)

    def remove_unused(self, *, retain: float) -> list[Path]:
        """Removes what no manifest of the last `retain` seconds names; tells which files of
        versions."""
        before = time.time() - retain
        self._remove_manifests(before)
        named = {
            self.path / file.path for number in self._numbers() for file in self._read(number).files
        }
        files = {each for each in self.path.glob("data/*/**/*") if each.is_file()}
        unused = [each for each in files - named if each.stat().st_mtime < before]
        for each in unused:
            each.unlink()
        for folder in self.path.glob("data/*"):
            empty = not any(each.is_file() for each in folder.rglob("*"))
            if empty and folder.stat().st_mtime < before:
                shutil.rmtree(folder, ignore_errors=True)
        return [each for each in unused if each.suffix == ".parquet"]

    def _remove_manifests(self, before: float) -> None:
        """Those that were replaced by then: since nobody has begun to read by them."""
        for number, following in pairwise(sorted(self._numbers())):
            if self._place(following).stat().st_mtime < before:
                self._place(number).unlink()
        for each in self._manifests.glob("*.partial"):
            if each.stat().st_mtime < before:
                each.unlink()

    def _numbers(self) -> list[int]:
        return [int(each.stem) for each in self._manifests.glob(f"{'[0-9]' * _DIGITS}.json")]

    def _place(self, number: int) -> Path:
        return self._manifests / f"{number:0{_DIGITS}}.json"

    def _read(self, number: int) -> Manifest:
        place = self._place(number)
        try:
            found = msgspec.json.decode(place.read_bytes(), type=Manifest)
        except msgspec.MsgspecError as error:
            raise StateError(f"{place}: not a manifest of this version: {error}") from None
        if (found.number, found.format) != (number, FORMAT):
            raise StateError(
                f"{place}: it says number {found.number}, format {found.format}, which is not "
                f"number {number}, format {FORMAT}"
            )
        return found


def described(table: Table, files: Iterable[Path]) -> tuple[File, ...]:
    """What a manifest says of files that were just written; they are on the disk then."""
    told = []
    for path in sorted(files):
        footer = pq.read_metadata(path)
        if not footer.num_rows:
            continue
        least, most = _bounds(footer)
        told.append(
            File(
                str(path.relative_to(table.path)),
                footer.num_rows,
                path.stat().st_size,
                least["vs"],
                most["vs"],
                most["ve"],
                least["from_time"],
                most["to_time"],
            )
        )
        _sync(path)
    return tuple(told)


def _bounds(footer: pq.FileMetaData) -> tuple[dict[str, int], dict[str, int]]:
    least: dict[str, int] = {}
    most: dict[str, int] = {}
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for at in range(group.num_columns):
            column = group.column(at)
            name, found = column.path_in_schema, column.statistics
            if name in {"vs", "ve", "from_time", "to_time"}:
                least[name] = min(least.get(name, INFINITY), found.min)
                most[name] = max(most.get(name, START), found.max)
    return least, most


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
