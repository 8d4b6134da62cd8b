"""A replica's state as the frames of a snapshot, and back.

head     version, and the commit record whose state it is
inputs   of each, what it remembers beside what the commit record has
queries  of each output partition
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from lmerge_service.errors import StateError
from lmerge_service.merge.snapshots.frames import FrameReader, framed
from lmerge_service.queries.live_events import LiveEvents
from lmerge_service.queries.plan_switch import saved_output
from lmerge_service.replicas.commit_record import ReplicaCommit
from lmerge_service.replicas.inputs import QueryInput
from lmerge_service.replicas.partitions import Partitions

__all__ = ("OpenedSnapshot", "snapshot")

_VERSION: Final = 1


class _Head(msgspec.Struct, frozen=True):
    version: int
    commit: bytes
    inputs: dict[str, bytes]


def snapshot(
    commit: ReplicaCommit, inputs: Mapping[str, QueryInput], partitions: Partitions
) -> Iterator[bytes]:
    """The bytes of the state at this commit record, the latest; nothing may be processed meanwhile.

    Raises:
        StateError: a payload is of a kind that would not come back as it was.
    """
    saved = {name: each.saved() for name, each in inputs.items()}

    def frames() -> Iterator[bytes]:
        yield msgspec.msgpack.encode(_Head(_VERSION, commit.encoded(), saved))
        for query in partitions.queries:
            yield query.snapshot()

    return framed(frames())


class OpenedSnapshot:
    """Takes the chunks of a snapshot, in order."""

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._head: _Head | None = None
        self._queries: list[bytes] = []

    def take(self, chunk: bytes) -> None:
        """Takes the next chunk.

        Raises:
            StateError: it is damaged, or of another version.
        """
        for frame in self._frames.take(chunk):
            if self._head is not None:
                self._queries.append(frame)
                continue
            try:
                self._head = msgspec.msgpack.decode(frame, type=_Head)
            except (msgspec.MsgspecError, ValueError) as error:
                raise StateError(f"the snapshot is damaged: {error}") from error
            if self._head.version != _VERSION:
                raise StateError(
                    f"the snapshot is of version {self._head.version}, this is {_VERSION}"
                )

    def restore(self, inputs: Mapping[str, QueryInput], partitions: Partitions) -> ReplicaCommit:
        """Has inputs and queries be as they were; at which commit record.

        Raises:
            StateError: it is not whole, damaged, or of another plan.
        """
        commit, saved = self._whole()
        if commit.plan != partitions.plan.fingerprint or len(self._queries) != len(
            partitions.queries
        ):
            raise StateError(
                f"the snapshot is of the plan {commit.plan} in {len(self._queries)} partitions, "
                f"not of {partitions.plan.fingerprint} in {len(partitions.queries)}"
            )
        for query, each in zip(partitions.queries, self._queries, strict=True):
            query.restore(each)
        for name, source in inputs.items():
            if name not in saved or name not in commit.inputs:
                raise StateError(f"the snapshot has no input {name!r}")
            source.restore(saved[name])
            source.go_on([each.reached for each in commit.inputs[name].partitions])
        partitions.expect({name: source.stable for name, source in inputs.items()})
        return commit

    def outputs(self) -> tuple[ReplicaCommit, list[LiveEvents]]:
        """What the output of each partition held, whatever the plan.

        Raises:
            StateError: it is not whole, or damaged.
        """
        commit, _ = self._whole()
        return commit, [saved_output(each) for each in self._queries]

    def _whole(self) -> tuple[ReplicaCommit, dict[str, bytes]]:
        if self._head is None or not self._frames.is_whole:
            raise StateError("the snapshot is damaged: it has no end")
        return ReplicaCommit.of(self._head.commit), self._head.inputs
