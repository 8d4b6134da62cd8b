"""Commit records of a replica: what each transaction commits beside its elements.

Theory
    A commit record is the last record of each transaction in the topic `TOPIC.state`. It has up to
    which offset each partition of each input is processed, and how many records each partition of
    the output has, this transaction's included. So the last of them, the inputs and the output are
    all that a process needs which goes on; a snapshot, the state as it was at some commit record,
    saves reading what was before.

Invariants
    C1  Everything before `next` of a partition of an input is processed, and nothing behind it.
    C2  `records` of the output count what this incarnation has published; those behind `offset` are
        `records - counted`.
    C3  incarnation and transaction never fall; with the first record of an incarnation all else
        begins anew.
"""

from typing import Any, Final

import msgspec

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import StateError
from lmerge_service.merge.commit_record import SnapshotPlace

__all__ = (
    "Correction",
    "InputCheckpoint",
    "InputPartition",
    "OutputPartition",
    "ReplicaCommit",
    "state_topic",
)

_VERSION: Final = 1
_KIND: Final = "query"


def state_topic(output: str) -> str:
    """Where the commit records and snapshots of an output are."""
    return f"{output}.state"


class InputPartition(msgspec.Struct, frozen=True, array_like=True):
    """One partition of an input."""

    begins: int
    """The first offset that was read."""
    next: int
    """The offset to go on from."""
    reached: int
    """Of facts the highest time, of elements the stable point."""


class InputCheckpoint(msgspec.Struct, frozen=True):
    """One input: a topic that a source of the plan is."""

    topic: str
    topic_id: str | None
    partitions: tuple[InputPartition, ...]


class OutputPartition(msgspec.Struct, frozen=True, array_like=True):
    """One partition of the output."""

    offset: int
    """An offset, before which there are …"""
    counted: int
    """… so many records of this incarnation."""
    records: int
    """How many there are with this transaction."""
    stable: int
    """Its stable point."""


class Correction(msgspec.Struct, frozen=True, array_like=True):
    """A revision of a source's facts; events as (row, vs, ve): what was there, and what is."""

    source: str
    old: tuple[tuple[Any, ...], int, int] | None
    new: tuple[tuple[Any, ...], int, int] | None

    @property
    def start(self) -> int:
        """The least start of its events."""
        return min(vs for each in (self.old, self.new) if each is not None for vs in (each[1],))


class ReplicaCommit(msgspec.Struct, frozen=True, kw_only=True):
    """Where a replica stands with one transaction."""

    kind: str = _KIND
    version: int = _VERSION
    query: str
    """The fingerprint of the logical plan."""
    plan: str
    """That of the physical one."""
    transaction: int
    incarnation: int
    joining_at: int
    since: int | None
    """The time of the first facts that were asked for; None: all there were."""
    inputs: dict[str, InputCheckpoint]
    """By the name of the source."""
    output: tuple[OutputPartition, ...]
    point: int
    """Of the feedback: what ends before it is left out."""
    snapshots: tuple[SnapshotPlace, ...] = ()
    """The latest first."""
    corrections: tuple[Correction, ...] = ()
    """Of its facts (`correcting`), in the order in which they were made."""

    @property
    def has_ended(self) -> bool:
        """Nothing more will be published."""
        return all(each.stable == INFINITY for each in self.output)

    @property
    def stable(self) -> int:
        """The output's stable point."""
        return min((each.stable for each in self.output), default=START)

    def encoded(self) -> bytes:
        """The record's value as JSON, which `of` reads."""
        return msgspec.json.encode(self)

    @classmethod
    def of(cls, value: bytes | None) -> "ReplicaCommit":
        """Reads what `encoded` wrote.

        Raises:
            StateError: it is no commit record of a replica, or of another version.
        """
        try:
            head = msgspec.json.decode(value or b"", type=_Head)
            if (head.kind, head.version) != (_KIND, _VERSION):
                raise StateError(
                    f"a commit record of {head.kind}, version {head.version}; this is {_KIND}, "
                    f"version {_VERSION}"
                )
            return msgspec.json.decode(value or b"", type=cls)
        except (msgspec.MsgspecError, ValueError) as error:  # ValueError: it is no UTF-8
            raise StateError(f"not a commit record: {error}") from error


class _Head(msgspec.Struct):
    kind: str = "a merge"
    version: int = 0
