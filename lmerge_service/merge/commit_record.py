"""Marks: what each transaction of a task says about where it stands, beside its output.

Theory
    A mark is a record of the task's partition of the state topic, the last record of each of its
    transactions there. It says how much output there is up to and with this transaction, up to
    where each partition of each replica has been merged, and what else has to be known of the
    replicas. So the last mark, the output and the replicas' topics are all that a new owner needs:

        output        i i a s | i s |            (records, and the transactions' ends)
        state topic        m1 |  m2 |            m2: said=6, a[0] next=41, b[0] next=17

    A snapshot is the state as it was at some mark, and saves reading what was before; the mark
    says where the latest of them are.

Invariants
    M1  transaction, said and decided never fall from one mark to the next.
    M2  Everything before `next` of a partition is merged, or needs nothing.
"""

from typing import Final

import msgspec

from lmerge_service.elements import START
from lmerge_service.errors import StateError

__all__ = (
    "MARK_KEY",
    "CommitRecord",
    "Diverged",
    "PartitionMark",
    "ReplicaCheckpoint",
    "SnapshotPlace",
    "chunk_key",
)

MARK_KEY: Final = b"mark"

_VERSION = 1


def chunk_key(slot: int, number: int) -> bytes:
    """The key of a snapshot's chunk. Slots are used in turn, so that the state topic, which is
    compacted, keeps as many snapshots as there are slots.

    >>> chunk_key(1, 20)
    b'snapshot/1/20'
    """
    return b"snapshot/%d/%d" % (slot, number)


class PartitionMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """One partition of a replica's topic."""

    begins: int
    """The first offset that was merged."""
    next: int
    """The offset to go on from."""
    mute: int = 0
    """Stables at offsets below this do not count: the replica was in quarantine until then."""


class ReplicaCheckpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A replica that is merged. Only its latest incarnation counts: what an older one said was
    heard against another output."""

    topic: str
    partitions: dict[int, PartitionMark]
    topic_id: str | None = None
    epoch: int = 0
    """How often it was attached or released by decisions."""
    incarnation: int = 0
    joining_at: int = START
    gap_accepted: bool = False
    """It was joined before its time: a person accepted the gap before its joining time."""
    since: int = 0
    """The first transaction that it was merged with: one that is merged anew, whatever for, has
    another."""


class SnapshotPlace(msgspec.Struct, frozen=True):
    """Where a snapshot is in the state topic, and how to tell that it is whole."""

    slot: int
    transaction: int
    """It is the state as of this transaction's mark."""
    first: int
    last: int
    """Offsets of its first and last chunk; other records stand between them."""
    chunks: int
    size: int
    """Bytes."""
    digest: str
    """SHA-256 of all chunks, one after the other."""
    taken: int
    """Milliseconds since the epoch."""


class Diverged(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task has seen of contradictions since a cutover began."""

    cutover: int
    """The version that began it."""
    count: int
    first: str
    """The first of them, in words."""


class CommitRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a task stands with one transaction."""

    version: int = _VERSION
    merge: str = ""
    """The name of the merge that committed it; workers of another name are another merge."""
    transaction: int = 0
    said: int = 0
    """How many records the output partition has, this transaction's included."""
    stable: int = START
    """The output's stable point."""
    decided: int = 0
    """The version of the decisions that are carried out."""
    replicas: dict[str, ReplicaCheckpoint] = {}
    quarantined: dict[str, str] = {}
    """Replicas put into quarantine by this task's guards, and why."""
    diverged: Diverged | None = None
    """Of the latest cutover that it has seen any of."""
    snapshots: tuple[SnapshotPlace, ...] = ()
    """The latest first."""

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def of(cls, value: bytes | None) -> "CommitRecord":
        """Reads what `encoded` wrote.

        Raises:
            StateError: it is no mark, or of another version.
        """
        try:
            version = msgspec.json.decode(value or b"", type=_Version).version
            if version != _VERSION:
                raise StateError(f"a mark of version {version}, this is version {_VERSION}")
            return msgspec.json.decode(value or b"", type=cls)
        except (msgspec.MsgspecError, ValueError) as error:  # ValueError: it is no UTF-8
            raise StateError(f"not a mark: {error}") from error


class _Version(msgspec.Struct):
    version: int = _VERSION
