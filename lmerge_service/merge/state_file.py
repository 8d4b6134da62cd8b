"""A whole merge's state in one file: to be moved elsewhere, or kept.

Theory
    Of each task the file has what a snapshot has (`TaskState.stream`), as of the last commit. It
    is a sequence of frames, each behind its length, so that it is written and read in passing:

        head    msgpack: version, whose state it is
        of each partition: its number and commit record; chunks of a snapshot; an empty frame;
                chunks of the output's events, where not in the snapshot; an empty frame; the digest
        an empty frame

    So it is a checkpoint of the output as well (`outputs`): which events the output has that may
    still change. An operator with an index keeps just these. Those of cases R0 to R2 keep next to
    nothing, and the output is read by one that does.

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

from lmerge_service.config.topology import Topology
from lmerge_service.core import LMerge, restore
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.merge.commit_record import CommitRecord
from lmerge_service.merge.inspection import recoveries
from lmerge_service.merge.task_state import OpenedState, TaskState
from lmerge_service.tdb import TDB

__all__ = (
    "Saving",
    "Section",
    "chunks_of",
    "export_to",
    "is_state",
    "merge_of",
    "outputs",
    "rechunked",
    "recovered",
    "sections",
)

_MAGIC: Final = b"lmerge-state"
_VERSION: Final = 2
_LENGTH: Final = struct.Struct("<I")
_CHUNK_BYTES: Final = 512 * 1024
_STATE: Final = 0
_OUTPUT: Final = 1
"""The parts of a section that come in chunks."""


class _Head(msgspec.Struct, frozen=True):
    magic: bytes
    version: int
    of: str
    partitions: int


class _Begin(msgspec.Struct, frozen=True):
    partition: int
    commit: bytes


class Section(msgspec.Struct, frozen=True):
    """One task's part of a file."""

    partition: int
    commit: CommitRecord
    digest: str
    """Of all of it."""
    size: int


async def recovered(
    topology: Topology, cluster: Cluster
) -> AsyncGenerator[tuple[TaskState, LMerge | None], None]:
    """The state of each task at its last commit, in turn; and where its operator does not keep what
    the output holds, one that does.

    Raises:
        StateError: a task has committed nothing yet, or its state cannot be read.
        TransportError: Kafka cannot be reached, or refuses.
    """
    async with aclosing(recoveries(topology, cluster)) as found:
        async for partition, recovery in found:
            commit = await recovery.last_commit(fenced=False)
            if commit is None:
                raise StateError(f"partition {partition}: nothing was committed yet")
            state = await recovery.recover(commit, fenced=False)
            if state.missed:
                raise StateError(
                    f"partition {partition}: the policy was changed, and no worker has merged by "
                    "the new one yet: run one"
                )
            keeps = state.merge.live_output() is not None
            yield state, None if keeps else await recovery.output_at(commit)


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
                found = [saving.add(state, output) async for state, output in states]
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
        "drop_nulls": topology.drop_nulls,
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

    def add(self, state: TaskState, output: LMerge | None = None) -> Section:
        """Writes the state of the next task; `output` keeps what its operator does not."""
        commit, size = state.commit_record(), 0
        begin = msgspec.msgpack.encode(_Begin(state.partition, commit.encoded()))
        digest = hashlib.sha256(begin)
        self._put(begin)
        kept = iter(()) if output is None else iter((output.snapshot(),))
        for part in (state.stream(commit), kept):
            for chunk in rechunked(part):
                digest.update(chunk)
                size += len(chunk)
                self._put(chunk)
            self._put(b"")
        self._put(digest.digest())
        return Section(state.partition, commit, digest.hexdigest(), size)

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
        return _sections(path, file, head)


def is_state(path: Path) -> bool:
    """Whether a file is one of these, be it damaged."""
    with _opened(path) as file:
        return _MAGIC in file.read(64)


def outputs(path: Path) -> list[tuple[TDB, int]]:
    """What the output of each task holds that may still change, how far it is stable, and from when
    on that is complete.

    Raises:
        ConfigurationError: it cannot be read.
        StateError: it is damaged, or of another version.
    """
    with _opened(path) as file:
        head, first = _head(path, file), file.tell()
        _sections(path, file, head)
        file.seek(first)
        begun = _begun(path, file, head)
        return [
            _output(path, CommitRecord.of(begin.commit), _chunks(path, file, digest))
            for begin, digest in begun
        ]


def _output(
    path: Path, commit: CommitRecord, chunks: Iterator[tuple[int, bytes]]
) -> tuple[TDB, int]:
    state, kept = OpenedState(), bytearray()
    try:
        for part, chunk in chunks:
            if part == _STATE:
                state.take(chunk)
            else:
                kept += chunk
        output = restore(bytes(kept)) if kept else state.operator()
    except StateError as error:
        raise StateError(f"{path}: {error}") from error
    if (events := output.live_output()) is None:
        raise _damaged(path, "it lacks what the output holds")
    complete_from = max(output.max_stable, commit.output.correct_from)
    return TDB(events, output.max_stable), complete_from


def chunks_of(path: Path, partition: int, digest: str) -> Iterator[bytes]:
    """The chunks of one task's snapshot, which `RestoringState` takes.

    Raises:
        ConfigurationError: the file cannot be read.
        StateError: it is damaged, or another one than had this digest.
    """
    with _opened(path) as file:
        for begin, found in _begun(path, file, _head(path, file)):
            for part, chunk in _chunks(path, file, found):
                if begin.partition == partition and part == _STATE:
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


def _sections(path: Path, file: BinaryIO, head: _Head) -> list[Section]:
    found = []
    for begin, digest in _begun(path, file, head):
        size = sum(len(chunk) for _, chunk in _chunks(path, file, digest))
        found.append(
            Section(begin.partition, CommitRecord.of(begin.commit), digest.hexdigest(), size)
        )
    return found


def _begun(path: Path, file: BinaryIO, head: _Head) -> "Iterator[tuple[_Begin, hashlib._Hash]]":
    """How each section begins, and the digest of it so far; its chunks are to be taken before the
    next is asked for."""
    found = []
    while frame := _frame(path, file):
        try:
            begin = msgspec.msgpack.decode(frame, type=_Begin)
        except (msgspec.MsgspecError, ValueError) as error:
            raise _damaged(path, str(error)) from error
        yield begin, hashlib.sha256(frame)
        found.append(begin.partition)
    if found != list(range(head.partitions)) or file.read(1):
        raise _damaged(path, "it does not have each partition once")


def _chunks(path: Path, file: BinaryIO, digest: "hashlib._Hash") -> Iterator[tuple[int, bytes]]:
    """The chunks of a section, and which part of it they are of."""
    for part in (_STATE, _OUTPUT):
        while chunk := _frame(path, file):
            digest.update(chunk)
            yield part, chunk
    if _frame(path, file) != digest.digest():
        raise _damaged(path, "its digest does not match")


def _damaged(path: Path, why: str) -> StateError:
    return StateError(f"{path} is damaged: {why}")
