"""A table as Delta Lake keeps it: Parquet files and a log of commits, read here without a JVM.

Theory
    Rows are versions, of which the partition `state` is `history` or `live`, and progress, of
    which it is `progress`. A step is one commit: it adds to the history and replaces the rest, so
    that data and progress change together or not at all. What a table is made of (its stream, and
    the rule of its payloads) is in the properties that it was created with.

Invariants
    D1  A snapshot's versions are those of its progress: both are of one version of the table.

Who owns what
    A writer holds a lock in the table's folder, which dies with its process: on a local file
    system two processes that commit the same version would otherwise overwrite each other's.

What happens on a crash
    Before the commit nothing happened, some files lie about until they are vacuumed; after it all
    of it happened.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from lmerge_service.elements import START
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.local.jars import locked
from lmerge_service.spark.io.arrow import CHECKED, arrow_errors
from lmerge_service.spark.table.progress import Progress, by_partition, joined
from lmerge_service.spark.table.versions import COLUMNS, PROGRESS, SCHEMA

__all__ = ("Size", "Snapshot", "created", "delta_errors", "existing", "newest", "writing")

_LOCK: Final = ".lmerge.lock"
_LOG: Final = "_delta_log"
_SOURCE: Final = "lmerge.source"
_SOURCE_ID: Final = "lmerge.source.id"
_RULE: Final = "lmerge.rule"
_UNREADABLE: Final = re.compile(r"[%[\]\\^|\x00-\x1f]")
"""In paths, which `deltalake` takes for others, or panics at."""
_TYPES: Final = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}


class Size(msgspec.Struct, frozen=True):
    """How much a partition of a table holds."""

    files: int
    versions: int
    bytes: int


@dataclass(frozen=True)
class Snapshot:
    """A table as of one version."""

    path: str
    delta: DeltaTable

    @property
    def version(self) -> int:
        """Delta Lake's number of it."""
        return self.delta.version()

    @property
    def source(self) -> str:
        """What is read, by name."""
        return self._properties[_SOURCE]

    @property
    def source_id(self) -> str | None:
        """Another one when a topic was recreated."""
        return self._properties.get(_SOURCE_ID)

    @property
    def rule(self) -> str:
        """By which version of the rule payloads are canonical."""
        return self._properties[_RULE]

    @cached_property
    def progress(self) -> tuple[Progress, ...]:
        """How far each incarnation of each partition has been read."""
        rows = self.batches(pc.field("state") == PROGRESS)
        payloads = [each for batch in rows for each in batch.column("payload").to_pylist()]
        with delta_errors(f"reading {self.path}: how far it was read"):
            return joined(msgspec.json.decode(each, type=Progress) for each in payloads)

    @cached_property
    def reached(self) -> dict[int, Progress]:
        """How far each partition has been read."""
        return dict(by_partition(self.progress))

    @property
    def records(self) -> int:
        """How many the table is made of."""
        return sum(each.records for each in self.progress)

    @property
    def incarnation(self) -> int:
        """The one that counts; -1: there is none yet."""
        return max((each.incarnation for each in self.progress), default=-1)

    @property
    def stable(self) -> int:
        """What was true before it is final."""
        last = self.incarnation
        reached = self.reached.values()
        stables = (each.stable if each.incarnation == last else START for each in reached)
        return min(stables, default=START)

    def size(self, state: str) -> Size:
        """Of the versions in that state."""
        rows = pa.table(self.delta.get_add_actions(flatten=True)).to_pylist()
        found = [each for each in rows if each["partition.state"] == state]
        return Size(
            len(found),
            sum(each["num_records"] or 0 for each in found),
            sum(each["size_bytes"] for each in found),
        )

    def batches(self, condition: pc.Expression) -> Iterator[pa.RecordBatch]:
        """The rows that meet a condition, of files that may have some by their statistics.

        Raises:
            StateError: a file is missing or damaged.
        """
        with delta_errors(f"reading {self.path}"):
            folder = fs.SubTreeFileSystem(self.path, fs.LocalFileSystem())
            found = self.delta.to_pyarrow_dataset(filesystem=folder)
            fragments = [  # its own would not be held to their checksums
                CHECKED.make_fragment(each.path, folder, each.partition_expression)
                for each in found.get_fragments(condition)
            ]
            for each in fragments:  # what is lacking would be read as null
                if lacking := set(COLUMNS) - set(each.physical_schema.names):
                    raise StateError(
                        f"reading {self.path}: {each.path} is damaged: no column {min(lacking)}"
                    )
            dataset = ds.FileSystemDataset(fragments, found.schema, CHECKED, folder)
            yield from dataset.to_batches(filter=condition)

    @cached_property
    def _properties(self) -> dict[str, str]:
        return self.delta.metadata().configuration


def newest(path: str) -> Snapshot | None:
    """The table now; None where there is nothing, or what a writer left that died creating it.

    Raises:
        ConfigurationError: the folder holds something else, also a table of an earlier format.
        StateError: the table is damaged.
    """
    if ":/" in path:
        raise ConfigurationError(f"{path}: a table lies in a local folder")
    place = Path(path).absolute()
    if wrong := _UNREADABLE.search(str(place)):
        raise ConfigurationError(f"{place}: a table's path is without {wrong[0]!r}")
    if place.exists() and not place.is_dir():
        raise ConfigurationError(f"{place} is a file: a table is a folder")
    with delta_errors(f"reading {place}"):
        try:
            found = Snapshot(str(place), DeltaTable(place))
        except TableNotFoundError:
            _check_empty(place)
            return None
        if not {_SOURCE, _RULE} <= found.delta.metadata().configuration.keys():
            raise ConfigurationError(
                f"{place} is a Delta table that lmerge table update has not made: choose another "
                "folder"
            )
    return found


def existing(path: str) -> Snapshot:
    """The table now.

    Raises:
        ConfigurationError, StateError: as `newest`; or there is none.
    """
    if (found := newest(path)) is None:
        raise ConfigurationError(
            f"{Path(path).absolute()}: there is no table (lmerge table update makes one)"
        )
    return found


def created(path: str, source: str, source_id: str | None, rule: str) -> Snapshot:
    """A new table without rows."""
    place = Path(path).absolute()
    named = {_SOURCE: source, _RULE: rule} | ({_SOURCE_ID: source_id} if source_id else {})
    columns = (each.split() for each in f"state string, {SCHEMA}".split(", "))
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns])
    with delta_errors(f"creating {place}"):
        delta = DeltaTable.create(
            place,
            schema,
            partition_by=["state"],
            configuration=named,
            raise_if_key_not_exists=False,
        )
    return Snapshot(str(place), delta)


@contextmanager
def writing(path: str) -> Iterator[None]:
    """While this is entered no other process of ours writes to the table.

    Raises:
        StateError: one does already.
    """
    place = Path(path).absolute()
    try:
        lock = locked(place / _LOCK, wait=False)
    except BlockingIOError:
        raise StateError(
            f"{place}: another process is writing to the table: start again when it has ended"
        ) from None
    with lock:
        yield


@contextmanager
def delta_errors(doing: str) -> Iterator[None]:
    """Translates what `deltalake` raises; `doing` begins the message, the cause is kept.

    Raises:
        StateError: the table is damaged, or of a kind that cannot be read.
    """
    try:
        with arrow_errors(doing):
            yield
    except (DeltaError, ValueError, msgspec.MsgspecError) as error:
        gist = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        raise StateError(f"{doing}: {gist}") from error


def _check_empty(place: Path) -> None:
    if (place / "manifests").is_dir():
        raise ConfigurationError(
            f"{place} is a table in the format before Delta Lake, which is not read any more: "
            "lmerge table update makes it again from its stream, in another folder"
        )
    others = (each for each in place.glob("*") if each.name not in (_LOCK, _LOG))
    if (first := min(map(str, others), default=None)) is not None:
        raise ConfigurationError(
            f"{place} is no table and holds something else ({first}): choose another folder"
        )
