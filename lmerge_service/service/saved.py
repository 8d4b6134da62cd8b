"""A whole merge's state in one file: to be moved elsewhere, or kept.

Theory
    Of each task the file has what a snapshot has (`TaskState.stream`), taken at the last mark. It
    is a sequence of frames, each behind its length, so that it is written and read in passing:

        head    msgpack: version, whose state it is
        of each partition: its number and mark; chunks of a snapshot; an empty frame; the digest
        an empty frame

Invariants
    V1  A file that is not whole, byte for byte, is refused before anything of it is used.
"""

import hashlib
import struct
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.service.inspection import recoveries
from lmerge_service.service.marks import Mark
from lmerge_service.service.state import TaskState
from lmerge_service.topology import Topology

__all__ = (
    "Saving",
    "Section",
    "chunks_of",
    "export_to",
    "merge_of",
    "rechunked",
    "recovered",
    "sections",
)

_MAGIC: Final = b"lmerge-state"
_VERSION: Final = 1
_LENGTH: Final = struct.Struct("<I")
_CHUNK_BYTES: Final = 512 * 1024


class _Head(msgspec.Struct, frozen=True):
    magic: bytes
    version: int
    of: str
    partitions: int


class _Begin(msgspec.Struct, frozen=True):
    partition: int
    mark: bytes


class Section(msgspec.Struct, frozen=True):
    """One task's part of a file."""

    partition: int
    mark: Mark
    digest: str
    """Of all of it."""
    size: int


async def recovered(topology: Topology, cluster: Cluster) -> AsyncGenerator[TaskState, None]:
    """The state of each task at its last mark, in turn.

    Raises:
        StateError: a task has no mark yet, or its state cannot be had.
        TransportError: Kafka cannot be reached, or refuses.
    """
    async with aclosing(recoveries(topology, cluster)) as found:
        async for partition, recovery in found:
            mark = await recovery.last_mark(fenced=False)
            if mark is None:
                raise StateError(f"partition {partition}: nothing was committed yet")
            state = await recovery.recover(mark, fenced=False)
            if state.missed:
                raise StateError(
                    f"partition {partition}: the policy was changed, and no worker has merged by "
                    "the new one yet: run one"
                )
            yield state


async def export_to(path: Path, topology: Topology, cluster: Cluster) -> list[Section]:
    """Writes a file of all tasks' states; it is there whole, or not at all.

    Raises:
        StateError, TransportError: as `recovered`.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            saving = Saving(file, merge_of(topology), topology.output.partitions)
            async with aclosing(recovered(topology, cluster)) as states:
                found = [saving.add(state) async for state in states]
            saving.finish()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return found


def merge_of(topology: Topology) -> str:
    """What must be the same where a state is moved to."""
    output = topology.output
    kind = {
        "output": output.topic,
        "partitions": output.partitions,
        "key": topology.key,
        "nfc": topology.nfc,
    }
    return msgspec.json.encode(kind).decode()


# --- writing ------------------------------------------------------------------------------------


class Saving:
    """Writes a file: `add` each task's state in turn, then `finish`."""

    def __init__(self, file: BinaryIO, of: str, partitions: int) -> None:
        self._file = file
        self._put(msgspec.msgpack.encode(_Head(_MAGIC, _VERSION, of, partitions)))

    def _put(self, frame: bytes) -> None:
        self._file.write(_LENGTH.pack(len(frame)))
        self._file.write(frame)

    def add(self, state: TaskState) -> Section:
        """Writes the state of the next task."""
        mark, size = state.mark(), 0
        begin = msgspec.msgpack.encode(_Begin(state.partition, mark.encoded()))
        digest = hashlib.sha256(begin)
        self._put(begin)
        for chunk in rechunked(state.stream(mark)):
            digest.update(chunk)
            size += len(chunk)
            self._put(chunk)
        self._put(b"")
        self._put(digest.digest())
        return Section(state.partition, mark, digest.hexdigest(), size)

    def finish(self) -> None:
        """There are no more tasks."""
        self._put(b"")


def rechunked(pieces: Iterator[bytes], size: int = _CHUNK_BYTES) -> Iterator[bytes]:
    """The same bytes in chunks of about one size."""
    chunk = bytearray()
    for piece in pieces:
        chunk += piece
        while len(chunk) >= size:
            yield bytes(chunk[:size])
            del chunk[:size]
    if chunk:
        yield bytes(chunk)


# --- reading ------------------------------------------------------------------------------------


def sections(path: Path, of: str) -> list[Section]:
    """What is in a file, all of which is read and checked.

    Raises:
        ConfigurationError: it cannot be read, or is of another merge.
        StateError: it is damaged, or of another version.
    """
    with _opened(path) as file:
        head = _head(path, file)
        if head.of != of:
            raise ConfigurationError(f"{path} is the state of {head.of}, and not of {of}")
        found = []
        while (found_one := _begin(path, file)) is not None:
            begin, digest = found_one
            size = sum(map(len, _chunks(path, file, digest)))
            mark = Mark.of(begin.mark)
            found.append(Section(begin.partition, mark, digest.hexdigest(), size))
        if [each.partition for each in found] != list(range(head.partitions)) or file.read(1):
            raise _damaged(path, "it does not have each partition once")
        return found


def chunks_of(path: Path, partition: int, digest: str) -> Iterator[bytes]:
    """The chunks of one task's snapshot, which `RestoringState` takes.

    Raises:
        ConfigurationError: the file cannot be read.
        StateError: it is damaged, or another one than had this digest.
    """
    with _opened(path) as file:
        _head(path, file)
        while (found_one := _begin(path, file)) is not None:
            begin, found = found_one
            for chunk in _chunks(path, file, found):
                if begin.partition == partition:
                    yield chunk
            if begin.partition == partition:
                if found.hexdigest() != digest:
                    raise _damaged(path, "it is another one than the merge began from")
                return
    raise _damaged(path, f"it lacks partition {partition}")


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None


def _frame(path: Path, file: BinaryIO) -> bytes:
    length = file.read(_LENGTH.size)
    if len(length) == _LENGTH.size:
        (size,) = _LENGTH.unpack(length)
        frame = file.read(size) if size <= 2 * _CHUNK_BYTES else b""
        if len(frame) == size:
            return frame
    raise _damaged(path, "it is cut short")


def _head(path: Path, file: BinaryIO) -> _Head:
    try:
        head = msgspec.msgpack.decode(_frame(path, file), type=_Head)
    except (msgspec.MsgspecError, ValueError):
        head = None
    if head is None or head.magic != _MAGIC:
        raise _damaged(path, "it is no state of a merge")
    if head.version != _VERSION:
        raise StateError(f"{path} is of version {head.version}, this is version {_VERSION}")
    return head


def _begin(path: Path, file: BinaryIO) -> "tuple[_Begin, hashlib._Hash] | None":
    """The next section, and the digest of it so far; None if there is no more."""
    if not (frame := _frame(path, file)):
        return None
    try:
        return msgspec.msgpack.decode(frame, type=_Begin), hashlib.sha256(frame)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _damaged(path, str(error)) from error


def _chunks(path: Path, file: BinaryIO, digest: "hashlib._Hash") -> Iterator[bytes]:
    while chunk := _frame(path, file):
        digest.update(chunk)
        yield chunk
    if _frame(path, file) != digest.digest():
        raise _damaged(path, "its digest does not match")


def _damaged(path: Path, why: str) -> StateError:
    return StateError(f"{path} is damaged: {why}")
